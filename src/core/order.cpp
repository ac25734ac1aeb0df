// order() walks the unrolled list once, max_slots + 1 steps of it, and records proven completions
// in clocks. For each lane, a clock holds the last position of the unrolled list known to be
// finished there. Lanes are FIFO, so everything before it on that lane is finished too.
//
// A node's conflicts, the earlier nodes that touch the same bytes, are visited newest first. If the
// clock does not yet show that the earlier node is finished, a wait is added, and the clock of that
// node is merged into this one. Knowledge flows only forward in the list, so no later wait can make
// an earlier one superfluous: every wait is needed.
//
// max_slots + 1 steps suffice: two accesses further apart conflict only if nearer ones on the same
// two lanes do.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/program.h"

namespace barestep {
namespace {

constexpr NodeId kNoNode = -1;

/// The last nodes on one lane that read and wrote certain bytes. A lane is FIFO, so once these are
/// finished, all earlier ones on it are too.
struct Touch {
  LaneId lane;
  NodeId reader = kNoNode;
  NodeId writer = kNoNode;
};

/// The first piece that the tensor touches, and the one after the last.
std::pair<std::size_t, std::size_t> range_of(const std::vector<std::int64_t>& ends,
                                             const Tensor& tensor) {
  if (tensor.bytes() == 0) return {0, 0};
  const auto after = std::upper_bound(ends.begin(), ends.end(), tensor.offset_bytes);
  const auto end = std::lower_bound(after, ends.end(), tensor.end_bytes());
  const auto first = after == ends.begin() ? after : after - 1;
  return {static_cast<std::size_t>(first - ends.begin()),
          static_cast<std::size_t>(end - ends.begin())};
}

/// Filled by a walk over the program's nodes. Buffers are cut into pieces at every start and end of
/// an access, so each access touches whole pieces. A query costs as much as the pieces it covers;
/// over a whole program that is far less than the number of pairs of nodes.
class TouchedBytes {
 public:
  /// Starts with nothing touched. `program` must outlive this and keep its nodes.
  explicit TouchedBytes(const Program& program);

  /// Enters the next node of the walk. If a program is walked again, the later walk replaces the
  /// earlier.
  void enter(NodeId id) {
    const Node& node = program_.node(id);
    const auto parts = parts_of(node.op);
    const auto lanes = lanes_of(program_, node);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (const Access& access : parts[part]) {
        auto& touches = of_buffer(access.tensor.buffer).touches;
        const auto [first, end] = range_of(of_buffer(access.tensor.buffer).ends, access.tensor);
        for (std::size_t i = first; i < end; ++i) {
          auto touch = std::ranges::find(touches[i], lanes[part], &Touch::lane);
          if (touch == touches[i].end()) touch = touches[i].insert(touch, {.lane = lanes[part]});
          (access.writes ? touch->writer : touch->reader) = id;
        }
      }
    }
  }

  /// The pieces that share a byte with the tensor, each with the lanes that touched it. None for an
  /// empty tensor.
  [[nodiscard]] std::span<const std::vector<Touch>> pieces_of(const Tensor& tensor) const {
    const auto& [ends, touches] = at(pieces_, tensor.buffer);
    const auto [first, end] = range_of(ends, tensor);
    return std::span(touches).subspan(first, end - first);
  }

 private:
  /// The pieces of a buffer: piece i reaches from ends[i] to ends[i + 1], the last one to the
  /// buffer's end.
  struct Pieces {
    std::vector<std::int64_t> ends;
    std::vector<std::vector<Touch>> touches;
  };

  [[nodiscard]] Pieces& of_buffer(BufferId buffer) { return at(pieces_, buffer); }

  const Program& program_;
  std::vector<Pieces> pieces_;  // by buffer
};

TouchedBytes::TouchedBytes(const Program& program)
    : program_(program), pieces_(static_cast<std::size_t>(program.buffers().size())) {
  for (const Node& node : program.nodes()) {
    for (const Access& access : accesses_of(node.op)) {
      auto& ends = at(pieces_, access.tensor.buffer).ends;
      ends.push_back(access.tensor.offset_bytes);
      ends.push_back(access.tensor.end_bytes());
    }
  }
  for (auto& [ends, touches] : pieces_) {
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    touches.resize(ends.size());
  }
}

constexpr int kNever = -1;

/// For each lane, the last position known to be finished. A position is step * nodes + node.
using Clock = std::vector<int>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t lane = 0; lane < clock.size(); ++lane) {
    clock[lane] = std::max(clock[lane], other[lane]);
  }
}

/// A part of some node that touches the same bytes as this node, with at least one of the two
/// writing.
struct Conflict {
  NodeId node;
  std::size_t lane;  // of the part
  int slots;         // of the buffer: the two conflict every `slots` steps

  friend auto operator<=>(const Conflict&, const Conflict&) = default;
};

class Ordering {
 public:
  explicit Ordering(Program& program)
      : program_(program), steps_(program.buffers().max_slots() + 1) {
    for (Node& node : program.nodes()) node.waits.clear();
    find_lanes();
    find_conflicts();
  }

  void run() {
    const Clock nothing(lane_count_, kNever);
    lane_ends_.assign(lane_count_, nothing);
    node_ends_.assign(static_cast<std::size_t>(position(steps_, 0)), nothing);
    for (int step = 0; step < steps_; ++step) {
      for (NodeId node = 0; node < program_.size(); ++node) visit(step, node);
    }
  }

 private:
  void find_lanes() {
    for (const Node& node : program_.nodes()) {
      auto& lanes = lanes_.emplace_back();
      for (const LaneId& lane : lanes_of(program_, node)) {
        lanes.push_back(lane_numbers_.emplace(lane, lane_numbers_.size()).first->second);
      }
    }
    lane_count_ = lane_numbers_.size();
  }

  /// The first walk over the step finds each node's conflicts within the step. Afterwards `touched`
  /// holds the newest nodes of a whole step; with these, a node conflicts across steps.
  void find_conflicts() {
    TouchedBytes touched(program_);
    for (NodeId node = 0; node < program_.size(); ++node) {
      same_step_.push_back(conflicts_of(touched, node));
      touched.enter(node);
    }
    for (NodeId node = 0; node < program_.size(); ++node) {
      steps_before_.push_back(conflicts_of(touched, node));
    }
  }

  /// Only the newest on each lane; it covers those before it on that lane.
  [[nodiscard]] std::vector<Conflict> conflicts_of(const TouchedBytes& touched, NodeId node) {
    std::vector<Conflict> found;
    for (const Access& access : accesses_of(at(program_.nodes(), node).op)) {
      const int slots = program_.buffers()[access.tensor.buffer].slots;
      for (const auto& piece : touched.pieces_of(access.tensor)) {
        for (const Touch& touch : piece) {
          const NodeId newest = access.writes ? std::max(touch.reader, touch.writer) : touch.writer;
          if (newest == kNoNode) continue;
          found.push_back({newest, lane_numbers_.at(touch.lane), slots});
        }
      }
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  void visit(int step, NodeId node) {
    Clock known(lane_count_, kNever);
    for (const std::size_t lane : at(lanes_, node)) join(known, lane_ends_[lane]);
    for (const Wait& wait : at(program_.nodes(), node).waits) {
      if (wait.steps_back <= step) join(known, end_of(step - wait.steps_back, wait.node));
    }
    add_missing_waits(step, node, known);

    // Each lane of a collective knows only that its own part is finished; a node that waits for the
    // collective knows that all parts are.
    Clock& all_parts = end_of(step, node);
    all_parts = known;
    for (const std::size_t lane : at(lanes_, node)) {
      lane_ends_[lane] = known;
      lane_ends_[lane][lane] = position(step, node);
      all_parts[lane] = position(step, node);
    }
  }

  /// Newest first, since a wait for a later node often covers the earlier ones.
  void add_missing_waits(int step, NodeId node, Clock& known) {
    for (int back = 0; back <= step; ++back) {
      for (const Conflict& earlier : at(back == 0 ? same_step_ : steps_before_, node)) {
        if (back % earlier.slots != 0) continue;
        if (known[earlier.lane] >= position(step - back, earlier.node)) continue;
        at(program_.nodes(), node).waits.push_back({earlier.node, back});
        join(known, end_of(step - back, earlier.node));
      }
    }
  }

  [[nodiscard]] int position(int step, NodeId node) const { return step * program_.size() + node; }
  Clock& end_of(int step, NodeId node) { return at(node_ends_, position(step, node)); }

  Program& program_;
  int steps_;
  std::size_t lane_count_ = 0;
  std::vector<std::vector<std::size_t>> lanes_;  // by node and part
  std::map<LaneId, std::size_t> lane_numbers_;
  std::vector<std::vector<Conflict>> same_step_;     // by node, newest first
  std::vector<std::vector<Conflict>> steps_before_;  // by node, newest first
  std::vector<Clock> lane_ends_;                     // by lane: the clock after its last part
  std::vector<Clock> node_ends_;  // by position: what holds when all parts are done
};

}  // namespace

void order(Program& program) {
  Ordering(program).run();
}

}  // namespace barestep
