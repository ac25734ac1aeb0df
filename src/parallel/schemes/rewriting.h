// What parallel schemes share: putting nodes between those of a step, and the numbers that ranks
// exchange in every step whatever the scheme.
#pragma once

#include <map>
#include <set>

#include "core/program.h"
#include "core/touched_bytes.h"
#include "train/step.h"

namespace barestep {

/// Nodes to put behind one of a program's; those of one place keep their order. -1: in front of
/// all.
using Insertions = std::multimap<NodeId, Node>;

/// `program` with the insertions, and without the nodes `left_out`. Waits are not set: call
/// order().
Program with_insertions(const Program& program, const Insertions& insertions,
                        const std::set<NodeId>& left_out = {});

/// The program's nodes before `end` have been walked.
TouchedBytes touched_before(const Program& program, NodeId end);

/// The last node so far that writes `tensor`, or touches it at all; kNoNode where there is none.
NodeId last_use(const TouchedBytes& touched, const Tensor& tensor, bool writes_only);

/// The optimizer of a training step.
NodeId optimizer_node(const Program& program);

/// This rank's rows over those of the step: what its mean gradients and loss count among all
/// ranks'. For equal shares that is 1/ranks, as PyTorch's.
float share_of_step(const StepProgram& step, const StepSpec& spec);

/// A collective on the comm lane.
Node comm_node(Collective collective);

/// Adds to the insertions: the losses of all ranks, each times `scale`, are summed, first on the
/// comm lane and read back there, since on the compute lane backward would wait for the other
/// ranks. Beside the loss goes whether a rank wants to stop. Takes the buffers "global_loss",
/// "global_loss_host" and "stop_host" and moves the step's tensors there; a rank's own loss is
/// kept.
void share_loss(StepProgram& step, Buffers& buffers, float scale, Insertions& insertions);

}  // namespace barestep
