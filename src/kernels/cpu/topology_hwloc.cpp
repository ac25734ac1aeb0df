#include <fmt/format.h>
#include <hwloc.h>

#include <climits>
#include <cstddef>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "kernels/cpu/topology.h"

namespace barestep {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Bitmap bitmap_of(const CpuSet& cpus) {
  Bitmap bitmap(hwloc_bitmap_alloc());
  for (std::size_t cpu = cpus._Find_first(); cpu < cpus.size(); cpu = cpus._Find_next(cpu)) {
    hwloc_bitmap_set(bitmap.get(), static_cast<unsigned>(cpu));
  }
  return bitmap;
}

CpuSet cpus_of(hwloc_const_bitmap_t bitmap) {
  CpuSet cpus;
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu)) {
    if (static_cast<std::size_t>(cpu) < cpus.size()) cpus.set(static_cast<std::size_t>(cpu));
  }
  return cpus;
}

class Topology {
 public:
  explicit Topology(const std::string& synthetic) {
    hwloc_topology_init(&topology_);
    // /sys tells of PCI devices too; the component "pci" needs privileges, and its library leaks.
    hwloc_topology_set_components(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    bool is_read =
        synthetic.empty() || hwloc_topology_set_synthetic(topology_, synthetic.c_str()) == 0;
    is_read = is_read && hwloc_topology_load(topology_) == 0;
    BARESTEP_REQUIRE(is_read, "hwloc describes the machine");
  }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  /// Leaves only these CPUs, or all if none of them is there.
  void restrict_to(const CpuSet& cpus) {
    hwloc_topology_restrict(topology_, bitmap_of(cpus).get(), HWLOC_RESTRICT_FLAG_REMOVE_CPULESS);
  }

  [[nodiscard]] CpuSet all() const {
    return cpus_of(hwloc_topology_get_topology_cpuset(topology_));
  }

  /// The CPUs near a device; all if hwloc does not know it.
  [[nodiscard]] CpuSet near(const std::string& pci_bus_id) const {
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology_, pci_bus_id.c_str());
    if (device == nullptr) return all();
    return cpus_of(hwloc_get_non_io_ancestor_obj(topology_, device)->cpuset);
  }

  /// The machine in `count` parts, from the root of its tree down.
  [[nodiscard]] std::vector<CpuSet> divided(int count) const {
    std::vector<hwloc_cpuset_t> sets(static_cast<std::size_t>(count));
    hwloc_obj_t root = hwloc_get_root_obj(topology_);
    hwloc_distrib(topology_, &root, 1, sets.data(), static_cast<unsigned>(count), INT_MAX, 0);
    std::vector<CpuSet> all;
    for (const hwloc_cpuset_t set : sets) all.push_back(cpus_of(Bitmap(set).get()));
    return all;
  }

  /// The cores in the order of the tree, so that those next to each other share most.
  [[nodiscard]] std::vector<CpuSet> cores() const {
    std::vector<CpuSet> all;
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_CORE, core)) != nullptr) {
      all.push_back(cpus_of(core->cpuset));
    }
    if (!all.empty()) return all;
    while ((core = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_PU, core)) != nullptr) {
      all.push_back(cpus_of(core->cpuset));
    }
    return all;
  }

  /// The NUMA nodes of these CPUs, "0" or "0-1".
  [[nodiscard]] std::string nodes_of(const CpuSet& cpus) const {
    const Bitmap nodes(hwloc_bitmap_alloc());
    hwloc_cpuset_to_nodeset(topology_, bitmap_of(cpus).get(), nodes.get());
    return barestep::text_of(cpus_of(nodes.get()));
  }

 private:
  hwloc_topology_t topology_ = nullptr;
};

/// A core for each thread, the first ones of as many parts as there are threads.
std::vector<CpuSet> spread(const Topology& machine, const std::vector<CpuSet>& cores, int threads) {
  std::vector<CpuSet> chosen;
  for (const CpuSet& part : machine.divided(threads)) {
    for (const CpuSet& core : cores) {
      if ((core & part).none()) continue;
      chosen.push_back(core);
      break;
    }
  }
  return chosen;
}

std::string text_of_placement(const Placement& placement, const Topology& machine) {
  const auto less = [](const CpuSet& a, const CpuSet& b) {
    return a._Find_first() < b._Find_first();
  };
  const std::set<CpuSet, decltype(less)> cores(placement.threads.begin(), placement.threads.end());
  CpuSet used = placement.all;
  std::string text;
  if (!cores.empty()) {
    used.reset();
    for (const CpuSet& core : cores) used |= core;
    text = fmt::format("{} on {}", counted(std::ssize(placement.threads), "thread"),
                       counted(std::ssize(cores), "core"));
    if (const std::size_t each = cores.begin()->count(); each > 1) {
      text += fmt::format(" of {} hardware threads", each);
    }
    text += ", ";
  }
  return text + fmt::format("{} {}, near NUMA node {}",
                            noun_for(static_cast<std::int64_t>(used.count()), "CPU"),
                            barestep::text_of(used), machine.nodes_of(used));
}

}  // namespace

std::optional<Placement> place_threads(const PlaceRequest& request, const std::string& synthetic) {
  Topology machine(synthetic);
  machine.restrict_to(request.within);
  if (!request.pci_bus_id.empty()) machine.restrict_to(machine.near(request.pci_bus_id));
  machine.restrict_to(machine.divided(request.parts)[static_cast<std::size_t>(request.part)]);
  Placement placement{.all = machine.all()};
  const std::vector<CpuSet> cores = machine.cores();
  const int available = static_cast<int>(cores.size());
  const bool spreads = request.affinity == Affinity::kSpread && request.threads <= available;
  if (spreads && request.threads > 0) {
    placement.threads = spread(machine, cores, request.threads);
  } else {
    for (int thread = 0; thread < request.threads; ++thread) {
      placement.threads.push_back(cores[static_cast<std::size_t>(thread % available)]);
    }
  }
  placement.text = text_of_placement(placement, machine);
  return placement;
}

std::string hwloc_version() {
  return HWLOC_VERSION;
}

}  // namespace barestep
