#include "profiler/data_parallel_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/text_table.h"
#include "core/units.h"
#include "profiler/account.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// The data that an exchange moves.
std::string_view content_of(Exchange exchange) {
  constexpr EnumArray<Exchange, std::string_view> kContents = {
      {{"parameters, from device 0 to the others",
        "input and gradient of the output, from device 0", "output, to device 0",
        "gradients, summed on device 0"}}};
  return kContents[exchange];
}

/// Adds a message that devices 0 to n - 1 pass on: in a star each other device exchanges it with
/// device 0, in a ring each with its neighbors.
void add_message(Traffic& traffic, std::int64_t bytes, std::size_t n, Route route, bool reduces) {
  for (std::size_t i = 1; i < n; ++i) {
    const std::size_t other = route == Route::kStar ? 0 : i - 1;
    (reduces ? traffic.out_bytes : traffic.in_bytes)[i] += bytes;
    (reduces ? traffic.in_bytes : traffic.out_bytes)[other] += bytes;
  }
}

}  // namespace

Exchange exchange_of(const Node& node) {
  BARESTEP_REQUIRE(node.phase == Phase::kCommunication, "the node moves nothing between devices");
  if (std::holds_alternative<Collective>(node.op)) {
    return op_if<Broadcast>(node.op) != nullptr ? Exchange::kBroadcast : Exchange::kReduce;
  }
  // A copy runs on its destination.
  return node.device == 0 ? Exchange::kGather : Exchange::kScatter;
}

Traffic traffic_of(const Program& program, int devices, Route route) {
  Traffic traffic;
  traffic.in_bytes.resize(static_cast<std::size_t>(devices));
  traffic.out_bytes.resize(static_cast<std::size_t>(devices));
  for (const Node& node : program.nodes()) {
    if (node.phase != Phase::kCommunication) continue;
    const Exchange exchange = exchange_of(node);
    std::int64_t moved = 0;
    if (const auto* const copy = op_if<Copy>(node.op)) {
      const int from = program.buffers()[copy->from.buffer].device;
      moved = copy->to.bytes();
      at(traffic.in_bytes, node.device) += moved;
      at(traffic.out_bytes, from) += moved;
    } else {
      const std::size_t n = lanes_of(program, node).size();
      const std::int64_t message = cost_of(node.op).message_bytes;
      moved = message * static_cast<std::int64_t>(n - 1);
      add_message(traffic, message, n, route, exchange == Exchange::kReduce);
    }
    traffic.bytes[exchange] += moved;
  }
  return traffic;
}

double DataParallelAccount::Load::busy_s() const {
  return std::accumulate(phase_s.begin(), phase_s.end(), -phase_s[Phase::kInjected]);
}

DataParallelAccount::DataParallelAccount(const StepPrograms& programs, std::vector<Rows> split,
                                         std::vector<std::string> names, Route route)
    : plan_(programs.buffers()),
      split_(std::move(split)),
      names_(std::move(names)),
      traffic_(traffic_of(programs.train().program, static_cast<int>(names_.size()), route)),
      loads_(names_.size()) {}

void DataParallelAccount::add(const StepReport& report) {
  if (report.warmup) return;
  ++steps_;
  wall_s_ += report.wall_s;
  const StepTimeline& step = *report.timeline->at(0);
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    const NodeRun& run = step.plan->runs()[i];
    if (run.phase == Phase::kData) continue;
    const Node& node = step.plan->program().node(run.first);
    Load& load = at(loads_, run.lane.device);
    double& sum_s = run.phase == Phase::kCommunication ? load.exchange_s[exchange_of(node)]
                                                       : load.phase_s[run.phase];
    sum_s += step.spans[i].end_s - step.spans[i].begin_s;
  }
}

std::int64_t DataParallelAccount::memory_bytes(std::size_t device) const {
  const auto number = static_cast<int>(device);
  return number < plan_.devices() ? plan_.device_bytes(number) : 0;
}

std::string DataParallelAccount::devices_table() const {
  std::vector<Phase> phases;
  for (const PartTraits& part : kAccountParts) {
    if (!part.computes || !part.work_of) continue;
    const auto has = [&](const Load& load) { return load.phase_s[*part.work_of] > 0; };
    if (!part.is_rare || std::ranges::any_of(loads_, has)) phases.push_back(*part.work_of);
  }
  std::vector<std::string> titles = {"device", ">rows", ">memory"};
  for (const Phase phase : phases) titles.push_back(fmt::format(">{}", name_of(phase)));
  titles.insert(titles.end(), {">busy", ">of step", ">bytes in", ">bytes out"});
  TextTable table(std::move(titles));
  const auto steps = static_cast<double>(steps_);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const Load& load = loads_[i];
    std::vector<std::string> cells{names_[i],
                                   fmt::format("{}", i < split_.size() ? split_[i].count : 0),
                                   human_bytes(memory_bytes(i))};
    for (const Phase phase : phases) {
      const double seconds = load.phase_s[phase];
      cells.push_back(seconds == 0 ? "-" : milliseconds(seconds / steps) + " ms");
    }
    cells.push_back(milliseconds(load.busy_s() / steps) + " ms");
    cells.push_back(percent_text(load.busy_s() / wall_s_));
    cells.push_back(human_bytes(traffic_.in_bytes[i]));
    cells.push_back(human_bytes(traffic_.out_bytes[i]));
    table.add_row(std::move(cells));
  }
  return table.text(2);
}

std::string DataParallelAccount::exchanges_table() const {
  TextTable table({"exchange", ">time", ">of step", ">bytes", "of what"});
  for (const Exchange exchange : kValuesOf<Exchange>) {
    double longest_s = 0;
    for (const Load& load : loads_) longest_s = std::max(longest_s, load.exchange_s[exchange]);
    table.add_row({std::string(name_of(exchange)),
                   milliseconds(longest_s / static_cast<double>(steps_)) + " ms",
                   percent_text(longest_s / wall_s_), human_bytes(traffic_.bytes[exchange]),
                   std::string(content_of(exchange))});
  }
  return table.text(2);
}

std::string DataParallelAccount::comparison() const {
  const std::size_t used = split_.size();
  const auto others = static_cast<double>(used - 1);
  double busy_s = 0;
  double memory = 0;
  for (std::size_t i = 1; i < used; ++i) {
    busy_s += loads_[i].busy_s() / others;
    memory += static_cast<double>(memory_bytes(i)) / others;
  }
  const std::int64_t moved =
      std::accumulate(traffic_.bytes.begin(), traffic_.bytes.end(), std::int64_t{0});
  return fmt::format(
      "{} is busy {:.2f} times as long as the others are on average, and has {:.2f} times their\n"
      "memory; {} of the {} that a step moves go in or out of it.\n",
      names_[0], loads_[0].busy_s() / busy_s, static_cast<double>(memory_bytes(0)) / memory,
      human_bytes(traffic_.in_bytes[0] + traffic_.out_bytes[0]), human_bytes(moved));
}

std::string DataParallelAccount::text() const {
  if (steps_ == 0) return "";
  std::string text = fmt::format("DataParallel, mean of a step of {:.4f} ms\n{}",
                                 1e3 * wall_s_ / static_cast<double>(steps_), devices_table());
  if (split_.size() == 1) return text;
  return text + "\n" + exchanges_table() +
         "Times are each device's own; the time of an exchange is that of its slowest device.\n" +
         comparison();
}

}  // namespace barestep
