// What slows ranks down: a delay on all of them, one slow rank, buckets of the wrong size.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "lab/experiments/all.h"
#include "lab/predict/plots.h"
#include "lab/report/findings.h"
#include "model/model.h"
#include "parallel/schemes/ddp.h"

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

/// Linear if the second 10 ms cost the same as the first, within a quarter. `without` is the
/// speed-up without a pause.
std::string linear_sentence(const Results& results, const Estimate& without) {
  constexpr double kLinear = 0.25;
  if (side_of(without, 1) == Side::kBelow) {
    return fmt::format("There was no speed-up to lose: without a pause it is {}.",
                       factor_text(without));
  }
  std::vector<std::vector<double>> step_s;
  for (const int delay_ms : {0, 10, 20}) {
    for (const int ranks : {1, compared_with_one(results.setting)}) {
      step_s.push_back(results.at(delay_key(ranks, delay_ms)).mean_s_by_start());
    }
  }
  /// What the pauses from the n-th of these to the next cost in speed-up.
  const auto cost_of = [](std::span<const double> s, std::size_t n) {
    return s[2 * n] / s[2 * n + 1] - s[2 * n + 2] / s[2 * n + 3];
  };
  const Estimate first = estimate_by_round(step_s, [&](auto s) { return cost_of(s, 0); });
  if (side_of(first, 0) != Side::kAbove) {
    return fmt::format("Whether a pause costs speed-up is unclear: the first 10 ms cost {}.",
                       factor_text(first));
  }
  const Estimate second =
      estimate_by_round(step_s, [&](auto s) { return cost_of(s, 1) / cost_of(s, 0); });
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
    measured.points.back().is_hollow = results.at(gain.b).what().beyond_cores;
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
      linear_sentence(results, findings.comparisons.front().speed())};
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

/// A rank waits for the other if its additional communication is more than half of the increase of
/// the step, and more than twice the other's.
std::string waiting_sentence(const Measurement& slow, const Measurement& balanced) {
  const auto more = [&](const std::vector<double>& a, const std::vector<double>& b) {
    return by_round(a, b, std::minus<double>());
  };
  const auto reduce_s = [](const Measurement& each, int rank) {
    return each.phase_s_by_start("communication", rank);
  };
  const std::vector<double> longer_s = more(slow.mean_s_by_start(), balanced.mean_s_by_start());
  const auto waits = [&](int rank) {
    const auto own = more(reduce_s(slow, rank), reduce_s(balanced, rank));
    const auto other = more(reduce_s(slow, 1 - rank), reduce_s(balanced, 1 - rank));
    const auto beyond_half = by_round(own, longer_s, [](double a, double b) { return a - b / 2; });
    const auto beyond_twice = by_round(own, other, [](double a, double b) { return a - 2 * b; });
    return side_of(estimate_of(beyond_half), 0) == Side::kAbove &&
           side_of(estimate_of(beyond_twice), 0) == Side::kAbove;
  };
  const auto change = [&](int rank) {
    return time_text(
        estimate_by_round(reduce_s(slow, rank), reduce_s(balanced, rank), std::minus<double>()));
  };
  const std::string by =
      fmt::format("the pause changes exposed communication by {} on rank 0 and by {} on rank 1",
                  change(0), change(1));
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
                            time_text(each->phase_s("communication", rank))});
    }
  }
  const Estimate longer =
      estimate_by_round(slow.mean_s_by_start(), balanced.mean_s_by_start(), std::minus<double>());
  const Comparison cost = results.compare("balanced", "slow-rank-0");
  return {.sentences =
              {waiting_sentence(slow, balanced),
               sentence_of(cost, fmt::format("with {} ms on one rank of {}", kSlowMs, slow.ranks()),
                           "without"),
               if_certain(longer, fmt::format("Rank 0's step is {} longer.", time_text(longer)))},
          .comparisons = {cost},
          .tables = {table},
          .plots = {ranks_plot(results.cases, {"balanced", "rank 0 slow"})}};
}

constexpr std::string_view kBucketKey = "bucket-";
constexpr std::string_view kPytorchMib = "25";  // with a smaller first bucket
constexpr std::array<std::string_view, 8> kBucketsMib = {"0.25", "1",         "4",   "8",
                                                         "16",   kPytorchMib, "100", "512"};

/// "25", of the case "bucket-25".
std::string mib_of(const Measurement& each) {
  return each.what().key.substr(kBucketKey.size());
}

/// With few layers, every size would cut their gradients alike.
Workload bucket_workload(const Setting& setting, std::string_view mib) {
  constexpr std::int64_t kMinLayers = 6;
  Workload workload = ddp_workload(setting, compared_with_one(setting));
  workload.config.model.depth = std::max(setting.depth, kMinLayers);
  if (mib != kPytorchMib) workload.config.parallel.bucket_mib = std::stod(std::string(mib));
  return workload;
}

/// The sizes that cut the gradients differently; of several that do not, PyTorch's or the smallest.
std::vector<std::string> different_buckets(const Setting& setting) {
  const auto buckets_of = [&](std::string_view mib) {
    const TrainConfig config = bucket_workload(setting, mib).config;
    const ModelSpec model = spec_of(config, DeviceKind::kCpu, nullptr).model;
    return Ddp(ddp_settings_of(config)).buckets(parameters_of(model), {});
  };
  std::vector<std::string> sizes;
  std::vector<std::vector<Bucket>> seen = {buckets_of(kPytorchMib)};
  for (const std::string_view mib : kBucketsMib) {
    const std::vector<Bucket> buckets = buckets_of(mib);
    const bool is_new = std::ranges::find(seen, buckets) == seen.end();
    if (is_new) seen.push_back(buckets);
    if (is_new || mib == kPytorchMib) sizes.emplace_back(mib);
  }
  return sizes;
}

std::vector<Case> bucket_size_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const std::string& mib : different_buckets(setting)) {
    cases.push_back(
        new_case(setting, std::string(kBucketKey) + mib, bucket_workload(setting, mib)));
  }
  return cases;
}

/// Timelines with PyTorch's size, and with the chosen one if it differs.
std::vector<Plot> bucket_timelines(const Results& results, const std::string& chosen) {
  std::vector<Plot> plots;
  for (std::size_t i = 0; i < results.predictions.size(); ++i) {
    const Measurement& each = results.cases[i];
    const std::string mib = mib_of(each);
    if (!results.predictions[i] || (mib != kPytorchMib && mib != chosen)) continue;
    plots.push_back(timeline_plot(
        each.workload(), *results.predictions[i],
        fmt::format("Simulated: a rank's step with buckets of {} MiB; measured, it takes {}", mib,
                    time_text(each.mean_s().median))));
  }
  return plots;
}

/// PyTorch's size compared with the fastest.
std::string default_sentence(const Fastest& fastest, const std::vector<std::string>& names) {
  if (const std::string too_few = too_few_of(fastest.others); !too_few.empty()) {
    return fmt::format("Whether another size is faster than PyTorch's 25 MiB: {}.", too_few);
  }
  if (names[fastest.place] == fmt::format("{} MiB", kPytorchMib)) {
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
  for (const Measurement& each : results.cases) {
    table.rows.push_back({mib_of(each), time_text(each.mean_s()),
                          time_text(each.phase_s("communication")),
                          factor_text(results.compare("bucket-25", each.what().key).ratio)});
    const double mib = std::stod(mib_of(each));
    times.points.push_back(plot_point(mib, each.mean_s(), 1e3));
    exposed.points.push_back(plot_point(mib, 1e3 * each.phase_s("communication")));
    times.points.back().is_hollow = exposed.points.back().is_hollow = each.what().beyond_cores;
    keys.push_back(each.what().key);
    names.push_back(mib_of(each) + " MiB");
  }
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  std::vector<Plot> plots = bucket_timelines(results, mib_of(results.cases[fastest.place]));
  plots.insert(plots.begin(), {.title = "Step time against bucket size",
                               .x_label = "bucket size, MiB",
                               .y_label = "ms",
                               .log_x = true,
                               .series = {times, exposed}});
  Findings findings{.comparisons = fastest.others, .tables = {table}, .plots = std::move(plots)};
  if (keys.size() > 1) {
    findings.sentences = {fastest_sentence(fastest, names), default_sentence(fastest, names)};
  }
  if (keys.size() < kBucketsMib.size()) {
    findings.facts = {
        fmt::format("Of {} MiB, only {} cut the gradients of this model differently; "
                    "the others would be the same program.",
                    fmt::join(kBucketsMib, ", "), list_text(names))};
  }
  return findings;
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
