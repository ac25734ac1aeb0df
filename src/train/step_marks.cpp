#include "train/step_marks.h"

#include <algorithm>

#include "core/clock.h"

namespace barestep {

StepMarks::StepMarks(std::span<Device* const> devices, Communicator* communicator)
    : devices_(devices.begin(), devices.end()),
      communicator_(communicator),
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
  MarkedProgram& marked = *programs_.emplace_back(std::make_unique<MarkedProgram>(program));
  marked.runs.resize(marked.plan.runs().size());
  for (std::size_t i = 0; i < marked.runs.size(); ++i) {
    const NodeRun& run = marked.plan.runs()[i];
    MarkedRun& made = marked.runs[i];
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
}

void StepMarks::begin(const Tag& tag, std::span<Stream* const> streams) {
  MarkedProgram& program = *programs_[static_cast<std::size_t>(tag.program)];
  const auto& parts = program.plan.runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (program.plan.runs()[parts[part]].first != tag.node) continue;
    MarkedRun& run = program.runs[parts[part]];
    const std::size_t set = set_for(program.plan.runs()[parts[part]], tag.step);
    run.spans[set].queued_s = now_s();
    if (run.begin[set] != nullptr) run.begin[set]->record(*streams[part]);
  }
}

void StepMarks::end(const Tag& tag, std::span<Stream* const> streams) {
  MarkedProgram& program = *programs_[static_cast<std::size_t>(tag.program)];
  const auto& parts = program.plan.runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (program.plan.runs()[parts[part]].last != tag.node) continue;
    MarkedRun& run = program.runs[parts[part]];
    const std::size_t set = set_for(program.plan.runs()[parts[part]], tag.step);
    if (run.by_events) run.end[set]->record(*streams[part]);
  }
}

void StepMarks::launch(int program, std::int64_t step) {
  MarkedProgram& marked = *programs_[static_cast<std::size_t>(program)];
  const double launched_s = now_s();
  for (std::size_t i = 0; i < marked.runs.size(); ++i) {
    if (marked.plan.runs()[i].phase == Phase::kData) continue;
    marked.runs[i].spans[slot_of(step)].queued_s = launched_s;
  }
}

void StepMarks::on_record(const Record& record) {
  if (record.tag.node < 0) return;  // a piece of another node's work
  MarkedProgram& program = *programs_[static_cast<std::size_t>(record.tag.program)];
  // One that sends records has one device, and so one part.
  const std::size_t number = program.plan.runs_of(record.tag.node).front();
  const NodeRun& run = program.plan.runs()[number];
  // Collectives of a graph carry the step of their capture, which is one of the same slot.
  Span& span = program.runs[number].spans[set_for(run, record.tag.step)];
  if (run.first == record.tag.node) span.begin_s = record.start_s;
  if (run.last == record.tag.node) span.end_s = record.end_s;
}

Span StepMarks::read_events(const MarkedProgram& program, std::size_t run, std::size_t set) {
  const NodeRun& read = program.plan.runs()[run];
  const EventClock& clock = clock_of(read.lane.device);
  const MarkedRun& marked = program.runs[run];
  const Event& begin =
      read.follows_directly ? *program.runs[*read.previous].end[set] : *marked.begin[set];
  return {.queued_s = marked.spans[set].queued_s,
          .begin_s = clock.time_of(begin),
          .end_s = clock.time_of(*marked.end[set])};
}

void StepMarks::read(int program, StepTimeline& step) {
  const MarkedProgram& marked = *programs_[static_cast<std::size_t>(program)];
  step.plan = &marked.plan;
  step.spans.resize(marked.runs.size());
  for (std::size_t i = 0; i < marked.runs.size(); ++i) {
    const NodeRun& run = marked.plan.runs()[i];
    const std::size_t set = set_for(run, step.step);
    Span& span = step.spans[i];
    if (!marked.runs[i].by_events) {
      span = marked.runs[i].spans[set];
    } else {
      span = read_events(marked, i, set);
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
