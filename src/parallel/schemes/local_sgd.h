// Local SGD: ranks train apart and average their weights now and then.
#pragma once

#include <string>
#include <vector>

#include "train/step.h"

namespace barestep {

/// Each data rank computes gradients of its own rows and updates its own weights. Every sync_every
/// steps, and before evaluations and the end of a run, the weights become the sum of those of all
/// ranks, each times fl(1 / ranks); so ranks send 1 / sync_every of what Ddp sends. The optimizer's
/// memory stays each rank's own, as with torch.distributed.algorithms.model_averaging.
///
/// With DiLoCo (Douillard et al. 2023, arXiv 2311.08105) the weights at the start of the round
/// move toward that average instead: start - average is the gradient of a step of SGD with
/// learning rate 0.7 and Nesterov momentum 0.9.
class LocalSgd final : public Scheme {
 public:
  /// Creates the buffers of Draft::share_loss(), and for DiLoCo "outer_start", "outer_momentum" and
  /// "outer_rate".
  void build(Draft& draft) const override;
  [[nodiscard]] std::vector<StepKind> kinds(const StepSpec& spec) const override;
  [[nodiscard]] StepKind kind_of(const StepPlace& place, const StepSpec& spec) const override;
  [[nodiscard]] bool is_own(Category category) const override;
};

}  // namespace barestep
