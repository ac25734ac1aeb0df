// Which GPU each rank has, so that all ranks know whether NCCL can join them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Of one rank. Ordinals identify nothing: a launcher may show each rank its own GPU as
/// cuda:0.
struct RankGpu {
  std::string host;            // as host_identity() has it
  std::string bus_id;          // "00000000:17:00.0"; empty where the rank has no GPU
  std::string why_not_shared;  // why NCCL does not let ranks share a GPU here; empty where it does
};

/// This host's name and boot, which its containers have in common. NCCL tells hosts apart by them.
std::string host_identity();

/// The places of all ranks, where this one's GPU is at `bus_id`, or empty. Every rank calls it.
/// Blocks.
std::vector<RankGpu> gather_gpu_places(Communicator& ranks, const std::string& bus_id);

/// Two ranks that have the same GPU, the lowest such pair; {-1, -1} where there is none.
std::pair<int, int> ranks_on_one_gpu(std::span<const RankGpu> ranks);

/// No lower rank has this one's GPU; false where it has none.
bool is_first_on_gpu(std::span<const RankGpu> ranks, int rank);

/// Why NCCL cannot join these ranks, "ranks 0 and 1 have the same GPU, ..."; empty where it can.
/// Every rank that knows the places of all comes to the same.
std::string why_nccl_cannot_join(std::span<const RankGpu> ranks);

/// "takes each GPU once", and why: of an NCCL of this version (22809 is 2.28.9), where
/// NCCL_MULTI_RANK_GPU_ENABLE holds `variable`, or is not set: null. Empty where ranks may share
/// one.
std::string why_gpus_are_not_shared(int nccl_version, const char* variable);

/// The same of the library and the environment of this process.
std::string why_gpus_are_not_shared();

}  // namespace barestep
