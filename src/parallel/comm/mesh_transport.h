// The ranks of a mesh: each collective runs in the group of its axis.
#pragma once

#include <cstdint>
#include <memory>

#include "core/mesh.h"
#include "core/transport.h"
#include "train/step.h"

namespace barestep {

/// Joins the ranks of `all`, which must outlive it. A collective whose axis is not Axis::kAll runs
/// among the ranks of that axis. Every rank calls it. Blocks.
std::unique_ptr<Transport> join_mesh(Transport& all, const Mesh& mesh);

/// Upper bound of the device memory that NCCL allocates for the collectives of a rank's programs.
/// NCCL connects the ranks of a group in its first collective, and two of them in their first
/// exchange, so groups without any cost nothing.
std::int64_t nccl_bytes(const StepPrograms& programs);

}  // namespace barestep
