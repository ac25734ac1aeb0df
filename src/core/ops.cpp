#include "core/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/operands.h"
#include "core/random.h"
#include "core/units.h"

namespace barestep {
namespace {

using enum OperandUse;

constexpr std::string_view kFlops = "the flops of an op";

std::int64_t flops_each(const Tensor& tensor, std::int64_t flops) {
  return checked_multiply(tensor.size(), flops, kFlops);
}

/// beta * old + new, for each number.
std::int64_t flops_of_beta(float beta) {
  return beta != 0 ? 2 : 0;
}

const Tensor* optional_tensor(const std::optional<Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

/// The required type for an operand that may have any real type: its own if that is real.
DType real_type(const Tensor& tensor) {
  return is_real(tensor.dtype) ? tensor.dtype : DType::kF32;
}

/// Partial sums cannot be added once they are rounded to 16 bits.
OperandUse sum_into(DType type) {
  return type == DType::kF32 ? kAccumulates : kWrites;
}

std::string old_text(const Tensor& tensor, float beta, const TensorText& t) {
  if (beta == 0) return "";
  return beta == 1 ? " + " + t(tensor) : fmt::format(" + {} * {}", beta, t(tensor));
}

std::string activation_text(Activation activation) {
  return activation == Activation::kNone ? "" : fmt::format(", {}", name_of(activation));
}

/// What is applied to the sum of a Gemm or a BiasActivation.
template <class ActivatingOp>
std::string activation_text(const ActivatingOp& op, const TensorText& t) {
  const bool keeps = op.activation != Activation::kNone && op.pre_activation;
  return activation_text(op.activation) +
         (keeps ? fmt::format(" of {}", t(*op.pre_activation)) : "");
}

/// A loss's gradient, and its scale if any.
template <class LossOp>
std::string grad_text(const LossOp& op, const TensorText& t) {
  return t(op.grad) + (op.scale ? fmt::format(" times {}", t(*op.scale)) : "");
}

}  // namespace

Operands Gemm::operands() const {
  // A weight's gradient sums over the rows of the batch; other products compute row by row. A Gram
  // matrix multiplies every row by every other, so it cannot be cut by rows.
  const bool is_gram = a == b && !transpose_a && transpose_b;
  const char m = is_gram ? 'M' : transpose_a ? 'm' : 'r';
  const char n = is_gram ? 'N' : 'n';
  const char k = transpose_a ? 'r' : 'k';
  // Partial sums cannot be added after a bias or an activation.
  const bool only_adds = !bias && activation == Activation::kNone;
  const DType from = real_type(a);
  const DType to = c.dtype == from ? from : DType::kF32;
  const OperandUse use = only_adds ? sum_into(to) : beta == 0 ? kWrites : kUpdates;
  return {{"c", &c, use, m, n, to},
          {"a", &a, kReads, transpose_a ? k : m, transpose_a ? m : k, from},
          {"b", &b, kReads, transpose_b ? n : k, transpose_b ? k : n, from},
          {"bias", optional_tensor(bias), kReads, '1', n, to},
          {"pre_activation", optional_tensor(pre_activation), kWrites, m, n, to}};
}

std::vector<OpRule> Gemm::rules() const {
  return {{!bias || beta == 0, "a bias needs beta == 0"},
          {c.dtype == DType::kF32 || beta == 0, "c of 16 bits needs beta == 0"}};
}

std::int64_t Gemm::flops() const {
  return flops_each(
      c, 2 * product().depth + (bias ? 1 : 0) + traits_of(activation).flops + flops_of_beta(beta));
}

ProductSize Gemm::product() const {
  return {c.rows, c.cols, transpose_a ? a.rows : a.cols};
}

std::int64_t Gemm::launches() const {
  return activation == Activation::kNone || activation == Activation::kRelu ? 1 : 2;
}

std::string Gemm::text(const TensorText& t) const {
  std::string text = fmt::format("{} = {}{} * {}{}", t(c), t(a), transpose_a ? "^T" : "", t(b),
                                 transpose_b ? "^T" : "");
  if (bias) text += " + " + t(*bias);
  return text + old_text(c, beta, t) + activation_text(*this, t);
}

Operands QuantizeWeight::operands() const {
  return {{"to", &to, kWrites, 'N', 'K', DType::kI8},
          {"scales", &scales, kWrites, '1', scales.cols == 1 ? '1' : 'N'},
          {"sums", &sums, kWrites, '1', 'N', DType::kI32},
          {"from", &from, kReads, 'N', 'K'}};
}

/// Magnitude, comparison, product, rounding.
std::int64_t QuantizeWeight::flops() const {
  return flops_each(from, 4);
}

std::int64_t QuantizeWeight::launches() const {
  return scales.cols == 1 ? 3 : 1;
}

std::string QuantizeWeight::text(const TensorText& t) const {
  return fmt::format("{} = {} / {} in int8, sums of its rows in {}", t(to), t(from), t(scales),
                     t(sums));
}

/// One scale for each row, or one for all.
Operands Quantize::operands() const {
  const char rows = zero_point ? 'M' : 'r';
  return {{"to", &to, kWrites, rows, 'K', DType::kI8},
          {"scales", &scales, kWrites, zero_point ? '1' : rows, '1'},
          {"from", &from, kReads, rows, 'K'},
          {"zero_point", optional_tensor(zero_point), kWrites, '1', '1', DType::kI32}};
}

std::vector<OpRule> Quantize::rules() const {
  return {{bits == 7 || bits == 8, "bits must be 7 or 8"}};
}

std::int64_t Quantize::flops() const {
  return flops_each(from, 4);
}

std::int64_t Quantize::launches() const {
  return zero_point ? 3 : 1;
}

std::string Quantize::text(const TensorText& t) const {
  const std::string zero = zero_point ? " + " + t(*zero_point) : "";
  return fmt::format("{} = {} / {}{} in {} bits", t(to), t(from), t(scales), zero, bits);
}

Operands QuantizedGemm::operands() const {
  return {{"c", &c, kWrites, 'r', 'N'},
          {"a", &a, kReads, 'r', 'K', DType::kI8},
          {"b", &b, kReads, 'N', 'K', DType::kI8},
          {"a_scales", &a_scales, kReads, a_zero_point ? '1' : 'r', '1'},
          {"b_scales", &b_scales, kReads, '1', b_scales.cols == 1 ? '1' : 'N'},
          {"b_sums", &b_sums, kReads, '1', 'N', DType::kI32},
          {"bias", &bias, kReads, '1', 'N'},
          {"a_zero_point", optional_tensor(a_zero_point), kReads, '1', '1', DType::kI32}};
}

std::vector<OpRule> QuantizedGemm::rules() const {
  return {{bits == 7 || bits == 8, "bits must be 7 or 8"},
          {a.cols <= kMaxInt8Inputs, "a sum of so many products may overflow"}};
}

/// Integer multiply-adds count like those of floats. They are followed by the product of the scales
/// and its product with the sum, to which the bias is added.
std::int64_t QuantizedGemm::flops() const {
  return flops_each(c, 2 * a.cols + 3 + traits_of(activation).flops);
}

ProductSize QuantizedGemm::product() const {
  return {c.rows, c.cols, a.cols};
}

std::string QuantizedGemm::text(const TensorText& t) const {
  const std::string from = a_zero_point ? fmt::format("({} - {})", t(a), t(*a_zero_point)) : t(a);
  return fmt::format("{} = {} * {}^T in int32, times {} * {}, + {}{}", t(c), from, t(b),
                     t(a_scales), t(b_scales), t(bias), activation_text(activation));
}

Operands BiasActivation::operands() const {
  const DType type = real_type(values);
  return {{"values", &values, kUpdates, 'r', 'n', type},
          {"bias", optional_tensor(bias), kReads, '1', 'n', type},
          {"pre_activation", optional_tensor(pre_activation), kWrites, 'r', 'n', type}};
}

std::int64_t BiasActivation::flops() const {
  return flops_each(values, (bias ? 1 : 0) + traits_of(activation).flops);
}

std::string BiasActivation::text(const TensorText& t) const {
  return t(values) + (bias ? fmt::format(" += {}", t(*bias)) : "") + activation_text(*this, t);
}

Operands ActivationGrad::operands() const {
  const DType type = real_type(grad);
  return {{"grad", &grad, kUpdates, 'r', 'n', type},
          {"from", &from, kReads, 'r', 'n', type},
          {"sums", optional_tensor(sums), kAccumulates, '1', 'n'}};
}

std::vector<OpRule> ActivationGrad::rules() const {
  return {{activation != Activation::kNone, "there must be an activation"},
          {!sums || grad.dtype == DType::kF32, "sums need a grad of fp32"}};
}

std::int64_t ActivationGrad::flops() const {
  const std::int64_t each = traits_of(activation).grad_flops + (sums ? 1 : 0);
  return flops_each(grad, each) + (sums ? flops_each(*sums, flops_of_beta(beta)) : 0);
}

std::string ActivationGrad::text(const TensorText& t) const {
  const std::string then =
      sums ? fmt::format(", {} = its column sums{}", t(*sums), old_text(*sums, beta, t)) : "";
  return fmt::format(fmt::runtime(traits_of(activation).grad_text), t(grad), t(from)) + then;
}

Operands Add::operands() const {
  return {{"out", &out, kWrites, 'r', 'n'},
          {"a", &a, kReads, 'r', 'n'},
          {"b", &b, kReads, 'r', 'n', real_type(b)}};
}

std::int64_t Add::flops() const {
  return flops_each(out, 1);
}

std::string Add::text(const TensorText& t) const {
  return fmt::format("{} = {} + {}", t(out), t(a), t(b));
}

Operands LayerNorm::operands() const {
  return {{"y", &y, kWrites, 'r', 'N', real_type(y)}, {"mean", &mean, kWrites, 'r', '1'},
          {"rstd", &rstd, kWrites, 'r', '1'},         {"x", &x, kReads, 'r', 'N'},
          {"weight", &weight, kReads, '1', 'N'},      {"bias", &bias, kReads, '1', 'N'}};
}

/// Per number: its sum, the deviation, its square and their sum; for y a difference and three
/// products or sums. Per row: two divisions, eps, the root and its inverse.
std::int64_t LayerNorm::flops() const {
  return checked_add(flops_each(x, 8), flops_each(mean, 5), kFlops);
}

std::string LayerNorm::text(const TensorText& t) const {
  return fmt::format("{} = {} normalized by rows * {} + {}, means in {}, 1 / deviations in {}",
                     t(y), t(x), t(weight), t(bias), t(mean), t(rstd));
}

Operands LayerNormGrad::operands() const {
  return {{"grad_weight", &grad_weight, kAccumulates, '1', 'N'},
          {"grad_bias", &grad_bias, kAccumulates, '1', 'N'},
          {"grad_x", optional_tensor(grad_x), kUpdates, 'r', 'N'},
          {"grad_y", &grad_y, kReads, 'r', 'N', real_type(grad_y)},
          {"x", &x, kReads, 'r', 'N'},
          {"mean", &mean, kReads, 'r', '1'},
          {"rstd", &rstd, kReads, 'r', '1'},
          {"weight", &weight, kReads, '1', 'N'}};
}

/// Per number: h takes 2, the sums 3; grad_x takes t, its sum, t * h and its sum, and 6 more.
std::int64_t LayerNormGrad::flops() const {
  const std::int64_t of_sums = flops_each(grad_weight, 2 * flops_of_beta(beta));
  return checked_add(flops_each(x, grad_x ? 15 : 5), of_sums, kFlops);
}

std::string LayerNormGrad::text(const TensorText& t) const {
  const std::string of_x = grad_x ? fmt::format(", {} += that of {}", t(*grad_x), t(x)) : "";
  return fmt::format("{}, {} = gradients of the norm of {} with {}, {} from {}{}{}{}",
                     t(grad_weight), t(grad_bias), t(x), t(mean), t(rstd), t(grad_y),
                     old_text(grad_weight, beta, t), of_x, of_x.empty() ? "" : " by " + t(weight));
}

namespace {

/// The rows of a sequence depend on each other, so nothing is cut by rows.
std::vector<OpRule> rules_of(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                             const Tensor& kept) {
  const bool has_heads = shape.heads >= 1 && out.cols % shape.heads == 0;
  return {{has_heads, "heads must divide the columns of out"},
          {has_heads && out.cols / shape.heads <= kMaxHeadWidth, "a head is too wide"},
          {shape.length >= 1 && out.rows % shape.length == 0, "rows must be whole sequences"},
          {qkv.cols == 3 * out.cols, "qkv must have three times the columns of out"},
          {kept.cols == shape.kept_cols(), "kept must have the columns of its form"}};
}

std::int64_t pairs_of(const AttentionShape& shape, const Tensor& out) {
  const std::int64_t sequences = out.rows / shape.length;
  return checked_multiply(checked_multiply(sequences, shape.heads, kFlops), shape.pairs(), kFlops);
}

std::string text_of(const AttentionShape& shape) {
  return fmt::format("{} heads, sequences of {}{}", shape.heads, shape.length,
                     shape.causal ? ", causal" : "");
}

}  // namespace

Operands Attention::operands() const {
  const DType type = real_type(qkv);
  return {{"out", &out, kWrites, 'R', 'N', type},
          {"kept", &kept, kWrites, 'R', 'K'},
          {"qkv", &qkv, kReads, 'R', 'W', type}};
}

std::vector<OpRule> Attention::rules() const {
  return rules_of(shape, qkv, out, kept);
}

/// Per score: two products of the width, its scaling, maximum, difference, exponential and sum. Per
/// number of the result: the division by the sum. Per row and head: the inverse, a logarithm, a
/// sum.
std::int64_t Attention::flops() const {
  const std::int64_t width = out.cols / shape.heads;
  const std::int64_t of_rows = checked_multiply(out.rows, out.cols + 3 * shape.heads, kFlops);
  return checked_add(checked_multiply(pairs_of(shape, out), 4 * width + 5, kFlops), of_rows,
                     kFlops);
}

std::int64_t Attention::launches() const {
  return shape.form == AttentionForm::kFlash ? 1 : 3;
}

std::string Attention::text(const TensorText& t) const {
  const char* const what =
      shape.form == AttentionForm::kFlash ? "logarithms of sums" : "probabilities";
  return fmt::format("{} = attention of {}, {}, {} in {}", t(out), t(qkv), text_of(shape), what,
                     t(kept));
}

Operands AttentionGrad::operands() const {
  const DType type = real_type(qkv);
  const char cols = shape.form == AttentionForm::kFlash ? 'N' : 'K';
  return {{"grad_qkv", &grad_qkv, kWrites, 'R', 'W', type},
          {"scratch", optional_tensor(scratch), kWrites, 'R', cols},
          {"qkv", &qkv, kReads, 'R', 'W', type},
          {"out", &out, kReads, 'R', 'N', type},
          {"grad_out", &grad_out, kReads, 'R', 'N', type},
          {"kept", &kept, kReads, 'R', 'K'}};
}

std::vector<OpRule> AttentionGrad::rules() const {
  std::vector<OpRule> rules = rules_of(shape, qkv, out, kept);
  rules.push_back({scratch.has_value() == (scratch_cols() > 0),
                   "scratch goes with the standard form and with 16 bits"});
  return rules;
}

std::int64_t AttentionGrad::scratch_cols() const {
  if (shape.form == AttentionForm::kStandard) return shape.kept_cols();
  return qkv.dtype == DType::kF32 ? 0 : out.cols;
}

/// Per score: four products of the width, and in the flash form a fifth, its scaling, a difference
/// and the exponential for p again; dp - sum, times p; in the standard form, p * dp and its sum. In
/// the flash form, that sum takes two flops per number of out. Gradients of q and k are scaled.
std::int64_t AttentionGrad::flops() const {
  const bool is_flash = shape.form == AttentionForm::kFlash;
  const std::int64_t width = out.cols / shape.heads;
  const std::int64_t each = is_flash ? 10 * width + 5 : 8 * width + 4;
  return checked_add(checked_multiply(pairs_of(shape, out), each, kFlops),
                     flops_each(out, is_flash ? 4 : 2), kFlops);
}

std::int64_t AttentionGrad::launches() const {
  return shape.form == AttentionForm::kFlash ? 2 : 5;
}

std::string AttentionGrad::text(const TensorText& t) const {
  const std::string with = scratch ? fmt::format(", scratch {}", t(*scratch)) : "";
  return fmt::format("{} = gradient of the attention of {}, {}, with {}, {} from {}{}", t(grad_qkv),
                     t(qkv), text_of(shape), t(out), t(kept), t(grad_out), with);
}

/// A part would number its rows differently from the op, so the op is not cut.
Operands Dropout::operands() const {
  return {{"values", &values, kUpdates, 'M', 'N', real_type(values)},
          {"step", &step, kReads, '1', '1', DType::kI32}};
}

std::vector<OpRule> Dropout::rules() const {
  return {{rate >= 0 && rate < 1, "rate must be at least 0 and below 1"},
          {layer >= 0 && first_row >= 0 && row_stride >= 1 && rows_per_sample >= 1,
           "layer and rows must be numbered from 0 on"}};
}

/// A comparison and a product; Philox uses integer arithmetic, which counts no flops.
std::int64_t Dropout::flops() const {
  return flops_each(values, 2);
}

std::string Dropout::text(const TensorText& t) const {
  return fmt::format("{} *= {}, or 0 by chance {}; drawn by {} for rows {}, {}, ...", t(values),
                     1 / (1 - rate), rate, t(step), first_row, first_row + row_stride);
}

Operands SumRows::operands() const {
  const DType from = real_type(in);
  const DType to = out.dtype == from ? from : DType::kF32;
  return {{"out", &out, sum_into(to), '1', 'n', to}, {"in", &in, kReads, 'r', 'n', from}};
}

std::int64_t SumRows::flops() const {
  return flops_each(in, 1) + flops_each(out, flops_of_beta(beta));
}

std::string SumRows::text(const TensorText& t) const {
  return fmt::format("{} = column sums of {}{}", t(out), t(in), old_text(out, beta, t));
}

Operands SquaredErrors::operands() const {
  return {{"out", &out, kWrites, '1', 'n'},
          {"output", &output, kReads, 'r', 'n', real_type(output)},
          {"target", &target, kReads, 'r', 'n'}};
}

/// A difference, a product and a sum.
std::int64_t SquaredErrors::flops() const {
  return flops_each(output, 3);
}

std::string SquaredErrors::text(const TensorText& t) const {
  return fmt::format("{} = column sums of ({} - {})^2", t(out), t(output), t(target));
}

Operands PointwiseLoss::operands() const {
  const DType type = real_type(output);
  const DType of_target = takes_labels(kind) ? DType::kI32 : DType::kF32;
  return {{"loss", &loss, kAccumulates, '1', '1'},
          {"grad", &grad, kWrites, 'r', 'n', type},
          {"output", &output, kReads, 'r', 'n', type},
          {"target", &target, kReads, 'r', 'n', of_target},
          {"scale", optional_tensor(scale), kReads, '1', '1'}};
}

std::vector<OpRule> PointwiseLoss::rules() const {
  return {{count >= 1 && count >= output.size(),
           "count must be at least 1 and at least the size of output"},
          {is_pointwise(kind), "the loss must be a mean over single numbers"},
          {activation == Activation::kNone || activation == Activation::kRelu,
           "the activation must be ReLU or none"}};
}

/// Once: the division by count.
std::int64_t PointwiseLoss::flops() const {
  const std::int64_t each =
      traits_of(kind).flops + (scale ? 1 : 0) + traits_of(activation).grad_flops;
  return checked_add(flops_each(output, each), 1 + flops_of_beta(beta), kFlops);
}

std::string PointwiseLoss::text(const TensorText& t) const {
  const std::string term = fmt::format(fmt::runtime(traits_of(kind).text), t(output), t(target));
  const bool has_relu = activation == Activation::kRelu;
  return fmt::format("{} = sum of {} / {}{}, gradient in {}{}", t(loss), term, count,
                     old_text(loss, beta, t), grad_text(*this, t),
                     has_relu ? fmt::format(", 0 where {} <= 0", t(output)) : "");
}

Operands CrossEntropy::operands() const {
  const DType type = real_type(logits);
  return {{"loss", &loss, kAccumulates, '1', '1'},
          {"grad", &grad, kWrites, 'r', 'N', type},
          {"logits", &logits, kReads, 'r', 'N', type},
          {"labels", &labels, kReads, 'r', '1', DType::kI32},
          {"scale", optional_tensor(scale), kReads, '1', '1'}};
}

std::vector<OpRule> CrossEntropy::rules() const {
  return {{count >= 1 && count >= logits.rows,
           "count must be at least 1 and at least the rows of logits"},
          {smoothing >= 0 && smoothing < 1, "smoothing must be at least 0 and below 1"}};
}

/// Per number: maximum, difference, exp, sum, times the inverse of sum and of count. Per row: log,
/// the label's loss and its sum, the inverse of the sum, the label's -1. Once: the division by
/// count. Smoothing also sums all differences, subtracts its share from every number and weights
/// two sums.
std::int64_t CrossEntropy::flops() const {
  const bool smooths = smoothing > 0;
  const std::int64_t rows = checked_multiply(logits.rows, smooths ? 10 : 6, kFlops);
  return checked_add(flops_each(logits, (smooths ? 8 : 6) + (scale ? 1 : 0)),
                     rows + 1 + flops_of_beta(beta), kFlops);
}

std::string CrossEntropy::text(const TensorText& t) const {
  const std::string smoothed = smoothing == 0 ? "" : fmt::format(" smoothed by {}", smoothing);
  return fmt::format("{} = cross entropy of {} with labels {}{} / {}{}, gradient in {}", t(loss),
                     t(logits), t(labels), smoothed, count, old_text(loss, beta, t),
                     grad_text(*this, t));
}

Operands CountCorrect::operands() const {
  return {{"correct", &correct, kWrites, '1', '1', DType::kI32},
          {"logits", &logits, kReads, 'r', 'N', real_type(logits)},
          {"labels", &labels, kReads, 'r', '1', DType::kI32},
          {"classes", optional_tensor(classes), kWrites, 'r', '1', DType::kI32}};
}

std::vector<OpRule> CountCorrect::rules() const {
  return {{!binary || logits.cols == 1, "a binary classifier must have one logit"}};
}

std::int64_t CountCorrect::flops() const {
  return flops_each(logits, 1);
}

std::string CountCorrect::text(const TensorText& t) const {
  const std::string kept = classes ? fmt::format(", classes in {}", t(*classes)) : "";
  return fmt::format("{} = rows of {} whose {} is label {}{}", t(correct), t(logits),
                     binary ? "sign" : "largest", t(labels), kept);
}

// Steps of optimizers.

namespace {

std::string decay_text(double rate) {
  return rate == 0 ? "" : fmt::format(", weight decay {}", rate);
}

std::string momentum_text(double momentum) {
  return momentum == 0 ? "" : fmt::format(", momentum {}", momentum);
}

std::string clip_text(const std::optional<Tensor>& factor, const TensorText& t) {
  return factor ? fmt::format(", gradient times {}", t(*factor)) : "";
}

/// The penalty for weight decay, a product and a sum.
std::int64_t decay_flops(double rate) {
  return rate == 0 ? 0 : 2;
}

OpRule momentum_and_decay(double momentum, double decay) {
  return {momentum >= 0 && decay >= 0, "momentum and weight_decay must be zero or more"};
}

float minus(double lr) {
  return static_cast<float>(-lr);
}

/// The factor of decoupled weight decay.
float shrink_of(double lr, double weight_decay) {
  return static_cast<float>(1 - lr * weight_decay);
}

template <class Function>
auto of_step(const OptimizerUpdate& update, const Function& function) {
  return std::visit(function, update.step);
}

}  // namespace

std::vector<std::string_view> AdamStep::state() const {
  if (amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

void AdamStep::write_scalars(std::int64_t t, double lr, std::span<float> scalars) const {
  const auto power = static_cast<double>(t);
  scalars[0] = minus(lr / (1 - std::pow(beta1, power)));
  scalars[1] = static_cast<float>(std::sqrt(1 - std::pow(beta2, power)));
  if (decoupled) scalars[2] = shrink_of(lr, weight_decay);
}

/// The first moment takes 3, the second 4, the divisor 3, the weight 3.
std::int64_t AdamStep::flops() const {
  return 13 + (weight_decay != 0 && decoupled ? 1 : decay_flops(weight_decay)) + (amsgrad ? 1 : 0);
}

std::string AdamStep::text() const {
  return (decoupled ? ", decoupled" : "") + decay_text(weight_decay);
}

std::vector<OpRule> AdamStep::rules() const {
  return {{weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::vector<std::string_view> SgdStep::state() const {
  if (momentum > 0) return {"momentum_buffer"};
  return {};
}

void SgdStep::write_scalars(std::int64_t /*t*/, double lr, std::span<float> scalars) const {
  scalars[0] = minus(lr);
}

/// Each of decay, momentum, Nesterov's step and the weight is a product and a sum.
std::int64_t SgdStep::flops() const {
  return 2 + decay_flops(weight_decay) + (momentum > 0 ? 2 : 0) + (nesterov ? 2 : 0);
}

std::string SgdStep::text() const {
  return momentum_text(momentum) + (nesterov ? ", Nesterov" : "") + decay_text(weight_decay);
}

std::vector<OpRule> SgdStep::rules() const {
  return {momentum_and_decay(momentum, weight_decay),
          {!nesterov || momentum > 0, "nesterov needs momentum"}};
}

std::vector<std::string_view> RmsPropStep::state() const {
  if (momentum > 0) return {"square_avg", "momentum_buffer"};
  return {"square_avg"};
}

void RmsPropStep::write_scalars(std::int64_t /*t*/, double lr, std::span<float> scalars) const {
  scalars[0] = minus(lr);
}

/// The squares take 4, their root and eps 2, the weight 3.
std::int64_t RmsPropStep::flops() const {
  return 9 + decay_flops(weight_decay) + (momentum > 0 ? 2 : 0);
}

std::string RmsPropStep::text() const {
  return momentum_text(momentum) + decay_text(weight_decay);
}

std::vector<OpRule> RmsPropStep::rules() const {
  return {momentum_and_decay(momentum, weight_decay)};
}

std::vector<std::string_view> AdagradStep::state() const {
  return {"sum"};
}

void AdagradStep::write_scalars(std::int64_t /*t*/, double lr, std::span<float> scalars) const {
  scalars[0] = minus(lr);
}

/// The sum takes 2, its root and eps 2, the weight 3.
std::int64_t AdagradStep::flops() const {
  return 7 + decay_flops(weight_decay);
}

std::string AdagradStep::text() const {
  return decay_text(weight_decay);
}

std::vector<OpRule> AdagradStep::rules() const {
  return {{weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::vector<std::string_view> LionStep::state() const {
  return {"exp_avg"};
}

void LionStep::write_scalars(std::int64_t /*t*/, double lr, std::span<float> scalars) const {
  scalars[0] = minus(lr);
  scalars[1] = shrink_of(lr, weight_decay);
}

/// Each of the two means takes 3, the sign 1, the weight 3.
std::int64_t LionStep::flops() const {
  return 10;
}

/// Weight decay is in the scalars.
std::string LionStep::text() const {
  return "";
}

std::vector<OpRule> LionStep::rules() const {
  return {{weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::string_view OptimizerUpdate::label() const {
  return of_step(*this, [](const auto& rule) { return rule.kLabel; });
}

Operands OptimizerUpdate::operands() const {
  Operands list = {{"weights", &weights, kUpdates, '1', 'n'},
                   {"grads", &grads, kReads, '1', 'n', real_type(grads)}};
  const auto names = of_step(*this, [](const auto& rule) { return rule.state(); });
  for (std::size_t i = 0; i < state.size(); ++i) {
    list.push_back({i < names.size() ? names[i] : "state", &state[i], kUpdates, '1', 'n'});
  }
  // With loss scaling, one row for each of several updates.
  const int cols = of_step(*this, [](const auto& rule) { return rule.scalars(); });
  list.push_back(
      {"scalars", &scalars, kReads, loss_scale ? 'S' : '1', static_cast<char>('0' + cols)});
  const DType narrow = rounded ? real_type(*rounded) : DType::kF32;
  list.push_back({"clip", optional_tensor(clip), kReads, '1', '1'});
  list.push_back({"rounded", optional_tensor(rounded), kWrites, '1', 'n', narrow});
  if (!loss_scale) return list;
  list.push_back({"scale", &loss_scale->scale, kReads, '1', '1'});
  list.push_back({"found_inf", &loss_scale->found_inf, kReads, '1', '1'});
  list.push_back({"updates", &loss_scale->updates, kReads, '1', '1', DType::kI32});
  list.push_back({"first_update", optional_tensor(first_update), kReads, '1', '1', DType::kI32});
  return list;
}

std::vector<OpRule> OptimizerUpdate::rules() const {
  std::vector<OpRule> rules = of_step(*this, [](const auto& rule) { return rule.rules(); });
  const auto names = of_step(*this, [](const auto& rule) { return rule.state(); });
  rules.push_back(
      {state.size() == names.size(), "state must be one tensor for each of the step's"});
  rules.push_back({grads.dtype == DType::kF32 || (rounded && rounded->dtype == grads.dtype),
                   "grads must be f32 or of the type of rounded"});
  rules.push_back({!rounded || rounded->dtype != DType::kF32, "rounded must be of 16 bits"});
  rules.push_back(
      {first_update.has_value() == loss_scale.has_value(), "first_update goes with loss_scale"});
  return rules;
}

std::int64_t OptimizerUpdate::flops() const {
  const std::int64_t step_flops = of_step(*this, [](const auto& rule) { return rule.flops(); });
  return flops_each(weights, step_flops + (clip ? 1 : 0) + (loss_scale ? 1 : 0));
}

std::string OptimizerUpdate::text(const TensorText& t) const {
  std::string text = fmt::format("{} from {}", t(weights), t(grads));
  for (const Tensor& each : state) text += ", " + t(each);
  text += ", " + t(scalars) + clip_text(clip, t);
  if (rounded) text += fmt::format(", rounded in {}", t(*rounded));
  if (loss_scale) {
    text +=
        fmt::format(", gradient / {}, unless {}", t(loss_scale->scale), t(loss_scale->found_inf));
  }
  return text + of_step(*this, [](const auto& rule) { return rule.text(); });
}

Operands LinearAdam::operands() const {
  const DType type = real_type(x);
  return {{"weight", &weight, kUpdates, 'm', 'n'},
          {"weight_moments1", &weight_moments1, kUpdates, 'm', 'n'},
          {"weight_moments2", &weight_moments2, kUpdates, 'm', 'n'},
          {"bias", &bias, kUpdates, '1', 'm'},
          {"bias_moments1", &bias_moments1, kUpdates, '1', 'm'},
          {"bias_moments2", &bias_moments2, kUpdates, '1', 'm'},
          {"grad_y", &grad_y, kReads, 'r', 'm', type},
          {"x", &x, kReads, 'r', 'n', type},
          {"scalars", &scalars, kReads, '1', static_cast<char>('0' + step.scalars())},
          {"clip", optional_tensor(clip), kReads, '1', '1'},
          {"rounded_weight", optional_tensor(rounded_weight), kWrites, 'm', 'n', type},
          {"rounded_bias", optional_tensor(rounded_bias), kWrites, '1', 'm', type}};
}

std::vector<OpRule> LinearAdam::rules() const {
  std::vector<OpRule> rules = step.rules();
  rules.push_back({!step.amsgrad, "AMSGrad has no update from factors"});
  rules.push_back({rounded_weight.has_value() == (x.dtype != DType::kF32) &&
                       rounded_bias.has_value() == rounded_weight.has_value(),
                   "factors of 16 bits go with rounded weights"});
  return rules;
}

std::int64_t LinearAdam::flops() const {
  const std::int64_t each = step.flops() + (clip ? 1 : 0);
  const std::int64_t of_bias = checked_add(flops_each(grad_y, 1), flops_each(bias, each), kFlops);
  return checked_add(flops_each(weight, 2 * x.rows + each), of_bias, kFlops);
}

/// An update from the factors of the gradient is mainly a product.
ProductSize LinearAdam::product() const {
  return {weight.rows, weight.cols, x.rows};
}

std::string LinearAdam::text(const TensorText& t) const {
  const std::string rounded =
      rounded_weight ? fmt::format(", rounded in {}, {}", t(*rounded_weight), t(*rounded_bias))
                     : "";
  return fmt::format("{}, {} from {}^T * {}, column sums, {}, {}, {}, {}, {}{}{}{}", t(weight),
                     t(bias), t(grad_y), t(x), t(weight_moments1), t(weight_moments2),
                     t(bias_moments1), t(bias_moments2), t(scalars), clip_text(clip, t), rounded,
                     step.text());
}

Operands SumSquares::operands() const {
  return {{"out", &out, kWrites, '1', '1'},
          {"in", &in, kReads, 'm', 'n', real_type(in)},
          {"scale", optional_tensor(scale), kReads, '1', '1'}};
}

std::int64_t SumSquares::flops() const {
  return flops_each(in, scale ? 3 : 2);
}

std::string SumSquares::text(const TensorText& t) const {
  if (scale) return fmt::format("{} = sum of ({} / {})^2", t(out), t(in), t(*scale));
  return fmt::format("{} = sum of {}^2", t(out), t(in));
}

Operands CheckFinite::operands() const {
  return {{"found_inf", &found_inf, kUpdates, '1', '1'},
          {"in", &in, kReads, '*', '*', real_type(in)}};
}

std::int64_t CheckFinite::flops() const {
  return flops_each(in, 1);
}

std::string CheckFinite::text(const TensorText& t) const {
  return fmt::format("{} = 1 where {} is not finite", t(found_inf), t(in));
}

Operands UpdateLossScale::operands() const {
  return {{"scale", &state.scale, kUpdates, '1', '1'},
          {"found_inf", &state.found_inf, kReads, '1', '1'},
          {"updates", &state.updates, kUpdates, '1', '1', DType::kI32},
          {"good_steps", &good_steps, kUpdates, '1', '1', DType::kI32}};
}

std::vector<OpRule> UpdateLossScale::rules() const {
  return {{growth >= 1 && backoff > 0 && backoff <= 1, "growth and backoff must be around 1"},
          {window >= 1, "window must be at least 1"}};
}

/// Two comparisons, a count and a product.
std::int64_t UpdateLossScale::flops() const {
  return 4;
}

std::string UpdateLossScale::text(const TensorText& t) const {
  std::string counted = fmt::format("{} += 1 unless {}", t(state.updates), t(state.found_inf));
  if (fixed) return counted;
  return fmt::format("{}; {} *= {} if so, {} after {} steps without, counted in {}", counted,
                     t(state.scale), backoff, growth, window, t(good_steps));
}

Operands GramSquares::operands() const {
  return {{"out", &out, kWrites, '1', '1'},
          {"gram_y", &gram_y, kReads, 'N', 'N'},
          {"gram_x", &gram_x, kReads, 'N', 'N'}};
}

std::int64_t GramSquares::flops() const {
  return flops_each(gram_y, 3);
}

std::string GramSquares::text(const TensorText& t) const {
  return fmt::format("{} = sum of {} * ({} + 1)", t(out), t(gram_y), t(gram_x));
}

Operands ClipFactor::operands() const {
  return {{"factor", &factor, kWrites, '1', '1'}, {"squares", &squares, kReads, '1', 'n'}};
}

std::vector<OpRule> ClipFactor::rules() const {
  return {{std::isfinite(max_norm) && max_norm > 0, "max_norm must be above zero"}};
}

/// Per number: a sum. Once: a root, a sum, a division and a comparison.
std::int64_t ClipFactor::flops() const {
  return squares.size() + 4;
}

std::string ClipFactor::text(const TensorText& t) const {
  return fmt::format("{} = {} / root of the sum of {}, at most 1", t(factor), max_norm, t(squares));
}

Operands Copy::operands() const {
  return {{"to", &to, kWrites, 'm', 'n', from.dtype},
          {"from", &from, kReads, 'm', 'n', from.dtype}};
}

std::int64_t Copy::flops() const {
  return 0;
}

std::string Copy::text(const TensorText& t) const {
  return fmt::format("{} = {}", t(to), t(from));
}

Operands Cast::operands() const {
  const auto narrow = [](const Tensor& tensor) {
    return tensor.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
  };
  const bool narrows = from.dtype == DType::kF32;
  const DType type = narrows ? narrow(to) : DType::kF32;
  return {{"to", &to, sum_into(type), 'm', 'n', type},
          {"from", &from, kReads, 'm', 'n', narrows ? DType::kF32 : narrow(from)}};
}

std::vector<OpRule> Cast::rules() const {
  return {{to.dtype == DType::kF32 || beta == 0, "to of 16 bits needs beta == 0"}};
}

std::int64_t Cast::flops() const {
  return flops_each(to, (scale == 1 ? 0 : 1) + flops_of_beta(beta));
}

std::string Cast::text(const TensorText& t) const {
  const char* const type = to.dtype == DType::kBF16  ? "bf16"
                           : to.dtype == DType::kF16 ? "fp16"
                                                     : "fp32";
  const std::string factor = scale == 1 ? "" : fmt::format("{} * ", scale);
  return fmt::format("{} = {}{} in {}{}", t(to), factor, t(from), type, old_text(to, beta, t));
}

Operands Fill::operands() const {
  return {{"out", &out, kWrites, 'm', 'n'}};
}

std::int64_t Fill::flops() const {
  return 0;
}

std::string Fill::text(const TensorText& t) const {
  return fmt::format("{} = {}", t(out), value);
}

/// Numbers are drawn in sequence, so this is not cut.
Operands Randn::operands() const {
  return {{"out", &out, kWrites, '*', '*'}, {"state", &state, kUpdates, '*', '*', DType::kU8}};
}

std::vector<OpRule> Randn::rules() const {
  const bool in_blocks =
      before % kNormalBlock == 0 && out.size() % kNormalBlock == 0 && after % kNormalBlock == 0;
  return {{state.bytes() == state_bytes(generator), "state must have the bytes of its generator"},
          {before >= 0 && after >= 0, "before and after must be zero or more"},
          {before + after == 0 || (generator == Generator::kTorchCpu && in_blocks),
           "only whole blocks of the CPU's stream can be skipped"}};
}

/// Two numbers (Box-Muller): two uniform numbers, 1 - u, log, times -2, root, times 2 pi, cosine,
/// sine and two products.
std::int64_t Randn::flops() const {
  return flops_each(out, 11) / 2;
}

std::string Randn::text(const TensorText& t) const {
  const std::string skipped =
      before + after == 0 ? ""
                          : fmt::format(", {} before and {} after them skipped", before, after);
  return fmt::format("{} = normal numbers drawn from {}{}", t(out), t(state), skipped);
}

Operands Delay::operands() const {
  return {{"more_seconds", optional_tensor(more_seconds), kReads, '1', '1'}};
}

std::vector<OpRule> Delay::rules() const {
  return {{std::isfinite(seconds) && seconds >= 0, "seconds must be zero or more"}};
}

std::int64_t Delay::flops() const {
  return 0;
}

std::string Delay::text(const TensorText& t) const {
  return fmt::format("{} ms{}", seconds * 1e3,
                     more_seconds ? fmt::format(" and {} s", t(*more_seconds)) : "");
}

// Collectives.

namespace {

DType type_of_first(const std::vector<Tensor>& tensors) {
  return tensors.empty() ? DType::kF32 : tensors.front().dtype;
}

Operands list_of(const std::vector<Tensor>& tensors, const Operand& each) {
  Operands list;
  for (const Tensor& tensor : tensors) {
    list.push_back(each);
    list.back().tensor = &tensor;
    list.back().part = static_cast<int>(list.size()) - 1;
  }
  return list;
}

std::string tensors_text(const std::vector<Tensor>& tensors, const TensorText& t) {
  std::string text;
  for (const Tensor& tensor : tensors) text += (text.empty() ? "" : ", ") + t(tensor);
  return text;
}

std::string scale_text(float scale) {
  return scale == 1 ? "" : fmt::format(", each times {}", scale);
}

std::string ranks_on(Axis axis) {
  return axis == Axis::kAll ? "all ranks" : fmt::format("the {} ranks", name_of(axis));
}

OpRule has_tensor(const std::vector<Tensor>& tensors) {
  return {!tensors.empty(), "a collective must have a tensor"};
}

OpRule is_rank(int root) {
  return {root >= 0, "root must be a rank"};
}

}  // namespace

Operands AllReduce::operands() const {
  const DType type = is_real(type_of_first(tensors)) ? type_of_first(tensors) : DType::kF32;
  return list_of(tensors, {"tensor", nullptr, kUpdates, 'm', 'n', type});
}

std::vector<OpRule> AllReduce::rules() const {
  return {has_tensor(tensors),
          {scale == 1 || type_of_first(tensors) == DType::kF32, "only floats are scaled"}};
}

std::string AllReduce::text(const TensorText& t) const {
  return fmt::format("{} summed over {}{}", tensors_text(tensors, t), ranks_on(axis),
                     scale_text(scale));
}

/// Only the transport can identify the root's tensor, since ranks are numbered across all
/// processes. So every tensor counts as both read and written.
Operands Broadcast::operands() const {
  return list_of(tensors, {"tensor", nullptr, kUpdates, 'm', 'n', type_of_first(tensors)});
}

std::vector<OpRule> Broadcast::rules() const {
  return {has_tensor(tensors), is_rank(root)};
}

std::string Broadcast::text(const TensorText& t) const {
  return fmt::format("{} = that of rank {}", tensors_text(tensors, t), root);
}

Operands Reduce::operands() const {
  return list_of(tensors, {"tensor", nullptr, kUpdates, 'm', 'n'});
}

std::vector<OpRule> Reduce::rules() const {
  return {has_tensor(tensors), is_rank(root)};
}

std::string Reduce::text(const TensorText& t) const {
  return fmt::format("{} summed over {} into that of rank {}", tensors_text(tensors, t),
                     ranks_on(axis), root);
}

/// Likewise, a rank's own rows are unknown here.
Operands ReduceScatter::operands() const {
  return list_of(tensors, {"tensor", nullptr, kUpdates, 'M', 'n'});
}

std::vector<OpRule> ReduceScatter::rules() const {
  return {has_tensor(tensors)};
}

std::string ReduceScatter::text(const TensorText& t) const {
  return fmt::format("{}, each rank's rows summed over {}{}", tensors_text(tensors, t),
                     ranks_on(axis), scale_text(scale));
}

Operands AllGather::operands() const {
  const OperandUse use = own.empty() ? kUpdates : kWrites;
  const DType type = type_of_first(tensors);
  Operands list = list_of(tensors, {"tensor", nullptr, use, 'M', 'n', type});
  const Operands owned = list_of(own, {"own", nullptr, kReads, '*', 'n', type});
  list.insert(list.end(), owned.begin(), owned.end());
  return list;
}

std::vector<OpRule> AllGather::rules() const {
  const std::int64_t rows = tensors.empty() ? 0 : tensors.front().rows;
  const bool fit = std::ranges::all_of(own, [&](const Tensor& each) { return each.rows <= rows; });
  return {has_tensor(tensors),
          {own.empty() || own.size() == tensors.size(), "own must be one for each tensor"},
          {fit, "own must be rows of the tensor"}};
}

std::string AllGather::text(const TensorText& t) const {
  const std::string from =
      own.empty() ? "" : fmt::format(", this one's from {}", tensors_text(own, t));
  return fmt::format("{} = the rows of {}{}", tensors_text(tensors, t), ranks_on(axis), from);
}

Operands SendReceive::operands() const {
  Operands list;
  const DType type = sends ? sends->dtype : receives ? receives->dtype : DType::kF32;
  if (sends) list.push_back({"sends", &*sends, kReads, '*', '*', type});
  if (receives) list.push_back({"receives", &*receives, kWrites, '*', '*', type});
  return list;
}

std::vector<OpRule> SendReceive::rules() const {
  return {{sends || receives, "an exchange must send or receive"},
          {peer >= 0, "peer must be a rank"}};
}

std::string SendReceive::text(const TensorText& t) const {
  const std::string rank = fmt::format("{} rank {}", name_of(axis), peer);
  if (!receives) return fmt::format("{} to {}", t(*sends), rank);
  if (!sends) return fmt::format("{} from {}", t(*receives), rank);
  return fmt::format("{} to {}, {} from there", t(*sends), rank, t(*receives));
}

}  // namespace barestep
