#include "core/program.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

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
  expect_error(ExitCode::kBug, expected, [&] { buffers.get("x", Category::kGradients, 100); });
  expect_error(ExitCode::kBug, expected, [&] { buffers.get("x", Category::kData, 100, 0, 2); });
  expect_error(ExitCode::kBug, expected,
               [&] { buffers.get("x", Category::kData, 100, 0, 1, true); });
  expect_error(ExitCode::kBug, "one or two slots",
               [&] { buffers.get("y", Category::kData, 100, 0, 3); });
  expect_error(ExitCode::kBug, "a buffer has a size",
               [&] { buffers.get("y", Category::kData, -1); });
  expect_error(ExitCode::kBug, "no such buffer", [&] { static_cast<void>(buffers[7]); });
}

TEST(Buffers, MakeTensorsAndRefuseThoseTooLarge) {
  Buffers buffers;
  const Tensor labels = buffers.tensor("labels", Category::kData, 8, 1, DType::kI32, 1, 2);
  EXPECT_EQ(labels, (Tensor{0, 0, 8, 1, DType::kI32}));
  EXPECT_EQ(buffers[labels.buffer].bytes, 32);
  EXPECT_EQ(buffers[labels.buffer].device, 1);

  const std::int64_t huge = std::int64_t{1} << 31;
  expect_error(ExitCode::kMemory,
               "size of 'params': is larger than 2^63 - 1; make the model or the batch smaller",
               [&] { buffers.tensor("params", Category::kParameters, huge, huge); });
  EXPECT_EQ(buffers.size(), 1);
}

TEST(Program, RefusesTensorsOutsideTheirBuffers) {
  Buffers buffers;
  const Tensor x = buffers.tensor("x", Category::kData, 4, 4);
  Program program("p", buffers);
  expect_error(ExitCode::kBug, "a tensor reaches beyond the end of buffer x",
               [&] { program.add({DeviceOp{Fill{x.row_slice(1, 4)}}}); });
  expect_error(ExitCode::kBug, "no such buffer", [&] {
    program.add({DeviceOp{Fill{{kNoBuffer, 0, 1, 1}}}});
  });
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
  expect_error(ExitCode::kBug, "two tensors of a collective lie on one device", [&] {
    program.add({Collective{AllReduce{{first, same_device}}}});
  });
}

TEST(PriceOf, SumsItsPhasesToTheTotal) {
  Buffers buffers;
  const Tensor x = buffers.tensor("x", Category::kData, 4, 4);
  const Tensor y = buffers.tensor("y", Category::kData, 4, 4);
  Program program("p", buffers);
  program.add({DeviceOp{Copy{y, x}}, 0, Lane::kCopy, Phase::kData});
  program.add({DeviceOp{Gemm{.c = y, .a = x, .b = x}}, 0, Lane::kCompute, Phase::kForward});
  program.add({DeviceOp{Gemm{.c = x, .a = y, .b = y}}, 0, Lane::kCompute, Phase::kForward});
  program.add({Collective{AllReduce{{x}}}, 0, Lane::kComm, Phase::kCommunication});
  const Price price = price_of(program);
  EXPECT_EQ(price.by_phase[Phase::kData], (Cost{.bytes = 2 * 64}));
  EXPECT_EQ(price.by_phase[Phase::kForward], (Cost{.flops = 2 * 128, .bytes = 2 * 3 * 64}));
  EXPECT_EQ(price.by_phase[Phase::kCommunication], (Cost{.message_bytes = 64}));
  EXPECT_EQ(price.total, (Cost{.flops = 256, .bytes = 512, .message_bytes = 64}));
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
