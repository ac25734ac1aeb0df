// State shared by the fake runtime and the fake cuBLASLt.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/fake_cuda.h"

namespace fake_cuda {

/// Work of a stream. Host functions run without access to device memory.
struct Work {
  std::function<void()> run;
  bool on_host = false;
  int priority = 0;  // of the stream that it was captured on
};

struct Capture {
  std::vector<Work> nodes;
  bool invalid = false;
};

/// For each stream, how much of its captured work comes before an event or before a stream's next
/// work.
using Clock = std::map<const CUstream_st*, int>;

struct State {
  Machine machine;
  std::map<std::string, int, std::less<>> calls;
  std::map<std::string, std::map<int, int>, std::less<>> failures;  // function: call, status
  std::optional<int> all;
  cudaError_t last_error = cudaSuccess;
  std::map<std::byte*, std::int64_t> device_memory;
  std::map<std::byte*, std::int64_t> pinned_memory;
  std::shared_ptr<Capture> capture;  // the active one
  int objects = 0;
  int replayed = 0;
  int event_nodes = 0;
  std::vector<int> priorities_replayed;
  int launched_ahead = 0;
  int last_algorithm = -1;
  int device = 0;      // the current one
  double extra_s = 0;  // how far the clock is ahead of the steady clock
};
State& state();

/// Counts the call; returns the status scripted for it, or 0.
int scripted(std::string_view function);

/// Stores the error for cudaGetLastError.
cudaError_t failed(cudaError_t status);

/// Runs the work, or records it if the stream is being captured.
cudaError_t submit(cudaStream_t stream, Work work);

double now_s();

/// The capture that the stream takes part in; a capture that has ended no longer holds the stream.
std::shared_ptr<Capture>& capture_of(cudaStream_t stream);

/// Success, or the error of a call that is forbidden on a capturing thread.
cudaError_t forbidden_in_capture();

/// Whether [memory, memory + bytes) lies inside one allocation.
bool inside(const std::map<std::byte*, std::int64_t>& allocations, const void* memory,
            std::size_t bytes);

/// The host can access device memory while a Reach exists.
class Reach {
 public:
  Reach();
  ~Reach();
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;
};

}  // namespace fake_cuda

struct CUstream_st {
  int priority = 0;
  std::shared_ptr<fake_cuda::Capture> capture;
  fake_cuda::Clock clock;
  bool ends_with_kernel = false;  // its last work is one of our kernels
};

struct CUevent_st {
  bool times = false;
  bool recorded = false;
  double at_s = 0;
  std::shared_ptr<fake_cuda::Capture> capture;  // for an event recorded in one
  fake_cuda::Clock clock;
  bool external = false;
};

struct CUgraph_st {
  std::shared_ptr<fake_cuda::Capture> capture;
};

struct CUgraphExec_st {
  std::shared_ptr<fake_cuda::Capture> capture;
  bool uses_node_priorities = false;
};

// Returns this call's scripted status, if there is one.
#define FAKE_CALL()                                                         \
  if (const int scripted_status = scripted(__func__); scripted_status != 0) \
  return failed(static_cast<cudaError_t>(scripted_status))
