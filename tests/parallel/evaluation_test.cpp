// Evaluation by ranks, as threads: each its share of the test set.
#include <gtest/gtest.h>

#include "parallel/ddp.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"

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

/// Of 10 samples to test with, and of 4, which are none for some ranks.
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

}  // namespace
}  // namespace barestep
