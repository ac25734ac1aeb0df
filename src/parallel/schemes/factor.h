// Factor gather ("sufficient factor broadcasting", Xie et al. 2014): a weight's gradient is
// grad_y^T x, so ranks gather these two factors instead of reducing gradients.
#pragma once

#include "train/step.h"

namespace barestep {

/// Every rank computes the passes of its own rows. Forward gathers the inputs of the layers,
/// backward the gradients of their outputs. From all rows, each rank computes the same gradients
/// and the same update as a single rank, in the same order; with `--update fused`, it computes the
/// update directly from the factors. So all ranks have the same bits. These are a single rank's if
/// a product's rows do not depend on how many there are, as with our own products. From files, each
/// rank takes consecutive rows of a batch, not every N-th as with other schemes, so the gathered
/// rows have a single rank's order too. Moves 2 x rows x width numbers per layer, where Ddp moves 2
/// x width^2. In a step of several micro-steps, each rank keeps all of its rows and computes
/// gradients in a single rank's micro-steps.
class Factor final : public Scheme {
 public:
  /// Allocates the buffers "all_out0", "all_grad_out0", ..., "all_x" if a rank does not draw all
  /// rows itself, and those of Draft::share_loss(). Throws Error(kConfiguration) if clipping is
  /// requested but gradients are not stored.
  void build(Draft& draft) const override;
};

}  // namespace barestep
