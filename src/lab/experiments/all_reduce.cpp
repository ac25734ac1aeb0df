// All-reduces alone, by size, ranks, transport and algorithm: their time, what the bus carries, and
// the error of the average.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"
#include "lab/predict/machine_card.h"

namespace barestep {
namespace {

enum class Summing { kThreads, kMpi, kNccl };

/// Who adds: threads of one process, Open MPI by one of its algorithms
/// (ompi/mca/coll/tuned/coll_tuned_allreduce_decision.c), or NCCL.
struct WayToSum {
  std::string_view key, words;
  Summing by = Summing::kMpi;
  int algorithm = 0;
  bool is_quick = true;  // also measured with --quick
};

constexpr std::string_view kThreadsWay = "threads", kRingWay = "ring", kStarWay = "star",
                           kChosenWay = "mpi", kNcclWay = "nccl";
constexpr std::array<WayToSum, 7> kWaysToSum = {
    {{kThreadsWay, "threads, each adds a share in rank order", Summing::kThreads},
     {kChosenWay, "Open MPI, its choice"},
     {kRingWay, "Open MPI, ring", Summing::kMpi, 4},
     {"tree", "Open MPI, reduce and broadcast", Summing::kMpi, 2, false},
     {kStarWay, "Open MPI, linear: all to one and back", Summing::kMpi, 1},
     {"doubling", "Open MPI, recursive doubling", Summing::kMpi, 3, false},
     {kNcclWay, "NCCL between GPUs, its choice", Summing::kNccl}}};

/// NCCL's ranks have a GPU each.
std::vector<WayToSum> ways_to_sum(const Setting& setting, int ranks) {
  const bool has_gpus = setting.on_gpu && ranks <= setting.units;
  std::vector<WayToSum> all;
  for (const WayToSum& way : kWaysToSum) {
    if (!way.is_quick && setting.quick) continue;
    if (way.by != Summing::kNccl || has_gpus) all.push_back(way);
  }
  return all;
}

Workload summing_workload(const Setting& setting, const WayToSum& way, int ranks,
                          std::int64_t bytes) {
  Workload workload = ddp_workload(setting, ranks);
  if (way.by == Summing::kThreads) workload.config.parallel.scheme = SchemeKind::kSingle;
  if (way.by == Summing::kNccl) workload.config.parallel.transport = TransportKind::kNccl;
  workload.config.device.device = way.by == Summing::kNccl ? "cuda" : "cpu";
  workload.sum = MeasuredSum{.bytes = bytes, .algorithm = way.algorithm};
  return workload;
}

std::vector<std::int64_t> summed_sizes(const Setting& setting) {
  constexpr std::int64_t kKib = 1 << 10, kMib = 1 << 20;
  if (setting.quick) return {4 * kKib, kMib};
  return {4 * kKib, 64 * kKib, kMib, 8 * kMib, 64 * kMib};
}

std::vector<int> summing_ranks(const Setting& setting) {
  constexpr int kMaxUsualRanks = 4;
  std::vector<int> all;
  for (const int ranks : rank_counts(setting)) {
    if (ranks > 1 && (ranks <= kMaxUsualRanks || !setting.ranks.empty())) all.push_back(ranks);
  }
  return all.empty() ? std::vector{2} : all;
}

std::string sum_key(std::string_view way, int ranks, std::int64_t bytes) {
  return fmt::format("{}-{}-{}", way, ranks, bytes);
}

std::vector<Case> all_reduce_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int ranks : summing_ranks(setting)) {
    for (const std::int64_t bytes : summed_sizes(setting)) {
      for (const WayToSum& way : ways_to_sum(setting, ranks)) {
        cases.push_back(new_case(setting, sum_key(way.key, ranks, bytes),
                                 summing_workload(setting, way, ranks, bytes)));
      }
    }
  }
  return cases;
}

/// What crosses each link of a ring per second.
Estimate summed_rate(const Measurement& measured) {
  const auto bytes = static_cast<double>(measured.workload().sum->bytes);
  return reciprocal(measured.mean_s(),
                    bus_factor(ExchangeKind::kAllReduce, measured.workload().ranks) * bytes);
}

/// Relative to the average in double precision.
double summed_error(const Measurement& measured) {
  return measured.starts().front().ranks.front().loss.front();
}

/// A row for each size and way.
void add_sums_table(FindingsOf& all, const Results& results, int ranks) {
  std::vector<std::string> keys;
  for (const std::int64_t bytes : summed_sizes(results.setting)) {
    for (const WayToSum& way : ways_to_sum(results.setting, ranks)) {
      keys.push_back(sum_key(way.key, ranks, bytes));
    }
  }
  all.table(
      fmt::format("All-reduces of {}", several_words(ranks, "rank")),
      {{"bytes of a rank",
        [](const Measurement& measured) { return human_bytes(measured.workload().sum->bytes); }},
       {"way",
        [](const Measurement& measured) {
          const std::string& key = measured.what().key;
          return std::string(
              std::ranges::find(kWaysToSum, key.substr(0, key.find('-')), &WayToSum::key)->words);
        }},
       {"time", "mean time"},
       {"bus bandwidth",
        [](const Measurement& measured) { return rate_text(summed_rate(measured).median, "B/s"); }},
       {"error of the average",
        [](const Measurement& measured) { return fmt::format("{:.1e}", summed_error(measured)); }}},
      keys, fmt::format("ranks-{}-table", ranks));
}

Plot sums_plot_of_ranks(const Results& results, int ranks) {
  Plot plot{.title = fmt::format("What the bus carries in an all-reduce of {}",
                                 several_words(ranks, "rank")),
            .name = fmt::format("ranks-{}-plot", ranks),
            .x_label = "bytes of a rank",
            .y_label = "GB/s",
            .log_x = true,
            .log_y = true};
  for (const WayToSum& way : ways_to_sum(results.setting, ranks)) {
    std::vector<std::string> keys;
    for (const std::int64_t bytes : summed_sizes(results.setting)) {
      keys.push_back(sum_key(way.key, ranks, bytes));
    }
    const auto bytes = [](const Measurement& measured) {
      return static_cast<double>(measured.workload().sum->bytes);
    };
    plot.series.push_back(points_of(std::string(way.key), results, keys, bytes, summed_rate, 1e-9));
  }
  return plot;
}

/// The largest error of each way over all sizes.
std::string errors_text(const Results& results, int ranks) {
  std::vector<std::string> errors;
  for (const WayToSum& way : ways_to_sum(results.setting, ranks)) {
    double most = 0;
    for (const std::int64_t bytes : summed_sizes(results.setting)) {
      most = std::max(most, summed_error(results.at(sum_key(way.key, ranks, bytes))));
    }
    errors.push_back(fmt::format("{} {:.1e}", way.key, most));
  }
  return fmt::format(
      "The average of {} differs from that in fp64 by at most, relative to it: {}. {}",
      several_words(ranks, "rank"), list_text(errors),
      ranks == 2 ? "With two there is one addition, in any order."
                 : "Who adds first decides how sums are rounded.");
}

/// Ring against star, and threads and NCCL against MPI, for the smallest and the largest message.
void compare_sums(FindingsOf& all, const Results& results, int ranks) {
  const std::vector<std::int64_t> sizes = summed_sizes(results.setting);
  for (const std::int64_t bytes : {sizes.front(), sizes.back()}) {
    const auto key = [&](std::string_view way) { return sum_key(way, ranks, bytes); };
    const std::string of =
        fmt::format("sum of {} among {}", human_bytes(bytes), several_words(ranks, "rank"));
    std::vector<Compared> pairs = {
        {key(kStarWay), key(kRingWay), "in a ring", "in a star", "", of},
        {key(kChosenWay), key(kThreadsWay), "between threads of one process", "by MPI", "", of}};
    if (results.setting.on_gpu) {
      pairs.push_back(
          {key(kChosenWay), key(kNcclWay), "by NCCL between GPUs", "by MPI between cores", "", of});
    }
    all.compare(pairs, {.as_family = false});
  }
}

Findings all_reduce_findings(const Results& results) {
  FindingsOf all(results);
  bool is_within = false;
  for (const int ranks : summing_ranks(results.setting)) {
    if (ranks <= results.setting.units) {
      is_within = true;
      compare_sums(all, results, ranks);
    }
    all.untimed(fmt::format("errors-{}", ranks), errors_text(results, ranks));
    add_sums_table(all, results, ranks);
    all.plot(sums_plot_of_ranks(results, ranks));
  }
  if (!is_within) {
    all.untimed("not-compared",
                fmt::format("There are fewer {} than ranks, so times are not compared.",
                            units_word(results.setting)));
  }
  return all.untimed(
      "method",
      fmt::format("Numbers are fp32 in host memory{}, and MPI adds them in pieces of 1 MiB, as in "
                  "training; the bus carries 2 (n - 1) / n of a rank's bytes in a ring.",
                  results.setting.on_gpu ? ", NCCL's in that of GPUs" : ""));
}

}  // namespace

Experiment all_reduce_experiment() {
  return {"all-reduce",
          "All-reduces by size, ranks and algorithm",
          "How long does an all-reduce take, what does it carry, how exact is it?",
          all_reduce_cases,
          all_reduce_findings,
          "errors-* not-compared method ranks-2-table ranks-2-plot ranks-4-table ranks-4-plot",
          false};
}

}  // namespace barestep
