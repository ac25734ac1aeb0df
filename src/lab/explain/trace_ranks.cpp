#include "lab/explain/trace_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "core/error.h"
#include "lab/predict/simulator.h"
#include "options/options.h"
#include "parallel/schemes/ddp.h"

namespace barestep {
namespace {

/// How much longer exchanges took than a card said (kSimulationError): by data sheets, and by
/// measured rates.
constexpr double kDataSheetError = 0.14, kMeasuredError = 0.052;

/// By bench/ddp_forecast.sh.
constexpr const char* kForecastError =
    "Of eight such forecasts on two cores, four were in their interval; the other four, of steps "
    "of "
    "1 to 8 ms alone, were 17 to 30 % too short. None was compared on GPUs.";

struct BucketForecast {
  std::size_t gradients = 0;
  std::int64_t bytes = 0;
  // Since the step began: its last gradient is ready, and its all-reduce runs.
  double ready_s = 0, begin_s = 0, end_s = 0;
};

/// A measured step, on several ranks.
struct StepForecast {
  double alone_s = 0;  // as measured
  double step_s = 0, exposed_s = 0;
  std::vector<BucketForecast> buckets{};
};

/// A gradient of a parameter, ready at this time since the step began.
struct ReadyGradient {
  double at_s = 0;
  std::int64_t bytes = 0;
};

struct MeasuredStep {
  double wall_s = 0;
  std::vector<ReadyGradient> gradients{};  // of its last micro-batch
  std::int64_t micro_batches = 1;
};

/// On a device a gradient is ready when its main stream has done what was launched before.
MeasuredStep measured_step(const TracedRun& run, std::size_t number) {
  const TracedRank& rank = run.ranks.front();
  const RankStep& of = rank.steps[number];
  std::vector<std::int64_t> forward_ns;                     // when the host began it
  std::vector<std::pair<std::int64_t, std::int64_t>> main;  // of its stream: queued, end
  for (const std::size_t i : rank.works_of_step[number]) {
    const TracedWork& work = run.works[i];
    const bool is_forward = work.part == Part::kForward || work.part == Part::kLoss;
    if (is_forward) forward_ns.push_back(work.queued_ns.value_or(work.begin_ns));
    if (work.lane == rank.main && work.queued_ns) main.emplace_back(*work.queued_ns, work.end_ns);
  }
  std::ranges::sort(forward_ns);
  MeasuredStep step{.wall_s = ns_seconds(of.wall_end_ns - of.wall_begin_ns)};
  std::int64_t before_ns = of.begin_ns, ready_ns = of.wall_begin_ns;
  auto queued = main.begin();
  const auto& gradients = rank.file.gradients;
  auto next = std::ranges::lower_bound(gradients, of.begin_ns, {}, &TraceFile::Gradient::begin_ns);
  for (; next != gradients.end() && next->begin_ns < of.end_ns; ++next) {
    const auto forward = std::ranges::upper_bound(forward_ns, before_ns);
    if (!step.gradients.empty() && forward != forward_ns.end() && *forward < next->begin_ns) {
      ++step.micro_batches;
      step.gradients.clear();
    }
    before_ns = next->begin_ns;
    for (; queued != main.end() && queued->first <= next->end_ns; ++queued) {
      ready_ns = std::max(ready_ns, queued->second);
    }
    ready_ns = std::min(std::max(ready_ns, next->end_ns), of.wall_end_ns);
    step.gradients.push_back({ns_seconds(ready_ns - of.wall_begin_ns), next->bytes});
  }
  return step;
}

/// The steps of the trace whose gradients are all known.
std::vector<MeasuredStep> measured_steps(const TracedRun& run) {
  const TracedRank& rank = run.ranks.front();
  const auto& gradients = rank.file.gradients;
  const auto refuse = [&](const char* why, const char* remedy) {
    refuse_trace(rank.file.path, why, remedy);
  };
  if (run.ranks.size() > 1 || !rank.file.collectives.empty()) {
    refuse("is of a run on several ranks", "give the trace of one on one device");
  }
  if (gradients.empty()) {
    refuse("has no gradient of a parameter (AccumulateGrad)",
           "profile training in PyTorch, or ask mlp_lab predict about ours");
  }
  if (std::ranges::count(gradients, 0, &TraceFile::Gradient::bytes) > 0) {
    refuse("lacks the shapes of gradients", "profile with record_shapes=True");
  }
  if (has_passes_in_update(rank.file)) {
    refuse("has backward passes within an update, each of which DDP would reduce",
           "give the trace of an optimizer without a closure");
  }
  if (!rank.on_host && !rank.has_launches) {
    refuse("does not tell what was launched before a gradient", "profile the CPU, too");
  }
  std::vector<MeasuredStep> steps;
  for (std::size_t i = 0; i < rank.steps.size(); ++i) {
    if (rank.steps[i].has_account) steps.push_back(measured_step(run, i));
  }
  std::erase_if(steps, [](const MeasuredStep& step) { return step.gradients.empty(); });
  if (steps.empty()) refuse("has no complete step with gradients", "profile two or more");
  return steps;
}

/// A measured step as DDP would run it.
class DdpStep {
 public:
  explicit DdpStep(const MeasuredStep& step) : alone_s_(step.wall_s) {
    std::vector<std::int64_t> sizes;
    for (const ReadyGradient& gradient : step.gradients) sizes.push_back(gradient.bytes);
    constexpr std::int64_t kLimits[] = {kFirstBucketBytes, kBucketBytes};
    double from_s = 0;
    std::vector<Copy> back;
    for (const std::vector<int>& members : assign_buckets(sizes, kLimits)) {
      BucketForecast bucket{.gradients = members.size(),
                            .ready_s = at(step.gradients, members.back()).at_s};
      for (const int member : members) bucket.bytes += at(sizes, member);
      const auto tensor = [&](const char* name) {
        return buffers_.tensor(fmt::format("{}.{}", name, buckets_.size()), Category::kGradients, 1,
                               (bucket.bytes + 3) / 4);
      };
      const Tensor gradients = tensor("gradients"), reduced = tensor("bucket");
      add(Fill{.out = gradients}, Phase::kBackward,
          bucket.ready_s - std::exchange(from_s, bucket.ready_s));
      add(Copy{.to = reduced, .from = gradients}, Phase::kBackward);
      reductions_.push_back(program_.size());
      add(AllReduce{.tensors = {reduced}}, Phase::kCommunication);
      back.push_back({.to = gradients, .from = reduced});
      buckets_.push_back(bucket);
    }
    for (const Copy& copy : back) add(copy, Phase::kBackward);
    add(Fill{.out = back.back().to}, Phase::kOptimizer, step.wall_s - from_s);
    order(program_);
  }

  /// Exchanges and copies take `factor` times as long as the card says. On the CPU, exchanges take
  /// cores from what computes (`compete`), or mostly wait.
  [[nodiscard]] StepForecast on(const MachineCard& card, const Run& run, double factor,
                                bool compete) const {
    const NodeSetting setting = setting_of(run, card);
    Sharing sharing = sharing_of(run, card, 1);
    const double cores = std::min(1.0, sharing.at_once);  // of a rank
    if (!compete) sharing.at_once = std::numeric_limits<double>::infinity();
    const auto seconds = [&](const Node& node) {
      const double own_s = seconds_[static_cast<std::size_t>(&node - program_.nodes().data())];
      const double all_s = own_s >= 0 ? own_s : factor * node_s(program_, node, card, setting);
      // Exchanges of more ranks than cores were measured as such.
      if (node.lane == Lane::kComm) return compete ? all_s * cores : all_s;
      return compete ? all_s : all_s / cores;
    };
    const SimulatedStep step = simulate(program_, seconds, sharing);
    StepForecast forecast{.alone_s = alone_s_,
                          .step_s = step.step_s,
                          .exposed_s = step.account[Part::kExposedCommunication],
                          .buckets = buckets_};
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const NodeSpan& span = at(step.spans, reductions_[i]);
      forecast.buckets[i].begin_s = span.begin_s;
      forecast.buckets[i].end_s = span.end_s;
    }
    return forecast;
  }

 private:
  /// Takes `seconds`, or below 0 as long as the card says.
  void add(Op op, Phase phase, double seconds = -1) {
    const Lane lane = phase == Phase::kCommunication ? Lane::kComm : Lane::kCompute;
    program_.add({.op = std::move(op), .lane = lane, .phase = phase});
    seconds_.push_back(seconds);
  }

  double alone_s_;
  Buffers buffers_;
  Program program_{"ddp", buffers_};
  std::vector<double> seconds_;     // by node
  std::vector<NodeId> reductions_;  // by bucket
  std::vector<BucketForecast> buckets_;
};

std::vector<StepForecast> forecasts_of(const std::vector<MeasuredStep>& steps,
                                       const MachineCard& card, const Run& run, double factor,
                                       bool compete) {
  std::vector<StepForecast> all;
  for (const MeasuredStep& step : steps) {
    all.push_back(DdpStep(step).on(card, run, factor, compete));
  }
  std::ranges::sort(all, {}, &StepForecast::step_s);
  return all;
}

/// The mean of the largest of so many draws from these.
double mean_slowest(const std::vector<StepForecast>& steps, int draws) {
  double mean_s = 0, before = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double up_to =
        std::pow(static_cast<double>(i + 1) / static_cast<double>(steps.size()), draws);
    mean_s += (up_to - std::exchange(before, up_to)) * steps[i].step_s;
  }
  return mean_s;
}

double median_of(const std::vector<StepForecast>& steps, double StepForecast::*seconds) {
  std::vector<double> all;
  for (const StepForecast& step : steps) all.push_back(step.*seconds);
  return estimate_of(all).median;
}

FindingTable bucket_forecasts(const std::vector<BucketForecast>& buckets) {
  FindingTable table{
      .title = "The buckets of the median step (simulated)",
      .columns = {"bucket", "gradients", "size", "ready at", "all-reduce from", "to"}};
  for (const BucketForecast& row : buckets) {
    table.rows.push_back({std::to_string(table.rows.size()), std::to_string(row.gradients),
                          human_bytes(row.bytes), milliseconds(row.ready_s) + " ms",
                          milliseconds(row.begin_s) + " ms", milliseconds(row.end_s) + " ms"});
  }
  return table;
}

/// Until when the gradients of each bucket are ready, and its all-reduce.
Plot forecast_plot(const std::vector<BucketForecast>& buckets) {
  Plot plot{.title = "The median step (simulated)",
            .x_label = "ms since the step began",
            .is_timeline = true,
            .categories = {"gradients", "all-reduce"},
            .series = {{.name = "until a bucket is ready"}, {.name = "all-reduce"}}};
  double from_s = 0;
  for (const BucketForecast& bucket : buckets) {
    const std::string note =
        fmt::format("bucket {}, {}", &bucket - buckets.data(), human_bytes(bucket.bytes));
    plot.series[0].spans.push_back({0, 1e3 * from_s, 1e3 * bucket.ready_s, note});
    plot.series[1].spans.push_back({1, 1e3 * bucket.begin_s, 1e3 * bucket.end_s, note});
    from_s = bucket.ready_s;
  }
  return plot;
}

std::map<std::string, double> figures_of(const BucketForecast& bucket) {
  return {{"gradients", static_cast<double>(bucket.gradients)},
          {"bytes", static_cast<double>(bucket.bytes)},
          {"ready_s", bucket.ready_s},
          {"begin_s", bucket.begin_s},
          {"end_s", bucket.end_s}};
}

/// How to learn whether DDP takes as long.
std::string verifying_text_of(const TracedRun& run, int ranks) {
  return fmt::format(
      "To verify: profile it under DDP (torchrun --nproc-per-node {}), a trace for each rank in a "
      "folder, and run mlp_lab explain --scaling {} FOLDER --problem weak.",
      ranks, typed(run.ranks.front().file.path));
}

/// DDP on so many of the machine's devices, or processes, which may share its cores.
Workload ddp_on(const MachineCard& card, int ranks) {
  if (card.on_gpu && ranks > card.max_ranks()) {  // processes may share cores
    refuse_options(
        "--ranks", std::to_string(ranks),
        fmt::format("the card of {} has {}", card.name, counted(card.max_ranks(), "device")),
        "ask for fewer, or for a machine with a network");
  }
  Workload workload{{.ranks = ranks, .on_gpu = card.on_gpu, .gpus = ranks}};
  workload.config.parallel.scheme = SchemeKind::kDdp;
  workload.config.device.threads = 1;
  return workload;
}

}  // namespace

ExplainAnswer ranks_answer(const TracedRun& run, const MachineCard& card, int ranks) {
  const Workload workload = ddp_on(card, ranks);
  const std::vector<MeasuredStep> measured = measured_steps(run);
  const std::int64_t micro_batches = measured.back().micro_batches;
  const double error = card.loads.empty() ? kDataSheetError : kMeasuredError;
  const std::vector<StepForecast> steps = forecasts_of(measured, card, workload, 1, false),
                                  slow = forecasts_of(measured, card, workload, 1 + error, true);
  const double alone_s = median_of(steps, &StepForecast::alone_s),
               low_s = median_of(steps, &StepForecast::step_s),
               high_s = std::max(low_s, mean_slowest(slow, ranks));
  const StepForecast& shown = steps[steps.size() / 2];
  const BucketForecast& last = shown.buckets.back();
  ExplainAnswer answer{.title = "DDP on more devices, from the trace of one",
                       .name = "ranks",
                       .findings = {.tables = {bucket_forecasts(shown.buckets)},
                                    .plots = {forecast_plot(shown.buckets)}}};
  answer.findings.timed = {
      fmt::format(
          "Simulated: DDP on {} of {} takes {} to {} a step where the trace's program takes "
          "{}, each rank with its batch: {} to {} as many samples a second.{}",
          counted(ranks, card.on_gpu ? "device" : "process"), card.name, simulated_time(low_s),
          simulated_time(high_s), time_text(alone_s), simulated_factor(ranks * alone_s / high_s),
          simulated_factor(ranks * alone_s / low_s),
          run.ranks.front().on_host == card.on_gpu
              ? fmt::format(" That is with all computing as in the trace, on a {}: only exchanges "
                            "and copies are the card's.",
                            card.on_gpu ? "CPU" : "GPU")
              : ""),
      fmt::format("In the median step {} of communication is exposed: the last of {}, {}, is ready "
                  "at {} and reduced at {}.",
                  simulated_time(shown.exposed_s), counted(std::ssize(shown.buckets), "bucket"),
                  human_bytes(last.bytes), time_text(last.ready_s), simulated_time(last.end_s)),
      fmt::format(
          "The interval goes from all ranks at their median step to the slowest of {} draws "
          "from the trace's {}, with exchanges {} longer than the card's, as far as such "
          "were off{}.",
          ranks, counted(std::ssize(steps), "step"), percent_text(error),
          card.on_gpu ? "" : ", and from exchanges that mostly wait to such that need a core"),
      verifying_text_of(run, ranks)};
  if (micro_batches > 1) {
    answer.findings.untimed.emplace_back(
        fmt::format("A step has {}; the gradients of the last one are reduced, as with no_sync().",
                    counted(micro_batches, "micro-batch")));
  }
  answer.findings.untimed.emplace_back(
      "Not in it: what else DDP does on the host, buffers that it broadcasts, and input and memory "
      "that ranks share. A rank has as many cores as the trace's program, or a whole device.");
  answer.findings.untimed.emplace_back(error_note(card, kForecastError));
  answer.figures["step"] = {{"alone_s", alone_s},
                            {"low_s", low_s},
                            {"high_s", high_s},
                            {"exposed_s", shown.exposed_s},
                            {"micro_batches", static_cast<double>(micro_batches)}};
  for (const BucketForecast& bucket : shown.buckets) {
    answer.figures[fmt::format("bucket {}", &bucket - shown.buckets.data())] = figures_of(bucket);
  }
  return answer;
}

}  // namespace barestep
