// The real mlp_lab, with the real trainers.
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <regex>

#include "apps/bad_input.h"
#include "lab/child.h"
#include "lab/json_schema.h"
#include "lab/study/experiment.h"
#include "lab/study/run_workload.h"
#include "lab/study/start.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

class MlpLab : public ProgramTest {
 protected:
  ProcessResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MLP_LAB);
    return execute(arguments);
  }

  /// Of a measurement as short as can be.
  ProcessResult measured(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--quick", "--starts", "1", "--device", "cpu", "--card", card()});
    return succeeded(run(arguments));
  }

  /// The content of a JSON file, which has the schema of results.
  [[nodiscard]] json results(const std::string& name) const {
    const json schema = json::parse(read_file(BARESTEP_SCHEMA));
    json read = json::parse(text(name));
    EXPECT_EQ(schema_violation(read, schema, schema), "");
    return read;
  }

  /// A card that was not measured, which saves time.
  std::string card() {
    return file("card.json",
                R"({"name": "made up", "kind": "cpu", "others_share": 0,
                    "device": {"flops_per_s": {"value": 1e11, "source": "made up"},
                               "memory_bytes_per_s": {"value": 1e10, "source": "made up"},
                               "launch_s": {"value": 1e-6, "source": "made up"},
                               "host_s": {"value": 1e-5, "source": "made up"}},
                    "node": {"devices": 2, "latency_s": {"value": 0, "source": "made up"},
                             "hop_s": {"value": 0, "source": "made up"}}})")
        .string();
  }
};

/// The options of a command of mlp_lab, by its --help, each with the values that it offers.
std::map<std::string, std::vector<std::string>> offered_by(const std::string& help) {
  std::map<std::string, std::vector<std::string>> options;
  const std::regex option("\n  (--[a-z-]+)( [^ ]+)?");
  for (std::sregex_iterator each(help.begin(), help.end(), option), last; each != last; ++each) {
    std::vector<std::string>& values = options[(*each)[1]];
    std::istringstream offered((*each)[2]);
    offered >> std::ws;
    for (std::string value; std::getline(offered, value, '|');) values.push_back(value);
  }
  return options;
}

/// The numbers and sentences: what stands under the title, which repeats the options.
std::string simulated(const std::string& out) {
  return std::regex_replace(out, std::regex("[^\n]*Simulated: [a-z0-9-]+, [^\n]*, on [^\n]*\n"),
                            "");
}

TEST_F(MlpLab, PredictHearsEveryOption) {
  const std::vector<std::string> base = {"predict", "--machine", "h100-infiniband", "--ranks",
                                         "1,2,4"};
  const std::map<std::string, std::vector<std::string>> with = {
      {"--heads", {"--block", "transformer", "--dim", "512"}},
      {"--length", {"--block", "transformer", "--dim", "512"}},
      {"--ffn", {"--block", "transformer", "--dim", "512"}},
      {"--causal", {"--block", "transformer", "--dim", "512"}},
      {"--attention", {"--block", "transformer", "--dim", "512"}},
      {"--schedule", {"--pipeline", "2"}},
      {"--micro-batches", {"--pipeline", "2"}}};
  const std::map<std::string, std::string> others = {
      {"--dim", "1000"},   {"--depth", "3"},         {"--heads", "4"},     {"--length", "16"},
      {"--ffn", "96"},     {"--batch-size", "128"},  {"--recompute", "2"}, {"--tensor", "2"},
      {"--pipeline", "2"}, {"--micro-batches", "4"}, {"--delay-ms", "10"}, {"--slow-rank", "1:20"}};
  // Of what else the trainers take, most changes no time: the title names it.
  const std::set<std::string> choices = {"--activation", "--attention", "--batch-per-rank",
                                         "--causal",     "--precision", "--schedule",
                                         "--scheme"};
  for (const auto& [option, offered] : offered_by(run({"predict", "--help"}).out)) {
    if (!others.contains(option) && !choices.contains(option)) continue;
    const bool has_choices = offered.size() > 1;
    std::vector<std::string> values = has_choices ? offered : std::vector<std::string>{""};
    if (offered.size() == 1) {
      ASSERT_TRUE(others.contains(option)) << option;
      values = {others.at(option)};
    }
    std::vector<std::string> asked = base;
    if (with.contains(option)) {
      // Alone it means nothing.
      std::vector<std::string> alone = base;
      alone.push_back(option);
      if (!values.back().empty()) alone.push_back(values.back());
      EXPECT_NE(run(alone).exit_code, 0) << option;
      asked.insert(asked.end(), with.at(option).begin(), with.at(option).end());
    }
    std::set<std::string> answers;
    const std::string before = simulated(run(asked).out);
    for (const std::string& value : values) {
      std::vector<std::string> all = asked;
      all.push_back(option);
      if (!value.empty()) all.push_back(value);
      const ProcessResult result = run(all);
      if (result.exit_code != 0) {
        EXPECT_THAT(result.err, HasSubstr("--")) << option << " " << value;
        continue;
      }
      // Some activations are the same work, but the title names them.
      const std::string answer = option == "--activation" ? result.out : simulated(result.out);
      EXPECT_TRUE(answers.insert(answer).second) << option << " " << value << " is not heard";
      if (!has_choices) EXPECT_NE(answer, before) << option << " is not heard";
    }
  }
}

TEST_F(MlpLab, ListsTheExperimentsOfTheCourse) {
  const ProcessResult list = succeeded(run({"list"}));
  for (const Experiment& each : experiments()) {
    EXPECT_THAT(list.out, HasSubstr("\n" + std::string(each.name) + " "));
  }
}

TEST_F(MlpLab, ExaminesThisMachine) {
  const ProcessResult result = succeeded(run({"doctor"}));
  for (const char* what : {"cores", "memory", "GPUs", "MPI", "hwloc", "/dev/shm", "open files",
                           "huge pages", "frequency governor", "clock source", "PDF"}) {
    EXPECT_THAT(result.out, ContainsRegex("(ok     |limited|missing)  " + std::string(what) + " "));
  }
}

TEST_F(MlpLab, ChecksSchedules) {
  file("built-in.json", run({"check-schedule", "--write", "gpipe", "--stages", "3"}).out);
  const ProcessResult built_in = succeeded(run({"check-schedule", "built-in.json"}));
  EXPECT_THAT(built_in.out, HasSubstr("No stage waits forever, and none reads what is not there."));
  file("mine.json", R"({"micro_batches": 1, "stages": [["B0", "F0"]]})");
  const ProcessResult mine = run({"check-schedule", "mine.json"});
  EXPECT_THAT(mine.out, HasSubstr("stage 0: B0 runs before F0\n"));
  EXPECT_THAT(mine, Fails(65,
                          "mlp_lab: error: schedule 'mine.json': 1 fault, the first: stage 0: "
                          "B0 runs before F0; the output shows where stages stand\n"));
}

TEST_F(MlpLab, ShowsTheExamplesOfACommandInItsHelp) {
  const std::string all = run({"--help"}).out;
  EXPECT_THAT(all, HasSubstr("  mlp_lab list\n"));
  EXPECT_THAT(all, HasSubstr("  mlp_lab report scaling\n"));
  EXPECT_THAT(run({"report", "--help"}).out, EndsWith("\n\nExamples:\n  mlp_lab report scaling\n"));
}

TEST_F(MlpLab, RunsExperimentsOnceAndReportsOnThem) {
  std::vector<std::string> command = {"run", "batch-sweep", "reproducibility", "--output",
                                      "lab", "--quick",     "--device",        "cpu"};
  // The next test measures a card as well, and measuring sanitized rates once takes long enough.
  if (kAddressSanitized) command.insert(command.end(), {"--card", card()});
  const ProcessResult first = succeeded(run(command));
  EXPECT_THAT(first.out, AnyOf(HasSubstr("rom batch 32 to 128 (4x) a step takes "),
                               HasSubstr("INVALID. No conclusion: ")))
      << "the machine may be busy";
  EXPECT_THAT(first.out, HasSubstr("The same seed repeats to the bit: 12 runs"));
  EXPECT_THAT(first.out, HasSubstr("Report: lab/report.html\n"));
  EXPECT_EQ(first.err.find("rates of 1 rank") == std::string::npos, kAddressSanitized);
  EXPECT_EQ(first.err.starts_with("mlp_lab: note: 45 starts are planned; the machine's rates, "
                                  "measured first, tell how long they take\n"),
            !kAddressSanitized);
  EXPECT_THAT(first.err, HasSubstr("[0/45] batch-sweep: batch-32, start 1 of 9\n"));
  EXPECT_THAT(first.err, HasSubstr(" s left\n"));
  const json made = results("lab/results.json");
  const std::string report = text("lab/report.md");
  const bool is_quiet = first.out.find("INVALID") == std::string::npos &&
                        report.find("(uncertain by more than half)") == std::string::npos;
  // Batch 64 is in both experiments, twice in one of them.
  if (is_quiet) EXPECT_EQ(made.at("prediction").at("runs"), 4);
  const json& configuration = made.at("experiments")[0].at("cases")[0].at("configuration");
  EXPECT_EQ(configuration.at("batch-size"), 32);
  EXPECT_EQ(configuration.at("optimizer"), "adam");
  EXPECT_EQ(configuration.at("warmup"), 5);
  const auto is_there = [&](const char* name) {
    return std::filesystem::exists(folder() / "lab" / name);
  };
  for (const char* name :
       {"machine.json", "report.html", "report.md", "results.csv", "plots/batch-sweep-1.svg"}) {
    EXPECT_TRUE(is_there(name)) << name;
  }
  if (is_quiet) EXPECT_TRUE(is_there("plots/prediction-1.svg"));

  // Where other programs disturbed its starts, they are made again.
  const ProcessResult again = succeeded(run(command));
  if (is_quiet) EXPECT_EQ(again.out, first.out);
  if (is_quiet) EXPECT_EQ(again.err, "");
  EXPECT_EQ(run({"report", "lab"}).out, "Report: lab/report.html\n");

  // Nobody reads the output, but the report is still written.
  std::filesystem::remove(folder() / "lab/report.html");
  const ProcessResult unread =
      run_process({MLP_LAB, "report", "lab"},
                  {.stdout_to = ProcessOptions::Stdout::kNoReader, .working_directory = folder()});
  EXPECT_THAT(unread, Fails(74, HasSubstr("mlp_lab: error: standard output: Broken pipe; ")));
  EXPECT_TRUE(std::filesystem::exists(folder() / "lab/report.html"));
}

/// The trainers it starts are in groups of their own, which no terminal ends.
TEST_F(MlpLab, EndsItsTrainersWithTheTerminalAndTheJob) {
  for (const char* const signal : {"HUP", "USR2", "XCPU"}) {
    const ProcessResult ended = run_process(
        {"/usr/bin/env", "--default-signal=HUP", "/bin/bash", "-c",
         "set -m; \"$0\" run warmup --device cpu --quick --output s$2 --card \"$1\" & "
         "until pgrep -P $! mlp_ || ! kill -0 $!; do sleep 0.01; done; kill -$2 $!; wait $!",
         MLP_LAB, card(), signal},
        {.working_directory = folder()});
    EXPECT_THAT(ended, Fails(75, HasSubstr("error: study: it was interrupted; ")));
  }
}

TEST_F(MlpLab, ProfilesByTheTracesOfARun) {
  const ProcessResult result = measured({"run", "profile"});
  EXPECT_THAT(result.out, HasSubstr("The longest ops of a step\n"));
  EXPECT_THAT(result.out, HasSubstr("gemm, backward of net.2"));
  EXPECT_THAT(
      result.out,
      ContainsRegex("INVALID. No conclusion: 1 (round was made, a 95 % interval needs 6; run "
                    "it again with --starts 6|of 1 start of profiled lost more)"));
}

TEST_F(MlpLab, CalculatesWithoutARunOrACard) {
  const ProcessResult result =
      succeeded(run({"run", "rounding", "--quick", "--device", "cpu", "--output", "lab"}));
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("  In bf16 the sum is 4: "));
  EXPECT_THAT(result.out, Not(HasSubstr("INVALID")));
  EXPECT_EQ(results("lab/results.json").at("experiments").size(), 1U) << "only what was asked for";
  EXPECT_THAT(text("lab/report.md"), ContainsRegex("A thousand small additions.* calculated "));
  EXPECT_FALSE(std::filesystem::exists(folder() / "lab/machine.json"));
}

TEST_F(MlpLab, MeasuresProductsByPrecisionAndThreads) {
  const ProcessResult result = measured({"run", "matmul", "matmul", "--dim", "64"});
  std::set<std::string> cases;
  for (const auto& start : all_matches(result.err, "matmul: ([^,]+), start 1 of 1")) {
    EXPECT_TRUE(cases.insert(start[1]).second) << start[1] << " is made twice";
  }
  EXPECT_THAT(result.out, HasSubstr("Products of layers 64 wide\n"));
  EXPECT_THAT(result.out, ContainsRegex("\n +64 +fp32 +1 +[0-9.]+ [GM]FLOP/s +[0-9.]+ [GM]FLOP/s"));
  EXPECT_THAT(result.out, ContainsRegex("\n +256 +bf16 +1 +[0-9.]+ [GMT]FLOP/s"));
}

/// The columns of nccl-tests' all_reduce_perf, and one of errors, by size.
TEST_F(MlpLab, PrintsATableOfAllReduces) {
  const ProcessResult threads = succeeded(run({"all-reduce", "--ranks", "3", "--steps", "2"}));
  EXPECT_THAT(threads.out, StartsWith("# 3 ranks, threads of one process, "));
  const std::string figures = " +float +avg +-1 +([0-9.]+) +([0-9.]+) +([0-9.]+) +([0-9.e-]+)\n";
  EXPECT_EQ(all_matches(threads.out, figures).size(), 24U) << "8 B to 64 MiB";
  const auto largest = first_match(threads.out, "\n +67108864 +16777216" + figures);
  ASSERT_FALSE(largest.empty()) << threads.out;
  const double time_us = std::stod(largest[1]), carried = std::stod(largest[2]);
  EXPECT_NEAR(carried, 67108864 / time_us * 1e-3, 0.01 + 0.01 * carried);
  EXPECT_NEAR(std::stod(largest[3]), 4.0 / 3 * carried, 0.02) << "2 (n - 1) / n of it";
  EXPECT_GT(std::stod(largest[4]), 1e-9) << "two additions, and a third is no binary number";
  EXPECT_LT(std::stod(largest[4]), 1e-7);
}

TEST_F(MlpLab, MeasuresAllReducesOfMpi) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  const ChildResult result = run_child({path_of_mpirun(), "-np", "2", MLP_LAB, "all-reduce",
                                        "--device", "cpu", "--bytes", "4KiB", "--steps", "2"},
                                       mpi_environment());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, MatchesRegex("# 2 ranks, MPI, [^\n]+\n#[^\n]+\n#[^\n]+\n +4096 +1024 "
                                       "+float +avg +-1 +[0-9. ]+ [1-9][.][0-9]e-08\n"));
}

TEST_F(MlpLab, WatchesTheMachineDuringARun) {
  const ProcessResult result = measured({"run", "monitor"});
  EXPECT_THAT(result.out, HasSubstr("memory grows with the batch is unclear: ")) << "of one start";
  EXPECT_THAT(result.out, HasSubstr(" MiB ("));
}

TEST_F(MlpLab, StartsRanksItself) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  const ProcessResult result = measured({"run", "imbalance"});
  EXPECT_THAT(result.out, HasSubstr("slow-rank-0     1"));
  const json start = json::parse(text("lab-results/runs/imbalance/slow-rank-0.0.json"));
  EXPECT_EQ(start.at("ranks").size(), 2U);
  EXPECT_TRUE(start.at("lost_share").is_number());
}

TEST_F(MlpLab, NamesLogsOfASheetThatAreOfNoCase) {
  file("sweep.md", "# Sweep\n\n| Time |\n| --- |\n| {{batch-sweep.batch-32.time}} |\n");
  std::filesystem::create_directories(folder() / "logs");
  for (const char* name : {"sweep.batch-32", "sweep.batch-64", "sweep.batch-128", "sweep-32"}) {
    write_file(folder() / fmt::format("logs/batch-{}.log", name),
               "Step 00 | Step time: 0.0100s\nStep 01 | Step time: 0.0100s\n");
  }
  const ProcessResult filled = succeeded(run({"sheet", "sweep.md", "--quick", "--figures", "--logs",
                                              "logs", "--device", "cpu", "--card", card()}));
  EXPECT_THAT(filled.err, HasSubstr("'batch-sweep-32.log' is not read: its name is that of no"));
  EXPECT_EQ(all_matches(filled.err, "is not read").size(), 1U) << filled.err;
}

TEST_F(MlpLab, RepeatsARunOfRanksToGradeIt) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  file("ranks.md", R"(---
vary: seed 1 to 1000
vary: dim 64 to 64
---
# Ranks

| Time |
| --- |
| {{strong-scaling.ranks-2.time}} |

**Is it so?**

{{amdahl.linear}}
)");
  file("names.csv", "Õie Ž\n");
  const ProcessResult made = succeeded(
      run({"class", "new", "ranks.md", "--students", "names.csv", "--quick", "--machine", card()}));
  const std::filesystem::path student = folder() / "class/students/Õie Ž";
  const auto measure = [&] {
    return succeeded(
        run_process({"sh", "run.sh", "--starts", "1", "--device", "cpu", "--card", card()},
                    {.working_directory = student, .variables = {"MLP_LAB=" MLP_LAB}}));
  };
  const ProcessResult measured = measure();
  const std::vector<std::string> planned =
      first_match(measured.err, "mlp_lab: note: ([0-9]+) starts are planned, about [1-5]0 s\n");
  ASSERT_FALSE(planned.empty()) << measured.err;
  std::ptrdiff_t made_starts = 0;
  for (const auto& each :
       std::filesystem::recursive_directory_iterator(student / "results" / "runs")) {
    made_starts += each.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(std::to_string(made_starts), planned[1]) << "with what only the answer needs";
  EXPECT_TRUE(std::filesystem::exists(student / "results/runs/amdahl"));
  const std::filesystem::path sheet = student / "results/ranks-figures.md";
  const std::string filled = read_file(sheet);
  std::string answered = filled;
  answered.replace(answered.find("\\_", answered.find("so?**")), 2, "It is.\n\n\\_");
  const std::size_t figure = answered.find("\n| ", answered.find("---")) + 3;
  write_file(sheet, std::string(answered).replace(figure, 1, "X"));
  measure();
  EXPECT_THAT(read_file(sheet), AllOf(HasSubstr("\n\nIt is.\n\n"), Not(HasSubstr("| X"))));
  EXPECT_THAT(read_file(student / "results/ranks-figures-1.md"), HasSubstr("| X"));
  for (const std::string& variable : {std::string("A=B"), std::string("PATH=/nowhere")}) {
    const ProcessResult graded = succeeded(run_process(
        {MLP_LAB, "class", "grade", "class", "class/students", "--rerun", "--machine", card()},
        {.working_directory = folder(), .variables = {variable}}));
    const std::string page = text("class/grades/students/Õie Ž.md");
    EXPECT_THAT(page, HasSubstr("| identity | 2 of 2 | Options, seed and hashes of the records "
                                "are those of the variant, and all starts of a case have the "
                                "same losses, and another run "))
        << variable;
    EXPECT_THAT(page, Not(HasSubstr("another variant"))) << variable;
  }
}

TEST_F(MlpLab, PredictsWhatChangesGainAndMakesThem) {
  // A pause of 5 ms in steps of some 100 us: predicted to gain, however busy the machine is.
  const std::vector<std::string> command = {
      "mlp_single", "--device", "cpu",     "--threads", "1",          "--dim", "32",
      "--depth",    "2",        "--steps", "8",         "--delay-ms", "5"};
  std::vector<std::string> asked = {"what-if", "--card", card(), "--starts", "1"};
  asked.insert(asked.end(), command.begin(), command.end());
  const ProcessResult predicted = succeeded(run(asked));
  EXPECT_THAT(predicted.out, AllOf(ContainsRegex("\n    --delay-ms 0 +[0-9]"),
                                   ContainsRegex("\n    --batch-size 128 +[0-9]"),
                                   ContainsRegex("\n    the injected delay +[0-9]"),
                                   Not(HasSubstr("measured gain")), Not(HasSubstr("Report"))));
  EXPECT_THAT(names(), UnorderedElementsAre("card.json")) << "nothing is kept";
  asked.insert(asked.begin() + 1, {"--check", "--output", "kept"});
  const ProcessResult checked = succeeded(run(asked));
  EXPECT_THAT(checked.out,
              AllOf(HasSubstr("measured gain"), HasSubstr("Report: kept/report.html\n")));
  const json schema = json::parse(read_file(BARESTEP_SCHEMA));
  const json results = json::parse(text("kept/results.json"));
  EXPECT_EQ(schema_violation(results, schema, schema), "");
  const json& section = results.at("experiments").at(0);
  EXPECT_EQ(section.at("command"),
            "mlp_lab what-if --check mlp_single --dim 32 --depth 2 --steps 8 --device cpu "
            "--threads 1 --delay-ms 5");
  const json& gains = section.at("gains");
  EXPECT_EQ(section.at("cases").size(), gains.size() + 1);
  const auto is_pause = [](const json& gain) { return gain.at("case") == "no-delay"; };
  const auto pause = std::ranges::find_if(gains, is_pause);
  ASSERT_NE(pause, gains.end());
  EXPECT_GT(pause->at("gain").at("median"), 1);
  EXPECT_EQ(pause->at("made_from"), "measured spans");
  EXPECT_TRUE(pause->at("measured_gain").at("median").is_number());
  succeeded(run({"report", "kept"}));
  EXPECT_EQ(run({"what-if", "mlp_single", "--version"}).out.substr(0, 10), "mlp_single");
}

TEST_F(MlpLab, AsksWhatRanksWouldGain) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  const ProcessResult result = succeeded(run(
      {"what-if", "--card", card(), "--starts", "1", "mpirun", "-np", "2", "build/mlp_ddp",
       "--device", "cpu", "--dim", "32", "--depth", "2", "--steps", "8", "--slow-rank", "1:5"}));
  EXPECT_THAT(result.out, AllOf(ContainsRegex("\n    --slow-rank 1:0 +[0-9]"),
                                ContainsRegex("\n    --scheme factor +[0-9]"),
                                HasSubstr("Refused: --update 'fused': ")));
}

TEST_F(MlpLab, ComparesWithPyTorchOnTheSameDevice) {
  if (!HAS_MPI) GTEST_SKIP() << "built without MPI";
  const std::string python = "/usr/bin/python3";
  if (run_process({python, "-c", "import torch"}).exit_code != 0) {
    GTEST_SKIP() << python << " has no PyTorch (Debian: python3-torch)";
  }
  const ProcessResult result =
      succeeded(execute({MLP_LAB, "run", "pytorch", "--python", python, "--quick", "--starts", "1",
                         "--device", "cpu", "--card", card()}));
  EXPECT_THAT(result.out, HasSubstr("    one device "));
  EXPECT_THAT(result.out, HasSubstr("    DDP on two ranks "));
  EXPECT_THAT(result.out, HasSubstr("their losses agree step by step."));
  EXPECT_THAT(result.out, HasSubstr("The other side is PyTorch "));
}

TEST_F(MlpLab, CalculatesAmdahlsLaw) {
  const ProcessResult result = succeeded(run({"amdahl", "--serial", "0.1", "--ranks", "1,4"}));
  EXPECT_EQ(result.out,
            "Calculated, by Amdahl's law: speed-up = 1 / (s + (1 - s) / n), where s, the serial "
            "share, is 10 %.\n"
            "  ranks  speed-up  efficiency\n"
            "      1     1.00x     100.0 %\n"
            "      4     3.08x      76.9 %\n"
            "However many ranks there are, it is less than 10.00x.\n");
  EXPECT_THAT(run({"amdahl", "--serial", "0"}).out, HasSubstr("More ranks are always faster."));
}

TEST_F(MlpLab, RefusesBadInputInOneLineBeforeItMeasuresOrWrites) {
  std::filesystem::create_symlink(MLP_LAB, folder() / "link");
  std::filesystem::create_hard_link(file("run.json", ""), folder() / "twin.json");
  ASSERT_EQ(::mkfifo((folder() / "fifo.json").c_str(), 0600), 0);
  expect_refused(bad_inputs("The lab (mlp_lab)"), folder(),
                 [this](const BadInput& bad) { return execute(command_of(MLP_LAB, bad)); });
  EXPECT_THAT(names(), UnorderedElementsAre("link", "fifo.json", "run.json", "twin.json",
                                            "lab-results", "pair"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "lab-results" / "machine.json"));
}

TEST_F(MlpLab, MeasuresNothingForABlankSheet) {
  const ProcessResult blank = succeeded(run({"sheet", "homework1", "--blank"}));
  EXPECT_EQ(blank.err, "");
  EXPECT_THAT(blank.out, HasSubstr("| 4 |  |  |  |  |\n"));
  EXPECT_THAT(blank.out, ContainsRegex("\nCost: [0-9]+ starts, about [0-9]+ minutes on 8 x H200, "
                                       "NVLink .simulated.[.] mlp_lab says "));
  EXPECT_THAT(blank.out, EndsWith("Sheet: ./homework1-blank.md\n"));
  EXPECT_THAT(names(), UnorderedElementsAre("homework1-blank.md", "homework1-blank.html"));
}

TEST_F(MlpLab, FillsInATeachersOwnSheet) {
  const std::string text =
      "# Mine\n\nAs run: {{warmup.from-start.starts}} x {{warmup.from-start.steps}}\n\n| A |\n| "
      "--- |\n| {{warmup.from-start.batch}} |\n\n"
      "> {{simulated.warmup.from-start.model}}\n";
  const std::string own = file("mine.md", text).string();
  const ProcessResult result =
      succeeded(run({"sheet", own, "--quick", "--starts", "1", "--device", "cpu", "--card", card(),
                     "--key", "--machine", "t4"}));
  EXPECT_THAT(result.out, HasSubstr("# Mine\n\nAs run: 1 x 20\n"));
  EXPECT_THAT(result.out, HasSubstr("| A |\n| --- |\n| 64 |\n\n> 8192 x 6\n"));
  EXPECT_THAT(result.out, HasSubstr("\n\nChecklist: ["));
  EXPECT_THAT(result.out, HasSubstr("; [ ] repeats: 1 start of 15 steps\n"));
  EXPECT_THAT(result.out, EndsWith("Sheet: lab-results/mine-key.md\n"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "lab-results/mine-key.html"));
  const ProcessResult script =
      run({"sheet", own, "--quick", "--starts", "1", "--device", "cpu", "--card", card(),
           "--script", "--machine", "t4", "--output", "it's later"});
  EXPECT_EQ(script.out, "Script: mine.sh\n") << script.err;
  EXPECT_THAT(read_file(folder() / "mine.sh"), HasSubstr("\n#SBATCH --time=16\n"));
  const ProcessResult later = run_process(
      {"sh", "mine.sh"}, {.working_directory = folder(), .variables = {"MLP_LAB=" MLP_LAB}});
  EXPECT_THAT(later.out, EndsWith("Sheet: it's later/mine.md\n")) << later.err;
  const ProcessResult again = run({"sheet", own, "--output", folder().string()});
  EXPECT_THAT(again, Fails(78, HasSubstr("mlp_lab sheet reads this file, which would be lost")));
  const std::string known = run({"sheet", "--names"}).out;
  EXPECT_THAT(known, ContainsRegex("\n  data-parallel +gain proportion moving load "));
  EXPECT_THAT(known, HasSubstr("\n  checklist  "));
}

TEST_F(MlpLab, IsInstalledWithItsSheetsAndCards) {
  const std::string there = (folder() / "installed").string();
  const ProcessResult installed =
      succeeded(run_process({CMAKE, "--install", BARESTEP_BUILD, "--prefix", there}));
  const std::filesystem::path sheets = folder() / "installed/share/barestep/sheets";
  ASSERT_TRUE(std::filesystem::exists(sheets / "practical3.md"));
  write_file(sheets / "mine.md", "# Mine {{simulated.data-parallel.devices-2.split}}\n");
  const auto run_there = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), there + "/bin/mlp_lab");
    return execute(arguments);
  };
  EXPECT_THAT(run_there({"sheet", "mine"}).out, HasSubstr("# Mine 32/32\n"))
      << "a sheet that only this folder has";
  std::filesystem::rename(sheets.parent_path() / "cards/t4.json",
                          sheets.parent_path() / "cards/own.json");
  succeeded(run_there({"predict", "--machine", "own", "--ranks", "1"}));
}

/// The microseconds of the first match of a pattern with "12.345" and "us" or "ms".
double microseconds_in(const std::string& text, const std::string& pattern) {
  const auto found = first_match(text, pattern);
  EXPECT_FALSE(found.empty()) << pattern << "\n" << text;
  return found.empty() ? 0 : std::stod(found[1]) * (found[2] == "ms" ? 1000 : 1);
}

// What a sheet's table of the region adds up is what the command in the sheet prints of one run.
TEST_F(MlpLab, AddsUpTheRegionThatProfilePhasesPrints) {
  const std::string mlp_single = std::filesystem::path(MLP_LAB).parent_path() / "mlp_single";
  constexpr int kSteps = 5;
  const ProcessResult run = succeeded(run_process(
      {mlp_single, "--dim", "64", "--depth", "2", "--device", "cpu", "--steps", "10", "--profile",
       "--profile-steps", "5:10", "--profile-phases", "forward,loss,backward", "--trace", "t.json"},
      {.working_directory = folder()}));
  double all_us = 0, products_us = 0;
  for (const OpTime& op : op_times_of_trace(text("t.json"), "t.json")) {
    if (op.phase != "forward" && op.phase != "loss" && op.phase != "backward") continue;
    all_us += 1e6 * kSteps * op.seconds;
    if (op.name == "gemm") products_us += 1e6 * kSteps * op.seconds;
  }
  const double shown_us = 3;  // as rounded, in both
  EXPECT_NEAR(microseconds_in(run.out, "\nSelf CPU time total: ([0-9.]+)([mu]s)\n"), all_us,
              shown_us);
  EXPECT_NEAR(microseconds_in(run.out, "\n +gemm +[0-9.]+% +([0-9.]+)([mu]s) "), products_us,
              shown_us);
}

TEST_F(MlpLab, PrintsASheetToOnePdf) {
  if (run_process({"/bin/sh", "-c", "command -v chromium || command -v weasyprint"}).exit_code !=
      0) {
    GTEST_SKIP() << "neither Chromium nor WeasyPrint";
  }
  const ProcessResult blank = succeeded(run({"sheet", "practical3", "--blank", "--pdf"}));
  EXPECT_THAT(blank.out, EndsWith("Sheet: ./practical3-blank.pdf\n"));
  EXPECT_THAT(text("practical3-blank.pdf"), StartsWith("%PDF-"));
}

TEST_F(MlpLab, PrintsByWeasyPrintWhereNoBrowserIs) {
  const std::string found =
      run_process({"/bin/sh", "-c", "command -v weasyprint | tr -d '\\n'"}).out;
  if (found.empty()) GTEST_SKIP() << "no WeasyPrint";
  std::filesystem::create_symlink(found, folder() / "weasyprint");
  const ProcessResult blank =
      succeeded(execute({"/usr/bin/env", "PATH=" + folder().string(), MLP_LAB, "sheet",
                         "practical3", "--blank", "--pdf"}));
  EXPECT_THAT(text("practical3-blank.pdf"), StartsWith("%PDF-"));
}

TEST_F(MlpLab, HandsOnWhatAPrinterSays) {
  const auto error_of = [&](const std::string& printer) {
    const std::filesystem::path path = file("weasyprint", "#!/bin/sh\n" + printer + "\n");
    ::chmod(path.c_str(), 0755);
    const ProcessResult result = execute({"/usr/bin/env", "PATH=" + folder().string(), MLP_LAB,
                                          "sheet", "practical3", "--blank", "--pdf"});
    EXPECT_EQ(result.exit_code, 74);
    return result.err;
  };
  const std::string line = "mlp_lab: error: --pdf './practical3-blank.pdf': ";
  const std::string remedy = "; print ./practical3-blank.html from a browser\n";
  EXPECT_EQ(error_of("echo 'no fonts' >&2; exit 3"),
            line + "weasyprint ended with code 3: no fonts" + remedy);
  EXPECT_EQ(error_of("exit 0"), line + "weasyprint wrote nothing" + remedy);
}

TEST_F(MlpLab, MeasuresTheCardOfThisMachine) {
  const ProcessResult result =
      succeeded(run({"card", "--quick", "--device", "cpu", "--output", "here.json"}));
  EXPECT_EQ(result.out, "Card: here.json\n");
  const json card = json::parse(text("here.json"));
  for (const json& load : card.at("loads")) {
    EXPECT_GE(load.at("launch_s"), 0);
    EXPECT_GT(load.at("rates").size(), 30U);
    EXPECT_EQ(load.contains("all_reduce"), load.at("ranks") > 1);
    // Alone and as training runs it, with the gradient of the bias.
    std::map<std::string, int> rates;
    for (const json& rate : load.at("rates")) ++rates[rate.at(0)];
    EXPECT_GT(rates["relu_grad"], 2);
    EXPECT_EQ(rates["relu_grad with sums"], rates["relu_grad"]);
  }
  const ProcessResult predicted =
      succeeded(run({"predict", "--machine", "here.json", "--dim", "256"}));
  EXPECT_THAT(predicted.out, HasSubstr("Simulated: ddp, 256 x 6, batch 64, on this machine, "));
}

TEST_F(MlpLab, PredictsMachinesThatAreNotHere) {
  const ProcessResult result = succeeded(run({"predict", "--machine", "h100-infiniband", "--ranks",
                                              "1024,8,1,8", "--batch-size", "1024", "--rates"}));
  EXPECT_THAT(result.out, HasSubstr("  Simulated: 8 ranks would train fastest"));
  EXPECT_THAT(result.out, HasSubstr("\n    1024  "));
  EXPECT_THAT(result.out, ContainsRegex("\n  device.flops_per_s +52.0 TFLOP/s  assumed, as H200"));
  EXPECT_THAT(result.out, ContainsRegex("\n  network.all_reduce of 16 ranks .* 2 x 8 H100"));
  const ProcessResult devices =
      succeeded(run({"predict", "--machine", "h200-nvlink", "--ranks", "1,4,8", "--scheme",
                     "data-parallel", "--precision", "tf32", "--delay-ms", "2.5"}));
  EXPECT_THAT(devices.out, HasSubstr("Simulated: data-parallel, 8192 x 6, batch 64, --precision "
                                     "tf32 --delay-ms 2.5, on 8 x H200, NVLink"));
  EXPECT_THAT(devices.out, ContainsRegex("\n    4 +broadcast  363 GB/s with 8.00 GiB"));
  EXPECT_THAT(devices.out, ContainsRegex("\n    8 +reduce  366 GB/s with 8.00 GiB .* 1.22x as "));
  const ProcessResult slow = run({"predict", "--machine", "h200-nvlink", "--ranks", "1,2",
                                  "--slow-rank", "1:20", "--scheme", "factor"});
  EXPECT_THAT(slow.out, HasSubstr(", --slow-rank 1:20, on")) << slow.err;
}

TEST_F(MlpLab, PredictsAUsualMachineInAFewLines) {
  const ProcessResult result = succeeded(run({"predict"}));
  EXPECT_THAT(result.out, StartsWith("  Simulated: more ranks do not help here: of the "));
  EXPECT_THAT(result.out, HasSubstr(", on 8 x H200, NVLink\n"));
  EXPECT_THAT(result.out, EndsWith("  Machine: h200-nvlink. --machine names another; --rates "
                                   "shows its rates.\n"));
  EXPECT_LT(std::ranges::count(result.out, '\n'), 25);
}

TEST_F(MlpLab, PlansAMeshForTheMemoryOfItsRanks) {
  const ProcessResult result = succeeded(run({"plan", "--ranks", "8", "--memory", "2GiB"}));
  EXPECT_THAT(result.out, HasSubstr("Simulated: 8 ranks train fastest as ddp, one copy on 8 tensor "
                                    "ranks: 1.1 ms a step, "));
  EXPECT_THAT(result.out, HasSubstr("Simulated: meshes, those that fit and the fastest of them "
                                    "first\n    scheme  copies  stages  tensor ranks  "));
  EXPECT_THAT(result.out, ContainsRegex("\n    ddp +1 +1 +8 +1.1 ms .* 817.42 MiB +yes\n"));
  const ProcessResult deep =
      succeeded(run({"plan", "--ranks", "4", "--memory", "16GiB", "--machine", "a100-nvlink",
                     "--dim", "1024", "--depth", "8", "--batch-size", "4096", "--precision", "bf16",
                     "--recompute", "2", "--activation", "tanh"}));
  EXPECT_THAT(deep.out, HasSubstr("A stage on each rank is refused for this model on 4 ranks."));
}

TEST_F(MlpLab, AnswersAQuestionOfAProgram) {
  const std::string options = R"("ranks": 2, "options": {"dim": "512", "batch-size": "64"}})";
  write_file(folder() / "q.json", R"({"card": "h200-nvlink", )" + options);
  const ProcessResult named = succeeded(run({"explore", "--question", "q.json"}));
  const auto answer = nlohmann::json::parse(named.out);
  EXPECT_GT(answer.at("step_s").get<double>(), 0);
  EXPECT_EQ(answer.at("speed_ups").size(), 4U) << "1, 2, 4 and 8 ranks";
  write_file(folder() / "q.json", R"({"card": "h200-nvlnik", )" + options);
  const ProcessResult misspelled = run({"explore", "--question", "q.json"});
  EXPECT_THAT(misspelled, Fails(2, HasSubstr("did you mean 'h200-nvlink'?")));
  write_file(folder() / "q.json", "{");
  EXPECT_EQ(run({"explore", "--question", "q.json"}).exit_code, 65);
}

TEST_F(MlpLab, PrintsPublishedNumbersBesideOurs) {
  const ProcessResult result = succeeded(run({"validate"}));
  EXPECT_THAT(result.out, HasSubstr("| -3453.6123 | -3453.6 | reproduced | https://github.com/"));
}

TEST_F(MlpLab, FindsItsFilesWhereProcIsNotMounted) {
  if (kAddressSanitized) GTEST_SKIP() << "LeakSanitizer reads /proc";
  const auto without_proc = [&](const std::string& command) {
    return execute({"/usr/bin/unshare", "-rm", "/bin/sh", "-c",
                    "mount -t tmpfs none /proc && exec " + command});
  };
  if (without_proc("true").exit_code != 0) GTEST_SKIP() << "this machine allows no mounts";
  const ProcessResult result = succeeded(without_proc(std::string(MLP_LAB) + " validate"));
  EXPECT_EQ(result.out, run({"validate"}).out);
}

TEST_F(MlpLab, ExplainsItself) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("mlp_lab run amdahl strong-scaling --output scaling"));
  EXPECT_THAT(run({"run", "--help"}).out, HasSubstr("--quick"));
  EXPECT_THAT(run({"--version"}).out, MatchesRegex("mlp_lab [0-9.]+ .+\n"));
}

}  // namespace
}  // namespace barestep
