// The results of mlp_ddp's ranks are kept even if other outputs fail.
#include <nlohmann/json.hpp>

#include "apps/on_cpu.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

const std::string kRanksRun = " --device cpu --threads 1 --dim 8 --depth 1 --save weights ";

class RanksOutputs : public ProgramTest {
 protected:
  /// Runs a line of bash after scripts/mpi_env.sh, with ./mlp_ddp in its folder.
  ProcessResult bash(const std::string& line) {
    return ProgramTest::bash(
        fmt::format(". '{}' && ln -sf '{}' mlp_ddp && ln -sf /dev/full full && {}",
                    BARESTEP_MPI_ENV, MLP_DDP, line));
  }

  /// The arguments of a run on MNIST.
  static std::string mnist(const std::string& layers) {
    return fmt::format(" --device cpu {} --layers {} --no-last-relu --loss cross-entropy ",
                       fmt::join(mnist_in(BARESTEP_TEST_DATA), " "), layers);
  }
  void expect_weights() {
    EXPECT_TRUE(std::filesystem::exists(folder() / "weights"));
    std::filesystem::remove(folder() / "weights");
  }
};

struct UnevenEvaluation {
  int ranks;
  int batch;
  const char* test_split;
};

class UnevenRanks : public RanksOutputs, public ::testing::WithParamInterface<UnevenEvaluation> {};

/// The ranks' shares of the test set have different numbers of batches.
TEST_P(UnevenRanks, SaveTheirWeightsAndTellOfTheirCommunication) {
  const auto [ranks, batch, test_split] = GetParam();
  const auto result = succeeded(bash(fmt::format(
      "exec mpirun -np {} ./mlp_ddp{}--epochs 2 --test-split {} --global-batch-size {} --log-every "
      "500 --save weights",
      ranks, mnist("784,64,10"), test_split, batch)));
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("\nCommunication of a step, mean of "));
  expect_weights();
}

INSTANTIATE_TEST_SUITE_P(, UnevenRanks,
                         ::testing::Values(UnevenEvaluation{3, 7, "0.2"},
                                           UnevenEvaluation{2, 7, "0.0999"},
                                           UnevenEvaluation{4, 64, "0.2561"}),
                         [](const auto& info) {
                           return fmt::format("{}RanksOf{}", info.param.ranks, info.param.batch);
                         });

/// All communication belongs to a step, however often ranks evaluate in between.
TEST_F(RanksOutputs, TheAccountOfEpochsIsWithinTheirSteps) {
  constexpr int kEpochs = 2;
  constexpr int kSteps = kEpochs * 1143;
  const auto result = succeeded(bash(fmt::format(
      "exec mpirun -np 3 ./mlp_ddp{}--epochs {} --test-split 0.2 --global-batch-size 7 --log-every "
      "5000 --metrics m",
      mnist("784,10"), kEpochs)));
  // Seven divides the 8001 rows that three ranks make of 8000, so all steps except warm-up are
  // equal.
  EXPECT_THAT(result.out,
              HasSubstr(fmt::format("\nCommunication of a step, mean of {} steps and 3 ranks\n",
                                    kSteps - 5)));
  const auto waiting = first_match(result.out, "\n  exposed, waiting +([0-9.]+) ms\n");
  ASSERT_FALSE(waiting.empty()) << result.out;
  double total_s = 0;
  const std::vector<json> records = this->records("m");
  for (const json& record : records) total_s += record.at("step_time_s").get<double>();
  ASSERT_EQ(records.size(), 3 * kSteps);
  EXPECT_LE(std::stod(waiting[1]), 2 * 1e3 * total_s / static_cast<double>(records.size()));
}

/// Only rank 0 finds that its disk is full.
TEST_F(RanksOutputs, AFullDiskUnderTheMetricsCostsARunNothingElse) {
  const auto result = bash("exec mpirun -np 2 ./mlp_ddp" + kRanksRun +
                           "--steps 300 --log-every 100 --metrics full");
  EXPECT_EQ(result.exit_code, 74);
  const std::string why =
      "output file 'full': writing failed: No space left on device; free space or choose another "
      "disk";
  EXPECT_THAT(result.err, HasSubstr("mlp_ddp: note: " + why + "; the run continues without it\n"));
  EXPECT_THAT(result.err, HasSubstr("mlp_ddp: error: " + why + "\n"));
  EXPECT_THAT(result.out, HasSubstr("\nSummary of 295 steps "));
  expect_weights();
}

TEST_F(RanksOutputs, WeightsThatCannotBeWrittenCostNoReport) {
  const auto result =
      bash("exec mpirun -np 2 ./mlp_ddp --device cpu --dim 8 --depth 1 --steps 9 --save full");
  EXPECT_THAT(result, Fails(74, HasSubstr("mlp_ddp: error: output file 'full': writing failed: ")));
  EXPECT_THAT(result.out, HasSubstr("\nCommunication of a step, mean of 4 steps and 2 ranks\n"));
}

/// Only the rank that writes the weights detects it, while the others continue to the report.
TEST_F(RanksOutputs, WeightsThatAreNoNumbersEndAllRanks) {
  const auto result = bash(
      "exec mpirun -np 2 ./mlp_ddp --device cpu --dim 8 --depth 1 --optimizer adamw --lr 1e38 "
      "--weight-decay 1e38 --steps 1 --save w "
      "--timeout 20");
  EXPECT_THAT(result, Fails(76, HasSubstr("mlp_ddp: error: weights 'w': net.0.weight holds ")));
}

/// mlp_ddp alone, since mpirun kills a job whose output is not read.
TEST_F(RanksOutputs, AReaderThatGoesAwayCostsARunNothingElse) {
  const auto alone =
      bash("./mlp_ddp" + kRanksRun + "--steps 300 | head -n 1; exit ${PIPESTATUS[0]}");
  EXPECT_THAT(
      alone,
      Fails(74,
            "mlp_ddp: error: standard output: Broken pipe; read it to its end, or send it to a "
            "file\n"));
  expect_weights();
}

TEST_F(RanksOutputs, NotesThatNobodyCanReadEndNoRun) {
  const auto result = bash("exec ./mlp_ddp --dim 8 --depth 1 --steps 2 --save weights 2>/dev/full");
  EXPECT_EQ(result.exit_code, 0);
  expect_weights();
}

TEST_F(RanksOutputs, NoneIsOpenedBeforeAllAreChecked) {
  file("m", "the last good ones");
  const auto result =
      bash("exec mpirun -np 2 ./mlp_ddp" + kRanksRun + "--metrics m --tensorboard m/runs");
  EXPECT_THAT(result,
              Fails(73, HasSubstr("mlp_ddp: error: folder 'm/runs': cannot be created: Not a "
                                  "directory; choose a writable one\n")));
  EXPECT_EQ(read_file(folder() / "m"), "the last good ones");
}

/// mpirun's variable says that one of the two ranks is on this host.
TEST_F(RanksOutputs, AreNotTheFlightRecordsOfTheirHosts) {
  const std::string job =
      "exec mpirun -np 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 ./mlp_ddp --device "
      "cpu --dim 8 --depth 1 --steps 2 --metrics m --save m.flight";
  const auto refused = bash(job + ".$(hostname)");
  EXPECT_THAT(
      refused,
      Fails(78, ContainsRegex("mlp_ddp: error: --metrics 'm.flight.[^']+': --save writes to the "
                              "same file; give two files\n")));
  EXPECT_EQ(bash(job).exit_code, 0) << "on several hosts no record has this name";
}

TEST_F(RanksOutputs, TheFirstRankWritesTensorBoardsEvents) {
  const auto result =
      succeeded(bash("exec mpirun -np 2 ./mlp_ddp" + kRanksRun + "--steps 3 --tensorboard runs"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder() / "runs")) {
    ++files;
    const std::string bytes = read_file(entry.path());
    for (const char* tag : {"loss", "step_time_s", "samples_per_s", "utilization"}) {
      EXPECT_THAT(bytes, HasSubstr(tag));
    }
  }
  EXPECT_EQ(files, 1);
}

/// The step named is a training step: evaluation batches do not count.
TEST_F(RanksOutputs, AStoppedRunNamesTheTrainingStepAfterWhichItEnded) {
  const auto result = bash(
      "{ mpirun -np 2 ./mlp_ddp" + mnist("784,10") +
      "--epochs 100000 --test-split 0.9 --batch-size 250 --log-every 1 --metrics m > out & } && "
      "job=$! && until grep -q '^Epoch 2/' out; do sleep 0.01; done && kill -USR1 $job; wait $job");
  EXPECT_EQ(result.exit_code, 75) << result.err;
  const std::int64_t last = records("m").back().at("step");
  EXPECT_THAT(result.err, HasSubstr(fmt::format("mlp_ddp: note: asked to stop, all ranks ended "
                                                "after step {}\n",
                                                last)));
}

}  // namespace
}  // namespace barestep
