// DistributedDataParallel as a transformation of a program: the step of one rank gets an all-reduce
// wherever a bucket of gradients is complete.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program.h"
#include "train/parameter_layout.h"

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

struct DdpOptions {
  float scale = 1;                 // of each rank's gradients, before the sum
  bool overlap = true;             // false: all buckets are reduced behind the whole backward pass
  bool update_per_bucket = false;  // each right behind its all-reduce, on the comm lane
};

/// Where the mean loss over all ranks goes; a rank's own loss is kept. All 1 x 1; `host` is pinned.
struct GlobalLoss {
  Tensor local;
  Tensor global;
  Tensor host;
};

/// `step`, a training step with one optimizer node over flat buffers, with an AllReduce for each
/// bucket and one for the loss, which is the first on the comm lane. Waits are not set: call
/// order().
Program with_gradient_reduction(const Program& step, const std::vector<Tensor>& buckets,
                                const GlobalLoss& loss, const DdpOptions& options);

}  // namespace barestep
