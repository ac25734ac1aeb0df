// DistributedDataParallel: in the step of a rank there is an all-reduce wherever a bucket of
// gradients is complete.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config.h"
#include "data/dataset.h"
#include "train/parameter_layout.h"
#include "train/step.h"

namespace barestep {

/// PyTorch's limits: the first bucket is small, so that communication starts early.
constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20;
constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;

/// The ranges of the flat gradient buffer that are reduced together, in the order in which backward
/// completes them. Limits count the numbers without padding, as PyTorch's do; a range includes the
/// padding between its tensors.
std::vector<Tensor> gradient_buckets(const ParameterLayout& layout, BufferId gradients,
                                     std::int64_t first_bytes = kFirstBucketBytes,
                                     std::int64_t bytes = kBucketBytes);

struct DdpSettings {
  std::int64_t first_bucket_bytes = kFirstBucketBytes;
  std::int64_t bucket_bytes = kBucketBytes;
  // PyTorch's first step reduces all gradients as one: it has not seen yet in which order they
  // become ready (torch/csrc/distributed/c10d/reducer.cpp).
  bool whole_first_bucket = false;
  bool overlap = true;             // false: all buckets are reduced after the whole backward pass
  bool update_per_bucket = false;  // each right after its all-reduce, on the comm lane
  // Gradients are reduced as bf16, as with PyTorch's bf16_compress_hook; half the bytes. A bucket
  // is scaled and rounded, once, into a buffer as large as the largest, and comes back from there
  // after the sum. The hook rounds to bf16 before it divides by the ranks and once more then, here
  // they are scaled in fp32 first: the same bits where ranks are a power of two
  // (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py). Rounded on each rank and as a
  // sum, a gradient is within 1/256 of the ranks' magnitudes.
  bool bf16_gradients = false;
};

DdpSettings ddp_settings_of(const TrainConfig& config);

/// The spec of one rank's programs. Throws Error(kConfiguration) when a step has fewer samples than
/// there are ranks, or too many.
StepSpec spec_of_rank(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int rank,
                      int ranks);

/// Training steps as ranks take them: gradients and loss are sums over all ranks, each rank's
/// weighted by its share of the step's rows, which makes them those of the whole batch. For equal
/// shares the weight is 1/ranks, as PyTorch's.
class Ddp final : public Scheme {
 public:
  explicit Ddp(const DdpSettings& settings) : settings_(settings) {}

  /// What is reduced in every step but a whole first one; see gradient_buckets().
  [[nodiscard]] std::vector<Tensor> buckets(const ParameterLayout& layout,
                                            BufferId gradients) const;

  [[nodiscard]] bool has_first_step() const override { return settings_.whole_first_bucket; }

  /// Takes the buffers of Draft::share_loss(), and "bucket_bf16" where gradients are reduced so.
  void build(Draft& draft) const override;
  [[nodiscard]] std::string exchange_text(const StepSpec& spec,
                                          std::string_view transport) const override;

 private:
  DdpSettings settings_;
};

/// Numbers of the tensors that share a bucket, in the order given: a bucket is closed as soon as it
/// holds at least its limit, then the next limit counts, and the last one for all that follow
/// (PyTorch's compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp). A bucket
/// may exceed its limit by up to one tensor. `limits_bytes` must not be empty.
std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> sizes_bytes,
                                             std::span<const std::int64_t> limits_bytes);

}  // namespace barestep
