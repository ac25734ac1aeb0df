// The checker unrolls the program and computes, for every vertex, the set of vertices that are
// finished before it starts, as a bitset. In each step, a node has a start vertex and one vertex
// for each part. This code is independent of order(), so neither repeats the other's mistakes.
#include "core/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr int kFarthestWait = 2;

struct ByteRange {
  BufferId buffer = kNoBuffer;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The bytes that two accesses, `steps_back` steps apart, both touch if one of them writes.
std::optional<ByteRange> meeting(const Buffers& buffers, const Access& a, const Access& b,
                                 int steps_back) {
  if (a.tensor.buffer != b.tensor.buffer || !(a.writes || b.writes)) return std::nullopt;
  if (steps_back % buffers[a.tensor.buffer].slots != 0) return std::nullopt;
  const std::int64_t begin = std::max(a.tensor.offset_bytes, b.tensor.offset_bytes);
  const std::int64_t end = std::min(a.tensor.end_bytes(), b.tensor.end_bytes());
  if (begin >= end) return std::nullopt;
  return ByteRange{a.tensor.buffer, begin, end};
}

std::optional<ByteRange> meeting(const Buffers& buffers, const std::vector<Access>& first,
                                 const std::vector<Access>& second, int steps_back) {
  for (const Access& a : first) {
    for (const Access& b : second) {
      if (const auto range = meeting(buffers, a, b, steps_back)) return range;
    }
  }
  return std::nullopt;
}

void require_legal_waits(const Program& program) {
  for (std::size_t node = 0; node < program.nodes().size(); ++node) {
    for (const Wait& wait : program.nodes()[node].waits) {
      BARESTEP_REQUIRE(wait.node >= 0 && wait.node < program.size(),
                       fmt::format("node {} waits for a node that does not exist", node));
      BARESTEP_REQUIRE(wait.steps_back >= 0 && wait.steps_back <= kFarthestWait,
                       fmt::format("node {} waits {} steps back", node, wait.steps_back));
      BARESTEP_REQUIRE(wait.steps_back > 0 || static_cast<std::size_t>(wait.node) < node,
                       fmt::format("node {} waits for node {} of the same step", node, wait.node));
    }
  }
}

class Unrolled {
 public:
  explicit Unrolled(const Program& program)
      : program_(program), steps_(static_cast<std::size_t>(program.buffers().max_slots()) + 1) {
    for (const Node& node : program.nodes()) {
      first_vertex_.push_back(vertices_per_step_);
      parts_.push_back(parts_of(node.op));
      vertices_per_step_ += 1 + parts_.back().size();
    }
    const std::size_t vertices = vertices_per_step_ * steps_;
    words_ = (vertices + kBits - 1) / kBits;
    finished_before_.assign(vertices * words_, 0);
    for (std::size_t step = 0; step < steps_; ++step) {
      for (std::size_t node = 0; node < parts_.size(); ++node) enter(step, node);
    }
  }

  /// Checks the last step, the only one with a complete past.
  [[nodiscard]] std::vector<Violation> violations() const {
    std::vector<Violation> found;
    for (std::size_t second = 0; second < parts_.size(); ++second) {
      for (std::size_t back = 0; back < steps_; ++back) {
        const std::size_t end = back == 0 ? second : parts_.size();
        for (std::size_t first = 0; first < end; ++first) {
          if (violated(first, second, back)) {
            found.push_back(
                {static_cast<NodeId>(first), static_cast<NodeId>(second), static_cast<int>(back)});
          }
        }
      }
    }
    return found;
  }

 private:
  static constexpr std::size_t kBits = 64;

  [[nodiscard]] std::size_t start_vertex(std::size_t step, std::size_t node) const {
    return step * vertices_per_step_ + first_vertex_[node];
  }
  [[nodiscard]] std::size_t part_vertex(std::size_t step, std::size_t node,
                                        std::size_t part) const {
    return start_vertex(step, node) + 1 + part;
  }

  /// Notes that `earlier`, and everything finished before it, is finished before `later` starts.
  void follow(std::size_t later, std::size_t earlier) {
    for (std::size_t word = 0; word < words_; ++word) {
      finished_before_[later * words_ + word] |= finished_before_[earlier * words_ + word];
    }
    finished_before_[later * words_ + earlier / kBits] |= std::uint64_t{1} << (earlier % kBits);
  }

  [[nodiscard]] bool finished(std::size_t earlier, std::size_t later) const {
    return (finished_before_[later * words_ + earlier / kBits] >> (earlier % kBits) & 1) != 0;
  }

  void enter(std::size_t step, std::size_t node) {
    const Node& entered = program_.nodes()[node];
    const std::size_t start = start_vertex(step, node);
    const auto lanes = lanes_of(program_, entered);
    for (const LaneId& lane : lanes) {
      if (const auto last = last_on_lane_.find(lane); last != last_on_lane_.end()) {
        follow(start, last->second);
      }
    }
    for (const Wait& wait : entered.waits) {
      const auto back = static_cast<std::size_t>(wait.steps_back);
      if (back > step) continue;
      const auto awaited = static_cast<std::size_t>(wait.node);
      for (std::size_t part = 0; part < parts_[awaited].size(); ++part) {
        follow(start, part_vertex(step - back, awaited, part));
      }
    }
    for (std::size_t part = 0; part < lanes.size(); ++part) {
      follow(part_vertex(step, node, part), start);
      last_on_lane_[lanes[part]] = part_vertex(step, node, part);
    }
  }

  [[nodiscard]] bool violated(std::size_t first, std::size_t second, std::size_t back) const {
    const std::size_t last_step = steps_ - 1;
    for (std::size_t a = 0; a < parts_[first].size(); ++a) {
      for (std::size_t b = 0; b < parts_[second].size(); ++b) {
        if (finished(part_vertex(last_step - back, first, a), part_vertex(last_step, second, b))) {
          continue;
        }
        if (meeting(program_.buffers(), parts_[first][a], parts_[second][b],
                    static_cast<int>(back))) {
          return true;
        }
      }
    }
    return false;
  }

  const Program& program_;
  std::size_t steps_;
  std::size_t vertices_per_step_ = 0;
  std::size_t words_ = 0;                                // of one bitset
  std::vector<std::size_t> first_vertex_;                // by node, within a step
  std::vector<std::vector<std::vector<Access>>> parts_;  // by node and part
  std::vector<std::uint64_t> finished_before_;           // by vertex, a bitset of vertices
  std::map<LaneId, std::size_t> last_on_lane_;
};

std::string node_and_lane(const Program& program, NodeId id) {
  const Node& node = program.node(id);
  return fmt::format("node {} ({}, {} lane of device {})", id, label_of(node.op),
                     name_of(node.lane), node.device);
}

}  // namespace

std::vector<Violation> check(const Program& program) {
  require_legal_waits(program);
  return Unrolled(program).violations();
}

std::string describe(const Program& program, const Violation& violation) {
  const auto accesses = [&](NodeId id) { return accesses_of(program.node(id).op); };
  const auto range = meeting(program.buffers(), accesses(violation.first),
                             accesses(violation.second), violation.steps_back);
  std::string text = fmt::format("{} may start before {}", node_and_lane(program, violation.second),
                                 node_and_lane(program, violation.first));
  if (violation.steps_back > 0) {
    text += fmt::format(", {} earlier,", counted(violation.steps_back, "step"));
  }
  text += " is finished";
  if (range) {
    text += fmt::format("; both touch bytes {} to {} of buffer {}", range->begin, range->end - 1,
                        program.buffers()[range->buffer].name);
  }
  return text;
}

}  // namespace barestep
