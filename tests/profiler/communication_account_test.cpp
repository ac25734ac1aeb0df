#include "profiler/communication_account.h"

#include "core/clock.h"
#include "kernels/make_device.h"
#include "parallel/schemes/other_schemes.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "profiler/account.h"
#include "support/busy_machine.h"
#include "support/each_step.h"
#include "support/file_runs.h"
#include "support/forwarding_transport.h"
#include "support/rank_run.h"
#include "support/simulated_steps.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

// Gives each thread a clock that may be wrong.
thread_local double clock_is_ahead_s = 0;
double shifted_clock() {
  return now_s() + clock_is_ahead_s;
}

/// Aligns three ranks whose clocks are 0, 5 and -10 s ahead, and checks the result on each rank.
void align_shifted_clocks(const std::function<void(const ClockAlignment&)>& expect) {
  on_threads(3, [&](ThreadRank& ranks) {
    clock_is_ahead_s = 5.0 * ranks.rank() * (ranks.rank() == 2 ? -1 : 1);
    expect(align_clocks(ranks, &shifted_clock));
  });
}

TEST(ClockAlignment, FindsHowFarClocksAreApartWithinItsBound) {
  align_shifted_clocks([](const ClockAlignment& clocks) {
    EXPECT_EQ(clocks.shift_s[0], 0);
    EXPECT_LE(std::abs(clocks.shift_s[1] + 5), clocks.error_s[1]);
    EXPECT_LE(std::abs(clocks.shift_s[2] - 10), clocks.error_s[2]);
    EXPECT_GT(clocks.largest_error_s(), 0);
  });
}

/// Of the first of so many ranks. The model has 5 x 7, 7 x 6 and 6 x 3 weights.
std::string exchange_text_of(const TrainConfig& config, int ranks) {
  const auto scheme = scheme_of(config, {.first_bucket_bytes = 100});
  return exchange_text(
      StepPrograms(spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, ranks), scheme.get()));
}

TEST(ExchangeText, IsThatOfTheProgram) {
  TrainConfig config = rank_config();
  EXPECT_EQ(exchange_text_of(config, 2),
            "all_reduce of 2 buckets (216 B to 396 B) while backward goes on");
  config.parallel.overlap = false;
  EXPECT_EQ(exchange_text_of(config, 2), "all_reduce of 2 buckets (216 B to 396 B) after backward");
  config.training.staleness = 1;
  EXPECT_EQ(exchange_text_of(config, 2),
            "all_reduce of 2 buckets (216 B to 396 B) beside the next step");
}

TEST(ExchangeText, NamesTheRanksOfAMesh) {
  TrainConfig config = rank_config();
  config.parallel.tensor = 2;
  EXPECT_EQ(exchange_text_of(config, 2), "all_reduce of 1 message (240 B) by 2 tensor ranks");
  EXPECT_THAT(exchange_text_of(config, 4), StartsWith("all_reduce of 2 buckets ("));
  EXPECT_THAT(exchange_text_of(config, 4), HasSubstr(" by 2 data ranks while backward goes on, "));
}

TEST(ExchangeText, SaysHowOftenWeightsAreAveraged) {
  TrainConfig config = rank_config();
  config.parallel.sync_every = 3;
  EXPECT_EQ(exchange_text_of(config, 2),
            "all_reduce of 1 message (704 B) after backward, every 3 steps");
  config.parallel.sync_every = 1;
  config.parallel.scheme = SchemeKind::kServer;
  EXPECT_EQ(exchange_text_of(config, 1), "nothing but the loss");
}

TEST(ClockAlignment, IsWithinATenthOfASecond) {
  repeat_while_busy([] {
    align_shifted_clocks(
        [](const ClockAlignment& clocks) { EXPECT_LT(clocks.largest_error_s(), 0.1); });
  });
}

TEST(ClockAlignment, OfOneRankIsExact) {
  on_threads(
      1, [](ThreadRank& ranks) { EXPECT_EQ(align_clocks(ranks, &now_s).largest_error_s(), 0); });
}

/// Rank 0 computes until 4 and reduces from 1 to 7; rank 1 computes until 5 and arrives then.
std::vector<CommunicatedStep> late_rank_1() {
  return {{{.ready_s = 0.5, .start_s = 1, .end_s = 7, .held_from_s = 4, .held_to_s = 7}},
          {{.ready_s = 5, .start_s = 5, .end_s = 7.5, .held_from_s = 5, .held_to_s = 7.5}}};
}

TEST(CommunicationSummary, SplitsCommunicationIntoHiddenWaitingAndMoving) {
  const std::vector<std::vector<CommunicatedStep>> steps(3, late_rank_1());
  const CommunicationSummary summary = summary_of(steps);
  EXPECT_EQ(summary.steps, 3);
  // Rank 0: 1 to 4 is hidden, 4 to 5 waiting, 5 to 7 transfer. Rank 1: all of its 2.5 is transfer.
  EXPECT_DOUBLE_EQ(summary.parts.hidden_s, (3 + 0) / 2.0);
  EXPECT_DOUBLE_EQ(summary.parts.waiting_s, (1 + 0) / 2.0);
  EXPECT_DOUBLE_EQ(summary.parts.moving_s, (2 + 2.5) / 2.0);
  EXPECT_DOUBLE_EQ(summary.collectives[0].ready_before_start_s, 0.5 / 2);
  EXPECT_EQ(summary.ranks[0].steps_waited_for, 0);
  EXPECT_EQ(summary.ranks[1].steps_waited_for, 3);
  EXPECT_DOUBLE_EQ(summary.ranks[0].cost_s, 0);
  EXPECT_DOUBLE_EQ(summary.ranks[1].cost_s, 1);
}

TEST(CommunicationSummary, NamesARankOnlyWhereSomebodyWaited) {
  std::vector<CommunicatedStep> step = late_rank_1();
  step[0][0].held_from_s = 6;  // it computes for longer than rank 1 needs
  const CommunicationSummary summary = summary_of(std::vector<std::vector<CommunicatedStep>>{step});
  EXPECT_DOUBLE_EQ(summary.parts.waiting_s, 0);
  EXPECT_EQ(summary.ranks[1].steps_waited_for, 0);
}

TEST(CommunicationSummary, OfNoStepsIsEmpty) {
  EXPECT_EQ(summary_of({}).text(), "");
}

TEST(CommunicationSummary, TellsItsFiguresInWords) {
  CommunicationSummary summary =
      summary_of(std::vector<std::vector<CommunicatedStep>>{late_rank_1()});
  summary.collectives[0].name = "bucket 1";
  summary.collectives[0].bytes = 1 << 20;
  summary.clock_error_s = 2.5e-6;
  EXPECT_EQ(summary.text(),
            "Communication of a step, mean of 1 step and 2 ranks\n"
            "  all                        4250.0000 ms\n"
            "  hidden                     1500.0000 ms\n"
            "  exposed, waiting            500.0000 ms\n"
            "  exposed, moving bytes      2250.0000 ms\n"
            "\n"
            "Collective      Size  Queued (ms)     Hidden   Waiting     Moving\n"
            "bucket 1    1.00 MiB     250.0000  1500.0000  500.0000  2250.0000\n"
            "\n"
            "Waited for rank 0: longest in 0 of 1 step, 0.0000 ms a step\n"
            "Waited for rank 1: longest in 1 of 1 step, 1000.0000 ms a step\n"
            "The ranks' clocks are aligned within 2.5 us\n");
}

TEST(CommunicationSummary, ShowsTheLongestExposedOfManyCollectives) {
  CommunicationSummary summary =
      summary_of(std::vector<std::vector<CommunicatedStep>>{late_rank_1()});
  summary.collectives.front().name = "long";
  for (int i = 1; i < 30; ++i) {
    summary.collectives.push_back(summary.collectives.front());
    summary.collectives.back().name = fmt::format("short {}", i);
    summary.collectives.back().parts = {.hidden_s = 100, .waiting_s = 0, .moving_s = 1e-3 * i};
  }
  const std::string text = summary.text();
  EXPECT_THAT(text, HasSubstr("\nThe 20 of 30 collectives that were exposed longest; --trace has "
                              "all\nCollective "));
  EXPECT_THAT(text, ContainsRegex("\nlong .*\nshort 29 .*\nshort 28 "));
  EXPECT_THAT(text, HasSubstr("\nshort 11 "));
  EXPECT_THAT(text, Not(HasSubstr("\nshort 10 ")));
}

/// The account of a run with ranks as threads.
struct AccountOfRun {
  CommunicationSummary summary;
  std::vector<std::vector<StepAccount>> steps;  // by rank
};

/// How the times of a run's collectives are measured.
enum class By { kRecords, kEvents };

/// Host memory's transport, presented as one that cannot measure.
class SilentTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  [[nodiscard]] bool sends_records() const override { return false; }
  void set_record_sink(RecordSink* /*sink*/) override {}
};

constexpr std::int64_t kSteps = 7;
constexpr std::int64_t kWarmup = 2;

/// Ranks of which the second pauses before backward. The steps are queued while others run, or one
/// by one; `by` is how collectives are measured.
AccountOfRun account_of_run(TrainConfig config, int count, double pause_ms, const Scheme& scheme,
                            By by = By::kRecords) {
  config.training.steps = kSteps;
  config.training.warmup = kWarmup;
  config.injected.slow_rank = SlowRank{1, pause_ms};
  AccountOfRun result;
  result.steps.resize(static_cast<std::size_t>(count));
  on_threads(count, [&](ThreadRank& ranks) {
    const StepPrograms programs(
        spec_of_rank(config, DeviceKind::kCpu, nullptr, ranks.rank(), ranks.size()), &scheme);
    const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
    SilentTransport silent(ranks);
    CommunicationAccount account(programs, kSteps);
    std::vector<StepAccount> steps;
    EachStep observer([&](const StepReport& report) {
      account.add(report);
      steps.push_back(account_of(*report.timeline, kMainLane));
    });
    {
      Transport* const transport = by == By::kEvents ? static_cast<Transport*>(&silent) : &ranks;
      Trainer trainer(config, programs, {device.get()}, {&ranks, transport}, nullptr);
      trainer.run(observer);
    }
    const CommunicationSummary mine = account.gather(ranks);
    if (ranks.rank() == 0) result.summary = mine;
    result.steps[static_cast<std::size_t>(ranks.rank())] = steps;
  });
  return result;
}

AccountOfRun of_ddp(double pause_ms, const DdpSettings& settings = small_buckets(),
                    By by = By::kRecords) {
  return account_of_run(rank_config(), 2, pause_ms, Ddp(settings), by);
}

constexpr double kPauseMs = 20;

struct WaitingCase {
  std::string name;
  std::function<std::unique_ptr<Scheme>()> scheme;
  int ranks = 2;
  bool graph = false;
  std::int64_t log_every = 1;
  By by = By::kRecords;
};

std::vector<WaitingCase> waiting_cases() {
  const auto ddp = [](const auto& change) {
    return [change] {
      DdpSettings settings = small_buckets();
      change(settings);
      return std::make_unique<Ddp>(settings);
    };
  };
  const auto plain = ddp([](DdpSettings&) {});
  const auto no_overlap = ddp([](DdpSettings& settings) { settings.overlap = false; });
  const auto per_bucket = ddp([](DdpSettings& settings) { settings.update_per_bucket = true; });
  const auto zero1 = [] { return std::make_unique<Zero>(1, small_buckets()); };
  const auto zero3 = [] { return std::make_unique<Zero>(3, small_buckets()); };
  const auto factor = [] { return std::make_unique<Factor>(); };
  std::vector<WaitingCase> cases;
  for (const std::int64_t log_every : {1, 100}) {
    const auto add = [&](const std::string& name, const auto& scheme, int ranks) {
      cases.push_back({.name = name + (log_every > 1 ? "_rows" : ""),
                       .scheme = scheme,
                       .ranks = ranks,
                       .log_every = log_every});
    };
    add("ddp", plain, 2);
    add("ddp_of_3", plain, 3);
    add("no_overlap", no_overlap, 2);
    add("per_bucket", per_bucket, 2);
    add("zero1", zero1, 2);
    add("zero1_of_3", zero1, 3);
    add("zero3_of_3", zero3, 3);
    add("factor", factor, 2);
    add("factor_of_3", factor, 3);
  }
  cases.push_back({.name = "graph", .scheme = plain, .graph = true});
  cases.push_back({.name = "events", .scheme = plain, .by = By::kEvents});
  cases.push_back({.name = "events_in_a_graph", .scheme = plain, .graph = true, .by = By::kEvents});
  return cases;
}

/// The exposed communication of each step, in ascending order.
std::vector<double> exposed_s(const std::vector<StepAccount>& steps) {
  std::vector<double> sorted_s;
  for (const StepAccount& step : steps) sorted_s.push_back(step[Part::kExposedCommunication]);
  std::ranges::sort(sorted_s);
  return sorted_s;
}

class WaitingFor : public testing::TestWithParam<WaitingCase> {};

/// A rank that is late in every step causes exposed communication on every other rank, as waiting
/// for that rank, both in the account of the step and in that of communication. On a busy machine,
/// other ranks may be late as well, so the test requires only most of the pause.
TEST_P(WaitingFor, ARankIsExposedCommunicationOfTheOthersThatNamesIt) {
  TrainConfig config = rank_config();
  config.device.graph = GetParam().graph;
  config.training.log_every = GetParam().log_every;
  const auto scheme = GetParam().scheme();
  constexpr double kMaxOfPause_s = 0.75 * kPauseMs / 1e3;
  std::vector<double> max_s(static_cast<std::size_t>(GetParam().ranks));  // of any step
  repeat_while_busy([&] {
    const AccountOfRun run =
        account_of_run(config, GetParam().ranks, kPauseMs, *scheme, GetParam().by);
    EXPECT_EQ(run.summary.steps, kSteps - kWarmup);
    for (std::size_t rank = 0; rank < run.steps.size(); ++rank) {
      if (rank == 1) continue;
      const std::vector<double> sorted_s = exposed_s(run.steps[rank]);
      EXPECT_GE(sorted_s[sorted_s.size() / 2], kMaxOfPause_s) << "rank " << rank;
      max_s[rank] = std::max(max_s[rank], sorted_s.back());
      EXPECT_EQ(run.summary.ranks[rank].steps_waited_for, 0) << "rank " << rank;
    }
    EXPECT_EQ(run.summary.ranks[1].steps_waited_for, kSteps - kWarmup);
    EXPECT_GE(run.summary.ranks[1].cost_s, kMaxOfPause_s);
  });
  // Even on a very busy machine, at least one step shows it.
  for (std::size_t rank = 0; rank < max_s.size(); ++rank) {
    if (rank != 1) EXPECT_GE(max_s[rank], kMaxOfPause_s) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(, WaitingFor, testing::ValuesIn(waiting_cases()),
                         [](const auto& each) { return each.param.name; });

TEST(CommunicationAccount, KnowsWhenABucketOfBf16IsComplete) {
  DdpSettings settings = small_buckets();
  settings.bf16_gradients = true;
  for (const By by : {By::kRecords, By::kEvents}) {
    const CommunicationSummary summary = of_ddp(0, settings, by).summary;
    for (const auto& each : summary.collectives) {
      EXPECT_GE(each.ready_before_start_s, 0) << each.name;
      EXPECT_LT(each.ready_before_start_s, 10) << each.name << ": not since the clock began";
    }
  }
}

class UnevenEvaluation : public TempDirTest {};

/// A step's communication on one rank is compared with the same step on the other, although they
/// evaluate 2 and 1 batches after each epoch, and the last batch has its own program.
TEST_F(UnevenEvaluation, LeavesTheAccountOfCommunicationToTrainingSteps) {
  TrainConfig config = class_run(folder());
  config.data.batch_size = 5;
  config.data.test_split = 0.18;  // 7 of 40 samples: 4 and 3, in batches of 3
  config.device.threads = 1;
  config.training.warmup = 2;
  on_threads(2, [&](ThreadRank& ranks) {
    const Dataset dataset =
        load_dataset(config.data, widths_of(config.model, kDefaultDimCpu), config.model.loss);
    const Ddp scheme(small_buckets());
    const StepPrograms programs(
        spec_of_rank(config, DeviceKind::kCpu, &dataset, ranks.rank(), ranks.size()), &scheme);
    const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
    CommunicationAccount account(programs, 4 * 7);
    std::vector<StepAccount> steps;
    EachStep observer([&](const StepReport& report) {
      account.add(report);
      steps.push_back(account_of(*report.timeline, kMainLane));
    });
    {
      Trainer trainer(config, programs, {device.get()}, {&ranks, &ranks}, &dataset);
      trainer.run(observer);
      // Four epochs with 33 samples, one of them used twice: 6 whole batches and a smaller one.
      ASSERT_EQ(trainer.steps(), 4 * 7);
      EXPECT_EQ(trainer.runner().steps(), 4 * (7 + (ranks.rank() == 0 ? 2 : 1)));
    }
    const CommunicationSummary summary = account.gather(ranks);
    EXPECT_EQ(summary.steps, 4 * 6 - 2);
    double longest_s = 0;
    for (const StepAccount& step : steps) longest_s = std::max(longest_s, step.wall_s);
    EXPECT_LE(summary.parts.waiting_s, longest_s);
  });
}

/// Adds `steps` artificial steps in a row of a ddp rank to the account of a run with that many
/// steps; a reduction takes 3 s in the first 10,000 steps and 30 s afterwards.
CommunicationSummary summary_of_long_run(std::int64_t steps) {
  const Ddp scheme(small_buckets());
  const StepPrograms programs(spec_of_rank(rank_config(), DeviceKind::kCpu, nullptr, 0, 2),
                              &scheme);
  const Program& program = programs.train().program;
  const RunPlan plan(program);
  std::int64_t queued = 0;
  SimulatedSteps simulated({.duration = [&](const Node& node) {
    if (!std::holds_alternative<Collective>(node.op)) return 1.0;
    return queued < 10'000 ? 3.0 : 30.0;
  }});
  CommunicationAccount account(programs, steps);
  Timeline timeline;
  const auto finish = [&] {
    timeline.add(simulated.finish().timeline(plan));
    account.add({.timeline = &timeline});
  };
  for (; queued < steps; ++queued) {
    simulated.queue(program, queued + 1 < steps ? &program : nullptr);
    if (queued > 0) finish();
  }
  finish();
  CommunicationSummary summary;
  on_threads(1, [&](Group& alone) { summary = account.gather(alone); });
  return summary;
}

TEST(CommunicationAccount, KeepsTheFirstTenThousandStepsOfALongRun) {
  EXPECT_EQ(summary_of_long_run(100).steps, 100);
  const CommunicationSummary summary = summary_of_long_run(10'005);
  EXPECT_EQ(summary.steps, 10'000);
  ASSERT_FALSE(summary.collectives.empty());
  for (const auto& [name, axis, bytes, ready_before_start_s, parts] : summary.collectives) {
    EXPECT_NEAR(parts.hidden_s + parts.waiting_s + parts.moving_s, 3, 1e-6) << name;
  }
}

TEST(CommunicationAccount, ListsTheLossAndEveryBucket) {
  const CommunicationSummary summary = of_ddp(0).summary;
  std::vector<std::string> names;
  std::int64_t bytes = 0;
  for (const auto& each : summary.collectives) {
    names.push_back(each.name);
    bytes += each.bytes;
  }
  EXPECT_THAT(names, ElementsAre("loss", "bucket 1", "bucket 2", "bucket 3"));
  EXPECT_EQ(summary.collectives[0].bytes, 8);  // the loss, and whether a rank wants to stop
  EXPECT_GT(bytes, 4 * (5 * 7 + 7 + 7 * 6 + 6 + 6 * 3 + 3));
}

}  // namespace
}  // namespace barestep
