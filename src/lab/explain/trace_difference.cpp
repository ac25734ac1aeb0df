// Why the steps of one run take longer than those of another: the account of the difference.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/lookup.h"
#include "lab/explain/explain_report.h"

namespace barestep {
namespace {

constexpr std::size_t kPieceRows = 20;

std::string work_name(const TracedRun& run, const TracedWork& work) {
  const TraceFile& file = run.ranks[work.rank].file;
  if (work.is_collective()) return run.collective_of(work).name;
  const std::string &op = file.names[work.op], &kernel = file.names[work.name];
  return op == kernel ? op : fmt::format("{}: {}", op, kernel);
}

/// Sets the wall times that these accounts, without outliers, have.
class WallSums {
 public:
  explicit WallSums(StepPieces& all) : all_(all) {}

  void add(std::int64_t rank, std::int64_t step, double wall_s) {
    all_.wall_s += wall_s;
    all_.ranks[rank] += wall_s;
    all_.steps[step] += wall_s;
    ++of_rank_[rank];
    ++of_step_[step];
    ++count_;
  }
  /// Makes means of the sums, and returns how many accounts there are.
  double finish() {
    all_.wall_s /= std::max(1.0, count_);
    for (auto& [rank, seconds] : all_.ranks) seconds /= of_rank_[rank];
    for (auto& [step, seconds] : all_.steps) seconds /= of_step_[step];
    return count_;
  }

 private:
  StepPieces& all_;
  std::map<std::int64_t, double> of_rank_, of_step_;  // how many accounts
  double count_ = 0;
};

std::string signed_time(double seconds) {
  constexpr double kRounding = 5e-10;  // of sums of nanoseconds
  if (std::abs(seconds) < kRounding) return "0 ms";
  return fmt::format("{}{}", seconds < 0 ? "-" : "+", time_text(std::abs(seconds)));
}

std::vector<std::string> difference_row(std::string name, double a_s, double b_s) {
  return {std::move(name), milliseconds(a_s) + " ms", milliseconds(b_s) + " ms",
          signed_time(b_s - a_s)};
}

/// "new", "gone", "more often: 2 to 4 calls", "slower per call: 1.2 ms to 2.4 ms".
std::string change_of(const StepPiece& a, const StepPiece& b) {
  if (a.seconds == 0) return "new";
  if (b.seconds == 0) return "gone";
  if (a.calls == 0 || b.calls == 0) return "";
  if (std::abs(b.calls - a.calls) > 0.01 * a.calls) {
    return fmt::format("{} often: {} to {} calls", b.calls > a.calls ? "more" : "less",
                       number_text(a.calls), number_text(b.calls));
  }
  const double a_s = a.seconds / a.calls, b_s = b.seconds / b.calls;
  if (std::abs(b_s - a_s) <= 0.01 * a_s) return "";
  return fmt::format("{} per call: {} to {}", b_s > a_s ? "slower" : "faster", time_text(a_s),
                     time_text(b_s));
}

/// The pieces of both, the largest change first.
std::vector<PieceKey> by_change(const StepPieces& a, const StepPieces& b) {
  std::set<PieceKey> keys;
  for (const StepPieces* const side : {&a, &b}) {
    for (const auto& [key, piece] : side->pieces) keys.insert(key);
  }
  std::vector<PieceKey> order(keys.begin(), keys.end());
  std::ranges::stable_sort(order, std::greater(), [&](const PieceKey& key) {
    return std::abs(b.of(key).seconds - a.of(key).seconds);
  });
  return order;
}

FindingTable piece_table(const StepPieces& a, const StepPieces& b,
                         const std::vector<PieceKey>& order) {
  FindingTable table{.title = "The difference by op, kernel, collective and what the host did",
                     .columns = {"of", "A", "B", "B - A", "part", "change"},
                     .on_screen = 10};
  double a_s = 0, b_s = 0;  // of all others
  for (std::size_t i = 0; i < order.size(); ++i) {
    const StepPiece of_a = a.of(order[i]), of_b = b.of(order[i]);
    if (i >= kPieceRows) {
      a_s += of_a.seconds;
      b_s += of_b.seconds;
      continue;
    }
    table.rows.push_back(difference_row(shown_name(order[i].second), of_a.seconds, of_b.seconds));
    table.rows.back().emplace_back(name_of(order[i].first));
    table.rows.back().push_back(change_of(of_a, of_b));
  }
  if (order.size() > kPieceRows) {
    table.rows.push_back(
        difference_row(counted(std::ssize(order) - std::ptrdiff_t{kPieceRows}, "other"), a_s, b_s));
    table.rows.back().resize(table.columns.size());
  }
  return table;
}

FindingTable part_table(const StepPieces& a, const StepPieces& b) {
  FindingTable table{.title = "The difference of a step, mean of all steps and ranks",
                     .columns = {"part", "A", "B", "B - A"}};
  for (const Part part : kValuesOf<Part>) {
    const double a_s = a.seconds_of(part), b_s = b.seconds_of(part);
    if (a_s > 0 || b_s > 0) {
      table.rows.push_back(difference_row(std::string(name_of(part)), a_s, b_s));
    }
  }
  table.rows.push_back(difference_row("wall time", a.wall_s, b.wall_s));
  for (const auto& [rank, a_s] : a.ranks) {
    const auto found = b.ranks.find(rank);
    if (a.ranks.size() < 2 || found == b.ranks.end()) continue;
    table.rows.push_back(difference_row(fmt::format("that of rank {}", rank), a_s, found->second));
  }
  return table;
}

/// A bar for each, of the parts of a step.
Plot difference_plot(const StepPieces& a, const StepPieces& b) {
  Plot plot{.title = "A step of A and of B", .y_label = "ms", .categories = {"A", "B"}};
  for (const Part part : kValuesOf<Part>) {
    const double a_s = a.seconds_of(part), b_s = b.seconds_of(part);
    if (a_s == 0 && b_s == 0) continue;
    plot.series.push_back({.name = std::string(name_of(part)),
                           .points = {plot_point(0, 1e3 * a_s), plot_point(1, 1e3 * b_s)}});
  }
  return plot;
}

}  // namespace

double StepPieces::seconds_of(Part part) const {
  double seconds = 0;
  for (const auto& [key, piece] : pieces) seconds += key.first == part ? piece.seconds : 0;
  return seconds;
}

StepPieces pieces_of(const TracedRun& run, const RunAccount& account) {
  require_steps(run, account);
  StepPieces all;
  WallSums walls(all);
  for (const TracedAccount& step : account.accounts) {
    const TracedRank& rank = run.ranks[step.rank];
    for (const auto& [time, ns] : step.named_ns) {
      all.pieces[{time.part, innermost_name(rank, time)}].seconds += ns_seconds(ns);
    }
    visit_stretches(run, step.rank, step.step, [&](const CauseSpan& stretch) {
      if (has_names(stretch)) return;
      const std::string name =
          stretch.held_by ? work_name(run, run.works[stretch.held_by->run]) : std::string();
      double waits_s = 0;
      if (stretch.part == Part::kExposedCommunication && stretch.held_by) {
        const HostStretch times = times_of(rank.steps[step.step], stretch);
        const TracedExchange* const exchange = run.exchange_of(stretch.held_by->run);
        waits_s = ns_seconds(moving_from(run, stretch.held_by->run, times) - times.begin_ns);
        if (waits_s > 0) {
          all.pieces[{stretch.part, fmt::format("{}: waiting for rank {}", name,
                                                run.ranks[*exchange->last_rank].rank)}]
              .seconds += waits_s;
        }
      }
      all.pieces[{stretch.part, name}].seconds += stretch.seconds() - waits_s;
    });
    for (const std::size_t i : rank.works_of_step[step.step]) {
      const TracedWork& work = run.works[i];
      const bool counts = work.lane == rank.main && !work.continues;
      if (counts) ++all.pieces[{work.part, work_name(run, work)}].calls;
    }
    walls.add(rank.rank, step.number, ns_seconds(step.wall_ns));
  }
  const double count = walls.finish();
  for (auto& [key, piece] : all.pieces) piece = {piece.seconds / count, piece.calls / count};
  if (!account.outliers.empty()) all.outliers = steps_text(run, account);
  const std::optional<LateRank> late = late_rank_of(account);
  if (late) all.late = excess_text(run, account, late->rank);
  return all;
}

EventJson pieces_json(const StepPieces& of) {
  EventJson all = EventJson::array();
  for (const auto& [key, piece] : of.pieces) {
    all.push_back({{"part", name_of(key.first)},
                   {"name", key.second},
                   {"seconds", piece.seconds},
                   {"calls", piece.calls}});
  }
  return all;
}

StepPieces pieces_in(const JsonValue& results) {
  constexpr double kMost = 1e9;
  constexpr std::int64_t kMostNumber = std::int64_t{1} << 53;
  StepPieces all;
  WallSums walls(all);
  for (const JsonValue& account : results.at("accounts").items()) {
    const bool is_outlier = account.at("outlier").boolean();
    if (is_outlier) all.outliers = results.at("answers").texts().at(0);
    if (is_outlier) continue;
    walls.add(account.at("rank").whole(0, kMostNumber), account.at("step").whole(0, kMostNumber),
              account.at("wall_s").number(0, kMost));
  }
  if (walls.finish() == 0) results.refuse("has no account of a step");
  for (const JsonValue& piece : results.at("pieces").items()) {
    const auto part = value_named<Part>(piece.at("part").exact_text());
    if (!part) piece.at("part").refuse("is no part of a step");
    all.pieces[{*part, piece.at("name").exact_text()}] = {piece.at("seconds").number(0, kMost),
                                                          piece.at("calls").number(0, kMost)};
  }
  return all;
}

EventJson difference_json(const StepPieces& a, const StepPieces& b, const TraceDifference& of) {
  EventJson parts = EventJson::array(), pieces = EventJson::array(), ranks = EventJson::array();
  for (const Part part : kValuesOf<Part>) {
    parts.push_back(
        {{"part", name_of(part)}, {"a_s", a.seconds_of(part)}, {"b_s", b.seconds_of(part)}});
  }
  for (const PieceKey& key : by_change(a, b)) {
    const StepPiece of_a = a.of(key), of_b = b.of(key);
    pieces.push_back({{"part", name_of(key.first)},
                      {"name", key.second},
                      {"a_s", of_a.seconds},
                      {"b_s", of_b.seconds},
                      {"a_calls", of_a.calls},
                      {"b_calls", of_b.calls}});
  }
  for (const auto& [rank, a_s] : a.ranks) {
    const auto found = b.ranks.find(rank);
    if (found != b.ranks.end())
      ranks.push_back({{"rank", rank}, {"a_s", a_s}, {"b_s", found->second}});
  }
  const Estimate& ratio = of.steps.ratio;
  const auto end = [&](double value) {
    return ratio.has_interval() ? EventJson(value) : EventJson();
  };
  return {{"a_s", a.wall_s},
          {"b_s", b.wall_s},
          {"word", name_of(of.steps.word)},
          {"ratio", {{"median", ratio.median}, {"low", end(ratio.low)}, {"high", end(ratio.high)}}},
          {"parts", parts},
          {"pieces", pieces},
          {"ranks", ranks}};
}

TraceDifference difference_of(const StepPieces& a, const StepPieces& b) {
  const auto walls = [](const StepPieces& of, const char* key) {
    Series series{.key = key};
    for (const auto& [step, seconds] : of.steps) series.seconds.push_back(seconds);
    return series;
  };
  const std::vector<PieceKey> order = by_change(a, b);
  TraceDifference difference{.steps = compare(walls(a, "A"), walls(b, "B")),
                             .findings = {.tables = {part_table(a, b), piece_table(a, b, order)},
                                          .plots = {difference_plot(a, b)}}};
  const Comparison& steps = difference.steps;
  std::vector<Finding>& sentences = difference.findings.timed;
  sentences.emplace_back(steps.word == Word::kTooFewStarts
                             ? fmt::format("{} of each are too few to call one faster.",
                                           counted(static_cast<std::int64_t>(steps.rounds), "step"))
                             : text_of(steps, "in this run of B", "in that of A"));
  sentences.emplace_back(
      "One run of each, and runs of the same program differ: repeat both before you believe a "
      "small difference.");
  if (a.ranks.size() != b.ranks.size()) {
    sentences.emplace_back(
        fmt::format("A has {} and B {}: means over ranks are not of the same ranks.",
                    counted(std::ssize(a.ranks), "rank"), counted(std::ssize(b.ranks), "rank")));
  }
  const double more_s = b.wall_s - a.wall_s;
  std::string mean = fmt::format("A step of B takes {} and one of A {}, in the mean: {}",
                                 time_text(b.wall_s), time_text(a.wall_s), signed_time(more_s));
  const auto part_s = [&](Part part) {
    return (b.seconds_of(part) - a.seconds_of(part)) * (more_s < 0 ? -1 : 1);
  };
  const Part part = *std::ranges::max_element(kValuesOf<Part>, {}, part_s);
  const auto change_s = [&](const PieceKey& key) { return b.of(key).seconds - a.of(key).seconds; };
  const auto largest = std::ranges::find_if(
      order, [&](const PieceKey& key) { return key.first == part && change_s(key) * more_s > 0; });
  if (largest != order.end()) {
    const std::string change = change_of(a.of(*largest), b.of(*largest));
    mean += fmt::format("; {} of it in {}, most in `{}` ({}{})",
                        signed_time(b.seconds_of(part) - a.seconds_of(part)), traits_of(part).words,
                        shown_name(largest->second), signed_time(change_s(*largest)),
                        change.empty() ? "" : ", " + change);
  }
  sentences.emplace_back(mean + ".");
  if (!b.late.empty()) sentences.emplace_back(fmt::format("In B a rank is late: {}.", b.late));
  for (const auto& [name, side] : {std::pair("A", &a), {"B", &b}}) {
    if (side->outliers.empty()) continue;
    sentences.emplace_back(
        fmt::format("Of {}: {} The longer ones are left out.", name, side->outliers));
  }
  return difference;
}

}  // namespace barestep
