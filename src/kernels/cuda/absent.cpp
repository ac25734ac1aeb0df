// Replaces the CUDA device in builds without CUDA.
#include "core/error.h"
#include "kernels/make_device.h"

namespace barestep {

int cuda_device_count() {
  return 0;
}

std::string why_no_cuda_device() {
  return {};
}

std::vector<ApartGpus> enable_peer_access(const std::vector<int>& /*ordinals*/) {
  return {};
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config, int /*index*/) {
  fail(ExitCode::kNoDevice, {.what = "device",
                             .value = config.device,
                             .why = "this build has no CUDA device",
                             .remedy = "use --device cpu"});
}

}  // namespace barestep
