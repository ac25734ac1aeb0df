#include "core/ops.h"

#include "core/sample_ops.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

using namespace sample_ops;  // NOLINT(google-build-using-namespace)
using ::testing::UnorderedElementsAreArray;

struct AccessCase {
  Op op;
  std::vector<BufferId> read, written;
};

TEST(AccessesOf, ListsWhatEachOpReadsAndWrites) {
  const std::vector<AccessCase> cases{
      {DeviceOp{gemm()}, {1, 2}, {0}},
      {DeviceOp{gemm(1)}, {0, 1, 2}, {0}},
      {DeviceOp{gemm_with_bias()}, {1, 2, 3}, {0}},
      {DeviceOp{quantize_weight()}, {3}, {0, 1, 2}},
      {DeviceOp{quantize()}, {2}, {0, 1}},
      {DeviceOp{quantize_batch()}, {2}, {0, 1, 3}},
      {DeviceOp{quantized_gemm()}, {1, 2, 3, 4, 5, 6}, {0}},
      {DeviceOp{quantized_gemm_of_batch()}, {1, 2, 3, 4, 5, 6, 7}, {0}},
      {DeviceOp{BiasActivation{f32(0, 4, 5), f32(1, 1, 5)}}, {0, 1}, {0}},
      {DeviceOp{ActivationGrad{f32(0, 4, 5), f32(1, 4, 5)}}, {0, 1}, {0}},
      {DeviceOp{relu_grad_with_sums()}, {0, 1}, {0, 2}},
      {DeviceOp{relu_grad_with_sums(1)}, {0, 1, 2}, {0, 2}},
      {DeviceOp{dropout()}, {0, 1}, {0}},
      {DeviceOp{SumRows{f32(0, 1, 5), f32(1, 4, 5)}}, {1}, {0}},
      {DeviceOp{SumRows{f32(0, 1, 5), f32(1, 4, 5), 0.5F}}, {0, 1}, {0}},
      {DeviceOp{SquaredErrors{f32(0, 1, 5), f32(1, 4, 5), f32(2, 4, 5)}}, {1, 2}, {0}},
      {DeviceOp{mse()}, {2, 3}, {0, 1}},
      {DeviceOp{mse(1)}, {0, 2, 3}, {0, 1}},
      {DeviceOp{cross_entropy()}, {2, 3}, {0, 1}},
      {DeviceOp{cross_entropy(1)}, {0, 2, 3}, {0, 1}},
      {DeviceOp{count_correct()}, {1, 2}, {0}},
      {DeviceOp{adam()}, {0, 1, 2, 3, 4}, {0, 2, 3}},
      {DeviceOp{decaying(adam(), true)}, {0, 1, 2, 3, 4}, {0, 2, 3}},
      {DeviceOp{clipped(adam())}, {0, 1, 2, 3, 4, 9}, {0, 2, 3}},
      {DeviceOp{linear_adam()}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 4, 5}},
      {DeviceOp{clipped(linear_adam())}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 1, 2, 3, 4, 5}},
      {DeviceOp{SumSquares{f32(0, 1, 1), f32(1, 1, 5)}}, {1}, {0}},
      {DeviceOp{GramSquares{f32(0, 1, 1), f32(1, 5, 5), f32(2, 5, 5)}}, {1, 2}, {0}},
      {DeviceOp{ClipFactor{f32(0, 1, 1), f32(1, 1, 3)}}, {1}, {0}},
      {DeviceOp{clipped(sgd())}, {0, 1, 2, 9}, {0}},
      {DeviceOp{sgd()}, {0, 1, 2}, {0}},
      {DeviceOp{nesterov()}, {0, 1, 2, 3}, {0, 3}},
      {DeviceOp{Copy{f32(0, 4, 5), f32(1, 4, 5)}}, {1}, {0}},
      {DeviceOp{Cast{bf16(0, 4, 5), f32(1, 4, 5)}}, {1}, {0}},
      {DeviceOp{Fill{f32(0, 4, 5)}}, {}, {0}},
      {DeviceOp{Randn{f32(0, 4, 5), state(1)}}, {1}, {0, 1}},
      {DeviceOp{Delay{0.001}}, {}, {}},
      {DeviceOp{Delay{0.001, f32(0, 1, 1)}}, {0}, {}},
      {Collective{AllReduce{{f32(0, 1, 9), f32(1, 1, 9)}}}, {0, 1}, {0, 1}},
      {Collective{Broadcast{{f32(0, 1, 9), f32(1, 1, 9)}}}, {0, 1}, {0, 1}},
      {Collective{Reduce{{f32(0, 1, 9), f32(1, 1, 9)}}}, {0, 1}, {0, 1}},
      {Collective{ReduceScatter{{f32(0, 2, 9), f32(1, 2, 9)}}}, {0, 1}, {0, 1}},
      {Collective{AllGather{{f32(0, 2, 9), f32(1, 2, 9)}}}, {0, 1}, {0, 1}},
      {Collective{AllGather{{f32(0, 2, 9)}, {f32(1, 1, 9)}}}, {1}, {0}},
      {Collective{SendReceive{f32(0, 2, 9), f32(1, 1, 9)}}, {0}, {1}},
      {Collective{SendReceive{.receives = f32(1, 1, 9)}}, {}, {1}},
  };
  for (const auto& [op, read, written] : cases) {
    SCOPED_TRACE(label_of(op));
    EXPECT_NO_THROW(validate(op));
    std::vector<BufferId> actual_read, actual_written;
    for (const Access& access : accesses_of(op)) {
      (access.writes ? actual_written : actual_read).push_back(access.tensor.buffer);
    }
    EXPECT_THAT(actual_read, UnorderedElementsAreArray(read));
    EXPECT_THAT(actual_written, UnorderedElementsAreArray(written));
  }
}

TEST(PartsOf, GivesADeviceOpOnePartAndACollectiveOnePerTensor) {
  EXPECT_EQ(parts_of(DeviceOp{adam()}).size(), 1U);
  EXPECT_EQ(parts_of(DeviceOp{Delay{}}).size(), 1U);
  const auto parts = parts_of(Collective{Reduce{{f32(3, 1, 9), f32(1, 1, 9)}}});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].front().tensor.buffer, 3);
  EXPECT_EQ(parts[1].front().tensor.buffer, 1);
}

struct CostCase {
  Op op;
  Cost expected;
};

TEST(CostOf, CountsByHandWhatEachOpDoes) {
  constexpr std::int64_t kState = sizeof(TorchGenerator);
  Gemm transposed{.c = f32(0, 4, 5), .a = f32(1, 3, 4), .b = f32(2, 3, 5), .transpose_a = true};
  const std::vector<CostCase> cases{
      {DeviceOp{gemm()}, {2 * 4 * 5 * 3, (12 + 15 + 20) * 4}},
      {DeviceOp{transposed}, {2 * 4 * 5 * 3, (12 + 15 + 20) * 4}},
      {DeviceOp{gemm(1)}, {2 * 4 * 5 * 3 + 2 * 20, (12 + 15 + 20 + 20) * 4}},
      {DeviceOp{gemm_with_bias()}, {2 * 4 * 5 * 3 + 20 + 20, (12 + 15 + 5 + 20) * 4}},
      {DeviceOp{quantize_weight()}, {4 * 15, 15 * 4 + 15 + 5 * 4 + 5 * 4}},
      {DeviceOp{quantize()}, {4 * 12, 12 * 4 + 12 + 4 * 4}},
      {DeviceOp{quantize_batch()}, {4 * 12, 12 * 4 + 12 + 2 * 4}},
      {DeviceOp{quantized_gemm()}, {20 * (2 * 3 + 3), 12 + 15 + (20 + 4 + 5 + 5 + 5) * 4}},
      {DeviceOp{quantized_gemm_of_batch()},
       {20 * (2 * 3 + 3 + 1), 12 + 15 + (20 + 1 + 1 + 5 + 5 + 1) * 4}},
      {DeviceOp{BiasActivation{f32(0, 4, 5), f32(1, 1, 5)}}, {40, (20 + 5 + 20) * 4}},
      {DeviceOp{BiasActivation{f32(0, 4, 5), f32(1, 1, 5), Activation::kNone}},
       {20, (20 + 5 + 20) * 4}},
      {DeviceOp{ActivationGrad{f32(0, 4, 5), f32(1, 4, 5)}}, {20, 60 * 4}},
      {DeviceOp{relu_grad_with_sums()}, {20 + 20, (60 + 5) * 4}},
      {DeviceOp{relu_grad_with_sums(1)}, {20 + 20 + 10, (60 + 10) * 4}},
      {DeviceOp{dropout()}, {40, (20 + 20 + 1) * 4}},
      {DeviceOp{SumRows{f32(0, 1, 5), f32(1, 4, 5)}}, {20, 25 * 4}},
      {DeviceOp{SumRows{f32(0, 1, 5), f32(1, 4, 5), 1}}, {30, 30 * 4}},
      {DeviceOp{SquaredErrors{f32(0, 1, 5), f32(1, 4, 5), f32(2, 4, 5)}}, {60, 45 * 4}},
      {DeviceOp{mse()}, {81, (60 + 1) * 4}},
      {DeviceOp{mse(1)}, {83, (60 + 2) * 4}},
      {DeviceOp{mse(0, Activation::kRelu)}, {81 + 20, (60 + 1) * 4}},
      {DeviceOp{cross_entropy()}, {6 * 20 + 6 * 4 + 1, (20 + 4 + 20 + 1) * 4}},
      {DeviceOp{count_correct()}, {20, (20 + 4 + 1) * 4}},
      {DeviceOp{adam(100)}, {1300, 7 * 100 * 4 + 2 * 4}},
      {DeviceOp{decaying(adam(100), false)}, {1500, 7 * 100 * 4 + 2 * 4}},
      {DeviceOp{decaying(adam(100), true)}, {1400, 7 * 100 * 4 + 3 * 4}},
      {DeviceOp{clipped(adam(100))}, {1400, 7 * 100 * 4 + 3 * 4}},
      // Updates of 20 weights and 4 biases, and the cost of their gradients.
      {DeviceOp{linear_adam()},
       {24 * 13 + 2 * 4 * 5 * 7 + 4 * 7, (6 * 24 + 7 * 4 + 7 * 5 + 2) * 4}},
      {DeviceOp{SumSquares{f32(0, 1, 1), f32(1, 1, 5)}}, {10, 6 * 4}},
      {DeviceOp{GramSquares{f32(0, 1, 1), f32(1, 5, 5), f32(2, 5, 5)}}, {75, 51 * 4}},
      {DeviceOp{ClipFactor{f32(0, 1, 1), f32(1, 1, 3)}}, {7, 4 * 4}},
      {DeviceOp{clipped(sgd(100))}, {300, 3 * 100 * 4 + 2 * 4}},
      {DeviceOp{sgd(100)}, {200, 3 * 100 * 4 + 4}},
      {DeviceOp{rmsprop(100)}, {1100, 7 * 100 * 4 + 4}},
      {DeviceOp{adagrad(100)}, {700, 5 * 100 * 4 + 4}},
      {DeviceOp{lion(100)}, {1000, 5 * 100 * 4 + 2 * 4}},
      {DeviceOp{nesterov(100)}, {800, 5 * 100 * 4 + 4}},
      {DeviceOp{Copy{f32(0, 4, 5), f32(1, 4, 5)}}, {0, 160}},
      {DeviceOp{Cast{bf16(0, 4, 5), f32(1, 4, 5), 0.5F}}, {20, 120}},
      {DeviceOp{Cast{f32(0, 4, 5), bf16(1, 4, 5)}}, {0, 120}},
      {DeviceOp{Fill{f32(0, 4, 5)}}, {0, 80}},
      {DeviceOp{Randn{f32(0, 4, 5), state(1)}}, {110, 80 + 2 * kState}},
      {DeviceOp{Delay{1}}, {0, 0}},
      {DeviceOp{Delay{1, f32(0, 1, 1)}}, {0, 4}},
      {Collective{AllReduce{{f32(0, 1, 9)}}}, {0, 0, 36}},
      {Collective{AllReduce{{bf16(0, 1, 9)}}}, {0, 0, 18}},
      {Collective{Broadcast{{f32(0, 1, 9), f32(1, 1, 9)}}}, {0, 0, 36}},
      {Collective{Reduce{{f32(0, 1, 9), f32(1, 1, 9)}}}, {0, 0, 36}},
      {Collective{ReduceScatter{{f32(0, 2, 9)}}}, {0, 0, 72}},
      {Collective{AllGather{{f32(0, 2, 9)}, {f32(1, 1, 9)}}}, {0, 0, 72}},
      {Collective{SendReceive{bf16(0, 2, 9), bf16(1, 1, 9)}}, {0, 0, 36 + 18}},
      {Collective{SendReceive{.sends = f32(0, 2, 9)}}, {0, 0, 72}},
  };
  for (const auto& [op, expected] : cases) {
    SCOPED_TRACE(label_of(op));
    EXPECT_NO_THROW(validate(op));
    EXPECT_EQ(cost_of(op).flops, expected.flops);
    EXPECT_EQ(cost_of(op).bytes, expected.bytes);
    EXPECT_EQ(cost_of(op).message_bytes, expected.message_bytes);
  }
}

TEST(CostOf, CostsTheSameFusedAndApart) {
  Cost apart = cost_of(DeviceOp{gemm()});
  apart += cost_of(DeviceOp{BiasActivation{f32(0, 4, 5), f32(3, 1, 5)}});
  EXPECT_EQ(cost_of(DeviceOp{gemm_with_bias()}).flops, apart.flops);
}

TEST(CostOf, RefusesNumbersBeyondSixtyThreeBits) {
  const std::int64_t n = 1'000'000'000;
  const DeviceOp op = Gemm{
      .c = f32(0, n, n), .a = f32(1, n, 8), .b = f32(2, 8, n), .activation = Activation::kRelu};
  validate(op);
  expect_error(ExitCode::kMemory,
               "size of 'the flops of an op': is larger than 2^63 - 1; make the model or the "
               "batch smaller",
               [&] { cost_of(op); });
}

struct RuleCase {
  Op op;
  std::string text;
};

/// A valid op with one change.
template <class Kind, class Change>
Op broken(Kind op, Change change) {
  change(op);
  return DeviceOp{op};
}

void expect_refused(const std::vector<RuleCase>& cases) {
  for (const RuleCase& each : cases) {
    const std::string named = "ill-formed op '" + std::string(label_of(each.op)) + "': ";
    for (const std::string& part : {each.text, named}) {
      expect_error(ExitCode::kBug, part, [&] { validate(each.op); });
    }
  }
}

TEST(Validate, RefusesProductsThatDoNotFit) {
  expect_refused({
      {broken(gemm(), [](Gemm& o) { o.a.cols = 4; }), "b is 3 x 5, but k = 4 (from a)"},
      {broken(gemm(), [](Gemm& o) { o.b.rows = 4; }), "b is 4 x 5, but k = 3 (from a)"},
      {broken(gemm(), [](Gemm& o) { o.transpose_a = true; }), "a is 4 x 3, but m = 4 (from c)"},
      {broken(gemm(), [](Gemm& o) { o.transpose_b = true; }), "b is 3 x 5, but n = 5 (from c)"},
      {broken(gemm(), [](Gemm& o) { o.c.rows = 5; }), "a is 4 x 3, but r = 5 (from c)"},
      {broken(gemm(), [](Gemm& o) { o.c.cols = 4; }), "b is 3 x 5, but n = 4 (from c)"},
      {broken(gemm_with_bias(), [](Gemm& o) { o.bias->cols = 4; }),
       "bias is 1 x 4, but n = 5 (from c)"},
      {broken(gemm_with_bias(), [](Gemm& o) { o.bias->rows = 4; }),
       "bias is 4 x 5, but must have 1 row "},
      {broken(gemm_with_bias(), [](Gemm& o) { o.beta = 1; }), "a bias needs beta == 0"},
  });
}

TEST(Validate, RefusesLossesThatDoNotFit) {
  expect_refused({
      {broken(mse(), [](PointwiseLoss& o) { o.loss.cols = 2; }),
       "loss is 1 x 2, but must have 1 column"},
      {broken(mse(), [](PointwiseLoss& o) { o.grad.rows = 5; }),
       "output is 4 x 5, but r = 5 (from grad)"},
      {broken(mse(), [](PointwiseLoss& o) { o.target.cols = 4; }),
       "target is 4 x 4, but n = 5 (from grad)"},
      {broken(mse(), [](PointwiseLoss& o) { o.count = 19; }), "at least the size of output"},
      {broken(mse(), [](PointwiseLoss& o) { o.activation = Activation::kTanh; }),
       "the activation must be ReLU or none"},
      {broken(cross_entropy(), [](CrossEntropy& o) { o.loss.rows = 2; }),
       "loss is 2 x 1, but must have 1 row"},
      {broken(cross_entropy(), [](CrossEntropy& o) { o.grad.cols = 4; }),
       "logits is 4 x 5, but N = 4 (from grad)"},
      {broken(cross_entropy(), [](CrossEntropy& o) { o.labels.rows = 5; }),
       "labels is 5 x 1, but r = 4 (from grad)"},
      {broken(cross_entropy(), [](CrossEntropy& o) { o.labels.dtype = DType::kF32; }),
       "labels must be i32"},
      {broken(cross_entropy(), [](CrossEntropy& o) { o.count = 3; }),
       "at least the rows of logits"},
      {broken(count_correct(), [](CountCorrect& o) { o.correct.cols = 2; }),
       "correct is 1 x 2, but must have 1 column"},
      {broken(count_correct(), [](CountCorrect& o) { o.correct.dtype = DType::kF32; }),
       "correct must be i32"},
      {broken(count_correct(), [](CountCorrect& o) { o.labels.cols = 2; }),
       "labels is 4 x 2, but must have 1 column"},
  });
}

TEST(Validate, RefusesUpdatesThatDoNotFit) {
  using Update = OptimizerUpdate;
  const auto step = [](auto& op) -> auto& {
    return std::get<SgdStep>(op.step);
  };
  const std::string count = "state must be one tensor for each of the step's";
  expect_refused({
      {broken(rmsprop(), [](Update& o) { o.step = RmsPropStep{}; }), count},
      {broken(sgd(), [&](Update& o) { step(o).momentum = 0.9; }), count},
      {broken(nesterov(), [](Update& o) { o.state.clear(); }), count},
      {broken(adagrad(), [](Update& o) { o.state[0].cols = 9; }),
       "sum is 1 x 9, but n = 100 (from weights)"},
      {broken(lion(), [](Update& o) { o.scalars.cols = 1; }),
       "scalars is 1 x 1, but must have 2 columns"},
      {broken(adam(),
              [](Update& o) {
                o.step = AdamStep{.amsgrad = true};
                o.state.push_back(f32(9, 1, 9));
              }),
       "max_exp_avg_sq is 1 x 9, but n = 100 (from weights)"},
      {broken(adam(), [](Update& o) { o.weights.rows = 2; }),
       "weights is 2 x 100, but must have 1 row"},
      {broken(adam(), [](Update& o) { o.grads.cols = 99; }),
       "grads is 1 x 99, but n = 100 (from weights)"},
      {broken(adam(), [](Update& o) { o.state[0].cols = 99; }),
       "exp_avg is 1 x 99, but n = 100 (from weights)"},
      {broken(adam(), [](Update& o) { o.scalars.cols = 3; }),
       "scalars is 1 x 3, but must have 2 columns"},
      {broken(adam(), [](Update& o) { o.step = AdamStep{.decoupled = true}; }),
       "scalars is 1 x 2, but must have 3 columns"},
      {broken(adam(), [](Update& o) { o.step = AdamStep{.weight_decay = -1}; }),
       "weight_decay must be zero or more"},
      {broken(clipped(adam()), [](Update& o) { o.clip->cols = 2; }),
       "clip is 1 x 2, but must have 1 column"},
      {broken(sgd(), [&](Update& o) { step(o).weight_decay = -1; }),
       "momentum and weight_decay must be zero or more"},
      {broken(sgd(), [&](Update& o) { step(o).nesterov = true; }), "nesterov needs momentum"},
  });
}

TEST(Validate, RefusesOtherOpsThatDoNotFit) {
  const BiasActivation bias_relu{f32(0, 4, 5), f32(1, 1, 5)};
  const ActivationGrad relu_grad{f32(0, 4, 5), f32(1, 4, 5)};
  const SumRows sum_rows{f32(0, 1, 5), f32(1, 4, 5)};
  const Copy copy{f32(0, 4, 5), f32(1, 4, 5)};
  const Randn randn{f32(0, 4, 5), state(1)};
  const double infinity = std::numeric_limits<double>::infinity();
  expect_refused({
      {broken(bias_relu, [](BiasActivation& o) { o.bias->cols = 4; }),
       "bias is 1 x 4, but n = 5 (from values)"},
      {broken(bias_relu, [](BiasActivation& o) { o.pre_activation = f32(2, 4, 4); }),
       "pre_activation is 4 x 4, but n = 5 (from values)"},
      {broken(relu_grad, [](ActivationGrad& o) { o.from.rows = 5; }),
       "from is 5 x 5, but r = 4 (from grad)"},
      {broken(relu_grad, [](ActivationGrad& o) { o.activation = Activation::kNone; }),
       "there must be an activation"},
      {broken(relu_grad_with_sums(), [](ActivationGrad& o) { o.sums->cols = 4; }),
       "sums is 1 x 4, but n = 5 (from grad)"},
      {broken(relu_grad_with_sums(),
              [](ActivationGrad& o) { o.grad.dtype = o.from.dtype = DType::kBF16; }),
       "sums need a grad of fp32"},
      {broken(quantize_weight(), [](QuantizeWeight& o) { o.to.cols = 4; }),
       "from is 5 x 3, but K = 4 (from to)"},
      {broken(quantize_weight(), [](QuantizeWeight& o) { o.scales.cols = 4; }),
       "scales is 1 x 4, but N = 5 (from to)"},
      {broken(quantize_weight(), [](QuantizeWeight& o) { o.to.dtype = DType::kU8; }),
       "to must be i8"},
      {broken(quantize(), [](Quantize& o) { o.scales.rows = 1; }),
       "scales is 1 x 1, but r = 4 (from to)"},
      {broken(quantize_batch(), [](Quantize& o) { o.zero_point->rows = 4; }),
       "zero_point is 4 x 1, but must have 1 row"},
      {broken(quantize(), [](Quantize& o) { o.bits = 6; }), "bits must be 7 or 8"},
      {broken(quantized_gemm(), [](QuantizedGemm& o) { o.b.cols = 4; }),
       "b is 5 x 4, but K = 3 (from a)"},
      {broken(quantized_gemm(), [](QuantizedGemm& o) { o.c.cols = 4; }),
       "b is 5 x 3, but N = 4 (from c)"},
      {broken(quantized_gemm(), [](QuantizedGemm& o) { o.bits = 9; }), "bits must be 7 or 8"},
      {broken(quantized_gemm(),
              [](QuantizedGemm& o) { o.a.cols = o.b.cols = kMaxQuantizedInputs + 1; }),
       "a sum of so many products may overflow"},
      {broken(dropout(), [](Dropout& o) { o.step.cols = 2; }),
       "step is 1 x 2, but must have 1 column"},
      {broken(dropout(), [](Dropout& o) { o.step.dtype = DType::kF32; }), "step must be i32"},
      {broken(dropout(), [](Dropout& o) { o.rate = 1; }), "rate must be at least 0 and below 1"},
      {broken(dropout(), [](Dropout& o) { o.rate = -0.1; }), "rate must be at least 0 and below 1"},
      {broken(dropout(), [](Dropout& o) { o.first_row = -1; }),
       "layer and rows must be numbered from 0 on"},
      {broken(sum_rows, [](SumRows& o) { o.out.rows = 4; }), "out is 4 x 5, but must have 1 row"},
      {broken(copy, [](Copy& o) { o.to.cols = 4; }), "from is 4 x 5, but n = 4 (from to)"},
      {broken(copy, [](Copy& o) { o.to.dtype = DType::kI32; }), "to must be f32"},
      {broken(randn, [](Randn& o) { o.out.dtype = DType::kI32; }), "out must be f32"},
      {broken(randn, [](Randn& o) { o.state.cols -= 1; }),
       "state must have the bytes of its generator"},
      {broken(randn, [](Randn& o) { o.generator = Generator::kTorchCuda; }),
       "state must have the bytes of its generator"},
      {DeviceOp{Cast{f32(0, 4, 5), f32(1, 4, 5)}}, "to must be bf16"},
      {DeviceOp{Cast{bf16(0, 4, 5), bf16(1, 4, 5)}}, "to must be f32"},
      {DeviceOp{Cast{bf16(0, 4, 5), f32(1, 4, 4)}}, "from is 4 x 4, but n = 5 (from to)"},
      {DeviceOp{Fill{i32(0, 4, 5)}}, "out must be f32"},
      {DeviceOp{Delay{-0.1}}, "seconds must be zero or more"},
      {DeviceOp{Delay{infinity}}, "seconds must be zero or more"},
      {DeviceOp{Delay{1, f32(0, 1, 2)}}, "more_seconds is 1 x 2, but must have 1 column"},
  });
}

TEST(Validate, RefusesUpdatesFromFactorsThatDoNotFit) {
  const SumSquares sum{f32(0, 1, 1), f32(1, 1, 5)};
  const GramSquares gram{f32(0, 1, 1), f32(1, 5, 5), f32(2, 5, 5)};
  const ClipFactor factor{f32(0, 1, 1), f32(1, 1, 3)};
  expect_refused({
      {broken(linear_adam(), [](LinearAdam& o) { o.x.rows = 6; }),
       "x is 6 x 5, but r = 7 (from grad_y)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.x.cols = 6; }),
       "x is 7 x 6, but n = 5 (from weight)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.grad_y.cols = 5; }),
       "grad_y is 7 x 5, but m = 4 (from weight)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.bias.cols = 5; }),
       "bias is 1 x 5, but m = 4 (from weight)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.weight_moments1.cols = 4; }),
       "weight_moments1 is 4 x 4, but n = 5 (from weight)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.bias_moments1.cols = 5; }),
       "bias_moments1 is 1 x 5, but m = 4 (from weight)"},
      {broken(linear_adam(), [](LinearAdam& o) { o.step.decoupled = true; }),
       "scalars is 1 x 2, but must have 3 columns"},
      {broken(linear_adam(), [](LinearAdam& o) { o.step.weight_decay = -1; }), "zero or more"},
      {broken(linear_adam(), [](LinearAdam& o) { o.step.amsgrad = true; }),
       "AMSGrad has no update from factors"},
      {broken(linear_adam(), [](LinearAdam& o) { o.x.buffer = o.weight.buffer; }),
       "weight must not share bytes with x"},
      {broken(clipped(linear_adam()), [](LinearAdam& o) { o.clip->rows = 2; }),
       "clip is 2 x 1, but must have 1 row"},
      {broken(sum, [](SumSquares& o) { o.out.cols = 2; }), "out is 1 x 2, but must have 1 column"},
      {broken(gram, [](GramSquares& o) { o.gram_y.rows = 4; }),
       "gram_y is 4 x 5, but N = 4 (from gram_y)"},
      {broken(gram, [](GramSquares& o) { o.gram_x = f32(2, 4, 4); }),
       "gram_x is 4 x 4, but N = 5 (from gram_y)"},
      {broken(factor, [](ClipFactor& o) { o.factor.cols = 2; }),
       "factor is 1 x 2, but must have 1 column"},
      {broken(factor, [](ClipFactor& o) { o.squares = f32(1, 3, 1); }),
       "squares is 3 x 1, but must have 1 row"},
      {broken(factor, [](ClipFactor& o) { o.max_norm = 0; }), "max_norm must be above zero"},
  });
  // A rank may have no rows.
  EXPECT_NO_THROW(
      validate(broken(linear_adam(), [](LinearAdam& o) { o.grad_y.rows = o.x.rows = 0; })));
}

TEST(Validate, RefusesCollectivesThatDoNotFit) {
  expect_refused({
      {Collective{AllReduce{}}, "a collective must have a tensor"},
      {Collective{Broadcast{}}, "a collective must have a tensor"},
      {Collective{AllReduce{{f32(0, 1, 9), f32(1, 1, 8)}}},
       "tensor 1 is 1 x 8, but n = 9 (from tensor)"},
      {Collective{Broadcast{{f32(0, 1, 9), f32(1, 9, 1)}}},
       "tensor 1 is 9 x 1, but m = 1 (from tensor)"},
      {Collective{Broadcast{{f32(0, 1, 9), i32(1, 1, 9)}}}, "tensor 1 must be f32"},
      {Collective{Reduce{{i32(0, 1, 9)}}}, "tensor must be f32"},
      {Collective{Reduce{{f32(0, 1, 9)}, -1}}, "root must be a rank"},
      {Collective{AllReduce{{f32(0, 1, 9), f32(0, 1, 9)}}}, "must not share bytes"},
      {Collective{AllReduce{{bf16(0, 1, 9), f32(1, 1, 9)}}}, "tensor 1 must be bf16"},
      {Collective{AllReduce{{bf16(0, 1, 9)}, 0.5F}}, "only floats are scaled"},
      {Collective{ReduceScatter{{i32(0, 2, 9)}}}, "tensor must be f32"},
      {Collective{ReduceScatter{{bf16(0, 2, 9)}}}, "tensor must be f32"},
      {Collective{AllGather{{f32(0, 2, 9)}, {f32(1, 1, 9), f32(2, 1, 9)}}},
       "own must be one for each tensor"},
      {Collective{AllGather{{f32(0, 2, 9)}, {f32(1, 3, 9)}}}, "own must be rows of the tensor"},
      {Collective{AllGather{{f32(0, 2, 9)}, {f32(1, 1, 8)}}},
       "own is 1 x 8, but n = 9 (from tensor)"},
      {Collective{SendReceive{}}, "an exchange must send or receive"},
      {Collective{SendReceive{f32(0, 2, 9), {}, -1}}, "peer must be a rank"},
      {Collective{SendReceive{f32(0, 2, 9), bf16(1, 2, 9)}}, "receives must be f32"},
      {Collective{SendReceive{f32(0, 2, 9), f32(0, 2, 9)}}, "must not share bytes"},
  });
  EXPECT_NO_THROW(validate(Collective{Broadcast{{state(0), state(1)}, 5}}));
}

TEST(Validate, RefusesTensorsThatCannotBe) {
  const std::string size = "c must have zero or more rows and one or more columns";
  expect_refused({
      {broken(gemm(), [](Gemm& o) { o.c.rows = -1; }), size},
      {broken(gemm(), [](Gemm& o) { o.c.cols = 0; }), size},
      {broken(gemm(), [](Gemm& o) { o.a.offset_bytes = -4; }), "a must start at a multiple"},
      {broken(gemm(), [](Gemm& o) { o.a.offset_bytes = 2; }), "a must start at a multiple"},
      {broken(gemm(), [](Gemm& o) { o.b.dtype = DType::kI32; }), "b must be f32"},
      {broken(gemm(), [](Gemm& o) { o.b.buffer = o.c.buffer; }), "c must not share bytes with b"},
      {DeviceOp{Copy{f32(0, 4, 5), f32(0, 4, 5)}}, "to must not share bytes with from"},
  });
}

TEST(Validate, NamesTheOpAndAllItsTensors) {
  expect_error(ExitCode::kBug,
               "ill-formed op 'gemm': bias is 1 x 6, but n = 5 (from c) (c 4x5 f32, a 4x3 f32, "
               "b 3x5 f32, bias 1x6 f32); this is a bug in barestep, please report it",
               [] { validate(broken(gemm_with_bias(), [](Gemm& o) { o.bias->cols = 6; })); });
}

TEST(Validate, AcceptsZeroRowsAndReadingATensorTwice) {
  EXPECT_NO_THROW(
      validate(DeviceOp{Gemm{.c = f32(0, 0, 5), .a = f32(1, 0, 3), .b = f32(2, 3, 5)}}));
  EXPECT_NO_THROW(validate(
      DeviceOp{PointwiseLoss{f32(0, 1, 1), f32(1, 0, 5), f32(2, 0, 5), f32(3, 0, 5), 20}}));
  EXPECT_NO_THROW(
      validate(DeviceOp{Gemm{.c = f32(0, 3, 3), .a = f32(1, 3, 3), .b = f32(1, 3, 3)}}));
}

TEST(Validate, CallsATensorTooLargeAMatterOfMemory) {
  const std::int64_t huge = std::int64_t{1} << 31;
  expect_error(ExitCode::kMemory,
               "size of 'out': is larger than 2^63 - 1; make the model or the batch smaller",
               [&] { validate(DeviceOp{Fill{f32(0, huge, huge)}}); });
}

}  // namespace
}  // namespace barestep
