// The results of training are kept even if other outputs of mlp_single and mlp_dp fail.

#include "core/host.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

const std::string kRun =
    " --device cpu --dim 8 --depth 1 --batch-size 4 --gemm reference --save weights ";

/// 72 numbers, their names and shapes.
constexpr std::uintmax_t kWeightsBytes = 72 * 4;

class Outputs : public ProgramTest {
 protected:
  /// Runs a line of bash, with ./mlp_single, ./mlp_dp and ./mlp_lab in its folder.
  ProcessResult bash(const std::string& line) {
    return ProgramTest::bash(fmt::format("ln -sf '{}' '{}' '{}' . && ln -sf /dev/full full && {}",
                                         MLP_SINGLE, MLP_DP, MLP_LAB, line));
  }

  void expect_weights() {
    ASSERT_TRUE(std::filesystem::exists(folder() / "weights"));
    EXPECT_GT(std::filesystem::file_size(folder() / "weights"), kWeightsBytes);
    std::filesystem::remove(folder() / "weights");
  }
};

class OutputsOf : public Outputs, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OutputsOf, ::testing::Values("mlp_single", "mlp_dp"),
                         [](const auto& info) { return std::string(info.param); });

/// script(1) runs a command on a terminal of its own and passes on what it prints.
TEST_P(OutputsOf, OnATerminalARunShowsItsProgress) {
  const auto terminal = [&](const std::string& more) {
    return bash(
        fmt::format("type script > full2 || exit 9; export TERM=xterm; stty cols 200 2> full2; "
                    "exec script -qec './{}{}--steps 300 --log-every 100 {}' full2",
                    GetParam(), kRun, more));
  };
  const auto shown = terminal("");
  if (shown.exit_code == 9) GTEST_SKIP() << "script is not installed";
  ASSERT_EQ(shown.exit_code, 0) << shown.out;
  EXPECT_THAT(shown.out, ContainsRegex("\r\x1b\\[K\\[=* *\\] [0-9]+/300 [|] 0:0[0-9] left"));
  EXPECT_THAT(shown.out, HasSubstr("Step 299 | "));
  const auto quiet = terminal("--quiet");
  EXPECT_THAT(quiet.out, Not(HasSubstr("/300")));
  EXPECT_THAT(quiet.out, Not(HasSubstr("Step 299 | ")));
  EXPECT_THAT(quiet.out, HasSubstr("Summary of 295 steps "));
}

TEST_P(OutputsOf, QuietlyLeaveOneBlankLineBeforeTheSummary) {
  const auto quiet =
      succeeded(bash(fmt::format("exec ./{}{}--quiet --steps 10", GetParam(), kRun)));
  EXPECT_THAT(quiet.out, HasSubstr("\n\nSummary of 5 steps "));
  EXPECT_THAT(quiet.out, Not(HasSubstr("\n\n\n")));
}

TEST_P(OutputsOf, NoteOnceThatALauncherStartedSeveralCopies) {
  const auto note_of = [&](int rank, int ranks) {
    return bash(fmt::format("exec env OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE={} ./{}{}"
                            "--steps 1",
                            rank, ranks, GetParam(), kRun))
        .err;
  };
  EXPECT_EQ(note_of(0, 2),
            fmt::format("{}: note: mpirun started 2 copies, and each is a run of its own; start "
                        "mlp_ddp instead, which trains one model on all of them\n",
                        GetParam()));
  EXPECT_EQ(note_of(1, 2), "");
  EXPECT_EQ(note_of(0, 1), "");
}

TEST_P(OutputsOf, SayWhereThreadsRun) {
  const auto said = [&](const std::string& before, const std::string& more) {
    return bash(fmt::format("exec env {} ./{}{}--steps 1 {}", before, GetParam(), kRun, more));
  };
  const std::string placed =
      "\nAffinity compact: (cpu:0, )?[0-9]+ threads? on [0-9]+ cores?, CPUs? [0-9,-]+, near NUMA "
      "node ";
  const std::string absent =
      "\nAffinity compact: nothing is bound, since this build has no hwloc\n";
  const std::string shown = said("", "--affinity compact").out;
  EXPECT_TRUE(!first_match(shown, placed).empty() || shown.find(absent) != std::string::npos)
      << shown;
  EXPECT_EQ(said("", "").out.find("Affinity"), std::string::npos);
  if (allowed_cpus().count() == 1) GTEST_SKIP() << "one CPU cannot be narrowed";
  const std::string note = ": note: before it began, a library bound this process to CPU";
  const auto narrowed = said("OMP_PROC_BIND=true", "");
  if (narrowed.err.find(note) == std::string::npos) GTEST_SKIP() << "libgomp binds nothing here";
  EXPECT_EQ(said("OMP_PROC_BIND=true", "--affinity compact").err.find(note), std::string::npos);
}

TEST_P(OutputsOf, ErrorsAreRedOnATerminalThatHasColors) {
  const auto terminal = [&](const std::string& environment) {
    return bash(
        fmt::format("type script > full2 || exit 9; unset NO_COLOR; "
                    "exec env {} script -qec './{} --dim 0' full2",
                    environment, GetParam()));
  };
  const auto shown = terminal("TERM=xterm");
  if (shown.exit_code == 9) GTEST_SKIP() << "script is not installed";
  EXPECT_THAT(shown.out, HasSubstr(std::string(GetParam()) + ": \x1b[1;31merror:\x1b[0m --dim"));
  for (const char* const plain : {"TERM=xterm NO_COLOR=1", "TERM=dumb"}) {
    EXPECT_THAT(terminal(plain).out, HasSubstr(std::string(GetParam()) + ": error: --dim"));
  }
}

TEST_P(OutputsOf, AFullDiskUnderItsMetricsCostsARunNothingElse) {
  const auto result =
      bash(fmt::format("exec ./{}{}--steps 300 --log-every 100 --metrics full", GetParam(), kRun));
  EXPECT_EQ(result.exit_code, 74);
  const std::string why =
      "output file 'full': writing failed: No space left on device; free space or choose another "
      "disk";
  EXPECT_EQ(result.err,
            fmt::format("{0}: note: {1}; the run continues without it\n{0}: error: {1}\n",
                        GetParam(), why));
  EXPECT_THAT(result.out, HasSubstr("\nStep 299 | "));
  EXPECT_THAT(result.out, HasSubstr("\nSummary of 295 steps "));
  expect_weights();
}

TEST_P(OutputsOf, AReaderThatGoesAwayCostsARunNothingElse) {
  const auto result =
      bash(fmt::format("./{}{}--steps 300 | head -n 1; exit ${{PIPESTATUS[0]}}", GetParam(), kRun));
  EXPECT_THAT(
      result,
      Fails(74,
            fmt::format("{}: error: standard output: Broken pipe; read it to its end, or send it "
                        "to a file\n",
                        GetParam())));
  expect_weights();
}

/// The run would take a thousand hours.
TEST_P(OutputsOf, WithoutAReaderARunThatWritesNoFileEnds) {
  const auto result = bash(fmt::format(
      "./{} --device cpu --dim 8 --depth 1 --steps 1000000000 --delay-ms 4 | head -n 1; exit "
      "${{PIPESTATUS[0]}}",
      GetParam()));
  EXPECT_THAT(result, Fails(74, HasSubstr(": error: standard output: Broken pipe; ")));
}

TEST_P(OutputsOf, AFullDiskUnderStdoutCostsARunNothingElse) {
  const auto result = bash(fmt::format("exec ./{}{}--steps 3 >/dev/full", GetParam(), kRun));
  EXPECT_THAT(result,
              Fails(74, fmt::format("{}: error: standard output: No space left on device; send it "
                                    "where there is room\n",
                                    GetParam())));
  expect_weights();
}

/// The note says that the command line overrides the config file.
TEST_P(OutputsOf, ANoteThatNobodyCanReadEndsNoRun) {
  file("run.json", R"({"steps": 2})");
  const std::string noted = fmt::format("./{}{}--config run.json --steps 3", GetParam(), kRun);
  EXPECT_THAT(bash("exec " + noted).err, HasSubstr(": note: "));
  expect_weights();
  const auto result = succeeded(bash("exec " + noted + " 2>/dev/full"));
  expect_weights();
  // The same for messages of --device auto.
  const auto automatic = succeeded(bash(
      fmt::format("exec ./{} --device auto --dim 8 --depth 1 --steps 2 --save weights 2>/dev/full",
                  GetParam())));
  expect_weights();
}

/// A signal ends the run after the current step; the metrics record the steps.
TEST_P(OutputsOf, SignalsEndARunAfterTheCurrentStep) {
  for (const char* const signal : {"INT", "TERM", "USR1", "XCPU"}) {
    for (const int log_every : {1, 7}) {
      SCOPED_TRACE(fmt::format("{}, --log-every {}", signal, log_every));
      const auto result = bash(fmt::format(
          "rm -f m && set -m && {{ ./{}{}--steps 1000000 --delay-ms 2 --log-every {} --metrics m & "
          "}} && job=$! && until grep -qs queued_s m; do sleep 0.01; done && kill -{} $job; wait "
          "$job",
          GetParam(), kRun, log_every, signal));
      EXPECT_EQ(result.exit_code, 75) << result.err;
      const std::size_t steps = records_of(read_file(folder() / "m")).size();
      EXPECT_THAT(result.err,
                  HasSubstr(fmt::format("{}: note: asked to stop, ended after step {} and wrote "
                                        "'weights'\n",
                                        GetParam(), steps - 1)));
      EXPECT_THAT(result.out, HasSubstr("\nSummary of "));
      expect_weights();
    }
  }
}

/// A step that takes ten minutes.
TEST_P(OutputsOf, ASecondSignalEndsARunAtOnce) {
  for (const auto& [signal, number] : {std::pair("INT", 2), std::pair("TERM", 15)}) {
    const auto result = bash(fmt::format(
        "set -m && {{ ./{} --device cpu --dim 8 --depth 1 --delay-ms 600000 > out & }} && job=$! "
        "&& until [ -s out ]; do sleep 0.01; done && sleep 0.3 && kill -{} $job && sleep 0.5 && "
        "kill -{} $job; wait $job",
        GetParam(), signal, signal));
    EXPECT_EQ(result.exit_code, 128 + number) << result.err;
  }
}

/// timeout(1) signals its child and then its process group; here this happens during warm-up.
TEST_P(OutputsOf, TheSameSignalTwiceInARowIsOneRequest) {
  const auto result =
      bash(fmt::format("timeout 2 ./{}{}--steps 1000000000 --warmup 1000 "
                       "--delay-ms 300 >/dev/null; exit 0",
                       GetParam(), kRun));
  EXPECT_THAT(result.err, HasSubstr(": note: asked to stop, ended after step "));
  expect_weights();
}

TEST_F(Outputs, AFullDiskUnderTensorBoardsFilesCostsARunNothingElse) {
  const auto result =
      bash("ulimit -f 4; exec ./mlp_single" + kRun + "--steps 300 --tensorboard runs --metrics m");
  EXPECT_THAT(
      result,
      Fails(74, ContainsRegex("mlp_single: note: output file 'runs/events[^']*': writing failed: "
                              "File too large; .*; the run continues without it\n")));
  EXPECT_THAT(result.err, ContainsRegex("mlp_single: note: output file 'm': writing failed: File "
                                        "too large; .*; the run continues without it\n"));
  EXPECT_THAT(result.err, ContainsRegex("\nmlp_single: error: output file 'm': writing failed: "));
  EXPECT_THAT(result.out, HasSubstr("\nSummary of 295 steps "));
  expect_weights();
}

TEST_F(Outputs, ANoteSaysWhereJsonCannotRepeatTheNamesOfFiles) {
  const std::string note =
      "mlp_single: note: --config cannot repeat this run from 'm': the file names of --save are "
      "not UTF-8, which JSON needs\n";
  for (const auto& [name, err] : {std::pair("w\xff", note.c_str()), std::pair("w\xc3\xa4", "")}) {
    const auto run = bash(fmt::format(
        "exec ./mlp_single --device cpu --dim 8 --depth 1 --steps 1 --metrics m --save {}", name));
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.err, err);
  }
}

TEST_F(Outputs, WeightsThatCannotBeWrittenCostNoMetricsAndNoReport) {
  const auto result = bash(
      "exec ./mlp_single --device cpu --dim 8 --depth 1 --steps 300 --log-every 100 --save "
      "full --metrics m --trace t.json");
  EXPECT_THAT(
      result,
      Fails(74,
            "mlp_single: error: output file 'full': writing failed: No space left on device; free "
            "space or choose another disk\n"));
  EXPECT_EQ(records_of(read_file(folder() / "m")).size(), 300U);
  EXPECT_THAT(result.out, HasSubstr("\nSummary of 295 steps "));
  EXPECT_TRUE(std::filesystem::exists(folder() / "t.json"));
}

TEST_F(Outputs, NoneIsOpenedBeforeAllAreChecked) {
  file("m", "the last good ones");
  for (const char* const bad : {"--tensorboard m/runs", "--save none/w", "--trace none/t.json"}) {
    const auto result = bash(
        std::string("exec ./mlp_single --device cpu --dim 8 --depth 1 --steps 2 --metrics m ") +
        bad);
    EXPECT_EQ(result.exit_code, 73) << bad;
    EXPECT_THAT(result.err, HasSubstr("cannot be created: "));
    EXPECT_EQ(read_file(folder() / "m"), "the last good ones") << bad;
  }
}

TEST_F(Outputs, AFullDiskUnderTheMetricsOfAnEvaluationCostsItNothingElse) {
  file("x", std::string("\0\0\x08\x02\0\0\2\0\0\0\0\1", 12) + std::string(512, '\1'));
  file("y", std::string("\0\0\x08\x02\0\0\2\0\0\0\0\1", 12) + std::string(512, '\2'));
  const std::string data =
      " --device cpu --data idx:x,y --layers 1,1 --batch-size 1 --log-every 1000 ";
  ASSERT_EQ(bash("exec ./mlp_single" + data + "--steps 6 --save w").err, "");
  const auto result = bash("exec ./mlp_single" + data + "--evaluate-only --load w --metrics full");
  EXPECT_THAT(result, Fails(74, MatchesRegex("mlp_single: note: .*\nmlp_single: error: .*\n")));
  EXPECT_THAT(result.out, HasSubstr("w of 512 samples\n"));
}

/// The note comes first; the memory is too small, so nothing runs.
TEST_F(Outputs, ANoteThatNobodyCanReadDoesNotEndTheLab) {
  const auto result =
      bash("PATH=/nowhere exec ./mlp_lab run all --device cpu --quick --memory 1KiB 2>/dev/full");
  EXPECT_EQ(result.exit_code, 71);
}

}  // namespace
}  // namespace barestep
