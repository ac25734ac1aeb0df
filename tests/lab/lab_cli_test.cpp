// The real mlp_lab, on the real trainers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lab/json_schema.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class MlpLab : public TempDirTest {
 protected:
  ProcessResult run(std::vector<std::string> arguments, bool with_path = true) {
    arguments.insert(arguments.begin(), MLP_LAB);
    if (!with_path) arguments.insert(arguments.begin(), {"/usr/bin/env", "PATH=/nowhere"});
    return run_process(arguments, {.working_directory = folder()});
  }

  void expect_refused(const std::vector<std::string>& arguments, int code, const std::string& line,
                      bool with_path = true) {
    const ProcessResult result = run(arguments, with_path);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_THAT(result.err, HasSubstr("mlp_lab: error: " + line + "\n"));
  }
};

TEST_F(MlpLab, ListsTheExperimentsOfTheCourse) {
  const ProcessResult list = run({"list"});
  EXPECT_EQ(list.exit_code, 0);
  for (const char* name : {"batch-sweep",    "io-delay",     "data-loading",
                           "amdahl",         "profile",      "timing",
                           "sync",           "warmup",       "reproducibility",
                           "data-parallel",  "splits",       "gpu0-bottleneck",
                           "strong-scaling", "weak-scaling", "comm-vs-compute",
                           "dp-vs-ddp",      "delay",        "batch-scaling",
                           "imbalance",      "bucket-size",  "schemes",
                           "optimisations"}) {
    EXPECT_THAT(list.out, HasSubstr("\n" + std::string(name) + " "));
  }
}

TEST_F(MlpLab, RunsExperimentsOnceAndReportsOnThem) {
  const std::vector<std::string> command = {"run", "batch-sweep", "reproducibility", "--output",
                                            "lab", "--quick",     "--device",        "cpu"};
  const ProcessResult first = run(command);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("From batch 32 to 128 (4x) a step takes "));
  EXPECT_THAT(first.out, HasSubstr("The same seed repeats to the bit: 4 runs"));
  EXPECT_THAT(first.out, HasSubstr("Report: lab/report.html\n"));
  EXPECT_THAT(first.err, HasSubstr("[0/12] batch-sweep: batch-32, start 1 of 2\n"));
  EXPECT_THAT(first.err, HasSubstr(" s left\n"));
  const json schema = json::parse(read_file(BARESTEP_SCHEMA));
  const json results = json::parse(read_file(folder() / "lab/results.json"));
  EXPECT_EQ(schema_violation(results, schema, schema), "");
  for (const char* name : {"report.html", "report.md", "results.csv", "plots/batch-sweep-1.svg"}) {
    EXPECT_TRUE(std::filesystem::exists(folder() / "lab" / name)) << name;
  }

  const ProcessResult again = run(command);
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, "");
  EXPECT_EQ(run({"report", "lab"}).out, "Report: lab/report.html\n");
}

TEST_F(MlpLab, ProfilesByTheTracesOfARun) {
  const ProcessResult result = run({"run", "profile", "--quick", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("The longest op is "));
  EXPECT_THAT(result.out, HasSubstr("times as long as "));
}

TEST_F(MlpLab, StartsRanksItself) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  const ProcessResult result = run({"run", "imbalance", "--quick", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Rank 1 waits for rank 0: it is "));
}

TEST_F(MlpLab, RefusesWhatItCannotDoInOneLine) {
  expect_refused({"run", "strong-scalling"}, 2,
                 "experiment 'strong-scalling': there is none of this name; did you mean "
                 "'strong-scaling'? mlp_lab list shows all");
  expect_refused({"run", "amdahl", "--output", "/proc/lab"}, 73,
                 "--output '/proc/lab': No such file or directory; name a folder that can be "
                 "written");
  expect_refused({"report", "nothing"}, 66,
                 "study 'nothing': there is none in this folder; name the --output of an earlier "
                 "mlp_lab run");
  expect_refused(
      {"run", "amdahl", "--quick", "--device", "cpu"}, 66,
      "program 'mpirun': not found on PATH; install Open MPI, or run experiments without "
      "ranks",
      false);
  file("mine.txt", "");
  expect_refused({"run", "amdahl", "--output", "."}, 78,
                 "--output '.': it holds files that are no study's; name another folder");
  for (const auto& [arguments, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "A subcommand is required"},
           {{"run"}, "name is required"},
           {{"run", "amdahl", "--device", "tpu"}, "--device: tpu not in {auto,cpu,cuda}"},
           {{"run", "amdahl", "--fast"}, "The following argument was not expected: --fast"}}) {
    expect_refused(arguments, 2, "command line: " + why + "; see mlp_lab --help");
  }
}

TEST_F(MlpLab, PredictsMachinesThatAreNotHere) {
  const ProcessResult result = run(
      {"predict", "--machine", "h100-infiniband", "--ranks", "1,8,1024", "--batch-size", "1024"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  Simulated: 8 ranks would train fastest"));
  EXPECT_THAT(result.out, HasSubstr("\n    1024  "));
  EXPECT_THAT(result.out, HasSubstr("network all_reduce: 2 x 8 H100"));
  expect_refused(
      {"predict", "--machine", "h100"}, 2,
      "--machine 'h100': there is no such card; did you mean 'h100-infiniband'? a file's name "
      "ends in .json");
}

TEST_F(MlpLab, ReproducesPublishedNumbers) {
  const ProcessResult result = run({"validate"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("402,702,336  reproduced"));
  EXPECT_THAT(result.out, HasSubstr("-3453.6123            -3453.5"));
  EXPECT_THAT(result.out, HasSubstr("(simulated)"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("DIFFERS")));
}

TEST_F(MlpLab, ExplainsItself) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("mlp_lab run amdahl strong-scaling --output scaling"));
  EXPECT_THAT(run({"run", "--help"}).out, HasSubstr("--quick"));
  EXPECT_THAT(run({"--version"}).out, MatchesRegex("mlp_lab [0-9.]+ .+\n"));
}

}  // namespace
}  // namespace barestep
