// Ops compared with plain loops in double, over all cases and with every library of products.
#include "core/ops.h"

#include "core/operands.h"
#include "core/philox.h"
#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/widen.h"
#include "kernels/op_cases.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr double kUlp = 1.2e-7;  // relative spacing of floats
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void run(const DeviceOp& op, Memory& memory, Product& product, ThreadPool& pool) {
  CpuOps ops(pool, product);
  ops.prepare(op);
  ops.run(op, memory.addresses());
}

/// The numbers of a tensor, in double.
struct Matrix {
  std::int64_t rows, cols;
  std::vector<double> values;

  Matrix(Memory& memory, const Tensor& t) : rows(t.rows), cols(t.cols) {
    const auto floats = memory.values(t);
    values.assign(floats.begin(), floats.end());
  }
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * cols + j)];
  }
  [[nodiscard]] double at(std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
};

/// As documented for PyTorch's modules, in double.
double activated(Activation activation, double x) {
  constexpr double kPi = 3.14159265358979324;
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * std::pow(x, 3))));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kLeakyRelu:
      return x < 0 ? 0.01 * x : x;
    case Activation::kNone:
      break;
  }
  return x;
}

/// The derivative, computed from the value that the op uses.
double slope_from(Activation activation, double from) {
  if (traits_of(activation).grad_from == GradFrom::kInput) {
    constexpr double kStep = 1e-5;
    return (activated(activation, from + kStep) - activated(activation, from - kStep)) / 2 / kStep;
  }
  if (activation == Activation::kTanh) return 1 - from * from;
  if (activation == Activation::kSigmoid) return from * (1 - from);
  return from > 0 ? 1 : activation == Activation::kLeakyRelu ? 0.01 : 0;
}

/// The term of a loss as PyTorch documents it, and its derivative by the output, in double.
std::pair<double, double> term_of(LossKind kind, double output, double target) {
  const double error = output - target;
  const double sign = error > 0 ? 1 : error < 0 ? -1 : 0;
  const double sigmoid = 1 / (1 + std::exp(-output));
  switch (kind) {
    case LossKind::kMse:
      return {error * error, 2 * error};
    case LossKind::kL1:
      return {std::abs(error), sign};
    case LossKind::kHuber:
      if (std::abs(error) < 1) return {error * error / 2, error};
      return {std::abs(error) - 0.5, sign};
    case LossKind::kBce:
      return {-target * std::log(sigmoid) - (1 - target) * std::log(1 - sigmoid), sigmoid - target};
    case LossKind::kCrossEntropy:
      break;
  }
  return {};
}

/// Compares an op's results with plain loops in double over its input.
struct Oracle {
  Memory& before;
  Memory& after;

  /// Numbers before and after the op, in double.
  template <class Index>
  [[nodiscard]] double in(const Tensor& tensor, Index i) const {
    return before.values(tensor)[static_cast<std::size_t>(i)];
  }
  template <class Index>
  [[nodiscard]] double out(const Tensor& tensor, Index i) const {
    return after.values(tensor)[static_cast<std::size_t>(i)];
  }
  /// Beta times the previous number, which is not read if beta is 0.
  template <class Index>
  [[nodiscard]] double kept(float beta, const Tensor& tensor, Index i) const {
    return beta == 0 ? 0.0 : beta * in(tensor, i);
  }

  void operator()(const Gemm& op) const {
    const Matrix a(before, op.a);
    const Matrix b(before, op.b);
    const std::int64_t depth = op.transpose_a ? a.rows : a.cols;
    const double* const a_values = a.values.data();  // calls are slow without inlining
    const double* const b_values = b.values.data();
    const std::int64_t next_x = op.transpose_a ? a.cols : 1;
    const std::int64_t next_y = op.transpose_b ? 1 : b.cols;
    for (std::int64_t i = 0; i < op.c.rows; ++i) {
      for (std::int64_t j = 0; j < op.c.cols; ++j) {
        const std::int64_t x = op.transpose_a ? i : i * depth;
        const std::int64_t y = op.transpose_b ? j * depth : j;
        const std::int64_t at = i * op.c.cols + j;
        double sum = kept(op.beta, op.c, at);
        if (op.bias) sum += in(*op.bias, j);
        double size = std::abs(sum);
        for (std::int64_t k = 0; k < depth; ++k) {
          const double product = a_values[x + k * next_x] * b_values[y + k * next_y];
          sum += product;
          size += product < 0 ? -product : product;
        }
        const double error = kUlp * static_cast<double>(depth + 2) * size;
        if (op.pre_activation) ASSERT_NEAR(out(*op.pre_activation, at), sum, error);
        ASSERT_NEAR(out(op.c, at), activated(op.activation, sum), 1.2 * error + 2 * kUlp)
            << i << ", " << j;
      }
    }
  }

  void operator()(const QuantizeWeight& op) const {
    const Matrix from(before, op.from);
    const auto scales = after.values(op.scales);
    double largest_of_all = 0;
    for (const double x : from.values) largest_of_all = std::max(largest_of_all, std::abs(x));
    for (std::int64_t i = 0; i < from.rows; ++i) {
      double largest = 0;
      for (std::int64_t k = 0; k < from.cols; ++k)
        largest = std::max(largest, std::abs(from.at(i, k)));
      const bool one_scale = op.scales.cols == 1;
      const auto row = static_cast<std::size_t>(i);
      const double scale = scales[one_scale ? 0 : row];
      const double smallest = std::numeric_limits<float>::epsilon();
      const double exact = std::max((one_scale ? largest_of_all : largest) / 127.5, smallest);
      ASSERT_NEAR(scale, exact, kUlp * exact);
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < from.cols; ++k) {
        const std::int8_t number =
            after.values<std::int8_t>(op.to)[static_cast<std::size_t>(i * from.cols + k)];
        ASSERT_NEAR(scale * number, from.at(i, k), 0.5001 * scale);
        sum += number;
      }
      ASSERT_EQ(after.values<std::int32_t>(op.sums)[row], sum);
    }
  }

  void operator()(const Quantize& op) const {
    const Matrix from(before, op.from);
    const double values = op.zero_point ? (1 << op.bits) - 1 : (1 << (op.bits - 1)) - 1;
    const std::int32_t begin = -(1 << (op.bits - 1));
    const std::int32_t zero = op.zero_point ? after.values<std::int32_t>(*op.zero_point)[0] : 0;
    if (op.zero_point) {
      double min = 0;
      double largest = 0;
      for (const double x : from.values) {
        min = std::min(min, x);
        largest = std::max(largest, x);
      }
      const double exact = from.values.empty() || min == largest ? 0.1 : (largest - min) / values;
      ASSERT_NEAR(out(op.scales, 0), exact, kUlp * exact);
      ASSERT_NEAR(zero, begin - min / exact, 1.001);
    }
    for (std::int64_t i = 0; i < from.rows; ++i) {
      double largest = 0;
      for (std::int64_t k = 0; k < from.cols; ++k)
        largest = std::max(largest, std::abs(from.at(i, k)));
      const double scale = out(op.scales, op.zero_point ? 0 : static_cast<std::size_t>(i));
      if (!op.zero_point && largest > 0)
        ASSERT_NEAR(scale, largest / values, kUlp * largest / values);
      for (std::int64_t k = 0; k < from.cols; ++k) {
        const std::int8_t number =
            after.values<std::int8_t>(op.to)[static_cast<std::size_t>(i * from.cols + k)];
        ASSERT_GE(number, begin + (op.zero_point ? 0 : 1));
        ASSERT_LE(number, -begin);
        // A zero point is rounded too, which may change the extremes by another half.
        const double error = op.zero_point ? 1.001 : 0.5001;
        ASSERT_NEAR(scale * (number - zero), from.at(i, k), error * scale);
      }
    }
  }

  void operator()(const QuantizedGemm& op) const {
    const auto a = before.values<std::int8_t>(op.a);
    const auto b = before.values<std::int8_t>(op.b);
    const auto depth = static_cast<std::size_t>(op.a.cols);
    const std::int32_t zero =
        op.a_zero_point ? before.values<std::int32_t>(*op.a_zero_point)[0] : 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(op.c.rows); ++i) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(op.c.cols); ++j) {
        std::int64_t sum = 0;
        const std::int8_t* const a_row = a.data() + i * depth;
        const std::int8_t* const b_row = b.data() + j * depth;
        for (std::size_t k = 0; k < depth; ++k) sum += (a_row[k] - zero) * b_row[k];
        const double scale = in(op.a_scales, op.a_zero_point ? 0 : i) *
                             in(op.b_scales, op.b_scales.cols == 1 ? 0 : j);
        const double value = static_cast<double>(sum) * scale + in(op.bias, j);
        const double size = std::abs(static_cast<double>(sum) * scale) + 1;
        ASSERT_NEAR(out(op.c, i * static_cast<std::size_t>(op.c.cols) + j),
                    activated(op.activation, value), 4 * kUlp * size);
      }
    }
  }

  void operator()(const BiasActivation& op) const {
    const Matrix bias(before, *op.bias);
    for (std::size_t i = 0; i < before.values(op.values).size(); ++i) {
      double sum = in(op.values, i) + bias.at(static_cast<std::int64_t>(i) % op.values.cols);
      if (op.pre_activation) {
        ASSERT_NEAR(out(*op.pre_activation, i), sum, kUlp * std::abs(sum));
      }
      const double result = activated(op.activation, sum);
      // For negative numbers, GELU is a difference of larger numbers.
      ASSERT_NEAR(out(op.values, i), result, 4 * kUlp * (std::abs(result) + std::abs(sum)))
          << name_of(op.activation) << " of " << sum;
    }
  }

  void operator()(const ActivationGrad& op) const {
    for (std::size_t i = 0; i < before.values(op.grad).size(); ++i) {
      const double grad = in(op.grad, i);
      const double from = in(op.from, i);
      const double expected = grad * slope_from(op.activation, from);
      ASSERT_NEAR(out(op.grad, i), expected, 8 * kUlp * std::abs(grad) * (1 + from * from))
          << name_of(op.activation) << " from " << from;
    }
    if (!op.sums) return;
    for (std::int64_t j = 0; j < op.grad.cols; ++j) {
      double sum = kept(op.beta, *op.sums, j);
      double size = std::abs(sum);
      for (std::int64_t i = 0; i < op.grad.rows; ++i) {
        const double grad = out(op.grad, i * op.grad.cols + j);
        sum += grad;
        size += std::abs(grad);
      }
      ASSERT_NEAR(out(*op.sums, j), sum, 20 * kUlp * size);
    }
  }

  /// The generator's known answers have their own tests.
  void operator()(const Dropout& op) const {
    const auto step = static_cast<std::uint32_t>(before.values<std::int32_t>(op.step)[0]);
    for (std::int64_t i = 0; i < op.values.size(); ++i) {
      const std::int64_t quarter = (op.values.cols + 3) / 4;
      const std::int64_t col = i % op.values.cols;
      const auto row =
          static_cast<std::uint32_t>(op.first_row + i / op.values.cols * op.row_stride);
      const std::array<std::uint32_t, 4> words = philox4x32_10(
          {static_cast<std::uint32_t>(col % quarter), row, static_cast<std::uint32_t>(op.layer),
           step},
          {static_cast<std::uint32_t>(op.seed), static_cast<std::uint32_t>(op.seed >> 32U)});
      const std::uint32_t word = words[static_cast<std::size_t>(col / quarter)];
      const double mask = word < op.rate * 0x1p32 ? 0 : 1 / (1 - op.rate);
      ASSERT_FLOAT_EQ(static_cast<float>(out(op.values, i)),
                      static_cast<float>(mask * in(op.values, i)));
    }
  }

  void operator()(const SquaredErrors& op) const {
    const Matrix output(before, op.output);
    const Matrix target(before, op.target);
    for (std::int64_t j = 0; j < output.cols; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < output.rows; ++i) {
        sum += (output.at(i, j) - target.at(i, j)) * (output.at(i, j) - target.at(i, j));
      }
      ASSERT_NEAR(out(op.out, j), sum, 20 * kUlp * sum);
    }
  }

  void operator()(const SumRows& op) const {
    const Matrix rows(before, op.in);
    for (std::int64_t j = 0; j < rows.cols; ++j) {
      double sum = kept(op.beta, op.out, j);
      double size = std::abs(sum);
      for (std::int64_t i = 0; i < rows.rows; ++i) {
        sum += rows.at(i, j);
        size += std::abs(rows.at(i, j));
      }
      ASSERT_NEAR(out(op.out, j), sum, 20 * kUlp * size);
    }
  }

  void operator()(const PointwiseLoss& op) const {
    const Matrix output(before, op.output);
    const auto count = static_cast<double>(op.count);
    double sum = 0;
    for (std::int64_t i = 0; i < op.output.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double target =
          takes_labels(op.kind) ? before.values<std::int32_t>(op.target)[at] : in(op.target, at);
      const auto [term, of_output] = term_of(op.kind, output.at(i), target);
      const bool is_cut = op.activation == Activation::kRelu && output.at(i) <= 0;
      const double slope = is_cut ? 0 : of_output;
      sum += term;
      ASSERT_NEAR(out(op.grad, at), slope / count, 3 * kUlp * (1 + std::abs(slope)) / count)
          << name_of(op.kind);
    }
    const double loss = sum / count + kept(op.beta, op.loss, 0);
    EXPECT_NEAR(out(op.loss, 0), loss, 10 * kUlp * (1 + std::abs(loss))) << name_of(op.kind);
  }

  void operator()(const CrossEntropy& op) const {
    const Matrix logits(before, op.logits);
    double loss = 0;
    for (std::int64_t i = 0; i < logits.rows; ++i) {
      const std::int32_t label =
          before.values<std::int32_t>(op.labels)[static_cast<std::size_t>(i)];
      double sum = 0;
      for (std::int64_t j = 0; j < logits.cols; ++j) sum += std::exp(logits.at(i, j));
      const double smoothing = op.smoothing;
      loss += (1 - smoothing) * (std::log(sum) - logits.at(i, label));
      for (std::int64_t j = 0; j < logits.cols; ++j) {
        loss += smoothing * (std::log(sum) - logits.at(i, j)) / static_cast<double>(logits.cols);
      }
      for (std::int64_t j = 0; j < logits.cols; ++j) {
        const double even = smoothing / static_cast<double>(logits.cols);
        const double share = (j == label ? 1 - smoothing : 0) + even;
        const double grad =
            (std::exp(logits.at(i, j)) / sum - share) / static_cast<double>(op.count);
        ASSERT_NEAR(out(op.grad, i * logits.cols + j), grad,
                    10 * kUlp / static_cast<double>(op.count));
      }
    }
    loss = loss / static_cast<double>(op.count) + kept(op.beta, op.loss, 0);
    EXPECT_NEAR(out(op.loss, 0), loss, 10 * kUlp * (1 + std::abs(loss)));
  }

  void operator()(const CountCorrect& op) const {
    const Matrix logits(before, op.logits);
    std::int32_t correct = 0;
    for (std::int64_t i = 0; i < logits.rows; ++i) {
      const auto first = logits.values.begin() + i * logits.cols;
      const auto best =
          op.binary ? (*first > 0 ? 1 : 0) : std::max_element(first, first + logits.cols) - first;
      const auto row = static_cast<std::size_t>(i);
      correct += best == before.values<std::int32_t>(op.labels)[row] ? 1 : 0;
      if (op.classes) EXPECT_EQ(after.values<std::int32_t>(*op.classes)[row], best);
    }
    EXPECT_EQ(after.values<std::int32_t>(op.correct)[0], correct);
  }

  /// A gradient in double, and the allowed error of a float.
  struct Gradient {
    double value, error;
  };

  /// Weight i of `weights`, whose gradient is `raw` before clipping and decay. Op: OptimizerUpdate
  /// or LinearAdam.
  template <class Op>
  void expect_adam(const Op& op, const AdamStep& step, const Tensor& weights,
                   const Tensor& moments1, const Tensor& moments2, std::size_t i, Gradient raw,
                   const std::optional<Tensor>& max_moments2 = {}) const {
    const double scale = in(op.scalars, 0);
    const double root = in(op.scalars, 1);
    const double shrink = step.decoupled ? in(op.scalars, 2) : 1;
    const double decay = step.decoupled ? 0 : step.weight_decay;
    const double clip = op.clip ? in(*op.clip, 0) : 1;
    const double old = shrink * in(weights, i);
    const double g = clip * raw.value + decay * old;
    const double g_error = raw.error + (decay == 0 && clip == 1 ? 0 : 2 * kUlp * std::abs(g)) +
                           (clip == 1 ? 0 : kUlp * std::abs(clip * raw.value));
    const double kept_m = step.beta1 * in(moments1, i);
    const double m = kept_m + (1 - step.beta1) * g;
    const double m_error = 2 * kUlp * (std::abs(kept_m) + std::abs((1 - step.beta1) * g)) + g_error;
    const double v = step.beta2 * in(moments2, i) + (1 - step.beta2) * g * g;
    const double v_error = 6 * kUlp * v + (1 - step.beta2) * 3 * std::abs(g) * g_error;
    double largest = v;
    if (max_moments2) {
      largest = std::max(v, in(*max_moments2, i));
      ASSERT_NEAR(out(*max_moments2, i), largest, v_error) << i;
    }
    const double rate = scale / (std::sqrt(largest) / root + step.eps);
    const double w = old + rate * m;
    ASSERT_NEAR(out(moments1, i), m, m_error) << i;
    ASSERT_NEAR(out(moments2, i), v, v_error) << i;
    const double rate_error = v == 0 ? 0 : v_error / v;
    ASSERT_NEAR(
        out(weights, i), w,
        std::abs(rate) * m_error + (10 * kUlp + rate_error) * (std::abs(old) + std::abs(rate * m)))
        << i;
  }

  /// Handles loss scaling: the third row of scalars belongs to this update.
  void expect_step(const OptimizerUpdate& op, const AdamStep& step) const {
    if (op.loss_scale && in(op.loss_scale->found_inf, 0) > 0) {
      for (const Tensor& tensor : {op.weights, op.state[0], op.state[1]}) {
        EXPECT_THAT(after.values(tensor), ElementsAreArray(before.values(tensor)));
      }
      return;
    }
    const double scale = op.loss_scale ? in(op.loss_scale->scale, 0) : 1.0F;
    for (std::size_t i = 0; i < before.values(op.weights).size(); ++i) {
      expect_adam(op, step, op.weights, op.state[0], op.state[1], i, {in(op.grads, i) / scale, 0},
                  step.amsgrad ? std::optional(op.state[2]) : std::nullopt);
    }
  }

  /// The gradient of weight i, clipped and with weight decay.
  [[nodiscard]] double decayed(const OptimizerUpdate& op, double weight_decay,
                               std::size_t i) const {
    const double clip = op.clip ? in(*op.clip, 0) : 1;
    return clip * in(op.grads, i) + weight_decay * in(op.weights, i);
  }

  void expect_step(const OptimizerUpdate& op, const RmsPropStep& step) const {
    const double scale = in(op.scalars, 0);
    for (std::size_t i = 0; i < before.values(op.weights).size(); ++i) {
      const double g = decayed(op, step.weight_decay, i);
      const double squares = step.alpha * in(op.state[0], i) + (1 - step.alpha) * g * g;
      double change = g / (std::sqrt(squares) + step.eps);
      const double size = 1 + std::abs(change) / 0.01;
      ASSERT_NEAR(out(op.state[0], i), squares, 20 * kUlp * (squares + 0.1));
      if (step.momentum > 0) {
        change += step.momentum * in(op.state[1], i);
        ASSERT_NEAR(out(op.state[1], i), change, 10 * kUlp * size);
      }
      ASSERT_NEAR(out(op.weights, i), in(op.weights, i) + scale * change, 10 * kUlp * size);
    }
  }

  void expect_step(const OptimizerUpdate& op, const AdagradStep& step) const {
    const double scale = in(op.scalars, 0);
    for (std::size_t i = 0; i < before.values(op.weights).size(); ++i) {
      const double g = decayed(op, step.weight_decay, i);
      const double sum = in(op.state[0], i) + g * g;
      ASSERT_NEAR(out(op.state[0], i), sum, 10 * kUlp * (1 + sum));
      ASSERT_NEAR(out(op.weights, i), in(op.weights, i) + scale * g / (std::sqrt(sum) + step.eps),
                  40 * kUlp);
    }
  }

  void expect_step(const OptimizerUpdate& op, const LionStep& step) const {
    const double clip = op.clip ? in(*op.clip, 0) : 1;
    for (std::size_t i = 0; i < before.values(op.weights).size(); ++i) {
      const double g = clip * in(op.grads, i);
      const double old = in(op.state[0], i);
      const double mean = step.beta1 * old + (1 - step.beta1) * g;
      const double sign = mean > 0 ? 1 : mean < 0 ? -1 : 0;
      ASSERT_NEAR(out(op.state[0], i), step.beta2 * old + (1 - step.beta2) * g, 4 * kUlp);
      // If the mean cancels, its sign depends on rounding.
      if (mean != 0 && std::abs(mean) < kUlp) continue;
      ASSERT_NEAR(out(op.weights, i),
                  in(op.scalars, 1) * in(op.weights, i) + in(op.scalars, 0) * sign, 4 * kUlp);
    }
  }

  void operator()(const OptimizerUpdate& op) const {
    std::visit([&](const auto& step) { expect_step(op, step); }, op.step);
  }

  void operator()(const LinearAdam& op) const {
    const Matrix grad_y(before, op.grad_y);
    const Matrix x(before, op.x);
    const double ulps = kUlp * static_cast<double>(x.rows + 2);
    for (std::int64_t i = 0; i < op.weight.rows; ++i) {
      for (std::int64_t j = 0; j < op.weight.cols; ++j) {
        Gradient grad{};
        for (std::int64_t k = 0; k < x.rows; ++k) {
          grad.value += grad_y.at(k, i) * x.at(k, j);
          grad.error += ulps * std::abs(grad_y.at(k, i) * x.at(k, j));
        }
        expect_adam(op, op.step, op.weight, op.weight_moments1, op.weight_moments2,
                    static_cast<std::size_t>(i * op.weight.cols + j), grad);
      }
      Gradient grad{};
      for (std::int64_t k = 0; k < x.rows; ++k) {
        grad.value += grad_y.at(k, i);
        grad.error += ulps * std::abs(grad_y.at(k, i));
      }
      expect_adam(op, op.step, op.bias, op.bias_moments1, op.bias_moments2,
                  static_cast<std::size_t>(i), grad);
    }
  }

  void operator()(const SumSquares& op) const {
    double sum = 0;
    for (const float value : before.values(op.in)) {
      sum += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(out(op.out, 0), sum, kUlp * sum);
  }

  void operator()(const GramSquares& op) const {
    const Matrix y(before, op.gram_y);
    const Matrix x(before, op.gram_x);
    double sum = 0;
    for (std::int64_t i = 0; i < op.gram_y.size(); ++i) sum += y.at(i) * (x.at(i) + 1);
    EXPECT_NEAR(out(op.out, 0), sum, kUlp * std::abs(sum) + 1e-12);
  }

  void operator()(const ClipFactor& op) const {
    double sum = 0;
    for (const float square : before.values(op.squares)) sum += static_cast<double>(square);
    const double factor = std::min(1.0, op.max_norm / (std::sqrt(sum) + 1e-6));
    EXPECT_NEAR(out(op.factor, 0), factor, kUlp * factor);
  }

  void expect_step(const OptimizerUpdate& op, const SgdStep& step) const {
    const double scale = in(op.scalars, 0);
    for (std::size_t i = 0; i < before.values(op.weights).size(); ++i) {
      const double old = in(op.weights, i);
      const double clip = op.clip ? in(*op.clip, 0) : 1;
      const double raw = clip * in(op.grads, i);
      double change = raw + step.weight_decay * old;
      double size = std::abs(raw) + step.weight_decay * std::abs(old);
      if (step.momentum > 0) {
        const double kept_v = step.momentum * in(op.state[0], i);
        const double velocity = kept_v + change;
        size += std::abs(kept_v);
        ASSERT_NEAR(out(op.state[0], i), velocity, 3 * kUlp * size);
        change = step.nesterov ? change + step.momentum * velocity : velocity;
      }
      const double w = old + scale * change;
      ASSERT_NEAR(out(op.weights, i), w, 5 * kUlp * (std::abs(old) + 2 * std::abs(scale) * size));
    }
  }

  void operator()(const CheckFinite& op) const {
    const auto in = before.values(op.in);
    const bool finite = std::ranges::all_of(in, [](float x) { return std::isfinite(x); });
    EXPECT_EQ(out(op.found_inf, 0), finite ? 0 : 1);
  }

  /// The rules of GradScaler are tested against PyTorch.
  void operator()(const UpdateLossScale& op) const {
    const bool overflows = in(op.state.found_inf, 0) > 0;
    const bool grows = !overflows && op.window == 1;
    EXPECT_EQ(out(op.state.scale, 0), overflows ? 512 : grows ? 2048 : 1024);
    EXPECT_EQ(after.values<std::int32_t>(op.state.updates)[0], overflows ? 7 : 8);
    EXPECT_EQ(after.values<std::int32_t>(op.good_steps)[0], overflows || grows ? 0 : 4);
  }

  void operator()(const Copy& op) const {
    EXPECT_THAT(after.values(op.to), ElementsAreArray(before.values(op.from)));
  }

  void operator()(const Cast& op) const {
    const auto n = static_cast<std::size_t>(op.to.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (op.to.dtype == DType::kF32) {
        const float widened = op.scale * number_at(before, op.from, i);
        const float old = op.beta == 0 ? 0 : op.beta * before.values(op.to)[i];
        ASSERT_EQ(after.values(op.to)[i], widened + old);
      } else {
        const auto exact = static_cast<double>(op.scale * before.values(op.from)[i]);
        ASSERT_EQ(number_at(after, op.to, i), nearest(op.to.dtype, exact));
      }
    }
  }

  /// The number that a 16-bit type's bits represent, by its definition.
  static float number_at(Memory& memory, const Tensor& tensor, std::size_t i) {
    const int digits = tensor.dtype == DType::kBF16 ? 7 : 10;  // after the significand's leading 1
    const int bias = tensor.dtype == DType::kBF16 ? 127 : 15;
    const int bits = memory.values<std::uint16_t>(tensor)[i];
    const int exponent = (bits & 0x7FFF) >> digits;
    const double fraction = std::ldexp(bits & ((1 << digits) - 1), -digits);
    const double value =
        std::ldexp(fraction + (exponent == 0 ? 0 : 1), std::max(exponent, 1) - bias);
    return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
  }

  /// The nearest number of such a type; ties go to the even one.
  static double nearest(DType type, double exact) {
    const int digits = type == DType::kBF16 ? 8 : 11;
    const int min = type == DType::kBF16 ? -133 : -24;  // the exponent of the smallest number
    int exponent = 0;
    std::frexp(exact, &exponent);
    if (type == DType::kF16 && std::abs(exact) >= 65520) return std::copysign(HUGE_VAL, exact);
    const int last = std::max(exponent - digits, min);
    return std::ldexp(std::nearbyint(std::ldexp(exact, -last)), last);
  }

  void operator()(const Fill& op) const {
    if (op.out.dtype == DType::kF32) {
      EXPECT_THAT(after.values(op.out), Each(op.value));
    } else {
      EXPECT_THAT(after.values<std::int32_t>(op.out), Each(0));
    }
  }

  void operator()(const Randn& op) const {
    TorchGenerator generator(7);
    std::vector<float> expected(static_cast<std::size_t>(op.out.size()));
    generator.randn(expected);
    EXPECT_THAT(after.values(op.out), ElementsAreArray(expected));
    EXPECT_EQ(after.values<TorchGenerator>(op.state)[0].next(), generator.next());
  }

  void operator()(const Delay&) const {}

  void operator()(const Add& op) const {
    for (std::size_t i = 0; i < after.values(op.out).size(); ++i) {
      const double sum = in(op.a, i) + in(op.b, i);
      ASSERT_NEAR(out(op.out, i), sum, kUlp * std::abs(sum));
    }
  }

  void operator()(const LayerNorm& op) const {
    const Matrix x(before, op.x);
    for (std::int64_t i = 0; i < x.rows; ++i) {
      const ExactMoments exact = exact_moments(before.values(op.x.row_slice(i, 1)));
      ASSERT_EQ(out(op.mean, i), static_cast<float>(exact.mean)) << "row " << i;
      const double rstd = 1 / std::sqrt(exact.variance + 1e-5);
      ASSERT_NEAR(out(op.rstd, i), rstd, kUlp * rstd) << "row " << i;
      for (std::int64_t j = 0; j < x.cols; ++j) {
        const double normal = (x.at(i, j) - out(op.mean, i)) * rstd;
        const double y = normal * in(op.weight, j) + in(op.bias, j);
        ASSERT_NEAR(out(op.y, i * x.cols + j), y, kUlp * (2 * std::abs(normal) + std::abs(y)))
            << "row " << i;
      }
    }
  }

  void operator()(const LayerNormGrad& op) const {
    const Matrix x(before, op.x);
    const Matrix grad_y(before, op.grad_y);
    const auto normal = [&](std::int64_t i, std::int64_t j) {
      return (x.at(i, j) - in(op.mean, i)) * in(op.rstd, i);
    };
    for (std::int64_t j = 0; j < x.cols; ++j) {
      double of_weight = kept(op.beta, op.grad_weight, j);
      double of_bias = kept(op.beta, op.grad_bias, j);
      double size = 1;
      for (std::int64_t i = 0; i < x.rows; ++i) {
        of_weight += grad_y.at(i, j) * normal(i, j);
        of_bias += grad_y.at(i, j);
        size += std::abs(grad_y.at(i, j)) * (1 + std::abs(normal(i, j)));
      }
      ASSERT_NEAR(out(op.grad_weight, j), of_weight, 20 * kUlp * size);
      ASSERT_NEAR(out(op.grad_bias, j), of_bias, 20 * kUlp * size);
    }
    if (!op.grad_x) return;
    for (std::int64_t i = 0; i < x.rows; ++i) {
      const auto count = static_cast<double>(x.cols);
      const auto scaled = [&](std::int64_t j) { return grad_y.at(i, j) * in(op.weight, j); };
      double mean = 0, projected = 0, size_of_mean = 0, size_of_projected = 0;
      for (std::int64_t j = 0; j < x.cols; ++j) {
        mean += scaled(j) / count;
        projected += scaled(j) * normal(i, j) / count;
        size_of_mean += std::abs(scaled(j)) / count;
        size_of_projected += std::abs(scaled(j) * normal(i, j)) / count;
      }
      for (std::int64_t j = 0; j < x.cols; ++j) {
        const std::int64_t at = i * x.cols + j;
        const double rstd = in(op.rstd, i);
        const double change = rstd * (scaled(j) - mean - normal(i, j) * projected);
        const double size = std::abs(rstd) * (std::abs(scaled(j)) + size_of_mean +
                                              std::abs(normal(i, j)) * size_of_projected);
        // At most eleven roundings of half an ulp.
        ASSERT_NEAR(out(*op.grad_x, at), in(*op.grad_x, at) + change, kUlp * (6 * size + 2))
            << "row " << i;
      }
    }
  }

  void operator()(const Attention& op) const {
    const ExactAttention exact = exact_attention(op.shape, op.out.rows, before.values(op.qkv));
    expect_close(op.out, exact.out, 1e-6);
    expect_close(op.kept,
                 op.shape.form == AttentionForm::kFlash ? exact.log_sums : exact.probabilities,
                 1e-6);
  }

  void operator()(const AttentionGrad& op) const {
    const ExactAttention exact =
        exact_attention(op.shape, op.out.rows, before.values(op.qkv), before.values(op.grad_out));
    expect_close(op.grad_qkv, exact.grad_qkv, 2e-6);
  }

  void expect_close(const Tensor& tensor, const std::vector<double>& expected, double error) const {
    const auto actual = after.values(tensor);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], error * (1 + std::abs(expected[i]))) << i;
    }
  }
};

/// Whether the op sums numbers in an order that may vary.
bool sums(const DeviceOp& op) {
  return multiplies(op) || std::holds_alternative<SumRows>(op) ||
         std::holds_alternative<SquaredErrors>(op);
}

/// An op with 16-bit operands computes the same as with those numbers in fp32, and rounds results
/// once.
class Widened {
 public:
  explicit Widened(OpCase& narrow) : narrow_(narrow) {
    DeviceOp op = narrow.op;
    std::visit(
        []<class AnyOp>(AnyOp& update) {
          if constexpr (requires { update.first_update; }) update.rounded.reset();
        },
        op);
    const Op wide = with_tensors(Op(op), [&](const Operand& operand) {
      const Tensor& old = *operand.tensor;
      const bool real = is_real(old.dtype);
      const Tensor tensor = wide_.add(old.rows, old.cols, real ? DType::kF32 : old.dtype);
      if (real) {
        set_numbers(wide_, tensor, numbers_of(narrow.memory, old));
      } else {
        std::ranges::copy(narrow.memory.bytes(old), wide_.bytes(tensor).begin());
      }
      return tensor;
    });
    op_ = std::get<DeviceOp>(wide);
    ThreadPool pool(1);
    run(op_, wide_, *make_reference_product(), pool);
  }

  void expect(Memory& after) {
    const Op narrow_op = narrow_.op;
    const Op wide_op = op_;
    const std::vector<Operand> narrow = operands_of(narrow_op);
    const std::vector<Operand> wide = operands_of(wide_op);
    for (const Operand& operand : narrow) {
      if (operand.use == OperandUse::kReads) continue;
      const bool copies = operand.name == "rounded";
      const auto same = std::ranges::find(wide, copies ? std::string_view("weights") : operand.name,
                                          &Operand::name);
      ASSERT_NE(same, wide.end()) << operand.name;
      expect(operand, after, *same->tensor);
    }
  }

 private:
  void expect(const Operand& operand, Memory& after, const Tensor& expected) {
    SCOPED_TRACE(operand.name);
    const Tensor& tensor = *operand.tensor;
    if (!is_real(tensor.dtype)) {
      EXPECT_TRUE(std::ranges::equal(after.bytes(tensor), wide_.bytes(expected)));
      return;
    }
    const std::vector<float> actual = numbers_of(after, tensor);
    const auto exact = wide_.values(expected);
    const auto* const gemm = std::get_if<Gemm>(&narrow_.op);
    const bool rounds_twice = gemm != nullptr && gemm->activation != Activation::kNone;
    // One step of the type, for sums near another number and for rounded inputs of an activation.
    const double step = tensor.dtype == DType::kBF16  ? 0x1p-8
                        : tensor.dtype == DType::kF16 ? 0x1p-11
                                                      : 0;
    const double several = (sums(narrow_.op) ? 2.1 : 0) + (rounds_twice ? 8 : 0);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double want = tensor.dtype == DType::kF32
                              ? static_cast<double>(exact[i])
                              : Oracle::nearest(tensor.dtype, static_cast<double>(exact[i]));
      const double min = tensor.dtype == DType::kF16 ? 0x1p-24 : 0;
      const double size = std::abs(want) + (sums(narrow_.op) ? 1e-3 : 0);
      const double of_sum = sums(narrow_.op) ? 3e-6 : 0;  // in fp32
      if (std::isinf(want)) {
        ASSERT_EQ(actual[i], want);
        continue;
      }
      ASSERT_NEAR(actual[i], want,
                  several * (step * size + min) + of_sum +
                      2e-6 * std::abs(want) * (several > 0 || step == 0 ? 1 : 0))
          << i;
    }
  }

  OpCase& narrow_;
  DeviceOp op_;
  Memory wide_;
};

/// Null in a build without this library.
std::unique_ptr<Product> make_provider(GemmProvider provider) {
  if (provider == GemmProvider::kOwn) return make_own_product();
  if (provider == GemmProvider::kOneDnn) return make_onednn_product();
  if (provider == GemmProvider::kCblas) return make_cblas_product();
  return make_reference_product();
}

class OpsWith : public testing::TestWithParam<GemmProvider> {};

TEST_P(OpsWith, AgreeWithPlainLoopsInDouble) {
  const auto product = make_provider(GetParam());
  if (product == nullptr) GTEST_SKIP() << "this build has not this library";
  ThreadPool one(1), three(3);
  for (OpCase& op_case : all_op_cases()) {
    if (GetParam() != GemmProvider::kReference && !multiplies(op_case.op)) continue;
    SCOPED_TRACE(op_case.name);
    Memory after = op_case.memory;
    run(op_case.op, after, *product, one);
    Memory of_three = op_case.memory;
    run(op_case.op, of_three, *product, three);
    // Smaller cases are enough for the thread sanitizer; other builds compare the largest shapes.
    if (kThreadSanitized && after.bytes().size() > 200'000) continue;
    if (is_narrow(op_case.op)) {
      // LinearAdam rounds gradients, so tests of whole steps compare it with products, sums and
      // Adam. Attention rounds between its products; it has tests with PyTorch's numbers.
      if (std::holds_alternative<LinearAdam>(op_case.op) ||
          label_of(op_case.op).starts_with("attention")) {
        continue;
      }
      Widened widened(op_case);
      widened.expect(after);
      widened.expect(of_three);
      continue;
    }
    std::visit(Oracle{op_case.memory, after}, op_case.op);
    // The oracle is slow, and its result is the same for the same bits.
    if (of_three.bytes() == after.bytes()) continue;
    std::visit(Oracle{op_case.memory, of_three}, op_case.op);
  }
}

TEST_P(OpsWith, LetNanPassTheReluOfAForwardProduct) {
  const auto product = make_provider(GetParam());
  if (product == nullptr) GTEST_SKIP() << "this build has not this library";
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    Memory memory;
    const Gemm op{.c = memory.add(64, 256),
                  .a = memory.add(64, 256),
                  .b = memory.add(256, 256),
                  .transpose_b = true,
                  .bias = memory.add(1, 256),
                  .activation = Activation::kRelu};
    memory.values(op.a)[3] = kNaN;
    run(op, memory, *product, pool);
    EXPECT_TRUE(std::isnan(memory.values(op.c)[0]));
    EXPECT_EQ(memory.values(op.c)[256], 0.0F);
  }
}

std::string name_of(const testing::TestParamInfo<GemmProvider>& provider) {
  if (provider.param == GemmProvider::kOwn) return "Own";
  if (provider.param == GemmProvider::kOneDnn) return "OneDnn";
  return provider.param == GemmProvider::kCblas ? "Cblas" : "Reference";
}

INSTANTIATE_TEST_SUITE_P(Providers, OpsWith,
                         testing::Values(GemmProvider::kReference, GemmProvider::kOwn,
                                         GemmProvider::kOneDnn, GemmProvider::kCblas),
                         name_of);

TEST(Narrow, RoundsAsASingleHalfIsRounded) {
  std::vector<float> wide;
  TorchGenerator random(3);
  std::vector<float> mantissas(4096);
  random.uniform(mantissas, -2, 2);
  for (std::size_t i = 0; i < mantissas.size(); ++i)
    wide.push_back(std::ldexp(mantissas[i], static_cast<int>(i % 48) - 30));
  // Ties, the largest half and numbers that round to infinity, subnormal halves and half of the
  // smallest.
  for (const float x : {1.0F + 0x1p-11F, 1.0F + 0x3p-11F, 65504.0F, 65519.0F, 65520.0F, HUGE_VALF,
                        -HUGE_VALF, 0.0F, -0.0F, 0x1p-24F, 0x1p-25F, 0x3p-25F, 0x1p-14F})
    wide.push_back(x);
  for (const std::size_t count : {wide.size(), wide.size() - 3}) {
    std::vector<F16> halves(count);
    narrow(wide.data(), static_cast<std::int64_t>(count), halves.data());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(halves[i], f16_of(wide[i])) << wide[i];
  }
}

TEST(Widen, GivesEveryHalfItsValueWhateverTheLengthOfARow) {
  std::vector<F16> halves;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits)
    halves.push_back({static_cast<std::uint16_t>(bits)});
  std::vector<float> wide(halves.size(), -1);
  // Rows of 1 to 40 numbers: whole vectors and remainders.
  std::int64_t at = 0;
  for (std::int64_t row = 0; at < 0x10000; ++row) {
    const std::int64_t count = std::min(row % 40 + 1, 0x10000 - at);
    widen(halves.data() + at, count, wide.data() + at);
    at += count;
  }
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float expected = float_of(halves[i]);
    ASSERT_TRUE(wide[i] == expected || (std::isnan(wide[i]) && std::isnan(expected))) << i;
  }
}

}  // namespace
}  // namespace barestep
