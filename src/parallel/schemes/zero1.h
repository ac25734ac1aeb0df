// ZeRO-1 (Rajbhandari et al. 2020): every rank keeps the optimizer state of its share of the
// parameters, and updates that share.
#pragma once

#include "train/step.h"

namespace barestep {

/// A share of the flat buffers: ceil(numbers / ranks), rounded up to 64 bytes. The last ranks'
/// shares may extend past the end of the layout, or lie past it completely; everything there is
/// zero.
FlatRange shard_of(const Parameters& parameters, int rank, int ranks);

/// After backward, the gradients are reduce-scattered, each rank's weighted as in Ddp. Each rank
/// then updates its share of the parameters, and the shares are gathered. For clipping, the ranks
/// sum the squares of their shares. Gradients that accumulate from step to step (--no-zero-grad)
/// are all-reduced instead, because each rank needs all of them in the next step.
class Zero1 final : public Scheme {
 public:
  /// Extends the flat buffers to whole shares, and allocates those of Draft::share_loss().
  void build(Draft& draft) const override;
  [[nodiscard]] FlatRange optimizer_range(const Parameters& parameters, int rank,
                                          int ranks) const override {
    return shard_of(parameters, rank, ranks);
  }
  [[nodiscard]] std::string exchange_text(const StepSpec& spec,
                                          std::string_view transport) const override;
};

}  // namespace barestep
