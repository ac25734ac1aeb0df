// How work is divided: batches over devices, tensors over buckets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/rank_rows.h"

namespace barestep {

/// torch.chunk: pieces of ceil(rows / pieces) until the rows are used up. The last may be smaller,
/// and there may be fewer pieces than asked for: 16 rows in 5 pieces make four of 4.
std::vector<Rows> chunk(std::int64_t rows, int pieces);

/// Numbers of the tensors that share a bucket, in the order given: a bucket is closed as soon as it
/// holds at least its limit, then the next limit counts, and the last one for all that follow
/// (PyTorch's compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp). A bucket
/// may exceed its limit by up to one tensor. `limits_bytes` must not be empty.
std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> sizes_bytes,
                                             std::span<const std::int64_t> limits_bytes);

}  // namespace barestep
