#include <utility>

#include "parallel/schemes/other_schemes.h"

namespace barestep {
namespace {

constexpr float kOuterRate = 0.7F;
constexpr double kOuterMomentum = 0.9;

void add_on_comm(Draft& draft, DeviceOp op) {
  draft.add({.op = std::move(op), .lane = Lane::kComm, .phase = Phase::kOptimizer});
}

/// Moves the start of the round toward the average, which is in the parameters, and continues from
/// there.
void add_outer_step(Draft& draft, const Tensor& average, const std::optional<Tensor>& rounded) {
  const Parameters& parameters = draft.parameters();
  const Tensor start =
      parameters.flat(draft.keep("outer_start", Category::kOptimizer,
                                 {.prefix = "outer_start.", .starts_as_parameters = true}));
  const Tensor momentum = parameters.flat(
      draft.keep("outer_momentum", Category::kOptimizer, {.prefix = "outer_momentum."}));
  const Tensor rate = draft.buffers().tensor("outer_rate", Category::kOptimizer, 1, 1);
  add_on_comm(draft, Fill{.out = rate, .value = -kOuterRate});
  add_on_comm(draft, SumRows{.out = average, .in = start, .beta = -1});
  add_on_comm(draft, OptimizerUpdate{.weights = start,
                                     .grads = average,
                                     .state = {momentum},
                                     .scalars = rate,
                                     .step = SgdStep{.momentum = kOuterMomentum, .nesterov = true},
                                     .rounded = rounded});
  add_on_comm(draft, Copy{.to = average, .from = start});
}

void add_average(Draft& draft) {
  const StepSpec& spec = draft.spec();
  const FlatBuffers flat = draft.flat_buffers();
  const Tensor weights = draft.parameters().flat(flat.parameters);
  std::optional<Tensor> rounded;
  if (flat.operands != flat.parameters) {
    rounded = draft.parameters().flat(flat.operands, spec.model.numbers);
  }
  draft.exchange(AllReduce{.tensors = {weights},
                           .scale = 1 / static_cast<float>(spec.mesh.data),
                           .axis = draft.data_axis(),
                           .name = "average of the weights"});
  if (spec.update.outer == OuterOptimizer::kDiLoCo) return add_outer_step(draft, weights, rounded);
  if (rounded) add_on_comm(draft, Cast{.to = *rounded, .from = weights});
}

}  // namespace

void LocalSgd::build(Draft& draft) const {
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  draft.input();
  draft.passes({.loss_ready = loss_ready});
  draft.update();
  if (draft.kind() == StepKind::kTraining) add_average(draft);
}

std::vector<StepKind> LocalSgd::kinds(const StepSpec& /*spec*/) const {
  return {StepKind::kTraining, StepKind::kLocalTraining};
}

StepKind LocalSgd::kind_of(const StepPlace& place, const StepSpec& spec) const {
  const bool ends_round = (place.number + 1) % spec.update.sync_every == 0 || place.is_last;
  return ends_round ? StepKind::kTraining : StepKind::kLocalTraining;
}

bool LocalSgd::is_own(Category category) const {
  return category == Category::kOptimizer;
}

}  // namespace barestep
