// What parallel schemes share: putting nodes between those of a step, and the numbers that ranks
// exchange in every step whatever the scheme.
#pragma once

#include <map>
#include <optional>

#include "core/program.h"
#include "train/step.h"

namespace barestep {

/// Nodes to put behind one of a program's; those of one place keep their order. -1: in front of
/// all.
using Insertions = std::multimap<NodeId, Node>;

/// `program` with the insertions, and without the node `left_out`. Waits are not set: call order().
Program with_insertions(const Program& program, const Insertions& insertions,
                        std::optional<NodeId> left_out = std::nullopt);

/// The last node before `end` that writes `tensor`, or touches it at all; -1: none.
NodeId last_use(const Program& program, NodeId end, const Tensor& tensor, bool writes_only);

/// The optimizer of a training step.
NodeId optimizer_node(const Program& program);

/// A collective on the comm lane.
Node comm_node(Collective collective);

/// Adds to the insertions: the losses of all ranks, each times `scale`, are summed, first on the
/// comm lane and read back there, since on the compute lane backward would wait for the other
/// ranks. Beside the loss goes whether a rank wants to stop. Takes the buffers "global_loss",
/// "global_loss_host" and "stop_host" and moves the step's tensors there; a rank's own loss is
/// kept.
void share_loss(StepProgram& step, Buffers& buffers, float scale, Insertions& insertions);

/// The same without the loss, where every rank has that of all rows.
void share_stop(StepProgram& step, Buffers& buffers, Insertions& insertions);

}  // namespace barestep
