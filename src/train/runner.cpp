#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/index.h"

namespace barestep {

Runner::Runner(std::span<Device* const> devices, Communicator* communicator, const Buffers& buffers,
               const MemoryPlan& plan, RunnerOptions options)
    : devices_(devices.begin(), devices.end()),
      communicator_(communicator),
      buffers_(buffers),
      options_(options),
      marks_(std::make_unique<StepMarks>(devices, communicator, options.profiler)) {
  BARESTEP_REQUIRE(!options.graph || devices_.size() == 1, "a graph spans one device");
  arenas_.reserve(devices_.size());
  for (Device* device : devices_) arenas_.emplace_back(*device, plan, buffers, options.host_memory);
  addresses_ = barestep::bind(buffers, arenas_);
  stream_of(kMainLane);
}

Runner::~Runner() {
  // Queued work may still use programs and memory that are about to be destroyed.
  for (auto& [lane, stream] : streams_) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {
      // finish_step() has reported it, or the run is ending anyway.
      continue;
    }
  }
}

const Addresses& Runner::addresses(std::int64_t step) const {
  return addresses_[slot_of(step)];
}

Stream* Runner::stream_of(const LaneId& lane) {
  if (const auto found = streams_.find(lane); found != streams_.end()) return found->second.get();
  Device& device = *at(devices_, lane.device);
  auto stream = device.new_stream(name_of(lane.lane));
  if (lane.lane == Lane::kCompute) assign_workspace(*stream, lane.device);
  joins_.emplace(lane, device.new_event(EventUse::kOrder));
  return streams_.emplace(lane, std::move(stream)).first->second.get();
}

void Runner::assign_workspace(Stream& stream, int device) {
  for (BufferId id = 0; id < buffers_.size(); ++id) {
    const Buffer& buffer = buffers_[id];
    if (buffer.category != Category::kWorkspace || buffer.device != device || buffer.pinned)
      continue;
    stream.set_workspace({at(arenas_, device).at(id, 0), static_cast<std::size_t>(buffer.bytes)});
  }
}

void Runner::add(const Program& program) {
  for (const Node& node : program.nodes()) {
    if (const auto* op = std::get_if<DeviceOp>(&node.op)) {
      at(devices_, node.device)->prepare(*op);
    } else {
      BARESTEP_REQUIRE(communicator_ != nullptr, "a program with collectives needs a communicator");
      communicator_->prepare(std::get<Collective>(node.op));
    }
  }
  marks_->add(program, options_.graph);
  programs_.push_back(
      std::make_unique<PreparedProgram>(program, static_cast<int>(programs_.size()), devices_,
                                        [this](const LaneId& lane) { return stream_of(lane); }));
}

PreparedProgram& Runner::prepared(const Program& program) {
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& made) { return made->program == &program; });
  BARESTEP_REQUIRE(found != programs_.end(), "the program was not added to the runner");
  return **found;
}

void Runner::enter(PreparedProgram& program) {
  // Waits name only nodes of their own program, so every lane first waits for every other.
  for (auto& [lane, stream] : streams_) joins_.at(lane)->record(*stream);
  for (auto& [lane, stream] : streams_) {
    for (auto& [other, event] : joins_) {
      if (other != lane) stream->wait(*event);
    }
  }
  current_ = &program;
  entered_ = queued_;
}

void Runner::queue_waits(const PreparedProgram& program, std::int64_t step, NodeId id, Mode mode) {
  for (const Wait& wait : program.node(id).waits) {
    const PreparedNode& awaited = program.at(wait.node);
    const std::int64_t awaited_step = step - wait.steps_back;
    if (awaited_step < entered_) continue;
    // A graph contains only this step's work; launch_graph() handles the other waits.
    if (mode == Mode::kCaptured && (wait.steps_back > 0 || awaited.is_data)) continue;
    const std::size_t set = mode == Mode::kCaptured ? captured_set_of(step) : set_of(awaited_step);
    for (const auto& event : awaited.events[set]) {
      for (Stream* stream : program.at(id).streams) stream->wait(*event);
    }
  }
}

void Runner::queue_node(PreparedProgram& program, std::int64_t step, NodeId id, Mode mode) {
  const Node& node = program.node(id);
  PreparedNode& made = program.at(id);
  const std::size_t set = mode == Mode::kCaptured ? captured_set_of(step) : set_of(step);
  queue_waits(program, step, id, mode);

  const Tag tag{.program = program.index, .step = step, .node = id};
  const Addresses& table = addresses(step);
  marks_->begin(tag, made.streams);
  if (const auto* op = std::get_if<DeviceOp>(&node.op)) {
    at(devices_, node.device)->run(*op, table, *made.streams[0], tag);
  } else {
    communicator_->run(std::get<Collective>(node.op), table, made.streams, tag);
  }
  marks_->end(tag, made.streams);
  for (std::size_t part = 0; part < made.events[set].size(); ++part) {
    made.events[set][part]->record(*made.streams[part]);
  }
}

void Runner::fetch(PreparedProgram& program, std::int64_t step, StepInput& input) {
  auto& fences = fences_[slot_of(step)];
  for (const auto& fence : fences) fence->synchronize();
  marks_->start_input(step, input.detail_of(step));
  input.fill(step, *program.program, addresses(step));
  std::size_t fence = 0;
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (!program.at(id).is_data) continue;
    queue_node(program, step, id, Mode::kEager);
    if (!program.at(id).reads_pinned) continue;
    // The first fetches create the fences; later ones reuse them.
    if (fence == fences.size()) fences.push_back(devices_[0]->new_event(EventUse::kOrder));
    fences[fence++]->record(*program.at(id).streams[0]);
  }
  fetched_ = step;
}

void Runner::queue_work(PreparedProgram& program, std::int64_t step) {
  marks_->start_work(step);
  if (options_.graph && program.has_run) {
    unfinished_[slot_of(step)].host.is_graph = true;
    launch_graph(program, step);
    return;
  }
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (!program.at(id).is_data) queue_node(program, step, id, Mode::kEager);
  }
  program.has_run = true;
  // A graph starts after the work on the main lane only, so the main lane must wait for all others.
  if (options_.graph) join_main();
}

void Runner::join_main() {
  Stream& main = *streams_.at(kMainLane);
  for (auto& [lane, stream] : streams_) {
    if (lane == kMainLane) continue;
    joins_.at(lane)->record(*stream);
    main.wait(*joins_.at(lane));
  }
}

void Runner::launch_graph(PreparedProgram& program, std::int64_t step) {
  auto& graph = program.graphs[slot_of(step)];
  if (graph == nullptr) capture(program, step);
  Stream& main = *streams_.at(kMainLane);
  // The graph waits for this step's data, which its nodes need from outside. Earlier graphs precede
  // it on the main lane.
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (program.at(id).is_data) continue;
    for (const Wait& wait : program.node(id).waits) {
      if (!program.at(wait.node).is_data || step - wait.steps_back < entered_) continue;
      for (const auto& event : program.at(wait.node).events[set_of(step - wait.steps_back)]) {
        main.wait(*event);
      }
    }
  }
  const Tag tag{.program = program.index, .step = step, .node = kGraphLaunch};
  marks_->begin_launch(tag);
  devices_[0]->launch(*graph, main, step);
  marks_->end_launch(tag);
  // Work outside waits for the whole graph.
  for (PreparedNode& node : program.nodes) {
    if (node.is_data || !node.awaited_outside) continue;
    for (const auto& event : node.events[set_of(step)]) event->record(main);
  }
}

void Runner::capture(PreparedProgram& program, std::int64_t step) {
  Stream& main = *streams_.at(kMainLane);
  marks_->capture(true);
  devices_[0]->begin_capture(main);
  joins_.at(kMainLane)->record(main);
  for (auto& [lane, stream] : streams_) {
    if (lane != kMainLane) stream->wait(*joins_.at(kMainLane));
  }
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (!program.at(id).is_data) queue_node(program, step, id, Mode::kCaptured);
  }
  join_main();
  program.graphs[slot_of(step)] = devices_[0]->end_capture(main);
  marks_->capture(false);
}

void Runner::queue_step(const Program& program, const Program* next, StepInput& input) {
  BARESTEP_REQUIRE(queued_ - finished_ < 2, "two steps are unfinished already");
  PreparedProgram& now = prepared(program);
  if (current_ != &now) enter(now);
  const std::int64_t step = queued_;
  Unfinished& unfinished = unfinished_[slot_of(step)];
  unfinished = {.program = &now, .host = {.begin_s = now_s(), .joins_lanes = entered_ == step}};
  if (options_.fetch == Fetch::kBeforeClock) {
    fetch(now, step, input);
    for (const NodeId id : now.last_data_of_lane) {
      for (const auto& event : now.at(id).events[set_of(step)]) event->synchronize();
    }
  }

  unfinished.host.start_s = now_s();
  unfinished.host.overlaps_previous = queued_ > finished_;
  if (fetched_ != step) fetch(now, step, input);
  queue_work(now, step);
  ++queued_;
  HostTimes& host = unfinished.host;
  host.queued_s = host.fetch_begin_s = host.fetched_s = now_s();
  next_input_ = options_.fetch == Fetch::kAhead && next == &program ? &input : nullptr;
  fetch_next();
}

void Runner::fetch_next() {
  // While two steps are unfinished, the older one may still read the slot. Waiting for it here
  // would keep the host from finishing it.
  if (next_input_ == nullptr || queued_ - finished_ == 2) return;
  HostTimes& host = unfinished_[slot_of(queued_ - 1)].host;
  host.fetch_begin_s = now_s();
  fetch(*current_, queued_, *std::exchange(next_input_, nullptr));
  host.fetched_s = now_s();
}

void Runner::check_for_errors(std::int64_t step) {
  for (auto& [lane, stream] : streams_) stream->check();
  if (communicator_ == nullptr) return;
  if (const std::string why = communicator_->poll_error(); !why.empty()) {
    fail(ExitCode::kTryAgain, {.what = "communication failed",
                               .why = fmt::format("{}, at step {}", why, step),
                               .remedy = "see the errors of the other ranks"});
  }
}

void Runner::finish_step() {
  BARESTEP_REQUIRE(finished_ < queued_, "no step is queued");
  const std::int64_t step = finished_;
  const Unfinished& unfinished = unfinished_[slot_of(step)];
  const PreparedProgram& program = *unfinished.program;
  for (const auto* ids : {&program.last_data_of_lane, &program.last_of_lane}) {
    for (const NodeId id : *ids) {
      for (const auto& event : program.at(id).events[set_of(step)]) event->synchronize();
    }
  }
  const double end_s = now_s();
  ++finished_;
  check_for_errors(step);

  StepTimeline& done = timeline_.next();
  done.step = step;
  done.host = unfinished.host;
  done.host.end_s = end_s;
  done.host.overlaps_next = queued_ > finished_;
  marks_->read(program.index, done);
  fetch_next();
}

void Runner::step(const Program& program, const Program* next, StepInput& input) {
  queue_step(program, next, input);
  finish_step();
}

}  // namespace barestep
