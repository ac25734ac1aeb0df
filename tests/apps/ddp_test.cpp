// The real mlp_ddp, started like a user does: mpirun after scripts/mpi_env.sh.
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "apps/bad_input.h"
#include "apps/on_cpu.h"
#include "core/host.h"
#include "core/input_file.h"
#include "data/safetensors.h"
#include "support/arguments.h"
#include "support/busy_machine.h"
#include "support/file_runs.h"
#include "support/npy_bytes.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/saved_weights.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

class MlpDdp : public ProgramTest {
 protected:
  /// Runs a shell line after scripts/mpi_env.sh, with ./mlp_ddp in its folder.
  ProcessResult shell(const std::string& line) {
    return bash(
        fmt::format(". '{}' && ln -sf '{}' mlp_ddp && {}", BARESTEP_MPI_ENV, MLP_DDP, line));
  }

  ProcessResult mpirun(int ranks, const Arguments& arguments) {
    return shell(
        fmt::format("exec mpirun -np {} ./mlp_ddp {}", ranks, fmt::join(on_cpu(arguments), " ")));
  }

  ProcessResult alone(const Arguments& arguments, const char* program = MLP_DDP) {
    return execute(Arguments{program} + on_cpu(arguments));
  }

  /// All weights that a run saved, in the file's order.
  std::vector<float> weights(const std::string& name) {
    const std::string bytes = text(name);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    std::vector<float> values((bytes.size() - 8 - header) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + 8 + header, values.size() * sizeof(float));
    return values;
  }
};

/// The end of a run's output, with the hash of its weights.
std::string hash_line(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nWeights: xxh3-128 "));
  return result.out.substr(std::min(result.out.find("\nWeights: "), result.out.size()));
}

/// As another user, since root may start as many processes as it likes.
TEST_F(MlpDdp, AloneMayStartTooFewThreadsWhichIsOneLine) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  if (kAddressSanitized) GTEST_SKIP() << "LeakSanitizer starts a thread at the end";
  std::filesystem::permissions(folder(), std::filesystem::perms::all);
  for (int processes = 1; processes <= 8; ++processes) {
    SCOPED_TRACE(processes);
    const auto result = run_process(
        {"/usr/bin/setpriv", "--reuid", "54322", "--regid", "54322", "--clear-groups",
         "--inh-caps=-all", "/bin/bash", "-c",
         fmt::format(". '{}'; export HOME=$PWD; ulimit -u {}; exec '{}' --device cpu --threads 2 "
                     "--layers 4,4 --steps 2",
                     BARESTEP_MPI_ENV, processes, MLP_DDP)},
        {.working_directory = folder()});
    EXPECT_THAT(result, Fails(71, MatchesRegex("mlp_ddp: error: threads[^\n]*\n")));
  }
}

TEST_F(MlpDdp, EndsNearOneRankWithAnyNumberOfRanks) {
  const Arguments run = words(
      "--layers 12,16,9 --global-batch-size 10 --steps 6 --gemm reference --save w --metrics "
      "m.jsonl");
  succeeded(
      alone(words("--layers 12,16,9 --batch-size 10 --steps 6 --gemm reference --save single"),
            MLP_SINGLE));
  const std::vector<float> one = weights("single");
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const auto result = succeeded(mpirun(ranks, run));
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, StartsWith(fmt::format("{} rank{}, ", ranks, ranks == 1 ? "" : "s")));
    EXPECT_EQ(count(result.out, "| Step time: "), 6) << "only rank 0 prints";
    EXPECT_LT(relative_distance(weights("w"), one), 1e-6);
    // Each rank's record of each step; the loss is the weighted mean of the ranks' own losses.
    const std::vector<json> steps = records("m.jsonl");
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(6 * ranks));
    double mean = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const json& step = steps[static_cast<std::size_t>(rank)];
      EXPECT_EQ(step.at("step"), 0);
      EXPECT_EQ(step.at("rank"), rank);
      EXPECT_EQ(step.at("loss"), steps[0].at("loss"));
      mean += step.at("own_loss").get<double>() *
              static_cast<double>(share_of_rank(10, rank, ranks).count) / 10;
    }
    EXPECT_NEAR(mean, steps[0].at("loss").get<double>(), 1e-6);
  }
}

TEST_F(MlpDdp, RefusesBadInputInOneLine) {
  const auto run_ranks = [this](const BadInput& bad) {
    if (bad.ranks > 1) return mpirun(bad.ranks, bad.arguments);
    BadInput here = bad;
    here.arguments = on_cpu(bad.arguments);
    const std::string after_env = fmt::format(". '{}' && exec \"$@\"", BARESTEP_MPI_ENV);
    return execute(Arguments{"/bin/bash", "-c", after_env, "bash"} + command_of(MLP_DDP, here));
  };
  expect_refused(bad_inputs("Ranks (mlp_ddp)"), folder(), run_ranks);
  expect_refused(bad_combinations(SchemeKind::kDdp), folder(), run_ranks);
}

TEST_F(MlpDdp, WritesTheTracesOfItsRanksOntoNoInput) {
  file("e.rank1.json", R"({"seed": 1})");
  const auto result = mpirun(2, kTiny + words("--config e.rank1.json --trace e.json"));
  EXPECT_THAT(
      result,
      Fails(78,
            StartsWith("mlp_ddp: error: --trace 'e.rank1.json': --config reads this file, which "
                       "would be lost; write to another one\n")));
  EXPECT_EQ(text("e.rank1.json"), R"({"seed": 1})");
}

/// The hash is of the parameters in the order of PyTorch's state_dict().
TEST_F(MlpDdp, FactorPrintsTheHashOfOneRanksWeights) {
  const Arguments run = words("--layers 9,14,5 --steps 6 --global-batch-size 11 --gemm reference");
  const std::string one = hash_line(alone(run + Arguments{"--save", "w"}));
  const SafetensorsFile file(folder() / "w");
  ByteHash hash;
  for (const char* const name : {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}) {
    hash.add(std::as_bytes(file.f32(name)));
  }
  EXPECT_EQ(one, fmt::format("\nWeights: xxh3-128 {}\n", hash.text()));
  const Arguments shared = run + Arguments{"--scheme", "factor"};
  for (const int ranks : {2, 3}) EXPECT_EQ(hash_line(mpirun(ranks, shared)), one);
  EXPECT_NE(hash_line(mpirun(2, run)), one);
}

TEST_F(MlpDdp, FactorMeasuresBothUpdates) {
  const Arguments run =
      words("--layers 2047,1024 --steps 7 --global-batch-size 4 --scheme factor --threads 1");
  const auto measured = succeeded(mpirun(2, run));
  EXPECT_THAT(measured.out, ContainsRegex("\n--update auto measured fused [0-9.]+ ms, separate "
                                          "[0-9.]+ ms: takes (fused|separate)\n"));
  EXPECT_THAT(measured.out, HasSubstr("\nCommunication of a step, mean of 2 steps and 2 ranks\n"));
  for (const char* const update : {"fused", "separate"}) {
    EXPECT_EQ(hash_line(mpirun(2, run + Arguments{"--update", update})), hash_line(measured));
  }
}

/// Thread ranks test this thoroughly; here it runs under MPI, whose sums have another order.
TEST_F(MlpDdp, ReproduciblePrintsOneHashForAnyRanksSchemeAndAccumulation) {
  const Arguments run =
      words("--layers 30,14,5 --steps 6 --gemm reference --reproducible 3 --clip-norm 0.1");
  const Arguments batch = {"--global-batch-size", "22"};
  const std::string one = hash_line(alone(run + Arguments{"--batch-size", "22"}, MLP_SINGLE));
  EXPECT_EQ(hash_line(alone(run + words("--batch-size 11 --accumulate 2"))), one);
  const auto three = mpirun(3, run + batch);
  EXPECT_EQ(hash_line(three), one);
  EXPECT_THAT(three.out, StartsWith("3 ranks, MPI: all_gather of 1 bucket (2.12 KiB) after "));
  EXPECT_THAT(three.out, HasSubstr("batch 22 in 8 chunks of 3 over 3 ranks"));
  EXPECT_THAT(three.out, HasSubstr("\nbucket 1, ranks 0 and 1 "));
  EXPECT_EQ(hash_line(mpirun(2, run + batch + Arguments{"--scheme", "zero1"})), one);
}

/// Ranks that have a part of the parameters send it.
TEST_F(MlpDdp, PrintsOneHashOfWeightsThatRanksShare) {
  const Arguments run = words("--layers 9,14,5,6,4 --steps 4 --gemm reference");
  EXPECT_EQ(hash_line(mpirun(2, run + Arguments{"--scheme", "zero1"})),
            hash_line(mpirun(2, run + Arguments{"--scheme", "zero2"})));
  EXPECT_EQ(hash_line(mpirun(2, run + words("--pipeline 2 --micro-batches 2"))),
            hash_line(alone(run + words("--accumulate 2 --batch-size 32"))));
}

/// Ranks of MPI test the numbers; here it runs as typed.
TEST_F(MlpDdp, ReducesBf16GradientsWithHalfTheBytes) {
  const Arguments run = words("--dim 300 --depth 2 --steps 6 --warmup 2");
  const auto bf16 = succeeded(mpirun(2, run + Arguments{"--grad-dtype", "bf16"}));
  EXPECT_THAT(bf16.out, StartsWith("2 ranks, MPI: all_reduce of 1 bucket (352.75 KiB) "));
  EXPECT_THAT(bf16.out, HasSubstr("\nbucket 1    352.75 KiB "));
  const auto explained = alone(run + words("--grad-dtype bf16 --explain --plan"));
  EXPECT_THAT(explained.out, HasSubstr("bucket_bf16 (communication)"));
  EXPECT_THAT(explained.out, HasSubstr(" in bf16 "));
}

/// Ranks of MPI test the numbers; here the account shows the reductions, as typed. In a step of 25
/// samples the first rank has 5 micro-steps, the second one 4.
TEST_F(MlpDdp, ShowsAReductionOfEachMicroStep) {
  const Arguments run =
      words("--dim 32 --depth 2 --global-batch-size 5 --accumulate 5 --steps 6 --warmup 2");
  const auto once = succeeded(mpirun(2, run));
  EXPECT_EQ(count(once.out, "\nbucket 1 "), 1);
  const auto every = succeeded(mpirun(2, run + Arguments{"--reduce-every-micro-step"}));
  EXPECT_THAT(every.out,
              StartsWith("2 ranks, MPI: all_reduce of 5 buckets (8.25 KiB each) while "));
  EXPECT_EQ(count(every.out, "\nbucket 1 "), 5);
}

TEST_F(MlpDdp, OtherSchemesEndWhereTheyShould) {
  const Arguments run =
      words("--layers 96,64,33 --global-batch-size 26 --steps 4 --save w --threads 1");
  succeeded(mpirun(1, run));
  const std::string one = text("w");
  succeeded(mpirun(3, run));
  const std::vector<float> ddp = weights("w");
  for (const char* const gemm : {"auto", "reference"}) {
    succeeded(mpirun(1, run + Arguments{"--gemm", gemm}));
    const std::string alone = text("w");
    const auto factor = succeeded(mpirun(3, run + Arguments{"--scheme", "factor", "--gemm", gemm}));
    EXPECT_EQ(text("w"), alone) << "to the bit, " << gemm;
    EXPECT_THAT(
        factor.out,
        HasSubstr(" while backward goes on; each sends 10.91 KiB a step, ddp would send 43.59 "
                  "KiB\n"));
  }
  std::string zero;
  for (const auto& [scheme, message] :
       {std::pair{"zero1", "bucket 1"}, {"zero2", "bucket 1"}, {"zero3", "net.0"}}) {
    const auto result = succeeded(mpirun(3, run + Arguments{"--scheme", scheme}));
    EXPECT_LT(relative_distance(weights("w"), ddp), 1e-6);
    EXPECT_THAT(result.out, HasSubstr(fmt::format("\n{}, scattered  ", message)));
    EXPECT_THAT(result.out, HasSubstr(fmt::format("\n{}, gathered  ", message)));
    const std::string saved = text("w");
    EXPECT_EQ(saved, std::exchange(zero, saved).empty() ? saved : zero) << "to the bit";
  }
}

TEST_F(MlpDdp, NamesTheRankThatIsLateAndWhatItCosts) {
  // The device sends its own records, but not for graphs; there, events give the times.
  for (const Arguments& how : {Arguments{}, Arguments{"--graph"}}) {
    repeat_while_busy([&] {
      const auto result =
          succeeded(mpirun(2, words("--dim 16 --depth 2 --steps 12 --slow-rank 1:20") + how));
      EXPECT_THAT(result.out,
                  HasSubstr("\nCommunication of a step, mean of 7 steps and 2 ranks\n"));
      const auto line = first_match(
          result.out, "Waited for rank 1: longest in 7 of 7 steps, ([0-9.]+) ms a step\n");
      ASSERT_FALSE(line.empty()) << result.out;
      EXPECT_NEAR(std::stod(line[1]), 20, 2);
    });
  }
}

// The ranks of a host share its figures, so only one of them reads them.
TEST_F(MlpDdp, LooksAtTheHostOnce) {
  const auto result = succeeded(mpirun(
      2, {"--dim", "16", "--depth", "1", "--steps", "6", "--monitor", "--metrics", "m.jsonl"}));
  EXPECT_THAT(result.out, HasSubstr("\nRank 0\nMonitor, "));
  EXPECT_EQ(count(result.out, "Monitor, "), 1);
  EXPECT_EQ(records("m.jsonl").back().at("monitor_summary"), "host");
}

TEST_F(MlpDdp, TellsADivergenceOnce) {
  const auto result = mpirun(2, {"--dim", "8", "--depth", "1", "--lr", "1e30"});
  EXPECT_THAT(result, Fails(76, StartsWith("mlp_ddp: error: training diverged: the loss is ")));
}

TEST_F(MlpDdp, ARankThatCannotStartEndsTheOthers) {
  const auto result = shell(
      "exec mpirun -np 1 ./mlp_ddp --device cpu --dim 8 : -np 1 ./mlp_ddp --device cuda:63 --dim "
      "8");
  EXPECT_THAT(result, Fails(69, StartsWith("mlp_ddp: error: device 'cuda:63': ")));
  EXPECT_EQ(result.out, "");
}

/// Another seed and optimizer, different samples in a file of the same size, another library for
/// products.
TEST_F(MlpDdp, ListsAllThatDiffersBetweenRanks) {
  std::vector<std::uint8_t> numbers(16);
  file("a.npy", npy_bytes("|u1", "4, 4", numbers));
  numbers[15] = 1;
  file("b.npy", npy_bytes("|u1", "4, 4", numbers));
  const std::string run = "./mlp_ddp --device cpu --dim 4 --depth 1 --batch-size 1 --data npy:";
  const auto result =
      shell(fmt::format("exec mpirun -np 1 {0}a.npy,a.npy : -np 2 {0}b.npy,a.npy "
                        "--seed 7 --optimizer sgd --gemm reference",
                        run));
  EXPECT_THAT(result,
              Fails(78, ContainsRegex("mlp_ddp: error: ranks differ: data is 144 bytes, hash "
                                      "[0-9a-f]{32} on rank 0 and 144 bytes, hash [0-9a-f]{32} "
                                      "on ranks 1-2, --seed is 0 on rank 0 and 7 on ranks "
                                      "1-2, --optimizer is adam on rank 0 and sgd on ranks 1-2, "
                                      "--betas is 0.9,0.999 on rank 0 and not given on ranks "
                                      "1-2, --eps is 1e-08 on rank 0 and not given on ranks "
                                      "1-2, products is .* on rank 0 and reference on ranks "
                                      "1-2; give all ranks the same build, options and files")));
}

TEST_F(MlpDdp, RunsAsTheOnlyCopyOfTorchrun) {
  EXPECT_EQ(
      shell("RANK=0 WORLD_SIZE=1 ./mlp_ddp --device cpu --dim 8 --depth 1 --steps 1").exit_code, 0);
}

/// mpirun ends the others within two seconds, which a rank on a busy machine may need just to
/// start; then the test tries again.
TEST_F(MlpDdp, TellsThatARankDiedBeforeItCouldSpeak) {
  ProcessResult result;
  for (int attempt = 0; attempt < 5 && result.err.find("mlp_ddp: error:") == std::string::npos;
       ++attempt) {
    result = shell(
        "exec mpirun -np 2 sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -9 $$; exec ./mlp_ddp "
        "--device cpu --dim 8'");
  }
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, ContainsRegex("mlp_ddp: error: rank 1 on .*: never reached the start of "
                                        "MPI, and the launcher is ending the job; see "));
}

/// On a busy machine, the start may take longer than the limit; then the test tries a longer one.
TEST_F(MlpDdp, BlamesTheSlowRankAndNotTheOneThatWaits) {
  ProcessResult result;
  for (const char* const limit : {"2", "10", "30"}) {
    result =
        mpirun(2, {"--dim", "8", "--depth", "1", "--slow-rank", "1:60000", "--timeout", limit});
    if (result.err.find("'step 0'") != std::string::npos) break;
  }
  EXPECT_THAT(result, Fails(75, ContainsRegex("mlp_ddp: error: rank 1 on .* 'step 0': ")));
}

TEST_F(MlpDdp, GoesOnWithoutAFlightBoard) {
  const auto result = succeeded(shell(
      "exec mpirun -np 2 sh -c 'PMIX_SERVER_TMPDIR=$PWD/missing exec ./mlp_ddp --device cpu --dim "
      "8 --depth 1 --steps 1'"));
  EXPECT_THAT(
      result.err,
      ContainsRegex("^mlp_ddp: note: no flight board '/.*/missing/barestep.*': No such file "
                    "or directory; only mpirun will report a rank that dies\n$"));
}

TEST_F(MlpDdp, SaysFirstWhichRanksLostTheirTimeToOtherPrograms) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "both ranks need a core";
  const std::string rank =
      " ./mlp_ddp --device cpu --threads 1 --dim 512 --depth 2 --warmup 1 "
      "--steps 100";
  const auto result = succeeded(shell(
      "{ taskset -c 0 timeout 60 sh -c 'while :; do :; done' & } && mpirun --bind-to none -np 1 "
      "taskset -c 0" +
      rank + " : -np 1 taskset -c 1" + rank + "; code=$?; kill $!; exit $code"));
  EXPECT_THAT(result.out,
              ContainsRegex("\nOther programs took [0-9.]+ % of the cores' time \\(rank "
                            "0: [0-9.]+ %.*\\): times below are not this program's "
                            "alone\n\nSummary of "));
}

/// It finds out neither which build it is nor how much memory is free.
TEST_F(MlpDdp, GoesOnWhereOneRankHasNoProc) {
  if (kAddressSanitized) GTEST_SKIP() << "LeakSanitizer reads /proc";
  const std::string hide = "unshare -m sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh ";
  if (shell(hide + "true").exit_code != 0) GTEST_SKIP() << "no mount allowed";
  const std::string rank = "./mlp_ddp --device cpu --dim 8 --depth 1 --steps 2 --timeout 60";
  const auto result = succeeded(shell("exec mpirun -np 1 " + hide + rank + " : -np 1 " + rank));
  EXPECT_EQ(result.err, "");
}

/// mpirun passes USR1, USR2 and XCPU to all ranks; here TERM and HUP go to only one of them.
TEST_F(MlpDdp, AskedToStopAllRanksEndBehindTheSameStep) {
  for (const char* const signal : {"kill -USR1 $job", "kill -USR2 $job", "kill -XCPU $job",
                                   "pkill -TERM -P $job -n", "pkill -HUP -P $job -n"}) {
    SCOPED_TRACE(signal);
    const auto result = shell(
        fmt::format("rm -f w m && {{ env --default-signal=HUP mpirun -np 3 ./mlp_ddp --device cpu "
                    "--threads 1 --dim 8 --depth 1 --steps "
                    "100000 --delay-ms 2 --log-every 7 --metrics m --save w & }} && job=$! && "
                    "until grep -qs queued_s m; do sleep 0.01; done && {}; wait $job",
                    signal));
    EXPECT_EQ(result.exit_code, 75) << result.err;
    std::map<int, int> last;
    for (const json& record : records("m")) last[record.at("rank")] = record.at("step");
    ASSERT_EQ(last.size(), 3U);
    EXPECT_EQ(last[1], last[0]);
    EXPECT_EQ(last[2], last[0]);
    EXPECT_THAT(result.err, HasSubstr(fmt::format("mlp_ddp: note: asked to stop, all ranks ended "
                                                  "after step {} and wrote 'w'\n",
                                                  last[0])));
    EXPECT_EQ(weights("w").size(), 72U);
  }
}

/// As Slurm's scancel ends a job on several hosts: each process is woken, then asked to end.
TEST_F(MlpDdp, AskedToEndDuringALongWaitKeepsItsWeightsOnSeveralHosts) {
  const auto result = shell(
      "{ mpirun -np 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 ./mlp_ddp --device cpu --threads 1 --dim 8 "
      "--depth 1 --steps 100 --slow-rank 1:1500 --save w >out & } && job=$! && until grep -q "
      "'Step 02' out; do sleep 0.01; done; pkill -CONT -P $job; pkill -TERM -P $job; wait $job");
  EXPECT_THAT(result,
              Fails(75, ContainsRegex("mlp_ddp: note: asked to stop, all ranks ended after step "
                                      "[0-9]+ and wrote 'w'\n")));
  EXPECT_EQ(weights("w").size(), 72U);
}

TEST_F(MlpDdp, EvaluatesWhatMlpSingleDoes) {
  class_run(folder());
  const Arguments files = words(
      "--data idx:x.idx,y.idx --layers 6,12,4 --loss cross-entropy --no-last-relu --test-split "
      "0.25 --gemm reference");
  const Arguments evaluation = files + Arguments{"--evaluate-only", "--load", "w"};
  succeeded(alone(files + words("--epochs 2 --save w"), MLP_SINGLE));
  const std::string table = alone(evaluation + Arguments{"--batch-size", "4"}, MLP_SINGLE).out;
  // "         4  1.380424    30.00% "
  const std::string row = table.substr(table.find("\n         4 ") + 1, 31);
  ASSERT_THAT(row, ContainsRegex("^ +4 +[0-9.]+ +[0-9.]+% "));
  for (const int ranks : {1, 2, 3}) {
    const auto result = succeeded(
        mpirun(ranks, evaluation + words("--global-batch-size 4 --metrics m --warmup 50")));
    EXPECT_THAT(result.out,
                HasSubstr(fmt::format("w of 10 samples on {} rank{}, features / 255\nBatch size ",
                                      ranks, ranks == 1 ? "" : "s")));
    EXPECT_THAT(result.out, HasSubstr("\n" + row));
    std::int64_t samples = 0;
    std::vector<json> all = records("m");
    EXPECT_EQ(all.back().at("evaluation").at("samples"), 10);
    all.pop_back();
    for (const json& batch : all) samples += batch.at("samples").get<std::int64_t>();
    EXPECT_EQ(samples, 10);
    EXPECT_EQ(all.back().at("rank"), ranks - 1);
    EXPECT_EQ(lost_times_of(text("m")).size(), static_cast<std::size_t>(ranks));
  }
}

TEST_F(MlpDdp, EvaluatesInInt8WhatMlpSingleDoes) {
  class_run(folder());
  const Arguments evaluation = words(
      "--data idx:x.idx,y.idx --layers 6,12,4 --loss cross-entropy --no-last-relu --test-split "
      "0.25 --gemm reference --evaluate-only --load w --precision int8");
  const Arguments training(evaluation.begin(), evaluation.begin() + 11);
  succeeded(alone(training + words("--epochs 2 --save w"), MLP_SINGLE));
  const std::string table = alone(evaluation + Arguments{"--batch-size", "4"}, MLP_SINGLE).out;
  // Each row has its own scale, so results do not depend on the other rows of the batch.
  const std::string row = table.substr(table.find("\nint8 ") + 1, 42);
  ASSERT_THAT(row, ContainsRegex("^int8 +4 +[0-9.]+ +[0-9.]+% "));
  const std::string end = table.substr(table.find("\nint8: "));
  for (const int ranks : {1, 3}) {
    const auto result =
        succeeded(mpirun(ranks, evaluation + Arguments{"--global-batch-size", "4"}));
    EXPECT_THAT(result.out, HasSubstr("\n" + row));
    EXPECT_THAT(result.out, HasSubstr(end)) << "the words, and what classes were found";
  }
}

TEST_F(MlpDdp, TellsOnceThatLoadedWeightsAreNoNumbers) {
  number_run(folder());
  const Arguments files = words("--data idx:x.idx,y.idx --layers 6,4");
  const std::vector<float> weight(6 * 4, 0.5F), bias(4, std::numeric_limits<float>::quiet_NaN());
  save_safetensors(folder() / "w", std::vector<NamedTensor>{{"net.0.weight", {4, 6}, weight},
                                                            {"net.0.bias", {4}, bias}});
  const auto result = mpirun(2, files + Arguments{"--evaluate-only", "--load", "w"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(count(result.err, "mlp_ddp: error:"), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("nan"));
}

/// The losses that a run printed, to three digits.
std::vector<std::string> printed_losses(const std::string& out) {
  std::vector<std::string> losses;
  for (std::size_t at = out.find("Loss: "); at != std::string::npos; at = out.find("Loss: ", at)) {
    losses.push_back(out.substr(at, std::string("Loss: 1.234").size()));
    at += losses.back().size();
  }
  return losses;
}

TEST_F(MlpDdp, SharesAModelAmongRanksAndSavesAllOfIt) {
  const Arguments model = words("--layers 6,8,5,7,4 --steps 3 --global-batch-size 8");
  const auto one = succeeded(alone(model + words("--device cpu --save one")));
  const auto four =
      succeeded(mpirun(4, model + words("--device cpu --tensor 2 --save four --metrics m.jsonl")));
  EXPECT_THAT(four.out,
              HasSubstr("4 ranks, 2 copies of the model on 2 tensor ranks each, MPI: all_reduce"));
  EXPECT_THAT(four.out, HasSubstr("Waited for rank 3 (data 1, tensor 1)"));
  const auto explained = succeeded(mpirun(4, model + Arguments{"--tensor", "2", "--explain"}));
  EXPECT_EQ(count(explained.out, "The programs of all 4 ranks, checked together: in every group "),
            1);
  EXPECT_THAT(printed_losses(four.out), ElementsAreArray(printed_losses(one.out)));
  EXPECT_THAT(text("m.jsonl"), HasSubstr(R"("rank":3,"place":{"data":1,"tensor":1,"stage":0})"));
  // Any mesh loads what any other has saved.
  const auto next = mpirun(2, model + words("--device cpu --tensor 2 --load one"));
  const auto same = succeeded(alone(model + words("--device cpu --load four")));
  EXPECT_THAT(printed_losses(next.out), ElementsAreArray(printed_losses(same.out)));
}

TEST_F(MlpDdp, CutsAModelIntoStagesAndSavesAllOfIt) {
  const Arguments model = words("--layers 6,8,5,7,4 --steps 3 --global-batch-size 8 --device cpu");
  const auto one = succeeded(alone(model + Arguments{"--save", "one"}));
  for (const char* const schedule : {"1f1b", "gpipe", "naive"}) {
    SCOPED_TRACE(schedule);
    Arguments pipeline = {"--pipeline", "2", "--schedule", schedule, "--save", "four"};
    if (schedule != std::string("naive")) pipeline = pipeline + Arguments{"--micro-batches", "4"};
    const auto four = succeeded(mpirun(4, model + pipeline));
    EXPECT_THAT(four.out,
                HasSubstr("4 ranks, 2 copies of the model on 2 stages each, MPI: all_reduce"));
    EXPECT_THAT(four.out, HasSubstr("Waited for rank 3 (data 1, stage 1)"));
    EXPECT_THAT(four.out, ContainsRegex("\nStages of a step, mean of [1-3] steps?\n"));
    EXPECT_THAT(four.out, ContainsRegex("\n1 on ranks 2 to 3( +-?[0-9]+\\.[0-9]+){6}\n"));
    EXPECT_THAT(printed_losses(four.out), ElementsAreArray(printed_losses(one.out)));
    // Any mesh loads what any other has saved.
    const auto next = mpirun(4, model + words("--tensor 2 --pipeline 2 --load one"));
    const auto same = succeeded(alone(model + Arguments{"--load", "four"}));
    EXPECT_THAT(printed_losses(next.out), ElementsAreArray(printed_losses(same.out)));
    EXPECT_THAT(next.out, ContainsRegex("Other stages +Tensor ranks +Communication +Rest\n"));
    EXPECT_THAT(next.out, ContainsRegex("  tensor ranks +[0-9.]+ ms"));
    EXPECT_THAT(next.out, ContainsRegex("  other stages +[0-9.]+ ms"));
  }
  EXPECT_THAT(mpirun(2, model + Arguments{"--pipeline", "2"}).out,
              HasSubstr("2 ranks, one copy of the model on 2 stages, MPI: send_receive of "));
  const auto explained = succeeded(mpirun(2, model + Arguments{"--pipeline", "2", "--explain"}));
  EXPECT_THAT(explained.out, HasSubstr("net.2.out[4x5] to pipeline rank 1"));
  EXPECT_EQ(count(explained.out, "The programs of all 2 ranks, checked together: in every group "),
            1);
}

TEST_F(MlpDdp, AloneIsOneRankAndParsesItsOwnOptions) {
  const std::vector<Arguments> runs = {
      words("--global-batch-size 4 --data-seeding per-rank --transport mpi --bucket-mib 0.5 "
            "--first-bucket whole --delay-ms 1 --scheme ddp --tensor 1 --pipeline 1"),
      {"--accumulate", "2", "--reduce-every-micro-step"},
      words("--batch-size 4 --no-overlap --update per-bucket --slow-rank 0:1 --jitter-ms 1 "
            "--timeout 60 --grad-dtype fp32"),
  };
  // Their first lines say what they exchange instead.
  const std::vector<Arguments> others = {
      {"--scheme", "server", "--servers", "1", "--server-reduce", "tree"},
      {"--sync-every", "3", "--outer", "diloco"}};
  const std::vector<std::string> own = options_of(alone({"--help"}).out);
  std::set<std::string> named(own.begin(), own.end());
  for (const std::string& name : options_of(run_process({MLP_SINGLE, "--help"}).out)) {
    if (name != "batch-size" && name != "delay-ms" && name != "update") named.erase(name);
  }
  std::set<std::string> covered;
  const auto expect_runs = [&](const std::vector<Arguments>& command_lines, const char* exchanges) {
    for (const Arguments& arguments : command_lines) {
      for (const std::string& argument : arguments) {
        if (argument.starts_with("--")) covered.insert(argument.substr(2));
      }
      EXPECT_THAT(succeeded(alone(kTiny + arguments)).out, ContainsRegex(exchanges));
    }
  };
  expect_runs(runs, "^1 rank, MPI: all_reduce of ");
  expect_runs(others, "^1 rank, MPI: (broadcast of 1 bucket|all_reduce of 1 message)");
  for (const char* const shared : {"accumulate", "scheme"}) covered.erase(shared);
  covered.insert({"schedule", "micro-batches"});  // need a second rank, and are tested there
  EXPECT_EQ(named, covered);
}

// Open MPI would start a daemon for a process that no launcher started, through ssh.
TEST_F(MlpDdp, AloneNeedsNoOtherProgram) {
  const auto result =
      succeeded(shell("exec /usr/bin/env -i PATH=/nowhere ASAN_OPTIONS=\"$ASAN_OPTIONS\" ./mlp_ddp "
                      "--device cpu --dim 8 --steps 1"));
  EXPECT_THAT(result.out, HasSubstr("\nStep 00 | "));
}

TEST_F(MlpDdp, WithoutAGpuSaysInOneLineWhyThereIsNone) {
  const auto result =
      shell("CUDA_VISIBLE_DEVICES= exec mpirun -np 2 ./mlp_ddp --device cuda --dim 8");
  EXPECT_THAT(result, Fails(69, StartsWith("mlp_ddp: error: device 'cuda': ")));
}

TEST_F(MlpDdp, TakesAThreadForEachCpuItMayUse) {
  const auto result = succeeded(shell(fmt::format(
      "exec taskset -c {} mpirun -np 1 ./mlp_ddp --device cpu --dim 8 --depth 1 --steps 1",
      allowed_cpus()._Find_first())));
  EXPECT_THAT(result.out, ContainsRegex("\ncpu: .*, 1 thread, "));
}

TEST_F(MlpDdp, ShowsHelpAndPlanOnce) {
  const auto help = mpirun(2, {"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(count(help.out, "Usage: mlp_ddp"), 1);
  const auto plan = mpirun(2, kTiny + Arguments{"--plan", "--explain"});
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_THAT(plan.out, HasSubstr("communication"));
  EXPECT_THAT(plan.out, HasSubstr("all_reduce"));
  EXPECT_EQ(count(plan.out, "72 parameters"), 1);
}

/// 3 layers of 4 x 4 + 4 numbers: the first stage has two of them.
TEST_F(MlpDdp, PlansTheMemoryOfARankOfEachStage) {
  const auto plan = succeeded(mpirun(
      2, {"--dim", "4", "--depth", "3", "--pipeline", "2", "--plan", "--update", "separate"}));
  EXPECT_EQ(count(plan.out, "What a rank of each stage needs"), 1);
  EXPECT_THAT(plan.out, ContainsRegex("\n +stage 0 +stage 1\n +parameters +"));
  const auto rest = plan.out.substr(plan.out.find("What a rank"));
  EXPECT_THAT(rest, ContainsRegex("parameters +256 B +256 B"));
}

}  // namespace
}  // namespace barestep
