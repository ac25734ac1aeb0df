// When the host waits for the device: timing without waiting, and reading the loss seldom.
#include <fmt/format.h>

#include "lab/experiment.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"

namespace barestep {
namespace {

/// A clock that is wrong by less is not called a liar.
constexpr double kHonest = 0.8;

std::vector<Case> timing_cases(const Setting& setting) {
  return {new_case(setting, "step", base_workload(setting))};
}

Findings conclude_timing(const Results& results) {
  const Measurement& step = results.at("step");
  const double queued = step.queued_s(), full = step.step_s().median;
  std::string answer = fmt::format(
      "A clock that does not wait for the device shows {}, the time until a step's work is queued; "
      "the step takes {}. ",
      time_text(queued), time_text(step.step_s()));
  answer += queued < kHonest * full
                ? fmt::format(
                      "It lies by a factor of {:.1f}, because the host runs ahead of the "
                      "device.",
                      full / queued)
                : "Here it hardly lies: queueing takes as long as the work.";
  return {.sentences = {answer},
          .tables = {{.title = "One step by two clocks",
                      .columns = {"clock", "time", "of the step"},
                      .rows = {{"without synchronisation", time_text(queued),
                                percent_text(queued / full)},
                               {"with synchronisation", time_text(full), percent_text(1)}}}},
          .plots = {{.title = "One step by two clocks",
                     .y_label = "ms",
                     .categories = {"without synchronisation", "with synchronisation"},
                     .series = {{.name = "shown",
                                 .points = {plot_point(0, 1e3 * queued),
                                            plot_point(1, step.step_s(), 1e3)}}}}}};
}

/// Input from files, fetched ahead either way: random data would be made inside the one clock and
/// outside the other.
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
  const Estimate gain = ratio(often.step_s(), seldom.step_s());
  std::string answer;
  if (gain.low > 1.01) {
    answer = fmt::format(
        "Reading the loss every step costs {} a step: {} instead of {}, {}. The "
        "device idles while the host waits, reads and queues the next step.",
        time_text(often.step_s().median - seldom.step_s().median), time_text(often.step_s()),
        time_text(seldom.step_s()), factor_text(gain));
  } else if (gain.high < 0.99) {
    answer = fmt::format("Reading the loss every step is even faster here: {} instead of {}.",
                         time_text(often.step_s()), time_text(seldom.step_s()));
  } else {
    answer = fmt::format(
        "Reading the loss every step costs nothing that can be measured here: {} "
        "and {}.",
        time_text(often.step_s()), time_text(seldom.step_s()));
  }
  return {.sentences = {answer},
          .tables = {{.title = "How often the loss is read",
                      .columns = {"loss read", "step time", "host"},
                      .rows = {{"every step", time_text(often.step_s()),
                                time_text(often.phase_s("host"))},
                               {"every 100 steps", time_text(seldom.step_s()),
                                time_text(seldom.phase_s("host"))}}}},
          .plots = {account_plot(results.cases, {"every step", "every 100 steps"})}};
}

}  // namespace

Experiment timing_experiment() {
  return {.name = "timing",
          .title = "Timing without synchronisation",
          .question =
              "What does a clock show that does not wait for the device, and why does it "
              "lie?",
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
