#include "core/price.h"

#include <gtest/gtest.h>

#include "support/sample_programs.h"

namespace barestep {
namespace {

/// Sums of m * n and of 2 * m * n * k over the layers of an unfused step.
struct Formula {
  explicit Formula(const SampleShape& shape) {
    for (std::size_t l = 0; l + 1 < shape.widths.size(); ++l) {
      const std::int64_t product = 2 * shape.rows * shape.widths[l] * shape.widths[l + 1];
      forward += product;
      backward += l == 0 ? product : 2 * product;  // the first layer's input needs no gradient
      outputs += shape.rows * shape.widths[l + 1];
    }
  }
  std::int64_t forward = 0, backward = 0, outputs = 0;
};

TEST(PriceOf, CountsTwoFlopsForEachMultiplyAddOfATrainingStep) {
  const SampleShape shape{.widths = {8, 16, 12, 4}, .rows = 10};
  const Formula formula(shape);
  const SampleProgram sample = training_step(shape);
  const Price price = price_of(sample.program);
  EXPECT_EQ(price.of(Phase::kForward).flops, formula.forward + 2 * formula.outputs);
  EXPECT_EQ(price.of(Phase::kBackward).flops, formula.backward + 2 * formula.outputs);

  std::int64_t products = 0;
  for (const Node& node : sample.program.nodes()) {
    if (label_of(node.op) == "gemm") products += cost_of(node.op).flops;
  }
  EXPECT_EQ(products, formula.forward + formula.backward);
}

TEST(PriceOf, CountsTheSameFlopsFusedAndFewerBytes) {
  const Price apart = price_of(training_step({}).program);
  const Price fused = price_of(training_step({.fused = true}).program);
  EXPECT_EQ(fused.total.flops, apart.total.flops);
  EXPECT_LT(fused.total.bytes, apart.total.bytes);
}

TEST(PriceOf, CountsSevenWordsAParameterForAdam) {
  // Widths whose tensors need no padding to 64 bytes.
  const SampleProgram sample = training_step({.widths = {16, 32, 16}, .rows = 4});
  const std::int64_t parameters = 16 * 32 + 32 + 32 * 16 + 16;
  EXPECT_EQ(price_of(sample.program).of(Phase::kOptimizer).bytes, 7 * 4 * parameters + 2 * 4);
}

TEST(PriceOf, SumsItsPhasesToTheTotal) {
  const Price price = price_of(ddp_step({}, 2, 1, true).program);
  Cost sum;
  for (const Cost& cost : price.by_phase) sum += cost;
  EXPECT_EQ(sum, price.total);
  EXPECT_GT(price.total.message_bytes, 0);
  EXPECT_EQ(price.of(Phase::kReduce), (Cost{.message_bytes = price.total.message_bytes}));
}

TEST(PriceOf, CostsNothingForAnEmptyProgram) {
  const Buffers buffers;
  EXPECT_EQ(price_of(Program("empty", buffers)).total, Cost{});
}

}  // namespace
}  // namespace barestep
