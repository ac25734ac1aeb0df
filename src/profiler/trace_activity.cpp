#include "profiler/trace_activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace barestep {
namespace {

constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kMostBlocks = 32;       // that a multiprocessor holds
constexpr std::int64_t kRegisterUnit = 8;      // a thread's registers are rounded up to
constexpr std::int64_t kOverheadProcess = -1;  // where Kineto puts it

std::int64_t product(const std::array<std::int64_t, 3>& extents) {
  return extents[0] * extents[1] * extents[2];
}

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// How many blocks a multiprocessor can hold at once, by CUDA's occupancy calculation without its
/// finer units.
std::int64_t active_blocks(const GpuActivity& kernel, const Multiprocessors& of) {
  const std::int64_t threads = std::max<std::int64_t>(1, product(kernel.block));
  std::int64_t blocks = std::min(kMostBlocks, of.threads / rounded_up(threads, kWarp));
  if (kernel.registers > 0) {
    const std::int64_t of_block =
        rounded_up(kernel.registers, kRegisterUnit) * rounded_up(threads, kWarp);
    blocks = std::min(blocks, of.registers / of_block);
  }
  if (kernel.shared_bytes > 0) blocks = std::min(blocks, of.shared_bytes / kernel.shared_bytes);
  return blocks;
}

std::string kernel_args(const GpuActivity& kernel, const Multiprocessors& of) {
  const auto& grid = kernel.grid;
  const auto& block = kernel.block;
  std::string text = fmt::format(R"(, "registers per thread": {}, "shared memory": {})",
                                 kernel.registers, kernel.shared_bytes);
  double occupancy = 0;
  if (of.count > 0) {
    const double blocks = static_cast<double>(product(grid)) / of.count;
    const auto threads = static_cast<double>(product(block));
    text += fmt::format(R"(, "blocks per SM": {:.6f}, "warps per SM": {:.6f})", blocks,
                        blocks * std::ceil(threads / kWarp));
    occupancy =
        std::min(static_cast<double>(active_blocks(kernel, of)), blocks) * threads / of.threads;
  }
  text += fmt::format(R"(, "grid": [{}, {}, {}], "block": [{}, {}, {}])", grid[0], grid[1], grid[2],
                      block[0], block[1], block[2]);
  if (of.count > 0) {
    text += fmt::format(R"(, "est. achieved occupancy %": {})",
                        std::min(100L, std::lround(100 * occupancy)));
  }
  return text;
}

}  // namespace

std::string activity_args(const GpuActivity& activity, TraceSpan span,
                          const Multiprocessors& multiprocessors) {
  std::string text;
  if (activity.kind == GpuActivity::Kind::kKernel) {
    text = kernel_args(activity, multiprocessors);
  } else {
    const auto ns = static_cast<double>(std::max<std::int64_t>(1, span.end_ns - span.begin_ns));
    text = fmt::format(R"_(, "bytes": {}, "memory bandwidth (GB/s)": {:.6f})_", activity.bytes,
                       static_cast<double>(activity.bytes) / ns);
  }
  if (activity.graph_node > 0) {
    text += fmt::format(R"(, "graph node id": {})", activity.graph_node);
  }
  const double true_us = 1e6 * (activity.end_s - activity.start_s);
  return text + fmt::format(R"_(, "cuda stream": {}, "true duration (us)": {:.3f})_",
                            activity.stream, true_us);
}

void cut_overlaps(std::vector<PlacedActivity>& work) {
  const auto place = [](const PlacedActivity& each) {
    return std::tuple(each.row.tid, each.span.begin_ns, each.span.end_ns);
  };
  std::ranges::stable_sort(work, {}, place);
  for (std::size_t i = 1; i < work.size(); ++i) {
    PlacedActivity& before = work[i - 1];
    if (before.row.tid != work[i].row.tid) continue;
    before.span.end_ns = std::min(before.span.end_ns, work[i].span.begin_ns);
  }
}

void add_overhead(TraceEvents& events, const std::vector<GpuActivity>& activities,
                  const std::string& program) {
  std::vector<PlacedActivity> overhead;
  for (const GpuActivity& activity : activities) {
    if (activity.kind != GpuActivity::Kind::kOverhead) continue;
    overhead.push_back(
        {&activity, {kOverheadProcess, 0}, events.span(activity.start_s, activity.end_s)});
  }
  if (overhead.empty()) return;
  events.name_process(kOverheadProcess, program, "profiler's overhead", 6'000'000);
  events.name_thread({kOverheadProcess, 0}, "CUPTI", 0);
  cut_overlaps(overhead);
  for (const PlacedActivity& each : overhead) {
    events.slice("overhead", each.activity->name, each.row, each.span, "");
  }
}

}  // namespace barestep
