#include "session/affinity.h"

#include <fmt/format.h>

#include "core/units.h"
#include "session/place.h"

namespace barestep {

Placement placement_of(const DeviceConfig& config, int threads, int part, int parts,
                       const std::string& pci_bus_id) {
  if (config.affinity == Affinity::kNone) return {};
  std::optional<Placement> placement = place_threads({.affinity = config.affinity,
                                                      .within = cpus_at_start(),
                                                      .threads = threads,
                                                      .part = part,
                                                      .parts = parts,
                                                      .pci_bus_id = pci_bus_id});
  if (placement) return *std::move(placement);
  return {.text = "nothing is bound, since this build has no hwloc"};
}

void bind_process(const std::vector<Placement>& placements) {
  CpuSet all;
  for (const Placement& each : placements) all |= each.all;
  if (all.any()) bind_this_thread(all);
}

std::string affinity_line(const TrainConfig& config, const Place& place) {
  if (config.device.affinity == Affinity::kNone) return "";
  std::string line = fmt::format("Affinity {}: ", name_of(config.device.affinity));
  const std::vector<Placement> all = place.placements(config);
  const std::vector<std::string> names = place.names();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) line += "; ";
    if (all.size() > 1) line += names[i] + ", ";
    line += all[i].text;
  }
  return line + "\n";
}

std::string narrowed_text() {
  const CpuSet before = cpus_at_start();
  const CpuSet now = allowed_cpus();
  if (now.count() >= before.count()) return "";
  return fmt::format(
      "before it began, a library bound this process to {} {} of the {} that it was given, as "
      "libgomp does with OMP_PROC_BIND or GOMP_CPU_AFFINITY; unset these, or give --affinity "
      "compact",
      noun_for(static_cast<std::int64_t>(now.count()), "CPU"), text_of(now),
      counted(static_cast<std::int64_t>(before.count()), "CPU"));
}

}  // namespace barestep
