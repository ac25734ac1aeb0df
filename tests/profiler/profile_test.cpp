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

/// The node that is missing from the sample's two steps when this record is.
std::string missing_without(const SampleProfile& sample, std::int64_t step, NodeId node) {
  RecordCollector collector({.first = 0, .end = 2}, 100);
  for (const Record& record : sample.records()) {
    if (record.tag.step != step || record.tag.node != node) collector.on_record(record);
  }
  const Program* const program = &sample.program();
  const auto programs = std::span(&program, 1);
  return node_without_record(programs, join(programs, collector, sample.steps()), true);
}

TEST(Profile, NamesANodeThatHasNoRecord) {
  const SampleProfile sample;
  EXPECT_EQ(missing_without(sample, 7, SampleProfile::kAdam), "") << "all are there";
  EXPECT_EQ(missing_without(sample, 0, SampleProfile::kForward),
            "gemm of layer 0 in forward, step 0");
  EXPECT_EQ(missing_without(sample, 1, SampleProfile::kAdam), "adam in optimizer, step 1");
}

TEST(Profile, MissesAllRecordsOfAStep) {
  const SampleProfile sample;
  const RecordCollector collector({.first = 0, .end = 2}, 100);
  const Program* const program = &sample.program();
  const auto programs = std::span(&program, 1);
  EXPECT_EQ(node_without_record(programs, join(programs, collector, sample.steps()), true),
            "step 0");
}

TEST(Profile, NeedsNoRecordOfANodeThatDoesNothing) {
  Buffers buffers;
  const Tensor none = buffers.tensor("none", Category::kData, 0, 4);
  const Tensor row = buffers.tensor("row", Category::kData, 1, 4);
  Program program("step", buffers);
  program.add({.op = DeviceOp{Fill{.out = row}}});
  program.add({.op = DeviceOp{Fill{.out = none}}});
  program.add({.op = Collective{AllReduce{.tensors = {row}}}, .lane = Lane::kComm});
  program.add({.op = DeviceOp{Delay{.seconds = 1}}});
  RecordCollector collector({.first = 0, .end = 1}, 10);
  collector.on_record({.tag = {.program = 0, .step = 0, .node = 0}});
  const Program* const of_run = &program;
  const auto programs = std::span(&of_run, 1);
  const HostStep step{};
  const auto missing = [&](bool exchanges) {
    return node_without_record(programs, join(programs, collector, std::span(&step, 1)), exchanges);
  };
  EXPECT_EQ(missing(true), "all_reduce in forward, step 0");
  EXPECT_EQ(missing(false), "delay in forward, step 0") << "one rank moves nothing";
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
