#include "lab/experiments/calculations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "core/statistics.h"
#include "model/model_spec.h"
#include "profiler/account.h"

namespace barestep {

std::vector<int> rank_counts(const Setting& setting) {
  if (!setting.ranks.empty()) return setting.ranks;
  const int max = setting.on_gpu ? setting.units : std::max(4, setting.units);
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(max, 16); ranks *= 2) counts.push_back(ranks);
  return counts;
}

int compared_with_one(const Setting& setting) {
  const int max = setting.ranks.empty() ? 2 : setting.ranks.back();
  return std::max(max, 2);
}

std::string several_words(int count, std::string_view noun, bool is_first) {
  const std::string number = count != 2 ? std::to_string(count) : is_first ? "Two" : "two";
  return fmt::format("{} {}", number, noun_for(count, noun));
}

std::vector<std::string> keys_of(const Results& results) {
  std::vector<std::string> keys;
  for (const Measurement& measured : results.cases) keys.push_back(measured.what().key);
  return keys;
}

DeviceMemory memory_of(const Measurement& measured) {
  return planned_memory(measured.workload()).front();
}

std::int64_t mean_sent_bytes(const Run& workload) {
  const Mesh mesh = mesh_of(workload);
  const std::int64_t every = workload.config.parallel.sync_every;
  std::int64_t sum = 0;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const WorkloadPrograms programs(workload, rank);
    for (std::int64_t step = 0; step < every; ++step) {
      const Program& program = programs.steps().of({.number = step}, true).program;
      sum += bytes_sent(program, mesh.with_rank(rank));
    }
  }
  return sum / mesh.ranks() / every;
}

std::vector<double> computing_seconds(const Measurement& measured, int device) {
  return op_seconds(measured, [&](const OpTime& op) {
    return op.device == device &&
           std::ranges::find(computing_phases(), op.phase) != computing_phases().end();
  });
}

Estimate computing_share(const Measurement& measured, int device) {
  return ratio_by_round(computing_seconds(measured, device), measured.mean_s_by_start());
}

std::string computing_shares_text(const Measurement& measured) {
  std::vector<std::string> shares;
  for (int device = 0; device < measured.workload().ranks; ++device) {
    shares.push_back(percent_text(computing_share(measured, device).median));
  }
  return fmt::format("{}", fmt::join(shares, ", "));
}

double last_loss(const Measurement& measured) {
  return measured.starts().front().ranks.front().loss.back();
}

namespace {

double relative_difference(double a, double b) {
  return a == b ? 0 : std::abs(a - b) / std::abs(b);
}

/// A doubling with a smaller gain is saturation.
constexpr double kSaturatedGain = 1.1;

}  // namespace

double loss_difference(const Measurement& a, const Measurement& b, std::size_t steps) {
  return loss_difference(a.starts().front(), b.starts().front(), steps);
}

double loss_difference(const Start& a, const Start& b, std::size_t steps) {
  const std::vector<double>&one = a.ranks.front().loss, &other = b.ranks.front().loss;
  double max = 0;
  for (std::size_t i = 0; i < std::min({steps, one.size(), other.size()}); ++i) {
    max = std::max(max, relative_difference(one[i], other[i]));
  }
  return max;
}

double last_loss_difference(std::span<const Measurement> cases, const Measurement& reference) {
  double max = 0;
  for (const Measurement& measured : cases) {
    max = std::max(max, relative_difference(last_loss(measured), last_loss(reference)));
  }
  return max;
}

bool is_rounding(double difference) {
  constexpr double kRounding = 1e-3;  // training magnifies the last bits of a sum
  return difference < kRounding;
}

Estimate waiting_share(const Measurement& measured) {
  constexpr std::array<std::string_view, 4> kWaits = {"tensor_ranks", "other_stages",
                                                      "communication", "other_device"};
  std::vector<double> waits_s(measured.starts().size()), steps_s = waits_s;
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    const std::vector<double> step_s = measured.mean_s_by_start(rank);
    for (std::size_t i = 0; i < step_s.size(); ++i) steps_s[i] += step_s[i];
    for (const std::string_view phase : kWaits) {
      const std::vector<double> phase_s = measured.phase_s_by_start(phase, rank);
      for (std::size_t i = 0; i < phase_s.size(); ++i) waits_s[i] += phase_s[i];
    }
  }
  return ratio_by_round(waits_s, steps_s);
}

double times_the_bytes(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

std::string model_text(std::int64_t dim, std::int64_t depth) {
  return ModelSpec{.widths = std::vector(static_cast<std::size_t>(depth) + 1, dim)}.short_text();
}

std::string model_text(const Workload& workload) {
  const std::vector<std::int64_t>& layers = workload.config.model.layers;
  return layers.empty() ? model_text(workload.dim(), workload.depth())
                        : ModelSpec{.widths = layers}.short_text();
}

std::vector<double> op_seconds(const Measurement& measured,
                               const std::function<bool(const OpTime& op)>& takes) {
  std::vector<double> sums;
  for (const Start& start : measured.starts()) {
    double sum = 0;
    for (const OpTime& op : start.ops) sum += takes(op) ? op.seconds : 0;
    sums.push_back(sum);
  }
  return sums;
}

std::string fastest_text(const Fastest& fastest, const std::vector<std::string>& names,
                         std::string_view what) {
  if (const std::string too_few = too_few_of(fastest.others); !too_few.empty()) {
    return fmt::format("{}: {}.", what, too_few);
  }
  std::vector<std::string> ties;
  for (const std::size_t place : fastest.ties) ties.push_back(names.at(place));
  return fmt::format("{}: {}{}.", what, fastest.is_alone() ? "" : "undecided among ",
                     list_text(ties));
}

// If every doubling from batch B on gains less, the answer is B. The doubling before B may be
// undecided; then the other end of the range is the last batch whose doubling certainly gains more.
std::string saturation_text(const Results& results, const std::vector<std::string>& by_batch,
                            std::string_view whose) {
  std::vector<Estimate> gains;  // in samples per second, from each doubling
  for (std::size_t i = 0; i + 1 < by_batch.size(); ++i) {
    gains.push_back(
        compare(results.samples_of(by_batch[i]), results.samples_of(by_batch[i + 1])).speed());
  }
  const auto side = [&](std::size_t i) { return side_of(gains[i], kSaturatedGain); };
  const auto batch = [&](std::size_t i) { return results.at(by_batch[i]).workload().batch_size(); };
  std::size_t first = gains.size();
  while (first > 0 && side(first - 1) == Word::kBelow) --first;
  if (first == gains.size()) {
    const std::string last =
        fmt::format("the last doubling, to batch {}, gives {} the samples per second",
                    batch(gains.size()), factor_text(gains.back()));
    return side(gains.size() - 1) == Word::kAbove
               ? fmt::format("Throughput{} does not saturate up to batch {}: {}.", whose,
                             batch(gains.size()), last)
               : fmt::format("Whether throughput{} saturates up to batch {} is unclear: {}.", whose,
                             batch(gains.size()), last);
  }
  std::size_t open = first;
  while (open > 0 && side(open - 1) != Word::kAbove) --open;
  const std::string where = open == first
                                ? fmt::format("at batch {}", batch(first))
                                : fmt::format("between batch {} and {}", batch(open), batch(first));
  return fmt::format(
      "Throughput{} saturates {}: doubling batch {} gives {} the samples per second.", whose, where,
      batch(first), factor_text(gains[first]));
}

const Comparison& fastest_gain(const std::vector<Comparison>& all) {
  return *std::ranges::max_element(
      all, {}, [](const Comparison& comparison) { return comparison.speed().median; });
}

std::string claim_text(const std::vector<Comparison>& all, double claimed, std::string_view claim,
                       const std::string& fastest) {
  if (side_of(fastest_gain(all).speed(), claimed) == Word::kAbove) {
    return fmt::format("{} is reached here: {}.", claim, fastest);
  }
  const bool is_below = std::ranges::all_of(all, [=](const Comparison& comparison) {
    return side_of(comparison.speed(), claimed) == Word::kBelow;
  });
  return is_below ? fmt::format("{} is not reached here: at most {}.", claim, fastest)
                  : fmt::format("Whether {}{} is reached here is unclear: {}.",
                                static_cast<char>(std::tolower(claim.front())), claim.substr(1),
                                fastest);
}

std::string share_text(double share) {
  return share == 0 ? "0" : fmt::format("{:.1e}", share);
}

}  // namespace barestep
