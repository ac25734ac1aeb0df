#include "core/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

Operands operands(const Gemm& op) {
  // A weight's gradient sums over the rows of the batch; other products compute row by row. A Gram
  // matrix multiplies every row by every other, so it cannot be cut by rows.
  const bool is_gram = op.a == op.b && !op.transpose_a && op.transpose_b;
  const char m = is_gram ? 'M' : op.transpose_a ? 'm' : 'r';
  const char n = is_gram ? 'N' : 'n';
  const char k = op.transpose_a ? 'r' : 'k';
  // Partial sums cannot be added after a bias or an activation.
  const bool only_adds = !op.bias && op.activation == Activation::kNone;
  const DType from = real_type(op.a);
  const DType to = op.c.dtype == from ? from : DType::kF32;
  const OperandUse use = only_adds ? sum_into(to) : op.beta == 0 ? kWrites : kUpdates;
  return {{"c", &op.c, use, m, n, to},
          {"a", &op.a, kReads, op.transpose_a ? k : m, op.transpose_a ? m : k, from},
          {"b", &op.b, kReads, op.transpose_b ? n : k, op.transpose_b ? k : n, from},
          {"bias", optional_tensor(op.bias), kReads, '1', n, to},
          {"pre_activation", optional_tensor(op.pre_activation), kWrites, m, n, to}};
}

std::vector<OpRule> rules(const Gemm& op) {
  return {{!op.bias || op.beta == 0, "a bias needs beta == 0"},
          {op.c.dtype == DType::kF32 || op.beta == 0, "c of 16 bits needs beta == 0"}};
}

ProductSize product(const Gemm& op) {
  return {op.c.rows, op.c.cols, op.transpose_a ? op.a.rows : op.a.cols};
}

std::int64_t flops(const Gemm& op) {
  return flops_each(op.c, 2 * product(op).depth + (op.bias ? 1 : 0) +
                              traits_of(op.activation).flops + flops_of_beta(op.beta));
}

std::int64_t launches(const Gemm& op) {
  return op.activation == Activation::kNone || op.activation == Activation::kRelu ? 1 : 2;
}

std::string text(const Gemm& op, const TensorText& t) {
  std::string said = fmt::format("{} = {}{} * {}{}", t(op.c), t(op.a), op.transpose_a ? "^T" : "",
                                 t(op.b), op.transpose_b ? "^T" : "");
  if (op.bias) said += " + " + t(*op.bias);
  return said + old_text(op.c, op.beta, t) + activation_text(op, t);
}

Operands operands(const QuantizeWeight& op) {
  return {{"to", &op.to, kWrites, 'N', 'K', DType::kI8},
          {"scales", &op.scales, kWrites, '1', op.scales.cols == 1 ? '1' : 'N'},
          {"sums", &op.sums, kWrites, '1', 'N', DType::kI32},
          {"from", &op.from, kReads, 'N', 'K'}};
}

/// Magnitude, comparison, product, rounding.
std::int64_t flops(const QuantizeWeight& op) {
  return flops_each(op.from, 4);
}

std::int64_t launches(const QuantizeWeight& op) {
  return op.scales.cols == 1 ? 3 : 1;
}

std::string text(const QuantizeWeight& op, const TensorText& t) {
  return fmt::format("{} = {} / {} in int8, sums of its rows in {}", t(op.to), t(op.from),
                     t(op.scales), t(op.sums));
}

/// One scale for each row, or one for all.
Operands operands(const Quantize& op) {
  const char rows = op.zero_point ? 'M' : 'r';
  return {{"to", &op.to, kWrites, rows, 'K', DType::kI8},
          {"scales", &op.scales, kWrites, op.zero_point ? '1' : rows, '1'},
          {"from", &op.from, kReads, rows, 'K'},
          {"zero_point", optional_tensor(op.zero_point), kWrites, '1', '1', DType::kI32}};
}

std::vector<OpRule> rules(const Quantize& op) {
  return {{op.bits == 7 || op.bits == 8, "bits must be 7 or 8"}};
}

std::int64_t flops(const Quantize& op) {
  return flops_each(op.from, 4);
}

std::int64_t launches(const Quantize& op) {
  return op.zero_point ? 3 : 1;
}

std::string text(const Quantize& op, const TensorText& t) {
  const std::string zero = op.zero_point ? " + " + t(*op.zero_point) : "";
  return fmt::format("{} = {} / {}{} in {} bits", t(op.to), t(op.from), t(op.scales), zero,
                     op.bits);
}

Operands operands(const QuantizedGemm& op) {
  return {{"c", &op.c, kWrites, 'r', 'N'},
          {"a", &op.a, kReads, 'r', 'K', DType::kI8},
          {"b", &op.b, kReads, 'N', 'K', DType::kI8},
          {"a_scales", &op.a_scales, kReads, op.a_zero_point ? '1' : 'r', '1'},
          {"b_scales", &op.b_scales, kReads, '1', op.b_scales.cols == 1 ? '1' : 'N'},
          {"b_sums", &op.b_sums, kReads, '1', 'N', DType::kI32},
          {"bias", &op.bias, kReads, '1', 'N'},
          {"a_zero_point", optional_tensor(op.a_zero_point), kReads, '1', '1', DType::kI32}};
}

std::vector<OpRule> rules(const QuantizedGemm& op) {
  return {{op.bits == 7 || op.bits == 8, "bits must be 7 or 8"},
          {op.a.cols <= kMaxQuantizedInputs, "a sum of so many products may overflow"}};
}

/// Integer multiply-adds count like those of floats. They are followed by the product of the scales
/// and its product with the sum, to which the bias is added.
std::int64_t flops(const QuantizedGemm& op) {
  return flops_each(op.c, 2 * op.a.cols + 3 + traits_of(op.activation).flops);
}

std::int64_t launches(const QuantizedGemm& /*op*/) {
  return 2;
}

ProductSize product(const QuantizedGemm& op) {
  return {op.c.rows, op.c.cols, op.a.cols};
}

std::string text(const QuantizedGemm& op, const TensorText& t) {
  const std::string from =
      op.a_zero_point ? fmt::format("({} - {})", t(op.a), t(*op.a_zero_point)) : t(op.a);
  return fmt::format("{} = {} * {}^T in int32, times {} * {}, + {}{}", t(op.c), from, t(op.b),
                     t(op.a_scales), t(op.b_scales), t(op.bias), activation_text(op.activation));
}

Operands operands(const BiasActivation& op) {
  const DType type = real_type(op.values);
  return {{"values", &op.values, kUpdates, 'r', 'n', type},
          {"bias", optional_tensor(op.bias), kReads, '1', 'n', type},
          {"pre_activation", optional_tensor(op.pre_activation), kWrites, 'r', 'n', type}};
}

std::int64_t flops(const BiasActivation& op) {
  return flops_each(op.values, (op.bias ? 1 : 0) + traits_of(op.activation).flops);
}

std::string text(const BiasActivation& op, const TensorText& t) {
  return t(op.values) + (op.bias ? fmt::format(" += {}", t(*op.bias)) : "") +
         activation_text(op, t);
}

Operands operands(const ActivationGrad& op) {
  const DType type = real_type(op.grad);
  return {{"grad", &op.grad, kUpdates, 'r', 'n', type},
          {"from", &op.from, kReads, 'r', 'n', type},
          {"sums", optional_tensor(op.sums), kAccumulates, '1', 'n'}};
}

std::vector<OpRule> rules(const ActivationGrad& op) {
  return {{op.activation != Activation::kNone, "there must be an activation"},
          {!op.sums || op.grad.dtype == DType::kF32, "sums need a grad of fp32"}};
}

std::int64_t flops(const ActivationGrad& op) {
  const std::int64_t each = traits_of(op.activation).grad_flops + (op.sums ? 1 : 0);
  return flops_each(op.grad, each) + (op.sums ? flops_each(*op.sums, flops_of_beta(op.beta)) : 0);
}

std::string text(const ActivationGrad& op, const TensorText& t) {
  const std::string then =
      op.sums ? fmt::format(", {} = its column sums{}", t(*op.sums), old_text(*op.sums, op.beta, t))
              : "";
  return fmt::format(fmt::runtime(traits_of(op.activation).grad_text), t(op.grad), t(op.from)) +
         then;
}

Operands operands(const Add& op) {
  return {{"out", &op.out, kWrites, 'r', 'n'},
          {"a", &op.a, kReads, 'r', 'n'},
          {"b", &op.b, kReads, 'r', 'n', real_type(op.b)}};
}

std::int64_t flops(const Add& op) {
  return flops_each(op.out, 1);
}

std::string text(const Add& op, const TensorText& t) {
  return fmt::format("{} = {} + {}", t(op.out), t(op.a), t(op.b));
}

Operands operands(const LayerNorm& op) {
  return {{"y", &op.y, kWrites, 'r', 'N', real_type(op.y)},
          {"mean", &op.mean, kWrites, 'r', '1'},
          {"rstd", &op.rstd, kWrites, 'r', '1'},
          {"x", &op.x, kReads, 'r', 'N'},
          {"weight", &op.weight, kReads, '1', 'N'},
          {"bias", &op.bias, kReads, '1', 'N'}};
}

/// Per number: its sum, the deviation, its square and their sum; for y a difference and three
/// products or sums. Per row: two divisions, eps, the root and its inverse.
std::int64_t flops(const LayerNorm& op) {
  return checked_add(flops_each(op.x, 8), flops_each(op.mean, 5), kFlops);
}

std::string text(const LayerNorm& op, const TensorText& t) {
  return fmt::format("{} = {} normalized by rows * {} + {}, means in {}, 1 / deviations in {}",
                     t(op.y), t(op.x), t(op.weight), t(op.bias), t(op.mean), t(op.rstd));
}

Operands operands(const LayerNormGrad& op) {
  return {{"grad_weight", &op.grad_weight, kAccumulates, '1', 'N'},
          {"grad_bias", &op.grad_bias, kAccumulates, '1', 'N'},
          {"grad_x", optional_tensor(op.grad_x), kUpdates, 'r', 'N'},
          {"grad_y", &op.grad_y, kReads, 'r', 'N', real_type(op.grad_y)},
          {"x", &op.x, kReads, 'r', 'N'},
          {"mean", &op.mean, kReads, 'r', '1'},
          {"rstd", &op.rstd, kReads, 'r', '1'},
          {"weight", &op.weight, kReads, '1', 'N'}};
}

/// Per number: h takes 2, the sums 3; grad_x takes t, its sum, t * h and its sum, and 6 more.
std::int64_t flops(const LayerNormGrad& op) {
  const std::int64_t of_sums = flops_each(op.grad_weight, 2 * flops_of_beta(op.beta));
  return checked_add(flops_each(op.x, op.grad_x ? 15 : 5), of_sums, kFlops);
}

std::int64_t launches(const LayerNormGrad& op) {
  return op.grad_x && op.x.rows > 0 ? 2 : 1;
}

std::string text(const LayerNormGrad& op, const TensorText& t) {
  const std::string of_x =
      op.grad_x ? fmt::format(", {} += that of {}", t(*op.grad_x), t(op.x)) : "";
  return fmt::format("{}, {} = gradients of the norm of {} with {}, {} from {}{}{}{}",
                     t(op.grad_weight), t(op.grad_bias), t(op.x), t(op.mean), t(op.rstd),
                     t(op.grad_y), old_text(op.grad_weight, op.beta, t), of_x,
                     of_x.empty() ? "" : " by " + t(op.weight));
}

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

Operands operands(const Attention& op) {
  const DType type = real_type(op.qkv);
  return {{"out", &op.out, kWrites, 'R', 'N', type},
          {"kept", &op.kept, kWrites, 'R', 'K'},
          {"qkv", &op.qkv, kReads, 'R', 'W', type}};
}

std::vector<OpRule> rules(const Attention& op) {
  return rules_of(op.shape, op.qkv, op.out, op.kept);
}

/// Per score: two products of the width, its scaling, maximum, difference, exponential and sum. Per
/// number of the result: the division by the sum. Per row and head: the inverse, a logarithm, a
/// sum.
std::int64_t flops(const Attention& op) {
  const std::int64_t width = op.out.cols / op.shape.heads;
  const std::int64_t of_rows =
      checked_multiply(op.out.rows, op.out.cols + 3 * op.shape.heads, kFlops);
  return checked_add(checked_multiply(pairs_of(op.shape, op.out), 4 * width + 5, kFlops), of_rows,
                     kFlops);
}

std::int64_t launches(const Attention& op) {
  return op.shape.form == AttentionForm::kFlash ? 1 : 3;
}

std::string text(const Attention& op, const TensorText& t) {
  const char* const what =
      op.shape.form == AttentionForm::kFlash ? "logarithms of sums" : "probabilities";
  return fmt::format("{} = attention of {}, {}, {} in {}", t(op.out), t(op.qkv), text_of(op.shape),
                     what, t(op.kept));
}

Operands operands(const AttentionGrad& op) {
  const DType type = real_type(op.qkv);
  const char cols = op.shape.form == AttentionForm::kFlash ? 'N' : 'K';
  return {{"grad_qkv", &op.grad_qkv, kWrites, 'R', 'W', type},
          {"scratch", optional_tensor(op.scratch), kWrites, 'R', cols},
          {"qkv", &op.qkv, kReads, 'R', 'W', type},
          {"out", &op.out, kReads, 'R', 'N', type},
          {"grad_out", &op.grad_out, kReads, 'R', 'N', type},
          {"kept", &op.kept, kReads, 'R', 'K'}};
}

std::vector<OpRule> rules(const AttentionGrad& op) {
  std::vector<OpRule> list = rules_of(op.shape, op.qkv, op.out, op.kept);
  list.push_back({op.scratch.has_value() == (op.scratch_cols() > 0),
                  "scratch goes with the standard form and with 16 bits"});
  return list;
}

/// Per score: four products of the width, and in the flash form a fifth, its scaling, a difference
/// and the exponential for p again; dp - sum, times p; in the standard form, p * dp and its sum. In
/// the flash form, that sum takes two flops per number of out. Gradients of q and k are scaled.
std::int64_t flops(const AttentionGrad& op) {
  const bool is_flash = op.shape.form == AttentionForm::kFlash;
  const std::int64_t width = op.out.cols / op.shape.heads;
  const std::int64_t each = is_flash ? 10 * width + 5 : 8 * width + 4;
  return checked_add(checked_multiply(pairs_of(op.shape, op.out), each, kFlops),
                     flops_each(op.out, is_flash ? 4 : 2), kFlops);
}

std::int64_t launches(const AttentionGrad& op) {
  return op.shape.form == AttentionForm::kFlash ? 2 : 5;
}

std::string text(const AttentionGrad& op, const TensorText& t) {
  const std::string with = op.scratch ? fmt::format(", scratch {}", t(*op.scratch)) : "";
  return fmt::format("{} = gradient of the attention of {}, {}, with {}, {} from {}{}",
                     t(op.grad_qkv), t(op.qkv), text_of(op.shape), t(op.out), t(op.kept),
                     t(op.grad_out), with);
}

/// A part would number its rows differently from the op, so the op is not cut.
Operands operands(const Dropout& op) {
  return {{"values", &op.values, kUpdates, 'M', 'N', real_type(op.values)},
          {"step", &op.step, kReads, '1', '1', DType::kI32}};
}

std::vector<OpRule> rules(const Dropout& op) {
  return {{op.rate >= 0 && op.rate < 1, "rate must be at least 0 and below 1"},
          {op.layer >= 0 && op.first_row >= 0 && op.row_stride >= 1 && op.rows_per_sample >= 1,
           "layer and rows must be numbered from 0 on"}};
}

/// A comparison and a product; Philox uses integer arithmetic, which counts no flops.
std::int64_t flops(const Dropout& op) {
  return flops_each(op.values, 2);
}

std::string text(const Dropout& op, const TensorText& t) {
  return fmt::format("{} *= {}, or 0 by chance {}; drawn by {} for rows {}, {}, ...", t(op.values),
                     1 / (1 - op.rate), op.rate, t(op.step), op.first_row,
                     op.first_row + op.row_stride);
}

Operands operands(const SumRows& op) {
  const DType from = real_type(op.in);
  const DType to = op.out.dtype == from ? from : DType::kF32;
  return {{"out", &op.out, sum_into(to), '1', 'n', to}, {"in", &op.in, kReads, 'r', 'n', from}};
}

std::int64_t flops(const SumRows& op) {
  return flops_each(op.in, 1) + flops_each(op.out, flops_of_beta(op.beta));
}

std::string text(const SumRows& op, const TensorText& t) {
  return fmt::format("{} = column sums of {}{}", t(op.out), t(op.in), old_text(op.out, op.beta, t));
}

Operands operands(const SquaredErrors& op) {
  return {{"out", &op.out, kWrites, '1', 'n'},
          {"output", &op.output, kReads, 'r', 'n', real_type(op.output)},
          {"target", &op.target, kReads, 'r', 'n'}};
}

/// A difference, a product and a sum.
std::int64_t flops(const SquaredErrors& op) {
  return flops_each(op.output, 3);
}

std::string text(const SquaredErrors& op, const TensorText& t) {
  return fmt::format("{} = column sums of ({} - {})^2", t(op.out), t(op.output), t(op.target));
}

Operands operands(const PointwiseLoss& op) {
  const DType type = real_type(op.output);
  const DType of_target = takes_labels(op.kind) ? DType::kI32 : DType::kF32;
  return {{"loss", &op.loss, kAccumulates, '1', '1'},
          {"grad", &op.grad, kWrites, 'r', 'n', type},
          {"output", &op.output, kReads, 'r', 'n', type},
          {"target", &op.target, kReads, 'r', 'n', of_target},
          {"scale", optional_tensor(op.scale), kReads, '1', '1'}};
}

std::vector<OpRule> rules(const PointwiseLoss& op) {
  return {{op.count >= 1 && op.count >= op.output.size(),
           "count must be at least 1 and at least the size of output"},
          {is_pointwise(op.kind), "the loss must be a mean over single numbers"},
          {op.activation == Activation::kNone || op.activation == Activation::kRelu,
           "the activation must be ReLU or none"}};
}

/// Once: the division by count.
std::int64_t flops(const PointwiseLoss& op) {
  const std::int64_t each =
      traits_of(op.kind).flops + (op.scale ? 1 : 0) + traits_of(op.activation).grad_flops;
  return checked_add(flops_each(op.output, each), 1 + flops_of_beta(op.beta), kFlops);
}

std::string text(const PointwiseLoss& op, const TensorText& t) {
  const std::string term =
      fmt::format(fmt::runtime(traits_of(op.kind).text), t(op.output), t(op.target));
  const bool has_relu = op.activation == Activation::kRelu;
  return fmt::format("{} = sum of {} / {}{}, gradient in {}{}", t(op.loss), term, op.count,
                     old_text(op.loss, op.beta, t), grad_text(op, t),
                     has_relu ? fmt::format(", 0 where {} <= 0", t(op.output)) : "");
}

Operands operands(const CrossEntropy& op) {
  const DType type = real_type(op.logits);
  return {{"loss", &op.loss, kAccumulates, '1', '1'},
          {"grad", &op.grad, kWrites, 'r', 'N', type},
          {"logits", &op.logits, kReads, 'r', 'N', type},
          {"labels", &op.labels, kReads, 'r', '1', DType::kI32},
          {"scale", optional_tensor(op.scale), kReads, '1', '1'}};
}

std::vector<OpRule> rules(const CrossEntropy& op) {
  return {{op.count >= 1 && op.count >= op.logits.rows,
           "count must be at least 1 and at least the rows of logits"},
          {op.smoothing >= 0 && op.smoothing < 1, "smoothing must be at least 0 and below 1"}};
}

/// Per number: maximum, difference, exp, sum, times the inverse of sum and of count. Per row: log,
/// the label's loss and its sum, the inverse of the sum, the label's -1. Once: the division by
/// count. Smoothing also sums all differences, subtracts its share from every number and weights
/// two sums.
std::int64_t flops(const CrossEntropy& op) {
  const bool smooths = op.smoothing > 0;
  const std::int64_t rows = checked_multiply(op.logits.rows, smooths ? 10 : 6, kFlops);
  return checked_add(flops_each(op.logits, (smooths ? 8 : 6) + (op.scale ? 1 : 0)),
                     rows + 1 + flops_of_beta(op.beta), kFlops);
}

std::string text(const CrossEntropy& op, const TensorText& t) {
  const std::string smoothed =
      op.smoothing == 0 ? "" : fmt::format(" smoothed by {}", op.smoothing);
  return fmt::format("{} = cross entropy of {} with labels {}{} / {}{}, gradient in {}", t(op.loss),
                     t(op.logits), t(op.labels), smoothed, op.count, old_text(op.loss, op.beta, t),
                     grad_text(op, t));
}

Operands operands(const CountCorrect& op) {
  return {{"correct", &op.correct, kWrites, '1', '1', DType::kI32},
          {"logits", &op.logits, kReads, 'r', 'N', real_type(op.logits)},
          {"labels", &op.labels, kReads, 'r', '1', DType::kI32},
          {"classes", optional_tensor(op.classes), kWrites, 'r', '1', DType::kI32}};
}

std::vector<OpRule> rules(const CountCorrect& op) {
  return {{!op.binary || op.logits.cols == 1, "a binary classifier must have one logit"}};
}

std::int64_t flops(const CountCorrect& op) {
  return flops_each(op.logits, 1);
}

std::string text(const CountCorrect& op, const TensorText& t) {
  const std::string kept = op.classes ? fmt::format(", classes in {}", t(*op.classes)) : "";
  return fmt::format("{} = rows of {} whose {} is label {}{}", t(op.correct), t(op.logits),
                     op.binary ? "sign" : "largest", t(op.labels), kept);
}

// Steps of optimizers.

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

/// The first moment takes 3, the second 4, the divisor 3, the weight 3.
std::int64_t flops(const AdamStep& op) {
  return 13 + (op.weight_decay != 0 && op.decoupled ? 1 : decay_flops(op.weight_decay)) +
         (op.amsgrad ? 1 : 0);
}

std::string text(const AdamStep& op) {
  return (op.decoupled ? ", decoupled" : "") + decay_text(op.weight_decay);
}

std::vector<OpRule> rules(const AdamStep& op) {
  return {{op.weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::vector<std::string_view> state(const AdamStep& op) {
  if (op.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

int scalars(const AdamStep& op) {
  return op.decoupled ? 3 : 2;
}

void write(const AdamStep& op, std::int64_t t, double lr, std::span<float> scalars) {
  const auto power = static_cast<double>(t);
  scalars[0] = minus(lr / (1 - std::pow(op.beta1, power)));
  scalars[1] = static_cast<float>(std::sqrt(1 - std::pow(op.beta2, power)));
  if (op.decoupled) scalars[2] = shrink_of(lr, op.weight_decay);
}

/// Each of decay, momentum, Nesterov's step and the weight is a product and a sum.
std::int64_t flops(const SgdStep& op) {
  return 2 + decay_flops(op.weight_decay) + (op.momentum > 0 ? 2 : 0) + (op.nesterov ? 2 : 0);
}

std::string text(const SgdStep& op) {
  return momentum_text(op.momentum) + (op.nesterov ? ", Nesterov" : "") +
         decay_text(op.weight_decay);
}

std::vector<OpRule> rules(const SgdStep& op) {
  return {momentum_and_decay(op.momentum, op.weight_decay),
          {!op.nesterov || op.momentum > 0, "nesterov needs momentum"}};
}

std::vector<std::string_view> state(const SgdStep& op) {
  if (op.momentum > 0) return {"momentum_buffer"};
  return {};
}

/// The squares take 4, their root and eps 2, the weight 3.
std::int64_t flops(const RmsPropStep& op) {
  return 9 + decay_flops(op.weight_decay) + (op.momentum > 0 ? 2 : 0);
}

std::string text(const RmsPropStep& op) {
  return momentum_text(op.momentum) + decay_text(op.weight_decay);
}

std::vector<OpRule> rules(const RmsPropStep& op) {
  return {momentum_and_decay(op.momentum, op.weight_decay)};
}

std::vector<std::string_view> state(const RmsPropStep& op) {
  if (op.momentum > 0) return {"square_avg", "momentum_buffer"};
  return {"square_avg"};
}

/// The sum takes 2, its root and eps 2, the weight 3.
std::int64_t flops(const AdagradStep& op) {
  return 7 + decay_flops(op.weight_decay);
}

std::string text(const AdagradStep& op) {
  return decay_text(op.weight_decay);
}

std::vector<OpRule> rules(const AdagradStep& op) {
  return {{op.weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::vector<std::string_view> state(const AdagradStep& /*op*/) {
  return {"sum"};
}

/// Each of the two means takes 3, the sign 1, the weight 3.
std::int64_t flops(const LionStep& /*op*/) {
  return 10;
}

/// Weight decay is in the scalars.
std::string text(const LionStep& /*op*/) {
  return "";
}

std::vector<OpRule> rules(const LionStep& op) {
  return {{op.weight_decay >= 0, "weight_decay must be zero or more"}};
}

std::vector<std::string_view> state(const LionStep& /*op*/) {
  return {"exp_avg"};
}

int scalars(const LionStep& /*op*/) {
  return 2;
}

void write(const LionStep& op, std::int64_t /*t*/, double lr, std::span<float> scalars) {
  scalars[0] = minus(lr);
  scalars[1] = shrink_of(lr, op.weight_decay);
}

/// Defaults: what a step does not say otherwise.
template <class AnyStep>
int scalars(const AnyStep& /*op*/) {
  return 1;
}

template <class AnyStep>
void write(const AnyStep& /*op*/, std::int64_t /*t*/, double lr, std::span<float> scalars) {
  scalars[0] = minus(lr);
}

std::string_view label(const OptimizerUpdate& op) {
  return of_step(op, [](const auto& rule) { return rule.kLabel; });
}

Operands operands(const OptimizerUpdate& op) {
  Operands list = {{"weights", &op.weights, kUpdates, '1', 'n'},
                   {"grads", &op.grads, kReads, '1', 'n', real_type(op.grads)}};
  const auto names = state_of(op.step);
  for (std::size_t i = 0; i < op.state.size(); ++i) {
    list.push_back({i < names.size() ? names[i] : "state", &op.state[i], kUpdates, '1', 'n'});
  }
  // With loss scaling, one row for each of several updates.
  list.push_back({"scalars", &op.scalars, kReads, op.loss_scale ? 'S' : '1',
                  static_cast<char>('0' + scalars_of(op.step))});
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

std::vector<OpRule> rules(const OptimizerUpdate& op) {
  std::vector<OpRule> list = of_step(op, [](const auto& rule) { return rules(rule); });
  const auto names = state_of(op.step);
  list.push_back(
      {op.state.size() == names.size(), "state must be one tensor for each of the step's"});
  list.push_back(
      {op.grads.dtype == DType::kF32 || (op.rounded && op.rounded->dtype == op.grads.dtype),
       "grads must be f32 or of the type of rounded"});
  list.push_back({!op.rounded || op.rounded->dtype != DType::kF32, "rounded must be of 16 bits"});
  list.push_back({op.first_update.has_value() == op.loss_scale.has_value(),
                  "first_update goes with loss_scale"});
  return list;
}

std::int64_t flops(const OptimizerUpdate& op) {
  const std::int64_t step_flops = of_step(op, [](const auto& rule) { return flops(rule); });
  return flops_each(op.weights, step_flops + (op.clip ? 1 : 0) + (op.loss_scale ? 1 : 0));
}

std::string text(const OptimizerUpdate& op, const TensorText& t) {
  std::string said = fmt::format("{} from {}", t(op.weights), t(op.grads));
  for (const Tensor& each : op.state) said += ", " + t(each);
  said += ", " + t(op.scalars) + clip_text(op.clip, t);
  if (op.rounded) said += fmt::format(", rounded in {}", t(*op.rounded));
  if (op.loss_scale) {
    said += fmt::format(", gradient / {}, unless {}", t(op.loss_scale->scale),
                        t(op.loss_scale->found_inf));
  }
  return said + of_step(op, [](const auto& rule) { return text(rule); });
}

Operands operands(const LinearAdam& op) {
  const DType type = real_type(op.x);
  return {{"weight", &op.weight, kUpdates, 'm', 'n'},
          {"weight_moments1", &op.weight_moments1, kUpdates, 'm', 'n'},
          {"weight_moments2", &op.weight_moments2, kUpdates, 'm', 'n'},
          {"bias", &op.bias, kUpdates, '1', 'm'},
          {"bias_moments1", &op.bias_moments1, kUpdates, '1', 'm'},
          {"bias_moments2", &op.bias_moments2, kUpdates, '1', 'm'},
          {"grad_y", &op.grad_y, kReads, 'r', 'm', type},
          {"x", &op.x, kReads, 'r', 'n', type},
          {"scalars", &op.scalars, kReads, '1', static_cast<char>('0' + scalars(op.step))},
          {"clip", optional_tensor(op.clip), kReads, '1', '1'},
          {"rounded_weight", optional_tensor(op.rounded_weight), kWrites, 'm', 'n', type},
          {"rounded_bias", optional_tensor(op.rounded_bias), kWrites, '1', 'm', type}};
}

std::vector<OpRule> rules(const LinearAdam& op) {
  std::vector<OpRule> list = rules(op.step);
  list.push_back({!op.step.amsgrad, "AMSGrad has no update from factors"});
  list.push_back({op.rounded_weight.has_value() == (op.x.dtype != DType::kF32) &&
                      op.rounded_bias.has_value() == op.rounded_weight.has_value(),
                  "factors of 16 bits go with rounded weights"});
  return list;
}

std::int64_t flops(const LinearAdam& op) {
  const std::int64_t each = flops(op.step) + (op.clip ? 1 : 0);
  const std::int64_t of_bias =
      checked_add(flops_each(op.grad_y, 1), flops_each(op.bias, each), kFlops);
  return checked_add(flops_each(op.weight, 2 * op.x.rows + each), of_bias, kFlops);
}

/// An update from the factors of the gradient is mainly a product.
ProductSize product(const LinearAdam& op) {
  return {op.weight.rows, op.weight.cols, op.x.rows};
}

std::string text(const LinearAdam& op, const TensorText& t) {
  const std::string rounded =
      op.rounded_weight
          ? fmt::format(", rounded in {}, {}", t(*op.rounded_weight), t(*op.rounded_bias))
          : "";
  return fmt::format("{}, {} from {}^T * {}, column sums, {}, {}, {}, {}, {}{}{}{}", t(op.weight),
                     t(op.bias), t(op.grad_y), t(op.x), t(op.weight_moments1),
                     t(op.weight_moments2), t(op.bias_moments1), t(op.bias_moments2), t(op.scalars),
                     clip_text(op.clip, t), rounded, text(op.step));
}

Operands operands(const SumSquares& op) {
  return {{"out", &op.out, kWrites, '1', '1'},
          {"in", &op.in, kReads, 'm', 'n', real_type(op.in)},
          {"scale", optional_tensor(op.scale), kReads, '1', '1'}};
}

std::int64_t flops(const SumSquares& op) {
  return flops_each(op.in, op.scale ? 3 : 2);
}

std::string text(const SumSquares& op, const TensorText& t) {
  if (op.scale) return fmt::format("{} = sum of ({} / {})^2", t(op.out), t(op.in), t(*op.scale));
  return fmt::format("{} = sum of {}^2", t(op.out), t(op.in));
}

Operands operands(const CheckFinite& op) {
  return {{"found_inf", &op.found_inf, kUpdates, '1', '1'},
          {"in", &op.in, kReads, '*', '*', real_type(op.in)}};
}

std::int64_t flops(const CheckFinite& op) {
  return flops_each(op.in, 1);
}

std::string text(const CheckFinite& op, const TensorText& t) {
  return fmt::format("{} = 1 where {} is not finite", t(op.found_inf), t(op.in));
}

Operands operands(const UpdateLossScale& op) {
  return {{"scale", &op.state.scale, kUpdates, '1', '1'},
          {"found_inf", &op.state.found_inf, kReads, '1', '1'},
          {"updates", &op.state.updates, kUpdates, '1', '1', DType::kI32},
          {"good_steps", &op.good_steps, kUpdates, '1', '1', DType::kI32}};
}

std::vector<OpRule> rules(const UpdateLossScale& op) {
  return {
      {op.growth >= 1 && op.backoff > 0 && op.backoff <= 1, "growth and backoff must be around 1"},
      {op.window >= 1, "window must be at least 1"}};
}

/// Two comparisons, a count and a product.
std::int64_t flops(const UpdateLossScale& /*op*/) {
  return 4;
}

std::string text(const UpdateLossScale& op, const TensorText& t) {
  std::string counted =
      fmt::format("{} += 1 unless {}", t(op.state.updates), t(op.state.found_inf));
  if (op.fixed) return counted;
  return fmt::format("{}; {} *= {} if so, {} after {} steps without, counted in {}", counted,
                     t(op.state.scale), op.backoff, op.growth, op.window, t(op.good_steps));
}

Operands operands(const GramSquares& op) {
  return {{"out", &op.out, kWrites, '1', '1'},
          {"gram_y", &op.gram_y, kReads, 'N', 'N'},
          {"gram_x", &op.gram_x, kReads, 'N', 'N'}};
}

std::int64_t flops(const GramSquares& op) {
  return flops_each(op.gram_y, 3);
}

std::string text(const GramSquares& op, const TensorText& t) {
  return fmt::format("{} = sum of {} * ({} + 1)", t(op.out), t(op.gram_y), t(op.gram_x));
}

Operands operands(const ClipFactor& op) {
  return {{"factor", &op.factor, kWrites, '1', '1'}, {"squares", &op.squares, kReads, '1', 'n'}};
}

std::vector<OpRule> rules(const ClipFactor& op) {
  return {{std::isfinite(op.max_norm) && op.max_norm > 0, "max_norm must be above zero"}};
}

/// Per number: a sum. Once: a root, a sum, a division and a comparison.
std::int64_t flops(const ClipFactor& op) {
  return op.squares.size() + 4;
}

std::string text(const ClipFactor& op, const TensorText& t) {
  return fmt::format("{} = {} / root of the sum of {}, at most 1", t(op.factor), op.max_norm,
                     t(op.squares));
}

Operands operands(const Copy& op) {
  return {{"to", &op.to, kWrites, 'm', 'n', op.from.dtype},
          {"from", &op.from, kReads, 'm', 'n', op.from.dtype}};
}

std::int64_t flops(const Copy& /*op*/) {
  return 0;
}

std::int64_t launches(const Copy& /*op*/) {
  return 0;
}

std::string text(const Copy& op, const TensorText& t) {
  return fmt::format("{} = {}", t(op.to), t(op.from));
}

Operands operands(const Cast& op) {
  const auto narrow = [](const Tensor& tensor) {
    return tensor.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
  };
  const bool narrows = op.from.dtype == DType::kF32;
  const DType type = narrows ? narrow(op.to) : DType::kF32;
  return {{"to", &op.to, sum_into(type), 'm', 'n', type},
          {"from", &op.from, kReads, 'm', 'n', narrows ? DType::kF32 : narrow(op.from)}};
}

std::vector<OpRule> rules(const Cast& op) {
  return {{op.to.dtype == DType::kF32 || op.beta == 0, "to of 16 bits needs beta == 0"}};
}

std::int64_t flops(const Cast& op) {
  return flops_each(op.to, (op.scale == 1 ? 0 : 1) + flops_of_beta(op.beta));
}

std::string text(const Cast& op, const TensorText& t) {
  const char* const type = op.to.dtype == DType::kBF16  ? "bf16"
                           : op.to.dtype == DType::kF16 ? "fp16"
                                                        : "fp32";
  const std::string factor = op.scale == 1 ? "" : fmt::format("{} * ", op.scale);
  return fmt::format("{} = {}{} in {}{}", t(op.to), factor, t(op.from), type,
                     old_text(op.to, op.beta, t));
}

Operands operands(const Fill& op) {
  return {{"out", &op.out, kWrites, 'm', 'n'}};
}

std::int64_t flops(const Fill& /*op*/) {
  return 0;
}

std::string text(const Fill& op, const TensorText& t) {
  return fmt::format("{} = {}", t(op.out), op.value);
}

/// Numbers are drawn in sequence, so this is not cut.
Operands operands(const Randn& op) {
  return {{"out", &op.out, kWrites, '*', '*'},
          {"state", &op.state, kUpdates, '*', '*', DType::kU8}};
}

std::vector<OpRule> rules(const Randn& op) {
  const bool in_blocks = op.before % kNormalBlock == 0 && op.out.size() % kNormalBlock == 0 &&
                         op.after % kNormalBlock == 0;
  return {
      {op.state.bytes() == state_bytes(op.generator), "state must have the bytes of its generator"},
      {op.before >= 0 && op.after >= 0, "before and after must be zero or more"},
      {op.before + op.after == 0 || (op.generator == Generator::kTorchCpu && in_blocks),
       "only whole blocks of the CPU's stream can be skipped"}};
}

/// Two numbers (Box-Muller): two uniform numbers, 1 - u, log, times -2, root, times 2 pi, cosine,
/// sine and two products.
std::int64_t flops(const Randn& op) {
  return flops_each(op.out, 11) / 2;
}

std::string text(const Randn& op, const TensorText& t) {
  const std::string skipped =
      op.before + op.after == 0
          ? ""
          : fmt::format(", {} before and {} after them skipped", op.before, op.after);
  return fmt::format("{} = normal numbers drawn from {}{}", t(op.out), t(op.state), skipped);
}

Operands operands(const Delay& op) {
  return {{"more_seconds", optional_tensor(op.more_seconds), kReads, '1', '1'}};
}

std::vector<OpRule> rules(const Delay& op) {
  return {{std::isfinite(op.seconds) && op.seconds >= 0, "seconds must be zero or more"}};
}

std::int64_t flops(const Delay& /*op*/) {
  return 0;
}

std::string text(const Delay& op, const TensorText& t) {
  return fmt::format("{} ms{}", op.seconds * 1e3,
                     op.more_seconds ? fmt::format(" and {} s", t(*op.more_seconds)) : "");
}

// Collectives.

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

Operands operands(const AllReduce& op) {
  const DType type = is_real(type_of_first(op.tensors)) ? type_of_first(op.tensors) : DType::kF32;
  return list_of(op.tensors, {"tensor", nullptr, kUpdates, 'm', 'n', type});
}

std::vector<OpRule> rules(const AllReduce& op) {
  return {has_tensor(op.tensors),
          {op.scale == 1 || type_of_first(op.tensors) == DType::kF32, "only floats are scaled"}};
}

std::string text(const AllReduce& op, const TensorText& t) {
  return fmt::format("{} summed over {}{}", tensors_text(op.tensors, t), ranks_on(op.axis),
                     scale_text(op.scale));
}

/// Only the transport can identify the root's tensor, since ranks are numbered across all
/// processes. So every tensor counts as both read and written.
Operands operands(const Broadcast& op) {
  return list_of(op.tensors, {"tensor", nullptr, kUpdates, 'm', 'n', type_of_first(op.tensors)});
}

std::vector<OpRule> rules(const Broadcast& op) {
  return {has_tensor(op.tensors), is_rank(op.root)};
}

std::string text(const Broadcast& op, const TensorText& t) {
  return fmt::format("{} = that of rank {}", tensors_text(op.tensors, t), op.root);
}

Operands operands(const Reduce& op) {
  return list_of(op.tensors, {"tensor", nullptr, kUpdates, 'm', 'n'});
}

std::vector<OpRule> rules(const Reduce& op) {
  return {has_tensor(op.tensors), is_rank(op.root)};
}

std::string text(const Reduce& op, const TensorText& t) {
  return fmt::format("{} summed over {} into that of rank {}", tensors_text(op.tensors, t),
                     ranks_on(op.axis), op.root);
}

/// Likewise, a rank's own rows are unknown here.
Operands operands(const ReduceScatter& op) {
  return list_of(op.tensors, {"tensor", nullptr, kUpdates, 'M', 'n'});
}

std::vector<OpRule> rules(const ReduceScatter& op) {
  return {has_tensor(op.tensors)};
}

std::string text(const ReduceScatter& op, const TensorText& t) {
  return fmt::format("{}, each rank's rows summed over {}{}", tensors_text(op.tensors, t),
                     ranks_on(op.axis), scale_text(op.scale));
}

Operands operands(const AllGather& op) {
  const OperandUse use = op.own.empty() ? kUpdates : kWrites;
  const DType type = type_of_first(op.tensors);
  Operands list = list_of(op.tensors, {"tensor", nullptr, use, 'M', 'n', type});
  const Operands owned = list_of(op.own, {"own", nullptr, kReads, '*', 'n', type});
  list.insert(list.end(), owned.begin(), owned.end());
  return list;
}

std::vector<OpRule> rules(const AllGather& op) {
  const std::int64_t rows = op.tensors.empty() ? 0 : op.tensors.front().rows;
  const bool fit =
      std::ranges::all_of(op.own, [&](const Tensor& each) { return each.rows <= rows; });
  return {has_tensor(op.tensors),
          {op.own.empty() || op.own.size() == op.tensors.size(), "own must be one for each tensor"},
          {fit, "own must be rows of the tensor"}};
}

std::string text(const AllGather& op, const TensorText& t) {
  const std::string from =
      op.own.empty() ? "" : fmt::format(", this one's from {}", tensors_text(op.own, t));
  return fmt::format("{} = the rows of {}{}", tensors_text(op.tensors, t), ranks_on(op.axis), from);
}

Operands operands(const SendReceive& op) {
  Operands list;
  const DType type = op.sends ? op.sends->dtype : op.receives ? op.receives->dtype : DType::kF32;
  if (op.sends) list.push_back({"sends", &*op.sends, kReads, '*', '*', type});
  if (op.receives) list.push_back({"receives", &*op.receives, kWrites, '*', '*', type});
  return list;
}

std::vector<OpRule> rules(const SendReceive& op) {
  return {{op.sends || op.receives, "an exchange must send or receive"},
          {op.peer >= 0, "peer must be a rank"}};
}

std::string text(const SendReceive& op, const TensorText& t) {
  const std::string rank = fmt::format("{} rank {}", name_of(op.axis), op.peer);
  if (!op.receives) return fmt::format("{} to {}", t(*op.sends), rank);
  if (!op.sends) return fmt::format("{} from {}", t(*op.receives), rank);
  return fmt::format("{} to {}, {} from there", t(*op.sends), rank, t(*op.receives));
}

/// Defaults: what an op does not say otherwise.
template <class AnyOp>
std::vector<OpRule> rules(const AnyOp& /*op*/) {
  return {};
}

template <class AnyOp>
std::int64_t launches(const AnyOp& /*op*/) {
  return 1;
}

template <class AnyOp>
std::optional<ProductSize> product(const AnyOp& /*op*/) {
  return {};
}

template <class AnyOp>
std::string_view label(const AnyOp& /*op*/) {
  return AnyOp::kLabel;
}

std::string_view label(const BiasActivation& op) {
  return traits_of(op.activation).bias_label;
}

std::string_view label(const ActivationGrad& op) {
  return traits_of(op.activation).grad_label;
}

std::string_view label(const PointwiseLoss& op) {
  return traits_of(op.kind).label;
}

}  // namespace

std::int64_t AttentionGrad::scratch_cols() const {
  if (shape.form == AttentionForm::kStandard) return shape.kept_cols();
  return qkv.dtype == DType::kF32 ? 0 : out.cols;
}

std::vector<std::string_view> state_of(const OptimizerStep& step) {
  return std::visit([](const auto& each) { return state(each); }, step);
}

std::int64_t scalars_of(const OptimizerStep& step) {
  return std::visit([](const auto& each) { return scalars(each); }, step);
}

void write_scalars(const OptimizerStep& step, std::int64_t t, double lr, std::span<float> scalars) {
  std::visit([&](const auto& each) { write(each, t, lr, scalars); }, step);
}

Operands operands_of(const Op& op) {
  Operands list = visit_op(op, [](const auto& each) { return operands(each); });
  std::erase_if(list, [](const Operand& operand) { return operand.tensor == nullptr; });
  return list;
}

std::vector<OpRule> rules_of(const Op& op) {
  return visit_op(op, [](const auto& each) { return rules(each); });
}

std::int64_t flops_of(const DeviceOp& op) {
  return std::visit([](const auto& each) { return flops(each); }, op);
}

std::int64_t launches_of(const DeviceOp& op) {
  return std::visit([](const auto& each) { return launches(each); }, op);
}

std::optional<ProductSize> product_of(const DeviceOp& op) {
  return std::visit([](const auto& each) -> std::optional<ProductSize> { return product(each); },
                    op);
}

std::string_view label_of(const DeviceOp& op) {
  return std::visit([](const auto& each) { return label(each); }, op);
}

std::string_view label_of(const Op& op) {
  return visit_op(op, [](const auto& each) { return label(each); });
}

std::string text_of(const Op& op, const TensorText& t) {
  return visit_op(op, [&](const auto& each) { return text(each, t); });
}

}  // namespace barestep
