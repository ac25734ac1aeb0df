// The real mlp_dp, on CPU devices.
#include <nlohmann/json.hpp>

#include "apps/bad_input.h"
#include "apps/every_option.h"
#include "core/host.h"
#include "support/arguments.h"
#include "support/file_runs.h"
#include "support/near.h"
#include "support/program_test.h"
#include "support/testing.h"
#include "support/trace_rules.h"

namespace barestep {
namespace {

class MlpDp : public ProgramTest {
 protected:
  ProcessResult run(const Arguments& arguments, const char* program = MLP_DP) {
    return execute(Arguments{program} + arguments);
  }
};

TEST_F(MlpDp, ComputesTheLossesOfMlpSingle) {
  for (const char* gemm : {"reference", "auto"}) {
    const Arguments model = {"--dim", "64",     "--depth", "3",        "--steps",
                             "8",     "--gemm", gemm,      "--metrics"};
    succeeded(run(model + Arguments{"single", "--device", "cpu"}, MLP_SINGLE));
    const std::vector<double> one = losses("single");
    for (const char* devices : {"cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu,cpu"}) {
      SCOPED_TRACE(devices);
      const auto result = succeeded(run(model + Arguments{"spread", "--devices", devices}));
      EXPECT_EQ(result.err, "");
      expect_within(losses("spread"), one, 5e-7);
      EXPECT_FALSE(records("spread").front().contains("own_loss"));
    }
  }
}

TEST_F(MlpDp, OnOneDeviceSavesTheBytesOfMlpSingle) {
  const Arguments model = {"--dim", "40", "--depth", "2", "--steps", "6", "--save"};
  succeeded(run(model + Arguments{"one", "--devices", "cpu"}));
  succeeded(run(model + Arguments{"single", "--device", "cpu"}, MLP_SINGLE));
  EXPECT_EQ(text("one"), text("single"));
}

/// A trace of each device, which readers take for that of a rank.
TEST_F(MlpDp, ProfilesAllDevicesAndWritesATraceOfEach) {
  const auto result =
      succeeded(run({"--devices", "cpu,cpu", "--layers", "12,16,9", "--batch-size", "8", "--steps",
                     "12", "--profile", "--profile-steps", "6:9", "--trace", "t.json"}));
  EXPECT_THAT(result.out, HasSubstr("\nProfile of the steps 6 to 8, 2 devices, each "));
  // Two layers on two devices: five products on each device in each of three steps.
  EXPECT_THAT(result.out, ContainsRegex("\n +gemm +[0-9.]+% .* 30 "));
  EXPECT_THAT(result.out, ContainsRegex("\n +broadcast +[0-9.]+% "));
  EXPECT_THAT(result.out, HasSubstr("\nAccount of a profiled step, mean of 3\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n  exposed communication +[0-9.]+ ms"));
  EXPECT_THAT(result.out, HasSubstr("\ncpu:1: From first to last op the device computes "));
  for (const int device : {0, 1}) {
    const std::string trace = text(fmt::format("t.device{}.json", device));
    EXPECT_THAT(broken_rules(trace), IsEmpty());
    EXPECT_THAT(trace, HasSubstr(fmt::format("\n\"rank\": {},\n\"world_size\": 2\n", device)));
    EXPECT_THAT(trace, HasSubstr("\"nccl:broadcast\""));
    EXPECT_THAT(trace, HasSubstr("ProfilerStep#9\""));
  }
  EXPECT_FALSE(std::filesystem::exists(folder() / "t.json"));
  const auto merged =
      succeeded(execute({MLP_LAB, "merge-traces", "all.json", "t.device0.json", "t.device1.json"}));
  EXPECT_THAT(broken_rules_of_merged(text("all.json")), IsEmpty());
}

TEST_F(MlpDp, ThatDivergesWritesTheTracesOfTheStepsBefore) {
  const auto result =
      run({"--devices", "cpu,cpu", "--layers", "12,16,9", "--batch-size", "8", "--steps", "20",
           "--lr", "1e30", "--profile-steps", "0:5", "--trace", "t.json"});
  EXPECT_THAT(
      result,
      Fails(76, StartsWith("mlp_dp: note: 't.device0.json' holds the profiled steps "
                           "before that: 0 to 0\nmlp_dp: error: training diverged: the loss is "
                           "inf at step 1, it was ")));
  for (const int device : {0, 1}) {
    const std::string trace = text(fmt::format("t.device{}.json", device));
    EXPECT_THAT(broken_rules(trace), IsEmpty());
  }
}

/// The practical prints these lines in every step, before the step's own line.
TEST_F(MlpDp, ShowsTheRowsOfEachDevice) {
  const auto result = run(
      {"--devices", "cpu,cpu,cpu", "--dim", "16", "--depth", "1", "--steps", "1", "--show-split"});
  EXPECT_THAT(result.out,
              HasSubstr("gradients are exchanged\n\nInside model on device cpu:0, shape: [22, 16]\n"
                        "Inside model on device cpu:1, shape: [22, 16]\n"
                        "Inside model on device cpu:2, shape: [20, 16]\n"
                        "Step 00 | "));
  const auto micro = run({"--devices", "cpu,cpu", "--dim", "4", "--depth", "1", "--steps", "1",
                          "--show-split", "--batch-size", "3", "--accumulate", "2"});
  EXPECT_THAT(micro.out,
              HasSubstr("gradients are exchanged\n\nInside model on device cpu:0, shape: [2, 4]\n"
                        "Inside model on device cpu:1, shape: [1, 4]\n"
                        "Inside model on device cpu:0, shape: [2, 4]\n"
                        "Inside model on device cpu:1, shape: [1, 4]\n"
                        "Step 00 | "));
}

TEST_F(MlpDp, ShowsTheRowsOfASmallerLastBatch) {
  class_run(folder());  // 30 samples for training
  const auto result = succeeded(
      run(words("--devices cpu,cpu,cpu --data idx:x.idx,y.idx --layers 6,4 --no-last-relu --loss "
                "cross-entropy --test-split 0.25 --batch-size 26 --epochs 1 --show-split")));
  EXPECT_THAT(result.out, HasSubstr("cpu:0, shape: [9, 6]\nInside model on device cpu:1, shape: "
                                    "[9, 6]\nInside model on device cpu:2, shape: [8, 6]\n"));
  EXPECT_THAT(result.out, HasSubstr("cpu:0, shape: [2, 6]\nInside model on device cpu:1, shape: "
                                    "[2, 6]\nStep 01 | "));
  EXPECT_THAT(result.out, HasSubstr("\nTest accuracy: "));
}

TEST_F(MlpDp, EndsWithTheLoadOfEachDevice) {
  const auto result =
      run({"--devices", "cpu,cpu,cpu", "--threads", "1", "--dim", "64", "--depth", "2"});
  EXPECT_THAT(result.out, StartsWith("3 devices: cpu:0 22 rows on 1 thread, cpu:1 22 rows on 1 "
                                     "thread, cpu:2 20 rows on 1 thread\nExchange by copies and "
                                     "sums in their common memory\n"));
  // Two layers of 64 x 64 and 64 numbers, from device 0 to two others and back.
  EXPECT_THAT(result.out, ContainsRegex("\n  broadcast +[0-9.]+ ms +[0-9.]+ % +65.00 KiB  "));
  EXPECT_THAT(result.out, ContainsRegex("\n  reduce +[0-9.]+ ms +[0-9.]+ % +65.00 KiB  "));
  // For 42 rows of 64 numbers: x and a gradient to the other devices, outputs back.
  EXPECT_THAT(result.out, ContainsRegex("\n  scatter +[0-9.]+ ms +[0-9.]+ % +21.00 KiB  "));
  EXPECT_THAT(result.out, ContainsRegex("\n  gather +[0-9.]+ ms +[0-9.]+ % +10.50 KiB  "));
  EXPECT_THAT(result.out, ContainsRegex("\n  cpu:0 +22 .* 75.50 KiB +86.00 KiB\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n  cpu:2 +20 .* 42.50 KiB +37.50 KiB\n"));
  EXPECT_THAT(result.out, ContainsRegex("\ncpu:0 is busy [0-9.]+ times as long as the "));
  for (const char* name : {"cpu:0", "cpu:1", "cpu:2"}) {
    EXPECT_THAT(result.out, HasSubstr(fmt::format("\nMemory plan of {}\n", name)));
  }
}

TEST_F(MlpDp, SaysWhichDevicesABatchIsTooSmallFor) {
  const auto result = succeeded(run(kTiny + Arguments{"--devices", "cpu,cpu,cpu,cpu,cpu",
                                                      "--batch-size", "16", "--threads", "1"}));
  EXPECT_THAT(result.out, HasSubstr("cpu:3 4 rows on 1 thread, cpu:4 0 rows\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n  cpu:4 +0 +0 B "));
}

TEST_F(MlpDp, SharesTheCoresFairlyAndSaysWhenTheyAreTooFew) {
  const std::string many = fmt::format("{}", fmt::join(std::vector<std::string>(64, "cpu"), ","));
  const auto result = succeeded(run(kTiny + Arguments{"--devices", many, "--threads", "2"}));
  EXPECT_THAT(result.out, HasSubstr("\nOversubscribed: 128 threads on "));
  EXPECT_THAT(run(kTiny + Arguments{"--device", "cpu"}).out,
              StartsWith("2 devices: cpu:0 32 rows"));
}

TEST_F(MlpDp, TakesTheCpusItMayUseForThoseOfTheMachine) {
  const Arguments here = {"/usr/bin/taskset", "-c", std::to_string(allowed_cpus()._Find_first()),
                          MLP_DP};
  const auto result = succeeded(execute(here + kTiny + Arguments{"--device", "cpu"}));
  EXPECT_THAT(result.out, StartsWith("2 devices: cpu:0 32 rows on 1 thread, cpu:1 32 rows on 1 "
                                     "thread\n"));
  EXPECT_THAT(result.out, HasSubstr("\nOversubscribed: 2 threads on 1 core\n"));
  const auto stages =
      succeeded(execute(here + words("--dim 8 --depth 2 --steps 2 --device cpu --pipeline 2")));
  EXPECT_THAT(stages.out, HasSubstr("\nOversubscribed: 2 threads on 1 core\n"));
}

/// On a busy machine, the start may take longer than the limit; then the test tries a longer one.
TEST_F(MlpDp, ThatHangsEndsWithOneLine) {
  ProcessResult result;
  for (const char* const limit : {"0.5", "5", "20"}) {
    result = run({"--devices", "cpu,cpu", "--dim", "8", "--depth", "1", "--delay-ms", "100000",
                  "--metrics", "m", "--timeout", limit});
    if (result.err.find("'step 0'") != std::string::npos) break;
  }
  EXPECT_THAT(
      result,
      Fails(75, ContainsRegex(
                    "^mlp_dp: error: process [0-9]+ on .* 'step 0': not done after [0-9.]+ s; "
                    "find out what delays it, or give a larger --timeout\n$")));
  EXPECT_THAT(text("m.flight"), HasSubstr("step 0: not ended\n"));
}

TEST_F(MlpDp, PlansAndExplainsForDevicesThatAreNotHere) {
  const auto plan = succeeded(run(
      {"--devices", "cuda:0,cuda:1,cuda:0", "--dim", "64", "--depth", "1", "--plan", "--explain"}));
  EXPECT_THAT(
      plan.out,
      AllOf(HasSubstr("\nMemory plan of cuda:0#0\n"), HasSubstr("\nMemory plan of cuda:1\n"),
            HasSubstr("\nMemory plan of cuda:0#1\n"), HasSubstr("  reduce_piece (communication) "),
            HasSubstr(" broadcast "), HasSubstr(" 0,1,2 ")));
  const Arguments two = {"--devices", "cuda:0,cuda:1", "--dim", "64", "--depth", "1", "--plan"};
  const auto by_peers = run(two + Arguments{"--transport", "peer"});
  EXPECT_THAT(by_peers.out, HasSubstr("  reduce_piece (communication) ")) << "no NCCL";
  const auto one = run({"--devices", "cuda:0,cuda", "--dim", "64", "--depth", "1", "--plan"});
  EXPECT_THAT(one.out, HasSubstr("\nMemory plan of cuda:0#1\n"));
  EXPECT_EQ(one.out.find("reduce_piece"), std::string::npos) << "one GPU has one memory";
}

TEST_F(MlpDp, RunsWithEveryOptionThatHelpNames) {
  number_run(folder());
  write_file(folder() / "run.json", R"({"lr": 0.01})");
  const std::vector<Arguments> runs = {
      words("--devices cpu,cpu --dim 8 --depth 2 --activation relu --dropout 0.1 --loss mse "
            "--label-smoothing 0 --steps 3 --warmup 1 --seed 1 --optimizer adam --amsgrad --lr "
            "0.01 --betas 0.8,0.9 --eps 1e-7 --weight-decay 0.1 --monitor --lr-warmup 2 "
            "--lr-schedule linear --lr-min 0.001 --update separate --lr-scale linear --accumulate "
            "2 --log-every 2 --batch-size 6 --threads 1 --gemm reference --fusion on --precision "
            "fp16 --loss-scale dynamic:1024 --loss-scale-window 100 --show-split --io-delay-ms 1 "
            "--delay-ms 1 --memory 1GiB --metrics m --save w --verify-every 1 --flip "
            "parameters:0:2@0"),
      words("--scheme data-parallel --transport peer --devices cpu,cpu --dim 8 --depth 2 --steps 2 "
            "--timeout 60"),
      words("--devices cpu,cpu --dim 8 --depth 2 --steps 4 --profile --profile-steps 1:2 "
            "--profile-phases forward,communication --sort-by count --row-limit 2 --trace t.json "
            "--quiet --verbose --affinity spread"),
      words(
          "--device cpu --dim 8 --depth 2 --load w --optimizer sgd --lr-schedule step --lr-step 2 "
          "--lr-gamma 0.5 --momentum 0.9 --nesterov --clip-norm 0.5 --steps 2 --config run.json"),
      words("--devices cpu --no-zero-grad --graph --data idx:x.idx,y.idx --test-split 0.25 "
            "--layers 6,4 --no-last-relu --epochs 1"),
      words("--devices cpu,cpu --data idx:x.idx,y.idx --layers 6,4 --epochs 1 --workers 2 "
            "--prefetch 1 --no-pin --drop-last --batch-size 16"),
      words("--devices cpu,cpu --data idx:x.idx,y.idx --layers 6,4 --test-split 0.25 --no-shuffle "
            "--standardize --input-scale 127.5 --early-stop 9 --checkpoint c --checkpoint-every 1 "
            "--checkpoint-keep 1 --checkpoint-best --resume --time-limit 1h"),
      words("--devices cpu,cpu --data idx:x.idx,y.idx --layers 6,4 --test-split 0.25 --no-shuffle "
            "--standardize --input-scale 127.5 --resume-from c/step-000000020.safetensors"),
      words("--devices cpu,cpu --plan --explain --denormals keep --instructions plain"),
      {"--devices", "cpu,cpu", "--dim", "8", "--depth", "4", "--steps", "2", "--recompute", "2"},
      words("--devices cpu,cpu --block transformer --dim 8 --depth 2 --heads 2 --length 4 --ffn 12 "
            "--causal --attention standard --steps 2 --data teacher --teacher-noise 0.5"),
      words("--pipeline 2 --schedule gpipe --micro-batches 4 --dim 8 --depth 4 --steps 2"),
      {"--version"},
      {"--completion", "bash"},
      {"--man"},
      {"--help"},
  };
  expect_every_option(runs, [this](const Arguments& arguments) { return run(arguments); },
                      {"autotune"});  // needs a GPU: refused below
}

TEST_F(MlpDp, TellsTheStagesOfAPipelineAndHowLongTheyWait) {
  const auto result =
      succeeded(run({"--pipeline", "3", "--schedule", "gpipe", "--micro-batches", "4", "--dim", "8",
                     "--depth", "4", "--steps", "8", "--batch-size", "8"}));
  EXPECT_THAT(result.out,
              HasSubstr("A pipeline of 3 stages: cpu:0 2 layers, cpu:1 1 layer, cpu:2 1 "
                        "layer\nSchedule gpipe, 4 micro-batches a step\n"));
  EXPECT_THAT(result.out, HasSubstr("\nStages of a step, mean of 3 steps\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n2 on cpu:2( +[0-9]+\\.[0-9]+){6}\n"));
  EXPECT_THAT(result.out, HasSubstr("would wait (P - 1) / (m + P - 1) = 33.3 % (calculated, "));
}

/// The stages' rows in a trace viewer are the diagram of the schedule.
TEST_F(MlpDp, TracesThePassesOfMicroBatchesByTheirNumbers) {
  const auto result = succeeded(
      run(words("--pipeline 2 --schedule gpipe --micro-batches 3 --dim 8 --depth 2 --steps 4 "
                "--batch-size 6 --profile-steps 3:4 --trace t.json")));
  for (const int device : {0, 1}) {
    const std::string trace = text(fmt::format("t.device{}.json", device));
    EXPECT_THAT(broken_rules(trace), IsEmpty());
    std::vector<std::pair<double, std::string>> passes;
    const auto events = nlohmann::json::parse(trace);
    for (const auto& event : events.at("traceEvents")) {
      if (event.value("cat", "") != "gpu_user_annotation") continue;
      const std::string name = event.at("name");
      if (name.find("ward ") != std::string::npos) passes.emplace_back(event.at("ts"), name);
    }
    std::ranges::sort(passes);
    std::vector<std::string> in_order;
    for (const auto& [begin, name] : passes) in_order.push_back(name);
    EXPECT_THAT(in_order, ElementsAre("forward 0", "forward 1", "forward 2", "backward 0",
                                      "backward 1", "backward 2"));
  }
}

TEST_F(MlpDp, RefusesBadInputInOneLine) {
  for (const auto& cases :
       {bad_inputs("Devices (mlp_dp)"), bad_combinations(SchemeKind::kDataParallel)}) {
    expect_refused(cases, folder(),
                   [this](const BadInput& bad) { return execute(command_of(MLP_DP, bad)); });
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(MlpDp, WritesTheTracesOfItsDevicesOntoNoInput) {
  file("v.device1.json", R"({"seed": 1})");
  const auto result = run(
      kTiny + Arguments{"--devices", "cpu,cpu", "--trace", "v.json", "--config", "v.device1.json"});
  EXPECT_THAT(
      result,
      Fails(78,
            "mlp_dp: error: --trace 'v.device1.json': --config reads this file, which would be "
            "lost; write to another one\n"));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(text("v.device1.json"), R"({"seed": 1})");
}
}  // namespace
}  // namespace barestep
