// Several devices of one process: DataParallel compared with one device and with DDP.
#include "parallel/schemes/data_parallel.h"

#include <fmt/format.h>

#include <functional>
#include <set>
#include <span>
#include <utility>

#include "core/units.h"
#include "lab/experiments/findings_of.h"
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

/// The devices of these measurements, with names like "DataParallel, device 1".
std::vector<NamedMemory> devices_of_cases(
    const std::vector<std::pair<std::string, const Measurement*>>& cases) {
  std::vector<NamedMemory> all;
  for (const auto& [name, measured] : cases) {
    const std::vector<DeviceMemory> devices = planned_memory(measured->workload());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      all.emplace_back(devices.size() == 1 ? name : fmt::format("{}, device {}", name, i),
                       devices[i]);
    }
  }
  return all;
}

/// On one device, on several, and on the numbers of devices whose splits the course asks for.
std::vector<Case> data_parallel_cases(const Setting& setting) {
  std::set<int> counts = {1, 2, 3, 4, 5, compared_with_one(setting)};
  std::vector<Case> cases;
  for (const int devices : counts) {
    cases.push_back(new_case(setting, devices_key(devices), devices_of(setting, devices)));
    cases.back().record_ops = true;
  }
  return cases;
}

double largest_share(const Workload& workload) {
  return static_cast<double>(chunk(workload.batch_size(), workload.ranks).front().count) /
         static_cast<double>(workload.batch_size());
}

/// The numbers of devices that do not divide the batch.
std::string uneven_text(const Results& results) {
  std::vector<std::string> uneven;
  for (const Measurement& measured : results.cases) {
    const double above = largest_share(measured.workload()) * measured.workload().ranks - 1;
    if (above == 0) continue;
    uneven.push_back(
        fmt::format("{} devices get {} rows (the largest share is {} above an equal one)",
                    measured.workload().ranks, figure_named("split")->text({results, measured}),
                    percent_text(above)));
  }
  return uneven.empty() ? "Every number of devices divides the batch equally."
                        : "Not every number divides the batch: " + list_text(uneven) + ".";
}

/// Whether device 0 is the bottleneck.
void add_waiting(FindingsOf& all, const Measurement& measured) {
  const Estimate alone = share_of(measured, device_0_phases());
  all.judge("alone-" + measured.what().key, alone, 0.5,
            {"Device 0 is the bottleneck", "Device 0 is not the bottleneck",
             "Whether device 0 is the bottleneck is unclear"},
            fmt::format("with {} devices the others wait for it during {} of a step, {} for loss "
                        "and optimizer and {} for the exchange through it",
                        measured.workload().ranks, percent_text(alone),
                        time_text(measured.phase_s("loss") + measured.phase_s("optimizer")),
                        time_text(measured.phase_s("communication"))));
}

/// What each device computes in a step, by device and start, as mlp_dp prints it.
std::vector<std::vector<double>> busy_seconds(const Measurement& measured) {
  std::vector<std::vector<double>> busy_s;
  for (int device = 0; device < measured.workload().ranks; ++device) {
    busy_s.push_back(computing_seconds(measured, device));
  }
  return busy_s;
}

/// The mean of the devices but the first, by start.
std::vector<double> others_busy_s(const std::vector<std::vector<double>>& busy_s) {
  std::vector<double> sums(busy_s.front().size());
  for (std::size_t i = 1; i < busy_s.size(); ++i) {
    sums = by_round(sums, busy_s[i], std::plus<double>());
  }
  for (double& value : sums) value /= static_cast<double>(busy_s.size() - 1);
  return sums;
}

FindingTable load_table(const Measurement& measured) {
  const auto busy_s = busy_seconds(measured);
  const Traffic traffic = traffic_of(measured.workload());
  const std::vector<Rows> split =
      chunk(measured.workload().batch_size(), measured.workload().ranks);
  const std::vector<DeviceMemory> memory = planned_memory(measured.workload());
  FindingTable table{
      .title = "Each device in a step of DataParallel",
      .name = "devices-table",
      .columns = {"Device", "Rows", "Busy", "Of a step", "Bytes in", "Bytes out", "Memory"}};
  for (std::size_t i = 0; i < busy_s.size(); ++i) {
    table.rows.push_back({std::to_string(i), std::to_string(i < split.size() ? split[i].count : 0),
                          time_text(estimate_of(busy_s[i])),
                          percent_text(computing_share(measured, static_cast<int>(i)).median),
                          human_bytes(traffic.in_bytes[i]), human_bytes(traffic.out_bytes[i]),
                          human_bytes(memory[i].bytes)});
  }
  return table;
}

/// How busy device 0 and the others are, and what only device 0 does.
void add_load(FindingsOf& all, const Measurement& measured) {
  constexpr double kEqual = 1.1;
  const auto busy_s = busy_seconds(measured);
  const std::vector<double> others_s = others_busy_s(busy_s);
  const Estimate ratio =
      estimate_by_round(busy_s.front(), others_s,
                        [](double first, double other) { return other > 0 ? first / other : 1; });
  const std::string first = time_text(estimate_of(busy_s.front()));
  const bool is_equal = ratio.low > 1 / kEqual && ratio.high < kEqual;
  const bool is_unequal = ratio.low >= kEqual || ratio.high <= 1 / kEqual;
  std::vector<PartSeries> parts;
  for (const auto& [phase, words] :
       {std::pair<std::string_view, const char*>{"loss", "the loss"},
        {"optimizer", "the update"},
        {"communication", "the exchange of parameters, rows and gradients"}}) {
    parts.push_back({words, measured.phase_s_by_start(phase)});
  }
  const LargestPart largest = largest_of(parts, measured.mean_s_by_start());
  all.judge("load", ratio, 1,
            {"Device 0 is more loaded than the others", "Device 0 is less loaded than the others",
             "Whether device 0 is more loaded than the others is unclear"},
            fmt::format("it is busy for {} in a step, {} the time of the others", first,
                        factor_text(ratio)))
      .timed("equal", fmt::format("{}: they compute during {} of a step, device 0 first.",
                                  is_equal     ? "All devices are used equally, within a tenth"
                                  : is_unequal ? "The devices are not used equally"
                                               : "Whether all devices are used equally is unclear",
                                  computing_shares_text(measured)))
      .judge("where", ratio, 1,
             {"The bottleneck is at device 0", "The bottleneck is not what device 0 computes",
              "Whether device 0 computes longer is unclear"},
             fmt::format("it computes for {} in a step, the others for {}. The longest of what "
                         "only it does is {}{}: {} of a step",
                         first, time_text(estimate_of(others_s)), list_text(largest.names),
                         largest.is_alone() ? "" : " (indistinguishable)",
                         percent_text(largest.share)));
}

std::string needs_text(const std::vector<NamedMemory>& memory) {
  const auto bytes = [&](std::size_t place) { return human_bytes(memory[place].second.bytes); };
  return fmt::format(
      "Device 0 needs {}, one device alone {}: it keeps the optimizer and gathers all outputs{}. "
      "Device 1 needs {}, {} of one device's.",
      bytes(1), bytes(0),
      memory[1].second.bytes > memory[0].second.bytes
          ? ""
          : ", but computes the activations of its own rows only",
      bytes(2), percent_text(times_the_bytes(memory[2].second.bytes, memory[0].second.bytes)));
}

Findings data_parallel_findings(const Results& results) {
  const int count = compared_with_one(results.setting);
  const std::string on_several = "on " + several_words(count, "device");
  const Measurement &one = results.at(devices_key(1)), &several = results.at(devices_key(count));
  const Estimate gain = results.compare(devices_key(1), devices_key(count)).speed();
  const auto memory = devices_of_cases({{"one device", &one}, {"DataParallel", &several}});
  FindingsOf all(results);
  all.compare({{devices_key(1), devices_key(count), on_several, "on one device", "gain"}})
      .judge("proportion", gain, 0.9 * count,
             {"In proportion to the devices, within a tenth", "Not in proportion to the devices",
              "Whether in proportion to the devices is unclear"},
             fmt::format("{} as fast as one {}, an efficiency of {}", factor_text(gain), on_several,
                         percent_text(gain.median / count)))
      .timed("moving", fmt::format("Moving parameters, gradients and rows takes {} of a step {}.",
                                   percent_text(share_of(several, "communication")), on_several));
  add_load(all, several);
  std::vector<std::string> labels = {"one device"};
  for (const Measurement& measured : std::span(results.cases).subspan(1)) {
    labels.push_back(fmt::format("{} devices", measured.workload().ranks));
    if (!measured.what().beyond_cores) add_waiting(all, measured);
  }
  return all.untimed("uneven", uneven_text(results))
      .untimed("memory", needs_text(memory))
      .table(
          "DataParallel by its devices",
          {{"ranks", "devices"},
           {"split", "rows of each, by torch.chunk's rule"},
           {"largest share, of 1 / n",
            [](const Measurement& measured) {
              return percent_text(largest_share(measured.workload()) * measured.workload().ranks);
            }},
           "time",
           "speed-up",
           "loss",
           "optimizer",
           {"communication", "exchange"},
           "alone",
           "beyond"})
      .table(load_table(several))
      .phases(labels)
      .plot(memory_plot("Memory by category", memory));
}

std::vector<Case> dp_vs_ddp_cases(const Setting& setting) {
  const int count = compared_with_one(setting);
  return {new_case(setting, "data-parallel", devices_of(setting, count)),
          new_case(setting, "ddp", with(ddp_workload(setting, count), "--update separate"))};
}

/// Why DDP scales better, by the bytes that pass through the busiest device per step.
std::string bytes_text(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const std::int64_t parameters = 4 * programs.steps().parameter_list().size();
  const auto through = [&](int devices) {
    return fmt::format("{} against {} on {} devices", human_bytes(2 * (devices - 1) * parameters),
                       human_bytes(2 * (devices - 1) * parameters / devices), devices);
  };
  return fmt::format(
      "DDP scales better by its design (calculated): DataParallel sends all parameters from device "
      "0 to each other device, and all gradients back, while a ring of DDP's ranks passes 2 (n - "
      "1) / n of the gradients through each: {}, {}. Device 0 alone computes DataParallel's loss "
      "and update; each rank of DDP has an equal share.",
      through(2), through(8));
}

/// When DataParallel is acceptable, as far as speed decides.
std::string acceptable_text(const Comparison& duel) {
  return fmt::format("{}: DDP takes {} as long on the same devices.",
                     duel.is_slower()   ? "DataParallel is acceptable here, for one"
                     : duel.is_faster() ? "DataParallel is not acceptable for speed"
                     : duel.word == Word::kNoDifference
                         ? "Where speed decides, both are acceptable"
                         : "Whether speed speaks against DataParallel is unclear",
                     factor_text(duel.ratio));
}

Findings dp_vs_ddp_findings(const Results& results) {
  const Measurement &dp = results.at("data-parallel"), &ddp = results.at("ddp");
  const auto memory = devices_of_cases({{"DataParallel", &dp}, {"DDP, each rank", &ddp}});
  const auto bytes = [&](std::size_t place) { return human_bytes(memory[place].second.bytes); };
  const auto spread = [](const Measurement& measured) {
    return percent_text(estimate_of(measured.spread_by_start()));
  };
  const auto utilization = [](const Measurement& measured) {
    return percent_text(share_of(measured, computing_phases()));
  };
  const Comparison duel = results.compare("data-parallel", "ddp");
  return FindingsOf(results)
      .compare({{"data-parallel", "ddp", "with DDP", "with DataParallel", "gain"}})
      .timed("utilization",
             fmt::format(
                 "Device 0 computes during {} of a step of DataParallel, rank 0 of DDP during {}.",
                 utilization(dp), utilization(ddp)))
      .judge("variance",
             estimate_by_round(dp.spread_by_start(), ddp.spread_by_start(), std::minus<double>()),
             0,
             {"DDP's steps vary less", "DataParallel's steps vary less",
              "Which step times vary less is unclear"},
             fmt::format("the 95th percentile is {} above the median for DataParallel, {} for DDP",
                         spread(dp), spread(ddp)))
      .timed("acceptable", acceptable_text(duel), duel.word)
      .untimed("memory",
               fmt::format("DataParallel needs {} on device 0 and {} on device 1, DDP {} on each.",
                           bytes(0), bytes(1), human_bytes(memory.back().second.bytes)))
      .untimed("bytes", bytes_text(ddp.workload()))
      .table(fmt::format("DataParallel against DDP on {}",
                         several_words(dp.workload().ranks, "device")),
             {"case",
              "time",
              "p95",
              {"p95 above the median, of a start", spread},
              {"computes", "device or rank 0 computes"},
              "communication"})
      .phases({"DataParallel", "DDP"})
      .plot(memory_plot("Memory by category", memory));
}

}  // namespace

Experiment data_parallel_experiment() {
  return {"data-parallel",
          "One device against DataParallel",
          "What do several devices of one process gain, how is the batch split, what do they need, "
          "and how long do the others wait for device 0?",
          data_parallel_cases,
          data_parallel_findings,
          "gain proportion moving load equal where alone-* uneven memory table devices-table "
          "phases-plot memory-plot",
          false};
}

Experiment dp_vs_ddp_experiment() {
  return {"dp-vs-ddp",
          "DataParallel against DDP",
          "How do utilization, variance and memory of the two compare on the same devices?",
          dp_vs_ddp_cases,
          dp_vs_ddp_findings,
          "gain utilization variance acceptable memory bytes table phases-plot "
          "memory-plot"};
}

}  // namespace barestep
