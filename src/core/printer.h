// Programs and memory plans as text for people.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"
#include "core/program.h"

namespace barestep {

/// The step as a table: one row for each node with its formula, price and waits, then the sums of
/// each phase and a legend. With several devices there is a column for the device, with collectives
/// one for messages.
std::string explain(const Program& program);

/// For each device the bytes of every category and their sum, pinned host memory apart, and the
/// largest buffers. Devices without a name are called "device 0", "device 1", ...
std::string plan_table(const MemoryPlan& plan, const Buffers& buffers,
                       const std::vector<std::string>& device_names = {});

}  // namespace barestep
