// A model's layers on several devices of one process, of which one works at a time: model
// parallelism without micro-batches, as students write it with `x.to(device)`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/units.h"
#include "lab/experiments/conclusion.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "model/model_spec.h"

namespace barestep {
namespace {

constexpr std::array kDepthsOnTwo = {6, 12, 24};
constexpr int kDepth = 20;  // on these numbers of devices
constexpr std::array kDeviceCounts = {1, 2, 5};

std::string depth_key(int depth) {
  return fmt::format("depth-{}", depth);
}

std::string count_key(int devices) {
  return fmt::format("devices-{}", devices);
}

/// The layers in as many stages, on one device each. On the CPU a device is a core.
Workload layers_on(const Setting& setting, int depth, int devices) {
  Workload run = devices == 1 ? base_workload(setting) : dp_workload(setting, devices);
  if (!setting.on_gpu) run.config.device.threads = 1;
  return with(run, fmt::format("--depth {} --update separate --recompute 1{}", depth,
                               devices == 1 ? ""
                                            : fmt::format(" --pipeline {} --schedule naive "
                                                          "--micro-batches 1",
                                                          devices)));
}

std::vector<Case> model_parallel_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int depth : kDepthsOnTwo) {
    cases.push_back(new_case(setting, depth_key(depth), layers_on(setting, depth, 2)));
  }
  for (const int devices : kDeviceCounts) {
    cases.push_back(new_case(setting, count_key(devices), layers_on(setting, kDepth, devices)));
    cases.back().record_ops = true;
  }
  return cases;
}

/// The number of layers on each device.
std::vector<int> layers_of_devices(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  std::vector<int> layers;
  for (const LayerRange& each : layers_of_stages(programs.steps().spec().model, workload.ranks)) {
    layers.push_back(each.size());
  }
  return layers;
}

/// The largest part of the layers that a device has.
double largest_part(const Workload& workload) {
  const std::vector<int> layers = layers_of_devices(workload);
  return static_cast<double>(std::ranges::max(layers)) /
         std::accumulate(layers.begin(), layers.end(), 0);
}

/// The copies of a step from one device to another.
struct Transfers {
  int forward = 0, backward = 0;  // of activations and of their gradients
  std::int64_t bytes = 0;         // of each of these
  std::vector<std::string> others{};
};

Transfers transfers_of(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const Program& step = programs.step();
  Transfers all;
  for (const Node& node : step.nodes()) {
    const auto* const copy = op_if<Copy>(node.op);
    if (copy == nullptr) continue;
    const Buffer &to = step.buffers()[copy->to.buffer], &from = step.buffers()[copy->from.buffer];
    if (to.pinned || from.pinned || to.device == from.device) continue;
    const bool is_forward = to.name == "stage_input", is_backward = to.name == "stage_grad";
    all.forward += is_forward;
    all.backward += is_backward;
    if (is_forward || is_backward) {
      all.bytes = copy->to.bytes();
    } else if (std::ranges::find(all.others, to.name) == all.others.end()) {
      all.others.push_back(to.name);
    }
  }
  return all;
}

/// T(N) = T(1) - T_adam (1 - L): only the update runs on all devices at once, and the fullest has
/// the part L of the layers. Without transfers.
Estimate time_by_formula(const Measurement& one, const Workload& several) {
  const double saved = 1 - largest_part(several);
  return estimate_by_round(one.mean_s_by_start(), one.phase_s_by_start("optimizer"),
                           [saved](double step, double adam) { return step - adam * saved; });
}

void add_tables(Conclusion& all, const Results& results) {
  std::vector<std::string> depths, counts;
  for (const int depth : kDepthsOnTwo) depths.push_back(depth_key(depth));
  for (const int devices : kDeviceCounts) counts.push_back(count_key(devices));
  const auto of_several = [](std::string title, const auto& text) -> Column {
    return {std::move(title), [=](const Measurement& each) -> std::string {
              return each.workload().ranks == 1 ? "" : text(each);
            }};
  };
  const auto copies = [](int Transfers::*which) {
    return [=](const Measurement& each) {
      return std::to_string(transfers_of(each.workload()).*which);
    };
  };
  all.table("Two devices, by the number of layers",
            {{"layers",
              [](const Measurement& each) { return std::to_string(each.workload().depth()); }},
             {"layers of each device",
              [](const Measurement& each) {
                return fmt::format("{}", fmt::join(layers_of_devices(each.workload()), " + "));
              }},
             "time",
             time_against(depths.front(), "time against 6 layers"),
             {"device 0 waits for device 1",
              [](const Measurement& each) { return percent_text(share_of(each, "other_device")); }},
             "beyond"},
            depths)
      .table(fmt::format("{} layers on several devices", kDepth),
             {{"ranks", "devices"},
              "time",
              speed_against(counts.front(), "speed against one"),
              of_several("formula, without transfers",
                         [&](const Measurement& each) {
                           return time_text(
                               time_by_formula(results.at(counts.front()), each.workload()));
                         }),
              {"copies forward", copies(&Transfers::forward)},
              {"copies backward", copies(&Transfers::backward)},
              of_several("bytes of each",
                         [](const Measurement& each) {
                           return human_bytes(transfers_of(each.workload()).bytes);
                         }),
              "beyond"},
             counts, "counts-table");
}

FindingTable devices_table(const Results& results) {
  FindingTable table{.title = fmt::format("Each device of {} layers", kDepth),
                     .name = "devices-table",
                     .columns = {"devices", "device", "layers", "memory", "computes, of a step"}};
  for (const int devices : kDeviceCounts) {
    const Measurement& each = results.at(count_key(devices));
    const std::vector<int> layers = layers_of_devices(each.workload());
    const std::vector<DeviceMemory> memory = planned_memory(each.workload());
    for (int device = 0; device < devices; ++device) {
      table.rows.push_back(
          {std::to_string(devices), std::to_string(device), std::to_string(at(layers, device)),
           human_bytes(at(memory, device).bytes), percent_text(computing_share(each, device))});
    }
  }
  return table;
}

std::vector<NamedMemory> memory_of_devices(const Results& results) {
  std::vector<NamedMemory> all;
  for (const int devices : kDeviceCounts) {
    const std::vector<DeviceMemory> memory =
        planned_memory(results.at(count_key(devices)).workload());
    for (int device = 0; device < devices; ++device) {
      all.emplace_back(fmt::format("{} of {}", device, devices), at(memory, device));
    }
  }
  return all;
}

// The same on a machine with fast links: the course's width.

/// The bytes that PyTorch's optimizers move for a parameter: in one kernel, 7 numbers are read or
/// written; foreach makes a pass over them for each operation.
constexpr double kFusedAdamBytes = 28;
constexpr double kForeachAdamBytes = 72;

struct SimulatedStages {
  double step_s = 0;
  double adam_s = 0;               // of the fullest device
  double largest_part = 1;         // of the layers
  double transfers_s = 0;          // all of a step
  std::int64_t bytes = 0;          // of the fullest device
  std::vector<double> computes{};  // the share of the step, by device

  /// With another optimizer: the time of an update is as long as its bytes take.
  [[nodiscard]] double foreach_s() const {
    return step_s + adam_s * (kForeachAdamBytes / kFusedAdamBytes - 1);
  }
};

SimulatedStages simulated_stages(const MachineCard& card, int depth, int devices) {
  Run asked;
  asked.config.parallel.scheme = SchemeKind::kDataParallel;
  asked.config.model.depth = depth;
  asked.config.parallel.pipeline = devices;
  asked.config.parallel.schedule = PipelineSchedule::kNaive;
  asked.config.parallel.micro_batches = 1;
  const Workload workload{run_on(asked, card, devices)};
  const SimulatedStep step = predicted_run(workload, card);
  SimulatedStages all{.step_s = step.step_s};
  all.computes.resize(static_cast<std::size_t>(devices));
  std::vector<double> adam_s(all.computes);
  const WorkloadPrograms programs(workload);
  for (NodeId id = 0; id < programs.step().size(); ++id) {
    const Node& node = programs.step().node(id);
    if (node.lane != Lane::kCompute) continue;
    const NodeSpan& span = at(step.spans, id);
    at(all.computes, node.device) += (span.end_s - span.begin_s) / all.step_s;
    if (node.phase == Phase::kOptimizer) at(adam_s, node.device) += span.end_s - span.begin_s;
  }
  all.adam_s = std::ranges::max(adam_s);
  for (const DeviceMemory& each : planned_memory(programs)) {
    all.bytes = std::max(all.bytes, each.bytes);
  }
  if (devices == 1) return all;
  const Transfers transfers = transfers_of(workload);
  all.largest_part = largest_part(workload);
  all.transfers_s =
      (transfers.forward + transfers.backward) * copy_s(card, static_cast<double>(transfers.bytes));
  return all;
}

/// T(N) = T(1) - T_adam (1 - L) + 2 (N - 1) t.
double time_by_formula(const SimulatedStages& one, const SimulatedStages& several) {
  return one.step_s - one.adam_s * (1 - several.largest_part) + several.transfers_s;
}

std::string simulated_fact(const MachineCard& card, int depth, const SimulatedStages& one,
                           const SimulatedStages& five) {
  return fmt::format(
      "Simulated: {} layers of 8192 at batch 64 are {} as fast on 5 of {} as on one, because only "
      "Adam runs on all devices at once, and {} with PyTorch's foreach Adam, which moves {:.0f} "
      "bytes a parameter instead of {:.0f} (calculated).",
      depth, factor_text(one.step_s / five.step_s), card.name,
      factor_text(one.foreach_s() / five.foreach_s()), kForeachAdamBytes, kFusedAdamBytes);
}

void add_simulated_stages(Conclusion& all) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{.title = fmt::format("Simulated: layers of 8192, batch 64, on {}", card.name),
                     .name = "simulated-table",
                     .columns = {"layers", "devices", "step", "speed against one", "formula",
                                 "with foreach Adam (calculated)", "speed against one",
                                 "a device computes", "memory of a device, at most"}};
  for (const int depth : {kDepthsOnTwo.front(), kDepth}) {
    const SimulatedStages one = simulated_stages(card, depth, 1);
    for (const int devices : kDeviceCounts) {
      const SimulatedStages each = simulated_stages(card, depth, devices);
      std::vector<std::string> computes;
      for (const double share : each.computes) computes.push_back(percent_text(share));
      table.rows.push_back({std::to_string(depth), std::to_string(devices), time_text(each.step_s),
                            factor_text(one.step_s / each.step_s),
                            devices == 1 ? "" : time_text(time_by_formula(one, each)),
                            time_text(each.foreach_s()),
                            factor_text(one.foreach_s() / each.foreach_s()),
                            fmt::format("{}", fmt::join(computes, ", ")), human_bytes(each.bytes)});
      if (devices != kDeviceCounts.back()) continue;
      all.fact(fmt::format("simulated-{}", depth), simulated_fact(card, depth, one, each));
    }
  }
  all.table(std::move(table));
}

std::string depth_sentence(const Results& results) {
  const int least = kDepthsOnTwo.front(), most = kDepthsOnTwo.back();
  const Estimate growth = results.compare(depth_key(least), depth_key(most)).ratio;
  const double layers = static_cast<double>(most) / least;
  return fmt::format("On two devices {} layers take {} the time of {}: {}.", most,
                     factor_text(growth), least,
                     by_side(side_of(growth, layers), "more than in proportion",
                             "less than in proportion", "in proportion, as far as can be seen"));
}

std::string adam_sentence(const Results& results) {
  const auto adam_s = [&](int devices) {
    return results.at(count_key(devices)).phase_s_by_start("optimizer");
  };
  const auto saved = [](const std::vector<double>& one, const std::vector<double>& two) {
    return estimate_by_round(one, two, std::minus<double>());
  };
  return fmt::format(
      "Adam, and nothing else, runs on all devices at once: on two it takes {} instead of {}, {}; "
      "with the transfers and all else the step changes by {}.",
      time_text(estimate_of(adam_s(2))), time_text(estimate_of(adam_s(1))),
      by_side(side_of(saved(adam_s(1), adam_s(2)), 0), "which saves time", "which costs time",
              "so it is unclear whether that saves time"),
      time_text(saved(results.at(count_key(2)).mean_s_by_start(),
                      results.at(count_key(1)).mean_s_by_start())));
}

std::string computing_sentence(const Results& results) {
  const Measurement& two = results.at(count_key(2));
  return fmt::format(
      "While a device computes, the next one waits for its result: device 0 of two computes during "
      "{} of a step, device 1 during {}.",
      percent_text(computing_share(two, 0)), percent_text(computing_share(two, 1)));
}

void add_transfers(Conclusion& all, const Results& results) {
  const auto text = [&](int devices) {
    const Transfers transfers = transfers_of(results.at(count_key(devices)).workload());
    return fmt::format("{} and {} on {} devices", transfers.forward, transfers.backward, devices);
  };
  const auto fullest = [&](int devices) {
    std::int64_t bytes = 0;
    for (const DeviceMemory& each : planned_memory(results.at(count_key(devices)).workload())) {
      bytes = std::max(bytes, each.bytes);
    }
    return human_bytes(bytes);
  };
  const Transfers five = transfers_of(results.at(count_key(5)).workload());
  all.fact("transfers",
           fmt::format("A step copies activations N - 1 times forward and their gradients N - 1 "
                       "times back, {} each: {}, {} (counted in the program).{}",
                       human_bytes(five.bytes), text(2), text(5),
                       five.others.empty() ? ""
                                           : fmt::format(" Besides, devices get copies of {}.",
                                                         list_text(five.others))))
      .fact("memory",
            fmt::format("{} layers need {} on one device; the fullest of two needs {}, of "
                        "five {} (from the plan).",
                        kDepth, fullest(1), fullest(2), fullest(5)));
}

Findings conclude_model_parallel(const Results& results) {
  std::vector<Compared> pairs;
  std::vector<std::string> beyond;
  for (const int devices : kDeviceCounts) {
    if (devices == 1) continue;
    if (results.at(count_key(devices)).what().beyond_cores) {
      beyond.push_back(std::to_string(devices));
      continue;
    }
    pairs.push_back({count_key(1), count_key(devices),
                     fmt::format("with the layers on {}", several_words(devices, "device")),
                     "with all on one"});
  }
  Conclusion all(results);
  all.compare(pairs);
  if (!pairs.empty()) {
    all.timed("depth", depth_sentence(results))
        .timed("update", adam_sentence(results))
        .timed("computing", computing_sentence(results));
  }
  add_transfers(all, results);
  if (!beyond.empty()) {
    all.fact("not-compared",
             fmt::format("{} devices have to share {} here, so the answers leave them out.",
                         list_text(beyond), units_text(results.setting)));
  }
  add_tables(all, results);
  all.table(devices_table(results))
      .phases()
      .plot(memory_plot(fmt::format("Memory of each device of {} layers", kDepth),
                        memory_of_devices(results)));
  add_simulated_stages(all);
  return all;
}

}  // namespace

Experiment model_parallel_experiment() {
  return {.name = "model-parallel",
          .title = "Layers on several devices",
          .question =
              "What do several devices gain if each has some of the layers, and one works "
              "at a time?",
          .cases = model_parallel_cases,
          .conclude = conclude_model_parallel,
          .names =
              "depth update computing transfers memory not-compared "
              "simulated-* table counts-table devices-table simulated-table "
              "phases-plot memory-plot"};
}

}  // namespace barestep
