// The kernel of the optimizers: one pass over the flat buffers, `vectors` times four numbers by
// 16-byte accesses, what is left one by one.
//
// Gradients and the optimizer's state are not read again before the next step, so they leave the
// cache first; weights may stay.
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// The step on one of four weights, whose state is that member of each of `state`.
template <class Rule, class Scalars>
__device__ void update_lane(const Rule& rule, const Scalars& step, float grad, float& weight,
                            float4* state, float float4::*lane) {
  float kept[StateArrays<Rule>::kLength];
  for (int k = 0; k < Rule::kState; ++k) kept[k] = state[k].*lane;
  rule(step, grad, weight, kept);
  for (int k = 0; k < Rule::kState; ++k) state[k].*lane = kept[k];
}

template <class Rule>
__global__ void __launch_bounds__(kBlockThreads)
    update(std::int64_t n, std::int64_t vectors, float* weights, const float* grads,
           StateArrays<Rule> state, const float* scalars, const float* clip, Rule rule) {
  const auto step = rule.at_step(scalars, clip);
  auto* const weights4 = reinterpret_cast<float4*>(weights);
  const auto* const grads4 = reinterpret_cast<const float4*>(grads);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 g = __ldcs(grads4 + i);
    float4 kept[StateArrays<Rule>::kLength];
    for (int k = 0; k < Rule::kState; ++k) {
      kept[k] = __ldcs(reinterpret_cast<const float4*>(state.arrays[k]) + i);
    }
    float4 w = weights4[i];
    update_lane(rule, step, g.x, w.x, kept, &float4::x);
    update_lane(rule, step, g.y, w.y, kept, &float4::y);
    update_lane(rule, step, g.z, w.z, kept, &float4::z);
    update_lane(rule, step, g.w, w.w, kept, &float4::w);
    weights4[i] = w;
    for (int k = 0; k < Rule::kState; ++k) {
      __stcs(reinterpret_cast<float4*>(state.arrays[k]) + i, kept[k]);
    }
  }
  // At most three where all is aligned: unrolling would cost every thread a division and registers.
  const UpdateElement<Rule> element{weights, grads, state, rule, step};
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) element(i);
}

}  // namespace barestep
