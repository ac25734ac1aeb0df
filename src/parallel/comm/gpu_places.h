// Which GPU each rank uses, so that every rank can decide whether NCCL can join them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/group.h"

namespace barestep {

/// The GPU of one rank. Ordinals do not identify a GPU: a launcher may present each rank's own GPU
/// as cuda:0.
struct RankGpu {
  std::string host;            // as returned by host_identity()
  std::string bus_id;          // "00000000:17:00.0"; empty if the rank has no GPU
  std::string why_not_shared;  // why NCCL does not let ranks share a GPU here; empty if it does
};

/// Identifies this host by its name and boot id, which all its containers share, as NCCL does.
std::string host_identity();

/// Gathers the GPU of every rank; this rank's is at `bus_id`, empty if it has none. Every rank
/// calls it. Blocks.
std::vector<RankGpu> gather_gpu_places(Group& ranks, const std::string& bus_id);

/// The lowest pair of ranks that have the same GPU; {-1, -1} if there is none.
std::pair<int, int> ranks_on_one_gpu(std::span<const RankGpu> ranks);

/// Whether no lower rank has this rank's GPU; false if this rank has no GPU.
bool is_first_on_gpu(std::span<const RankGpu> ranks, int rank);

/// Why NCCL cannot join these ranks, such as "ranks 0 and 1 have the same GPU, ..."; empty if it
/// can. Every rank gets the same result.
std::string why_nccl_cannot_join(std::span<const RankGpu> ranks);

/// Whether NCCL joins ranks on these GPUs: if it is asked for, or if it can where that is left
/// open.
bool joins_by_nccl(TransportKind requested, std::span<const RankGpu> ranks);

/// For ranks that asked for NCCL. Throws Error(kConfiguration), on every rank, if it cannot join
/// them.
void require_nccl_joins(std::span<const RankGpu> ranks);

/// "takes each GPU once" with the reason, for an NCCL of this version (22809 is 2.28.9); `variable`
/// is the value of NCCL_MULTI_RANK_GPU_ENABLE, or null if it is not set. Empty if ranks may share a
/// GPU.
std::string why_gpus_are_not_shared(int nccl_version, const char* variable);

/// The same for the library and the environment of this process.
std::string why_gpus_are_not_shared();

}  // namespace barestep
