// order() walks the unrolled list once, max_slots + 1 steps of it, and keeps what is certain as
// clocks. A clock says for each lane which position of the unrolled list is known to be finished
// there; lanes are FIFO, so everything before it on that lane is finished too.
//
// Where a node touches bytes that an earlier one touches, newest first, and the clock does not yet
// say that the earlier one is finished, a wait is added, and what the earlier one knew is known
// too. Certainty only flows forward in the list, so no wait that is added later can make this one
// superfluous: every wait is needed.
//
// max_slots + 1 steps suffice: two accesses further apart meet only if nearer ones on the same two
// lanes meet too.
#include "core/order.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "core/index.h"
#include "core/touched_bytes.h"

namespace barestep {
namespace {

constexpr int kNever = -1;

/// For each lane the last position known to be finished. A position is step * nodes + node.
using Clock = std::vector<int>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t lane = 0; lane < clock.size(); ++lane) {
    clock[lane] = std::max(clock[lane], other[lane]);
  }
}

/// A part of some node that touches the same bytes as this node, one of the two writing.
struct Conflict {
  NodeId node;
  std::size_t lane;  // of the part
  int slots;         // of the buffer: the two meet every so many steps

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

  /// A walk over the step finds what each node meets earlier in it. What the walk leaves behind are
  /// the newest nodes of a whole step, which a node meets in those before its own.
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

  /// With the newest on each lane, which those before it on that lane are covered by.
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

    // Each lane of a collective learns that its own part is finished; who waits for the node learns
    // that all are.
    Clock& all_parts = end_of(step, node);
    all_parts = known;
    for (const std::size_t lane : at(lanes_, node)) {
      lane_ends_[lane] = known;
      lane_ends_[lane][lane] = position(step, node);
      all_parts[lane] = position(step, node);
    }
  }

  /// Newest first: a wait for a later node often covers the earlier ones.
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
  std::vector<Clock> lane_ends_;                     // by lane: what its last part so far knows
  std::vector<Clock> node_ends_;  // by position: what holds when all parts are done
};

}  // namespace

void order(Program& program) {
  Ordering(program).run();
}

}  // namespace barestep
