#include "train/evaluator.h"

#include "kernels/make_device.h"
#include "profiler/report.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

class EvaluatorTest : public TempDirTest {
 protected:
  /// Evaluates the current weights with batches of this size, on the trainer's data.
  Evaluation evaluate(TrainerHarness& run, std::int64_t batch_size, const FlatWeights& weights) {
    TrainConfig config = run.config;
    config.data.batch_size = batch_size;
    const StepPrograms programs(
        evaluation_spec_of(spec_of(config, DeviceKind::kCpu, &*run.dataset)));
    for (const StepProgram* step : programs.all()) expect_ordered(step->program);
    const auto device =
        make_cpu_device({.threads = config.device.threads.value_or(0), .gemm = config.device.gemm});
    batches.clear();
    return Evaluator(programs, *device, *run.dataset, weights)
        .run(2, [&](const EvaluatedBatch& batch) { batches.push_back(batch); });
  }

  std::vector<EvaluatedBatch> batches;
};

TEST_F(EvaluatorTest, FindsTheLossAndAccuracyThatTrainingEndedWith) {
  for (const bool classifies : {true, false}) {
    TrainerHarness run(classifies ? class_run(folder()) : number_run(folder()));
    run.run();
    const EvaluationReport& last = run.evaluations.back();
    const Evaluation same = evaluate(run, 8, run.trainer->weights());
    EXPECT_EQ(same.total.loss, last.loss);
    EXPECT_EQ(same.total.accuracy, last.accuracy);
    EXPECT_EQ(same.total.samples, 10);
    // Different batches give different sums.
    for (const std::int64_t batch_size : {1, 3, 10, 64}) {
      const Evaluation other = evaluate(run, batch_size, run.trainer->weights());
      EXPECT_NEAR(other.total.loss, last.loss, 1e-6 * last.loss);
      EXPECT_EQ(other.total.accuracy, last.accuracy);
    }
  }
}

TEST_F(EvaluatorTest, CountsWhatSamplesOfEachClassAreTakenFor) {
  TrainerHarness run(class_run(folder()));
  run.run();
  const Evaluation evaluation = evaluate(run, 3, run.trainer->weights());
  ASSERT_EQ(evaluation.classes, 4);
  ASSERT_EQ(evaluation.confusion.size(), 16U);
  std::int64_t right = 0;
  std::vector<std::int64_t> samples(4);
  for (std::size_t label = 0; label < 4; ++label) {
    for (std::size_t found = 0; found < 4; ++found) {
      samples[label] += evaluation.confusion[4 * label + found];
    }
    right += evaluation.confusion[5 * label];
  }
  EXPECT_EQ(static_cast<double>(right), *evaluation.total.accuracy * 10);
  // Labels of the last ten samples: (i * i + 1) % 4.
  EXPECT_EQ(samples, (std::vector<std::int64_t>{0, 5, 5, 0}));
  const std::string table = confusion_table(evaluation);
  EXPECT_NE(table.find("predicted 3"), std::string::npos) << table;
  EXPECT_EQ(confusion_table({}), "");
  EXPECT_EQ(confusion_table({.classes = 31}),
            "\nThe table of classes is not shown: there are 31, and it shows at most 30.\n");
}

/// The numbers are those of sklearn.metrics.r2_score for the targets (1, 2, 5), (3, 4, 5), (8, 0,
/// 5) and the outputs (1, 1, 5), (4, 4, 5), (7, 1, 5), then with a 6 for the last 5.
TEST(EvaluationPart, HasTheMeanR2OfItsOutputs) {
  const StepPrograms programs({.model = {.widths = {1, 3}},
                               .input = {.data = DataKind::kIdx, .train_rows = 3, .test_rows = 3}});
  const std::vector<double> variances = {26.0 / 3, 8.0 / 3, 0};
  EvaluationPart part{.squared_errors = {2, 2, 0}, .samples = 3};
  EXPECT_DOUBLE_EQ(*part.report(*programs.evaluate(), variances).r2, 0.891025641025641);
  part.squared_errors = {2, 2, 1};
  EXPECT_DOUBLE_EQ(*part.report(*programs.evaluate(), variances).r2, 0.5576923076923077);
  part.samples = 1;
  EXPECT_FALSE(part.report(*programs.evaluate(), variances).r2);
}

TEST_F(EvaluatorTest, CountsNoTableThatIsTooLargeToShow) {
  for (const std::int64_t classes : {30, 31, 100'000}) {
    TrainConfig config = class_run(folder());
    config.model.layers = {6, 1, classes};
    TrainerHarness run(config);
    const Evaluation evaluation = evaluate(run, 8, run.trainer->weights());
    EXPECT_EQ(evaluation.classes, classes);
    EXPECT_EQ(evaluation.confusion.size(), classes == 30 ? 900U : 0U);
    EXPECT_EQ(evaluation.found.size(), 10U);
  }
}

TEST_F(EvaluatorTest, TellsEveryBatchAndWhatTheirLatenciesComeTo) {
  TrainerHarness run(class_run(folder()));
  const Evaluation evaluation = evaluate(run, 4, run.trainer->weights());
  ASSERT_EQ(batches.size(), 3U);
  double seconds = 0;
  std::multiset<double> latencies;
  for (const EvaluatedBatch& batch : batches) {
    EXPECT_EQ(batch.samples, batch.number == 2 ? 2 : 4);
    EXPECT_GT(batch.latency_s, 0);
    seconds += batch.latency_s;
    latencies.insert(batch.latency_s);
  }
  EXPECT_DOUBLE_EQ(evaluation.total.seconds, seconds);
  EXPECT_DOUBLE_EQ(evaluation.samples_per_s, 10 / seconds);
  EXPECT_EQ(evaluation.latency_s.p50, *std::next(latencies.begin()));
}

TEST_F(EvaluatorTest, TakesAllSamplesWhereNoneAreSplitOff) {
  TrainConfig config = class_run(folder());
  config.data.test_split = 0;
  TrainerHarness run(config);
  EXPECT_EQ(evaluate(run, 8, run.trainer->weights()).total.samples, 40);
}

TEST_F(EvaluatorTest, TakesTheMemoryOfWeightsAndActivationsAlone) {
  const TrainConfig config = class_run(folder());
  TrainerHarness run(config);
  const StepPrograms programs(evaluation_spec_of(spec_of(config, DeviceKind::kCpu, &*run.dataset)));
  const MemoryPlan plan(programs.buffers());
  EXPECT_EQ(plan.category_bytes(0, Category::kGradients), 0);
  EXPECT_EQ(plan.category_bytes(0, Category::kOptimizer), 0);
}

/// The evaluator of `run` in int8.
StepSpec int8_spec(const TrainerHarness& run, Quantization scheme, int bits) {
  StepSpec spec = evaluation_spec_of(spec_of(run.config, DeviceKind::kCpu, &*run.dataset));
  spec.model.quantized = QuantizationSpec{.scheme = scheme, .bits = bits};
  return spec;
}

// Also with 7 bits, as on a CPU without VNNI, whatever this CPU has.
TEST_F(EvaluatorTest, FindsAboutTheSameInInt8) {
  TrainerHarness run(number_run(folder()));
  run.run();
  const double loss = run.evaluations.back().loss;
  for (const Quantization scheme : kValuesOf<Quantization>) {
    for (const int bits : {7, 8}) {
      const StepPrograms programs(int8_spec(run, scheme, bits));
      for (const StepProgram* step : programs.all()) expect_ordered(step->program);
      const auto device = make_cpu_device({.threads = 1});
      const auto found = Evaluator(programs, *device, *run.dataset, run.trainer->weights())
                             .run(0, [](const EvaluatedBatch&) {});
      EXPECT_NE(found.total.loss, loss);
      EXPECT_NEAR(found.total.loss, loss, 0.03 * loss) << name_of(scheme) << ", " << bits;
    }
  }
}

TEST_F(EvaluatorTest, QuantizesWeightsOnceAndReadsTheirBytesAlone) {
  TrainerHarness run(class_run(folder()));
  const StepPrograms programs(int8_spec(run, Quantization::kRow, 8));
  const auto count = [](const Program& program, std::string_view label) {
    return std::ranges::count_if(program.nodes(),
                                 [&](const Node& node) { return label_of(node.op) == label; });
  };
  const int layers = programs.spec().model.layers();
  EXPECT_EQ(count(programs.quantize()->program, "quantize_weight"), layers);
  const Program& evaluates = programs.evaluate()->program;
  EXPECT_EQ(count(evaluates, "quantize_weight"), 0);
  EXPECT_EQ(count(evaluates, "gemm"), 0);
  EXPECT_EQ(count(evaluates, "quantize"), layers);
  EXPECT_EQ(count(evaluates, "quantized_gemm"), layers);
  // One byte per weight; a bias, a sum and a scale per output.
  std::int64_t bytes = 0;
  for (int layer = 0; layer < layers; ++layer) {
    const Parameter& weight = programs.parameter_list()[weight_id(layer)];
    bytes += weight.rows() * (weight.cols() + 3 * 4);
  }
  EXPECT_EQ(state_bytes_of(evaluates), bytes);
}

TEST_F(EvaluatorTest, RefusesALossThatIsNoNumberInInt8Too) {
  TrainerHarness run(number_run(folder()));
  FlatWeights weights = run.trainer->weights();
  const Tensor weight = run.programs->parameter_list().in(0, weight_id(0));
  weights[static_cast<std::size_t>(weight.offset_bytes / 4)] =
      std::numeric_limits<float>::quiet_NaN();
  const std::string line =
      "evaluation: the loss over 10 samples is nan; load weights of a training run that did not "
      "diverge";
  expect_error(ExitCode::kDiverged, line, [&] { evaluate(run, 8, weights); });
  const StepPrograms programs(int8_spec(run, Quantization::kRow, 8));
  const auto device = make_cpu_device({.threads = 1});
  Evaluator evaluator(programs, *device, *run.dataset, weights);
  expect_error(ExitCode::kDiverged, line, [&] { evaluator.run(0, [](const EvaluatedBatch&) {}); });
}
}  // namespace
}  // namespace barestep
