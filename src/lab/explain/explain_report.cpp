#include "lab/explain/explain_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/statistics.h"
#include "lab/report/svg.h"
#include "profiler/checklist.h"

namespace barestep {
namespace {

/// How long the other ranks waited for one.
std::int64_t waited_for(const RunAccount& account, std::size_t rank) {
  std::int64_t ns = 0;
  for (const auto& row : account.waited_ns) ns += row[rank];
  return ns;
}

constexpr std::size_t kTableRows = 20;  // of tables of operators and collectives
constexpr std::size_t kRowsOnScreen = 3;
constexpr const char* kToLearn = "To learn what it is";
constexpr const char* kStall = "stalled after every rank had entered";

double share_of(std::int64_t ns, std::int64_t of_ns) {
  return static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(1, of_ns));
}

/// Keeps the first rows, which are the longest.
void shorten(FindingTable& table) {
  if (table.rows.size() <= kTableRows) return;
  table.title += fmt::format(", the longest {} of {}", kTableRows, table.rows.size());
  table.rows.resize(kTableRows);
}

/// "what of a step": a column of the tables of accounts.
struct AccountColumn {
  std::string name;
  std::function<std::int64_t(const RankSum&)> ns;
};

/// The columns that any account has time in; they add up to the wall time, but for the last.
std::vector<AccountColumn> columns_of(const RunAccount& account) {
  const RankSum all = rank_sum(account);
  std::vector<AccountColumn> columns = {{"wall time", &RankSum::wall_ns}};
  for (const Part part : kValuesOf<Part>) {
    if (all.part_ns[part] == 0) continue;
    if (part != Part::kExposedCommunication || account.lacks_ranks) {
      columns.push_back(
          {std::string(name_of(part)), [part](const RankSum& sum) { return sum.part_ns[part]; }});
      continue;
    }
    columns.push_back({std::string(kWaitingForRank), &RankSum::waiting_ns});
    columns.push_back({std::string(kExchanging), &RankSum::moving_ns});
  }
  if (all.hidden_ns > 0) {
    columns.push_back({"hidden communication", &RankSum::hidden_ns});
  }
  return columns;
}

std::string rank_name(const TracedRank& rank) {
  return fmt::format("rank {}", rank.rank);
}

FindingTable mean_table(const TracedRun& run, const RunAccount& account) {
  FindingTable table{.title = "The account of a step, mean of a rank's steps", .columns = {"part"}};
  if (!account.outliers.empty()) table.title += ", without those that take much longer";
  for (const TracedRank& rank : run.ranks) table.columns.push_back(rank_name(rank));
  for (const AccountColumn& column : columns_of(account)) {
    std::vector<std::string> row = {column.name};
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const RankSum sum = rank_sum(account, rank);
      const std::int64_t ns = column.ns(sum);
      row.push_back(sum.wall_ns == 0 ? "-"
                                     : fmt::format("{} ms, {:.2f} %", milliseconds(sum.step_s(ns)),
                                                   100 * share_of(ns, sum.wall_ns)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

FindingTable step_table_of(const TracedRun& run, const RunAccount& account) {
  FindingTable table{
      .title = "Every step, in milliseconds", .columns = {"step", "rank"}, .on_screen = 0};
  const std::vector<AccountColumn> columns = columns_of(account);
  for (const AccountColumn& column : columns) table.columns.push_back(column.name);
  for (const TracedAccount& step : account.all()) {
    RankSum sum;
    sum.add(step);
    std::vector<std::string> row = {std::to_string(step.number),
                                    std::to_string(run.ranks[step.rank].rank)};
    for (const AccountColumn& column : columns) {
      row.push_back(milliseconds(ns_seconds(column.ns(sum))));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

struct OpSum {
  std::int64_t calls = 0, ns = 0;
};

/// The ops of those steps of a rank that the account has: all, or on its main lane those of a part.
std::map<std::string, OpSum> op_sums(const TracedRun& run, const RunAccount& account,
                                     std::size_t rank, std::optional<Part> part = std::nullopt) {
  const TracedRank& of = run.ranks[rank];
  std::map<std::string, OpSum> sums;
  for (const TracedAccount& step : account.accounts) {
    if (step.rank != rank) continue;
    for (const std::size_t i : of.works_of_step[step.step]) {
      const TracedWork& work = run.works[i];
      if (part && (work.part != *part || work.lane != of.main)) continue;
      OpSum& sum = sums[of.file.names[work.op]];
      if (!work.continues) ++sum.calls;
      sum.ns += work.end_ns - work.begin_ns;
    }
  }
  return sums;
}

/// The longest first.
FindingTable operator_table_of(const TracedRun& run, const RunAccount& account, std::size_t rank) {
  const TracedRank& of = run.ranks[rank];
  const std::map<std::string, OpSum> sums = op_sums(run, account, rank);
  std::int64_t total_ns = 0;
  for (const auto& [name, sum] : sums) total_ns += sum.ns;
  std::vector<std::pair<std::string, OpSum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows,
                           [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  FindingTable table{.title = fmt::format("Operators of {}: time on its lanes", rank_name(of)),
                     .columns = {"operator", "calls", "total", "mean", "share"},
                     .on_screen = 0};
  for (const auto& [name, sum] : rows) {
    table.rows.push_back({shown_name(name), std::to_string(sum.calls),
                          table_time(ns_seconds(sum.ns)),
                          table_time(ns_seconds(sum.ns) / static_cast<double>(sum.calls)),
                          percent_text(share_of(sum.ns, total_ns))});
  }
  shorten(table);
  return table;
}

/// What the host did during a part, over all steps of a rank.
struct PartNames {
  std::int64_t ns = 0;
  std::map<std::string, std::int64_t> innermost_ns{};  // add up to it
  std::map<std::string, std::int64_t> covered_ns{};    // by a name, other names within it or not
  std::map<std::string, std::int64_t> ahead_ns{};      // by what came next; add up to it
};

PartNames part_names(const TracedRun& run, const RunAccount& account, std::size_t rank, Part part) {
  PartNames all;
  const TracedNames& names = run.ranks[rank].names;
  for (const TracedAccount& step : account.accounts) {
    if (step.rank != rank) continue;
    for (const auto& [time, ns] : step.named_ns) {
      if (time.part != part) continue;
      const std::vector<std::size_t>& path = names.path(time.path);
      for (const std::size_t i : std::set(path.begin(), path.end())) {
        if (!names_phase(names.name(i))) all.covered_ns[names.name(i)] += ns;
      }
      all.innermost_ns[innermost_name(run.ranks[rank], time)] += ns;
      all.ahead_ns[ahead_text(time)] += ns;
      all.ns += ns;
    }
  }
  return all;
}

/// Of how long something takes in steps: "20.1 ms (18.0 ms to 22.3 ms)", the median and its range.
std::string range_text(const std::vector<double>& seconds, const std::string& between = "") {
  const auto [least, most] = std::ranges::minmax_element(seconds);
  const std::string low = time_text(*least), high = time_text(*most);
  return time_text(median(seconds)) + between +
         (low == high ? ""
                      : fmt::format("{}{} to {}{}", between.empty() ? " (" : ", ", low, high,
                                    between.empty() ? ")" : ""));
}

/// " (20.1 ms of 23.9 ms, 18.0 ms to 22.3 ms)": of those of a rank's steps that have any of it, the
/// medians of it and of the part, and its range.
std::string amount_text(const RunAccount& account, std::size_t rank, Part part,
                        const std::function<std::int64_t(const TracedAccount&)>& amount_ns) {
  std::vector<double> amounts_s, parts_s;
  std::size_t steps = 0;
  for (const TracedAccount& step : account.accounts) {
    if (step.rank != rank) continue;
    ++steps;
    const std::int64_t ns = std::min(amount_ns(step), step.part_ns[part]);
    if (ns == 0) continue;
    amounts_s.push_back(ns_seconds(ns));
    parts_s.push_back(ns_seconds(step.part_ns[part]));
  }
  if (amounts_s.empty()) return "";
  return fmt::format(
      " ({}{})", range_text(amounts_s, " of " + time_text(median(parts_s))),
      amounts_s.size() == steps ? "" : fmt::format(" in {} of {} steps", amounts_s.size(), steps));
}

/// That collectives stalled during most of a part, though no rank came late.
NamedCause stall_in(const RunAccount& account, std::size_t rank, Part part) {
  const RankSum sum = rank_sum(account, rank);
  if (part != Part::kExposedCommunication || 2 * sum.stalled_ns <= sum.part_ns[part]) return {};
  return {kStall, fmt::format(", most of it {}{}, longest in {}", kStall,
                              amount_text(account, rank, part, &TracedAccount::stalled_ns),
                              sum.longest_stall.second)};
}

/// The op or the collective that works longest in a part.
NamedCause cause_at_work(const TracedRun& run, const RunAccount& account, std::size_t rank,
                         Part part) {
  const RankSum sum = rank_sum(account, rank);
  const auto text_of = [&](std::int64_t ns, const std::string& what, const auto& times) {
    if (4 * ns < sum.part_ns[part]) return NamedCause{};
    return NamedCause{"", fmt::format(", {} of it in {}{}",
                                      2 * ns > sum.part_ns[part] ? "most" : "much", what, times())};
  };
  if (traits_of(part).computes) {
    const std::map<std::string, OpSum> sums = op_sums(run, account, rank, part);
    const auto longest =
        std::ranges::max_element(sums, {}, [](const auto& op) { return op.second.ns; });
    if (longest == sums.end()) return {};
    return text_of(longest->second.ns, fmt::format("`{}`", shown_name(longest->first)), [&] {
      return amount_text(account, rank, part, [&](const TracedAccount& step) {
        RunAccount alone{.accounts = {step}};
        return op_sums(run, alone, rank, part)[longest->first].ns;
      });
    });
  }
  if (NamedCause stall = stall_in(account, rank, part); !stall.name.empty()) return stall;
  std::map<std::string, std::int64_t> all;
  for (const BucketAccount& of : account.buckets) {
    if (part != Part::kExposedCommunication || of.name == "message" || of.works == 0) continue;
    all[of.text()] += of.exposed_ns / static_cast<std::int64_t>(run.ranks.size());
  }
  const auto longest =
      std::ranges::max_element(all, {}, [](const auto& bucket) { return bucket.second; });
  if (longest == all.end()) return {};
  const std::int64_t ns = std::min(longest->second, sum.part_ns[part]);
  return text_of(ns, longest->first, [&] {
    return fmt::format(" ({} of {})", time_text(sum.step_s(ns)),
                       time_text(sum.step_s(sum.part_ns[part])));
  });
}

/// By name; they add up to the parts.
FindingTable names_table(const TracedRun& run, const RunAccount& account, std::size_t rank) {
  FindingTable table{
      .title = fmt::format("What the host of {} did meanwhile, a step", rank_name(run.ranks[rank])),
      .columns = {"part", "in", "time", "share of such time"},
      .on_screen = kRowsOnScreen};
  const RankSum sum = rank_sum(account, rank);
  struct Row {
    Part part;
    std::string name;
    std::int64_t ns, of_ns;
  };
  std::vector<Row> rows;
  for (const Part part : kValuesOf<Part>) {
    const PartNames names = part_names(run, account, rank, part);
    for (const auto& [name, ns] : names.innermost_ns) rows.push_back({part, name, ns, names.ns});
  }
  std::ranges::stable_sort(rows, std::greater(), &Row::ns);
  for (const Row& row : rows) {
    table.rows.push_back({std::string(name_of(row.part)), shown_name(row.name),
                          milliseconds(sum.step_s(row.ns)) + " ms",
                          percent_text(share_of(row.ns, row.of_ns))});
  }
  shorten(table);
  return table;
}

FindingTable waits_table(const TracedRun& run, const RunAccount& account) {
  FindingTable table{.title = "Who waited for whom, a step", .columns = {"waited"}};
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
                     .columns = {"collective", "size", "times", "from entry to end", "exchanging",
                                 "exposed", "of that waiting", "bus bandwidth"},
                     .on_screen = kRowsOnScreen};
  std::vector<BucketAccount> buckets = account.buckets;
  if (buckets.size() > kTableRows) {
    table.title +=
        fmt::format(", the {} of {} that were exposed longest", kTableRows, buckets.size());
    std::ranges::stable_sort(buckets, std::greater(), &BucketAccount::exposed_ns);
    buckets.resize(kTableRows);
  }
  for (const BucketAccount& row : buckets) {
    const auto mean = [&](std::int64_t ns, std::int64_t count) {
      return time_text(ns_seconds(ns) / static_cast<double>(std::max<std::int64_t>(1, count)));
    };
    const double rate = row.bus_bytes_per_s();
    table.rows.push_back({row.name, row.bytes == 0 ? "-" : human_bytes(row.bytes),
                          std::to_string(row.count), mean(row.duration_ns, row.works),
                          mean(row.moving_ns, row.count), mean(row.exposed_ns, row.works),
                          mean(row.waiting_ns, row.works),
                          rate == 0    ? "-"
                          : rate < 1e8 ? fmt::format("{:.3g} MB/s", 1e-6 * rate)
                                       : fmt::format("{:.2f} GB/s", 1e-9 * rate)});
  }
  return table;
}

FindingTable breakdown_table(const TracedRun& run) {
  FindingTable table{
      .title = "How busy devices were, as HolisticTraceAnalysis counts",
      .columns = {"device", "first to last work", "computes", "only copies or communicates", "idle",
                  "communicates", "of that beside computation"},
      .on_screen = 0};
  for (const DeviceBreakdown& device : breakdowns_of(run)) {
    const Breakdown& times = device.breakdown;
    const auto share = [&](double seconds) {
      return fmt::format("{} ms, {:.2f} %", milliseconds(seconds),
                         100 * seconds / std::max(1e-9, times.span_s));
    };
    table.rows.push_back(
        {fmt::format("{}: {}", rank_name(run.ranks[device.rank]), on_one_line(device.device)),
         milliseconds(times.span_s) + " ms", share(times.compute_s), share(times.non_compute_s),
         share(times.idle_s), share(times.communication_s),
         times.overlap ? fmt::format("{:.2f} %", 100 * *times.overlap) : "-"});
  }
  return table;
}

/// What shortens time with a name.
std::string change_for_name(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {kStall,
       "Look at the link between the ranks, and for other programs on their machines; no rank "
       "came late."},
      {kCompilation,
       "Compile once: give inputs few shapes, or mark_dynamic() what changes; "
       "TORCH_LOGS=recompiles "
       "says why it compiles again."},
      {"enumerate(DataLoader)",
       "Make input faster than it is consumed: more loading workers, prefetch, less work for each "
       "sample."},
      {"Synchronize", "Wait for the device less often: keep the value on it, and read it later."},
      {"Launch",
       "Launch less often: CUDA graphs, torch.compile, fused kernels, or a larger batch."},
      {"Memcpy", "Copy from and to pinned memory, with non_blocking=True, and read results later."},
      {"Malloc",
       "Allocate before the steps, and keep shapes: the allocator asked the device again."},
      {"Free", "Leave the allocator memory to spare: it gave some back to the device."}};
  for (const auto& [part, change] : kChanges) {
    if (name.find(part) != name.npos) return std::string(change);
  }
  const auto colons = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
  const bool is_op = colons != name.npos && name.substr(colons).starts_with("::");
  if (name.starts_with("CompiledFunction")) {
    return "Launch less often: CUDA graphs (torch.compile with mode=\"reduce-overhead\"), or a "
           "larger batch.";
  }
  if (is_op) {
    return fmt::format(
        "Call `{}` less often, or with less work of the host: torch.compile, fused "
        "or foreach ops, or a larger batch.",
        shown_name(name));
  }
  return fmt::format("Make `{}` shorter or rarer, or let another thread or process do it.",
                     shown_name(name));
}

/// Each by itself: a cause may be part of another one.
FindingTable fixes_table(const std::vector<TracedFix>& fixes, double step_s) {
  FindingTable table{
      .title = "What a step would gain without a cause, each by itself; they overlap",
      .columns = {"without", "gain", "of a step"},
      .on_screen = kRowsOnScreen};
  for (const TracedFix& fix : fixes) {
    table.rows.push_back(
        {shown_name(fix.name), time_text(fix.gain_s), percent_text(fix.gain_s.median / step_s)});
  }
  return table;
}

/// By what the optimizer does already.
std::string_view change_of_optimizer(const TraceFile& file) {
  const auto has = [&](std::string_view what) {
    return std::ranges::any_of(
        file.names, [&](const std::string& name) { return name.find(what) != name.npos; });
  };
  if (has("Optimizer.step#LBFGS")) return "Let LBFGS do less: a smaller max_iter or history_size.";
  if (has("::_fused_")) return "Compile the optimizer's step, or update less often.";
  if (has("::_foreach_")) return "Take the optimizer's fused=True, or compile its step.";
  return "Take a fused or foreach optimizer, or compile its step.";
}

/// What shortens a part of a step, with the name of what the host did most of that time.
std::string change_for(Part part, const std::string& name, bool on_host, const TraceFile& file) {
  constexpr std::pair<Part, std::string_view> kChanges[] = {
      {Part::kHostToDevice, "Copy input from pinned memory on a stream of its own, a step ahead."},
      {Part::kInjected, "Leave out the injected delay."},
      {Part::kExposedCommunication,
       "Move fewer bytes (16-bit gradients, fewer ranks in a group), or hide them: smaller buckets "
       "start earlier, a larger batch or accumulation gives more to hide behind."},
      {Part::kOtherDevice, "Divide the batch evenly, or use a process for each device."},
      {Part::kTensorRanks, "Share layers among fewer ranks, or take a larger batch."},
      {Part::kEvaluation, "Evaluate less often, on fewer samples, or in larger batches."},
      {Part::kVerification, "Give --verify-every a larger number."},
      {Part::kHost,
       "Queue less: fused or foreach optimizers, torch.compile, CUDA graphs, or a larger batch."},
      {Part::kIdle, "Look for other programs on the machine."}};
  if (part == Part::kOptimizer || name.find("Optimizer.") != name.npos) {
    return std::string(change_of_optimizer(file));
  }
  if (part == Part::kDataWait) {
    const bool is_loader = name.empty() || name.starts_with("enumerate(DataLoader)");
    return (is_loader ? "" : fmt::format("Make `{}` shorter. ", shown_name(name))) +
           change_for_name("enumerate(DataLoader)");
  }
  if (!name.empty() && part != Part::kIdle) return change_for_name(name);
  if (part == Part::kHost && on_host) {
    return "Do less beside the ops: fused or foreach optimizers, torch.compile, or a larger batch "
           "for each step.";
  }
  const auto* const change =
      std::ranges::find(kChanges, part, &std::pair<Part, std::string_view>::first);
  if (change != std::end(kChanges)) return std::string(change->second);
  return "Take a lower precision or fused kernels (torch.compile), where the step has none yet.";
}

std::string share_text(std::int64_t ns, const RankSum& of) {
  return fmt::format("{:.1f} %", 100 * share_of(ns, of.wall_ns));
}

/// Whether calls that load the device's libraries take a quarter of a rank's only step.
bool is_start_up(const TracedRank& rank, const RankSum& sum) {
  constexpr std::int64_t kLongNs = 100'000'000;
  std::int64_t ns = 0;
  for (const TraceEvent& event : rank.file.events) {
    const bool is_long =
        event.kind == TraceEvent::Kind::kCall && event.end_ns - event.begin_ns > kLongNs;
    if (is_long) ns += event.end_ns - event.begin_ns;
  }
  return sum.steps == 1 && 4 * ns > sum.wall_ns;
}

/// How to record what would name time of the host.
std::string recording_text(const TracedRank& rank) {
  return fmt::format(
      "{}put record_function(\"...\") around what may take it.",
      rank.file.has_stacks ? "" : "profile with_stack=True for the functions of Python, or ");
}

/// Whether nothing covers most of a rank's time in a part.
bool is_unnamed(const TracedRun& run, const RunAccount& account, std::size_t rank, Part part) {
  const PartNames names = part_names(run, account, rank, part);
  std::int64_t named_ns = 0;
  for (const auto& [name, ns] : names.innermost_ns) {
    named_ns += names.covered_ns.contains(name) ? ns : 0;
  }
  return !run.ranks[rank].file.is_ours && names.ns > 0 && 2 * named_ns < names.ns;
}

/// Whether it is work that is not known to evaluate.
bool is_unknown(const TracedRank& rank, Part part) {
  return part == Part::kEvaluation && !rank.evaluates;
}

/// What to change about a part on a rank; where nothing tells, what to record.
std::string advice_for(const TracedRun& run, const RunAccount& account, std::size_t rank,
                       Part part) {
  const TracedRank& of = run.ranks[rank];
  const std::string on = run.ranks.size() > 1 && !is_exchange(part) ? ", on " + rank_name(of) : "";
  if (is_unnamed(run, account, rank, part) && (part != Part::kIdle || of.on_host)) {
    return fmt::format("{}{}: {}", kToLearn, on, recording_text(of));
  }
  if (part == Part::kHost && is_start_up(of, rank_sum(account, rank))) {
    return "To see more than start-up, which loads CUDA and its libraries: profile a later step.";
  }
  if (part == Part::kIdle && !of.on_host && !of.has_stream_waits && !of.file.is_ours) {
    return fmt::format(
        "To learn what the stream waits for{}: profile with enable_cuda_sync_events.", on);
  }
  if (is_unknown(of, part)) return "To change: Do it less often, or in another process.";
  if (part == Part::kExposedCommunication && account.lacks_ranks) {
    return "To learn which rank is late, or whether bytes take long: give the traces of all ranks.";
  }
  return fmt::format(
      "To change{}: {}", on,
      change_for(part, cause_in(run, account, rank, part).name, of.on_host, of.file));
}

std::vector<std::string> late_verdict(const TracedRun& run, const RunAccount& account) {
  const LateRank late = late_rank_of(account).value();
  const RankSum others = others_sum(account, late.rank);
  const std::int64_t waited_ns = waited_for(account, late.rank);
  const std::string name = rank_name(run.ranks[late.rank]);
  return {
      fmt::format("The bottleneck is {}: the others wait {} a step for it, {} of theirs, and it "
                  "spends {} a step more than they do on {}{}.",
                  name, time_text(others.step_s(waited_ns)), share_text(waited_ns, others),
                  time_text(late.excess_s), traits_of(late.longer).words,
                  cause_in(run, account, late.rank, late.longer).text),
      traits_of(late.longer).computes
          ? fmt::format("To change, on {}: Divide work evenly, and look for other programs on its "
                        "device and for a lower clock rate.",
                        name)
          : advice_for(run, account, late.rank, late.longer)};
}

/// Names the stage that the others wait for most, and what it does longer.
std::vector<std::string> bubble_verdict(const TracedRun& run, const RunAccount& account) {
  const RankSum all = rank_sum(account);
  std::size_t rank = 0;
  for (std::size_t other = 1; other < run.ranks.size(); ++other) {
    if (waited_for(account, other) > waited_for(account, rank)) rank = other;
  }
  const std::int64_t bubble_ns = all.part_ns[Part::kOtherStages];
  std::string text = fmt::format("The bottleneck is the bubble of the pipeline: {} of a step, {}",
                                 share_text(bubble_ns, all), time_text(all.step_s(bubble_ns)));
  const char* const change =
      "To change: Even out the stages, or use more micro-batches: a bubble takes 1 / micro-batches "
      "of a step for each further stage.";
  double excess_s = 0;
  const Part longer =
      excess_of(rank_sum(account, rank), others_sum(account, rank), false, excess_s);
  if (waited_for(account, rank) == 0) return {text + ".", change};
  text += ", most of it for " + rank_name(run.ranks[rank]);
  if (10 * excess_s < all.step_s(bubble_ns)) return {text + ".", change};
  return {fmt::format("{}, which spends {} a step more than the other stages on {}{}.", text,
                      time_text(excess_s), traits_of(longer).words,
                      cause_in(run, account, rank, longer).text),
          traits_of(longer).computes ? change : advice_for(run, account, rank, longer)};
}

/// Of the rank that has most of a part.
std::vector<std::string> part_verdict(const TracedRun& run, const RunAccount& account, Part part) {
  const RankSum all = rank_sum(account);
  const std::size_t rank = rank_with_most(account, part);
  const NamedCause cause = cause_in(run, account, rank, part);
  std::map<std::int64_t, RankSum> steps;
  for (const TracedAccount& step : account.accounts) steps[step.number].add(step);
  std::vector<double> amounts_s;  // of steps that have any
  for (const auto& [number, sum] : steps) {
    if (sum.part_ns[part] > 0) amounts_s.push_back(sum.step_s(sum.part_ns[part]));
  }
  return {fmt::format("The bottleneck is {}: {} of a step, {}{}{}.",
                      is_unknown(run.ranks[rank], part)
                          ? "work after the update that autograd does not record"
                          : subject_of(part),
                      share_text(all.part_ns[part], all), range_text(amounts_s),
                      amounts_s.size() == steps.size()
                          ? ""
                          : fmt::format(" in {} of {} steps", amounts_s.size(), steps.size()),
                      !cause.text.empty()                              ? cause.text
                      : part == Part::kHost && run.ranks[rank].on_host ? ": Python between ops"
                                                                       : cause_of(part)),
          advice_for(run, account, rank, part)};
}

/// The bottleneck, and what to change: of the first cause, or of work that takes longer.
std::vector<std::string> trace_verdict(const TracedRun& run, const RunAccount& account,
                                       const std::vector<TracedFix>& fixes) {
  for (const TracedRank& rank : run.ranks) {
    if (!rank.lacks_kernels()) continue;
    return {
        fmt::format("The trace of {} has no kernel for {} of its {}, so it tells no bottleneck: "
                    "what its device did is missing.",
                    rank_name(rank), rank.lost_launches, counted(rank.launches, "launch")),
        "To record it: start the profiler before a CUDA graph is captured, or run without "
        "graphs, and let no other tool profile the device meanwhile."};
  }
  const RankSum all = rank_sum(account);
  const Part work = *std::ranges::max_element(kValuesOf<Part>, {}, [&](Part part) {
    return traits_of(part).computes ? all.part_ns[part] : -1;
  });
  const TracedFix first = fixes.empty() ? TracedFix{.part = work} : fixes.front();
  using Kind = TracedFix::Kind;
  if (first.kind == Kind::kLateRank) return late_verdict(run, account);
  const double first_s = std::max(first.gain_s.median, all.step_s(all.part_ns[first.part]));
  if (all.step_s(all.part_ns[work]) > first_s) {
    std::vector<std::string> sentences = part_verdict(run, account, work);
    sentences[1] += fmt::format(" Without {} a step would gain {}.", shown_name(first.name),
                                time_text(first.gain_s.median));
    return sentences;
  }
  if (first.kind == Kind::kBubble) return bubble_verdict(run, account);
  if (first.kind != Kind::kTurns) return part_verdict(run, account, first.part);
  return {fmt::format("The bottleneck is that ranks wait for each other in turns: {} a step, {} "
                      "of it.",
                      time_text(all.step_s(all.waiting_ns)), share_text(all.waiting_ns, all)),
          "To change: Even out what differs from step to step: the size of samples, input, "
          "garbage collection, other programs on a rank's cores."};
}

/// What takes longer in an outlier than in the usual steps, and where.
std::string cause_of_outlier(const TracedRun& run, const RunAccount& account, std::int64_t number) {
  RunAccount outliers;
  std::ranges::copy_if(account.outliers, std::back_inserter(outliers.accounts),
                       [&](const TracedAccount& step) { return step.number == number; });
  LateRank late{.excess_s = -1};
  const auto look_at = [&](std::size_t rank, bool in_exchanges) {
    LateRank found{.rank = rank};
    const RankSum own = rank_sum(outliers, rank);
    found.longer = excess_of(own, rank_sum(account, rank), in_exchanges, found.excess_s);
    if (own.steps > 0 && found.excess_s > late.excess_s) late = found;
  };
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) look_at(rank, false);
  const RankSum of_outliers = rank_sum(outliers), usual = rank_sum(account);
  const double more_s = of_outliers.step_s(of_outliers.wall_ns) - usual.step_s(usual.wall_ns);
  if (2 * late.excess_s < more_s) look_at(0, true);
  return fmt::format("{}{}{}", name_of(late.longer),
                     run.ranks.size() > 1 && !is_exchange(late.longer)
                         ? " of " + rank_name(run.ranks[late.rank])
                         : "",
                     cause_in(run, outliers, late.rank, late.longer).text);
}

/// The bubble of a pipeline; empty without one.
std::string bubble_text(const TracedRun& run, const RunAccount& account) {
  std::vector<std::string> stages;
  std::int64_t all_ns = 0;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankSum sum = rank_sum(account, rank);
    if (sum.steps == 0) continue;
    const std::int64_t ns = sum.part_ns[Part::kOtherStages];
    all_ns += ns;
    stages.push_back(fmt::format("{} on {}", share_text(ns, sum), rank_name(run.ranks[rank])));
  }
  if (all_ns == 0) return "";
  return fmt::format(
      "The ranks are stages of a pipeline; its bubble, in which a stage waits for "
      "the others, is {} of a step.",
      list_text(stages));
}

/// What of a rank's trace is left out, and why.
void add_gaps_of_rank(const TracedRank& rank, std::vector<std::string>& sentences) {
  const std::string name = rank_name(rank);
  const auto cut = std::ranges::count(rank.steps, true, &RankStep::is_cut);
  const auto empty = std::ranges::count(rank.steps, false, &RankStep::has_account) - cut;
  const auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) sentences.push_back(what);
  };
  const auto are = [](std::int64_t count) { return count == 1 ? "is" : "are"; };
  add(empty, fmt::format("{} of {} without any work {} left out.", counted(empty, "step"), name,
                         are(empty)));
  add(cut, fmt::format("{} of {}, cut by the profile, {} left out.", counted(cut, "step"), name,
                       are(cut)));
  add(rank.backlog, fmt::format("The first step of {} begins when the device has done what was "
                                "launched before it: {}.",
                                name, counted(rank.backlog, "kernel")));
  add(rank.start_up_ns, fmt::format("The first step of {} begins at its first launch; {} before it "
                                    "are left out as start-up.",
                                    name, time_text(ns_seconds(rank.start_up_ns))));
  add(rank.overlaps, fmt::format("{} of {} ended after the next of the same stream began; each "
                                 "counts until then.",
                                 counted(rank.overlaps, "kernel"), name));
  add(rank.file.left_out,
      fmt::format("{} of {} without a time or a duration that can be meant {} "
                  "left out.",
                  counted(rank.file.left_out, "event"), name, are(rank.file.left_out)));
  add(rank.file.far_apart,
      fmt::format("{} of {}, a day or more from all others, {} left out.",
                  counted(rank.file.far_apart, "event"), name, are(rank.file.far_apart)));
  add(rank.updates_of_step,
      fmt::format("No ProfilerStep in the trace of {}: {}, and what follows the last one is left "
                  "out. Call step() of the profiler to mark steps.",
                  name,
                  rank.updates_of_step > 1
                      ? fmt::format("a step has {} updates of optimizers, since their work recurs "
                                    "in such turns",
                                    rank.updates_of_step)
                  : rank.other_updates > 0
                      ? "a step ends with each update of the first optimizer, not of the others"
                      : "a step ends with each update of the optimizer"));
  add(rank.is_whole ? 1 : 0,
      fmt::format("No ProfilerStep and no optimizer in the trace of {}: all of it counts as a "
                  "step. Call step() of the profiler to mark steps.",
                  name));
}

/// How to record what would name time of the host that has no name, if that is a tenth of the
/// rank's time or more.
void add_unnamed(const TracedRun& run, const RunAccount& account, std::size_t rank,
                 std::vector<std::string>& sentences) {
  const RankSum sum = rank_sum(account, rank);
  const TracedRank& of = run.ranks[rank];
  std::int64_t ns = 0, loads_ns = 0;
  for (const TracedAccount& step : account.accounts) {
    if (step.rank != rank) continue;
    for (const auto& [time, time_ns] : step.named_ns) {
      if (of.names.path(time.path).empty()) ns += time_ns;
      const bool is_loader = innermost_name(of, time).starts_with("enumerate(DataLoader)#_Single");
      if (is_loader) loads_ns += time_ns;
    }
  }
  if (10 * loads_ns > sum.wall_ns) {
    sentences.push_back(fmt::format(
        "What the DataLoader of {} does in {} a step is not in the trace: profile with_stack=True.",
        rank_name(of), time_text(sum.step_s(loads_ns))));
  }
  if (ns == 0 || 10 * ns < sum.wall_ns) return;
  sentences.push_back(
      fmt::format("Nothing in the trace of {} names {} a step of its host's time: {}",
                  rank_name(of), time_text(sum.step_s(ns)), recording_text(of)));
}

/// Says in which steps forward has half as many calls again as in most, and backward has not: all
/// that a trace tells of an evaluation without a name. One of reinforcement learning looks alike.
void add_unfollowed(const TracedRun& run, const TracedRank& rank,
                    std::vector<std::string>& sentences) {
  struct Calls {
    std::int64_t number = 0, forward = 0, backward = 0;
  };
  std::vector<Calls> steps;
  for (std::size_t step = 0; step < rank.steps.size(); ++step) {
    if (!rank.steps[step].has_account) continue;
    Calls& calls = steps.emplace_back(Calls{.number = rank.steps[step].number});
    for (const std::size_t i : rank.works_of_step[step]) {
      const TracedWork& work = run.works[i];
      if (work.continues) continue;
      if (work.part == Part::kForward || work.part == Part::kLoss) ++calls.forward;
      if (work.part == Part::kBackward) ++calls.backward;
    }
  }
  if (steps.empty()) return;
  const auto usual = [&](std::int64_t Calls::*calls) {
    std::ranges::sort(steps, {}, calls);
    return steps[(steps.size() - 1) / 2].*calls;
  };
  const std::int64_t forward = usual(&Calls::forward), backward = usual(&Calls::backward);
  const std::size_t count = steps.size();
  std::erase_if(steps, [&](const Calls& calls) {
    return 2 * calls.forward < 3 * forward || 4 * calls.backward > 5 * backward;
  });
  if (steps.empty() || 2 * steps.size() >= count || forward == 0 || backward == 0) return;
  const Calls& most = *std::ranges::max_element(steps, {}, &Calls::forward);
  sentences.push_back(fmt::format(
      "Forward has more calls than usual, and backward has not, in {} of {} of {}: {} times as "
      "many in step {}. If it evaluates there, put torch.no_grad() and "
      "record_function(\"evaluate\") around that.",
      steps.size(), counted(static_cast<std::int64_t>(count), "step"), rank_name(rank),
      number_text(static_cast<double>(most.forward) / static_cast<double>(forward)), most.number));
}

/// What the traces do not tell, and what takes its place.
std::vector<std::string> gaps_of(const TracedRun& run, const RunAccount& account,
                                 bool says_unnamed) {
  std::vector<std::string> sentences;
  std::vector<std::string> no_launch, no_waits, on_host;
  for (const TracedRank& rank : run.ranks) {
    const bool is_ours = rank.file.is_ours && !rank.file.nodes.empty();
    if (is_ours) continue;
    add_gaps_of_rank(rank, sentences);
    add_unfollowed(run, rank, sentences);
    if (rank.lacks_kernels()) continue;
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
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    if (!run.ranks[rank].file.is_ours && !says_unnamed) {
      add_unnamed(run, account, rank, sentences);
    }
  }
  const auto say = [&](const char* what, const std::vector<std::string>& ranks, const char* so) {
    if (ranks.empty()) return;
    sentences.push_back(fmt::format("No {} in the {} of {}: {}.", what,
                                    ranks.size() == 1 ? "trace" : "traces", list_text(ranks), so));
  };
  say("device", on_host,
      "the account is that of the thread that trains, and its time between ops is the host's "
      "unless a collective ended in it");
  say("correlated launches", no_launch,
      "a late host cannot be told from an idle device, and all computing counts as forward");
  say("waits between streams", no_waits,
      "what ended last before a stream went on counts as what held it");
  if (account.lacks_ranks) {
    sentences.push_back(
        "Not every rank's trace is here, so waiting for the last rank is not told from "
        "exchanging.");
  }
  return sentences;
}

/// The checklist for benchmarks, as far as the traces tell it. The first step's number says how
/// many came before. PyTorch's profiler counts from where it was started, so its 0 says nothing.
std::string traced_checklist(const TracedRun& run, const RunAccount& account) {
  std::set<std::int64_t> steps;
  for (const TracedAccount& step : account.all()) steps.insert(step.number);
  Conditions known{.source = "trace", .steps = std::ssize(steps)};
  const bool is_ours =
      std::ranges::all_of(run.ranks, [](const TracedRank& rank) { return rank.file.is_ours; });
  if (is_ours || *steps.begin() > 0) known.warmup_steps = *steps.begin();
  return checklist_line(checklist(known));
}

/// One step of all ranks: the account of each, and its communication.
Plot picture_of(const TracedRun& run, const RunAccount& account) {
  std::vector<TracedAccount> by_wall = account.accounts;
  std::ranges::stable_sort(by_wall, {}, &TracedAccount::wall_ns);
  const TracedAccount& chosen = by_wall[by_wall.size() / 2];
  Plot plot{.title = fmt::format("Step {} of all ranks, of median length", chosen.number),
            .x_label = "ms since the step began",
            .is_timeline = true};
  std::optional<std::int64_t> origin_ns;
  std::vector<std::pair<std::size_t, std::size_t>> shown;  // rank, step
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::vector<RankStep>& steps = run.ranks[rank].steps;
    const auto step = std::ranges::find(steps, chosen.number, &RankStep::number);
    if (step == steps.end()) continue;
    shown.emplace_back(rank, static_cast<std::size_t>(step - steps.begin()));
    origin_ns = std::min(origin_ns.value_or(step->wall_begin_ns), step->wall_begin_ns);
  }
  const auto ms = [&](std::int64_t ns) { return 1e3 * ns_seconds(ns - *origin_ns); };
  std::map<std::pair<Part, bool>, PlotSeries> series;  // of communication, waiting and moving
  PlotSeries messages{.name = "communication"};
  for (const auto& [rank, step] : shown) {
    const std::size_t row = plot.categories.size();
    plot.categories.push_back(rank_name(run.ranks[rank]));
    const RankStep& of = run.ranks[rank].steps[step];
    const double least = 1e3 * ns_seconds(of.wall_end_ns - of.wall_begin_ns) / 2000;
    const auto add = [&](Part part, bool moves, std::int64_t begin_ns, std::int64_t end_ns) {
      if (end_ns <= begin_ns) return;
      std::vector<PlotSpan>& spans = series[{part, moves}].spans;
      const double from = ms(begin_ns), to = ms(end_ns);
      const bool joins =
          !spans.empty() && spans.back().row == row && from - spans.back().end < least;
      if (joins) {
        spans.back().end = to;
      } else {
        spans.push_back({row, from, to});
      }
    };
    visit_stretches(run, rank, step, [&](const CauseSpan& stretch) {
      const HostStretch times = times_of(of, stretch);
      const bool is_split = stretch.part == Part::kExposedCommunication && stretch.held_by;
      const std::int64_t border_ns =
          is_split ? moving_from(run, stretch.held_by->run, times) : times.end_ns;
      add(stretch.part, is_split && account.lacks_ranks, times.begin_ns, border_ns);
      if (is_split) add(stretch.part, true, border_ns, times.end_ns);
    });
    bool communicates = false;
    for (const TracedWork& work : run.works) {
      if (work.rank != rank || work.step != step || !work.is_collective()) continue;
      if (!communicates) plot.categories.push_back("its messages");
      communicates = true;
      messages.spans.push_back({row + 1, std::max(0.0, ms(work.begin_ns)), ms(work.end_ns)});
    }
  }
  for (auto& [what, stretches] : series) {
    const bool is_split = what.first == Part::kExposedCommunication && !account.lacks_ranks;
    stretches.name = !is_split ? name_of(what.first) : what.second ? kExchanging : kWaitingForRank;
    plot.series.push_back(std::move(stretches));
  }
  if (!messages.spans.empty()) plot.series.push_back(std::move(messages));
  return plot;
}

/// The commands that show whether a change helped.
std::string verifying_text(const std::vector<std::filesystem::path>& given) {
  std::string traces;
  for (const auto& path : given) traces += " " + typed(path);
  return fmt::format(
      "To verify a change: mlp_lab explain{} --output before; then, with the new traces in the "
      "folder after: mlp_lab explain before/results.json after",
      traces);
}

}  // namespace

RankSum rank_sum(const RunAccount& account, std::optional<std::size_t> rank) {
  RankSum sum;
  for (const TracedAccount& step : account.accounts) {
    if (!rank || step.rank == *rank) sum.add(step);
  }
  return sum;
}

RankSum others_sum(const RunAccount& account, std::size_t rank) {
  RankSum others;
  for (const TracedAccount& step : account.accounts) {
    if (step.rank != rank) others.add(step);
  }
  return others;
}

std::size_t rank_with_most(const RunAccount& account, Part part) {
  const auto ns = [&](std::size_t rank) { return rank_sum(account, rank).part_ns[part]; };
  std::size_t most = 0;
  for (std::size_t rank = 1; rank < account.waited_ns.size(); ++rank) {
    if (ns(rank) > ns(most)) most = rank;
  }
  return most;
}

Part excess_of(const RankSum& own, const RankSum& others, bool in_exchanges, double& excess_s) {
  const auto excess = [&](Part part) {
    return own.step_s(own.part_ns[part]) - others.step_s(others.part_ns[part]);
  };
  Part longest = in_exchanges ? Part::kExposedCommunication : Part::kIdle;
  for (const Part part : kValuesOf<Part>) {
    if (is_exchange(part) == in_exchanges && excess(part) > excess(longest)) longest = part;
  }
  excess_s = excess(longest);
  return longest;
}

std::optional<LateRank> late_rank_of(const RunAccount& account) {
  LateRank late;
  for (std::size_t rank = 1; rank < account.waited_ns.size(); ++rank) {
    if (waited_for(account, rank) > waited_for(account, late.rank)) late.rank = rank;
  }
  const RankSum own = rank_sum(account, late.rank), others = others_sum(account, late.rank);
  const std::int64_t waited_ns = waited_for(account, late.rank);
  const std::vector<std::int64_t>& row = account.waited_ns[late.rank];
  const std::int64_t waits_ns = std::accumulate(row.begin(), row.end(), std::int64_t{0});
  const bool is_long = waited_ns > 0 && 10 * waited_ns >= others.wall_ns;
  if (!is_long || others.step_s(waited_ns) < 2 * own.step_s(waits_ns)) return std::nullopt;
  late.longer = excess_of(own, others, false, late.excess_s);
  return late.excess_s > 0 ? std::optional(late) : std::nullopt;
}

std::string typed(const std::filesystem::path& path) {
  std::string text = on_one_line(path.string());
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./,:=@%+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  for (std::size_t at = text.find('\''); at != text.npos; at = text.find('\'', at + 4)) {
    text.replace(at, 1, "'\\''");
  }
  return "'" + text + "'";
}

std::string shown_name(const std::string& of) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  std::string name = on_one_line(of.starts_with(kEngine) ? of.substr(kEngine.size()) : of);
  constexpr std::size_t kMaxName = 60, kLast = 17;  // names of templates differ at their ends, too
  if (name.size() <= kMaxName) return name;
  std::size_t end = kMaxName - 3 - kLast, last = name.size() - kLast;
  const auto is_within_character = [&](std::size_t at) {
    return (static_cast<unsigned char>(name[at]) & 0xC0) == 0x80;
  };
  while (is_within_character(end)) --end;
  while (last < name.size() && is_within_character(last)) ++last;
  return name.substr(0, end) + "..." + name.substr(last);
}

std::string steps_text(const TracedRun& run, const RunAccount& account) {
  std::map<std::int64_t, double> usual, longer;  // by number, the longest of all ranks
  for (const TracedAccount& step : account.all()) {
    const bool is_usual = std::ranges::find(account.outliers, step.number,
                                            &TracedAccount::number) == account.outliers.end();
    double& wall_s = (is_usual ? usual : longer)[step.number];
    wall_s = std::max(wall_s, ns_seconds(step.wall_ns));
  }
  std::vector<double> walls_s;
  for (const auto& [number, seconds] : usual) walls_s.push_back(seconds);
  if (walls_s.size() < 2) return "";
  const double median_s = median(walls_s);
  const auto [least, most] = std::ranges::minmax_element(walls_s);
  const std::string spread = fmt::format("({} to {})", time_text(*least), time_text(*most));
  if (longer.empty()) {
    return fmt::format("A step takes {} in the median of {} {}.", time_text(median_s),
                       walls_s.size(), spread);
  }
  const auto longest =
      std::ranges::max_element(longer, {}, [](const auto& step) { return step.second; });
  const std::string factor = number_text(longest->second / median_s);
  return fmt::format(
      "{} of {} steps take {} in the median {}, but step {} takes {} times as "
      "long{}: {}.",
      walls_s.size(), walls_s.size() + longer.size(), time_text(median_s), spread, longest->first,
      factor,
      longer.size() == 1
          ? ""
          : fmt::format(", the longest of {} that take at least twice", longer.size()),
      cause_of_outlier(run, account, longest->first));
}

NamedCause cause_in(const TracedRun& run, const RunAccount& account, std::size_t rank, Part part) {
  const TracedRank& of = run.ranks[rank];
  const PartNames names = part_names(run, account, rank, part);
  if (2 * names.ns <= rank_sum(account, rank).part_ns[part]) {
    return cause_at_work(run, account, rank, part);
  }
  const auto times_of = [&](const auto& counts) {
    return amount_text(account, rank, part, [&](const TracedAccount& step) {
      std::int64_t sum_ns = 0;
      for (const auto& [time, ns] : step.named_ns) {
        sum_ns += time.part == part && counts(time) ? ns : 0;
      }
      return sum_ns;
    });
  };
  // Of names that cover most of it, each of which has the next one within it, the innermost.
  const std::pair<const std::string, std::int64_t>* cause = nullptr;
  for (const auto& name : names.covered_ns) {
    const bool is_inner = cause == nullptr || name.second < cause->second;
    if (2 * name.second >= names.ns && is_inner) cause = &name;
  }
  const char* const in = part == Part::kIdle && !of.on_host ? "while the host was in" : "in";
  if (cause != nullptr) {
    const auto covers = [&](const NamedTime& time) {
      return std::ranges::any_of(of.names.path(time.path),
                                 [&](std::size_t i) { return of.names.name(i) == cause->first; });
    };
    return {cause->first,
            fmt::format(", most of it {} `{}`{}", in, shown_name(cause->first), times_of(covers))};
  }
  for (const auto& [ahead, ns] : names.ahead_ns) {
    if (part == Part::kIdle || 2 * ns < names.ns) continue;
    const auto is_ahead = [&text = ahead](const NamedTime& time) {
      return ahead_text(time) == text;
    };
    return {"", fmt::format(", most of it {}{}", ahead, times_of(is_ahead))};
  }
  const auto longest = std::ranges::max_element(names.innermost_ns, {},
                                                [](const auto& name) { return name.second; });
  if (4 * longest->second < names.ns || names.covered_ns.count(longest->first) == 0) return {};
  const auto is_in = [&](const NamedTime& time) {
    return innermost_name(of, time) == longest->first;
  };
  return {longest->first,
          fmt::format(", much of it {} `{}`{}", in, shown_name(longest->first), times_of(is_in))};
}

std::string cause_text(const TracedRun& run, const RunAccount& account, std::size_t rank,
                       Part part) {
  std::string text = cause_in(run, account, rank, part).text;
  return text.empty() ? std::string(cause_of(part)) : text;
}

std::string excess_text(const TracedRun& run, const RunAccount& account, std::size_t rank) {
  double excess_s = 0;
  const Part part = excess_of(rank_sum(account, rank), others_sum(account, rank), false, excess_s);
  return fmt::format("{} spends {} more than the others on {}{}", rank_name(run.ranks[rank]),
                     time_text(excess_s), traits_of(part).words,
                     cause_text(run, account, rank, part));
}

Findings findings_of(const TracedRun& run, const RunAccount& account) {
  const std::vector<TracedFix> fixes = fixes_of(run, account);
  const std::vector<std::string> verdict = trace_verdict(run, account, fixes),
                                 gaps = gaps_of(run, account, verdict[1].starts_with(kToLearn));
  Findings findings{.timed = {verdict.begin(), verdict.end()},
                    .untimed = {gaps.begin(), gaps.end()}};
  if (std::string text = steps_text(run, account); !text.empty()) {
    auto& timed = findings.timed;
    timed.emplace(account.outliers.empty() ? timed.end() : timed.begin(), std::move(text));
  }
  if (std::string text = bubble_text(run, account); !text.empty()) {
    findings.timed.emplace_back(std::move(text));
  }
  const std::size_t rank = late_rank_of(account).value_or(LateRank{}).rank;
  const RankSum all = rank_sum(account);
  findings.tables = {mean_table(run, account), names_table(run, account, rank),
                     fixes_table(fixes, all.step_s(all.wall_ns)),
                     operator_table_of(run, account, rank)};
  if (run.ranks.size() > 1) findings.tables.push_back(waits_table(run, account));
  findings.tables.insert(findings.tables.end(), {bucket_table(account), breakdown_table(run),
                                                 step_table_of(run, account)});
  std::erase_if(findings.tables, [](const FindingTable& table) { return table.rows.empty(); });
  findings.plots.push_back(picture_of(run, account));
  if (std::ranges::any_of(run.ranks, &TracedRank::lacks_kernels)) {  // they would show the host's
    findings.tables.clear();
    findings.plots.clear();
  }
  findings.untimed.push_back(traced_checklist(run, account));
  return findings;
}

void require_steps(const TracedRun& run, const RunAccount& account) {
  if (!account.accounts.empty()) return;
  refuse_trace(run.ranks.front().file.path, "has no complete step",
               "profile at least two steps of a run whose steps overlap");
}

Findings explained(const TracedRun& run, const RunAccount& account, const std::string& machine,
                   const std::vector<std::filesystem::path>& given) {
  require_steps(run, account);
  Findings findings = findings_of(run, account);
  findings.timed.emplace_back(verifying_text(given));
  Findings mlp = mlp_findings(run, account, machine);
  std::ranges::move(mlp.timed, std::back_inserter(findings.untimed));
  std::ranges::move(mlp.tables, std::back_inserter(findings.tables));
  return findings;
}

std::string explained_json(std::vector<TraceFile> files) {
  using nlohmann::json;
  std::vector<std::filesystem::path> given;
  for (const TraceFile& file : files) given.push_back(file.path);
  const TracedRun run = run_from(std::move(files));
  const Findings findings = explained(run, account_of(run), "", given);
  json tables = json::array(), plots = json::array();
  for (const FindingTable& table : findings.tables) {
    tables.push_back({{"title", table.title}, {"columns", table.columns}, {"rows", table.rows}});
  }
  for (const Plot& plot : findings.plots) plots.push_back(svg_of(plot));
  const std::vector<std::string> sentences = texts_of(findings);
  const json all = {{"sentences", sentences},
                    {"tables", tables},
                    {"plots", plots},
                    {"text", text_of(sentences, findings, "on this page")}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace barestep
