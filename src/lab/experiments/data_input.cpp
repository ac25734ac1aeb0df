// Where a step waits for its data: a slow disk, loading threads, pinned memory.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/report/findings.h"
#include "lab/study/experiment.h"

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

/// A delay counts as hidden if the times differ by at most a tenth.
constexpr double kHidden = 1.1;

std::string hidden_sentence(const Results& results, const std::vector<Comparison>& against_fast) {
  const Estimate& fast = results.at("no-delay").mean_s();
  const auto workers_of = [&](const std::string& key) {
    return counted(results.at(key).workload().config.data.workers, "worker");
  };
  for (const Comparison& each : against_fast) {
    if (side_of(each.ratio, kHidden) != Side::kBelow) continue;
    return fmt::format(
        "{} {} the disk: a step takes {} as long as without the delay ({}, without it {}).",
        workers_of(each.b), each.b == workers_key(1) ? "hides" : "hide", factor_text(each.ratio),
        time_text(results.at(each.b).mean_s()), time_text(fast));
  }
  const Comparison& best = *std::ranges::min_element(
      against_fast, {}, [](const Comparison& each) { return each.ratio.median; });
  const bool none = std::ranges::all_of(against_fast, [](const Comparison& each) {
    return side_of(each.ratio, kHidden) == Side::kAbove;
  });
  return fmt::format("{}: at best, with {}, a step takes {} as long as without the delay, and {}.",
                     none ? "No number of workers here hides the disk"
                          : "Whether workers hide the disk is unclear",
                     workers_of(best.b), factor_text(best.ratio),
                     largest_text(largest_phase(results.at(best.b)), "it"));
}

FindingTable loading_table(const Results& results) {
  FindingTable table{.title = "Step time and the wait for data",
                     .columns = {"case", "mean step", "samples/s", "waiting for data", "of a step",
                                 "injected delay", "of a step"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back(
        {each.what().key, time_text(each.mean_s()), number_text(each.samples_per_s().median),
         time_text(each.phase_s("data")), percent_text(share_of(each, "data").median),
         time_text(each.phase_s("injected")), percent_text(share_of(each, "injected").median)});
  }
  return table;
}

/// Amdahl's law with an infinitely fast device: the disk is the serial share.
std::string free_computing_sentence(const Measurement& none) {
  const Estimate disk = share_of(none, disk_phases());
  if (side_of(disk, 0) != Side::kAbove) return "No wait for the disk can be seen without workers.";
  return fmt::format(
      "If computing were free, the wait for the disk would remain: {} of a step "
      "without workers, so it could be {} as fast at most.",
      percent_text(disk), factor_text(reciprocal(disk)));
}

Findings conclude_io_delay(const Results& results) {
  const Measurement& none = results.at(workers_key(0));
  std::vector<std::string> with_workers;
  for (const int workers : {1, 2, 4}) with_workers.push_back(workers_key(workers));
  const std::vector<Comparison> against_fast = results.compare("no-delay", with_workers);
  return {.sentences = {{"bottleneck", fmt::format("With no workers {}; a step takes {}.",
                                                   largest_text(largest_phase(none), "a step"),
                                                   time_text(none.mean_s()))},
                        {"hidden", hidden_sentence(results, against_fast)},
                        {"free-computing", free_computing_sentence(none)}},
          .comparisons = against_fast,
          .tables = {loading_table(results)},
          .plots = {account_plot(results.cases, keys_of(results))}};
}

std::string pinned_key(int workers, bool pinned) {
  return workers_key(workers) + (pinned ? "" : "-pageable");
}

std::vector<Case> data_loading_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int workers : {0, 1, 2, 4}) {
    for (const bool pinned : {true, false}) {
      // On the CPU, no data are copied to a device, so both would be the same program.
      if (!pinned && !setting.on_gpu) continue;
      Workload workload = loading_workload(setting, workers);
      workload.config.data.pin = pinned;
      cases.push_back(new_case(setting, pinned_key(workers, pinned), workload));
    }
  }
  return cases;
}

/// The fastest number of workers compared with none; `gains` compare each number with none.
std::string workers_sentence(const Results& results, const std::vector<Comparison>& gains) {
  const Measurement& none = results.at(pinned_key(0, true));
  std::vector<std::string> faster;
  for (const Comparison& each : gains) {
    if (!each.is_faster()) continue;
    faster.push_back(fmt::format("{} is {} as fast", each.b, factor_text(each.speed())));
  }
  const std::string inside = fmt::format("loading inside the step takes {} of {}",
                                         time_text(none.phase_s("data")), time_text(none.mean_s()));
  if (const std::string too_few = too_few_of(gains); faster.empty() && !too_few.empty()) {
    return fmt::format("Whether workers make a step faster: {}; {}.", too_few, inside);
  }
  if (faster.empty()) {
    return fmt::format("No number of workers is measurably faster than none: {}.", inside);
  }
  return fmt::format("Workers make a step faster: {}; without them, {}.", list_text(faster),
                     inside);
}

std::string pinned_sentence(const std::vector<Comparison>& pinned) {
  std::vector<std::string> faster, slower;
  for (const Comparison& each : pinned) {
    if (each.is_faster()) faster.push_back(fmt::format("{} {}", each.b, factor_text(each.speed())));
    if (each.is_slower()) slower.push_back(fmt::format("{} {}", each.b, factor_text(each.ratio)));
  }
  std::string text;
  if (!faster.empty()) {
    text = fmt::format("Pinned memory makes a step faster: {} as fast.", list_text(faster));
  }
  if (!slower.empty()) {
    text += fmt::format("{}Pinned memory makes a step slower: {} as long.", text.empty() ? "" : " ",
                        list_text(slower));
  }
  if (!text.empty()) return text;
  if (const std::string too_few = too_few_of(pinned); !too_few.empty()) {
    return fmt::format("Whether pinned memory makes a step faster or slower: {}.", too_few);
  }
  const bool same = std::ranges::all_of(
      pinned, [](const Comparison& each) { return each.word == Word::kNoDifference; });
  return same ? fmt::format(
                    "Pinned memory makes no difference beyond {}, with any number of "
                    "workers.",
                    chosen_percent(pinned.front().margin - 1))
              : "Whether pinned memory makes a step faster or slower is unclear, with any "
                "number of workers.";
}

Findings conclude_data_loading(const Results& results) {
  std::vector<std::string> workers;
  std::vector<Comparison> pinned;
  for (const int count : {0, 1, 2, 4}) {
    if (count > 0) workers.push_back(pinned_key(count, true));
    if (!results.setting.on_gpu) continue;
    pinned.push_back(results.compare(pinned_key(count, false), pinned_key(count, true)));
  }
  adjust_together(pinned);
  const std::vector<Comparison> gains = results.compare(pinned_key(0, true), workers);
  Findings findings{.sentences = {{"workers", workers_sentence(results, gains)}},
                    .tables = {loading_table(results)},
                    .plots = {account_plot(results.cases, keys_of(results))}};
  if (pinned.empty()) {
    findings.facts = {
        {"pinned",
         "Pinned memory speeds up copies to a GPU; on the CPU there are none, so --no-pin changes "
         "nothing and is not measured."}};
  } else {
    findings.sentences.push_back({"pinned", pinned_sentence(pinned)});
  }
  keep(findings, gains);
  keep(findings, pinned);
  return findings;
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
          .names = "bottleneck hidden free-computing table phases-plot",
          .reads_data = true};
}

Experiment data_loading_experiment() {
  return {.name = "data-loading",
          .title = "Workers and pinned memory",
          .question = "How many loading threads does a step need, and does pinned memory matter?",
          .cases = data_loading_cases,
          .conclude = conclude_data_loading,
          .names = "workers pinned table phases-plot",
          .reads_data = true};
}

}  // namespace barestep
