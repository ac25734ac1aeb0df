
#include "core/checker.h"
#include "core/program.h"
#include "support/testing.h"

namespace barestep {
namespace {

class Order : public ::testing::Test {
 protected:
  Tensor tensor(const char* name, int slots = 1) {
    return buffers_.tensor(name, Category::kData, 1, 16, DType::kF32, 0, slots);
  }
  void add(const DeviceOp& op, Lane lane) { program_.add({op, 0, lane, Phase::kForward}); }
  const std::vector<Wait>& waits(NodeId id) {
    return program_.nodes()[static_cast<std::size_t>(id)].waits;
  }

  Buffers buffers_;
  Program program_{"small", buffers_};
};

TEST_F(Order, AddsNoWaitWhereALaneAlreadyOrders) {
  const Tensor a = tensor("a");
  add(Fill{a}, Lane::kCompute);
  add(Copy{tensor("b"), a}, Lane::kCompute);
  order(program_);
  EXPECT_THAT(waits(0), IsEmpty());
  EXPECT_THAT(waits(1), IsEmpty());
}

TEST_F(Order, LetsInputArriveWhileTheOtherSlotIsRead) {
  const Tensor x = tensor("x", 2);
  add(Fill{x}, Lane::kCopy);
  add(Copy{tensor("out"), x}, Lane::kCompute);
  order(program_);
  EXPECT_THAT(waits(0), ElementsAre(Wait{1, 2}));
  EXPECT_THAT(waits(1), ElementsAre(Wait{0, 0}));
}

TEST_F(Order, WaitsForTheNewestConflictOnly) {
  const Tensor a = tensor("a");
  const Tensor b = tensor("b");
  add(Fill{a}, Lane::kCopy);
  add(Fill{b}, Lane::kCopy);
  add(Copy{a, b}, Lane::kCompute);
  order(program_);
  EXPECT_THAT(waits(2), ElementsAre(Wait{1, 0}));
}

TEST_F(Order, LetsAWaitOfAnotherLaneCoverAnother) {
  const Tensor a = tensor("a");
  const Tensor b = tensor("b");
  add(Fill{a}, Lane::kCopy);
  add(Copy{b, a}, Lane::kCompute);
  add(Copy{a, b}, Lane::kComm);  // ordered after node 0 through node 1
  order(program_);
  EXPECT_THAT(waits(2), ElementsAre(Wait{1, 0}));
}

TEST_F(Order, ReplacesTheWaitsItFinds) {
  const Tensor a = tensor("a");
  add(Fill{a}, Lane::kCopy);
  add(Copy{tensor("b"), a}, Lane::kCompute);
  program_.nodes()[1].waits = {{0, 2}, {0, 1}};
  order(program_);
  const auto once = waits(1);
  EXPECT_THAT(once, ElementsAre(Wait{0, 0}));
  order(program_);
  EXPECT_EQ(waits(1), once);
}

TEST_F(Order, AcceptsAnEmptyProgram) {
  order(program_);
  EXPECT_TRUE(check(program_).empty());
}

}  // namespace
}  // namespace barestep
