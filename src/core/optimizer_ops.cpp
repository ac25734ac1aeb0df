// What the optimizers' ops say of themselves: their operands, rules and flops, and their words.
#include <fmt/format.h>

#include "core/checked.h"
#include "core/operands.h"
#include "core/ops.h"

namespace barestep {
namespace {

using enum OperandUse;

std::int64_t flops_for_each(const Tensor& tensor, std::int64_t flops) {
  return checked_multiply(tensor.size(), flops, "the flops of an op");
}

std::string decay_words(double rate) {
  return rate == 0 ? "" : fmt::format(", weight decay {}", rate);
}

std::string clip_words(const std::optional<Tensor>& factor, const TensorText& t) {
  return factor ? fmt::format(", gradient times {}", t(*factor)) : "";
}

OpRule clip_rule(const std::optional<Tensor>& clip) {
  return {"clip must be 1 by 1", {optional_tensor(clip)}};
}

/// For each weight: the first moment takes 3, the second 4, the divisor 3, the weight 3.
template <class AdamOp>
std::int64_t flops_of_adam(const AdamOp& op) {
  const std::int64_t decay = op.weight_decay == 0 ? 0 : op.decoupled ? 1 : 2;
  return 13 + decay + (op.clip ? 1 : 0);
}

template <class AdamOp>
void add_adam_rules(const AdamOp& op, std::vector<OpRule>& rules) {
  rules.push_back({"scalars must be 1 by 2, or by 3 with decoupled weight decay", {&op.scalars}});
  rules.push_back({"weight_decay must be zero or more", {}, op.weight_decay >= 0});
  rules.push_back(clip_rule(op.clip));
}

}  // namespace

std::vector<Operand> Adam::operands() const {
  return {{"weights", &weights, kUpdates, '1', 'n'},
          {"grads", &grads, kReads, '1', 'n'},
          {"moments1", &moments1, kUpdates, '1', 'n'},
          {"moments2", &moments2, kUpdates, '1', 'n'},
          {"scalars", &scalars, kReads, '1', decoupled ? '3' : '2'},
          {"clip", optional_tensor(clip), kReads, '1', '1'}};
}

std::vector<OpRule> Adam::rules() const {
  std::vector<OpRule> rules = {{"weights must be flat, 1 by n", {&weights}},
                               {"weights, grads, moments1 and moments2 must have the same shape",
                                {&grads, &moments1, &moments2}}};
  add_adam_rules(*this, rules);
  return rules;
}

std::int64_t Adam::flops() const {
  return flops_for_each(weights, flops_of_adam(*this));
}

std::string Adam::text(const TensorText& t) const {
  return fmt::format("{} from {}, {}, {}, {}{}{}{}", t(weights), t(grads), t(moments1), t(moments2),
                     t(scalars), clip_words(clip, t), decoupled ? ", decoupled" : "",
                     decay_words(weight_decay));
}

std::vector<Operand> Sgd::operands() const {
  return {{"weights", &weights, kUpdates, '1', 'n'},
          {"grads", &grads, kReads, '1', 'n'},
          {"scalars", &scalars, kReads, '1', '1'},
          {"velocities", optional_tensor(velocities), kUpdates, '1', 'n'},
          {"clip", optional_tensor(clip), kReads, '1', '1'}};
}

std::vector<OpRule> Sgd::rules() const {
  return {
      {"weights must be flat, 1 by n", {&weights}},
      {"weights, grads and velocities must have the same shape",
       {&grads, optional_tensor(velocities)}},
      {"scalars must be 1 by 1", {&scalars}},
      {"momentum and weight_decay must be zero or more", {}, momentum >= 0 && weight_decay >= 0},
      {"velocities go with momentum", {}, velocities.has_value() == (momentum > 0)},
      {"nesterov needs momentum", {}, !nesterov || momentum > 0},
      clip_rule(clip)};
}

/// Each of decay, momentum, Nesterov's step and the weight is a product and a sum.
std::int64_t Sgd::flops() const {
  return flops_for_each(weights, 2 + (weight_decay != 0 ? 2 : 0) + (velocities ? 2 : 0) +
                                     (nesterov ? 2 : 0) + (clip ? 1 : 0));
}

std::string Sgd::text(const TensorText& t) const {
  std::string text = fmt::format("{} from {}, {}", t(weights), t(grads), t(scalars));
  if (velocities) text += fmt::format(", {}, momentum {}", t(*velocities), momentum);
  return text + clip_words(clip, t) + (nesterov ? ", Nesterov" : "") + decay_words(weight_decay);
}

std::vector<Operand> LinearAdam::operands() const {
  return {{"weight", &weight, kUpdates, 'm', 'n'},
          {"weight_moments1", &weight_moments1, kUpdates, 'm', 'n'},
          {"weight_moments2", &weight_moments2, kUpdates, 'm', 'n'},
          {"bias", &bias, kUpdates, '1', 'm'},
          {"bias_moments1", &bias_moments1, kUpdates, '1', 'm'},
          {"bias_moments2", &bias_moments2, kUpdates, '1', 'm'},
          {"grad_y", &grad_y, kReads, 'r', 'm'},
          {"x", &x, kReads, 'r', 'n'},
          {"scalars", &scalars, kReads, '1', decoupled ? '3' : '2'},
          {"clip", optional_tensor(clip), kReads, '1', '1'}};
}

std::vector<OpRule> LinearAdam::rules() const {
  std::vector<OpRule> rules = {
      {"weight must be the columns of grad_y by the columns of x, which have equal rows",
       {&grad_y, &x, &weight}},
      {"bias must be 1 by the rows of weight", {&bias}},
      {"moments must have the shapes of weight and bias",
       {&weight_moments1, &weight_moments2, &bias_moments1, &bias_moments2}}};
  add_adam_rules(*this, rules);
  return rules;
}

std::int64_t LinearAdam::flops() const {
  constexpr std::string_view kWhat = "the flops of an op";
  const std::int64_t step = flops_of_adam(*this);
  const std::int64_t of_bias =
      checked_add(flops_for_each(grad_y, 1), flops_for_each(bias, step), kWhat);
  return checked_add(flops_for_each(weight, 2 * x.rows + step), of_bias, kWhat);
}

std::string LinearAdam::text(const TensorText& t) const {
  return fmt::format("{}, {} from {}^T * {}, column sums, {}, {}, {}, {}, {}{}{}{}", t(weight),
                     t(bias), t(grad_y), t(x), t(weight_moments1), t(weight_moments2),
                     t(bias_moments1), t(bias_moments2), t(scalars), clip_words(clip, t),
                     decoupled ? ", decoupled" : "", decay_words(weight_decay));
}

}  // namespace barestep
