// --update auto that measures: the first steps try both ways to update, which have the same bits.

#include "core/index.h"
#include "kernels/make_device.h"
#include "parallel/schemes/other_schemes.h"
#include "parallel/schemes/scheme_of.h"
#include "session/session.h"
#include "support/metrics.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/waits.h"

namespace barestep {
namespace {

constexpr const char* kMeasured =
    "\n--update auto measured fused [0-9.]+ ms, separate [0-9.]+ ms: takes (fused|separate)\n";

class UpdateTrialTest : public TempDirTest {
 protected:
  /// The whole run's output.
  std::string output_of_run(const TrainConfig& config) {
    const auto place = one_device();
    Session session(*place, config, alone_);
    ::testing::internal::CaptureStdout();
    session.run();
    return ::testing::internal::GetCapturedStdout();
  }

  /// The line with the hash of the weights.
  static std::string weights_in(const std::string& output) {
    return output.substr(output.find("\nWeights: "));
  }

  /// What `update` leads to.
  std::string weights_of(TrainConfig config, Update update) {
    config.training.update = update;
    return weights_in(output_of_run(config));
  }

  /// The smallest model whose update is measured.
  TrainConfig config_ = [] {
    TrainConfig config;
    config.parallel.scheme = SchemeKind::kSingle;
    config.model.layers = {2047, 1024};
    config.data.batch_size = 3;
    config.training.steps = 7;
    config.training.log_every = 3;
    config.device.device = "cpu";
    return config;
  }();

 private:
  Job alone_;
};

TEST_F(UpdateTrialTest, HasTheBitsOfEitherUpdateWithEveryOptimizerThatFuses) {
  for (const OptimizerKind kind : kValuesOf<OptimizerKind>) {
    if (!traits_of(kind).has_fused_update) continue;
    SCOPED_TRACE(name_of(kind));
    config_.optimizer.kind = kind;
    config_.optimizer.weight_decay = 0.02;
    const std::string output = output_of_run(config_);
    EXPECT_THAT(output,
                HasSubstr("\n--update auto tries fused and separate in the first 4 steps\n"));
    EXPECT_THAT(output, ContainsRegex(kMeasured));
    EXPECT_EQ(weights_in(output), weights_of(config_, Update::kFused));
    EXPECT_EQ(weights_in(output), weights_of(config_, Update::kSeparate));
  }
}

// Where sums would have another order, the separate update's bits stay.
TEST_F(UpdateTrialTest, IsNotMadeWhereTheBitsWouldDiffer) {
  const std::function<void(TrainConfig&)> changes[] = {
      [](TrainConfig& config) { config.training.accumulate = 2; },
      [](TrainConfig& config) { config.training.clip_norm = 0.01; },
      [](TrainConfig& config) { config.device.gemm = GemmProvider::kReference; }};
  for (const auto& change : changes) {
    TrainConfig config = config_;
    config.training.steps = 6;
    change(config);
    const std::string output = output_of_run(config);
    EXPECT_THAT(output, HasSubstr("\n--update auto takes separate: "));
    EXPECT_THAT(output, Not(HasSubstr("auto measured")));
    EXPECT_EQ(weights_in(output), weights_of(config, Update::kSeparate));
  }
}

TEST_F(UpdateTrialTest, SaysInTheMetricsWhichUpdateEachStepRan) {
  config_.output.metrics = folder() / "m";
  config_.training.warmup = 5;
  const std::string output = output_of_run(config_);
  const bool takes_fused = output.find("takes fused") != output.npos;
  std::string updates;
  for (const auto& record : records_of(read_file(folder() / "m"))) {
    updates += record.at("update").get<std::string>() + " ";
  }
  const std::string chosen = takes_fused ? "fused " : "separate ";
  EXPECT_EQ(updates, "fused separate fused separate " + chosen + chosen + chosen);
  EXPECT_THAT(read_file(folder() / "m"), HasSubstr("\"update\":\"auto\""));
  EXPECT_THAT(output,
              HasSubstr("\n  Update       " + std::string(takes_fused ? "fused," : "separate,")));
}

TEST_F(UpdateTrialTest, IsMadeAgainWhenTheRunResumes) {
  config_.training.steps = 13;
  const std::string whole = weights_of(config_, Update::kSeparate);
  config_.checkpoint.folder = folder() / "c";
  config_.training.steps = 7;
  output_of_run(config_);
  config_.checkpoint.resume = true;
  config_.training.steps = 13;
  ::testing::internal::CaptureStderr();
  const std::string output = output_of_run(config_);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("rounding may differ")));
  EXPECT_THAT(output, ContainsRegex(kMeasured));
  EXPECT_EQ(weights_in(output), whole);
}

TEST_F(UpdateTrialTest, IsMadeWhereStepsAreVerifiedToo) {
  for (const int every : {1, 3}) {
    config_.output.verify_every = every;
    const std::string output = output_of_run(config_);
    EXPECT_THAT(output, ContainsRegex(kMeasured));
    EXPECT_EQ(weights_in(output), weights_of(config_, Update::kSeparate));
  }
}

TEST_F(UpdateTrialTest, NeedsFiveStepsOfWarmup) {
  config_.training.warmup = 4;
  const std::string output = output_of_run(config_);
  EXPECT_THAT(output,
              HasSubstr("\n--update auto takes fused: Adam runs beside the products of the weight "
                        "gradients; not measured, as the warm-up has fewer than 5 equal steps\n"));
  EXPECT_EQ(weights_in(output), weights_of(config_, Update::kSeparate));
}

TEST(UpdateTimes, TakeTheFusedUpdateOnlyIfItIsClearlyFaster) {
  EXPECT_EQ((UpdateTimes{.fused_s = 1, .separate_s = 1}).choice(), Update::kSeparate);
  EXPECT_EQ((UpdateTimes{.fused_s = 0.985, .separate_s = 1}).choice(), Update::kSeparate);
  EXPECT_EQ((UpdateTimes{.fused_s = 0.975, .separate_s = 1}).choice(), Update::kFused);
  EXPECT_EQ((UpdateTimes{.fused_s = 2, .separate_s = 1}).choice(), Update::kSeparate);
}

/// A rank that goes on with a given update, whatever the times.
class SettlingRank final : public TrainObserver {
 public:
  SettlingRank(const TrainConfig& config, RankOfTest rank, Update takes)
      : takes_(takes), device_(make_cpu_device({.threads = 1})) {
    StepSpec spec =
        spec_of_rank(config, DeviceKind::kCpu, nullptr, rank.group.rank(), rank.group.size());
    spec.update.tries_both = config.training.update == Update::kAuto;
    scheme_ = std::make_unique<Factor>();
    programs_ = std::make_unique<StepPrograms>(spec, scheme_.get());
    for (const StepProgram* step : programs_->all()) expect_ordered(step->program);
    Trainer trainer(config, *programs_, {device_.get()}, {&rank.group, &rank.transport}, nullptr);
    trainer.run(*this);
    weights = trainer.weights();
  }

  void on_step(const StepReport& report) override { losses.push_back(report.loss); }
  void on_updates_tried(const UpdateTimes& tried) override {
    times = tried;
    programs_->settle_update(takes_ == Update::kSeparate);
  }

  UpdateTimes times;
  std::vector<float> losses;
  FlatWeights weights;

 private:
  Update takes_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> programs_;
};

TEST(UpdateTrial, GivesAllRanksTheSameTimesAndAnyChoiceTheSameBits) {
  constexpr int kRanks = 3;
  TrainConfig config;
  config.parallel.scheme = SchemeKind::kFactor;
  config.model.layers = {40, 30, 20};
  config.data.batch_size = 10;
  config.training.steps = 12;
  config.training.warmup = 8;
  std::vector<std::unique_ptr<SettlingRank>> all;
  const auto run = [&](Update update, Update takes) {
    config.training.update = update;
    std::vector<std::unique_ptr<SettlingRank>> ranks(kRanks);
    on_threads(kRanks, [&](ThreadRank& rank) {
      at(ranks, static_cast<RankOfTest>(rank).group.rank()) =
          std::make_unique<SettlingRank>(config, rank, takes);
    });
    const UpdateTimes times = ranks.front()->times;
    for (auto& rank : ranks) {
      EXPECT_EQ(rank->times.fused_s, times.fused_s);
      EXPECT_EQ(rank->times.separate_s, times.separate_s);
      EXPECT_EQ(rank->times.fused_s > 0, update == Update::kAuto);
      all.push_back(std::move(rank));
    }
  };
  run(Update::kSeparate, Update::kSeparate);
  run(Update::kFused, Update::kFused);
  run(Update::kAuto, Update::kSeparate);
  run(Update::kAuto, Update::kFused);
  for (const auto& rank : all) {
    EXPECT_EQ(rank->losses, all[0]->losses);
    EXPECT_EQ(rank->weights, all[0]->weights);
  }
}

}  // namespace
}  // namespace barestep
