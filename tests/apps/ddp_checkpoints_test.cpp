// Jobs of several ranks that are interrupted and resumed, on the same ranks and on others.

#include "apps/on_cpu.h"
#include "support/arguments.h"
#include "support/file_runs.h"
#include "support/near.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

const Arguments kJob = words("--dim 16 --depth 2 --gemm reference");
const Arguments kResumes = words("--checkpoint c --resume --metrics m");

class CheckpointedJobs : public ProgramTest {
 protected:
  [[nodiscard]] ProcessResult shell(const std::string& line) const {
    return bash(fmt::format(". '{}' && {}", BARESTEP_MPI_ENV, line));
  }

  [[nodiscard]] ProcessResult launch(int ranks, const Arguments& arguments) const {
    return shell(fmt::format("exec mpirun -np {} '{}' {}", ranks, MLP_DDP,
                             fmt::join(on_cpu(arguments), " ")));
  }
  [[nodiscard]] ProcessResult ddp(int ranks, const Arguments& arguments) const {
    return launch(ranks, kJob + arguments);
  }
};

Arguments job_steps(int count) {
  return {"--steps", std::to_string(count)};
}

TEST_F(CheckpointedJobs, GoOnToTheBitWithEveryScheme) {
  for (const Arguments& scheme : {Arguments{"ddp"},
                                  {"ddp", "--accumulate", "5", "--reduce-every-micro-step"},
                                  {"zero1"},
                                  {"zero2"},
                                  {"zero3"},
                                  {"factor"}}) {
    SCOPED_TRACE(testing::PrintToString(scheme));
    std::filesystem::remove_all(folder() / "c");
    // 10 rows: the ranks have different shares.
    const Arguments job = Arguments{"--scheme"} + scheme +
                          words("--global-batch-size 10 --log-every 4 --dropout 0.3");
    succeeded(ddp(3, job + job_steps(9) + words("--save w --metrics of_whole")));
    succeeded(ddp(3, job + job_steps(4) + kResumes));
    const auto rest = ddp(3, job + job_steps(9) + kResumes + Arguments{"--save", "rest"});
    EXPECT_EQ(rest.exit_code, 0);
    EXPECT_EQ(rest.err, "mlp_ddp: note: resumes from 'c/step-000000004.safetensors' at step 4\n");
    EXPECT_EQ(text("rest"), text("w"));
    EXPECT_EQ(losses("m"), losses("of_whole"));
  }
}

TEST_F(CheckpointedJobs, GoOnWithStreamsOfTheirOwnOnAsManyRanksOnly) {
  const Arguments job = words("--data-seeding per-rank --global-batch-size 6");
  succeeded(ddp(2, job + job_steps(6) + Arguments{"--save", "w"}));
  succeeded(ddp(2, job + job_steps(3) + kResumes));
  succeeded(ddp(2, job + job_steps(6) + kResumes + Arguments{"--save", "rest"}));
  EXPECT_EQ(text("rest"), text("w"));
  const auto other = ddp(3, job + job_steps(9) + kResumes);
  EXPECT_THAT(other,
              Fails(78, StartsWith("mlp_ddp: error: checkpoint 'c/step-000000006.safetensors': is "
                                   "of another run: the number of ranks is 2 in the checkpoint "
                                   "and 3 here; ")));
}

/// Weights that ranks trained apart depend on how many ranks there are, and on when they are
/// averaged: also where a run ends.
TEST_F(CheckpointedJobs, OfLocalSgdGoOnWhereTheirRanksAverage) {
  const Arguments job = {"--sync-every", "4", "--optimizer", "sgd", "--global-batch-size", "6"};
  succeeded(ddp(2, job + job_steps(12) + Arguments{"--save", "w"}));
  succeeded(ddp(2, job + job_steps(8) + kResumes));
  succeeded(ddp(2, job + job_steps(12) + kResumes + Arguments{"--save", "rest"}));
  EXPECT_EQ(text("rest"), text("w"));
  EXPECT_THAT(ddp(3, job + job_steps(12) + kResumes).err,
              HasSubstr(": the number of ranks is 2 in the checkpoint and 3 here; "));
  std::filesystem::remove_all(folder() / "c");
  succeeded(ddp(2, job + job_steps(10) + kResumes));
  const auto longer = ddp(2, job + job_steps(12) + kResumes);
  EXPECT_THAT(
      longer,
      Fails(78,
            StartsWith(
                "mlp_ddp: error: --steps '12': the checkpoint 'c/step-000000010.safetensors' is at "
                "step 10, where a shorter run ended and ranks averaged their weights; this one "
                "does so every 4 steps; give as many as before, or start a new run from its "
                "weights with --load\n")));
  succeeded(ddp(2, job + job_steps(10) + kResumes));
}

TEST_F(CheckpointedJobs, GoOnOnOtherRanksAndByOtherSchemes) {
  const Arguments job = words("--global-batch-size 12 --dropout 0.3");
  succeeded(ddp(1, job + job_steps(9) + Arguments{"--metrics", "of_whole"}));
  const auto whole = losses("of_whole");
  int steps = 0;
  for (const auto& [count, scheme] : {std::pair{1, "ddp"}, {4, "zero1"}, {3, "zero3"}}) {
    succeeded(ddp(count, job + job_steps(steps += 3) + kResumes + Arguments{"--scheme", scheme}));
  }
  expect_within(losses("m"), whole, 1e-6);
}

/// Nothing that spreads such a run over ranks changes its rounding, so the note names none of it.
TEST_F(CheckpointedJobs, OfReproducibleRunsGoOnAnywhereWithoutANoteOnRounding) {
  const Arguments chunks = words("--reproducible 3 --threads 1");
  const Arguments batch = chunks + Arguments{"--global-batch-size", "12"};
  succeeded(ddp(2, batch + job_steps(2) + kResumes));
  const auto expect_note = [&](const ProcessResult& result, const std::string& program, int step) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, fmt::format("{}: note: resumes from 'c/step-{:09}.safetensors' at step "
                                      "{}\n",
                                      program, step, step));
  };
  expect_note(ddp(3, batch + job_steps(4) + kResumes + Arguments{"--scheme", "zero1"}), "mlp_ddp",
              2);
  const Arguments halves = words("--batch-size 6 --accumulate 2");
  expect_note(
      execute(Arguments{MLP_SINGLE} + on_cpu(kJob + chunks + halves + job_steps(6)) + kResumes),
      "mlp_single", 4);
  expect_note(ddp(4, batch + job_steps(8) + kResumes + Arguments{"--update", "per-bucket"}),
              "mlp_ddp", 6);
  // Without it, the ranks are named.
  std::filesystem::remove_all(folder() / "c");
  const Arguments plain = words("--threads 1 --global-batch-size 12");
  succeeded(ddp(2, plain + job_steps(2) + kResumes));
  EXPECT_THAT(ddp(1, plain + job_steps(4) + kResumes).err,
              HasSubstr("; rounding may differ: the number of ranks is 2 in the checkpoint and 1 "
                        "here\n"));
}

/// 30 samples for training, of which four ranks take two twice, so that each has eight.
Arguments file_job(const char* batch, const char* epochs) {
  return words(
             "--data idx:x.idx,y.idx --layers 6,12,4 --gemm reference --lr 0.01 --test-split "
             "0.25") +
         Arguments{"--global-batch-size", batch, "--epochs", epochs};
}

TEST_F(CheckpointedJobs, GoOnOnlyWhereAnEpochHasTheSameSamples) {
  number_run(folder());
  const auto expect_refused = [&](const Arguments& job, const std::string& here) {
    std::filesystem::remove_all(folder() / "c");
    succeeded(launch(4, job + kResumes));
    const auto other = launch(1, job + kResumes);
    EXPECT_THAT(
        other,
        Fails(78, StartsWith(fmt::format(
                      "mlp_ddp: error: checkpoint 'c/step-000000004.safetensors': is of "
                      "another run: an epoch is 30 samples padded to 32 in the checkpoint and "
                      "{} here; give the options of that run, or start a new one from its "
                      "weights with --load\n",
                      here))));
  };
  for (const char* const scheme : {"ddp", "zero1", "zero3"}) {
    expect_refused(file_job("8", "1") + Arguments{"--scheme", scheme}, "30 samples");
  }
  expect_refused(file_job("8", "1") + Arguments{"--drop-last"}, "24 of 30 samples");
  // With fewer steps an epoch, the run would seem to be complete here.
  expect_refused(file_job("31", "2"), "30 samples");
}

/// There no epoch is padded.
TEST_F(CheckpointedJobs, OfFactorGoOnOnAnyOtherNumberOfRanksToTheBit) {
  number_run(folder());
  const auto weights_line = [&](int ranks, const char* epochs, const Arguments& more) {
    const auto result =
        succeeded(launch(ranks, file_job("8", epochs) + Arguments{"--scheme", "factor"} + more));
    EXPECT_THAT(result.out, HasSubstr("\nWeights: xxh3-128 "));
    return result.out.substr(std::min(result.out.find("\nWeights: "), result.out.size()));
  };
  const std::string whole = weights_line(1, "3", {});
  weights_line(4, "1", kResumes);
  weights_line(2, "2", kResumes);
  EXPECT_EQ(weights_line(3, "3", kResumes), whole);
}

TEST_F(CheckpointedJobs, GoOnOnOtherRanksWhoseEpochsHaveTheSameSamples) {
  number_run(folder());
  const auto run = [&](int ranks, const char* epochs, const Arguments& more) {
    succeeded(launch(ranks, file_job("6", epochs) + Arguments{"--drop-last"} + more));
  };
  run(1, "3", {"--metrics", "of_whole"});
  run(4, "1", kResumes);
  run(1, "2", kResumes);
  run(3, "3", kResumes);
  expect_within(losses("m"), losses("of_whole"), 1e-6);
}

TEST_F(CheckpointedJobs, GoOnOnOneDeviceAndOnSeveral) {
  const Arguments dropout = {"--dropout", "0.3"};
  const Arguments batch = dropout + Arguments{"--batch-size", "12"};
  const Arguments single = Arguments{MLP_SINGLE} + on_cpu(kJob + batch);
  succeeded(execute(single + job_steps(9) + Arguments{"--metrics", "all"}));
  succeeded(ddp(2, dropout + Arguments{"--global-batch-size", "12"} + job_steps(3) + kResumes));
  succeeded(execute(single + job_steps(6) + kResumes));
  succeeded(
      execute(Arguments{MLP_DP, "--devices", "cpu,cpu"} + kJob + batch + job_steps(9) + kResumes));
  expect_within(losses("m"), losses("all"), 1e-6);
}

TEST_F(CheckpointedJobs, EndInTimeOnAllRanksAfterTheSameStep) {
  const auto result =
      ddp(3, {"--global-batch-size", "6", "--steps", "100000000", "--checkpoint", "c",
              "--checkpoint-every", "0.1s", "--time-limit", "1s", "--scheme", "zero1"});
  EXPECT_THAT(result,
              Fails(75, AllOf(StartsWith("mlp_ddp: note: the time limit is reached, all ranks "
                                         "ended after step "),
                              HasSubstr(" and wrote 'c/step-"))));
  EXPECT_THAT(result.out, HasSubstr("\n  checkpoint    "));
}

TEST_F(CheckpointedJobs, RefuseAFolderThatOneHostSeesAlone) {
  for (const char* host : {"a", "b"}) std::filesystem::create_directory(folder() / host);
  const std::string job = fmt::format(
      "'{}' {}", MLP_DDP, fmt::join(on_cpu(kJob + Arguments{"--checkpoint", "c"}), " "));
  const auto result =
      shell(fmt::format("exec mpirun -np 1 -wdir a {} : -np 1 -wdir b {}", job, job));
  EXPECT_THAT(result,
              Fails(78, AllOf(StartsWith("mlp_ddp: error: --checkpoint 'c': rank 1 on "),
                              HasSubstr(" does not see the folder of rank 0; name a folder that "
                                        "all hosts share\n"))));
  EXPECT_TRUE(std::filesystem::is_empty(folder() / "a" / "c"));
}

TEST_F(CheckpointedJobs, OutliveADiskThatIsFullForOneRank) {
  // A file of the last rank cannot grow beyond 16 MiB, which is enough for MPI.
  file("limited", "#!/bin/bash\n[ $OMPI_COMM_WORLD_RANK = 2 ] && ulimit -f 16384\nexec \"$@\"\n");
  const Arguments job = words(
      "--dim 1024 --scheme zero1 --global-batch-size 6 --steps 6 --checkpoint-every 3 --checkpoint "
      "c");
  const auto result = shell(
      fmt::format("exec mpirun -np 3 bash limited '{}' {}", MLP_DDP, fmt::join(on_cpu(job), " ")));
  EXPECT_EQ(result.exit_code, 74) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Step 05 | ")) << "training goes on";
  const std::string line =
      "checkpoint 'c/step-000000003.safetensors': rank 2: writing failed: File too large; free "
      "space or choose another disk";
  EXPECT_THAT(result.err,
              AllOf(StartsWith("mlp_ddp: note: " + line + "; the run continues without it\n"),
                    HasSubstr("\nmlp_ddp: error: " + line + "\n")));
  EXPECT_TRUE(std::filesystem::is_empty(folder() / "c"));
}

TEST_F(CheckpointedJobs, PlanWhatEachRankWrites) {
  const auto planned = [&](int ranks) {
    return ddp(ranks, {"--plan", "--checkpoint", "c", "--scheme", "zero1"}).out;
  };
  EXPECT_THAT(planned(1), ContainsRegex("\n    checkpoint +11,776 B "));
  // A third of the numbers, and the state of the random stream.
  EXPECT_THAT(planned(3), ContainsRegex("\n    checkpoint +7,424 B "));
}

/// With replacements for srun and scontrol: the job starts once for each time it is queued.
class QueuedJobs : public CheckpointedJobs {
 protected:
  void SetUp() override {
    file("srun", "#!/bin/bash\nshift 2\nexec mpirun -np 2 \"$@\"\n");
    file("scontrol", "#!/bin/bash\necho \"$@\" >>queued\n");
    for (const char* name : {"srun", "scontrol"}) {
      std::filesystem::permissions(folder() / name, std::filesystem::perms::owner_all);
    }
  }

  [[nodiscard]] ProcessResult start(const Arguments& arguments,
                                    const std::string& under = "") const {
    return shell(fmt::format("PATH=$PWD:$PATH MLP_DDP='{}' SLURM_JOB_ID=7 exec {}bash '{}' {}",
                             MLP_DDP, under, MLP_DDP_SBATCH,
                             fmt::join(on_cpu(kJob + arguments), " ")));
  }
  [[nodiscard]] bool was_queued() const { return std::filesystem::remove(folder() / "queued"); }
};

TEST_F(QueuedJobs, GoOnUntilTheyAreDone) {
  const Arguments job =
      words("--global-batch-size 6 --steps 100 --delay-ms 20 --metrics m --time-limit 1s --save w");
  succeeded(ddp(2, {"--global-batch-size", "6", "--steps", "100", "--save", "whole"}));
  int starts = 1;
  ProcessResult result = start(job);
  for (; result.exit_code == 75 && starts < 100; ++starts) {
    EXPECT_TRUE(was_queued());
    result = start(job);
  }
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(starts, 1);
  EXPECT_FALSE(was_queued());
  EXPECT_EQ(text("w"), text("whole"));
}

TEST_F(QueuedJobs, AreNotQueuedAgainWhenNoStepIsMade) {
  const Arguments job = words("--global-batch-size 6 --steps 4");
  std::filesystem::create_directory(folder() / "checkpoints");
  // Another run uses the folder, so ours ends with 75.
  const auto start_in_vain = [&] { return start(job, "flock checkpoints "); };
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(start_in_vain().exit_code, 75);
    EXPECT_TRUE(was_queued());
  }
  const auto third = start_in_vain();
  EXPECT_EQ(third.exit_code, 75);
  EXPECT_FALSE(was_queued());
  EXPECT_THAT(third.err, HasSubstr("mlp_ddp.sbatch: error: 3 starts in a row made no step; see "
                                   "why, then queue it again\n"));
  EXPECT_EQ(start(job).exit_code, 0);
}

TEST_F(QueuedJobs, AreNotQueuedAgainForAnErrorThatStays) {
  EXPECT_EQ(start({"--steps", "x"}).exit_code, 2);
  EXPECT_FALSE(was_queued());
}

}  // namespace
}  // namespace barestep
