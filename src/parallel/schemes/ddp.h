// DistributedDataParallel: a rank's step has an all-reduce at each point where a bucket of
// gradients is complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/config.h"
#include "data/dataset.h"
#include "model/parameters.h"
#include "train/step.h"

namespace barestep {

/// PyTorch's default limits: the first bucket is small so that communication starts early.
constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20;
constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;

/// Gradients that are reduced together: a range of the flat buffer and the parameters in it. A
/// range includes the padding between its tensors.
struct Bucket {
  Tensor gradients;
  std::vector<ParameterId> parameters;

  friend bool operator==(const Bucket&, const Bucket&) = default;
};

/// The buckets of the flat gradient buffer, in its order. Limits count the numbers without padding,
/// as PyTorch's do.
std::vector<Bucket> gradient_buckets(const Parameters& parameters, BufferId gradients,
                                     std::int64_t first_bytes = kFirstBucketBytes,
                                     std::int64_t bytes = kBucketBytes);

/// Counts the parameters of each bucket, from the first one again once all have been counted.
class BucketCounts {
 public:
  explicit BucketCounts(const std::vector<std::vector<ParameterId>>& buckets);

  /// The number of the bucket whose last parameter this is; nothing if others are left.
  std::optional<int> count(ParameterId id);

 private:
  std::map<ParameterId, int> bucket_of_;
  std::vector<std::int64_t> sizes_, left_;  // by bucket
};

struct DdpSettings {
  std::int64_t first_bucket_bytes = kFirstBucketBytes;
  std::int64_t bucket_bytes = kBucketBytes;
  // PyTorch's first step reduces all gradients as one bucket, because it has not yet seen the order
  // in which they become ready (torch/csrc/distributed/c10d/reducer.cpp).
  bool whole_first_bucket = false;
  bool overlap = true;  // false: all buckets are reduced after the whole backward pass
  // Buckets are reduced in each micro-step, as in PyTorch without no_sync(). What earlier ones have
  // left is equal on all ranks, whose weights add up to 1, so the next sum keeps it. Ranks with
  // fewer micro-steps take part with what is there. With overlap only.
  bool reduces_every_micro_step = false;
  bool update_per_bucket = false;  // each right after its all-reduce, on the comm lane
  // Gradients are reduced as bf16, as with PyTorch's bf16_compress_hook, which halves the bytes. A
  // bucket is scaled and rounded, once, into a buffer as large as the largest bucket, and copied
  // back after the sum. The hook rounds to bf16 before it divides by the number of ranks, and again
  // after; here the scaling comes first, in fp32. The bits are the same if the number of ranks is a
  // power of two (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py). Rounding on each
  // rank and in the sum keeps a gradient within 1/256 of the sum of the ranks' magnitudes, in each
  // of its reductions.
  bool bf16_gradients = false;
};

DdpSettings ddp_settings_of(const TrainConfig& config);

/// Training steps of one rank: gradients and loss are sums over all ranks, each weighted by the
/// rank's share of the step's rows, so they equal those of the whole batch. For equal shares the
/// weight is 1/ranks, as in PyTorch.
class Ddp final : public Scheme {
 public:
  explicit Ddp(const DdpSettings& settings) : settings_(settings) {}

  /// What every step reduces, except a first step that reduces all as one; see gradient_buckets().
  [[nodiscard]] std::vector<Bucket> buckets(const Parameters& parameters, BufferId gradients) const;

  [[nodiscard]] std::vector<StepKind> kinds(const StepSpec& spec) const override;
  [[nodiscard]] StepKind kind_of(const StepPlace& place, const StepSpec& spec) const override;

  /// Allocates the buffers of Draft::share_loss(), and "bucket_bf16" if gradients are reduced as
  /// bf16. With chunks, ChunkSums adds up gradients instead. Without stored gradients, ranks must
  /// share a single copy of the model, and reduce nothing. With --staleness, gradients are reduced
  /// after backward, beside the next step.
  void build(Draft& draft) const override;

 private:
  void build_late(Draft& draft) const;
  /// Of the gradients, or of those that are applied later. None for a single copy of the model that
  /// stores no gradients.
  [[nodiscard]] std::vector<Bucket> buckets_of(Draft& draft, BufferId delayed = kNoBuffer) const;

  DdpSettings settings_;
};

/// The indices of the tensors in each bucket, in the order given. A bucket is closed as soon as it
/// holds at least its limit, then the next limit applies; the last limit applies to all further
/// buckets (PyTorch's compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp).
/// A bucket may exceed its limit by up to one tensor. `limits_bytes` must not be empty.
std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> sizes_bytes,
                                             std::span<const std::int64_t> limits_bytes);

}  // namespace barestep
