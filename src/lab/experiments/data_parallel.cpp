// Several devices of one process: DataParallel against one device and against DDP.
#include "parallel/schemes/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/workload.h"

namespace barestep {
namespace {

/// What a device computes of a step: the share that it is not waiting, moving or queueing.
double utilisation(const Measurement& each, int rank = 0) {
  double busy = 0;
  for (const char* phase : {"forward", "loss", "backward", "optimizer"}) {
    busy += each.phase_s(phase, rank);
  }
  return busy / each.step_s_of(rank);
}

/// One device of the kind that DataParallel has several of.
Workload one_device(const Setting& setting) {
  Workload workload = base_workload(setting);
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

/// On the CPU, mlp_dp shares the cores out itself; so many devices as cores get one thread each.
Workload several_devices(const Setting& setting, int devices) {
  Workload workload = dp_workload(setting, devices);
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

std::string devices_key(int devices) {
  return fmt::format("devices-{}", devices);
}

FindingTable memory_table(const std::vector<std::pair<std::string, DeviceMemory>>& devices) {
  FindingTable table{.title = "Memory of each device, as planned and allocated",
                     .columns = {"device", "total"}};
  for (const Category category : kValuesOf<Category>) {
    table.columns.emplace_back(name_of(category));
  }
  for (const auto& [name, memory] : devices) {
    std::vector<std::string> row = {name, human_bytes(memory.bytes)};
    for (const std::int64_t bytes : memory.by_category) row.push_back(human_bytes(bytes));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Plot memory_plot(const std::vector<std::pair<std::string, DeviceMemory>>& devices) {
  Plot plot{.title = "Memory by category", .y_label = "MiB"};
  for (const auto& [name, memory] : devices) plot.categories.push_back(name);
  for (const Category category : kValuesOf<Category>) {
    PlotSeries series{.name = std::string(name_of(category))};
    double sum = 0;
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const double mib =
          static_cast<double>(devices[device].second.by_category[category]) / (1 << 20);
      sum += mib;
      series.points.push_back(plot_point(static_cast<double>(device), mib));
    }
    if (sum > 0) plot.series.push_back(std::move(series));
  }
  return plot;
}

/// "DataParallel, device 1": the devices of some measurements.
std::vector<std::pair<std::string, DeviceMemory>> memory_of(
    const std::vector<std::pair<std::string, const Measurement*>>& cases) {
  std::vector<std::pair<std::string, DeviceMemory>> all;
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
  return {new_case(setting, devices_key(1), one_device(setting)),
          new_case(setting, devices_key(2), several_devices(setting, 2))};
}

Findings conclude_data_parallel(const Results& results) {
  const Measurement &one = results.at(devices_key(1)), &two = results.at(devices_key(2));
  const Estimate gain = ratio(one.step_s(), two.step_s());
  const auto memory = memory_of({{"one device", &one}, {"DataParallel", &two}});
  std::string answer;
  if (!differ(one.step_s(), two.step_s())) {
    answer = fmt::format("Two devices cannot be told from one: {} and {} a step.",
                         time_text(two.step_s()), time_text(one.step_s()));
  } else if (gain.median > 1) {
    answer = fmt::format("Two devices are {} as fast as one: {} a step instead of {}.",
                         factor_text(gain), time_text(two.step_s()), time_text(one.step_s()));
  } else {
    answer = fmt::format(
        "Two devices are slower than one: {} a step instead of {}; {} of it are "
        "spent on moving parameters, gradients and rows.",
        time_text(two.step_s()), time_text(one.step_s()), time_text(two.phase_s("reduce")));
  }
  const double share = static_cast<double>(memory.back().second.bytes) /
                       static_cast<double>(memory.front().second.bytes);
  return {.sentences = {answer,
                        fmt::format("Device 0 needs {}, one device alone {}: it keeps the "
                                    "optimizer and gathers all outputs. Device 1 needs {}, {} of "
                                    "one device's.",
                                    human_bytes(memory[1].second.bytes),
                                    human_bytes(memory[0].second.bytes),
                                    human_bytes(memory.back().second.bytes), percent_text(share))},
          .tables = {memory_table(memory)},
          .plots = {account_plot(results.cases, {"one device", "DataParallel, 2"}),
                    memory_plot(memory)}};
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
      .columns = {"devices", "rows", "largest share", "an equal share", "step time", ""}};
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
                          time_text(each.step_s()),
                          each.what().beyond_cores ? "beyond the cores" : ""});
    if (pieces.front().count != pieces.back().count ||
        std::cmp_not_equal(pieces.size(), each.workload().ranks)) {
      uneven.push_back(
          fmt::format("{} devices get {} rows, so the largest share is {} above an "
                      "equal one",
                      each.workload().ranks, rows, percent_text(largest / equal - 1)));
    }
  }
  const auto best = std::ranges::min_element(
      results.cases, {}, [](const Measurement& each) { return each.step_s().median; });
  return {.sentences = {uneven.empty()
                            ? "Every number of devices divides the batch equally."
                            : "Not every number divides the batch: " + list_text(uneven) + ".",
                        fmt::format("{} devices are fastest here: {} a step.",
                                    best->workload().ranks, time_text(best->step_s()))},
          .tables = {table},
          .plots = {account_plot(results.cases, {"2 devices", "3 devices", "5 devices"})}};
}

std::vector<Case> gpu0_bottleneck_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int devices : {2, 4}) {
    if (setting.on_gpu && devices > setting.units) continue;
    cases.push_back(new_case(setting, devices_key(devices), several_devices(setting, devices)));
  }
  return cases;
}

Findings conclude_gpu0_bottleneck(const Results& results) {
  Findings findings;
  FindingTable table{
      .title = "What device 0 does while the others wait",
      .columns = {"devices", "step time", "loss", "optimizer", "exchange", "alone, of a step"}};
  for (const Measurement& each : results.cases) {
    const double alone = each.phase_s("loss") + each.phase_s("optimizer");
    const double exchange = each.phase_s("reduce");
    const double step = each.step_s().median;
    const int devices = each.workload().ranks;
    table.rows.push_back({std::to_string(devices), time_text(each.step_s()),
                          time_text(each.phase_s("loss")), time_text(each.phase_s("optimizer")),
                          time_text(exchange), percent_text((alone + exchange) / step)});
    const bool is_bottleneck = alone + exchange > 0.5 * step;
    findings.sentences.push_back(fmt::format(
        "With {} devices the others wait for device 0 during {} of a step, {} for loss and "
        "optimizer and {} for the exchange through it: device 0 {} the bottleneck.",
        devices, percent_text((alone + exchange) / step), time_text(alone), time_text(exchange),
        is_bottleneck ? "is" : "is not"));
  }
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    labels.push_back(fmt::format("{} devices", each.workload().ranks));
  }
  const auto memory = memory_of({{labels.front(), &results.cases.front()}});
  findings.sentences.push_back(fmt::format(
      "Device 0 needs {:.2f} times the memory of device 1.",
      static_cast<double>(memory[0].second.bytes) / static_cast<double>(memory[1].second.bytes)));
  findings.tables = {table, memory_table(memory)};
  findings.plots = {account_plot(results.cases, labels)};
  return findings;
}

std::vector<Case> dp_vs_ddp_cases(const Setting& setting) {
  return {new_case(setting, "data-parallel", several_devices(setting, 2)),
          new_case(setting, "ddp", ddp_workload(setting, 2))};
}

double spread(const Measurement& each) {
  return (each.p95_s() - each.step_s().median) / each.step_s().median;
}

Findings conclude_dp_vs_ddp(const Results& results) {
  const Measurement &dp = results.at("data-parallel"), &ddp = results.at("ddp");
  const Estimate gain = ratio(dp.step_s(), ddp.step_s());
  const auto memory = memory_of({{"DataParallel", &dp}, {"DDP, each rank", &ddp}});
  FindingTable table{.title = "DataParallel against DDP on two devices",
                     .columns = {"", "step time", "p95", "p95 above the median",
                                 "device 0 computes", "exposed communication"}};
  for (const auto& [name, each] : {std::pair{"DataParallel", &dp}, std::pair{"DDP", &ddp}}) {
    table.rows.push_back({name, time_text(each->step_s()), time_text(each->p95_s()),
                          percent_text(spread(*each)), percent_text(utilisation(*each)),
                          time_text(each->phase_s("reduce"))});
  }
  const bool ddp_wins = gain.median > 1;
  const std::string fast =
      differ(dp.step_s(), ddp.step_s())
          ? fmt::format("{} is faster: {} a step against {}.", ddp_wins ? "DDP" : "DataParallel",
                        time_text((ddp_wins ? ddp : dp).step_s()),
                        time_text((ddp_wins ? dp : ddp).step_s()))
          : fmt::format("DataParallel and DDP cannot be told apart: {} and {} a step.",
                        time_text(dp.step_s()), time_text(ddp.step_s()));
  const bool ddp_steady = spread(ddp) < spread(dp);
  return {.sentences =
              {fast,
               fmt::format("Device 0 computes during {} of a step of DataParallel and {} of DDP.",
                           percent_text(utilisation(dp)), percent_text(utilisation(ddp))),
               fmt::format("{}'s steps vary less: their 95th percentile is {} above the median, "
                           "the other's {}.",
                           ddp_steady ? "DDP" : "DataParallel",
                           percent_text(std::min(spread(ddp), spread(dp))),
                           percent_text(std::max(spread(ddp), spread(dp)))),
               fmt::format("DataParallel needs {} on device 0 and {} on device 1, DDP {} on each.",
                           human_bytes(memory[0].second.bytes), human_bytes(memory[1].second.bytes),
                           human_bytes(memory[2].second.bytes))},
          .tables = {table, memory_table(memory)},
          .plots = {account_plot(results.cases, {"DataParallel", "DDP"}), memory_plot(memory)}};
}

}  // namespace

Experiment data_parallel_experiment() {
  return {.name = "data-parallel",
          .title = "One device against DataParallel",
          .question = "What do two devices of one process bring, and what do they need?",
          .cases = data_parallel_cases,
          .conclude = conclude_data_parallel};
}

Experiment splits_experiment() {
  return {.name = "splits",
          .title = "Splitting a batch",
          .question = "How many rows does each of 2, 3 and 5 devices get, and what does it cost?",
          .cases = splits_cases,
          .conclude = conclude_splits};
}

Experiment gpu0_bottleneck_experiment() {
  return {.name = "gpu0-bottleneck",
          .title = "Device 0 in the middle",
          .question = "How long do the other devices of DataParallel wait for device 0?",
          .cases = gpu0_bottleneck_cases,
          .conclude = conclude_gpu0_bottleneck};
}

Experiment dp_vs_ddp_experiment() {
  return {.name = "dp-vs-ddp",
          .title = "DataParallel against DDP",
          .question = "Utilisation, variance and memory of the two on the same two devices.",
          .cases = dp_vs_ddp_cases,
          .conclude = conclude_dp_vs_ddp,
          .needs_mpi = true};
}

}  // namespace barestep
