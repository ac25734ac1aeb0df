// Communication versus computation, by the size of the model and by the size of the batch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

std::string model_key(bool is_large, int ranks) {
  return fmt::format("{}-{}", is_large ? "large" : "small", ranks);
}

std::vector<Case> comm_vs_compute_cases(const Setting& setting) {
  std::vector<Case> cases;
  const std::int64_t dim = setting.quick ? setting.dim : 1024;
  const std::int64_t large = setting.on_gpu ? std::max<std::int64_t>(8192, dim) : 2 * dim;
  for (const bool is_large : {false, true}) {
    for (const int ranks : rank_counts(setting)) {
      cases.push_back(new_case(setting, model_key(is_large, ranks),
                               with(ddp_workload(setting, ranks),
                                    fmt::format("--dim {} --depth {}", is_large ? large : dim,
                                                !is_large       ? 2
                                                : setting.quick ? 4
                                                                : 8))));
    }
  }
  return cases;
}

/// The number of ranks that sentences compare with one: the most within the cores, or the
/// most that were run if only one rank is within them.
int compared_ranks(const Results& results) {
  int max = 0;
  for (const Measurement& measured : results.cases) {
    if (!measured.what().beyond_cores) max = std::max(max, measured.workload().ranks);
  }
  return max > 1 ? max : rank_counts(results.setting).back();
}

/// The part that dominates a step of several ranks, with its share.
std::string dominated_text(const Measurement& measured) {
  const std::vector<double> step_s = measured.mean_s_by_start();
  const std::vector<double> reduce_s = measured.phase_s_by_start("communication");
  const std::vector<double> computing_s = measured.phases_s_by_start(computing_phases());
  const auto rest_s =
      by_round(by_round(step_s, reduce_s, std::minus<double>()), computing_s, std::minus<double>());
  const LargestPart largest = largest_of(
      std::array{PartSeries{"exposed communication", reduce_s},
                 PartSeries{"computing", computing_s}, PartSeries{"what is neither", rest_s}},
      step_s);
  return fmt::format(
      "On {}, {}.", model_text(measured.workload()),
      largest_text(largest, fmt::format("a step of {} ranks", measured.workload().ranks)));
}

/// The speed-up of one comparison as a multiple of another's.
Estimate relative_gain(const Results& results, const Comparison& one, const Comparison& other) {
  const auto step_s = [&](const std::string& key) { return results.at(key).mean_s_by_start(); };
  return estimate_by_round(
      std::array{step_s(one.a), step_s(one.b), step_s(other.a), step_s(other.b)},
      [](std::span<const double> s) { return s[0] / s[1] / (s[2] / s[3]); });
}

Findings comm_vs_compute_findings(const Results& results) {
  const int ranks = compared_ranks(results);
  std::vector<std::string> labels;
  for (const Measurement& measured : results.cases) {
    labels.push_back(
        fmt::format("{}, {}", model_text(measured.workload()), measured.workload().ranks));
  }
  FindingsOf all(results);
  if (ranks == 1) {
    all.untimed("not-compared", "Only one rank was run, so there is no communication.");
  } else {
    const Comparison small = results.compare(model_key(false, 1), model_key(false, ranks));
    const Comparison large = results.compare(model_key(true, 1), model_key(true, ranks));
    all.judge("gains", relative_gain(results, large, small), 1,
              {"Ranks do better on the large model", "Ranks do better on the small model",
               "The gains of ranks on the two models are indistinguishable"},
              fmt::format("{} ranks are {} as fast as one on the small, {} on the large one; "
                          "gradients and computing both grow with the square of the width",
                          ranks, factor_text(small.speed()), factor_text(large.speed())))
        .timed("small", dominated_text(results.at(small.b)))
        .timed("large", dominated_text(results.at(large.b)))
        .keep(std::array{small, large});
  }
  return all
      .table("Ranks by the size of the model", {"model", "ranks", "time", "speed-up",
                                                "communication", "communication-share", "beyond"})
      .phases(labels)
      .simulated(
          {2},
          {"model", "ranks", {"time", "step"}, "speed-up", "communication", "communication-share"});
}

const std::vector<int> kScaledBatches = {32, 64, 128, 256};

std::string scaled_key(int ranks, int batch) {
  return fmt::format("ranks-{}-batch-{}", ranks, batch);
}

std::vector<std::string> scaled_keys(int ranks) {
  std::vector<std::string> keys;
  for (const int batch : kScaledBatches) keys.push_back(scaled_key(ranks, batch));
  return keys;
}

std::vector<Case> batch_scaling_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int batch : kScaledBatches) {
    for (const int ranks : {1, compared_with_one(setting)}) {
      cases.push_back(
          new_case(setting, scaled_key(ranks, batch),
                   with(ddp_workload(setting, ranks), fmt::format("--batch-size {}", batch))));
    }
  }
  return cases;
}

/// The batch from which every comparison is faster.
std::string pays_text(const std::vector<Comparison>& gains, int count) {
  const std::string words = several_words(count, "rank", true);
  if (const std::string too_few = too_few_of(gains); !too_few.empty()) {
    return fmt::format("From which batch on more ranks pay off: {}.", too_few);
  }
  std::size_t first = gains.size();
  while (first > 0 && gains[first - 1].is_faster()) --first;
  if (first == gains.size()) {
    return fmt::format("{} are {} up to a batch of {}.", words,
                       std::ranges::all_of(gains, &Comparison::is_slower)
                           ? "slower than one"
                           : "not measurably faster than one",
                       kScaledBatches.back());
  }
  std::string text = fmt::format("{} pay off from a batch of {} on", words, kScaledBatches[first]);
  if (first == 0) return text + ", the smallest here.";
  const Comparison& before = gains[first - 1];
  return fmt::format("{}; at {} they {}.", text, kScaledBatches[first - 1],
                     before.is_slower() ? "are slower"
                     : before.word == Word::kNoDifference
                         ? "make no difference beyond " + chosen_percent(before.margin - 1)
                         : "may or may not");
}

/// The change in the share of exposed communication from the smallest batch to the largest.
void add_exposed(FindingsOf& all, const Measurement& small, const Measurement& large) {
  const Estimate change = estimate_by_round(
      std::array{large.phase_s_by_start("communication"), large.mean_s_by_start(),
                 small.phase_s_by_start("communication"), small.mean_s_by_start()},
      [](std::span<const double> s) { return s[0] / s[1] - s[2] / s[3]; });
  all.judge(
      "exposed", change, 0,
      {"The share of exposed communication grows", "The share of exposed communication falls",
       "Whether the share of exposed communication changes is unclear"},
      fmt::format("from {} at batch {} to {} at batch {}, while the bytes to reduce stay the same",
                  percent_text(share_of(small, "communication")), small.workload().batch_size(),
                  percent_text(share_of(large, "communication")), large.workload().batch_size()));
}

Findings batch_scaling_findings(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  const std::string several = counted(ranks, "rank");
  // One sentence chooses from these comparisons, so they form one family.
  std::vector<Comparison> gains;
  for (const int batch : kScaledBatches) {
    gains.push_back(results.compare(scaled_key(1, batch), scaled_key(ranks, batch)));
  }
  adjust_together(gains);
  const Comparison &small = gains.front(), &large = gains.back();
  const auto speed_up = [&](const Measurement& measured) {
    return results.compare(scaled_key(1, static_cast<int>(batch_of(measured))), measured.what().key)
        .speed();
  };
  const auto plot = [&](std::string title, std::string name, std::string y_label,
                        std::vector<PlotSeries> series) {
    return Plot{.title = std::move(title),
                .name = std::move(name),
                .x_label = "batch size, all ranks together",
                .y_label = std::move(y_label),
                .log_x = true,
                .series = std::move(series)};
  };
  FindingsOf all(results);
  all.timed("pays", pays_text(gains, ranks))
      .judge("improves", relative_gain(results, large, small), 1,
             {"A larger batch improves scaling", "A larger batch makes scaling worse",
              "Whether a larger batch improves scaling is unclear"},
             fmt::format("{} reach {} at batch {} and {} at batch {}", several,
                         factor_text(small.speed()), kScaledBatches.front(),
                         factor_text(large.speed()), kScaledBatches.back()));
  add_exposed(all, results.at(small.b), results.at(large.b));
  return all.timed("saturation-of-one", saturation_text(results, scaled_keys(1), " of one rank"))
      .timed("saturation",
             saturation_text(results, scaled_keys(ranks), " of " + several_words(ranks, "rank")))
      .keep(gains)
      .table("Ranks by the size of the batch",
             {"batch", "ranks", "time", "speed-up", "communication", "communication-share",
              "samples-per-s"})
      .plot(plot(
          fmt::format("Speed-up of {} against the batch", several), "plot", "speed-up",
          {points_of("speed-up of " + several, results, scaled_keys(ranks), batch_of, speed_up)}))
      .plot(plot("Throughput against the batch", "throughput-plot", "samples/s",
                 {points_of("1 rank", results, scaled_keys(1), batch_of, samples_per_s_of),
                  points_of(several, results, scaled_keys(ranks), batch_of, samples_per_s_of)}));
}

}  // namespace

Experiment comm_vs_compute_experiment() {
  return {"comm-vs-compute",
          "Communication against computing",
          "A small and a large model on 1, 2, 4 ranks: which is dominated by communication?",
          comm_vs_compute_cases,
          comm_vs_compute_findings,
          "gains small large simulated-* not-compared table simulated-table phases-plot",
          false};
}

Experiment batch_scaling_experiment() {
  return {"batch-scaling",
          "The batch at a fixed number of ranks",
          "From which batch on do ranks pay off, and where does throughput saturate?",
          batch_scaling_cases,
          batch_scaling_findings,
          "pays improves exposed saturation-of-one saturation table plot throughput-plot"};
}

}  // namespace barestep
