// Runs that are interrupted and resumed by typed commands: losses, weights and metrics are the same
// as those of an uninterrupted run.
#include <signal.h>

#include "support/arguments.h"
#include "support/file_runs.h"
#include "support/near.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

const Arguments kRandomRun = words("--dim 16 --depth 2 --device cpu --threads 1 --batch-size 8");
/// Epochs of four steps, the last one smaller, and evaluations.
const Arguments kFiles =
    words("--data idx:x.idx,y.idx --layers 6,12,4 --batch-size 8 --device cpu --test-split 0.25");

class CheckpointedRuns : public ProgramTest {
 protected:
  void SetUp() override { number_run(folder()); }

  ProcessResult run(const Arguments& command, const Arguments& arguments) const {
    return execute(command + arguments);
  }
  ProcessResult single(const Arguments& arguments) const { return run({MLP_SINGLE}, arguments); }

  void expect_error(const Arguments& arguments, int code, const std::string& line) const {
    const auto result = single(arguments);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.err, "mlp_single: error: " + line + "\n");
  }
};

Arguments steps(int count) {
  return {"--steps", std::to_string(count)};
}

Arguments epochs(int count) {
  return {"--epochs", std::to_string(count)};
}

const Arguments kDeepRun = words("--dim 16 --depth 4 --device cpu --batch-size 8");
const Arguments kFourEpochs = kFiles + epochs(4);

TEST_F(CheckpointedRuns, GoOnToTheBit) {
  const std::vector<std::pair<Arguments, Arguments>> runs = {
      {kRandomRun + steps(12), kRandomRun + steps(5)},
      {kRandomRun + steps(12) + Arguments{"--log-every", "5", "--no-zero-grad"},
       kRandomRun + steps(5) + Arguments{"--no-zero-grad"}},
      {kDeepRun + steps(12), kDeepRun + steps(5) + Arguments{"--recompute", "2"}},
      {kFourEpochs, kFourEpochs + Arguments{"--time-limit", "0.001s"}},
      {kFourEpochs + words("--optimizer sgd --momentum 0.9 --accumulate 2"),
       kFourEpochs +
           words("--optimizer sgd --momentum 0.9 --accumulate 2 --time-limit 0.001s --workers 0")}};
  for (const auto& [whole, part] : runs) {
    SCOPED_TRACE(testing::PrintToString(part));
    for (const char* file : {"checkpoints", "metrics", "whole", "rest"}) {
      std::filesystem::remove_all(folder() / file);
    }
    succeeded(single(whole + words("--save whole --metrics of_whole")));
    const Arguments resumes = words("--checkpoint checkpoints --resume --metrics metrics");
    const auto first = single(part + resumes);
    ASSERT_THAT(first.exit_code, AnyOf(0, 75)) << first.err;
    const auto rest = succeeded(single(whole + resumes + Arguments{"--save", "rest"}));
    EXPECT_THAT(rest.err, StartsWith("mlp_single: note: resumes from 'checkpoints/step-0000000"));
    EXPECT_THAT(rest.err, Not(HasSubstr("rounding")));
    EXPECT_EQ(text("rest"), text("whole"));
    EXPECT_EQ(losses("metrics"), losses("of_whole"));
  }
}

TEST_F(CheckpointedRuns, StartWhereThereIsNothingAndGoOnByTheSameCommandLine) {
  const Arguments command =
      kRandomRun + steps(4) + words("--checkpoint a/b --resume --checkpoint-every 1");
  const auto first = succeeded(single(command));
  EXPECT_EQ(first.err, "");
  EXPECT_THAT(names("a/b"),
              UnorderedElementsAre("step-000000003.safetensors", "step-000000004.safetensors"));
  std::filesystem::create_directory(folder() / "empty");
  EXPECT_EQ(single(kRandomRun + steps(1) + Arguments{"--checkpoint", "empty", "--resume"}).err, "");
}

TEST_F(CheckpointedRuns, ThatAreCompleteSaveOnceMore) {
  const Arguments command = kFourEpochs + words("--checkpoint c --resume --save");
  succeeded(single(command + Arguments{"first", "--metrics", "m"}));
  const std::string metrics = text("m");
  const std::string checkpoint = text("c/step-000000016.safetensors");
  const auto again =
      succeeded(single(command + words("again --metrics m --profile --trace t.json --monitor")));
  EXPECT_EQ(again.err,
            "mlp_single: note: resumes from 'c/step-000000016.safetensors' at step 16\n");
  EXPECT_EQ(text("again"), text("first"));
  EXPECT_THAT(text("m"), StartsWith(metrics));
  EXPECT_EQ(text("c/step-000000016.safetensors"), checkpoint);
  EXPECT_THAT(again.out, Not(HasSubstr("Step 1")));
}

TEST_F(CheckpointedRuns, MayGrow) {
  succeeded(single(kFourEpochs + Arguments{"--save", "w"}));
  const Arguments fewer = kFiles + epochs(1);
  const Arguments resumes = {"--checkpoint", "c", "--resume"};
  succeeded(single(fewer + resumes));
  succeeded(single(kFourEpochs + resumes + Arguments{"--save", "grown"}));
  EXPECT_EQ(text("grown"), text("w"));
  expect_error(fewer + resumes, 78,
               "--epochs '1': the checkpoint 'c/step-000000016.safetensors' is at step 16 already; "
               "give at least as many");
}

TEST_F(CheckpointedRuns, OfAnotherRunAreRefusedWithWhatDiffers) {
  succeeded(single(kRandomRun + steps(2) + Arguments{"--checkpoint", "c"}));
  const std::string file = "c/step-000000002.safetensors";
  const auto expect_refused = [&](const Arguments& arguments, const std::string& why) {
    expect_error(arguments + Arguments{"--resume-from", file}, 78,
                 fmt::format("checkpoint '{}': is of another run: {}; give the options of that "
                             "run, or start a new one from its weights with --load",
                             file, why));
  };
  const Arguments common = words("--device cpu --steps 2");
  expect_refused(common + words("--dim 16 --depth 3 --batch-size 8"),
                 "--layers is 16,16,16 in the checkpoint and 16,16,16,16 here");
  expect_refused(common + words("--dim 16 --depth 2 --batch-size 4"),
                 "the batch of a step is 8 samples in the checkpoint and 4 samples here");
  expect_refused(kRandomRun + steps(2) + words("--seed 1 --lr 0.01"),
                 "the learning rate is 0.001 in the checkpoint and 0.01 here, --seed is 0 in the "
                 "checkpoint and 1 here");
  expect_refused(kRandomRun + steps(2) + Arguments{"--no-zero-grad"},
                 "--no-zero-grad is not given in the checkpoint and given here");
  // The schedule ends with the run, so the run's length affects every step.
  ASSERT_EQ(
      single(kRandomRun + steps(4) + words("--lr-schedule cosine --checkpoint cosine")).exit_code,
      0);
  expect_error(kRandomRun + steps(6) + words("--lr-schedule cosine --checkpoint cosine --resume"),
               78,
               "checkpoint 'cosine/step-000000004.safetensors': is of another run: the number of "
               "steps of --lr-schedule is 4 in the checkpoint and 6 here; give the options of that "
               "run, or start a new one from its weights with --load");
  // The same options, but one byte of the data differs.
  ASSERT_EQ(single(kFourEpochs + words("--checkpoint f --time-limit 0.001s")).exit_code, 75);
  expect_error(
      kFourEpochs + words("--checkpoint f --resume --input-scale 2"), 78,
      "checkpoint 'f/step-000000001.safetensors': is of another run: --input-scale is not "
      "given in the checkpoint and 2 here; give the options of that run, or start a new one "
      "from its weights with --load");
  std::string data = text("x.idx");
  data.back() = static_cast<char>(data.back() ^ 1);
  write_file(folder() / "x.idx", data);
  const auto other = single(kFourEpochs + Arguments{"--checkpoint", "f", "--resume"});
  EXPECT_THAT(
      other, Fails(78, AllOf(HasSubstr("is of another run: data is "), HasSubstr(" here; give "))));
}

TEST_F(CheckpointedRuns, TakeNoOtherRunsPlace) {
  const Arguments command = kRandomRun + steps(2);
  succeeded(single(command + Arguments{"--checkpoint", "c"}));
  succeeded(single(command + Arguments{"--checkpoint", "d"}));
  const std::string refused =
      "--checkpoint 'c': holds checkpoints of another run, the newest at step 2; resume that run "
      "with --resume, or name another folder";
  expect_error(command + Arguments{"--checkpoint", "c"}, 78, refused);
  expect_error(command + words("--checkpoint c --resume-from d/step-000000002.safetensors"), 78,
               refused);
  succeeded(single(command + words("--checkpoint c --resume-from c/step-000000002.safetensors")));
}

TEST_F(CheckpointedRuns, TakeOptionsThatChangeNoNumber) {
  ASSERT_EQ(single(kFourEpochs + words("--checkpoint c --time-limit 0.001s")).exit_code, 75);
  const auto other = succeeded(single(
      kFourEpochs + words("--checkpoint c --resume --workers 0 --log-every 3 --accumulate 1 "
                          "--no-pin --tensorboard runs --betas 0.9,0.999 --lr 0.001 --weight-decay "
                          "0 --checkpoint-keep 1 --profile --profile-steps 0:8")));
  EXPECT_THAT(other.out, HasSubstr("Step 15 | "));
}

TEST_F(CheckpointedRuns, EndInTimeWithAWholeCheckpoint) {
  const auto result =
      single(kRandomRun + steps(100'000'000) + words("--checkpoint c --time-limit 0.3s"));
  EXPECT_THAT(result,
              Fails(75, AllOf(StartsWith("mlp_single: note: the time limit is reached, ended "
                                         "after step "),
                              HasSubstr(" and wrote 'c/step-"), EndsWith(".safetensors'\n"))));
  EXPECT_EQ(names("c").size(), 1U);
}

TEST_F(CheckpointedRuns, AreSavedInIntervalsOfTime) {
  const auto result = single(
      kRandomRun + steps(100'000'000) +
      words("--checkpoint c --time-limit 2s --checkpoint-every 0.001s --checkpoint-keep 1000"));
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_GT(names("c").size(), 2U);
  EXPECT_THAT(result.out, AllOf(HasSubstr("\n  checkpoint    "),
                                HasSubstr(" checkpoints to 'c', the newest 'step-")));
}

TEST_F(CheckpointedRuns, GoOnOnSeveralDevicesAndBack) {
  const Arguments model = words("--dim 16 --depth 2 --batch-size 8");
  succeeded(single(kRandomRun + steps(9) + Arguments{"--metrics", "of_whole"}));
  const Arguments resumes = words("--checkpoint c --resume --metrics m");
  const Arguments spread = {MLP_DP, "--devices", "cpu,cpu,cpu"};
  succeeded(run(spread, model + steps(3) + resumes));
  const auto one = succeeded(single(kRandomRun + steps(6) + resumes));
  EXPECT_THAT(one.err, HasSubstr("at step 3; rounding may differ: the program is mlp_dp in the "
                                 "checkpoint and mlp_single here, the number of devices is 3 in "
                                 "the checkpoint and 1 here"));
  succeeded(run(spread, model + steps(9) + resumes));
  expect_within(losses("m"), losses("of_whole"), 1e-6);
}

TEST_F(CheckpointedRuns, KeepTheBestByTestLossToo) {
  const Arguments best = words("--checkpoint c --checkpoint-best --lr 0.5");
  const auto result = succeeded(single(kFourEpochs + best));
  // The epoch with the lowest test loss.
  std::istringstream lines(result.out);
  double min = 1e9;
  std::int64_t epoch = 0;
  for (const auto& each : all_matches(result.out, "Epoch ([0-9]+)/4 \\| Test loss: ([0-9.]+)")) {
    if (std::stod(each[2]) >= min) continue;
    min = std::stod(each[2]);
    epoch = std::stoll(each[1]);
  }
  EXPECT_THAT(names("c/best"), ElementsAre(fmt::format("step-{:09}.safetensors", 4 * epoch)));
  // A resumed run still knows which checkpoint was the best.
  succeeded(single(kFiles + epochs(5) + best + Arguments{"--resume"}));
  EXPECT_EQ(names("c/best").size(), 1U);
}

/// Epochs have four steps. The test loss after the fifth is smaller than that after the fourth, but
/// it is none of the longer run's.
TEST_F(CheckpointedRuns, CountNoEvaluationAtTheEndOfAPartOfThem) {
  const Arguments command = kFiles + Arguments{"--checkpoint-best"};
  const Arguments falls = {"--lr", "0.01"};
  const auto best = [&](const std::string& name) { return names(name + "/best"); };
  const auto state = [&](const std::string& name) {
    return first_match(run({MLP_LAB}, {"checkpoint", name + "/step-000000016.safetensors"}).out,
                       "best test loss +([0-9.]+)")
        .at(1);
  };
  succeeded(single(command + falls + steps(16) + Arguments{"--checkpoint", "whole"}));
  for (const int part : {2, 5, 7, 16}) {
    const auto cut = succeeded(
        single(command + falls + steps(part) + Arguments{"--checkpoint", "parts", "--resume"}));
    EXPECT_THAT(cut.out, HasSubstr("Test loss: ")) << "each part shows where it stands";
    if (part == 7) {
      EXPECT_THAT(best("parts"), ElementsAre("step-000000004.safetensors"));
    }
  }
  EXPECT_EQ(best("parts"), best("whole"));
  EXPECT_EQ(state("parts"), state("whole"));
  // Here each test loss is larger than the one before it.
  const Arguments rises = words("--lr 0.5 --optimizer sgd --early-stop 2");
  const auto whole = single(command + rises + steps(40) + Arguments{"--checkpoint", "rising"});
  for (const int part : {5, 6, 7, 9, 40}) {
    const auto cut = succeeded(single(command + rises + steps(part) +
                                      Arguments{"--checkpoint", "rising-parts", "--resume"}));
    if (part < 40) continue;
    const char* const ended = "\nEnded early after step [0-9]+: [^\n]+\n";
    EXPECT_EQ(first_match(cut.out, ended).at(0), first_match(whole.out, ended).at(0));
  }
}

/// A run that is asked to stop leaves the evaluation of its last step to the next part.
TEST_F(CheckpointedRuns, GiveALateTestLossItsOwnStep) {
  const Arguments epochs_of_a_step = words(
      "--data idx:x.idx,y.idx --layers 6,12,4 --batch-size 30 --device cpu --test-split 0.25 "
      "--tensorboard t --checkpoint c --resume");
  for (int part = 0; part < 3; ++part) {
    const Arguments end = part < 2 ? Arguments{"--time-limit", "0.001s"} : Arguments{};
    const auto result = single(epochs_of_a_step + epochs(4) + end);
    ASSERT_EQ(result.exit_code, part < 2 ? 75 : 0) << result.err;
  }
  const std::string test_loss = "\x2a\x12\x0a\x10\x0a\x09test_loss";
  std::string all;
  for (const std::string& name : names("t")) all += text("t/" + name);
  for (const char* const step : {"\x10\x01", "\x10\x02", "\x10\x03"}) {
    const std::string event = step + test_loss;
    ASSERT_THAT(all, HasSubstr(event));
    EXPECT_EQ(all.find(event), all.rfind(event)) << "once";
  }
}

/// In the events of TensorBoard's files, after their times: step 4 starts, and step 3 has a loss.
TEST_F(CheckpointedRuns, ContinueTheirEventsWhereTheCheckpointIs) {
  const Arguments command = kFiles + epochs(2) + Arguments{"--tensorboard"};
  succeeded(single(command + words("first --checkpoint c --checkpoint-every 4")));
  const std::string start_of_step_4 = "\x10\x04\x3a\x02\x08\x01";
  const std::string test_loss_of_step_3 = "\x10\x03\x2a\x12\x0a\x10\x0a\x09test_loss";
  const std::string first = text("first/" + names("first").front());
  EXPECT_THAT(first, AllOf(HasSubstr(test_loss_of_step_3), Not(HasSubstr("\x3a\x02\x08\x01"))));
  const auto resumed = succeeded(
      single(command + Arguments{"rest", "--resume-from", "c/step-000000004.safetensors"}));
  // The test loss after step 3 is in the checkpoint already.
  const std::string rest = text("rest/" + names("rest").front());
  EXPECT_THAT(rest, AllOf(HasSubstr(start_of_step_4), Not(HasSubstr(test_loss_of_step_3)),
                          HasSubstr("test_loss")));
  EXPECT_LT(rest.find(start_of_step_4), rest.find("test_loss"));
  // Without a checkpoint it begins anew.
  succeeded(single(command + words("anew --checkpoint d --resume")));
  EXPECT_THAT(text("anew/" + names("anew").front()),
              HasSubstr(std::string("\x10\x00\x3a\x02\x08\x01", 6)));
}

TEST_F(CheckpointedRuns, GiveTheirWeightsToLoad) {
  succeeded(single(kFourEpochs + words("--checkpoint c --save w --no-zero-grad")));
  const Arguments evaluates = words(
      "--evaluate-only --data idx:x.idx,y.idx --layers 6,12,4 --batch-size 8 --device cpu --load");
  const auto of_weights = single(evaluates + Arguments{"w"});
  const auto of_checkpoint =
      succeeded(single(evaluates + Arguments{"c/step-000000016.safetensors"}));
  const std::string loss = "\n +8 +([0-9.]+)";
  EXPECT_EQ(first_match(of_checkpoint.out, loss).at(1), first_match(of_weights.out, loss).at(1));
}

TEST_F(CheckpointedRuns, GiveNoWeightsOfADamagedFile) {
  succeeded(single(kFourEpochs + words("--checkpoint c --checkpoint-every 4")));
  const std::string newer = text("c/step-000000016.safetensors");
  const std::string older = text("c/step-000000012.safetensors");
  ASSERT_EQ(newer.size(), older.size());
  const std::size_t cut = newer.size() - 200;  // inside the tensors
  std::string turned = newer;
  turned[cut] = static_cast<char>(turned[cut] ^ 1);
  const std::string zeroed = newer.substr(0, cut) + std::string(newer.size() - cut, '\0');
  const std::string damaged =
      "safetensors file 'd': tensor '[^']*' has a wrong checksum; it is "
      "damaged; use another one\n$";
  for (const std::string& file : {turned, zeroed, older.substr(0, cut) + newer.substr(cut)}) {
    write_file(folder() / "d", file);
    for (const Arguments& command : {kFourEpochs, kFiles + Arguments{"--evaluate-only"}}) {
      const auto result = single(command + Arguments{"--load", "d"});
      EXPECT_THAT(result, Fails(65, ContainsRegex(damaged)));
    }
  }
}

TEST_F(CheckpointedRuns, GoOnInPyTorch) {
  const Arguments command = kRandomRun + Arguments{"--no-last-relu", "--gemm", "reference"};
  succeeded(single(command + steps(12) + Arguments{"--metrics", "of_whole"}));
  succeeded(single(command + steps(5) + Arguments{"--checkpoint", "c"}));
  const char* const python = std::getenv("BARESTEP_TORCH_PYTHON");
  const auto torch = run({"/usr/bin/env", python != nullptr ? python : "/usr/bin/python3"},
                         {TORCH_CHECKPOINT_PY, "c/step-000000005.safetensors", "7"});
  if (torch.exit_code == 77 || torch.exit_code == 127) GTEST_SKIP() << "there is no PyTorch";
  ASSERT_EQ(torch.exit_code, 0) << torch.err;
  std::istringstream theirs(torch.out);
  const std::vector<double> of_torch{std::istream_iterator<double>(theirs), {}};
  const std::vector<double> whole = losses("of_whole");
  expect_within(of_torch, std::span(whole).subspan(5), 1e-6);
}

/// The samples are standardized in the same way, with the mean and deviation of the training set.
TEST_F(CheckpointedRuns, HaveTheTestLossOfTheirWeightsEvaluatedAlone) {
  const Arguments command = kFiles + Arguments{"--standardize"};
  const auto trained = succeeded(single(command + epochs(2) + Arguments{"--save", "w"}));
  const auto evaluated = succeeded(single(command + Arguments{"--evaluate-only", "--load", "w"}));
  const std::size_t at = trained.out.rfind("Test loss: ") + 11;
  ASSERT_NE(at, std::string::npos);
  EXPECT_THAT(evaluated.out, HasSubstr(trained.out.substr(at, 8)));
}

TEST_F(CheckpointedRuns, OutliveADiskThatIsFull) {
  // A file cannot grow beyond 4 KiB, as on a full disk.
  const auto result =
      run_process(Arguments{"/bin/bash", "-c", "ulimit -f 4; exec \"$@\"", "bash", MLP_SINGLE} +
                      kRandomRun + steps(6) + words("--checkpoint c --checkpoint-every 3"),
                  {.working_directory = folder()});
  EXPECT_EQ(result.exit_code, 74) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Step 05 | ")) << "training goes on";
  EXPECT_THAT(result.err, AllOf(StartsWith("mlp_single: note: "), HasSubstr("File too large"),
                                HasSubstr("; the run continues without it\n"),
                                HasSubstr("\nmlp_single: error: ")));
}

TEST_F(CheckpointedRuns, AreNotWrittenOfWeightsThatAreNoNumbers) {
  const auto result =
      single(kRandomRun + steps(1) +
             words("--optimizer adamw --lr 1e38 --weight-decay 1e38 --checkpoint c"));
  EXPECT_THAT(result, Fails(76, HasSubstr("error: checkpoint 'c': net.0.weight holds ")));
  EXPECT_TRUE(names("c").empty());
}

TEST_F(CheckpointedRuns, ThatDivergeAtOnceNameNoLossBefore) {
  const Arguments run =
      kRandomRun + Arguments{"--optimizer", "sgd", "--lr", "1e30", "--checkpoint", "c", "--resume"};
  succeeded(single(run + steps(1)));
  const auto resumed = single(run + steps(2));
  EXPECT_THAT(resumed,
              Fails(76, ContainsRegex("training diverged: the loss is (inf|nan) at step 1; use "
                                      "a smaller --lr")));
}

TEST_F(CheckpointedRuns, ShareAFolderWithNoOtherRun) {
  std::filesystem::create_directory(folder() / "c");
  const auto result = run_process(
      Arguments{"/bin/bash", "-c", "flock c sleep 1 & sleep 0.3; \"$@\"; code=$?; wait; exit $code",
                "bash", MLP_SINGLE} +
          kRandomRun + steps(1) + Arguments{"--checkpoint", "c"},
      {.working_directory = folder()});
  EXPECT_THAT(result,
              Fails(75, AllOf(HasSubstr("error: --checkpoint 'c': "),
                              HasSubstr(" writes into this folder; wait until it ends, or name "
                                        "another folder\n"))));
}

TEST_F(CheckpointedRuns, PlanTheCopyThatIsWritten) {
  const auto result = succeeded(single(kRandomRun + words("--plan --checkpoint c --resume")));
  EXPECT_THAT(result.out, HasSubstr("\n  pinned host memory\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n    checkpoint +11,776 B +11.50 KiB\n"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "c"));
  EXPECT_THAT(single(kRandomRun + Arguments{"--plan"}).out, Not(HasSubstr("checkpoint")));
}

TEST_F(CheckpointedRuns, GoOnToTheBitAfterASignal) {
  for (const char* const program : {MLP_SINGLE, MLP_DP}) {
    for (const char* const signal : {"INT", "TERM", "USR2", "HUP"}) {
      SCOPED_TRACE(std::string(program) + " " + signal);
      const Arguments resumes = {"--checkpoint", "c", "--resume"};
      const auto cut = run(
          {"/usr/bin/env", "--default-signal=HUP", "/bin/bash", "-c",
           fmt::format("set -m; {} {} --steps 1000000 --metrics m --log-every 7 & until grep -qs "
                       "queued_s m; do sleep 0.01; done; kill -{} %1; wait %1",
                       program, fmt::join(kRandomRun + resumes, " "), signal)},
          {});
      EXPECT_EQ(cut.exit_code, 75) << cut.err;
      ASSERT_EQ(names("c").size(), 1U);
      const int done = std::stoi(names("c").front().substr(5));
      const Arguments three_more = kRandomRun + steps(done + 3);
      const auto rest =
          succeeded(run({program}, three_more + resumes + Arguments{"--save", "rest"}));
      succeeded(run({program}, three_more + Arguments{"--save", "whole"}));
      EXPECT_EQ(text("rest"), text("whole")) << done << " steps";
      for (const char* name : {"c", "m"}) std::filesystem::remove_all(folder() / name);
    }
  }
}

/// As by nohup; the shell's and the kernel's signal may also come one after the other.
TEST_F(CheckpointedRuns, OutliveAClosedTerminal) {
  const auto closed_during = [&](const std::string& setting, const Arguments& arguments) {
    return run({"/usr/bin/env", setting, "/bin/bash", "-c",
                fmt::format("set -m; {} {} >out & until grep -qs 'Step 00' out; do sleep 0.01; "
                            "done; kill -HUP $!; sleep 0.4; kill -HUP $!; wait $!",
                            MLP_SINGLE, fmt::join(kRandomRun + arguments, " "))},
               {});
  };
  const Arguments slow = {"--delay-ms", "700", "--steps"};
  const auto ignored = succeeded(closed_during("--ignore-signal=HUP", slow + Arguments{"3"}));
  EXPECT_THAT(text("out"), HasSubstr("\nStep 02 | "));
  std::filesystem::remove(folder() / "out");
  const auto ended =
      closed_during("--default-signal=HUP", slow + words("100 --checkpoint c --save w"));
  EXPECT_THAT(ended, Fails(75, AllOf(HasSubstr("asked to stop, ended after step "),
                                     HasSubstr(" and wrote 'w' and 'c/step-"))));
}

/// With such a large learning rate, the test loss grows immediately.
TEST_F(CheckpointedRuns, EndEarlyWhereAnUndisturbedOneDoes) {
  const Arguments command = kFiles + epochs(50) + words("--lr 0.5 --optimizer sgd --early-stop 3");
  const auto whole = succeeded(single(command + words("--save whole --metrics of_whole")));
  ASSERT_THAT(whole.out, ContainsRegex("\nEnded early after step [0-9]+: 3 evaluations without a "
                                       "smaller test loss than [0-9.]+\n"));
  const std::size_t losses_of_whole = losses("of_whole").size();
  EXPECT_LT(losses_of_whole, 200);
  // Interrupted after each epoch, between the evaluations that --early-stop counts.
  const Arguments resumes = words("--checkpoint c --resume --metrics m --save rest");
  int starts = 0;
  for (int code = 75; code == 75; ++starts) {
    ASSERT_LT(starts, 300);
    const auto part = single(command + resumes + Arguments{"--time-limit", "0.001s"});
    code = part.exit_code;
    ASSERT_THAT(code, AnyOf(0, 75)) << part.err;
  }
  EXPECT_GT(starts, 2);
  EXPECT_EQ(text("rest"), text("whole"));
  EXPECT_EQ(losses("m"), losses("of_whole"));
  const auto again = succeeded(single(command + resumes));
  EXPECT_THAT(again.out, HasSubstr("\nEnded early after step "));
  EXPECT_EQ(text("rest"), text("whole"));
}

TEST_F(CheckpointedRuns, DoNotStartAnewWhereNoCheckpointIsWhole) {
  const Arguments command = kRandomRun + steps(4) + Arguments{"--checkpoint", "c", "--resume"};
  succeeded(single(command));
  std::filesystem::resize_file(folder() / "c/step-000000004.safetensors", 1000);
  const auto result = single(command);
  EXPECT_THAT(
      result,
      Fails(65, StartsWith("mlp_single: note: checkpoint 'c/step-000000004.safetensors': ")));
  EXPECT_THAT(
      result.err,
      EndsWith(
          "\nmlp_single: error: folder of checkpoints 'c': has 1 checkpoint, none of "
          "which is complete; remove them to start from the beginning, or name another folder\n"));
}

TEST_F(CheckpointedRuns, LeaveFilesOfWhichTheLabTellsWhatTheyHold) {
  const Arguments files = kFourEpochs + words("--checkpoint c --save weights");
  succeeded(single(files));
  const std::string file = "c/step-000000016.safetensors";
  const auto told = succeeded(run({MLP_LAB}, {"checkpoint", file}));
  for (const char* const part :
       {"steps done      16\n", "position        after 4 epochs\n", "best test loss  ",
        "    --layers             6,12,4\n", "--optimizer          adam\n",
        "the number of ranks      1\n",
        "    net                       4  F32       136  544 B  right\n",
        "    optimizer.exp_avg_sq      4  F32       136  544 B  right\n"}) {
    EXPECT_THAT(told.out, HasSubstr(part));
  }
  std::string damaged = text(file);
  damaged.back() ^= 1;
  write_file(folder() / file, damaged);
  const auto bad = run({MLP_LAB}, {"checkpoint", file});
  EXPECT_EQ(bad.exit_code, 65);
  EXPECT_THAT(bad.out, HasSubstr("  WRONG\n"));
  EXPECT_THAT(bad.err, ContainsRegex("mlp_lab: error: checkpoint '" + file +
                                     "': tensor '[a-z_.0-9]+' is not what was written; resume from "
                                     "another one\n"));
  const auto weights = run({MLP_LAB}, {"checkpoint", "weights"});
  EXPECT_THAT(weights,
              Fails(65, HasSubstr("'weights': is a safetensors file, but not a checkpoint; ")));
}

TEST_F(CheckpointedRuns, OfATransformerAreToldInGroupsToo) {
  const Arguments command = words(
      "--device cpu --block transformer --dim 8 --depth 1 --length 4 --steps 1 --heads 1 "
      "--checkpoint c");
  succeeded(single(command));
  const auto told = run({MLP_LAB}, {"checkpoint", "c/step-000000001.safetensors"});
  EXPECT_THAT(told.out, ContainsRegex("\n    layers +12  F32 "));
  EXPECT_THAT(told.out, ContainsRegex("\n    optimizer[.]exp_avg +12  F32 "));
}

class KilledRuns : public CheckpointedRuns {
 protected:
  /// Kills runs by kill -9 at random moments, `times` times in all, and resumes each until it is
  /// complete.
  void kill(int times) {
    const Arguments command = kFiles + epochs(100) + Arguments{"--log-every", "7"};
    succeeded(single(command + words("--save whole --metrics of_whole")));
    const Arguments resumes =
        command + words("--checkpoint c --checkpoint-every 5 --resume --save rest --metrics m");
    std::minstd_rand random(7);
    for (int killed = 0; killed < times;) {
      const double seconds = std::uniform_real_distribution<double>(0.001, 0.15)(random);
      const auto result =
          run({"/usr/bin/timeout", "-s", "KILL", std::to_string(seconds), MLP_SINGLE}, resumes);
      if (result.exit_code == 0) {
        expect_whole();
      } else {
        ASSERT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
        ++killed;
      }
    }
    succeeded(single(resumes));
    expect_whole();
  }

 private:
  void expect_whole() {
    EXPECT_EQ(text("rest"), text("whole"));
    EXPECT_EQ(losses("m"), losses("of_whole"));
    std::filesystem::remove_all(folder() / "c");
    std::filesystem::remove(folder() / "m");
  }
};

TEST_F(KilledRuns, HaveTheBitsOfAnUndisturbedOne) {
  kill(5);
}

TEST_F(KilledRuns, AHundredTimesHaveTheBitsOfAnUndisturbedOne) {
  kill(100);
}

}  // namespace
}  // namespace barestep
