// mlp_lab explain --scaling on traces whose factors are known.
#include "lab/explain/trace_scaling.h"

#include "lab/commands.h"
#include "lab/made_trace.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using enum ScalingFactor;

/// A step of a rank in microseconds: it computes, is in an all-reduce until the last rank has
/// entered and the bytes have moved, and updates.
struct MadeStep {
  double computes = 0, all_reduced = 0, ends = 0;
};

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::directory_iterator(folder)) files.push_back(each.path());
  return files;
}

class TraceScaling : public TempDirTest {
 protected:
  /// Steps of a rank, one after the other, with a linear layer of so many rows.
  static std::string trace_of(int rank, int ranks, const std::vector<MadeStep>& steps,
                              std::int64_t rows, std::int64_t width = 10) {
    MadeTrace trace;
    double begin = 0;
    int id = 0;
    nlohmann::json reduced = kAllReduced;
    reduced["Group size"] = ranks;
    for (const MadeStep& step : steps) {
      trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", id), begin, step.ends);
      nlohmann::json shapes = nlohmann::json::object();
      if (rows > 0) shapes["Input Dims"] = {{rows, width}, {width, width}, {width}};
      trace.event("cpu_op", "aten::linear", 100, 1, begin, 3, shapes)
          .work(++id, begin, 7, "gemm", begin, begin + step.computes);
      if (ranks > 1) {
        trace.work(++id, begin + 4, 20, kAllReduceKernel, begin + step.computes,
                   begin + step.all_reduced, reduced);
      }
      trace.on_host("user_annotation", "Optimizer.step#SGD.step", begin + 8, 4)
          .work(++id, begin + 9, 7, "sgd", begin + step.all_reduced, begin + step.ends);
      begin += step.ends;
    }
    return trace.text_of_job({{"rank", rank}, {"world_size", ranks}});
  }

  /// Writes the traces of a run, one a rank, into a folder of this name.
  std::filesystem::path write_run(const std::string& name, const std::vector<std::string>& traces) {
    std::filesystem::create_directory(folder() / name);
    for (std::size_t i = 0; i < traces.size(); ++i) {
      file(fmt::format("{}/rank{}.json", name, i), traces[i]);
    }
    return folder() / name;
  }
  ScalingRun run_of(const std::string& name, const std::vector<std::string>& traces) {
    const auto path = write_run(name, traces);
    return scaling_run_of(path, read_run(files_in(path)));
  }

  /// One rank computes 1500 us; of two, rank 1 computes 900 us and rank 0 700 us of 1000.
  ScalingRun one(std::int64_t rows) {
    return run_of("1", {trace_of(0, 1, {{1200, 1200, 1500}}, rows)});
  }
  ScalingRun two(std::int64_t rows, std::int64_t width = 10) {
    return run_of("2", {trace_of(0, 2, {{400, 700, 1000}}, rows, width),
                        trace_of(1, 2, {{600, 700, 1000}}, rows, width)});
  }
};

/// The figure of the run on so many ranks with the factor's name.
double figure(const ExplainAnswer& answer, int ranks, std::string_view name) {
  return answer.figures.at(counted(ranks, "rank")).at(std::string(name));
}
double factor_of(const ExplainAnswer& answer, int ranks, ScalingFactor factor) {
  return figure(answer, ranks, name_of(factor));
}

/// The cause in the table of losses.
std::string cause_of_loss(const ExplainAnswer& answer, int ranks, ScalingFactor factor) {
  for (const std::vector<std::string>& row : answer.findings.tables.at(1).rows) {
    if (row.at(1) == std::to_string(ranks) && row.at(2) == name_of(factor)) return row.at(0);
  }
  return "no loss";
}

TEST_F(TraceScaling, IsTheProductOfKnownFactors) {
  const ExplainAnswer answer = scaling_answer({two(32), one(64)}, std::nullopt);
  for (const ScalingFactor factor : kValuesOf<ScalingFactor>) {
    EXPECT_NEAR(factor_of(answer, 1, factor), 1, 1e-12) << name_of(factor);
  }
  EXPECT_NEAR(factor_of(answer, 2, kLoadBalance), 800.0 / 900, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kSerialization), 1, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kTransfer), 0.9, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kCommunication), 0.9, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kParallel), 0.8, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kComputation), 1500.0 / 1600, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kGlobal), 0.75, 1e-9);
  EXPECT_NEAR(figure(answer, 2, "speed-up"), 1.5, 1e-9);
  EXPECT_NEAR(figure(answer, 2, "step_s"), 1e-3, 1e-12);
  EXPECT_EQ(
      cause_of_loss(answer, 2, kLoadBalance),
      "rank 1 spends 200 us more than the others on forward, most of it in `aten::linear` (600 us "
      "of 600 us)");
  EXPECT_EQ(cause_of_loss(answer, 2, kSerialization), "no loss");
  EXPECT_EQ(cause_of_loss(answer, 2, kTransfer),
            "exchanging, 100 us, most in all_reduce of 3.81 MiB: 100 us");
  EXPECT_EQ(
      cause_of_loss(answer, 2, kComputation),
      "ranks spend 150 us more in the mean on the optimizer than on 1 rank for the same work, most "
      "of it in `sgd` (300 us of 300 us)");
}

/// Each rank is late in one of two steps, so the load is balanced, and all wait in turns.
TEST_F(TraceScaling, CallsWaitsInTurnsSerialization) {
  const MadeStep early{400, 700, 1000}, late{600, 700, 1000};
  const ExplainAnswer answer = scaling_answer(
      {one(64),
       run_of("2", {trace_of(0, 2, {early, late}, 32), trace_of(1, 2, {late, early}, 32)})},
      std::nullopt);
  EXPECT_NEAR(factor_of(answer, 2, kLoadBalance), 1, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kSerialization), 800.0 / 900, 1e-9);
  EXPECT_NEAR(factor_of(answer, 2, kTransfer), 0.9, 1e-9);
  EXPECT_EQ(cause_of_loss(answer, 2, kSerialization),
            "rank 0 waits 100 us for others, most for rank 1");
}

/// Ranks 0 and 1 reduce, then ranks 1 and 2, for which rank 2 waits. On an ideal network it would
/// not: rank 1 is late for nothing but the bytes of the first reduction.
TEST_F(TraceScaling, ReplaysAnIdealNetwork) {
  struct Reduced {
    const char* group;
    double enters, ends;
  };
  const auto rank = [](int number, const std::vector<Reduced>& reductions) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000);
    double from = 0;
    int id = 0;
    for (const Reduced& each : reductions) {
      nlohmann::json reduced = kAllReduced;
      reduced["Process Group Name"] = each.group;
      id += 2;
      trace.work(id, id, 7, "gemm", from, each.enters)
          .work(id + 1, id + 1, 20, kAllReduceKernel, each.enters, each.ends, reduced);
      from = each.ends;
    }
    trace.work(1, id + 2, 7, "gemm", from, 1000);
    return trace.text_of_job({{"rank", number}, {"world_size", 3}});
  };
  const ExplainAnswer answer = scaling_answer(
      {one(64),
       run_of("3", {rank(0, {{"a", 100, 300}}), rank(1, {{"a", 100, 300}, {"b", 400, 500}}),
                    rank(2, {{"b", 200, 500}})})},
      ScalingProblem::kStrong);
  EXPECT_NEAR(factor_of(answer, 3, kLoadBalance), (800 + 700 + 700) / 3.0 / 800, 1e-9);
  EXPECT_NEAR(factor_of(answer, 3, kSerialization), 1, 1e-9);
  EXPECT_NEAR(factor_of(answer, 3, kTransfer), 0.8, 1e-9);
}

/// The second stage receives at 400 us what the first sent at 300, and sends it back.
TEST_F(TraceScaling, ReplaysMessagesWithoutTransfers) {
  const nlohmann::json message = {{"Input Dims", {{1000}}}, {"Input type", {"float"}}};
  const auto stage = [&](int number) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000);
    const auto post = [&](bool sends, double at, double ends) {
      trace.on_host("cpu_op", sends ? "c10d::send" : "c10d::recv_", at, 2)
          .event("user_annotation", sends ? "gloo:send" : "gloo:recv", 100, 1, at + 1,
                 ends - at - 1, message);
    };
    if (number == 0) {
      trace.on_host("cpu_op", "aten::linear", 0, 298);
      post(true, 298, 400);
      post(false, 300, 800);
      trace.on_host("cpu_op", "aten::add", 800, 200);
    } else {
      post(false, 0, 400);
      trace.on_host("cpu_op", "aten::linear", 400, 298);
      post(true, 698, 800);
      trace.on_host("cpu_op", "aten::add", 700, 300);
    }
    return trace.text_of_job({{"rank", number}, {"world_size", 2}});
  };
  const ExplainAnswer answer =
      scaling_answer({one(64), run_of("2", {stage(0), stage(1)})}, ScalingProblem::kStrong);
  // The second one receives at 299 and sends at 598: it ends at 599 + 300, and the first one at
  // 798.
  EXPECT_NEAR(factor_of(answer, 2, kTransfer), 0.899, 1e-9);
}

TEST_F(TraceScaling, TellsWeakFromStrongByShapesOrSaysWhatItAssumes) {
  const ExplainAnswer weak = scaling_answer({one(64), two(64)}, std::nullopt);
  EXPECT_EQ(figure(weak, 2, "work"), 2);
  EXPECT_NEAR(factor_of(weak, 2, kComputation), 1500.0 / 800, 1e-9);
  EXPECT_NEAR(figure(weak, 2, "speed-up"), 3, 1e-9);
  const ExplainAnswer other = scaling_answer({one(64), two(48)}, std::nullopt);
  EXPECT_NEAR(figure(other, 2, "speed-up"), 1.5 * 1.5, 1e-9) << "of 96 rows, not 64";
  EXPECT_THAT(other.findings.timed.at(0).text, HasSubstr("neither strong nor weak scaling"));
  const ExplainAnswer assumed = scaling_answer({one(0), two(0)}, std::nullopt);
  EXPECT_EQ(figure(assumed, 2, "work"), 1) << "a rank of two computes half as long";
  EXPECT_THAT(assumed.findings.untimed.at(1).text, HasSubstr("strong scaling is assumed"));
  const ExplainAnswer stated = scaling_answer({one(0), two(0)}, ScalingProblem::kWeak);
  EXPECT_EQ(stated.findings.untimed.size(), 1U);
  EXPECT_THAT(stated.findings.timed.back().text, HasSubstr("/1 NEW_TRACES --problem weak."));
  EXPECT_NEAR(figure(stated, 2, "speed-up"), 3, 1e-9);
}

/// Steps of 1500, 1000 and 950 us: speed-up times efficiency is 1, 1.125 and 0.62.
TEST_F(TraceScaling, FindsTheKneeAndWritesTheParagraph) {
  std::vector<std::string> traces;
  for (int rank = 0; rank < 4; ++rank) traces.push_back(trace_of(rank, 4, {{300, 850, 950}}, 16));
  const ExplainAnswer answer =
      scaling_answer({one(64), two(32), run_of("4", traces)}, std::nullopt);
  EXPECT_NEAR(factor_of(answer, 4, kTransfer), 400.0 / 950, 1e-9);
  const std::vector<std::string> sentences = texts_of(answer.findings);
  EXPECT_EQ(
      sentences.at(0),
      "On 4 ranks a step takes 950 us, and on 1 rank 1.50 ms: samples go through 1.58x as "
      "fast, a global efficiency of 39.5 % (strong scaling: the whole batch stays the same).");
  EXPECT_EQ(sentences.at(1),
            "The knee is at 2 ranks: from there on, more ranks cost more efficiency than they gain "
            "speed.");
  EXPECT_EQ(sentences.at(2), "Below 80 %, the least that POP calls acceptable, from 2 ranks on.");
  EXPECT_EQ(
      sentences.at(3),
      "The largest loss on 4 ranks is in transfer, which is 42.1 %: exchanging, 550 us, most in "
      "all_reduce of 3.81 MiB: 550 us.");
  EXPECT_THAT(sentences.at(4),
              HasSubstr("1.50x as fast as on 1 rank where 2.00x were ideal. By the metrics of the "
                        "POP Centre of Excellence its global efficiency is 75.0 %, the product of "
                        "load balance 88.9 %, serialization 100.0 %, transfer 90.0 % and "
                        "computation scaling 93.7 %. We ask for runs on 2 ranks"));
  EXPECT_THAT(scaling_answer({one(64), two(32)}, std::nullopt).findings.timed.at(1).text,
              HasSubstr("No knee up to 2 ranks"));
}

TEST_F(TraceScaling, SaysThatRanksShareACpu) {
  const auto notes = [&](const char* second_host) {
    std::vector<std::string> traces;
    for (const int rank : {0, 1}) {
      MadeTrace trace;
      trace.on_host("user_annotation", "ProfilerStep#0", 0, 100)
          .on_host("cpu_op", "aten::mm", 0, 100)
          .event("user_annotation", "gloo:all_reduce", 100, 9, 10, 5);
      auto all = nlohmann::json::parse(trace.text_of_job({{"rank", rank}, {"world_size", 2}}));
      all["host_name"] = rank == 0 ? "node-1" : second_host;
      traces.push_back(all.dump());
    }
    return texts_of(
        scaling_answer({one(0), run_of("cpu", traces)}, ScalingProblem::kStrong).findings.untimed);
  };
  EXPECT_THAT(notes("node-1"),
              Contains(HasSubstr("All 2 ranks are on the CPU of one machine, node-1:")));
  EXPECT_THAT(notes("node-2"), Not(Contains(HasSubstr("one machine"))));
}

TEST_F(TraceScaling, RefusesWhatIsNoScaling) {
  const auto refuses = [](const char* why, const std::vector<ScalingRun>& runs) {
    expect_error(ExitCode::kBadData, why, [&] { scaling_answer(runs, std::nullopt); });
  };
  refuses("has traces of 2 ranks, as", {two(32), one(64), two(32)});
  refuses("has other linear layers than", {one(64), two(32, 12)});
  const auto part =
      write_run("part", {trace_of(0, 4, {{1, 2, 3}}, 8), trace_of(1, 4, {{1, 2, 3}}, 8)});
  expect_error(ExitCode::kBadData, "has traces of 2 of the job's 4 ranks",
               [&] { scaling_run_of(part, read_run(files_in(part))); });
}

TEST_F(TraceScaling, WritesItsReport) {
  one(64);
  two(32);
  testing::internal::CaptureStdout();
  explain_traces(
      {.traces = {folder() / "1", folder() / "2"}, .output = folder() / "out", .scaling = true});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("computation scaling"));
  EXPECT_THAT(read_file(folder() / "out/report.md"),
              HasSubstr("| --- transfer | 100.0 % | 90.0 % |"));
  EXPECT_THAT(read_file(folder() / "out/report.html"), HasSubstr("<svg"));
  const auto results = nlohmann::json::parse(read_file(folder() / "out/results.json"));
  const auto& figures = results.at("figures").at("2 ranks");
  EXPECT_NEAR(figures.at("parallel efficiency").get<double>(), 0.8, 1e-9);
  EXPECT_NEAR(figures.at("step_s").get<double>(), 1e-3, 1e-12);
  EXPECT_THAT(results.at("answers").at(0).get<std::string>(), HasSubstr("On 2 ranks a step takes"));
  EXPECT_EQ(
      results.at("answers").back(),
      fmt::format("To see what 2 ranks do: mlp_lab explain {0}/2. To verify a change, profile "
                  "it on as many: mlp_lab explain --scaling {0}/1 NEW_TRACES.",
                  folder().string()));
}

/// Of 1, 2 and 4 processes with gloo: scripts/make_scaling_traces.py. Rank 1 sleeps in each step.
TEST_F(TraceScaling, AgreesWithWhatPyTorchMeasuredItself) {
  const std::filesystem::path recorded = BARESTEP_TEST_SCALING;
  std::ifstream in(recorded / "truth.json");
  const auto truth = nlohmann::json::parse(in);
  std::vector<ScalingRun> runs;
  for (const char* ranks : {"1", "2", "4"}) {
    runs.push_back(scaling_run_of(recorded / ranks, read_run(files_in(recorded / ranks))));
  }
  const ExplainAnswer answer = scaling_answer(std::move(runs), std::nullopt);
  const double alone_ms = truth.at("1").at("step_ms");
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    const double step_ms = truth.at(std::to_string(ranks)).at("step_ms");
    const double efficiency = alone_ms / step_ms / ranks;
    EXPECT_NEAR(1e3 * figure(answer, ranks, "step_s"), step_ms, 0.05 * step_ms);
    EXPECT_NEAR(factor_of(answer, ranks, kGlobal), efficiency, 0.05 * efficiency);
    EXPECT_EQ(figure(answer, ranks, "work"), 1) << "the whole batch stays the same";
    for (const ScalingFactor factor : {kLoadBalance, kSerialization, kTransfer}) {
      EXPECT_GT(factor_of(answer, ranks, factor), 0) << name_of(factor);
      EXPECT_LE(factor_of(answer, ranks, factor), 1 + 1e-12) << name_of(factor);
    }
    if (ranks == 1) continue;
    EXPECT_THAT(cause_of_loss(answer, ranks, kLoadBalance),
                AllOf(HasSubstr("rank 1 spends "), HasSubstr("`tokenize`")));
  }
}

}  // namespace
}  // namespace barestep
