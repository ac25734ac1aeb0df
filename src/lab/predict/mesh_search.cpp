#include "lab/predict/mesh_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/units.h"
#include "lab/predict/workload.h"

namespace barestep {
namespace {

/// With 8 micro-batches for each stage, equal stages wait for less than a ninth of a step.
constexpr std::array kMicroBatchesPerStage = {1, 2, 4, 8};

/// The rows of the table.
constexpr std::size_t kShown = 12;

/// The schemes of a cut into tensor ranks and stages, each with its numbers of micro-batches,
/// fewest first. Schemes differ in what copies of the model share.
std::vector<std::vector<Run>> runs_of_cut(Run asked, const MachineCard& card, int ranks,
                                          std::int64_t tensor, std::int64_t pipeline) {
  std::vector<std::vector<Run>> schemes;
  const std::int64_t copies = ranks / (tensor * pipeline);
  ParallelConfig& parallel = asked.config.parallel;
  parallel.tensor = tensor;
  parallel.pipeline = pipeline;
  for (const SchemeKind scheme : kValuesOf<SchemeKind>) {
    if (!has_ranks(scheme) || (copies == 1 && scheme != SchemeKind::kDdp)) continue;
    // Its servers need more memory than ranks of zero1, and their links carry no less.
    if (scheme == SchemeKind::kServer) continue;
    parallel.scheme = scheme;
    std::vector<Run>& runs = schemes.emplace_back();
    const auto add = [&](const Run& run) {
      if (!why_not(run)) runs.push_back(run);
    };
    if (pipeline == 1) {
      Run run = run_on(asked, card, ranks);
      run.config.parallel.schedule = {};
      add(run);
      continue;
    }
    for (const int times : kMicroBatchesPerStage) {
      parallel.micro_batches = times * pipeline;
      if (*parallel.micro_batches * copies <= asked.batch_size()) add(run_on(asked, card, ranks));
    }
  }
  return schemes;
}

/// The fastest candidate that fits and has this property; null if there is none. `all` is sorted.
template <class Property>
const MeshCandidate* fastest_with(const std::vector<MeshCandidate>& all, std::int64_t memory_bytes,
                                  Property has) {
  const auto found = std::ranges::find_if(all, [&](const MeshCandidate& candidate) {
    return candidate.bytes <= memory_bytes && has(candidate);
  });
  return found == all.end() ? nullptr : &*found;
}

/// The candidate with this property that needs least memory.
template <class Property>
const MeshCandidate* smallest_with(const std::vector<MeshCandidate>& all, Property has) {
  const MeshCandidate* smallest = nullptr;
  for (const MeshCandidate& candidate : all) {
    if (has(candidate) && (smallest == nullptr || candidate.bytes < smallest->bytes))
      smallest = &candidate;
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
    {"Sharing only the batch", [](const MeshCandidate& mesh) { return mesh.per_copy() == 1; }},
    {"Sharing every layer",
     [](const MeshCandidate& mesh) { return mesh.parallel().tensor == mesh.run.ranks; }},
    {"A stage on each rank",
     [](const MeshCandidate& mesh) { return mesh.parallel().pipeline == mesh.run.ranks; }},
    {"A mesh of several axes", [](const MeshCandidate& mesh) {
       return (mesh.copies() > 1) + (mesh.parallel().tensor > 1) + (mesh.parallel().pipeline > 1) >
              1;
     }}};

/// A bound of a step with more micro-batches: they only shorten the time in which stages wait for
/// each other.
double least_s(const SimulatedStep& step) {
  double least_s = 0;
  for (const StepAccount& stage : step.stages) {
    least_s = std::max(least_s, stage.wall_s - stage[Part::kOtherStages]);
  }
  return least_s;
}

/// The fastest steps so far of the meshes that fit.
class FastestMeshes {
 public:
  explicit FastestMeshes(std::int64_t memory_bytes) : memory_bytes_(memory_bytes) {}

  void add(const MeshCandidate& candidate) {
    if (candidate.bytes > memory_bytes_) return;
    const double step_s = candidate.step.step_s;
    shown_s_.insert(step_s);
    if (shown_s_.size() > kShown) shown_s_.erase(std::prev(shown_s_.end()));
    for (std::size_t way = 0; way < std::size(kWays); ++way) {
      if (kWays[way].is_way(candidate)) way_s_[way] = std::min(way_s_[way], step_s);
    }
  }

  /// Whether a run that takes `least_s` or more is neither shown nor the best of its way.
  [[nodiscard]] bool has_no_use_for(const Run& run, double least_s) const {
    if (shown_s_.size() < kShown || least_s <= *shown_s_.rbegin()) return false;
    for (std::size_t way = 0; way < std::size(kWays); ++way) {
      if (kWays[way].is_way({.run = run}) && least_s <= way_s_[way]) return false;
    }
    return true;
  }

 private:
  std::int64_t memory_bytes_;
  std::multiset<double> shown_s_;
  std::array<double, std::size(kWays)> way_s_ = [] {
    std::array<double, std::size(kWays)> none{};
    none.fill(std::numeric_limits<double>::infinity());
    return none;
  }();
};

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
  for (const MeshCandidate& candidate : all) {
    if (table.rows.size() == kShown) break;
    const bool fits = candidate.bytes <= memory_bytes;
    const ParallelConfig& parallel = candidate.parallel();
    table.rows.push_back({std::string(name_of(parallel.scheme)), std::to_string(candidate.copies()),
                          std::to_string(parallel.pipeline), std::to_string(parallel.tensor),
                          parallel.micro_batches ? std::to_string(*parallel.micro_batches) : "",
                          fits ? simulated_time(candidate.step.step_s) : "",
                          fits ? waits_text(candidate.step) : "", human_bytes(candidate.bytes),
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
       {"plan", text_of(asked),
        "finds the scheme, the tensor ranks, the stages and the micro-batches itself",
        "leave them out, or use mlp_lab predict"});
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

MeshSearch search_meshes(const Run& asked, const MachineCard& card, int ranks,
                         std::int64_t memory_bytes) {
  require_free_mesh(asked);
  require_machine(asked, card, ranks);
  std::vector<std::vector<Run>> schemes;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      if (ranks % (tensor * pipeline) != 0) continue;
      std::ranges::move(runs_of_cut(asked, card, ranks, tensor, pipeline),
                        std::back_inserter(schemes));
    }
  }
  MeshSearch search;
  FastestMeshes fastest(memory_bytes);
  const auto add = [&](const Run& run, bool bounds_others) -> const MeshCandidate& {
    const RankPrograms programs(run);
    MeshCandidate& added = search.candidates.emplace_back(MeshCandidate{.run = run});
    // The slow rank may have fewer rows than the first.
    const bool has_slow_rank = run.config.injected.slow_rank.has_value();
    added.bytes = has_slow_rank ? max_rank_bytes(run) : programs.max_bytes();
    if (bounds_others || added.bytes <= memory_bytes) {
      added.step = predicted_run(run, card, programs);
    }
    fastest.add(added);
    return added;
  };
  // Those with fewest micro-batches are cheap, and bound the others.
  std::vector<std::pair<std::span<const Run>, double>> rest;
  for (const std::vector<Run>& runs : schemes) {
    if (runs.empty()) continue;
    const MeshCandidate& first = add(runs.front(), false);
    rest.emplace_back(std::span(runs).subspan(1),
                      first.bytes <= memory_bytes ? least_s(first.step) : 0);
  }
  for (auto& [runs, bound_s] : rest) {
    for (const Run& run : runs) {
      if (fastest.has_no_use_for(run, bound_s)) {
        ++search.passed_over;
      } else {
        bound_s = std::max(bound_s, least_s(add(run, &run != &runs.back()).step));
      }
    }
  }
  std::ranges::stable_sort(search.candidates, {}, [&](const MeshCandidate& candidate) {
    const bool fits = candidate.bytes <= memory_bytes;
    return std::tuple(!fits, fits ? candidate.step.step_s : static_cast<double>(candidate.bytes),
                      candidate.bytes);
  });
  return search;
}

Findings best_mesh(const Run& asked, const MachineCard& card, int ranks,
                   std::int64_t memory_bytes) {
  if (ranks == 1) {
    fail(ExitCode::kConfiguration, {"--ranks", "1", "a single rank shares nothing",
                                    "ask for several, or use mlp_lab predict"});
  }
  const MeshSearch search = search_meshes(asked, card, ranks, memory_bytes);
  const std::vector<MeshCandidate>& all = search.candidates;
  if (all.empty()) {
    require(run_on(asked, card, 1));  // refuses what a single rank could not train
    fail(ExitCode::kConfiguration,
         {"--ranks", std::to_string(ranks), "cannot share this model and its batch in any way",
          "ask for fewer, or for a larger --batch-size"});
  }
  const MeshCandidate& best = all.front();
  if (best.bytes > memory_bytes) {
    fail(ExitCode::kMemory, {"--memory", human_bytes(memory_bytes),
                             fmt::format("the least that a rank of {} needs is {}, with {}", ranks,
                                         human_bytes(best.bytes), best.text()),
                             "ask for more --ranks, or for a smaller --batch-size"});
  }
  Findings findings{.tables = {table_of(all, memory_bytes)}};
  const Run one = run_on(asked, card, 1);
  const std::int64_t one_bytes = max_device_bytes(one);
  const std::string beside_one =
      one_bytes > memory_bytes
          ? fmt::format("one would need {} and does not fit", human_bytes(one_bytes))
          : fmt::format("{} as fast as one",
                        simulated_factor(predicted_run(one, card).step_s / best.step.step_s));
  findings.timed.push_back(
      fmt::format("Simulated: {} train fastest as {}: {} a step, with {} of {} for each; {}.",
                  counted(ranks, "rank"), best.text(), simulated_time(best.step.step_s),
                  human_bytes(best.bytes), human_bytes(memory_bytes), beside_one));
  std::ranges::move(reasons(all, memory_bytes), std::back_inserter(findings.timed));
  if (all.size() > kShown) {
    const std::string passed_over =
        search.passed_over == 0
            ? ""
            : fmt::format(
                  ", {} of them not simulated: even without any wait for other stages they "
                  "would be slower than these",
                  search.passed_over);
    findings.timed.push_back(fmt::format("The table shows {} of {}{}.", kShown,
                                         counted(std::ssize(all) + search.passed_over, "candidate"),
                                         passed_over));
  }
  return findings;
}

}  // namespace barestep
