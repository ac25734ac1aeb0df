// Which cores the threads of a process run on, by hwloc: near each other or far apart, near their
// memory, and near a GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/host.h"

namespace barestep {

/// What is to be placed: one part of several that share a machine's CPUs, such as a rank of a host.
struct PlaceRequest {
  Affinity affinity = Affinity::kCompact;
  CpuSet within{};  // CPUs that the parts may use
  int threads = 1;  // of this part; 0: they are not bound one by one, as beside a GPU
  int part = 0;     // of `parts`
  int parts = 1;
  std::string pci_bus_id{};  // of the part's GPU, "0000:3b:00.0"; empty: none
};

struct Placement {
  CpuSet all{};                   // of the part
  std::vector<CpuSet> threads{};  // of each thread, a core
  std::string text{};             // "4 threads on 4 cores, CPUs 0-3, near NUMA node 0"
};

/// Divides the machine among the parts, each on cores that are near each other, and binds each
/// thread of this part to a core: with kCompact to the first ones, with kSpread to cores as far
/// apart as possible. A core's hardware threads stay together; threads beyond the cores share them
/// in turn. Nothing in a build without hwloc. `synthetic` describes another machine than this one,
/// as hwloc_topology_set_synthetic() takes it. Throws Error(kBug) for a bad description.
std::optional<Placement> place_threads(const PlaceRequest& request,
                                       const std::string& synthetic = "");

/// "2.9.0"; empty in a build without hwloc.
std::string hwloc_version();

}  // namespace barestep
