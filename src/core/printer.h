// Programs, ops and memory plans as text for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/program.h"

namespace barestep {

/// "out0[64x1024] = x[64x1024] * params@4096[1024x1024]^T + params[1x1024], relu". A tensor is its
/// buffer's name, "@" and its offset in bytes unless that is zero, and its shape; "1:" before it
/// names its device where that is not the node's.
std::string text_of(const Program& program, const Node& node);

/// How many kernels a GPU runs for an op: one, or more where the library's product does
/// not hold the activation or a sum over everything takes a second one. Copies are none.
std::int64_t launches_of(const Op& op);
/// For a step, but what brings its data.
std::int64_t launches_of(const Program& program);

/// The step as a table: one row for each node with its formula, price and waits, then the sums of
/// each phase and a legend. With several devices there is a column for the device, with collectives
/// one for messages.
std::string explain(const Program& program);

/// For each device the bytes of every category and their sum, pinned host memory apart, and the
/// largest buffers. Devices without a name are called "device 0", "device 1", ...
std::string plan_table(const MemoryPlan& plan, const Buffers& buffers,
                       const std::vector<std::string>& device_names = {});

}  // namespace barestep
