#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "core/program.h"
#include "core/units.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/ranges.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/timed_kernels.h"
#include "kernels/make_device.h"

namespace barestep {
namespace {

constexpr std::align_val_t kPageableAlignment{256};
constexpr int kFirstWithTf32 = 8;  // of the compute capabilities
/// Of the code that runs here, which may be older than the GPU: only newer code waits for the
/// kernel before it.
constexpr int kFirstWithLaunchesAhead = 90;

cudaDeviceProp properties_of(CudaContext& context) {
  cudaDeviceProp properties{};
  context.require(cudaGetDeviceProperties(&properties, context.ordinal()),
                  "cudaGetDeviceProperties");
  return properties;
}

/// In the driver's format, which its other libraries expect.
std::string pci_bus_id_of(const cudaDeviceProp& properties) {
  return fmt::format("{:08x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                     properties.pciDeviceID);
}

/// "driver for CUDA 13.0, 580.65.06"; the second number comes from the kernel module, if available.
std::string driver_text() {
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  std::string text = fmt::format("driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
  std::ifstream module("/sys/module/nvidia/version");
  if (std::string own; std::getline(module, own)) text += ", " + own;
  return text;
}

int attribute_of(CudaContext& context, cudaDeviceAttr attribute) {
  int value = 0;
  context.require(cudaDeviceGetAttribute(&value, attribute, context.ordinal()),
                  "cudaDeviceGetAttribute");
  return value;
}

/// Code for older GPUs has no such products, whatever runs it.
bool multiplies_tf32(CudaContext& context) {
  return attribute_of(context, cudaDevAttrComputeCapabilityMajor) >= kFirstWithTf32 &&
         kernel_architecture() >= 10 * kFirstWithTf32;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, int index, const DeviceConfig& config)
      : context_(ordinal),
        index_(index),
        properties_(properties_of(context_)),
        model_(properties_.name),
        target_{
            .geometry = {.multiprocessors = attribute_of(context_, cudaDevAttrMultiProcessorCount),
                         .threads_per_multiprocessor =
                             attribute_of(context_, cudaDevAttrMaxThreadsPerMultiProcessor)},
            .block_shared_bytes = attribute_of(context_, cudaDevAttrMaxSharedMemoryPerBlockOptin),
            .tensor_cores = config.precision != Precision::kFp32 && multiplies_tf32(context_),
            .has_tf32 = multiplies_tf32(context_)},
        launches_ahead_(kernel_architecture() >= kFirstWithLaunchesAhead),
        product_(context_, model_, config, target_),
        timed_(context_, target_, product_) {
    run_first_kernel();
  }

  [[nodiscard]] std::string_view name() const override { return context_.name(); }
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  [[nodiscard]] int index() const override { return index_; }
  [[nodiscard]] DeviceInfo info() const override {
    context_.use();
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    context_.require(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return {.model = model_,
            .total_bytes = static_cast<std::int64_t>(total_bytes),
            .free_bytes = static_cast<std::int64_t>(free_bytes),
            .threads = 0,
            .product_library = product_.name() + timed_.text(),
            .pci_bus_id = pci_bus_id_of(properties_),
            .ordinal = context_.ordinal(),
            .driver = driver_text(),
            .multiprocessors = {.count = target_.geometry.multiprocessors,
                                .threads = target_.geometry.threads_per_multiprocessor,
                                .registers = properties_.regsPerMultiprocessor,
                                .shared_bytes = static_cast<std::int64_t>(
                                    properties_.sharedMemPerMultiprocessor)},
            .cache_bytes = properties_.l2CacheSize};
  }

  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    context_.use();
    const auto size = static_cast<std::size_t>(std::max(std::int64_t{1}, bytes));
    void* memory = nullptr;
    if (kind == MemoryKind::kPageable) {
      memory = ::operator new(size, kPageableAlignment);
    } else if (kind == MemoryKind::kPinned) {
      const cudaError_t status = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
      if (status == cudaErrorMemoryAllocation) {
        static_cast<void>(cudaGetLastError());
        fail(ExitCode::kMemory, {.what = "pinned host memory",
                                 .value = "",
                                 .why = human_bytes(bytes) + " could not be allocated",
                                 .remedy = "use a smaller --batch-size"});
      }
      context_.require(status, "cudaHostAlloc");
    } else {
      context_.require(cudaMalloc(&memory, size), "cudaMalloc", bytes);
      allocated_[static_cast<std::byte*>(memory)] = bytes;
      device_bytes_ += bytes;
      if (BARESTEP_POISON != 0) {
        context_.require(cudaMemset(memory, 0xFF, size), "cudaMemset");
        // Non-blocking streams do not wait for it.
        context_.require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      }
    }
    if (BARESTEP_POISON != 0 && kind != MemoryKind::kDevice) std::memset(memory, 0xFF, size);
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory, MemoryKind kind) noexcept override {
    if (kind == MemoryKind::kPageable) return ::operator delete(memory, kPageableAlignment);
    if (const auto found = allocated_.find(memory); found != allocated_.end()) {
      device_bytes_ -= found->second;
      allocated_.erase(found);
    }
    // Fails only after the device was lost, which has already been reported.
    static_cast<void>(kind == MemoryKind::kPinned ? cudaFreeHost(memory) : cudaFree(memory));
  }

  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    if (bytes == 0 || context_.failed()) return;
    context_.use();
    auto& queue = static_cast<CudaDeviceStream&>(stream);
    queue.follows_kernel = false;
    context_.note(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                                  queue.handle()),
                  "cudaMemcpyAsync");
  }

  /// Communication has priority: it needs few multiprocessors, and other ranks wait for it.
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    const StreamRole role = label == name_of(Lane::kComm) ? StreamRole::kFirst : StreamRole::kEqual;
    return std::make_unique<CudaDeviceStream>(context_, role);
  }

  std::unique_ptr<Event> new_event(EventUse use) override {
    return std::make_unique<CudaDeviceEvent>(context_, use);
  }

  void prepare(const DeviceOp& op) override {
    if (const auto* gemm = std::get_if<Gemm>(&op)) product_.prepare(*gemm, fits_in_cache());
    if (const auto* gemm = std::get_if<QuantizedGemm>(&op)) product_.prepare(*gemm);
    timed_.prepare(op, fits_in_cache());
  }

  std::size_t joins(std::span<const DeviceOp* const> ops) override {
    return timed_.joins(ops, fits_in_cache());
  }

  [[nodiscard]] std::string product_choices() const override { return product_.choices(); }
  void set_product_choices(const std::string& text) override { product_.set_choices(text); }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag /*tag*/) override {
    if (context_.failed()) return;
    const ToolRange range(label_of(op));
    context_.use();
    context_.queueing(op);
    auto& queue = static_cast<CudaDeviceStream&>(stream);
    if (const auto* copied = std::get_if<Copy>(&op)) {
      copy(addresses.at<std::byte>(copied->to), addresses.at<std::byte>(copied->from),
           copied->to.bytes(), stream);
    } else if (const auto* gemm = std::get_if<Gemm>(&op)) {
      const auto rest = product_.run(*gemm, addresses, queue, follows_kernel(queue));
      if (rest) launch_kernel(*rest, addresses, queue);
    } else if (const auto* of_bytes = std::get_if<QuantizedGemm>(&op);
               of_bytes != nullptr && product_.run(*of_bytes, addresses, queue)) {
      queue.follows_kernel = false;
      note_launch(launch_dequantize(*of_bytes, addresses, target_.geometry, queue.handle()));
    } else {
      launch_kernel(op, addresses, queue);
    }
  }

  void run_joined(std::span<const DeviceOp* const> ops, const Addresses& addresses, Stream& stream,
                  Tag /*tag*/) override {
    if (context_.failed()) return;
    const ToolRange range(label_of(*ops.front()));
    context_.use();
    context_.queueing(*ops.front());
    auto& queue = static_cast<CudaDeviceStream&>(stream);
    note_launch(timed_.launch(ops, addresses, queue, follows_kernel(queue)));
  }

  void begin_capture(Stream& origin) override {
    BARESTEP_REQUIRE(!context_.capturing, "a capture is on already");
    context_.use();
    // Only calls of this thread that a graph cannot hold are errors; other threads are not
    // affected. Kernels first used in a capture are loaded during it, which drivers of CUDA 12.3
    // and later allow.
    context_.require(cudaStreamBeginCapture(static_cast<CudaDeviceStream&>(origin).handle(),
                                            cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
    context_.capturing = true;
    static_cast<CudaDeviceStream&>(origin).follows_kernel = false;
  }

  std::unique_ptr<Graph> end_capture(Stream& origin) override {
    BARESTEP_REQUIRE(context_.capturing, "no capture is on");
    context_.capturing = false;
    cudaGraph_t captured = nullptr;
    const cudaError_t status =
        cudaStreamEndCapture(static_cast<CudaDeviceStream&>(origin).handle(), &captured);
    const OwnedGraph graph(captured);
    // If anything invalidated the capture, it failed before this call.
    context_.check();
    context_.require(status, "cudaStreamEndCapture");
    cudaGraphExec_t exec = nullptr;
    // Else all nodes would have the priority of the stream that the graph is launched on.
    context_.require(
        cudaGraphInstantiate(&exec, graph.get(), cudaGraphInstantiateFlagUseNodePriority),
        "cudaGraphInstantiate");
    return std::make_unique<CudaDeviceGraph>(OwnedGraphExec(exec));
  }

  void launch(Graph& graph, Stream& stream, std::int64_t /*step*/) override {
    if (context_.failed()) return;
    const ToolRange range("launch graph");
    context_.use();
    context_.note(cudaGraphLaunch(static_cast<CudaDeviceGraph&>(graph).handle(),
                                  static_cast<CudaDeviceStream&>(stream).handle()),
                  "cudaGraphLaunch");
  }

  void set_record_sink(RecordSink* sink) override {
    if (sink == nullptr) return;
    fail(ExitCode::kConfiguration, {.what = "records of device",
                                    .value = context_.name(),
                                    .why = "a CUDA device does not send any",
                                    .remedy = "use --device cpu"});
  }

 private:
  /// Detects kernels that cannot run here, for lack of code for this architecture, now instead of
  /// in a step.
  void run_first_kernel() {
    CudaDeviceStream stream(context_);
    const Tensor out{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 1};
    launch_kernel(Fill{.out = out}, Addresses(std::vector{stream.workspace().data()}), stream);
    stream.synchronize();
  }

  /// Whether everything allocated except workspace, which steps hardly use, fits in the L2 cache.
  [[nodiscard]] bool fits_in_cache() const {
    return device_bytes_ - workspace_bytes(DeviceKind::kCuda) <= properties_.l2CacheSize;
  }

  /// As in KernelQueue. Eager launches, and those next to a communication library's, never start
  /// early.
  [[nodiscard]] bool* follows_kernel(CudaDeviceStream& stream) const {
    const bool early = launches_ahead_ && context_.capturing && stream.role() != StreamRole::kFirst;
    return early ? &stream.follows_kernel : nullptr;
  }

  void launch_kernel(const DeviceOp& op, const Addresses& addresses, CudaDeviceStream& stream) {
    note_launch(timed_.launch(op, addresses, stream, follows_kernel(stream)));
  }
  void note_launch(int status) {
    context_.note(static_cast<cudaError_t>(status), "launch of a kernel");
  }

  // Const methods of the interface query the device too.
  mutable CudaContext context_;
  int index_;
  cudaDeviceProp properties_;
  std::string model_;
  KernelTarget target_;
  bool launches_ahead_;                             // in graphs, kernels may be launched early
  std::map<std::byte*, std::int64_t> allocated_{};  // device memory and its sizes
  std::int64_t device_bytes_ = 0;                   // their sum
  CudaProduct product_;
  TimedKernels timed_;
};

/// The number of GPUs, and the driver's status.
std::pair<int, cudaError_t> ask_for_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status != cudaSuccess) return {0, status};
  return {count, count > 0 ? cudaSuccess : cudaErrorNoDevice};
}

/// "cuda:0 (NVIDIA H200), cuda:1 (...)".
std::string devices_present(int count) {
  std::string text;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    const bool known = cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess;
    text += fmt::format("{}cuda:{} ({})", ordinal == 0 ? "" : ", ", ordinal,
                        known ? properties.name : "unknown");
  }
  return text;
}

}  // namespace

int cuda_device_count() {
  return ask_for_devices().first;
}

std::string why_no_cuda_device() {
  const cudaError_t status = ask_for_devices().second;
  return status == cudaSuccess ? "" : explain_status(status, facts_of_process()).problem.why;
}

namespace {

/// Whether copies from `from` reach the memory of `to` directly; enables that if possible.
bool reaches(CudaContext& from, int to) {
  from.use();
  int can = 0;
  from.require(cudaDeviceCanAccessPeer(&can, from.ordinal(), to), "cudaDeviceCanAccessPeer");
  if (can == 0) return false;
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return true;
  }
  from.require(status, "cudaDeviceEnablePeerAccess");
  return true;
}

}  // namespace

std::vector<ApartGpus> enable_peer_access(const std::vector<int>& ordinals) {
  std::vector<ApartGpus> apart;
  for (std::size_t i = 0; i < ordinals.size(); ++i) {
    CudaContext one(ordinals[i]);
    for (std::size_t j = i + 1; j < ordinals.size(); ++j) {
      CudaContext other(ordinals[j]);
      const bool there = reaches(one, ordinals[j]);
      const bool back = reaches(other, ordinals[i]);
      if (!there || !back) apart.emplace_back(ordinals[i], ordinals[j]);
    }
  }
  return apart;
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config, int index) {
  const auto [count, status] = ask_for_devices();
  if (status != cudaSuccess) {
    CudaFacts facts = facts_of_process();
    facts.call = "cudaGetDeviceCount";
    facts.device = config.device;
    const CudaFailure failure = explain_status(status, facts);
    fail(failure.code, failure.problem);
  }
  const int ordinal = ordinal_of(config.device);
  if (ordinal >= count) {
    fail(ExitCode::kNoDevice, {.what = "device",
                               .value = config.device,
                               .why = fmt::format("there is only {}", devices_present(count)),
                               .remedy = "name one of these"});
  }
  return std::make_unique<CudaDevice>(ordinal, index, config);
}

}  // namespace barestep
