// What slows ranks down: a delay on all of them, one slow rank, buckets of the wrong size.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/plots.h"

namespace barestep {
namespace {

constexpr int kSlowMs = 20;
const std::vector<int> kDelaysMs = {0, 5, 10, 20};

std::string delay_key(int ranks, int delay_ms) {
  return fmt::format("ranks-{}-delay-{}", ranks, delay_ms);
}

std::vector<Case> delay_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int delay_ms : kDelaysMs) {
    for (const int ranks : {1, compared_with_one(setting)}) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.data.batch_size = setting.scaling_batch_size;
      workload.config.injected.delay_ms = delay_ms;
      cases.push_back(new_case(setting, delay_key(ranks, delay_ms), workload));
    }
  }
  return cases;
}

/// Speed-up with a pause: one rank's step time divided by that of several ranks.
std::vector<double> speed_ups(const Results& results, int delay_ms) {
  const std::string several = delay_key(compared_with_one(results.setting), delay_ms);
  return by_round(results.at(delay_key(1, delay_ms)).mean_s_by_start(),
                  results.at(several).mean_s_by_start(), std::divides<double>());
}

/// Linear if the second 10 ms cost the same as the first, within a quarter.
std::string linear_sentence(const Results& results) {
  constexpr double kLinear = 0.25;
  const std::vector<double> without = speed_ups(results, 0), ten = speed_ups(results, 10),
                            twenty = speed_ups(results, 20);
  const auto first_s = by_round(without, ten, std::minus<double>());
  const Estimate first = estimate_of(first_s);
  if (side_of(estimate_of(without), 1) == Side::kBelow) return "There was no speed-up to lose.";
  if (side_of(first, 0) != Side::kAbove) {
    return fmt::format("Whether a pause costs speed-up is unclear: the first 10 ms cost {}.",
                       factor_text(first));
  }
  const Estimate second = estimate_of(
      by_round(by_round(ten, twenty, std::minus<double>()), first_s, std::divides<double>()));
  const std::string cost =
      fmt::format("the second 10 ms cost {} of what the first cost", percent_text(second));
  if (second.low > 1 - kLinear && second.high < 1 + kLinear) {
    return fmt::format("The loss is linear in the pause: {}.", cost);
  }
  if (second.high < 1 - kLinear || second.low > 1 + kLinear) {
    return fmt::format(
        "The loss is not linear: {}. The pause is serial, so the speed-up, "
        "(T1 + d) / (Tn + d), approaches 1.",
        cost);
  }
  return fmt::format("Whether the loss is linear is unclear: {}.", cost);
}

Findings conclude_delay(const Results& results) {
  std::vector<double> delays, medians;
  Findings findings;
  const int ranks = compared_with_one(results.setting);
  const std::string several = counted(ranks, "rank");
  FindingTable table{.title = fmt::format("Speed-up of {} with a pause before backward, batch {}",
                                          several, results.cases.front().workload().batch_size()),
                     .columns = {"pause", "1 rank", several, "speed-up", "lost"}};
  PlotSeries measured{.name = "measured"};
  PlotSeries line{.name = "line", .style = SeriesStyle::kDashed};
  for (const int delay_ms : kDelaysMs) {
    const Comparison gain = results.compare(delay_key(1, delay_ms), delay_key(ranks, delay_ms));
    delays.push_back(delay_ms);
    medians.push_back(gain.speed().median);
    table.rows.push_back({fmt::format("{} ms", delay_ms), time_text(results.at(gain.a).mean_s()),
                          time_text(results.at(gain.b).mean_s()), factor_text(gain.speed()),
                          factor_text(medians.front() - medians.back())});
    measured.points.push_back(plot_point(delay_ms, gain.speed()));
    findings.comparisons.push_back(gain);
  }
  adjust_together(findings.comparisons);
  const Line fit = fit_line(delays, medians);
  for (const double delay : delays) {
    line.points.push_back(plot_point(delay, fit.intercept + fit.slope * delay));
  }
  findings.sentences = {
      fmt::format("{} are {} as fast as one rank without a pause, {} with 10 ms before backward, "
                  "{} with 20.",
                  several_words(ranks, "rank", true), factor_text(findings.comparisons[0].speed()),
                  factor_text(findings.comparisons[2].speed()),
                  factor_text(findings.comparisons[3].speed())),
      linear_sentence(results)};
  findings.tables = {table};
  findings.plots = {{.title = fmt::format("Speed-up of {} against the pause", several),
                     .x_label = "pause before backward, ms",
                     .y_label = "speed-up",
                     .series = {line, measured}}};
  return findings;
}

std::vector<Case> imbalance_cases(const Setting& setting) {
  Workload slow = ddp_workload(setting, compared_with_one(setting));
  slow.config.injected.slow_rank = SlowRank{.rank = 0, .delay_ms = kSlowMs};
  return {new_case(setting, "balanced", ddp_workload(setting, compared_with_one(setting))),
          new_case(setting, "slow-rank-0", slow)};
}

/// The additional time of a rank in communication if rank 0 is slow, round by round.
std::vector<double> additional_wait_s(const Results& results, int rank) {
  return by_round(results.at("slow-rank-0").phase_s_by_start("reduce", rank),
                  results.at("balanced").phase_s_by_start("reduce", rank), std::minus<double>());
}

/// It as a figure.
std::string additional_wait(const Results& results, int rank) {
  return time_text(estimate_by_round(results.at("slow-rank-0").phase_s_by_start("reduce", rank),
                                     results.at("balanced").phase_s_by_start("reduce", rank),
                                     std::minus<double>()));
}

/// A rank waits for the other if its additional communication is more than half of the increase of
/// the step, and more than twice the other's.
std::string waiting_sentence(const Results& results, const std::vector<double>& longer_s) {
  const std::array more = {additional_wait_s(results, 0), additional_wait_s(results, 1)};
  const auto waits = [&](std::size_t rank) {
    const Estimate of_longer = estimate_of(
        by_round(more.at(rank), longer_s, [](double a, double b) { return a - b / 2; }));
    const Estimate ahead = estimate_of(
        by_round(more.at(rank), more.at(1 - rank), [](double a, double b) { return a - 2 * b; }));
    return side_of(of_longer, 0) == Side::kAbove && side_of(ahead, 0) == Side::kAbove;
  };
  const std::string by =
      fmt::format("the pause changes exposed communication by {} on rank 0 and by {} on rank 1",
                  additional_wait(results, 0), additional_wait(results, 1));
  if (waits(1)) return fmt::format("Rank 1 waits for rank 0: {}.", by);
  if (waits(0)) return fmt::format("Rank 0 waits for rank 1: {}.", by);
  return fmt::format("Whether one rank waits for the other is unclear: {}.", by);
}

Findings conclude_imbalance(const Results& results) {
  const Measurement& balanced = results.at("balanced");
  const Measurement& slow = results.at("slow-rank-0");
  FindingTable table{.title = "Communication that a rank cannot hide: waiting for the others",
                     .columns = {"case", "rank", "mean step", "exposed communication"}};
  for (const Measurement* each : {&balanced, &slow}) {
    for (int rank = 0; rank < each->ranks(); ++rank) {
      table.rows.push_back({each->what().key, std::to_string(rank),
                            time_text(each->mean_s(rank).median),
                            time_text(each->phase_s("reduce", rank))});
    }
  }
  const std::vector<double> slow_s = slow.mean_s_by_start(), even_s = balanced.mean_s_by_start();
  const auto longer_s = by_round(slow_s, even_s, std::minus<double>());
  const Comparison cost = results.compare("balanced", "slow-rank-0");
  return {.sentences =
              {waiting_sentence(results, longer_s),
               sentence_of(cost, fmt::format("with {} ms on one rank of {}", kSlowMs, slow.ranks()),
                           "without"),
               fmt::format("Rank 0's step is {} longer.",
                           time_text(estimate_by_round(slow_s, even_s, std::minus<double>())))},
          .comparisons = {cost},
          .tables = {table},
          .plots = {ranks_plot(results.cases, {"balanced", "rank 0 slow"})}};
}

const std::vector<std::string> kBucketsMib = {"0.25", "1", "4", "25", "100"};
constexpr const char* kUsualMib = "25";  // PyTorch's, with a smaller first bucket

std::vector<Case> bucket_size_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const std::string& mib : kBucketsMib) {
    Workload workload = ddp_workload(setting, compared_with_one(setting));
    if (mib != kUsualMib) workload.config.parallel.bucket_mib = std::stod(mib);
    cases.push_back(new_case(setting, fmt::format("bucket-{}", mib), workload));
  }
  return cases;
}

/// Timelines with PyTorch's size, and with the chosen one if it differs.
std::vector<Plot> bucket_timelines(const Results& results, const std::string& chosen) {
  std::vector<Plot> plots;
  for (std::size_t i = 0; i < results.predictions.size(); ++i) {
    if (!results.predictions[i] || (kBucketsMib[i] != kUsualMib && kBucketsMib[i] != chosen))
      continue;
    const Measurement& each = results.cases[i];
    plots.push_back(timeline_plot(
        each.workload(), *results.predictions[i],
        fmt::format("Simulated: a rank's step with buckets of {} MiB; measured, it takes {}",
                    kBucketsMib[i], time_text(each.mean_s().median))));
  }
  return plots;
}

/// PyTorch's size compared with the fastest.
std::string default_sentence(const Fastest& fastest, const std::vector<std::string>& names) {
  const std::size_t pytorch =
      static_cast<std::size_t>(std::ranges::find(kBucketsMib, kUsualMib) - kBucketsMib.begin());
  if (fastest.place == pytorch) {
    return fastest.is_alone() ? "PyTorch's 25 MiB are the fastest here."
                              : "No other size is measurably faster than PyTorch's 25 MiB.";
  }
  for (const Comparison& each : fastest.others) {
    if (each.b != "bucket-25") continue;
    return sentence_of(each, "with PyTorch's 25 MiB", "with " + names[fastest.place]);
  }
  return "";
}

Findings conclude_bucket_size(const Results& results) {
  std::vector<std::string> keys, names;
  FindingTable table{
      .title = "Bucket size",
      .columns = {"MiB", "mean step", "exposed communication", "time against 25 MiB"}};
  PlotSeries times{.name = "step"}, exposed{.name = "exposed communication"};
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& each = results.cases[i];
    table.rows.push_back({kBucketsMib[i], time_text(each.mean_s()),
                          time_text(each.phase_s("reduce")),
                          factor_text(results.compare("bucket-25", each.what().key).ratio)});
    const double mib = std::stod(kBucketsMib[i]);
    times.points.push_back(plot_point(mib, each.mean_s(), 1e3));
    exposed.points.push_back(plot_point(mib, 1e3 * each.phase_s("reduce")));
    keys.push_back(each.what().key);
    names.push_back(kBucketsMib[i] + " MiB");
  }
  const Fastest fastest = fastest_of(steps_of(results, keys), results.setting.margin);
  std::vector<Plot> plots = bucket_timelines(results, kBucketsMib[fastest.place]);
  plots.insert(plots.begin(), {.title = "Step time against bucket size",
                               .x_label = "bucket size, MiB",
                               .y_label = "ms",
                               .log_x = true,
                               .series = {times, exposed}});
  return {.sentences = {fastest_sentence(fastest, names), default_sentence(fastest, names)},
          .comparisons = fastest.others,
          .tables = {table},
          .plots = std::move(plots)};
}

}  // namespace

Experiment delay_experiment() {
  return {.name = "delay",
          .title = "A pause before backward",
          .question = "Is the loss of speed-up linear in a pause that every rank makes?",
          .cases = delay_cases,
          .conclude = conclude_delay,
          .needs_mpi = true};
}

Experiment imbalance_experiment() {
  return {.name = "imbalance",
          .title = "One slow rank",
          .question = "Rank 0 pauses 20 ms before backward: who waits for whom?",
          .cases = imbalance_cases,
          .conclude = conclude_imbalance,
          .needs_mpi = true};
}

Experiment bucket_size_experiment() {
  return {.name = "bucket-size",
          .title = "Bucket size",
          .question = "Which bucket size is best, and how good is PyTorch's default?",
          .cases = bucket_size_cases,
          .conclude = conclude_bucket_size,
          .needs_mpi = true};
}

}  // namespace barestep
