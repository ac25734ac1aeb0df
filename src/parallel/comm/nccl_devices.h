// The GPUs of one process, joined by NCCL.
#pragma once

#include <memory>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Broadcasts and reduces by NCCL between the first of these GPUs, as many as a collective has
/// tensors; `ordinals` are theirs, in the order of the program's devices, each once unless NCCL
/// lets ranks share a GPU (parallel/comm/gpu_places.h). All ranks are in this process. Sums are in
/// NCCL's order, which one machine repeats. Throws Error: kConfiguration in a build without NCCL;
/// kTryAgain, from prepare() on, when NCCL fails.
std::unique_ptr<Communicator> join_devices_by_nccl(const std::vector<int>& ordinals);

}  // namespace barestep
