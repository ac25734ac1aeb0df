// order() and check() test each other: check() must find nothing after order(), and must find a
// violation without any one of order()'s waits.
#include "core/checker.h"

#include "core/program.h"
#include "support/expect_error.h"
#include "support/testing.h"
#include "support/waits.h"

namespace barestep {
namespace {

/// A program with the buffers it needs.
struct OwnedProgram {
  std::unique_ptr<Buffers> buffers = std::make_unique<Buffers>();
  Program program{"random", *buffers};
};

/// One to three devices, all lanes, Copy, Fill, AllReduce and Broadcast over random byte ranges, in
/// buffers of one or two slots. The same seed gives the same program.
OwnedProgram random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  constexpr std::int64_t kNumbers = 16;  // in every buffer
  OwnedProgram sample;
  auto& [buffers, program] = sample;
  const auto devices = static_cast<int>(1 + below(3));
  const std::int64_t names = 1 + below(3);
  for (std::int64_t name = 0; name < names; ++name) {
    for (int device = 0; device < devices; ++device) {
      buffers->tensor(std::string("b").append(std::to_string(name)), Category::kData, 1, kNumbers,
                      DType::kF32, device, static_cast<int>(1 + below(2)), below(4) == 0);
    }
  }
  const auto range = [&](BufferId id, std::int64_t first, std::int64_t numbers) {
    return Tensor{id, first * 4, 1, numbers};
  };
  const std::int64_t nodes = 2 + below(10);
  while (program.size() < nodes) {
    const std::int64_t numbers = 1 + below(kNumbers);
    const auto first = [&] { return below(kNumbers - numbers + 1); };
    const auto any = [&, b = buffers.get()] {
      return range(static_cast<BufferId>(below(b->size())), first(), numbers);
    };
    const auto device = static_cast<int>(below(devices));
    const auto lane = static_cast<Lane>(below(kCountOf<Lane>));
    const std::int64_t kind = below(8);
    if (kind < 2) {
      program.add({DeviceOp{Fill{any()}}, device, lane, Phase::kForward});
    } else if (kind < 6) {
      const Copy copy{any(), any()};
      if (!overlap(copy.to, copy.from)) {
        program.add({DeviceOp{copy}, device, lane, Phase::kForward});
      }
    } else {
      std::vector<Tensor> parts;  // one per device
      for (int d = 0; d < devices; ++d) {
        parts.push_back(range(static_cast<BufferId>(below(names) * devices + d), first(), numbers));
      }
      const Collective op = kind == 6 ? Collective{AllReduce{parts}} : Collective{Broadcast{parts}};
      program.add({op, 0, lane, Phase::kCommunication});
    }
  }
  return sample;
}

/// The programs of steps are tested in the same way where they are built.
TEST(Checker, FindsEveryDeletedWaitOfRandomPrograms) {
  int waits = 0;
  int across_steps = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    OwnedProgram sample = random_program(seed);
    order(sample.program);
    waits += expect_every_deletion_found(sample.program);
    ASSERT_FALSE(HasFailure());
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
  const auto refuses = [&](const Wait& wait, const std::string& text) {
    program_.nodes()[0].waits = {wait};
    expect_error(ExitCode::kBug, text, [&] { check(program_); });
  };
  refuses({1, 0}, "node 0 waits for node 1 of the same step");
  refuses({0, 0}, "node 0 waits for node 0 of the same step");
  refuses({1, 3}, "node 0 waits 3 steps back");
  refuses({1, -1}, "node 0 waits -1 steps back");
  refuses({2, 1}, "node 0 waits for a node that does not exist");
  program_.nodes()[0].waits = {{1, 2}};
  EXPECT_NO_THROW(check(program_));
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
