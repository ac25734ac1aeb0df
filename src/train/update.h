// The end of a step: how gradients become new weights.
#pragma once

#include "core/program.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace barestep {

/// Adds the optimizer's step, behind clipping where the spec asks for it: one op over the flat
/// buffers, or, where gradients are not stored, one for each layer, straight from the factors of
/// its gradients. `x` are all rows of the step's input, `scalars` is 1 x
/// scalars_of(spec.optimizer).
void add_update(Program& program, Buffers& buffers, const StepSpec& spec,
                const OptimizerState& optimizer, const Tensor& x, const Tensor& scalars);

}  // namespace barestep
