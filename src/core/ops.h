// Ops: one plain struct for each thing a step can do.
//
// An op is a value. A device runs it, the planner sizes its tensors, the checker orders it, the
// pricer counts it and the printer prints it, all from the same struct. There are two variants:
// DeviceOp, which a device runs, and Collective, which a communicator runs.
//
// A tensor that an op writes shares no byte with the op's other tensors.
//
// To add an op: its struct here; its operands in operands.cpp; its flops and rules in ops.cpp;
// its words in printer.cpp; its loop in kernels/; a row in tests/kernels/ops_test.cpp.
// CONTRIBUTING.md says how to add an optimizer or an activation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/activation.h"
#include "core/loss.h"
#include "core/tensor.h"

namespace barestep {

/// One lambda per alternative of a variant: std::visit(Overloaded{[](const Gemm&) {...}, ...}, op).
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

/// c = op(a) op(b) [+ bias on every row] + beta * c, then the activation. op transposes if asked.
/// What the activation is applied to is kept in `pre_activation`, where there is one.
/// Shapes: c is m x n, op(a) m x k, op(b) k x n, bias 1 x n, pre_activation m x n. A bias needs
/// beta == 0.
///
/// Types: a and b are both f32, bf16 or f16; c is of that type or f32, bias and pre_activation are
/// of c's. Sums and bias are added in fp32 and rounded once to c's type; the activation is applied
/// to that number, and rounded too. c of 16 bits needs beta == 0.
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

/// A weight in int8: to = from / scale, rounded to the nearest whole number, ties to even, from
/// -128 to 127. A scale is the largest magnitude among its numbers over 127.5, as PyTorch's
/// observers of weights have it: of each row, or of all where `scales` is a single one. `sums` are
/// the sums of the rows of `to`. to and from n x k, scales 1 x n or 1 x 1, sums 1 x n i32.
struct QuantizeWeight {
  static constexpr std::string_view kLabel = "quantize_weight";
  Tensor to, scales, sums, from;
};

/// Activations in int8, in whole numbers of `bits` bits, 7 or 8.
///
/// By rows, symmetric: scale = largest magnitude of the row / (2^(bits - 1) - 1) and
/// to = from / scale, rounded to the nearest, ties to even. So a row's numbers depend on nothing
/// but the row. scales m x 1.
///
/// With a `zero_point`, one scale for all, affine, as torch.ao.quantization's dynamic modules have
/// it: numbers from the least, at most 0, to the largest, at least 0, fill 2^bits values, and
/// to = from / scale + zero_point. PyTorch's numbers begin with 0, these with -2^(bits - 1).
/// scales 1 x 1, zero_point 1 x 1 i32.
///
/// What is not finite makes its scale so, and with it all that is computed from it.
struct Quantize {
  static constexpr std::string_view kLabel = "quantize";
  Tensor to, scales, from;
  std::optional<Tensor> zero_point{};
  int bits = 8;
};

/// c = (a - zero point) b^T * (scale of a * scale of b) + bias, then the activation. The product is
/// one of whole numbers, exact in int32, and becomes fp32 once; the bias is added in the same
/// rounding as the scale is multiplied. a is from Quantize with the same `bits`, b from
/// QuantizeWeight. c m x n, a m x k, b n x k, bias 1 x n; k is at most kMostInt8Inputs.
struct QuantizedGemm {
  static constexpr std::string_view kLabel = "quantized_gemm";
  Tensor c, a, b;
  Tensor a_scales, b_scales, b_sums, bias;
  std::optional<Tensor> a_zero_point{};
  Activation activation = Activation::kNone;
  int bits = 8;
};

/// So many products of 8 bits by 8 always fit into an int32.
constexpr std::int64_t kMostInt8Inputs = 65'536;

/// values += bias on every row, where there is a bias, then the activation; in place. What the
/// activation is applied to is kept in `pre_activation`, where there is one. values and
/// pre_activation m x n and of one real type; bias 1 x n, of f32 values only: others would be
/// rounded twice.
struct BiasActivation {
  Tensor values;
  std::optional<Tensor> bias{};
  Activation activation = Activation::kRelu;
  std::optional<Tensor> pre_activation{};

  [[nodiscard]] std::string_view label() const { return traits_of(activation).bias_label; }
};

/// grad *= the activation's derivative; in place. `from_scale` times `from` is the activation's
/// output, or where its traits say so its input. NaN passes a ReLU, as in PyTorch. Same shapes and
/// real types; computed in fp32, rounded once.
struct ActivationGrad {
  Tensor grad, from;
  Activation activation = Activation::kRelu;
  float from_scale = 1;

  [[nodiscard]] std::string_view label() const { return traits_of(activation).grad_label; }
};

/// values *= mask, in place; a number of the mask is 0 with probability `rate`, else
/// 1 / (1 - rate). It is a function of the seed, of the step (from 1) that `step` holds, the layer,
/// the column, and the row among those of the whole step: row i of values is row
/// first_row + i * row_stride there. So the same op on the gradient gets the same mask, and no mask
/// is stored. Philox4x32-10 with the seed as its key makes of the counter (j, row, layer, step) the
/// words of columns j, j + q, j + 2 q and j + 3 q, where q is n / 4 rounded up; a number is 0 where
/// its word is below rate * 2^32. values m x n, of a real type; step 1 x 1, i32.
struct Dropout {
  static constexpr std::string_view kLabel = "dropout";
  Tensor values, step;
  double rate = 0.5;
  std::uint64_t seed = 0;
  std::int64_t layer = 0;
  std::int64_t first_row = 0;
  std::int64_t row_stride = 1;
};

/// out = column sums of in + beta * out. in m x n, out 1 x n; out is f32 or of in's real type, and
/// then rounded from sums in fp32.
struct SumRows {
  static constexpr std::string_view kLabel = "sum_rows";
  Tensor out, in;
  float beta = 0;
};

/// A mean over `count` numbers (those of the whole step, which may be more than this op's):
/// loss = sum of the terms of (output, target) / count + beta * loss, grad = its derivative by the
/// output. Mean squared error has the terms (output - target)^2. loss 1 x 1, the others m x n;
/// the target of a loss that takes labels is i32, of 0 and 1. output and grad are of one real type,
/// the gradient is rounded to it last. Where there is `scale` (1 x 1, f32), the gradient is
/// multiplied by it before that; the loss is not.
struct PointwiseLoss {
  Tensor loss, grad, output, target;
  std::int64_t count = 0;
  float beta = 0;
  LossKind kind = LossKind::kMse;
  std::optional<Tensor> scale{};

  [[nodiscard]] std::string_view label() const { return traits_of(kind).label; }
};

/// Softmax cross-entropy with class indices, mean over `count` rows:
/// loss = -sum(log_softmax(logits)[label]) / count + beta * loss,
/// grad = (softmax(logits) - onehot(label)) / count. loss 1 x 1, logits and grad m x n,
/// labels m x 1 i32, each in [0, n). With smoothing the label counts 1 - smoothing + smoothing / n
/// and every other class smoothing / n (Szegedy et al. 2016). Types and `scale` as PointwiseLoss.
struct CrossEntropy {
  static constexpr std::string_view kLabel = "cross_entropy";
  Tensor loss, grad, logits, labels;
  std::int64_t count = 0;
  float beta = 0;
  float smoothing = 0;
  std::optional<Tensor> scale{};
};

/// correct = number of rows whose class is the label's: that of the largest logit (the first of
/// equals), or of a binary classifier, which has one logit, 1 where that is above 0.
/// `classes`, where there are any, are the classes. correct 1 x 1 i32, logits m x n of a real type,
/// labels and classes m x 1 i32.
struct CountCorrect {
  static constexpr std::string_view kLabel = "count_correct";
  Tensor correct, logits, labels;
  bool binary = false;
  std::optional<Tensor> classes{};
};

struct Operand;  // core/operands.h

/// Something that must hold of an op: that its `tensors` have the shapes that its operands give
/// them, null ones left out, or that `holds`.
struct OpRule {
  std::string_view text;
  std::vector<const Tensor*> tensors{};
  bool holds = true;
};

/// The words for a tensor; see core/printer.h.
using TensorText = std::function<std::string(const Tensor&)>;

/// The state of loss scaling, which keeps small gradients from becoming zeros of fp16: they are
/// computed `scale` times as large. On the device, as torch.amp.GradScaler has it.
struct LossScale {
  Tensor scale;      // 1 x 1, f32
  Tensor found_inf;  // 1 x 1, f32: above 0 where one of the step's gradients is not finite
  Tensor updates;    // 1 x 1, i32: those applied so far; skipped steps do not count
};

/// An op of an optimizer. It says of itself, at the end of ops.cpp, what the sources above say of
/// the other ops.
template <class Op>
concept OptimizerOp = requires(const Op& op) {
  op.operands();
};

/// Adam (Kingma & Ba 2015) over flat buffers, as PyTorch's CPU Adam rounds it. What changes from
/// step to step comes from `scalars` (1 x 2): -lr / (1 - beta1^t) and sqrt(1 - beta2^t). weights,
/// grads, moments1 and moments2 are 1 x n. Zero gradients leave zero weights and moments zero, so
/// padding stays zero.
///
/// Weight decay is added to the gradient, weight_decay times the weight. Decoupled, as in AdamW
/// (Loshchilov & Hutter 2017), the weights are multiplied by a third scalar, 1 - lr * weight_decay,
/// before the step.
///
/// With AMSGrad (Reddi et al. 2018) `max_moments2` (1 x n), the largest of all second moments so
/// far, takes the second moment's place in the step.
///
/// So it is in all optimizers: where there is `clip` (1 x 1), the gradient is multiplied by it
/// first. Where there is `rounded` (1 x n, of 16 bits), it gets the new weights too, rounded; then
/// grads are f32 or of its type. With `loss_scale` no weight changes where found_inf is above 0,
/// the gradient is divided by the scale before all else, and `scalars` has a row for each of some
/// updates, of which the first has the number that `first_update` (1 x 1, i32) holds.
struct Adam {
  static constexpr std::string_view kLabel = "adam";
  Tensor weights, grads, moments1, moments2, scalars;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};
  std::optional<Tensor> max_moments2{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// Stochastic gradient descent over flat buffers, as PyTorch's CPU SGD rounds it: with g = grads +
/// weight_decay * weights, weights += scalars * g; `scalars` (1 x 1) is -lr. With momentum
/// velocities = momentum * velocities + g takes the place of g, with Nesterov's
/// g + momentum * velocities. weights, grads and velocities are 1 x n. Padding stays zero.
struct Sgd {
  static constexpr std::string_view kLabel = "sgd";
  Tensor weights, grads, scalars;
  std::optional<Tensor> velocities{};  // just where there is momentum
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// RMSprop (Hinton 2012) over flat buffers, as torch.optim.RMSprop has it, not centred: with
/// g = grads + weight_decay * weights, squares = alpha * squares + (1 - alpha) g^2, and g / (root
/// of squares + eps) is added `scalars` (1 x 1, -lr) times; with momentum velocities = momentum *
/// velocities + that takes its place. All but scalars and clip are 1 x n.
struct RmsProp {
  static constexpr std::string_view kLabel = "rmsprop";
  Tensor weights, grads, squares, scalars;
  std::optional<Tensor> velocities{};  // just where there is momentum
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// Adagrad (Duchi et al. 2011) over flat buffers, as torch.optim.Adagrad has it: with g = grads +
/// weight_decay * weights, sum += g^2 and weights += scalars * g / (root of sum + eps); `scalars`
/// (1 x 1) is -lr. weights, grads and sum are 1 x n.
struct Adagrad {
  static constexpr std::string_view kLabel = "adagrad";
  Tensor weights, grads, sum, scalars;
  double eps = 1e-10;
  double weight_decay = 0;
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// Lion (Chen et al. 2023) over flat buffers: weights = scalars[1] * weights + scalars[0] * sign of
/// (beta1 * moments + (1 - beta1) grads), then moments = beta2 * moments + (1 - beta2) grads.
/// `scalars` (1 x 2) are -lr and 1 - lr * weight decay. weights, grads and moments are 1 x n.
struct Lion {
  static constexpr std::string_view kLabel = "lion";
  Tensor weights, grads, moments, scalars;
  double beta1 = 0.9;
  double beta2 = 0.99;
  std::optional<Tensor> clip{}, rounded{}, first_update{};
  std::optional<LossScale> loss_scale{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// One step of Adam on the weight and the bias of a linear layer, straight from the factors of
/// their gradients, which are never stored: grad_y^T x and the column sums of grad_y. With these,
/// it computes what Adam does. weight and its moments are out x in, bias and its moments 1 x out,
/// grad_y n x out, x n x in, for any n. The sums are as exact as in fp32 on every device, also
/// where products are not. Of factors of 16 bits, gradients are rounded to their type, and so are
/// the new weights in `rounded_weight` and `rounded_bias`, which have the shapes of weight and
/// bias.
struct LinearAdam {
  static constexpr std::string_view kLabel = "linear_adam";
  Tensor weight, weight_moments1, weight_moments2;
  Tensor bias, bias_moments1, bias_moments2;
  Tensor grad_y, x, scalars;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
  std::optional<Tensor> clip{}, rounded_weight{}, rounded_bias{};

  [[nodiscard]] std::vector<Operand> operands() const;
  [[nodiscard]] std::vector<OpRule> rules() const;
  [[nodiscard]] std::int64_t flops() const;
  [[nodiscard]] std::string text(const TensorText& t) const;
};

/// out = sum of the squares of the numbers of `in`, which is of a real type; each is divided by
/// `scale` (1 x 1, f32) first where there is one. out 1 x 1.
struct SumSquares {
  static constexpr std::string_view kLabel = "sum_squares";
  Tensor out, in;
  std::optional<Tensor> scale{};
};

/// found_inf = 1 where a number of `in` is not finite; else it stays. found_inf 1 x 1, `in` of a
/// real type.
struct CheckFinite {
  static constexpr std::string_view kLabel = "check_finite";
  Tensor found_inf, in;
};

/// The end of a step with loss scaling. Where found_inf is above 0, the scale is multiplied by
/// `backoff` and the count of good steps begins anew. Else the update counts; after `window` good
/// steps in a row the scale is multiplied by `growth`, unless that is infinite. A `fixed` scale
/// never changes. As torch.amp.GradScaler.update(). All 1 x 1; good_steps i32.
struct UpdateLossScale {
  static constexpr std::string_view kLabel = "update_loss_scale";
  LossScale state;
  Tensor good_steps;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t window = 2000;
  bool fixed = false;
};

/// The sum of the squares of a linear layer's gradients, from the Gram matrices of their factors:
/// with gram_y = grad_y grad_y^T and gram_x = x x^T, both n x n,
/// |grad_y^T x|^2 + |column sums of grad_y|^2 = sum of gram_y * (gram_x + 1), number by number.
/// out 1 x 1.
struct GramSquares {
  static constexpr std::string_view kLabel = "gram_squares";
  Tensor out, gram_y, gram_x;
};

/// What gradients are multiplied by so that their norm is at most max_norm, as
/// torch.nn.utils.clip_grad_norm_ has it: factor = min(1, max_norm / (sqrt(sum of squares) +
/// 1e-6)). factor 1 x 1, squares 1 x n.
struct ClipFactor {
  static constexpr std::string_view kLabel = "clip_factor";
  Tensor factor, squares;
  double max_norm = 1;
};

/// to = from; equal shapes and types. Either side may lie in pinned host memory or on another
/// device.
struct Copy {
  static constexpr std::string_view kLabel = "copy";
  Tensor to, from;
};

/// to = scale * from + beta * to, rounded to the nearest number of to's type, ties to even; equal
/// shapes. One is f32, the other bf16 or f16; `to` of 16 bits needs beta == 0.
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

/// Which of PyTorch's random streams an op draws from.
enum class Generator {
  kTorchCpu,   // torch.randn(...): MT19937; the state is a TorchGenerator (core/random.h)
  kTorchCuda,  // torch.randn(..., device="cuda"): Philox; a PhiloxState (core/philox.h)
};

/// The size of a generator's state.
std::int64_t state_bytes(Generator generator);

/// Standard normal numbers; reads the generator's state and writes the advanced one.
struct Randn {
  static constexpr std::string_view kLabel = "randn";
  Tensor out, state;
  Generator generator = Generator::kTorchCpu;
};

/// Occupies its lane for a while: `seconds`, and what `more_seconds` (1 x 1) holds.
struct Delay {
  static constexpr std::string_view kLabel = "delay";
  double seconds = 0;
  std::optional<Tensor> more_seconds{};
};

using DeviceOp =
    std::variant<Gemm, QuantizeWeight, Quantize, QuantizedGemm, BiasActivation, ActivationGrad,
                 Dropout, SumRows, PointwiseLoss, CrossEntropy, CountCorrect, Adam, Sgd, RmsProp,
                 Adagrad, Lion, LinearAdam, SumSquares, GramSquares, ClipFactor, CheckFinite,
                 UpdateLossScale, Copy, Cast, Fill, Randn, Delay>;

/// A collective has one tensor per part: those that live in this process, one per device. Its parts
/// have equal sizes on every rank.

/// Every tensor = sum over all ranks' tensors of fl(scale * value); scaled before the sum. Of bf16
/// the scale is 1, and numbers are added in fp32: the sum is rounded once, or, where partial sums
/// travel from rank to rank, with each.
struct AllReduce {
  static constexpr std::string_view kLabel = "all_reduce";
  std::vector<Tensor> tensors;
  float scale = 1;
};

/// Every tensor = the tensor of rank `root`.
struct Broadcast {
  static constexpr std::string_view kLabel = "broadcast";
  std::vector<Tensor> tensors;
  int root = 0;
};

/// The tensor of rank `root` = sum over all ranks' tensors; the others are left as they are.
struct Reduce {
  static constexpr std::string_view kLabel = "reduce";
  std::vector<Tensor> tensors;
  int root = 0;
};

/// A matrix whose rows the ranks divide as evenly as possible, in rank order, the first ranks one
/// row more (train/rank_rows.h): a rank's rows = sum over all ranks of fl(scale * value); scaled
/// before the sum. The other rows are undefined, but for numbers that are zero on all ranks: those
/// stay zero.
struct ReduceScatter {
  static constexpr std::string_view kLabel = "reduce_scatter";
  std::vector<Tensor> tensors;
  float scale = 1;
};

/// Such a matrix: every rank's rows = those of the rank that owns them. With `own`, one tensor for
/// each of `tensors`, a rank's rows are taken from there; else from their places. Ranks may have
/// different numbers of rows, zero among them.
struct AllGather {
  static constexpr std::string_view kLabel = "all_gather";
  std::vector<Tensor> tensors;
  std::vector<Tensor> own{};
};

using Collective = std::variant<AllReduce, Broadcast, Reduce, ReduceScatter, AllGather>;
using Op = std::variant<DeviceOp, Collective>;

/// A byte range an op touches. An op that updates in place lists the range twice: read and written.
struct Access {
  Tensor tensor;
  bool writes = false;
};

/// The parts of an op: what each of its lanes touches. A device op has one part; a collective has
/// one per tensor. In each, what is only read comes first, then what is written.
std::vector<std::vector<Access>> parts_of(const Op& op);

/// Everything the op reads or writes, all parts together.
std::vector<Access> accesses_of(const Op& op);

/// The least work an op can be done with: each input read once, each output written once. A
/// multiply-add is two flops; a comparison, a root or a transcendental function is one. A
/// collective counts its payload, the bytes of one of its tensors, in message_bytes and nothing
/// else.
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

/// The op's kLabel or label(): "gemm", "adam", "all_reduce", ...
std::string_view label_of(const Op& op);
std::string_view label_of(const DeviceOp& op);

/// Throws Error(kBug), naming the op and its tensors, when shapes or types do not fit together, and
/// Error(kMemory) when a tensor has more than 2^63 - 1 bytes. Tensors have at least one column and
/// may have zero rows.
void validate(const Op& op);

}  // namespace barestep
