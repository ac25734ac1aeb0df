#include "lab/explain/explain_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "core/error.h"
#include "lab/report/svg.h"
#include "profiler/checklist.h"

namespace barestep {
namespace {

constexpr std::size_t kTableRows = 20;  // of tables of operators and collectives

/// Sums over steps.
struct RankSum {
  std::int64_t steps = 0, wall_ns = 0, waiting_ns = 0, hidden_ns = 0;
  EnumArray<Part, std::int64_t> part_ns{};

  void add(const TracedAccount& account) {
    ++steps;
    wall_ns += account.wall_ns;
    waiting_ns += account.waiting_ns;
    hidden_ns += account.hidden_ns;
    for (const Part part : kValuesOf<Part>) part_ns[part] += account.part_ns[part];
  }
  [[nodiscard]] double step_s(std::int64_t ns) const {
    return ns_seconds(ns) / static_cast<double>(std::max<std::int64_t>(1, steps));
  }
};

RankSum rank_sum(const RunAccount& account, std::optional<std::size_t> rank = std::nullopt) {
  RankSum sum;
  for (const TracedAccount& each : account.accounts) {
    if (!rank || each.rank == *rank) sum.add(each);
  }
  return sum;
}

/// "what of a step": a column of the tables of accounts.
struct AccountColumn {
  std::string name;
  std::function<std::int64_t(const RankSum&)> ns;
};

/// The columns that any account has time in; they add up to the wall time, but for the last.
std::vector<AccountColumn> columns_of(const RunAccount& account) {
  const RankSum all = rank_sum(account);
  std::vector<AccountColumn> columns = {
      {"wall time", [](const RankSum& sum) { return sum.wall_ns; }}};
  for (const Part part : kValuesOf<Part>) {
    if (all.part_ns[part] == 0) continue;
    if (part != Part::kExposedCommunication) {
      columns.push_back(
          {std::string(name_of(part)), [part](const RankSum& sum) { return sum.part_ns[part]; }});
      continue;
    }
    columns.push_back(
        {"waiting for the last rank", [](const RankSum& sum) { return sum.waiting_ns; }});
    columns.push_back({"moving bytes", [](const RankSum& sum) {
                         return sum.part_ns[Part::kExposedCommunication] - sum.waiting_ns;
                       }});
  }
  if (all.hidden_ns > 0) {
    columns.push_back({"hidden communication", [](const RankSum& sum) { return sum.hidden_ns; }});
  }
  return columns;
}

std::string rank_name(const TracedRank& rank) {
  return fmt::format("rank {}", rank.rank);
}

FindingTable mean_table(const TracedRun& run, const RunAccount& account) {
  FindingTable table{.title = "The account of a step, mean of a rank's steps", .columns = {"part"}};
  for (const TracedRank& rank : run.ranks) table.columns.push_back(rank_name(rank));
  for (const AccountColumn& column : columns_of(account)) {
    std::vector<std::string> row = {column.name};
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const RankSum sum = rank_sum(account, rank);
      const std::int64_t ns = column.ns(sum);
      row.push_back(sum.wall_ns == 0 ? "-"
                                     : fmt::format("{} ms, {:.2f} %", milliseconds(sum.step_s(ns)),
                                                   100 * static_cast<double>(ns) /
                                                       static_cast<double>(sum.wall_ns)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

FindingTable step_table_of(const TracedRun& run, const RunAccount& account) {
  FindingTable table{.title = "Every step, in milliseconds", .columns = {"step", "rank"}};
  const std::vector<AccountColumn> columns = columns_of(account);
  for (const AccountColumn& column : columns) table.columns.push_back(column.name);
  for (const TracedAccount& each : account.accounts) {
    RankSum sum;
    sum.add(each);
    std::vector<std::string> row = {std::to_string(each.number),
                                    std::to_string(run.ranks[each.rank].rank)};
    for (const AccountColumn& column : columns) {
      row.push_back(milliseconds(ns_seconds(column.ns(sum))));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// A name of a kernel may have a thousand characters.
std::string cut_name(std::string name) {
  constexpr std::size_t kMaxName = 60;
  if (name.size() <= kMaxName) return name;
  std::size_t end = kMaxName - 3;
  while ((static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // within a character
  return name.substr(0, end) + "...";
}

/// The ops of a rank's steps, the longest first.
FindingTable operator_table_of(const TracedRun& run, std::size_t rank) {
  struct Sum {
    std::int64_t calls = 0, ns = 0;
  };
  const TracedRank& of = run.ranks[rank];
  std::map<std::string, Sum> sums;
  std::int64_t total_ns = 0;
  for (const TracedWork& work : run.works) {
    if (work.rank != rank || !work.step) continue;
    Sum& sum = sums[on_one_line(of.file.names[work.op])];
    if (!work.continues) ++sum.calls;
    sum.ns += work.end_ns - work.begin_ns;
    total_ns += work.end_ns - work.begin_ns;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows,
                           [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  FindingTable table{.title = fmt::format("Operators of {}: time on its lanes", rank_name(of)),
                     .columns = {"operator", "calls", "total", "mean", "share"}};
  for (std::size_t i = 0; i < std::min(kTableRows, rows.size()); ++i) {
    const auto& [name, sum] = rows[i];
    table.rows.push_back({cut_name(name), std::to_string(sum.calls), table_time(ns_seconds(sum.ns)),
                          table_time(ns_seconds(sum.ns) / static_cast<double>(sum.calls)),
                          percent_text(static_cast<double>(sum.ns) /
                                       static_cast<double>(std::max<std::int64_t>(1, total_ns)))});
  }
  if (rows.size() > kTableRows)
    table.title += fmt::format(", the longest {} of {}", kTableRows, rows.size());
  return table;
}

FindingTable waits_table(const TracedRun& run, const RunAccount& account) {
  FindingTable table{.title = "Who waited for whom in exposed communication, a step",
                     .columns = {"waited"}};
  for (const TracedRank& rank : run.ranks) table.columns.push_back("for " + rank_name(rank));
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    std::vector<std::string> row = {rank_name(run.ranks[rank])};
    const RankSum sum = rank_sum(account, rank);
    for (const std::int64_t ns : account.waited_ns[rank]) {
      row.push_back(ns == 0 ? "-" : time_text(sum.step_s(ns)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// In their order; if there are too many for a page, those that were exposed longest.
FindingTable bucket_table(const RunAccount& account) {
  FindingTable table{.title = "Collectives: mean of each",
                     .columns = {"collective", "size", "times", "from entry to end", "moving",
                                 "exposed", "of that waiting", "bus bandwidth"}};
  std::vector<BucketAccount> buckets = account.buckets;
  if (buckets.size() > kTableRows) {
    table.title +=
        fmt::format(", the {} of {} that were exposed longest", kTableRows, buckets.size());
    std::ranges::stable_sort(buckets, std::greater(), &BucketAccount::exposed_ns);
    buckets.resize(kTableRows);
  }
  for (const BucketAccount& each : buckets) {
    const auto mean = [&](std::int64_t ns, std::int64_t count) {
      return time_text(ns_seconds(ns) / static_cast<double>(std::max<std::int64_t>(1, count)));
    };
    const double rate = each.bus_bytes_per_s();
    table.rows.push_back({each.name, each.bytes == 0 ? "-" : human_bytes(each.bytes),
                          std::to_string(each.count), mean(each.duration_ns, each.works),
                          mean(each.moving_ns, each.count), mean(each.exposed_ns, each.works),
                          mean(each.waiting_ns, each.works),
                          rate == 0 ? "-" : fmt::format("{:.2f} GB/s", 1e-9 * rate)});
  }
  return table;
}

FindingTable breakdown_table(const TracedRun& run) {
  FindingTable table{
      .title = "How busy devices were, as HolisticTraceAnalysis counts",
      .columns = {"device", "first to last work", "computes", "only copies or communicates", "idle",
                  "communicates", "of that beside computation"}};
  for (const DeviceBreakdown& each : breakdowns_of(run)) {
    const Breakdown& times = each.breakdown;
    const auto share = [&](double seconds) {
      return fmt::format("{} ms, {:.2f} %", milliseconds(seconds),
                         100 * seconds / std::max(1e-9, times.span_s));
    };
    table.rows.push_back(
        {fmt::format("{}: {}", rank_name(run.ranks[each.rank]), on_one_line(each.device)),
         milliseconds(times.span_s) + " ms", share(times.compute_s), share(times.non_compute_s),
         share(times.idle_s), share(times.communication_s),
         times.overlap ? fmt::format("{:.2f} %", 100 * *times.overlap) : "-"});
  }
  return table;
}

/// What shortens a part of a step.
std::string_view change_for(Part part) {
  switch (part) {
    case Part::kDataWait:
      return "Make input faster than it is consumed: more loading workers, prefetch, less work "
             "for each sample.";
    case Part::kHostToDevice:
      return "Copy input from pinned memory on a stream of its own, a step ahead.";
    case Part::kInjected:
      return "Leave out the injected delay.";
    case Part::kExposedCommunication:
      return "Move fewer bytes (16-bit gradients, fewer ranks in a group), or hide them: smaller "
             "buckets start earlier, a larger batch or accumulation gives more to hide behind.";
    case Part::kOtherDevice:
      return "Divide the batch evenly, or use a process for each device.";
    case Part::kHost:
      return "Queue less or earlier: no .item(), print or synchronization inside the step; fused "
             "or foreach optimizers, torch.compile, CUDA graphs, or a larger batch.";
    case Part::kIdle:
      return "Record what streams wait for (enable_cuda_sync_events of the profiler) to learn "
             "what holds this one.";
    default:
      return "The step computes: a lower precision, fused kernels, or more ranks shorten it.";
  }
}

struct LongestPart {
  Part part = Part::kIdle;
  double share = 0, step_s = 0;
};

LongestPart longest_part_of(const RankSum& sum) {
  const Part part =
      *std::ranges::max_element(kValuesOf<Part>, {}, [&](Part each) { return sum.part_ns[each]; });
  return {part,
          static_cast<double>(sum.part_ns[part]) /
              static_cast<double>(std::max<std::int64_t>(1, sum.wall_ns)),
          sum.step_s(sum.part_ns[part])};
}

/// The sum over all ranks but one.
RankSum others_sum(const RunAccount& account, std::size_t rank) {
  RankSum others;
  for (const TracedAccount& each : account.accounts) {
    if (each.rank != rank) others.add(each);
  }
  return others;
}

/// What a rank does longer than the others, besides communication.
Part excess_of(const RunAccount& account, std::size_t rank, double& excess_s) {
  const RankSum own = rank_sum(account, rank);
  const RankSum others = others_sum(account, rank);
  const auto excess = [&](Part part) {
    return own.step_s(own.part_ns[part]) - others.step_s(others.part_ns[part]);
  };
  Part longest = Part::kIdle;
  for (const Part part : kValuesOf<Part>) {
    if (part == Part::kExposedCommunication) continue;
    if (longest == Part::kIdle || excess(part) > excess(longest)) longest = part;
  }
  excess_s = excess(longest);
  return longest;
}

/// How long the other ranks waited for one.
std::int64_t waited_for(const RunAccount& account, std::size_t rank) {
  std::int64_t ns = 0;
  for (const auto& row : account.waited_ns) ns += row[rank];
  return ns;
}

/// A rank that is late step by step, and why.
struct LateRank {
  std::size_t rank = 0;
  Part longer = Part::kIdle;  // what it does longer than the others
  double excess_s = 0;
};

/// Nothing if the others wait for none during a tenth of their time, or if it waits for them half
/// as long.
std::optional<LateRank> late_rank_of(const RunAccount& account) {
  LateRank late;
  for (std::size_t rank = 1; rank < account.waited_ns.size(); ++rank) {
    if (waited_for(account, rank) > waited_for(account, late.rank)) late.rank = rank;
  }
  const RankSum own = rank_sum(account, late.rank), others = others_sum(account, late.rank);
  const std::int64_t waited_ns = waited_for(account, late.rank);
  const bool is_long = waited_ns > 0 && 10 * waited_ns >= others.wall_ns;
  if (!is_long || others.step_s(waited_ns) < 2 * own.step_s(own.waiting_ns)) return std::nullopt;
  late.longer = excess_of(account, late.rank, late.excess_s);
  return late.excess_s > 0 ? std::optional(late) : std::nullopt;
}

std::string share_text(std::int64_t ns, const RankSum& of) {
  return fmt::format("{:.1f} %", 100 * static_cast<double>(ns) / static_cast<double>(of.wall_ns));
}

/// The bottleneck, and what to change.
std::vector<std::string> trace_verdict(const TracedRun& run, const RunAccount& account) {
  if (const std::optional<LateRank> late = late_rank_of(account)) {
    const RankSum others = others_sum(account, late->rank);
    const std::int64_t waited_ns = waited_for(account, late->rank);
    const std::string name = rank_name(run.ranks[late->rank]);
    return {
        fmt::format("The bottleneck is {}: the others wait {} a step for it, {} of theirs, and it "
                    "spends {} a step more than they do on {}.",
                    name, time_text(others.step_s(waited_ns)), share_text(waited_ns, others),
                    time_text(late->excess_s), traits_of(late->longer).words),
        fmt::format("To change, on {}: {}", name,
                    traits_of(late->longer).computes
                        ? "It computes longer: divide work evenly, and look for other programs on "
                          "its device and for a lower clock rate."
                        : change_for(late->longer))};
  }
  const RankSum all = rank_sum(account);
  const LongestPart longest = longest_part_of(all);
  const bool is_exposed = longest.part == Part::kExposedCommunication;
  if (is_exposed && 2 * all.waiting_ns > all.part_ns[longest.part]) {
    return {fmt::format("The bottleneck is that ranks wait for each other in turns: {} a step, {} "
                        "of it.",
                        time_text(all.step_s(all.waiting_ns)), share_text(all.waiting_ns, all)),
            "To change: Even out what differs from step to step: the size of samples, input, "
            "garbage collection, other programs on a rank's cores."};
  }
  return {fmt::format("The bottleneck is {}: {:.1f} % of a step, {}{}.", name_of(longest.part),
                      100 * longest.share, time_text(longest.step_s), cause_of(longest.part)),
          fmt::format("To change: {}", change_for(longest.part))};
}

/// What of a rank's trace is left out, and why.
void add_gaps_of_rank(const TracedRank& rank, std::vector<std::string>& sentences) {
  const std::string name = rank_name(rank);
  const auto cut = std::ranges::count(rank.steps, true, &RankStep::is_cut);
  const auto empty = std::ranges::count(rank.steps, false, &RankStep::has_account) - cut;
  const auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) sentences.push_back(what);
  };
  add(empty, fmt::format("Of the steps of {}, {} without any work {} left out.", name, empty,
                         empty == 1 ? "is" : "are"));
  add(cut, fmt::format("Of the steps of {}, {} that the profile cut {} left out.", name, cut,
                       cut == 1 ? "is" : "are"));
  add(rank.backlog, fmt::format("The first step of {} begins when the device has done what was "
                                "launched before it: {}.",
                                name, counted(rank.backlog, "kernel")));
  add(rank.start_up_ns, fmt::format("The first step of {} begins at its first launch; {} before it "
                                    "are left out as start-up.",
                                    name, time_text(ns_seconds(rank.start_up_ns))));
  add(rank.overlaps, fmt::format("{} of {} ended after the next of the same stream began; each "
                                 "counts until then.",
                                 counted(rank.overlaps, "kernel"), name));
  add(rank.file.left_out, fmt::format("{} of {} without a time or a duration that can be meant {} "
                                      "left out.",
                                      counted(rank.file.left_out, "event"), name,
                                      rank.file.left_out == 1 ? "is" : "are"));
  add(rank.file.far_apart, fmt::format("{} of {}, a day or more from all others, {} left out.",
                                       counted(rank.file.far_apart, "event"), name,
                                       rank.file.far_apart == 1 ? "is" : "are"));
  add(rank.ends_with_optimizer ? 1 : 0,
      fmt::format("No ProfilerStep in the trace of {}: a step ends with each step of an optimizer, "
                  "so two optimizers make two steps of one. Call step() of the profiler to mark "
                  "them.",
                  name));
}

/// What the traces do not tell, and what takes its place.
std::vector<std::string> gaps_of(const TracedRun& run) {
  std::vector<std::string> sentences;
  std::vector<std::string> no_launch, no_waits, on_host;
  for (const TracedRank& rank : run.ranks) {
    const bool is_ours = rank.file.is_ours && !rank.file.nodes.empty();
    if (is_ours) continue;
    add_gaps_of_rank(rank, sentences);
    if (rank.on_host) {
      on_host.push_back(rank_name(rank));
    } else if (!rank.has_launches) {
      no_launch.push_back(rank_name(rank));
    } else if (!rank.has_stream_waits) {
      no_waits.push_back(rank_name(rank));
    }
    if (rank.shift_ns == 0) continue;
    sentences.push_back(fmt::format(
        "The clock of {} contradicts the first rank's; it was moved by {}{} (within {}).",
        rank_name(rank), rank.shift_ns < 0 ? "-" : "",
        time_text(std::abs(ns_seconds(rank.shift_ns))),
        time_text(ns_seconds(rank.shift_error_ns))));
  }
  if (!on_host.empty()) {
    sentences.push_back(fmt::format(
        "No device in the trace of {}: the account is that of the thread that trains, and its time "
        "between ops is the host's unless a collective ended in it.",
        list_text(on_host)));
  }
  if (!no_launch.empty()) {
    sentences.push_back(fmt::format(
        "No correlated launches in the trace of {}: a late host cannot be told from an idle "
        "device, and all computing counts as forward.",
        list_text(no_launch)));
  }
  if (!no_waits.empty()) {
    sentences.push_back(fmt::format(
        "No waits between streams in the trace of {}: what ended last before a stream went on "
        "counts as what held it.",
        list_text(no_waits)));
  }
  const bool is_partial = std::ranges::any_of(
      run.exchanges, [](const TracedExchange& each) { return !each.last_begin_ns.has_value(); });
  if (is_partial) {
    sentences.push_back(
        "Not every rank's trace is here, so waiting for the last rank counts as moving bytes.");
  }
  return sentences;
}

/// The checklist for benchmarks, as far as the traces tell it. The first step's number says how
/// many came before. PyTorch's profiler counts from where it was started, so its 0 says nothing.
std::string traced_checklist(const TracedRun& run, const RunAccount& account) {
  std::set<std::int64_t> steps;
  for (const TracedAccount& each : account.accounts) steps.insert(each.number);
  Conditions known{.source = "trace", .steps = std::ssize(steps)};
  const bool is_ours =
      std::ranges::all_of(run.ranks, [](const TracedRank& rank) { return rank.file.is_ours; });
  if (is_ours || *steps.begin() > 0) known.warmup_steps = *steps.begin();
  return checklist_line(checklist(known));
}

/// One step of all ranks: the account of each, and its communication.
Plot picture_of(const TracedRun& run, const RunAccount& account) {
  const TracedAccount& chosen = account.accounts[account.accounts.size() / 2];
  Plot plot{.title = fmt::format("Step {} of all ranks", chosen.number),
            .x_label = "ms since the step began",
            .is_timeline = true};
  std::optional<std::int64_t> origin_ns;
  std::vector<std::pair<std::size_t, std::size_t>> shown;  // rank, step
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::vector<RankStep>& steps = run.ranks[rank].steps;
    const auto step = std::ranges::find(steps, chosen.number, &RankStep::number);
    if (step == steps.end()) continue;
    shown.emplace_back(rank, step - steps.begin());
    origin_ns = std::min(origin_ns.value_or(step->wall_begin_ns), step->wall_begin_ns);
  }
  const auto ms = [&](std::int64_t ns) { return 1e3 * ns_seconds(ns - *origin_ns); };
  std::map<Part, PlotSeries> series;
  PlotSeries messages{.name = "communication"};
  for (const auto& [rank, step] : shown) {
    const std::size_t row = plot.categories.size();
    plot.categories.push_back(rank_name(run.ranks[rank]));
    const RankStep& of = run.ranks[rank].steps[step];
    const double least = 1e3 * ns_seconds(of.wall_end_ns - of.wall_begin_ns) / 2000;
    const double begin = ms(of.wall_begin_ns);
    visit_stretches(run, rank, step, [&](const CauseSpan& stretch) {
      std::vector<PlotSpan>& spans = series[stretch.part].spans;
      const double from = begin + 1e3 * stretch.begin_s, to = begin + 1e3 * stretch.end_s;
      const bool joins =
          !spans.empty() && spans.back().row == row && from - spans.back().end < least;
      if (joins) {
        spans.back().end = to;
      } else {
        spans.push_back({row, from, to});
      }
    });
    bool communicates = false;
    for (const TracedWork& work : run.works) {
      if (work.rank != rank || work.step != step || !work.is_collective()) continue;
      if (!communicates) plot.categories.push_back("its messages");
      communicates = true;
      messages.spans.push_back({row + 1, std::max(0.0, ms(work.begin_ns)), ms(work.end_ns)});
    }
  }
  for (auto& [part, each] : series) {
    each.name = std::string(traits_of(part).plot_name());
    plot.series.push_back(std::move(each));
  }
  if (!messages.spans.empty()) plot.series.push_back(std::move(messages));
  return plot;
}

}  // namespace

Findings findings_of(const TracedRun& run, const RunAccount& account) {
  const std::vector<std::string> verdict = trace_verdict(run, account), gaps = gaps_of(run);
  Findings findings{.timed = {verdict.begin(), verdict.end()},
                    .untimed = {gaps.begin(), gaps.end()}};
  findings.tables.push_back(mean_table(run, account));
  findings.tables.push_back(
      operator_table_of(run, late_rank_of(account).value_or(LateRank{}).rank));
  if (run.ranks.size() > 1) findings.tables.push_back(waits_table(run, account));
  if (!account.buckets.empty()) findings.tables.push_back(bucket_table(account));
  FindingTable breakdowns = breakdown_table(run);
  if (!breakdowns.rows.empty()) findings.tables.push_back(std::move(breakdowns));
  findings.tables.push_back(step_table_of(run, account));
  findings.plots.push_back(picture_of(run, account));
  findings.untimed.push_back(traced_checklist(run, account));
  return findings;
}

Findings explained(const TracedRun& run, const RunAccount& account, const std::string& machine) {
  if (account.accounts.empty()) {
    refuse_trace(run.ranks.front().file.path, "has no complete step",
                 "profile at least two steps of a run whose steps overlap");
  }
  Findings findings = findings_of(run, account);
  Findings mlp = mlp_findings(run, account, machine);
  std::ranges::move(mlp.timed, std::back_inserter(findings.timed));
  for (FindingTable& table : mlp.tables) {
    findings.tables.insert(findings.tables.begin() + 1, std::move(table));
  }
  return findings;
}

std::string explained_json(std::vector<TraceFile> files) {
  using nlohmann::json;
  const TracedRun run = run_from(std::move(files));
  const Findings findings = explained(run, account_of(run), "");
  json tables = json::array(), plots = json::array();
  for (const FindingTable& each : findings.tables) {
    tables.push_back({{"title", each.title}, {"columns", each.columns}, {"rows", each.rows}});
  }
  for (const Plot& each : findings.plots) plots.push_back(svg_of(each));
  const std::vector<std::string> sentences = texts_of(findings);
  const json all = {{"sentences", sentences},
                    {"tables", tables},
                    {"plots", plots},
                    {"text", text_of(sentences, findings)}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace barestep
