#include "lab/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include "core/host_memory.h"
#include "core/units.h"
#include "kernels/cuda/device.h"
#include "kernels/make_device.h"

namespace barestep {

Machine this_machine() {
  Machine machine;
  DeviceConfig config;
  config.device = "cpu";
  const DeviceInfo cpu = make_device(config)->info();
  machine.processor = cpu.model;
  machine.cores = cpu.threads;
  machine.memory_bytes = host_memory().total_bytes;
  machine.gpus = cuda_device_count();
  if (machine.gpus > 0) {
    config.device = "cuda:0";
    machine.gpu = make_device(config)->info().model;
  }
  utsname system{};
  if (::uname(&system) == 0) machine.system = fmt::format("{} {}", system.sysname, system.release);
  return machine;
}

std::vector<std::pair<std::string, std::string>> facts_of(const Machine& machine) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"processor", machine.processor},
      {"cores", std::to_string(machine.cores)},
      {"memory", human_bytes(machine.memory_bytes)},
      {"system", machine.system}};
  if (machine.gpus > 0)
    facts.emplace_back("GPU", fmt::format("{} x {}", machine.gpus, machine.gpu));
  return facts;
}

}  // namespace barestep
