// A complete run in this process.
#include "session/session.h"

#include "core/error.h"
#include "core/index.h"
#include "kernels/make_device.h"
#include "parallel/schemes/scheme_of.h"
#include "session/checkpoints.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/forwarding_device.h"
#include "support/metrics.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Records the calls it receives.
class Diary final : public Observer {
 public:
  Diary(std::string name, std::vector<std::string>& lines)
      : name_(std::move(name)), lines_(lines) {}
  void on_step(const StepFigures& step) override {
    lines_.push_back(name_ + " step " + std::to_string(step.report.step));
  }
  void close() override { lines_.push_back(name_ + " closes"); }

 private:
  std::string name_;
  std::vector<std::string>& lines_;
};

TEST(Observers, AreToldInTheirOrderAndClosedInTheReverse) {
  std::vector<std::string> lines;
  Observers observers;
  observers.make<Diary>("first", lines);
  observers.add(nullptr);
  observers.make<Diary>("second", lines);
  TrainConfig config;
  config.model.layers = {2, 2};
  config.training.steps = 1;
  const StepPrograms programs = programs_of(config);
  const auto place = one_device();
  config.device.device = "cpu";
  place->resolve_config(config);
  place->open(config, programs);
  Trainer(config, programs, place->devices(), {}, nullptr).run(observers);
  for (const auto& close : observers.closing()) close();
  EXPECT_THAT(lines, ElementsAre("first step 0", "second step 0", "second closes", "first closes"));
}

class SessionTest : public TempDirTest {
 protected:
  TrainConfig config_ = [] {
    TrainConfig config;
    config.parallel.scheme = SchemeKind::kSingle;
    config.model.layers = {4, 4, 4};
    config.training.steps = 3;
    config.device.device = "cpu";
    return config;
  }();
  Job alone_;
  std::unique_ptr<Place> place_ = one_device();
};

TEST_F(SessionTest, ThatIsOnlyShownOpensNoDevice) {
  config_.output.plan = true;
  const Session session(*place_, config_, alone_);
  EXPECT_THAT(session.answer(), StartsWith("40 parameters\n--update auto takes separate: "));
  EXPECT_TRUE(place_->names().empty());
}

TEST_F(SessionTest, TellsWhichUpdateItTook) {
  config_.model = {.dim = 1024};
  const auto shown = [&](Update update) {
    config_.training.update = update;
    config_.output.explain = true;
    return Session(*place_, config_, alone_).answer();
  };
  EXPECT_THAT(shown(Update::kAuto),
              EndsWith("\n--update auto takes fused: Adam runs beside the products of the weight "
                       "gradients; not measured, as the warm-up has fewer than 5 equal steps\n"));
  EXPECT_THAT(shown(Update::kAuto), HasSubstr("linear_adam"));
  EXPECT_THAT(shown(Update::kSeparate), Not(HasSubstr("--update")));
  EXPECT_THAT(shown(Update::kSeparate), Not(HasSubstr("linear_adam")));
}

TEST_F(SessionTest, SavesItsFilesAndTellsItsTimes) {
  config_.output.metrics = folder() / "m";
  config_.output.save = folder() / "w";
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  session.run();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("\nStep 02 | Step time: "));
  EXPECT_DOUBLE_EQ(session.row().samples_per_s, 64 / session.row().step_time_s.mean);
  EXPECT_THAT(read_file(folder() / "m"), StartsWith("{\"configuration\":{"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "w"));
}

TEST_F(SessionTest, TellsWhatAStepWaitedForACheckpoint) {
  config_.output.metrics = folder() / "m";
  config_.checkpoint = {.folder = folder() / "c", .every = {.steps = 1}};
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  session.run();
  ::testing::internal::GetCapturedStdout();
  const std::vector<nlohmann::json> records = records_of(read_file(folder() / "m"));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_FALSE(records[0].contains("checkpoint_s"));
  for (const int step : {1, 2}) {
    const auto& record = records[static_cast<std::size_t>(step)];
    EXPECT_GT(record.at("checkpoint_s"), 0);
    EXPECT_GE(record.at("between_s"), 0);
  }
}

TEST_F(SessionTest, WritesProductChoicesAgainThatAreGone) {
  config_.checkpoint.folder = folder() / "c";
  Session(*place_, config_, alone_).run();
  config_.checkpoint.resume = true;
  std::optional<ResumePoint> point = find_resume_point("mlp_single", config_.checkpoint);
  ASSERT_TRUE(point.has_value());
  nlohmann::json state = nlohmann::json::parse(point->text);
  EXPECT_EQ(state.at("steps"), 3);
  EXPECT_EQ(state.at("product_choices"), "");
  DeviceConfig device;
  device.autotune = folder() / "choices";
  restore_product_choices(*point, device);
  EXPECT_FALSE(std::filesystem::exists(device.autotune));
  state["product_choices"] = "those of then";
  point->text = state.dump();
  restore_product_choices(*point, device);
  EXPECT_EQ(read_file(device.autotune), "those of then");
  file("choices", "those of now");
  restore_product_choices(*point, device);
  EXPECT_EQ(read_file(device.autotune), "those of now");
}

/// Reports the product choices that it is given.
class DeviceWithChoices final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] std::string product_choices() const override { return choices; }
  void set_product_choices(const std::string& text) override { taken.push_back(text); }

  std::string choices;
  std::vector<std::string> taken;
};

/// One device, which counts as a GPU for product choices.
class PlaceWithChoices final : public Place {
 public:
  explicit PlaceWithChoices(std::string choices) : choices_(std::move(choices)) {}
  void resolve_config(TrainConfig& config) override { inner_->resolve_config(config); }
  [[nodiscard]] DeviceKind kind() const override {
    return device_ == nullptr ? inner_->kind() : DeviceKind::kCuda;
  }
  [[nodiscard]] bool takes_any_kind() const override { return inner_->takes_any_kind(); }
  void require_outputs(const TrainConfig& config) const override {
    inner_->require_outputs(config);
  }
  void open(TrainConfig& config, const StepPrograms& programs) override {
    inner_->open(config, programs);
    device_ = std::make_unique<DeviceWithChoices>(*inner_->devices().front());
    device_->choices = choices_;
  }
  [[nodiscard]] std::vector<Device*> devices() const override { return {device_.get()}; }
  [[nodiscard]] int cpus() const override { return inner_->cpus(); }
  [[nodiscard]] std::vector<Placement> placements(const TrainConfig& config) const override {
    return inner_->placements(config);
  }
  [[nodiscard]] ProfilingScope profiling_scope() const override {
    return inner_->profiling_scope();
  }
  [[nodiscard]] MonitorScope monitor_scope() const override { return inner_->monitor_scope(); }

  [[nodiscard]] const std::vector<std::string>& taken() const { return device_->taken; }

 private:
  std::string choices_;
  std::unique_ptr<Place> inner_ = one_device();
  std::unique_ptr<DeviceWithChoices> device_;
};

TEST_F(SessionTest, GoesOnWithTheChoicesOfProductsThatTheCheckpointHolds) {
  config_.checkpoint.folder = folder() / "c";
  PlaceWithChoices first("those of then");
  Session(first, config_, alone_).run();
  EXPECT_THAT(first.taken(), ElementsAre()) << "it times what it prepares";
  config_.checkpoint.resume = true;
  config_.training.steps = 4;
  PlaceWithChoices resumed("");
  Session(resumed, config_, alone_).run();
  EXPECT_THAT(resumed.taken(), ElementsAre("those of then"));
  config_.training.steps = 5;
  config_.device.autotunes = false;
  PlaceWithChoices off("");
  ::testing::internal::CaptureStderr();
  Session(off, config_, alone_).run();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr(
          "at step 4; rounding may differ: --autotune is on in the checkpoint and off here\n"));
  EXPECT_THAT(off.taken(), ElementsAre());
}

/// The job of one of several ranks, each with its own place.
class JobOfThread final : public Job {
 public:
  explicit JobOfThread(Group& ranks) : ranks_(ranks) {}
  [[nodiscard]] Group* ranks() override { return &ranks_; }
  [[nodiscard]] Group* background_ranks() override { return &ranks_; }

 private:
  Group& ranks_;
};

// Each rank times differently and so makes a different choice.
TEST_F(SessionTest, OfSeveralRanksTakesTheChoicesOfTheFirst) {
  constexpr std::size_t kRanks = 3;
  std::vector<std::vector<std::string>> taken(kRanks);
  ::testing::internal::CaptureStdout();
  on_threads(kRanks, [&](Group& ranks) {
    JobOfThread job(ranks);
    PlaceWithChoices place("those of rank " + std::to_string(ranks.rank()));
    Session(place, config_, job).run();
    at(taken, ranks.rank()) = place.taken();
  });
  ::testing::internal::GetCapturedStdout();
  for (const auto& of_rank : taken) EXPECT_THAT(of_rank, ElementsAre("those of rank 0"));
}

TEST_F(SessionTest, ThatFindsAChangedBitSavesNothingAndNamesTheLastVerifiedCheckpoint) {
  config_.training.steps = 6;
  config_.checkpoint = {.folder = folder() / "c", .every = {.steps = 3}, .keep = 9};
  config_.output.verify_every = 2;
  config_.output.save = folder() / "w";
  config_.output.metrics = folder() / "m";
  config_.injected.flip = Flip{.buffer = "parameters", .word = 0, .bit = 1, .node = 4, .step = 5};
  ::testing::internal::CaptureStdout();
  const auto expect_line = [&](const std::string& checkpoint) {
    Session session(*place_, config_, alone_);
    expect_error(ExitCode::kCorrupted, checkpoint, [&] { session.run(); });
    EXPECT_FALSE(std::filesystem::exists(folder() / "w"));
  };
  const std::string first = (folder() / "c" / "step-000000003.safetensors").string();
  expect_line(" gave other bits when it ran again; the last verified checkpoint is '" + first +
              "', for --resume-from");
  EXPECT_THAT(checkpoint_steps(folder() / "c"), ElementsAre(3));
  EXPECT_EQ(records_of(read_file(folder() / "m")).size(), 5U) << "of the steps before";
  // Nothing before the first verification is vouched for.
  std::filesystem::remove_all(folder() / "c");
  config_.output.verify_every = 6;
  expect_line("; no checkpoint in '" + (folder() / "c").string() + "' was verified");
  config_.checkpoint = {};
  expect_line("; test this machine's memory and processors, and run again");
  ::testing::internal::GetCapturedStdout();
}

TEST_F(SessionTest, TellsWhatVerificationCosts) {
  config_.training.warmup = 0;
  config_.output.verify_every = 2;
  config_.output.metrics = folder() / "m";
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  session.run();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("\n  verification   "));
  const std::vector<nlohmann::json> records = records_of(read_file(folder() / "m"));
  ASSERT_EQ(records.size(), 3U);
  for (const nlohmann::json& record : records) {
    const auto& parts = record.at("phases_s");
    EXPECT_EQ(parts.at("verification") > 0, record.at("step") == 1);
    double sum_s = 0;
    for (const auto& [name, seconds] : parts.items()) {
      EXPECT_GE(seconds, -1e-9) << name;
      sum_s += seconds.get<double>();
    }
    EXPECT_NEAR(sum_s, record.at("step_time_s").get<double>(), 1e-9);
  }
}

TEST_F(SessionTest, ThatDivergesFinishesTheCheckpointThatIsBeingWritten) {
  config_.model.layers = {1024, 1024, 1024};
  config_.optimizer.kind = OptimizerKind::kSgd;
  config_.optimizer.lr = 1e25;  // the weights stay finite for one step, the loss does not
  config_.checkpoint = {.folder = folder() / "c", .every = {.steps = 1}};
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  expect_error(ExitCode::kDiverged, "at step 1, ", [&] { session.run(); });
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(read_checkpoint(folder() / "c" / name_of_checkpoint(1)).step, 1);
}

/// Cuts a file to so many bytes as soon as a run is in its fifth batch.
class CutsFile final : public Job {
 public:
  explicit CutsFile(std::filesystem::path file, std::uintmax_t bytes = 100)
      : file_(std::move(file)), bytes_(bytes) {}
  void enter(Activity activity, std::int64_t step) override {
    if (activity == Activity::kStep && step == 5) std::filesystem::resize_file(file_, bytes_);
  }

 private:
  std::filesystem::path file_;
  std::uintmax_t bytes_;
};

/// Tells a job of each step.
class CountsSteps final : public Observer {
 public:
  explicit CountsSteps(Job& job) : job_(job) {}
  void on_step(const StepFigures& step) override { job_.enter(Activity::kStep, step.report.step); }

 private:
  Job& job_;
};

class UnreadableSamples : public TempDirTest {
 protected:
  /// Samples that stay in their files.
  static std::shared_ptr<const Dataset> streamed(const TrainConfig& config) {
    return std::make_shared<const Dataset>(
        load_dataset(config.data, config.model.layers, config.model.loss, 0));
  }
};

TEST_F(UnreadableSamples, EndARunInOrderWithACheckpointOfTheLastWholeStep) {
  for (const int workers : {0, 1, 2}) {
    for (const int log_every : {1, 7}) {
      SCOPED_TRACE(fmt::format("{} workers, --log-every {}", workers, log_every));
      TrainConfig config = number_run(folder());
      config.parallel.scheme = SchemeKind::kSingle;
      config.device.device = "cpu";
      config.data.workers = workers;
      config.training.log_every = log_every;
      config.checkpoint.folder = folder() / "c";
      config.output.save = folder() / "rest";
      CutsFile job(config.data.x);
      const std::string bytes = read_file(config.data.x);
      const auto place = one_device();
      ::testing::internal::CaptureStderr();
      expect_error(ExitCode::kInputOutput,
                   "reading idx file '" + config.data.x.string() +
                       "': the file became shorter while it was read; check the disk",
                   [&] { Session(*place, config, job, streamed(config)).run(); });
      const auto point =
          find_resume_point("mlp_single", {.folder = folder() / "c", .resume = true});
      ASSERT_TRUE(point.has_value());
      const std::int64_t done = point->state.position.steps;
      EXPECT_GE(done, 4);
      EXPECT_LE(done, 8);
      EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                  HasSubstr(fmt::format(
                      "note: samples cannot be read, ended after step {} and wrote '", done - 1)));

      file("x.idx", bytes);
      Job alone;
      config.checkpoint.resume = true;
      Session(*one_device(), config, alone).run();
      config.checkpoint = {};
      config.output.save = folder() / "whole";
      Session(*one_device(), config, alone).run();
      EXPECT_EQ(read_file(folder() / "rest"), read_file(folder() / "whole"));
      std::filesystem::remove_all(folder() / "c");
    }
  }
}

class UnreadableSamplesOfARank : public UnreadableSamples {
 protected:
  /// Two ranks with files of their own; rank 1's lose their last `lost_bytes` in its fifth step.
  /// Returns the steps after which both end. Their weights must be those of so many steps.
  std::int64_t steps_until_both_end(TrainConfig run, std::uintmax_t lost_bytes) {
    const Ddp scheme(small_buckets());
    std::array<std::int64_t, 2> steps{};
    std::array<bool, 2> failed{};
    std::array<FlatWeights, 2> weights;
    const auto config_of = [&](int rank) {
      TrainConfig config = run;
      const TrainConfig files = number_run(folder() / std::to_string(rank));
      config.data.x = files.data.x;
      config.data.y = files.data.y;
      return config;
    };
    std::filesystem::create_directory(folder() / "0");
    std::filesystem::create_directory(folder() / "1");
    on_threads(2, [&](ThreadRank& ranks) {
      const TrainConfig config = config_of(ranks.rank());
      const auto data = streamed(config);
      const StepPrograms programs(
          spec_of_rank(config, DeviceKind::kCpu, data.get(), ranks.rank(), 2), &scheme);
      const auto device = make_cpu_device({.threads = 1, .gemm = config.device.gemm});
      Trainer trainer(config, programs, {device.get()}, {&ranks, &ranks}, data.get());
      CutsFile job(config.data.x, std::filesystem::file_size(config.data.x) - lost_bytes);
      Observers observers;
      if (ranks.rank() == 1) observers.make<CountsSteps>(job);
      trainer.run(observers);
      EXPECT_TRUE(trainer.was_stopped());
      at(steps, ranks.rank()) = trainer.steps_done();
      at(failed, ranks.rank()) = trainer.failure() != nullptr;
      at(weights, ranks.rank()) = trainer.weights();
    });
    EXPECT_FALSE(failed[0]);
    EXPECT_TRUE(failed[1]);
    EXPECT_EQ(steps[0], steps[1]);

    TrainConfig whole = config_of(0);
    whole.training.epochs.reset();
    whole.training.steps = steps[0];
    whole.data.test_split = run.data.test_split;
    const Trained trained = train_threads_by(scheme, 2, whole).front();
    EXPECT_EQ(weights[0], trained.parameters);
    EXPECT_EQ(weights[1], trained.parameters);
    return steps[0];
  }
};

TEST_F(UnreadableSamplesOfARank, EndAllRanksAfterTheSameStep) {
  for (const auto& [workers, prefetch] : {std::pair{0, 2}, {1, 1}, {1, 2}, {2, 3}}) {
    for (const int log_every : {1, 7}) {
      SCOPED_TRACE(
          fmt::format("{} workers, {} batches each, --log-every {}", workers, prefetch, log_every));
      TrainConfig config = number_run(folder());
      config.data.workers = workers;
      config.data.prefetch = prefetch;
      config.data.test_split = 0;
      config.training.log_every = log_every;
      const std::int64_t steps = steps_until_both_end(config, 800);
      EXPECT_GE(steps, 5);
      EXPECT_LE(steps, 14);
    }
  }
}

/// Only the last sample of the test set is lost.
TEST_F(UnreadableSamplesOfARank, OfAnEvaluationEndAllRanksBehindIt) {
  for (const int workers : {0, 1}) {
    SCOPED_TRACE(workers);
    TrainConfig config = number_run(folder());
    config.data.workers = workers;
    config.data.batch_size = 2;
    EXPECT_EQ(steps_until_both_end(config, 4), 15);
  }
}

}  // namespace
}  // namespace barestep
