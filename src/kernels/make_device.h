// Devices: the CPU, with asynchronous streams, real events and a pool of worker threads; and NVIDIA
// GPUs.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/host.h"

namespace barestep {

/// The kind of device that `name` (auto, cpu, cuda, cuda:1) means on this machine. Opens nothing.
DeviceKind device_kind(std::string_view name);

/// Opens the device that `config` names. Throws Error(kNoDevice) if it does not exist. Messages and
/// tables call a CPU device `cpu_name`; its threads run on `places`, if there are any.
std::unique_ptr<Device> make_device(const DeviceConfig& config, int index = 0,
                                    std::string_view cpu_name = "cpu",
                                    std::vector<CpuSet> places = {});

struct CpuDeviceOptions {
  int index = 0;
  std::string name = "cpu";
  int threads = 0;  // 0: one for each CPU this process may use
  Denormals denormals = Denormals::kFlush;
  GemmProvider gemm = GemmProvider::kAuto;
  Instructions instructions = Instructions::kAuto;
  Precision precision = Precision::kFp32;
  std::vector<CpuSet> places{};  // of each thread, first that of the compute lane; empty: anywhere
};

/// Throws Error(kConfiguration) if the requested product library is not in this build.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

/// How many GPUs this process can use; 0 without a driver, or in a build without CUDA.
int cuda_device_count();

/// Why no GPU can be used: "no NVIDIA driver (libcuda.so.1 was not found)". Empty if one can, and
/// in a build without CUDA, which does not look for GPUs.
std::string why_no_cuda_device();

/// Two GPUs that cannot copy to each other directly, only through the host.
using ApartGpus = std::pair<int, int>;

/// From now on, the GPUs with these ordinals copy to and from each other directly wherever hardware
/// and driver allow it. Returns the pairs of `ordinals` that cannot, in the order of `ordinals`.
/// Throws Error(kNoDevice). Blocks.
std::vector<ApartGpus> enable_peer_access(const std::vector<int>& ordinals);

/// Opens the GPU that `config` names ("auto" and "cuda" mean cuda:0) as device `index` of a
/// program. Throws Error(kNoDevice), and Error(kConfiguration) for an --autotune file from another
/// device.
///
/// It sends no records: set_record_sink() refuses with Error(kConfiguration).
std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config, int index);

}  // namespace barestep
