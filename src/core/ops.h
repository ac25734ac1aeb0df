// Ops: one plain struct for each operation that a step can contain.
//
// An op is a value. The same struct serves the device that runs it, the planner that sizes its
// tensors, the checker that orders it, the pricer that counts it and the printer that prints it.
// There are two variants: DeviceOp, which a device runs, and Collective, which a transport runs.
//
// A tensor that an op writes shares no byte with the op's other tensors.
//
// ops.cpp says everything about an op but how it is computed: its operands (and so its reads and
// writes, its bytes, the shapes that must match and how it may be cut), rules for the rest, flops,
// kernels that a GPU launches for it, and text. A flop is an operation on one number; Cost says how
// they are counted.
//
// To add an op: its struct here, its functions in ops.cpp, its loop in kernels/, a row in
// tests/kernels/ops_test.cpp. CONTRIBUTING.md explains how to add an optimizer or an activation.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/activation.h"
#include "core/attention.h"
#include "core/loss.h"
#include "core/mesh.h"
#include "core/tensor.h"

namespace barestep {

/// One lambda per alternative of a variant: std::visit(Overloaded{[](const Gemm&) {...}, ...}, op).
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

/// How an op uses an operand. accesses_of() lists operands in this order.
enum class OperandUse {
  kReads,
  kWrites,
  kAccumulates,  // beta * old + new, with the op's beta; reads the old value only if beta is not 0
  kUpdates,      // reads and writes
};

/// A tensor of an op. `rows` and `cols` name its dimensions. A letter is a dimension that has the
/// same size in all operands of the op; 'r' is the rows of the batch. A capital letter is a
/// dimension that cannot be cut, since each result depends on all of it. A digit is the size
/// itself. '*' is any size.
struct Operand {
  std::string_view name;
  const Tensor* tensor = nullptr;  // a member of the op; null if this op lacks it
  OperandUse use = OperandUse::kReads;
  char rows = '*';
  char cols = '*';
  DType dtype = DType::kF32;  // the required type
  int part = 0;               // see parts_of()
};
using Operands = std::vector<Operand>;

/// A condition on the numbers of an op, or on its tensors beyond their shapes.
struct OpRule {
  bool holds = true;
  std::string_view text;
};

/// A matrix product: rows x cols numbers, each a sum over `depth`.
struct ProductSize {
  std::int64_t rows = 0, cols = 0, depth = 0;

  friend auto operator<=>(const ProductSize&, const ProductSize&) = default;
};

/// Returns the text for a tensor; see core/printer.h.
using TensorText = std::function<std::string(const Tensor&)>;

/// c = op(a) op(b) [+ bias on every row] + beta * c, then the activation. op transposes if asked.
/// `pre_activation`, if given, receives the activation's input.
/// Shapes: c is m x n, op(a) m x k, op(b) k x n, bias 1 x n, pre_activation m x n. A bias needs
/// beta == 0.
///
/// Types: a and b are both f32, bf16 or f16. c has their type or f32; bias and pre_activation have
/// c's type. Sums and bias are added in fp32 and rounded once to c's type; the activation is
/// applied to the rounded number, and its result is rounded too. A 16-bit c needs beta == 0.
struct Gemm {
  static constexpr std::string_view kLabel = "gemm";
  Tensor c, a, b;
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0;
  std::optional<Tensor> bias{};
  Activation activation = Activation::kNone;
  std::optional<Tensor> pre_activation{};
};

/// Quantizes a weight to int8: to = from / scale, rounded to the nearest whole number, ties to
/// even, from -128 to 127. A scale is the largest magnitude of its numbers over 127.5, as in
/// PyTorch's weight observers. Each row has its own scale, or all share one if `scales` is a single
/// number. `sums` are the row sums of `to`. to and from n x k, scales 1 x n or 1 x 1, sums 1 x n
/// i32.
struct QuantizeWeight {
  static constexpr std::string_view kLabel = "quantize_weight";
  Tensor to, scales, sums, from;
};

/// Quantizes activations to whole numbers of `bits` bits, 7 or 8, in int8.
///
/// By rows, symmetric: scale = largest magnitude of the row / (2^(bits - 1) - 1) and
/// to = from / scale, rounded to the nearest, ties to even. So a row's numbers depend only on that
/// row. scales m x 1.
///
/// With a `zero_point`: one scale for all, affine, as in the dynamic modules of
/// torch.ao.quantization. The range from the smallest number (or 0 if that is smaller) to the
/// largest (or 0 if that is larger) maps to 2^bits values, and to = from / scale + zero_point.
/// PyTorch's values start at 0, these at -2^(bits - 1). scales 1 x 1, zero_point 1 x 1 i32.
///
/// A number that is not finite makes its scale not finite, and so everything computed from it.
struct Quantize {
  static constexpr std::string_view kLabel = "quantize";
  Tensor to, scales, from;
  std::optional<Tensor> zero_point{};
  int bits = 8;
};

/// c = (a - zero point) b^T * (scale of a * scale of b) + bias, then the activation. The integer
/// product is exact in int32 and is converted to fp32 once; multiplying by the scale and adding the
/// bias round once. a is from Quantize with the same `bits`, b from QuantizeWeight. c m x n, a
/// m x k, b n x k, bias 1 x n; k is at most kMaxQuantizedInputs.
struct QuantizedGemm {
  static constexpr std::string_view kLabel = "quantized_gemm";
  Tensor c, a, b;
  Tensor a_scales, b_scales, b_sums, bias;
  std::optional<Tensor> a_zero_point{};
  Activation activation = Activation::kNone;
  int bits = 8;
};

/// A sum of this many products of two 8-bit numbers always fits into an int32.
constexpr std::int64_t kMaxQuantizedInputs = 65'536;

/// values += bias on every row, if there is a bias; then the activation; in place.
/// `pre_activation`, if given, receives the activation's input. values, bias and pre_activation are
/// of one real type, m x n and 1 x n; numbers of 16 bits are rounded after the bias and again after
/// the activation.
struct BiasActivation {
  Tensor values;
  std::optional<Tensor> bias{};
  Activation activation = Activation::kRelu;
  std::optional<Tensor> pre_activation{};
};

/// grad *= the activation's derivative; in place. `from` is the activation's output, or its input
/// if its traits say so. NaN passes through a ReLU, as in PyTorch. Same shapes and real types;
/// computed in fp32 and rounded once, except for a sigmoid in fp16, which is rounded like PyTorch's
/// after each operation.
///
/// `sums` (1 x n), if given, receives the column sums of the new grad + beta * sums, with the bits
/// of a SumRows after it; it needs a grad of f32.
struct ActivationGrad {
  Tensor grad, from;
  Activation activation = Activation::kRelu;
  std::optional<Tensor> sums{};
  float beta = 0;
};

/// out = a + b; b is widened to fp32. All m x n; out and a f32, b of a real type.
struct Add {
  static constexpr std::string_view kLabel = "add";
  Tensor out, a, b;
};

/// y = (x - mean) * rstd * weight + bias, for each row, as torch.nn.LayerNorm (Ba et al. 2016).
/// mean is that of the row; rstd is 1 / root of (its mean squared deviation + 1e-5). In fp32; y is
/// rounded to its type last. x and y m x n, y of a real type; mean and rstd m x 1; weight and bias
/// 1 x n.
struct LayerNorm {
  static constexpr std::string_view kLabel = "layer_norm";
  Tensor y, mean, rstd, x, weight, bias;
};

/// The gradients of a LayerNorm. With h = (x - mean) * rstd and t = grad_y * weight:
/// grad_weight = column sums of grad_y * h + beta * grad_weight,
/// grad_bias = column sums of grad_y + beta * grad_bias,
/// grad_x += rstd * (t - mean of t - h * mean of t * h), if given: x is also added to what follows
/// the norm, and grad_x starts with the gradient of that. grad_y is of a real type.
struct LayerNormGrad {
  static constexpr std::string_view kLabel = "layer_norm_grad";
  Tensor grad_weight, grad_bias;
  std::optional<Tensor> grad_x{};
  Tensor grad_y, x, mean, rstd, weight;
  float beta = 0;
};

/// Attention (Vaswani et al. 2017) within sequences of shape.length rows. A row of qkv holds its
/// query, key and value, each of n numbers, one head's after the other's; a head has a width of
/// w = n / heads. For each head, with the scores s = q k^T / root of w and their softmax p by rows,
/// out = p v. qkv m x 3 n and out m x n of one real type; `kept` f32: the logarithm of each row's
/// sum of exp(s), m x heads, or in the standard form p, m x (heads * length).
///
/// Scores, sums and p are in fp32. In the flash form, p has the type of qkv where it multiplies v;
/// its sums are of numbers that are not rounded.
struct Attention {
  static constexpr std::string_view kLabel = "attention";
  Tensor out, kept, qkv;
  AttentionShape shape{};
};

/// The gradient of an Attention with respect to qkv. With dp = grad_out v^T and
/// ds = p * (dp - row sums of p * dp): grad q = ds k / root of w, grad k = ds^T q / root of w,
/// grad v = p^T grad_out. The row sums are those of out * grad_out, which are equal, in the flash
/// form; there p is computed again, and in products p and ds have the type of qkv.
///
/// `scratch` is f32 and undefined afterwards. The standard form stores dp there, of the size of
/// `kept`; the flash form sums the gradient of 16-bit queries there, m x n.
struct AttentionGrad {
  static constexpr std::string_view kLabel = "attention_grad";
  Tensor grad_qkv;
  std::optional<Tensor> scratch{};
  Tensor qkv, out, grad_out, kept;
  AttentionShape shape{};

  /// The columns of `scratch`; 0 if it is not needed.
  [[nodiscard]] std::int64_t scratch_cols() const;
};

/// values *= mask, in place; each number of the mask is 0 with probability `rate`, else
/// 1 / (1 - rate). The mask is a function of the seed, the step (counted from 1, read from `step`),
/// the layer, the column and the row within the whole step: row i of values is row
/// first_row + i * row_stride there. (If a sample has several rows, first_row and row_stride count
/// samples, and each row of a sample has its own number.) So the same op on the gradient gets the
/// same mask, and no mask is stored. Philox4x32-10, keyed with the seed, turns the counter (j, row,
/// layer, step) into the words of columns j, j + q, j + 2 q and j + 3 q, where q is n / 4 rounded
/// up. A number is 0 if its word is below rate * 2^32. values m x n, of a real type; step 1 x 1,
/// i32.
struct Dropout {
  static constexpr std::string_view kLabel = "dropout";
  Tensor values, step;
  double rate = 0.5;
  std::uint64_t seed = 0;
  std::int64_t layer = 0;
  std::int64_t first_row = 0;
  std::int64_t row_stride = 1;
  std::int64_t rows_per_sample = 1;
};

/// out = column sums of in + beta * out. in m x n, out 1 x n. out is f32 or has in's real type;
/// sums are in fp32 and then rounded to out's type.
struct SumRows {
  static constexpr std::string_view kLabel = "sum_rows";
  Tensor out, in;
  float beta = 0;
};

/// out = column sums of (output - target)^2. out 1 x n, output m x n of a real type, target m x n.
struct SquaredErrors {
  static constexpr std::string_view kLabel = "squared_errors";
  Tensor out, output, target;
};

/// A mean over `count` numbers: those of the whole step, which may be more than this op's.
/// loss = sum of the terms of (output, target) / count + beta * loss,
/// grad = derivative of the loss with respect to the output, or, if `activation` is ReLU, which
/// then produced the output, with respect to its input. That has the bits of an ActivationGrad
/// after it. Mean squared error has the terms (output - target)^2. loss 1 x 1, the others m x n; if
/// the loss takes labels, target is i32, each 0 or 1. output and grad have one real type; the
/// gradient is rounded to it last. `scale` (1 x 1, f32), if given, multiplies the gradient before
/// that, but not the loss.
struct PointwiseLoss {
  Tensor loss, grad, output, target;
  std::int64_t count = 0;
  float beta = 0;
  LossKind kind = LossKind::kMse;
  std::optional<Tensor> scale{};
  Activation activation = Activation::kNone;
};

/// Softmax cross-entropy with class indices, mean over `count` rows:
/// loss = -sum(log_softmax(logits)[label]) / count + beta * loss,
/// grad = (softmax(logits) - onehot(label)) / count.
/// loss 1 x 1, logits and grad m x n, labels m x 1 i32, each in [0, n). With smoothing, the label
/// has the weight 1 - smoothing + smoothing / n and every other class smoothing / n (Szegedy et al.
/// 2016). Types and `scale` as for PointwiseLoss.
struct CrossEntropy {
  static constexpr std::string_view kLabel = "cross_entropy";
  Tensor loss, grad, logits, labels;
  std::int64_t count = 0;
  float beta = 0;
  float smoothing = 0;
  std::optional<Tensor> scale{};
};

/// correct = number of rows whose class equals the label. The class is the one with the largest
/// logit (the first of equals); with a single logit, as in a binary classifier, it is 1 if that
/// logit is above 0. `classes`, if given, receives the classes. correct 1 x 1 i32, logits m x n of
/// a real type, labels and classes m x 1 i32.
struct CountCorrect {
  static constexpr std::string_view kLabel = "count_correct";
  Tensor correct, logits, labels;
  bool binary = false;
  std::optional<Tensor> classes{};
};

/// The state of loss scaling, which multiplies gradients by `scale` so that small ones do not
/// become zeros in fp16. On the device, as in torch.amp.GradScaler.
struct LossScale {
  Tensor scale;      // 1 x 1, f32
  Tensor found_inf;  // 1 x 1, f32: above 0 if any of the step's gradients is not finite
  Tensor updates;    // 1 x 1, i32: applied so far; skipped steps do not count
};

// The steps of optimizers that treat every number alike: the numbers of the formula, the state that
// is kept for each weight, by its name in PyTorch's state_dict(), and the scalars, the values that
// change from step to step. Each is rounded as in PyTorch's CPU optimizer of that name.

/// Adam (Kingma & Ba 2015). Scalars: -lr / (1 - beta1^t) and sqrt(1 - beta2^t).
///
/// Weight decay adds weight_decay times the weight to the gradient. Decoupled weight decay, as in
/// AdamW (Loshchilov & Hutter 2017), multiplies the weights by a third scalar,
/// 1 - lr * weight_decay, before the step.
///
/// With AMSGrad (Reddi et al. 2018), the step uses the largest of all second moments so far instead
/// of the second moment.
struct AdamStep {
  static constexpr std::string_view kLabel = "adam";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
  bool amsgrad = false;
};

/// Stochastic gradient descent. With g = grads + weight_decay * weights: weights += scalars * g;
/// the scalar is -lr. With momentum, velocities = momentum * velocities + g replaces g in the step;
/// with Nesterov's momentum, g + momentum * velocities does.
struct SgdStep {
  static constexpr std::string_view kLabel = "sgd";
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// RMSprop (Hinton 2012), as torch.optim.RMSprop without centring. With
/// g = grads + weight_decay * weights: squares = alpha * squares + (1 - alpha) g^2 and
/// weights += scalars * g / (root of squares + eps); the scalar is -lr. With momentum,
/// velocities = momentum * velocities + that quotient replaces the quotient.
struct RmsPropStep {
  static constexpr std::string_view kLabel = "rmsprop";
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
};

/// Adagrad (Duchi et al. 2011). With g = grads + weight_decay * weights: sum += g^2 and
/// weights += scalars * g / (root of sum + eps); the scalar is -lr.
struct AdagradStep {
  static constexpr std::string_view kLabel = "adagrad";
  double eps = 1e-10;
  double weight_decay = 0;
};

/// Lion (Chen et al. 2023): weights = scalars[1] * weights + scalars[0] * sign of
/// (beta1 * moments + (1 - beta1) grads), then moments = beta2 * moments + (1 - beta2) grads.
/// Scalars: -lr and 1 - lr * weight_decay.
struct LionStep {
  static constexpr std::string_view kLabel = "lion";
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

using OptimizerStep = std::variant<AdamStep, SgdStep, RmsPropStep, AdagradStep, LionStep>;

std::vector<std::string_view> state_of(const OptimizerStep& step);
/// How many scalars a step has, and these for step `t`, counted from 1, with learning rate `lr`.
std::int64_t scalars_of(const OptimizerStep& step);
void write_scalars(const OptimizerStep& step, std::int64_t t, double lr, std::span<float> scalars);

/// A step of an optimizer over flat buffers. weights, grads and each tensor of `state`, of which
/// there is one for each name of the step's, are 1 x n; `scalars` is 1 x the number of the step's.
/// Zero gradients leave zero weights and state zero, so padding stays zero.
///
/// `clip` (1 x 1), if given, multiplies the gradient first. `rounded` (1 x n, 16 bits), if given,
/// also receives the new weights, rounded; grads then are f32 or of its type. With `loss_scale`, no
/// weight changes if found_inf is above 0, the gradient is divided by the scale before anything
/// else, and `scalars` has a row for each of several consecutive updates; `first_update` (1 x 1,
/// i32) holds the number of the first.
struct OptimizerUpdate {
  Tensor weights, grads;
  std::vector<Tensor> state{};
  Tensor scalars;
  OptimizerStep step{};
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};
};

/// One step of Adam on the weight and the bias of a linear layer, directly from the factors of
/// their gradients; the gradients, grad_y^T x and the column sums of grad_y, are never stored.
/// Otherwise computes the same as an OptimizerUpdate with this step. weight and its moments are out
/// x in, bias and its moments 1 x out, grad_y n x out, x n x in, for any n. The sums are as exact
/// as in fp32 on every device, even if products are not. With 16-bit factors, gradients are rounded
/// to their type, and so are the new weights in `rounded_weight` and `rounded_bias`, which have the
/// shapes of weight and bias.
struct LinearAdam {
  static constexpr std::string_view kLabel = "linear_adam";
  Tensor weight, weight_moments1, weight_moments2;
  Tensor bias, bias_moments1, bias_moments2;
  Tensor grad_y, x, scalars;
  AdamStep step{};  // without AMSGrad
  std::optional<Tensor> clip{}, rounded_weight{}, rounded_bias{};
};

/// out = sum of the squares of the numbers of `in`, which is of a real type. Each number is divided
/// by `scale` (1 x 1, f32) first, if given. out 1 x 1.
struct SumSquares {
  static constexpr std::string_view kLabel = "sum_squares";
  Tensor out, in;
  std::optional<Tensor> scale{};
};

/// found_inf = 1 if a number of `in` is not finite; else unchanged. found_inf 1 x 1, `in` of a real
/// type.
struct CheckFinite {
  static constexpr std::string_view kLabel = "check_finite";
  Tensor found_inf, in;
};

/// The end of a step with loss scaling, as torch.amp.GradScaler.update(). If found_inf is above 0,
/// multiplies the scale by `backoff` and restarts the count of good steps. Otherwise the update
/// counts; after `window` good steps in a row, multiplies the scale by `growth`, unless that would
/// be infinite. A `fixed` scale never changes. All 1 x 1; good_steps i32.
struct UpdateLossScale {
  static constexpr std::string_view kLabel = "update_loss_scale";
  LossScale state;
  Tensor good_steps;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t window = 2000;
  bool fixed = false;
};

/// The sum of the squares of a linear layer's gradients, from the Gram matrices of their factors.
/// With gram_y = grad_y grad_y^T and gram_x = x x^T, both n x n,
/// |grad_y^T x|^2 + |column sums of grad_y|^2 = sum of gram_y * (gram_x + 1), elementwise.
/// out 1 x 1.
struct GramSquares {
  static constexpr std::string_view kLabel = "gram_squares";
  Tensor out, gram_y, gram_x;
};

/// The factor that limits the norm of the gradients to max_norm, as torch.nn.utils.clip_grad_norm_:
/// factor = min(1, max_norm / (sqrt(sum of squares) + 1e-6)). factor 1 x 1, squares 1 x n.
struct ClipFactor {
  static constexpr std::string_view kLabel = "clip_factor";
  Tensor factor, squares;
  double max_norm = 1;
};

/// to = from; equal shapes and types. Either side may be in pinned host memory or on another
/// device.
struct Copy {
  static constexpr std::string_view kLabel = "copy";
  Tensor to, from;
};

/// to = scale * from + beta * to, rounded to the nearest number of to's type, ties to even; equal
/// shapes. One is f32, the other bf16 or f16. A 16-bit `to` needs beta == 0.
struct Cast {
  static constexpr std::string_view kLabel = "cast";
  Tensor to, from;
  float scale = 1;
  float beta = 0;
};

struct Fill {
  static constexpr std::string_view kLabel = "fill";
  Tensor out;
  float value = 0;
};

/// The PyTorch random stream that an op draws from.
enum class Generator {
  kTorchCpu,   // torch.randn(...): MT19937; state: TorchGenerator (core/random.h)
  kTorchCuda,  // torch.randn(..., device="cuda"): Philox; state: PhiloxState (core/philox.h)
};

/// The size of a generator's state.
std::int64_t state_bytes(Generator generator);

/// Standard normal numbers; reads the generator's state and writes the advanced one. `out` is part
/// of a larger tensor that is drawn: `before` and `after` numbers of it are only skipped. They and
/// out are whole blocks of 16 numbers of the CPU's stream, so its bits are those of the whole
/// tensor.
struct Randn {
  static constexpr std::string_view kLabel = "randn";
  Tensor out, state;
  Generator generator = Generator::kTorchCpu;
  std::int64_t before = 0, after = 0;
};

/// Keeps its lane busy for `seconds`, plus the value of `more_seconds` (1 x 1) if given.
struct Delay {
  static constexpr std::string_view kLabel = "delay";
  double seconds = 0;
  std::optional<Tensor> more_seconds{};
};

using DeviceOp =
    std::variant<Gemm, QuantizeWeight, Quantize, QuantizedGemm, BiasActivation, ActivationGrad,
                 Dropout, SumRows, SquaredErrors, PointwiseLoss, CrossEntropy, CountCorrect,
                 OptimizerUpdate, LinearAdam, SumSquares, GramSquares, ClipFactor, CheckFinite,
                 UpdateLossScale, Copy, Cast, Fill, Randn, Delay, Add, LayerNorm, LayerNormGrad,
                 Attention, AttentionGrad>;

/// A collective has one tensor per part: the tensors of this process, one per device. Its parts
/// have equal sizes on every rank. An exchange of two ranks is a collective too: it is run by a
/// transport, and its ranks wait for each other.

/// Every tensor = sum over all ranks' tensors of fl(scale * value); scaled before the sum. For
/// bf16, the scale is 1 and numbers are added in fp32. The sum is rounded once, or after each
/// addition if partial sums travel from rank to rank.
struct AllReduce {
  static constexpr std::string_view kLabel = "all_reduce";
  std::vector<Tensor> tensors;
  float scale = 1;
  Axis axis = Axis::kAll;
  std::string name{};
};

/// Every tensor = the tensor of rank `root`.
struct Broadcast {
  static constexpr std::string_view kLabel = "broadcast";
  std::vector<Tensor> tensors;
  int root = 0;
  Axis axis = Axis::kAll;
  std::string name{};
};

/// The tensor of rank `root` = sum over all ranks' tensors; the others are unchanged.
struct Reduce {
  static constexpr std::string_view kLabel = "reduce";
  std::vector<Tensor> tensors;
  int root = 0;
  Axis axis = Axis::kAll;
  std::string name{};
};

/// The ranks divide a matrix's rows as evenly as possible, in rank order; the first ranks may have
/// one row more (share_of_rank()). A rank's rows = sum over all ranks of fl(scale * value);
/// scaled before the sum. The other rows are undefined, except that numbers that are zero on all
/// ranks stay zero.
struct ReduceScatter {
  static constexpr std::string_view kLabel = "reduce_scatter";
  std::vector<Tensor> tensors;
  float scale = 1;
  Axis axis = Axis::kAll;
  std::string name{};
};

/// The reverse, for a matrix divided in the same way: every rank's rows = those of the rank that
/// owns them. With `own`, one tensor for each of `tensors`, a rank's own rows are read from there;
/// otherwise from their place in the matrix. Ranks may own different numbers of rows, including
/// none.
struct AllGather {
  static constexpr std::string_view kLabel = "all_gather";
  std::vector<Tensor> tensors;
  std::vector<Tensor> own{};
  Axis axis = Axis::kAll;
  std::string name{};
};

/// An exchange of two ranks of a group: `sends` goes to rank `peer` of the group, and `receives` is
/// what that rank sends; one of them, or both, of one type. The peer's op is the mirror image. Both
/// directions progress together, so two ranks that send to each other are not stuck. One part.
struct SendReceive {
  static constexpr std::string_view kLabel = "send_receive";
  std::optional<Tensor> sends{}, receives{};
  int peer = 0;
  Axis axis = Axis::kPipeline;
  std::string name{};

  [[nodiscard]] std::int64_t sent_bytes() const { return sends ? sends->bytes() : 0; }
  [[nodiscard]] std::int64_t received_bytes() const { return receives ? receives->bytes() : 0; }
};

using Collective =
    std::variant<AllReduce, Broadcast, Reduce, ReduceScatter, AllGather, SendReceive>;
using Op = std::variant<DeviceOp, Collective>;

inline Axis axis_of(const Collective& collective) {
  return std::visit([](const auto& op) { return op.axis; }, collective);
}

inline const std::string& name_of(const Collective& collective) {
  return std::visit([](const auto& op) -> const std::string& { return op.name; }, collective);
}

/// function(op's struct), for an Op.
template <class AnyOp, class Function>
auto visit_op(AnyOp& op, const Function& function) {
  return std::visit([&](auto& variant) { return std::visit(function, variant); }, op);
}

/// The op as this struct; null if it is another.
template <class Kind>
const Kind* op_if(const Op& op) {
  if constexpr (std::is_constructible_v<Collective, Kind>) {
    const auto* const collective = std::get_if<Collective>(&op);
    return collective == nullptr ? nullptr : std::get_if<Kind>(collective);
  } else {
    const auto* const device_op = std::get_if<DeviceOp>(&op);
    return device_op == nullptr ? nullptr : std::get_if<Kind>(device_op);
  }
}

/// A byte range an op touches. An op that updates in place lists the range twice: read and written.
struct Access {
  Tensor tensor;
  bool writes = false;
};

/// The parts of an op, each with the byte ranges that one of its lanes touches. A device op has one
/// part; a collective has one per tensor. Each part lists pure reads first, then writes.
std::vector<std::vector<Access>> parts_of(const Op& op);

/// The op in words, with its tensors as `t` names them.
std::string text_of(const Op& op, const TensorText& t);

/// Conditions that operands do not express.
std::vector<OpRule> rules_of(const Op& op);

/// Everything the op reads or writes, across all parts.
std::vector<Access> accesses_of(const Op& op);

/// The minimum work of an op: each input read once, each output written once. A multiply-add is two
/// flops; a comparison, a root or a transcendental function is one. A collective counts only its
/// payload in message_bytes: the bytes of one of its tensors, or what an exchange sends and
/// receives.
struct Cost {
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  std::int64_t message_bytes = 0;

  /// Throws Error(kMemory) when a sum is larger than 2^63 - 1.
  Cost& operator+=(const Cost& other);

  friend bool operator==(const Cost&, const Cost&) = default;
};

/// The only place that counts flops and bytes. Throws Error(kMemory) when a number is larger than
/// 2^63 - 1.
Cost cost_of(const Op& op);
std::int64_t flops_of(const DeviceOp& op);

/// How many kernels a GPU launches for an op: one, or more if the library's product cannot include
/// the activation or a full sum takes a second kernel. Copies launch none.
std::int64_t launches_of(const DeviceOp& op);

/// The product that an op is or begins with.
std::optional<ProductSize> product_of(const DeviceOp& op);

/// "gemm", "adam", "all_reduce", ...: the op's kLabel, unless it depends on the op.
std::string_view label_of(const Op& op);
std::string_view label_of(const DeviceOp& op);

/// Throws Error(kBug), naming the op and its tensors, if shapes or types do not match, and
/// Error(kMemory) if a tensor has more than 2^63 - 1 bytes. Tensors have at least one column and
/// may have zero rows.
void validate(const Op& op);

}  // namespace barestep
