// What one thread does of a linear layer's fused update: a strip of its weight.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/formulas.h"

namespace barestep {

/// Rows and columns of a weight, and what their gradient and update are made of. The numbers of a
/// row lie one after the other; a row begins `stride` numbers after the one above it.
struct LinearAdamStrip {
  std::int64_t batch, rows, cols;
  const float* grad_y;  // batch x rows
  std::int64_t stride_y;
  const float* x;  // batch x cols
  float *weight, *moments1, *moments2;
  std::int64_t stride;  // of x, too
  AdamConstants constants;
  AdamScalars scalars;
};

/// Of a strip, at most. Beside it, strips this wide follow weights and moments in long runs.
constexpr std::int64_t kLinearAdamStripCols = 2048;

/// Rows whose gradients are made together; a strip should have many groups of them, for the last
/// one is updated with no product beside it.
constexpr std::int64_t kLinearAdamGroup = 6;

/// Makes the gradients grad_y^T x of a few rows while Adam updates the rows above, whose weights
/// and moments come from memory meanwhile: a step costs the larger of both. A sum is a chain of
/// fused multiply-adds in the order of the batch, whatever the strip. `update` is null where there
/// is none.
struct LinearAdamKernel {
  std::string_view name;
  void (*update)(const LinearAdamStrip& strip) = nullptr;
};

/// What instructions a kernel may use.
enum class LinearAdamIsa { kNone, kAvx2, kAvx512 };

/// The fastest kernel that this CPU runs, by `most` and less.
LinearAdamKernel linear_adam_kernel(LinearAdamIsa most = LinearAdamIsa::kAvx512);

/// Kernels of x86, compiled for instructions that not every processor has.
void update_by_avx2(const LinearAdamStrip& strip);
void update_by_avx512(const LinearAdamStrip& strip);

}  // namespace barestep
