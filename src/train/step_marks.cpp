#include "train/step_marks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/clock.h"
#include "core/index.h"

namespace barestep {

StepMarks::StepMarks(std::span<Device* const> devices, Transport* transport, StepProfiler* profiler)
    : devices_(devices.begin(), devices.end()),
      transport_(transport),
      profiler_(profiler),
      clocks_(devices.size()) {
  for (Device* device : devices_) {
    if (device->kind() == DeviceKind::kCpu) device->set_record_sink(this);
  }
  if (transport_ != nullptr) transport_->set_record_sink(this);
}

StepMarks::~StepMarks() {
  for (Device* device : devices_) {
    if (device->kind() == DeviceKind::kCpu) device->set_record_sink(nullptr);
  }
  if (transport_ != nullptr) transport_->set_record_sink(nullptr);
}

std::size_t StepMarks::set_for(const NodeRun& run, std::int64_t step) {
  return run.phase == Phase::kData ? set_of(step) : slot_of(step);
}

bool StepMarks::records_own_times(const NodeRun& run) const {
  if (run.is_collective) return transport_->sends_records();
  return at(devices_, run.lane.device)->kind() == DeviceKind::kCpu;
}

EventClock& StepMarks::clock_of(int device) {
  auto& clock = at(clocks_, device);
  if (clock == nullptr) {
    clock = std::make_unique<EventClock>(*at(devices_, device));
  }
  return *clock;
}

void StepMarks::add(const Program& program, bool in_graph, bool phases) {
  MarkedProgram& made = programs_.emplace_back();
  for (const Node& node : program.nodes()) made.is_input.push_back(node.phase == Phase::kData);
  const bool by_lanes = in_graph && !phases;
  made.by_runs = make_marks(program, by_lanes ? RunDetail::kLanes : RunDetail::kRuns, in_graph);
  if (profiler_ != nullptr) made.by_nodes = make_marks(program, RunDetail::kNodes, in_graph);
}

std::unique_ptr<StepMarks::Marked> StepMarks::make_marks(const Program& program, RunDetail detail,
                                                         bool in_graph) {
  auto marked = std::make_unique<Marked>();
  marked->plan = std::make_shared<const RunPlan>(program, detail, in_graph);
  marked->runs.resize(marked->plan->runs().size());
  for (NodeId node = 0; node < program.size(); ++node) {
    const std::size_t number = marked->plan->runs_of(node).front();
    const NodeRun& run = marked->plan->runs()[number];
    marked->places.push_back({number, run.first == node, run.last == node});
  }
  for (std::size_t i = 0; i < marked->runs.size(); ++i) {
    const NodeRun& run = marked->plan->runs()[i];
    MarkedRun& made = marked->runs[i];
    lane_end_s_.try_emplace(run.lane, 0);
    if (records_own_times(run)) continue;
    made.by_events = true;
    clock_of(run.lane.device);  // created here, not during a step
    Device& device = *at(devices_, run.lane.device);
    const bool is_input = run.phase == Phase::kData;
    const bool has_begin = !run.follows_directly && !(in_graph && is_input);
    const std::size_t sets = is_input ? kSets : 2;
    for (std::size_t set = 0; set < sets; ++set) {
      if (has_begin) made.begin[set] = device.new_event(EventUse::kTime);
      made.end[set] = device.new_event(EventUse::kTime);
    }
  }
  ends_s_.resize(std::max(ends_s_.size(), marked->runs.size()));
  return marked;
}

StepMarks::Marked& StepMarks::marked(int program, RunDetail detail) const {
  const MarkedProgram& of_program = at(programs_, program);
  return detail == RunDetail::kRuns ? *of_program.by_runs : *of_program.by_nodes;
}

bool StepMarks::is_input(const Tag& tag) const {
  return at(at(programs_, tag.program).is_input, tag.node) != 0;
}

// Collectives in a graph carry the step of their capture, which uses the same slot.
std::size_t StepMarks::set_for(const Tag& tag) const {
  return is_input(tag) ? set_of(tag.step) : slot_of(tag.step);
}

StepMarks::Marked& StepMarks::marked(const Tag& tag) const {
  return marked(tag.program,
                is_input(tag) ? input_detail_[set_of(tag.step)] : work_detail_[slot_of(tag.step)]);
}

void StepMarks::start_input(std::int64_t step, RunDetail detail) {
  input_detail_[set_of(step)] = detail;
}

void StepMarks::start_work(std::int64_t step) {
  work_detail_[slot_of(step)] = input_detail_[set_of(step)];
}

void StepMarks::begin(const Tag& tag, std::span<Stream* const> streams) {
  Marked& marks = marked(tag);
  const bool is_first = at(marks.places, tag.node).is_first;
  if (!is_first && profiler_ == nullptr) return;
  const std::size_t set = set_for(tag);
  const auto& parts = marks.plan->runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    MarkedRun& run = marks.runs[parts[part]];
    if (is_first) {
      run.spans[set] = {.queued_s = now_s()};
      if (run.begin[set] != nullptr) run.begin[set]->record(*streams[part]);
    }
    if (profiler_ == nullptr) continue;
    const Node& node = marks.plan->program().node(tag.node);
    profiler_->before_work(tag, label_of(node.op), marks.plan->runs()[parts[part]].lane.device);
  }
}

void StepMarks::end(const Tag& tag, std::span<Stream* const> streams) {
  Marked& marks = marked(tag);
  const bool is_last = at(marks.places, tag.node).is_last;
  if (!is_last && profiler_ == nullptr) return;
  const std::size_t set = set_for(tag);
  const bool is_in_input_graph = is_capturing_ && is_input(tag);
  const auto& parts = marks.plan->runs_of(tag.node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (profiler_ != nullptr) profiler_->after_work();
    if (!is_last) continue;
    MarkedRun& run = marks.runs[parts[part]];
    if (run.by_events && !is_in_input_graph) run.end[set]->record(*streams[part]);
    if (profiler_ != nullptr) run.spans[set].queued_until_s = now_s();
  }
}

template <class Use>
void StepMarks::for_each_launched(const Tag& tag, const Use& use) {
  const bool of_input = tag.node == kInputLaunch;
  const std::size_t set = of_input ? set_of(tag.step) : slot_of(tag.step);
  Marked& marks = marked(tag.program, of_input ? input_detail_[set] : work_detail_[set]);
  for (std::size_t i = 0; i < marks.runs.size(); ++i) {
    if ((marks.plan->runs()[i].phase == Phase::kData) != of_input) continue;
    use(marks.runs[i], set);
  }
}

void StepMarks::begin_launch(const Tag& tag) {
  const double launched_s = now_s();
  for_each_launched(
      tag, [&](MarkedRun& run, std::size_t set) { run.spans[set] = {.queued_s = launched_s}; });
  if (profiler_ != nullptr) profiler_->before_work(tag, label_of_launch(tag.node), 0);
}

void StepMarks::end_launch(const Tag& tag, Stream& stream) {
  if (profiler_ != nullptr) profiler_->after_work();
  const double done_s = now_s();
  for_each_launched(tag, [&](MarkedRun& run, std::size_t set) {
    run.spans[set].queued_until_s = done_s;
    if (tag.node == kInputLaunch && run.by_events) run.end[set]->record(stream);
  });
}

void StepMarks::capture(bool on) {
  is_capturing_ = on;
  if (profiler_ != nullptr) profiler_->on_capture(on);
}

void StepMarks::on_record(const Record& record) {
  if (record.tag.node < 0) return;  // part of another node's work
  // A stream that sends records has one device, and so one part.
  Marked& marks = marked(record.tag);
  const Place& place = at(marks.places, record.tag.node);
  if (!place.is_first && !place.is_last) return;
  Span& span = marks.runs[place.run].spans[set_for(record.tag)];
  if (place.is_first) span.begin_s = record.start_s;
  if (place.is_last) span.end_s = record.end_s;
}

Span StepMarks::read_events(const Marked& marked, std::size_t run, std::size_t set,
                            double previous_end_s) {
  const NodeRun& read = marked.plan->runs()[run];
  const EventClock& clock = clock_of(read.lane.device);
  const MarkedRun& of_run = marked.runs[run];
  Span span = of_run.spans[set];
  if (read.follows_directly) {
    span.begin_s = ends_s_[*read.previous];
  } else if (of_run.begin[set] != nullptr) {
    span.begin_s = clock.time_of(*of_run.begin[set]);
  } else {
    span.begin_s = std::max(span.queued_s, previous_end_s);
  }
  span.end_s = ends_s_[run] = clock.time_of(*of_run.end[set]);
  return span;
}

void StepMarks::read(int program, StepTimeline& step) {
  const Marked& marks = marked(program, input_detail_[set_of(step.step)]);
  step.plan = marks.plan;
  step.clock_error_s = clock_error_s();
  step.spans.resize(marks.runs.size());
  for (std::size_t i = 0; i < marks.runs.size(); ++i) {
    const NodeRun& run = marks.plan->runs()[i];
    const bool is_input = run.phase == Phase::kData;
    double& lane_end_s = is_input ? input_end_s_ : lane_end_s_.at(run.lane);
    const std::size_t set = set_for(run, step.step);
    Span& span = step.spans[i];
    if (!marks.runs[i].by_events) {
      span = marks.runs[i].spans[set];
    } else {
      span = read_events(marks, i, set, lane_end_s);
      // Limits the effect of the clocks' error: nothing runs before the host has queued it, before
      // the work ahead of it on its lane is done, or after the host has seen the step's end.
      double first_s = span.queued_s;
      if (!is_input) first_s = std::max(first_s, lane_end_s);
      span.begin_s = std::clamp(span.begin_s, first_s, step.host.end_s);
      span.end_s = std::clamp(span.end_s, span.begin_s, step.host.end_s);
    }
    lane_end_s = span.end_s;
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

namespace {

constexpr double kHoldsSeconds = 1;
constexpr int kReadings = 5;

}  // namespace

EventClock::EventClock(Device& device)
    : stream_(device.new_stream("clock")),
      compared_(device.new_event(EventUse::kTime)),
      spare_(device.new_event(EventUse::kTime)) {
  compare();
}

void EventClock::compare() {
  if (is_hosts_) return;
  double closest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kReadings; ++i) {
    const double before_s = now_s();
    spare_->record(*stream_);
    spare_->synchronize();
    const double after_s = now_s();
    if (spare_->reached_at_s()) {
      is_hosts_ = true;
      return;
    }
    if (after_s - before_s >= closest_s) continue;
    closest_s = after_s - before_s;
    compared_s_ = (before_s + after_s) / 2;
    std::swap(compared_, spare_);
  }
  error_s_ = std::max(error_s_, closest_s / 2);
}

bool EventClock::is_old() const {
  return !is_hosts_ && now_s() - compared_s_ > kHoldsSeconds;
}

}  // namespace barestep
