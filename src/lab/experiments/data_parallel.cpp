// Several devices of one process: DataParallel compared with one device and with DDP.
#include "parallel/schemes/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/units.h"
#include "lab/experiments/conclusion.h"
#include "profiler/data_parallel_account.h"

namespace barestep {
namespace {

/// The device or devices of mlp_dp. One does what each of several does: the same update, and on the
/// CPU one thread. (mlp_dp divides the cores itself.)
Workload devices_of(const Setting& setting, int devices) {
  Workload workload = devices == 1 ? base_workload(setting) : dp_workload(setting, devices);
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return with(workload, "--update separate");
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
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {name, human_bytes(memory.bytes)};
    for (const Category category : kValuesOf<Category>) {
      if (!is_optional(category)) row.push_back(human_bytes(memory.by_category[category]));
    }
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
  std::vector<Case> cases;
  for (const int devices : {1, compared_with_one(setting)}) {
    cases.push_back(new_case(setting, devices_key(devices), devices_of(setting, devices)));
  }
  return cases;
}

Findings conclude_data_parallel(const Results& results) {
  const int count = compared_with_one(results.setting);
  const std::string on_several = "on " + several_words(count, "device");
  const Measurement &one = results.at(devices_key(1)), &several = results.at(devices_key(count));
  const Estimate gain = results.compare(devices_key(1), devices_key(count)).speed();
  const auto memory = devices_of_cases({{"one device", &one}, {"DataParallel", &several}});
  const auto bytes = [&](std::size_t place) { return human_bytes(memory[place].second.bytes); };
  return Conclusion(results)
      .compare({{devices_key(1), devices_key(count), on_several, "on one device", "gain"}})
      .timed("proportion",
             fmt::format(
                 "{}: {} as fast {}, an efficiency of {}.",
                 by_side(side_of(gain, 0.9 * count), "In proportion to the devices, within a tenth",
                         "Not in proportion to the devices",
                         "Whether in proportion to the devices is unclear"),
                 factor_text(gain), on_several, percent_text(gain.median / count)))
      .timed("moving", fmt::format("Moving parameters, gradients and rows takes {} of a step {}.",
                                   percent_text(share_of(several, "communication")), on_several))
      .fact("memory",
            fmt::format(
                "Device 0 needs {}, one device alone {}: it keeps the optimizer and "
                "gathers all outputs{}. Device 1 needs {}, {} of one device's.",
                bytes(1), bytes(0),
                memory[1].second.bytes > memory[0].second.bytes
                    ? ""
                    : ", but computes the activations of its own rows only",
                bytes(2),
                percent_text(times_the_bytes(memory[2].second.bytes, memory[0].second.bytes))))
      .table(memory_table(memory))
      .phases({"one device", fmt::format("DataParallel, {}", count)})
      .plot(memory_plot("Memory by category", memory));
}

std::vector<Case> splits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int devices : {2, 3, 5}) {
    cases.push_back(new_case(setting, devices_key(devices), devices_of(setting, devices)));
  }
  return cases;
}

/// The rows of each device.
std::string rows_text(const Measurement& each) {
  std::string rows;
  for (const Rows& piece : chunk(each.workload().batch_size(), each.workload().ranks)) {
    rows += fmt::format("{}{}", rows.empty() ? "" : " + ", piece.count);
  }
  return rows;
}

Findings conclude_splits(const Results& results) {
  const auto largest_share = [](const Measurement& each) {
    return static_cast<double>(
               chunk(each.workload().batch_size(), each.workload().ranks).front().count) /
           batch_of(each);
  };
  std::vector<std::string> uneven;
  for (const Measurement& each : results.cases) {
    const double above = largest_share(each) * each.workload().ranks - 1;
    if (above == 0) continue;
    uneven.push_back(
        fmt::format("{} devices get {} rows (the largest share is {} above an equal one)",
                    each.workload().ranks, rows_text(each), percent_text(above)));
  }
  Conclusion all(results);
  all.fact("uneven", uneven.empty()
                         ? "Every number of devices divides the batch equally."
                         : "Not every number divides the batch: " + list_text(uneven) + ".");
  const std::vector<std::string> keys = keys_within_cores(results);
  if (keys.size() < 2) {
    all.fact("not-compared",
             fmt::format("Fewer than two of these numbers have enough {} here, so step times are "
                         "not compared.",
                         units_word(results.setting)));
  } else {
    std::vector<std::string> words;
    for (const std::string& key : keys) {
      words.push_back(fmt::format("{} devices", results.at(key).workload().ranks));
    }
    all.fastest("Fastest", keys, words);
  }
  return all
      .table("Rows of each device, by torch.chunk's rule",
             {{"ranks", "devices"},
              {"rows", rows_text},
              {"largest share",
               [=](const Measurement& each) { return percent_text(largest_share(each)); }},
              {"an equal share",
               [](const Measurement& each) { return percent_text(1.0 / each.workload().ranks); }},
              "time",
              "beyond"})
      .phases({"2 devices", "3 devices", "5 devices"});
}

std::vector<Case> gpu0_bottleneck_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int devices : {2, 4}) {
    if (setting.on_gpu && devices > std::max(setting.units, 2)) continue;
    cases.push_back(new_case(setting, devices_key(devices), devices_of(setting, devices)));
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

/// What each device computes in a step, by device and start, as mlp_dp prints it.
std::vector<std::vector<double>> busy_seconds(const Measurement& each) {
  std::vector<std::vector<double>> busy_s;
  for (int device = 0; device < each.workload().ranks; ++device) {
    busy_s.push_back(computing_seconds(each, device));
  }
  return busy_s;
}

/// The mean of the devices but the first, by start.
std::vector<double> others_busy_s(const std::vector<std::vector<double>>& busy_s) {
  std::vector<double> sums(busy_s.front().size());
  for (std::size_t i = 1; i < busy_s.size(); ++i) {
    sums = by_round(sums, busy_s[i], std::plus<double>());
  }
  for (double& each : sums) each /= static_cast<double>(busy_s.size() - 1);
  return sums;
}

FindingTable load_table(const Measurement& each) {
  const auto busy_s = busy_seconds(each);
  const Traffic traffic = traffic_of(each.workload());
  const std::vector<Rows> split = chunk(each.workload().batch_size(), each.workload().ranks);
  const std::vector<DeviceMemory> memory = planned_memory(each.workload());
  FindingTable table{
      .title = "Each device in a step of DataParallel",
      .name = "devices-table",
      .columns = {"Device", "Rows", "Busy", "Of a step", "Bytes in", "Bytes out", "Memory"}};
  for (std::size_t i = 0; i < busy_s.size(); ++i) {
    table.rows.push_back({std::to_string(i), std::to_string(i < split.size() ? split[i].count : 0),
                          time_text(estimate_of(busy_s[i])),
                          percent_text(computing_share(each, static_cast<int>(i)).median),
                          human_bytes(traffic.in_bytes[i]), human_bytes(traffic.out_bytes[i]),
                          human_bytes(memory[i].bytes)});
  }
  return table;
}

/// How busy device 0 and the others are, and what only device 0 does.
void add_load(Conclusion& all, const Measurement& each) {
  constexpr double kEqual = 1.1;
  const auto busy_s = busy_seconds(each);
  const std::vector<double> others_s = others_busy_s(busy_s);
  const Estimate ratio =
      estimate_by_round(busy_s.front(), others_s,
                        [](double first, double other) { return other > 0 ? first / other : 1; });
  const Side side = side_of(ratio, 1);
  all.timed("load",
            fmt::format("{}: it is busy for {} in a step, {} the time of the others.",
                        by_side(side, "Device 0 is more loaded than the others",
                                "Device 0 is less loaded than the others",
                                "Whether device 0 is more loaded than the others is unclear"),
                        time_text(estimate_of(busy_s.front())), factor_text(ratio)));
  std::vector<std::string> shares;
  for (int device = 0; device < each.workload().ranks; ++device) {
    shares.push_back(percent_text(computing_share(each, device).median));
  }
  const bool is_equal = ratio.low > 1 / kEqual && ratio.high < kEqual;
  const bool is_unequal = ratio.low >= kEqual || ratio.high <= 1 / kEqual;
  all.timed("equal", fmt::format("{}: they compute during {} of a step, device 0 first.",
                                 is_equal     ? "All devices are used equally, within a tenth"
                                 : is_unequal ? "The devices are not used equally"
                                              : "Whether all devices are used equally is unclear",
                                 list_text(shares)));
  std::vector<PartSeries> parts;
  for (const auto& [phase, words] :
       {std::pair<std::string_view, const char*>{"loss", "the loss"},
        {"optimizer", "the update"},
        {"communication", "the exchange of parameters, rows and gradients"}}) {
    parts.push_back({words, each.phase_s_by_start(phase)});
  }
  const LargestPart largest = largest_of(parts, each.mean_s_by_start());
  all.timed("where",
            fmt::format("{}: it computes for {} in a step, the others for {}. The longest of what "
                        "only it does is {}{}: {} of a step.",
                        by_side(side, "The bottleneck is at device 0",
                                "The bottleneck is not what device 0 computes",
                                "Whether device 0 computes longer is unclear"),
                        time_text(estimate_of(busy_s.front())), time_text(estimate_of(others_s)),
                        list_text(largest.names), largest.is_alone() ? "" : " (indistinguishable)",
                        percent_text(largest.share)));
}

Findings conclude_gpu0_bottleneck(const Results& results) {
  Conclusion all(results);
  const std::vector<std::string> within = keys_within_cores(results);
  for (const std::string& key : within) all.timed(key, waiting_sentence(results.at(key)));
  if (within.empty()) {
    all.fact("not-compared", fmt::format("None of these numbers of devices has enough {} here, so "
                                         "waiting is not judged.",
                                         units_word(results.setting)));
  } else {
    add_load(all, results.cases.front());
  }
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    labels.push_back(fmt::format("{} devices", each.workload().ranks));
  }
  const auto memory = devices_of_cases({{labels.front(), &results.cases.front()}});
  return all
      .fact("memory", fmt::format("Device 0 needs {:.2f} times the memory of device 1.",
                                  times_the_bytes(memory[0].second.bytes, memory[1].second.bytes)))
      .table("What device 0 does while the others wait", {{"ranks", "devices"},
                                                          "time",
                                                          "loss",
                                                          "optimizer",
                                                          {"communication", "exchange"},
                                                          "alone",
                                                          "beyond"})
      .table(load_table(results.cases.front()))
      .table(memory_table(memory))
      .phases(labels);
}

std::vector<Case> dp_vs_ddp_cases(const Setting& setting) {
  const int count = compared_with_one(setting);
  return {new_case(setting, "data-parallel", devices_of(setting, count)),
          new_case(setting, "ddp", with(ddp_workload(setting, count), "--update separate"))};
}

/// Which of the two has its 95th percentile further above its median, by the difference in each
/// round.
std::string spread_sentence(const Measurement& dp, const Measurement& ddp) {
  const Estimate more =
      estimate_by_round(dp.spread_by_start(), ddp.spread_by_start(), std::minus<double>());
  return fmt::format(
      "{}: the 95th percentile is {} above the median for DataParallel, {} for DDP.",
      by_side(side_of(more, 0), "DDP's steps vary less", "DataParallel's steps vary less",
              "Which step times vary less is unclear"),
      percent_text(estimate_of(dp.spread_by_start())),
      percent_text(estimate_of(ddp.spread_by_start())));
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

/// When DataParallel is acceptable, as far as speed decides.
std::string acceptable_sentence(const Comparison& duel) {
  const std::string ddp =
      fmt::format("DDP takes {} as long on the same devices", factor_text(duel.ratio));
  switch (duel.word) {
    case Word::kSlower:
      return fmt::format("DataParallel is acceptable here, for one: {}.", ddp);
    case Word::kFaster:
      return fmt::format("DataParallel is not acceptable for speed: {}.", ddp);
    case Word::kNoDifference:
      return fmt::format("Where speed decides, both are acceptable: {}.", ddp);
    case Word::kUndecided:
      return fmt::format("Whether speed speaks against DataParallel is unclear: {}.", ddp);
    case Word::kTooFewStarts:
      return fmt::format("Whether speed speaks against DataParallel: {}; {}.",
                         too_few_text(duel.compared), ddp);
  }
  return "";
}

Findings conclude_dp_vs_ddp(const Results& results) {
  const Measurement &dp = results.at("data-parallel"), &ddp = results.at("ddp");
  const auto memory = devices_of_cases({{"DataParallel", &dp}, {"DDP, each rank", &ddp}});
  const auto bytes = [&](std::size_t place) { return human_bytes(memory[place].second.bytes); };
  const auto utilization = [](const Measurement& each) {
    return percent_text(share_of(each, computing_phases()));
  };
  return Conclusion(results)
      .compare({{"data-parallel", "ddp", "with DDP", "with DataParallel", "gain"}})
      .timed("utilization",
             fmt::format("Device 0 computes during {} of a step of DataParallel and {} of DDP.",
                         utilization(dp), utilization(ddp)))
      .timed("variance", spread_sentence(dp, ddp))
      .timed("acceptable", acceptable_sentence(results.compare("data-parallel", "ddp")))
      .fact("memory",
            fmt::format("DataParallel needs {} on device 0 and {} on device 1, DDP {} on each.",
                        bytes(0), bytes(1), human_bytes(memory.back().second.bytes)))
      .fact("bytes", bytes_sentence(ddp.workload()))
      .table(fmt::format("DataParallel against DDP on {}",
                         several_words(dp.workload().ranks, "device")),
             {{"",
               [](const Measurement& each) -> std::string {
                 return each.what().key == "ddp" ? "DDP" : "DataParallel";
               }},
              "time",
              "p95",
              {"p95 above the median, of a start",
               [](const Measurement& each) {
                 return percent_text(estimate_of(each.spread_by_start()));
               }},
              {"computes", "device 0 computes"},
              "communication"})
      .table(memory_table(memory))
      .phases({"DataParallel", "DDP"})
      .plot(memory_plot("Memory by category", memory));
}

}  // namespace

Experiment data_parallel_experiment() {
  return {.name = "data-parallel",
          .title = "One device against DataParallel",
          .question = "What do two devices of one process gain, and what do they need?",
          .cases = data_parallel_cases,
          .conclude = conclude_data_parallel,
          .names = "gain proportion moving memory memory-table phases-plot memory-plot"};
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
          .names =
              "load equal where memory not-compared table devices-table memory-table "
              "phases-plot",
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
          "gain utilization variance acceptable memory bytes table memory-table phases-plot "
          "memory-plot",
      .needs_mpi = true};
}

}  // namespace barestep
