// Pipelines on CPU devices of one process. The oracle is gradient accumulation on one device, with
// as many micro-steps as the pipeline has micro-batches.

#include "kernels/make_device.h"
#include "parallel/schemes/other_schemes.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/spread_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Five layers and batches of 12.
TrainConfig deep_config() {
  TrainConfig config = rank_config();
  config.model.layers = {5, 7, 6, 8, 4, 3};
  config.data.batch_size = 12;
  return config;
}

TrainConfig with_pipeline(TrainConfig config, std::int64_t stages, std::int64_t micro_batches,
                          PipelineSchedule schedule) {
  config.parallel.pipeline = stages;
  config.parallel.micro_batches = micro_batches;
  config.parallel.schedule = schedule;
  return config;
}

/// Compares every schedule, with 2 to 5 stages and several micro-batches, with accumulation to the
/// bit. 12 rows make micro-batches of equal size.
void expect_bits_of_accumulation(const TrainConfig& config) {
  Sample sample;
  for (const std::int64_t micro_batches : {1, 2, 3, 6}) {
    TrainConfig accumulates = config;
    accumulates.data.batch_size = config.data.batch_size / micro_batches;
    accumulates.training.accumulate = micro_batches;
    const SpreadRun expected = train_alone(accumulates);
    for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
      for (const std::int64_t stages : {2, 3, 5}) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(std::string(name_of(schedule)) + ", " + std::to_string(stages) + " stages, " +
                     std::to_string(micro_batches) + " micro-batches");
        EXPECT_EQ(train_pipeline(with_pipeline(config, stages, micro_batches, schedule)), expected);
      }
    }
  }
}

TEST(Pipeline, HasTheBitsOfAccumulationOnOneDevice) {
  const TrainConfig usual = deep_config();
  TrainConfig unfused = usual, gelu = usual, adds_up = usual, drops = usual, bf16 = usual;
  unfused.device.fusion = false;
  gelu.model.activation = Activation::kGelu;
  gelu.model.last_relu = true;
  gelu.optimizer.kind = OptimizerKind::kSgd;
  gelu.optimizer.momentum = 0.9;
  TrainConfig amsgrad = gelu;
  amsgrad.optimizer = {.kind = OptimizerKind::kAdamW, .lr = 1e-2, .amsgrad = true};
  adds_up.training.zero_grad = false;
  drops.model.dropout = 0.25;
  bf16.device.precision = Precision::kBf16;
  TrainConfig fp16 = usual;
  fp16.device.precision = Precision::kFp16;
  // A scale that some steps find too large.
  fp16.training.loss_scale = LossScaling{.initial = 0x1p24, .window = 3};
  for (const TrainConfig& config : {usual, unfused, gelu, amsgrad, adds_up, drops, bf16, fp16}) {
    expect_bits_of_accumulation(config);
  }
}

class PipelineFiles : public TempDirTest {};

// The last batch of an epoch has 6 of 8 rows.
TEST_F(PipelineFiles, HasTheBitsOfAccumulationForClassesAndNumbers) {
  for (const auto run : {&class_run, &number_run}) {
    TrainConfig config = run(folder());
    config.model.layers = {6, 12, 9, 4};
    TrainConfig accumulates = config;
    accumulates.data.batch_size = 2;
    accumulates.training.accumulate = 4;
    const SpreadRun expected = train_alone(accumulates);
    for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
      EXPECT_EQ(train_pipeline(with_pipeline(config, 3, 4, schedule)), expected);
    }
  }
}

// The squares of each stage are added up by themselves first.
TEST(Pipeline, ClipsAsOneDeviceDoes) {
  TrainConfig config = deep_config();
  config.training.clip_norm = 0.1;
  const SpreadRun one = train_alone(config);
  const SpreadRun cut =
      train_pipeline(with_pipeline(config, 3, 4, PipelineSchedule::kOneForwardOneBackward));
  expect_near(cut, one, config);
  config.training.clip_norm.reset();
  EXPECT_NE(train_alone(config).losses, one.losses);
}

// 10 rows in 4 micro-batches are 3, 3, 3 and 1; in 6 they are five of 2.
TEST(Pipeline, CutsRowsAsTorchChunkDoes) {
  for (const auto& [pieces, sizes] :
       std::map<std::int64_t, std::vector<std::int64_t>>{{4, {3, 3, 3, 1}}, {6, {2, 2, 2, 2, 2}}}) {
    const TrainConfig config = with_pipeline(rank_config(), 2, pieces, PipelineSchedule::kGPipe);
    const Pipeline scheme;
    const StepPrograms programs = programs_of(config, &scheme);
    std::vector<std::int64_t> found;
    for (const Node& node : programs.train().program.nodes()) {
      if (const auto* loss = op_if<PointwiseLoss>(node.op)) found.push_back(loss->output.rows);
    }
    EXPECT_EQ(found, sizes);
    expect_near(train_pipeline(config), train_alone(rank_config()), config);
  }
}

class PipelineProgram : public testing::TestWithParam<PipelineSchedule> {
 protected:
  PipelineProgram() {
    config_ = with_pipeline(deep_config(), 3, 4, GetParam());
    config_.training.clip_norm = 1;
    config_.model.dropout = 0.1;
    programs_ =
        std::make_unique<StepPrograms>(spec_of(config_, DeviceKind::kCpu, nullptr), &scheme_);
  }

  TrainConfig config_;
  const Pipeline scheme_;
  std::unique_ptr<StepPrograms> programs_;
};

TEST_P(PipelineProgram, IsOrderedAndNeedsEveryWait) {
  EXPECT_GT(expect_every_deletion_found(programs_->train().program), 30);
}

// Of 5-7-6-8-4-3 on three devices: two layers with 42 + 48 numbers, one with 56, two with 36 + 15.
TEST_P(PipelineProgram, EachDeviceHasItsLayersOnly) {
  const auto rounded = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const auto flat = [&](std::initializer_list<std::int64_t> parameters) {
    std::int64_t bytes = 0;
    for (const std::int64_t numbers : parameters) bytes += rounded(4 * numbers);
    return bytes;
  };
  const std::vector<std::int64_t> expected = {flat({35, 7, 42, 6}), flat({48, 8}),
                                              flat({32, 4, 12, 3})};
  const Buffers& buffers = programs_->buffers();
  for (int device = 0; device < 3; ++device) {
    for (const char* name : {"parameters", "gradients", "exp_avg", "exp_avg_sq"}) {
      const BufferId id = buffers.find(name, device);
      ASSERT_NE(id, kNoBuffer) << name;
      EXPECT_EQ(buffers[id].bytes, expected[static_cast<std::size_t>(device)]) << name;
    }
  }
  EXPECT_EQ(buffers.find("net.4.out", 0), kNoBuffer);
  EXPECT_EQ(programs_->parameter_list().size(), 42 + 48 + 56 + 36 + 15);
}

// A stage keeps the outputs of all micro-batches in flight.
TEST_P(PipelineProgram, KeepsTheActivationsOfMicroBatchesInFlight) {
  const Buffers& buffers = programs_->buffers();
  const auto rows_of = [&](const char* name, int device, std::int64_t cols) {
    return buffers[buffers.find(name, device)].bytes / 4 / cols;
  };
  const auto in_flight = [&](std::int64_t stage) -> std::int64_t {
    if (GetParam() == PipelineSchedule::kNaive) return 1;
    if (GetParam() == PipelineSchedule::kZeroBubbleH1) return 3;
    return GetParam() == PipelineSchedule::kGPipe ? 4 : 3 - stage;
  };
  EXPECT_EQ(rows_of("net.0.out", 0, 7), 3 * in_flight(0));
  EXPECT_EQ(rows_of("net.4.out", 1, 8), 3 * in_flight(1));
  EXPECT_EQ(rows_of("stage_input", 1, 6), 3 * in_flight(1));
  // Those of weights need it too.
  const bool keeps = GetParam() == PipelineSchedule::kZeroBubbleH1;
  EXPECT_EQ(rows_of("stage_grad", 1, 8), keeps ? 9 : 3);
  EXPECT_EQ(rows_of("net.8.out", 2, 3), 3 * in_flight(2));
}

std::string name_of_case(const testing::TestParamInfo<PipelineSchedule>& test) {
  constexpr const char* kNames[] = {"OneForwardOneBackward", "GPipe", "Naive", "ZeroBubbleH1"};
  return kNames[test.index];
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineProgram, testing::ValuesIn(kValuesOf<PipelineSchedule>),
                         &name_of_case);

}  // namespace
}  // namespace barestep
