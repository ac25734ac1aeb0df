#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/fake_cuda_state.h"
#include "support/host_cuda.h"

using namespace fake_cuda;

struct CUstream_st {
  std::shared_ptr<Capture> capture;
  Clock clock;
};

struct CUevent_st {
  bool times = false;
  bool recorded = false;
  double at_s = 0;
  std::shared_ptr<Capture> capture;  // of a recording inside one
  Clock clock;
  bool external = false;
};

struct CUgraph_st {
  std::shared_ptr<Capture> capture;
};

struct CUgraphExec_st {
  std::shared_ptr<Capture> capture;
};

namespace fake_cuda {
namespace {

constexpr int kPoison = 0xFF;
int reach_depth = 0;

std::int64_t page_bytes() {
  return sysconf(_SC_PAGESIZE);
}

std::size_t rounded(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + page_bytes() - 1) / page_bytes() * page_bytes());
}

void protect_all(int protection) {
  for (const auto& [memory, bytes] : state().device_memory) {
    mprotect(memory, rounded(bytes), protection);
  }
}

double now_s() {
  return state().extra_s +
         std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// True where [memory, memory + bytes) lies inside one allocation.
bool inside(const std::map<std::byte*, std::int64_t>& allocations, const void* memory,
            std::size_t bytes) {
  auto* const first = static_cast<std::byte*>(const_cast<void*>(memory));
  auto found = allocations.upper_bound(first);
  if (found == allocations.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second;
}

/// What a thread that captures may not call.
cudaError_t forbidden_in_capture() {
  if (state().capture == nullptr) return cudaSuccess;
  state().capture->invalid = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}

/// The capture that the stream takes part in; one that has ended holds it no more.
std::shared_ptr<Capture>& capture_of(cudaStream_t stream) {
  if (stream->capture != state().capture) stream->capture = nullptr;
  return stream->capture;
}

/// Kernels that run on the host are work of our streams.
bool take_launches() {
  host_cuda::set_queue([](void* stream, std::function<void()> work) {
    if (const int status = scripted("kernel"); status != 0) return status;
    return static_cast<int>(submit(static_cast<cudaStream_t>(stream), {std::move(work)}));
  });
  return true;
}
[[maybe_unused]] const bool kTakesLaunches = take_launches();

}  // namespace

State& state() {
  static State the;
  return the;
}

void reset(const Machine& machine) {
  if (!state().device_memory.empty() || state().objects != 0) {
    std::fputs("fake_cuda: something was not freed\n", stderr);
    std::abort();
  }
  state() = State{};
  state().machine = machine;
}

void fail(std::string_view function, int nth, int status) {
  state().failures[std::string(function)][calls(function) + nth] = status;
}

void fail_all(int status) {
  state().all = status;
}

int calls(std::string_view function) {
  const auto found = state().calls.find(function);
  return found == state().calls.end() ? 0 : found->second;
}

std::int64_t allocated_bytes() {
  std::int64_t bytes = 0;
  for (const auto& allocation : state().device_memory) bytes += allocation.second;
  return bytes;
}

int objects() {
  return state().objects;
}

int replayed() {
  return state().replayed;
}

int last_algorithm() {
  return state().last_algorithm;
}

int scripted(std::string_view function) {
  State& s = state();
  auto& count = s.calls[std::string(function)];
  ++count;
  if (s.all) return *s.all;
  const auto found = s.failures.find(function);
  if (found == s.failures.end()) return 0;
  const auto status = found->second.find(count);
  return status == found->second.end() ? 0 : status->second;
}

cudaError_t failed(cudaError_t status) {
  state().last_error = status;
  return status;
}

cudaError_t submit(cudaStream_t stream, Work work) {
  if (capture_of(stream) != nullptr) {
    stream->capture->nodes.push_back(std::move(work));
    ++stream->clock[stream];
    return cudaSuccess;
  }
  if (work.on_host) {
    work.run();
  } else {
    const Reach reach;
    work.run();
  }
  return cudaSuccess;
}

Reach::Reach() {
  if (reach_depth++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

Reach::~Reach() {
  if (--reach_depth == 0) protect_all(PROT_NONE);
}

}  // namespace fake_cuda

// The scripted status of this call, if there is one.
#define FAKE_CALL()                                                         \
  if (const int scripted_status = scripted(__func__); scripted_status != 0) \
  return failed(static_cast<cudaError_t>(scripted_status))

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().machine.driver_version;
  return cudaSuccess;
}

#define NAME(status) \
  case status:       \
    return #status

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInitializationError);
    NAME(cudaErrorStubLibrary);
    NAME(cudaErrorInsufficientDriver);
    NAME(cudaErrorDevicesUnavailable);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorInvalidKernelImage);
    NAME(cudaErrorNoKernelImageForDevice);
    NAME(cudaErrorECCUncorrectable);
    NAME(cudaErrorNvlinkUncorrectable);
    NAME(cudaErrorUnsupportedPtxVersion);
    NAME(cudaErrorIllegalAddress);
    NAME(cudaErrorLaunchTimeout);
    NAME(cudaErrorLaunchFailure);
    NAME(cudaErrorHardwareStackError);
    NAME(cudaErrorSystemNotReady);
    NAME(cudaErrorSystemDriverMismatch);
    NAME(cudaErrorMpsServerNotReady);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureUnjoined);
    NAME(cudaErrorContained);
    NAME(cudaErrorExternalDevice);
    NAME(cudaErrorInvalidConfiguration);
    default:
      return "cudaErrorOfTheFake";
  }
}

const char* cudaGetErrorString(cudaError_t) {
  return "the fake was told to fail";
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = state().last_error;
  if (!state().all) state().last_error = cudaSuccess;
  return status;
}

cudaError_t cudaPeekAtLastError() {
  return state().last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_CALL();
  if (state().machine.driver_version < CUDART_VERSION) return failed(cudaErrorInsufficientDriver);
  if (state().machine.devices == 0) return failed(cudaErrorNoDevice);
  *count = state().machine.devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  FAKE_CALL();
  return device < state().machine.devices ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  FAKE_CALL();
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  FAKE_CALL();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = state().machine.multiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = state().machine.threads_per_multiprocessor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 1 << 16;
      break;
    default:
      return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  FAKE_CALL();
  *total_bytes = static_cast<std::size_t>(state().machine.memory_bytes);
  *free_bytes = *total_bytes - static_cast<std::size_t>(allocated_bytes());
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  FAKE_CALL();
  return forbidden_in_capture();
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  FAKE_CALL();
  if (const cudaError_t status = forbidden_in_capture(); status != cudaSuccess) return status;
  const auto size = static_cast<std::int64_t>(bytes);
  if (allocated_bytes() + size > state().machine.memory_bytes) {
    return failed(cudaErrorMemoryAllocation);
  }
  // A page behind it stays out of reach: what runs over the end shows.
  const std::size_t mapped = rounded(size) + static_cast<std::size_t>(page_bytes());
  void* const pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  state().device_memory[static_cast<std::byte*>(pages)] = size;
  const Reach reach;
  mprotect(pages, rounded(size), PROT_READ | PROT_WRITE);
  std::memset(pages, kPoison, bytes);
  *memory = pages;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const auto found = state().device_memory.find(static_cast<std::byte*>(memory));
  if (found == state().device_memory.end()) return failed(cudaErrorInvalidValue);
  munmap(memory, rounded(found->second) + static_cast<std::size_t>(page_bytes()));
  state().device_memory.erase(found);
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  FAKE_CALL();
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, kPoison, bytes);
  state().pinned_memory[static_cast<std::byte*>(*memory)] = static_cast<std::int64_t>(bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  if (state().pinned_memory.erase(static_cast<std::byte*>(memory)) == 0) {
    return failed(cudaErrorInvalidValue);
  }
  std::free(memory);
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  FAKE_CALL();
  const Reach reach;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  FAKE_CALL();
  if (!inside(state().device_memory, memory, bytes)) return failed(cudaErrorInvalidValue);
  return submit(stream, {[=] { std::memset(memory, value, bytes); }});
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  FAKE_CALL();
  if (kind != cudaMemcpyDefault) return failed(cudaErrorInvalidValue);
  const auto is_known = [bytes](const void* memory) {
    return inside(state().device_memory, memory, bytes) ||
           inside(state().pinned_memory, memory, bytes);
  };
  // Memory that is not pinned cannot be captured.
  if (capture_of(stream) != nullptr && !(is_known(to) && is_known(from))) {
    capture_of(stream)->invalid = true;
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  return submit(stream, {[=] { std::memcpy(to, from, bytes); }});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  FAKE_CALL();
  if (flags != cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
  *stream = new CUstream_st;
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  --state().objects;
  delete stream;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  FAKE_CALL();
  return forbidden_in_capture();
}

cudaError_t cudaStreamQuery(cudaStream_t) {
  FAKE_CALL();
  return forbidden_in_capture();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  FAKE_CALL();
  if (flags != cudaEventWaitDefault || event->external) return failed(cudaErrorInvalidValue);
  if (event->capture == nullptr) {
    // Work outside a capture is nothing that one can wait for.
    if (capture_of(stream) == nullptr) return cudaSuccess;
    capture_of(stream)->invalid = true;
    return failed(cudaErrorStreamCaptureIsolation);
  }
  if (event->capture != state().capture) return failed(cudaErrorInvalidValue);
  if (capture_of(stream) == nullptr) {
    stream->capture = event->capture;
    stream->clock = {};
  }
  for (const auto& [known, count] : event->clock) {
    stream->clock[known] = std::max(stream->clock[known], count);
  }
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  FAKE_CALL();
  return submit(stream, {[=] { function(argument); }, true});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FAKE_CALL();
  *event = new CUevent_st;
  (*event)->times = (flags & cudaEventDisableTiming) == 0;
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --state().objects;
  delete event;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  FAKE_CALL();
  if (flags == cudaEventRecordExternal) {
    if (capture_of(stream) == nullptr) return failed(cudaErrorIllegalState);
    event->external = true;
    return submit(stream, {[event] {
                    event->recorded = true;
                    event->at_s = now_s();
                  }});
  }
  event->external = false;
  event->capture = capture_of(stream);
  event->clock = stream->clock;
  event->recorded = true;
  event->at_s = now_s();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_CALL();
  if (event->capture != nullptr) return failed(cudaErrorCapturedEvent);
  return forbidden_in_capture();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAKE_CALL();
  if (event->capture != nullptr) return failed(cudaErrorCapturedEvent);
  return forbidden_in_capture();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  FAKE_CALL();
  if (!start->times || !end->times || !start->recorded || !end->recorded) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = static_cast<float>((end->at_s - start->at_s) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  FAKE_CALL();
  if (state().capture != nullptr) return failed(cudaErrorIllegalState);
  state().capture = std::make_shared<Capture>();
  stream->capture = state().capture;
  stream->clock.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_CALL();
  const std::shared_ptr<Capture> capture = std::move(state().capture);
  state().capture = nullptr;
  *graph = nullptr;
  if (capture == nullptr) return failed(cudaErrorIllegalState);
  if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
  int joined = 0;
  for (const auto& counted : stream->clock) joined += counted.second;
  if (joined < static_cast<int>(capture->nodes.size())) {
    return failed(cudaErrorStreamCaptureUnjoined);
  }
  *graph = new CUgraph_st{capture};
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  FAKE_CALL();
  *exec = new CUgraphExec_st{graph->capture};
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  --state().objects;
  delete graph;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  --state().objects;
  delete exec;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_CALL();
  for (const Work& work : exec->capture->nodes) {
    static_cast<void>(submit(stream, work));
    ++state().replayed;
  }
  return cudaSuccess;
}

}  // extern "C"
