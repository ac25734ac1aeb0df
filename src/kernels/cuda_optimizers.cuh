// Kernels of the optimizers: one pass over the flat buffers, `vectors` times four numbers by
// 16-byte accesses, what is left one by one.
//
// Gradients and the optimizer's state are not read again before the next step, so they leave the
// cache first; weights may stay.
#pragma once

#include "kernels/cuda_grid.cuh"
#include "kernels/formulas.h"

namespace barestep {

static __global__ void __launch_bounds__(kBlockThreads)
    adam(std::int64_t n, std::int64_t vectors, float* weights, const float* grads, float* moments1,
         float* moments2, const float* scalars, const float* clip, AdamConstants constants) {
  const AdamScalars step(constants, scalars, clip);
  auto* const weights4 = reinterpret_cast<float4*>(weights);
  const auto* const grads4 = reinterpret_cast<const float4*>(grads);
  auto* const moments1_4 = reinterpret_cast<float4*>(moments1);
  auto* const moments2_4 = reinterpret_cast<float4*>(moments2);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 g = __ldcs(grads4 + i);
    float4 m = __ldcs(moments1_4 + i);
    float4 v = __ldcs(moments2_4 + i);
    float4 w = weights4[i];
    adam_step(constants, step, g.x, w.x, m.x, v.x);
    adam_step(constants, step, g.y, w.y, m.y, v.y);
    adam_step(constants, step, g.z, w.z, m.z, v.z);
    adam_step(constants, step, g.w, w.w, m.w, v.w);
    weights4[i] = w;
    __stcs(moments1_4 + i, m);
    __stcs(moments2_4 + i, v);
  }
  // At most three where all is aligned: unrolling would cost every thread a division and registers.
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) {
    adam_step(constants, step, grads[i], weights[i], moments1[i], moments2[i]);
  }
}

/// `velocities` is read and written with momentum only.
template <bool kMomentum>
__global__ void __launch_bounds__(kBlockThreads)
    sgd(std::int64_t n, std::int64_t vectors, float* weights, const float* grads, float* velocities,
        const float* scalars, const float* clip, SgdConstants constants) {
  const SgdScalars step(scalars, clip);
  auto* const weights4 = reinterpret_cast<float4*>(weights);
  const auto* const grads4 = reinterpret_cast<const float4*>(grads);
  auto* const velocities4 = reinterpret_cast<float4*>(velocities);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 g = __ldcs(grads4 + i);
    float4 w = weights4[i];
    float4 v{};
    if (kMomentum) v = __ldcs(velocities4 + i);
    sgd_step(constants, step, g.x, w.x, kMomentum ? &v.x : nullptr);
    sgd_step(constants, step, g.y, w.y, kMomentum ? &v.y : nullptr);
    sgd_step(constants, step, g.z, w.z, kMomentum ? &v.z : nullptr);
    sgd_step(constants, step, g.w, w.w, kMomentum ? &v.w : nullptr);
    weights4[i] = w;
    if (kMomentum) __stcs(velocities4 + i, v);
  }
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) {
    sgd_step(constants, step, grads[i], weights[i], kMomentum ? velocities + i : nullptr);
  }
}

}  // namespace barestep
