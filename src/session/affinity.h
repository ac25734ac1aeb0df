// --affinity: where this process and its threads run.
#pragma once

#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/host.h"
#include "kernels/cpu/topology.h"

namespace barestep {

class Place;

/// The places of one device of this process. `part` of `parts` share the CPUs: the ranks of a host
/// or the devices of a process. The device is a CPU with `threads`, or a GPU if that is 0. Without
/// --affinity, or without hwloc, no CPUs and a text that says so; the text is empty without
/// --affinity.
Placement placement_of(const DeviceConfig& config, int threads, int part = 0, int parts = 1,
                       const std::string& pci_bus_id = "");

/// Keeps the calling thread, and all that it starts, on the CPUs of the placements; nothing if they
/// have none.
void bind_process(const std::vector<Placement>& placements);

/// "Affinity compact: 4 threads on 4 cores, CPUs 0-3, near NUMA node 0", and a newline; empty
/// without
/// --affinity.
std::string affinity_line(const TrainConfig& config, const Place& place);

/// What a library narrowed before main(), as a note; empty if none did.
std::string narrowed_text();

}  // namespace barestep
