// Recomputation (Chen et al. 2016, "Training deep nets with sublinear memory cost"): what it saves
// and costs, found from programs alone, and how many segments a memory asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "train/step.h"

namespace barestep {

/// Of a training step on device 0, beside the same step without recomputation.
struct Recomputation {
  int segments = 1;
  std::int64_t activation_bytes = 0, activation_bytes_without = 0;  // of the memory plan
  std::int64_t flops = 0, flops_without = 0;                        // all devices together
  std::int64_t batch_size = 0;  // of a micro-step, all ranks together
  /// The batch size from which the outputs of all layers take more than parameters, gradients and
  /// the optimizer's state, so that recomputation can free more than a small part of the memory.
  std::int64_t paying_batch_size = 0;
};

/// Throws what building the programs without recomputation throws.
Recomputation recomputation_of(const StepPrograms& programs);

/// Three lines below a title; one that says so where each segment but the last is a single layer.
std::string recomputation_text(const Recomputation& recomputation);

/// The number of segments with the fewest flops among those whose programs fit; where none do, the
/// one with the least memory. Plans a few of them only.
int cheapest_segments(const StepSpec& spec, const Scheme* scheme,
                      const std::function<bool(const StepPrograms&)>& fits);

}  // namespace barestep
