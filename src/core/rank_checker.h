// Proves that the ranks of a job meet in their collectives, whatever the speed of each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/mesh.h"
#include "core/program.h"

namespace barestep {

/// A rank's program, which it runs step after step.
struct RankProgram {
  const Program& program;
  Mesh mesh;
};

/// The ranks, ascending, that meet in a collective of the rank at this place of the mesh: those of
/// its axis, or the two of an exchange; -1 stands for a peer outside the axis.
std::vector<int> ranks_that_meet(const Mesh& mesh, const Collective& collective);

/// Empty if all is well; otherwise one line on what is wrong. The ranks of each group must have the
/// same collectives of its axis in the same order: kind, name, sizes, root. Two ranks must have the
/// same exchanges with each other, each the other's mirror image; messages in one direction only
/// are a sequence of their own. And no collective may wait for
/// itself, through lanes, waits and other collectives of any rank; each is taken to begin only when
/// all ranks of its group have reached it. `ranks` are all ranks of a job, in their order, with
/// checked programs.
std::string check_ranks(std::span<const RankProgram> ranks);

}  // namespace barestep
