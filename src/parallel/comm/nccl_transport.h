// Ranks joined by NCCL, each with one GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/group.h"
#include "core/transport.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// Why NCCL cannot be used: this build has none, or its library cannot be loaded, which the first
/// call tries. Empty if it can.
std::string why_no_nccl();

/// Version of the loaded library, "2.28.9"; empty without one.
std::string nccl_version();

/// The same as a number, 22809; 0 without a library.
int nccl_version_code();

/// Upper bound of the device memory that NCCL allocates for itself when it joins this many ranks,
/// in one communicator.
/// In NCCL 2.28 (src/init.cc, computeBuffSizes), a channel has 9.2 MiB per connection that it
/// receives from: 0.5 for LL, 4.7 for LL128, 4 for Simple. 32 channels, each with a ring and with a
/// tree that receives from two, make 882 MiB; the rest is for NCCL's kernels and proxies. A single
/// rank receives from no one.
constexpr std::int64_t nccl_bytes(int ranks) {
  return ranks == 1 ? 0 : std::int64_t{1} << 30;
}

/// The same for each peer that a rank exchanges with: as many channels, where NVLink joins the two
/// (src/graph/paths.cc, ncclTopoGetNchannels).
constexpr std::int64_t kNcclBytesOfPeer = std::int64_t{295} << 20;

/// Collectives by NCCL on `device`, the GPU that the calling thread has opened; `ranks` carry
/// NCCL's id. Both must outlive the transport. Every rank calls
/// it. Throws Error: kConfiguration where why_no_nccl() says so, kTryAgain when NCCL fails. Blocks.
///
/// Every sum is NCCL's plain sum, the only one that NVLink switches compute for fp32. A rank scales
/// its numbers before the sum, in a kernel on the collective's stream, so all ranks call the same
/// operation whatever their scales are. NCCL runs in blocking mode: the calling thread queues a
/// collective, and any thread may call poll_error().
///
/// `record`, if it is not null, records which collective the GPU has reached, as of the last poll:
/// those of groups too, which are queued on the same stream. Captured collectives are not recorded,
/// since the host cannot query their events.
std::unique_ptr<Transport> join_nccl(Group& ranks, Device& device, FlightRecord* record = nullptr);

// The GPUs of one process, joined by NCCL.

/// Broadcasts and reduces by NCCL among the first of these GPUs, as many as a collective has
/// tensors. `ordinals` are the GPUs' ordinals in the order of the program's devices; each appears
/// once unless NCCL lets ranks share a GPU (parallel/comm/gpu_places.h). All ranks are in this
/// process. NCCL chooses the order of a sum; it is reproducible on one machine. Throws Error:
/// kConfiguration, from prepare() on, where why_no_nccl() says so, and kTryAgain when NCCL fails.
std::unique_ptr<Transport> join_devices_by_nccl(const std::vector<int>& ordinals);

}  // namespace barestep
