#include "profiler/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "profiler/operator_table.h"

namespace barestep {
namespace {

struct Span {
  double begin_s = 0, end_s = 0;

  [[nodiscard]] double seconds() const { return std::max(0.0, end_s - begin_s); }
};

Span common(const Span& a, const Span& b) {
  return {std::max(a.begin_s, b.begin_s), std::min(a.end_s, b.end_s)};
}

Span span_of(const TimedOp& op) {
  return {op.start_s, op.end_s};
}

bool is_on_main_lane(const TimedOp& op) {
  return op.device == 0 && op.node->lane == Lane::kCompute;
}

bool is_copy(const TimedOp& op) {
  const auto* device_op = std::get_if<DeviceOp>(&op.node->op);
  return device_op != nullptr && std::holds_alternative<Copy>(*device_op);
}

/// What work of the compute lane counts as.
Part part_of(const TimedOp& op) {
  switch (op.node->phase) {
    case Phase::kData:
      return is_copy(op) ? Part::kHostToDevice : Part::kDataWait;
    case Phase::kInjected:
      return Part::kInjected;
    case Phase::kForward:
    case Phase::kEvaluate:
      return Part::kForward;
    case Phase::kLoss:
      return Part::kLoss;
    case Phase::kBackward:
      return Part::kBackward;
    case Phase::kReduce:
      return Part::kExposedCommunication;
    case Phase::kOptimizer:
      return Part::kOptimizer;
  }
  return Part::kIdle;
}

/// The ops of a run by step, each step's in the order in which they began.
using OpsOfSteps = std::map<std::int64_t, std::vector<const TimedOp*>>;

/// Accounts for one step, walking along its compute lane.
class StepWalk {
 public:
  StepWalk(const HostStep& step, const OpsOfSteps& ops) : step_(step), ops_(ops) {
    account_.number = step.number;
    account_.wall_s = step.end_s - step.start_s;
    now_s_ = step.start_s;
  }

  StepAccount account() {
    const auto& ops = ops_.at(step_.step);
    for (const TimedOp* op : ops) {
      if (is_on_main_lane(*op)) visit(*op);
    }
    end();
    for (const TimedOp* op : ops) {
      if (op->device != 0 || op->node->phase != Phase::kReduce || is_on_main_lane(*op)) continue;
      for (const TimedOp* work : ops) {
        if (!is_on_main_lane(*work)) continue;
        account_.hidden_communication_s += common(span_of(*op), span_of(*work)).seconds();
      }
    }
    return account_;
  }

 private:
  /// Everything up to `until_s` is due to `part`.
  void spend(Part part, double until_s) {
    until_s = std::min(until_s, step_.end_s);
    if (until_s <= now_s_) return;
    account_[part] += until_s - now_s_;
    now_s_ = until_s;
  }

  void visit(const TimedOp& op) {
    std::vector<const TimedOp*> awaited;
    for (const Wait& wait : op.node->waits) {
      const auto step = ops_.find(op.tag.step - wait.steps_back);
      if (step == ops_.end()) continue;
      for (const TimedOp* other : step->second) {
        if (other->program == op.program && other->tag.node == wait.node) awaited.push_back(other);
      }
    }
    wait_for(awaited, op.start_s);
    spend(Part::kLaunchGaps, op.start_s);
    spend(part_of(op), op.end_s);
  }

  /// The lane is empty until `until_s` at the latest: communication first, then input.
  void wait_for(const std::vector<const TimedOp*>& awaited, double until_s) {
    for (const TimedOp* op : awaited) {
      if (op->node->phase == Phase::kReduce) {
        spend(Part::kExposedCommunication, std::min(op->end_s, until_s));
      }
    }
    for (const TimedOp* op : awaited) {
      if (op->node->phase != Phase::kData) continue;
      if (is_copy(*op)) {
        spend(Part::kDataWait, std::min(op->start_s, until_s));
        spend(Part::kHostToDevice, std::min(op->end_s, until_s));
      } else {
        spend(Part::kDataWait, std::min(op->end_s, until_s));
      }
    }
  }

  /// What happens when the compute lane is done: other lanes may not be, nor the host.
  void end() {
    for (const TimedOp* op : ops_.at(step_.step)) {
      if (is_on_main_lane(*op) || op->node->phase == Phase::kData) continue;
      spend(Part::kIdle, op->start_s);
      spend(part_of(*op), op->end_s);
    }
    if (step_.fetched_s > step_.queued_s) {
      spend(Part::kIdle, step_.queued_s);
      spend(Part::kDataWait, step_.fetched_s);
    }
    spend(Part::kIdle, step_.end_s);
  }

  const HostStep& step_;
  const OpsOfSteps& ops_;
  StepAccount account_;
  double now_s_ = 0;
};

StepAccount mean_of(const std::vector<StepAccount>& accounts) {
  StepAccount mean;
  const auto count = static_cast<double>(accounts.size());
  for (const StepAccount& account : accounts) {
    mean.wall_s += account.wall_s / count;
    mean.hidden_communication_s += account.hidden_communication_s / count;
    for (std::size_t i = 0; i < kParts; ++i) mean.part_s[i] += account.part_s[i] / count;
  }
  return mean;
}

std::string row(std::string_view name, double seconds, double wall_s) {
  // What rounding leaves of a sum is nothing, and not less.
  constexpr double kNothing = 1e-9;
  if (std::abs(seconds) < kNothing) seconds = 0;
  return fmt::format("  {:<24}{:>12.4f} ms{:>8.2f} %\n", name, 1e3 * seconds,
                     100 * seconds / wall_s);
}

/// The kind of op and layer of a part that takes longest: "gemm of layer 3 (1.204 ms, 92 % of its
/// roof)".
std::string largest_work(const Profile& profile, Part part, const Peaks& peaks) {
  struct Sum {
    double seconds = 0, least_s = 0;
  };
  std::map<std::string, Sum> sums;
  for (const TimedOp& op : profile.ops) {
    if (part_of(op) != part) continue;
    std::string name(label_of(op.node->op));
    if (op.node->layer >= 0) name += fmt::format(" of layer {}", op.node->layer);
    Sum& sum = sums[name];
    sum.seconds += op.seconds();
    sum.least_s += peaks.least_s(op.cost);
  }
  if (sums.empty()) return "";
  const auto most = std::max_element(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    return a.second.seconds < b.second.seconds;
  });
  const auto& [name, sum] = *most;
  const double step_s = sum.seconds / static_cast<double>(profile.steps.size());
  const std::string roof =
      sum.least_s > 0 ? fmt::format(", {:.0f} % of its roof", 100 * sum.least_s / sum.seconds) : "";
  return fmt::format("; its largest piece is {} ({}{})", name, table_time(step_s), roof);
}

std::string_view cause_of(Part part) {
  switch (part) {
    case Part::kDataWait:
      return ": input is made more slowly than it is used";
    case Part::kHostToDevice:
      return ": input is copied more slowly than it is used";
    case Part::kInjected:
      return ": a delay that was asked for";
    case Part::kExposedCommunication:
      return ": too little work hides the messages";
    case Part::kLaunchGaps:
      return ": the host queues work more slowly than it is done";
    case Part::kIdle:
      return ": the host is slow to notice that a step is done";
    default:
      return "";
  }
}

}  // namespace

std::string_view name_of(Part part) {
  constexpr std::array<std::string_view, kParts> kNames = {
      "data wait", "host to device",        "injected",  "forward",     "loss",
      "backward",  "exposed communication", "optimizer", "launch gaps", "idle"};
  return kNames[static_cast<std::size_t>(part)];
}

double StepAccount::residue_s() const {
  return wall_s - std::accumulate(part_s.begin(), part_s.end(), 0.0);
}

std::vector<StepAccount> accounts_of(const Profile& profile) {
  OpsOfSteps ops;
  for (const TimedOp& op : profile.ops) ops[op.tag.step].push_back(&op);
  std::vector<StepAccount> accounts;
  for (const HostStep& step : profile.steps) {
    if (ops.contains(step.step)) accounts.push_back(StepWalk(step, ops).account());
  }
  return accounts;
}

std::string account_table(const std::vector<StepAccount>& accounts) {
  if (accounts.empty()) return "";
  const StepAccount mean = mean_of(accounts);
  std::string text = fmt::format("Account of a profiled step, mean of {}\n", accounts.size());
  for (int i = 0; i < kParts; ++i) {
    const auto part = static_cast<Part>(i);
    const bool only_if_any = part == Part::kInjected || part == Part::kExposedCommunication;
    if (!only_if_any || mean[part] > 0) text += row(name_of(part), mean[part], mean.wall_s);
  }
  text += row("residue", mean.residue_s(), mean.wall_s);
  text += row("wall time", mean.wall_s, mean.wall_s);
  if (mean.hidden_communication_s > 0) {
    text += row("hidden communication", mean.hidden_communication_s, mean.wall_s);
  }
  return text;
}

std::string bottleneck(const Profile& profile, const std::vector<StepAccount>& accounts,
                       const Peaks& peaks) {
  if (accounts.empty()) return "";
  const StepAccount mean = mean_of(accounts);
  const auto most = std::max_element(mean.part_s.begin(), mean.part_s.end());
  const auto part = static_cast<Part>(most - mean.part_s.begin());
  const bool is_work = cause_of(part).empty();
  return fmt::format("The bottleneck is {}: {:.1f} % of a step, {}{}.\n", name_of(part),
                     100 * *most / mean.wall_s, table_time(*most),
                     is_work ? largest_work(profile, part, peaks) : std::string(cause_of(part)));
}

}  // namespace barestep
