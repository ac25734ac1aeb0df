// An NCCL without a GPU, linked in its place: the functions that src/parallel/comm/nccl_*.cpp call.
// Ranks are threads of one process. A "stream" is a barestep::Stream, on whose thread a collective
// waits for the other ranks as NCCL's kernels do on a GPU.
//
// It is as unforgiving as NCCL, and tells where NCCL would hang or compute nonsense: ranks that
// call different operations, counts or types, communicators that are used after they were
// destroyed, and in non-blocking mode calls that touch a job which another thread owns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fake_nccl {

/// As new: nothing called, of this version, "NCCL_VERSION_CODE".
void reset(int version = 22809);

/// Calls of a function so far.
int calls(std::string_view function);

/// Threads that NCCL started to queue work: one for each call in non-blocking mode.
int threads_started();

/// What the callers did wrong so far.
std::vector<std::string> complaints();

}  // namespace fake_nccl
