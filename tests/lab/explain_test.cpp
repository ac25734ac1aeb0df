// mlp_lab explain on traces whose every part is known: made by hand, by us and by PyTorch.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "lab/commands.h"
#include "lab/explain/explain_report.h"
#include "lab/explain/traced_mlp.h"
#include "support/sample_profile.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Events of a made-up trace. Times are in microseconds.
class MadeTrace {
 public:
  MadeTrace& event(const char* category, const std::string& name, int pid, int tid, double at,
                   double duration, nlohmann::json args = nlohmann::json::object()) {
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", at + shift_us_},
                       {"dur", duration},
                       {"args", std::move(args)}});
    return *this;
  }
  MadeTrace& on_host(const char* category, const std::string& name, double at, double duration) {
    return event(category, name, 100, 1, at, duration);
  }
  /// A call of 2 us, and the work that it queues.
  MadeTrace& work(int correlation, double called, int stream, const std::string& name, double begin,
                  double end, const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json args = {{"correlation", correlation}, {"stream", stream}};
    args.update(more);
    event("cuda_runtime", "cudaLaunchKernel", 100, 1, called, 2, {{"correlation", correlation}});
    return event(name.starts_with("Memcpy") ? "gpu_memcpy" : "kernel", name, 0, stream, begin,
                 end - begin, args);
  }
  MadeTrace& shifted(double us) {
    shift_us_ = us;
    return *this;
  }
  [[nodiscard]] std::string text(int rank = 0) const {
    return nlohmann::json{{"distributedInfo", {{"rank", rank}}},
                          {"baseTimeNanoseconds", 1790857026000000000},
                          {"traceEvents", events_}}
        .dump();
  }

 private:
  nlohmann::json events_ = nlohmann::json::array();
  double shift_us_ = 0;
};

const nlohmann::json kAllReduced = {{"Collective name", "allreduce"},
                                    {"In msg nelems", 1000000},
                                    {"Out msg nelems", 1000000},
                                    {"Group size", 2},
                                    {"dtype", "Float"},
                                    {"Process Group Name", "0"}};
constexpr const char* kAllReduceKernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclArgs)";

/// A step of 1000 us with every cause.
MadeTrace step_of_every_cause() {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#7", 0, 1000)
      .on_host("cpu_op", "aten::linear", 10, 10)
      .work(1, 12, 7, "gemm", 50, 150)
      .on_host("cpu_op", "aten::mse_loss", 20, 10)
      .work(2, 22, 7, "mse", 150, 180)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 40, 20)
      .work(3, 45, 7, "gemm", 180, 380)
      .work(4, 50, 20, kAllReduceKernel, 300, 480, kAllReduced)
      .on_host("user_annotation", "Optimizer.step#Adam.step", 60, 400)
      .work(5, 70, 7, "adam", 500, 600)
      .work(6, 700, 7, "gemm", 710, 800)
      .work(7, 705, 7, "Memcpy HtoD (Pinned -> Device)", 800, 850);
  return trace;
}

class Explain : public TempDirTest {
 protected:
  TracedRun run_of(const std::vector<std::string>& texts) {
    std::vector<std::filesystem::path> paths;
    for (const std::string& text : texts) {
      paths.push_back(file(fmt::format("{}.json", paths.size()), text));
    }
    return read_run(paths);
  }

  static std::int64_t us(const TracedAccount& account, Part part) {
    return account.part_ns[part] / 1000;
  }

  static void expect_sum(const TracedAccount& account) {
    std::int64_t sum = 0;
    for (const Part part : kValuesOf<Part>) {
      EXPECT_GE(account.part_ns[part], 0) << name_of(part);
      sum += account.part_ns[part];
    }
    EXPECT_EQ(sum, account.wall_ns);
  }

  static void expect_every_cause(const TracedAccount& account) {
    expect_sum(account);
    EXPECT_EQ(account.number, 7);
    EXPECT_EQ(account.wall_ns, 1'000'000);
    EXPECT_EQ(us(account, Part::kForward), 100 + 90);
    EXPECT_EQ(us(account, Part::kLoss), 30);
    EXPECT_EQ(us(account, Part::kBackward), 200);
    EXPECT_EQ(us(account, Part::kExposedCommunication), 100);
    EXPECT_EQ(us(account, Part::kOptimizer), 100);
    EXPECT_EQ(us(account, Part::kHostToDevice), 50);
    EXPECT_EQ(us(account, Part::kHost), 12 + 100 + 150);
    EXPECT_EQ(us(account, Part::kIdle), 38 + 20 + 10);
    EXPECT_EQ(account.hidden_ns, 80'000);
  }
};

TEST_F(Explain, FindsEveryCauseInAStepOfAGpu) {
  MadeTrace trace = step_of_every_cause();
  trace.event("cuda_runtime", "cudaEventRecord", 100, 1, 55, 1, {{"correlation", 9}})
      .event("cuda_runtime", "cudaStreamWaitEvent", 100, 1, 62, 1, {{"correlation", 10}})
      .event("cuda_sync", "Stream Wait Event", 0, 7, 62, 0.5,
             {{"correlation", 10},
              {"stream", 7},
              {"wait_on_stream", 20},
              {"wait_on_cuda_event_record_corr_id", 9}});
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_every_cause(account.accounts[0]);
  for (const std::string& fact : findings_of(run, account).facts) {
    EXPECT_THAT(fact, Not(HasSubstr("No waits between streams")));
  }
}

TEST_F(Explain, GuessesWhatHeldAStreamAndSaysSo) {
  const TracedRun run = run_of({step_of_every_cause().text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_every_cause(account.accounts[0]);
  EXPECT_THAT(findings_of(run, account).facts,
              testing::Contains(HasSubstr("No waits between streams in the trace of rank 0")));
}

TEST_F(Explain, BlamesTheDeviceForWhichTheHostWaits) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 0, 600)
      .work(2, 5, 20, kAllReduceKernel, 610, 680, kAllReduced)
      .event("cuda_runtime", "cudaStreamSynchronize", 100, 1, 10, 690, {{"correlation", 3}})
      .work(4, 700, 7, "gemm", 700, 1000);
  const RunAccount account = account_of(run_of({trace.text()}));
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kExposedCommunication), 70);
  EXPECT_EQ(us(account.accounts[0], Part::kHost), 10 + 20);
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 900);
}

MadeTrace rank_of_two(double enters, double shift_us = 0) {
  MadeTrace trace;
  trace.shifted(shift_us)
      .on_host("user_annotation", "ProfilerStep#0", 0, 500)
      .work(1, 0, 7, "gemm", 0, enters)
      .work(2, 1, 20, kAllReduceKernel, enters, 400, kAllReduced)
      .work(3, 2, 7, "adam", 400, 500);
  return trace;
}

TEST_F(Explain, TellsWaitingForTheLastRankFromMoving) {
  const TracedRun run = run_of({rank_of_two(100).text(0), rank_of_two(300).text(1)});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 2U);
  EXPECT_EQ(account.accounts[0].waiting_ns, 200'000);
  EXPECT_EQ(account.accounts[0].moving_ns(), 100'000);
  EXPECT_EQ(account.accounts[1].waiting_ns, 0);
  EXPECT_EQ(account.accounts[1].moving_ns(), 100'000);
  EXPECT_EQ(account.waited_ns, (std::vector<std::vector<std::int64_t>>{{0, 200'000}, {0, 0}}));
  ASSERT_EQ(account.buckets.size(), 1U);
  // 4 MB in 100 us; two ranks send 2 (n - 1) / n = 1 times that.
  EXPECT_NEAR(account.buckets[0].bus_bytes_per_s(), 4e10, 1);
  EXPECT_EQ(run.ranks[1].shift_ns, 0);
}

TEST_F(Explain, AlignsClocksThatCannotBeRight) {
  const TracedRun run = run_of({rank_of_two(100).text(0), rank_of_two(300, 5000).text(1)});
  // Rank 1 entered before rank 0 left and left after rank 0 entered: 4900 to 5300 us too late.
  EXPECT_EQ(run.ranks[1].shift_ns, -5'100'000);
  EXPECT_EQ(run.ranks[1].shift_error_ns, 200'000);
  const RunAccount account = account_of(run);
  for (const TracedAccount& each : account.accounts) expect_sum(each);
  EXPECT_THAT(findings_of(run, account).facts,
              testing::Contains(HasSubstr("The clock of rank 1 contradicts the first rank's")));
}

TEST_F(Explain, DividesStepsByTheOptimizerIfNothingElseMarksThem) {
  MadeTrace trace;
  for (const double at : {0.0, 100.0}) {
    trace.on_host("cpu_op", "aten::linear", at, 60)
        .on_host("user_annotation", "Optimizer.step#SGD.step", at + 80, 10);
    trace.on_host("cpu_op", "aten::add_", at + 82, 4);
  }
  const RunAccount account = account_of(run_of({trace.text()}));
  ASSERT_EQ(account.accounts.size(), 2U);
  EXPECT_EQ(account.accounts[0].wall_ns, 90'000);
  EXPECT_EQ(account.accounts[1].wall_ns, 100'000);
  EXPECT_EQ(us(account.accounts[1], Part::kForward), 60);
  EXPECT_EQ(us(account.accounts[1], Part::kOptimizer), 4);
  EXPECT_EQ(us(account.accounts[1], Part::kHost), 36);
}

TEST_F(Explain, TakesTheWholeTraceAsAStepIfNothingMarksAny) {
  MadeTrace trace;
  trace.work(1, 0, 7, "gemm", 10, 60);
  const RunAccount account = account_of(run_of({trace.text()}));
  ASSERT_EQ(account.accounts.size(), 1U);
  EXPECT_EQ(account.accounts[0].wall_ns, 60'000);
}

TEST_F(Explain, GivesBackTheAccountOfOurOwnTrace) {
  const SampleProfile sample;
  const TraceContext context{.program = "mlp_single",
                             .version = "1",
                             .trace_name = "t",
                             .device_name = "cpu",
                             .pid = 4711,
                             .thread = 4711};
  TraceEvents events({.host_s = 100, .unix_ns = 1711964646000000000});
  add_profile(events, sample.profile(), context);
  events.close();
  const RunAccount account = account_of(run_of({trace_text(events, context)}));
  const std::vector<StepAccount> expected = accounts_of(sample.profile());
  ASSERT_EQ(account.accounts.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_sum(account.accounts[i]);
    EXPECT_NEAR(1e-9 * static_cast<double>(account.accounts[i].wall_ns), expected[i].wall_s, 1e-8);
    for (const Part part : kValuesOf<Part>) {
      EXPECT_NEAR(1e-9 * static_cast<double>(account.accounts[i].part_ns[part]), expected[i][part],
                  1e-8)
          << name_of(part);
    }
  }
}

const std::filesystem::path kTraces = BARESTEP_TEST_TRACES;

TEST_F(Explain, AccountsForPyTorchOnOneProcess) {
  const TracedRun run = read_run({kTraces / "pytorch_cpu.json.gz"});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 3U);
  for (const TracedAccount& each : account.accounts) {
    expect_sum(each);
    for (const Part part :
         {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer, Part::kHost}) {
      EXPECT_GT(each.part_ns[part], 0) << name_of(part);
    }
    EXPECT_EQ(each.part_ns[Part::kExposedCommunication], 0);
  }
}

TEST_F(Explain, FindsTheRankOfPyTorchThatSleeps) {
  const TracedRun run =
      read_run({kTraces / "pytorch_ddp.rank0.json.gz", kTraces / "pytorch_ddp.rank1.json.gz"});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 6U);
  for (const TracedAccount& each : account.accounts) {
    expect_sum(each);
    // Rank 1 slept for 20 ms in each step; rank 0 was some milliseconds late itself.
    if (each.rank == 1) EXPECT_GT(each.part_ns[Part::kHost], 20'000'000);
    if (each.rank == 0) EXPECT_GT(each.waiting_ns, 10'000'000);
  }
  const Findings findings = findings_of(run, account);
  EXPECT_THAT(findings.sentences[0],
              ContainsRegex("The bottleneck is rank 1: the others wait [0-9.]+ ms a step for it, "
                            "[0-9.]+ % of theirs, and it spends [0-9.]+ ms a step more than they "
                            "do on the host"));
  EXPECT_THAT(findings.sentences[1], HasSubstr("To change, on rank 1: "));
}

TEST_F(Explain, RecognizesAnMlpAndPredictsIt) {
  const TracedRun run = read_run({kTraces / "pytorch_cpu.json.gz"});
  const RunAccount account = account_of(run);
  const Findings without = mlp_findings(run, account, "");
  ASSERT_EQ(without.sentences.size(), 2U);
  EXPECT_THAT(without.sentences[0], HasSubstr("widths 256, 256, 256, 256 with 64 rows a rank"));
  EXPECT_THAT(without.sentences[0], ContainsRegex("mlp_single .*--layers 256,256,256,256"));
  EXPECT_THAT(without.sentences[1], HasSubstr("state the card of a machine with --machine"));
  const Findings with = mlp_findings(run, account, "h100-nvlink");
  ASSERT_EQ(with.tables.size(), 1U);
  EXPECT_EQ(with.tables[0].rows.size(), 5U);
  MadeTrace other = step_of_every_cause();  // no shapes
  EXPECT_TRUE(mlp_findings(run_of({other.text()}), account, "").sentences.empty());
}

TEST_F(Explain, WritesNoMarkupOfATrace) {
  MadeTrace trace;
  const std::string name = "<script>alert(`x`)</script>[a](javascript:b)";
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 100)
      .on_host("cpu_op", name, 0, 10)
      .work(1, 2, 7, name, 10, 60);
  const auto path = file("t.json", trace.text());
  testing::internal::CaptureStdout();
  explain_traces({.traces = {path}, .output = folder() / "out"});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("report.html"));
  EXPECT_THAT(read_file(folder() / "out/report.html"), Not(HasSubstr("<script")));
  EXPECT_THAT(read_file(folder() / "out/report.html"), HasSubstr("&lt;script&gt;"));
  const std::string markdown = read_file(folder() / "out/report.md");
  EXPECT_THAT(markdown, HasSubstr("\\<script>alert(\\`x\\`)\\</script>\\[a]"));
  EXPECT_THAT(markdown, Not(HasSubstr("|<")));
  const auto results = nlohmann::json::parse(read_file(folder() / "out/results.json"));
  EXPECT_DOUBLE_EQ(results.at("accounts").at(0).at("wall_s").get<double>(), 1e-4);
}

}  // namespace
}  // namespace barestep
