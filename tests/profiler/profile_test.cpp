#include "profiler/profile.h"

#include "profiler/account.h"
#include "support/sample_profile.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(Profile, GivesEverySpanItsNodeAndItsPrice) {
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

TEST(Profile, SortsByTimeWhateverTheOrderOfNodes) {
  const SampleProfile sample;
  std::vector<ProfiledStep> steps = sample.steps();
  for (Span& span : steps[0].timeline.spans) {
    const double length_s = span.seconds();
    span.begin_s = 201 - span.begin_s;
    span.end_s = span.begin_s + length_s;
  }
  const Profile profile = profile_of(steps, 0, {});
  for (std::size_t i = 1; i < profile.ops.size(); ++i) {
    EXPECT_LE(profile.ops[i - 1].start_s, profile.ops[i].start_s);
  }
}

TEST(Profile, LeavesOutStepsThatLackADroppedRecord) {
  const SampleProfile sample;
  std::vector<ProfiledStep> steps = sample.steps();
  steps[1].timeline.spans[SampleProfile::kLoss] = {};
  EXPECT_EQ(profile_of(steps, 0, {}).steps.size(), 2U) << "nothing was dropped: an error";
  const Profile profile = profile_of(steps, 4, {});
  EXPECT_EQ(profile.dropped, 4);
  ASSERT_EQ(profile.steps.size(), 1U);
  EXPECT_EQ(profile.steps[0].number, 0);
  EXPECT_EQ(profile.ops.size(), 5U);
  EXPECT_EQ(profile.queued.size(), 5U);
  steps[0].timeline.spans[SampleProfile::kLoss] = {};
  EXPECT_TRUE(profile_of(steps, 4, {}).steps.empty());
  EXPECT_TRUE(profile_of(steps, 4, {}).ops.empty());
}

TEST(Profile, QueuesEachOfAStepsGraphsInOnePiece) {
  const SampleProfile sample;
  std::vector<ProfiledStep> steps = sample.steps();
  for (Span& span : std::span(steps[0].timeline.spans).subspan(1)) {
    span.queued_s = 100.00005;
    span.queued_until_s = 100.00009;
  }
  steps[0].timeline.host.is_graph = true;
  const Profile profile = profile_of(steps, 0, {}).of({.first = 0, .end = 1});
  ASSERT_EQ(profile.queued.size(), 2U);
  EXPECT_EQ(profile.queued[0].tag.node, SampleProfile::kCopyX);
  EXPECT_EQ(profile.queued[1].tag.node, kGraphLaunch);
  EXPECT_EQ(profile.queued[1].label, "launch graph");
  EXPECT_EQ(profile.queued[1].start_s, 100.00005);
  EXPECT_EQ(profile.queued[1].end_s, 100.00009);
  steps[0].timeline.host.input_is_graph = true;
  const Profile of_two = profile_of(steps, 0, {}).of({.first = 0, .end = 1});
  ASSERT_EQ(of_two.queued.size(), 2U);
  EXPECT_EQ(of_two.queued[0].tag.node, kInputLaunch);
  EXPECT_EQ(of_two.queued[0].label, "launch input graph");
}

TEST(Profile, NamesANodeThatHasNoTimes) {
  const SampleProfile sample;
  const auto missing_without = [&](std::size_t step, NodeId node) {
    std::vector<ProfiledStep> steps = sample.steps();
    steps[step].timeline.spans[static_cast<std::size_t>(node)].end_s = 0;
    return node_without_record(steps, {});
  };
  EXPECT_EQ(node_without_record(sample.steps(), {}), "") << "all are there";
  EXPECT_EQ(missing_without(0, SampleProfile::kForward), "gemm of net.0 in forward, step 0");
  EXPECT_EQ(missing_without(1, SampleProfile::kAdam), "adam in optimizer, step 1");
}

/// The first node without a record, of a step in which no node has one.
std::string node_without_record_of(std::vector<Op> ops, const Mesh& mesh, const Buffers& buffers) {
  Program program("step", buffers);
  for (Op& op : ops) program.add({.op = std::move(op), .lane = Lane::kComm});
  const RunPlan plan(program, RunDetail::kNodes);
  const auto no_times = [](NodeId) { return Span{}; };
  const std::vector<ProfiledStep> steps = {profiled_step(plan, 0, {}, no_times)};
  return node_without_record(steps, mesh);
}

TEST(Profile, NeedsNoTimesOfANodeThatDoesNothing) {
  Buffers buffers;
  const Tensor none = buffers.tensor("none", Category::kData, 0, 4);
  const Tensor row = buffers.tensor("row", Category::kData, 1, 4);
  const Tensor other = buffers.tensor("other", Category::kData, 1, 4, DType::kF32, 1);
  const Mesh alone, pair = Mesh::of_data(0, 2), stages{.pipeline = 2};
  const auto missing = [&](const Op& op, const Mesh& mesh) {
    const std::string text =
        node_without_record_of({op, DeviceOp{Delay{.seconds = 1}}}, mesh, buffers);
    return text.substr(0, text.find(' '));
  };
  EXPECT_EQ(missing(DeviceOp{Fill{.out = row}}, alone), "fill");
  EXPECT_EQ(missing(DeviceOp{Fill{.out = none}}, alone), "delay");
  const auto sum = [](const Tensor& tensor, Axis axis) {
    return Collective{AllReduce{.tensors = {tensor}, .axis = axis}};
  };
  EXPECT_EQ(missing(sum(row, Axis::kAll), pair), "all_reduce");
  EXPECT_EQ(missing(sum(none, Axis::kAll), pair), "delay");
  EXPECT_EQ(missing(sum(row, Axis::kAll), alone), "delay") << "one rank moves nothing";
  EXPECT_EQ(missing(sum(row, Axis::kData), stages), "delay") << "nor does a group of one";
  EXPECT_EQ(missing(sum(row, Axis::kPipeline), stages), "all_reduce");
  const Collective of_devices = Broadcast{.tensors = {row, other}};
  EXPECT_EQ(missing(of_devices, alone), "broadcast") << "from one device of a rank to another";
  const auto sends = [](const Tensor& tensor) {
    return Collective{SendReceive{.sends = tensor, .peer = 1}};
  };
  EXPECT_EQ(missing(sends(row), stages), "send_receive");
  EXPECT_EQ(missing(sends(none), stages), "delay");
}

TEST(ProfiledSteps, KeepWhatThereIsRoomForAndCountTheRest) {
  const SampleProfile sample;
  const StepTimeline& step = sample.steps()[0].timeline;
  Timeline timeline;
  timeline.add(step);
  ProfiledSteps steps(10, SampleProfile::kNodes, 2 * SampleProfile::kNodes + 1);
  for (std::int64_t number = 0; number < 4; ++number) steps.add(number, timeline, 101);
  ASSERT_EQ(steps.kept().size(), 2U);
  EXPECT_EQ(steps.kept()[1].number, 1);
  EXPECT_EQ(steps.kept()[1].reported_s, 101);
  EXPECT_EQ(steps.kept()[1].timeline.spans[SampleProfile::kAdam].end_s,
            step.spans[SampleProfile::kAdam].end_s);
  EXPECT_EQ(steps.dropped(), 2 * SampleProfile::kNodes);
  steps.clear();
  EXPECT_TRUE(steps.kept().empty());
}

/// The step that was not profiled counts too.
TEST(ProfiledSteps, KnowTheTimeSinceTheStepBefore) {
  const SampleProfile sample;
  Timeline timeline;
  timeline.add(sample.steps()[0].timeline);
  timeline.add(sample.steps()[1].timeline);
  ProfiledSteps steps(1, SampleProfile::kNodes, 100);
  steps.add(1, timeline, 0);
  EXPECT_NEAR(steps.kept()[0].between_s, 0.002, 1e-9);
  EXPECT_NEAR(accounts_of(profile_of(steps.kept(), 0, {})).at(0).between_s, 0.002, 1e-9);
}

TEST(ProfiledSteps, TellTheTimeOfACheckpointFromThatBetweenSteps) {
  const SampleProfile sample;
  Timeline timeline;
  timeline.add(sample.steps()[0].timeline);
  timeline.add(sample.steps()[1].timeline);
  ProfiledSteps steps(1, SampleProfile::kNodes, 100);
  steps.add(1, timeline, 0, 0.0015);
  const StepAccount account = accounts_of(profile_of(steps.kept(), 0, {})).at(0);
  EXPECT_NEAR(account.between_s, 0.0005, 1e-9);
  EXPECT_EQ(account.checkpoint_s, 0.0015);
}

/// A tool's record of the sample's first step, whose products ran as two kernels each.
class SeenByATool final : public GpuRecords {
 public:
  SeenByATool(const ProfiledStep& step, bool in_graph) {
    for (NodeId node = 0; node < SampleProfile::kNodes; ++node) {
      const Span& span = step.timeline.spans[static_cast<std::size_t>(node)];
      const double middle_s = (span.begin_s + span.end_s) / 2;
      const Tag tag{.step = step.timeline.step, .node = node};
      activities_.push_back({.tag = tag, .start_s = span.begin_s, .end_s = middle_s});
      activities_.push_back({.tag = tag, .start_s = middle_s, .end_s = span.end_s});
      if (in_graph) continue;
      queued_.push_back({.tag = tag, .start_s = span.queued_s, .end_s = span.queued_until_s});
    }
    activities_.push_back({.start_s = 1, .end_s = 2});  // belongs to no node
    const auto launch = [&](NodeId of, double begin_s) {
      const Tag tag{.step = step.timeline.step, .node = of};
      queued_.push_back({.tag = tag, .start_s = begin_s, .end_s = begin_s + 1});
    };
    if (!in_graph) return;
    launch(kInputLaunch, 5);
    launch(kGraphLaunch, 7);
  }
  [[nodiscard]] std::string source() const override { return "a tool"; }
  std::string turn(bool /*on*/, bool /*keeps*/) override { return ""; }
  void capture(bool /*on*/) override {}
  void begin(const Tag& /*tag*/, std::string_view /*label*/, int /*device*/) override {}
  void end() override {}
  void collect() override {}
  void finish() override {}
  [[nodiscard]] std::span<const GpuActivity> activities() const override { return activities_; }
  [[nodiscard]] std::span<const Record> queued() const override { return queued_; }
  [[nodiscard]] std::int64_t dropped() const override { return 0; }

 private:
  std::vector<GpuActivity> activities_;
  std::vector<Record> queued_;
};

TEST(ProfiledSteps, AreAmendedByWhatAToolSawOfTheNodes) {
  const SampleProfile sample;
  const std::vector<Span>& expected = sample.steps()[0].timeline.spans;
  for (const bool in_graph : {false, true}) {
    StepTimeline by_runs = sample.steps()[0].timeline;
    by_runs.plan = std::make_shared<const RunPlan>(sample.program(), RunDetail::kRuns);
    by_runs.spans.assign(by_runs.plan->runs().size(), {.begin_s = 1, .end_s = 2});
    by_runs.host.is_graph = by_runs.host.input_is_graph = in_graph;
    by_runs.clock_error_s = 1e-6;
    Timeline timeline;
    timeline.add(by_runs);
    ProfiledSteps steps(1, SampleProfile::kNodes, 100);
    steps.add(0, timeline, 0);
    steps.amend(SeenByATool(sample.steps()[0], in_graph));
    const StepTimeline& amended = steps.kept()[0].timeline;
    EXPECT_EQ(amended.plan->detail(), RunDetail::kNodes);
    EXPECT_EQ(amended.clock_error_s, 0) << "it was that of events";
    EXPECT_EQ(amended.host.end_s, by_runs.host.end_s);
    ASSERT_EQ(amended.spans.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double launched_s = i == SampleProfile::kCopyX ? 5 : 7;
      EXPECT_EQ(amended.spans[i].begin_s, expected[i].begin_s);
      EXPECT_EQ(amended.spans[i].end_s, expected[i].end_s);
      EXPECT_EQ(amended.spans[i].queued_s, in_graph ? launched_s : expected[i].queued_s);
      EXPECT_EQ(amended.spans[i].queued_until_s,
                in_graph ? launched_s + 1 : expected[i].queued_until_s);
    }
    EXPECT_EQ(node_without_record(steps.kept(), {}), "");
  }
}

/// A kernel that is launched ahead starts, and waits, while the one before it runs.
TEST(ProfiledSteps, DoNotCountTheTimeOfALaneTwice) {
  const SampleProfile sample;
  StepTimeline ahead = sample.steps()[0].timeline;
  double first_s = ahead.spans[0].begin_s;
  double last_s = 0;
  for (Span& span : ahead.spans) {
    span.begin_s -= 1;
    first_s = std::min(first_s, span.begin_s);
    last_s = std::max(last_s, span.end_s);
  }
  ProfiledStep seen = sample.steps()[0];
  seen.timeline = ahead;
  Timeline timeline;
  timeline.add(ahead);
  ProfiledSteps steps(1, SampleProfile::kNodes, 100);
  steps.add(0, timeline, 0);
  steps.amend(SeenByATool(seen, false));
  std::map<LaneId, double> of_lane;
  const StepTimeline& amended = steps.kept()[0].timeline;
  for (std::size_t i = 0; i < amended.spans.size(); ++i) {
    EXPECT_GE(amended.spans[i].seconds(), 0);
    of_lane[amended.plan->runs()[i].lane] += amended.spans[i].seconds();
  }
  for (const auto& [lane, seconds] : of_lane) EXPECT_LE(seconds, last_s - first_s + 1e-9);
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
