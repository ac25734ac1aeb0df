// Where a step waits for its data: a slow disk, loading threads, pinned memory.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiment.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"

namespace barestep {
namespace {

Workload loading_workload(const Setting& setting, int workers) {
  Workload workload = base_workload(setting);
  read_data_set(workload.config.data, setting.data);
  workload.config.data.workers = workers;
  return workload;
}

std::string workers_key(int workers) {
  return fmt::format("workers-{}", workers);
}

std::vector<Case> io_delay_cases(const Setting& setting) {
  std::vector<Case> cases = {new_case(setting, "no-delay", loading_workload(setting, 1))};
  for (const int workers : {0, 1, 2, 4}) {
    Workload workload = loading_workload(setting, workers);
    workload.config.data.io_delay_ms = 10;
    cases.push_back(new_case(setting, workers_key(workers), workload));
  }
  return cases;
}

/// The phase that takes most of a step.
std::string bottleneck_of(const Measurement& each) {
  return *std::ranges::max_element(account_phases(), {},
                                   [&](const std::string& phase) { return each.phase_s(phase); });
}

std::string bottleneck_sentence(const Measurement& none) {
  const std::string phase = bottleneck_of(none);
  return fmt::format("With no workers the bottleneck is {}: {} of a step of {}.",
                     phase_words(phase), percent_text(none.phase_s(phase) / none.step_s().median),
                     time_text(none.step_s()));
}

std::string hidden_sentence(const Results& results) {
  const Measurement& fast = results.at("no-delay");
  const Measurement* best = &results.at(workers_key(1));
  for (const int workers : {1, 2, 4}) {
    const Measurement& each = results.at(workers_key(workers));
    if (each.step_s().median < 1.1 * fast.step_s().median) {
      return fmt::format("{} {} the disk: a step takes {}, as without the delay ({}).",
                         counted(workers, "worker"), workers == 1 ? "hides" : "hide",
                         time_text(each.step_s()), time_text(fast.step_s().median));
    }
    if (each.step_s().median < best->step_s().median) best = &each;
  }
  return fmt::format(
      "No number of workers here hides the disk: the best, {}, takes {} a step, "
      "without the delay it is {}, and {} is {} of it.",
      best->what().key, time_text(best->step_s()), time_text(fast.step_s().median),
      phase_words(bottleneck_of(*best)),
      percent_text(best->phase_s(bottleneck_of(*best)) / best->step_s().median));
}

FindingTable loading_table(const Results& results) {
  FindingTable table{
      .title = "Step time and the wait for data",
      .columns = {"case", "step time", "samples/s", "waiting for data", "of a step"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back({each.what().key, time_text(each.step_s()),
                          number_text(each.samples_per_s().median), time_text(each.phase_s("data")),
                          percent_text(each.phase_s("data") / each.step_s().median)});
  }
  return table;
}

std::vector<std::string> keys_of(const Results& results) {
  std::vector<std::string> keys;
  for (const Measurement& each : results.cases) keys.push_back(each.what().key);
  return keys;
}

Findings conclude_io_delay(const Results& results) {
  return {.sentences = {bottleneck_sentence(results.at(workers_key(0))), hidden_sentence(results)},
          .tables = {loading_table(results)},
          .plots = {account_plot(results.cases, keys_of(results))}};
}

std::string pinned_key(int workers, bool pinned) {
  return workers_key(workers) + (pinned ? "-pinned" : "-pageable");
}

std::vector<Case> data_loading_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int workers : {0, 1, 2, 4}) {
    for (const bool pinned : {true, false}) {
      Workload workload = loading_workload(setting, workers);
      workload.config.data.pin = pinned;
      cases.push_back(new_case(setting, pinned_key(workers, pinned), workload));
    }
  }
  return cases;
}

std::string workers_sentence(const Results& results) {
  const Measurement& none = results.at(pinned_key(0, true));
  const Measurement* best = &none;
  for (const int workers : {1, 2, 4}) {
    const Measurement& each = results.at(pinned_key(workers, true));
    if (each.step_s().median < best->step_s().median) best = &each;
  }
  if (best == &none || !differ(best->step_s(), none.step_s())) {
    return fmt::format(
        "Workers bring nothing here: loading inside the step costs {} of {}, and no "
        "number of workers is measurably faster.",
        time_text(none.phase_s("data")), time_text(none.step_s()));
  }
  return fmt::format(
      "{} is fastest: {} a step, {} as fast as without workers ({}), since {} of "
      "waiting for data become {}.",
      best->what().key, time_text(best->step_s()),
      factor_text(ratio(none.step_s(), best->step_s())), time_text(none.step_s().median),
      time_text(none.phase_s("data")), time_text(best->phase_s("data")));
}

std::string pinned_sentence(const Results& results) {
  std::vector<std::string> faster, slower;
  for (const int workers : {0, 1, 2, 4}) {
    const Estimate& pinned = results.at(pinned_key(workers, true)).step_s();
    const Estimate& pageable = results.at(pinned_key(workers, false)).step_s();
    if (!differ(pinned, pageable)) continue;
    (pinned.median < pageable.median ? faster : slower)
        .push_back(fmt::format("{} with {} workers", factor_text(pageable.median / pinned.median),
                               workers));
  }
  if (faster.empty() && slower.empty()) {
    return "Pinned memory makes no measurable difference here, with any number of workers.";
  }
  std::string text;
  if (!faster.empty()) {
    text = fmt::format("Pinned memory makes a step faster: {}.", list_text(faster));
  }
  if (!slower.empty()) {
    text += fmt::format("{}Pinned memory makes a step slower: {}.", text.empty() ? "" : " ",
                        list_text(slower));
  }
  return text;
}

Findings conclude_data_loading(const Results& results) {
  return {.sentences = {workers_sentence(results), pinned_sentence(results)},
          .tables = {loading_table(results)},
          .plots = {account_plot(results.cases, keys_of(results))}};
}

}  // namespace

Experiment io_delay_experiment() {
  return {.name = "io-delay",
          .title = "A slow disk",
          .question =
              "A disk that takes 10 ms for each batch: which part of the step is the "
              "bottleneck, and do workers hide it?",
          .cases = io_delay_cases,
          .conclude = conclude_io_delay,
          .reads_data = true};
}

Experiment data_loading_experiment() {
  return {.name = "data-loading",
          .title = "Workers and pinned memory",
          .question = "How many loading threads does a step need, and does pinned memory matter?",
          .cases = data_loading_cases,
          .conclude = conclude_data_loading,
          .reads_data = true};
}

}  // namespace barestep
