// Training with captured graphs gives the same bits and the same records as training op by op.

#include "support/file_runs.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Everything that a run leaves behind.
struct Outcome {
  std::vector<float> losses;
  std::vector<double> test_losses;
  std::vector<double> accuracies;
  FlatWeights weights, gradients, moments1, moments2;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome_of(TrainConfig config, bool graph) {
  config.device.graph = graph;
  TrainerHarness run(config);
  run.run();
  Outcome outcome{.losses = run.losses(),
                  .test_losses = {},
                  .accuracies = {},
                  .weights = run.trainer->weights(),
                  .gradients = run.trainer->download(run.programs->gradients()),
                  .moments1 = run.trainer->download(run.programs->optimizer_state()[0]),
                  .moments2 = run.trainer->download(run.programs->optimizer_state()[1])};
  for (const EvaluationReport& report : run.evaluations) {
    outcome.test_losses.push_back(report.loss);
    outcome.accuracies.push_back(report.accuracy.value_or(-1));
  }
  return outcome;
}

void expect_same_bits(const TrainConfig& config) {
  const Outcome eager = outcome_of(config, false);
  const Outcome graph = outcome_of(config, true);
  EXPECT_EQ(graph.losses, eager.losses);
  EXPECT_TRUE(graph == eager);
}

TrainConfig graph_run() {
  TrainConfig config;
  config.model.dim = 24;
  config.model.depth = 3;
  config.data.batch_size = 8;
  config.training.steps = 9;
  config.device.threads = 2;
  config.device.gemm = GemmProvider::kReference;
  return config;
}

class GraphOfFiles : public TempDirTest {};

TEST(Graph, HasTheBitsOfEagerStepsOnRandomData) {
  expect_same_bits(graph_run());
  TrainConfig other = graph_run();
  other.training.zero_grad = false;
  other.device.fusion = false;
  other.model.last_relu = false;
  expect_same_bits(other);
  other.model.dropout = 0.3;  // with a different mask in every replay
  expect_same_bits(other);
}

TEST_F(GraphOfFiles, HasTheBitsOfEagerStepsWithASmallerLastBatchAndEvaluation) {
  TrainConfig config = class_run(folder());
  const Outcome eager = outcome_of(config, false);
  EXPECT_EQ(eager.test_losses.size(), 4U);
  expect_same_bits(config);
  config.training.epochs.reset();
  config.training.steps = 10;  // ends within the third epoch
  expect_same_bits(config);
}

TEST_F(GraphOfFiles, HasTheBitsOfEagerStepsWithTargetsThatAreNumbers) {
  expect_same_bits(number_run(folder()));
}

/// Counts the records of every (program, step, node).
class Tags final : public RecordSink {
 public:
  void on_record(const Record& record) override {
    const std::lock_guard lock(mutex_);
    ++seen_[{record.tag.program, record.tag.step, record.tag.node}];
  }
  std::map<std::tuple<int, std::int64_t, NodeId>, int> take() {
    const std::lock_guard lock(mutex_);
    return std::move(seen_);
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, std::int64_t, NodeId>, int> seen_;
};

/// How often a run records each node of each step.
std::map<std::tuple<int, std::int64_t, NodeId>, int> records_of(TrainConfig config, bool graph) {
  config.device.graph = graph;
  TrainerHarness run(config);
  Tags tags;
  run.device->set_record_sink(&tags);
  run.run();
  run.device->set_record_sink(nullptr);
  return tags.take();
}

TEST_F(GraphOfFiles, RecordsEveryNodeOfEveryStepOnce) {
  const TrainConfig config = class_run(folder());
  const auto graph = records_of(config, true);
  EXPECT_EQ(graph, records_of(config, false));
  for (const auto& [tag, count] : graph) {
    EXPECT_EQ(count, 1) << "program " << std::get<0>(tag) << ", step " << std::get<1>(tag)
                        << ", node " << std::get<2>(tag);
  }

  TrainerHarness built(config);
  std::map<std::int64_t, int> nodes_of_step;
  for (const auto& [tag, count] : graph) nodes_of_step[std::get<1>(tag)] += count;
  const int expected[] = {
      built.programs->train().program.size(),     built.programs->train().program.size(),
      built.programs->train().program.size(),     built.programs->last_batch()->program.size(),
      built.programs->evaluate()->program.size(), built.programs->last_evaluate()->program.size()};
  ASSERT_EQ(nodes_of_step.size(), 24U);
  for (const auto& [step, nodes] : nodes_of_step) EXPECT_EQ(nodes, expected[step % 6]) << step;
}
}  // namespace
}  // namespace barestep
