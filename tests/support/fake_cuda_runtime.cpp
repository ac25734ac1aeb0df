#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/cuda_fake_state.h"
#include "support/host_cuda.h"

using namespace fake_cuda;

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

/// Runs a kernel, and takes the time that the machine states.
void run_kernel(const std::function<void()>& kernel, int device) {
  const std::int64_t before = tensor_products();
  kernel();
  const std::optional<int>& fast = state().machine.fast_tensor_cores;
  const bool uses_them = tensor_products() > before;
  if (fast && uses_them != (device == *fast)) state().extra_s += 10;
}

/// Kernels that run on the host are work of our streams.
bool take_launches() {
  host_cuda::set_queue([](void* stream, std::function<void()> work, bool ahead) {
    if (const int status = scripted("kernel"); status != 0) return status;
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (ahead && !queue->ends_with_kernel) return static_cast<int>(failed(cudaErrorInvalidValue));
    if (ahead) ++state().launched_ahead;
    const cudaError_t status = submit(queue, {[kernel = std::move(work), device = state().device] {
                                        run_kernel(kernel, device);
                                      }});
    queue->ends_with_kernel = true;
    return static_cast<int>(status);
  });
  host_cuda::set_gate([](bool open) { protect_all(open ? PROT_READ | PROT_WRITE : PROT_NONE); });
  return true;
}
[[maybe_unused]] const bool kTakesLaunches = take_launches();

}  // namespace

double now_s() {
  return state().extra_s +
         std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::shared_ptr<Capture>& capture_of(cudaStream_t stream) {
  if (stream->capture != state().capture) stream->capture = nullptr;
  return stream->capture;
}

cudaError_t forbidden_in_capture() {
  if (state().capture == nullptr) return cudaSuccess;
  state().capture->invalid = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}

bool inside(const std::map<std::byte*, std::int64_t>& allocations, const void* memory,
            std::size_t bytes) {
  auto* const first = static_cast<std::byte*>(const_cast<void*>(memory));
  auto found = allocations.upper_bound(first);
  if (found == allocations.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second;
}

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
  // A GPU does not run code that is newer than itself.
  host_cuda::machine() = {.code_architecture =
                              std::min(machine.code_architecture, 10 * machine.capability)};
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

int calls() {
  int all = 0;
  for (const auto& [function, count] : state().calls) all += count;
  return all;
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

int event_nodes() {
  return state().event_nodes;
}

std::vector<int> priorities_replayed() {
  return state().priorities_replayed;
}

std::int64_t tensor_products() {
  return host_cuda::machine().tensor_products;
}

int launched_ahead() {
  return state().launched_ahead;
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
  if (stream != nullptr) stream->ends_with_kernel = false;
  if (capture_of(stream) != nullptr) {
    work.priority = stream->priority;
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
  if (device >= state().machine.devices) return failed(cudaErrorInvalidDevice);
  state().device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  FAKE_CALL();
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  properties->l2CacheSize = state().machine.cache_bytes;
  properties->pciDomainID = 1;
  properties->pciBusID = 0x17;
  properties->pciDeviceID = 0xa;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  FAKE_CALL();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = state().machine.capability;
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
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 * 1024;
      break;
    case cudaDevAttrL2CacheSize:
      *value = state().machine.cache_bytes;
      break;
    default:
      return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  FAKE_CALL();
  *can = state().machine.peers && device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned flags) {
  FAKE_CALL();
  return flags == 0 ? cudaSuccess : failed(cudaErrorInvalidValue);
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
  // The page after it is never accessible, so writing past the end is detected.
  const std::size_t mapped = rounded(size) + static_cast<std::size_t>(page_bytes());
  void* const pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  // Access changes a thousand times a second, which is cheaper with large pages.
  madvise(pages, mapped, MADV_HUGEPAGE);
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
  // Copies from pageable memory cannot be captured.
  if (capture_of(stream) != nullptr && !(is_known(to) && is_known(from))) {
    capture_of(stream)->invalid = true;
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  return submit(stream, {[=] { std::memcpy(to, from, bytes); }});
}

}  // extern "C"
