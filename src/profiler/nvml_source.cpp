// GPUs as sources of the monitor, through NVIDIA's management library.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/shared_library.h"
#include "profiler/monitor.h"

namespace barestep {
namespace {

// Names, types and numbers are those of nvml.h, an interface that NVIDIA keeps stable.

struct NvmlUtilization {  // nvmlUtilization_t
  unsigned gpu = 0;       // percent
  unsigned memory = 0;
};

struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

/// nvmlReturn_t
enum NvmlStatus {
  kSuccess = 0,
  kUninitialized = 1,
  kNotSupported = 3,
  kNoPermission = 4,
  kInsufficientSize = 7,
  kGpuIsLost = 15,
  kResetRequired = 16
};

constexpr int kOnGpu = 0;        // NVML_TEMPERATURE_GPU
constexpr int kSmClockKind = 1;  // NVML_CLOCK_SM
constexpr int kMemoryClockKind = 2;

/// Loaded and initialized; shut down when the last user releases it.
class NvmlLibrary {
 public:
  /// Throws std::runtime_error if it cannot be loaded.
  explicit NvmlLibrary(const std::string& file) {
    std::string why;
    handle_ = load_library({&file, 1}, why);
    if (handle_ == nullptr) throw std::runtime_error(why);
    for (const char* const needed : {kInit, kShutdown, kErrorString, kDevice}) {
      if (function_of(handle_, needed) != nullptr) continue;
      throw std::runtime_error(fmt::format("{} has no {}", file, needed));
    }
    const int status = call(kInit);
    if (status == kSuccess) return;
    throw std::runtime_error(fmt::format("{} failed: {}", kInit, text_of(status)));
  }

  ~NvmlLibrary() { static_cast<void>(call(kShutdown)); }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  /// kNotSupported if this driver lacks the function.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(function_of(handle_, name));
    return function == nullptr ? kNotSupported : function(arguments...);
  }

  /// The status of finding a GPU.
  int find(const std::string& pci_bus_id, void*& device) const {
    return call(kDevice, pci_bus_id.c_str(), &device);
  }

  [[nodiscard]] std::string text_of(int status) const {
    const auto text_of = reinterpret_cast<const char* (*)(int)>(function_of(handle_, kErrorString));
    const char* const text = text_of(status);
    return fmt::format("{} ({})", text != nullptr ? text : "unknown", status);
  }

  static constexpr const char* kDevice = "nvmlDeviceGetHandleByPciBusId_v2";

 private:
  static constexpr const char* kInit = "nvmlInit_v2";
  static constexpr const char* kShutdown = "nvmlShutdown";
  static constexpr const char* kErrorString = "nvmlErrorString";

  void* handle_ = nullptr;
};

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

/// In the order in which sample() gives them.
std::span<const Gauge> gpu_gauges() {
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
  GpuSource(std::shared_ptr<const NvmlLibrary> library, void* device, std::string gpu)
      : MonitorSource(std::move(gpu), gpu_gauges()),
        library_(std::move(library)),
        device_(device) {}

  void sample(std::span<double> values) override {
    NvmlUtilization used;
    NvmlMemory memory;
    unsigned processes = 0;
    const bool has_used = ask("nvmlDeviceGetUtilizationRates", &used);
    const bool has_memory = ask("nvmlDeviceGetMemoryInfo", &memory);
    // Without room, the call returns only the number of processes. One of them is this one, but a
    // process in a container cannot identify itself, since it has another number there.
    const bool has_processes =
        ask("nvmlDeviceGetComputeRunningProcesses_v3", &processes, static_cast<void*>(nullptr));
    const double of_gauges[] = {
        has_used ? used.gpu : kNotMeasured,
        has_used ? used.memory : kNotMeasured,
        has_memory ? static_cast<double>(memory.used) / (1 << 20) : kNotMeasured,
        number<unsigned>(1e-3, "nvmlDeviceGetPowerUsage"),
        number<unsigned long long>(1e-3, "nvmlDeviceGetTotalEnergyConsumption"),
        number<unsigned>(1, "nvmlDeviceGetTemperature", kOnGpu),
        number<unsigned>(1, "nvmlDeviceGetClockInfo", kSmClockKind),
        number<unsigned>(1, "nvmlDeviceGetClockInfo", kMemoryClockKind),
        number<unsigned long long>(1, "nvmlDeviceGetCurrentClocksThrottleReasons"),
        has_processes ? std::max(processes, 1U) - 1 : kNotMeasured};
    std::ranges::copy(of_gauges, values.begin());
  }

  [[nodiscard]] std::string trouble() const override {
    return fmt::format("{}{}", fmt::join(failures_, "; "), lost_ ? "; it is no longer read" : "");
  }

 private:
  /// Whether the call has succeeded.
  template <class... Arguments>
  bool ask(const char* call, Arguments... arguments) {
    if (lost_ || off_.contains(call)) return false;
    const int status = library_->call(call, device_, arguments...);
    if (status == kSuccess || status == kInsufficientSize) return true;
    if (status == kNotSupported || status == kNoPermission) off_.insert(call);
    if (status == kNotSupported) return false;  // lines show a dash for it
    failures_.insert(fmt::format("{} failed: {}", call, library_->text_of(status)));
    lost_ = status == kGpuIsLost || status == kUninitialized || status == kResetRequired;
    return false;
  }

  /// What the call stores last, times `unit`.
  template <class Number, class... Arguments>
  double number(double unit, const char* call, Arguments... arguments) {
    Number value = 0;
    return ask(call, arguments..., &value) ? unit * static_cast<double>(value) : kNotMeasured;
  }

  std::shared_ptr<const NvmlLibrary> library_;
  void* device_;
  std::set<std::string> failures_, off_;  // of calls; those that are not asked again
  bool lost_ = false;
};

}  // namespace

std::string nvml_library() {
  const char* const set = std::getenv("BARESTEP_NVML");
  return set != nullptr && *set != '\0' ? set : "libnvidia-ml.so.1";
}

GpuSources open_gpu_sources(std::span<const GpuPlace> gpus, const std::string& library) {
  GpuSources opened;
  if (gpus.empty()) return opened;
  std::shared_ptr<const NvmlLibrary> nvml;
  try {
    nvml = std::make_shared<const NvmlLibrary>(library);
  } catch (const std::runtime_error& error) {
    opened.notes.push_back(fmt::format("no monitor of GPUs: {}", error.what()));
    return opened;
  }
  std::set<std::string> seen;
  for (const GpuPlace& gpu : gpus) {
    if (!seen.insert(gpu.pci_bus_id).second) continue;
    void* device = nullptr;
    const int status = nvml->find(gpu.pci_bus_id, device);
    if (status == kSuccess) {
      opened.sources.push_back(std::make_unique<GpuSource>(nvml, device, gpu.name));
    } else {
      opened.notes.push_back(fmt::format("no monitor of {}: {} of '{}' failed: {}", gpu.name,
                                         NvmlLibrary::kDevice, gpu.pci_bus_id,
                                         nvml->text_of(status)));
    }
  }
  return opened;
}

}  // namespace barestep
