// The kernel of the optimizers: one pass over the flat buffers, `vectors` times four numbers with
// 16-byte accesses, the rest one by one.
//
// Gradients and the optimizer's state are not read again before the next step, so they leave the
// cache first; weights may stay.
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launcher.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// The step on one of four weights; its state is the same component of each of `state`.
template <class Rule, class Scalars>
__device__ void update_lane(const Rule& rule, const Scalars& step, float grad, float& weight,
                            float4* state, float float4::*lane) {
  float kept[StateArrays<Rule>::kLength];
  for (int k = 0; k < Rule::kState; ++k) kept[k] = state[k].*lane;
  rule(step, grad, weight, kept);
  for (int k = 0; k < Rule::kState; ++k) state[k].*lane = kept[k];
}

/// Four 16-bit numbers, with one 8-byte access.
template <class Number>
struct alignas(8) FourNumbers {
  Number x, y, z, w;
};

__device__ inline float4 load_four(const float* from, std::int64_t i) {
  return __ldcs(reinterpret_cast<const float4*>(from) + i);
}
template <class Number>
__device__ float4 load_four(const Number* from, std::int64_t i) {
  const auto bits = __ldcs(reinterpret_cast<const uint2*>(from) + i);
  FourNumbers<Number> four;
  static_assert(sizeof(four) == sizeof(bits));
  memcpy(&four, &bits, sizeof(four));
  return {float_of(four.x), float_of(four.y), float_of(four.z), float_of(four.w)};
}

template <class Number>
__device__ void store_four(Number* to, std::int64_t i, const float4& four) {
  reinterpret_cast<FourNumbers<Number>*>(to)[i] = {rounded<Number>(four.x), rounded<Number>(four.y),
                                                   rounded<Number>(four.z),
                                                   rounded<Number>(four.w)};
}

template <class Rule, class Grad, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    update(std::int64_t n, std::int64_t vectors, float* weights, const Grad* grads,
           StateArrays<Rule> state, const float* scalars, UpdateCommons<Number> commons,
           Rule rule) {
  begin_kernel();
  if (commons.skips()) {
    if constexpr (!std::is_same_v<Number, float>) {
      const CastElement<Number, float> round(commons.rounded_weights, weights);
      for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) round(i);
    }
    return;
  }
  const auto step = rule.at_step(commons.row_of(scalars), commons.clip);
  const float unscale = commons.unscale();
  auto* const weights4 = reinterpret_cast<float4*>(weights);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 g = load_four(grads, i);
    float4 kept[StateArrays<Rule>::kLength];
    for (int k = 0; k < Rule::kState; ++k) {
      kept[k] = __ldcs(reinterpret_cast<const float4*>(state.arrays[k]) + i);
    }
    float4 w = weights4[i];
    update_lane(rule, step, g.x * unscale, w.x, kept, &float4::x);
    update_lane(rule, step, g.y * unscale, w.y, kept, &float4::y);
    update_lane(rule, step, g.z * unscale, w.z, kept, &float4::z);
    update_lane(rule, step, g.w * unscale, w.w, kept, &float4::w);
    weights4[i] = w;
    for (int k = 0; k < Rule::kState; ++k) {
      __stcs(reinterpret_cast<float4*>(state.arrays[k]) + i, kept[k]);
    }
    if constexpr (!std::is_same_v<Number, float>) store_four(commons.rounded_weights, i, w);
  }
  // At most three if everything is aligned; unrolling would cost every thread a division and
  // registers.
  const UpdateElement<Rule, Grad, Number> element{
      weights, grads, state, rule, step, commons.rounded_weights, unscale};
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) element(i);
}

cudaError_t Launcher::operator()(const OptimizerUpdate& op) const {
  float* const weights = addresses.at(op.weights);
  return with_update_numbers(op, [&]<class Grad, class Number>(Grad, Number) {
    const Grad* const grads = addresses.at<Grad>(op.grads);
    const UpdateCommons<Number> commons(op, addresses);
    return with_rule(op.step, [&]<class Rule>(const Rule& rule) {
      const auto state = arrays_of<Rule>(op.state, addresses);
      const bool aligned = are_aligned(weights, grads, commons.rounded_weights) &&
                           std::ranges::all_of(state.arrays, is_aligned);
      return by_packs<4>(op.weights.size(), aligned, update<Rule, Grad, Number>, weights, grads,
                         state, static_cast<const float*>(addresses.at(op.scalars)), commons, rule);
    });
  });
}

}  // namespace barestep
