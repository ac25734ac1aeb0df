#include "profiler/profile.h"

#include <gtest/gtest.h>

#include "support/sample_profile.h"

namespace barestep {
namespace {

TEST(Join, GivesEveryRecordItsNodeAndItsPrice) {
  const SampleProfile sample;
  const Profile profile = sample.profile();
  ASSERT_EQ(profile.ops.size(), 10U);
  EXPECT_EQ(profile.queued.size(), 10U);
  EXPECT_EQ(profile.steps.size(), 2U);
  for (const TimedOp& op : profile.ops) {
    EXPECT_EQ(op.node, &sample.program().nodes()[static_cast<std::size_t>(op.tag.node)]);
    EXPECT_EQ(op.cost, cost_of(op.node->op));
  }
}

TEST(Join, SortsByTimeWhateverTheOrderOfArrival) {
  const SampleProfile sample;
  RecordCollector collector({.first = 0, .end = 2}, 100);
  for (auto record = sample.records().rbegin(); record != sample.records().rend(); ++record) {
    collector.on_record(*record);
  }
  const Program* const program = &sample.program();
  const Profile profile = join(std::span(&program, 1), collector, sample.steps());
  for (std::size_t i = 1; i < profile.ops.size(); ++i) {
    EXPECT_LE(profile.ops[i - 1].start_s, profile.ops[i].start_s);
  }
}

TEST(Join, LeavesOutStepsThatLackARecord) {
  const SampleProfile sample;
  const Profile profile = sample.profile(8);  // of ten
  EXPECT_EQ(profile.dropped, 4);
  ASSERT_EQ(profile.steps.size(), 1U);
  EXPECT_EQ(profile.steps[0].step, 0);
  EXPECT_EQ(profile.ops.size(), 5U);
  EXPECT_EQ(profile.queued.size(), 5U);
  EXPECT_TRUE(sample.profile(3).steps.empty());
  EXPECT_TRUE(sample.profile(3).ops.empty());
}

TEST(Profile, CanBeOfSomeStepsOnly) {
  const SampleProfile sample;
  const Profile part = sample.profile().of({.first = 1, .end = 5});
  ASSERT_EQ(part.steps.size(), 1U);
  EXPECT_EQ(part.steps[0].number, 1);
  ASSERT_EQ(part.ops.size(), 5U);
  for (const TimedOp& op : part.ops) EXPECT_EQ(op.tag.step, 1);
  EXPECT_EQ(part.queued.size(), 5U);
  EXPECT_TRUE(sample.profile().of({.first = 7, .end = 9}).ops.empty());
}

}  // namespace
}  // namespace barestep
