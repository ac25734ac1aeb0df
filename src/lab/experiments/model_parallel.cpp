// A model's layers on several devices of one process, of which one works at a time: model
// parallelism without micro-batches, as students write it with `x.to(device)`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

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
Case layers_on(const Setting& setting, const std::string& key, int depth, int devices) {
  Workload run = devices == 1 ? base_workload(setting) : dp_workload(setting, devices);
  if (!setting.on_gpu) run.config.device.threads = 1;
  const std::string stages =
      devices == 1 ? "" : fmt::format(" --pipeline {} --schedule naive --micro-batches 1", devices);
  Case what = new_case(
      setting, key,
      with(run, fmt::format("--depth {} --update separate --recompute 1{}", depth, stages)));
  what.record_ops = true;
  return what;
}

std::vector<Case> model_parallel_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int depth : kDepthsOnTwo) {
    cases.push_back(layers_on(setting, depth_key(depth), depth, 2));
  }
  for (const int devices : kDeviceCounts) {
    cases.push_back(layers_on(setting, count_key(devices), kDepth, devices));
  }
  return cases;
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

void add_transfers(FindingsOf& all, const Results& results) {
  const auto text = [&](int devices) {
    const Transfers transfers = transfers_of(results.at(count_key(devices)).workload());
    return fmt::format("{} and {} on {} devices", transfers.forward, transfers.backward, devices);
  };
  const auto fullest = [&](int devices) {
    return human_bytes(std::ranges::max(planned_memory(results.at(count_key(devices)).workload()),
                                        {}, &DeviceMemory::bytes)
                           .bytes);
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

void add_depth(FindingsOf& all, const Results& results) {
  const int least = kDepthsOnTwo.front(), most = kDepthsOnTwo.back();
  const Estimate growth = results.compare(depth_key(least), depth_key(most)).ratio;
  all.judge("depth", growth, static_cast<double>(most) / least,
            {"The time grows more than in proportion", "The time grows less than in proportion",
             "The time grows in proportion, as far as can be seen"},
            fmt::format("on two devices {} layers take {} the time of {}", most,
                        factor_text(growth), least));
}

void add_update(FindingsOf& all, const Results& results) {
  const auto adam_s = [&](int devices) {
    return results.at(count_key(devices)).phase_s_by_start("optimizer");
  };
  const auto saved = [](const std::vector<double>& one, const std::vector<double>& two) {
    return estimate_by_round(one, two, std::minus<double>());
  };
  all.judge("update", saved(adam_s(1), adam_s(2)), 0,
            {"Adam, and nothing else, runs on all devices at once, which saves time",
             "Adam runs on all devices at once, which costs time",
             "Adam runs on all devices at once; whether that saves time is unclear"},
            fmt::format("on two it takes {} instead of {}; with the transfers and all else the "
                        "step changes by {}",
                        time_text(estimate_of(adam_s(2))), time_text(estimate_of(adam_s(1))),
                        time_text(saved(results.at(count_key(2)).mean_s_by_start(),
                                        results.at(count_key(1)).mean_s_by_start()))));
}

Findings model_parallel_findings(const Results& results) {
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
  FindingsOf all(results);
  all.compare(pairs);
  if (!pairs.empty()) {
    add_depth(all, results);
    add_update(all, results);
    all.timed("computing",
              fmt::format("While a device computes, the next one waits for its result: of two "
                          "they compute during {} of a step, device 0 first.",
                          computing_shares_text(results.at(count_key(2)))));
  }
  add_transfers(all, results);
  if (!beyond.empty()) {
    all.fact("not-compared",
             fmt::format("{} devices have to share {} here, so the answers leave them out.",
                         list_text(beyond), units_text(results.setting)));
  }
  std::vector<NamedMemory> memory;
  for (const int devices : kDeviceCounts) {
    for (const DeviceMemory& each : planned_memory(results.at(count_key(devices)).workload())) {
      memory.emplace_back(fmt::format("of {}", devices), each);
    }
  }
  return all
      .table("Layers on devices", {"case",
                                   "model",
                                   {"split", "layers of each device"},
                                   "time",
                                   {"speed-up", "speed against one"},
                                   "optimizer",
                                   "computes-each",
                                   "memory",
                                   "beyond"})
      .phases()
      .plot(memory_plot(fmt::format("Memory of each device of {} layers", kDepth), memory))
      .simulated(
          {5}, {"case", {"time", "step"}, {"speed-up", "speed against one"}, "optimizer", "memory"},
          false);
}

}  // namespace

Experiment model_parallel_experiment() {
  return {"model-parallel",
          "Layers on several devices",
          "What do several devices gain if each has some of the layers, and one works at a time?",
          model_parallel_cases,
          model_parallel_findings,
          "depth update computing transfers memory not-compared table simulated-table phases-plot "
          "memory-plot"};
}

}  // namespace barestep
