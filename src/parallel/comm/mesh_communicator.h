// The ranks of a mesh: each collective runs in the group of its axis.
#pragma once

#include <memory>

#include "core/communicator.h"
#include "core/mesh.h"

namespace barestep {

/// Joins the ranks of `all`, which must outlive it. A collective whose axis is not Axis::kAll runs
/// among the ranks of that axis. Host calls concern all ranks. Every rank calls it. Blocks.
std::unique_ptr<Communicator> join_mesh(Communicator& all, const Mesh& mesh);

}  // namespace barestep
