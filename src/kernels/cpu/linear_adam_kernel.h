// The work of one thread in a linear layer's fused update: a strip of its weight.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/formulas.h"

namespace barestep {

/// Part of a weight, and the data for its gradient and update. The numbers of a row are contiguous;
/// rows are `stride` numbers apart.
struct LinearAdamStrip {
  std::int64_t batch, rows, cols;
  const float* grad_y;  // batch x rows
  std::int64_t stride_y;
  const float* x;  // batch x cols
  float *weight, *moments1, *moments2;
  std::int64_t stride;  // also of x
  AdamConstants constants;
  AdamScalars scalars;
};

/// The maximum width of a strip. Strips this wide read weights and moments in long runs.
constexpr std::int64_t kLinearAdamStripCols = 2048;

/// The number of rows whose gradients are computed together. A strip should have many such groups,
/// since no product runs alongside the update of the last one.
constexpr std::int64_t kLinearAdamGroup = 6;

/// Computes the gradients grad_y^T x of a few rows while Adam updates the rows above, whose weights
/// and moments are fetched from memory meanwhile. So a step takes only as long as the slower of the
/// two. Each sum is a chain of fused multiply-adds in the order of the batch, independent of the
/// strip. `update` is null if there is no kernel.
struct LinearAdamKernel {
  std::string_view name;
  void (*update)(const LinearAdamStrip& strip) = nullptr;
};

/// The instructions that a vector kernel may use.
enum class LinearAdamIsa { kNone, kAvx2, kAvx512 };

/// The fastest kernel that this CPU can run, limited to `max`.
LinearAdamKernel linear_adam_kernel(LinearAdamIsa max = LinearAdamIsa::kAvx512);

/// Kernels for x86, compiled for instructions that not every processor has.
void update_by_avx2(const LinearAdamStrip& strip);
void update_by_avx512(const LinearAdamStrip& strip);

}  // namespace barestep
