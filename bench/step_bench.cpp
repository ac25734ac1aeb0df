// The whole step of the baseline model, and where its time goes, op by op; both updates side by
// side; and what the host adds to a small step.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/arena.h"
#include "core/plan.h"
#include "core/text_table.h"
#include "kernels/cpu/ops.h"
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
  Trainer(config, programs, {&device}, {}, nullptr).run(times);
  return median(times.wall_s);
}

/// The sum of the times of a step's ops; only those whose label begins with `label`.
double median_ops_s(const TrainConfig& config, Device& device, const std::string& label = "") {
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  OpTimes ops(programs.train().program);
  Trainer(config, programs, {&device}, {}, nullptr, {}, &ops).run(ops);
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
    Trainer(config, programs, {device.get()}, {}, nullptr).run(times);
    seconds = median(times.wall_s);
    state.SetIterationTime(seconds);
  }
  OpTimes ops(programs.train().program);
  Trainer(config, programs, {device.get()}, {}, nullptr, {}, &ops).run(ops);
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
/// a probability of 96 %. The third argument is the batch. The sizes lie on both sides of the
/// limits of choose_update().
void updates(benchmark::State& state) {
  constexpr int kRounds = 9;
  TrainConfig separate = baseline_config(state.range(0), state.range(1));
  separate.data.batch_size = state.range(2);
  TrainConfig fused = separate;
  fused.training.update = Update::kFused;
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
BENCHMARK(updates)
    ->ArgsProduct({{256}, {3}, {64}})
    ->ArgsProduct({{768}, {2}, {16, 64}})
    ->ArgsProduct({{1024}, {2}, {64, 256, 512}})
    ->ArgsProduct({{2048}, {4}, {64, 256, 512}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// A step's ops one after the other on the calling thread and its pool: without queues, events or a
/// thread to hand work to. Weights and input are random and stay; data ops are left out.
class PlainLoop {
 public:
  PlainLoop(const TrainConfig& config, Device& device)
      : programs_(spec_of(config, DeviceKind::kCpu, nullptr)), plan_(programs_.buffers()) {
    arenas_.emplace_back(device, plan_, programs_.buffers());
    addresses_ = barestep::bind(programs_.buffers(), arenas_)[0];
    std::minstd_rand random(0);
    std::uniform_real_distribution<float> number(-0.05F, 0.05F);
    for (BufferId id = 0; id < programs_.buffers().size(); ++id) {
      const Buffer& buffer = programs_.buffers()[id];
      if (buffer.category != Category::kParameters && buffer.category != Category::kData) continue;
      auto* numbers = reinterpret_cast<float*>(arenas_[0].at(id, 0));
      std::generate_n(numbers, buffer.bytes / bytes_of(DType::kF32),
                      [&] { return number(random); });
    }
    for (const Node& node : programs_.train().program.nodes()) {
      if (node.phase == Phase::kData) continue;
      work_.push_back(&std::get<DeviceOp>(node.op));
      ops_.prepare(*work_.back());
    }
  }

  struct Times {
    double step_s = 0, products_s = 0;
  };
  /// Medians over as many steps.
  Times run(std::int64_t steps) {
    std::vector<double> step_s, products_s;
    for (std::int64_t step = 0; step < steps; ++step) {
      double of_products_s = 0;
      step_s.push_back(seconds_of([&] {
        for (const DeviceOp* op : work_) {
          const double op_s = seconds_of([&] { ops_.run(*op, addresses_); });
          if (std::holds_alternative<Gemm>(*op)) of_products_s += op_s;
        }
      }));
      products_s.push_back(of_products_s);
    }
    return {median(std::move(step_s)), median(std::move(products_s))};
  }

 private:
  StepPrograms programs_;
  MemoryPlan plan_;
  std::vector<Arena> arenas_;
  Addresses addresses_;
  ThreadPool pool_{setting().threads};
  std::unique_ptr<Product> product_ = make_product(setting().gemm);
  CpuOps ops_{pool_, *product_};
  std::vector<const DeviceOp*> work_;
};

/// A small step compared with its ops in a plain loop, in rounds of alternating order: "host us" is
/// what queueing, waking and events add, as the median of nine rounds with an interval that
/// contains it with a probability of 96 %. With the third argument 1, the host waits for each step,
/// as a PyTorch script that prints each loss does; otherwise the next step is queued meanwhile.
void small_step(benchmark::State& state) {
  constexpr int kRounds = 9;
  const TrainConfig config =
      baseline_config(state.range(0), state.range(1), Update::kSeparate, state.range(2));
  const auto device = make_cpu_device({.threads = setting().threads, .gemm = setting().gemm});
  PlainLoop loop(config, *device);
  for ([[maybe_unused]] const auto iteration : state) {
    std::vector<double> step_us, loop_us, products_us, host_us;
    for (int round = 0; round < kRounds; ++round) {
      if (round % 2 == 0) step_us.push_back(1e6 * median_step_s(config, *device));
      const PlainLoop::Times plain = loop.run(config.training.steps.value_or(0));
      if (round % 2 == 1) step_us.push_back(1e6 * median_step_s(config, *device));
      loop_us.push_back(1e6 * plain.step_s);
      products_us.push_back(1e6 * plain.products_s);
      host_us.push_back(step_us.back() - loop_us.back());
    }
    std::ranges::sort(host_us);
    state.SetIterationTime(1e-6 * median(step_us));
    state.counters["loop us"] = median(loop_us);
    state.counters["products us"] = median(products_us);
    state.counters["host us"] = host_us[kRounds / 2];
    state.counters["host us low"] = host_us[1];
    state.counters["host us high"] = host_us[kRounds - 2];
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
    TextTable table({"op", ">us", ">GFLOP/s", ">% of peak", ">GB/s"});
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
