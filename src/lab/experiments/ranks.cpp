// What slows ranks down: a delay on all of them, a slow one, buckets of a wrong size.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
    for (const int ranks : {1, 2}) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.injected.delay_ms = delay_ms;
      cases.push_back(new_case(setting, delay_key(ranks, delay_ms), workload));
    }
  }
  return cases;
}

Findings conclude_delay(const Results& results) {
  std::vector<double> delays, speed_ups;
  FindingTable table{.title = "Speed-up of 2 ranks with a pause before backward",
                     .columns = {"pause", "1 rank", "2 ranks", "speed-up", "lost"}};
  PlotSeries measured{.name = "measured"};
  PlotSeries line{.name = "line", .style = SeriesStyle::kDashed};
  for (const int delay_ms : kDelaysMs) {
    const Estimate& one = results.at(delay_key(1, delay_ms)).step_s();
    const Estimate& two = results.at(delay_key(2, delay_ms)).step_s();
    const Estimate gain = ratio(one, two);
    delays.push_back(delay_ms);
    speed_ups.push_back(gain.median);
    table.rows.push_back({fmt::format("{} ms", delay_ms), time_text(one), time_text(two),
                          factor_text(gain), factor_text(speed_ups.front() - gain.median)});
    measured.points.push_back(plot_point(delay_ms, gain));
  }
  const Line fit = fit_line(delays, speed_ups);
  for (const double delay : delays) {
    line.points.push_back(plot_point(delay, fit.intercept + fit.slope * delay));
  }
  const double first = speed_ups[0] - speed_ups[2], second = speed_ups[2] - speed_ups[3];
  std::string answer = fmt::format(
      "10 ms before backward take the speed-up of 2 ranks from {} to {}, 10 more to {}. ",
      factor_text(speed_ups[0]), factor_text(speed_ups[2]), factor_text(speed_ups[3]));
  if (speed_ups[0] <= 1 || first <= 0) {
    answer += "There was no speed-up to lose.";
  } else if (std::abs(second - first) < 0.25 * first) {
    answer += fmt::format("The loss is linear in the pause (R2 = {:.3f}).", fit.r_squared);
  } else {
    answer += fmt::format(
        "The loss is not linear: the second 10 ms cost {} of what the first cost, because the "
        "pause "
        "is serial and the speed-up, (T1 + d) / (T2 + d), approaches 1.",
        percent_text(second / first));
  }
  return {.sentences = {answer},
          .tables = {table},
          .plots = {{.title = "Speed-up of 2 ranks against the pause",
                     .x_label = "pause before backward, ms",
                     .y_label = "speed-up",
                     .series = {line, measured}}}};
}

std::vector<Case> imbalance_cases(const Setting& setting) {
  Workload slow = ddp_workload(setting, 2);
  slow.config.injected.slow_rank = SlowRank{.rank = 0, .delay_ms = kSlowMs};
  return {new_case(setting, "balanced", ddp_workload(setting, 2)),
          new_case(setting, "slow-rank-0", slow)};
}

Findings conclude_imbalance(const Results& results) {
  const Measurement& balanced = results.at("balanced");
  const Measurement& slow = results.at("slow-rank-0");
  FindingTable table{.title = "Communication that a rank cannot hide: waiting for the others",
                     .columns = {"case", "rank", "step time", "exposed communication"}};
  for (const Measurement* each : {&balanced, &slow}) {
    for (int rank = 0; rank < each->ranks(); ++rank) {
      table.rows.push_back({each->what().key, std::to_string(rank),
                            time_text(each->step_s_of(rank)),
                            time_text(each->phase_s("reduce", rank))});
    }
  }
  const double others = slow.phase_s("reduce", 1) - balanced.phase_s("reduce", 1);
  const double itself = slow.phase_s("reduce", 0) - balanced.phase_s("reduce", 0);
  const double longer = slow.step_s().median - balanced.step_s().median;
  std::string who;
  if (others > 0.5 * longer && others > 2 * itself) {
    who = fmt::format("Rank 1 waits for rank 0: it is {} longer in communication, rank 0 only {}.",
                      time_text(others), time_text(std::max(0.0, itself)));
  } else if (itself > 0.5 * longer && itself > 2 * others) {
    who = fmt::format("Rank 0 waits for rank 1: it is {} longer in communication, rank 1 only {}.",
                      time_text(itself), time_text(std::max(0.0, others)));
  } else {
    who = fmt::format(
        "Neither rank waits for the other alone: rank 0 is {} longer in "
        "communication, rank 1 {}.",
        time_text(itself), time_text(others));
  }
  return {.sentences = {who, fmt::format("{} ms on one rank of two make every rank's step {} "
                                         "longer: {} instead of {}.",
                                         kSlowMs, time_text(longer), time_text(slow.step_s()),
                                         time_text(balanced.step_s().median))},
          .tables = {table},
          .plots = {account_plot(results.cases, {"balanced", "rank 0 slow"})}};
}

const std::vector<std::string> kBucketsMib = {"0.25", "1", "4", "25", "100"};

std::vector<Case> bucket_size_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const std::string& mib : kBucketsMib) {
    Workload workload = ddp_workload(setting, 2);
    workload.config.parallel.bucket_mib = std::stod(mib);
    cases.push_back(new_case(setting, fmt::format("bucket-{}", mib), workload));
  }
  return cases;
}

/// Of PyTorch's size, and of the chosen one where it is another.
std::vector<Plot> bucket_timelines(const Results& results, const std::string& chosen) {
  std::vector<Plot> plots;
  for (std::size_t i = 0; i < results.predictions.size(); ++i) {
    if (kBucketsMib[i] != "25" && kBucketsMib[i] != chosen) continue;
    const Measurement& each = results.cases[i];
    plots.push_back(timeline_plot(
        each.workload(), results.predictions[i],
        fmt::format("Simulated: a rank's step with buckets of {} MiB; measured, it takes {}",
                    kBucketsMib[i], time_text(each.step_s().median))));
  }
  return plots;
}

Findings conclude_bucket_size(const Results& results) {
  const Measurement& pytorch = results.at("bucket-25");
  const auto best = std::ranges::min_element(
      results.cases, {}, [](const Measurement& each) { return each.step_s().median; });
  FindingTable table{.title = "Bucket size",
                     .columns = {"MiB", "step time", "exposed communication", "against 25 MiB"}};
  PlotSeries times{.name = "step"}, exposed{.name = "exposed communication"};
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& each = results.cases[i];
    table.rows.push_back({kBucketsMib[i], time_text(each.step_s()),
                          time_text(each.phase_s("reduce")),
                          factor_text(ratio(each.step_s(), pytorch.step_s()))});
    const double mib = std::stod(kBucketsMib[i]);
    times.points.push_back(plot_point(mib, each.step_s(), 1e3));
    exposed.points.push_back(plot_point(mib, 1e3 * each.phase_s("reduce")));
  }
  const std::string chosen = best->what().key.substr(7);
  std::string answer;
  if (!differ(best->step_s(), pytorch.step_s())) {
    answer = fmt::format(
        "PyTorch's 25 MiB are as good as any here: {}; the fastest, {} MiB, takes "
        "{}, and the intervals overlap.",
        time_text(pytorch.step_s()), chosen, time_text(best->step_s()));
  } else {
    const double saved = pytorch.phase_s("reduce") - best->phase_s("reduce");
    answer = fmt::format(
        "{} MiB are best: {} against {} with PyTorch's 25 MiB, because {} {} of "
        "communication exposed.",
        chosen, time_text(best->step_s()), time_text(pytorch.step_s()), time_text(std::abs(saved)),
        saved > 0 ? "less are" : "more, but cheaper, are");
  }
  std::vector<Plot> plots = bucket_timelines(results, chosen);
  plots.insert(plots.begin(), {.title = "Step time against bucket size",
                               .x_label = "bucket size, MiB",
                               .y_label = "ms",
                               .log_x = true,
                               .series = {times, exposed}});
  return {.sentences = {answer}, .tables = {table}, .plots = std::move(plots)};
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
