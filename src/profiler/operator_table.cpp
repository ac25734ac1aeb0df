#include "profiler/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/operands.h"
#include "core/statistics.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::size_t kColumnWidth = 12;
constexpr std::size_t kMaxNameWidth = 55;

std::string share(double part, double whole) {
  return whole == 0 ? "NaN" : fmt::format("{:.2f}%", 100 * part / whole);
}

std::string shortened(const std::string& name) {
  return name.size() < kMaxNameWidth - 3 ? name : name.substr(0, kMaxNameWidth - 3) + "...";
}

std::size_t name_width(const std::vector<OperatorRow>& rows) {
  std::size_t longest = 0;
  for (const OperatorRow& row : rows) longest = std::max(longest, row.name.size());
  return std::min(longest + 4, kMaxNameWidth);
}

/// One unit for the whole table, chosen by the row with the fewest flops.
struct FlopsUnit {
  std::string name;
  double flops = 1;
};

FlopsUnit flops_unit(const std::vector<OperatorRow>& rows) {
  constexpr std::array kNames = {"FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"};
  std::int64_t min = 0;
  for (const OperatorRow& row : rows) {
    if (row.cost.flops > 0 && (min == 0 || row.cost.flops < min)) min = row.cost.flops;
  }
  if (min == 0) return {};
  const double power = std::floor(std::log10(static_cast<double>(min)) / 3);
  const auto unit = std::clamp(static_cast<std::size_t>(power), std::size_t{0}, kNames.size() - 1);
  return {fmt::format("Total {}", kNames[unit]), std::pow(1000.0, static_cast<double>(unit))};
}

std::string rate(std::int64_t work, double seconds) {
  if (work == 0 || seconds == 0) return "--";
  return fmt::format("{:.2f}", static_cast<double>(work) / seconds / 1e9);
}

/// "gemm, fp32" would add no information; "gemm, bf16" is another kernel with another roof.
std::string name_of_op(const Op& op) {
  for (const Operand& operand : operands_of(op)) {
    if (operand.tensor == nullptr) continue;
    const DType type = operand.tensor->dtype;
    if (type == DType::kBF16 || type == DType::kF16)
      return fmt::format("{}, {}", label_of(op), name_of(type));
  }
  return std::string(label_of(op));
}

std::string row_name(const TimedOp& op, RowsBy by) {
  const Node& node = *op.node;
  if (by == RowsBy::kOp) return name_of_op(node.op);
  if (by == RowsBy::kPhase) return std::string(name_of(node.phase));
  return fmt::format("{}, {}", node.block.empty() ? "no block" : node.block, name_of(node.phase));
}

double sort_key(const OperatorRow& row, SortBy by, bool on_cpu) {
  const double host_s = on_cpu ? row.device_s : row.host_s;
  const auto calls = static_cast<double>(row.calls);
  switch (by) {
    case SortBy::kDeviceTotal:
    case SortBy::kSelfDeviceTotal:
      return row.device_s;
    case SortBy::kCpuTotal:
    case SortBy::kSelfCpuTotal:
      return host_s;
    case SortBy::kDeviceTime:
      return row.device_s / calls;
    case SortBy::kCpuTime:
      return host_s / calls;
    case SortBy::kCount:
      return calls;
  }
  return 0;
}

struct RowSums {
  double host_s = 0, device_s = 0;
};

std::vector<std::string> titles_of(bool on_cpu, const FlopsUnit& unit) {
  std::vector<std::string> titles{"Name",        "Self CPU %", "Self CPU",
                                  "CPU total %", "CPU total",  "CPU time avg"};
  if (!on_cpu) {
    titles.insert(titles.end(), {"Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg"});
  }
  titles.emplace_back("# of Calls");
  if (!unit.name.empty()) titles.push_back(unit.name);
  titles.insert(titles.end(), {"GFLOP/s", "GB/s", "% of roof", "p50", "p99"});
  return titles;
}

std::vector<std::string> cells_of(const OperatorRow& row, bool on_cpu, const FlopsUnit& unit,
                                  const RowSums& sums) {
  const auto calls = static_cast<double>(row.calls);
  const double cpu_s = on_cpu ? row.device_s : row.host_s;
  const double cpu_sum_s = on_cpu ? sums.device_s : sums.host_s;
  const std::string percent = share(cpu_s, cpu_sum_s);
  std::vector<std::string> cells{shortened(row.name), percent,
                                 table_time(cpu_s),   percent,
                                 table_time(cpu_s),   table_time(cpu_s / calls)};
  if (!on_cpu) {
    const std::string time = table_time(row.device_s);
    cells.insert(cells.end(), {time, share(row.device_s, sums.device_s), time,
                               table_time(row.device_s / calls)});
  }
  cells.push_back(fmt::format("{}", row.calls));
  if (!unit.name.empty()) {
    const double flops = static_cast<double>(row.cost.flops) / unit.flops;
    cells.push_back(row.cost.flops == 0 ? "--" : fmt::format("{:8.3f}", flops));
  }
  const std::int64_t bytes = row.cost.bytes + row.cost.message_bytes;
  const bool has_roof = row.min_s > 0 && row.device_s > 0;
  cells.insert(cells.end(),
               {rate(row.cost.flops, row.device_s), rate(bytes, row.device_s),
                has_roof ? share(row.min_s, row.device_s) : "--",
                table_time(percentile(row.call_s, 50)), table_time(percentile(row.call_s, 99))});
  return cells;
}

}  // namespace

std::vector<OperatorRow> operator_rows(const Profile& profile, RowsBy by, const Peaks& peaks) {
  std::vector<OperatorRow> rows;
  std::map<std::string, std::size_t> row_of_name;
  std::map<std::pair<int, NodeId>, std::size_t> row_of_node;  // by program
  for (const TimedOp& op : profile.ops) {
    const auto [at, is_new] = row_of_node.try_emplace({op.tag.program, op.tag.node}, rows.size());
    if (is_new) {
      const std::string name = row_name(op, by);
      at->second = row_of_name.try_emplace(name, rows.size()).first->second;
      if (at->second == rows.size()) rows.push_back({.name = name, .cost = {}, .call_s = {}});
    }
    OperatorRow& row = rows[at->second];
    const double seconds = op.seconds();
    ++row.calls;
    row.device_s += seconds;
    row.min_s += peaks.min_s(op.cost);
    row.cost += op.cost;
    row.call_s.push_back(seconds);
  }
  for (const Record& record : profile.queued) {
    const auto at = row_of_node.find({record.tag.program, record.tag.node});
    if (at != row_of_node.end()) rows[at->second].host_s += record.end_s - record.start_s;
  }
  for (OperatorRow& row : rows) std::sort(row.call_s.begin(), row.call_s.end());
  return rows;
}

std::string operator_table(std::vector<OperatorRow> rows, const TableLayout& layout) {
  if (rows.empty()) return "";
  const bool on_cpu = layout.device == DeviceKind::kCpu;
  std::stable_sort(rows.begin(), rows.end(), [&](const OperatorRow& a, const OperatorRow& b) {
    return sort_key(a, layout.sort_by, on_cpu) > sort_key(b, layout.sort_by, on_cpu);
  });
  RowSums sums;
  for (const OperatorRow& row : rows) {
    sums.host_s += row.host_s;
    sums.device_s += row.device_s;
  }
  const FlopsUnit unit = flops_unit(rows);
  TextTable table(titles_of(on_cpu, unit));
  for (std::size_t i = 0; i < rows.size() && std::cmp_less(i, layout.row_limit); ++i) {
    table.add_row(cells_of(rows[i], on_cpu, unit, sums));
  }
  std::string text = table.dashed_text(name_width(rows), kColumnWidth);
  if (!layout.footer) return text;
  text +=
      fmt::format("Self CPU time total: {}\n", table_time(on_cpu ? sums.device_s : sums.host_s));
  if (!on_cpu) text += fmt::format("Self CUDA time total: {}\n", table_time(sums.device_s));
  return text;
}

std::string roofline_table(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                           std::int64_t steps) {
  if (rows.empty() || steps == 0 || peaks.flops_per_s <= 0 || peaks.bytes_per_s <= 0) return "";
  TextTable table({"Name", "MFLOP a step", "Bytes a step", "Flops/byte", "Bound by", "GFLOP/s",
                   "its roof", "% of roof"});
  for (const OperatorRow& row : rows) {
    if (row.cost.flops == 0 || row.cost.bytes == 0 || row.device_s == 0) continue;
    const auto flops = static_cast<double>(row.cost.flops);
    const double intensity = flops / static_cast<double>(row.cost.bytes);
    const bool memory_bound = intensity < peaks.flops_per_s / peaks.bytes_per_s;
    const double roof = memory_bound ? intensity * peaks.bytes_per_s : peaks.flops_per_s;
    table.add_row(
        {shortened(row.name), fmt::format("{:.3f}", flops / 1e6 / static_cast<double>(steps)),
         human_bytes(row.cost.bytes / steps), fmt::format("{:.2f}", intensity),
         memory_bound ? "memory" : "arithmetic", fmt::format("{:.2f}", flops / row.device_s / 1e9),
         fmt::format("{:.2f}", roof / 1e9), share(flops / row.device_s, roof)});
  }
  return table.dashed_text(name_width(rows), kColumnWidth);
}

std::string contradiction(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                          std::int64_t cache_bytes) {
  constexpr double kMaxOfRoof = 1.1;
  for (const OperatorRow& row : rows) {
    Cost cost = row.cost;
    cost.bytes = std::max(std::int64_t{0}, cost.bytes - 2 * cache_bytes * row.calls);
    const double min_s = peaks.min_s(cost);
    if (min_s <= kMaxOfRoof * row.device_s || row.device_s == 0) continue;
    return fmt::format("{} reaches {} of its roof", row.name, percent_text(min_s / row.device_s));
  }
  return "";
}

std::string host_table(const Profile& profile) {
  if (profile.steps.empty()) return "";
  struct Row {
    const char* name;
    double seconds = 0;
    std::size_t calls = 0;
  };
  std::array<Row, 5> rows{
      {{"make input"}, {"queue work"}, {"wait for the step"}, {"report"}, {"queue one op"}}};
  for (const ProfiledStep& step : profile.steps) {
    const HostTimes& host = step.host();
    rows[0].seconds += host.start_s - host.begin_s + host.fetched_s - host.fetch_begin_s;
    rows[1].seconds += host.queued_s - host.start_s;
    rows[2].seconds += host.end_s - host.fetched_s;
    rows[3].seconds += step.reported_s - host.end_s;
  }
  for (std::size_t i = 0; i < 4; ++i) rows[i].calls = profile.steps.size();
  for (const Record& record : profile.queued) {
    rows[4].seconds += record.end_s - record.start_s;
    ++rows[4].calls;
  }
  TextTable table({"Host", "total", "avg", "# of Calls"});
  for (const Row& row : rows) {
    if (row.calls == 0) continue;
    table.add_row({row.name, table_time(row.seconds),
                   table_time(row.seconds / static_cast<double>(row.calls)),
                   fmt::format("{}", row.calls)});
  }
  return table.dashed_text(std::string_view("wait for the step").size() + 4, kColumnWidth);
}

std::string backward_ratio(const Profile& profile) {
  double forward_s = 0;
  double backward_s = 0;
  for (const TimedOp& op : profile.ops) {
    if (op.node->phase == Phase::kForward) forward_s += op.seconds();
    if (op.node->phase == Phase::kBackward) backward_s += op.seconds();
  }
  if (forward_s == 0 || backward_s == 0 || profile.steps.empty()) return "";
  const auto steps = static_cast<double>(profile.steps.size());
  return fmt::format("Backward takes {:.2f} times as long as forward: {} and {} of a step.\n",
                     backward_s / forward_s, table_time(backward_s / steps),
                     table_time(forward_s / steps));
}

std::string step_rate(const Profile& profile, const Peaks& of_one, int devices) {
  const Peaks peaks{.flops_per_s = devices * of_one.flops_per_s,
                    .bytes_per_s = devices * of_one.bytes_per_s};
  double flops = 0;
  double min_s = 0;
  double wall_s = 0;
  for (const ProfiledStep& step : profile.steps) wall_s += step.host().end_s - step.host().start_s;
  for (const TimedOp& op : profile.ops) {
    // Random input is not the model's work, and evaluation is not a training step's. Recomputation
    // takes time but counts as no progress (Chowdhery et al. 2022, appendix B).
    const Phase phase = op.node->phase;
    if (phase != Phase::kData && phase != Phase::kEvaluate) {
      if (phase != Phase::kRecompute) flops += static_cast<double>(op.cost.flops);
      min_s += peaks.min_s(op.cost);
    }
  }
  if (wall_s == 0 || peaks.flops_per_s == 0) return "";
  return fmt::format(
      "A step does {:.2f} GFLOP/s, {} of the {:.2f} that large products do here (MFU); "
      "memory moves {:.2f} GB/s at best.\n"
      "At these rates its ops, one after the other, would take {}, the floor: {} of its time.\n",
      flops / wall_s / 1e9, percent_text(flops / wall_s / peaks.flops_per_s),
      peaks.flops_per_s / 1e9, peaks.bytes_per_s / 1e9,
      table_time(min_s / static_cast<double>(profile.steps.size())), percent_text(min_s / wall_s));
}

}  // namespace barestep
