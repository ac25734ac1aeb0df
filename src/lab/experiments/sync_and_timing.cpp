// When the host waits for the device: timing without waiting, and reading the loss rarely.
#include <fmt/format.h>

#include <functional>

#include "lab/experiments/all.h"
#include "lab/report/findings.h"
#include "lab/study/experiment.h"

namespace barestep {
namespace {

/// A clock that shows more than this share of the step is called nearly right.
constexpr double kHonest = 0.8;

std::vector<Case> timing_cases(const Setting& setting) {
  return {new_case(setting, "step", base_workload(setting))};
}

Findings conclude_timing(const Results& results) {
  const Measurement& step = results.at("step");
  const std::vector<double> queued_s = step.queued_s_by_start();
  const Estimate queued = estimate_of(queued_s);
  const Estimate shown =
      estimate_by_round(queued_s, step.step_s_by_start(), std::divides<double>());
  std::string answer = fmt::format(
      "A clock that does not wait for the device shows {}, the time until a step's work is queued; "
      "the step takes {}. ",
      time_text(queued), time_text(step.step_s()));
  answer += by_side(side_of(shown, kHonest), "Here it is nearly right: it shows ", "It shows ",
                    "How wrong it is remains unclear: it shows ");
  answer += fmt::format(
      "{} of the step{}.", percent_text(shown),
      by_side(side_of(shown, kHonest), "", ", because the host runs ahead of the device", ""));
  return {
      .sentences = {answer},
      .tables = {{.title = "One step by two clocks",
                  .columns = {"clock", "time", "of the step"},
                  .rows = {{"without synchronization", time_text(queued), percent_text(shown)},
                           {"with synchronization", time_text(step.step_s()), percent_text(1)}}}},
      .plots = {{.title = "One step by two clocks",
                 .y_label = "ms",
                 .categories = {"without synchronization", "with synchronization"},
                 .series = {{.name = "shown",
                             .points = {plot_point(0, queued, 1e3),
                                        plot_point(1, step.step_s(), 1e3)}}}}}};
}

/// Input comes from files and is prefetched in both cases; random data would be made inside one
/// clock and outside the other.
Case sync_case(const Setting& setting, const char* key, int log_every) {
  Workload workload = base_workload(setting);
  workload.config.training.steps = 200;
  workload.config.training.log_every = log_every;
  read_data_set(workload.config.data, setting.data);
  return new_case(setting, key, workload);
}

std::vector<Case> sync_cases(const Setting& setting) {
  return {sync_case(setting, "every-step", 1), sync_case(setting, "every-100", 100)};
}

Findings conclude_sync(const Results& results) {
  const Measurement& often = results.at("every-step");
  const Measurement& seldom = results.at("every-100");
  const Comparison cost = results.compare("every-100", "every-step");
  Findings findings{.sentences = {sentence_of(cost, "with the loss read every step",
                                              "with the loss read every 100 steps")},
                    .comparisons = {cost},
                    .tables = {{.title = "How often the loss is read",
                                .columns = {"loss read", "mean step", "host"},
                                .rows = {{"every step", time_text(often.mean_s()),
                                          time_text(often.phase_s("host"))},
                                         {"every 100 steps", time_text(seldom.mean_s()),
                                          time_text(seldom.phase_s("host"))}}}},
                    .plots = {account_plot(results.cases, {"every step", "every 100 steps"})}};
  if (cost.is_slower()) {
    const Estimate more =
        estimate_by_round(often.mean_s_by_start(), seldom.mean_s_by_start(), std::minus<double>());
    findings.sentences.push_back(if_certain(
        more, fmt::format("Reading the loss every step costs {} a step: the host waits for the "
                          "device before it queues the next step.",
                          time_text(more))));
  }
  return findings;
}

}  // namespace

Experiment timing_experiment() {
  return {.name = "timing",
          .title = "Timing without synchronization",
          .question = "What does a clock that does not wait for the device show, and why?",
          .cases = timing_cases,
          .conclude = conclude_timing};
}

Experiment sync_experiment() {
  return {.name = "sync",
          .title = "Reading the loss",
          .question = "What does it cost to read the loss every step instead of every 100?",
          .cases = sync_cases,
          .conclude = conclude_sync,
          .reads_data = true};
}

}  // namespace barestep
