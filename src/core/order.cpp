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
#include <tuple>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/program.h"

namespace barestep {
namespace {

constexpr NodeId kNoNode = -1;

/// What a part of a node on this lane reads or writes: pieces first .. end - 1 of a buffer.
struct PieceAccess {
  Tensor tensor;
  bool writes = false;
  std::size_t lane = 0;
  std::size_t first = 0, end = 0;
};

/// The last nodes on one lane that read and wrote a piece. A lane is FIFO, so once these are
/// finished, all earlier ones on it are too.
struct Touch {
  std::size_t lane = 0;
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

constexpr int kNever = -1;

/// For each lane, the last position known to be finished. A position is step * nodes + node.
using Clock = std::span<int>;

void join(Clock clock, Clock other) {
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
    find_accesses();
    cut_into_pieces();
    find_conflicts();
  }

  void run() {
    known_.assign(lane_count_, kNever);
    lane_ends_.assign(lane_count_ * lane_count_, kNever);
    node_ends_.assign(lane_count_ * static_cast<std::size_t>(position(steps_, 0)), kNever);
    for (int step = 0; step < steps_; ++step) {
      for (NodeId node = 0; node < program_.size(); ++node) visit(step, node);
    }
  }

 private:
  void find_accesses() {
    std::map<LaneId, std::size_t> numbers;
    for (const Node& node : program_.nodes()) {
      auto& lanes = lanes_.emplace_back();
      for (const LaneId& lane : lanes_of(program_, node)) {
        lanes.push_back(numbers.emplace(lane, numbers.size()).first->second);
      }
      first_accesses_.push_back(accesses_.size());
      const auto parts = parts_of(node.op);
      for (std::size_t part = 0; part < parts.size(); ++part) {
        for (const auto& [tensor, writes] : parts[part]) {
          accesses_.push_back({tensor, writes, lanes[part]});
        }
      }
    }
    first_accesses_.push_back(accesses_.size());
    lane_count_ = numbers.size();
  }

  [[nodiscard]] std::span<const PieceAccess> accesses_of(NodeId node) const {
    const std::size_t first = at(first_accesses_, node);
    return std::span(accesses_).subspan(first, at(first_accesses_, node + 1) - first);
  }

  /// At every start and end of an access, so each access touches whole pieces: piece i of a buffer
  /// reaches from its ends[i] to ends[i + 1], the last one to the buffer's end. A query costs as
  /// much as the pieces it covers; over a program that is far less than the number of pairs of
  /// nodes.
  void cut_into_pieces() {
    std::vector<std::vector<std::int64_t>> all_ends(
        static_cast<std::size_t>(program_.buffers().size()));
    for (const PieceAccess& access : accesses_) {
      auto& ends = at(all_ends, access.tensor.buffer);
      ends.push_back(access.tensor.offset_bytes);
      ends.push_back(access.tensor.end_bytes());
    }
    for (auto& ends : all_ends) {
      std::ranges::sort(ends);
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      touches_.emplace_back(ends.size());
    }
    for (PieceAccess& access : accesses_) {
      std::tie(access.first, access.end) =
          range_of(at(all_ends, access.tensor.buffer), access.tensor);
    }
  }

  /// The first walk over the step finds each node's conflicts within the step. Afterwards
  /// `touches_` has the newest nodes of a whole step; with these, a node conflicts across steps.
  void find_conflicts() {
    for (NodeId node = 0; node < program_.size(); ++node) {
      same_step_.push_back(conflicts_of(node));
      enter(node);
    }
    for (NodeId node = 0; node < program_.size(); ++node) {
      steps_before_.push_back(conflicts_of(node));
    }
  }

  void enter(NodeId node) {
    for (const PieceAccess& access : accesses_of(node)) {
      for (std::size_t i = access.first; i < access.end; ++i) {
        std::vector<Touch>& touches = at(touches_, access.tensor.buffer)[i];
        auto touch = std::ranges::find(touches, access.lane, &Touch::lane);
        if (touch == touches.end()) touch = touches.insert(touch, {.lane = access.lane});
        (access.writes ? touch->writer : touch->reader) = node;
      }
    }
  }

  /// Only the newest on each lane; it covers those before it on that lane.
  [[nodiscard]] std::vector<Conflict> conflicts_of(NodeId node) const {
    std::vector<Conflict> found;
    found.reserve(2 * accesses_of(node).size());
    for (const PieceAccess& access : accesses_of(node)) {
      const int slots = program_.buffers()[access.tensor.buffer].slots;
      for (std::size_t i = access.first; i < access.end; ++i) {
        for (const Touch& touch : at(touches_, access.tensor.buffer)[i]) {
          const NodeId newest = access.writes ? std::max(touch.reader, touch.writer) : touch.writer;
          if (newest != kNoNode) found.push_back({newest, touch.lane, slots});
        }
      }
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  void visit(int step, NodeId node) {
    std::ranges::fill(known_, kNever);
    for (const std::size_t lane : at(lanes_, node)) join(known_, lane_end(lane));
    for (const Wait& wait : at(program_.nodes(), node).waits) {
      if (wait.steps_back <= step) join(known_, end_of(step - wait.steps_back, wait.node));
    }
    add_missing_waits(step, node);

    // Each lane of a collective knows only that its own part is finished; a node that waits for the
    // collective knows that all parts are.
    const Clock all_parts = end_of(step, node);
    std::ranges::copy(known_, all_parts.begin());
    for (const std::size_t lane : at(lanes_, node)) {
      std::ranges::copy(known_, lane_end(lane).begin());
      lane_end(lane)[lane] = position(step, node);
      all_parts[lane] = position(step, node);
    }
  }

  /// Newest first, since a wait for a later node often covers the earlier ones.
  void add_missing_waits(int step, NodeId node) {
    for (int back = 0; back <= step; ++back) {
      for (const Conflict& earlier : at(back == 0 ? same_step_ : steps_before_, node)) {
        if (back % earlier.slots != 0) continue;
        if (known_[earlier.lane] >= position(step - back, earlier.node)) continue;
        at(program_.nodes(), node).waits.push_back({earlier.node, back});
        join(known_, end_of(step - back, earlier.node));
      }
    }
  }

  [[nodiscard]] int position(int step, NodeId node) const { return step * program_.size() + node; }
  [[nodiscard]] Clock clock(std::vector<int>& of, std::size_t number) const {
    return Clock(of).subspan(number * lane_count_, lane_count_);
  }
  Clock lane_end(std::size_t lane) { return clock(lane_ends_, lane); }
  Clock end_of(int step, NodeId node) {
    return clock(node_ends_, static_cast<std::size_t>(position(step, node)));
  }

  Program& program_;
  int steps_;
  std::size_t lane_count_ = 0;
  std::vector<std::vector<std::size_t>> lanes_;           // by node and part
  std::vector<PieceAccess> accesses_;                     // of all nodes
  std::vector<std::size_t> first_accesses_;               // of each node, and the end
  std::vector<std::vector<std::vector<Touch>>> touches_;  // by buffer and piece
  std::vector<std::vector<Conflict>> same_step_;          // by node, newest first
  std::vector<std::vector<Conflict>> steps_before_;       // by node, newest first
  std::vector<int> known_;                                // the clock of the node that is visited
  std::vector<int> lane_ends_;                            // the clock after each lane's last part
  std::vector<int> node_ends_;  // by position, the clock when all parts are done
};

}  // namespace

void order(Program& program) {
  Ordering(program).run();
}

}  // namespace barestep
