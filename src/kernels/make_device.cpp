#include "kernels/make_device.h"

#include <string>
#include <utility>
#include <vector>

namespace barestep {

DeviceKind device_kind(std::string_view name) {
  if (name == "auto") return cuda_device_count() > 0 ? DeviceKind::kCuda : DeviceKind::kCpu;
  return name.starts_with("cuda") ? DeviceKind::kCuda : DeviceKind::kCpu;
}

std::unique_ptr<Device> make_device(const DeviceConfig& config, int index,
                                    std::string_view cpu_name, std::vector<CpuSet> places) {
  if (device_kind(config.device) == DeviceKind::kCuda) return make_cuda_device(config, index);
  require_fit_for_cpu(config);
  return make_cpu_device({.index = index,
                          .name = std::string(cpu_name),
                          .threads = config.threads.value_or(0),
                          .denormals = config.denormals,
                          .gemm = config.gemm,
                          .instructions = config.instructions,
                          .precision = config.precision,
                          .places = std::move(places)});
}

}  // namespace barestep
