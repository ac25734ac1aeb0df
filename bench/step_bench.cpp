// The whole step of the baseline model, and where its time goes, op by op; both updates side by
// side; and what the host adds to a small step.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text_table.h"
#include "kernels/make_device.h"
#include "measure.h"
#include "train/trainer.h"

namespace barestep::bench {
namespace {

/// The times in all steps of one kind of op, in the order of their first node.
struct OpRow {
  std::string label;
  double flops = 0, bytes = 0;
  std::map<std::int64_t, double> seconds_of_step;
};

std::map<std::string, std::vector<OpRow>>& tables() {
  static std::map<std::string, std::vector<OpRow>> tables;
  return tables;
}

std::map<std::string, double>& peaks() {
  static std::map<std::string, double> peaks;
  return peaks;
}

/// Sums the times of the ops of each step, by phase and label.
class OpTimes final : public StepProfiler, public TrainObserver {
 public:
  explicit OpTimes(const Program& program) {
    for (const Node& node : program.nodes()) {
      const Cost cost = cost_of(node.op);
      OpRow& row = this->row(node);
      row.flops += static_cast<double>(cost.flops);
      row.bytes += static_cast<double>(cost.bytes);
    }
  }

  RunDetail detail_of(std::int64_t /*step*/) override { return RunDetail::kNodes; }

  void on_step(const StepReport& report) override {
    const StepTimeline& step = *report.timeline->at(0);
    for (std::size_t i = 0; i < step.spans.size(); ++i) {
      const NodeId node = step.plan->runs()[i].first;
      row(step.plan->program().node(node)).seconds_of_step[step.step] += step.spans[i].seconds();
    }
  }
  void on_evaluation(const EvaluationReport& /*report*/) override {}

  [[nodiscard]] const std::vector<OpRow>& rows() const { return rows_; }

 private:
  OpRow& row(const Node& node) {
    const std::string label = fmt::format("{} {}", name_of(node.phase), label_of(node.op));
    for (OpRow& known : rows_) {
      if (known.label == label) return known;
    }
    return rows_.emplace_back(OpRow{.label = label, .seconds_of_step = {}});
  }

  std::vector<OpRow> rows_;
};

class StepTimesOnly final : public TrainObserver {
 public:
  void on_step(const StepReport& report) override {
    if (!report.warmup) wall_s.push_back(report.wall_s);
  }
  void on_evaluation(const EvaluationReport& /*report*/) override {}

  std::vector<double> wall_s;
};

TrainConfig baseline_config(std::int64_t dim, std::int64_t depth, Update update = Update::kSeparate,
                            std::int64_t log_every = 1) {
  TrainConfig config;
  config.model.dim = dim;
  config.model.depth = depth;
  config.training.steps = dim < 1024 ? 2000 : dim == 1024 ? 120 : 30;
  config.training.update = update;
  config.training.log_every = log_every;
  config.device.threads = setting().threads;
  config.device.gemm = setting().gemm;
  return config;
}

/// Step times of a fresh run.
double median_step_s(const TrainConfig& config, Device& device) {
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  StepTimesOnly times;
  Trainer(config, programs, {&device}, nullptr, nullptr).run(times);
  return median(times.wall_s);
}

/// The sum of the times of a step's ops; only those whose label begins with `label`.
double median_ops_s(const TrainConfig& config, Device& device, const std::string& label = "") {
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  OpTimes ops(programs.train().program);
  Trainer(config, programs, {&device}, nullptr, nullptr, {}, &ops).run(ops);
  double seconds = 0;
  for (const OpRow& row : ops.rows()) {
    const std::string_view op = std::string_view(row.label).substr(row.label.find(' ') + 1);
    if (row.label.starts_with("data") || !op.starts_with(label)) continue;
    std::vector<double> times;
    for (const auto& [number, time] : row.seconds_of_step) times.push_back(time);
    seconds += median(std::move(times));
  }
  return seconds;
}

/// Median step time and, from a separate run, the times of its ops.
void step(benchmark::State& state) {
  const TrainConfig config = baseline_config(state.range(0), state.range(1));
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const auto device =
      make_cpu_device({.threads = config.device.threads.value_or(0), .gemm = config.device.gemm});
  ThreadPool pool(setting().threads);
  const auto product = make_product(setting().gemm);
  const double peak = product_peak(pool, *product);
  double seconds = 0;
  for ([[maybe_unused]] const auto iteration : state) {
    StepTimesOnly times;
    Trainer(config, programs, {device.get()}, nullptr, nullptr).run(times);
    seconds = median(times.wall_s);
    state.SetIterationTime(seconds);
  }
  OpTimes ops(programs.train().program);
  Trainer(config, programs, {device.get()}, nullptr, nullptr, {}, &ops).run(ops);
  const std::string name = fmt::format("{} x {}", state.range(0), state.range(1));
  tables()[name] = ops.rows();
  peaks()[name] = peak;
  double flops = 0;
  for (const OpRow& row : ops.rows()) {
    // Random numbers are made before the clock starts.
    if (!row.label.starts_with("data")) flops += row.flops;
  }
  state.counters["GFLOP/s"] = flops / seconds / 1e9;
  state.counters["peak GFLOP/s"] = peak / 1e9;
  state.counters["% of peak"] = 100 * flops / seconds / peak;
  for (const OpRow& row : ops.rows()) {
    std::vector<double> times;
    for (const auto& [number, time] : row.seconds_of_step) times.push_back(time);
    state.counters[row.label + " us"] = 1e6 * median(std::move(times));
  }
}
BENCHMARK(step)->Args({1024, 2})->Args({2048, 4})->Iterations(1)->UseManualTime()->Unit(
    benchmark::kMillisecond);

/// The fused update's step compared with the separate update's and with its own products, in rounds
/// of rotating order: medians over the rounds, with intervals that contain the median of nine with
/// a probability of 96 %.
void updates(benchmark::State& state) {
  constexpr int kRounds = 9;
  const TrainConfig separate = baseline_config(state.range(0), state.range(1));
  const TrainConfig fused = baseline_config(state.range(0), state.range(1), Update::kFused);
  const auto device = make_cpu_device({.threads = setting().threads, .gemm = setting().gemm});
  for ([[maybe_unused]] const auto iteration : state) {
    std::vector<double> of_separate, of_products, seconds;
    for (int round = 0; round < kRounds; ++round) {
      double separate_s = 0;
      if (round % 2 == 0) separate_s = median_step_s(separate, *device);
      seconds.push_back(median_step_s(fused, *device));
      if (round % 2 == 1) separate_s = median_step_s(separate, *device);
      of_separate.push_back(seconds.back() / separate_s);
      of_products.push_back(seconds.back() / median_ops_s(separate, *device, "gemm"));
    }
    state.SetIterationTime(median(seconds));
    for (auto& [name, ratios] : {std::pair{"fused / separate", &of_separate},
                                 std::pair{"fused / its products alone", &of_products}}) {
      std::ranges::sort(*ratios);
      state.counters[name] = (*ratios)[kRounds / 2];
      state.counters[fmt::format("{} low", name)] = (*ratios)[1];
      state.counters[fmt::format("{} high", name)] = (*ratios)[kRounds - 2];
    }
  }
}
BENCHMARK(updates)->Args({1024, 2})->Args({2048, 4})->Iterations(1)->UseManualTime()->Unit(
    benchmark::kMillisecond);

/// A small step, and what the host adds to its ops: queueing, waking and events. With the third
/// argument 1 the host waits for each step, as a PyTorch script that prints each loss does; else
/// the next step is queued meanwhile.
void small_step(benchmark::State& state) {
  const TrainConfig config =
      baseline_config(state.range(0), state.range(1), Update::kFused, state.range(2));
  const auto device = make_cpu_device({.threads = setting().threads, .gemm = setting().gemm});
  for ([[maybe_unused]] const auto iteration : state) {
    const double seconds = median_step_s(config, *device);
    state.SetIterationTime(seconds);
    state.counters["ops us"] = 1e6 * median_ops_s(config, *device);
    state.counters["host us"] = 1e6 * seconds - state.counters["ops us"];
  }
  state.SetLabel(state.range(2) == 1 ? "each step awaited" : "queued ahead");
}
BENCHMARK(small_step)
    ->ArgsProduct({{64}, {2}, {1, 1000}})
    ->ArgsProduct({{256}, {3}, {1, 1000}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

std::string op_tables() {
  std::string text;
  for (const auto& [name, rows] : tables()) {
    TextTable table({{"op"},
                     {"us", Align::kRight},
                     {"GFLOP/s", Align::kRight},
                     {"% of peak", Align::kRight},
                     {"GB/s", Align::kRight}});
    for (const OpRow& row : rows) {
      std::vector<double> times;
      for (const auto& [number, time] : row.seconds_of_step) times.push_back(time);
      const double seconds = median(std::move(times));
      table.add_row({row.label, fmt::format("{:.1f}", 1e6 * seconds),
                     fmt::format("{:.1f}", row.flops / seconds / 1e9),
                     fmt::format("{:.1f}", 100 * row.flops / seconds / peaks()[name]),
                     fmt::format("{:.1f}", row.bytes / seconds / 1e9)});
    }
    text += fmt::format("\nstep {}, batch 64: medians of all ops of a kind in a step\n{}", name,
                        table.text());
  }
  return text;
}

}  // namespace barestep::bench
