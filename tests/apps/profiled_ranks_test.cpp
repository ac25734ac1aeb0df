// mlp_ddp with --profile and --trace: one trace per rank, on a common clock.
#include <nlohmann/json.hpp>

#include "apps/on_cpu.h"
#include "profiler/account.h"
#include "support/arguments.h"
#include "support/busy_machine.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/testing.h"
#include "support/trace_rules.h"

namespace barestep {
namespace {

using nlohmann::json;
using ::testing::Pair;

/// Runs the tests' reader of traces; nothing if it is not installed.
class TraceReaderTest : public ProgramTest {
 protected:
  std::optional<json> found_by_reader(const std::string& what) {
    const char* const python = std::getenv("BARESTEP_READERS_PYTHON");
    const ProcessResult theirs = execute({"/usr/bin/env", python != nullptr ? python : "python3",
                                          READERS_PY, what, "t.rank0.json", "t.rank1.json"});
    if (theirs.exit_code == 77 || theirs.exit_code == 127) return std::nullopt;
    EXPECT_EQ(theirs.exit_code, 0) << theirs.err;
    return json::parse(theirs.out.substr(theirs.out.rfind("\n{"))).at("ranks");
  }
};

class ProfiledRanks : public TraceReaderTest {
 protected:
  ProcessResult run(const Arguments& arguments, int ranks = 2) {
    return bash(fmt::format(". '{}' && exec mpirun -np {} '{}' {}", BARESTEP_MPI_ENV, ranks,
                            MLP_DDP,
                            fmt::join(on_cpu(Arguments{"--threads", "1"} + arguments), " ")));
  }
};

const Arguments kTwoLayers = {"--layers", "12,16,9", "--global-batch-size", "10"};

/// When a rank was in the collectives of its trace, in seconds of Unix time, by step and size.
std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, double>> collectives_of(
    const std::string& text) {
  const json trace = json::parse(text);
  const double base_s = trace.at("baseTimeNanoseconds").get<double>() / 1e9;
  std::vector<std::pair<double, std::int64_t>> steps;  // begin, number
  for (const json& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    if (!name.starts_with("ProfilerStep#")) continue;
    steps.emplace_back(event.at("ts"), std::stoll(name.substr(13)));
  }
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, double>> found;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "kernel" || !event.at("args").contains("Collective name")) {
      continue;
    }
    const double begin_us = event.at("ts");
    std::int64_t step = -1;
    for (const auto& [step_begin_us, number] : steps) {
      if (begin_us >= step_begin_us) step = number;
    }
    const double begin_s = base_s + begin_us / 1e6;
    found[{step, event.at("args").at("In msg nelems")}] = {
        begin_s, begin_s + event.at("dur").get<double>() / 1e6};
  }
  return found;
}

TEST_F(ProfiledRanks, WriteATraceEachAndRankZeroTellsOfItsSteps) {
  const auto result =
      succeeded(run(kTwoLayers + Arguments{"--steps", "12", "--profile", "--profile-steps", "6:9",
                                           "--trace", "t.json.gz"}));
  EXPECT_THAT(result.out, HasSubstr("\nProfile of the steps 6 to 8, rank 0 of 2, "));
  EXPECT_EQ(result.out.find("rank 1 of 2"), std::string::npos);
  EXPECT_THAT(result.out, ContainsRegex("\n +gemm +[0-9.]+% .* 15 "));
  // The loss and one bucket, each in three steps.
  EXPECT_THAT(result.out, ContainsRegex("\n +all_reduce +[0-9.]+% .* 6 "));
  EXPECT_THAT(result.out, HasSubstr("\nAccount of a profiled step, mean of 3\n"));
  // The account of communication uses the same records.
  EXPECT_THAT(result.out, HasSubstr("\nCommunication of a step, mean of 7 steps and 2 ranks\n"));

  succeeded(execute({"/bin/gzip", "-d", "t.rank0.json.gz", "t.rank1.json.gz"}));
  for (const int rank : {0, 1}) {
    const std::string trace = text(fmt::format("t.rank{}.json", rank));
    EXPECT_THAT(broken_rules(trace), IsEmpty());
    EXPECT_THAT(trace, HasSubstr(fmt::format("\n\"rank\": {},\n\"world_size\": 2\n", rank)));
    EXPECT_THAT(trace, HasSubstr("\"backend\": \"mpi\""));
    EXPECT_THAT(trace, ContainsRegex("\n\"clock_error_us\": [0-9.]+,\n"));
    EXPECT_THAT(trace, HasSubstr("\"record_param_comms\""));
    EXPECT_THAT(trace, HasSubstr("ProfilerStep#9\""));
  }
  EXPECT_FALSE(std::filesystem::exists(folder() / "t.json.gz"));

  succeeded(execute({MLP_LAB, "merge-traces", "all.json", "t.rank0.json", "t.rank1.json"}));
  EXPECT_THAT(broken_rules_of_merged(text("all.json")), IsEmpty());
}

/// An all-reduce cannot end on a rank before it began on every other; with different clocks it
/// would.
TEST_F(ProfiledRanks, TellOfAFirstStepThatHasAProgramOfItsOwn) {
  const auto result =
      succeeded(run(kTwoLayers + Arguments{"--first-bucket", "whole", "--steps", "12", "--profile",
                                           "--profile-steps", "0:3", "--trace", "t.json"}));
  EXPECT_THAT(result.out, HasSubstr("\nProfile of the steps 0 to 2, rank 0 of 2, "));
  EXPECT_THAT(result.out, ContainsRegex("\n +gemm +[0-9.]+% .* 15 "));
  EXPECT_THAT(result.out, ContainsRegex("\n +all_reduce +[0-9.]+% .* 6 "));
  std::map<std::int64_t, int> collectives;  // in each step; the last one closes the trace
  for (const auto& [key, times] : collectives_of(text("t.rank0.json"))) ++collectives[key.first];
  EXPECT_THAT(collectives, ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 2), Pair(3, 2)));
}

TEST_F(ProfiledRanks, ShowCollectivesAtTheSameTime) {
  constexpr double kClockErrorSeconds = 1e-3;  // far below the delay
  repeat_while_busy([&] {
    const auto result =
        succeeded(run(kTwoLayers + Arguments{"--steps", "12", "--profile-steps", "2:10",
                                             "--slow-rank", "1:2", "--trace", "t.json"}));
    const auto first = collectives_of(text("t.rank0.json"));
    const auto second = collectives_of(text("t.rank1.json"));
    ASSERT_EQ(first.size(), 9U * 2);
    for (const auto& [key, mine] : first) {
      ASSERT_TRUE(second.contains(key));
      const auto& theirs = second.at(key);
      EXPECT_LT(theirs.first, mine.second + kClockErrorSeconds);
      EXPECT_LT(mine.first, theirs.second + kClockErrorSeconds);
    }
  });
}

/// A captured collective is named after its first step; its records give the actual step.
TEST_F(ProfiledRanks, TellTheStepsOfCollectivesInAGraph) {
  const auto result =
      succeeded(run(kTwoLayers + Arguments{"--steps", "12", "--graph", "--profile-steps", "6:9",
                                           "--trace", "t.json"}));
  const std::string trace = text("t.rank0.json");
  EXPECT_THAT(broken_rules(trace), IsEmpty());
  std::map<std::int64_t, int> of_step;
  for (const auto& [key, times] : collectives_of(trace)) ++of_step[key.first];
  EXPECT_EQ(of_step, (std::map<std::int64_t, int>{{6, 2}, {7, 2}, {8, 2}, {9, 2}}));
}

TEST_F(ProfiledRanks, ThatDivergeWriteTheTracesOfTheStepsBefore) {
  const auto result = run(kTwoLayers + Arguments{"--steps", "20", "--lr", "1e30", "--profile-steps",
                                                 "0:5", "--trace", "t.json"});
  EXPECT_THAT(result,
              Fails(76, StartsWith("mlp_ddp: note: 't.rank0.json' holds the profiled steps before "
                                   "that: 0 to 0\nmlp_ddp: error: training diverged: ")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(broken_rules(text(fmt::format("t.rank{}.json", rank))), IsEmpty());
  }
}

TEST_F(ProfiledRanks, RefuseInOneLineWhatOneOfThemCannotWrite) {
  std::filesystem::create_directory(folder() / "t.rank1.json");
  const auto result = run(kTwoLayers + Arguments{"--trace", "t.json"});
  EXPECT_THAT(result, Fails(73, StartsWith("mlp_ddp: error: output file 't.rank1.json': ")));
  const auto steps =
      run(kTwoLayers + Arguments{"--steps", "5", "--profile", "--profile-steps", "3:9"});
  EXPECT_THAT(steps,
              Fails(78, StartsWith("mlp_ddp: error: --profile-steps '3:9': the run has the steps "
                                   "0 to 4; ")));
}

TEST_F(ProfiledRanks, ThatAreStoppedBeforeTheirStepsSaySo) {
  const auto result = bash(fmt::format(
      ". '{}' && {{ mpirun -np 2 '{}' --device cpu --threads 1 --dim 8 --depth 1 --steps 100000 "
      "--delay-ms 2 --metrics m --profile --trace t.json & }} && job=$! && "
      "until grep -qs queued_s m; do sleep 0.01; done && kill -USR1 $job; wait $job",
      BARESTEP_MPI_ENV, MLP_DDP));
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nThere is nothing to show of the steps 99950 to 99999: the "
                                    "run ended before them\n"));
  EXPECT_THAT(result.err, HasSubstr("mlp_ddp: note: no profiled step was done, so 't.rank0.json' "
                                    "is not written\n"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "t.rank0.json"));
}

TEST_F(ProfiledRanks, HaveTheLossesOfARunWithoutProfiling) {
  const Arguments some = kTwoLayers + Arguments{"--steps", "8", "--gemm", "reference"};
  const auto losses = [&](const std::string& name, const Arguments& more) {
    succeeded(run(some + Arguments{"--metrics", name} + more));
    std::map<std::pair<int, int>, double> all;
    for (const json& record : records(name)) {
      all[{record.at("rank"), record.at("step")}] = record.at("loss");
    }
    return all;
  };
  const auto plain = losses("plain", {});
  EXPECT_EQ(plain.size(), 16U);
  EXPECT_EQ(losses("profiled", {"--profile", "--trace", "t.json"}), plain);
}

/// Both count the communication that computation hides, and the time with neither.
TEST_F(ProfiledRanks, AreToHolisticTraceAnalysisWhatTheyAreToUs) {
  const auto result =
      succeeded(run({"--dim", "64", "--depth", "3", "--bucket-mib", "0.02", "--steps", "12",
                     "--profile", "--profile-steps", "6:9", "--trace", "t.json"}));
  const std::optional<json> theirs = found_by_reader("hta");
  if (!theirs) GTEST_SKIP() << "HolisticTraceAnalysis is not installed";
  ASSERT_EQ(theirs->size(), 2U);
  const auto ours = first_match(
      result.out,
      "From first to last op the device computes ([0-9.]+) % of [0-9.]+[mu]?s, only copies or "
      "communicates ([0-9.]+) %, and is idle ([0-9.]+) %; ([0-9.]+) % of communication overlaps "
      "computation");
  ASSERT_FALSE(ours.empty()) << result.out;
  const json& first = theirs->at(0);
  const double span = first.at("span");
  const auto expect_near = [&](int group, double theirs_percent) {
    // Our output has one decimal.
    EXPECT_NEAR(std::stod(ours[static_cast<std::size_t>(group)]), theirs_percent,
                0.01 * theirs_percent + 0.06);
  };
  expect_near(1, 100 * first.at("compute").get<double>() / span);
  expect_near(2, 100 * first.at("non_compute").get<double>() / span);
  expect_near(3, 100 * first.at("idle").get<double>() / span);
  expect_near(4, 100 * first.at("overlap").get<double>());
}

/// What `mlp_lab explain` finds in traces, against the metrics of the same run, to the microsecond.
class ExplainedRuns : public TraceReaderTest {
 protected:
  /// `program` is a command that starts a trainer. Writes its traces t*.json, its metrics m.jsonl,
  /// and the results of `mlp_lab explain`.
  void run(const std::string& program) {
    succeeded(bash(
        fmt::format(". '{}' && rm -rf t*.json out && {} --steps 9 --warmup 2 --profile-steps 4:7 "
                    "--trace t.json --metrics m.jsonl && '{}' explain t*.json --output out",
                    BARESTEP_MPI_ENV, program, MLP_LAB)));
  }

  /// Requires `count` accounts.
  void expect_own_account(const std::string& program, std::int64_t count) {
    SCOPED_TRACE(program);
    run(program + " --layers 12,16,9");
    std::map<std::pair<int, int>, json> of_metrics;  // by rank and step
    for (const json& record : records("m.jsonl")) {
      if (record.contains("phases_s")) {
        of_metrics[{record.at("rank"), record.at("step")}] = record.at("phases_s");
      }
    }
    const json explained = json::parse(text("out/results.json"));
    std::int64_t found = 0;
    for (const json& account : explained.at("accounts")) {
      const auto metrics = of_metrics.find({account.at("rank"), account.at("step")});
      if (metrics == of_metrics.end()) continue;  // of another device than the first
      ++found;
      std::map<std::string, double> parts;
      for (const auto& [name, seconds] : account.at("parts_s").items()) {
        parts[key_of(name)] += seconds.get<double>();
      }
      for (const auto& [key, seconds] : metrics->second.items()) {
        EXPECT_NEAR(parts[key], seconds.get<double>(), 1e-6) << key;
      }
    }
    EXPECT_GE(found, count);
  }

  /// Of a part in records of metrics.
  static std::string key_of(const std::string& part) {
    for (const PartTraits& traits : kAccountParts) {
      if (traits.name == part) return std::string(traits.key);
    }
    return part;
  }
};

TEST_F(ExplainedRuns, HaveTheirOwnAccountOnOneDeviceAndSeveral) {
  const std::string single = fmt::format("'{}' --device cpu --batch-size 8 ", MLP_SINGLE);
  for (const char* const options :
       {"", "--graph", "--accumulate 2", "--update separate --recompute 2"}) {
    expect_own_account(single + options, 3);
  }
  expect_own_account(fmt::format("'{}' --devices cpu,cpu --batch-size 8", MLP_DP), 3);
}

TEST_F(ExplainedRuns, HaveTheirOwnAccountWithEveryScheme) {
  for (const char* const scheme : {"ddp", "zero1", "factor"}) {
    expect_own_account(
        fmt::format("mpirun -np 2 '{}' --device cpu --threads 1 --global-batch-size 8 --scheme {}",
                    MLP_DDP, scheme),
        6);
  }
}

TEST_F(ExplainedRuns, AreAsBusyAsForHolisticTraceAnalysis) {
  for (const char* const scheme : {"ddp", "zero1", "factor"}) {
    SCOPED_TRACE(scheme);
    run(
        fmt::format("mpirun -np 2 '{}' --device cpu --threads 1 --dim 128 --depth 6 "
                    "--global-batch-size 16 --bucket-mib 0.1 --scheme {}",
                    MLP_DDP, scheme));
    const std::optional<json> theirs = found_by_reader("hta-all");
    if (!theirs) GTEST_SKIP() << "HolisticTraceAnalysis is not installed";
    const json ours = json::parse(text("out/results.json")).at("devices");
    ASSERT_EQ(ours.size(), 2U);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      // Both count nanoseconds; the share is rounded to a hundredth of a percent.
      for (const char* const time : {"span", "compute", "non_compute", "idle", "communication"}) {
        const double our_us = 1e6 * ours[rank].at(std::string(time) + "_s").get<double>();
        EXPECT_NEAR(our_us, theirs->at(rank).at(time).get<double>(), 0.01) << time;
      }
      EXPECT_GT(ours[rank].at("communication_s").get<double>(), 0);
      EXPECT_NEAR(ours[rank].at("overlap").get<double>(),
                  theirs->at(rank).at("overlap").get<double>(), 6e-5);
    }
  }
}

}  // namespace
}  // namespace barestep
