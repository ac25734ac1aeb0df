// A run that goes on from the state between two of its steps has the bits of one that was never
// cut.
#include "train/training_state.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TrainConfig small_run() {
  TrainConfig config;
  config.model.layers = {5, 7, 3};
  config.data.batch_size = 6;
  config.training.steps = 8;
  config.device.threads = 1;
  config.device.gemm = GemmProvider::kReference;
  config.checkpoint.folder = "checkpoints";
  return config;
}

struct Change {
  const char* name;
  void (*apply)(TrainConfig&);
};

const Change kChanges[] = {
    {"Adam", [](TrainConfig&) {}},
    {"AdamW", [](TrainConfig& c) { c.optimizer.kind = OptimizerKind::kAdamW; }},
    {"Sgd", [](TrainConfig& c) { c.optimizer.kind = OptimizerKind::kSgd; }},
    {"SgdWithMomentum",
     [](TrainConfig& c) {
       c.optimizer.kind = OptimizerKind::kSgd;
       c.optimizer.momentum = 0.9;
       c.optimizer.nesterov = true;
     }},
    {"LrWarmup", [](TrainConfig& c) { c.optimizer.lr_warmup = 6; }},
    {"FusedUpdate", [](TrainConfig& c) { c.training.update = Update::kFused; }},
    {"Accumulate", [](TrainConfig& c) { c.training.accumulate = 3; }},
    {"NoZeroGrad", [](TrainConfig& c) { c.training.zero_grad = false; }},
    {"Dropout", [](TrainConfig& c) { c.model.dropout = 0.3; }},
    {"ClipNorm", [](TrainConfig& c) { c.training.clip_norm = 0.05; }},
    {"OneLayerOfPadding",
     [](TrainConfig& c) {
       c.model.layers = {1, 1};
     }},
};

enum class Input { kRandom, kFiles, kFilesWithoutWorkers };

class Resumed : public testing::TestWithParam<std::tuple<Change, Input, std::int64_t>> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "resumed-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Of files: 4 epochs of 5 steps, the last of which is smaller, with evaluations.
  [[nodiscard]] TrainConfig config() const {
    const auto& [change, input, log_every] = GetParam();
    TrainConfig config = small_run();
    if (input != Input::kRandom) {
      config = number_run(folder_);
      config.checkpoint.folder = "checkpoints";
      config.data.batch_size = 7;
      if (input == Input::kFilesWithoutWorkers) config.data.workers = 0;
    }
    change.apply(config);
    if (input != Input::kRandom && config.model.layers.size() == 2) config.model.layers = {6, 4};
    config.training.log_every = log_every;
    return config;
  }

 private:
  std::filesystem::path folder_;
};

TEST_P(Resumed, HasTheBitsOfTheRunThatWasNeverCut) {
  const TrainConfig config = this->config();
  const Trained whole = train_single(config);
  const std::int64_t steps = std::ssize(whole.losses) - std::ssize(whole.evaluations);
  for (std::int64_t cut = 1; cut <= steps; ++cut) {
    for (const Wish wish : {Wish::kStop, Wish::kPause}) {
      SCOPED_TRACE(fmt::format("{} steps", cut));
      TrainingState state;
      Interruption cutting{.kept = &state, .asks_behind = cut - 1, .asks_for = wish};
      if (wish == Wish::kPause) cutting = {.kept = &state, .pause_every = cut};
      train_single(config, cutting);
      if (wish == Wish::kPause) EXPECT_EQ(state.position.steps, cut);
      const Trained rest = train_single(config, {.start = &state});
      const auto skipped = static_cast<std::ptrdiff_t>(whole.losses.size() - rest.losses.size());
      ASSERT_GE(skipped, cut);
      EXPECT_EQ(rest.losses,
                std::vector<float>(whole.losses.begin() + skipped, whole.losses.end()));
      EXPECT_EQ(rest.parameters, whole.parameters);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Run, Resumed,
                         testing::Combine(testing::ValuesIn(kChanges),
                                          testing::Values(Input::kRandom, Input::kFiles,
                                                          Input::kFilesWithoutWorkers),
                                          testing::Values(1, 3)),
                         [](const auto& info) {
                           const Input input = std::get<1>(info.param);
                           return fmt::format(
                               "{}_{}_{}", std::get<0>(info.param).name,
                               input == Input::kRandom  ? "random"
                               : input == Input::kFiles ? "files"
                                                        : "filesInStep",
                               std::get<2>(info.param) == 1 ? "oneByOne" : "pipelined");
                         });

std::vector<std::string> names_of_state(const TrainConfig& config) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor :
       state_tensors(StepPrograms(spec_of(config, DeviceKind::kCpu, nullptr)))) {
    names.push_back(tensor.name);
  }
  return names;
}

TEST(StateOfTraining, HasTheNamesOfPyTorch) {
  TrainConfig config = small_run();
  config.model.layers = {5, 3};
  EXPECT_THAT(names_of_state(config),
              ElementsAre("net.0.weight", "net.0.bias", "optimizer.exp_avg.net.0.weight",
                          "optimizer.exp_avg.net.0.bias", "optimizer.exp_avg_sq.net.0.weight",
                          "optimizer.exp_avg_sq.net.0.bias", "generator"));
  config.optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0.9};
  config.training.zero_grad = false;
  EXPECT_THAT(names_of_state(config),
              ElementsAre("net.0.weight", "net.0.bias", "optimizer.momentum_buffer.net.0.weight",
                          "optimizer.momentum_buffer.net.0.bias", "gradients.net.0.weight",
                          "gradients.net.0.bias", "generator"));
}

TEST(StateOfTraining, OfAnotherRunIsRefusedWithWhatDiffers) {
  const auto state_of = [](const TrainConfig& config) {
    TrainingState state;
    train_single(config, {.kept = &state, .pause_every = 2});
    return state;
  };
  const TrainConfig config = small_run();
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const auto expect_refused = [&](const TrainingState& state, const std::string& why) {
    expect_error(ExitCode::kBadData, "checkpoint 'c': " + why,
                 [&] { require_state(state, programs, "c"); });
  };
  require_state(state_of(config), programs, "c");
  TrainConfig other = config;
  other.model.layers = {5, 6, 3};
  expect_refused(state_of(other),
                 "net.0.weight is [6, 5], not [7, 5], net.0.bias is [6], not [7], net.2.weight is "
                 "[3, 6], not [3, 7], and 6 more; resume from a checkpoint of this run");
  other = config;
  other.optimizer.kind = OptimizerKind::kSgd;
  expect_refused(state_of(other), "optimizer.exp_avg.net.0.weight is missing");
  TrainingState spoiled = state_of(config);
  spoiled.tensors.front().dtype = "F64";
  std::memset(spoiled.tensors.back().bytes.data(), 0xFF, 100);
  expect_refused(spoiled,
                 "net.0.weight is F64, not F32, generator is not the state of a generator; ");
}

}  // namespace
}  // namespace barestep
