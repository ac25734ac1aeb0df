// mlp_lab explain --ranks on traces whose gradients are ready at known times.
#include "lab/explain/trace_ranks.h"

#include "lab/commands.h"
#include "lab/made_trace.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A gradient of so many fp32 numbers, ready at this microsecond of its step.
struct MadeGradient {
  double ready = 0;
  std::int64_t numbers = 0;
};

/// The first closes the first bucket, of 1 MiB; the next two fill the second one, of 25 MiB.
const std::vector<MadeGradient> kGradients = {
    {4000, 1 << 18}, {6000, 6 << 20}, {6500, 1 << 20}, {8000, 1000}};

MadeTrace& add_gradient(MadeTrace& trace, double ready, std::int64_t numbers) {
  return trace.event("cpu_op", "torch::autograd::AccumulateGrad", 100, 1, ready - 10, 10,
                     {{"Input Dims", {{numbers}}}, {"Input type", {"float"}}});
}

/// Three steps of 10 ms, the last of which takes 1 ms more behind backward.
MadeTrace made_training() {
  MadeTrace trace;
  for (int i = 0; i < 3; ++i) {
    const double begin = 10'000 * i, ends = i < 2 ? 10'000 : 11'000;
    trace.on_host("user_annotation", fmt::format("ProfilerStep#{}", i), begin, ends)
        .event("cpu_op", "aten::linear", 100, 1, begin, 2000, {{"Sequence number", 1}})
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin + 2000,
                 6000);
    for (const auto& [ready, numbers] : kGradients) add_gradient(trace, begin + ready, numbers);
    trace.on_host("user_annotation", "Optimizer.step#SGD.step", begin + 8000, ends - 8000)
        .on_host("cpu_op", "aten::add_", begin + 8000, ends - 8000);
  }
  return trace;
}

// Seconds of an all-reduce by bytes; launches, and bytes a second of memory.
constexpr double kFirst = 1 << 20, kSecond = 28 << 20, kThird = 4000;
constexpr double kFirst_s = 1e-3, kSecond_s = 3e-3, kThird_s = 0.2e-3;
constexpr double kLaunch_s = 10e-6, kMemory = 1e11;

std::string made_card(const char* kind = "cuda", int devices = 4) {
  const auto figure = [](const nlohmann::json& value) {
    return nlohmann::json{{"value", value}, {"source", "made up"}};
  };
  const nlohmann::json card = {
      {"name", "made-up"},
      {"kind", kind},
      {"device",
       {{"flops_per_s", figure(1e12)},
        {"memory_bytes_per_s", figure(kMemory)},
        {"launch_s", figure(kLaunch_s)},
        {"host_s", figure(0)}}},
      {"node",
       {{"devices", devices},
        {"latency_s", figure(0)},
        {"hop_s", figure(0)},
        {"all_reduce",
         {{"ranks", 2},
          {"source", "made up"},
          {"points", {{kThird, kThird_s}, {kFirst, kFirst_s}, {kSecond, kSecond_s}}}}}}}};
  return card.dump();
}

/// The same step by a plain loop: the time behind backward, and by how much longer all takes that
/// the card says.
struct PlainStep {
  std::vector<double> begins{}, ends{};
  double step_s = 0, exposed_s = 0;

  PlainStep(double rest_s, double factor) {
    const double ready_s[] = {4e-3, 6.5e-3, 8e-3};
    const double bytes[] = {kFirst, kSecond, kThird};
    const double reduce_s[] = {kFirst_s, kSecond_s, kThird_s};
    const auto copy_s = [&](int i) { return factor * (2 * bytes[i] / kMemory + kLaunch_s); };
    double now_s = 0, lane_s = 0;
    for (int i = 0; i < 3; ++i) {
      now_s += ready_s[i] - (i == 0 ? 0 : ready_s[i - 1]) + copy_s(i);
      begins.push_back(std::max(now_s, lane_s));
      lane_s = begins.back() + factor * reduce_s[i];
      ends.push_back(lane_s);
    }
    for (int i = 0; i < 3; ++i) {
      exposed_s += std::max(0.0, ends[static_cast<std::size_t>(i)] - now_s);
      now_s = std::max(now_s, ends[static_cast<std::size_t>(i)]) + copy_s(i);
    }
    step_s = now_s + rest_s;
  }
};

class TraceRanks : public TempDirTest {
 protected:
  TracedRun run_of(const std::string& text) { return read_run({file("t.json", text)}); }
  ExplainAnswer answer_for(const std::string& text, int ranks = 2) {
    const MachineCard card = load_card(file("made-up.json", made_card()).string());
    return ranks_answer(run_of(text), card, ranks);
  }
};

TEST_F(TraceRanks, SimulatesBucketsBesideBackwardAsAPlainLoopDoes) {
  const ExplainAnswer answer = answer_for(made_training().text());
  ASSERT_EQ(answer.figures.size(), 4U);
  const PlainStep plain(2e-3, 1);
  const double bytes[] = {kFirst, kSecond, kThird}, gradients[] = {1, 2, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const auto& bucket = answer.figures.at(fmt::format("bucket {}", i));
    EXPECT_EQ(bucket.at("bytes"), bytes[i]);
    EXPECT_EQ(bucket.at("gradients"), gradients[i]);
    EXPECT_NEAR(bucket.at("begin_s"), plain.begins[i], 1e-9);
    EXPECT_NEAR(bucket.at("end_s"), plain.ends[i], 1e-9);
  }
  const auto& step = answer.figures.at("step");
  EXPECT_NEAR(step.at("alone_s"), 10e-3, 1e-9);
  EXPECT_NEAR(step.at("low_s"), plain.step_s, 1e-9);
  EXPECT_NEAR(step.at("exposed_s"), plain.exposed_s, 1e-9);
  // The slowest of two draws from three steps, two of which are equal.
  EXPECT_NEAR(step.at("high_s"),
              4.0 / 9 * PlainStep(2e-3, 1.14).step_s + 5.0 / 9 * PlainStep(3e-3, 1.14).step_s,
              1e-9);
  EXPECT_THAT(answer.findings.timed.at(0).text,
              AllOf(HasSubstr("DDP on 2 devices of made-up takes"),
                    HasSubstr("all computing as in the trace, on a CPU: only exchanges")));
  EXPECT_THAT(answer.findings.untimed.back().text, HasSubstr("Of eight such forecasts"));
}

/// On the CPU an exchange waits beside what computes, or takes turns with it.
TEST_F(TraceRanks, SaysHowExchangesMayShareCores) {
  const MachineCard card = load_card(file("cpu.json", made_card("cpu", 2)).string());
  const TracedRun run = run_of(made_training().text());
  const auto step = ranks_answer(run, card, 2).figures.at("step");
  EXPECT_NEAR(step.at("low_s"), PlainStep(2e-3, 1).step_s, 1e-9) << "a core for each rank";
  const PlainStep plain(2e-3, 1.14);
  const double reduced_s = 1.14 * (kFirst_s + kSecond_s + kThird_s);
  EXPECT_GT(step.at("high_s"), plain.step_s);
  EXPECT_LT(step.at("high_s"), 11e-3 + reduced_s + 2e-3);
  const ExplainAnswer crowded = ranks_answer(run, card, 4);
  EXPECT_GT(crowded.figures.at("step").at("low_s"), 20e-3) << "two ranks a core";
  EXPECT_THAT(crowded.findings.timed.at(2).text, HasSubstr("from exchanges that mostly wait to"));
  EXPECT_THAT(crowded.findings.timed.at(0).text, Not(HasSubstr("as in the trace, on")));
}

/// On a device a gradient is ready when what was launched before it has been done.
TEST_F(TraceRanks, TakesTheTimeOfTheDevice) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 5000)
      .on_host("cpu_op", "aten::linear", 0, 10)
      .work(1, 2, 7, "gemm", 5, 1000)
      .event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 100, 1, 20, 50)
      .work(2, 25, 7, "gemm", 1000, 3000);
  add_gradient(trace, 60, 1 << 18);
  trace.on_host("user_annotation", "Optimizer.step#SGD.step", 100, 50)
      .work(3, 110, 7, "sgd", 3000, 5000);
  EXPECT_NEAR(answer_for(trace.text()).figures.at("bucket 0").at("ready_s"), 3e-3, 1e-9);
}

TEST_F(TraceRanks, ReducesTheLastMicroBatch) {
  MadeTrace trace;
  trace.on_host("user_annotation", "ProfilerStep#0", 0, 5000);
  for (const double begin : {0.0, 2000.0}) {
    trace.event("cpu_op", "aten::linear", 100, 1, begin, 500, {{"Sequence number", 1}})
        .on_host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin + 500,
                 1000);
    add_gradient(trace, begin + 1000, 100);
    add_gradient(trace, begin + 1500, 200);
  }
  const ExplainAnswer answer = answer_for(trace.text());
  EXPECT_EQ(answer.figures.at("step").at("micro_batches"), 2);
  EXPECT_EQ(answer.figures.at("bucket 0").at("bytes"), 4 * 300);
  EXPECT_NEAR(answer.figures.at("bucket 0").at("ready_s"), 3.5e-3, 1e-9);
}

TEST_F(TraceRanks, SaysWhatATraceLacks) {
  const auto refuses = [&](const char* why, const std::string& text) {
    expect_error(ExitCode::kBadData, why, [&] { answer_for(text); });
  };
  MadeTrace no_gradient, no_shape, communicates;
  no_gradient.on_host("cpu_op", "aten::linear", 0, 10);
  refuses("has no gradient of a parameter", no_gradient.text());
  no_shape.on_host("cpu_op", "torch::autograd::AccumulateGrad", 0, 10);
  refuses("lacks the shapes of gradients; profile with record_shapes=True", no_shape.text());
  MadeTrace closure;  // as that of LBFGS
  closure.on_host("user_annotation", "Optimizer.step#LBFGS.step", 0, 100)
      .on_host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 10, 30);
  refuses("has backward passes within an update, each of which DDP would reduce",
          add_gradient(closure, 30, 10).text());
  add_gradient(communicates, 20, 10).event("user_annotation", "gloo:all_reduce", 100, 9, 0, 10);
  refuses("is of a run on several ranks", communicates.text());
  expect_error(ExitCode::kConfiguration, "the card of made-up has 4 devices",
               [&] { answer_for(made_training().text(), 8); });
  const auto a = file("a.json", made_training().text(0)),
             b = file("b.json", made_training().text(1));
  expect_error(ExitCode::kBadData, "is of a run on several ranks", [&] {
    ranks_answer(read_run({a, b}), load_card("h100-nvlink"), 2);
  });
}

TEST_F(TraceRanks, ReadsPyTorchAndWritesItsReport) {
  const std::filesystem::path trace =
      std::filesystem::path(BARESTEP_TEST_TRACES) / "pytorch_cpu.json.gz";
  testing::internal::CaptureStdout();
  explain_traces(
      {.traces = {trace}, .output = folder() / "out", .machine = "h100-nvlink", .ranks = 8});
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("Simulated: DDP on 8 devices of 8 x H100, NVLink takes "));
  const auto results = nlohmann::json::parse(read_file(folder() / "out/results.json"));
  EXPECT_EQ(
      results.at("answers").back(),
      fmt::format("To verify: profile it under DDP (torchrun --nproc-per-node 8), a trace for "
                  "each rank in a folder, and run mlp_lab explain --scaling {} FOLDER "
                  "--problem weak.",
                  trace.string()));
  EXPECT_THAT(read_file(folder() / "out/report.md"),
              HasSubstr("# DDP on more devices, from the trace of one\n\n![The median step"));
  const auto& figures = results.at("figures");
  // Three layers of 256, with their biases.
  EXPECT_EQ(figures.at("bucket 0").at("bytes"), 3 * (256 * 256 + 256) * 4);
  EXPECT_FALSE(figures.contains("bucket 1"));
  EXPECT_LE(figures.at("step").at("low_s").get<double>(),
            figures.at("step").at("high_s").get<double>());
  EXPECT_GT(figures.at("step").at("low_s").get<double>(),
            figures.at("step").at("alone_s").get<double>());
}

}  // namespace
}  // namespace barestep
