// Our traces as interpreted by trace readers. Their Python packages are looked for in
// BARESTEP_READERS_PYTHON, otherwise in the python3 of the path; without them, tests are skipped.
#include <nlohmann/json.hpp>

#include "parallel/schemes/scheme_of.h"
#include "profiler/account.h"
#include "profiler/trace.h"
#include "support/process.h"
#include "support/sample_profile.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using Json = nlohmann::json;

/// Three steps of one of two ranks: forward and backward on the compute lane, each bucket's message
/// on the comm lane, half hidden; all at artificial times that are not rounded.
class TwoRanks {
 public:
  TwoRanks() {
    for (std::int64_t step = 0; step < 3; ++step) add_step(step);
  }
  [[nodiscard]] Profile profile() const { return profile_of(steps_, 0, {}); }

 private:
  void add_step(std::int64_t step) {
    const double begin_s = 100 + 0.1 * static_cast<double>(step);
    std::map<Lane, double> free_s;
    double queue_s = begin_s;
    const auto span_of = [&](NodeId id) {
      const Node& node = at(programs_.train().program.nodes(), id);
      Span span{.queued_s = queue_s, .queued_until_s = queue_s + 1e-5};
      // Some are queued late, some wait briefly, some longer.
      const double gap_s = id % 3 == 0 ? 2e-4 : id % 3 == 1 ? 1e-5 : 5e-5;
      span.begin_s = std::max(free_s[node.lane], queue_s + 1e-5) + gap_s;
      span.end_s = free_s[node.lane] = span.begin_s + 1e-4 * (1 + id % 4);
      queue_s += id % 5 == 4 ? 1e-3 : 2e-5;
      return span;
    };
    steps_.push_back(profiled_step(
        plan_, step, {.begin_s = begin_s, .start_s = begin_s, .end_s = begin_s + 0.09}, span_of));
    HostTimes& host = steps_.back().timeline.host;
    host.queued_s = host.fetch_begin_s = host.fetched_s = queue_s;
  }

  static StepSpec spec() {
    TrainConfig config;
    config.model.layers = {5, 7, 6, 3};
    return spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 2);
  }

  const Ddp ddp_{{.first_bucket_bytes = 50, .bucket_bytes = 100}};
  const StepPrograms programs_{spec(), &ddp_};
  RunPlan plan_{programs_.train().program, RunDetail::kNodes};
  std::vector<ProfiledStep> steps_;
};

class Readers : public TempDirTest {
 protected:
  Readers() {
    const TraceContext context{.program = "mlp_ddp",
                               .version = "0",
                               .trace_name = "t",
                               .mesh = Mesh::of_data(0, 2),
                               .backend = "mpi",
                               .device_name = "cpu",
                               .pid = 4711,
                               .thread = 4711};
    TraceEvents events({.host_s = 100, .unix_ns = 1711964646000000000});
    add_profile(events, ranks_.profile(), context);
    events.close();
    file("trace.json", events.file(trace_head(context), "t"));
  }

  /// The reader's output, or nothing if it is not installed.
  std::optional<Json> read_with(const std::string& reader) {
    const char* const python = std::getenv("BARESTEP_READERS_PYTHON");
    const ProcessResult result =
        run_process({"/usr/bin/env", python != nullptr ? python : "python3", READERS_PY, reader,
                     (folder() / "trace.json").string()});
    if (result.exit_code == 77 || result.exit_code == 127) return std::nullopt;
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t line = result.out.rfind("\n{");
    return line == std::string::npos ? Json() : Json::parse(result.out.substr(line));
  }

  TwoRanks ranks_;
};

void expect_within_one_percent(double ours_s, double theirs_us, const std::string& what) {
  EXPECT_NEAR(1e6 * ours_s, theirs_us, 0.01 * theirs_us + 1e-3) << what;
}

TEST_F(Readers, HolisticTraceAnalysisFindsTheSameTimes) {
  const auto theirs = read_with("hta");
  if (!theirs) GTEST_SKIP() << "HolisticTraceAnalysis is not installed";
  // The reader leaves out the last step.
  const Breakdown ours = breakdown_of(ranks_.profile().of({.first = 0, .end = 2}), 0);
  expect_within_one_percent(ours.span_s, theirs->at("span"), "span");
  expect_within_one_percent(ours.compute_s, theirs->at("compute"), "compute");
  expect_within_one_percent(ours.non_compute_s, theirs->at("non_compute"), "non_compute");
  expect_within_one_percent(ours.idle_s, theirs->at("idle"), "idle");
  ASSERT_TRUE(ours.overlap);
  EXPECT_NEAR(*ours.overlap, theirs->at("overlap").get<double>(), 0.01);
  EXPECT_GT(*ours.overlap, 0.1);
}

TEST_F(Readers, TensorBoardsPluginFindsCommunicationAndEveryKernel) {
  const auto theirs = read_with("tensorboard");
  if (!theirs) GTEST_SKIP() << "torch-tb-profiler is not installed";
  EXPECT_THAT(theirs->at("views").get<std::vector<std::string>>(),
              testing::IsSupersetOf({"Overview", "Operator", "Kernel", "Trace"}));
  std::map<std::string, int> calls;
  for (const TimedOp& op : ranks_.profile().ops) ++calls[std::string(label_of(op.node->op))];
  for (const char* kernel : {"gemm", "adam", "mse_loss"}) {
    EXPECT_EQ(theirs->at("kernels").at(kernel), calls.at(kernel)) << kernel;
  }
}

TEST_F(Readers, PerfettoLosesNothing) {
  const auto theirs = read_with("perfetto");
  if (!theirs) GTEST_SKIP() << "Perfetto's trace_processor is not installed";
  EXPECT_EQ(theirs->at("errors"), Json::object());
  const Json trace = Json::parse(read_file(folder() / "trace.json"));
  std::int64_t slices = 0;
  for (const Json& event : trace.at("traceEvents")) slices += event.at("ph") == "X" ? 1 : 0;
  EXPECT_GE(theirs->at("slices"), slices);
}

TEST(Breakdown, SumsUpToTheSpan) {
  const Breakdown breakdown = breakdown_of(SampleProfile().profile(), 0);
  // Two steps of 10 ms, from 0.2 to 17.6: 0.5 of copies and 6.5 of computation in each.
  EXPECT_NEAR(breakdown.span_s, 17.4e-3, 1e-12);
  EXPECT_NEAR(breakdown.compute_s, 13e-3, 1e-12);
  EXPECT_NEAR(breakdown.non_compute_s, 1e-3, 1e-12);
  EXPECT_NEAR(breakdown.idle_s, 3.4e-3, 1e-12);
  EXPECT_FALSE(breakdown.overlap);
  EXPECT_EQ(breakdown_text(breakdown),
            "From first to last op the device computes 74.7 % of 17.400ms, only copies or "
            "communicates 5.7 %, and is idle 19.5 %.\n");
  EXPECT_EQ(breakdown_text({}), "");
}

}  // namespace
}  // namespace barestep
