#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "core/clock.h"
#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

/// The last node on every lane, of the data nodes or of the others.
std::vector<NodeId> last_of_lanes(const Program& program, bool data) {
  std::map<LaneId, NodeId> last;
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.node(id);
    if ((node.phase == Phase::kData) != data) continue;
    for (const LaneId& lane : lanes_of(program, node)) last[lane] = id;
  }
  std::vector<NodeId> nodes;
  for (const auto& [lane, id] : last) nodes.push_back(id);
  return nodes;
}

}  // namespace

void PreparedProgram::find_roles() {
  for (NodeId id = 0; id < program->size(); ++id) at(id).is_data = node(id).phase == Phase::kData;
  last_of_lane = last_of_lanes(*program, false);
  last_data_of_lane = last_of_lanes(*program, true);
}

void PreparedProgram::join_ops(std::span<Device* const> devices) {
  std::map<LaneId, std::vector<NodeId>> lanes;
  for (NodeId id = 0; id < program->size(); ++id) {
    for (const LaneId& lane : lanes_of(*program, node(id))) lanes[lane].push_back(id);
  }
  for (const auto& [lane, ids] : lanes) {
    Device& device = *barestep::at(devices, lane.device);
    for (std::span<const NodeId> rest = ids; !rest.empty();) {
      rest = rest.subspan(join_first(rest, device));
    }
  }
}

std::size_t PreparedProgram::join_first(std::span<const NodeId> lane, Device& device) {
  const NodeId first = lane.front();
  // Whether everything it waits for is queued before the first one.
  const auto may_follow = [&](NodeId id) {
    return at(id).is_data == at(first).is_data &&
           std::ranges::all_of(node(id).waits, [&](const Wait& wait) {
             return wait.steps_back > 0 || wait.node < first;
           });
  };
  std::vector<const DeviceOp*> ops;
  for (const NodeId id : lane.first(std::min(lane.size(), kMaxJoined))) {
    const auto* const op = std::get_if<DeviceOp>(&node(id).op);
    if (op == nullptr || !may_follow(id)) break;
    ops.push_back(op);
  }
  const std::size_t count = ops.size() < 2 ? 1 : device.joins(ops);
  if (count == 1) return 1;
  ops.resize(count);
  at(first).joined = std::move(ops);
  for (const NodeId id : lane.subspan(1, count - 1)) {
    at(first).followers.push_back(id);
    at(id).is_follower = true;
  }
  return count;
}

void PreparedProgram::prepare_graphs(Device& device, Stream& main) {
  if (!last_data_of_lane.empty()) input.origin = at(last_data_of_lane.front()).streams.front();
  for (const PreparedNode& each : nodes) {
    for (const Stream* const stream : each.streams) {
      BARESTEP_REQUIRE(each.is_data == (stream == input.origin),
                       "a graph's input is on a lane of its own");
    }
  }
  work.origin = &main;
  for (PreparedGraph* const graph : {&input, &work}) {
    for (auto& end : graph->ends) end = device.new_event(EventUse::kOrder);
  }
}

void PreparedProgram::make_events(std::span<Device* const> devices) {
  std::vector<bool> awaited(nodes.size(), false);
  for (const Node& node : program->nodes()) {
    for (const Wait& wait : node.waits) barestep::at(awaited, wait.node) = true;
  }
  for (const auto& ids : {last_of_lane, last_data_of_lane}) {
    for (const NodeId id : ids) barestep::at(awaited, id) = true;
  }
  for (NodeId id = 0; id < program->size(); ++id) {
    if (!barestep::at(awaited, id)) continue;
    for (const LaneId& lane : lanes_of(*program, node(id))) {
      Device& device = *barestep::at(devices, lane.device);
      for (auto& events : at(id).events) events.push_back(device.new_event(EventUse::kOrder));
    }
  }
}

Runner::Runner(std::span<Device* const> devices, Transport* transport, const Buffers& buffers,
               const MemoryPlan& plan, RunnerOptions options)
    : devices_(devices.begin(), devices.end()),
      transport_(transport),
      buffers_(buffers),
      options_(options),
      marks_(std::make_unique<StepMarks>(devices, transport, options.profiler)) {
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
      BARESTEP_REQUIRE(transport_ != nullptr, "a program with collectives needs a transport");
      transport_->prepare(std::get<Collective>(node.op));
    }
  }
  marks_->add(program, options_.graph, options_.phases);
  programs_.push_back(std::make_unique<PreparedProgram>(
      program, static_cast<int>(programs_.size()), devices_, options_.graph,
      [this](const LaneId& lane) { return stream_of(lane); }));
  // A profile has the time of each op.
  if (options_.profiler == nullptr) programs_.back()->join_ops(devices_);
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

bool Runner::is_graph(std::int64_t step, bool data) const {
  return data ? input_is_graph_[slot_of(step)] : unfinished_[slot_of(step)].host.is_graph;
}

/// A step that has finished need not be waited for, since the host has done so.
void Runner::queue_wait(const PreparedProgram& program, const PreparedNode& awaited,
                        std::int64_t awaited_step, std::span<Stream* const> streams) {
  if (awaited_step < std::max(entered_, finished_)) return;
  const std::size_t set = set_of(awaited_step);
  if (is_graph(awaited_step, awaited.is_data)) {
    const PreparedGraph& graph = awaited.is_data ? program.input : program.work;
    for (Stream* stream : streams) stream->wait(*graph.ends[set]);
    return;
  }
  for (const auto& event : awaited.events[set]) {
    for (Stream* stream : streams) stream->wait(*event);
  }
}

void Runner::queue_waits(const PreparedProgram& program, std::int64_t step, NodeId id, Mode mode) {
  const PreparedNode& waiting = program.at(id);
  for (const Wait& wait : program.node(id).waits) {
    const PreparedNode& awaited = program.at(wait.node);
    if (mode == Mode::kEager) {
      queue_wait(program, awaited, step - wait.steps_back, waiting.streams);
      continue;
    }
    // A graph contains only this step's work of its kind; its launch takes the other waits.
    if (wait.steps_back > 0 || awaited.is_data != waiting.is_data) continue;
    for (const auto& event : awaited.events[captured_set_of(step)]) {
      for (Stream* stream : waiting.streams) stream->wait(*event);
    }
  }
}

void Runner::queue_nodes(PreparedProgram& program, std::int64_t step, bool data, Mode mode) {
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (program.at(id).is_data == data) queue_node(program, step, id, mode);
  }
}

void Runner::queue_node(PreparedProgram& program, std::int64_t step, NodeId id, Mode mode) {
  PreparedNode& made = program.at(id);
  const std::size_t set = mode == Mode::kCaptured ? captured_set_of(step) : set_of(step);
  queue_waits(program, step, id, mode);
  if (watch_ == nullptr) {
    for (const NodeId follower : made.followers) queue_waits(program, step, follower, mode);
  }

  const Tag tag{.program = program.index, .step = step, .node = id};
  marks_->begin(tag, made.streams);
  queue_op(program, id, tag, addresses(step));
  marks_->end(tag, made.streams);
  for (std::size_t part = 0; part < made.events[set].size(); ++part) {
    made.events[set][part]->record(*made.streams[part]);
  }
  if (watch_ == nullptr) return;
  for (Stream* const stream : made.streams) stream->synchronize();
  look([&] { watch_->after(id); });
}

void Runner::queue_op(PreparedProgram& program, NodeId id, const Tag& tag, const Addresses& table) {
  const Node& node = program.node(id);
  const PreparedNode& made = program.at(id);
  const auto* const op = std::get_if<DeviceOp>(&node.op);
  if (op == nullptr) {
    transport_->run(std::get<Collective>(node.op), table, made.streams, tag);
  } else if (watch_ != nullptr || (made.joined.empty() && !made.is_follower)) {
    at(devices_, node.device)->run(*op, table, *made.streams[0], tag);
  } else if (!made.joined.empty()) {
    at(devices_, node.device)->run_joined(made.joined, table, *made.streams[0], tag);
  }
}

void Runner::look(const std::function<void()>& at) {
  const double begin_s = now_s();
  at();
  looks_.push_back({begin_s, now_s()});
}

void Runner::run_again(const Addresses& table) {
  BARESTEP_REQUIRE(watch_ != nullptr && queued_ - finished_ == 1, "the watched step has run");
  const std::int64_t step = finished_;
  PreparedProgram& program = *unfinished_[slot_of(step)].program;
  for (const bool data : {true, false}) {
    for (NodeId id = 0; id < program.program->size(); ++id) {
      if (program.at(id).is_data != data) continue;
      queue_op(program, id, {.program = program.index, .step = step, .node = kPartOfNode}, table);
      for (Stream* const stream : program.at(id).streams) stream->synchronize();
      watch_->after(id);
    }
  }
}

/// The step that used the same pinned slots before has finished, and its input with it.
void Runner::fetch(PreparedProgram& program, std::int64_t step, StepInput& input) {
  BARESTEP_REQUIRE(step - 2 < finished_, "a step's slots are free again when it has finished");
  marks_->start_input(step, input.detail_of(step));
  input.fill(step, *program.program, addresses(step));
  input_is_graph_[slot_of(step)] = options_.graph && program.input.has_run && watch_ == nullptr;
  if (is_graph(step, true)) {
    launch(program, step, true);
  } else {
    queue_nodes(program, step, true, Mode::kEager);
    program.input.has_run = program.input.origin != nullptr;
  }
  fetched_ = step;
}

void Runner::queue_work(PreparedProgram& program, std::int64_t step) {
  marks_->start_work(step);
  HostTimes& host = unfinished_[slot_of(step)].host;
  host.input_is_graph = input_is_graph_[slot_of(step)];
  host.is_graph = options_.graph && program.work.has_run && watch_ == nullptr;
  if (host.is_graph) return launch(program, step, false);
  queue_nodes(program, step, false, Mode::kEager);
  if (!options_.graph) return;
  program.work.has_run = true;
  // A graph starts after the work on the main lane only, so the main lane must wait for all others.
  join_main();
}

void Runner::join_main() {
  Stream& main = *streams_.at(kMainLane);
  for (auto& [lane, stream] : streams_) {
    if (lane == kMainLane) continue;
    joins_.at(lane)->record(*stream);
    main.wait(*joins_.at(lane));
  }
}

/// Work waits for its step's input; earlier graphs precede it on the main lane. Input waits for the
/// work that uses the same memory, and for earlier input on its lane.
void Runner::launch(PreparedProgram& program, std::int64_t step, bool data) {
  PreparedGraph& part = data ? program.input : program.work;
  auto& graph = part.graphs[slot_of(step)];
  if (graph == nullptr) capture(program, step, data);
  Stream* const streams[] = {part.origin};
  if (data) {
    for (NodeId id = 0; id < program.program->size(); ++id) {
      if (!program.at(id).is_data) continue;
      for (const Wait& wait : program.node(id).waits) {
        const PreparedNode& awaited = program.at(wait.node);
        if (!awaited.is_data) queue_wait(program, awaited, step - wait.steps_back, streams);
      }
    }
  } else if (input_done_ < step) {
    // All input is on one lane, so all of it is done when the last is.
    for (const NodeId id : program.last_data_of_lane) {
      queue_wait(program, program.at(id), step, streams);
    }
  }
  const Tag tag{.program = program.index, .step = step, .node = data ? kInputLaunch : kGraphLaunch};
  marks_->begin_launch(tag);
  devices_[0]->launch(*graph, *part.origin, step);
  marks_->end_launch(tag, *part.origin);
  part.ends[set_of(step)]->record(*part.origin);
}

void Runner::capture(PreparedProgram& program, std::int64_t step, bool data) {
  PreparedGraph& part = data ? program.input : program.work;
  marks_->capture(true);
  devices_[0]->begin_capture(*part.origin);
  if (!data) {
    joins_.at(kMainLane)->record(*part.origin);
    for (auto& [lane, stream] : streams_) {
      if (lane != kMainLane) stream->wait(*joins_.at(kMainLane));
    }
  }
  queue_nodes(program, step, data, Mode::kCaptured);
  if (!data) join_main();
  part.graphs[slot_of(step)] = devices_[0]->end_capture(*part.origin);
  marks_->capture(false);
}

void Runner::wait_for_input(const PreparedProgram& program, std::int64_t step) {
  if (is_graph(step, true)) {
    program.input.ends[set_of(step)]->synchronize();
  } else {
    for (const NodeId id : program.last_data_of_lane) {
      for (const auto& event : program.at(id).events[set_of(step)]) event->synchronize();
    }
  }
  input_done_ = step;
}

void Runner::queue_step(const Program& program, const Program* next, StepInput& input,
                        StepWatch* watch) {
  BARESTEP_REQUIRE(queued_ - finished_ < 2, "two steps are unfinished already");
  BARESTEP_REQUIRE(watch == nullptr || (queued_ == finished_ && fetched_ < queued_ && !next),
                   "nothing else is queued beside a watched step");
  PreparedProgram& now = prepared(program);
  if (current_ != &now) enter(now);
  const std::int64_t step = queued_;
  Unfinished& unfinished = unfinished_[slot_of(step)];
  unfinished = {.program = &now, .host = {.begin_s = now_s(), .joins_lanes = entered_ == step}};
  watch_ = watch;
  if (options_.fetch == Fetch::kBeforeClock && watch_ == nullptr) {
    fetch(now, step, input);
    wait_for_input(now, step);
  }

  unfinished.host.start_s = now_s();
  unfinished.host.overlaps_previous = queued_ > finished_;
  if (watch_ != nullptr) look([&] { watch_->begin(); });
  if (fetched_ != step) fetch(now, step, input);
  input.require(step);
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
  if (transport_ == nullptr) return;
  if (const std::string why = transport_->poll_error(); !why.empty()) {
    fail(ExitCode::kTryAgain, {"communication failed", "", fmt::format("{}, at step {}", why, step),
                               "see the errors of the other ranks"});
  }
}

void Runner::finish_step() {
  BARESTEP_REQUIRE(finished_ < queued_, "no step is queued");
  const std::int64_t step = finished_;
  const Unfinished& unfinished = unfinished_[slot_of(step)];
  const PreparedProgram& program = *unfinished.program;
  if (unfinished.host.is_graph) {
    program.work.ends[set_of(step)]->synchronize();  // after the input, too
  } else {
    wait_for_input(program, step);
    for (const NodeId id : program.last_of_lane) {
      for (const auto& event : program.at(id).events[set_of(step)]) event->synchronize();
    }
  }
  if (watch_ != nullptr) {
    check_for_errors(step);
    look([&] { watch_->end(); });
    watch_ = nullptr;
  }
  const double end_s = now_s();
  ++finished_;
  check_for_errors(step);

  StepTimeline& done = timeline_.next();
  done.step = step;
  done.host = unfinished.host;
  done.host.end_s = end_s;
  done.host.overlaps_next = queued_ > finished_;
  done.looks.swap(looks_);
  looks_.clear();
  marks_->read(program.index, done);
  fetch_next();
}

void Runner::step(const Program& program, const Program* next, StepInput& input) {
  queue_step(program, next, input);
  finish_step();
}

}  // namespace barestep
