// The guarantees of an account of steps, checked on real runs: every scheme, step by step and in
// rows, eager and as graphs, timed by records and by events. Ranks are threads of this process.
//
// The reference is a listener between devices and the runner that keeps every node's own record.

#include "command_line.h"
#include "core/clock.h"
#include "core/error.h"
#include "kernels/make_device.h"
#include "options/options.h"
#include "parallel/comm/local_transport.h"
#include "parallel/comm/mesh_transport.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/run.h"
#include "parallel/schemes/scheme_of.h"
#include "profiler/account.h"
#include "session/place.h"
#include "support/file_runs.h"
#include "support/forwarding_device.h"
#include "support/forwarding_transport.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

constexpr double kRounding = 1e-9;  // in sums of times

/// The source of the runner's times for its work.
enum class MarkedBy { kRecords, kEvents, kEventsOfAWrongClock };

/// Every record of a rank, by program, node and device, in the order of steps.
class Records {
 public:
  void add(const Record& record) {
    if (record.tag.node < 0) return;
    const std::lock_guard lock(mutex_);
    spans_[{record.tag.program, record.tag.node, record.device}].push_back(
        {.begin_s = record.start_s, .end_s = record.end_s});
  }
  /// Forgets what ran before the first step.
  void clear() {
    const std::lock_guard lock(mutex_);
    spans_.clear();
  }
  /// The record in the program's step number `turn`; nothing if there was none.
  [[nodiscard]] std::optional<Span> of(int program, NodeId node, int device,
                                       std::size_t turn) const {
    const std::lock_guard lock(mutex_);
    const auto found = spans_.find({program, node, device});
    if (found == spans_.end() || found->second.size() <= turn) return std::nullopt;
    return found->second[turn];
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<int, NodeId, int>, std::vector<Span>> spans_;
};

/// An event that measures time. With a wrong clock, recording takes so long that the host believes
/// the event was reached earlier than it was.
class HeardEvent final : public ForwardingEvent {
 public:
  HeardEvent(std::unique_ptr<Event> inner, bool is_slow)
      : ForwardingEvent(std::move(inner)), is_slow_(is_slow) {}
  void record(Stream& stream) override {
    if (is_slow_) std::this_thread::sleep_for(std::chrono::microseconds(300));
    ForwardingEvent::record(stream);
  }

 private:
  bool is_slow_;
};

/// A CPU device with a listener. If it is timed by events, it presents itself as a GPU.
class HeardDevice final : public ForwardingDevice, public RecordSink {
 public:
  HeardDevice(Device& inner, Records& records, MarkedBy by)
      : ForwardingDevice(inner), records_(records), by_(by) {
    inner.set_record_sink(this);
  }
  [[nodiscard]] DeviceKind kind() const override {
    return by_ == MarkedBy::kRecords ? DeviceKind::kCpu : DeviceKind::kCuda;
  }
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    if (label == "clock" && by_ == MarkedBy::kEventsOfAWrongClock) slow_events_ = 2;
    return inner().new_stream(label);
  }
  std::unique_ptr<Event> new_event(EventUse use) override {
    if (use == EventUse::kOrder) return inner().new_event(use);
    return std::make_unique<HeardEvent>(inner().new_event(use), slow_events_-- > 0);
  }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }
  void on_record(const Record& record) override {
    records_.add(record);
    if (sink_ != nullptr) sink_->on_record(record);
  }

 private:
  Records& records_;
  MarkedBy by_;
  RecordSink* sink_ = nullptr;
  int slow_events_ = 0;  // the next events, which set the clock
};

/// The same for the transport of ranks.
class HeardTransport final : public ForwardingTransport, public RecordSink {
 public:
  HeardTransport(Transport& inner, Records& records, MarkedBy by)
      : ForwardingTransport(inner), records_(records), by_(by) {
    inner.set_record_sink(this);
  }
  ~HeardTransport() override { inner().set_record_sink(nullptr); }
  HeardTransport(const HeardTransport&) = delete;
  HeardTransport& operator=(const HeardTransport&) = delete;

  [[nodiscard]] bool sends_records() const override { return by_ == MarkedBy::kRecords; }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }
  void on_record(const Record& record) override {
    records_.add(record);
    if (sink_ != nullptr && sends_records()) sink_->on_record(record);
  }

 private:
  Records& records_;
  MarkedBy by_;
  RecordSink* sink_ = nullptr;
};

/// Checks each finished step of a rank, in training and in evaluation.
class Promises final : public TrainObserver {
 public:
  Promises(const Trainer& trainer, const Records& records, MarkedBy by)
      : trainer_(trainer), records_(records), by_(by) {}

  /// How long the observer spends on an evaluation.
  double evaluation_pause_s = 0;

  void on_batch() override {
    SCOPED_TRACE(fmt::format("step {} of the runner", timeline().at(0)->step));
    check_order_of_spans();
    check_wall();
    check_parts();
    check_against_records();
  }

  void on_step(const StepReport& report) override {
    EXPECT_EQ(report.timeline, &timeline());
    EXPECT_EQ(report.wall_s, account_of(*report.timeline, kMainLane).wall_s);
    EXPECT_EQ(report.step, steps_++);
    in_rows_ += timeline().at(0)->host.overlaps_previous ? 1 : 0;
  }

  void on_evaluation(const EvaluationReport& report) override {
    EXPECT_GE(report.seconds, evaluation_s_ - kRounding) << "ranks report the slowest";
    evaluation_s_ = 0;
    ++evaluations_;
    std::this_thread::sleep_for(std::chrono::duration<double>(evaluation_pause_s));
    not_before_s_ = now_s();
  }

  [[nodiscard]] double walls_s() const { return walls_s_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] std::int64_t steps_in_rows() const { return in_rows_; }
  [[nodiscard]] std::int64_t evaluations() const { return evaluations_; }

 private:
  [[nodiscard]] const Timeline& timeline() const { return trainer_.runner().timeline(); }

  /// The error of the difference between two times.
  [[nodiscard]] double clock_error_s() const {
    return by_ == MarkedBy::kRecords ? 0 : 2 * trainer_.runner().clock_error_s() + kRounding;
  }

  void check_order_of_spans() {
    const StepTimeline& step = *timeline().at(0);
    const StepTimeline* const previous = timeline().at(1);
    const HostTimes& host = step.host;
    EXPECT_LE(host.begin_s, host.start_s);
    EXPECT_LE(host.start_s, host.queued_s);
    EXPECT_LE(host.queued_s, host.fetched_s);
    EXPECT_LE(host.queued_s, host.end_s);
    for (std::size_t i = 0; i < step.spans.size(); ++i) {
      const NodeRun& run = step.plan->runs()[i];
      const Span& span = step.spans[i];
      SCOPED_TRACE(fmt::format("the run that begins with node {}", run.first));
      // Input may be fetched after the work of the previous step.
      const bool fetched_ahead = run.phase == Phase::kData && previous != nullptr;
      const double first_s = run.phase != Phase::kData ? host.start_s
                             : fetched_ahead           ? previous->host.queued_s
                                                       : host.begin_s;
      EXPECT_LE(first_s, span.queued_s);
      EXPECT_LE(span.queued_s, host.queued_s);
      EXPECT_LE(span.queued_s, span.begin_s);
      EXPECT_LE(span.begin_s, span.end_s);
      EXPECT_LE(span.end_s, host.end_s);
    }
  }

  void check_wall() {
    const HostTimes& host = timeline().at(0)->host;
    const WallTime wall = timeline().wall_of_newest(kMainLane);
    EXPECT_LE(wall.begin_s, wall.end_s);
    if (host.overlaps_previous) {
      EXPECT_EQ(wall.begin_s, wall_end_s_) << "walls of steps in a row leave a gap";
    } else {
      EXPECT_EQ(wall.begin_s, host.start_s);
      EXPECT_GE(wall.begin_s, wall_end_s_) << "walls overlap";
    }
    EXPECT_GE(wall.begin_s, not_before_s_) << "the wall begins in an evaluation";
    walls_s_ += wall.seconds();
    wall_end_s_ = wall.end_s;
    const StepTimeline* const previous = timeline().at(1);
    if (!evaluates(*timeline().at(0))) return;
    evaluation_s_ += wall.seconds();
    if (previous == nullptr || evaluates(*previous)) return;
    for (const Span& span : previous->spans) {
      EXPECT_LE(span.end_s, wall.begin_s) << "an evaluation holds work of a training step";
    }
  }

  [[nodiscard]] bool evaluates(const StepTimeline& step) const {
    const StepPrograms& programs = trainer_.programs();
    const auto is_of = [&](const StepProgram* program) {
      return program != nullptr && &program->program == &step.plan->program();
    };
    return is_of(programs.evaluate()) || is_of(programs.last_evaluate());
  }

  void check_parts() {
    for (const auto& [lane, runs] : timeline().at(0)->plan->lanes()) {
      if (lane.lane != Lane::kCompute) continue;
      const StepAccount account = account_of(timeline(), lane);
      double sum_s = 0;
      for (const double part_s : account.part_s) {
        EXPECT_GE(part_s, 0);
        sum_s += part_s;
      }
      EXPECT_NEAR(sum_s, account.wall_s, kRounding);
      EXPECT_EQ(account.wall_s, timeline().wall_of_newest(lane).seconds());
      EXPECT_GE(account.hidden_communication_s, 0);
    }
  }

  /// Runs begin with their first node and end with their last one, and the main lane's own work is
  /// that of its nodes and lies within the wall time.
  void check_against_records() {
    const StepTimeline& step = *timeline().at(0);
    const Program& program = step.plan->program();
    const auto all = trainer_.programs().all();
    const int number = static_cast<int>(
        std::ranges::find(all, &program, [](const auto* each) { return &each->program; }) -
        all.begin());
    const std::size_t turn = turns_[&program]++;
    EnumArray<Phase, double> runs_s{}, nodes_s{};
    for (std::size_t i = 0; i < step.spans.size(); ++i) {
      const NodeRun& run = step.plan->runs()[i];
      SCOPED_TRACE(fmt::format("the run that begins with node {}", run.first));
      const auto first = records_.of(number, run.first, run.lane.device, turn);
      const auto last = records_.of(number, run.last, run.lane.device, turn);
      if (run.is_collective && run.parts.size() > 1) continue;  // which is no single device op
      ASSERT_TRUE(first && last) << "a node told nothing";
      expect_marks(step.spans[i], {.begin_s = first->begin_s, .end_s = last->end_s});
      if (run.lane == kMainLane && run.phase != Phase::kData) {
        runs_s[run.phase] += last->end_s - first->begin_s;
      }
    }
    for (NodeId id = 0; id < program.size(); ++id) {
      const Node& node = program.nodes()[static_cast<std::size_t>(id)];
      if (node.phase == Phase::kData || lanes_of(program, node) != std::vector{kMainLane}) continue;
      const Span span = records_.of(number, id, 0, turn).value();
      nodes_s[phase_of_run(step, id)] += span.end_s - span.begin_s;
    }
    expect_own_work(runs_s, nodes_s);
  }

  /// The phase that the account gives a node of the main lane: its own, or that of its run, if it
  /// is in a graph whose phases no output shows.
  [[nodiscard]] Phase phase_of_run(const StepTimeline& step, NodeId id) const {
    const Phase own = step.plan->program().node(id).phase;
    for (const NodeRun& run : step.plan->runs()) {
      if (run.lane != kMainLane || id < run.first || id > run.last) continue;
      EXPECT_TRUE(run.phase == own || run.mixes_phases) << "node " << id;
      EXPECT_TRUE(!run.mixes_phases || by_ != MarkedBy::kRecords) << "the CPU's are always shown";
      return run.phase;
    }
    return own;
  }

  void expect_marks(const Span& marked, const Span& ran) const {
    if (by_ == MarkedBy::kRecords) {
      EXPECT_EQ(marked.begin_s, ran.begin_s);
      EXPECT_EQ(marked.end_s, ran.end_s);
    } else {
      EXPECT_LE(marked.begin_s, ran.begin_s + clock_error_s());
      EXPECT_GE(marked.end_s, ran.end_s - clock_error_s());
    }
  }

  /// Seconds of the main lane's runs, and of their nodes, by phase.
  void expect_own_work(const EnumArray<Phase, double>& runs_s,
                       const EnumArray<Phase, double>& nodes_s) const {
    EnumArray<Phase, double> own_s{};
    EnumArray<Part, double> own_part_s{};
    visit_stretches(timeline(), kMainLane, [&](const CauseSpan& stretch) {
      if (!stretch.is_own_work) return;
      const NodeRun& run = timeline().at(0)->plan->runs()[stretch.held_by->run];
      if (run.phase == Phase::kData) return;
      own_s[run.phase] += stretch.seconds();
      own_part_s[stretch.part] += stretch.seconds();
    });
    for (const Phase phase : kValuesOf<Phase>) {
      const double error_s =
          kRounding + clock_error_s() * static_cast<double>(timeline().at(0)->spans.size());
      EXPECT_GE(own_s[phase], nodes_s[phase] - error_s) << "phase " << name_of(phase);
      if (by_ == MarkedBy::kRecords) EXPECT_NEAR(own_s[phase], runs_s[phase], kRounding);
    }
    const StepAccount account = account_of(timeline(), kMainLane);
    for (const Part part : kValuesOf<Part>) {
      EXPECT_GE(account[part], own_part_s[part] - kRounding) << "part " << name_of(part);
    }
  }

  const Trainer& trainer_;
  const Records& records_;
  MarkedBy by_;
  double wall_end_s_ = 0, walls_s_ = 0, not_before_s_ = 0, evaluation_s_ = 0;
  std::int64_t steps_ = 0, in_rows_ = 0, evaluations_ = 0;
  std::map<const Program*, std::size_t> turns_;
};

/// A run as typed: "mlp_ddp -np 2 --scheme zero1".
struct Typed {
  int ranks = 0;  // 0: the program has no ranks
  TrainConfig config;

  explicit Typed(const std::string& command) {
    std::istringstream words(command);
    std::string name;
    words >> name;
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) {
      if (word == "-np") {
        words >> ranks;
      } else {
        arguments.push_back(word);
      }
    }
    config =
        parse_command_line(
            std::ranges::find(kTrainingPrograms, name, &TrainingProgram::name)->usual, arguments)
            .config;
  }

  [[nodiscard]] std::unique_ptr<Scheme> scheme() const {
    constexpr std::int64_t kSmallBucket = 100;
    return scheme_of(config, {.devices = static_cast<int>(config.device.devices.size()),
                              .first_bucket_bytes = kSmallBucket});
  }
  [[nodiscard]] StepSpec spec(const Dataset* data, int rank) const {
    return ranks == 0 ? spec_of(config, DeviceKind::kCpu, data)
                      : spec_of_rank(config, DeviceKind::kCpu, data, rank, ranks);
  }
};

/// Whether the program would refuse the run: by its options as typed, combined, or by their
/// programs.
std::optional<Typed> unless_refused(const std::string& command) {
  try {
    Typed typed(command);
    const auto devices = static_cast<int>(typed.config.device.devices.size());
    require({.ranks = std::max({typed.ranks, devices, 1}), .config = typed.config});
    const auto scheme = typed.scheme();
    const StepPrograms programs(typed.spec(nullptr, 0), scheme.get());
    return typed;
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ExitCode::kUsage || error.code() == ExitCode::kConfiguration)
        << error.what();
    return std::nullopt;
  }
}

struct Checked {
  std::int64_t steps = 0, steps_in_rows = 0, evaluations = 0;
};

/// One process of a run, with every step checked. `ranks` is null for programs without ranks.
Checked check_process(const Typed& typed, MarkedBy by, ThreadRank* ranks,
                      double evaluation_pause_s) {
  const TrainConfig& config = typed.config;
  std::optional<Dataset> dataset;
  if (config.data.kind != DataKind::kRandn) {
    dataset.emplace(load_dataset(config.data, widths_of(config.model, 1), config.model.loss));
  }
  const Dataset* const data = dataset ? &*dataset : nullptr;
  const auto scheme = typed.scheme();
  const StepPrograms programs(typed.spec(data, ranks == nullptr ? 0 : ranks->rank()), scheme.get());
  std::unique_ptr<Transport> mesh;
  if (ranks != nullptr) mesh = join_mesh(*ranks, programs.spec().mesh);
  Records records;
  std::vector<std::unique_ptr<Device>> opened;
  std::vector<Device*> devices;
  for (int i = 0; i < MemoryPlan(programs.buffers()).devices(); ++i) {
    opened.push_back(make_cpu_device({.index = i, .threads = 1, .gemm = config.device.gemm}));
    opened.push_back(std::make_unique<HeardDevice>(*opened.back(), records, by));
    devices.push_back(opened.back().get());
  }
  std::unique_ptr<Transport> transport;
  if (ranks != nullptr) {
    transport = std::make_unique<HeardTransport>(*mesh, records, by);
  } else if (scheme != nullptr) {
    transport = std::make_unique<LocalTransport>(devices, reduce_piece_of(programs.buffers()));
  }
  Trainer trainer(config, programs, devices, {ranks, transport.get()}, data);
  records.clear();
  Promises promises(trainer, records, by);
  promises.evaluation_pause_s = evaluation_pause_s;
  const double start_s = now_s();
  trainer.run(promises);
  EXPECT_LE(promises.walls_s(), now_s() - start_s) << "the steps took longer than the run";
  EXPECT_EQ(promises.steps(), trainer.steps());
  return {promises.steps(), promises.steps_in_rows(), promises.evaluations()};
}

/// The result of each process of the run; all are the same.
Checked check_run(const Typed& typed, MarkedBy by, const std::string& name,
                  double evaluation_pause_s = 0) {
  if (typed.ranks == 0) return check_process(typed, by, nullptr, evaluation_pause_s);
  Checked first;
  on_threads(typed.ranks, [&](ThreadRank& ranks) {
    SCOPED_TRACE(fmt::format("rank {} of {}", ranks.rank(), name));
    const Checked checked = check_process(typed, by, &ranks, evaluation_pause_s);
    if (ranks.rank() == 0) first = checked;
  });
  return first;
}

constexpr const char* kSmallRun =
    "--layers 5,7,6,8,3 --no-last-relu --steps 12 --lr 0.01 --threads 1 --gemm reference";

struct SchemeCase {
  const char* name;
  const char* command;
};

constexpr SchemeCase kSchemes[] = {
    {"one", "mlp_single --device cpu --batch-size 10"},
    {"ddp_2", "mlp_ddp -np 2 --device cpu --scheme ddp --bucket-mib 0.0001"},
    {"ddp_3", "mlp_ddp -np 3 --device cpu --scheme ddp --bucket-mib 0.0001"},
    {"no_overlap_2", "mlp_ddp -np 2 --device cpu --no-overlap --bucket-mib 0.0001"},
    {"no_overlap_3", "mlp_ddp -np 3 --device cpu --no-overlap --bucket-mib 0.0001"},
    {"zero1_2", "mlp_ddp -np 2 --device cpu --scheme zero1"},
    {"zero1_3", "mlp_ddp -np 3 --device cpu --scheme zero1"},
    {"zero3_3", "mlp_ddp -np 3 --device cpu --scheme zero3"},
    {"pipeline_2", "mlp_ddp -np 2 --device cpu --scheme ddp --pipeline 2"},
    {"factor_2", "mlp_ddp -np 2 --device cpu --scheme factor"},
    {"factor_3", "mlp_ddp -np 3 --device cpu --scheme factor"},
    {"data_parallel_2", "mlp_dp --devices cpu,cpu --batch-size 10"},
    {"one_recomputed", "mlp_single --device cpu --batch-size 10 --recompute 2"},
    {"ddp_2_recomputed",
     "mlp_ddp -np 2 --device cpu --scheme ddp --bucket-mib 0.0001 --recompute 2"},
    {"data_parallel_2_recomputed", "mlp_dp --devices cpu,cpu --batch-size 10 --recompute 2"},
};

constexpr std::pair<MarkedBy, const char*> kMarks[] = {
    {MarkedBy::kRecords, " by records"},
    {MarkedBy::kEvents, " by events"},
    {MarkedBy::kEventsOfAWrongClock, " by events of a wrong clock"}};

class StepAccounts : public testing::TestWithParam<SchemeCase> {};

TEST_P(StepAccounts, AddUpToWallsThatTileTheRunAndAgreeWithTheNodes) {
  int runs = 0;
  Sample sample;
  for (const char* log_every : {"--log-every 1", "--log-every 100"}) {
    for (const char* update : {"--update separate", "--update fused", "--update per-bucket"}) {
      for (const char* graph : {"", " --graph"}) {
        const std::string command =
            fmt::format("{} {} {} {}{}", GetParam().command, kSmallRun, log_every, update, graph);
        SCOPED_TRACE(command);
        const std::optional<Typed> typed = unless_refused(command);
        if (!typed) continue;
        for (const auto& [by, name] : kMarks) {
          if (!sample.takes_next()) continue;
          const Checked checked = check_run(*typed, by, command + name);
          EXPECT_EQ(checked.steps, 12);
          // The host waits for the first step, so the row begins with the second.
          EXPECT_EQ(checked.steps_in_rows, typed->config.training.log_every == 1 ? 0 : 10);
          ++runs;
        }
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GE(runs, 6 / kOneOf);
}

INSTANTIATE_TEST_SUITE_P(, StepAccounts, testing::ValuesIn(kSchemes),
                         [](const auto& each) { return each.param.name; });

class EvaluationsBetweenSteps : public TempDirTest {};

/// Four epochs with an observer that spends time on each evaluation.
TEST_F(EvaluationsBetweenSteps, BelongToNoTrainingStep) {
  class_run(folder());  // writes the files
  constexpr const char* kFiles =
      "--device cpu --threads 1 --gemm reference --layers 6,12,4 --no-last-relu --epochs 4 "
      "--loss cross-entropy --data idx:x.idx,y.idx --test-split 0.25";
  for (const char* program :
       {"mlp_single --batch-size 8", "mlp_ddp -np 2 --global-batch-size 8 --bucket-mib 0.0001",
        "mlp_ddp -np 2 --global-batch-size 8 --bucket-mib 0.0001 --update per-bucket",
        "mlp_ddp -np 3 --global-batch-size 8 --scheme zero1",
        "mlp_ddp -np 2 --global-batch-size 8 --scheme factor"}) {
    for (const char* log_every : {"--log-every 1", "--log-every 100"}) {
      for (const char* workers : {"--workers 0", "--workers 1"}) {
        const std::string command = fmt::format("{} {} {} {}", program, kFiles, log_every, workers);
        SCOPED_TRACE(command);
        Typed typed(command);
        for (auto* const path : {&typed.config.data.x, &typed.config.data.y}) {
          *path = folder() / *path;
        }
        constexpr double kPause_s = 0.002;
        const Checked checked = check_run(typed, MarkedBy::kRecords, command, kPause_s);
        // Three batches of 8 samples and one of 6.
        EXPECT_EQ(checked.steps, 4 * 4);
        EXPECT_EQ(checked.evaluations, 4);
        // In a row: all steps except the first of each epoch and the second of the run, which waits
        // for the first.
        EXPECT_EQ(checked.steps_in_rows, typed.config.training.log_every == 1 ? 0 : 4 * 3 - 1);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace barestep
