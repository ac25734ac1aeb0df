// A run that continues from the state between two of its steps has the same bits as an
// uninterrupted run.
#include "train/training_state.h"

#include <future>

#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/forwarding_device.h"
#include "support/rank_run.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

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
    {"Staleness", [](TrainConfig& c) { c.training.staleness = 2; }},
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

  /// A run on files: 4 epochs of 5 steps, the last one smaller, with evaluations.
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
    for (const StepRequest request : {StepRequest::kStop, StepRequest::kPause}) {
      SCOPED_TRACE(fmt::format("{} steps", cut));
      TrainingState state;
      Interruption cutting{.kept = &state, .asks_after_step = cut - 1, .asks_for = request};
      if (request == StepRequest::kPause) cutting = {.kept = &state, .pause_every = cut};
      train_single(config, cutting);
      if (request == StepRequest::kPause) {
        EXPECT_EQ(state.position.steps, cut);
      }
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
                         [](const auto& test) {
                           const Input input = std::get<1>(test.param);
                           return fmt::format(
                               "{}_{}_{}", std::get<0>(test.param).name,
                               input == Input::kRandom  ? "random"
                               : input == Input::kFiles ? "files"
                                                        : "filesInStep",
                               std::get<2>(test.param) == 1 ? "oneByOne" : "pipelined");
                         });

/// The CPU presented as a device with its own memory: copies of a snapshot wait until they are
/// released.
class HeldCopies final : public ForwardingDevice {
 public:
  explicit HeldCopies(Device& inner) : ForwardingDevice(inner) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    auto stream = ForwardingDevice::new_stream(label);
    if (label == "checkpoint") stream->call(&wait, this);
    return stream;
  }
  void release_copies() { may_go_on_.set_value(); }
  [[nodiscard]] bool were_released() const { return were_released_; }

 private:
  static void wait(void* self) {
    auto& held = *static_cast<HeldCopies*>(self);
    const auto status = held.may_go_on_.get_future().wait_for(std::chrono::minutes(1));
    held.were_released_ = status == std::future_status::ready;
  }

  std::promise<void> may_go_on_;
  std::atomic<bool> were_released_{false};
};

/// The same, but copies of snapshots fail.
class FailingCopies final : public ForwardingDevice {
 public:
  explicit FailingCopies(Device& inner) : ForwardingDevice(inner) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    auto stream = ForwardingDevice::new_stream(label);
    if (label == "checkpoint") copies_ = stream.get();
    return stream;
  }
  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    if (&stream != copies_) return inner().copy(to, from, bytes, stream);
    // Half of a copy reaches the host. A stream skips work queued after a failed op.
    inner().copy(to, from, bytes / 2, stream);
    stream.call([](void*) { throw std::runtime_error("the device is lost"); }, nullptr);
  }

 private:
  Stream* copies_ = nullptr;
};

/// Eight steps; a copy begins after the third.
void run_and_copy_after_third_step(TrainerHarness& run) {
  const std::atomic<bool> never{false};
  run.trainer->pause_when(3, never);
  run.at_pause = [&run] {
    if (run.trainer->steps_done() == 3) run.trainer->begin_copy();
  };
  run.run();
  EXPECT_EQ(run.trainer->steps_done(), 8);
}

TEST(StateOfTraining, IsASnapshotThatIsCopiedWhileTheRunGoesOn) {
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.name);
    TrainConfig config = small_run();
    change.apply(config);
    config.training.log_every = 3;
    const auto cpu = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
    auto held = std::make_unique<HeldCopies>(*cpu);
    HeldCopies& device = *held;
    TrainerHarness run(config, {}, std::move(held));
    run_and_copy_after_third_step(run);
    device.release_copies();
    TrainingState state{.position = {.steps = 3}, .tensors = {}};
    add_saved(state, *run.programs, run.trainer->finish_copy());
    EXPECT_TRUE(device.were_released()) << "the run has waited for the copy to the host";

    TrainerHarness rest(config, Generator::kTorchCuda, nullptr, &state);
    rest.run();
    const std::vector<float> whole = run.losses();
    EXPECT_EQ(rest.losses(), std::vector<float>(whole.begin() + 3, whole.end()));
    EXPECT_EQ(rest.trainer->weights(), run.trainer->weights());
  }
}

TEST(StateOfTraining, OfADeviceThatFailedIsNotThere) {
  const auto cpu = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  TrainerHarness run(small_run(), {}, std::make_unique<FailingCopies>(*cpu));
  run_and_copy_after_third_step(run);
  expect_error(ExitCode::kTryAgain,
               "copy of the state: the device failed; see the errors of the device",
               [&] { static_cast<void>(run.trainer->finish_copy()); });
}

std::vector<std::string> names_of_state(const TrainConfig& config) {
  std::vector<std::string> names;
  for (const TensorForm& tensor : state_tensors(programs_of(config))) names.push_back(tensor.name);
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
  const StepPrograms programs = programs_of(config);
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
