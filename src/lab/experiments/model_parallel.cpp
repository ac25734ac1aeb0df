// A model's layers on several devices of one process, of which one works at a time: model
// parallelism without micro-batches, as students write it with `x.to(device)`; and a small model in
// two, by its batch or by its layers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
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
  all.untimed("transfers",
              fmt::format("A step copies activations N - 1 times forward and their gradients N - 1 "
                          "times back, {} each: {}, {} (counted in the program).{}",
                          human_bytes(five.bytes), text(2), text(5),
                          five.others.empty() ? ""
                                              : fmt::format(" Besides, devices get copies of {}.",
                                                            list_text(five.others))))
      .untimed("memory", fmt::format("{} layers need {} on one device; the fullest of two needs "
                                     "{}, of five {} (from the plan).",
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
              fmt::format("While a device computes, the next one waits for its result: of two they "
                          "compute during {} of a step, device 0 first.",
                          computing_shares_text(results.at(count_key(2)))));
  }
  add_transfers(all, results);
  if (!beyond.empty()) {
    all.untimed("not-compared",
                fmt::format("{} devices have to share {} here, so the answers leave them out.",
                            list_text(beyond), units_text(results.setting)));
  }
  std::vector<NamedMemory> memory;
  for (const int devices : kDeviceCounts) {
    for (const DeviceMemory& device : planned_memory(results.at(count_key(devices)).workload())) {
      memory.emplace_back(fmt::format("of {}", devices), device);
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

// A small model of two layers on two devices: the batch in two halves, or the layers. The course's
// is 1000 - 2000 - 1000, another one of --dim as wide at its ends.

std::vector<Case> two_splits_cases(const Setting& setting) {
  const std::int64_t width = setting.base.model.dim.value_or(1000);
  std::vector<Case> cases;
  for (const int batch : {64, 32}) {
    for (const auto& [key, options] :
         {std::pair{"whole", ""},
          {"batch", ""},
          {"layers", " --pipeline 2 --schedule naive --micro-batches 1"}}) {
      Workload run =
          key == std::string_view("whole") ? base_workload(setting) : dp_workload(setting, 2);
      run.config.model.dim.reset();
      run.config.model.depth.reset();
      if (!setting.on_gpu) run.config.device.threads = 1;
      run = with(run, fmt::format("--layers {0},{1},{0} --no-last-relu --batch-size {2} --update "
                                  "separate --recompute 1{3}",
                                  width, 2 * width, batch, options));
      cases.push_back(new_case(setting, fmt::format("{}-{}", key, batch), run));
      cases.back().record_ops = true;
    }
  }
  return cases;
}

std::string shares_text(const Results& results, const std::string& what, int batch) {
  const Measurement& measured = results.at(fmt::format("{}-{}", what, batch));
  return fmt::format(
      "With the {} in two, at {} rows, device 0 computes during {} of a step, device 1 during {}.",
      what, batch, percent_text(computing_share(measured, 0)),
      percent_text(computing_share(measured, 1)));
}

Findings two_splits_findings(const Results& results) {
  const auto text = [&](const char* figure, const char* key) {
    return figure_named(figure)->text({results, results.at(key)});
  };
  const auto furthest = [&](std::size_t first) {
    const auto of_batch = std::span(results.cases).subspan(first, 3);
    return last_loss_difference(of_batch, of_batch.front());
  };
  return FindingsOf(results)
      .compare({{"whole-64", "batch-64", "with the batch in two", "on one device"},
                {"whole-64", "layers-64", "with the layers in two", "on one device"},
                {"batch-64", "layers-64", "with the layers in two", "with the batch in two",
                 "layers-against-batch"},
                {"whole-32", "layers-32", "with the layers in two", "on one device", "",
                 "step of 32 rows"}},
               {.as_family = false})
      .timed("batch-64-computing", shares_text(results, "batch", 64))
      .timed("layers-64-computing", shares_text(results, "layers", 64))
      .timed("layers-32-computing", shares_text(results, "layers", 32))
      .untimed("moved",
               fmt::format("In a step of 64 rows devices exchange {} with the batch in two, "
                           "parameters and gradients besides the rows, and {} with the layers in "
                           "two, outputs and their gradients (counted in the program).",
                           text("moved", "batch-64"), text("moved", "layers-64")))
      .untimed(
          "losses",
          fmt::format("The last losses differ from those of one device by a share of {} at most.",
                      share_text(std::max(furthest(0), furthest(3)))))
      .table(model_text(results.at("whole-64").workload()) + " on one device and on two",
             {"case",
              {"batch", "rows"},
              "time",
              {"speed-up", "speed against one device"},
              "computes-each",
              "moved",
              "memory"})
      .phases();
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

Experiment two_splits_experiment() {
  return {"two-splits",
          "A small model in two: its batch or its layers",
          "What is gained, moved and idle if two devices share the rows, or the layers?",
          two_splits_cases,
          two_splits_findings,
          "layers-against-batch *-computing moved losses table phases-plot",
          false};
}

}  // namespace barestep
