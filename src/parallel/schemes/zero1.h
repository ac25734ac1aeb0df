// ZeRO-1 (Rajbhandari et al. 2020): every rank keeps the optimizer's state for its share of the
// parameters, and updates that share.
#pragma once

#include "train/step.h"

namespace barestep {

/// A share of the flat buffers: ceil(numbers / ranks), rounded up to 64 bytes. The last ranks'
/// shares may lie partly or wholly past the layout's end, where all is zero.
FlatRange shard_of(const ParameterLayout& layout, int rank, int ranks);

/// After backward the gradients are reduce-scattered, each rank's weighted as Ddp's are, then each
/// rank updates its share of the parameters, and the shares are gathered. For clipping, the ranks
/// add up the squares of their shares. Gradients that add up from step to step (--no-zero-grad) are
/// all-reduced instead: each rank needs all of them in the next step.
class Zero1 final : public Scheme {
 public:
  /// Lengthens the flat buffers to whole shares, and takes those of Draft::share_loss().
  void build(Draft& draft) const override;
  [[nodiscard]] FlatRange optimizer_range(const StepSpec& spec, int rank) const override {
    return shard_of(spec.model.layout, rank, spec.ranks);
  }
  [[nodiscard]] std::string exchange_text(const StepSpec& spec,
                                          std::string_view transport) const override;
};

}  // namespace barestep
