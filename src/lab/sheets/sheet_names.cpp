#include "lab/sheets/sheet_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/statistics.h"
#include "core/text_table.h"
#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/prediction.h"
#include "lab/report/comparison.h"
#include "lab/report/findings.h"
#include "model/model_spec.h"
#include "parallel/schemes/data_parallel.h"
#include "profiler/account.h"

namespace barestep {
namespace {

constexpr std::string_view kSimulated = "simulated.";

/// A case with its results.
struct MeasuredCase {
  const Results& results;
  const Measurement& of;

  /// The same work on one rank or device; null if it was not run.
  [[nodiscard]] const Measurement* alone() const {
    const auto is_alone = [&](const Measurement& each) {
      const TrainConfig &a = each.workload().config, &b = of.workload().config;
      return each.workload().ranks == 1 && each.workload().dim() == of.workload().dim() &&
             each.workload().depth() == of.workload().depth() &&
             each.workload().step_samples() == of.workload().step_samples() &&
             a.injected.delay_ms == b.injected.delay_ms;
    };
    const auto found = std::ranges::find_if(results.cases, is_alone);
    return found == results.cases.end() ? nullptr : &*found;
  }

  [[nodiscard]] std::optional<Estimate> speed_up() const {
    const Measurement* const one = alone();
    if (one == nullptr) return std::nullopt;
    return results.compare(one->what().key, of.what().key).speed();
  }
};

/// Figures of a case: of its workload alone, or measured and simulated; null if there is none.
struct CaseFigure {
  std::string name;
  std::string about;
  std::function<std::string(const Workload&)> of_workload{};
  std::function<std::string(const MeasuredCase&)> measured{};
  std::function<std::string(const SimulatedCase&)> simulated{};
};

/// Of each device; of ranks, of one in each stage of their pipeline.
std::string memory_of(const Workload& workload) {
  const Mesh mesh = mesh_of(workload);
  std::vector<std::string> places;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    const WorkloadPrograms programs(workload, stage * mesh.ranks_of_stage());
    for (const DeviceMemory& each : planned_memory(programs)) {
      places.push_back(human_bytes(each.bytes));
    }
  }
  return fmt::format("{}", fmt::join(places, ", "));
}

/// What goes in and out of device 0, or with `all` between any devices.
std::string traffic_text(const Workload& workload, bool all) {
  if (workload.trainer != TrainerKind::kDataParallel) return std::string(kNotSimulated);
  const Traffic traffic = traffic_of(workload);
  return human_bytes(
      all ? std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0})
          : traffic.in_bytes.front() + traffic.out_bytes.front());
}

/// The scales of fp16's gradients in a start: "65536", "65536 to 16384".
std::string scale_of(const Measurement& each) {
  const std::vector<double>& scale = each.starts().front().ranks.front().scale;
  if (scale.empty()) return std::string(kNotSimulated);
  const double first = scale.front(), last = scale.back();
  return first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last);
}

/// Flops per second of the forward pass, if device 0 takes so long for it.
std::string forward_rate(const Workload& workload, double seconds) {
  if (!(seconds > 0)) return std::string(kNotSimulated);
  double flops = 0;
  const WorkloadPrograms programs(workload);
  for (const Node& node : programs.step().nodes()) {
    if (node.phase != Phase::kForward || node.device != 0) continue;
    flops += static_cast<double>(cost_of(node.op).flops);
  }
  return rate_text(flops / seconds, "FLOP/s");
}

/// The rows of each device, or the layers of each stage.
std::string split_of(const Workload& workload) {
  std::vector<std::int64_t> parts;
  if (const auto stages = static_cast<int>(workload.config.parallel.pipeline); stages > 1) {
    const WorkloadPrograms programs(workload);
    for (const LayerRange& each : layers_of_stages(programs.steps().spec().model, stages)) {
      parts.push_back(each.size());
    }
  } else {
    for (const Rows& piece : chunk(workload.batch_size(), workload.ranks)) {
      parts.push_back(piece.count);
    }
  }
  return fmt::format("{}", fmt::join(parts, "/"));
}

/// "2 cores", "4 ranks on 2 cores", "2 GPUs".
std::string place_of(const MeasuredCase& each) {
  const Workload& workload = each.of.workload();
  const Setting& setting = each.results.setting;
  if (each.of.what().beyond_cores) {
    return fmt::format("{} on {}", ranks_text(workload), units_text(setting));
  }
  const bool takes_all = !setting.on_gpu && !workload.config.device.threads;
  if (takes_all) return units_text(setting);
  return counted(workload.ranks, setting.on_gpu ? "GPU" : "core");
}

double share_of_step(const SimulatedCase& each, std::span<const std::string_view> phases) {
  double sum = 0;
  for (const std::string_view phase : phases) sum += each.step.account.seconds_of(phase);
  return sum / each.step.step_s;
}

/// The mean of the stages.
double waiting_share(const SimulatedCase& each) {
  double waits_s = 0;
  for (const StepAccount& stage : each.step.stages) waits_s += stage.waits_for_others_s();
  return waits_s / static_cast<double>(each.step.stages.size()) / each.step.step_s;
}

double speed_up_of(const SimulatedCase& each) {
  return each.alone.step_s / each.step.step_s;
}

using Measured = const MeasuredCase&;
using Simulated = const SimulatedCase&;

std::string measured_forward_rate(Measured each) {
  return forward_rate(each.of.workload(), each.of.phase_s("forward"));
}

/// In two digits, without the unit.
std::string simulated_seconds(double seconds) {
  return fmt::format("{}", std::stod(fmt::format("{:.1e}", seconds)));
}

std::string simulated_forward_rate(Simulated each) {
  return forward_rate(each.workload, each.step.account[Part::kForward]);
}

const std::vector<CaseFigure>& times_of_cases() {
  static const std::vector<CaseFigure> all = {
      {.name = "time",
       .about = "a step, the mean of the steady ones, with its unit",
       .measured = [](Measured each) { return time_text(each.of.mean_s()); },
       .simulated = [](Simulated each) { return simulated_time(each.step.step_s); }},
      {.name = "seconds",
       .about = "the same in seconds, without the unit",
       .measured = [](Measured each) { return seconds_text(each.of.mean_s()); },
       .simulated = [](Simulated each) { return simulated_seconds(each.step.step_s); }},
      {.name = "samples-per-s",
       .about = "throughput",
       .measured = [](Measured each) { return number_text(each.of.samples_per_s().median); },
       .simulated =
           [](Simulated each) {
             return simulated_number(static_cast<double>(each.workload.step_samples()) /
                                     each.step.step_s);
           }},
      {.name = "total-seconds",
       .about = "all steps of a start, with warm-up, in seconds without "
                "the unit",
       .measured = [](Measured each) { return seconds_text(median(each.of.total_s_by_start())); },
       .simulated =
           [](Simulated each) {
             return simulated_seconds(static_cast<double>(each.workload.steps()) *
                                      each.step.step_s);
           }},
      {.name = "total",
       .about = "the same with its unit",
       .measured = [](Measured each) { return time_text(median(each.of.total_s_by_start())); }},
      {.name = "forward-rate",
       .about = "flops per second of the forward pass",
       .measured = measured_forward_rate,
       .simulated = simulated_forward_rate},
      {.name = "passes",
       .about = "forward, loss and backward of a step together",
       .measured =
           [](Measured each) {
             return time_text(each.of.phase_s("forward") + each.of.phase_s("loss") +
                              each.of.phase_s("backward"));
           }},
      {.name = "sample-time",
       .about = "a step divided by its samples, which differ with --accumulate",
       .measured =
           [](Measured each) { return time_text(estimate_of(each.of.sample_s_by_start())); },
       .simulated =
           [](Simulated each) {
             return simulated_time(each.step.step_s /
                                   static_cast<double>(each.workload.step_samples()));
           }},
      {.name = "deviation",
       .about = "standard deviation of the steps of a start, and divided by their mean",
       .measured = [](Measured each) { return deviation_text(each.of); }},
      {.name = "p95",
       .about = "95th percentile of the steps",
       .measured = [](Measured each) { return time_text(each.of.p95_s()); }},
  };
  return all;
}

const std::vector<CaseFigure>& shares_of_cases() {
  static const std::vector<CaseFigure> all = {
      {.name = "speed-up",
       .about = "against the same work on one rank or device",
       .measured =
           [](Measured each) {
             const auto speed_up = each.speed_up();
             return speed_up ? factor_text(*speed_up) : std::string(kNotRun);
           },
       .simulated = [](Simulated each) { return simulated_factor(speed_up_of(each)); }},
      {.name = "efficiency",
       .about = "speed-up divided by ranks or devices",
       .measured =
           [](Measured each) {
             const auto speed_up = each.speed_up();
             return speed_up ? percent_text(speed_up->median / each.of.workload().ranks)
                             : std::string(kNotRun);
           },
       .simulated =
           [](Simulated each) {
             return simulated_percent(speed_up_of(each) / each.workload.ranks);
           }},
      {.name = "exposed",
       .about = "communication that the step waits for, and its share of the step",
       .measured =
           [](Measured each) {
             return fmt::format("{} ({})", time_text(each.of.phase_s("communication")),
                                percent_text(share_of(each.of, "communication").median));
           },
       .simulated =
           [](Simulated each) {
             const double exposed_s = each.step.account[Part::kExposedCommunication];
             return fmt::format("{} ({})", simulated_time(exposed_s),
                                simulated_percent(exposed_s / each.step.step_s));
           }},
      {.name = "waits",
       .about = "share of a step in which ranks or stages wait for others, the mean of all",
       .measured = [](Measured each) { return percent_text(waiting_share(each.of)); },
       .simulated = [](Simulated each) { return simulated_percent(waiting_share(each)); }},
      {.name = "computes",
       .about = "share of a step in which rank 0 or device 0 computes",
       .measured =
           [](Measured each) { return percent_text(share_of(each.of, computing_phases())); },
       .simulated =
           [](Simulated each) {
             return simulated_percent(share_of_step(each, computing_phases()));
           }},
      {.name = "alone",
       .about = "share of a step of DataParallel in which the others wait for device 0",
       .measured =
           [](Measured each) { return percent_text(share_of(each.of, device_0_phases())); }},
  };
  return all;
}

const std::vector<CaseFigure>& facts_of_cases() {
  static const std::vector<CaseFigure> all = {
      {.name = "ran-on", .about = "cores or GPUs", .measured = place_of},
      {.name = "starts",
       .about = "starts of the case",
       .measured = [](Measured each) { return std::to_string(each.of.starts().size()); }},
      {.name = "warmup",
       .about = "steps of a start that are left out as warm-up",
       .measured = [](Measured each) { return std::to_string(each.of.warmup_steps()); }},
      {.name = "steady",
       .about = "steps after warm-up, all starts together",
       .measured = [](Measured each) { return std::to_string(each.of.steady_steps()); }},
      {.name = "steps",
       .about = "steps of a start, warm-up included",
       .of_workload = [](const Workload& workload) { return std::to_string(workload.steps()); }},
      {.name = "model",
       .about = "width x layers",
       .of_workload = [](const Workload& workload) { return model_text(workload); }},
      {.name = "memory",
       .about = "planned memory of each device, or of a rank of each stage",
       .of_workload = memory_of},
      {.name = "split",
       .about = "rows of each device, or layers of each stage",
       .of_workload = split_of},
      {.name = "moved",
       .about = "bytes that a step of DataParallel moves between devices",
       .of_workload = [](const Workload& workload) { return traffic_text(workload, true); }},
      {.name = "through-0",
       .about = "those that go in or out of device 0",
       .of_workload = [](const Workload& workload) { return traffic_text(workload, false); }},
      {.name = "batch",
       .about = "samples of a step, all ranks together",
       .of_workload =
           [](const Workload& workload) { return std::to_string(workload.step_samples()); }},
      {.name = "micro-steps",
       .about = "micro-steps of a step",
       .of_workload =
           [](const Workload& workload) {
             return std::to_string(workload.config.training.accumulate);
           }},
      {.name = "sends",
       .about = "bytes that a rank of mlp_ddp sends in a step, the mean of all",
       .of_workload =
           [](const Workload& workload) {
             return workload.trainer == TrainerKind::kDdp ? human_bytes(mean_sent_bytes(workload))
                                                          : std::string(kNotSimulated);
           }},
      {.name = "command",
       .about = "the command of a start",
       .of_workload = [](const Workload& workload) { return command_line_of(workload); }},
  };
  return all;
}

/// What a case has learned, and how steadily.
const std::vector<CaseFigure>& losses_of_cases() {
  static const std::vector<CaseFigure> all = {
      {.name = "last-loss",
       .about = "loss of the last step",
       .measured = [](Measured each) { return fmt::format("{:.6f}", last_loss(each.of)); }},
      {.name = "scale",
       .about = "scale of fp16's gradients in the first and the last step",
       .measured = [](Measured each) { return scale_of(each.of); }},
      {.name = "skipped",
       .about = "steps of a start that were skipped because gradients overflowed in fp16",
       .measured =
           [](Measured each) {
             const RankSteps& steps = each.of.starts().front().ranks.front();
             return fmt::format("{} of {}", steps.skipped, steps.step_s.size());
           }},
  };
  return all;
}

/// "optimizer" and "optimizer-share", and so on.
const std::vector<CaseFigure>& phases_of_cases() {
  static const std::vector<CaseFigure> all = [] {
    std::vector<CaseFigure> figures;
    for (const Phase phase : kValuesOf<Phase>) {
      const std::string name(name_of(phase));
      if (phase == Phase::kEvaluate) continue;
      figures.push_back(
          {.name = name,
           .about = phase_words(name) + ": time in a step",
           .measured = [=](Measured each) { return time_text(each.of.phase_s(name)); },
           .simulated =
               [=](Simulated each) { return simulated_time(each.step.account.seconds_of(name)); }});
      figures.push_back(
          {.name = name + "-share",
           .about = phase_words(name) + ": share of a step",
           .measured = [=](Measured each) { return percent_text(share_of(each.of, name).median); },
           .simulated =
               [=](Simulated each) {
                 return simulated_percent(each.step.account.seconds_of(name) / each.step.step_s);
               }});
    }
    return figures;
  }();
  return all;
}

std::vector<const CaseFigure*> case_figures() {
  std::vector<const CaseFigure*> all;
  for (const auto* const part : {&times_of_cases(), &shares_of_cases(), &phases_of_cases(),
                                 &facts_of_cases(), &losses_of_cases()}) {
    for (const CaseFigure& each : *part) all.push_back(&each);
  }
  return all;
}

/// The numbers of ranks of a case are those of the course, or two.
std::vector<Setting> sheet_settings(bool on_gpu) {
  constexpr int kUnits = 8;
  Setting two = new_setting(false, on_gpu, kUnits), four = two;
  four.ranks = {1, 2, 4};
  return {two, four};
}

/// The case of an experiment under such a setting.
std::optional<Case> case_of(const Experiment& experiment, std::string_view key, bool on_gpu) {
  for (const Setting& setting : sheet_settings(on_gpu)) {
    for (Case& each : experiment.cases(setting)) {
      if (each.key == key) return std::move(each);
    }
  }
  return std::nullopt;
}

std::vector<std::string> case_keys(const Experiment& experiment) {
  std::vector<std::string> keys;
  for (const Setting& setting : sheet_settings(false)) {
    for (const Case& each : experiment.cases(setting)) {
      if (std::ranges::find(keys, each.key) == keys.end()) keys.push_back(each.key);
    }
  }
  return keys;
}

const Experiment* experiment_named(std::string_view name) {
  const auto found = std::ranges::find_if(
      experiments(), [&](const Experiment& each) { return name == each.name; });
  return found == experiments().end() ? nullptr : &*found;
}

std::string measured_text(const SheetRuns& runs, const Experiment& experiment,
                          const std::string& key, const CaseFigure& figure) {
  const Results& results = runs.of(experiment.name);
  const auto found = std::ranges::find_if(
      results.cases, [&](const Measurement& each) { return each.what().key == key; });
  if (found == results.cases.end()) return std::string(kNotRun);
  if (figure.of_workload) return figure.of_workload(found->workload());
  return figure.measured({results, *found});
}

std::string simulated_text(const SheetRuns& runs, const Case& what, const CaseFigure& figure) {
  if (figure.of_workload) return figure.of_workload(what.workload);
  const std::optional<SimulatedCase> found = runs.simulated(what.workload);
  return found ? figure.simulated(*found) : std::string(kNotSimulated);
}

/// Whether other programs may disturb it: where a case ran, how long, and its losses, they cannot.
bool is_of_times(const CaseFigure& figure) {
  const auto is_among = [&](const std::vector<CaseFigure>& all) {
    return std::ranges::find(all, figure.name, &CaseFigure::name) != all.end();
  };
  return figure.measured && !is_among(facts_of_cases()) && !is_among(losses_of_cases());
}

/// A figure of a case; `rest` is what follows the experiment's name.
std::optional<SheetName> figure_name(const Experiment& experiment, std::string_view rest,
                                     bool is_simulated) {
  const std::size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string key(rest.substr(0, dot));
  for (const CaseFigure* const each : case_figures()) {
    if (each->name != rest.substr(dot + 1)) continue;
    if (is_simulated && !each->simulated && !each->of_workload) break;
    const std::optional<Case> what = case_of(experiment, key, is_simulated);
    if (!what) break;
    if (is_simulated) {
      return SheetName{
          .text = [=](const SheetRuns& runs) { return simulated_text(runs, *what, *each); },
          .kind = SheetNameKind::kFigure};
    }
    return SheetName{
        .experiments = {experiment.name},
        .text = [=, &experiment](
                    const SheetRuns& runs) { return measured_text(runs, experiment, key, *each); },
        .kind = SheetNameKind::kFigure,
        .is_of_times = is_of_times(*each)};
  }
  return std::nullopt;
}

/// Whether one of an experiment's names, of which a star stands for anything, is this one.
bool is_name_of(const Experiment& experiment, std::string_view name) {
  for (const std::string_view each : split(experiment.names, " ")) {
    const std::size_t star = each.find('*');
    if (star == std::string_view::npos
            ? each == name
            : name.size() >= each.size() && name.starts_with(each.substr(0, star)) &&
                  name.ends_with(each.substr(star + 1))) {
      return true;
    }
  }
  const std::vector<std::string> keys = case_keys(experiment);
  return std::ranges::find(keys, name) != keys.end();
}

/// Nothing for what this section did not find.
template <class T>
const T* found_in(const std::vector<T>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &T::name);
  return found == all.end() ? nullptr : &*found;
}

std::string finding_text(const ReportSection& section, std::string_view name) {
  const Findings& findings = section.findings;
  if (const Finding* const each = found_in(findings.sentences, name)) return each->text;
  if (const Finding* const each = found_in(findings.facts, name)) return each->text;
  if (const FindingTable* const table = found_in(findings.tables, name)) {
    return markdown_table(*table);
  }
  if (const Plot* const plot = found_in(findings.plots, name)) {
    const auto place = static_cast<std::size_t>(plot - findings.plots.data());
    return fmt::format("![{}]({})", plot->title, plot_file(section.experiment->name, place));
  }
  return "This was not measured.";
}

std::optional<SheetName> finding_name(const Experiment& experiment, std::string_view rest) {
  if (!is_name_of(experiment, rest)) return std::nullopt;
  const std::string name(rest);
  SheetName found{.experiments = {experiment.name},
                  .text = [=, &experiment](const SheetRuns& runs) {
                    return finding_text(runs.section(experiment.name), name);
                  }};
  if (rest.ends_with("table")) found.kind = SheetNameKind::kTable;
  if (rest.ends_with("plot")) found.kind = SheetNameKind::kPlot;
  if (found.kind == SheetNameKind::kSentence) found.finding = name;
  return found;
}

}  // namespace

Setting SheetRuns::setting() const {
  return report_.sections.empty() ? Setting{} : report_.sections.front().results.setting;
}

const ReportSection& SheetRuns::section(std::string_view experiment) const {
  const auto found = std::ranges::find_if(report_.sections, [&](const ReportSection& each) {
    return experiment == each.experiment->name;
  });
  BARESTEP_REQUIRE(found != report_.sections.end(),
                   "a sheet asks for an experiment that was not measured");
  return *found;
}

const Results& SheetRuns::of(std::string_view experiment) const {
  return section(experiment).results;
}

std::string SheetName::trouble(const SheetRuns& runs) const {
  for (const std::string& each : experiments) {
    const ReportSection& section = runs.section(each);
    const bool is_fact = found_in(section.findings.facts, finding) != nullptr;
    const bool rests_on_times = is_of_times || (!finding.empty() && !is_fact);
    if (rests_on_times && !section.verdict.empty()) {
      return fmt::format("No conclusion: {} is INVALID.", each);
    }
    if (rests_on_times && section.findings.sentences.empty()) {
      return fmt::format("No conclusion: {} compares no times here.", each);
    }
  }
  return "";
}

std::optional<SimulatedCase> SheetRuns::simulated(const Workload& workload) const {
  if (workload.ranks > gpus_.max_ranks() || !why_no_prediction(workload, gpus_).empty()) {
    return std::nullopt;
  }
  const auto step_of = [&](const Workload& each) {
    const std::string line = command_line_of(each);
    const auto found = steps_.find(line);
    if (found != steps_.end()) return found->second;
    return steps_.emplace(line, predicted_run(each, gpus_)).first->second;
  };
  Workload alone = workload;
  if (alone.trainer == TrainerKind::kDataParallel) alone.trainer = TrainerKind::kSingle;
  alone.ranks = 1;
  alone.config.parallel = {};
  alone.config.device.devices.clear();
  alone.config.injected.slow_rank.reset();
  return SimulatedCase{workload, step_of(workload), step_of(alone)};
}

std::optional<SheetName> sheet_name(std::string_view written) {
  std::string hyphened(written);
  std::ranges::replace(hyphened, '_', '-');
  std::string_view name = hyphened;
  for (const SheetName& each : sheet_answers()) {
    if (each.name == name) return each;
  }
  const bool is_simulated = name.starts_with(kSimulated);
  if (is_simulated) name.remove_prefix(kSimulated.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const Experiment* const experiment = experiment_named(name.substr(0, dot));
  if (experiment == nullptr) return std::nullopt;
  const std::string_view rest = name.substr(dot + 1);
  if (auto figure = figure_name(*experiment, rest, is_simulated)) return figure;
  return is_simulated ? std::nullopt : finding_name(*experiment, rest);
}

namespace {

std::vector<std::string> all_sheet_names() {
  std::vector<std::string> all;
  for (const SheetName& each : sheet_answers()) all.push_back(each.name);
  for (const Experiment& experiment : experiments()) {
    for (const std::string_view name : split(experiment.names, " ")) {
      if (name.find('*') == std::string_view::npos) {
        all.push_back(fmt::format("{}.{}", experiment.name, name));
      }
    }
    for (const std::string& key : case_keys(experiment)) {
      all.push_back(fmt::format("{}.{}", experiment.name, key));
      for (const CaseFigure* const each : case_figures()) {
        all.push_back(fmt::format("{}.{}.{}", experiment.name, key, each->name));
        all.push_back(std::string(kSimulated) + all.back());
      }
    }
  }
  return all;
}

/// The name with the experiment's whole name for a part of it: gpu0.load is gpu0-bottleneck.load.
/// Empty if that is not known.
std::string with_whole_experiment(std::string_view name) {
  const std::string_view front = name.starts_with(kSimulated) ? kSimulated : "";
  name.remove_prefix(front.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return "";
  std::vector<std::string_view> experiment_names;
  for (const Experiment& each : experiments()) experiment_names.emplace_back(each.name);
  const std::string_view experiment = nearest(name.substr(0, dot), experiment_names);
  return experiment.empty() ? "" : fmt::format("{}{}{}", front, experiment, name.substr(dot));
}

}  // namespace

std::string nearest_sheet_name(std::string_view name) {
  const std::vector<std::string> all = all_sheet_names();
  const std::vector<std::string_view> views(all.begin(), all.end());
  const std::string_view near = nearest(with_whole_experiment(name), views);
  return std::string(near.empty() ? nearest(name, views) : near);
}

std::string sheet_names_text() {
  TextTable answers({{"name"}, {"what it stands for"}});
  for (const SheetName& each : sheet_answers()) answers.add_row({each.name, each.about});
  TextTable figures({{"figure"}, {"what it stands for"}});
  for (const CaseFigure* const each : case_figures()) figures.add_row({each->name, each->about});
  TextTable findings({{"experiment"}, {"findings"}}), cases({{"experiment"}, {"cases"}});
  for (const Experiment& each : experiments()) {
    if (each.needs_pytorch) continue;
    findings.add_row({each.name, each.names});
    cases.add_row({each.name, fmt::format("{}", fmt::join(case_keys(each), ", "))});
  }
  return fmt::format(
      "In a sheet, {{{{name}}}} stands for a sentence or a "
      "table:\n\n{}\n{{{{EXPERIMENT.FINDING}}}} "
      "is what an experiment found, and {{{{EXPERIMENT.CASE}}}} what it says of a case (a star "
      "stands for numbers and cases):\n\n{}\n{{{{EXPERIMENT.CASE.FIGURE}}}} is a figure of a case, "
      "and "
      "{{{{simulated.EXPERIMENT.CASE.FIGURE}}}} that of the GPUs of --machine:\n\n{}\n{}",
      answers.text(2), findings.text(2), figures.text(2), cases.text(2));
}

}  // namespace barestep
