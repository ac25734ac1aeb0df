// The real mlp_single, as a user runs it.
#include <unistd.h>

#include <iostream>

#include "apps/bad_input.h"
#include "apps/every_option.h"
#include "apps/on_cpu.h"
#include "support/arguments.h"
#include "support/idx_bytes.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

const std::string kProgram = MLP_SINGLE;
// With plain loops, because starting oneDNN takes longer than such a run. The peaks are those of
// the runs in training_test.cpp, measured once for all tests.
const std::vector<std::string> kOneStep = {"--dim", "8",      "--depth",   "1",         "--steps",
                                           "1",     "--gemm", "reference", "--threads", "1"};
const std::vector<std::string> kTransformer =
    kOneStep + std::vector<std::string>{"--block", "transformer", "--length", "4"};

ProcessResult mlp_single(std::vector<std::string> arguments, ProcessOptions options = {}) {
  arguments.insert(arguments.begin(), kProgram);
  return run_process(arguments, options);
}

class MlpSingle : public ProgramTest {
 protected:
  ProcessResult run_here(const std::vector<std::string>& arguments) {
    return execute(Arguments{kProgram} + on_cpu(arguments));
  }
  void expect_refused(const std::vector<BadInput>& cases) {
    barestep::expect_refused(cases, folder(),
                             [this](const BadInput& bad) { return run_here(bad.arguments); });
  }
};

TEST_F(MlpSingle, RefusesBadCommandLinesInOneLine) {
  expect_refused(bad_inputs("Options"));
}

TEST_F(MlpSingle, RefusesOptionsThatExcludeEachOther) {
  expect_refused(bad_combinations(SchemeKind::kSingle));
}

/// For another user, since root may start as many processes as it likes.
class OtherUser : public MlpSingle {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    std::filesystem::permissions(folder(), std::filesystem::perms::all);
  }
  ProcessResult as_other_user(const std::string& line, const Arguments& arguments) {
    return execute(Arguments{"/usr/bin/setpriv", "--reuid", "54321", "--regid", "54321",
                             "--clear-groups", "--inh-caps=-all", "/bin/bash", "-c",
                             line + "; exec \"$@\"", "bash"} +
                   arguments);
  }
};

TEST_F(OtherUser, MayStartTooFewThreadsWhichIsOneLine) {
  if (kAddressSanitized) GTEST_SKIP() << "LeakSanitizer starts a thread at the end";
  write_bad_arrays(folder());
  const Arguments model = words("--dim 8 --depth 1 --steps 2 --threads 2");
  const Arguments files =
      words("--data safetensors:good.safetensors --layers 2,1 --steps 2 --workers 3 --threads 1");
  int refused = 0;
  for (const Arguments& command :
       {Arguments{kProgram, "--device", "cpu"} + model,
        Arguments{kProgram, "--device", "cpu", "--gemm", "reference"} + files,
        Arguments{MLP_DP, "--devices", "cpu,cpu,cpu"} + model}) {
    for (int processes = 1; processes <= 14; ++processes) {
      SCOPED_TRACE(fmt::format("{} of {}", processes, fmt::join(command, " ")));
      const auto result = as_other_user(fmt::format("ulimit -u {}", processes), command);
      if (result.exit_code == 0) continue;
      ++refused;
      EXPECT_THAT(result, Fails(71, MatchesRegex("mlp_[a-z]+: error: threads[^\n]*\n")));
    }
  }
  EXPECT_GT(refused, 10);
}

/// A run with checkpoints records which build it is.
TEST_F(OtherUser, MayRunWhatTheyCannotRead) {
  const std::filesystem::path program = folder() / "mlp_single";
  std::filesystem::copy_file(kProgram, program);
  std::filesystem::permissions(program, std::filesystem::perms::owner_exec |
                                            std::filesystem::perms::group_exec |
                                            std::filesystem::perms::others_exec);
  const auto result = succeeded(as_other_user(
      "true", Arguments{program.string(), "--device", "cpu", "--checkpoint", "c"} + kOneStep));
}

TEST_F(MlpSingle, RefusesToProfileWhatIsNotThereInOneLine) {
  expect_refused(bad_inputs("Profiles and traces"));
  expect_refused(bad_inputs("Updates"));
}

TEST_F(MlpSingle, RefusesBadConfigFilesInOneLine) {
  expect_refused(bad_inputs("Configuration files"));
}

TEST_F(MlpSingle, RefusesBadFilesInOneLineAndLeavesNothingBehind) {
  write_bad_files(folder());
  const std::vector<std::string> before = names();
  expect_refused(bad_inputs("Data, weights and output files"));
  EXPECT_THAT(names(), ::testing::UnorderedElementsAreArray(before));
  EXPECT_EQ(read_file(folder() / "kept"), "kept");
}

TEST_F(MlpSingle, RefusesBadArraysInOneLine) {
  write_bad_arrays(folder());
  EXPECT_EQ(run_here({"--data", "npy:x.npy,y.npy", "--layers", "2,1", "--steps", "1"}).err, "");
  EXPECT_EQ(
      run_here({"--data", "safetensors:good.safetensors", "--layers", "2,1", "--steps", "1"}).err,
      "");
  expect_refused(bad_inputs("NumPy and safetensors data"));
}

TEST_F(MlpSingle, RefusesToEvaluateWhatIsNotThereInOneLine) {
  expect_refused(bad_inputs("Evaluation"));
}

TEST_F(MlpSingle, EvaluatesEveryBatchSizeAndWritesALineForEachBatch) {
  file("images", idx_bytes<std::uint8_t>(0x08, {4, 2, 2}, std::vector<std::uint8_t>(16, 9)));
  file("labels", idx_bytes<std::uint8_t>(0x08, {4}, {0, 1, 2, 0}));
  const Arguments files =
      words("--data idx:images,labels --layers 4,3 --loss cross-entropy --no-last-relu");
  run_here(files + words("--steps 1 --save w"));
  const auto result =
      succeeded(run_here(files + words("--evaluate-only --load w --batch-size 1,3 --metrics m")));
  EXPECT_THAT(result.out, HasSubstr("w of 4 samples, features / 255\nBatch size "));
  EXPECT_THAT(result.out, ContainsRegex("\n +1 +[0-9.]+ +[0-9.]+%.*\n +3 +[0-9.]+ "));
  const std::string records = text("m");
  EXPECT_EQ(std::ranges::count(records, '\n'), 1 + (4 + 1) + (2 + 1) + 1) << "lost time is last";
  EXPECT_THAT(records, StartsWith("{\"configuration\":{\"block\":\"mlp\",\"layers\":[4,3],"));
  EXPECT_THAT(records, HasSubstr("\"batch-size\":[1,3]"));
  EXPECT_THAT(records, HasSubstr(R"({"batch_size":3,"batch":1,"samples":1,"latency_s":)"));
  EXPECT_THAT(records,
              ContainsRegex(R"(\{"evaluation":\{"precision":"fp32","batch_size":3,"samples":4,)"
                            R"("loss":[0-9.]+,"weight_bytes":[0-9]+,"accuracy":[0-9.]+\}\})"));
}

TEST_F(MlpSingle, SaysOnceWhichClassesOfTheTestSetTrainingNeverSees) {
  file("images", idx_bytes<std::uint8_t>(0x08, {8, 2, 2}, std::vector<std::uint8_t>(32, 1)));
  file("labels", idx_bytes<std::uint8_t>(0x08, {8}, {0, 1, 0, 1, 0, 1, 3, 2}));
  const Arguments files =
      words("--data idx:images,labels --layers 4,4 --loss cross-entropy --no-last-relu");
  const Arguments trains = files + words("--epochs 3 --batch-size 2");
  const auto result = run_here(trains + words("--test-split 0.375 --save w"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err,
            "mlp_single: note: 2 classes of the test set do not occur in the training set: 2, 3; "
            "the test set is the end of the files, so shuffle these\n");
  EXPECT_THAT(run_here(trains + Arguments{"--test-split", "0.125"}).err,
              HasSubstr(": 1 class of the test set does not occur in the training set: 2; "));
  EXPECT_EQ(run_here(trains).err, "");
  EXPECT_EQ(run_here(files + words("--test-split 0.375 --evaluate-only --load w")).err, "");
}

/// --device auto, the default, on a machine without a GPU.
TEST_F(MlpSingle, SaysOnceWhyItTrainsOnTheCpuWhereABuildForGpusFindsNone) {
  const auto result = mlp_single(kOneStep, {.working_directory = folder()});
  EXPECT_EQ(result.exit_code, 0);
  if (result.err.empty()) GTEST_SKIP() << "there is a GPU, or this build has no CUDA device";
  EXPECT_THAT(result.err, StartsWith("mlp_single: note: training on the CPU: "));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
}

TEST_F(MlpSingle, WarnsOfALossScaleThatLeavesGradientsBelowFp16) {
  const auto notes = [&](const char* scale, const char* batch) {
    const auto result = run_here({"--layers", "8,1024", "--batch-size", batch, "--steps", "1",
                                  "--precision", "fp16", "--loss-scale", scale});
    EXPECT_EQ(result.exit_code, 0);
    return result.err;
  };
  EXPECT_EQ(notes("1", "33"),
            "mlp_single: note: --loss-scale 1: the loss is a mean of 33,792 numbers, whose "
            "gradients lose bits in fp16; give --loss-scale dynamic\n");
  EXPECT_EQ(notes("1", "32"), "");
  EXPECT_EQ(notes("2", "33"), "");
  EXPECT_EQ(notes("dynamic:1", "33"), "");
}

TEST_F(MlpSingle, RunsWithEveryOptionThatHelpNames) {
  const Arguments files = words(
      "--data idx:images,labels --layers 4,3 --loss cross-entropy --no-last-relu --batch-size 4 "
      "--gemm reference");
  file("images", idx_bytes<std::uint8_t>(0x08, {4, 2, 2}, std::vector<std::uint8_t>(16, 9)));
  file("labels", idx_bytes<std::uint8_t>(0x08, {4}, {0, 1, 2, 0}));
  file("run.json", R"({"dim": 8, "depth": 1, "steps": 1})");
  expect_every_option(
      {kOneStep + words("--activation none --loss mse --seed -1 --lr 1e-2 --betas 0.8,0.99 --eps "
                        "1e-6 --optimizer adamw --amsgrad --weight-decay 0.1 --lr-warmup 3 "
                        "--lr-schedule cosine --lr-scale linear --clip-norm 0.5 --log-every 2 "
                        "--save weights.safetensors --metrics metrics.jsonl --scheme single"),
       kOneStep + words("--optimizer sgd --momentum 0.9 --nesterov --lr-schedule step --lr-step 2 "
                        "--lr-gamma 0.5 --load weights.safetensors --denormals keep --quiet "
                        "--instructions avx2 --fusion off --affinity compact --verbose"),
       kOneStep + words("--lr-schedule linear --lr-min 1e-5 --update fused --delay-ms 1.5 "
                        "--verify-every 1 --flip parameters:0:2@0"),
       kOneStep + words("--accumulate 2 --no-zero-grad --io-delay-ms 1.5 --time-limit 1h"),
       words("--dim 8 --depth 4 --steps 2 --warmup 1 --recompute 2 --dropout 0.5 --threads 2"),
       kOneStep + words("--precision fp16 --loss-scale dynamic:1024 --loss-scale-window 10"),
       words("--plan --device cuda --precision tf32 --graph --autotune choices.json"),
       kOneStep + words("--graph"),
       kOneStep + words("--explain --plan --memory 16GiB"),
       kOneStep + words("--profile --profile-steps 0:1 --profile-phases forward,loss --monitor "
                        "--trace trace.json.gz --tensorboard runs --sort-by count --row-limit 2"),
       kOneStep + words("--data teacher --teacher-noise 0.5"),
       kOneStep + words("--reproducible 8"),
       words("--dim 8 --depth 1 --steps 3 --staleness 2"),
       kTransformer + words("--heads 2 --ffn 12 --causal --attention standard"),
       files + words("--epochs 1 --workers 2 --prefetch 3 --no-pin --drop-last --no-shuffle "
                     "--input-scale 127.5 --label-smoothing 0.1 --save trained"),
       files + words("--epochs 3 --test-split 0.25 --standardize --early-stop 1 --checkpoint b "
                     "--checkpoint-every 3 --checkpoint-keep 1 --checkpoint-best"),
       files + words("--evaluate-only --load trained --precision int8 --quantization "
                     "torch-per-channel"),
       kOneStep + words("--checkpoint c --resume"),
       kOneStep + words("--resume-from c/step-000000001.safetensors"),
       words("--config run.json"),
       words("--completion zsh"),
       words("--man"),
       words("--help"),
       words("--version")},
      [this](const Arguments& arguments) { return run_here(arguments); });
}

TEST_F(MlpSingle, HelpIsGroupedAndEndsWithExamples) {
  const auto result = mlp_single({"--help"});
  std::size_t at = 0;
  for (const char* group : {"\nModel:\n", "\nData:\n", "\nTraining:\n", "\nDevice:\n",
                            "\nInjected:\n", "\nObserving:\n", "\nFiles:\n", "\nExamples:\n"}) {
    at = result.out.find(group, at);
    ASSERT_NE(at, std::string::npos) << group;
  }
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.find("\n\n\n"), std::string::npos);
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(MlpSingle, SweepsOverBatchSizesAndClosesWithATable) {
  file("run.json", R"({"dim": 8, "depth": 1, "steps": 2, "batch-size": [16, 4]})");
  for (const auto& arguments :
       {std::vector<std::string>{"--config", "run.json"},
        {"--dim", "8", "--depth", "1", "--steps", "2", "--batch-size", "16,4"}}) {
    const auto result = succeeded(run_here(arguments));
    EXPECT_THAT(result.out, HasSubstr("batch 16\n"));
    EXPECT_THAT(result.out, HasSubstr("batch 4\n"));
    const std::string number = R"( +[0-9.]+)";
    const std::string table =
        "\n\nBatch size  Step time, median \\(s\\) +p5 +p95 +mean  Throughput "
        "\\(samples/sec\\)\n +16" +
        number + number + number + number + number + "\n +4" + number + number + number + number +
        number + "\n$";
    EXPECT_FALSE(first_match(result.out, table).empty()) << result.out;
  }
}

TEST_F(MlpSingle, ShowsAnInjectedDelayInTheAccount) {
  const auto result = run_here(kOneStep + std::vector<std::string>{"--io-delay-ms", "20"});
  const auto milliseconds = first_match(result.out, "injected +([0-9.]+) ms");
  ASSERT_FALSE(milliseconds.empty()) << result.out;
  EXPECT_GE(std::stod(milliseconds[1]), 20);
}

TEST_F(MlpSingle, SaysWithVerboseWhichItemsOfTheChecklistHold) {
  const std::string line =
      "Checklist: \\[.\\] no frequency scaling: .*; \\[.\\] no other programs: .*; "
      "\\[x\\] seed: 3; \\[x\\] warm-up: 2 steps left out; \\[ \\] repeats: 1 start of "
      "5 steps\n";
  const std::vector<std::string> run = {"--dim",    "8", "--depth", "1", "--steps", "7",
                                        "--warmup", "2", "--seed",  "3", "--gemm",  "reference"};
  EXPECT_FALSE(
      first_match(run_here(run + std::vector<std::string>{"--verbose"}).out, line).empty());
  EXPECT_EQ(run_here(run).out.find("Checklist"), std::string::npos);
}

/// Another program has the same core.
TEST_F(MlpSingle, SaysFirstThatOtherProgramsTookItsTimeAndConcludesNothing) {
  const ProcessResult result = succeeded(run_process(
      {"/bin/sh", "-c",
       "taskset -c 0 timeout 60 sh -c 'while :; do :; done' & taskset -c 0 " + kProgram +
           " --device cpu --threads 1 --quiet --dim 512 --depth 2 --warmup 1 --steps 100 "
           "--profile; code=$?; kill $!; exit $code"},
      {.working_directory = folder()}));
  EXPECT_THAT(result.out, ContainsRegex("\nOther programs took [0-9.]+ % of the cores' time: times "
                                        "below are not this program's alone\n\nSummary of "));
  EXPECT_THAT(result.out, HasSubstr("\nAccount of a profiled step"));
  for (const char* const conclusion : {"The bottleneck", "Backward takes", "Floor  "}) {
    EXPECT_THAT(result.out, Not(HasSubstr(conclusion)));
  }
}

TEST_F(MlpSingle, TellsWhenTheCommandLineWinsOverTheConfigFile) {
  file("run.json", R"({"layers": [8, 8], "steps": 2, "batch-size": 4})");
  const auto result =
      run_here({"--config", "run.json", "--dim", "4", "--steps", "1", "--depth", "1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err,
            "mlp_single: note: the command line overrides the config file: layers, steps\n");
}

TEST_F(MlpSingle, EndsInOrderWhateverItsOutputIs) {
  using enum ProcessOptions::Stdout;
  for (const auto& [stdout_to, code, err] :
       {std::tuple(kNoReader, 0, ""),
        {kClosed, 0, ""},
        {kFile, 74,
         "mlp_single: error: standard output: No space left on device; send it where "
         "there is room\n"}}) {
    const auto result =
        mlp_single({"--version"}, {.stdout_to = stdout_to, .stdout_file = "/dev/full"});
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.err, err);
  }
  EXPECT_THAT(mlp_single({"--version"}).out, StartsWith("mlp_single 0."));
}

TEST_F(MlpSingle, RefusesAConfigFileItMayNotRead) {
  const auto path = file("run.json", "{}");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (std::ifstream(path).is_open()) GTEST_SKIP() << "this user may read everything";
  const auto result = mlp_single({"--config", path.string()});
  EXPECT_THAT(result, Fails(66, HasSubstr("Permission denied")));
}
}  // namespace
}  // namespace barestep
