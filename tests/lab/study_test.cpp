#include "lab/study/study.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "lab/child.h"
#include "lab/study/report.h"
#include "lab/study/run_workload.h"
#include "options/options.h"
#include "profiler/monitor.h"
#include "profiler/report.h"
#include "support/expect_error.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

// Studies with fake trainers: scripts that write metrics.

using nlohmann::json;

constexpr int kStarts = 2;

StudyIdentity identity() {
  return {.quick = true,
          .machine = {.processor = "a processor", .cores = 4, .memory_bytes = 1 << 30},
          .version = "0.1.0 abc"};
}

class StudyTest : public TempDirTest {
 protected:
  StudyTest() {
    std::filesystem::create_directories(programs());
    trainer("");
  }

  [[nodiscard]] std::filesystem::path programs() const { return folder() / "programs"; }
  [[nodiscard]] std::filesystem::path output() const { return folder() / "study"; }

  /// A script that records its batch size, runs `first`, and writes steps of a millisecond per
  /// sample.
  void trainer(const std::string& first) {
    const std::filesystem::path path = programs() / "mlp_single";
    write_file(path,
               "#!/bin/sh\nbatch=64\nwhile [ $# -gt 0 ]; do\n"
               "  [ \"$1\" = --metrics ] && out=$2\n"
               "  [ \"$1\" = --batch-size ] && batch=$2\n"
               "  [ \"$1\" = --dim ] && dim=$2\n"
               "  shift\ndone\ntime=0.0$batch\n"
               "echo $batch >> " +
                   (folder() / "log").string() + "\n" + first +
                   "\n"
                   "for i in 0 1 2 3 4 5 6 7; do\n"
                   "  echo '{\"step\": '$i', \"rank\": 0, \"loss\": 1.5, \"step_time_s\": '$time',"
                   " \"samples_per_s\": 1, \"queued_s\": 0.001, \"warmup\": false,"
                   " \"phases_s\": {\"forward\": 0.01}}'\n"
                   "done > \"$out\"\n[ -z \"$lost\" ] || echo \"$lost\" >> \"$out\"\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  /// The batch sizes of all runs so far.
  [[nodiscard]] std::vector<std::string> log() const {
    std::istringstream lines(read_file(folder() / "log"));
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) all.push_back(line);
    return all;
  }

  void run(Study& study, std::vector<StudyProgress>* progress = nullptr) {
    study.run(
        {&experiment_of("batch-sweep")}, programs(),
        [&](const StudyProgress& each) {
          if (progress != nullptr) progress->push_back(each);
        },
        false, [&](int round, int rounds) { rounds_.emplace_back(round, rounds); });
  }

  std::vector<std::pair<int, int>> rounds_;  // that have begun, and of how many
};

TEST_F(StudyTest, MakesAllStartsThereAndBack) {
  Study study(output(), identity(), kStarts);
  std::vector<StudyProgress> progress;
  run(study, &progress);
  EXPECT_THAT(log(), ElementsAre("32", "64", "128", "128", "64", "32"));
  EXPECT_THAT(rounds_, ElementsAre(std::pair(0, 2), std::pair(1, 2)));
  ASSERT_THAT(progress, SizeIs(6));
  EXPECT_EQ(progress[4].what, "batch-sweep: batch-64, start 2 of 2");
  EXPECT_EQ(progress[4].done, 4);
  EXPECT_EQ(progress[4].total, 6);
  EXPECT_GT(progress[4].left_s, 0);
  EXPECT_THAT(study.measured(), ElementsAre(&experiment_of("batch-sweep")));
  const Results results = study.results_of(experiment_of("batch-sweep"));
  EXPECT_DOUBLE_EQ(results.at("batch-64").step_s().median, 0.064);
}

// What the machine does meanwhile, it does to all of them.
TEST_F(StudyTest, MakesARoundOfAllExperimentsBeforeTheNext) {
  Study study(output(), identity(), kStarts);
  std::vector<std::string> order;
  study.run({&experiment_of("batch-sweep"), &experiment_of("reproducibility")}, programs(),
            [&](const StudyProgress& each) {
              order.push_back(each.what.substr(0, each.what.find(':')) +
                              each.what.substr(each.what.find(", start")));
            });
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_THAT(order, ElementsAre("batch-sweep, start 1 of 2", "reproducibility, start 1 of 2",
                                 "batch-sweep, start 2 of 2", "reproducibility, start 2 of 2"));
}

TEST_F(StudyTest, KeepsEachPassOfTheRatesAndTheirMedian) {
  const auto of_rate = [](double rate) {
    return MachineCard{.name = "made up",
                       .on_gpu = false,
                       .flops_per_s = 1e9,
                       .memory_bytes_per_s = 1e9,
                       .loads = {{.rates = {{"gemm nt", 64, 256, rate}}}}};
  };
  {
    Study study(output(), identity(), kStarts);
    EXPECT_THAT(study.passes(), SizeIs(0));
    for (const double rate : {3e9, 1e9}) study.keep_pass(of_rate(rate));
  }
  Study study(output(), identity(), kStarts);
  EXPECT_THAT(study.passes(), SizeIs(2));
  study.keep_pass(of_rate(2e9));
  EXPECT_THAT(study.passes(), SizeIs(3));
  EXPECT_EQ(study.card()->loads.front().rates.front().rate, 2e9);
  EXPECT_EQ(study.card()->flops_per_s, 2e9);
  EXPECT_THAT(study.altered_files(), SizeIs(0));
}

constexpr const char* kBusyMachine =
    "lost='{\"lost_time\": {\"rank\": 0, \"wall_s\": 1, \"waited_s\": 0.6, \"ready_s\": 1, "
    "\"own_ran_s\": 0.4, \"all_ran_s\": 9, \"stolen_s\": 0, \"busy_threads\": 1}}'\n";

/// Each of 18 starts would be made three times.
TEST_F(StudyTest, RepeatsNoStartWhereOthersDisturbAllAndEndsWhereNoAnswerCanCome) {
  trainer(kBusyMachine + std::string("time=0.064\n"));
  Study study(output(), identity(), 6);
  std::vector<StudyProgress> progress;
  run(study, &progress);
  EXPECT_THAT(log(), SizeIs(3 * 3 + 3)) << "two rounds of three cases, the first repeated twice";
  EXPECT_THAT(progress.at(1).what, HasSubstr("the last start lost 60.0 % of its time; other "));
  EXPECT_THAT(progress.back().what, HasSubstr(", start 2 of 6, disturbed like those before"));
  const Report report = report_of(study);
  EXPECT_THAT(report.sections.front().trouble,
              HasSubstr("lost more than 25 % of their time to other programs"));
  EXPECT_EQ(study.plan_of({&experiment_of("batch-sweep")}).starts, 18) << "none of it counts";
}

TEST_F(StudyTest, RepeatsDisturbedStartsOfACompleteStudyIfItWaits) {
  trainer(kBusyMachine + std::string("time=0.064\n"));
  Study study(output(), identity(), 2);
  run(study);
  EXPECT_EQ(study.plan_of({&experiment_of("batch-sweep")}).starts, 0);
  EXPECT_EQ(study.plan_of({&experiment_of("batch-sweep")}, true).starts, 6);
}

TEST_F(StudyTest, StatesEffectsThatNoDisturbanceMakes) {
  trainer(kBusyMachine + std::string("[ $batch = 128 ] && time=0.160\n"));
  Study study(output(), identity(), 6);
  run(study);
  EXPECT_THAT(log(), SizeIs(3 * 3 + 15));
  const Report report = report_of(study);
  const ReportSection& section = report.sections.front();
  EXPECT_THAT(section.trouble, HasSubstr("INVALID"));
  EXPECT_THAT(shown_texts(section),
              Contains("However disturbed: a step of batch-128 takes 5.00x (5.00x to "
                       "5.00x) as long as one of batch-32."));
}

TEST_F(StudyTest, NamesTheLastErrorOfARunThatCrashed) {
  Study study(output(), identity(), kStarts);
  const auto expect = [&](const std::string& script, const std::string& why) {
    trainer(script);
    expect_error(ExitCode::kTryAgain,
                 "run 'mlp_single --dim 256 --depth 2 --batch-size 32 --steps 20 --update separate "
                 "--device cpu': it ended with code 134: " +
                     why,
                 [&] { run(study); });
  };
  expect(
      "echo 'mlp_single: note: training on the CPU' >&2\n"
      "echo \"terminate called after throwing an instance of 'std::bad_alloc'\" >&2\n"
      "echo '  what():  std::bad_alloc' >&2\nkill -ABRT $$",
      "  what():  std::bad_alloc");
  expect(
      "echo 'mlp_single: error: rank 1: lost' >&2\necho 'mlp_single: error: memory: gone' >&2\n"
      "echo 'a note' >&2\nkill -ABRT $$",
      "memory: gone");
  expect("echo 'the last' >&2\necho '-------' >&2\necho >&2\nkill -ABRT $$", "the last");
  expect("kill -ABRT $$", "it wrote nothing on stderr");
}

TEST_F(StudyTest, ChoosesAQuickModelWhoseStepsAreLongEnough) {
  const auto chosen = [&](const std::string& times, const StudyIdentity& who) {
    trainer("case $dim in " + times + " esac\n");
    Study study(output(), who);
    study.choose_width(programs(), [](const StudyProgress&) {});
    return study.setting().dim;
  };
  const auto anew = [&](const std::string& times, const StudyIdentity& who = identity()) {
    std::filesystem::remove_all(output());
    return chosen(times, who);
  };
  EXPECT_EQ(anew("256) time=0.0004;; 512) time=0.0029;; *) time=0.003;;"), 1024);
  EXPECT_EQ(anew("*) time=0.02;;"), 256);
  EXPECT_EQ(anew("*) time=0.0001;;"), 2048) << "at most 8 times the narrowest";
  // It is kept, and so it is under the command that reports name.
  std::filesystem::create_directories(output() / "runs");
  const std::size_t runs = log().size();
  EXPECT_EQ(chosen("*) time=0.02;;", identity()), 2048);
  EXPECT_EQ(Study::open(output()).setting().dim, 2048);
  StudyIdentity named = identity();
  named.options["dim"] = "2048";
  EXPECT_EQ(chosen("*) time=0.02;;", named), 2048);
  named.options["dim"] = "64";
  expect_error(ExitCode::kConfiguration, "it holds a study with --dim 2048; name another folder",
               [&] { Study(output(), named); });
  EXPECT_EQ(anew("*) time=0.02;;", named), 64);
  StudyIdentity whole = identity();
  whole.quick = false;
  EXPECT_EQ(anew("*) time=0.0001;;", whole), 1024);
  EXPECT_THAT(log(), SizeIs(runs)) << "none of these chose";
}

TEST_F(StudyTest, GoesOnWhereItStoppedAndKeepsWhatItHas) {
  trainer(
      "[ $batch = 128 ] && echo 'mlp_single: error: memory: needs 9 GiB, cpu has 1 GiB free; "
      "--batch-size 32 fits' >&2 && exit 71");
  std::optional<Study> study(std::in_place, output(), identity(), kStarts);
  expect_error(ExitCode::kMemory,
               "run 'mlp_single --dim 256 --depth 2 --batch-size 128 --steps 20 --update separate "
               "--device cpu': it "
               "ended with code 71: memory: needs 9 GiB, cpu has 1 GiB free; --batch-size 32 fits; "
               "the measurements made so far are kept",
               [&] { run(*study); });
  EXPECT_THAT(log(), SizeIs(3));
  EXPECT_TRUE(study->measured().empty());

  study.reset();
  trainer("");
  Study again(output(), identity(), kStarts);
  run(again);
  EXPECT_THAT(log(), ElementsAre("32", "64", "128", "128", "128", "64", "32"));
  run(again);
  EXPECT_THAT(log(), SizeIs(7)) << "nothing is made twice";
}

TEST_F(StudyTest, RefusesRunsThatWriteNoMetrics) {
  trainer("exit 0");
  Study study(output(), identity(), kStarts);
  expect_error(ExitCode::kBadData, "there are none", [&] { run(study); });
}

TEST_F(StudyTest, RefusesAMissingTrainer) {
  std::filesystem::remove(programs() / "mlp_single");
  Study study(output(), identity(), kStarts);
  expect_error(ExitCode::kNoInput,
               "No such file or directory; build it in the same folder as mlp_lab",
               [&] { run(study); });
}

TEST_F(StudyTest, RefusesFoldersOfOthers) {
  file("mine.txt", "not a study");
  expect_error(ExitCode::kConfiguration,
               "it holds files that do not belong to a study; name another folder",
               [&] { Study(folder(), identity()); });
  EXPECT_EQ(read_file(folder() / "mine.txt"), "not a study");

  StudyIdentity other = identity();
  other.quick = false;
  EXPECT_NO_THROW(Study(output(), other));
  EXPECT_NO_THROW(Study(output(), identity())) << "without results it leaves nothing to clean up";
  std::filesystem::create_directory(output() / "runs");
  expect_error(ExitCode::kConfiguration, "it holds a study with --quick",
               [&] { Study(output(), other); });
  other = identity();
  other.version = "0.2.0";
  expect_error(ExitCode::kConfiguration, "it holds a study of 0.1.0 abc",
               [&] { Study(output(), other); });
  other = identity();
  other.machine.cores = 8;
  expect_error(ExitCode::kConfiguration, "it holds a study of another machine",
               [&] { Study(output(), other); });
  other = identity();
  other.on_gpu = true;
  expect_error(ExitCode::kConfiguration, "it holds a study of the CPU",
               [&] { Study(output(), other); });
}

TEST_F(StudyTest, TakesSizesThatWereAskedFor) {
  StudyIdentity requested = identity();
  requested.options = {{"dim", "128"},       {"depth", "3"},     {"batch-size", "8"},
                       {"steps", "25"},      {"recompute", "2"}, {"activation", "gelu-tanh"},
                       {"optimizer", "sgd"}, {"ranks", "1,3"}};
  EXPECT_EQ(options_text(requested.options),
            " --activation gelu-tanh --batch-size 8 --depth 3 --dim 128 --optimizer sgd "
            "--ranks 1,3 --recompute 2 --steps 25");
  {
    const Study study(output(), requested);
    EXPECT_EQ(Study::open(output()).identity(), requested) << "kept with the study";
    const std::vector<Case> cases = experiment_of("strong-scaling").cases(study.setting());
    ASSERT_THAT(cases, SizeIs(2));
    EXPECT_THAT(command_line_of(cases[1].workload),
                HasSubstr("mpirun -np 3 mlp_ddp --dim 128 --depth 3 --activation gelu-tanh "
                          "--global-batch-size 8 --steps 25 --optimizer sgd --recompute 2"));
    std::filesystem::create_directory(output() / "runs");
  }
  expect_error(ExitCode::kConfiguration,
               "it holds a study with --activation gelu-tanh --batch-size 8 --depth 3 --dim 128 "
               "--optimizer sgd --ranks 1,3 --recompute 2 --steps 25",
               [&] { Study(output(), identity()); });
}

TEST_F(StudyTest, KeepsTheHashOfASheetFromItsFirstRunOn) {
  StudyIdentity asked = identity();
  const auto kept = [&](const std::string& sheet) {
    asked.sheet = sheet;
    return Study(output(), asked).identity().sheet;
  };
  EXPECT_EQ(kept("a"), "a");
  EXPECT_EQ(kept("b"), "b") << "nothing was run";
  std::filesystem::create_directory(output() / "runs");
  EXPECT_EQ(kept("c"), "b");
  EXPECT_THAT(Study::open(output()).altered_files(), IsEmpty());
}

TEST_F(StudyTest, IsMadeByOneProgramAtATime) {
  std::optional<Study> first(std::in_place, output(), identity(), kStarts);
  expect_error(ExitCode::kTryAgain,
               fmt::format("--output '{}': lab_test (process {}) writes into this folder; wait "
                           "until it ends, or name another folder",
                           output().string(), ::getpid()),
               [&] { Study(output(), identity()); });
  EXPECT_NO_THROW(Study::open(output())) << "it may be read meanwhile";
  first.reset();
  EXPECT_NO_THROW(Study(output(), identity()));
}

TEST_F(StudyTest, RefusesFoldersThatCannotBeMadeOrRead) {
  file("plain", "");
  expect_error(ExitCode::kCannotCreate, "choose a writable one",
               [&] { Study(folder() / "plain" / "study", identity()); });
  expect_error(ExitCode::kCannotCreate, "Not a directory; choose a writable one",
               [&] { Study(folder() / "plain", identity()); });
  expect_error(ExitCode::kNoInput, "there is none in this folder", [&] { Study::open(folder()); });
  file("study.json", "{\"format\": 1}");
  expect_error(ExitCode::kBadData, "study.json'", [&] { Study::open(folder()); });
}

TEST_F(StudyTest, RefusesAStudyThatSomebodySpoiled) {
  Study(output(), identity());
  const json good = json::parse(read_file(output() / "study.json"));
  const auto refused = [&](const json& changes, const std::string& why) {
    json study = good;
    study.update(changes);
    write_file(output() / "study.json", study.dump());
    expect_error(
        ExitCode::kBadData,
        fmt::format("study '{}': {}; name another folder", (output() / "study.json").string(), why),
        [&] { Study::open(output()); });
  };
  refused({{"on_gpu", true}, {"gpus", 0}}, "gpus is 0, not a whole number from 1 to 1048576");
  refused({{"cores", 0}}, "cores is 0, not a whole number from 1 to 1048576");
  refused({{"cores", 2.7}}, "cores is 2.7, not a whole number from 1 to 1048576");
  refused({{"memory_bytes", -1}},
          "memory_bytes is -1, not a whole number from 0 to 1152921504606846976");
  refused({{"format", "another"}}, "format is not 'barestep study 1'");
  refused({{"options", {{"activation", "wave"}}}},
          "options are not those of a study: --activation 'wave': not one of the choices; use relu "
          "or gelu or gelu-tanh or silu or tanh or sigmoid or leaky-relu or none");
  refused({{"system", 7}}, "system is 7, not a string");
  refused({{"width", -1}}, "width is -1, not a whole number from 0 to 1048576");

  std::filesystem::remove(output() / "study.json");
  ASSERT_EQ(::mkfifo((output() / "study.json").c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "study.json': is a FIFO, not a regular file; check the path",
               [&] { Study::open(output()); });
}

TEST_F(StudyTest, RefusesRecordsThatSomebodySpoiled) {
  Study study(output(), identity(), kStarts);
  run(study);
  const auto path = output() / "runs" / "batch-sweep" / "batch-64.1.json";
  const json good = json::parse(read_file(path));
  const auto refused = [&](const std::string& text, const std::string& why) {
    write_file(path, text);
    expect_error(ExitCode::kBadData, fmt::format("records of a run '{}': {}", path.string(), why),
                 [&] { report_of(study); });
  };
  refused(std::string(100000, '['), "is nested deeper than 64 arrays and objects; remove the file");
  json spoiled = good;
  spoiled["ranks"][0]["step_s"][1] = -1;
  refused(spoiled.dump(),
          "ranks[0].step_s[1] is -1, not a number from 0 to 1000000000; remove the file");
  spoiled = good;
  spoiled["ranks"][0]["loss"].erase(0);
  refused(spoiled.dump(), "ranks[0].loss has 7 numbers for 8 steps");
  spoiled = good;
  spoiled["ranks"] = json::array();
  refused(spoiled.dump(), "ranks is empty");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "is a FIFO, not a regular file", [&] { report_of(study); });
}

// Logs of other programs.

TEST(Log, HasAStartFromEachStepThatBeginsAgain) {
  const std::vector<Start> starts = starts_of_log(
      "Epoch 1\nStep 00 | Step time: 0.5s | Throughput: 128 samples/sec | Loss: 1.25\n"
      "Step 01 | Step time: 250 ms | Loss: 1.0\nTotal: 3\nStep 00 | Step time = 0.125\n",
      "own.log");
  ASSERT_THAT(starts, SizeIs(2));
  EXPECT_THAT(starts[0].ranks.at(0).step_s, ElementsAre(0.5, 0.25));
  EXPECT_THAT(starts[0].ranks.at(0).loss, ElementsAre(1.25, 1.0));
  EXPECT_THAT(starts[1].ranks.at(0).step_s, ElementsAre(0.125));
  EXPECT_THAT(parse_start(json_of(starts[1]), "kept").library, kLogged);
  EXPECT_THAT(starts[0].ranks.at(0).samples, IsEmpty()) << "one line has none";
  EXPECT_THAT(starts_of_log("Step 0 | Step time: 0.5s | Throughput: 128 samples/sec\n", "own.log")
                  .at(0)
                  .ranks.at(0)
                  .samples,
              ElementsAre(64));
}

TEST(Log, IsRefusedWithItsLine) {
  expect_error(ExitCode::kBadData, "log 'own.log:2': has no time of a step; print 'Step 00 | Step",
               [] { starts_of_log("Step 0 | Step time: 1s\nStep 1 | 0.5\n", "own.log"); });
  expect_error(ExitCode::kBadData, "log 'own.log': has no line of a step",
               [] { starts_of_log("nothing\n", "own.log"); });
}

TEST_F(StudyTest, TakesLogsInPlaceOfRuns) {
  Study study(output(), identity(), kStarts);
  const std::filesystem::path logs = folder() / "logs";
  std::filesystem::create_directories(logs);
  const Experiment& sweep = experiment_of("batch-sweep");
  study.keep_logs(sweep, logs);
  EXPECT_THAT(study.measured(), IsEmpty());
  for (const char* const batch : {"32", "64", "128"}) {
    EXPECT_FALSE(std::filesystem::exists(output() / "runs/batch-sweep/batch-128.0.json"));
    std::string log;
    for (int i = 0; i < 12; ++i) log += fmt::format("Step {} | Step time: 0.0{}s\n", i % 6, batch);
    write_file(logs / fmt::format("batch-sweep.batch-{}.log", batch), log);
    if (batch == std::string("32")) {
      expect_error(ExitCode::kNoInput, "batch-sweep.batch-64.log",
                   [&] { study.keep_logs(sweep, logs); });
    }
  }
  study.keep_logs(sweep, logs);
  run(study);
  EXPECT_FALSE(std::filesystem::exists(folder() / "log")) << "no trainer ran";
  const Report report = report_of(study);
  const ReportSection& section = report.sections.at(0);
  EXPECT_DOUBLE_EQ(section.results.at("batch-64").step_s().median, 0.064);
  EXPECT_THAT(section.trouble, HasSubstr("log lines tell neither the parts of a step"));
  EXPECT_THAT(checklist_of({&section.results}), IsEmpty());
}

TEST_F(StudyTest, TellsARecordThatWasChanged) {
  Start start{.command = "mlp_single",
              .core_distance_s = 40e-9,
              .ranks = {RankSteps{.step_s = {0.5}, .loss = {1}, .queued_s = {0}}}};
  const std::string kept = json_of(start);
  EXPECT_EQ(parse_start(kept, "kept").core_distance_s, 40e-9);
  EXPECT_FALSE(parse_start(kept, "kept").is_altered);
  EXPECT_FALSE(parse_start(json::parse(kept).dump(2), "kept").is_altered) << "only other blanks";
  json changed = json::parse(kept);
  changed["ranks"][0]["step_s"][0] = 0.25;
  EXPECT_TRUE(parse_start(changed.dump(), "kept").is_altered);
}

TEST(Metrics, AreRefusedWithTheirLine) {
  expect_error(ExitCode::kBadData,
               "records of a run 'm:2': rank is 4611686018427387904, not a whole number from 0 to "
               "1048576",
               [] { parse_metrics("{\"monitor\": 1}\n{\"rank\": 4611686018427387904}\n", "m"); });
}

TEST_F(StudyTest, HasNoReportBeforeAnExperimentIsComplete) {
  const Study study(output(), identity(), kStarts);
  expect_error(ExitCode::kNoInput, "none of its experiments is complete",
               [&] { report_of(study); });
}

TEST_F(StudyTest, CountsOnlyRoundsThatAreComplete) {
  Study study(output(), identity(), kStarts);
  run(study);
  std::filesystem::remove(output() / "runs" / "batch-sweep" / "batch-128.1.json");
  const Results results = study.results_of(experiment_of("batch-sweep"));
  for (const Measurement& each : results.cases) EXPECT_THAT(each.starts(), SizeIs(1));
  std::filesystem::remove(output() / "runs" / "batch-sweep" / "batch-32.0.json");
  EXPECT_THAT(study.measured(), IsEmpty());
}

TEST_F(StudyTest, IsReportedOnWithoutItsTrainers) {
  Study study(output(), identity(), kStarts);
  run(study);
  write_report(output(), report_of(study));
  const std::string first = read_file(output() / "report.md");
  std::filesystem::remove_all(programs());
  const Study opened = Study::open(output());
  write_report(output(), report_of(opened));
  EXPECT_EQ(read_file(output() / "report.md"), first);
  EXPECT_THAT(first, HasSubstr("Reproduce: `mlp_lab run batch-sweep --quick`"));
}

TEST(Metrics, BeginWithTheConfigurationWhichAStartKeeps) {
  TrainConfig config;
  config.optimizer.lr = 0.01;
  StepFigures step;
  step.report.samples = 64;
  step.report.wall_s = 0.5;
  const std::string lines = configuration_record(config) + "\n" + metrics_record(step, 0) + "\n";
  const Start start = parse_metrics(lines, "metrics").start;
  EXPECT_THAT(start.ranks, SizeIs(1));
  EXPECT_THAT(start.watched, IsEmpty());
  EXPECT_THAT(start.configuration, HasSubstr("\"lr\":0.01,"));
  EXPECT_EQ(parse_start(json_of(start), "start").configuration, start.configuration);
  const Start without = parse_metrics(metrics_record(step, 0), "metrics").start;
  EXPECT_EQ(without.configuration, "");
  EXPECT_EQ(parse_start(json_of(without), "start").configuration, "") << "a script's";
  expect_error(ExitCode::kBadData, "configuration is 3, not an object",
               [] { parse_metrics("{\"configuration\": 3}", "metrics"); });
}

TEST(Metrics, AreReadAsTrainersWriteThem) {
  StepFigures step;
  step.report.samples = 64;
  step.report.loss = 0.1F;
  step.report.wall_s = 0.5;
  step.queued_s = 0.25;
  step.account[Part::kBackward] = 0.125;
  step.account[Part::kHost] = 0.375;
  const std::string lines = metrics_record(step, 0) + "\n" + metrics_record(step, 1) + "\n" +
                            metrics_record(step, 0) + "\n";
  const std::vector<RankSteps> ranks = parse_metrics(lines, "metrics").start.ranks;
  ASSERT_THAT(ranks, SizeIs(2));
  EXPECT_THAT(ranks[0].step_s, ElementsAre(0.5, 0.5));
  EXPECT_THAT(ranks[1].queued_s, ElementsAre(0.25));
  EXPECT_THAT(ranks[1].loss, ElementsAre(double{0.1F}));
  EXPECT_THAT(ranks[0].phase_s.at("backward"), ElementsAre(0.125, 0.125));
  EXPECT_THAT(ranks[0].phase_s.at("host"), ElementsAre(0.375, 0.375));
  EXPECT_THAT(ranks[0].scale, IsEmpty()) << "only fp16 has one";
  EXPECT_THAT(parse_start(json_of(Start{.command = "a", .ranks = ranks}), "start").ranks,
              SizeIs(2));
}

TEST(Metrics, HaveTheScaleOfFp16AndTheStepsItSkipped) {
  StepFigures overflows, steady;
  overflows.report.samples = steady.report.samples = 64;
  overflows.report.scaling = ScalingReport{.used = 65536, .next = 32768, .skipped = true};
  steady.report.scaling = ScalingReport{.used = 32768, .next = 32768};
  const std::string lines = metrics_record(overflows, 0) + "\n" + metrics_record(steady, 0) + "\n";
  const Start start = parse_metrics(lines, "metrics").start;
  for (const Start& each : {start, parse_start(json_of(start), "start")}) {
    EXPECT_THAT(each.ranks[0].scale, ElementsAre(65536, 32768));
    EXPECT_EQ(each.ranks[0].skipped, 1);
  }
}

const std::vector<Gauge> kMadeUpGauges = {
    {.name = "gpu_percent", .column = "gpu %"},
    {.name = "power_w", .column = "power W", .kind = GaugeKind::kPower}};

/// A machine with two gauges, one of which cannot always be read.
class MadeUpSource final : public MonitorSource {
 public:
  MadeUpSource() : MonitorSource("cuda:0", kMadeUpGauges) {}
  void sample(std::span<double> /*values*/) override {}
  [[nodiscard]] std::string trouble() const override { return ""; }
};

TEST(Metrics, TellWhatTheMonitorSawBehindWarmUp) {
  const MadeUpSource source;
  const auto look = [&](double percent, double watts) {
    return monitor_record({.source = &source, .at_s = 1, .values = {percent, watts}}, 0, 0) + "\n";
  };
  StepFigures step;
  step.report.samples = 64;
  step.report.wall_s = 0.5;
  StepFigures cold = step;
  cold.report.warmup = true;
  SourceSummary summary{.source = &source, .end_s = 2};
  summary.values.resize(2);
  for (const double percent : {90, 80}) summary.values[0].add(GaugeKind::kLevel, percent);
  summary.values[1].add(GaugeKind::kPower, 100);
  const std::string lines = metrics_record(cold, 0) + "\n" + look(5, 50) + metrics_record(step, 0) +
                            "\n" + look(90, kNotMeasured) + look(80, 100) +
                            monitor_summary_record(summary, 50, 0) + "\n";
  const Start start = parse_metrics(lines, "metrics").start;
  EXPECT_THAT(start.ranks, SizeIs(1));
  for (const Start& each : {start, parse_start(json_of(start), "start")}) {
    ASSERT_THAT(each.watched, SizeIs(1));
    const Watched& watched = each.watched[0];
    EXPECT_EQ(watched.source, "cuda:0");
    EXPECT_EQ(watched.gauges.at("gpu_percent").mean, 85);
    EXPECT_EQ(watched.gauges.at("gpu_percent").least, 80);
    EXPECT_EQ(watched.gauges.at("gpu_percent").most, 90);
    EXPECT_EQ(watched.gauges.at("power_w").most, 100);
    EXPECT_THAT(watched.gauges, SizeIs(2));
    // 100 W for 2 s, and 50 samples.
    EXPECT_DOUBLE_EQ(watched.energy_j_per_sample.value(), 4);
  }
  expect_error(ExitCode::kBadData, "marks",
               [] { parse_metrics("{\"monitor_summary\": \"host\"}", "metrics"); });
}

TEST(RunChild, TellsOutputAndCode) {
  const ChildResult result = run_child({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_EQ(run_child({"/bin/sh", "-c", "kill -9 $$"}).exit_code, 137);
  EXPECT_EQ(run_child({"/bin/sh", "-c", "echo $NEW"}, {"NEW=7", "HOME=other"}).out, "7\n");
}

TEST(RunChild, TellsTheTimeOnCores) {
  const ChildResult busy =
      run_child({"/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"});
  EXPECT_GT(busy.cpu_s, 0.01);
  EXPECT_LT(run_child({"/bin/sleep", "0.1"}).cpu_s, 0.05);
}

TEST(RunChild, EndsEverythingWhenItIsStopped) {
  const auto stopped = [] {
    std::thread stopper([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      stop_children();
    });
    int code = 0;
    try {
      run_child({"/bin/sh", "-c", "sleep 30 & sleep 30"});
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    }
    stopper.join();
    std::_Exit(code);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(stopped(), testing::ExitedWithCode(75),
              "study: it was interrupted; run the same command again; one with --output continues");
}

TEST(MpiEnvironment, IsThatOfTheScript) {
  const ProcessResult shell =
      succeeded(run_process({"/bin/bash", "-c", ". '" BARESTEP_MPI_ENV "' && env | sed 's/$/;/'"}));
  for (const std::string& variable : mpi_environment()) {
    EXPECT_THAT("\n" + shell.out, HasSubstr("\n" + variable + ";\n"));
  }
  // Compared on this machine, because the script detects adapters differently.
  EXPECT_EQ(shell.out.find("OMPI_MCA_mtl=^psm,psm2,ofi;") != std::string::npos,
            mpi_environment().back() == "OMPI_MCA_mtl=^psm,psm2,ofi");
}

}  // namespace
}  // namespace barestep
