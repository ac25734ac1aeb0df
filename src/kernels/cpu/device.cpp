#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/program.h"
#include "core/units.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/make_device.h"

namespace barestep {
namespace {

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

/// "oneDNN 2.6.3", or "oneDNN 2.6.3, fp16 widened to fp32" if it does not accept operands of that
/// type.
std::string library_text(const Product& product, Precision precision) {
  std::string text(product.name());
  if (!product.takes(type_of(precision))) {
    text += fmt::format(", {} widened to fp32", name_of(precision));
  }
  return text;
}

class CpuDevice final : public Device, private CpuExecutor {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : CpuExecutor(options.denormals),
        index_(options.index),
        name_(options.name),
        model_(processor_model()),
        places_(options.places),
        pool_(options.threads > 0 ? options.threads : usable_cpus(), options.denormals,
              options.places),
        product_(make_product(options.gemm, options.precision, options.instructions)),
        product_library_(library_text(*product_, options.precision)),
        ops_(pool_, *product_, options.instructions) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCpu; }
  [[nodiscard]] int index() const override { return index_; }

  [[nodiscard]] DeviceInfo info() const override {
    const HostMemory memory = host_memory();
    return {.model = model_,
            .total_bytes = memory.total_bytes,
            .free_bytes = memory.free_bytes,
            .threads = pool_.threads(),
            .product_library = product_library_,
            .cache_bytes = barestep::cache_bytes()};
  }

  std::byte* allocate(std::int64_t bytes, MemoryKind /*kind*/) override {
    // Huge pages need their own alignment, and save a quarter of the time of a streaming read.
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const auto size = static_cast<std::size_t>(bytes);
    const std::size_t alignment = size >= kHugePage ? kHugePage : 256;
    const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
    if (memory == nullptr) {
      fail(ExitCode::kMemory, {.what = "memory of device",
                               .value = std::string(name()),
                               .why = human_bytes(bytes) + " could not be allocated",
                               .remedy = "use a smaller --dim, --depth or --batch-size"});
    }
    if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
    if (BARESTEP_POISON != 0) std::memset(memory, 0xFF, rounded);
    return memory;
  }

  void release(std::byte* memory, MemoryKind /*kind*/) noexcept override { std::free(memory); }

  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    static_cast<CpuStream&>(stream).copy(to, from, bytes);
  }

  /// The thread of the stream that computes is the first of those that share its work.
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    std::optional<CpuSet> place;
    if (label == name_of(Lane::kCompute) && !places_.empty()) place = places_.front();
    const bool is_brief = label == name_of(Lane::kComm) || label == name_of(Lane::kCopy);
    return std::make_unique<CpuStream>(static_cast<CpuExecutor&>(*this), place, is_brief);
  }
  std::unique_ptr<Event> new_event(EventUse /*use*/) override {
    return std::make_unique<CpuEvent>();
  }

  void prepare(const DeviceOp& op) override { ops_.prepare(op); }

  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    static_cast<CpuStream&>(stream).run(op, addresses, tag);
  }

  void begin_capture(Stream& /*origin*/) override {
    BARESTEP_REQUIRE(capture == nullptr, "a capture is on already");
    captured_ = std::make_unique<CpuGraph>();
    capture = captured_.get();
  }
  std::unique_ptr<Graph> end_capture(Stream& /*origin*/) override {
    BARESTEP_REQUIRE(capture != nullptr, "no capture is on");
    capture = nullptr;
    return std::move(captured_);
  }
  void launch(Graph& graph, Stream& /*stream*/, std::int64_t step) override {
    static_cast<CpuGraph&>(graph).launch(step);
  }

  void set_record_sink(RecordSink* sink) override { sink_.store(sink); }

 private:
  void execute(const DeviceOp& op, const Addresses& addresses, const Tag& tag) override {
    RecordSink* const sink = sink_.load(std::memory_order_acquire);
    if (sink == nullptr) {
      ops_.run(op, addresses);
      return;
    }
    const double start_s = now_s();
    ops_.run(op, addresses);
    sink->on_record({.tag = tag,
                     .label = label_of(op),
                     .device = index_,
                     .start_s = start_s,
                     .end_s = now_s()});
  }

  int index_;
  std::string name_;
  std::string model_;
  std::vector<CpuSet> places_;
  ThreadPool pool_;
  std::unique_ptr<Product> product_;
  const std::string product_library_;
  CpuOps ops_;
  std::unique_ptr<CpuGraph> captured_;
  std::atomic<RecordSink*> sink_{nullptr};
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace barestep
