// Evaluation by ranks as threads, each with its share of the test set.

#include "kernels/make_device.h"
#include "parallel/schemes/scheme_of.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "train/evaluator.h"

namespace barestep {
namespace {

class EvaluationByRanks : public TempDirTest {};

void expect_same_evaluations(const Trained& rank, const Trained& one) {
  ASSERT_EQ(rank.evaluations.size(), one.evaluations.size());
  for (std::size_t i = 0; i < one.evaluations.size(); ++i) {
    const Evaluated& expected = one.evaluations[i];
    EXPECT_EQ(rank.evaluations[i].samples, expected.samples);
    EXPECT_EQ(rank.evaluations[i].accuracy, expected.accuracy);
    EXPECT_NEAR(rank.evaluations[i].loss, expected.loss, 1e-6 * expected.loss);
  }
}

/// With 10 samples for testing, and with 4, which leaves some ranks without samples.
TEST_F(EvaluationByRanks, EvaluateEachRanksShareOfTheTestSet) {
  for (const auto run : {&number_run, &class_run}) {
    for (const double test_split : {0.25, 0.1}) {
      TrainConfig config = run(folder());
      config.data.test_split = test_split;
      const Trained one = train_threads(1, config)[0];
      for (const int ranks : {2, 3, 6}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << test_split);
        const auto all = train_threads(ranks, config);
        for (const Trained& rank : all) {
          EXPECT_EQ(rank.evaluations, all[0].evaluations) << "all ranks tell the same";
          expect_same_evaluations(rank, one);
        }
      }
    }
  }
}

TEST_F(EvaluationByRanks, ARankEvaluatesItsRowsAlone) {
  const TrainConfig config = class_run(folder());
  const Dataset data = load_dataset(config.data, widths_of(config.model, 1), config.model.loss);
  std::int64_t rows = 0;
  for (int rank = 0; rank < 7; ++rank) {
    const StepPrograms programs(spec_of_rank(config, DeviceKind::kCpu, &data, rank, 7));
    rows += programs.spec().own_test_rows().count;
    EXPECT_LE(programs.evaluate()->rows, 2);
  }
  EXPECT_EQ(rows, 10);
}

/// --evaluate-only on `ranks` ranks, with each rank's results.
std::vector<Evaluation> evaluations_by(int ranks, const TrainConfig& config, const Dataset& data) {
  std::vector<Evaluation> found(static_cast<std::size_t>(ranks));
  on_threads(ranks, [&](ThreadRank& self) {
    const int rank = self.rank();
    const StepPrograms programs(
        evaluation_spec_of(spec_of_rank(config, DeviceKind::kCpu, &data, rank, ranks)));
    TorchGenerator generator(7);
    const FlatWeights weights = initial_weights(programs.spec().model, generator);
    const auto device = make_cpu_device({.threads = 1, .gemm = config.device.gemm});
    found[static_cast<std::size_t>(rank)] =
        Evaluator(programs, *device, data, weights, &self).run(1, [](const EvaluatedBatch&) {});
  });
  return found;
}

/// 12 ranks are more than there are samples.
TEST_F(EvaluationByRanks, AloneFindsTheSameOnAnyNumberOfRanks) {
  for (const auto run : {&number_run, &class_run}) {
    TrainConfig config = run(folder());
    config.data.batch_size = 12;
    const Dataset data = load_dataset(config.data, widths_of(config.model, 1), config.model.loss);
    const Evaluation one = evaluations_by(1, config, data)[0];
    for (const int ranks : {2, 3, 12}) {
      SCOPED_TRACE(ranks);
      const std::vector<Evaluation> all = evaluations_by(ranks, config, data);
      for (const Evaluation& rank : all) {
        EXPECT_NEAR(rank.total.loss, one.total.loss, 1e-6 * one.total.loss);
        EXPECT_EQ(rank.total.loss, all[0].total.loss) << "all ranks tell the same";
        EXPECT_EQ(rank.total.accuracy, one.total.accuracy);
        EXPECT_EQ(rank.total.samples, 10);
        std::int64_t samples = 0;
        for (const EvaluatedBatch& batch : rank.batches) samples += batch.samples;
        EXPECT_EQ(samples, 10);
        EXPECT_EQ(rank.batches.back().rank, std::min(ranks, 10) - 1);
      }
    }
  }
}

}  // namespace
}  // namespace barestep
