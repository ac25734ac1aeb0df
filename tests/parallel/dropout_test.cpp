// Dropout in whole steps: which elements are dropped, on ranks and devices, in micro-steps and
// evaluations.

#include "core/plan.h"
#include "core/program.h"
#include "kernels/make_device.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/scheme_of.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/rank_run.h"
#include "support/spread_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TrainConfig dropping(double rate = 0.4) {
  TrainConfig config = rank_config();
  config.model.dropout = rate;
  return config;
}

std::vector<Dropout> dropouts_of(const Program& program, Phase phase) {
  std::vector<Dropout> found;
  for (const Node& node : program.nodes()) {
    const auto* const dropout = op_if<Dropout>(node.op);
    if (dropout != nullptr && node.phase == phase) found.push_back(*dropout);
  }
  return found;
}

/// How often each row of the step is dropped, layer by layer.
using RowCounts = std::map<std::pair<std::int64_t, std::int64_t>, int>;

void count_rows(const Program& program, RowCounts& counts) {
  for (const Dropout& op : dropouts_of(program, Phase::kForward)) {
    for (std::int64_t row = 0; row < op.values.rows; ++row) {
      ++counts[{op.layer, op.first_row + row * op.row_stride}];
    }
  }
}

/// Every row of a step exactly once after each layer except the last.
RowCounts each_once(const StepProgram& step, int layers) {
  RowCounts counts;
  for (int layer = 0; layer + 1 < layers; ++layer) {
    for (std::int64_t row = 0; row < step.rows; ++row) counts[{layer, row}] = 1;
  }
  return counts;
}

constexpr int kLayers = 3;  // in rank_config()

/// 10 rows per micro-step; files leave a smaller last batch.
StepSpec spec_of_data(const TrainConfig& config, DataKind data, int rank, int ranks) {
  StepSpec spec = spec_of_rank(config, DeviceKind::kCpu, nullptr, rank, ranks);
  spec.input.data = data;
  if (data != DataKind::kRandn) spec.input.train_rows = 7 + 4 * spec.step_rows();
  return spec;
}

TEST(DropoutOfRanks, DropsEachRowOfAStepOnceByItsPlaceAmongThoseOfAllRanks) {
  for (const SchemeKind kind : kValuesOf<SchemeKind>) {
    if (!has_ranks(kind)) continue;
    for (const DataKind data : {DataKind::kRandn, DataKind::kIdx}) {
      for (const std::int64_t accumulate : {1, 3}) {
        for (const int ranks : {1, 2, 3, 4}) {
          SCOPED_TRACE(std::string(name_of(kind)) + " on " + std::to_string(ranks));
          TrainConfig config = dropping();
          config.parallel.scheme = kind;
          config.training.accumulate = accumulate;
          const auto scheme = scheme_of(config);
          RowCounts whole, last;
          for (int rank = 0; rank < ranks; ++rank) {
            const StepPrograms programs(spec_of_data(config, data, rank, ranks), scheme.get());
            count_rows(programs.train().program, whole);
            if (programs.last_batch() != nullptr) count_rows(programs.last_batch()->program, last);
            if (rank + 1 < ranks) continue;
            EXPECT_EQ(whole, each_once(programs.train(), kLayers));
            if (data == DataKind::kIdx) EXPECT_EQ(last, each_once(*programs.last_batch(), kLayers));
          }
        }
      }
    }
  }
}

TEST(DropoutOfRanks, NumbersRowsOfFilesByTheirPlacesInTheStep) {
  TrainConfig config = dropping();
  config.training.steps = 5;
  const auto scheme = scheme_of(config);
  for (int rank = 0; rank < 3; ++rank) {
    const StepPrograms programs(spec_of_data(config, DataKind::kIdx, rank, 3), scheme.get());
    Schedule schedule(config.training, programs);
    for (int step = 0; step < 5; ++step) {
      const Batch batch = *schedule.next();
      const BatchRows rows = schedule.rows_of(batch);
      for (const Dropout& op : dropouts_of(batch.program->program, Phase::kForward)) {
        EXPECT_EQ(batch.first + op.first_row, rows.first);
        EXPECT_EQ(op.row_stride, rows.stride);
      }
    }
  }
}

TEST(DropoutOfDevices, DropsEachRowOfAStepOnce) {
  TrainConfig config = dropping();
  config.training.accumulate = 2;
  for (const int devices : {1, 2, 3, 4}) {
    const DataParallel scheme(devices, false);
    const StepPrograms programs = programs_of(config, &scheme);
    RowCounts counts;
    count_rows(programs.train().program, counts);
    EXPECT_EQ(counts, each_once(programs.train(), kLayers)) << devices;
  }
}

TEST(Dropout, GivesTheGradientTheMaskOfTheOutput) {
  for (const Update update : {Update::kSeparate, Update::kFused}) {
    TrainConfig config = dropping();
    config.training.update = update;
    const StepPrograms programs = programs_of(config);
    const auto forward = dropouts_of(programs.train().program, Phase::kForward);
    auto backward = dropouts_of(programs.train().program, Phase::kBackward);
    std::ranges::reverse(backward);
    ASSERT_THAT(forward, SizeIs(kLayers - 1));
    ASSERT_THAT(backward, SizeIs(kLayers - 1));
    for (std::size_t i = 0; i < forward.size(); ++i) {
      EXPECT_EQ(programs.buffers()[forward[i].values.buffer].name,
                "net." + std::to_string(2 * i) + ".out");
      EXPECT_EQ(backward[i].values.cols, forward[i].values.cols);
      EXPECT_EQ(forward[i].step, backward[i].step);
      EXPECT_EQ(forward[i].layer, backward[i].layer);
      EXPECT_EQ(forward[i].first_row, backward[i].first_row);
      EXPECT_EQ(forward[i].rate, backward[i].rate);
    }
  }
}

TEST(Dropout, LeavesTheOutputForAGradientThatNeedsItsValue) {
  TrainConfig config = dropping();
  for (const auto& [activation, from] : {std::pair{Activation::kRelu, "net.2.out"},
                                         {Activation::kLeakyRelu, "net.2.out"},
                                         {Activation::kGelu, "net.2.pre_activation"},
                                         {Activation::kTanh, "net.2.undropped"},
                                         {Activation::kSigmoid, "net.2.undropped"}}) {
    config.model.activation = activation;
    const StepPrograms programs = programs_of(config);
    for (const Node& node : programs.train().program.nodes()) {
      const auto* const grad = op_if<ActivationGrad>(node.op);
      if (grad == nullptr || layer_of(node) != 1) continue;
      EXPECT_EQ(programs.buffers()[grad->from.buffer].name, from);
    }
  }
}

TEST(Dropout, TakesNoMemoryButTheNumberOfTheStepAndSuchOutputs) {
  for (const Activation activation : kValuesOf<Activation>) {
    for (const std::int64_t batch_size : {10, 1000}) {
      const auto plan_of = [&](double rate) {
        TrainConfig config = dropping(rate);
        config.model.activation = activation;
        config.data.batch_size = batch_size;
        return MemoryPlan(programs_of(config).buffers());
      };
      const MemoryPlan with = plan_of(0.4);
      const MemoryPlan without = plan_of(0);
      for (const Category category : kValuesOf<Category>) {
        // Two slots, each aligned to 256 bytes.
        std::int64_t more = category == Category::kData ? 512 : 0;
        if (category == Category::kActivations &&
            traits_of(activation).grad_from == GradFrom::kOutput) {
          // The outputs of two layers, 7 and 6 wide.
          more = (batch_size * 7 * 4 + 255) / 256 * 256 + (batch_size * 6 * 4 + 255) / 256 * 256;
        }
        EXPECT_EQ(with.category_bytes(0, category), without.category_bytes(0, category) + more)
            << name_of(category);
      }
    }
  }
}

TEST(Dropout, OfNothingIsNoOpAndNoNumber) {
  const StepPrograms programs = programs_of(dropping(0));
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    EXPECT_THAT(dropouts_of(programs.train().program, phase), IsEmpty());
  }
  EXPECT_FALSE(programs.train().tensors.number_host.has_value());
}

class DropoutRun : public TempDirTest {};

TEST_F(DropoutRun, DropsNothingInAnEvaluation) {
  TrainConfig config = class_run(folder());
  config.model.dropout = 0.4;
  const Dataset dataset = load_dataset(config.data, widths_of(config.model, 1), config.model.loss);
  const DataParallel devices(3, false);
  const std::array<const Scheme*, 2> schemes = {nullptr, &devices};
  for (const Scheme* const scheme : schemes) {
    const StepPrograms programs(spec_of(config, DeviceKind::kCpu, &dataset), scheme);
    for (const StepProgram* const step : {programs.evaluate(), programs.last_evaluate()}) {
      ASSERT_NE(step, nullptr);
      EXPECT_THAT(dropouts_of(step->program, Phase::kEvaluate), IsEmpty());
      EXPECT_FALSE(step->tensors.number_host.has_value());
    }
  }
  // Weights that training does not change.
  config.optimizer.lr = 1e-30;
  const Trained dropped = train_single(config);
  config.model.dropout = 0;
  const Trained whole = train_single(config);
  EXPECT_EQ(dropped.evaluations, whole.evaluations);
  EXPECT_NE(dropped.losses, whole.losses);
}

TEST_F(DropoutRun, HasTheLossesOfOneDeviceOnDevicesAndInMicroSteps) {
  std::vector<TrainConfig> configs = {dropping(), class_run(folder())};
  configs[0].data.batch_size = 12;
  configs[1].model.dropout = 0.4;
  for (TrainConfig config : configs) {
    const SpreadRun one = train_alone(config);
    for (const int devices : {2, 3}) {
      expect_near(train_spread(config, {.devices = devices}), one, config, 1e-6);
    }
    config.data.batch_size /= 4;
    config.training.accumulate = 4;
    expect_near(train_alone(config), one, config, 1e-6);
    expect_near(train_spread(config, {.devices = 2}), one, config, 1e-6);
    config.training.update = Update::kFused;
    expect_near(train_alone(config), one, config, 1e-6);
  }
}

TEST(DropoutOfRanks, OfStreamsOfTheirOwnDropsByTheSeedOfTheRun) {
  TrainConfig config = dropping();
  config.parallel.seed_per_rank = true;
  RowCounts counts;
  for (int rank = 0; rank < 3; ++rank) {
    const auto scheme = scheme_of(config);
    const StepPrograms programs = programs_by(*scheme, config, rank, 3);
    count_rows(programs.train().program, counts);
    for (const Dropout& op : dropouts_of(programs.train().program, Phase::kForward)) {
      EXPECT_EQ(op.seed, config.training.seed);
    }
    if (rank == 2) EXPECT_EQ(counts, each_once(programs.train(), kLayers));
  }
}

}  // namespace
}  // namespace barestep
