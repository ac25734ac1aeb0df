#include "profiler/nvml_source.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "core/index.h"

namespace barestep {
namespace {

template <class Function>
bool find(void* handle, NvmlCall<Function>& call) {
  call.function = reinterpret_cast<Function*>(::dlsym(handle, call.name));
  return call.function != nullptr;
}

}  // namespace

std::shared_ptr<const NvmlLibrary> NvmlLibrary::load(const std::string& file, std::string& why) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = ::dlerror();
    why = error != nullptr ? error : file + " cannot be loaded";
    return nullptr;
  }
  const std::shared_ptr<NvmlLibrary> library(new NvmlLibrary(handle));
  const char* missing = nullptr;
  const auto need = [&](auto& call) {
    if (!find(handle, call) && missing == nullptr) missing = call.name;
  };
  need(library->init_);
  need(library->shutdown_);
  need(library->error_string_);
  need(library->device);
  if (missing != nullptr) {
    why = fmt::format("{} has no {}", file, missing);
    return nullptr;
  }
  find(handle, library->utilization);
  find(handle, library->memory);
  find(handle, library->power);
  find(handle, library->energy);
  find(handle, library->temperature);
  find(handle, library->clock);
  find(handle, library->throttle_reasons);
  find(handle, library->compute_processes);
  const int status = library->init_.function();
  if (status != kNvmlSuccess) {
    why = fmt::format("{} failed: {}", library->init_.name, library->text_of(status));
    return nullptr;
  }
  library->initialized_ = true;
  return library;
}

NvmlLibrary::~NvmlLibrary() {
  // A failure of either needs no handling.
  if (initialized_) static_cast<void>(shutdown_.function());
  static_cast<void>(::dlclose(handle_));
}

std::string NvmlLibrary::text_of(int status) const {
  const char* const text = error_string_.function(status);
  return fmt::format("{} ({})", text != nullptr ? text : "unknown", status);
}

namespace {

/// nvmlClocksThrottleReasons, bit by bit. An idle GPU, or clocks set by a user, are not throttling.
constexpr std::string_view kReasons[] = {"",
                                         "",
                                         "power cap",
                                         "hardware slowdown",
                                         "sync boost",
                                         "software thermal slowdown",
                                         "hardware thermal slowdown",
                                         "power brake",
                                         "display clocks"};

/// The indices of the gauges.
enum {
  kUsed,
  kMemoryUsed,
  kMemory,
  kPower,
  kEnergy,
  kTemperature,
  kSmClock,
  kMemoryClock,
  kThrottle,
  kOthers,
  kGauges
};

const std::vector<Gauge>& gpu_gauges() {
  static const std::vector<Gauge> gauges = {
      {.name = "gpu_percent", .column = "gpu %"},
      {.name = "memory_percent", .column = "memory %"},
      {.name = "memory_mib", .column = "memory MiB"},
      {.name = "power_w", .column = "power W", .decimals = 1, .kind = GaugeKind::kPower},
      {.name = "energy_j", .column = "", .decimals = 3, .kind = GaugeKind::kEnergy},
      {.name = "temperature_c", .column = "temp C"},
      {.name = "sm_clock_mhz", .column = "SM MHz", .kind = GaugeKind::kClock},
      {.name = "memory_clock_mhz", .column = "memory MHz", .kind = GaugeKind::kClock},
      {.name = "throttle_reasons",
       .column = "throttle",
       .kind = GaugeKind::kReasons,
       .reasons = kReasons},
      {.name = "other_processes", .column = "others", .kind = GaugeKind::kOthers}};
  return gauges;
}

class GpuSource final : public MonitorSource {
 public:
  GpuSource(std::shared_ptr<const NvmlLibrary> library, NvmlDevice device, std::string name)
      : library_(std::move(library)), device_(device), name_(std::move(name)) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::span<const Gauge> gauges() const override { return gpu_gauges(); }
  void sample(std::span<double> values) override;
  [[nodiscard]] std::string trouble() const override;

 private:
  struct Failures {
    int count = 0;
    int last = 0;
    bool off = false;  // do not ask again
  };

  /// Calls `call` of the library if it exists, and then `use` with the result.
  template <class Reply, class Function, class Use, class... Arguments>
  void query(const NvmlCall<Function>& call, const Use& use, Arguments... arguments) {
    if (lost_ || call.function == nullptr) return;
    Failures& failures = failures_[call.name];
    if (failures.off) return;
    Reply reply{};
    const int status = call.function(device_, arguments..., &reply);
    if (status == kNvmlSuccess) return use(reply);
    note_failure(failures, status);
  }
  void note_failure(Failures& failures, int status);
  void count_others(std::span<double> values);

  std::shared_ptr<const NvmlLibrary> library_;
  NvmlDevice device_;
  std::string name_;
  std::map<std::string, Failures> failures_;
  bool lost_ = false;
};

void GpuSource::note_failure(Failures& failures, int status) {
  failures.off = status == kNvmlNotSupported || status == kNvmlNoPermission;
  if (status == kNvmlNotSupported) return;  // lines show a dash for it
  ++failures.count;
  failures.last = status;
  lost_ = status == kNvmlGpuIsLost || status == kNvmlUninitialized || status == kNvmlResetRequired;
}

/// Without a buffer, the call returns only the number of processes. One of them is this one, but a
/// process in a container cannot identify itself, since it has another number there.
void GpuSource::count_others(std::span<double> values) {
  const auto& call = library_->compute_processes;
  Failures& failures = failures_[call.name];
  if (lost_ || call.function == nullptr || failures.off) return;
  unsigned count = 0;
  const int status = call.function(device_, &count, nullptr);
  if (status == kNvmlSuccess || status == kNvmlInsufficientSize) {
    values[kOthers] = count > 0 ? count - 1 : 0;
  } else {
    note_failure(failures, status);
  }
}

void GpuSource::sample(std::span<double> values) {
  std::ranges::fill(values, kNotMeasured);
  const auto set = [&](int gauge, double scale) {
    return [&values, gauge, scale](auto reply) {
      at(values, gauge) = scale * static_cast<double>(reply);
    };
  };
  query<NvmlUtilization>(library_->utilization, [&](const NvmlUtilization& reply) {
    values[kUsed] = reply.gpu;
    values[kMemoryUsed] = reply.memory;
  });
  query<NvmlMemory>(library_->memory, [&](const NvmlMemory& reply) {
    values[kMemory] = static_cast<double>(reply.used) / (1 << 20);
  });
  query<unsigned>(library_->power, set(kPower, 1e-3));
  query<unsigned long long>(library_->energy, set(kEnergy, 1e-3));
  query<unsigned>(library_->temperature, set(kTemperature, 1), kNvmlOnGpu);
  query<unsigned>(library_->clock, set(kSmClock, 1), kNvmlSmClock);
  query<unsigned>(library_->clock, set(kMemoryClock, 1), kNvmlMemoryClock);
  query<unsigned long long>(library_->throttle_reasons, set(kThrottle, 1));
  count_others(values);
}

std::string GpuSource::trouble() const {
  std::string text;
  for (const auto& [name, failures] : failures_) {
    if (failures.count == 0) continue;
    text += fmt::format("{}{} failed{}: {}", text.empty() ? "" : "; ", name,
                        failures.count == 1 ? "" : fmt::format(" {} times", failures.count),
                        library_->text_of(failures.last));
  }
  return lost_ ? text + "; it is no longer read" : text;
}

}  // namespace

std::string nvml_library() {
  const char* const set = std::getenv("BARESTEP_NVML");
  return set != nullptr && *set != '\0' ? set : "libnvidia-ml.so.1";
}

GpuSources open_gpu_sources(std::span<const GpuPlace> gpus, const std::string& library) {
  GpuSources opened;
  if (gpus.empty()) return opened;
  std::string why;
  const std::shared_ptr<const NvmlLibrary> nvml = NvmlLibrary::load(library, why);
  if (nvml == nullptr) {
    opened.notes.push_back("no monitor of GPUs: " + why);
    return opened;
  }
  std::set<std::string> seen;
  for (const GpuPlace& gpu : gpus) {
    if (!seen.insert(gpu.pci_bus_id).second) continue;
    NvmlDevice device = nullptr;
    const int status = nvml->device.function(gpu.pci_bus_id.c_str(), &device);
    if (status == kNvmlSuccess) {
      opened.sources.push_back(std::make_unique<GpuSource>(nvml, device, gpu.name));
    } else {
      opened.notes.push_back(fmt::format("no monitor of {}: {} of '{}' failed: {}", gpu.name,
                                         nvml->device.name, gpu.pci_bus_id, nvml->text_of(status)));
    }
  }
  return opened;
}

}  // namespace barestep
