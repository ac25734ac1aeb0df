// The runner: executes programs on devices, step after step.
//
// It queues a step's nodes on their lanes' streams, with an event after every node that others wait
// for, and marks when the step's work begins and ends on every lane (train/timeline.h). With
// graphs, a program's first step runs eagerly, so that libraries do their loading and setup outside
// captures. Then the data nodes, and all others, are captured once per slot and launched as two
// units. Nothing is allocated in a step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/device.h"
#include "core/index.h"
#include "core/plan.h"
#include "core/program.h"
#include "core/transport.h"
#include "train/step_marks.h"
#include "train/timeline.h"

namespace barestep {

/// Work inside a captured graph has its own sets of events, one per slot.
constexpr int kEventSets = kStepSets + 2;

constexpr std::size_t captured_set_of(std::int64_t step) {
  return kStepSets + slot_of(step);
}

struct PreparedNode {
  std::vector<Stream*> streams;  // one per part
  // For each set of a step, or each slot inside a graph: one event per part. Empty if nothing waits
  // for the node.
  std::array<std::vector<std::unique_ptr<Event>>, kEventSets> events;
  bool is_data = false;
  // If it is the first of several nodes that its device runs as one launch: their ops, and the
  // other nodes, for whose waits it waits too.
  std::vector<const DeviceOp*> joined{};
  std::vector<NodeId> followers{};
  bool is_follower = false;
};

/// The most ops that may run as one launch.
constexpr std::size_t kMaxJoined = 16;

/// A part of a program's steps as a graph: the input, or the rest of the work.
struct PreparedGraph {
  Stream* origin = nullptr;                      // captured from and launched on; null: no nodes
  std::array<std::unique_ptr<Graph>, 2> graphs;  // by slot, once captured
  std::array<std::unique_ptr<Event>, kStepSets> ends;  // by set: recorded after its launch
  bool has_run = false;  // once outside a graph, so that libraries have loaded what they need
};

/// A program with the streams and events needed to run it.
struct PreparedProgram {
  /// `streams` returns the stream of a lane. Creates all events. `in_graph`: the program's steps
  /// are graphs, for which all its input must be on one lane.
  template <class StreamOf>
  PreparedProgram(const Program& source, int number, std::span<Device* const> devices,
                  bool in_graph, const StreamOf& stream_of)
      : program(&source), index(number), nodes(source.nodes().size()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const LaneId& lane : lanes_of(source, source.nodes()[i])) {
        nodes[i].streams.push_back(stream_of(lane));
      }
    }
    find_roles();
    make_events(devices);
    if (in_graph) prepare_graphs(*devices[0], *stream_of(kMainLane));
  }

  /// Lets the devices, which have prepared its ops, choose which of them run as one launch.
  void join_ops(std::span<Device* const> devices);

  [[nodiscard]] const Node& node(NodeId id) const { return program->node(id); }
  [[nodiscard]] PreparedNode& at(NodeId id) { return barestep::at(nodes, id); }
  [[nodiscard]] const PreparedNode& at(NodeId id) const { return barestep::at(nodes, id); }

  const Program* program;
  int index;  // in the tags of its work
  std::vector<PreparedNode> nodes;
  std::vector<NodeId> last_of_lane;       // by lane: the last node, without data nodes
  std::vector<NodeId> last_data_of_lane;  // by lane: the last data node
  PreparedGraph input, work;

 private:
  void find_roles();
  /// Of the nodes of a lane, how many from the first on run as one launch.
  std::size_t join_first(std::span<const NodeId> lane, Device& device);
  void make_events(std::span<Device* const> devices);
  void prepare_graphs(Device& device, Stream& main);
};

/// Writes the host's input to a step into the pinned slots; this one none.
class StepInput {
 public:
  virtual ~StepInput() = default;

  /// Called before the data nodes of `step` are queued, when its pinned slots are free. May block.
  virtual void fill(std::int64_t /*step*/, const Program& /*program*/,
                    const Addresses& /*addresses*/) {}

  /// Throws why fill() could not write the input of `step`, if it could not. Called before the work
  /// of the step is queued.
  virtual void require(std::int64_t /*step*/) const {}

  /// How finely the step is measured: by nodes, which needs a profiler that measures them, or not.
  /// Called once, before fill().
  [[nodiscard]] virtual RunDetail detail_of(std::int64_t /*step*/) { return RunDetail::kRuns; }
};

/// Looks at a step between its nodes, which then run one by one. The work before each call is done.
/// Its time is the host's, not the step's; see StepTimeline::looks.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  virtual void begin() = 0;
  virtual void after(NodeId node) = 0;
  virtual void end() = 0;
};

enum class Fetch {
  kAhead,       // a step's input is fetched during the step before; waits are measured
  kInStep,      // a step's input is fetched after its clock has started
  kBeforeClock  // a step's input is ready before its clock starts
};

struct RunnerOptions {
  Fetch fetch = Fetch::kAhead;
  bool graph = false;  // captures and launches graphs; one device only
  bool phases = true;  // graphs show them; else a step in graphs is measured by lanes
  MemoryKind host_memory = MemoryKind::kPinned;  // for pinned buffers; a graph needs kPinned
  StepProfiler* profiler = nullptr;              // may be null; must outlive the runner
};

class Runner {
 public:
  /// Allocates the arenas. All references must outlive the runner. `transport` may be null if no
  /// program contains a collective. Throws Error(kMemory). Blocks.
  Runner(std::span<Device* const> devices, Transport* transport, const Buffers& buffers,
         const MemoryPlan& plan, RunnerOptions options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Prepares a program; call once for each program before its first step. Blocks.
  void add(const Program& program);

  /// Queues the next step. `next` is the program of the step after it, or null. If it is the same
  /// program, its input is fetched ahead: by this call or, if two steps are unfinished, by the
  /// finish_step() that frees its slot. `input` must live until then. At most two steps may be
  /// unfinished. Blocks while a pinned slot is in use. Throws what input.require() throws; then the
  /// step is not queued. A step with a `watch`, which must live until the step is finished, runs
  /// alone: all earlier ones are finished, its input is not fetched yet, and `next` is null.
  void queue_step(const Program& program, const Program* next, StepInput& input,
                  StepWatch* watch = nullptr);

  /// Blocks until the oldest queued step is done, which then is the newest in the timeline. Fetches
  /// input that queue_step() left. Throws errors that a device or transport reported.
  void finish_step();

  /// Runs the watched step again, from its watch's end(), with the input in its slots, at these
  /// addresses, which must outlive the runner; calls after() again, and nothing else. Blocks.
  void run_again(const Addresses& table);

  /// Calls queue_step, then finish_step.
  void step(const Program& program, const Program* next, StepInput& input);

  /// The most recent finished steps.
  [[nodiscard]] const Timeline& timeline() const { return timeline_; }

  /// An upper bound of the error of the timeline's times, in seconds.
  [[nodiscard]] double clock_error_s() const { return marks_->clock_error_s(); }

  /// The number of steps queued so far; also the number of the next one.
  [[nodiscard]] std::int64_t steps() const { return queued_; }

  /// Whether the next step's input has been fetched already.
  [[nodiscard]] bool has_fetched_next() const { return fetched_ == queued_; }

  /// The number of steps finished so far; also the number of the oldest unfinished one.
  [[nodiscard]] std::int64_t finished() const { return finished_; }

  /// The addresses of a step's slots.
  [[nodiscard]] const Addresses& addresses(std::int64_t step) const;

  [[nodiscard]] std::span<const Arena> arenas() const { return arenas_; }
  [[nodiscard]] Stream& stream(LaneId lane) const { return *streams_.at(lane); }

 private:
  /// Which events order a node's work.
  enum class Mode { kEager, kCaptured };
  using Events = std::vector<std::unique_ptr<Event>>;

  Stream* stream_of(const LaneId& lane);
  /// Gives the stream its lane's workspace buffer, if the device has one.
  void assign_workspace(Stream& stream, int device);
  PreparedProgram& prepared(const Program& program);
  void enter(PreparedProgram& program);
  void fetch(PreparedProgram& program, std::int64_t step, StepInput& input);
  /// Fetches the input of the next step, if it is wanted and its slot is free.
  void fetch_next();
  void queue_node(PreparedProgram& program, std::int64_t step, NodeId id, Mode mode);
  void queue_op(PreparedProgram& program, NodeId id, const Tag& tag, const Addresses& table);
  /// Calls `at` and keeps its time.
  void look(const std::function<void()>& at);
  void queue_waits(const PreparedProgram& program, std::int64_t step, NodeId id, Mode mode);
  void queue_nodes(PreparedProgram& program, std::int64_t step, bool data, Mode mode);
  void queue_wait(const PreparedProgram& program, const PreparedNode& awaited,
                  std::int64_t awaited_step, std::span<Stream* const> streams);
  /// Whether a step's input, or the rest of its work, was queued as a graph.
  [[nodiscard]] bool is_graph(std::int64_t step, bool data) const;

  void queue_work(PreparedProgram& program, std::int64_t step);
  /// From here on, work on the main lane runs after that of all other lanes.
  void join_main();
  /// Queues the graph of a step's data nodes, or that of the others.
  void launch(PreparedProgram& program, std::int64_t step, bool data);
  void capture(PreparedProgram& program, std::int64_t step, bool data);
  void wait_for_input(const PreparedProgram& program, std::int64_t step);
  void check_for_errors(std::int64_t step);

  std::vector<Device*> devices_;
  Transport* transport_;
  const Buffers& buffers_;
  RunnerOptions options_;
  std::vector<Arena> arenas_;
  std::array<Addresses, 2> addresses_;
  std::unique_ptr<StepMarks> marks_;
  Timeline timeline_;
  std::map<LaneId, std::unique_ptr<Stream>> streams_;
  std::map<LaneId, std::unique_ptr<Event>>
      joins_;  // for joining lanes: when programs change or graphs begin
  std::vector<std::unique_ptr<PreparedProgram>> programs_;

  PreparedProgram* current_ = nullptr;
  std::int64_t entered_ = 0;  // the first step of the current program
  std::int64_t queued_ = 0;
  std::int64_t fetched_ = -1;        // the last step whose input was fetched
  std::int64_t input_done_ = -1;     // the last step whose input the host has waited for
  StepInput* next_input_ = nullptr;  // of the next step, which is of current_, while it is wanted
  std::int64_t finished_ = 0;
  StepWatch* watch_ = nullptr;   // of the unfinished step, or null
  std::vector<WallTime> looks_;  // times of its calls

  struct Unfinished {
    PreparedProgram* program = nullptr;
    HostTimes host{};
  };
  std::array<Unfinished, 2> unfinished_;  // by step mod 2
  std::array<bool, 2> input_is_graph_{};  // by step mod 2, of those fetched
};

}  // namespace barestep
