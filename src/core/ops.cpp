#include "core/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operands.h"
#include "core/philox.h"
#include "core/random.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::string_view kFlops = "the flops of an op";

std::int64_t flops_each(const Tensor& tensor, std::int64_t flops) {
  return checked_multiply(tensor.size(), flops, kFlops);
}

/// beta * old + new, for each number.
std::int64_t flops_of_beta(float beta) {
  return beta != 0 ? 2 : 0;
}

std::int64_t flops_of(const Gemm& op) {
  const std::int64_t inner = op.transpose_a ? op.a.rows : op.a.cols;
  return flops_each(op.c, 2 * inner + (op.bias ? 1 : 0) + traits_of(op.activation).flops +
                              flops_of_beta(op.beta));
}

/// Per number: maximum, difference, exp, sum, times the inverse of sum and of count. Per row: log,
/// the label's loss and its sum, the inverse of the sum, the label's -1. Once: the division by
/// count. Smoothing also sums all differences, subtracts its share from every number and weights
/// two sums.
std::int64_t flops_of(const CrossEntropy& op) {
  const bool smooths = op.smoothing > 0;
  const std::int64_t rows = checked_multiply(op.logits.rows, smooths ? 10 : 6, kFlops);
  return checked_add(flops_each(op.logits, (smooths ? 8 : 6) + (op.scale ? 1 : 0)),
                     rows + 1 + flops_of_beta(op.beta), kFlops);
}

std::int64_t flops_of_device_op(const DeviceOp& op) {
  return std::visit(
      Overloaded{
          [](const Gemm& o) { return flops_of(o); },
          // Magnitude, comparison, product, rounding.
          [](const QuantizeWeight& o) { return flops_each(o.from, 4); },
          [](const Quantize& o) { return flops_each(o.from, 4); },
          // Integer multiply-adds count like those of floats. They are followed by the product of
          // the scales and its product with the sum, to which the bias is added.
          [](const QuantizedGemm& o) {
            return flops_each(o.c, 2 * o.a.cols + 3 + traits_of(o.activation).flops);
          },
          [](const BiasActivation& o) {
            return flops_each(o.values, (o.bias ? 1 : 0) + traits_of(o.activation).flops);
          },
          [](const ActivationGrad& o) {
            const std::int64_t each = traits_of(o.activation).grad_flops + (o.sums ? 1 : 0);
            return flops_each(o.grad, each) +
                   (o.sums ? flops_each(*o.sums, flops_of_beta(o.beta)) : 0);
          },
          // A comparison and a product; Philox uses integer arithmetic, which counts no flops.
          [](const Dropout& o) { return flops_each(o.values, 2); },
          [](const SumRows& o) {
            return flops_each(o.in, 1) + flops_each(o.out, flops_of_beta(o.beta));
          },
          // Once: the division by count.
          [](const PointwiseLoss& o) {
            const std::int64_t each =
                traits_of(o.kind).flops + (o.scale ? 1 : 0) + traits_of(o.activation).grad_flops;
            return checked_add(flops_each(o.output, each), 1 + flops_of_beta(o.beta), kFlops);
          },
          [](const CrossEntropy& o) { return flops_of(o); },
          [](const CountCorrect& o) { return flops_each(o.logits, 1); },
          []<OptimizerOp Update>(const Update& o) { return o.flops(); },
          [](const SumSquares& o) { return flops_each(o.in, o.scale ? 3 : 2); },
          [](const GramSquares& o) { return flops_each(o.gram_y, 3); },
          // Per number: a sum. Once: a root, a sum, a division and a comparison.
          [](const ClipFactor& o) { return o.squares.size() + 4; },
          [](const CheckFinite& o) { return flops_each(o.in, 1); },
          // Two comparisons, a count and a product.
          [](const UpdateLossScale&) { return std::int64_t{4}; },
          [](const Copy&) { return std::int64_t{0}; },
          [](const Cast& o) {
            return flops_each(o.to, (o.scale == 1 ? 0 : 1) + flops_of_beta(o.beta));
          },
          [](const Fill&) { return std::int64_t{0}; },
          // Two numbers (Box-Muller): two uniform numbers, 1 - u, log, times -2, root, times 2 pi,
          // cosine, sine and two products.
          [](const Randn& o) { return flops_each(o.out, 11) / 2; },
          [](const Delay&) { return std::int64_t{0}; },
      },
      op);
}

constexpr auto kLabelOfOne = [](const auto& o) -> std::string_view {
  if constexpr (requires { o.label(); }) {
    return o.label();
  } else {
    return o.kLabel;
  }
};

// Rules. Shapes and types are in an op's list of operands; here are the messages for shapes that
// must match, and the rules for values that are not tensors.

/// The rules of one op. Each check throws, naming the op's label and all its tensors.
class Rules {
 public:
  explicit Rules(const Op& op) : op_(op), operands_(operands_of(op)) {}

  void check_tensors() const {
    for (const Operand& operand : operands_) {
      const Tensor& tensor = *operand.tensor;
      const std::string_view name = operand.name;
      demand(tensor.dtype == operand.dtype,
             fmt::format("{} must be {}", name, name_of(operand.dtype)));
      demand(tensor.rows >= 0 && tensor.cols >= 1,
             fmt::format("{} must have zero or more rows and one or more columns", name));
      demand(tensor.offset_bytes >= 0 && tensor.offset_bytes % bytes_of(tensor.dtype) == 0,
             fmt::format("{} must start at a multiple of its type's size", name));
      const std::string what = fmt::format("{} of {}", name, label_of(op_));
      const std::int64_t size = checked_multiply(tensor.rows, tensor.cols, what);
      checked_add(tensor.offset_bytes, checked_multiply(size, bytes_of(tensor.dtype), what), what);
    }
  }

  void check_overlap() const {
    for (auto one = operands_.begin(); one != operands_.end(); ++one) {
      for (auto other = one + 1; other != operands_.end(); ++other) {
        demand(!overlap(*one->tensor, *other->tensor) ||
                   (one->use == OperandUse::kReads && other->use == OperandUse::kReads),
               fmt::format("{} must not share bytes with {}", one->name, other->name));
      }
    }
  }

  void operator()(const Gemm& o) {
    fit("op(a) must have as many columns as op(b) has rows", o.a, o.b);
    fit("c must be the rows of op(a) by the columns of op(b)", o.c);
    fit("bias must be 1 by the columns of c", o.bias);
    fit("pre_activation must have the shape of c", o.pre_activation);
    demand(!o.bias || o.beta == 0, "a bias needs beta == 0");
    demand(o.c.dtype == DType::kF32 || o.beta == 0, "c of 16 bits needs beta == 0");
  }
  void operator()(const QuantizeWeight& o) {
    fit("to and from must have the same shape", o.to, o.from);
    fit("scales must be 1 by 1, or 1 by the rows of from", o.scales);
    fit("sums must be 1 by the rows of from", o.sums);
  }
  void operator()(const Quantize& o) {
    fit("to and from must have the same shape", o.to, o.from);
    fit("scales must be the rows of from by 1, or with a zero point 1 by 1", o.scales);
    fit("zero_point must be 1 by 1", o.zero_point);
    demand(o.bits == 7 || o.bits == 8, "bits must be 7 or 8");
  }
  void operator()(const QuantizedGemm& o) {
    fit("a must have as many columns as b", o.a, o.b);
    fit("c must be the rows of a by the rows of b", o.c);
    fit("a_scales must be the rows of a by 1, or with a zero point 1 by 1", o.a_scales);
    fit("a_zero_point must be 1 by 1", o.a_zero_point);
    fit("b_scales must be 1 by 1, or 1 by the rows of b", o.b_scales);
    fit("b_sums and bias must be 1 by the rows of b", o.b_sums, o.bias);
    demand(o.bits == 7 || o.bits == 8, "bits must be 7 or 8");
    demand(o.a.cols <= kMostInt8Inputs, "a sum of so many products may overflow");
  }
  void operator()(const BiasActivation& o) {
    fit("bias must be 1 by the columns of values", o.values, o.bias);
    fit("pre_activation must have the shape of values", o.pre_activation);
    demand(!o.bias || o.values.dtype == DType::kF32, "a bias needs values of fp32");
  }
  void operator()(const ActivationGrad& o) {
    fit("grad and what it is found from must have the same shape", o.grad, o.from);
    demand(o.activation != Activation::kNone, "there must be an activation");
    fit("sums must be 1 by the columns of grad", o.sums);
    demand(!o.sums || o.grad.dtype == DType::kF32, "sums need a grad of fp32");
  }
  void operator()(const Dropout& o) {
    fit("step must be 1 by 1", o.values, o.step);
    demand(o.rate >= 0 && o.rate < 1, "rate must be at least 0 and below 1");
    demand(o.layer >= 0 && o.first_row >= 0 && o.row_stride >= 1,
           "layer and rows must be numbered from 0 on");
  }
  void operator()(const SumRows& o) { fit("out must be 1 by the columns of in", o.in, o.out); }
  void operator()(const PointwiseLoss& o) {
    fit("loss must be 1 by 1", o.loss);
    fit("grad, output and target must have the same shape", o.grad, o.output, o.target);
    demand(o.count >= 1 && o.count >= o.output.size(),
           "count must be at least 1 and at least the size of output");
    demand(is_pointwise(o.kind), "the loss must be a mean over single numbers");
    demand(o.activation == Activation::kNone || o.activation == Activation::kRelu,
           "the activation must be ReLU or none");
    fit("scale must be 1 by 1", o.scale);
  }
  void operator()(const CrossEntropy& o) {
    fit("loss must be 1 by 1", o.loss);
    fit("grad and logits must have the same shape", o.grad, o.logits);
    fit("labels must be the rows of logits by 1", o.labels);
    demand(o.count >= 1 && o.count >= o.logits.rows,
           "count must be at least 1 and at least the rows of logits");
    demand(o.smoothing >= 0 && o.smoothing < 1, "smoothing must be at least 0 and below 1");
    fit("scale must be 1 by 1", o.scale);
  }
  void operator()(const CountCorrect& o) {
    fit("correct must be 1 by 1", o.correct);
    fit("labels must be the rows of logits by 1", o.logits, o.labels);
    fit("classes must be the rows of logits by 1", o.classes);
    demand(!o.binary || o.logits.cols == 1, "a binary classifier must have one logit");
  }
  template <OptimizerOp Update>
  void operator()(const Update& o) {
    for (const OpRule& rule : o.rules()) {
      demand(rule.holds, rule.text);
      for (const Tensor* tensor : rule.tensors) {
        if (tensor != nullptr) fit(rule.text, *tensor);
      }
    }
  }
  void operator()(const SumSquares& o) {
    fit("out must be 1 by 1", o.out);
    fit("scale must be 1 by 1", o.scale);
  }
  void operator()(const CheckFinite& o) { fit("found_inf must be 1 by 1", o.found_inf); }
  void operator()(const UpdateLossScale& o) {
    fit("the state of loss scaling must be 1 by 1", o.state.scale, o.state.found_inf,
        o.state.updates, o.good_steps);
    demand(o.growth >= 1 && o.backoff > 0 && o.backoff <= 1, "growth and backoff must be around 1");
    demand(o.window >= 1, "window must be at least 1");
  }
  void operator()(const GramSquares& o) {
    fit("out must be 1 by 1", o.out);
    fit("gram_y and gram_x must be square and have the same shape", o.gram_y, o.gram_x);
  }
  void operator()(const ClipFactor& o) {
    fit("factor must be 1 by 1", o.factor);
    fit("squares must be flat, 1 by n", o.squares);
    demand(std::isfinite(o.max_norm) && o.max_norm > 0, "max_norm must be above zero");
  }
  void operator()(const Copy& o) { fit("to and from must have the same shape", o.to, o.from); }
  void operator()(const Cast& o) {
    fit("to and from must have the same shape", o.to, o.from);
    demand(o.to.dtype == DType::kF32 || o.beta == 0, "to of 16 bits needs beta == 0");
  }
  void operator()(const Fill&) {}
  void operator()(const Randn& o) {
    demand(o.state.bytes() == state_bytes(o.generator),
           fmt::format("state must have the {} bytes of its generator", state_bytes(o.generator)));
  }
  void operator()(const Delay& o) {
    demand(std::isfinite(o.seconds) && o.seconds >= 0, "seconds must be zero or more");
    fit("more_seconds must be 1 by 1", o.more_seconds);
  }

  void operator()(const AllReduce& o) {
    check_parts(o.tensors);
    demand(o.scale == 1 || o.tensors.front().dtype == DType::kF32, "only floats are scaled");
  }
  void operator()(const Broadcast& o) { check_rooted(o.tensors, o.root); }
  void operator()(const Reduce& o) { check_rooted(o.tensors, o.root); }
  void operator()(const ReduceScatter& o) { check_parts(o.tensors); }
  void operator()(const AllGather& o) {
    check_parts(o.tensors);
    demand(o.own.empty() || o.own.size() == o.tensors.size(), "own must be one for each tensor");
    constexpr std::string_view kOwnRows = "own must be rows of the tensor";
    fit(kOwnRows, o.own);
    for (const Tensor& own : o.own) demand(own.rows <= o.tensors.front().rows, kOwnRows);
  }

 private:
  /// Checks that the tensors, operands of the op, have the shapes that the list specifies. The
  /// first tensor checked with a dimension sets its size; `rule` describes in words what must
  /// match.
  template <class... Tensors>
  void fit(std::string_view rule, const Tensors&... tensors) {
    (fit(rule, tensors), ...);
  }
  void fit(std::string_view rule, const std::optional<Tensor>& tensor) {
    if (tensor) fit(rule, *tensor);
  }
  void fit(std::string_view rule, const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) fit(rule, tensor);
  }
  void fit(std::string_view rule, const Tensor& tensor) {
    const auto operand = std::ranges::find(operands_, &tensor, &Operand::tensor);
    BARESTEP_REQUIRE(operand != operands_.end(), "a rule is about operands");
    demand(fits(operand->rows, tensor.rows) && fits(operand->cols, tensor.cols), rule);
  }

  bool fits(char dimension, std::int64_t size) {
    if (dimension == '*') return true;
    if (dimension >= '0' && dimension <= '9') return size == dimension - '0';
    return sizes_.try_emplace(dimension, size).first->second == size;
  }

  void demand(bool holds, std::string_view rule) const {
    if (holds) return;
    std::string tensors;
    for (const Operand& operand : operands_) {
      const Tensor& tensor = *operand.tensor;
      tensors += fmt::format("{}{} {}x{} {}", tensors.empty() ? " (" : ", ", operand.name,
                             tensor.rows, tensor.cols, name_of(tensor.dtype));
    }
    if (!tensors.empty()) tensors += ")";
    fail(ExitCode::kBug, {.what = "ill-formed op",
                          .value = std::string(label_of(op_)),
                          .why = fmt::format("{}{}", rule, tensors),
                          .remedy = "this is a bug in barestep, please report it"});
  }

  void check_parts(const std::vector<Tensor>& tensors) {
    demand(!tensors.empty(), "a collective must have a tensor");
    fit("all tensors must have the same shape", tensors);
  }

  void check_rooted(const std::vector<Tensor>& tensors, int root) {
    check_parts(tensors);
    demand(root >= 0, "root must be a rank");
  }

  const Op& op_;
  std::vector<Operand> operands_;
  std::map<char, std::int64_t> sizes_;  // sizes of the dimensions seen so far
};

}  // namespace

std::int64_t state_bytes(Generator generator) {
  return generator == Generator::kTorchCpu ? sizeof(TorchGenerator) : sizeof(PhiloxState);
}

Cost& Cost::operator+=(const Cost& other) {
  flops = checked_add(flops, other.flops, "the flops of a program");
  bytes = checked_add(bytes, other.bytes, "the bytes of a program");
  message_bytes = checked_add(message_bytes, other.message_bytes, "the messages of a program");
  return *this;
}

Cost cost_of(const Op& op) {
  if (const auto* device_op = std::get_if<DeviceOp>(&op)) {
    Cost cost{.flops = flops_of_device_op(*device_op)};
    for (const Access& access : accesses_of(op)) {
      cost.bytes = checked_add(cost.bytes, access.tensor.bytes(), "the bytes of an op");
    }
    return cost;
  }
  return {.message_bytes = operands_of(op).front().tensor->bytes()};
}

std::string_view label_of(const DeviceOp& op) {
  return std::visit(kLabelOfOne, op);
}

std::string_view label_of(const Op& op) {
  return std::visit([](const auto& kind) { return std::visit(kLabelOfOne, kind); }, op);
}

void validate(const Op& op) {
  Rules rules(op);
  rules.check_tensors();
  std::visit([&](const auto& kind) { std::visit(rules, kind); }, op);
  rules.check_overlap();
}

namespace {

using enum OperandUse;

// The methods of the optimizers' ops: operands, rules, flops and text.

std::int64_t flops_for_each(const Tensor& tensor, std::int64_t flops) {
  return checked_multiply(tensor.size(), flops, "the flops of an op");
}

std::string decay_words(double rate) {
  return rate == 0 ? "" : fmt::format(", weight decay {}", rate);
}

std::string clip_words(const std::optional<Tensor>& factor, const TensorText& t) {
  return factor ? fmt::format(", gradient times {}", t(*factor)) : "";
}

/// The parts shared by all optimizer ops over flat buffers: clip, rounded weights, loss scaling.
template <class Update>
std::vector<Operand> with_common_operands(std::vector<Operand> list, const Update& op) {
  const DType narrow = op.rounded ? real_type(*op.rounded) : DType::kF32;
  list.push_back({"clip", optional_tensor(op.clip), kReads, '1', '1'});
  list.push_back({"rounded", optional_tensor(op.rounded), kWrites, '1', 'n', narrow});
  if (!op.loss_scale) return list;
  list.push_back({"scale", &op.loss_scale->scale, kReads, '1', '1'});
  list.push_back({"found_inf", &op.loss_scale->found_inf, kReads, '1', '1'});
  list.push_back({"updates", &op.loss_scale->updates, kReads, '1', '1', DType::kI32});
  list.push_back({"first_update", optional_tensor(op.first_update), kReads, '1', '1', DType::kI32});
  return list;
}

/// The scalars of an op; with loss scaling, one row for each of several updates.
template <class Update>
Operand scalars_operand(const Update& op, char cols) {
  return {"scalars", &op.scalars, kReads, op.loss_scale ? 'S' : '1', cols};
}

template <class Update>
std::vector<OpRule> with_common_rules(std::vector<OpRule> rules, const Update& op) {
  const bool scales = op.loss_scale.has_value();
  rules.push_back({"clip must be 1 by 1", {optional_tensor(op.clip)}});
  rules.push_back({"rounded must have the shape of weights", {optional_tensor(op.rounded)}});
  rules.push_back(
      {"grads must be f32 or of the type of rounded",
       {},
       op.grads.dtype == DType::kF32 || (op.rounded && op.rounded->dtype == op.grads.dtype)});
  rules.push_back(
      {"rounded must be of 16 bits", {}, !op.rounded || op.rounded->dtype != DType::kF32});
  rules.push_back({"first_update goes with loss_scale", {}, op.first_update.has_value() == scales});
  if (!scales) return rules;
  rules.push_back({"the state of loss scaling must be 1 by 1",
                   {&op.loss_scale->scale, &op.loss_scale->found_inf, &op.loss_scale->updates,
                    optional_tensor(op.first_update)}});
  return rules;
}

/// Flops per weight.
template <class Update>
std::int64_t common_flops(const Update& op) {
  return (op.clip ? 1 : 0) + (op.loss_scale ? 1 : 0);
}

template <class Update>
std::string common_words(const Update& op, const TensorText& t) {
  std::string text = clip_words(op.clip, t);
  if (op.rounded) text += fmt::format(", rounded in {}", t(*op.rounded));
  if (op.loss_scale) {
    text += fmt::format(", gradient / {}, unless {}", t(op.loss_scale->scale),
                        t(op.loss_scale->found_inf));
  }
  return text;
}

/// Per weight: the first moment takes 3, the second 4, the divisor 3, the weight 3.
template <class AdamOp>
std::int64_t flops_of_adam(const AdamOp& op) {
  const std::int64_t decay = op.weight_decay == 0 ? 0 : op.decoupled ? 1 : 2;
  return 13 + decay;
}

template <class AdamOp>
void add_adam_rules(const AdamOp& op, std::vector<OpRule>& rules) {
  rules.push_back({"scalars must be 1 by 2, or by 3 with decoupled weight decay", {&op.scalars}});
  rules.push_back({"weight_decay must be zero or more", {}, op.weight_decay >= 0});
}

}  // namespace

std::vector<Operand> Adam::operands() const {
  return with_common_operands({{"weights", &weights, kUpdates, '1', 'n'},
                               {"grads", &grads, kReads, '1', 'n', real_type(grads)},
                               {"moments1", &moments1, kUpdates, '1', 'n'},
                               {"moments2", &moments2, kUpdates, '1', 'n'},
                               scalars_operand(*this, decoupled ? '3' : '2'),
                               {"max_moments2", optional_tensor(max_moments2), kUpdates, '1', 'n'}},
                              *this);
}

std::vector<OpRule> Adam::rules() const {
  std::vector<OpRule> rules = {{"weights must be flat, 1 by n", {&weights}},
                               {"weights, grads, moments1 and moments2 must have the same shape",
                                {&grads, &moments1, &moments2, optional_tensor(max_moments2)}}};
  add_adam_rules(*this, rules);
  return with_common_rules(std::move(rules), *this);
}

std::int64_t Adam::flops() const {
  return flops_for_each(weights,
                        flops_of_adam(*this) + common_flops(*this) + (max_moments2 ? 1 : 0));
}

std::string Adam::text(const TensorText& t) const {
  const std::string largest = max_moments2 ? fmt::format(", {}", t(*max_moments2)) : "";
  return fmt::format("{} from {}, {}, {}{}, {}{}{}{}", t(weights), t(grads), t(moments1),
                     t(moments2), largest, t(scalars), common_words(*this, t),
                     decoupled ? ", decoupled" : "", decay_words(weight_decay));
}

std::vector<Operand> Sgd::operands() const {
  return with_common_operands({{"weights", &weights, kUpdates, '1', 'n'},
                               {"grads", &grads, kReads, '1', 'n', real_type(grads)},
                               scalars_operand(*this, '1'),
                               {"velocities", optional_tensor(velocities), kUpdates, '1', 'n'}},
                              *this);
}

std::vector<OpRule> Sgd::rules() const {
  return with_common_rules(
      {{"weights must be flat, 1 by n", {&weights}},
       {"weights, grads and velocities must have the same shape",
        {&grads, optional_tensor(velocities)}},
       {"scalars must be 1 by 1", {&scalars}},
       {"momentum and weight_decay must be zero or more", {}, momentum >= 0 && weight_decay >= 0},
       {"velocities go with momentum", {}, velocities.has_value() == (momentum > 0)},
       {"nesterov needs momentum", {}, !nesterov || momentum > 0}},
      *this);
}

/// Each of decay, momentum, Nesterov's step and the weight is a product and a sum.
std::int64_t Sgd::flops() const {
  return flops_for_each(weights, 2 + (weight_decay != 0 ? 2 : 0) + (velocities ? 2 : 0) +
                                     (nesterov ? 2 : 0) + common_flops(*this));
}

std::string Sgd::text(const TensorText& t) const {
  std::string text = fmt::format("{} from {}, {}", t(weights), t(grads), t(scalars));
  if (velocities) text += fmt::format(", {}, momentum {}", t(*velocities), momentum);
  return text + common_words(*this, t) + (nesterov ? ", Nesterov" : "") + decay_words(weight_decay);
}

std::vector<Operand> RmsProp::operands() const {
  return with_common_operands({{"weights", &weights, kUpdates, '1', 'n'},
                               {"grads", &grads, kReads, '1', 'n', real_type(grads)},
                               {"squares", &squares, kUpdates, '1', 'n'},
                               scalars_operand(*this, '1'),
                               {"velocities", optional_tensor(velocities), kUpdates, '1', 'n'}},
                              *this);
}

std::vector<OpRule> RmsProp::rules() const {
  return with_common_rules(
      {{"weights must be flat, 1 by n", {&weights}},
       {"weights, grads, squares and velocities must have the same shape",
        {&grads, &squares, optional_tensor(velocities)}},
       {"scalars must be 1 by 1", {&scalars}},
       {"momentum and weight_decay must be zero or more", {}, momentum >= 0 && weight_decay >= 0},
       {"velocities go with momentum", {}, velocities.has_value() == (momentum > 0)}},
      *this);
}

/// The squares take 4, their root and eps 2, the weight 3.
std::int64_t RmsProp::flops() const {
  return flops_for_each(
      weights, 9 + (weight_decay != 0 ? 2 : 0) + (velocities ? 2 : 0) + common_flops(*this));
}

std::string RmsProp::text(const TensorText& t) const {
  std::string text =
      fmt::format("{} from {}, {}, {}", t(weights), t(grads), t(squares), t(scalars));
  if (velocities) text += fmt::format(", {}, momentum {}", t(*velocities), momentum);
  return text + common_words(*this, t) + decay_words(weight_decay);
}

std::vector<Operand> Adagrad::operands() const {
  return with_common_operands({{"weights", &weights, kUpdates, '1', 'n'},
                               {"grads", &grads, kReads, '1', 'n', real_type(grads)},
                               {"sum", &sum, kUpdates, '1', 'n'},
                               scalars_operand(*this, '1')},
                              *this);
}

std::vector<OpRule> Adagrad::rules() const {
  return with_common_rules({{"weights must be flat, 1 by n", {&weights}},
                            {"weights, grads and sum must have the same shape", {&grads, &sum}},
                            {"scalars must be 1 by 1", {&scalars}},
                            {"weight_decay must be zero or more", {}, weight_decay >= 0}},
                           *this);
}

/// The sum takes 2, its root and eps 2, the weight 3.
std::int64_t Adagrad::flops() const {
  return flops_for_each(weights, 7 + (weight_decay != 0 ? 2 : 0) + common_flops(*this));
}

std::string Adagrad::text(const TensorText& t) const {
  return fmt::format("{} from {}, {}, {}{}{}", t(weights), t(grads), t(sum), t(scalars),
                     common_words(*this, t), decay_words(weight_decay));
}

std::vector<Operand> Lion::operands() const {
  return with_common_operands({{"weights", &weights, kUpdates, '1', 'n'},
                               {"grads", &grads, kReads, '1', 'n', real_type(grads)},
                               {"moments", &moments, kUpdates, '1', 'n'},
                               scalars_operand(*this, '2')},
                              *this);
}

std::vector<OpRule> Lion::rules() const {
  return with_common_rules(
      {{"weights must be flat, 1 by n", {&weights}},
       {"weights, grads and moments must have the same shape", {&grads, &moments}},
       {"scalars must be 1 by 2", {&scalars}}},
      *this);
}

/// Each of the two means takes 3, the sign 1, the weight 3.
std::int64_t Lion::flops() const {
  return flops_for_each(weights, 10 + common_flops(*this));
}

std::string Lion::text(const TensorText& t) const {
  return fmt::format("{} from {}, {}, {}{}", t(weights), t(grads), t(moments), t(scalars),
                     common_words(*this, t));
}

std::vector<Operand> LinearAdam::operands() const {
  const DType type = real_type(x);
  return {{"weight", &weight, kUpdates, 'm', 'n'},
          {"weight_moments1", &weight_moments1, kUpdates, 'm', 'n'},
          {"weight_moments2", &weight_moments2, kUpdates, 'm', 'n'},
          {"bias", &bias, kUpdates, '1', 'm'},
          {"bias_moments1", &bias_moments1, kUpdates, '1', 'm'},
          {"bias_moments2", &bias_moments2, kUpdates, '1', 'm'},
          {"grad_y", &grad_y, kReads, 'r', 'm', type},
          {"x", &x, kReads, 'r', 'n', type},
          {"scalars", &scalars, kReads, '1', decoupled ? '3' : '2'},
          {"clip", optional_tensor(clip), kReads, '1', '1'},
          {"rounded_weight", optional_tensor(rounded_weight), kWrites, 'm', 'n', type},
          {"rounded_bias", optional_tensor(rounded_bias), kWrites, '1', 'm', type}};
}

std::vector<OpRule> LinearAdam::rules() const {
  std::vector<OpRule> rules = {
      {"weight must be the columns of grad_y by the columns of x, which have equal rows",
       {&grad_y, &x, &weight}},
      {"bias must be 1 by the rows of weight", {&bias}},
      {"moments must have the shapes of weight and bias",
       {&weight_moments1, &weight_moments2, &bias_moments1, &bias_moments2}},
      {"rounded_weight and rounded_bias must have the shapes of weight and bias",
       {optional_tensor(rounded_weight), optional_tensor(rounded_bias)}},
      {"clip must be 1 by 1", {optional_tensor(clip)}},
      {"factors of 16 bits go with rounded weights",
       {},
       rounded_weight.has_value() == (x.dtype != DType::kF32) &&
           rounded_bias.has_value() == rounded_weight.has_value()}};
  add_adam_rules(*this, rules);
  return rules;
}

std::int64_t LinearAdam::flops() const {
  constexpr std::string_view kWhat = "the flops of an op";
  const std::int64_t step = flops_of_adam(*this) + (clip ? 1 : 0);
  const std::int64_t of_bias =
      checked_add(flops_for_each(grad_y, 1), flops_for_each(bias, step), kWhat);
  return checked_add(flops_for_each(weight, 2 * x.rows + step), of_bias, kWhat);
}

std::string LinearAdam::text(const TensorText& t) const {
  const std::string rounded =
      rounded_weight ? fmt::format(", rounded in {}, {}", t(*rounded_weight), t(*rounded_bias))
                     : "";
  return fmt::format("{}, {} from {}^T * {}, column sums, {}, {}, {}, {}, {}{}{}{}{}", t(weight),
                     t(bias), t(grad_y), t(x), t(weight_moments1), t(weight_moments2),
                     t(bias_moments1), t(bias_moments2), t(scalars), clip_words(clip, t), rounded,
                     decoupled ? ", decoupled" : "", decay_words(weight_decay));
}

}  // namespace barestep
