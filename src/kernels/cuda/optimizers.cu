#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/optimizers.cuh"

namespace barestep {

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
