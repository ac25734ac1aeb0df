// The account of a step as a fold over a timeline, on a simulated machine with known times.

#include "profiler/account.h"
#include "support/simulated_steps.h"
#include "support/testing.h"
#include "train/step.h"

namespace barestep {
namespace {

constexpr LaneId kMain{0, Lane::kCompute};

/// A number in [0, below); the same for a seed with every standard library.
int draw(std::mt19937& random, int below) {
  return static_cast<int>(random() % static_cast<unsigned>(below));
}

/// Adds nodes by what they compute and access.
class ProgramMaker {
 public:
  explicit ProgramMaker(Buffers& buffers) : program("made", buffers), buffers_(buffers) {}

  Tensor tensor(const std::string& name, int device = 0, int slots = 1) {
    return buffers_.tensor(name, Category::kActivations, 1, 4, DType::kF32, device, slots);
  }
  /// Input that is copied.
  void input(const std::string& name) {
    program.add(
        {.op = DeviceOp{Copy{.to = tensor(name, 0, 2), .from = tensor(name + "_host", 0, 2)}},
         .lane = Lane::kCopy,
         .phase = Phase::kData});
  }
  /// Input that is generated.
  void drawn_input(const std::string& name) {
    program.add({.op = DeviceOp{Fill{.out = tensor(name, 0, 2)}},
                 .lane = Lane::kCopy,
                 .phase = Phase::kData});
  }
  void work(const std::string& writes, Phase phase, int device = 0, Lane lane = Lane::kCompute) {
    program.add({.op = DeviceOp{Fill{.out = tensor(writes, device)}},
                 .device = device,
                 .lane = lane,
                 .phase = phase});
  }
  void work_on(const Tensor& reads, const std::string& writes, Phase phase, int device = 0) {
    program.add({.op = DeviceOp{Copy{.to = tensor(writes, device), .from = reads}},
                 .device = device,
                 .phase = phase});
  }
  void reduce(const std::string& name, int devices = 1, Axis axis = Axis::kAll) {
    AllReduce sum{.tensors = {}, .axis = axis};
    for (int device = 0; device < devices; ++device) sum.tensors.push_back(tensor(name, device));
    program.add({.op = Collective{sum}, .lane = Lane::kComm, .phase = Phase::kCommunication});
  }

  Program program;

 private:
  Buffers& buffers_;
};

/// Arbitrary work on the lanes of one or two devices after some input.
Program random_program(std::mt19937& random, Buffers& buffers, int devices) {
  ProgramMaker maker(buffers);
  const auto any = [&] { return "b" + std::to_string(draw(random, 4)); };
  maker.input("x");
  if (draw(random, 2) == 0) maker.drawn_input("y");
  constexpr std::array kPhasesInOrder = {Phase::kInjected, Phase::kForward, Phase::kLoss,
                                         Phase::kBackward, Phase::kOptimizer};
  const int nodes = 3 + draw(random, 25);
  for (int i = 0; i < nodes; ++i) {
    const int device = draw(random, devices);
    const Phase phase = kPhasesInOrder[static_cast<std::size_t>(i * 5 / nodes)];
    switch (draw(random, 6)) {
      case 0:
        maker.reduce(any(), devices);
        break;
      case 1:  // an update on the communication lane
        maker.work(any(), draw(random, 2) == 0 ? Phase::kCommunication : Phase::kOptimizer, device,
                   Lane::kComm);
        break;
      case 2:
        maker.work_on(maker.tensor("x", 0, 2), any(), phase, device);
        break;
      default:
        maker.work(any(), phase, device);
    }
  }
  maker.work(any(), Phase::kOptimizer);
  order(maker.program);
  return maker.program;
}

/// Checks every property of an account that does not depend on the causes.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed), devices_(1 + draw(random_, 2)) {
    for (int i = 0; i < 2; ++i) programs_.push_back(random_program(random_, buffers_, devices_));
    for (const Program& program : programs_) {
      by_phase_.emplace_back(program, RunDetail::kRuns);
      by_node_.emplace_back(program, RunDetail::kNodes);
    }
  }

  void check() {
    SimulatedSteps steps(machine());
    bool unfinished = false;
    std::size_t now = 0;
    const int count = 3 + draw(random_, 12);
    for (int i = 0; i < count; ++i) {
      const std::size_t next = draw(random_, 5) == 0 ? 1 - now : now;
      steps.queue(programs_[now], i + 1 == count ? nullptr : &programs_[next]);
      if (unfinished) check_step(steps.finish());
      unfinished = draw(random_, 3) != 0;
      if (!unfinished) check_step(steps.finish());
      now = next;
    }
    if (unfinished) check_step(steps.finish());
    EXPECT_NEAR(walls_s_ + between_s_, last_end_s_, 1e-9) << "the walls do not tile the run";
  }

 private:
  SimulatedMachine machine() {
    const auto sometimes = [this](double scale) {
      return [this, scale] { return draw(random_, 3) == 0 ? scale * draw(random_, 1000) : 0.0; };
    };
    has_gaps_ = draw(random_, 2) == 0;
    SimulatedMachine machine{
        .duration = [this](const Node&) { return 1e-3 * draw(random_, 1000); }};
    machine.filling = sometimes(1e-2);
    machine.reporting = sometimes(1e-2);
    if (has_gaps_) {
      machine.latency = sometimes(1e-4);
      machine.queueing = sometimes(draw(random_, 2) == 0 ? 1e-5 : 1e-3);
    }
    return machine;
  }

  void check_step(const SimulatedSteps::Step& step) {
    const auto number = static_cast<std::size_t>(&programs_[1] == step.program ? 1 : 0);
    phases_.add(step.timeline(by_phase_[number]));
    nodes_.add(step.timeline(by_node_[number]));
    for (int device = 0; device < devices_; ++device) check_lane(step, {device, Lane::kCompute});

    mixed_.add(step.timeline(draw(random_, 2) == 0 ? by_phase_[number] : by_node_[number]));
    const StepAccount coarse = account_of(phases_, kMain), fine = account_of(nodes_, kMain);
    const StepAccount mixed = account_of(mixed_, kMain);
    EXPECT_EQ(coarse.wall_s, fine.wall_s);
    EXPECT_EQ(mixed.wall_s, fine.wall_s);
    // Gaps between the nodes of a run count as part of the run.
    for (const Part part : kValuesOf<Part>) {
      if (has_gaps_) break;
      EXPECT_NEAR(coarse[part], fine[part], 1e-9) << "the detail changes a part";
      EXPECT_NEAR(mixed[part], fine[part], 1e-9) << "a change of detail changes a part";
    }
    const WallTime wall = phases_.wall_of_newest(kMain);
    if (step.host.overlaps_previous) EXPECT_EQ(wall.begin_s, last_end_s_);
    EXPECT_GE(wall.begin_s, last_end_s_);
    between_s_ += wall.begin_s - last_end_s_;
    walls_s_ += wall.seconds();
    last_end_s_ = wall.end_s;
  }

  void check_lane(const SimulatedSteps::Step& step, LaneId lane) {
    const WallTime wall = nodes_.wall_of_newest(lane);
    const StepAccount account = account_of(phases_, lane);
    double sum_s = 0;
    for (const double part_s : account.part_s) {
      EXPECT_GE(part_s, 0);
      sum_s += part_s;
    }
    EXPECT_NEAR(sum_s, wall.seconds(), 1e-9);
    EXPECT_GE(account.hidden_communication_s, 0);

    double at_s = wall.begin_s, own_s = 0;
    visit_stretches(nodes_, lane, [&](const CauseSpan& stretch) {
      EXPECT_EQ(stretch.begin_s, at_s) << "stretches leave a gap or overlap";
      at_s = stretch.end_s;
      if (stretch.is_own_work) own_s += stretch.seconds();
    });
    double ran_s = 0;  // by the nodes' own times
    for (NodeId id = 0; id < step.program->size(); ++id) {
      const auto index = static_cast<std::size_t>(id);
      const auto lanes = lanes_of(*step.program, step.program->nodes()[index]);
      for (std::size_t part = 0; part < lanes.size(); ++part) {
        if (lanes[part] != lane) continue;
        const Span& span = step.spans[index][part];
        ran_s +=
            std::max(0.0, std::min(span.end_s, wall.end_s) - std::max(span.begin_s, wall.begin_s));
      }
    }
    EXPECT_NEAR(own_s, ran_s, 1e-9) << "the lane's work is not that of its nodes";
  }

  std::mt19937 random_;
  int devices_;
  Buffers buffers_;
  std::deque<Program> programs_;
  std::deque<RunPlan> by_phase_, by_node_;
  bool has_gaps_ = false;
  Timeline phases_, nodes_, mixed_;
  double walls_s_ = 0, between_s_ = 0, last_end_s_ = 0;
};

TEST(StepCauses, HavePartsThatAddUpToWallsThatTileAnyRun) {
  constexpr unsigned kRuns = 1000;
  for (unsigned seed = 0; seed < kRuns && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomRun(seed).check();
  }
}

TEST(StepCauses, AddUpEvenWhenTheClocksOfLanesAreWrong) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    Buffers buffers;
    const Program program = random_program(random, buffers, 2);
    const RunPlan plan(program, RunDetail::kRuns);
    SimulatedSteps steps({.duration = [&](const Node&) { return 1e-3 * draw(random, 1000); }});
    Timeline timeline;
    steps.queue(program, &program);
    for (int i = 0; i < 5; ++i) {
      steps.queue(program, &program);
      StepTimeline step = steps.finish().timeline(plan);
      for (Span& span : step.spans) {
        span.begin_s += 1e-3 * (draw(random, 4000) - 2000);
        span.end_s += 1e-3 * (draw(random, 4000) - 2000);
      }
      timeline.add(std::move(step));
      const StepAccount account = account_of(timeline, kMain);
      double sum_s = 0;
      for (const double part_s : account.part_s) {
        ASSERT_GE(part_s, 0);
        sum_s += part_s;
      }
      ASSERT_NEAR(sum_s, account.wall_s, 1e-9);
    }
  }
}

/// A collective takes 3 s, an update 0.5 s, everything else 1 s.
double known_duration(const Node& node) {
  if (std::holds_alternative<Collective>(node.op)) return 3;
  return node.phase == Phase::kOptimizer ? 0.5 : 1;
}

/// The account of every step of a run whose steps are waited for one by one, or queued in rows.
std::vector<StepAccount> accounts_of_run(const Program& program, const SimulatedMachine& machine,
                                         int count, bool in_rows) {
  const RunPlan plan(program, RunDetail::kRuns);
  SimulatedSteps steps(machine);
  Timeline timeline;
  std::vector<StepAccount> accounts;
  const auto finish = [&] {
    timeline.add(steps.finish().timeline(plan));
    accounts.push_back(account_of(timeline, kMain));
  };
  for (int i = 0; i < count; ++i) {
    steps.queue(program, i + 1 < count ? &program : nullptr);
    if (!in_rows || i > 0) finish();
  }
  if (in_rows) finish();
  return accounts;
}

/// Two layers, each with its own reduction and update after its gradient.
void make_ddp(ProgramMaker& maker) {
  maker.input("x");
  maker.work_on(maker.tensor("x", 0, 2), "out", Phase::kForward);
  maker.work_on(maker.tensor("w2"), "out", Phase::kForward);
  for (const char* layer : {"1", "2"}) {
    maker.work(std::string("g") + layer, Phase::kBackward);
    maker.reduce(std::string("g") + layer);
    maker.work(std::string("w") + layer, Phase::kOptimizer, 0, Lane::kComm);
  }
  order(maker.program);
}

TEST(StepCauses, SplitCommunicationIntoHiddenAndExposed) {
  Buffers buffers;
  ProgramMaker ddp(buffers);
  make_ddp(ddp);
  const SimulatedMachine machine{.duration = known_duration};
  // Forward 1 to 3, backward 3 to 5, sums 4 to 7 and 7.5 to 10.5, updates of 0.5 after each. The
  // input of the next step has arrived, so the second step's wall time begins with its forward.
  const StepAccount alone = accounts_of_run(ddp.program, machine, 3, false)[1];
  EXPECT_NEAR(alone.wall_s, 10, 1e-9);
  EXPECT_NEAR(alone[Part::kForward], 2, 1e-9);
  EXPECT_NEAR(alone[Part::kBackward], 2, 1e-9);
  EXPECT_NEAR(alone[Part::kExposedCommunication], 5, 1e-9);
  EXPECT_NEAR(alone[Part::kOptimizer], 1, 1e-9);
  EXPECT_NEAR(alone.hidden_communication_s, 1, 1e-9);
  // In a row, the first update lets the next forward begin: only what blocks the lane is exposed.
  const StepAccount in_row = accounts_of_run(ddp.program, machine, 6, true)[3];
  EXPECT_NEAR(in_row[Part::kForward] + in_row[Part::kBackward], 4, 1e-9);
  EXPECT_NEAR(in_row[Part::kExposedCommunication] + in_row[Part::kOptimizer], in_row.wall_s - 4,
              1e-9);
}

TEST(StepCauses, SeeAWaitInTheMiddleOfAPhase) {
  Buffers buffers;
  ProgramMaker factor(buffers);
  factor.work("gy", Phase::kBackward);
  factor.reduce("gy");
  factor.work("gx", Phase::kBackward);
  factor.work_on(factor.tensor("gy"), "gw", Phase::kBackward);
  order(factor.program);
  const auto account = accounts_of_run(factor.program, {.duration = known_duration}, 2, false)[1];
  EXPECT_NEAR(account[Part::kBackward], 3, 1e-9);
  EXPECT_NEAR(account[Part::kExposedCommunication], 2, 1e-9);
  EXPECT_NEAR(account.hidden_communication_s, 1, 1e-9);
}

TEST(StepCauses, NameTheOtherDeviceThatAStepWaitsFor) {
  Buffers buffers;
  ProgramMaker spread(buffers);
  spread.work("g", Phase::kBackward, 0);
  for (int i = 0; i < 4; ++i) spread.work("g", Phase::kBackward, 1);
  spread.reduce("g", 2);
  spread.work_on(spread.tensor("g"), "w", Phase::kOptimizer);
  order(spread.program);
  const auto account = accounts_of_run(spread.program, {.duration = known_duration}, 2, false)[1];
  EXPECT_NEAR(account[Part::kOtherDevice], 3, 1e-9);
  EXPECT_NEAR(account[Part::kExposedCommunication], 3, 1e-9);
}

TEST(StepCauses, TellTensorRanksAndOtherStagesFromCopiesOfTheModel) {
  constexpr std::pair<Axis, Part> kParts[] = {{Axis::kTensor, Part::kTensorRanks},
                                              {Axis::kPipeline, Part::kOtherStages},
                                              {Axis::kData, Part::kExposedCommunication},
                                              {Axis::kModel, Part::kExposedCommunication},
                                              {Axis::kAll, Part::kExposedCommunication}};
  for (const auto& [axis, part] : kParts) {
    SCOPED_TRACE(name_of(axis));
    Buffers buffers;
    ProgramMaker maker(buffers);
    maker.work("out", Phase::kForward);
    maker.reduce("out", 1, axis);
    maker.work("other", Phase::kForward);
    maker.work_on(maker.tensor("out"), "next", Phase::kForward);
    order(maker.program);
    const auto account = accounts_of_run(maker.program, {.duration = known_duration}, 2, false)[1];
    EXPECT_NEAR(account[Part::kForward], 3, 1e-9);
    EXPECT_NEAR(account[part], 2, 1e-9);
    EXPECT_NEAR(account.hidden_communication_s, 1, 1e-9) << "beside the work of another tensor";
  }
}

TEST(StepCauses, TellASlowInputFromASlowHost) {
  Buffers buffers;
  ProgramMaker ddp(buffers);
  make_ddp(ddp);
  SimulatedMachine slow_input{.duration = known_duration, .filling = [] { return 20.0; }};
  const StepAccount starved = accounts_of_run(ddp.program, slow_input, 6, true)[3];
  EXPECT_NEAR(starved.wall_s, 20, 1e-9);
  EXPECT_GT(starved[Part::kDataWait], 5);
  EXPECT_EQ(starved[Part::kHost], 0);
  SimulatedMachine slow_host{.duration = known_duration, .reporting = [] { return 30.0; }};
  const StepAccount late = accounts_of_run(ddp.program, slow_host, 6, true)[3];
  EXPECT_GT(late[Part::kHost], 10);
  EXPECT_EQ(late[Part::kDataWait], 0);
}

TEST(RunPlan, CutsALaneWhereItWaitsAndWhereItIsWaitedFor) {
  Buffers buffers;
  ProgramMaker maker(buffers);
  for (const char* name : {"a", "b", "c", "d"}) maker.work(name, Phase::kBackward);
  maker.reduce("c");
  order(maker.program);
  const RunPlan plan(maker.program, RunDetail::kRuns);
  // The runs are a and b; c, which waits for the sum of the previous step; d, since the sum waits
  // for c; the sum.
  ASSERT_EQ(plan.runs().size(), 4U);
  EXPECT_EQ(plan.runs()[0].last, 1);
  EXPECT_EQ(plan.runs()[1].awaited.at(0).steps_back, 1);
  EXPECT_EQ(plan.runs()[2].first, 3);
  EXPECT_TRUE(plan.runs()[2].follows_directly) << "one event marks the border of both";
  EXPECT_FALSE(plan.runs()[1].follows_directly) << "it waits";
  EXPECT_EQ(plan.runs()[3].awaited.at(0).node, plan.runs()[1].last);
  EXPECT_EQ(RunPlan(maker.program, RunDetail::kNodes).runs().size(), 5U);
}

/// Input and earlier steps are awaited by the launch of the graph, so nothing in it begins late.
TEST(RunPlan, DoesNotCutAGraphWhereItsLaunchWaits) {
  TrainConfig config;
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const RunPlan eager(programs.train().program);
  const RunPlan graph(programs.train().program, RunDetail::kRuns, true);
  const auto work_of = [](const RunPlan& plan) {
    std::vector<const NodeRun*> runs;
    for (const NodeRun& run : plan.runs()) {
      if (run.phase != Phase::kData) runs.push_back(&run);
    }
    return runs;
  };
  const auto runs = work_of(graph);
  ASSERT_EQ(runs.size(), 4U) << "forward, loss, backward and update";
  const auto waits = [](const NodeRun* run) { return !run->follows_directly; };
  EXPECT_GT(std::ranges::count_if(work_of(eager), waits), 1);
  EXPECT_FALSE(runs[0]->follows_directly);
  std::set<NodeId> awaited;
  for (const NodeRun::AwaitedPart& part : runs[0]->awaited) {
    EXPECT_EQ(graph.program().node(part.node).phase, Phase::kData);
    awaited.insert(part.node);
  }
  EXPECT_EQ(awaited.size(), 3U) << "x, y and the numbers of the update";
  for (std::size_t i = 1; i < runs.size(); ++i) {
    EXPECT_TRUE(runs[i]->follows_directly) << i;
    EXPECT_TRUE(runs[i]->awaited.empty()) << i;
  }
}

}  // namespace
}  // namespace barestep
