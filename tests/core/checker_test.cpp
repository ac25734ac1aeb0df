// order() and check() test each other: check() must find nothing after order(), and must find a
// violation without any one of order()'s waits.
#include "core/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/program.h"
#include "support/sample_programs.h"

namespace barestep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string all_violations(const Program& program) {
  std::string text;
  for (const Violation& violation : check(program)) text += describe(program, violation) + "\n";
  return text;
}

/// Deletes each wait in turn; returns the number of waits and reports those whose deletion is not
/// found.
int expect_every_deletion_found(Program program) {
  int waits = 0;
  for (NodeId id = 0; id < program.size(); ++id) {
    Node& node = program.nodes()[static_cast<std::size_t>(id)];
    const auto all = node.waits;
    for (std::size_t i = 0; i < all.size(); ++i) {
      node.waits.erase(node.waits.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(check(program).empty())
          << "node " << id << " need not wait for node " << all[i].node << ", " << all[i].steps_back
          << " steps back";
      node.waits = all;
      ++waits;
    }
  }
  return waits;
}

/// Without order() there are violations; with it there are none, and every wait is needed.
void expect_ordered_minimally(SampleProgram sample) {
  EXPECT_FALSE(check(sample.program).empty());
  order(sample.program);
  EXPECT_EQ(all_violations(sample.program), "");
  EXPECT_GT(expect_every_deletion_found(sample.program), 0);
}

TEST(Checker, FindsEveryDeletedWaitOfATrainingStep) {
  expect_ordered_minimally(training_step({}));
}

TEST(Checker, FindsEveryDeletedWaitOfMicroSteps) {
  expect_ordered_minimally(training_step({.rows = 12, .micro_steps = 3, .fused = true}));
}

TEST(Checker, FindsEveryDeletedWaitOfADdpStep) {
  expect_ordered_minimally(ddp_step({}, 2, 1, false));
  expect_ordered_minimally(ddp_step({}, 3, 2, false));
}

TEST(Checker, FindsEveryDeletedWaitOfADdpStepWithAdamPerBucket) {
  expect_ordered_minimally(ddp_step({}, 2, 1, true));
}

TEST(Checker, FindsEveryDeletedWaitOfADataParallelStep) {
  expect_ordered_minimally(data_parallel_step({}, 3));
  expect_ordered_minimally(data_parallel_step({.widths = {4, 4}, .rows = 4, .fused = true}, 3));
}

TEST(Checker, FindsEveryDeletedWaitOfAnEvaluation) {
  expect_ordered_minimally(evaluation_step({}));
}

TEST(Checker, FindsEveryDeletedWaitOfRandomPrograms) {
  int waits = 0;
  int across_steps = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SampleProgram sample = random_program(seed);
    order(sample.program);
    ASSERT_EQ(all_violations(sample.program), "");
    waits += expect_every_deletion_found(sample.program);
    for (const Node& node : sample.program.nodes()) {
      for (const Wait& wait : node.waits) across_steps += wait.steps_back > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(waits, 1000);
  EXPECT_GT(across_steps, 500);
}

/// Two buffers of 16 numbers on device 0; the second has two slots.
class SmallProgram : public ::testing::Test {
 protected:
  SmallProgram()
      : one_(buffers_.tensor("one", Category::kData, 4, 4)),
        two_(buffers_.tensor("two", Category::kData, 4, 4, DType::kF32, 0, 2)) {}

  NodeId add(const DeviceOp& op, Lane lane, std::vector<Wait> waits = {}) {
    return program_.add({op, 0, lane, Phase::kForward, "", std::move(waits)});
  }

  Buffers buffers_;
  Tensor one_, two_;
  Program program_{"small", buffers_};
};

TEST_F(SmallProgram, NamesTheUnorderedPairsOfThisStepAndOfEarlierOnes) {
  add(Fill{one_}, Lane::kCopy);
  add(Copy{two_, one_}, Lane::kCompute);
  EXPECT_THAT(check(program_),
              ElementsAre(Violation{1, 0, 1}, Violation{1, 0, 2}, Violation{0, 1, 0},
                          Violation{0, 1, 1}, Violation{0, 1, 2}));
}

TEST_F(SmallProgram, LetsAWaitCoverEarlierSteps) {
  add(Fill{one_}, Lane::kCopy);
  add(Copy{two_, one_}, Lane::kCompute, {{0, 0}});
  program_.nodes()[0].waits = {{1, 1}};
  EXPECT_THAT(check(program_), IsEmpty());
  program_.nodes()[0].waits.clear();
  EXPECT_THAT(check(program_), ElementsAre(Violation{1, 0, 1}, Violation{1, 0, 2}));
}

TEST_F(SmallProgram, LetsTwoSlotsMeetOnlyEverySecondStep) {
  add(Fill{two_}, Lane::kCopy);
  add(Copy{one_, two_}, Lane::kCompute, {{0, 0}});
  EXPECT_THAT(check(program_), ElementsAre(Violation{1, 0, 2}));
  program_.nodes()[0].waits = {{1, 2}};
  EXPECT_THAT(check(program_), IsEmpty());
}

TEST_F(SmallProgram, LetsReadersRunSideBySide) {
  const Tensor other = buffers_.tensor("other", Category::kData, 4, 4);
  add(Copy{two_, one_}, Lane::kCopy);
  add(Copy{other, one_}, Lane::kCompute);
  EXPECT_THAT(check(program_), IsEmpty());
}

TEST_F(SmallProgram, LetsDisjointRowsAndEmptyTensorsRunSideBySide) {
  add(Fill{one_.row_slice(0, 2)}, Lane::kCopy);
  add(Fill{one_.row_slice(2, 2)}, Lane::kCompute);
  add(Fill{one_.row_slice(1, 0)}, Lane::kComm);
  EXPECT_THAT(check(program_), IsEmpty());
}

TEST_F(SmallProgram, DescribesAViolationForPeople) {
  add(Fill{one_}, Lane::kCopy);
  add(Copy{two_.row_slice(0, 3), one_.row_slice(1, 3)}, Lane::kCompute);
  EXPECT_EQ(describe(program_, {0, 1, 0}),
            "node 1 (copy, compute lane of device 0) may start before node 0 (fill, copy lane of "
            "device 0) is finished; both touch bytes 16 to 63 of buffer one");
  EXPECT_EQ(describe(program_, {1, 0, 1}),
            "node 0 (fill, copy lane of device 0) may start before node 1 (copy, compute lane of "
            "device 0), 1 step earlier, is finished; both touch bytes 16 to 63 of buffer one");
}

TEST_F(SmallProgram, RefusesWaitsThatCannotBe) {
  add(Fill{one_}, Lane::kCopy);
  add(Fill{two_}, Lane::kCompute);
  const auto message = [&](const Wait& wait) -> std::string {
    program_.nodes()[0].waits = {wait};
    try {
      check(program_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBug);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({1, 0}), HasSubstr("node 0 waits for node 1 of the same step"));
  EXPECT_THAT(message({0, 0}), HasSubstr("node 0 waits for node 0 of the same step"));
  EXPECT_THAT(message({1, 3}), HasSubstr("node 0 waits 3 steps back"));
  EXPECT_THAT(message({1, -1}), HasSubstr("node 0 waits -1 steps back"));
  EXPECT_THAT(message({2, 1}), HasSubstr("node 0 waits for a node that does not exist"));
  EXPECT_EQ(message({1, 2}), "");
}

TEST(Checker, LetsALaneOfACollectiveGoOnWhenItsOwnPartIsDone) {
  Buffers buffers;
  const auto on = [&](int device) {
    return buffers.tensor("sum", Category::kData, 1, 4, DType::kF32, device);
  };
  const Tensor first = on(0);
  const Tensor second = on(1);
  Program program("parts", buffers);
  program.add({Collective{AllReduce{{first, second}}}, 0, Lane::kComm, Phase::kCommunication});
  program.add({DeviceOp{Fill{first}}, 0, Lane::kComm, Phase::kForward});
  EXPECT_THAT(check(program), IsEmpty());

  // The lane of device 0 has no order with the part of device 1; the next step's collective starts
  // after both lanes.
  program.add({DeviceOp{Fill{second}}, 0, Lane::kComm, Phase::kForward});
  EXPECT_THAT(check(program), ElementsAre(Violation{0, 2, 0}));
}

}  // namespace
}  // namespace barestep
