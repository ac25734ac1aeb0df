// Ranks with a GPU each, joined by NCCL.
#pragma once

#include <memory>
#include <string>

#include "core/communicator.h"

namespace barestep {

/// Whether this build has NCCL.
bool has_nccl();

/// Of the library in use, "2.28.9"; empty in a build without NCCL.
std::string nccl_version();

/// Collectives by NCCL on the GPU that the calling thread has opened; `host` carries NCCL's id and
/// all calls with host bytes, and must outlive it. Every rank calls it. NCCL starts without
/// blocking, so that poll_error() and abort() work from the beginning. Ranks may not share a GPU.
/// Throws Error: kConfiguration in a build without NCCL, kTryAgain when NCCL fails. Blocks.
std::unique_ptr<Communicator> join_nccl(Communicator& host);

}  // namespace barestep
