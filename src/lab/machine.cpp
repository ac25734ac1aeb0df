#include "lab/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/host_memory.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
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

CoreWatch::CoreWatch() : begin_(now()) {}

CoreWatch::Times CoreWatch::now() {
  std::ifstream stat("/proc/stat");
  std::string name;
  // user, nice, system, idle, iowait, irq, softirq, steal; what guests take is in user already.
  std::array<double, 8> ticks{};
  stat >> name;
  for (double& each : ticks) stat >> each;
  if (!stat || name != "cpu") return {};
  double all = 0;
  for (const double each : ticks) all += each;
  const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {(all - ticks[3] - ticks[4]) / ticks_per_s, all / ticks_per_s};
}

double CoreWatch::others_share(double own_s) const {
  const Times end = now();
  const double all_s = end.all_s - begin_.all_s;
  if (all_s <= 0) return 0;
  return std::clamp((end.busy_s - begin_.busy_s - own_s) / all_s, 0.0, 1.0);
}

}  // namespace barestep
