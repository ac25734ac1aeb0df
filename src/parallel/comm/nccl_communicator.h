// Ranks with a GPU each, joined by NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// Whether this build has NCCL.
bool has_nccl();

/// Of the library in use, "2.28.9"; empty in a build without NCCL.
std::string nccl_version();

/// The same as a number, 22809; 0 in a build without NCCL.
int nccl_version_code();

/// Device memory that NCCL takes for itself, at most, where it joins so many ranks: in NCCL 2.28
/// (src/init.cc, computeBuffSizes) a channel has 9.2 MiB for each connection that it receives from:
/// 0.5 of LL, 4.7 of LL128, 4 of Simple. 32 channels, each with a ring and a tree, which receives
/// from two, make 882 MiB; the rest is for its kernels and proxies. One rank receives from none.
constexpr std::int64_t nccl_bytes(int ranks) {
  return ranks == 1 ? 0 : std::int64_t{1} << 30;
}

/// Collectives by NCCL on `device`, the GPU that the calling thread has opened; `host` carries
/// NCCL's id and all calls with host bytes. Both must outlive it. Every rank calls it. Throws
/// Error: kConfiguration in a build without NCCL, kTryAgain when NCCL fails. Blocks.
///
/// Every sum is NCCL's plain one, the only one that NVLink switches compute for fp32; a rank scales
/// its numbers before it, by a kernel in the collective's stream. So all ranks call the same op
/// whatever their scales are. NCCL runs in its blocking mode, in which a collective is queued by
/// the calling thread and poll_error() may be called by any.
///
/// `record`, if it is not null, records which collective the GPU is at, as far as it was polled;
/// not of collectives that are captured, whose events no host can ask.
std::unique_ptr<Communicator> join_nccl(Communicator& host, Device& device,
                                        FlightRecord* record = nullptr);

// The GPUs of one process, joined by NCCL.

/// Broadcasts and reduces by NCCL between the first of these GPUs, as many as a collective has
/// tensors; `ordinals` are theirs, in the order of the program's devices, each once unless NCCL
/// lets ranks share a GPU (parallel/comm/gpu_places.h). All ranks are in this process. Sums are in
/// NCCL's order, which one machine repeats. Throws Error: kConfiguration in a build without NCCL;
/// kTryAgain, from prepare() on, when NCCL fails.
std::unique_ptr<Communicator> join_devices_by_nccl(const std::vector<int>& ordinals);

}  // namespace barestep
