#include "train/step_marks.h"

#include <algorithm>

#include "core/clock.h"

namespace barestep {
StepMarks::StepMarks(std::span<Device* const> devices, Communicator* communicator,
                     StepProfiler* profiler)
    : devices_(devices.begin(), devices.end()),
      communicator_(communicator),
      profiler_(profiler),
      clocks_(devices.size()) {
  for (Device* device : devices_) {
    if (device->kind() == DeviceKind::kCpu) device->set_record_sink(this);
  }
  if (communicator_ != nullptr) communicator_->set_record_sink(this);
}

StepMarks::~StepMarks() {
  for (Device* device : devices_) {
    if (device->kind() == DeviceKind::kCpu) device->set_record_sink(nullptr);
  }
  if (communicator_ != nullptr) communicator_->set_record_sink(nullptr);
}

std::size_t StepMarks::set_for(const NodeRun& run, std::int64_t step) {
  return run.phase == Phase::kData ? set_of(step) : slot_of(step);
}

bool StepMarks::knows_by_itself(const NodeRun& run) const {
  if (run.is_collective) return communicator_->sends_records();
  return devices_[static_cast<std::size_t>(run.lane.device)]->kind() == DeviceKind::kCpu;
}

EventClock& StepMarks::clock_of(int device) {
  auto& clock = clocks_[static_cast<std::size_t>(device)];
  if (clock == nullptr) {
    clock = std::make_unique<EventClock>(*devices_[static_cast<std::size_t>(device)]);
  }
  return *clock;
}

void StepMarks::add(const Program& program) {
  MarkedProgram& made = programs_.emplace_back();
  made.by_runs = make_marks(program, RunDetail::kRuns);
  if (profiler_ != nullptr) made.by_nodes = make_marks(program, RunDetail::kNodes);
}

std::unique_ptr<StepMarks::Marked> StepMarks::make_marks(const Program& program, RunDetail detail) {
  auto marked = std::make_unique<Marked>(program, detail);
  marked->runs.resize(marked->plan.runs().size());
  for (std::size_t i = 0; i < marked->runs.size(); ++i) {
    const NodeRun& run = marked->plan.runs()[i];
    MarkedRun& made = marked->runs[i];
    lane_end_s_.try_emplace(run.lane, 0);
    if (knows_by_itself(run)) continue;
    made.by_events = true;
    clock_of(run.lane.device);  // made now, not in a step
    Device& device = *devices_[static_cast<std::size_t>(run.lane.device)];
    const std::size_t sets = run.phase == Phase::kData ? kSets : 2;
    for (std::size_t set = 0; set < sets; ++set) {
      if (!run.follows_directly) made.begin[set] = device.new_event(EventUse::kTime);
      made.end[set] = device.new_event(EventUse::kTime);
    }
  }
  return marked;
}

StepMarks::Marked& StepMarks::marked(int program, RunDetail detail) const {
  const MarkedProgram& of_program = programs_[static_cast<std::size_t>(program)];
  return detail == RunDetail::kRuns ? *of_program.by_runs : *of_program.by_nodes;
}

StepMarks::Marked& StepMarks::marked(const Tag& tag) const {
  const RunPlan& plan = marked(tag.program, RunDetail::kRuns).plan;
  const bool is_input =
      plan.program().nodes()[static_cast<std::size_t>(tag.node)].phase == Phase::kData;
  // Collectives of a graph carry the step of their capture, which is one of the same slot.
  return marked(tag.program,
                is_input ? input_detail_[set_of(tag.step)] : work_detail_[slot_of(tag.step)]);
}

void StepMarks::start_input(std::int64_t step) {
  input_detail_[set_of(step)] =
      profiler_ == nullptr ? RunDetail::kRuns : profiler_->detail_of(step);
}

void StepMarks::start_work(std::int64_t step) {
  work_detail_[slot_of(step)] = input_detail_[set_of(step)];
}

void StepMarks::begin(const Tag& tag, std::span<Stream* const> streams) {
  Marked& marks = marked(tag);
  const auto& parts = marks.plan.runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const NodeRun& planned = marks.plan.runs()[parts[part]];
    MarkedRun& run = marks.runs[parts[part]];
    const std::size_t set = set_for(planned, tag.step);
    if (planned.first == tag.node) {
      run.spans[set] = {.queued_s = now_s()};
      if (run.begin[set] != nullptr) run.begin[set]->record(*streams[part]);
    }
    if (profiler_ == nullptr) continue;
    const Node& node = marks.plan.program().nodes()[static_cast<std::size_t>(tag.node)];
    profiler_->before_work(tag, label_of(node.op), planned.lane.device);
  }
}

void StepMarks::end(const Tag& tag, std::span<Stream* const> streams) {
  Marked& marks = marked(tag);
  const auto& parts = marks.plan.runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (profiler_ != nullptr) profiler_->after_work();
    const NodeRun& planned = marks.plan.runs()[parts[part]];
    if (planned.last != tag.node) continue;
    MarkedRun& run = marks.runs[parts[part]];
    const std::size_t set = set_for(planned, tag.step);
    if (run.by_events) run.end[set]->record(*streams[part]);
    run.spans[set].queued_until_s = now_s();
  }
}

void StepMarks::begin_launch(const Tag& tag) {
  Marked& marks = marked(tag.program, work_detail_[slot_of(tag.step)]);
  const double launched_s = now_s();
  for (std::size_t i = 0; i < marks.runs.size(); ++i) {
    if (marks.plan.runs()[i].phase == Phase::kData) continue;
    marks.runs[i].spans[slot_of(tag.step)] = {.queued_s = launched_s};
  }
  if (profiler_ != nullptr) profiler_->before_work(tag, kGraphLaunchLabel, 0);
}

void StepMarks::end_launch(const Tag& tag) {
  if (profiler_ != nullptr) profiler_->after_work();
  Marked& marks = marked(tag.program, work_detail_[slot_of(tag.step)]);
  const double done_s = now_s();
  for (std::size_t i = 0; i < marks.runs.size(); ++i) {
    if (marks.plan.runs()[i].phase == Phase::kData) continue;
    marks.runs[i].spans[slot_of(tag.step)].queued_until_s = done_s;
  }
}

void StepMarks::capture(bool on) {
  if (profiler_ != nullptr) profiler_->on_capture(on);
}

void StepMarks::on_record(const Record& record) {
  if (record.tag.node < 0) return;  // a piece of another node's work
  Marked& marks = marked(record.tag);
  // One that sends records has one device, and so one part.
  const std::size_t number = marks.plan.runs_of(record.tag.node).front();
  const NodeRun& run = marks.plan.runs()[number];
  Span& span = marks.runs[number].spans[set_for(run, record.tag.step)];
  if (run.first == record.tag.node) span.begin_s = record.start_s;
  if (run.last == record.tag.node) span.end_s = record.end_s;
}

Span StepMarks::read_events(const Marked& marked, std::size_t run, std::size_t set) {
  const NodeRun& read = marked.plan.runs()[run];
  const EventClock& clock = clock_of(read.lane.device);
  const MarkedRun& of_run = marked.runs[run];
  const Event& begin =
      read.follows_directly ? *marked.runs[*read.previous].end[set] : *of_run.begin[set];
  Span span = of_run.spans[set];
  span.begin_s = clock.time_of(begin);
  span.end_s = clock.time_of(*of_run.end[set]);
  return span;
}

void StepMarks::read(int program, StepTimeline& step) {
  const Marked& marks = marked(program, input_detail_[set_of(step.step)]);
  step.plan = &marks.plan;
  step.clock_error_s = clock_error_s();
  step.spans.resize(marks.runs.size());
  for (std::size_t i = 0; i < marks.runs.size(); ++i) {
    const NodeRun& run = marks.plan.runs()[i];
    const std::size_t set = set_for(run, step.step);
    Span& span = step.spans[i];
    if (!marks.runs[i].by_events) {
      span = marks.runs[i].spans[set];
    } else {
      span = read_events(marks, i, set);
      // Whatever the clocks' error: nothing runs before the host queued it, or before what is ahead
      // of it on its lane is done, or after the host saw the step done.
      double first_s = span.queued_s;
      if (run.phase != Phase::kData) first_s = std::max(first_s, lane_end_s_.at(run.lane));
      span.begin_s = std::clamp(span.begin_s, first_s, step.host.end_s);
      span.end_s = std::clamp(span.end_s, span.begin_s, step.host.end_s);
    }
    if (run.phase != Phase::kData) lane_end_s_.at(run.lane) = span.end_s;
  }
  for (const auto& clock : clocks_) {
    if (clock != nullptr && clock->is_old()) clock->compare();
  }
}

double StepMarks::clock_error_s() const {
  double error_s = 0;
  for (const auto& clock : clocks_) {
    if (clock != nullptr) error_s = std::max(error_s, clock->error_s());
  }
  return error_s;
}

}  // namespace barestep
