#include "lab/experiments/case_figures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/statistics.h"
#include "core/units.h"
#include "lab/experiments/calculations.h"
#include "lab/predict/prediction.h"
#include "lab/report/findings.h"
#include "model/model_spec.h"
#include "parallel/schemes/data_parallel.h"
#include "profiler/account.h"

namespace barestep {
namespace {

/// Without an interval.
Estimate exactly(double value) {
  return estimate_of(std::span(&value, 1));
}

// A simulated figure has the two digits that its error allows.

std::string shown_time(const CaseData& of, const Estimate& seconds) {
  return of.measured() != nullptr ? time_text(seconds) : simulated_time(seconds.median);
}

std::string shown_seconds(const CaseData& of, const Estimate& seconds) {
  if (of.measured() != nullptr) return seconds_text(seconds);
  return fmt::format("{}", std::stod(fmt::format("{:.1e}", seconds.median)));
}

std::string shown_percent(const CaseData& of, const Estimate& share) {
  return of.measured() != nullptr ? percent_text(share) : simulated_percent(share.median);
}

/// Of each device; of ranks, of one in each stage of their pipeline.
std::string memory_text(const CaseData& of) {
  const Mesh mesh = mesh_of(of.workload());
  std::vector<std::string> places;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    const WorkloadPrograms programs(of.workload(), stage * mesh.ranks_of_stage());
    for (const DeviceMemory& memory : planned_memory(programs)) {
      places.push_back(human_bytes(memory.bytes));
    }
  }
  return fmt::format("{}", fmt::join(places, ", "));
}

/// What goes in and out of device 0, or with `all` between any devices.
std::string traffic_text(const Workload& workload, bool all) {
  if (workload.scheme() != SchemeKind::kDataParallel) return std::string(kNotSimulated);
  const Traffic traffic = traffic_of(workload);
  return human_bytes(
      all ? std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0})
          : traffic.in_bytes.front() + traffic.out_bytes.front());
}

/// The scales of fp16's gradients in a start: "65536", "65536 to 16384".
std::string scale_text(const CaseData& of) {
  const std::vector<double>& scale = of.measured()->starts().front().ranks.front().scale;
  if (scale.empty()) return std::string(kNotSimulated);
  const double first = scale.front(), last = scale.back();
  return first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last);
}

/// Flops per second of the products of the forward pass, where ops are recorded, else of all of it.
std::string forward_rate(const CaseData& of) {
  const bool is_recorded = of.measured() != nullptr && of.what().record_ops;
  const auto is_product = [](const OpTime& op) {
    return op.name == "gemm" && op.phase == "forward" && op.device == 0;
  };
  const double seconds =
      is_recorded ? median(op_seconds(*of.measured(), is_product)) : of.phase_s("forward");
  if (!(seconds > 0)) return std::string(kNotSimulated);
  double flops = 0;
  const WorkloadPrograms programs(of.workload());
  for (const Node& node : programs.step().nodes()) {
    if (node.phase != Phase::kForward || node.device != 0) continue;
    if (is_recorded && label_of(node.op) != "gemm") continue;
    flops += static_cast<double>(cost_of(node.op).flops);
  }
  return rate_text(flops / seconds, "FLOP/s");
}

/// The rows of each device, or the layers of each stage.
std::string split_text(const CaseData& of) {
  const Workload& workload = of.workload();
  std::vector<std::int64_t> parts;
  if (const auto stages = static_cast<int>(workload.config.parallel.pipeline); stages > 1) {
    const WorkloadPrograms programs(workload);
    for (const LayerRange& layers : layers_of_stages(programs.steps().spec().model, stages)) {
      parts.push_back(layers.size());
    }
  } else {
    for (const Rows& piece : chunk(workload.batch_size(), workload.ranks)) {
      parts.push_back(piece.count);
    }
  }
  return fmt::format("{}", fmt::join(parts, "/"));
}

/// "2 cores", "4 ranks on 2 cores", "2 GPUs".
std::string place_text(const CaseData& of) {
  const Workload& workload = of.workload();
  const Setting& setting = of.results()->setting;
  if (of.measured()->what().beyond_cores) {
    return fmt::format("{} on {}", ranks_text(workload), units_text(setting));
  }
  const bool takes_all = !setting.on_gpu && !workload.config.device.threads;
  if (takes_all) return units_text(setting);
  return counted(workload.ranks, setting.on_gpu ? "GPU" : "core");
}

std::string speed_up_text(const CaseData& of) {
  const std::optional<Estimate> gain = of.speed_up();
  if (!gain) return std::string(kNotRun);
  return of.measured() != nullptr ? factor_text(*gain) : simulated_factor(gain->median);
}

/// Divided by what is computed from the same case.
Estimate divided(Estimate figure, double by) {
  return {figure.median / by, figure.low / by, figure.high / by};
}

std::string efficiency_text(const CaseData& of) {
  const std::optional<Estimate> gain = of.speed_up();
  return gain ? shown_percent(of, divided(*gain, of.workload().ranks)) : std::string(kNotRun);
}

double samples_of_step(const CaseData& of) {
  return static_cast<double>(of.workload().step_samples());
}

std::string largest_part_text(const CaseData& of) {
  if (of.measured() != nullptr) return largest_text(largest_phase(*of.measured()), "it");
  std::string_view largest = account_phases().front();
  for (const std::string_view phase : account_phases()) {
    if (of.phase_s(phase) > of.phase_s(largest)) largest = phase;
  }
  return fmt::format("{}, {}", phase_words(largest),
                     simulated_percent(of.phase_s(largest) / of.step_s().median));
}

using Of = const CaseData&;

std::vector<Figure> figures_of_times() {
  return {
      {"time", "mean step", "a step, the mean of the steady ones, with its unit",
       [](Of of) { return shown_time(of, of.step_s()); }},
      {"seconds", "", "the same in seconds, without the unit",
       [](Of of) { return shown_seconds(of, of.step_s()); }},
      {"samples-per-s", "samples/s", "throughput",
       [](Of of) {
         return of.measured() != nullptr
                    ? number_text(of.measured()->samples_per_s().median)
                    : simulated_number(samples_of_step(of) / of.step_s().median);
       }},
      {"total-seconds", "", "all steps of a start, with warm-up, in seconds without the unit",
       [](Of of) {
         const double total_s =
             of.measured() != nullptr
                 ? median(of.measured()->total_s_by_start())
                 : static_cast<double>(of.workload().steps()) * of.step_s().median;
         return shown_seconds(of, exactly(total_s));
       }},
      {"total", "", "all steps of a measured start, with its unit",
       [](Of of) { return time_text(median(of.measured()->total_s_by_start())); }, true, false},
      {"forward-rate", "", "flops per second of the forward pass", forward_rate, true, true, true},
      {"passes", "", "forward, loss and backward of a step together",
       [](Of of) {
         return shown_time(
             of, exactly(of.phase_s("forward") + of.phase_s("loss") + of.phase_s("backward")));
       },
       true, true, true},
      {"sample-time", "time of a sample",
       "a step divided by its samples, which differ with --accumulate",
       [](Of of) {
         return shown_time(of, of.measured() != nullptr
                                   ? estimate_of(of.measured()->sample_s_by_start())
                                   : divided(of.step_s(), samples_of_step(of)));
       }},
      {"deviation", "deviation of steps",
       "standard deviation of the steps of a start, and divided by their mean",
       [](Of of) { return deviation_text(*of.measured()); }, true, false},
      {"p95", "p95", "95th percentile of the steps",
       [](Of of) { return time_text(of.measured()->p95_s()); }, true, false},
      {"speed-up", "speed-up against one", "against the same work on one rank or device",
       speed_up_text},
      {"efficiency", "efficiency", "speed-up divided by ranks or devices", efficiency_text},
  };
}

/// Who computes and who waits.
std::vector<Figure> figures_of_load() {
  return {
      {"exposed", "", "communication that the step waits for, and its share of the step",
       [](Of of) {
         const double exposed_s = of.phase_s("communication");
         return fmt::format("{} ({})", shown_time(of, exactly(exposed_s)),
                            shown_percent(of, exactly(exposed_s / of.step_s().median)));
       }},
      {"waits", "waits for other ranks",
       "share of a step in which ranks or stages wait for others, the mean of all",
       [](Of of) { return shown_percent(of, of.waiting_share()); }},
      {"computes", "", "share of a step in which rank 0 or device 0 computes",
       [](Of of) { return shown_percent(of, of.share_of(computing_phases())); }},
      {"computes-each", "each computes",
       "the same of every device, of a case whose ops are recorded",
       [](Of of) {
         return of.what().record_ops ? computing_shares_text(*of.measured()) : std::string("-");
       },
       true, false},
      {"largest-part", "largest part", "the largest part of a step, and its share",
       largest_part_text},
      {"alone", "alone, of a step",
       "share of a step of DataParallel in which the others wait for device 0",
       [](Of of) { return shown_percent(of, of.share_of(device_0_phases())); }},
  };
}

/// Of the workload and its plan, or of where a case ran and what it learned: without noise.
std::vector<Figure> figures_of_workloads() {
  return {
      {"case", "case", "the name of the case", [](Of of) { return of.what().key; }, false},
      {"ran-on", "", "cores or GPUs", place_text, false, false, true},
      {"beyond", "", "\"beyond the cores\" where ranks share them",
       [](Of of) { return beyond_text(*of.measured()); }, false, false},
      {"starts", "", "starts of the case",
       [](Of of) { return std::to_string(of.measured()->starts().size()); }, false, false},
      {"warmup", "", "steps of a start that are left out as warm-up",
       [](Of of) { return std::to_string(of.measured()->warmup_steps()); }, false, false},
      {"steady", "", "steps after warm-up, all starts together",
       [](Of of) { return std::to_string(of.measured()->steady_steps()); }, false, false},
      {"last-loss", "last loss", "loss of the last step",
       [](Of of) { return fmt::format("{:.6f}", last_loss(*of.measured())); }, false, false},
      {"scale", "", "scale of fp16's gradients in the first and the last step", scale_text, false,
       false},
      {"skipped", "", "steps of a start that were skipped because gradients overflowed in fp16",
       [](Of of) {
         const RankSteps& steps = of.measured()->starts().front().ranks.front();
         return fmt::format("{} of {}", steps.skipped, steps.step_s.size());
       },
       false, false},
      {"steps", "", "steps of a start", [](Of of) { return std::to_string(of.workload().steps()); },
       false},
      {"ranks", "ranks", "ranks or devices",
       [](Of of) { return std::to_string(of.workload().ranks); }, false},
      {"model", "width x layers", "the model: width x layers",
       [](Of of) { return model_text(of.workload()); }, false},
      {"precision", "precision", "the type of products",
       [](Of of) { return std::string(name_of(of.workload().config.device.precision)); }, false},
      {"memory", "memory, by device", "the plan of each device, or of a rank in each stage",
       memory_text, false, true, true},
      {"max-memory", "memory of a rank, at most", "the plan of the rank that needs most",
       [](Of of) { return human_bytes(max_rank_bytes(of.workload())); }, false},
      {"activations", "activations (plan)", "of the first device, by its plan",
       [](Of of) {
         return human_bytes(
             planned_memory(of.workload()).front().by_category[Category::kActivations]);
       },
       false},
      {"split", "", "rows of each device, or layers of each stage", split_text, false},
      {"moved", "moved between devices", "bytes that a step of DataParallel moves between devices",
       [](Of of) { return traffic_text(of.workload(), true); }, false},
      {"through-0", "", "those that go in or out of device 0",
       [](Of of) { return traffic_text(of.workload(), false); }, false},
      {"batch", "batch", "samples of a step, all ranks together",
       [](Of of) { return std::to_string(of.workload().step_samples()); }, false},
      {"micro-steps", "micro-steps", "micro-steps of a step",
       [](Of of) { return std::to_string(of.workload().config.training.accumulate); }, false},
      {"sends", "a rank sends", "bytes that a rank of mlp_ddp sends in a step, the mean of all",
       [](Of of) {
         return of.workload().has_ranks() ? human_bytes(mean_sent_bytes(of.workload()))
                                          : std::string(kNotSimulated);
       },
       false},
      {"command", "", "the command of a start",
       [](Of of) { return command_line_of(of.workload()); }, false},
  };
}

/// "optimizer" and "optimizer-share", and so on.
std::vector<Figure> figures_of_phases() {
  std::vector<Figure> all;
  for (const Phase phase : kValuesOf<Phase>) {
    const std::string name(name_of(phase));
    if (phase == Phase::kEvaluate) continue;
    const std::string words = phase_words(name);
    all.push_back({name, words.starts_with("the ") ? words.substr(4) : words,
                   words + ": time in a step",
                   [=](Of of) { return shown_time(of, exactly(of.phase_s(name))); }});
    all.push_back({name + "-share", "of a step", words + ": share of a step", [=](Of of) {
                     const std::string_view key = name;
                     return shown_percent(of, of.share_of(std::span(&key, 1)));
                   }});
  }
  return all;
}

/// Whether a case does the same work as another one, on one rank or device.
bool is_alone(const Workload& alone, const Workload& of) {
  return alone.ranks == 1 && alone.dim() == of.dim() && alone.depth() == of.depth() &&
         alone.step_samples() == of.step_samples() &&
         alone.config.injected.delay_ms == of.config.injected.delay_ms &&
         alone.config.device.precision == of.config.device.precision;
}

}  // namespace

Workload on_one(Workload run) {
  run.ranks = 1;
  run.config.parallel = {.scheme = SchemeKind::kSingle};
  run.config.device.devices.clear();
  run.config.injected.slow_rank.reset();
  return run;
}

Estimate CaseData::step_s() const {
  return measured_ != nullptr ? measured_->mean_s() : exactly(simulated_->step_s);
}

double CaseData::phase_s(std::string_view phase) const {
  return measured_ != nullptr ? measured_->phase_s(phase) : simulated_->account.seconds_of(phase);
}

Estimate CaseData::share_of(std::span<const std::string_view> phases) const {
  if (measured_ != nullptr) return barestep::share_of(*measured_, phases);
  double sum = 0;
  for (const std::string_view phase : phases) sum += simulated_->account.seconds_of(phase);
  return exactly(sum / simulated_->step_s);
}

Estimate CaseData::waiting_share() const {
  if (measured_ != nullptr) return barestep::waiting_share(*measured_);
  double waits_s = 0;
  for (const StepAccount& stage : simulated_->stages) waits_s += stage.waits_for_others_s();
  return exactly(waits_s / static_cast<double>(simulated_->stages.size()) / simulated_->step_s);
}

std::optional<Estimate> CaseData::speed_up() const {
  if (measured_ == nullptr) {
    if (alone_ == nullptr) return std::nullopt;
    return exactly(alone_->step_s / simulated_->step_s);
  }
  const auto alone = std::ranges::find_if(results_->cases, [&](const Measurement& measured) {
    return is_alone(measured.workload(), measured_->workload());
  });
  if (alone == results_->cases.end()) return std::nullopt;
  return results_->compare(alone->what().key, measured_->what().key).speed();
}

std::string Simulations::why_none(const Workload& workload) const {
  if (workload.ranks <= card_.max_ranks()) return why_no_prediction(workload, card_);
  return fmt::format("the card of {} has {}", card_.name, counted(card_.max_ranks(), "device"));
}

const SimulatedStep* Simulations::step_of(const Workload& workload) const {
  if (!why_none(workload).empty()) return nullptr;
  const std::string line = command_line_of(workload);
  const auto found = steps_.find(line);
  if (found != steps_.end()) return &found->second;
  return &steps_.emplace(line, predicted_run(workload, card_)).first->second;
}

std::string Simulations::text(const std::vector<Case>& cases, const Case& what,
                              const std::function<std::string(const CaseData& of)>& figure) const {
  const SimulatedStep* const step = step_of(what.workload);
  if (step == nullptr) return std::string(kNotSimulated);
  const auto alone = std::ranges::find_if(
      cases, [&](const Case& other) { return is_alone(other.workload, what.workload); });
  return figure(
      {what, *step, step_of(alone == cases.end() ? on_one(what.workload) : alone->workload)});
}

const std::vector<Figure>& figures() {
  static const std::vector<Figure> all = [] {
    std::vector<Figure> some = figures_of_times();
    for (const auto& more : {figures_of_load(), figures_of_phases()}) {
      for (Figure figure : more) {
        figure.is_of_parts = true;
        some.push_back(std::move(figure));
      }
    }
    const std::vector<Figure> last = figures_of_workloads();
    some.insert(some.end(), last.begin(), last.end());
    return some;
  }();
  return all;
}

const Figure* figure_named(std::string_view name) {
  const auto found = std::ranges::find(figures(), name, &Figure::name);
  return found == figures().end() ? nullptr : &*found;
}

}  // namespace barestep
