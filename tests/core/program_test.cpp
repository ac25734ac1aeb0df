#include "core/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "support/sample_programs.h"

namespace barestep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Function>
std::string bug(Function function, ExitCode code = ExitCode::kBug) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(Buffers, AreFoundByNameAndDeviceAndGrow) {
  Buffers buffers;
  const BufferId x = buffers.get("x", Category::kData, 100, 0, 2);
  EXPECT_EQ(buffers.get("x", Category::kData, 300, 0, 2), x);
  EXPECT_EQ(buffers.get("x", Category::kData, 200, 0, 2), x);
  EXPECT_EQ(buffers[x].bytes, 300);
  EXPECT_NE(buffers.get("x", Category::kData, 100, 1), x);
  EXPECT_EQ(buffers.size(), 2);
  EXPECT_EQ(buffers.max_slots(), 2);
}

TEST(Buffers, RefuseToChangeTheirKind) {
  Buffers buffers;
  buffers.get("x", Category::kData, 100);
  const std::string expected = "buffer x is asked for with another category, slot count or memory";
  EXPECT_THAT(bug([&] { buffers.get("x", Category::kGradients, 100); }), HasSubstr(expected));
  EXPECT_THAT(bug([&] { buffers.get("x", Category::kData, 100, 0, 2); }), HasSubstr(expected));
  EXPECT_THAT(bug([&] { buffers.get("x", Category::kData, 100, 0, 1, true); }),
              HasSubstr(expected));
  EXPECT_THAT(bug([&] { buffers.get("y", Category::kData, 100, 0, 3); }),
              HasSubstr("one or two slots"));
  EXPECT_THAT(bug([&] { buffers.get("y", Category::kData, -1); }),
              HasSubstr("a buffer has a size"));
  EXPECT_THAT(bug([&] { static_cast<void>(buffers[7]); }), HasSubstr("no such buffer"));
}

TEST(Buffers, MakeTensorsAndRefuseThoseTooLarge) {
  Buffers buffers;
  const Tensor labels = buffers.tensor("labels", Category::kData, 8, 1, DType::kI32, 1, 2);
  EXPECT_EQ(labels, (Tensor{0, 0, 8, 1, DType::kI32}));
  EXPECT_EQ(buffers[labels.buffer].bytes, 32);
  EXPECT_EQ(buffers[labels.buffer].device, 1);

  const std::int64_t huge = std::int64_t{1} << 31;
  EXPECT_EQ(
      bug([&] { buffers.tensor("params", Category::kParameters, huge, huge); }, ExitCode::kMemory),
      "size of 'params': is larger than 2^63 - 1; make the model or the batch smaller");
  EXPECT_EQ(buffers.size(), 1);
}

TEST(Program, RefusesTensorsOutsideTheirBuffers) {
  Buffers buffers;
  const Tensor x = buffers.tensor("x", Category::kData, 4, 4);
  Program program("p", buffers);
  EXPECT_THAT(bug([&] { program.add({DeviceOp{Fill{x.row_slice(1, 4)}}}); }),
              HasSubstr("a tensor reaches beyond the end of buffer x"));
  EXPECT_THAT(bug([&] {
                program.add({DeviceOp{Fill{{kNoBuffer, 0, 1, 1}}}});
              }),
              HasSubstr("no such buffer"));
  EXPECT_EQ(program.size(), 0);
  EXPECT_EQ(program.add({DeviceOp{Fill{x.row_slice(1, 3)}}}), 0);
}

TEST(Program, PutsACollectiveOnALaneOfEachDeviceAndRefusesTwoPartsOnOne) {
  Buffers buffers;
  const Tensor first = buffers.tensor("a", Category::kData, 1, 4);
  const Tensor second = buffers.tensor("a", Category::kData, 1, 4, DType::kF32, 1);
  const Tensor same_device = buffers.tensor("b", Category::kData, 1, 4);
  Program program("p", buffers);
  program.add({Collective{AllReduce{{first, second}}}, 0, Lane::kComm, Phase::kCommunication});
  EXPECT_THAT(lanes_of(program, program.nodes()[0]),
              ElementsAre(LaneId{0, Lane::kComm}, LaneId{1, Lane::kComm}));
  EXPECT_THAT(bug([&] {
                program.add({Collective{AllReduce{{first, same_device}}}});
              }),
              HasSubstr("two tensors of a collective lie on one device"));
}

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
  EXPECT_EQ(price.by_phase[Phase::kForward].flops, formula.forward + 2 * formula.outputs);
  EXPECT_EQ(price.by_phase[Phase::kBackward].flops, formula.backward + 2 * formula.outputs);

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
  EXPECT_EQ(price_of(sample.program).by_phase[Phase::kOptimizer].bytes, 7 * 4 * parameters + 2 * 4);
}

TEST(PriceOf, SumsItsPhasesToTheTotal) {
  const Price price = price_of(ddp_step({}, 2, 1, true).program);
  Cost sum;
  for (const Cost& cost : price.by_phase) sum += cost;
  EXPECT_EQ(sum, price.total);
  EXPECT_GT(price.total.message_bytes, 0);
  EXPECT_EQ(price.by_phase[Phase::kCommunication],
            (Cost{.message_bytes = price.total.message_bytes}));
}

TEST(PriceOf, CostsNothingForAnEmptyProgram) {
  const Buffers buffers;
  EXPECT_EQ(price_of(Program("empty", buffers)).total, Cost{});
}

TEST(Enums, HaveANameForEachValueAndIndexArrays) {
  EXPECT_EQ(kValuesOf<Category>.back(), Category::kCheckpoint);
  EXPECT_EQ(kValuesOf<Lane>.back(), Lane::kComm);
  EXPECT_EQ(kValuesOf<Phase>.back(), Phase::kEvaluate);
  EnumArray<Lane, int> times{};
  times[Lane::kComm] = 3;
  EXPECT_EQ(at(times, std::int64_t{2}), 3);
  EXPECT_EQ(at(times, NodeId{0}), 0);
}

}  // namespace
}  // namespace barestep
