// Factor gather as a transformation of a program ("sufficient factor broadcasting", Xie et al.
// 2014): a weight's gradient is grad_y^T x, so ranks gather these two instead of adding gradients
// up.
#pragma once

#include "core/program.h"
#include "train/step.h"

namespace barestep {

/// Every rank computes the passes of its own rows. Behind forward the inputs of the layers are
/// gathered, during backward the gradients of their outputs, and of all rows each rank makes the
/// same gradients and the same update as one rank alone does, in the same order. So all ranks have
/// the same bits, and, where a product's rows do not depend on how many there are, those of one
/// rank: with plain loops always, with oneDNN where it has its kernels of AVX-512 and each rank has
/// two rows or more. Moves 2 x rows x width numbers a layer, where Ddp moves 2 x width^2. Of a step
/// of several micro-steps each rank keeps all its rows, and makes gradients of one rank's
/// micro-steps.
class Factor final : public Scheme {
 public:
  /// With `--update fused` the gathered factors go straight into Adam.
  [[nodiscard]] bool needs_gradients() const override { return false; }

  /// A rank without rows gathers what the others have.
  [[nodiscard]] bool passes_without_rows() const override { return true; }

  [[nodiscard]] bool keeps_factors() const override { return true; }

  /// Takes the buffers "all_out0", "all_grad_out0", ..., "all_x" where a rank does not draw all
  /// rows itself, and those of share_loss(). Throws Error(kConfiguration) for clipping where
  /// gradients are not stored.
  void apply(StepProgram& step, Buffers& buffers, const StepSpec& spec,
             bool is_first_step) const override;
};

}  // namespace barestep
