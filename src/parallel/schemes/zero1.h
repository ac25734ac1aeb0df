// ZeRO-1 (Rajbhandari et al. 2020) as a transformation of a program: every rank keeps the
// optimizer's state for its share of the parameters, and updates that share.
#pragma once

#include "core/program.h"
#include "train/step.h"

namespace barestep {

/// A share of the flat buffers: ceil(numbers / ranks), rounded up to 64 bytes. The last ranks'
/// shares may lie partly or wholly behind the layout's end, where all is zero.
FlatRange shard_of(const ParameterLayout& layout, int rank, int ranks);

/// Behind backward the gradients are reduce-scattered, each rank's weighted as Ddp's are, then each
/// rank updates its share of the parameters, and the shares are gathered. For clipping, the ranks
/// add up the squares of their shares. Gradients that add up from step to step (--no-zero-grad) are
/// all-reduced instead: each rank needs all of them in the next step.
class Zero1 final : public Scheme {
 public:
  /// Lengthens the flat buffers to whole shares.
  [[nodiscard]] std::optional<FlatRange> updated_range(Buffers& buffers,
                                                       const StepSpec& spec) const override;

  /// Takes the buffers of share_loss().
  void apply(StepProgram& step, Buffers& buffers, const StepSpec& spec,
             bool is_first_step) const override;
};

}  // namespace barestep
