// Factor gather ("sufficient factor broadcasting", Xie et al. 2014): a weight's gradient is
// grad_y^T x, so ranks gather these two instead of adding gradients up.
#pragma once

#include "train/step.h"

namespace barestep {

/// Every rank computes the passes of its own rows. During forward the inputs of the layers are
/// gathered, during backward the gradients of their outputs, and of all rows each rank makes the
/// same gradients and the same update as one rank alone does, in the same order; with `--update
/// fused` the update straight from the factors. So all ranks have
/// the same bits, and, where a product's rows do not depend on how many there are, those of one
/// rank: with plain loops always, with oneDNN where it has its kernels of AVX-512 and each rank has
/// two rows or more. Moves 2 x rows x width numbers a layer, where Ddp moves 2 x width^2. Of a step
/// of several micro-steps each rank keeps all its rows, and makes gradients of one rank's
/// micro-steps.
class Factor final : public Scheme {
 public:
  /// Takes the buffers "all_out0", "all_grad_out0", ..., "all_x" where a rank does not draw all
  /// rows itself, and those of Draft::share_loss(). Throws Error(kConfiguration) for clipping where
  /// gradients are not stored.
  void build(Draft& draft) const override;
  [[nodiscard]] std::string exchange_text(const StepSpec& spec,
                                          std::string_view transport) const override;
};

}  // namespace barestep
