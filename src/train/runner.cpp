#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>

#include "core/error.h"

namespace barestep {
namespace {

/// Waits reach at most two steps back, so three sets of events are enough.
constexpr int kEventSets = 3;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t set_of(std::int64_t step) {
  return static_cast<std::size_t>(step % kEventSets);
}
std::size_t slot_of(std::int64_t step) {
  return static_cast<std::size_t>(step % 2);
}

constexpr LaneId kMainLane{0, Lane::kCompute};

}  // namespace

struct Runner::PreparedNode {
  std::vector<Stream*> streams;  // one per part
  // Per event set one event per part; empty where nobody waits for the node.
  std::array<std::vector<std::unique_ptr<Event>>, kEventSets> events;
  bool is_data = false;
  bool reads_pinned = false;
};

/// A run of nodes of one phase on the compute lane of device 0.
struct Runner::Border {
  NodeId first = 0, last = 0;
  Phase phase = Phase::kForward;
  std::optional<Phase> waits_for;  // what the gap before it is a wait for
  std::array<std::unique_ptr<Event>, kEventSets> begin, end;
};

struct Runner::PreparedProgram {
  const Program* program = nullptr;
  int index = 0;
  std::vector<PreparedNode> nodes;
  std::vector<Border> borders;
  std::vector<int> border_of;  // per node: its border, or -1
  std::array<std::unique_ptr<Event>, kEventSets> start;
  std::vector<NodeId> last_of_lane;       // the last node on each lane, data nodes left out
  std::vector<NodeId> last_data_of_lane;  // the same of the data nodes

  void find_borders(std::span<Device* const> devices);
  void make_events(std::span<Device* const> devices);
};

namespace {

std::optional<Phase> awaited_phase(const Program& program, const Node& node) {
  std::optional<Phase> found;
  for (const Wait& wait : node.waits) {
    const Phase phase = program.nodes()[static_cast<std::size_t>(wait.node)].phase;
    if (phase == Phase::kReduce) return phase;
    if (phase == Phase::kData) found = phase;
  }
  return found;
}

/// The last node on every lane among those `wanted` picks.
template <class Wanted>
std::vector<NodeId> last_of_lanes(const Program& program, const Wanted& wanted) {
  std::map<LaneId, NodeId> last;
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.nodes()[static_cast<std::size_t>(id)];
    if (!wanted(node)) continue;
    for (const LaneId& lane : lanes_of(program, node)) last[lane] = id;
  }
  std::vector<NodeId> nodes;
  for (const auto& [lane, id] : last) nodes.push_back(id);
  return nodes;
}

}  // namespace

void Runner::PreparedProgram::find_borders(std::span<Device* const> devices) {
  border_of.assign(nodes.size(), -1);
  for (NodeId id = 0; id < program->size(); ++id) {
    const Node& node = program->nodes()[static_cast<std::size_t>(id)];
    const bool on_main = node.device == 0 && node.lane == Lane::kCompute &&
                         node.phase != Phase::kData && std::holds_alternative<DeviceOp>(node.op);
    if (!on_main) continue;
    if (borders.empty() || borders.back().phase != node.phase) {
      Border border;
      border.first = id;
      border.phase = node.phase;
      border.waits_for = awaited_phase(*program, node);
      for (std::size_t set = 0; set < kEventSets; ++set) {
        border.begin[set] = devices[0]->new_event();
        border.end[set] = devices[0]->new_event();
      }
      borders.push_back(std::move(border));
    }
    borders.back().last = id;
    border_of[static_cast<std::size_t>(id)] = static_cast<int>(borders.size()) - 1;
  }
}

void Runner::PreparedProgram::make_events(std::span<Device* const> devices) {
  std::vector<bool> needed(nodes.size(), false);
  const auto need = [&](NodeId id) { needed[static_cast<std::size_t>(id)] = true; };
  for (const Node& node : program->nodes()) {
    for (const Wait& wait : node.waits) need(wait.node);
  }
  last_of_lane =
      last_of_lanes(*program, [](const Node& node) { return node.phase != Phase::kData; });
  last_data_of_lane =
      last_of_lanes(*program, [](const Node& node) { return node.phase == Phase::kData; });
  for (const NodeId id : last_of_lane) need(id);
  for (const NodeId id : last_data_of_lane) need(id);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!needed[i]) continue;
    for (const LaneId& lane : lanes_of(*program, program->nodes()[i])) {
      Device& device = *devices[static_cast<std::size_t>(lane.device)];
      for (auto& events : nodes[i].events) events.push_back(device.new_event());
    }
  }
  for (auto& event : start) event = devices[0]->new_event();
}

double StepTimes::residue_s() const {
  return wall_s - std::accumulate(phase_s.begin(), phase_s.end(), idle_s);
}

Runner::Runner(std::span<Device* const> devices, Communicator* communicator, const Buffers& buffers,
               const MemoryPlan& plan, Fetch fetch)
    : devices_(devices.begin(), devices.end()),
      communicator_(communicator),
      buffers_(buffers),
      fetch_(fetch) {
  arenas_.reserve(devices_.size());
  for (Device* device : devices_) arenas_.emplace_back(*device, plan, buffers);
  addresses_ = bind(buffers, arenas_);
}

Runner::~Runner() {
  // Queued work may still read programs and memory that go away next.
  for (auto& [lane, stream] : streams_) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {
      // finish_step() reported it, or the run is being given up anyway.
    }
  }
}

const Addresses& Runner::addresses(std::int64_t step) const {
  return addresses_[slot_of(step)];
}

void Runner::add(const Program& program) {
  auto made = std::make_unique<PreparedProgram>();
  made->program = &program;
  made->index = static_cast<int>(programs_.size());
  made->nodes.resize(program.nodes().size());
  const auto make_stream = [&](const LaneId& lane) {
    if (streams_.contains(lane)) return;
    Device& device = *devices_[static_cast<std::size_t>(lane.device)];
    streams_[lane] = device.new_stream(name_of(lane.lane));
    joined_[lane] = device.new_event();
  };
  make_stream(kMainLane);
  for (std::size_t i = 0; i < made->nodes.size(); ++i) {
    const Node& node = program.nodes()[i];
    PreparedNode& prepared = made->nodes[i];
    prepared.is_data = node.phase == Phase::kData;
    for (const Access& access : accesses_of(node.op)) {
      if (buffers_[access.tensor.buffer].pinned && !access.writes) prepared.reads_pinned = true;
    }
    for (const LaneId& lane : lanes_of(program, node)) {
      make_stream(lane);
      prepared.streams.push_back(streams_.at(lane).get());
    }
    if (const auto* op = std::get_if<DeviceOp>(&node.op)) {
      devices_[static_cast<std::size_t>(node.device)]->prepare(*op);
    } else {
      BARESTEP_REQUIRE(communicator_ != nullptr, "a program with collectives needs a communicator");
      communicator_->prepare(std::get<Collective>(node.op));
    }
  }
  made->find_borders(devices_);
  made->make_events(devices_);
  programs_.push_back(std::move(made));
}

Runner::PreparedProgram& Runner::prepared(const Program& program) {
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& made) { return made->program == &program; });
  BARESTEP_REQUIRE(found != programs_.end(), "the program was not added to the runner");
  return **found;
}

void Runner::enter(PreparedProgram& program) {
  // Waits name nodes of their own program only. So every lane first joins every other.
  for (auto& [lane, stream] : streams_) joined_.at(lane)->record(*stream);
  for (auto& [lane, stream] : streams_) {
    for (auto& [other, event] : joined_) {
      if (other != lane) stream->wait(*event);
    }
  }
  current_ = &program;
  entered_ = queued_;
}

void Runner::queue_node(PreparedProgram& prepared, std::int64_t step, NodeId id) {
  const Node& node = prepared.program->nodes()[static_cast<std::size_t>(id)];
  PreparedNode& made = prepared.nodes[static_cast<std::size_t>(id)];
  for (const Wait& wait : node.waits) {
    const std::int64_t awaited_step = step - wait.steps_back;
    if (awaited_step < entered_) continue;
    const PreparedNode& awaited = prepared.nodes[static_cast<std::size_t>(wait.node)];
    for (const auto& event : awaited.events[set_of(awaited_step)]) {
      for (Stream* stream : made.streams) stream->wait(*event);
    }
  }

  const int border_index = prepared.border_of[static_cast<std::size_t>(id)];
  const Border* border =
      border_index < 0 ? nullptr : &prepared.borders[static_cast<std::size_t>(border_index)];
  if (border != nullptr && border->first == id) {
    border->begin[set_of(step)]->record(*made.streams[0]);
  }

  const Tag tag{.program = prepared.index, .step = step, .node = id};
  const Addresses& table = addresses_[slot_of(step)];
  if (const auto* op = std::get_if<DeviceOp>(&node.op)) {
    devices_[static_cast<std::size_t>(node.device)]->run(*op, table, *made.streams[0], tag);
  } else {
    communicator_->run(std::get<Collective>(node.op), table, made.streams, tag);
  }

  if (border != nullptr && border->last == id) border->end[set_of(step)]->record(*made.streams[0]);
  const auto& events = made.events[set_of(step)];
  for (std::size_t part = 0; part < events.size(); ++part) {
    events[part]->record(*made.streams[part]);
  }
}

void Runner::fetch(PreparedProgram& program, std::int64_t step, StepInput& input) {
  auto& fences = fences_[slot_of(step)];
  for (const auto& fence : fences) fence->synchronize();
  input.fill(step, *program.program, addresses_[slot_of(step)]);
  std::size_t fence = 0;
  for (NodeId id = 0; id < program.program->size(); ++id) {
    const PreparedNode& node = program.nodes[static_cast<std::size_t>(id)];
    if (!node.is_data) continue;
    queue_node(program, step, id);
    if (!node.reads_pinned) continue;
    // The first fetches make the fences; later ones find them.
    if (fence == fences.size()) fences.push_back(devices_[0]->new_event());
    fences[fence++]->record(*node.streams[0]);
  }
  fetched_ = step;
}

void Runner::queue_work(PreparedProgram& program, std::int64_t step) {
  for (NodeId id = 0; id < program.program->size(); ++id) {
    if (!program.nodes[static_cast<std::size_t>(id)].is_data) queue_node(program, step, id);
  }
}

void Runner::queue_step(const Program& program, const Program* next, StepInput& input) {
  BARESTEP_REQUIRE(queued_ - finished_ < kEventSets - 1, "too many steps are queued");
  PreparedProgram& now = prepared(program);
  if (current_ != &now) enter(now);
  const std::int64_t step = queued_;
  if (fetch_ == Fetch::kBeforeClock) {
    fetch(now, step, input);
    for (const NodeId id : now.last_data_of_lane) {
      for (const auto& event : now.nodes[static_cast<std::size_t>(id)].events[set_of(step)]) {
        event->synchronize();
      }
    }
  }

  Running& running = running_[set_of(step)];
  running = {.program = &now, .start_s = now_s(), .fetch_end_s = 0};
  now.start[set_of(step)]->record(*streams_.at(kMainLane));
  if (fetched_ != step) fetch(now, step, input);
  queue_work(now, step);
  ++queued_;
  if (fetch_ == Fetch::kAhead && next == &program) {
    fetch(now, step + 1, input);
    running.fetch_end_s = now_s();
  }
}

StepTimes Runner::times_of(const PreparedProgram& program, std::int64_t step) const {
  StepTimes times;
  const Event* previous = program.start[set_of(step)].get();
  for (const Border& border : program.borders) {
    const Event& begin = *border.begin[set_of(step)];
    const Event& end = *border.end[set_of(step)];
    const double gap_s = begin.seconds_since(*previous);
    if (border.waits_for) {
      times.phase_s[static_cast<std::size_t>(*border.waits_for)] += gap_s;
    } else {
      times.idle_s += gap_s;
    }
    times.phase_s[static_cast<std::size_t>(border.phase)] += end.seconds_since(begin);
    previous = &end;
  }
  return times;
}

StepTimes Runner::finish_step() {
  BARESTEP_REQUIRE(finished_ < queued_, "no step is queued");
  const std::int64_t step = finished_;
  const Running& running = running_[set_of(step)];
  const PreparedProgram& program = *running.program;
  for (const auto& nodes : {program.last_data_of_lane, program.last_of_lane}) {
    for (const NodeId id : nodes) {
      for (const auto& event : program.nodes[static_cast<std::size_t>(id)].events[set_of(step)]) {
        event->synchronize();
      }
    }
  }
  const double end_s = now_s();
  ++finished_;
  for (auto& [lane, stream] : streams_) stream->check();
  if (communicator_ != nullptr) {
    if (const std::string why = communicator_->poll_error(); !why.empty()) {
      fail(ExitCode::kTryAgain, {.what = "communication failed",
                                 .value = "",
                                 .why = fmt::format("{}, at step {}", why, step),
                                 .remedy = "see the errors of the other ranks"});
    }
  }

  StepTimes times = times_of(program, step);
  times.wall_s = end_s - running.start_s;
  // The host may still have been fetching the next input when the device was done.
  const double device_s = times.wall_s - times.residue_s();
  const double fetch_s = running.fetch_end_s - running.start_s;
  if (fetch_s > device_s) {
    times.phase_s[static_cast<std::size_t>(Phase::kData)] += fetch_s - device_s;
  }
  return times;
}

StepTimes Runner::step(const Program& program, const Program* next, StepInput& input) {
  queue_step(program, next, input);
  return finish_step();
}

}  // namespace barestep
