// An NCCL without a GPU, linked in place of the real one: the functions that
// src/parallel/comm/nccl_*.cpp call. Ranks are threads of one process. A "stream" is a
// barestep::Stream, unless set_queue() says what it is; on its thread, a collective waits for the
// other ranks as NCCL's kernels do on a GPU.
//
// It is as strict as NCCL, and reports cases in which NCCL would hang or return garbage: ranks that
// call different operations, counts or types; communicators used after destruction; and, in
// non-blocking mode, calls that touch a job owned by another thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fake_nccl {

/// Resets to the initial state, with no calls and this version, an "NCCL_VERSION_CODE". A rank that
/// waits for longer than `patience` is said to wait for ever.
void reset(int version = 22809, std::chrono::seconds patience = std::chrono::seconds(20));

/// How work gets into a stream from now on. The work may run several times.
void set_queue(std::function<void(void* stream, std::function<void()> work)> queue);

/// Calls of a function so far.
int calls(std::string_view function);

/// Threads that NCCL started to queue work: one per call in non-blocking mode.
int threads_started();

/// The callers' mistakes so far.
std::vector<std::string> complaints();

}  // namespace fake_nccl
