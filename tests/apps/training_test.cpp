// The real mlp_single trains, plans, explains, saves and loads.
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "apps/on_cpu.h"
#include "core/host.h"
#include "data/safetensors.h"
#include "support/arguments.h"
#include "support/busy_machine.h"
#include "support/idx_bytes.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/testing.h"
#include "support/trace_rules.h"

namespace barestep {
namespace {

const Arguments kSmall = words("--dim 16 --depth 2 --batch-size 8 --threads 1 --gemm reference");

class Training : public ProgramTest {
 protected:
  ProcessResult run(const Arguments& arguments) {
    return execute(Arguments{MLP_SINGLE} + on_cpu(arguments));
  }

  /// Standard output of a run that must succeed without messages on stderr.
  std::string output_of(const Arguments& arguments) {
    const ProcessResult result = succeeded(run(arguments));
    EXPECT_EQ(result.err, "");
    return result.out;
  }

  /// A run with a cache of peaks of its own.
  ProcessResult run_with_own_cache(const Arguments& arguments) {
    return succeeded(
        execute(Arguments{"/usr/bin/env", "XDG_CACHE_HOME=" + folder().string(), MLP_SINGLE} +
                on_cpu(arguments)));
  }
};

/// The rates in a table's rows, and the sentences after it.
TEST_F(Training, ProfilesItsStepsByOpLayerAndPhase) {
  const Arguments profiled = kSmall + words(
                                          "--steps 40 --warmup 2 --profile --profile-steps 30:40 "
                                          "--log-every 100 --metrics profiled.jsonl");
  const std::string out = output_of(profiled);
  EXPECT_THAT(out, HasSubstr("\nProfile of the steps 30 to 39, "));
  // Two layers: two products forward, three backward.
  EXPECT_THAT(out, ContainsRegex("\n +gemm +[0-9.]+% .* 50 "));
  EXPECT_THAT(out, ContainsRegex("\n +adam +[0-9.]+% .* 10 "));
  EXPECT_THAT(out, ContainsRegex("\nSelf CPU time total: [0-9.]+[mu]s\n"));
  EXPECT_THAT(out, ContainsRegex("\nBy block\n.*\n.*\n.*\n +(net|no block)"));
  EXPECT_THAT(out, ContainsRegex("\n +backward +[0-9.]+% "));
  EXPECT_THAT(out, ContainsRegex("\n +wait for the step +[0-9.]+[mu]s +[0-9.]+[mu]s +10 "));
  EXPECT_THAT(out, HasSubstr("\nAccount of a profiled step, mean of 10\n"));
  if (out.find("\nOther programs took ") == std::string::npos) {
    EXPECT_THAT(out, ContainsRegex("\nThe bottleneck is [a-z ]+: [0-9.]+ % of a step, "));
    EXPECT_THAT(out, ContainsRegex("\nBackward takes [0-9.]+ times as long as forward: "));
  }
  EXPECT_THAT(out, ContainsRegex("\nA step does [0-9.]+ GFLOP/s, [0-9.]+ % of the "));
  // 38 steps after warm-up, minus 10 profiled ones and the one before them: 27 steps make 6 groups.
  EXPECT_THAT(out, ContainsRegex("\nProfiling adds .* \\(95 % interval .*, 6 groups of steps "));

  EXPECT_THAT(out,
              ContainsRegex("\nAt most [0-9.]+ KiB of the [0-9.]+ KiB are in use, at #[0-9]+ "));

  output_of(kSmall + words("--steps 40 --metrics plain.jsonl"));
  EXPECT_EQ(losses("profiled.jsonl"), losses("plain.jsonl"));

  const auto floor = ContainsRegex(
      "\n  Floor        [0-9.]+s at the rates measured here, [0-9.]+ % of the mean\n");
  repeat_while_busy([&] {  // a busy machine's rates are not kept
    EXPECT_THAT(output_of(profiled), floor);
    EXPECT_THAT(output_of(kSmall), floor) << "the rates of an earlier run";
  });
}

/// The microseconds in "12.345us" or "1.234ms".
double microseconds(const std::string& number, const std::string& unit) {
  return std::stod(number) * (unit == "ms" ? 1000 : 1);
}

TEST_F(Training, ProfilesOnlyThePhasesAskedFor) {
  const std::string out = output_of(
      kSmall +
      words("--steps 20 --profile --profile-steps 10:20 --profile-phases forward,loss,backward"));
  EXPECT_THAT(out, HasSubstr("\nProfile of the steps 10 to 19, forward, loss, backward only, "));
  EXPECT_THAT(out, ContainsRegex("\n +gemm +[0-9.]+% .* 50 "));
  EXPECT_THAT(out, ContainsRegex("\n +mse_loss +[0-9.]+% .* 10 "));
  EXPECT_THAT(out, Not(ContainsRegex("\n +adam +[0-9.]+% ")));
  EXPECT_THAT(out, Not(ContainsRegex("\n +randn +[0-9.]+% ")));
  double sum_us = 0;
  for (const auto& row :
       all_matches(out, "\n +(?:forward|loss|backward) +[0-9.]+% +([0-9.]+)([mu]s) ")) {
    sum_us += microseconds(row[1], row[2]);
  }
  const auto total = first_match(out, "\nSelf CPU time total: ([0-9.]+)([mu]s)\n");
  ASSERT_FALSE(total.empty()) << out;
  EXPECT_NEAR(microseconds(total[1], total[2]), sum_us, 2) << "of these phases, as rounded";
  EXPECT_THAT(out, HasSubstr("\nAccount of a profiled step, mean of 10\n")) << "of the whole step";
  EXPECT_THAT(out, ContainsRegex("\n  optimizer +[0-9.]+ ms +[0-9.]+ %\n"));
}

TEST_F(Training, SaysThatPhasesAskedForDidNotRun) {
  EXPECT_THAT(output_of(kSmall + words("--steps 8 --profile --profile-phases recompute")),
              HasSubstr("\nNo op of these phases ran in these steps.\n"));
}

TEST_F(Training, NamesTheTypeOfOpsOf16BitsInTheProfile) {
  const std::string out =
      output_of(kSmall + words("--steps 6 --warmup 2 --profile --precision bf16"));
  EXPECT_THAT(out, ContainsRegex("\n +gemm, bf16 +[0-9.]+% "));
  EXPECT_THAT(out, ContainsRegex("\n +adam, bf16 +[0-9.]+% "));
  EXPECT_THAT(out, ContainsRegex("\n +copy +[0-9.]+% "));
  EXPECT_THAT(out, Not(ContainsRegex("\n +gemm +[0-9.]+% ")));
}

/// The plain loops are faster with so small a product than with the one that measures their peak.
const Arguments kAtTheirBest =
    words("--dim 16 --depth 2 --batch-size 8 --threads 1 --gemm own --steps 8");

TEST_F(Training, MeasuresPeaksAnewWhereTheirCacheIsSpoiled) {
  const auto profiled = [&] {
    return run_with_own_cache(kAtTheirBest + Arguments{"--profile"}).out;
  };
  const auto peaks = folder() / "barestep" / "peaks.tsv";
  const std::string note =
      "Note: the device's peaks are measured again: peaks' cache '" + peaks.string() + "': ";
  std::filesystem::create_directory(folder() / "barestep");
  ASSERT_EQ(::mkfifo(peaks.c_str(), 0600), 0);
  run_with_own_cache(kAtTheirBest);
  EXPECT_THAT(profiled(), HasSubstr(note + "is a FIFO, not a regular file; check the path\n"));
  std::filesystem::remove(peaks);
  file("barestep/peaks.tsv", "\x1b[2J\t1e-300\t-1\n");
  EXPECT_THAT(profiled(), HasSubstr(note + "line 1 is not a device and two rates"));
  const std::string kept = read_file(peaks);
  if (kept.find("1e-300") != std::string::npos) GTEST_SKIP() << "too busy a machine to keep peaks";
  EXPECT_THAT(profiled(), Not(HasSubstr(note)));
  EXPECT_EQ(read_file(peaks), kept) << "measured once";
}

TEST_F(Training, MeasuresPeaksAnewWhereAProfileContradictsThem) {
  const auto profiled = [&] {
    return run_with_own_cache(kAtTheirBest + Arguments{"--profile"}).out;
  };
  const auto peaks = folder() / "barestep" / "peaks.tsv";
  const std::string note = "Note: the device's peaks are measured again: ";
  EXPECT_THAT(profiled(), Not(HasSubstr(note)));
  if (!std::filesystem::exists(peaks)) GTEST_SKIP() << "too busy a machine for peaks to be kept";
  std::string line = read_file(peaks);
  line.resize(line.find('\t'));
  std::filesystem::remove(peaks);
  file("barestep/peaks.tsv", line + "\t1e+06\t1e+12\n");
  EXPECT_THAT(profiled(), ContainsRegex(note + "[a-z]+ reaches [0-9.]+ % of its roof\n"));
}

TEST_F(Training, KeepsNoPeaksThatWereMeasuredOnABusyMachine) {
  std::atomic<bool> stops = false;
  std::vector<std::jthread> others;
  for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i) {
    others.emplace_back([&] {
      while (!stops) {
      }
    });
  }
  const auto result = run_with_own_cache(kSmall + Arguments{"--steps", "8", "--profile"});
  stops = true;
  EXPECT_THAT(result.out, ContainsRegex("Note: the device's peaks were not kept: threads waited "
                                        "for their cores for [0-9]+ % of the time\n"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "barestep" / "peaks.tsv"));
}

/// One more step than requested; readers that drop the last one drop this one.
TEST_F(Training, WritesATraceThatKeepsItsReadersRules) {
  const std::string out =
      output_of(kSmall + words("--steps 20 --profile-steps 10:13 --trace trace.json"));
  EXPECT_EQ(out.find("Profile of"), std::string::npos);
  const std::string trace = text("trace.json");
  EXPECT_THAT(broken_rules(trace), IsEmpty());
  for (const char* step : {"#10\"", "#11\"", "#12\"", "#13\""}) EXPECT_THAT(trace, HasSubstr(step));
  EXPECT_EQ(trace.find("#14\""), std::string::npos);

  EXPECT_THAT(trace, HasSubstr("\"[memory]\""));

  output_of(kSmall + words("--graph --steps 8 --trace graph.json"));
  EXPECT_THAT(broken_rules(text("graph.json")), IsEmpty());
}

/// The steps recorded so far show what a run was doing when it diverged.
TEST_F(Training, ThatDivergesWritesTheTraceOfTheStepsBefore) {
  const Arguments diverges = kSmall + words("--steps 20 --lr 1e30");
  const auto result = run(diverges + words("--profile-steps 0:5 --trace t.json"));
  EXPECT_THAT(
      result,
      Fails(76, ContainsRegex("^mlp_single: note: 't.json' holds the profiled steps before that: 0 "
                              "to 0\nmlp_single: error: training diverged: ")));
  const std::string trace = text("t.json");
  EXPECT_THAT(broken_rules(trace), IsEmpty());
  EXPECT_THAT(trace, HasSubstr("ProfilerStep#0\""));
  EXPECT_EQ(trace.find("ProfilerStep#1\""), std::string::npos);

  const auto too_early = run(diverges + Arguments{"--trace", "none.json"});
  EXPECT_THAT(
      too_early,
      Fails(76, ContainsRegex("^mlp_single: note: no profiled step was done, so 'none.json' is not "
                              "written\nmlp_single: error: training diverged: ")));
  EXPECT_FALSE(std::filesystem::exists(folder() / "none.json"));
  EXPECT_THAT(run(diverges).err, ContainsRegex("^mlp_single: error: "));
}

/// The run itself is not lost: its summary is printed and its weights are saved first.
TEST_F(Training, WithAFullDiskSaysSoOfTheTraceBehindItsSummaryAndItsWeights) {
  std::filesystem::create_symlink("/dev/full", folder() / "full.json");
  const auto result =
      run(kSmall + words("--steps 20 --trace full.json --save weights.safetensors"));
  EXPECT_THAT(
      result,
      Fails(74,
            "mlp_single: error: output file 'full.json': writing failed: No space left on device; "
            "free space or choose another disk\n"));
  EXPECT_THAT(result.out, HasSubstr("\nSummary of 15 steps after 5 of warm-up, "));
  EXPECT_TRUE(std::filesystem::exists(folder() / "weights.safetensors"));
}

/// A step of this model has 40 nodes, and there is room for 2^18 records of each kind.
TEST_F(Training, OfTenThousandProfiledStepsSaysForWhichThereWasNoRoom) {
  const std::string out =
      output_of(words("--dim 4 --depth 7 --batch-size 4 --threads 1 --gemm reference --steps 10010 "
                      "--log-every 20000 --profile --profile-steps 5:10005"));
  const auto said = first_match(out,
                                "There was no room for ([0-9]+) of the records, so this shows only "
                                "the first ([0-9]+) of these steps\\.\n");
  ASSERT_FALSE(said.empty()) << out;
  EXPECT_GT(std::stoll(said[1]), 0);
  EXPECT_GT(std::stoll(said[2]), 5000);
  EXPECT_LT(std::stoll(said[2]), 10000);
  EXPECT_THAT(out, HasSubstr("Account of a profiled step, mean of " + said[2] + "\n"));
}

TEST_F(Training, WatchedByAMonitorHasTheSameLosses) {
  const Arguments some = kSmall + words("--steps 30 --log-every 10");
  output_of(some + Arguments{"--metrics", "plain.jsonl"});
  const std::string out = output_of(some + words("--monitor --metrics watched.jsonl --delay-ms 10 "
                                                 "--profile-steps 5:30 --trace watched.json"));
  EXPECT_THAT(out, ContainsRegex("\n# monitor  seconds  busy %.*MHz\n  host +[0-9]+\\.[0-9] +"));
  EXPECT_THAT(out, ContainsRegex("\nMonitor, [0-9]+ readings in [0-9.]+ s after warm-up\n"));
  EXPECT_THAT(out, ContainsRegex("\n  host  resident MiB +[1-9]"));

  std::vector<double> watched;
  std::vector<nlohmann::json> seen;
  for (const nlohmann::json& record : records("watched.jsonl")) {
    if (record.contains("loss")) {
      watched.push_back(record.at("loss"));
    } else {
      seen.push_back(record);
    }
  }
  EXPECT_EQ(watched, losses("plain.jsonl"));
  ASSERT_GE(seen.size(), 3U);
  EXPECT_EQ(seen[0].at("monitor"), "host");
  EXPECT_GT(seen[0].at("resident_mib"), 1);
  EXPECT_EQ(seen.back().at("monitor_summary"), "host");
  EXPECT_TRUE(seen.back().at("energy_j").is_null());

  const std::string trace = text("watched.json");
  EXPECT_THAT(broken_rules(trace), IsEmpty());
  EXPECT_THAT(trace, HasSubstr(R"({"ph":"C","name":"host busy_percent")"));
}

/// PyTorch reaches 96.2 and 96.3 % in five epochs; under a sanitizer there is only time for one.
TEST_F(Training, OfMnistReachesTheAccuracyOfPyTorch) {
  const std::string out =
      output_of(mnist_in(BARESTEP_TEST_DATA) +
                words("--layers 784,512,512,10 --no-last-relu --loss cross-entropy --batch-size "
                      "64 --test-split 0.2 --log-every 1000 --epochs") +
                Arguments{std::to_string(EPOCHS)});
  const auto accuracy = first_match(out, R"(\nTest accuracy: (\d+\.\d\d)%\n\nWeights: )");
  ASSERT_FALSE(accuracy.empty()) << out;
  EXPECT_GE(std::stod(accuracy[1]), EPOCHS == 5 ? 95.5 : 90);
  EXPECT_THAT(out, HasSubstr("Linear 784 - 512 - 512 - 10, 669,706 parameters, batch 64, 8,000 "
                             "training and 2,000 test samples"));
  EXPECT_THAT(out, HasSubstr("\nStep 000 | "));
  EXPECT_THAT(out, HasSubstr(EPOCHS == 5 ? "\nStep 624 | " : "\nStep 124 | "))
      << "the last step is always shown";
  EXPECT_THAT(out, Not(HasSubstr("\nStep 001 | ")));
  EXPECT_THAT(out,
              HasSubstr(EPOCHS == 5 ? "\nEpoch 5/5 | Test loss: " : "\nEpoch 1/1 | Test loss: "));
}

TEST_F(Training, PrintsAStepLineAStepAndTheSummary) {
  const std::string out = output_of(kSmall + words("--steps 3 --warmup 1"));
  const std::string line =
      R"(\| Step time: [0-9.]+s \| Throughput: [0-9.]+ samples/sec \| Loss: [0-9]\.[0-9]{6})";
  EXPECT_THAT(out, ContainsRegex("\nStep 00 " + line + " \\| warm-up\n"));
  EXPECT_THAT(out, ContainsRegex("\nStep 01 " + line + "\n"));
  EXPECT_THAT(out, ContainsRegex("\nStep 02 " + line + "\n"));
  EXPECT_THAT(out, HasSubstr("\nSummary of 2 steps after 1 of warm-up, cpu: "));
  for (const char* row : {"  data wait ", "  forward ", "  loss ", "  backward ", "  optimizer ",
                          "  idle ", "  host ", "  wall time "}) {
    EXPECT_THAT(out, HasSubstr(std::string("\n") + row));
  }
  EXPECT_THAT(out, HasSubstr("gradients"));
  EXPECT_FALSE(out.ends_with("\n\n"));
}

TEST_F(Training, PlansTheCoursesModelInNoTime) {
  const Arguments plan = words("--plan --dim 8192 --depth 6 --update separate");
  const std::string out = output_of(plan);
  EXPECT_THAT(out, HasSubstr("402,702,336 parameters\n"));
  // 6 x (8192 x 8192 + 8192) numbers of 4 bytes, all multiples of 64 bytes.
  const std::string weights = "1,610,809,344";
  EXPECT_THAT(out, ContainsRegex("parameters +" + weights));
  EXPECT_THAT(out, ContainsRegex("gradients +" + weights));
  EXPECT_THAT(out, ContainsRegex("optimizer +3,221,61[0-9],[0-9]{3}"));
  // 12 buffers of 64 x 8192 numbers; x and y twice.
  EXPECT_THAT(out, ContainsRegex("activations +16,777,216"));
  EXPECT_THAT(out, ContainsRegex("data +8,39[0-9],[0-9]{3}"));
  repeat_while_busy([&] {
    const auto begin = std::chrono::steady_clock::now();
    output_of(plan);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 1);
  });
}

/// The plan with fewer segments than the suggested number does not fit.
TEST_F(Training, NamesTheCheapestSegmentsThatFitTheMemory) {
  const Arguments deep = words("--plan --dim 1024 --depth 64 --batch-size 16384");
  const auto with = [&](const char* segments, const char* memory) {
    return run(deep + Arguments{"--recompute", segments, "--memory", memory});
  };
  EXPECT_THAT(output_of(deep + words("--recompute auto --memory 10GiB")),
              StartsWith("--recompute 1 fits 10.00 GiB: nothing need be recomputed\n"
                         "\n"
                         "67,174,400 parameters\n"
                         "--update auto takes separate: --recompute discards activations\n"
                         "\n"
                         "Memory plan"));
  const std::string out = with("auto", "4GiB").out;
  EXPECT_THAT(out, StartsWith("--recompute 24 is the cheapest that fits 4.00 GiB\n\n"));
  EXPECT_THAT(out, HasSubstr("\nRecomputation in 24 segments (calculated)\n"));
  EXPECT_EQ(with("24", "4GiB").exit_code, 0);
  EXPECT_EQ(with("23", "4GiB").exit_code, 71);
  const auto none = with("auto", "2GiB");
  EXPECT_THAT(none,
              Fails(71, HasSubstr("error: too little memory: needs 2.31 GiB, the device that "
                                  "--memory states has 2.00 GiB free; --batch-size 8192 fits")));
}

TEST_F(Training, AccountsForWhatItRecomputes) {
  const Arguments deep = words("--dim 16 --depth 6 --batch-size 8 --steps 9");
  output_of(deep + Arguments{"--metrics", "none.jsonl"});
  const std::string out =
      output_of(deep + words("--recompute 2 --metrics two.jsonl --profile --trace t.json"));
  EXPECT_EQ(losses("two.jsonl"), losses("none.jsonl"));
  for (const nlohmann::json& record : records("two.jsonl")) {
    EXPECT_GT(record.at("phases_s").at("recompute"), 0);
  }
  for (const nlohmann::json& record : records("none.jsonl")) {
    EXPECT_EQ(record.at("phases_s").at("recompute"), 0);
  }
  EXPECT_THAT(out, ContainsRegex("\n  recompute +[0-9.]+ ms +[0-9.]+ %\n"));
  EXPECT_THAT(out, ContainsRegex("\n +recompute +[0-9.]+% ")) << "a row by phase";
  const std::string trace = text("t.json");
  EXPECT_THAT(broken_rules(trace), IsEmpty());
  EXPECT_THAT(trace, ContainsRegex("\"name\": ?\"recompute\""));
}

TEST_F(Training, PlanNeedsNoDevice) {
  EXPECT_THAT(output_of({"--plan", "--device", "cuda:63"}), HasSubstr("402,702,336 parameters\n"));
}

TEST_F(Training, ExplainsAStep) {
  const std::string out = output_of(kSmall + Arguments{"--explain", "--update", "separate"});
  for (const char* word : {"randn", "gemm", "mse_loss", "relu_grad", "sum_rows", "adam"}) {
    EXPECT_THAT(out, HasSubstr(word));
  }
  const std::string both = output_of(kSmall + words("--plan --explain --update separate"));
  EXPECT_TRUE(both.ends_with(out));
  EXPECT_THAT(both, HasSubstr("544 parameters\n"));
}

/// Includes everything that the device and the defaults decided.
TEST_F(Training, BeginsMetricsWithTheConfigurationOfTheRun) {
  output_of(kSmall + words("--steps 3 --optimizer adamw --metrics m.jsonl"));
  const nlohmann::json all = configuration_of(text("m.jsonl"));
  EXPECT_EQ(all.at("steps"), 3);
  EXPECT_EQ(all.at("warmup"), 2);
  EXPECT_EQ(all.at("optimizer"), "adamw");
  EXPECT_EQ(all.at("weight-decay"), 0.01);
  EXPECT_EQ(all.at("device"), "cpu");
  EXPECT_EQ(all.at("seed"), 0);
  EXPECT_EQ(all.at("graph"), false);
  EXPECT_GE(all.at("threads"), 1);
}

TEST_F(Training, TakesAFileOfMetricsAsItsConfiguration) {
  const std::vector<Arguments> runs = {
      {"--optimizer", "sgd", "--momentum", "0.9", "--lr-schedule", "cosine"},
      {"--optimizer", "lion", "--batch-size", "4", "--graph", "--update", "separate"},
      {"--precision", "bf16", "--dropout", "0.5", "--accumulate", "2", "--log-every", "2"}};
  for (const Arguments& more : runs) {
    SCOPED_TRACE(::testing::PrintToString(more));
    output_of(words("--dim 16 --depth 2 --steps 5") + more + Arguments{"--metrics", "a"});
    const ProcessResult again = execute({MLP_SINGLE, "--config", "a", "--metrics", "b"});
    EXPECT_EQ(again.err, "mlp_single: note: the command line overrides the config file: metrics\n");
    EXPECT_EQ(losses("b"), losses("a"));
    EXPECT_EQ(losses("b").size(), 5U);
    EXPECT_EQ(configuration_of(text("b")).at("threads"), configuration_of(text("a")).at("threads"));
  }
  const ProcessResult over = execute({MLP_SINGLE, "--config", "a"});
  EXPECT_THAT(
      over,
      Fails(78,
            "mlp_single: error: --metrics 'a': --config reads this file, which would be lost; "
            "write to another one\n"));
  // Places in messages are those of the file.
  file("bad", "{\"configuration\":{\"dim\":16,\"lr\":true}}\n{\"step\":0}\n");
  EXPECT_THAT(execute({MLP_SINGLE, "--config", "bad"}).err,
              HasSubstr("bad:1:28: lr: true where a number should be"));
}

TEST_F(Training, TakesItsThreadsFromTheEnvironment) {
  const auto output = [&](Arguments variables, const Arguments& more = {}) {
    variables.insert(variables.begin(), {"/usr/bin/env", "-u", "OMP_NUM_THREADS"});
    return execute(variables + Arguments{MLP_SINGLE} + words("--device cpu --dim 8 --steps 1") +
                   more)
        .out;
  };
  const auto sets = [](const std::string& variable, int threads) {
    return HasSubstr(fmt::format("\n{} sets --threads {}\n", variable, threads));
  };
  EXPECT_THAT(output({"OMP_NUM_THREADS=1,2"}),
              ContainsRegex("1 threads?, products by .*\nOMP_NUM_THREADS sets --threads 1\n"));
  EXPECT_THAT(output({"OMP_NUM_THREADS=3", "OMP_THREAD_LIMIT=2", "SLURM_CPUS_PER_TASK=1"}),
              sets("OMP_THREAD_LIMIT", 2));
  if (usable_cpus() > 1) {
    EXPECT_THAT(output({"OMP_THREAD_LIMIT=1"}), sets("OMP_THREAD_LIMIT", 1));
    EXPECT_THAT(output({"SLURM_CPUS_PER_TASK=1"}), sets("SLURM_CPUS_PER_TASK", 1));
  }
  for (const Arguments& none : {Arguments{"OMP_THREAD_LIMIT=1000", "SLURM_CPUS_PER_TASK=1000"},
                                Arguments{"SLURM_CPUS_PER_TASK=two"}}) {
    EXPECT_THAT(output(none), Not(HasSubstr(" sets --threads")));
  }
  const std::string given = output({"OMP_NUM_THREADS=1"}, {"--threads", "2"});
  EXPECT_THAT(given, HasSubstr("2 threads"));
  EXPECT_THAT(given, Not(HasSubstr("OMP_NUM_THREADS")));
}

/// Samples of two classes, of which one feature is far beyond fp16.
TEST_F(Training, InFp16OfLargeSamplesNamesThemNotTheLearningRate) {
  std::vector<float> x;
  for (int i = 0; i < 16; ++i)
    x.insert(x.end(), {static_cast<float>(i % 2), 1e5F * static_cast<float>(i)});
  file("x", idx_bytes<float>(0x0D, {16, 2}, x));
  file("y", idx_bytes<std::uint8_t>(0x08, {16}, std::vector<std::uint8_t>(16, 1)));
  const Arguments command = words(
      "--data idx:x,y --layers 2,4,3 --loss cross-entropy --no-last-relu --batch-size 16 --epochs "
      "60 --precision fp16");
  const std::string why =
      "the samples reach 1500000, and fp16 ends at 65504: give --standardize, or use --precision "
      "bf16\n";
  for (const char* const scale : {"dynamic", "1024"}) {
    const ProcessResult result = run(command + Arguments{"--loss-scale", scale});
    EXPECT_THAT(result, Fails(76, EndsWith(why)));
    EXPECT_THAT(result.err, Not(HasSubstr("--lr")));
  }
  succeeded(run(command + Arguments{"--standardize"}));
}

TEST_F(Training, NotesOnceAnActivationAfterTheLastLayerOfAClassifier) {
  file("x", idx_bytes<float>(0x0D, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}));
  file("y", idx_bytes<std::uint8_t>(0x08, {4}, {0, 1, 0, 1}));
  const Arguments command = words("--data idx:x,y --steps 1 --batch-size 1,2");
  const auto note = [](const std::string& loss, const std::string& activation) {
    return "mlp_single: note: --loss " + loss +
           " takes the outputs of the last layer as scores, and here " + activation +
           " follows that layer; --no-last-relu leaves it out\n";
  };
  const Arguments classes = command + words("--layers 2,3 --loss cross-entropy");
  EXPECT_EQ(run(classes).err, note("cross-entropy", "relu"));
  EXPECT_EQ(run(classes + Arguments{"--no-last-relu"}).err, "");
  EXPECT_EQ(run(classes + Arguments{"--activation", "none"}).err, "");
  EXPECT_EQ(run(command + words("--layers 2,1 --loss bce --activation tanh")).err,
            note("bce", "tanh"));
}

TEST_F(Training, ShowsNoControlCharactersOfPaths) {
  const std::string name = "a\x1b[31m\nb";
  output_of(kSmall + Arguments{"--steps", "1", "--checkpoint", name});
  const ProcessResult result =
      run(kSmall + Arguments{"--steps", "2", "--checkpoint", name, "--resume"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err,
            "mlp_single: note: resumes from 'a?[31m b/step-000000001.safetensors' at step 1\n");
  EXPECT_THAT(result.out, HasSubstr("Wrote 1 checkpoint to 'a?[31m b', the newest"));
  const ProcessResult shown =
      execute({MLP_LAB, "checkpoint", name + "/step-000000002.safetensors"});
  EXPECT_THAT(shown.out, StartsWith("a?[31m b/step-000000002.safetensors\n"));
}

TEST_F(Training, WritesARecordOfEveryStepToMetrics) {
  output_of(kSmall + words("--steps 7 --log-every 5 --metrics m.jsonl"));
  const std::vector<nlohmann::json> all = records("m.jsonl");
  ASSERT_EQ(all.size(), 7U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].at("step"), i);
    EXPECT_EQ(all[i].at("rank"), 0);
    EXPECT_EQ(all[i].at("warmup"), i < 5);
    const double seconds = all[i].at("step_time_s");
    EXPECT_GT(seconds, 0);
    EXPECT_DOUBLE_EQ(all[i].at("samples_per_s").get<double>(), 8 / seconds);
    double sum = 0;
    for (const auto& [name, part] : all[i].at("phases_s").items()) sum += part.get<double>();
    EXPECT_NEAR(sum, seconds, 1e-9);
  }
  const std::vector<nlohmann::json> lost = lost_times_of(text("m.jsonl"));
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_GT(lost[0].at("wall_s"), 0);
  EXPECT_GE(lost[0].at("waited_s"), 0);
  EXPECT_LE(lost[0].at("waited_s"), lost[0].at("ready_s"));
}

TEST_F(Training, SavesNothingWhenItDiverges) {
  file("weights", "the last good ones");
  const ProcessResult result =
      run(kSmall + words("--lr 1e30 --steps 50 --save weights --metrics m"));
  EXPECT_THAT(
      result,
      Fails(76, ContainsRegex("^mlp_single: error: training diverged: the loss is (inf|nan) at "
                              "step [0-9]+, it was [0-9.e+]+ at step [0-9]+; use a smaller --lr "
                              "\\(it is 1e\\+30\\)\n$")));
  EXPECT_EQ(text("weights"), "the last good ones");
  const auto steps = records("m").size();
  EXPECT_THAT(result.err, HasSubstr(" at step " + std::to_string(steps) + ", it was"));
  EXPECT_THAT(result.out, Not(HasSubstr("Summary")));
}

TEST_F(Training, SavesNothingWhenItsLastUpdateDiverges) {
  const ProcessResult result = run(kSmall + words("--lr 1e38 --steps 1 --save weights"));
  EXPECT_THAT(result, Fails(76, HasSubstr("error: weights 'weights': net.0.weight holds ")));
  EXPECT_TRUE(names().empty());
}

/// Everything that needs no device is checked before a device is opened: on a machine without this
/// GPU, other mistakes are reported first.
TEST_F(Training, ChecksEverythingElseBeforeTheDevice) {
  const Arguments gpu = words("--device cuda:63 --dim 8 --depth 1");
  const ProcessResult missing = run(gpu);
  EXPECT_THAT(missing, Fails(69, StartsWith("mlp_single: error: device 'cuda:63': ")));
  EXPECT_EQ(run(gpu + Arguments{"--save", "none/weights"}).exit_code, 73);
  EXPECT_EQ(run(gpu + Arguments{"--metrics", "."}).exit_code, 73);
  EXPECT_EQ(run(gpu + Arguments{"--load", "none"}).exit_code, 66);
  EXPECT_EQ(run(gpu + Arguments{"--memory", "1KiB"}).exit_code, 71);
  EXPECT_EQ(run(gpu + words("--steps 2 --warmup 2")).exit_code, 78);
  EXPECT_EQ(run({"--device", "cuda:63", "--data", "idx:none,none"}).exit_code, 66);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace barestep
