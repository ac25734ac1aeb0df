// Recomputation (Chen et al. 2016, "Training deep nets with sublinear memory cost"): its savings
// and costs, computed from programs alone, and the number of segments that fit in a memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "train/step.h"

namespace barestep {

/// Figures of a training step on device 0, and of the same step without recomputation.
struct Recomputation {
  int segments = 1;
  std::int64_t activation_bytes = 0, activation_bytes_without = 0;  // from the memory plan
  std::int64_t flops = 0, flops_without = 0;                        // all devices together
  std::int64_t batch_size = 0;  // per micro-step, all ranks together
  /// The smallest batch size at which the outputs of all layers need more memory than parameters,
  /// gradients and the optimizer's state. From there on, recomputation can free a large part of the
  /// memory.
  std::int64_t paying_batch_size = 0;
};

/// Throws what building the programs without recomputation throws.
Recomputation recomputation_of(const StepPrograms& programs);

/// Three lines below a title, or one line if each segment except the last is a single layer.
std::string recomputation_text(const Recomputation& recomputation);

/// The number of segments with the fewest flops among those whose programs fit; if none fits, the
/// one that needs the least memory. Plans only a few of them.
int cheapest_segments(const StepSpec& spec, const Scheme* scheme,
                      const std::function<bool(const StepPrograms&)>& fits);

}  // namespace barestep
