// A runner for a simulated machine: lanes are queues, durations are functions, the clock is a
// number. It follows the rules of train/runner.h, and records when each part of each node ran.
#pragma once

#include "core/program.h"
#include "support/testing.h"
#include "train/timeline.h"

namespace barestep {

/// Durations in seconds. Tests set fixed or random ones.
struct SimulatedMachine {
  std::function<double(const Node&)> duration = [](const Node&) { return 1.0; };
  std::function<double()> queueing = [] { return 0.0; };   // of a node, on the host
  std::function<double()> latency = [] { return 0.0; };    // on a lane, between nodes
  std::function<double()> filling = [] { return 0.0; };    // of a step's input, on the host
  std::function<double()> reporting = [] { return 0.0; };  // of a finished step, on the host
};

class SimulatedSteps {
 public:
  /// By node and part.
  using Spans = std::vector<std::vector<Span>>;

  struct Step {
    const Program* program = nullptr;
    std::int64_t number = 0;
    HostTimes host{};
    Spans spans{};

    /// `plan` must outlive the result.
    [[nodiscard]] StepTimeline timeline(const RunPlan& plan) const {
      StepTimeline timeline{.plan = {std::shared_ptr<void>(), &plan}, .step = number, .host = host};
      timeline.spans.resize(plan.runs().size());
      for (NodeId node = 0; node < program->size(); ++node) {
        const auto& runs = plan.runs_of(node);
        for (std::size_t part = 0; part < runs.size(); ++part) {
          const Span& ran = spans[static_cast<std::size_t>(node)][part];
          Span& span = timeline.spans[runs[part]];
          if (plan.runs()[runs[part]].first == node) span = ran;
          span.end_s = ran.end_s;
        }
      }
      return timeline;
    }
  };

  explicit SimulatedSteps(SimulatedMachine machine) : machine_(std::move(machine)) {}

  /// As Runner::queue_step, with the input prefetched.
  void queue(const Program& program, const Program* next) {
    const std::int64_t number = queued_;
    if (queued_ > finished_) steps_.back().host.overlaps_next = true;
    const bool joins = steps_.empty() || steps_.back().program != &program;
    if (joins) join_lanes();
    steps_.push_back({.program = &program, .number = number});
    Step& step = steps_.back();
    step.host = {.begin_s = now_s_,
                 .start_s = now_s_,
                 .overlaps_previous = queued_ > finished_,
                 .joins_lanes = joins};
    if (joins) entered_ = number;
    if (fetched_ != number) fetch(program, number);
    for (NodeId id = 0; id < program.size(); ++id) {
      if (node_of(program, id).phase != Phase::kData) run(program, number, id);
    }
    ++queued_;
    step.host.queued_s = step.host.fetch_begin_s = step.host.fetched_s = now_s_;
    fetches_next_ = next == &program;
    fetch_next();
  }

  /// As Runner::finish_step.
  const Step& finish() {
    Step& step = steps_[static_cast<std::size_t>(finished_++)];
    step.spans = spans_.at(step.number);
    for (const auto& parts : step.spans) {
      for (const Span& part : parts) now_s_ = std::max(now_s_, part.end_s);
    }
    now_s_ += machine_.latency();
    step.host.end_s = now_s_;
    fetch_next();
    now_s_ += machine_.reporting();
    return step;
  }

 private:
  static const Node& node_of(const Program& program, NodeId id) {
    return program.nodes()[static_cast<std::size_t>(id)];
  }

  void join_lanes() {
    double all_s = 0;
    for (const auto& [lane, end_s] : lane_end_s_) all_s = std::max(all_s, end_s);
    for (auto& [lane, end_s] : lane_end_s_) end_s = all_s;
  }

  void fetch_next() {
    if (!fetches_next_ || queued_ - finished_ == 2) return;
    fetches_next_ = false;
    Step& newest = steps_.back();
    newest.host.fetch_begin_s = now_s_;
    fetch(*newest.program, queued_);
    newest.host.fetched_s = now_s_;
  }

  void fetch(const Program& program, std::int64_t step) {
    now_s_ += machine_.filling();
    for (NodeId id = 0; id < program.size(); ++id) {
      if (node_of(program, id).phase == Phase::kData) run(program, step, id);
    }
    fetched_ = step;
  }

  void run(const Program& program, std::int64_t step, NodeId id) {
    const Node& node = node_of(program, id);
    Spans& spans = spans_[step];
    spans.resize(program.nodes().size());
    double ready_s = 0;
    for (const Wait& wait : node.waits) {
      if (step - wait.steps_back < entered_) continue;
      const auto& awaited = spans_.at(step - wait.steps_back);
      for (const Span& part : awaited[static_cast<std::size_t>(wait.node)]) {
        ready_s = std::max(ready_s, part.end_s);
      }
    }
    auto& parts = spans[static_cast<std::size_t>(id)];
    const auto lanes = lanes_of(program, node);
    double began_s = 0;
    for (const LaneId& lane : lanes) {
      const double free_s = std::max({now_s_, ready_s, lane_end_s_[lane]});
      parts.push_back({.queued_s = now_s_, .begin_s = free_s + machine_.latency()});
      began_s = std::max(began_s, parts.back().begin_s);
    }
    for (std::size_t part = 0; part < parts.size(); ++part) {
      parts[part].end_s = lane_end_s_[lanes[part]] = began_s + machine_.duration(node);
    }
    now_s_ += machine_.queueing();
  }

  SimulatedMachine machine_;
  double now_s_ = 0;
  bool fetches_next_ = false;
  std::int64_t queued_ = 0, finished_ = 0, entered_ = 0;
  std::int64_t fetched_ = -1;
  std::map<LaneId, double> lane_end_s_;
  std::map<std::int64_t, Spans> spans_;
  std::deque<Step> steps_;
};

}  // namespace barestep
