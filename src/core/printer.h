// Programs, ops and memory plans as text for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/program.h"

namespace barestep {

/// "out0[64x1024] = x[64x1024] * params@4096[1024x1024]^T + params[1x1024], relu". A tensor is
/// printed as its buffer's name, "@" and its offset in bytes unless that is zero, and its shape. If
/// it is on a device other than the node's, the device precedes it, as in "1:".
std::string text_of(const Program& program, const Node& node);

/// How many kernels a GPU launches for a step, without the ops that bring its data.
std::int64_t launches_of(const Program& program);

/// The step as a table: one row for each node with its formula, price and waits, then the sums of
/// each phase and a legend. Several devices add a column for the device; collectives add one for
/// messages.
std::string explain(const Program& program);

/// For each device, the bytes of every category and their sum, with pinned host memory listed
/// separately, and the largest buffers. Unnamed devices are printed as "device 0", "device 1", ...
std::string plan_table(const MemoryPlan& plan, const Buffers& buffers,
                       const std::vector<std::string>& device_names = {});

}  // namespace barestep
