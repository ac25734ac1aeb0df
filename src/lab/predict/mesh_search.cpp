#include "lab/predict/mesh_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/error.h"
#include "core/units.h"
#include "lab/predict/workload.h"

namespace barestep {
namespace {

/// With 8 micro-batches for each stage, equal stages wait for less than a ninth of a step.
constexpr std::array kMicroBatchesPerStage = {1, 2, 4, 8};

/// The rows of the table.
constexpr std::size_t kShown = 12;

/// Those of a cut into tensor ranks and stages: each scheme, with several numbers of micro-batches.
/// Schemes differ in what copies of the model share.
std::vector<Run> runs_of_cut(Run asked, const MachineCard& card, int ranks, std::int64_t tensor,
                             std::int64_t pipeline) {
  std::vector<Run> runs;
  const std::int64_t copies = ranks / (tensor * pipeline);
  ParallelConfig& parallel = asked.config.parallel;
  parallel.tensor = tensor;
  parallel.pipeline = pipeline;
  for (const SchemeKind scheme : kValuesOf<SchemeKind>) {
    if (!has_ranks(scheme) || (copies == 1 && scheme != SchemeKind::kDdp)) continue;
    // Its servers need more memory than ranks of zero1, and their links carry no less.
    if (scheme == SchemeKind::kServer) continue;
    parallel.scheme = scheme;
    if (pipeline == 1) {
      runs.push_back(run_on(asked, card, ranks));
      runs.back().config.parallel.schedule = {};
      continue;
    }
    for (const int times : kMicroBatchesPerStage) {
      parallel.micro_batches = times * pipeline;
      if (*parallel.micro_batches * copies <= asked.batch_size()) {
        runs.push_back(run_on(asked, card, ranks));
      }
    }
  }
  return runs;
}

/// The fastest candidate that fits and has this property; null if there is none. `all` is sorted.
template <class Property>
const MeshCandidate* fastest_with(const std::vector<MeshCandidate>& all, std::int64_t memory_bytes,
                                  Property has) {
  const auto found = std::ranges::find_if(
      all, [&](const MeshCandidate& each) { return each.bytes <= memory_bytes && has(each); });
  return found == all.end() ? nullptr : &*found;
}

/// The candidate with this property that needs least memory.
template <class Property>
const MeshCandidate* smallest_with(const std::vector<MeshCandidate>& all, Property has) {
  const MeshCandidate* smallest = nullptr;
  for (const MeshCandidate& each : all) {
    if (has(each) && (smallest == nullptr || each.bytes < smallest->bytes)) smallest = &each;
  }
  return smallest;
}

std::string waits_text(const SimulatedStep& step) {
  double waits_s = 0;
  for (const StepAccount& stage : step.stages) waits_s += stage.waits_for_others_s();
  waits_s /= static_cast<double>(step.stages.size());
  return fmt::format("{}, {} of the step", simulated_time(waits_s),
                     simulated_percent(waits_s / step.step_s));
}

/// Why another way to share the model is not the best.
std::string comparison_with(const MeshCandidate& best, const MeshCandidate* fastest,
                            const MeshCandidate* smallest, std::string_view way,
                            std::int64_t memory_bytes) {
  if (smallest == nullptr) {
    return fmt::format("{} is refused for this model on {}.", way, counted(best.run.ranks, "rank"));
  }
  if (fastest == nullptr) {
    return fmt::format("{} would not fit: {} of {}, with {}.", way, human_bytes(smallest->bytes),
                       human_bytes(memory_bytes), smallest->text());
  }
  if (fastest == &best) {
    return fmt::format("{} is fastest: its ranks wait {}, and its optimizer takes {}.", way,
                       waits_text(best.step), simulated_time(best.step.account[Part::kOptimizer]));
  }
  return fmt::format(
      "{} ({}) would take {}, {} as long: its ranks wait {}, and its optimizer takes {}.", way,
      fastest->text(), simulated_time(fastest->step.step_s),
      simulated_factor(fastest->step.step_s / best.step.step_s), waits_text(fastest->step),
      simulated_time(fastest->step.account[Part::kOptimizer]));
}

struct WayToShare {
  std::string_view name;
  bool (*is_way)(const MeshCandidate& candidate);
};

constexpr WayToShare kWays[] = {
    {"Sharing only the batch", [](const MeshCandidate& each) { return each.per_copy() == 1; }},
    {"Sharing every layer",
     [](const MeshCandidate& each) { return each.parallel().tensor == each.run.ranks; }},
    {"A stage on each rank",
     [](const MeshCandidate& each) { return each.parallel().pipeline == each.run.ranks; }},
    {"A mesh of several axes", [](const MeshCandidate& each) {
       return (each.copies() > 1) + (each.parallel().tensor > 1) + (each.parallel().pipeline > 1) >
              1;
     }}};

std::vector<std::string> reasons(const std::vector<MeshCandidate>& all, std::int64_t memory_bytes) {
  const MeshCandidate& best = all.front();
  std::vector<std::string> sentences;
  for (const auto& [name, is_way] : kWays) {
    sentences.push_back("Simulated: " +
                        comparison_with(best, fastest_with(all, memory_bytes, is_way),
                                        smallest_with(all, is_way), name, memory_bytes));
  }
  return sentences;
}

FindingTable table_of(const std::vector<MeshCandidate>& all, std::int64_t memory_bytes) {
  FindingTable table{.title = "Simulated: meshes, those that fit and the fastest of them first",
                     .columns = {"scheme", "copies", "stages", "tensor ranks", "micro-batches",
                                 "step time", "waits, of the step", "memory of a rank", "fits"}};
  for (const MeshCandidate& each : all) {
    if (table.rows.size() == kShown) break;
    const bool fits = each.bytes <= memory_bytes;
    const ParallelConfig& parallel = each.parallel();
    table.rows.push_back({std::string(name_of(parallel.scheme)), std::to_string(each.copies()),
                          std::to_string(parallel.pipeline), std::to_string(parallel.tensor),
                          parallel.micro_batches ? std::to_string(*parallel.micro_batches) : "",
                          fits ? simulated_time(each.step.step_s) : "",
                          fits ? waits_text(each.step) : "", human_bytes(each.bytes),
                          fits ? "yes" : "no"});
  }
  return table;
}

/// What the search varies is not given.
void require_free_mesh(const Run& asked) {
  const ParallelConfig& parallel = asked.config.parallel;
  const bool is_free = asked.scheme() == SchemeKind::kDdp && parallel.tensor == 1 &&
                       parallel.pipeline == 1 && !parallel.micro_batches;
  if (is_free) return;
  fail(ExitCode::kConfiguration,
       {.what = "plan",
        .value = text_of(asked),
        .why = "finds the scheme, the tensor ranks, the stages and the micro-batches itself",
        .remedy = "leave them out, or use mlp_lab predict"});
}

}  // namespace

std::string MeshCandidate::text() const {
  const auto micro_batches = parallel().micro_batches;
  std::string text = fmt::format("{}, {}", name_of(parallel().scheme),
                                 copies() == 1 ? "one copy" : fmt::format("{} copies", copies()));
  std::vector<std::string> parts;
  if (parallel().pipeline > 1) parts.push_back(fmt::format("{} stages", parallel().pipeline));
  if (parallel().tensor > 1) parts.push_back(fmt::format("{} tensor ranks", parallel().tensor));
  if (!parts.empty()) text += fmt::format(" on {}", fmt::join(parts, " of "));
  if (!micro_batches) return text;
  return text + fmt::format(", {} with {}", name_of(parallel().schedule),
                            *micro_batches == 1 ? "one micro-batch"
                                                : fmt::format("{} micro-batches", *micro_batches));
}

std::vector<MeshCandidate> mesh_candidates(const Run& asked, const MachineCard& card, int ranks,
                                           std::int64_t memory_bytes) {
  require_free_mesh(asked);
  require_machine(asked, card, ranks);
  std::vector<MeshCandidate> all;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      if (ranks % (tensor * pipeline) != 0) continue;
      for (const Run& run : runs_of_cut(asked, card, ranks, tensor, pipeline)) {
        if (!why_not(run)) all.push_back({.run = run, .bytes = max_rank_bytes(run)});
      }
    }
  }
  for (MeshCandidate& each : all) {
    if (each.bytes <= memory_bytes) each.step = predicted_run(each.run, card);
  }
  std::ranges::stable_sort(all, {}, [&](const MeshCandidate& each) {
    const bool fits = each.bytes <= memory_bytes;
    return std::tuple(!fits, fits ? each.step.step_s : static_cast<double>(each.bytes), each.bytes);
  });
  return all;
}

Findings best_mesh(const Run& asked, const MachineCard& card, int ranks,
                   std::int64_t memory_bytes) {
  if (ranks == 1) {
    fail(ExitCode::kConfiguration, {.what = "--ranks",
                                    .value = "1",
                                    .why = "a single rank shares nothing",
                                    .remedy = "ask for several, or use mlp_lab predict"});
  }
  const std::vector<MeshCandidate> all = mesh_candidates(asked, card, ranks, memory_bytes);
  if (all.empty()) {
    require(run_on(asked, card, 1));  // refuses what a single rank could not train
    fail(ExitCode::kConfiguration, {.what = "--ranks",
                                    .value = std::to_string(ranks),
                                    .why = "cannot share this model and its batch in any way",
                                    .remedy = "ask for fewer, or for a larger --batch-size"});
  }
  const MeshCandidate& best = all.front();
  if (best.bytes > memory_bytes) {
    fail(ExitCode::kMemory, {.what = "--memory",
                             .value = human_bytes(memory_bytes),
                             .why = fmt::format("the least that a rank of {} needs is {}, with {}",
                                                ranks, human_bytes(best.bytes), best.text()),
                             .remedy = "ask for more --ranks, or for a smaller --batch-size"});
  }
  Findings findings{.tables = {table_of(all, memory_bytes)}};
  const Run one = run_on(asked, card, 1);
  const std::int64_t one_bytes = max_device_bytes(one);
  const std::string beside_one =
      one_bytes > memory_bytes
          ? fmt::format("one would need {} and does not fit", human_bytes(one_bytes))
          : fmt::format("{} as fast as one",
                        simulated_factor(predicted_run(one, card).step_s / best.step.step_s));
  findings.sentences.push_back(
      fmt::format("Simulated: {} train fastest as {}: {} a step, with {} of {} for each; {}.",
                  counted(ranks, "rank"), best.text(), simulated_time(best.step.step_s),
                  human_bytes(best.bytes), human_bytes(memory_bytes), beside_one));
  std::ranges::move(reasons(all, memory_bytes), std::back_inserter(findings.sentences));
  if (all.size() > kShown) {
    findings.sentences.push_back(
        fmt::format("The table shows {} of {}.", kShown, counted(std::ssize(all), "candidate")));
  }
  return findings;
}

}  // namespace barestep
