// What a run gains from changes of its options: predicted from its measured steps and, if the
// changes are made as well, measured beside it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "core/index.h"
#include "core/statistics.h"
#include "lab/experiments/findings_of.h"
#include "lab/predict/prediction.h"
#include "options/options.h"

namespace barestep {
namespace {

constexpr const char* kAsItIs = "as-it-is";
constexpr const char *kSpans = "measured spans", *kRatio = "measured step x simulated ratio";

/// The run that the study was given. A setting's ranks are those of mpirun; only mlp_ddp has any.
Workload given_run(const Setting& setting) {
  Workload run{{.on_gpu = setting.on_gpu,
                .gpus = setting.on_gpu ? setting.units : 1,
                .data_rows = setting.data_rows,
                .config = setting.base}};
  TrainConfig& config = run.config;
  if (run.scheme() == SchemeKind::kDataParallel) {
    run.ranks = static_cast<int>(config.device.devices.size());
  } else if (setting.ranks.empty()) {
    config.parallel.scheme = SchemeKind::kSingle;
  } else {
    run.ranks = setting.ranks.back();
  }
  if (config.model.layers.empty()) {
    config.model.dim = setting.dim;
    config.model.depth = setting.depth;
  }
  if (!config.training.epochs) config.training.steps = setting.steps;
  std::optional<int>& threads = config.device.threads;  // as the trainers share the cores out
  if (!run.on_gpu && run.ranks > 1)
    threads = threads.value_or(std::max(setting.units / run.ranks, 1));
  return run;
}

/// What may be removed or changed. Those whose option the trainer lacks are left out.
std::vector<CaseRow> rows_of(const Setting& setting, const Workload& run) {
  const TrainConfig& config = run.config;
  const InjectedConfig& injected = config.injected;
  std::vector<CaseRow> rows;
  const auto add = [&](bool applies, const std::string& key, const std::string& options) {
    if (applies) rows.push_back({key, options.empty() ? "without --no-overlap" : options, options});
  };
  add(config.data.io_delay_ms > 0, "no-io-delay", "--io-delay-ms 0");
  add(injected.delay_ms > 0, "no-delay", "--delay-ms 0");
  add(injected.jitter_ms > 0, "no-jitter", "--jitter-ms 0");
  if (injected.slow_rank) {
    add(true, "no-slow-rank", fmt::format("--slow-rank {}:0", injected.slow_rank->rank));
  }
  add(config.data.kind != DataKind::kRandn, "worker",
      fmt::format("--workers {}", config.data.workers + 1));
  add(!config.parallel.overlap, "overlap", "");
  for (const int mib : {4, 100}) {
    add(run.has_ranks(), fmt::format("bucket-{}", mib), fmt::format("--bucket-mib {}", mib));
  }
  add(run.has_ranks(), "factor", "--scheme factor");
  add(run.has_ranks() && !config.training.chunk_rows, "reproducible", "--reproducible 8");
  add(true, "accumulate", fmt::format("--accumulate {}", 2 * config.training.accumulate));
  add(choose_update(config, run.kind()).update != Update::kFused ||
          config.training.update != Update::kAuto,
      "fused", "--update fused");
  add(true, "bf16", "--precision bf16");
  add(true, "batch", fmt::format("--batch-size {}", 2 * run.batch_size()));
  const int threads = config.device.threads.value_or(setting.units);
  const int others = 2 * threads * run.ranks <= setting.units ? 2 * threads : threads / 2;
  add(!run.on_gpu && others > 0, "threads", fmt::format("--threads {}", others));
  add(config.device.affinity == Affinity::kNone, "affinity", "--affinity compact");
  return rows;
}

struct Change {
  std::string key, words;
  Workload run;
};
struct Changes {
  std::vector<Change> possible{};
  std::vector<std::string> refused{};  // why, in the trainers' words
};

Changes changes_of(const Setting& setting, const Workload& run) {
  Changes all;
  for (const CaseRow& row : rows_of(setting, run)) {
    Change change{row.key, row.words, run};
    const auto why = refusal_of([&] {
      change.run = with(run, row.options);
      if (row.options.empty()) change.run.config.parallel.overlap = true;  // which no option says
      require(change.run);
    });
    if (why) {
      all.refused.emplace_back(why->what());
    } else if (change.run != run) {
      all.possible.push_back(std::move(change));
    }
  }
  return all;
}

bool loads_ahead(const Run& run) {
  return run.config.data.kind != DataKind::kRandn && run.config.data.workers > 0;
}

/// What a rank is told to pause in each step, but for jitter.
double paused_s(const Run& run, int rank) {
  const InjectedConfig& injected = run.config.injected;
  double ms = injected.delay_ms;
  if (injected.slow_rank && injected.slow_rank->rank == rank) ms += injected.slow_rank->delay_ms;
  if (!loads_ahead(run)) ms += run.config.data.io_delay_ms;
  return 1e-3 * ms;
}

/// What a change leaves of a rank's pause in a step: the pauses that are still asked for or, of
/// jitter, of which nobody asks for a length, what was measured but for the others.
double left_s(double pause_s, const Run& run, const Run& changed, int rank) {
  const double before_s = paused_s(run, rank), after_s = paused_s(changed, rank);
  const bool jitters = changed.config.injected.jitter_ms > 0;
  if (after_s == 0 && !jitters) return 0;
  if (!jitters && run.config.injected.jitter_ms > 0) return std::min(pause_s, after_s);
  return std::max(pause_s - (before_s - after_s), 0.0);
}

/// How much shorter the pauses of a start's steps are with a change, in the mean. Ranks wait for
/// the one that pauses longest.
double removed_s(const Start& start, std::size_t warmup, const Run& run, const Run& changed) {
  const std::size_t steps = start.ranks.front().step_s.size();
  const std::size_t first = std::min(warmup, steps - 1);
  double sum_s = 0;
  for (std::size_t step = first; step < steps; ++step) {
    double longest_s = 0, longest_left_s = 0;
    for (int rank = 0; rank < static_cast<int>(start.ranks.size()); ++rank) {
      const auto& phases = at(start.ranks, rank).phase_s;
      const auto pauses = phases.find("injected");
      if (pauses == phases.end()) continue;
      const double pause_s = pauses->second.at(step);
      longest_s = std::max(longest_s, pause_s);
      longest_left_s = std::max(longest_left_s, left_s(pause_s, run, changed, rank));
    }
    sum_s += longest_s - longest_left_s;
  }
  return sum_s / static_cast<double>(steps - first);
}

/// The mean step of each start with the change, by the spans of what it removes; nothing if it
/// changes what is computed or exchanged, or if stages pause, since others then wait elsewhere.
std::optional<std::vector<double>> steps_by_spans(const Measurement& measured, const Run& changed) {
  const Run& run = measured.workload();
  Run same = changed;
  same.config.injected = run.config.injected;
  same.config.data.io_delay_ms = run.config.data.io_delay_ms;
  same.config.data.workers = run.config.data.workers;
  if (same != run || run.config.parallel.pipeline > 1) return std::nullopt;
  const int workers = run.config.data.workers, more = changed.config.data.workers;
  const bool loads_faster =
      loads_ahead(run) && changed.config.data.io_delay_ms < run.config.data.io_delay_ms;
  std::vector<double> steps = measured.mean_s_by_start();
  const std::vector<double> waits = measured.phase_s_by_start("data");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double whole_s = steps[i];
    const double gone_s = removed_s(measured.starts()[i], measured.warmup_steps(), run, changed);
    steps[i] -= gone_s + (more != workers || loads_faster ? waits[i] : 0);
    if (more == workers) continue;
    // A batch takes so long to load; all workers load at the same time.
    const double load_s = workers == 0 ? waits[i] + gone_s : workers * whole_s;
    steps[i] = std::clamp(load_s / more, steps[i], whole_s);
  }
  return steps;
}

/// Why no step with the change is simulated; empty if one is.
std::string why_not_simulated(const Results& results, const Workload& changed) {
  if (!results.card) return "no card";
  const MachineCard& card = *results.card;
  if (card.on_gpu && changed.config.training.update == Update::kFused) {
    return "cards of GPUs have no rate of the fused update";
  }
  return why_no_prediction(changed, card);
}

/// Of GPUs, as mlp_lab predict takes it: without the fused update.
double simulated_s(Workload run, const MachineCard& card) {
  Update& update = run.config.training.update;
  if (card.on_gpu && update == Update::kAuto) update = Update::kSeparate;
  return predicted_run(run, card).step_s;
}

/// The run without pauses, but for those of stages, for which others wait elsewhere.
Workload without_pauses(Workload run) {
  if (run.config.parallel.pipeline > 1) return run;
  run.config.injected = {};
  if (!loads_ahead(run)) run.config.data.io_delay_ms = 0;
  return run;
}

/// Simulated steps tell only how times compare: what was measured without pauses is taken times
/// their ratio. By how much they are off is known of the run as it is, and bounds the ratio's
/// error.
void predict_by_ratio(const Results& results, const Workload& changed, PredictedGain& gain) {
  const Measurement& measured = results.cases.front();
  const Workload& run = measured.workload();
  const Workload calm = without_pauses(run);
  const std::vector<double> steps = measured.mean_s_by_start();
  std::vector<double> pauses, others;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    pauses.push_back(removed_s(measured.starts()[i], measured.warmup_steps(), run, calm));
    others.push_back(steps[i] - pauses.back());
  }
  const double before_s = simulated_s(calm, *results.card);
  const double ratio = simulated_s(without_pauses(changed), *results.card) / before_s;
  const double off = before_s / estimate_of(others).median;
  const double samples =
      static_cast<double>(changed.step_samples()) / static_cast<double>(run.step_samples());
  const auto steps_at = [&](double factor) {
    return by_round(others, pauses, [=](double other_s, double pause_s) {
      return other_s * ratio * factor + pause_s;
    });
  };
  const auto gain_at = [&](double factor) {
    return reciprocal(ratio_by_round(steps_at(factor), steps), samples);
  };
  const double least = std::min(off, 1 / off), most = 1 / least;
  gain.made_from = kRatio;
  gain.step_s = {estimate_of(steps_at(1)).median, estimate_of(steps_at(least)).low,
                 estimate_of(steps_at(most)).high};
  gain.gain = {gain_at(1).median, gain_at(most).low, gain_at(least).high};
}

PredictedGain predicted_gain(const Results& results, const Change& change) {
  const Measurement& measured = results.cases.front();
  PredictedGain gain{.key = change.key, .change = change.words};
  if (const auto steps = steps_by_spans(measured, change.run)) {
    gain.made_from = kSpans;
    gain.step_s = estimate_of(*steps);
    gain.gain = ratio_by_round(measured.mean_s_by_start(), *steps);
    return gain;
  }
  const bool binds =
      change.run.config.device.affinity != measured.workload().config.device.affinity;
  gain.made_from = binds ? "no card has rates of bound threads"
                         : why_not_simulated(results, measured.workload());
  if (gain.made_from.empty()) gain.made_from = why_not_simulated(results, change.run);
  if (gain.made_from.empty()) predict_by_ratio(results, change.run, gain);
  return gain;
}

FindingTable parts_table(const Measurement& measured) {
  FindingTable table{.title = "Where the time of a step goes",
                     .name = "parts-table",
                     .columns = {"part", "time", "of the step"}};
  for (const std::string_view phase : account_phases()) {
    const std::vector<double> seconds = measured.phase_s_by_start(phase);
    const Estimate share = share_of(measured, phase);
    constexpr double kNothing = 1e-4;
    if (share.median < kNothing) continue;
    table.rows.push_back(
        {phase_words(phase), time_text(estimate_of(seconds)), percent_text(share)});
  }
  return table;
}

FindingTable gains_table(const Results& results, const std::vector<PredictedGain>& gains) {
  const bool is_checked = results.cases.size() > 1;
  FindingTable table{.title = "What a change gains, in samples/s",
                     .name = "gains-table",
                     .columns = {"change", "predicted step", "predicted gain", "made from"}};
  if (is_checked) {
    table.columns.insert(table.columns.end(), {"measured step", "measured gain", "error"});
  }
  for (const PredictedGain& gain : gains) {
    table.rows.push_back({gain.change, gain.step_s ? time_text(*gain.step_s) : "-",
                          gain.gain ? factor_text(*gain.gain) : "-", gain.made_from});
    if (!is_checked) continue;
    const std::optional<double> error = gain.error();
    table.rows.back().insert(table.rows.back().end(),
                             {time_text(results.at(gain.key).mean_s()), factor_text(*gain.measured),
                              error ? fmt::format("{:+.1f} %", 100 * *error) : "-"});
  }
  return table;
}

std::string largest_gain_text(const std::vector<PredictedGain>& gains) {
  if (gains.empty() || !gains.front().gain || gains.front().gain->median <= 1) {
    return "No change is predicted to gain anything.";
  }
  const PredictedGain& first = gains.front();
  return fmt::format("{} is predicted to gain most: {} the samples/s, from {}.", first.change,
                     factor_text(*first.gain), first.made_from);
}

/// Empty if no change with a prediction was made.
std::string gain_errors_text(const std::vector<PredictedGain>& gains) {
  std::vector<double> sizes;
  int certain = 0, right = 0;
  for (const PredictedGain& gain : gains) {
    const std::optional<double> error = gain.error();
    if (!error) continue;
    sizes.push_back(std::abs(*error));
    const Word side = side_of(*gain.measured, 1);
    if (side == Word::kOpen) continue;
    ++certain;
    right += (side == Word::kAbove) == (gain.gain->median > 1) ? 1 : 0;
  }
  if (sizes.empty()) return "";
  std::ranges::sort(sizes);
  return fmt::format(
      "The predicted gains of {} are off by {} in the median, {} in the 90th percentile and {} at "
      "most; of {} that certainly gain or lose, {} had the right direction.",
      counted(std::ssize(sizes), "change"), percent_text(median(sizes)),
      percent_text(percentile(sizes, 90)), percent_text(sizes.back()), certain, right);
}

Findings what_if_findings(const Results& results) {
  const Measurement& measured = results.cases.front();
  const Changes changes = changes_of(results.setting, measured.workload());
  Findings all;
  const bool is_checked = results.cases.size() > 1;
  std::vector<Series> others;
  for (const Change& change : changes.possible) {
    all.gains.push_back(predicted_gain(results, change));
    if (!is_checked) continue;
    others.push_back(results.samples_of(change.key));
    all.gains.back().measured =
        ratio_by_round(results.samples_of(kAsItIs).seconds, others.back().seconds);
  }
  std::ranges::stable_sort(all.gains, std::ranges::greater{}, [](const PredictedGain& gain) {
    return gain.gain ? gain.gain->median : 0;
  });
  all.timed.emplace_back("largest-gain", largest_gain_text(all.gains));
  if (std::string text = gain_errors_text(all.gains); !text.empty()) {
    all.timed.emplace_back("errors", std::move(text));
  }
  all.timed.emplace_back("account",
                         fmt::format("In a step of {}, {}.", time_text(measured.mean_s()),
                                     largest_text(largest_phase(measured), "it")));
  if (!changes.refused.empty()) {
    all.untimed.emplace_back("refused", fmt::format("Refused: {}.", joined(changes.refused, ". ")));
  }
  const auto is_simulated = [](const PredictedGain& gain) { return gain.made_from == kRatio; };
  if (results.card && std::ranges::any_of(all.gains, is_simulated)) {
    all.untimed.emplace_back("card", error_note(*results.card));
  }
  if (is_checked) {
    all.comparisons = compare(results.samples_of(kAsItIs), others, results.setting.margin);
  }
  all.tables = {gains_table(results, all.gains), parts_table(measured)};
  all.plots = {account_plot(results.cases, keys_of(results))};
  return all;
}

std::vector<Case> given_case(const Setting& setting) {
  return {new_case(setting, kAsItIs, given_run(setting))};
}

std::vector<Case> changed_cases(const Setting& setting) {
  std::vector<Case> cases = given_case(setting);
  for (Change& change : changes_of(setting, cases.front().workload).possible) {
    cases.push_back(new_case(setting, std::move(change.key), std::move(change.run)));
  }
  return cases;
}

}  // namespace

std::span<const Experiment> what_if_experiments() {
  constexpr const char* kTitle = "What if";
  constexpr const char* kQuestion = "What does this run gain if an option of it is changed?";
  static constexpr Experiment kAll[] = {
      {"what-if", kTitle, kQuestion, given_case, what_if_findings, "", false, true},
      {"what-if-checked", kTitle, kQuestion, changed_cases, what_if_findings, "", false, true}};
  return kAll;
}

}  // namespace barestep
