#include "profiler/fake_nvml.h"

#include <algorithm>

namespace {

barestep::FakeNvml state;

int answer(const std::string& function, const std::string& value, auto* out) {
  if (const int status = state.status[function]; status != 0) return status;
  *out = static_cast<std::remove_pointer_t<decltype(out)>>(state.value[value]);
  return 0;
}

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

barestep::FakeNvml* fake_nvml_state() {
  return &state;
}

int nvmlInit_v2() {
  const int status = state.status["nvmlInit_v2"];
  if (status == 0) ++state.open;
  return status;
}

int nvmlShutdown() {
  --state.open;
  return 0;
}

const char* nvmlErrorString(int status) {
  switch (status) {
    case 3:
      return "Not Supported";
    case 4:
      return "Insufficient Permissions";
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    case 18:
      return "Driver/library version mismatch";
    case 999:
      return "Unknown Error";
    default:
      return nullptr;
  }
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (const int status = state.status["nvmlDeviceGetHandleByPciBusId_v2"]; status != 0) {
    return status;
  }
  const auto at = std::find(state.gpus.begin(), state.gpus.end(), id);
  if (at == state.gpus.end()) return 6;  // not found
  *device = &*at;
  return 0;
}

int nvmlDeviceGetUtilizationRates(void*, Utilization* out) {
  if (const int status = answer("nvmlDeviceGetUtilizationRates", "gpu", &out->gpu); status != 0) {
    return status;
  }
  return answer("nvmlDeviceGetUtilizationRates", "memory", &out->memory);
}

int nvmlDeviceGetMemoryInfo(void*, Memory* out) {
  return answer("nvmlDeviceGetMemoryInfo", "used", &out->used);
}

int nvmlDeviceGetPowerUsage(void*, unsigned* out) {
  return answer("nvmlDeviceGetPowerUsage", "power", out);
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* out) {
  state.value["energy"] += 500;  // half a joule per reading
  return answer("nvmlDeviceGetTotalEnergyConsumption", "energy", out);
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned* out) {
  return sensor == 0 ? answer("nvmlDeviceGetTemperature", "temperature", out) : 2;
}

int nvmlDeviceGetClockInfo(void*, int clock, unsigned* out) {
  return answer("nvmlDeviceGetClockInfo", "clock" + std::to_string(clock), out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* out) {
  return answer("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle", out);
}

/// Like NVML: without enough room, it returns their number and an error.
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, void*) {
  const unsigned room = *count;
  if (const int status = answer("nvmlDeviceGetComputeRunningProcesses_v3", "processes", count);
      status != 0) {
    return status;
  }
  return *count > room ? 7 : 0;
}

}  // extern "C"
