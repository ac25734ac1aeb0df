// Several devices of one process: DataParallel compared with one device and with DDP.
#include "parallel/schemes/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

/// The share of a step in which a device computes, rather than waits, copies or queues.
std::string utilization_text(const Measurement& each) {
  return percent_text(share_of(each, computing_phases()));
}

/// One device of the kind that DataParallel uses.
Workload one_device(const Setting& setting) {
  Workload workload = base_workload(setting);
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

/// On the CPU, mlp_dp divides the cores itself; as many devices as cores get one thread each.
Workload several_devices(const Setting& setting, int devices) {
  Workload workload = dp_workload(setting, devices);
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

std::string devices_key(int devices) {
  return fmt::format("devices-{}", devices);
}

FindingTable memory_table(const std::vector<NamedMemory>& devices) {
  FindingTable table{.title = "Memory of each device, as planned and allocated",
                     .name = "memory-table",
                     .columns = {"device", "total"}};
  // The runs of experiments save no checkpoints.
  for (const Category category : kValuesOf<Category>) {
    if (!is_optional(category)) table.columns.emplace_back(name_of(category));
  }
  for (const auto& [name, memory] : devices) {
    std::vector<std::string> row = {name, human_bytes(memory.bytes)};
    for (const Category category : kValuesOf<Category>) {
      if (!is_optional(category)) row.push_back(human_bytes(memory.by_category[category]));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// The devices of these measurements, with names like "DataParallel, device 1".
std::vector<NamedMemory> devices_of_cases(
    const std::vector<std::pair<std::string, const Measurement*>>& cases) {
  std::vector<NamedMemory> all;
  for (const auto& [name, each] : cases) {
    const std::vector<DeviceMemory> devices = planned_memory(each->workload());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      all.emplace_back(devices.size() == 1 ? name : fmt::format("{}, device {}", name, i),
                       devices[i]);
    }
  }
  return all;
}

std::vector<Case> data_parallel_cases(const Setting& setting) {
  const int count = compared_with_one(setting);
  return {new_case(setting, devices_key(1), one_device(setting)),
          new_case(setting, devices_key(count), several_devices(setting, count))};
}

Findings conclude_data_parallel(const Results& results) {
  const int count = compared_with_one(results.setting);
  const std::string on_several = "on " + several_words(count, "device");
  const Measurement &one = results.at(devices_key(1)), &several = results.at(devices_key(count));
  const Comparison gain = results.compare(devices_key(1), devices_key(count));
  const auto memory = devices_of_cases({{"one device", &one}, {"DataParallel", &several}});
  const double share = times_the_bytes(memory[2].second.bytes, memory[0].second.bytes);
  return {
      .sentences = {{"gain", sentence_of(gain, on_several, "on one device"), gain.word},
                    {"moving",
                     fmt::format("Moving parameters, gradients and rows takes {} of a step {}.",
                                 percent_text(share_of(several, "communication")), on_several)}},
      .facts = {{"memory", fmt::format("Device 0 needs {}, one device alone {}: it keeps the "
                                       "optimizer and gathers all outputs. Device 1 needs {}, {} "
                                       "of one device's.",
                                       human_bytes(memory[1].second.bytes),
                                       human_bytes(memory[0].second.bytes),
                                       human_bytes(memory[2].second.bytes), percent_text(share))}},
      .comparisons = {gain},
      .tables = {memory_table(memory)},
      .plots = {account_plot(results.cases, {"one device", fmt::format("DataParallel, {}", count)}),
                memory_plot("Memory by category", memory)}};
}

std::vector<Case> splits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int devices : {2, 3, 5}) {
    cases.push_back(new_case(setting, devices_key(devices), several_devices(setting, devices)));
  }
  return cases;
}

Findings conclude_splits(const Results& results) {
  FindingTable table{
      .title = "Rows of each device, by torch.chunk's rule",
      .columns = {"devices", "rows", "largest share", "an equal share", "mean step", ""}};
  std::vector<std::string> uneven;
  for (const Measurement& each : results.cases) {
    const auto batch = static_cast<double>(each.workload().batch_size());
    const std::vector<Rows> pieces = chunk(each.workload().batch_size(), each.workload().ranks);
    std::string rows;
    for (const Rows& piece : pieces) {
      rows += fmt::format("{}{}", rows.empty() ? "" : " + ", piece.count);
    }
    const auto largest = static_cast<double>(pieces.front().count);
    const double equal = batch / each.workload().ranks;
    table.rows.push_back({std::to_string(each.workload().ranks), rows,
                          percent_text(largest / batch), percent_text(equal / batch),
                          time_text(each.mean_s()), beyond_text(each)});
    if (pieces.front().count != pieces.back().count ||
        std::cmp_not_equal(pieces.size(), each.workload().ranks)) {
      uneven.push_back(
          fmt::format("{} devices get {} rows (the largest share is {} above an "
                      "equal one)",
                      each.workload().ranks, rows, percent_text(largest / equal - 1)));
    }
  }
  const std::vector<std::string> keys = keys_within_cores(results);
  Findings findings{
      .facts = {{"uneven", uneven.empty()
                               ? "Every number of devices divides the batch equally."
                               : "Not every number divides the batch: " + list_text(uneven) + "."}},
      .tables = {table},
      .plots = {account_plot(results.cases, {"2 devices", "3 devices", "5 devices"})}};
  if (keys.size() < 2) {
    findings.facts.push_back(
        {"not-compared",
         fmt::format("Fewer than two of these numbers have enough {} here, so step times are not "
                     "compared.",
                     units_word(results.setting))});
    return findings;
  }
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    names.push_back(fmt::format("{} devices", results.at(key).workload().ranks));
  }
  findings.sentences = {{"fastest", fastest_sentence(fastest, names)}};
  findings.comparisons = fastest.others;
  return findings;
}

std::vector<Case> gpu0_bottleneck_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int devices : {2, 4}) {
    if (setting.on_gpu && devices > std::max(setting.units, 2)) continue;
    cases.push_back(new_case(setting, devices_key(devices), several_devices(setting, devices)));
    cases.back().record_ops = true;
  }
  return cases;
}

std::string waiting_sentence(const Measurement& each) {
  const Estimate alone = share_of(each, device_0_phases());
  return fmt::format(
      "With {} devices the others wait for device 0 during {} of a step, {} for loss and "
      "optimizer and {} for the exchange through it: {}.",
      each.workload().ranks, percent_text(alone),
      time_text(each.phase_s("loss") + each.phase_s("optimizer")),
      time_text(each.phase_s("communication")),
      by_side(side_of(alone, 0.5), "device 0 is the bottleneck", "device 0 is not the bottleneck",
              "whether that is more than half of it is unclear"));
}

Findings conclude_gpu0_bottleneck(const Results& results) {
  Findings findings;
  FindingTable table{
      .title = "What device 0 does while the others wait",
      .columns = {"devices", "mean step", "loss", "optimizer", "exchange", "alone, of a step", ""}};
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    table.rows.push_back({std::to_string(each.workload().ranks), time_text(each.mean_s()),
                          time_text(each.phase_s("loss")), time_text(each.phase_s("optimizer")),
                          time_text(each.phase_s("communication")),
                          percent_text(share_of(each, device_0_phases())), beyond_text(each)});
    labels.push_back(fmt::format("{} devices", each.workload().ranks));
  }
  for (const std::string& key : keys_within_cores(results)) {
    findings.sentences.push_back({key, waiting_sentence(results.at(key))});
  }
  if (findings.sentences.empty()) {
    findings.facts = {
        {"not-compared",
         fmt::format("None of these numbers of devices has enough {} here, so waiting is not "
                     "judged.",
                     units_word(results.setting))}};
  }
  const auto memory = devices_of_cases({{labels.front(), &results.cases.front()}});
  findings.facts.push_back(
      {"memory", fmt::format("Device 0 needs {:.2f} times the memory of device 1.",
                             times_the_bytes(memory[0].second.bytes, memory[1].second.bytes))});
  findings.tables = {table, memory_table(memory)};
  findings.plots = {account_plot(results.cases, labels)};
  return findings;
}

std::vector<Case> dp_vs_ddp_cases(const Setting& setting) {
  const int count = compared_with_one(setting);
  return {new_case(setting, "data-parallel", several_devices(setting, count)),
          new_case(setting, "ddp", ddp_workload(setting, count))};
}

/// Which of the two has its 95th percentile further above its median, by the difference in each
/// round.
std::string spread_sentence(const Measurement& dp, const Measurement& ddp) {
  const Estimate more =
      estimate_by_round(dp.spread_by_start(), ddp.spread_by_start(), std::minus<double>());
  const Estimate of_dp = estimate_of(dp.spread_by_start());
  const Estimate of_ddp = estimate_of(ddp.spread_by_start());
  return fmt::format(
      "{}: the 95th percentile is {} above the median for DataParallel, {} for DDP.",
      by_side(side_of(more, 0), "DDP's steps vary less", "DataParallel's steps vary less",
              "Which step times vary less is unclear"),
      percent_text(of_dp), percent_text(of_ddp));
}

/// Why DDP scales better, by the bytes that pass through the busiest device per step.
std::string bytes_sentence(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const std::int64_t parameters = 4 * programs.steps().parameter_list().size();
  const auto through = [&](int devices) {
    return fmt::format("{} against {} on {} devices", human_bytes(2 * (devices - 1) * parameters),
                       human_bytes(2 * (devices - 1) * parameters / devices), devices);
  };
  return fmt::format(
      "DDP scales better by its design (calculated): DataParallel sends all parameters from device "
      "0 to each other device, and all gradients back, while a ring of DDP's ranks passes 2 (n - "
      "1) "
      "/ n of the gradients through each: {}, {}. Device 0 alone computes DataParallel's loss and "
      "update; each rank of DDP has an equal share.",
      through(2), through(8));
}

Findings conclude_dp_vs_ddp(const Results& results) {
  const Measurement &dp = results.at("data-parallel"), &ddp = results.at("ddp");
  const Comparison gain = results.compare("data-parallel", "ddp");
  const auto memory = devices_of_cases({{"DataParallel", &dp}, {"DDP, each rank", &ddp}});
  FindingTable table{.title = fmt::format("DataParallel against DDP on {}",
                                          several_words(dp.workload().ranks, "device")),
                     .columns = {"", "mean step", "p95", "p95 above the median, of a start",
                                 "device 0 computes", "exposed communication"}};
  for (const auto& [name, each] : {std::pair{"DataParallel", &dp}, std::pair{"DDP", &ddp}}) {
    table.rows.push_back({name, time_text(each->mean_s()), time_text(each->p95_s()),
                          percent_text(estimate_of(each->spread_by_start())),
                          utilization_text(*each), time_text(each->phase_s("communication"))});
  }
  return {.sentences = {{"gain", sentence_of(gain, "with DDP", "with DataParallel"), gain.word},
                        {"utilization",
                         fmt::format("Device 0 computes during {} of a step of DataParallel and {} "
                                     "of DDP.",
                                     utilization_text(dp), utilization_text(ddp))},
                        {"variance", spread_sentence(dp, ddp)}},
          .facts = {{"memory", fmt::format("DataParallel needs {} on device 0 and {} on device 1, "
                                           "DDP {} on each.",
                                           human_bytes(memory[0].second.bytes),
                                           human_bytes(memory[1].second.bytes),
                                           human_bytes(memory.back().second.bytes))},
                    {"bytes", bytes_sentence(ddp.workload())}},
          .comparisons = {gain},
          .tables = {table, memory_table(memory)},
          .plots = {account_plot(results.cases, {"DataParallel", "DDP"}),
                    memory_plot("Memory by category", memory)}};
}

}  // namespace

Experiment data_parallel_experiment() {
  return {.name = "data-parallel",
          .title = "One device against DataParallel",
          .question = "What do two devices of one process gain, and what do they need?",
          .cases = data_parallel_cases,
          .conclude = conclude_data_parallel,
          .names = "gain moving memory memory-table phases-plot memory-plot"};
}

Experiment splits_experiment() {
  return {.name = "splits",
          .title = "Splitting a batch",
          .question = "How many rows does each of 2, 3 and 5 devices get, and what does it cost?",
          .cases = splits_cases,
          .conclude = conclude_splits,
          .names = "fastest uneven not-compared table phases-plot"};
}

Experiment gpu0_bottleneck_experiment() {
  return {.name = "gpu0-bottleneck",
          .title = "Device 0 in the middle",
          .question = "How long do the other devices of DataParallel wait for device 0?",
          .cases = gpu0_bottleneck_cases,
          .conclude = conclude_gpu0_bottleneck,
          .names = "memory not-compared table memory-table phases-plot",
          .chooses = false};
}

Experiment dp_vs_ddp_experiment() {
  return {
      .name = "dp-vs-ddp",
      .title = "DataParallel against DDP",
      .question = "How do utilization, variance and memory of the two compare on the same devices?",
      .cases = dp_vs_ddp_cases,
      .conclude = conclude_dp_vs_ddp,
      .names =
          "gain utilization variance memory bytes table memory-table "
          "phases-plot memory-plot",
      .needs_mpi = true};
}

}  // namespace barestep
