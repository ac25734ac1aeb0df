// mlp_lab explain on traces whose every part is known: made by hand, by us and by PyTorch.
#include <nlohmann/json.hpp>

#include "lab/commands.h"
#include "lab/explain/explain_report.h"
#include "lab/json_schema.h"
#include "lab/made_trace.h"
#include "support/expect_error.h"
#include "support/sample_profile.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

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
  /// What the command writes to standard output.
  static std::string printed(const ExplainOptions& options) {
    testing::internal::CaptureStdout();
    explain_traces(options);
    return testing::internal::GetCapturedStdout();
  }

  /// That results.json of a trace stands for it.
  void expect_same_from_baseline(const std::filesystem::path& trace,
                                 const std::filesystem::path& other) {
    printed({.traces = {trace}, .output = folder() / "before"});
    const auto baseline = folder() / "kept.json";
    std::filesystem::rename(folder() / "before/results.json", baseline);
    const auto difference_from = [&](const std::filesystem::path& path) {
      auto all = nlohmann::json::parse(
          printed({.traces = {path, other}, .output = folder() / "out", .json = true}));
      EXPECT_EQ(all, nlohmann::json::parse(read_file(folder() / "out/results.json")));
      EXPECT_EQ(all["a"], path.string());
      for (const char* const key : {"a", "answers"}) all.erase(key);
      return all;
    };
    EXPECT_EQ(difference_from(baseline), difference_from(trace.parent_path()));
  }

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

  /// Expects these microseconds of a trace's only step.
  void expect_parts(const MadeTrace& trace, const std::map<Part, std::int64_t>& expected_us) {
    const RunAccount run = account_of(run_of({trace.text()}));
    const TracedAccount& account = run.accounts.at(0);
    expect_sum(account);
    for (const auto& [part, expected] : expected_us) {
      EXPECT_EQ(us(account, part), expected) << name_of(part);
    }
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
    // Work is queued when the call that queues it returns.
    EXPECT_EQ(us(account, Part::kHost), 14 + 100 + 152);
    EXPECT_EQ(us(account, Part::kIdle), 36 + 20 + 8);
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
  for (const std::string& fact : texts_of(findings_of(run, account).untimed)) {
    EXPECT_THAT(fact, Not(HasSubstr("No waits between streams")));
  }
}

TEST_F(Explain, GuessesWhatHeldAStreamAndSaysSo) {
  const TracedRun run = run_of({step_of_every_cause().text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_every_cause(account.accounts[0]);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains(HasSubstr("No waits between streams in the trace of rank 0")));
}

TEST_F(Explain, SaysWhichItemsOfTheChecklistATraceTells) {
  const auto line = [&](const std::string& text) {
    const TracedRun run = run_of({text});
    return findings_of(run, account_of(run)).untimed.back().text;
  };
  const std::string unknown =
      "Checklist: [?] no frequency scaling: the trace does not say; [?] no other programs: the "
      "trace does not say; [?] seed: the trace does not say; ";
  EXPECT_EQ(line(step_of_every_cause().text()),
            unknown + "[x] warm-up: 7 steps left out; [ ] repeats: 1 start of 1 step");
  MadeTrace from_0;
  for (const int step : {0, 1}) {
    from_0.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), 500 * step, 500)
        .work(step + 1, 500 * step, 7, "gemm", 500 * step + 10, 500 * step + 490);
  }
  EXPECT_EQ(line(from_0.text()),
            unknown + "[?] warm-up: the trace does not say; [ ] repeats: 1 start of 2 steps");
}

TEST_F(Explain, BlamesTheDeviceForWhichTheHostWaits) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 0, 600)
      .work(2, 5, 20, kAllReduceKernel, 610, 680, kAllReduced)
      .event("cuda_runtime", "cudaStreamSynchronize", 100, 1, 10, 690, {{"correlation", 3}})
      .work(4, 700, 7, "gemm", 700, 1000);
  expect_parts(trace,
               {{Part::kExposedCommunication, 70}, {Part::kHost, 10 + 20}, {Part::kForward, 900}});
}

TEST_F(Explain, KnowsThatTheHostWaitsWhileAnotherThreadsCallIsShort) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 0, 100)
      .work(2, 5, 20, kAllReduceKernel, 100, 500, kAllReduced)
      .event("cuda_runtime", "cudaStreamSynchronize", 100, 1, 10, 490, {{"correlation", 3}})
      .event("cuda_runtime", "cudaMemcpyAsync", 100, 2, 120, 10, {{"correlation", 4}})
      .work(5, 500, 7, "gemm", 502, 1000);
  expect_parts(trace, {{Part::kExposedCommunication, 400}, {Part::kHost, 2}});
}

TEST_F(Explain, CountsACallThatLaunchesSlowlyAsTheHosts) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 5, 100)
      .event("cuda_runtime", "hipLaunchKernel", 100, 1, 110, 690, {{"correlation", 2}})
      .event("kernel", "adam", 0, 7, 805, 195, {{"correlation", 2}});
  expect_parts(trace, {{Part::kHost, 2 + 700}, {Part::kIdle, 3 + 5}});
}

TEST_F(Explain, CallsTimeInTheDataLoaderDataOnAGpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0,
               300)
      .on_host("cpu_op", "aten::stack", 100, 50)
      .work(1, 310, 7, "gemm", 315, 900);
  expect_parts(
      trace,
      {{Part::kDataWait, 300}, {Part::kHost, 12 + 100}, {Part::kIdle, 3}, {Part::kForward, 585}});
}

TEST_F(Explain, CallsTimeInTheDataLoaderDataOnTheCpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 600)
      .on_host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0,
               300)
      .on_host("cpu_op", "aten::stack", 100, 50)
      .on_host("cpu_op", "aten::linear", 320, 180);
  expect_parts(trace, {{Part::kDataWait, 300}, {Part::kHost, 20 + 100}, {Part::kForward, 180}});
}

TEST_F(Explain, SeesBackwardOnAnotherThreadOfTheCpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 600)
      .on_host("cpu_op", "aten::linear", 0, 100)
      .event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 100, 2, 150, 200)
      .event("cpu_op", "aten::stack", 100, 3, 100, 450)  // a loader's thread
      .on_host("user_annotation", "Optimizer.step#SGD.step", 400, 200)
      .on_host("cpu_op", "aten::add_", 450, 150);
  expect_parts(trace, {{Part::kForward, 100},
                       {Part::kHost, 50 + 50},
                       {Part::kBackward, 200},
                       {Part::kOptimizer, 50 + 150}});
}

TEST_F(Explain, FindsTheWaitForACollectiveWithinAnOpOfTheCpu) {
  MadeTrace trace;  // as FSDP's backward: its hook waits for gloo
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 0, 800)
      .on_host("cpu_op", "aten::mm", 0, 100)
      .event("user_annotation", "gloo:all_reduce", 100, 9, 50, 540)
      .event("cpu_op", "aten::copy_", 100, 9, 60, 20)  // the collective's own
      .on_host("cpu_op", "aten::copy_", 600, 200);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kBackward), 100 + 200);
  EXPECT_EQ(us(account.accounts[0], Part::kExposedCommunication), 490);
  EXPECT_EQ(us(account.accounts[0], Part::kHost), 10 + 200);
  EXPECT_EQ(account.accounts[0].hidden_ns, 50'000);
  const FindingTable operators = findings_of(run, account).tables.at(3);
  ASSERT_EQ(operators.rows.size(), 2U);
  EXPECT_EQ(operators.rows[1][1], "1") << "a call, in two pieces";
}

TEST_F(Explain, TakesNoWorkOfAnOpOfTheCpuForAWait) {
  MadeTrace trace;  // the collectives end in the middle of products, and with one
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 1000)
      .on_host("cpu_op", "aten::mm", 0, 500)
      .on_host("cpu_op", "aten::resolve_conj", 10, 10)
      .event("user_annotation", "gloo:all_reduce", 100, 9, 50, 440)
      .event("user_annotation", "gloo:all_reduce", 100, 8, 50, 650)
      .on_host("cpu_op", "aten::mm", 900, 100);
  const RunAccount account = account_of(run_of({trace.text()}));
  EXPECT_EQ(us(account.accounts[0], Part::kBackward), 1000);
}

TEST_F(Explain, FindsTheWaitForACollectiveWhoseRecordEndsALittleLater) {
  const auto exposed_us = [&](double ends) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
        .on_host("cpu_op", "aten::mm", 0, 100)
        .event("user_annotation", "gloo:all_reduce", 100, 9, 50, ends - 50)
        .on_host("cpu_op", "aten::add_", 600, 200);
    const RunAccount account = account_of(run_of({trace.text()}));
    expect_sum(account.accounts[0]);
    return us(account.accounts[0], Part::kExposedCommunication);
  };
  EXPECT_EQ(exposed_us(640), 500);
  EXPECT_EQ(exposed_us(660), 0) << "more than a tenth of the gap later: nobody waited for it";
}

TEST_F(Explain, CountsAnOpOfTheCpuThatOnlyWaitsAsCommunication) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "_c10d_functional::wait_tensor", 100, 300)
      .event("user_annotation", "gloo:all_gather", 100, 9, 50, 340)
      .on_host("cpu_op", "c10d::send", 500, 400)
      .on_host("user_annotation", "gloo:send", 510, 380);
  expect_parts(trace, {{Part::kExposedCommunication, 390 - 50}, {Part::kOtherStages, 400}});
}

/// DDP on busy cores: the op that posts an all-reduce returns long after that has ended.
TEST_F(Explain, CountsAnOpThatPostsACollectiveAsCommunication) {
  const auto rank = [](int number, double enters, double ends = 500) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
        .on_host("cpu_op", "autograd::engine::evaluate_function: AccumulateGrad", 0, 800)
        .on_host("cpu_op", "torch::autograd::AccumulateGrad", 0, 50)
        .on_host("cpu_op", "c10d::allreduce_", 100, 600)
        .on_host("cpu_op", "aten::view", 110, 5)
        .event("user_annotation", "gloo:all_reduce", 100, 9, enters, ends - enters)
        .on_host("cpu_op", "c10d::allreduce_", 750, 20)
        .on_host("user_annotation", "Optimizer.step#SGD.step", 900, 100)
        .on_host("cpu_op", "aten::add_", 900, 100);
    return trace.text_of_job({{"rank", number}, {"world_size", 2}});
  };
  const TracedRun run = run_of({rank(0, 150), rank(1, 400)});
  const RunAccount account = account_of(run);
  const TracedAccount& first = account.accounts.at(0);
  expect_sum(first);
  EXPECT_EQ(us(first, Part::kExposedCommunication), 400 + 200 + 20);
  EXPECT_EQ(us(first, Part::kBackward), 100 + 50 + 30);
  EXPECT_EQ(first.waiting_ns, 250'000) << "until the other rank enters";
  EXPECT_EQ(first.hidden_ns, 0);
  const auto sentences = texts_of(findings_of(run, account).timed);
  EXPECT_THAT(sentences[0], HasSubstr("communication"));
  const RunAccount outlived = account_of(run_of({rank(0, 150, 900), rank(1, 400, 900)}));
  expect_sum(outlived.accounts.at(0));
  EXPECT_EQ(us(outlived.accounts[0], Part::kExposedCommunication), 600 + 20 + 100);
  EXPECT_EQ(outlived.accounts[0].waiting_ns, 250'000) << "while it posts";
  EXPECT_EQ(outlived.waited_ns[1], (std::vector<std::int64_t>{0, 0}));
}

TEST_F(Explain, TellsDevicesOfOneTraceApart) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 700)
      .work(1, 0, 7, "gemm", 10, 150)
      .device(1)
      .work(2, 3, 7, "gemm", 10, 300)
      .device(0)
      .work(3, 6, 7, "gather", 300, 350)
      .work(4, 9, 7, "adam", 350, 700);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 140 + 50 + 350);
  EXPECT_EQ(us(account.accounts[0], Part::kOtherDevice), 150);
  const std::vector<DeviceBreakdown> devices = breakdowns_of(run);
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].device, "0");
  EXPECT_NEAR(devices[0].breakdown.span_s, 690e-6, 1e-12);
  EXPECT_NEAR(devices[0].breakdown.compute_s, 540e-6, 1e-12);
  EXPECT_EQ(devices[1].device, "1");
  EXPECT_NEAR(devices[1].breakdown.compute_s, 290e-6, 1e-12);
}

TEST_F(Explain, CountsHowBusyADeviceWas) {
  MadeTrace trace = step_of_every_cause();
  trace.event("kernel", "launched before the trace", 0, 7, -500, 100, {{"correlation", 99}})
      .work(8, 1010, 7, "launched after the last step", 1020, 1030);
  const std::vector<DeviceBreakdown> devices = breakdowns_of(run_of({trace.text()}));
  ASSERT_EQ(devices.size(), 1U);
  const Breakdown& times = devices[0].breakdown;
  EXPECT_NEAR(times.span_s, 800e-6, 1e-12);
  EXPECT_NEAR(times.compute_s, (330 + 100 + 90) * 1e-6, 1e-12);
  EXPECT_NEAR(times.non_compute_s, (100 + 50) * 1e-6, 1e-12);
  EXPECT_NEAR(times.idle_s, (20 + 110) * 1e-6, 1e-12);
  EXPECT_NEAR(times.communication_s, 180e-6, 1e-12);
  EXPECT_NEAR(times.overlap.value_or(0), 80.0 / 180, 1e-9);
}

TEST_F(Explain, LeavesOutAStepThatTheProfilerCut) {
  MadeTrace trace = step_of_every_cause();
  trace.on_host("user_annotation", "ProfilerStep#8", 1000, 30);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  EXPECT_EQ(account.accounts[0].number, 7);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains("1 step of rank 0 without any work is left out."));
}

TEST_F(Explain, TakesASizeFromTheAnnotationOfALaunch) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 300)
      .event("user_annotation", "nccl:all_to_all", 100, 1, 0, 20,
             {{"Input Dims", {{1000, 250}}}, {"Input type", {"c10::Half"}}})
      .work(1, 5, 20, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 10, 110)
      .work(2, 30, 7, "gemm", 120, 300);
  const RunAccount account = account_of(run_of({trace.text()}));
  ASSERT_EQ(account.buckets.size(), 1U);
  EXPECT_EQ(account.buckets[0].name, "all_to_all");
  EXPECT_EQ(account.buckets[0].bytes, 500'000);
}

TEST_F(Explain, CountsWhatAllRanksGatherOnTheCpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 300)
      .on_host("cpu_op", "aten::mm", 0, 200)
      .event("user_annotation", "gloo:all_gather", 100, 9, 10, 200,
             {{"Input Dims", {{1000, 250}}}, {"Input type", {"float"}}});
  const std::string text = trace.text_of_job({{"rank", 0}, {"world_size", 4}});
  EXPECT_EQ(account_of(run_of({text})).buckets.at(0).bytes, 4 * 1'000'000);
}

TEST_F(Explain, KnowsTheSizeOfANumberOfEachType) {
  for (const auto& [type, bytes] :
       {std::pair{"Float", 4}, {"BFloat16", 2}, {"Float8_e4m3fn", 1}, {"Short", 2}}) {
    nlohmann::json args = kAllReduced;
    args["dtype"] = type;
    MadeTrace trace;
    trace.work(1, 5, 20, kAllReduceKernel, 10, 110, args).work(2, 30, 7, "gemm", 120, 300);
    EXPECT_EQ(account_of(run_of({trace.text()})).buckets.at(0).bytes, 1'000'000 * bytes) << type;
  }
}

TEST_F(Explain, ShowsTheCollectivesThatMatterIfThereAreMany) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 3000);
  for (int i = 0; i < 30; ++i) {
    trace.work(2 * i + 1, i, 20, "ncclKernel_Broadcast", 100 * i, 100 * i + 10 + i)
        .work(2 * i + 2, i + 0.5, 7, "gemm", 100 * i + 10 + i, 100 * i + 100);
  }
  const TracedRun run = run_of({trace.text()});
  const std::vector<FindingTable> tables = findings_of(run, account_of(run)).tables;
  const auto table = std::ranges::find_if(
      tables, [](const FindingTable& each) { return each.title.starts_with("Collectives"); });
  ASSERT_NE(table, tables.end());
  EXPECT_EQ(table->title, "Collectives: mean of each, the 20 of 30 that were exposed longest");
  ASSERT_EQ(table->rows.size(), 20U);
  EXPECT_THAT(table->rows[0],
              ElementsAre("broadcast", "-", "1", "39.0 us", "39.0 us", "39.0 us", "0 ms", "-"));
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

/// Steps of 400 us that end with an all-reduce. `enters`: when each of them reaches it.
std::string rank_that_enters(int rank, const std::vector<double>& enters) {
  MadeTrace trace;
  for (std::size_t i = 0; i < enters.size(); ++i) {
    const double at = 400.0 * static_cast<double>(i);
    const int id = 2 * static_cast<int>(i);
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", i), at, 400)
        .work(id + 1, at, 7, "gemm", at + 5, at + enters[i])
        .event("user_annotation", "gloo:all_reduce", 100, 9, at + enters[i], 390 - enters[i],
               {{"Input Dims", {{1000}}}, {"Input type", {"float"}}})
        .work(id + 2, at + 2, 7, "adam", at + 390, at + 400);
  }
  return trace.text_of_job({{"rank", rank}, {"world_size", 3}});
}

TEST_F(Explain, CountsOnlyWhatRanksWaitForTheLateOne) {
  // The others enter after 100 us; in the last step rank 1 is late too.
  const TracedRun run =
      run_of({rank_that_enters(0, {300, 300, 100}), rank_that_enters(1, {100, 100, 250}),
              rank_that_enters(2, {100, 100, 100})});
  const auto sentences = texts_of(findings_of(run, account_of(run)).timed);
  EXPECT_THAT(
      sentences[0],
      StartsWith("The bottleneck is rank 0: the others wait 133 us a step for it, "
                 "33.3 % of theirs, and it spends 108 us a step more than they do "
                 "on forward, most of it in `gemm` (295 us of 305 us, 95.0 us to 295 us)."));
  EXPECT_THAT(sentences[1], HasSubstr("To change, on rank 0: Divide work evenly, and"));
}

TEST_F(Explain, BlamesNoRankIfTheyWaitForEachOtherInTurns) {
  // Rank 0 computes a little longer and is waited for most, but it waits for the others as long.
  const TracedRun run =
      run_of({rank_that_enters(0, {380, 50, 60}), rank_that_enters(1, {50, 380, 50}),
              rank_that_enters(2, {50, 50, 370})});
  const auto sentences = texts_of(findings_of(run, account_of(run)).timed);
  EXPECT_EQ(sentences[0],
            "The bottleneck is that ranks wait for each other in turns: 217 us a step, 54.2 % of "
            "it.");
  EXPECT_THAT(sentences[1], HasSubstr("Even out what differs from step to step"));
}

/// Steps of 5 ms of forward, an all-reduce of 4 MB, which lasts as long as `reduces_ms` says, and
/// 1 ms of the optimizer.
std::string rank_that_reduces(int rank, const std::vector<double>& reduces_ms) {
  MadeTrace trace;
  double at = 0;
  for (std::size_t i = 0; i < reduces_ms.size(); ++i) {
    const double enters = at + 5000 + 100 * rank, reduced = at + 5000 + 1000 * reduces_ms[i];
    const int id = 3 * static_cast<int>(i);
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", i), at, reduced + 1000 - at)
        .work(id + 1, at, 7, "gemm", at, enters)
        .work(id + 2, at + 2, 20, kAllReduceKernel, enters, reduced, kAllReduced)
        .work(id + 3, at + 4, 7, "adam", reduced, reduced + 1000);
    at = reduced + 1000;
  }
  return trace.text_of_job({{"rank", rank}, {"world_size", 2}});
}

TEST_F(Explain, SaysThatACollectiveStalledAfterAllRanksHadEntered) {
  const auto sentences = [&](const std::vector<double>& reduces_ms) {
    const TracedRun run =
        run_of({rank_that_reduces(0, reduces_ms), rank_that_reduces(1, reduces_ms)});
    return texts_of(findings_of(run, account_of(run)).timed);
  };
  const char* const advice =
      "To change: Look at the link between the ranks, and for other programs on their machines; no "
      "rank came late.";
  // Usually it takes 0.9 ms from the last entry, after 5.1 ms. Of 10 steps 3 take 35.1 ms.
  const auto some = sentences({1, 1, 30, 1, 1, 30, 1, 30, 1, 1});
  EXPECT_THAT(some[0], StartsWith("The bottleneck is exposed communication: "));
  EXPECT_THAT(some[0],
              EndsWith(", most of it stalled after every rank had entered (29.0 ms of 30.0 "
                       "ms in 3 of 10 steps), longest in all_reduce of 3.81 MiB."));
  EXPECT_THAT(some[1], StartsWith(advice));
  // One step of 10 is left out of the account.
  EXPECT_THAT(
      sentences({1, 1, 1, 1, 30, 1, 1, 1, 1, 1})[0],
      EndsWith("step 4 takes 5.14 times as long: exposed communication, most of it stalled "
               "after every rank had entered (29.0 ms of 30.0 ms), longest in all_reduce of "
               "3.81 MiB."));
  // 4 MB pass a link of 1 Gbit/s twice in 64 ms: 299.9 ms are 234.9 ms too long, 30 ms are not.
  const auto slow = sentences({300, 300, 300});
  EXPECT_THAT(slow[0],
              HasSubstr("stalled after every rank had entered (235 ms of 300 ms), longest"));
  EXPECT_THAT(slow[1], StartsWith(advice));
  const auto usual = sentences({30, 30, 30});
  EXPECT_THAT(usual[0], HasSubstr(", most of it in all_reduce of 3.81 MiB"));
  EXPECT_THAT(usual[1], StartsWith("To change: Move fewer bytes"));
}

/// All are entered after 5 ms, and each ends 3 ms after the one before it.
TEST_F(Explain, CallsCollectivesThatTakeTurnsNoStall) {
  nlohmann::json small = kAllReduced;
  small["In msg nelems"] = small["Out msg nelems"] = 1000;
  const auto rank = [&](int number) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 21'000)
        .work(1, 0, 7, "gemm", 0, 5000)
        .work(2, 1, 7, "adam", 20'000, 21'000);
    for (int i = 0; i < 5; ++i) {
      trace.work(3 + i, 2 + i, 20 + i, kAllReduceKernel, 5000, 8000 + 3000 * i, small);
    }
    return trace.text(number);
  };
  const TracedRun run = run_of({rank(0), rank(1)});
  const auto sentences = texts_of(findings_of(run, account_of(run)).timed);
  EXPECT_THAT(sentences[0], StartsWith("The bottleneck is exposed communication: "));
  EXPECT_THAT(sentences[0], Not(HasSubstr("stalled")));
}

TEST_F(Explain, KnowsThatTracesOfOtherRanksAreMissing) {
  const TracedRun run =
      run_of({rank_that_enters(0, {300}), rank_that_enters(1, {100})});  // of three
  const RunAccount account = account_of(run);
  EXPECT_EQ(account.accounts[1].waiting_ns, 0);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains(HasSubstr("Not every rank's trace is here")));
}

TEST_F(Explain, RefusesAnotherCycleOfOneProcess) {
  const auto cycle = [](double shift_us) {
    return MadeTrace().shifted(shift_us).on_host("cpu_op", "aten::mm", 0, 10).text_of_job(nullptr);
  };
  const auto first = file("first.json", cycle(0)), second = file("second.json", cycle(20));
  expect_error(ExitCode::kBadData,
               fmt::format("trace '{}': is of the process of '{}', at another time: a repeat or "
                           "a cycle, not another rank; explain one at a time, or compare two by "
                           "their folders: mlp_lab explain A/ B/",
                           second.string(), first.string()),
               [&] {
                 read_run({first, second});
               });
  // Containers may number their processes alike.
  const auto rank = [&](const char* name, double shift_us) {
    return file(name, MadeTrace()
                          .shifted(shift_us)
                          .on_host("cpu_op", "aten::mm", 0, 10)
                          .event("user_annotation", "gloo:all_reduce", 100, 9, 5, 5)
                          .text_of_job(nullptr));
  };
  EXPECT_EQ(read_run({rank("one.json", 0), rank("beside.json", 5)}).ranks.size(), 2U);
}

TEST_F(Explain, RefusesRepeatsAsRanks) {
  const auto repeat = [&](const char* name, int pid, const nlohmann::json& job, double shift_us) {
    return file(
        name,
        MadeTrace().shifted(shift_us).event("cpu_op", "aten::mm", pid, 1, 0, 10).text_of_job(job));
  };
  const auto expect_refused = [&](const std::string& why, const nlohmann::json& job) {
    const auto first = repeat("1.json", 1, job, 0), second = repeat("2.json", 2, job, 9e6);
    const std::string line =
        fmt::format("is of {} '{}', at another time: a repeat", why, first.string());
    expect_error(ExitCode::kBadData, line, [&] { read_run({first, second}); });
  };
  expect_refused("the same rank as", {{"rank", 0}, {"world_size", 1}});
  expect_refused("the same rank as", {{"rank", 2}, {"world_size", 4}});
  expect_refused("a single process, as", nullptr);
}

/// Ranks of one job have numbers, or a collective of both, and run at the same time.
TEST_F(Explain, RefusesTracesOfSeveralJobs) {
  const auto trace = [&](const char* name, int pid, const nlohmann::json& job,
                         double shift_us = 0) {
    return file(
        name,
        MadeTrace().shifted(shift_us).event("cpu_op", "aten::mm", pid, 1, 0, 10).text_of_job(job));
  };
  const auto refuses = [&](const std::string& why, const std::vector<std::filesystem::path>& all) {
    expect_error(ExitCode::kBadData, why, [&] { read_run(all); });
  };
  const auto first = trace("a.json", 1, {{"rank", 0}, {"world_size", 2}});
  refuses(
      "and they do not both tell their rank; give the traces of one job, or a folder for each of "
      "two runs to compare them",
      {first, trace("alone.json", 2, nullptr)});
  refuses("is of a job of 4 ranks, and",
          {first, trace("other.json", 2, {{"rank", 1}, {"world_size", 4}})});
  refuses("was recorded 6.00 s apart from",
          {first, trace("later.json", 2, {{"rank", 1}, {"world_size", 2}}, 6e6)});
  refuses("is of a job of 2 ranks, and 3 traces are given",
          {first, trace("b.json", 2, {{"rank", 1}, {"world_size", 2}}),
           trace("c.json", 3, {{"rank", 2}, {"world_size", 2}})});
}

TEST_F(Explain, RefusesATraceWithoutAnyTimeThatCanBeMeant) {
  const auto path = file("far.json", R"({"baseTimeNanoseconds": 4611686018427387904,
      "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 4e15, "dur": 4e15}]})");
  expect_error(ExitCode::kBadData, "has no event of a program's work", [&] { read_run({path}); });
}

/// Kernels that were launched before the profile run until 400 us.
TEST_F(Explain, BeginsTheFirstStepBehindWhatWasLaunchedBefore) {
  MadeTrace trace;
  for (const double at : {0.0, 1000.0}) {
    const int first = at == 0 ? 1 : 3;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", first), at, 900)
        .work(first, at + 10, 7, "gemm", at + 400, at + 700)
        .work(first + 1, at + 20, 7, "gemm", at + 700, at + 1000);
  }
  for (const double at : {0.0, 100.0, 200.0, 300.0}) {
    trace.event("kernel", "gemm", 0, 7, at, 100, {{"correlation", 90}});
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 2U);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(account.accounts[0].wall_ns, 600'000) << "of which no kernel is of before";
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 600);
  EXPECT_EQ(account.accounts[1].wall_ns, 1'000'000);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains("The first step of rank 0 begins when the device has done what was "
                       "launched before it: 4 kernels."));
}

TEST_F(Explain, LeavesOutTheStartUpOfAProgram) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 16e6)
      .work(1, 15.9e6, 7, "gemm", 15.9e6 + 10, 15.9e6 + 50'000);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  EXPECT_NEAR(static_cast<double>(account.accounts[0].wall_ns), 1e8, 3e3);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains("The first step of rank 0 begins at its first launch; 15.9 s before "
                       "it are left out as start-up."));
}

/// Steps with forward, backward and an update; the first lacks its forward pass, the last its
/// update.
TEST_F(Explain, LeavesOutStepsThatTheProfileBeginsOrEndsIn) {
  MadeTrace trace;
  for (int step = 0; step < 5; ++step) {
    const double at = 100.0 * step;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, 100);
    trace.on_host("cpu_op", "aten::linear", at + 5, step > 0 ? 10 : 0.5);  // the end of it
    trace.on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 20, 10);
    if (step == 4) continue;
    trace.on_host("user_annotation", "Optimizer.step#SGD.step", at + 50, 20);
    trace.on_host("cpu_op", "aten::add_", at + 52, 10);
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 3U);
  EXPECT_EQ(account.accounts[0].number, 1);
  EXPECT_EQ(account.accounts[2].number, 3);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains("2 steps of rank 0, cut by the profile, are left out."));
}

/// Backward tells which ops ran before the profile, without marks of steps too: all of the first
/// step's, two of three, or one whose result all steps share. That a gradient is made takes longest
/// there.
TEST_F(Explain, LeavesOutAFirstStepWhoseForwardPassRanBeforeTheProfile) {
  const auto run = [&](int first, bool shares) {
    MadeTrace trace;
    for (int step = 0; step < 4; ++step) {
      const double at = 100.0 * step;
      const auto op = [&](const char* name, int number, double begin) {
        trace.event("cpu_op", name, 100, 1, at + begin, 5, {{"Sequence number", number}});
      };
      for (int i = 0; i < 3; ++i) {
        if (3 * step + i >= first) op("aten::linear", 3 * step + i, 10 * i);
        op("autograd::engine::evaluate_function: AddmmBackward0", 3 * step + i, 60 - 5 * i);
      }
      if (shares) op("autograd::engine::evaluate_function: AddmmBackward0", 0, 65);
      trace.on_host("cpu_op", "aten::ones_like", at + 35, step == 0 ? 10 : 2)
          .on_host("user_annotation", "Optimizer.step#SGD.step", at + 75, 20)
          .on_host("cpu_op", "aten::add_", at + 80, 10);
    }
    return run_of({trace.text()});
  };
  EXPECT_EQ(account_of(run(0, false)).accounts.size(), 4U);
  EXPECT_EQ(account_of(run(2, true)).accounts.size(), 4U);
  for (const int first : {2, 3}) {
    const TracedRun cut = run(first, false);
    const RunAccount account = account_of(cut);
    ASSERT_EQ(account.accounts.size(), 3U) << first;
    EXPECT_EQ(account.accounts[0].number, 1);
    EXPECT_THAT(texts_of(findings_of(cut, account).untimed),
                testing::Contains("1 step of rank 0, cut by the profile, is left out."));
  }
}

/// The first kernel's record overlaps those that follow on its stream.
TEST_F(Explain, CutsWorkWhereTheNextOfItsStreamBegins) {
  MadeTrace trace;
  for (int step = 0; step < 3; ++step) {
    const double at = 1000.0 * step;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, 1000)
        .work(step + 1, at + 10, 7, "gemm", at + 100, step == 0 ? 3000 : at + 900);
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 3U);
  for (const TracedAccount& each : account.accounts) {
    expect_sum(each);
    EXPECT_GE(each.wall_ns, 900'000);
  }
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains("1 kernel of rank 0 ended after the next of the same stream began; "
                       "each counts until then."));
}

/// As Chrome's tracing writes them; one without its end has no duration.
TEST_F(Explain, ReadsEventsThatHaveABeginAndAnEnd) {
  nlohmann::json trace = nlohmann::json::parse(step_of_every_cause().text());
  nlohmann::json pairs = nlohmann::json::array();
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<double, nlohmann::json>>>
      rows;
  for (nlohmann::json& each : trace["traceEvents"]) {
    const bool is_host = each.value("ph", "") == "X" && each["cat"] == "user_annotation";
    if (!is_host) {
      pairs.push_back(each);
      continue;
    }
    nlohmann::json end = {{"ph", "E"}, {"pid", each["pid"]}, {"tid", each["tid"]}};
    end["ts"] = each["ts"].get<double>() + each["dur"].get<double>();
    each["ph"] = "B";
    each.erase("dur");
    rows[{each["pid"].dump(), each["tid"].dump()}].emplace_back(each["ts"].get<double>(), each);
    rows[{each["pid"].dump(), each["tid"].dump()}].emplace_back(end["ts"].get<double>(), end);
  }
  for (auto& [row, events] : rows) {
    std::ranges::stable_sort(events, {}, &std::pair<double, nlohmann::json>::first);
    for (auto& event : events) pairs.push_back(std::move(event.second));
  }
  ASSERT_FALSE(rows.empty());
  pairs.push_back(
      {{"ph", "B"}, {"cat", "cpu_op"}, {"name", "cut"}, {"pid", 9}, {"tid", 9}, {"ts", 5}});
  pairs.push_back({{"ph", "E"}, {"pid", 8}, {"tid", 8}, {"ts", 5}});
  trace["traceEvents"] = pairs;
  const TracedRun run = run_of({trace.dump()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_every_cause(account.accounts[0]);
  EXPECT_THAT(
      texts_of(findings_of(run, account).untimed),
      Contains("1 event of rank 0 without a time or a duration that can be meant is left out."));
}

/// What profilers write besides JSON: a time at 0, durations as text, missing and infinite ones,
/// NaN, control characters, Latin-1 and half a pair of UTF-16 in names.
TEST_F(Explain, ReadsWhatProfilersWrite) {
  const std::string text = step_of_every_cause().text();
  const auto with = [&](const std::string& events) {
    std::string all = text;
    return all.insert(all.find("\"traceEvents\":[") + 15, events);
  };
  const auto event = [](const std::string& times, const std::string& name = "other") {
    return R"({"ph": "X", "cat": "cpu_op", "pid": 9, "tid": 9, "name": ")" + name + "\", " + times +
           "},";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {event(R"("ts": 5, "dur": 1, "args": {"GB/s": inf, "a": -nan, "b": [-inf], "c": null})"), ""},
      {event(R"("ts": -1790857026000000, "dur": 1)"),
       "1 event of rank 0, a day or more from all others, is left out."},
      {event(R"("ts": 5)"),
       "1 event of rank 0 without a time or a duration that can be meant is left out."},
      {event(R"("ts": NaN, "dur": 1)") + event(R"("ts": 5, "dur": -Infinity)") +
           event(R"("ts": 5, "dur": -3)"),
       "3 events of rank 0 without a time or a duration that can be meant are left out."},
      {event(R"("ts": 5, "dur": "1.5", "args": {"loss": NaN, "max": Infinity})",
             "a\tb\x01 caf\xe9 \\ud800 \\ud83d\\ude00 C:\\Users \xe6\xa8\xa1"),
       ""}};
  for (const auto& [events, note] : cases) {
    SCOPED_TRACE(events);
    const TracedRun run = run_of({with(events)});
    const RunAccount account = account_of(run);
    ASSERT_EQ(account.accounts.size(), 1U);
    expect_every_cause(account.accounts[0]);
    if (!note.empty()) EXPECT_THAT(texts_of(findings_of(run, account).untimed), Contains(note));
  }
  // Whatever piece of the file a sequence begins in.
  for (std::size_t padding = (1 << 18) - 200; padding < (1 << 18) + 20; padding += 7) {
    const auto path = file("padded.json", std::string(padding, ' ') + with(cases.back().first));
    EXPECT_EQ(account_of(read_run({path})).accounts.size(), 1U) << padding;
  }
}

/// Trailing commas, Chrome's array of events, and one that nothing closes; whatever
/// piece of the file they are in.
TEST_F(Explain, ReadsTrailingCommasAndArraysOfEvents) {
  const nlohmann::json trace = nlohmann::json::parse(step_of_every_cause().text());
  const std::string events = trace.at("traceEvents").dump();
  const std::string open = events.substr(0, events.size() - 1);
  const std::vector<std::string> forms = {
      events,          open,
      open + ",",      open + " ,\n",
      open + ",\n]\n", R"({"traceEvents": )" + open + ",\n ], \"a\": [1, ],\n}"};
  constexpr std::size_t kBorder = (1 << 18) - 12;
  for (const std::string& form : forms) {
    for (std::size_t end = form.size(); end <= (1 << 18) + 9; end = std::max(end, kBorder) + 1) {
      const std::string spaces(end - form.size(), ' ');
      SCOPED_TRACE(fmt::format("{} until {}", form.substr(form.size() - 20), end));
      const RunAccount account = account_of(run_of({spaces + form}));
      ASSERT_EQ(account.accounts.size(), 1U);
      expect_every_cause(account.accounts[0]);
    }
  }
  std::filesystem::create_directory(folder() / "arrays");
  file("arrays/t.json", open);
  EXPECT_THAT(printed({.traces = {folder() / "arrays"}}), HasSubstr("The bottleneck is"));
  const std::vector<std::string> cuts = {
      open.substr(0, open.size() - 1), open + ",,", "{\"a\": [1, 2,",
      R"({"traceEvents": )" + open,    "[1, 2",     "[\"a"};
  for (const std::string& cut : cuts) {
    const auto path = file("cut.json", cut);
    expect_error(ExitCode::kBadData, "trace '" + path.string() + "'", [&] { read_run({path}); });
  }
}

/// 19 steps of 100 us; the host saves in step 12, for 1 ms.
TEST_F(Explain, KeepsABadStepOutOfTheTypicalOne) {
  MadeTrace trace;
  double at = 0;
  for (int step = 0; step < 20; ++step) {
    const double wall = (step == 12 ? 1100 : 100) + step % 3;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, wall)
        .on_host("cpu_op", "aten::linear", at, 90)
        .event("user_annotation", "gloo:all_reduce", 100, 9, at + 20, 30);
    if (step == 12) trace.on_host("user_annotation", "save", at + 95, 1000);
    at += wall;
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  EXPECT_EQ(account.accounts.size(), 19U);
  ASSERT_EQ(account.outliers.size(), 1U);
  expect_sum(account.outliers[0]);
  EXPECT_EQ(account.outliers[0].number, 12);
  EXPECT_EQ(account.all().at(12).number, 12);
  EXPECT_EQ(account.buckets.at(0).count, 19);
  const Findings findings = findings_of(run, account);
  EXPECT_EQ(findings.timed[0].text,
            "19 of 20 steps take 101 us in the median (100 us to 102 us), but step 12 takes 10.9 "
            "times as long: host, most of it in `save` (1.00 ms of 1.01 ms).");
  EXPECT_EQ(findings.timed[1].text,
            "The bottleneck is the forward pass: 89.1 % of a step, 90.0 us, most of it in "
            "`aten::linear` (90.0 us of 90.0 us).");
  EXPECT_THAT(findings.tables[0].title, HasSubstr("without those that take much longer"));
  EXPECT_EQ(findings.tables.back().rows.size(), 20U) << "every step";
}

TEST_F(Explain, KeepsABadStepOutOfThree) {
  const auto sentence = [&](double last) {
    MadeTrace trace;
    double at = 0;
    for (int step = 0; step < 3; ++step) {
      const double wall = step < 2 ? 100 : last;
      trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, wall)
          .on_host("cpu_op", "aten::linear", at, 90);
      at += wall;
    }
    const TracedRun run = run_of({trace.text()});
    return findings_of(run, account_of(run)).timed[0].text;
  };
  EXPECT_THAT(sentence(400),
              StartsWith("2 of 3 steps take 100 us in the median (100 us to 100 us), "
                         "but step 2 takes 4.00 times as long: host"));
  EXPECT_THAT(sentence(390), StartsWith("The bottleneck is")) << "too few to tell";
}

/// Half of the steps are long, so none of them is an outlier.
TEST_F(Explain, SaysHowLongStepsTake) {
  MadeTrace trace;
  double at = 0;
  for (int step = 0; step < 6; ++step) {
    const double wall = step % 2 == 0 ? 300 : 100;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, wall)
        .on_host("cpu_op", "aten::linear", at, 90);
    at += wall;
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  EXPECT_TRUE(account.outliers.empty());
  EXPECT_EQ(findings_of(run, account).timed.at(2).text,
            "A step takes 200 us in the median of 6 (100 us to 300 us).");
}

/// What autograd does not record after the last update of a step: an average of the parameters, a
/// value that is read, an evaluation, also its ops in place. A frozen layer ahead of the head is a
/// forward pass.
TEST_F(Explain, TellsAnEvaluationAndAnAverageFromTheForwardPass) {
  const nlohmann::json recorded = {{"Sequence number", 5}};
  MadeTrace trace;
  for (const double at : {0.0, 300.0}) {
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", at), at, 300)
        .on_host("cpu_op", "aten::conv2d", at, 10)
        .event("cpu_op", "aten::linear", 100, 1, at + 10, 20, recorded)
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 40, 30)
        .event("cpu_op", "aten::item", 100, 1, at + 70, 2, recorded)
        .on_host("cpu_op", "aten::linalg_vector_norm", at + 72, 4)
        .on_host("user_annotation", "Optimizer.step#SGD.step", at + 80, 40)
        .on_host("cpu_op", "aten::add_", at + 90, 10)
        .on_host("cpu_op", "aten::lerp_", at + 130, 10)
        .on_host("cpu_op", "aten::linear", at + 150, 60)
        .on_host("cpu_op", "aten::cross_entropy_loss", at + 210, 20)
        .on_host("cpu_op", "aten::relu_", at + 230, 10);
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 2U);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 30);
  EXPECT_EQ(us(account.accounts[0], Part::kBackward), 30);
  EXPECT_EQ(us(account.accounts[0], Part::kLoss), 0);
  EXPECT_EQ(us(account.accounts[0], Part::kEvaluation), 80 + 10);
  // Python within the update, too: on the CPU it is the update's.
  EXPECT_EQ(us(account.accounts[0], Part::kOptimizer), 4 + 40 + 10);
  EXPECT_EQ(us(account.accounts[0], Part::kHost), 10 + 2 + 4 + 10 + 10 + 60);
}

/// Averages of parameters, by ops that nothing else has, or that follow an update and only change
/// tensors. A teacher's op in place is of a forward pass.
TEST_F(Explain, TellsAveragesFromTheForwardPassWithoutMarksOfSteps) {
  MadeTrace trace;
  for (const double at : {0.0, 400.0, 800.0}) {
    trace.event("cpu_op", "aten::linear", 100, 1, at + 200, 20, {{"Sequence number", 5}})
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 250, 30)
        .on_host("user_annotation", "Optimizer.step#SGD.step", at + 300, 40)
        .on_host("cpu_op", "aten::sqrt", at + 310, 10)
        .on_host("cpu_op", "aten::item", at + 341, 4)
        .on_host("cpu_op", "aten::mul_", at + 345, 5)
        .on_host("cpu_op", "aten::mul", at + 350, 5)
        .on_host("cpu_op", "aten::add_", at + 355, 5)
        .on_host("cpu_op", "aten::conv2d", at + 420, 30)
        .on_host("cpu_op", "aten::relu_", at + 450, 10)
        .on_host("cpu_op", "aten::eq", at + 470, 5)
        .on_host("cpu_op", "aten::_foreach_lerp_", at + 480, 20);
  }
  const RunAccount account = account_of(run_of({trace.text()}));
  ASSERT_EQ(account.accounts.size(), 3U);
  for (const std::size_t step : {1U, 2U}) {
    expect_sum(account.accounts[step]);
    EXPECT_EQ(us(account.accounts[step], Part::kForward), 20 + 30 + 10 + 5)
        << "but the value that is read";
    EXPECT_EQ(us(account.accounts[step], Part::kOptimizer), 40 + 5 + 5 + 5 + 20);
    EXPECT_EQ(us(account.accounts[step], Part::kEvaluation), 0);
  }
}

/// One step of six has four times as many calls in its forward pass.
TEST_F(Explain, SaysWhereAnEvaluationMayBe) {
  const auto run = [&](bool goes_back, const char* annotation) {
    MadeTrace trace;
    for (int step = 0; step < 6; ++step) {
      const double at = 200.0 * step;
      const bool is_long = step == 3;
      if (is_long && *annotation != 0) trace.on_host("user_annotation", annotation, at, 60);
      for (int op = 0; op < (is_long ? 6 : 0); ++op) {
        trace.on_host("cpu_op", "aten::linear", at + 10 * op, 10);
      }
      const nlohmann::json recorded = {{"Sequence number", step}};
      trace.event("cpu_op", "aten::linear", 100, 1, at + 60, 10, recorded)
          .event("cpu_op", "aten::cross_entropy_loss", 100, 1, at + 70, 10, recorded);
      for (int op = 0; op < (is_long && goes_back ? 4 : 1); ++op) {
        trace.on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0",
                      at + 80 + 5 * op, 5);
      }
      trace.on_host("user_annotation", "Optimizer.step#SGD.step", at + 100, 10);
    }
    return run_of({trace.text()});
  };
  const auto notes = [](const TracedRun& of) {
    return texts_of(findings_of(of, account_of(of)).untimed);
  };
  const std::string note =
      "Forward has more calls than usual, and backward has not, in 1 of 6 steps of rank 0: 4.00 "
      "times as many in step 3. If it evaluates there, put torch.no_grad() and "
      "record_function(\"evaluate\") around that.";
  EXPECT_THAT(notes(run(false, "")), testing::Contains(note));
  EXPECT_THAT(notes(run(true, "")), Not(testing::Contains(HasSubstr("more calls than usual"))))
      << "micro-batches";
  const TracedRun told = run(false, "evaluate");
  EXPECT_THAT(notes(told), Not(testing::Contains(HasSubstr("more calls than usual"))));
  EXPECT_EQ(us(account_of(told).accounts.at(3), Part::kEvaluation), 60);
}

/// A profiled step that only evaluates, of a run that trains.
TEST_F(Explain, CallsOnlyWhatAForwardPassDoesAnEvaluation) {
  const auto verdict = [&](const char* after) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 500)
        .event("cpu_op", "aten::linear", 100, 1, 0, 20, {{"Sequence number", 1}})
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 20, 30)
        .on_host("user_annotation", "Optimizer.step#SGD.step", 50, 10)
        .on_host("cpu_op", after, 60, 440);
    const TracedRun run = run_of({trace.text()});
    return texts_of(findings_of(run, account_of(run)).timed);
  };
  EXPECT_THAT(verdict("aten::linear")[0], StartsWith("The bottleneck is evaluation: 88.0 %"));
  const auto other = verdict("aten::matmul");
  EXPECT_THAT(other[0], StartsWith("The bottleneck is work after the update that autograd does not "
                                   "record: 88.0 % of a step"));
  EXPECT_THAT(other[1], StartsWith("To change: Do it less often, or in another process."));
}

TEST_F(Explain, SaysInWhichStepsThereIsABottleneck) {
  MadeTrace trace;
  double at = 0;
  for (int step = 0; step < 5; ++step) {
    const double saves = step % 2 == 0 ? 0 : 90;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, 50 + saves)
        .on_host("cpu_op", "aten::linear", at, 20)
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 20, 30)
        .on_host("user_annotation", "save", at + 50, saves);
    at += 50 + saves;
  }
  const TracedRun run = run_of({trace.text()});
  EXPECT_THAT(
      findings_of(run, account_of(run)).timed[0].text,
      StartsWith("The bottleneck is the host: 41.9 % of a step, 90.0 us in 2 of 5 steps, "));
}

TEST_F(Explain, CallsAStepWithoutTrainingAnEvaluation) {
  MadeTrace trace;
  for (int step = 0; step < 3; ++step) {
    const double at = 100.0 * step;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), at, 100);
    if (step == 2) {
      trace.on_host("cpu_op", "aten::linear", at, 40).on_host("cpu_op", "aten::relu_", at + 40, 10);
      continue;
    }
    trace.event("cpu_op", "aten::linear", 100, 1, at, 20, {{"Sequence number", step}})
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 20, 30)
        .on_host("user_annotation", "Optimizer.step#SGD.step", at + 50, 10)
        .on_host("cpu_op", "aten::add_", at + 50, 10);
  }
  const RunAccount account = account_of(run_of({trace.text()}));
  ASSERT_EQ(account.accounts.size(), 3U);
  EXPECT_EQ(us(account.accounts[2], Part::kEvaluation), 50);
}

/// Without marks, evaluations stand ahead of the forward pass of a step: one with a loss that
/// autograd does not record, and one in a function of that name. What a frozen layer does is not
/// told from the forward pass.
TEST_F(Explain, FindsEvaluationsWithoutMarksOfSteps) {
  const nlohmann::json recorded = {{"Sequence number", 5}};
  MadeTrace trace;
  for (const double at : {0.0, 400.0, 800.0}) {
    if (at == 400) {
      trace.on_host("cpu_op", "aten::lerp_", at, 10)
          .on_host("cpu_op", "aten::linear", at + 20, 60)
          .on_host("cpu_op", "aten::relu_", at + 80, 5)
          .on_host("cpu_op", "aten::cross_entropy_loss", at + 90, 20);
    } else if (at == 800) {
      trace.on_host("python_function", "train.py(9): run_validation", at + 10, 100)
          .on_host("cpu_op", "aten::linear", at + 20, 30)
          .event("cpu_op", "aten::argmax", 100, 1, at + 60, 10, recorded);
    }
    trace.on_host("python_function", "train.py(20): test_and_train", at + 195, 150)
        .on_host("cpu_op", "aten::conv2d", at + 200, 10)
        .event("cpu_op", "aten::linear", 100, 1, at + 210, 20, recorded)
        .event("cpu_op", "aten::cross_entropy_loss", 100, 1, at + 230, 10, recorded)
        .on_host("cpu_op", "aten::nll_loss", at + 232, 5)
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 250, 30)
        .on_host("user_annotation", "Optimizer.step#SGD.step", at + 300, 40)
        .on_host("cpu_op", "aten::add_", at + 310, 10);
  }
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.all().size(), 3U);
  for (const TracedAccount& each : account.all()) {
    expect_sum(each);
    const bool evaluates[] = {each.number == 1, each.number == 2};
    EXPECT_EQ(us(each, Part::kForward), 10 + 20 + (evaluates[1] ? 10 : 0));
    EXPECT_EQ(us(each, Part::kOptimizer), 40 + (evaluates[0] ? 10 : 0)) << "an average";
    EXPECT_EQ(us(each, Part::kLoss), 10);
    EXPECT_EQ(us(each, Part::kEvaluation), evaluates[0] ? 85 : evaluates[1] ? 30 : 0);
  }
}

/// What a rank's account has of a part, by its innermost names, in microseconds.
std::map<std::string, std::int64_t> names_in(const TracedRun& run, const TracedAccount& account,
                                             Part part) {
  std::map<std::string, std::int64_t> all;
  std::int64_t sum_ns = 0;
  for (const auto& [time, ns] : account.named_ns) {
    if (time.part != part) continue;
    all[innermost_name(run.ranks[account.rank], time)] += ns / 1000;
    sum_ns += ns;
  }
  EXPECT_EQ(sum_ns, account.part_ns[part]);
  return all;
}

using Names = std::map<std::string, std::int64_t>;

TEST_F(Explain, NamesWhatTheHostOfAGpuDid) {
  MadeTrace trace;
  trace.on_host("python_function", "train.py(9): main", -100, 2000)
      .on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("python_function", "train.py(20): step", 0, 990)
      .on_host("user_annotation", "Optimizer.step#SGD.step", 880, 100)
      .work(1, 0, 7, "gemm", 2, 100)
      .on_host("user_annotation", "save", 100, 310)
      .on_host("python_function", "train.py(30): encode", 150, 100)
      .on_host("python_function", "torch/serialization.py(1): save", 155, 90)
      .on_host("python_function", "<built-in method sleep of module object at 0x7f>", 160, 80)
      .on_host("cpu_op", "aten::item", 410, 190)
      .on_host("cpu_op", "aten::_local_scalar_dense", 412, 180)
      .event("cuda_runtime", "cudaStreamSynchronize", 100, 1, 450, 100, {{"correlation", 9}})
      .on_host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 600, 200)
      .on_host("cpu_op", "aten::mm", 610, 150)
      .event("cuda_runtime", "cudaLaunchKernel", 100, 1, 650, 50, {{"correlation", 3}})
      .event("kernel", "gemm", 0, 7, 700, 300, {{"correlation", 3}});
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  EXPECT_EQ(names_in(run, account.accounts[0], Part::kHost),
            (Names{{"save", 210},
                   {"train.py(30): encode", 100},
                   {"aten::item", 90},
                   {"cudaStreamSynchronize in aten::item", 100},
                   {"before the backward pass", 10},
                   {"aten::mm", 40},
                   {"cudaLaunchKernel", 52}}));
  const Findings findings = findings_of(run, account);
  EXPECT_EQ(
      findings.timed[0].text,
      "The bottleneck is the host: 60.2 % of a step, 602 us, most of it in `save` (310 us of 602 "
      "us).");
  EXPECT_EQ(findings.timed[1].text,
            "To change: Make `save` shorter or rarer, or let another thread or process do it.");
}

/// The device waits for the host, which updates, but where that waits for the device.
TEST_F(Explain, CallsPythonInAnUpdateOnAGpuTheOptimizers) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 600)
      .work(1, 0, 7, "gemm", 2, 100)
      .on_host("user_annotation", "Optimizer.step#Adam.step", 150, 440)
      .on_host("python_function", "train.py(9): clip", 200, 100)
      .work(2, 310, 20, kAllReduceKernel, 312, 350, kAllReduced)
      .event("cuda_runtime", "cudaStreamSynchronize", 100, 1, 320, 30, {{"correlation", 9}})
      .work(3, 500, 7, "adam", 510, 600);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  ASSERT_EQ(account.accounts.size(), 1U);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kOptimizer), (502 - 150 - 30) + 90);
  EXPECT_EQ(us(account.accounts[0], Part::kHost), 2 + 50);
  std::map<std::string, std::int64_t> names;
  for (const auto& [time, ns] : account.accounts[0].named_ns) {
    if (time.part == Part::kOptimizer) names[innermost_name(run.ranks[0], time)] += ns / 1000;
  }
  EXPECT_EQ(names, (Names{{"train.py(9): clip", 100},
                          {"Optimizer.step#Adam.step", 50 + 10 + 8 + 150},
                          {"cudaLaunchKernel", 2 + 2}}));
}

/// Advice follows from the name, and where there is no device none is about one.
TEST_F(Explain, AdvisesByTheName) {
  const auto advice = [&](const std::string& name, bool on_device) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000);
    if (!name.empty()) trace.on_host("user_annotation", name, 100, 890);
    if (on_device) {
      trace.work(1, 995, 7, "gemm", 997, 1000);
    } else {
      trace.on_host("cpu_op", "aten::mm", 995, 5);
    }
    const TracedRun run = run_of({trace.text()});
    return findings_of(run, account_of(run)).timed[1].text;
  };
  for (const bool on_device : {true, false}) {
    EXPECT_THAT(advice("", on_device),
                StartsWith("To learn what it is: profile with_stack=True for the functions"));
  }
  EXPECT_THAT(advice("CompiledFunctionBackward", true), HasSubstr("mode=\"reduce-overhead\""));
  EXPECT_THAT(advice("_compile.compile_inner (dynamo_timed)", true), HasSubstr("Compile once"));
  EXPECT_THAT(advice("Optimizer.step#Adam.step", false), HasSubstr("foreach"));
  EXPECT_THAT(advice("Optimizer.step#Adam.step", false), Not(HasSubstr("CUDA")));
  EXPECT_THAT(advice("Optimizer.step#LBFGS.step", false), HasSubstr("max_iter"));
  const char* const loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
  EXPECT_THAT(advice(loader, false), StartsWith("To change: Make input faster"));
  MadeTrace loads;
  loads.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("user_annotation", loader, 100, 890)
      .on_host("python_function", "data.py(3): __getitem__", 100, 880)
      .on_host("cpu_op", "aten::mm", 995, 5);
  const TracedRun run = run_of({loads.text()});
  EXPECT_THAT(findings_of(run, account_of(run)).timed.at(1).text,
              StartsWith("To change: Make `data.py(3): __getitem__` shorter. Make input faster"));
  EXPECT_THAT(advice("DistributedDataParallel.forward", false), StartsWith("To learn what it is"));
}

TEST_F(Explain, CallsTheFirstCallsOfADeviceStartUp) {
  const auto advice = [&](double duration) {
    MadeTrace trace;
    trace.on_host("cpu_op", "aten::conv2d", 0, 900'010)
        .event("cuda_runtime", "cudaFree", 100, 1, 5, duration)
        .work(1, 900'000, 7, "gemm", 900'003, 900'009);
    const TracedRun run = run_of({trace.text()});
    return findings_of(run, account_of(run)).timed[1].text;
  };
  EXPECT_EQ(advice(700'000),
            "To see more than start-up, which loads CUDA and its libraries: profile a later step.");
  EXPECT_THAT(advice(90'000), Not(HasSubstr("start-up")));
}

TEST_F(Explain, SaysHowToRecordWhatWouldNameTheHostsTime) {
  const auto notes = [&](bool has_stacks) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
        .on_host("cpu_op", "aten::mm", 200, 800);
    if (has_stacks) trace.on_host("python_function", "torch/a.py(1): f", 0, 10);
    const TracedRun run = run_of({trace.text()});
    return texts_of(findings_of(run, account_of(run)).untimed);
  };
  EXPECT_THAT(notes(false),
              Contains("Nothing in the trace of rank 0 names 200 us a step of its host's "
                       "time: profile with_stack=True for the functions of Python, or put "
                       "record_function(\"...\") around what may take it."));
  EXPECT_THAT(notes(true), Contains(HasSubstr("host's time: put record_function")));
}

/// On the CPU, compilation is no work of the op in which it happens, whatever ops it calls itself.
TEST_F(Explain, NamesCompilationWithinAndBesideOpsOfTheCpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "_compile.compile_inner (dynamo_timed)", 0, 300)
      .on_host("cpu_op", "aten::mm", 100, 50)
      .on_host("user_annotation", "backend_compile (dynamo_timed)", 160, 50)
      .on_host("cpu_op", "CompiledFunction", 300, 100)
      .on_host("cpu_op", "autograd::engine::evaluate_function: CompiledFunctionBackward", 400, 500)
      .on_host("cpu_op", "CompiledFunctionBackward", 410, 480)
      .on_host("user_annotation", "bw_compiler (dynamo_timed)", 450, 350)
      .on_host("cpu_op", "aten::add", 500, 50)
      .on_host("cpu_op", "aten::mm", 850, 30);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  expect_sum(account.accounts[0]);
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 100);
  EXPECT_EQ(us(account.accounts[0], Part::kBackward), 150);
  EXPECT_EQ(names_in(run, account.accounts[0], Part::kHost),
            (Names{{"torch.compile", 650}, {"after the last op of the step", 100}}));
}

/// A hook of the user's within a node of autograd's graph.
TEST_F(Explain, NamesHooksWithinBackwardOfTheCpu) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 0, 800)
      .on_host("cpu_op", "aten::mm", 0, 100)
      .on_host("user_annotation", "clip", 200, 500)
      .on_host("cpu_op", "aten::norm", 600, 50);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  EXPECT_EQ(us(account.accounts[0], Part::kBackward), 350);
  EXPECT_EQ(names_in(run, account.accounts[0], Part::kHost),
            (Names{{"clip", 450}, {"after the last op of the step", 200}}));
}

TEST_F(Explain, SaysThatKernelsOfLaunchesAreMissing) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000).work(1, 5, 7, "gemm", 10, 20);
  for (int i = 2; i < 22; ++i) {
    trace.event("cuda_runtime", "cudaLaunchKernel", 100, 1, 20 * i, 5, {{"correlation", i}});
  }
  const TracedRun run = run_of({trace.text()});
  const Findings findings = findings_of(run, account_of(run));
  EXPECT_THAT(texts_of(findings.timed),
              ElementsAre(StartsWith("The trace of rank 0 has no kernel for 20 of its 21 launches"),
                          HasSubstr("before a CUDA graph is captured")));
  EXPECT_TRUE(findings.tables.empty()) << "an account of the host would pass for the device's";
}

const nlohmann::json kMessage = {{"Input Dims", {{1000}}}, {"Input type", {"float"}}};

/// A stage that sends after 300 us and posts its receive before it computes, and the next one.
std::vector<std::string> two_stages() {
  MadeTrace first, second;
  first.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "aten::linear", 0, 300)
      .on_host("cpu_op", "c10d::send", 300, 2)
      .event("user_annotation", "gloo:send", 100, 1, 301, 598, kMessage)
      .on_host("cpu_op", "c10d::recv_", 303, 2)
      .event("user_annotation", "gloo:recv", 100, 1, 304, 496, kMessage)
      .on_host("cpu_op", "aten::mul", 310, 100)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 800, 200);
  second.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .on_host("cpu_op", "c10d::recv_", 0, 2)
      .event("user_annotation", "gloo:recv", 100, 1, 1, 349, kMessage)
      .on_host("cpu_op", "aten::linear", 350, 400)
      .on_host("cpu_op", "c10d::send", 750, 2)
      .event("user_annotation", "gloo:send", 100, 1, 751, 50, kMessage)
      .on_host("cpu_op", "aten::add_", 900, 100);
  return {first.text_of_job({{"rank", 0}, {"world_size", 2}}),
          second.text_of_job({{"rank", 1}, {"world_size", 2}})};
}

TEST_F(Explain, PairsTheMessagesOfStages) {
  const TracedRun run = run_of(two_stages());
  const RunAccount account = account_of(run);
  for (const TracedAccount& each : account.accounts) expect_sum(each);
  EXPECT_EQ(us(account.accounts[0], Part::kForward), 300 + 100) << "while messages travel";
  EXPECT_EQ(us(account.accounts[0], Part::kOtherStages), 2 + 2 + 390);
  EXPECT_EQ(us(account.accounts[1], Part::kOtherStages), 2 + 348 + 2 + 49);
  EXPECT_EQ(us(account.accounts[1], Part::kExposedCommunication), 0);
  // Each waits until the other one sends.
  EXPECT_EQ(account.waited_ns,
            (std::vector<std::vector<std::int64_t>>{{0, 751'000 - 410'000}, {299'000, 0}}));
  ASSERT_EQ(account.buckets.size(), 2U);
  EXPECT_EQ(account.buckets[0].name, "message");
  EXPECT_EQ(account.buckets[0].bytes, 4000);
  EXPECT_EQ(account.buckets[0].works, 2);
  EXPECT_EQ(account.buckets[0].moving_ns, 49'000) << "from 301 to 350 us";
  EXPECT_EQ(account.buckets[0].bus_bytes_per_s(), 0) << "nobody knows when they moved";
  const Findings findings = findings_of(run, account);
  EXPECT_THAT(texts_of(findings.timed),
              Contains("The ranks are stages of a pipeline; its bubble, in which a stage "
                       "waits for the others, is 39.4 % on rank 0 and 40.1 % on rank 1 of "
                       "a step."));
  EXPECT_THAT(texts_of(findings.untimed), Not(Contains(HasSubstr("Not every rank"))));
}

/// The first stage sends to the second after 300 us, and that one to the third after 500.
TEST_F(Explain, PairsTheMessagesOfThreeStages) {
  const auto stage = [](int rank, double receives_until, double computes_until) {
    MadeTrace trace;
    const auto message = [&](const char* op, const char* name, int other, double at, double until) {
      trace
          .event("cpu_op", op, 100, 1, at, 2,
                 {{"Concrete Inputs", {"", "", std::to_string(other)}}})
          .event("user_annotation", name, 100, 1, at + 1, until - at - 1, kMessage);
    };
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 800);
    if (rank > 0) message("c10d::recv_", "gloo:recv", rank - 1, 0, receives_until);
    trace.on_host("cpu_op", "aten::linear", receives_until, computes_until - receives_until);
    if (rank < 2) message("c10d::send", "gloo:send", rank + 1, computes_until, computes_until + 50);
    return trace.text_of_job({{"rank", rank}, {"world_size", 3}});
  };
  const TracedRun run = run_of({stage(0, 0, 300), stage(1, 350, 500), stage(2, 550, 700)});
  const RunAccount account = account_of(run);
  for (const TracedAccount& each : account.accounts) expect_sum(each);
  EXPECT_EQ(us(account.accounts[2], Part::kOtherStages), 550);
  EXPECT_EQ(account.waited_ns,
            (std::vector<std::vector<std::int64_t>>{{0, 0, 0}, {299'000, 0, 0}, {0, 499'000, 0}}));
  EXPECT_EQ(account.buckets.size(), 2U);
  EXPECT_THAT(texts_of(findings_of(run, account).timed),
              Contains(ContainsRegex("stages of a pipeline; its bubble.* on rank 2")));
}

/// gloo's thread is late to note the end on this rank, by more than a tenth of the wait.
TEST_F(Explain, FindsTheWaitForACollectiveThatEndedInTimeOnAnotherRank) {
  const auto rank = [](int number, double begin, double end) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
        .on_host("cpu_op", "aten::mm", 0, 100)
        .event("user_annotation", "gloo:all_reduce", 100, 9, begin, end - begin)
        .on_host("cpu_op", "aten::add_", 600, 200);
    return trace.text_of_job({{"rank", number}, {"world_size", 2}});
  };
  const RunAccount account = account_of(run_of({rank(0, 50, 800), rank(1, 550, 605)}));
  EXPECT_EQ(us(account.accounts[0], Part::kExposedCommunication), 500);
  EXPECT_EQ(account.accounts[0].waiting_ns, 450'000);
  const RunAccount late = account_of(run_of({rank(0, 50, 800), rank(1, 550, 790)}));
  EXPECT_EQ(us(late.accounts[0], Part::kExposedCommunication), 0);
}

/// Forward and backward run in a closure of the optimizer's step, clipping between backward and the
/// update.
TEST_F(Explain, TellsPhasesInAClosureAndBeforeAnUpdate) {
  const nlohmann::json recorded = {{"Sequence number", 5}};
  MadeTrace closure;
  closure.on_host("user_annotation", "ProfilerStep#1", 0, 100)
      .on_host("user_annotation", "Optimizer.step#SGD.step", 5, 90)
      .event("cpu_op", "aten::linear", 100, 1, 10, 20, recorded)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 40, 30)
      .on_host("cpu_op", "aten::add_", 80, 10);
  MadeTrace clipped;
  clipped.on_host("user_annotation", "ProfilerStep#1", 0, 100)
      .event("cpu_op", "aten::linear", 100, 1, 10, 20, recorded)
      .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 40, 30)
      .on_host("cpu_op", "aten::linalg_vector_norm", 72, 4)
      .on_host("user_annotation", "Optimizer.step#SGD.step", 78, 18)
      .on_host("cpu_op", "aten::add_", 80, 6);
  // Of an update without a closure, all is the optimizer's, with what is no op.
  for (const auto& [trace, update_us] : {std::pair(closure, 10), std::pair(clipped, 4 + 18)}) {
    const RunAccount account = account_of(run_of({trace.text()}));
    ASSERT_EQ(account.accounts.size(), 1U);
    EXPECT_EQ(us(account.accounts[0], Part::kForward), 20);
    EXPECT_EQ(us(account.accounts[0], Part::kBackward), 30);
    EXPECT_EQ(us(account.accounts[0], Part::kOptimizer), update_us);
  }
}

TEST_F(Explain, CutsLongNamesOfOperators) {
  MadeTrace trace;
  trace.work(1, 0, 7, std::string(1000, 'k') + std::string(17, 'e'), 10, 60);
  const TracedRun run = run_of({trace.text()});
  const std::vector<FindingTable> tables = findings_of(run, account_of(run)).tables;
  const auto table = std::ranges::find_if(
      tables, [](const FindingTable& each) { return each.title.starts_with("Operators"); });
  ASSERT_NE(table, tables.end());
  EXPECT_EQ(table->rows[0][0], std::string(40, 'k') + "..." + std::string(17, 'e'));
}

/// Work without a launch, on a stream where others have one, is in all tables: here a collective.
TEST_F(Explain, CountsWorkWithoutALaunchInAllTables) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 10, 300)
      .work(2, 5, 20, "ncclDevKernel_Broadcast", 20, 30)
      .event("kernel", kAllReduceKernel, 0, 20, 300, 88, kAllReduced)
      .work(3, 8, 7, "adam", 388, 500);
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  EXPECT_EQ(us(account.accounts[0], Part::kExposedCommunication), 88);
  EXPECT_EQ(account.buckets.size(), 2U);
  const std::vector<DeviceBreakdown> devices = breakdowns_of(run);
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_NEAR(devices[0].breakdown.communication_s, 98e-6, 1e-12);
}

/// Kernels of the second device have no launches.
TEST_F(Explain, CountsADeviceWithoutLaunches) {
  MadeTrace trace = step_of_every_cause();
  trace.event("kernel", "gemm", 1, 9, 100, 300, {{"correlation", 0}});
  const auto breakdowns = breakdowns_of(run_of({trace.text()}));
  ASSERT_EQ(breakdowns.size(), 2U);
  EXPECT_EQ(breakdowns[1].device, "1");
}

TEST_F(Explain, AlignsClocksThatCannotBeRight) {
  const TracedRun run = run_of({rank_of_two(100).text(0), rank_of_two(300, 5000).text(1)});
  // Rank 1 entered before rank 0 left and left after rank 0 entered: 4900 to 5300 us too late.
  EXPECT_EQ(run.ranks[1].shift_ns, -5'100'000);
  EXPECT_EQ(run.ranks[1].shift_error_ns, 200'000);
  const RunAccount account = account_of(run);
  for (const TracedAccount& each : account.accounts) expect_sum(each);
  EXPECT_THAT(texts_of(findings_of(run, account).untimed),
              Contains(HasSubstr("The clock of rank 1 contradicts the first rank's")));
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
  EXPECT_EQ(us(account.accounts[1], Part::kOptimizer), 10);
  EXPECT_EQ(us(account.accounts[1], Part::kHost), 30);
}

/// Updates with nothing between them, and those whose work recurs in turns, are of one step.
TEST_F(Explain, JoinsTheUpdatesOfSeveralOptimizers) {
  const auto run = [&](const std::vector<const char*>& backward, const char* between) {
    MadeTrace trace;
    double at = 0;
    for (const char* each : backward) {
      trace.on_host("cpu_op", "aten::linear", at, 20)
          .on_host("cpu_op", fmt::format("autograd::engine::evaluate_function: {}", each), at + 30,
                   20)
          .on_host("user_annotation", "Optimizer.step#Adam.step", at + 50, 10)
          .on_host("cpu_op", "aten::add_", at + 52, 4);
      if (*between != 0) trace.on_host("user_annotation", between, at + 70, 10);
      at += 100;
    }
    return run_of({trace.text()});
  };
  const auto note = [](const TracedRun& of) {
    for (const std::string& each : texts_of(findings_of(of, account_of(of)).untimed)) {
      if (each.starts_with("No ProfilerStep")) return each;
    }
    return std::string();
  };
  const auto ends_us = [](const TracedRun& of) {
    std::vector<std::int64_t> ends;
    for (const RankStep& step : of.ranks[0].steps) {
      ends.push_back((step.end_ns - of.ranks[0].steps[0].begin_ns) / 1000);
    }
    return ends;
  };
  using Ends = std::vector<std::int64_t>;
  EXPECT_EQ(ends_us(run({"A", "A", "A"}, "Optimizer.step#Adam.step")), (Ends{80, 180, 280}));
  const TracedRun sgd = run({"A", "A", "A"}, "Optimizer.step#SGD.step");
  EXPECT_EQ(ends_us(sgd), (Ends{80, 180, 280}));
  EXPECT_THAT(note(sgd), HasSubstr("a step ends with each update of the optimizer, and"));
  const TracedRun turns = run({"A", "B", "A", "B", "A", "B", "A"}, "");
  EXPECT_EQ(ends_us(turns), (Ends{160, 360, 560}));
  EXPECT_THAT(note(turns),
              HasSubstr("a step has 2 updates of optimizers, since their work recurs"));
  EXPECT_EQ(ends_us(run({"A", "A", "B", "A", "A", "B"}, "")), (Ends{260, 560}));
  EXPECT_EQ(ends_us(run({"C", "B", "A", "B", "A", "B"}, "")), (Ends{160, 360, 560}))
      << "the first one prepares";
  const TracedRun alike = run({"A", "A", "A", "A"}, "");
  EXPECT_EQ(ends_us(alike), (Ends{60, 160, 260, 360}));
  EXPECT_EQ(ends_us(run({"A", "B", "A"}, "")).size(), 3U) << "too few turns";
  MadeTrace apart;
  double at = 0;
  for (const char* const each : {"Adam", "SGD", "Adam", "Adam"}) {
    apart.on_host("cpu_op", "autograd::engine::evaluate_function: A", at, 10)
        .on_host("user_annotation", fmt::format("Optimizer.step#{}.step", each), at + 10, 10);
    at += 50;
  }
  EXPECT_THAT(note(run_of({apart.text()})),
              HasSubstr("each update of the first optimizer, not of the others"));
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
  const TracedRun run = run_of({trace_text(events, context)});
  const RunAccount account = account_of(run);
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
  EXPECT_THAT(findings_of(run, account).untimed.back().text,
              HasSubstr("[ ] warm-up: 0 steps left out; [ ] repeats: 1 start of 2 steps"));
}

std::vector<std::string> keys_of(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
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

/// The picture has a row of its own for all communication, hidden or not.
TEST_F(Explain, SaysTheSameInTableAndPicture) {
  const std::vector<std::vector<std::filesystem::path>> runs = {
      {file("gpu.json", step_of_every_cause().text())},
      {kTraces / "pytorch_ddp.rank0.json.gz", kTraces / "pytorch_ddp.rank1.json.gz"}};
  for (const auto& traces : runs) {
    const TracedRun run = read_run(traces);
    const Findings findings = findings_of(run, account_of(run));
    std::vector<std::string> words = {"communication"};
    for (const auto& row : findings.tables.at(0).rows) words.push_back(row.at(0));
    for (const PlotSeries& each : findings.plots.at(0).series) {
      EXPECT_THAT(words, testing::Contains(each.name));
    }
  }
}

/// What the page of `mlp_lab explore` calls, with bytes as a browser hands them over.
TEST_F(Explain, GivesThePageWhatItPrintsFromPiecesOfAnySize) {
  const std::vector<std::filesystem::path> paths = {kTraces / "pytorch_ddp.rank0.json.gz",
                                                    kTraces / "pytorch_ddp.rank1.json.gz"};
  testing::internal::CaptureStdout();
  explain_traces({.traces = paths});
  const std::string printed = testing::internal::GetCapturedStdout();
  // The page has no option, and shows the report itself.
  std::string expected = printed;
  const std::string in_report = "in the report (--output DIR)";
  for (std::size_t at = 0; (at = expected.find(in_report)) != std::string::npos;) {
    expected.replace(at, in_report.size(), "on this page");
  }
  EXPECT_THAT(expected, ContainsRegex("\n    and [0-9]+ more rows on this page\n"));
  EXPECT_THAT(expected, ContainsRegex("\n  More on this page: Operators of rank 1: .*\n$"));
  for (const std::size_t most : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    std::vector<TraceFile> files;
    for (const std::filesystem::path& path : paths) {
      const TraceSource file = open_trace(path);
      files.push_back(read_trace_file({path, [&](std::span<char> out) {
                                         return file.read(out.first(std::min(most, out.size())));
                                       }}));
    }
    const auto page = nlohmann::json::parse(explained_json(std::move(files)));
    EXPECT_THAT(keys_of(page), ElementsAre("plots", "sentences", "tables", "text"));
    EXPECT_EQ(page.at("text"), expected) << most;
    for (const nlohmann::json& each : page.at("sentences")) {
      EXPECT_THAT(printed, HasSubstr("  " + each.get<std::string>() + "\n"));
    }
    EXPECT_EQ(page.at("tables").at(0).at("columns"), nlohmann::json({"part", "rank 0", "rank 1"}));
    EXPECT_THAT(page.at("plots").at(0).get<std::string>(), StartsWith("<svg"));
  }
}

TEST_F(Explain, RefusesASourceThatIsCorrupt) {
  expect_error(ExitCode::kBadData, "trace 'given': its gzip stream is corrupt; give traces by", [] {
    read_trace_file({"given", [](std::span<char>) { return -1; }});
  });
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
  EXPECT_THAT(findings.timed[0].text,
              ContainsRegex("The bottleneck is rank 1: the others wait [0-9.]+ ms a step for it, "
                            "[0-9.]+ % of theirs, and it spends [0-9.]+ ms a step more than they "
                            "do on the host"));
  EXPECT_THAT(findings.timed[1].text, HasSubstr("To learn what it is, on rank 1: profile with_"));
}

TEST_F(Explain, RecognizesAnMlpAndPredictsIt) {
  const TracedRun run = read_run({kTraces / "pytorch_cpu.json.gz"});
  const RunAccount account = account_of(run);
  const Findings without = mlp_findings(run, account, "");
  ASSERT_EQ(without.timed.size(), 2U);
  EXPECT_THAT(without.timed[0].text, HasSubstr("widths 256, 256, 256, 256 with 64 rows a rank"));
  EXPECT_THAT(without.timed[0].text, ContainsRegex("mlp_single .*--layers 256,256,256,256"));
  EXPECT_THAT(without.timed[1].text, HasSubstr("state the card of a machine with --machine"));
  const Findings with = mlp_findings(run, account, "h100-nvlink");
  ASSERT_EQ(with.tables.size(), 1U);
  EXPECT_EQ(with.tables[0].rows.size(), 5U);
  MadeTrace other = step_of_every_cause();  // no shapes
  EXPECT_TRUE(mlp_findings(run_of({other.text()}), account, "").timed.empty());
}

/// A forward and a backward pass on the host, and the optimizer if that follows.
struct MadePass {
  std::vector<std::int64_t> widths{12, 12, 12};
  std::int64_t rows = 8;
  std::string activation = "aten::relu", loss = "aten::mse_loss";
  bool last_activation = true, recomputes = false;
};

double add_pass(MadeTrace& trace, double at, const MadePass& pass, bool is_last = true) {
  const auto op = [&](const std::string& name, const nlohmann::json& args) {
    trace.event("cpu_op", name, 100, 1, at, 10, args);
    at += 10;
  };
  const auto linear = [&](std::size_t i) {
    op("aten::linear", {{"Input Dims",
                         {{pass.rows, pass.widths[i]},
                          {pass.widths[i + 1], pass.widths[i]},
                          {pass.widths[i + 1]}}}});
  };
  for (std::size_t i = 0; i + 1 < pass.widths.size(); ++i) {
    linear(i);
    if (i + 2 < pass.widths.size() || pass.last_activation) {
      op(pass.activation, nlohmann::json::object());
    }
  }
  op(pass.loss, nlohmann::json::object());
  if (pass.recomputes) {
    trace.event("cpu_op", "autograd::engine::evaluate_function: Checkpoint", 100, 1, at, 20);
    linear(0);
    linear(0);
  }
  op("autograd::engine::evaluate_function: AddmmBackward0", nlohmann::json::object());
  if (is_last) {
    trace.event("user_annotation", "Optimizer.step#SGD.step", 100, 1, at, 10);
    op("aten::add_", nlohmann::json::object());
  }
  return at;
}

/// The sentence on the model, or "" if it is no multi-layer perceptron.
std::string mlp_sentence(const TracedRun& run, const std::string& machine = "") {
  const Findings findings = mlp_findings(run, account_of(run), machine);
  return findings.timed.empty() ? "" : findings.timed[0].text;
}

TEST_F(Explain, CountsTheMicroBatchesOfAnOptimizerStep) {
  MadeTrace whole, single;  // a profiled step for each optimizer step, and for each micro-batch
  double at = 0;
  for (int step = 0; step < 2; ++step) {
    const double begin = at;
    for (int i = 0; i < 3; ++i) {
      const double from = at;
      at = add_pass(whole, at, {}, i == 2);
      add_pass(single, from, {}, i == 2);
      single.on_host("user_annotation", fmt::format("ProfilerStep#{}", 3 * step + i), from,
                     at - from);
    }
    whole.on_host("user_annotation", fmt::format("ProfilerStep#{}", step), begin, at - begin);
  }
  for (const MadeTrace& trace : {whole, single}) {
    const TracedRun run = run_of({trace.text()});
    EXPECT_THAT(mlp_sentence(run),
                HasSubstr("of widths 12, 12, 12 with 8 rows a rank in each of 3 micro-batches"));
    EXPECT_THAT(mlp_sentence(run), ContainsRegex("mlp_single .*--batch-size 8 .*--accumulate 3"));
    EXPECT_EQ(mlp_findings(run, account_of(run), "h100-nvlink").tables.size(), 1U);
  }
}

TEST_F(Explain, TellsTheModelsActivationAndLoss) {
  const auto sentence = [&](const MadePass& pass) {
    MadeTrace trace;
    add_pass(trace, 0, pass);
    return mlp_sentence(run_of({trace.text()}), "h100-nvlink");
  };
  const std::string plain = sentence({});
  EXPECT_THAT(plain, HasSubstr("mlp_single --layers 12,12,12 --batch-size 8 --optimizer sgd"));
  EXPECT_THAT(plain, Not(ContainsRegex("--activation|--no-last-relu|--loss |--accumulate")));
  const std::string other = sentence({.widths = {5, 7, 3},
                                      .activation = "aten::gelu",
                                      .loss = "aten::l1_loss",
                                      .last_activation = false});
  for (const char* part : {"--layers 5,7,3", "--activation gelu", "--no-last-relu", "--loss l1"}) {
    EXPECT_THAT(other, HasSubstr(part));
  }
  const std::string labels = sentence({.loss = "aten::cross_entropy_loss"});
  EXPECT_THAT(labels, HasSubstr("--loss cross-entropy"));
  EXPECT_THAT(labels, HasSubstr("--data safetensors:FILE"));
  EXPECT_EQ(sentence({.recomputes = true}), plain);
  // Layers that a multi-layer perceptron lacks.
  EXPECT_EQ(sentence({.activation = "aten::conv2d"}), "");
  EXPECT_EQ(sentence({.loss = "aten::embedding"}), "");
  EXPECT_EQ(sentence({.loss = "aten::add"}), "") << "a residual connection";
  EXPECT_EQ(sentence({.loss = "Torch-Compiled Region: 0/0"}), "") << "its kernels do not tell";
}

TEST_F(Explain, CountsTheRanksWhoseTracesAreMissing) {
  MadeTrace trace;
  const double end = add_pass(trace, 0, {});
  trace.on_host("user_annotation", "ProfilerStep#0", 0, end)
      .work(1, 5, 20, kAllReduceKernel, 10, 20, kAllReduced)
      .work(2, 25, 7, "gemm", 30, 40);
  EXPECT_THAT(mlp_sentence(run_of({trace.text()})),
              ContainsRegex("mpirun -np 2 mlp_ddp .*--global-batch-size 16"));
  MadeTrace cpu;
  add_pass(cpu, 0, {});
  EXPECT_THAT(mlp_sentence(run_of({cpu.text_of_job({{"rank", 0}, {"world_size", 4}})})),
              ContainsRegex("mpirun -np 4 mlp_ddp .*--global-batch-size 32"));
  cpu.on_host("user_annotation", "FSDP::pre_forward (0)", 0, 5);
  EXPECT_THAT(mlp_sentence(run_of({cpu.text_of_job({{"rank", 0}, {"world_size", 4}})})),
              ContainsRegex("mlp_ddp .*--scheme zero3"));
}

/// Seven steps: in the second run a layer is called twice, another op is new, and the host saves.
TEST_F(Explain, AccountsForTheDifferenceOfTwoRuns) {
  MadeTrace a, b;
  for (int i = 0; i < 7; ++i) {
    a.on_host("user_annotation", fmt::format("ProfilerStep#{}", i), 1000 * i, 1000)
        .on_host("cpu_op", "aten::linear", 1000 * i, 400);
    b.on_host("user_annotation", fmt::format("ProfilerStep#{}", i), 1500 * i, 1500)
        .on_host("cpu_op", "aten::linear", 1500 * i, 400)
        .on_host("cpu_op", "aten::linear", 1500 * i + 400, 400)
        .on_host("cpu_op", "aten::sort", 1500 * i + 800, 100)
        .on_host("user_annotation", "save", 1500 * i + 900, 600);
  }
  std::filesystem::create_directory(folder() / "A");
  std::filesystem::create_directory(folder() / "B");
  const auto first = file("A/t.json", a.text()), second = file("B/t.json", b.text());
  const auto pieces_at = [](const std::filesystem::path& path) {
    const TracedRun run = read_run({path});
    return pieces_of(run, account_of(run));
  };
  const TraceDifference difference = difference_of(pieces_at(first), pieces_at(second));
  EXPECT_EQ(difference.steps.word, Word::kSlower);
  EXPECT_NEAR(difference.steps.ratio.median, 1.5, 1e-9);
  const std::vector<FindingTable>& tables = difference.findings.tables;
  using Rows = std::vector<std::vector<std::string>>;
  EXPECT_EQ(tables.at(0).rows, (Rows{{"forward", "0.4000 ms", "0.9000 ms", "+500 us"},
                                     {"host", "0.6000 ms", "0.6000 ms", "0 ms"},
                                     {"wall time", "1.0000 ms", "1.5000 ms", "+500 us"}}));
  EXPECT_EQ(
      tables.at(1).rows,
      (Rows{{"after the last op of the step", "0.6000 ms", "0.0000 ms", "-600 us", "host", "gone"},
            {"save", "0.0000 ms", "0.6000 ms", "+600 us", "host", "new"},
            {"aten::linear", "0.4000 ms", "0.8000 ms", "+400 us", "forward",
             "more often: 1.00 to 2.00 calls"},
            {"aten::sort", "0.0000 ms", "0.1000 ms", "+100 us", "forward", "new"}}));
  EXPECT_EQ(difference.findings.timed.at(2).text,
            "A step of B takes 1.50 ms and one of A 1.00 ms, in the mean: +500 us; +500 us of it "
            "in forward, most in `aten::linear` (+400 us, more often: 1.00 to 2.00 calls).");
  const auto explain = [&](std::optional<double> fail_above) {
    testing::internal::CaptureStdout();
    explain_traces({.traces = {folder() / "A", folder() / "B"}, .fail_above = fail_above});
  };
  explain(0.6);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("In this run of B a step is slower"));
  expect_error(ExitCode::kBadData, "a step takes at least 50.0 % longer than in",
               [&] { explain(0.05); });
  testing::internal::GetCapturedStdout();
  expect_same_from_baseline(first, folder() / "B");
  std::filesystem::remove(first);
  expect_error(ExitCode::kBadData, "is a folder without traces",
               [&] { explain_traces({.traces = {folder() / "A"}}); });
}

/// Four layers, shared in pairs, with a sum over ranks behind each pair.
TEST_F(Explain, OffersTensorParallelismForSharedLayers) {
  const auto trace = [](const char* between) {
    MadeTrace made;
    const auto linear = [&](double at) {
      made.event("cpu_op", "aten::linear", 100, 1, at, 10,
                 {{"Input Dims", {{8, 12}, {12, 12}, {12}}}});
    };
    for (const double at : {0.0, 100.0}) {
      linear(at);
      made.on_host("cpu_op", "aten::relu", at + 20, 10);
      linear(at + 40);
      made.on_host("cpu_op", "_c10d_functional::all_reduce", at + 60, 10)
          .on_host("cpu_op", "_c10d_functional::wait_tensor", at + 70, 10)
          .on_host("cpu_op", at == 0 ? between : "aten::relu", at + 80, 10);
    }
    made.on_host("cpu_op", "aten::mse_loss", 190, 5)
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 195, 10);
    return made.text_of_job({{"rank", 0}, {"world_size", 2}});
  };
  const std::string sentence = mlp_sentence(run_of({trace("aten::relu")}));
  EXPECT_THAT(sentence, HasSubstr("widths 12, 24, 12, 24, 12 with 8 rows a rank"));
  EXPECT_THAT(sentence, ContainsRegex("mpirun -np 2 mlp_ddp .*--layers 12,24,12,24,12 "
                                      "--global-batch-size 8 .*--tensor 2"));
  EXPECT_EQ(mlp_sentence(run_of({trace("aten::mul")})), "") << "no layer of ours is behind it";
}

TEST_F(Explain, OffersNoCommandForAStageOfAPipeline) {
  MadeTrace trace;
  add_pass(trace, 0, {});
  EXPECT_NE(mlp_sentence(run_of({trace.text()})), "");
  trace.on_host("user_annotation", "gloo:recv", 5, 2);
  EXPECT_EQ(mlp_sentence(run_of({trace.text()})), "");
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
}

/// What a step gains without a cause, in seconds.
Estimate gain_without(const TracedRun& run, const std::string& cause) {
  for (const TracedFix& each : fixes_of(run, account_of(run))) {
    if (each.name == cause) return each.gain_s;
  }
  ADD_FAILURE() << "no cause " << cause;
  return {};
}

/// Of equal runs nothing is faster, also where they have too few steps.
TEST_F(Explain, FindsNoDifferenceOfEqualRuns) {
  std::filesystem::create_directory(folder() / "A");
  std::filesystem::create_directory(folder() / "B");
  for (const char* const run : {"A/t.json", "B/t.json"}) file(run, rank_of_two(100).text(0));
  const std::string text = printed({.traces = {folder() / "A", folder() / "B"}});
  EXPECT_THAT(text, AllOf(Not(HasSubstr("faster per call")), Not(HasSubstr("slower"))));
  testing::internal::CaptureStdout();
  expect_error(ExitCode::kBadData, "has too few steps to judge, as --fail-above asks", [&] {
    explain_traces({.traces = {folder() / "A", folder() / "B"}, .fail_above = 0.05});
  });
  testing::internal::GetCapturedStdout();
}

/// The commands of the answer work: all traces as they were given, and a folder of new ones. The
/// ranks of a baseline may also be given as files.
TEST_F(Explain, PrintsCommandsThatWork) {
  std::filesystem::create_directory(folder() / "a job's");
  const auto first = file("a job's/0.json", rank_of_two(100).text(0)),
             second = file("a job's/1.json", rank_of_two(300).text(1));
  const std::string text = printed({.traces = {first, second}, .output = folder() / "before"});
  const auto quoted = [&](const char* name) {
    return fmt::format("'{}/a job'\\''s/{}'", folder().string(), name);
  };
  EXPECT_THAT(text, HasSubstr(fmt::format("mlp_lab explain {} {} --output before; then, with the "
                                          "new traces in the folder after: mlp_lab explain "
                                          "before/results.json after",
                                          quoted("0.json"), quoted("1.json"))));
  const auto baseline = folder() / "before/results.json";
  const auto answers = [&](const std::vector<std::filesystem::path>& traces) {
    return nlohmann::json::parse(printed({.traces = traces, .json = true})).at("pieces");
  };
  EXPECT_EQ(answers({baseline, first, second}), answers({baseline, folder() / "a job's"}));
  EXPECT_THAT(printed({.traces = {baseline, first}}), HasSubstr("A has 2 ranks and B 1 rank:"));
}

/// In the one wait is most, in the other the exchange.
TEST_F(Explain, NamesTheRankForWhichTheDifferenceWaits) {
  const auto pieces = [&](double enters) {
    const TracedRun run = run_of({rank_of_two(100).text(0), rank_of_two(enters).text(1)});
    return pieces_of(run, account_of(run));
  };
  const TraceDifference difference = difference_of(pieces(100), pieces(390));
  const FindingTable& table = difference.findings.tables.at(1);
  EXPECT_THAT(table.rows, Contains(Contains("all_reduce: waiting for rank 1")));
  EXPECT_THAT(texts_of(difference.findings.timed),
              Contains("In B a rank is late: rank 1 spends 290 us more than the others on forward, "
                       "most of it in `gemm` (390 us of 490 us)."));
}

/// A Function of the user's without ops in it, and nodes without an engine around them.
TEST_F(Explain, TellsPassesOfFunctionsWithoutOps) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .event("cpu_op", "Scale", 100, 1, 0, 300, {{"Sequence number", 5}})
      .event("cpu_op", "ScaleBackward", 100, 1, 300, 400, {{"Sequence number", 5}})
      .event("cpu_op", "MulBackward0", 100, 1, 700, 200, {{"Sequence number", 4}});
  expect_parts(trace, {{Part::kForward, 300}, {Part::kBackward, 600}});
}

/// Values that are read after the update are no evaluation, but the host's time, with its name.
TEST_F(Explain, CountsValuesThatAreReadAsTheHosts) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .event("cpu_op", "aten::linear", 100, 1, 0, 100, {{"Sequence number", 5}})
      .on_host("user_annotation", "Optimizer.step#SGD.step", 100, 100)
      .on_host("cpu_op", "aten::item", 200, 700);
  expect_parts(trace, {{Part::kForward, 100}, {Part::kHost, 800}});
  const TracedRun run = run_of({trace.text()});
  EXPECT_THAT(findings_of(run, account_of(run)).timed.at(0).text,
              HasSubstr("most of it in `aten::item` (700 us of 800 us)"));
}

/// The host waits in a call for the device: no cause of idle time that could be left out.
TEST_F(Explain, OffersNoFixThatOnlyWaitsForTheDevice) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 5, 105)
      .work(2, 10, 7, "gemm", 905, 1000)
      .event("cuda_runtime", "cudaMemcpyAsync", 100, 1, 20, 980, {{"correlation", 3}});
  const TracedRun run = run_of({trace.text()});
  const RunAccount account = account_of(run);
  const std::vector<TracedFix> fixes = fixes_of(run, account);
  ASSERT_EQ(fixes.size(), 1U);
  EXPECT_EQ(fixes[0].name, "idle gaps");
  EXPECT_THAT(findings_of(run, account).timed.at(0).text,
              HasSubstr("most of it while the host was in `cudaMemcpyAsync`"));
}

/// Rank 0 computes 100 us and rank 1 300 us ahead of an all-reduce of 100, and both 100 behind it.
TEST_F(Explain, PredictsWhatHiddenTransfersAndAnEvenRankGain) {
  const TracedRun run = run_of({rank_of_two(100).text(0), rank_of_two(300).text(1)});
  EXPECT_NEAR(gain_without(run, "exchanging").median, 100e-6, 1e-12);
  // As rank 0 it would compute 200 us, half of its own 400: 150 us ahead and 50 behind.
  EXPECT_NEAR(gain_without(run, "rank 1 slower than the others").median, (150 + 200) / 2 * 1e-6,
              1e-12);
  const TracedRun alone = run_of({rank_of_two(100).text(0)});
  EXPECT_NEAR(gain_without(alone, "exposed communication").median, 300e-6, 1e-12)
      << "the other's is missing";
}

/// Without its bubble, a pipeline takes as long as its slowest stage.
TEST_F(Explain, PredictsWhatAStepGainsWithoutTheBubble) {
  EXPECT_NEAR(gain_without(run_of(two_stages()), "the bubble of the pipeline").median,
              (2 + 2 + 390) * 1e-6, 1e-12);
}

/// Rank 1 saves for 200 us before it enters an all-reduce, rank 0 for 50 us.
TEST_F(Explain, PredictsWhatAStepGainsWithoutACause) {
  const auto rank = [](int number, double saves) {
    MadeTrace trace;
    trace.on_host("user_annotation", "ProfilerStep#0", 0, 500)
        .on_host("cpu_op", "aten::linear", 0, 100)
        .on_host("user_annotation", "save", 100, saves)
        .on_host("cpu_op", "aten::mul", 100 + saves, 10)
        .event("user_annotation", "gloo:all_reduce", 100, 9, 105 + saves, 295 - saves)
        .on_host("cpu_op", "aten::add_", 400, 50)
        .on_host("user_annotation", "log", 450, 20 * (number + 1))
        .on_host("cpu_op", "aten::add", 455, 5);
    return trace.text_of_job({{"rank", number}, {"world_size", 2}});
  };
  const TracedRun run = run_of({rank(0, 50), rank(1, 200)});
  const RunAccount account = account_of(run);
  EXPECT_EQ(account.accounts[0].waiting_ns, 145'000);
  const Estimate save = gain_without(run, "save"), log = gain_without(run, "log");
  EXPECT_NEAR(save.median, 200e-6, 1e-12) << "of both ranks, as they leave together";
  EXPECT_NEAR(log.median, (15 + 35) / 2 * 1e-6, 1e-12);
  EXPECT_NEAR(log.high, (20 + 40) / 2 * 1e-6, 1e-12) << "with the op in it";
  const FindingTable table = findings_of(run, account).tables.at(2);
  EXPECT_EQ(table.rows.at(0).at(0), "rank 1 slower than the others") << "as in the first sentence";
  EXPECT_EQ(table.rows.at(1).at(0), "save");
  EXPECT_EQ(table.rows.at(1).at(2), "40.0 %");
}

/// The host delays the next launch by 300 us, of which the device sees 100; later it is late again.
TEST_F(Explain, PredictsThatADeviceSeesMoreOfAHostThatIsEarlier) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 1000)
      .work(1, 0, 7, "gemm", 5, 305)
      .on_host("user_annotation", "save", 100, 300)
      .work(2, 402, 7, "gemm", 405, 605)
      .work(3, 800, 7, "gemm", 805, 1000);
  const std::vector<TracedFix> fixes = [&] {
    const TracedRun run = run_of({trace.text()});
    return fixes_of(run, account_of(run));
  }();
  const auto save = std::ranges::find(fixes, "save", &TracedFix::name);
  ASSERT_NE(save, fixes.end());
  EXPECT_NEAR(save->gain_s.median, 95e-6, 1e-12);
  EXPECT_NEAR(save->gain_s.high, (95 + 4 + 197) * 1e-6, 1e-12) << "of 205 that it was hidden for";
}

/// What tensorboard_trace_handler writes: of each worker the newest; other files are no traces.
TEST_F(Explain, TakesTheNewestTraceOfEachWorkerInAFolder) {
  const std::filesystem::path log = folder() / "log";
  std::filesystem::create_directory(log);
  const auto write = [&](const std::string& name, int rank, const char* op) {
    MadeTrace trace;
    trace.on_host("cpu_op", op, 0, 10);
    file("log/" + name, trace.text(rank));
  };
  write("host_7.999.pt.trace.json", 0, "old");
  write("host_7.1790857026123.pt.trace.json", 0, "new");
  write("host_8.1790857026124.pt.trace.json", 1, "new");
  file("log/settings.json", "{}");
  const auto files = nlohmann::json::parse(printed({.traces = {log}, .json = true})).at("traces");
  ASSERT_EQ(files.size(), 2U);
  EXPECT_THAT(files[0].at("file").get<std::string>(), HasSubstr("host_7.1790857026123"));
  EXPECT_THAT(printed({.traces = {log / "host_[78].1*.json"}}), HasSubstr("rank 1"));
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(log / "host_7.999.pt.trace.json", now + std::chrono::hours(1));
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(log);
  const std::string newest = printed({});
  std::filesystem::current_path(here);
  EXPECT_THAT(newest, HasSubstr("the newest trace here."));
  EXPECT_THAT(newest, HasSubstr("mlp_lab explain host_7.999.pt.trace.json --output before"));
}

TEST_F(Explain, WritesWhatItsSchemaSays) {
  const auto schema = nlohmann::json::parse(read_file(BARESTEP_EXPLAIN_SCHEMA));
  const auto violation = [&](const std::vector<std::filesystem::path>& traces, const char* kind) {
    const auto results = nlohmann::json::parse(printed({.traces = traces, .json = true}));
    return schema_violation(results, schema.at("$defs").at(kind), schema);
  };
  std::vector<std::vector<std::filesystem::path>> all = {
      {kTraces / "pytorch_cpu.json.gz"},
      {kTraces / "pytorch_ddp.rank0.json.gz", kTraces / "pytorch_ddp.rank1.json.gz"},
      {file("gpu.json", step_of_every_cause().text())}};
  const std::filesystem::path injected = BARESTEP_TEST_INJECTED;
  const auto truth = nlohmann::json::parse(read_file(injected / "truth.json"));
  for (const auto& [name, each] : truth.items()) {
    all.emplace_back();
    for (const std::string trace : each.at("traces")) all.back().push_back(injected / trace);
  }
  for (const auto& traces : all) EXPECT_EQ(violation(traces, "account"), "") << traces[0];
  printed({.traces = {all[0]}, .output = folder() / "before"});
  EXPECT_EQ(violation({folder() / "before/results.json", all[1][0]}, "difference"), "");
  EXPECT_NE(violation(all[0], "difference"), "");
}

TEST_F(Explain, WritesTheResultsThatItsPageNames) {
  const auto first = file("0.json", rank_of_two(100).text(0));
  const auto second = file("1.json", rank_of_two(300, 5000).text(1));
  testing::internal::CaptureStdout();
  explain_traces({.traces = {second, first}, .output = folder() / "out"});
  testing::internal::GetCapturedStdout();
  EXPECT_THAT(read_file(folder() / "out/report.html"),
              ContainsRegex("<title>Account of .*0.json and 1 more, recorded 2026-10-01 "));
  const auto results = nlohmann::json::parse(read_file(folder() / "out/results.json"));
  EXPECT_THAT(keys_of(results),
              ElementsAre("accounts", "answers", "collectives", "devices", "fixes", "format",
                          "notes", "pieces", "traces", "waits"));
  EXPECT_EQ(results.at("traces"),
            nlohmann::json({{{"rank", 0}, {"file", first.string()}, {"clock_shift_s", 0.0}},
                            {{"rank", 1}, {"file", second.string()}, {"clock_shift_s", -5.1e-3}}}));
  ASSERT_EQ(results.at("accounts").size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const nlohmann::json& account = results.at("accounts").at(rank);
    EXPECT_THAT(keys_of(account),
                ElementsAre("hidden_communication_s", "moving_s", "named_s", "outlier", "parts_s",
                            "rank", "step", "waiting_s", "wall_s"));
    for (const auto& [part, names] : account.at("named_s").items()) {
      double named_s = 0;
      for (const auto& [name, seconds] : names.items()) named_s += seconds.get<double>();
      EXPECT_NEAR(named_s, account.at("parts_s").at(part).get<double>(), 1e-12);
    }
    EXPECT_EQ(account.at("rank"), rank);
    EXPECT_EQ(account.at("step"), 0);
    EXPECT_DOUBLE_EQ(account.at("wall_s"), 500e-6);
    const nlohmann::json& parts = account.at("parts_s");
    double sum_s = 0;
    for (const Part part : kValuesOf<Part>) {
      sum_s += parts.at(std::string(name_of(part))).get<double>();
    }
    EXPECT_EQ(parts.size(), std::size(kValuesOf<Part>));
    EXPECT_NEAR(sum_s, 500e-6, 1e-12);
    EXPECT_NEAR(account.at("waiting_s").get<double>() + account.at("moving_s").get<double>(),
                parts.at("exposed communication").get<double>(), 1e-12);
    EXPECT_DOUBLE_EQ(account.at("hidden_communication_s"), 0);
  }
  // With the clock in the middle of what is possible, rank 1 enters 100 us after rank 0.
  EXPECT_EQ(results.at("waits"), nlohmann::json({{{"rank", 0}, {"for", 1}, {"seconds", 100e-6}}}));
  ASSERT_EQ(results.at("collectives").size(), 1U);
  const nlohmann::json& collective = results.at("collectives").at(0);
  EXPECT_THAT(keys_of(collective), ElementsAre("bus_bytes_per_s", "bytes", "collective", "count",
                                               "exposed_s", "moving_s", "ranks", "waiting_s"));
  EXPECT_EQ(collective.at("collective"), "all_reduce");
  EXPECT_EQ(collective.at("bytes"), 4'000'000);
  EXPECT_EQ(collective.at("ranks"), 2);
  EXPECT_EQ(collective.at("count"), 1);
  ASSERT_EQ(results.at("devices").size(), 2U);
  EXPECT_THAT(keys_of(results.at("devices").at(0)),
              ElementsAre("communication_s", "compute_s", "device", "idle_s", "non_compute_s",
                          "overlap", "rank", "span_s"));
  EXPECT_DOUBLE_EQ(results.at("devices").at(1).at("communication_s"), 100e-6);
  EXPECT_THAT(results.at("answers").at(0).get<std::string>(), HasSubstr("The bottleneck is "));
  EXPECT_THAT(results.at("notes").dump(), HasSubstr("The clock of rank 1 contradicts"));
}

}  // namespace
}  // namespace barestep
