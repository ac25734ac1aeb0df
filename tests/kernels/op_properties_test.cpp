// Single ops: special numbers, padding, refusals, parts.
#include "core/error.h"
#include "core/index.h"
#include "core/operands.h"
#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "kernels/op_cases.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

void run(const DeviceOp& op, Memory& memory) {
  ThreadPool pool(2);
  const auto product = make_reference_product();
  CpuOps ops(pool, *product);
  ops.prepare(op);
  ops.run(op, memory.addresses());
}

TEST(Delay, LastsAsLongAsItSaysAndByWhatItReads) {
  Memory memory;
  const Tensor more = memory.add(1, 1);
  memory.values(more)[0] = 0.015F;
  for (const Delay& delay : {Delay{0.02}, Delay{0.005, more}}) {
    const auto start = std::chrono::steady_clock::now();
    run(delay, memory);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  }
}

TEST(BiasActivation, KeepsMinusZeroAndLetsNanPass) {
  Memory memory;
  const BiasActivation op{memory.add(1, 5), memory.add(1, 5)};
  std::ranges::copy(std::vector{-0.0F, kNotANumber, kInf, -kInf, -1.0F},
                    memory.values(op.values).begin());
  std::ranges::fill(memory.values(*op.bias), -0.0F);
  run(op, memory);
  const auto out = memory.values(op.values);
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_TRUE(std::signbit(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(out[3], 0.0F);
  EXPECT_EQ(out[4], 0.0F);
}

TEST(ActivationGrad, IsZeroAtBothZerosAndPassesWhereTheOutputIsNan) {
  Memory memory;
  const ActivationGrad op{memory.add(1, 6), memory.add(1, 6)};
  std::ranges::copy(std::vector{5.0F, 5.0F, 5.0F, kInf, kNotANumber, kNotANumber},
                    memory.values(op.grad).begin());
  std::ranges::copy(std::vector{0.0F, -0.0F, kNotANumber, 1.0F, 1.0F, 0.0F},
                    memory.values(op.from).begin());
  run(op, memory);
  const auto grad = memory.values(op.grad);
  EXPECT_EQ(grad[0], 0.0F);
  EXPECT_EQ(grad[1], 0.0F);
  EXPECT_EQ(grad[2], 5.0F);
  EXPECT_EQ(grad[3], kInf);
  EXPECT_TRUE(std::isnan(grad[4]));
  EXPECT_EQ(grad[5], 0.0F);
}

TEST(ActivationGrad, LetsNanPassAllActivations) {
  for (const Activation activation : kValuesOf<Activation>) {
    SCOPED_TRACE(name_of(activation));
    Memory memory;
    const BiasActivation value{
        .values = memory.add(1, 1), .bias = memory.add(1, 1), .activation = activation};
    memory.values(value.values)[0] = kNotANumber;
    run(value, memory);
    EXPECT_TRUE(std::isnan(memory.values(value.values)[0]));
  }
}

/// Applies the dropout to ones.
std::vector<float> mask_of(Dropout op, std::int64_t rows, std::int64_t cols, std::int32_t step) {
  Memory memory;
  op.values = memory.add(rows, cols);
  op.step = memory.add(1, 1, DType::kI32);
  std::ranges::fill(memory.values(op.values), 1.0F);
  memory.values<std::int32_t>(op.step)[0] = step;
  run(op, memory);
  const auto values = memory.values(op.values);
  return {values.begin(), values.end()};
}

/// The number of elements that only one of the two masks drops.
std::ptrdiff_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  std::ptrdiff_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

TEST(Dropout, HasAnotherMaskForEverySeedStepLayerRowAndColumn) {
  const Dropout usual{.rate = 0.5, .seed = 7, .layer = 1, .first_row = 3};
  const auto changed = [&](auto change, std::int32_t step = 2) {
    Dropout op = usual;
    change(op);
    return mask_of(op, 60, 70, step);
  };
  const std::vector<float> mask = changed([](Dropout&) {});
  const std::vector<std::vector<float>> others = {
      changed([](Dropout& o) { o.seed = 8; }), changed([](Dropout& o) { o.seed += 1ULL << 32U; }),
      changed([](Dropout& o) { o.layer = 2; }), changed([](Dropout& o) { o.first_row = 4; }),
      changed([](Dropout&) {}, 3)};
  for (const std::vector<float>& other : others) {
    // Half of 4200 numbers, give or take five standard deviations.
    EXPECT_NEAR(static_cast<double>(differences(mask, other)), 2100, 163);
  }
  const auto row = [&](std::ptrdiff_t i) {
    return std::vector<float>(mask.begin() + 70 * i, mask.begin() + 70 * (i + 1));
  };
  EXPECT_NEAR(static_cast<double>(differences(row(0), row(1))), 35, 21);
}

TEST(Dropout, LetsNothingVanishThatIsNoNumber) {
  Memory memory;
  const Dropout op{.values = memory.add(8, 8), .step = memory.add(1, 1, DType::kI32), .rate = 0.5};
  std::ranges::fill(memory.values(op.values), kNotANumber);
  run(op, memory);
  for (const float number : memory.values(op.values)) EXPECT_TRUE(std::isnan(number));
}

TEST(OptimizerUpdate, LeavesPaddingZero) {
  const OptimizerStep steps[] = {AdamStep{.weight_decay = 0.01},
                                 AdamStep{.weight_decay = 0.01, .decoupled = true},
                                 AdamStep{.amsgrad = true},
                                 SgdStep{},
                                 SgdStep{0.9, 0.01, true},
                                 RmsPropStep{.momentum = 0.5},
                                 AdagradStep{},
                                 LionStep{}};
  for (const OptimizerStep& step : steps) {
    Memory memory;
    const auto flat = [&] { return memory.add(1, 9); };
    OptimizerUpdate op{.weights = flat(), .grads = flat(), .step = step};
    for (std::size_t i = 0; i < state_of(step).size(); ++i) op.state.push_back(flat());
    op.scalars = memory.add(1, scalars_of(step));
    std::ranges::fill(memory.values(op.scalars), 0.03F);
    SCOPED_TRACE(label_of(DeviceOp(op)));
    run(op, memory);
    for (const Access& access : accesses_of(Op(DeviceOp(op)))) {
      if (access.writes) EXPECT_THAT(memory.values(access.tensor), Each(0.0F));
    }
  }
}

/// Runs the ops one after the other.
template <class... Ops>
std::vector<std::byte> bytes_after(Memory memory, const Ops&... ops) {
  (run(ops, memory), ...);
  return memory.bytes();
}

TEST(PointwiseLoss, WithAReluHasTheBitsOfItsGradientInASecondOp) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const LossKind kind : kValuesOf<LossKind>) {
      if (!is_pointwise(kind)) continue;
      SCOPED_TRACE(name_of(kind));
      Memory memory;
      const DType targets = takes_labels(kind) ? DType::kI32 : DType::kF32;
      const PointwiseLoss loss{.loss = memory.add(1, 1),
                               .grad = memory.add(40, 501, type),
                               .output = memory.add(40, 501, type),
                               .target = memory.add(40, 501, targets),
                               .count = 40 * 501,
                               .kind = kind};
      std::vector<float> outputs(40 * 501);
      TorchGenerator(1).randn(outputs);
      outputs.front() = std::nanf("");
      outputs.back() = 0;
      set_numbers(memory, loss.output, outputs);
      if (!takes_labels(kind)) TorchGenerator(2).randn(memory.values(loss.target));
      PointwiseLoss with_relu = loss;
      with_relu.activation = Activation::kRelu;
      EXPECT_EQ(bytes_after(memory, with_relu),
                bytes_after(memory, loss, ActivationGrad{loss.grad, loss.output}));
      EXPECT_NE(bytes_after(memory, with_relu), bytes_after(memory, loss));
    }
  }
}

TEST(ActivationGrad, WithSumsHasTheBitsOfASecondOpThatSums) {
  for (const Activation activation : kValuesOf<Activation>) {
    if (activation == Activation::kNone) continue;
    SCOPED_TRACE(name_of(activation));
    Memory memory;
    ActivationGrad grad{memory.add(300, 257), memory.add(300, 257), activation};
    const SumRows sums{.out = memory.add(1, 257), .in = grad.grad, .beta = 1};
    std::uint64_t seed = 0;
    for (const Tensor& tensor : {grad.grad, grad.from, sums.out}) {
      TorchGenerator(++seed).randn(memory.values(tensor));
    }
    const auto apart = bytes_after(memory, grad, sums);
    grad.sums = sums.out;
    grad.beta = sums.beta;
    EXPECT_EQ(bytes_after(memory, grad), apart);
  }
}

TEST(PointwiseLoss, IsFiniteForLargeLogitsAndTellsNan) {
  Memory memory;
  const PointwiseLoss op{.loss = memory.add(1, 1),
                         .grad = memory.add(1, 2),
                         .output = memory.add(1, 2),
                         .target = memory.add(1, 2, DType::kI32),
                         .count = 2,
                         .kind = LossKind::kBce};
  memory.values(op.output)[0] = 1000;
  memory.values(op.output)[1] = -1000;
  run(op, memory);
  EXPECT_EQ(memory.values(op.loss)[0], 500.0F);
  memory.values(op.output)[1] = kNotANumber;
  run(op, memory);
  EXPECT_TRUE(std::isnan(memory.values(op.loss)[0]));
}

TEST(CrossEntropy, HasNoOverflowForLargeLogits) {
  Memory memory;
  const CrossEntropy op{.loss = memory.add(1, 1),
                        .grad = memory.add(1, 2),
                        .logits = memory.add(1, 2),
                        .labels = memory.add(1, 1, DType::kI32),
                        .count = 1};
  memory.values(op.logits)[0] = 1000;
  run(op, memory);
  EXPECT_EQ(memory.values(op.loss)[0], 0.0F);
  memory.values<std::int32_t>(op.labels)[0] = 1;
  run(op, memory);
  EXPECT_EQ(memory.values(op.loss)[0], 1000.0F);
}

TEST(CrossEntropy, RefusesALabelThatIsNoClass) {
  for (const std::int32_t label : {-1, 10}) {
    Memory memory;
    const CrossEntropy op{.loss = memory.add(1, 1),
                          .grad = memory.add(1, 10),
                          .logits = memory.add(1, 10),
                          .labels = memory.add(1, 1, DType::kI32),
                          .count = 1};
    memory.values<std::int32_t>(op.labels)[0] = label;
    expect_error(ExitCode::kBadData,
                 "label '" + std::to_string(label) +
                     "': the last layer has 10 outputs; widen the last layer or check the labels",
                 [&] { run(op, memory); });
  }
}

TEST(CountCorrect, TakesTheFirstOfEqualsAndNanAsTheLargest) {
  Memory memory;
  const CountCorrect op{memory.add(1, 1, DType::kI32), memory.add(3, 3),
                        memory.add(3, 1, DType::kI32)};
  std::ranges::copy(
      std::vector{1.0F, 2.0F, 2.0F, 5.0F, kNotANumber, kNotANumber, 0.0F, -0.0F, 0.0F},
      memory.values(op.logits).begin());
  std::ranges::copy(std::vector{1, 1, 0}, memory.values<std::int32_t>(op.labels).begin());
  run(op, memory);
  EXPECT_EQ(memory.values<std::int32_t>(op.correct)[0], 3);
}

/// The op split into up to three parts along a dimension; empty if it cannot be split.
std::vector<Op> parts_along(const Op& op, char dimension) {
  std::optional<std::int64_t> size;
  for (const Operand& operand : operands_of(op)) {
    if (operand.rows == dimension) size = operand.tensor->rows;
    if (operand.cols == dimension) size = operand.tensor->cols;
  }
  if (!size) return {};
  std::vector<Op> parts;
  try {
    std::int64_t first = 0;
    for (const std::int64_t end : {*size / 3, *size - *size / 4, *size}) {
      if (end > first || *size == 0) parts.push_back(slice(op, dimension, first, end - first));
      first = end;
    }
  } catch (const Error&) {
    return {};
  }
  if (*size == 0) parts.resize(1);
  return parts;
}

// Sums are added in a different order; everything else has the same bits.
TEST(Slice, GivesPartsThatTogetherDoWhatTheOpDoes) {
  std::set<std::string> sliced;
  for (const OpCase& op_case : all_op_cases()) {
    const Op op = op_case.op;
    for (const char dimension : {'k', 'm', 'n', 'r'}) {
      const std::vector<Op> parts = parts_along(op, dimension);
      if (parts.empty()) continue;
      SCOPED_TRACE(op_case.name + " along " + dimension);
      sliced.insert(std::string(label_of(op)) + " " + dimension);
      Memory whole = op_case.memory;
      Memory in_parts = op_case.memory;
      run(op_case.op, whole);
      for (const Op& part : parts) run(std::get<DeviceOp>(part), in_parts);
      for (const Operand& operand : operands_of(op)) {
        if (operand.use == OperandUse::kAccumulates) {
          EXPECT_THAT(in_parts.values(*operand.tensor),
                      testing::Pointwise(testing::FloatNear(2e-4F), whole.values(*operand.tensor)));
        } else if (operand.use != OperandUse::kReads) {
          EXPECT_TRUE(
              std::ranges::equal(in_parts.bytes(*operand.tensor), whole.bytes(*operand.tensor)));
        }
      }
    }
  }
  for (const char* const name :
       {"gemm r", "bias_relu r", "relu_grad r", "sum_rows r", "mse_loss r", "cross_entropy r",
        "adam n", "sgd n", "copy m", "cast m", "fill m"}) {
    EXPECT_TRUE(sliced.contains(name)) << name;
  }
  for (const char* const name :
       {"adam r", "count_correct r", "dropout r", "cross_entropy n", "linear_adam r"}) {
    EXPECT_FALSE(sliced.contains(name)) << name;
  }
}

}  // namespace
}  // namespace barestep
