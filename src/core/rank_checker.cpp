// Three steps of all ranks become one graph, in which a collective is a single vertex that belongs
// to all ranks of its group. The ranks can be stuck exactly if it has a cycle.
#include "core/rank_checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "core/index.h"

namespace barestep {

std::vector<int> ranks_that_meet(const Mesh& mesh, const Collective& collective) {
  std::vector<int> ranks = mesh.ranks_on(axis_of(collective));
  if (const auto* const exchange = std::get_if<SendReceive>(&collective)) {
    const int peer = exchange->peer < std::ssize(ranks) ? at(ranks, exchange->peer) : -1;
    ranks = {std::min(mesh.rank, peer), std::max(mesh.rank, peer)};
  }
  return ranks;
}

namespace {

/// One more than the farthest wait reaches back.
constexpr int kSteps = 3;

/// Ranks that meet: those of an axis that share everything else, or two of them that exchange, or
/// of which one sends to the other.
struct Meeting {
  Axis axis = Axis::kAll;
  std::vector<int> ranks;  // ascending
  int sender = -1;         // of messages in one direction

  friend auto operator<=>(const Meeting&, const Meeting&) = default;
};

Meeting meeting_of(const RankProgram& rank, const Collective& collective) {
  Meeting group{axis_of(collective), ranks_that_meet(rank.mesh, collective)};
  const auto* const exchange = std::get_if<SendReceive>(&collective);
  if (exchange != nullptr && exchange->sends.has_value() != exchange->receives.has_value()) {
    const int peer = group.ranks[group.ranks[0] == rank.mesh.rank ? 1 : 0];
    group.sender = exchange->sends ? rank.mesh.rank : peer;
  }
  return group;
}

/// "all_reduce 'bucket 1' of 4,096 B", and what else ranks must agree on. `is_first` says whether
/// it is that of the group's first rank, as which both ranks of an exchange describe it.
std::string agreed_text(const Collective& collective, bool is_first) {
  const auto described = [](const auto& op, std::int64_t bytes) {
    return fmt::format("{} '{}' of {} B", op.kLabel, op.name, bytes);
  };
  return std::visit(
      Overloaded{[&](const SendReceive& op) {
                   const std::int64_t there = is_first ? op.sent_bytes() : op.received_bytes();
                   const std::int64_t back = is_first ? op.received_bytes() : op.sent_bytes();
                   return described(op, there) + fmt::format(" there and {} B back", back);
                 },
                 [&](const auto& op) {
                   std::int64_t bytes = 0;
                   for (const Tensor& tensor : op.tensors) bytes += tensor.bytes();
                   std::string text = described(op, bytes);
                   if constexpr (requires { op.root; }) text += fmt::format(" at root {}", op.root);
                   return text;
                 }},
      collective);
}

std::string agreed_text(const RankProgram& rank, const Meeting& group,
                        const Collective& collective) {
  return agreed_text(collective, rank.mesh.rank == group.ranks.front());
}

std::vector<const Collective*> collectives_of(const RankProgram& rank, const Meeting& group) {
  std::vector<const Collective*> all;
  for (const Node& node : rank.program.nodes()) {
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective != nullptr && meeting_of(rank, *collective) == group) all.push_back(collective);
  }
  return all;
}

/// All groups that any rank names.
std::set<Meeting> groups_of(std::span<const RankProgram> ranks) {
  std::set<Meeting> groups;
  for (const RankProgram& rank : ranks) {
    for (const Node& node : rank.program.nodes()) {
      const auto* const collective = std::get_if<Collective>(&node.op);
      if (collective != nullptr) groups.insert(meeting_of(rank, *collective));
    }
  }
  return groups;
}

/// What differs between the collectives of a group's ranks; empty if nothing does. `all` are all
/// ranks of the job.
std::string difference(const Meeting& group, std::span<const RankProgram> all) {
  if (group.ranks.size() == 2 && (group.ranks[0] < 0 || group.ranks[0] == group.ranks[1])) {
    return fmt::format("rank {} exchanges with itself, or with a rank outside its {} axis",
                       group.ranks[1], name_of(group.axis));
  }
  const RankProgram& first = at(all, group.ranks.front());
  const auto expected = collectives_of(first, group);
  for (const int number : group.ranks) {
    const RankProgram& rank = at(all, number);
    const auto own = collectives_of(rank, group);
    for (std::size_t i = 0; i < std::min(own.size(), expected.size()); ++i) {
      const std::string text = agreed_text(rank, group, *own[i]);
      const std::string other = agreed_text(first, group, *expected[i]);
      if (text == other) continue;
      return fmt::format(
          "{} has {} as number {} of the collectives on its {} axis, where {} has {}",
          rank.mesh.text(), text, i + 1, name_of(group.axis), first.mesh.text(), other);
    }
    if (own.size() == expected.size()) continue;
    return fmt::format("{} has {} collectives on its {} axis, where {} has {}", rank.mesh.text(),
                       own.size(), name_of(group.axis), first.mesh.text(), expected.size());
  }
  return "";
}

class JointGraph {
 public:
  explicit JointGraph(std::span<const RankProgram> ranks) {
    for (const RankProgram& rank : ranks) add(rank);
  }

  /// The collectives of a cycle, each of which waits for the next; empty if there is none.
  [[nodiscard]] std::vector<std::string> cycle() const {
    std::vector<int> waiting(before_.size());
    std::vector<std::vector<int>> after(before_.size());
    std::vector<int> ready;
    for (int vertex = 0; vertex < std::ssize(before_); ++vertex) {
      at(waiting, vertex) = static_cast<int>(at(before_, vertex).size());
      for (const int earlier : at(before_, vertex)) at(after, earlier).push_back(vertex);
      if (at(waiting, vertex) == 0) ready.push_back(vertex);
    }
    while (!ready.empty()) {
      const int done = ready.back();
      ready.pop_back();
      for (const int later : at(after, done)) {
        if (--at(waiting, later) == 0) ready.push_back(later);
      }
    }
    const auto stuck = std::ranges::find_if(waiting, [](int count) { return count > 0; });
    if (stuck == waiting.end()) return {};
    return cycle_from(static_cast<int>(stuck - waiting.begin()), waiting);
  }

 private:
  /// Adds a rank's steps: each node comes after the last one on each of its lanes, and after what
  /// it waits for.
  void add(const RankProgram& rank) {
    std::map<LaneId, int> last_on_lane;
    std::map<Meeting, int> counts;
    std::vector<std::vector<int>> vertices(kSteps);  // by step and node
    for (int step = 0; step < kSteps; ++step) {
      for (const Node& node : rank.program.nodes()) {
        const int vertex = vertex_of(rank, node, counts);
        for (const Wait& wait : node.waits) {
          if (wait.steps_back > step) continue;
          at(before_, vertex).push_back(at(at(vertices, step - wait.steps_back), wait.node));
        }
        for (const LaneId& lane : lanes_of(rank.program, node)) {
          const auto last = last_on_lane.find(lane);
          if (last != last_on_lane.end()) at(before_, vertex).push_back(last->second);
          last_on_lane[lane] = vertex;
        }
        at(vertices, step).push_back(vertex);
      }
    }
  }

  /// A vertex of its own, or that of the collective, which may have come with an earlier rank.
  int vertex_of(const RankProgram& rank, const Node& node, std::map<Meeting, int>& counts) {
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) return new_vertex("");
    const Meeting group = meeting_of(rank, *collective);
    const std::pair key{group, counts[group]++};
    const auto [found, is_new] = of_collectives_.try_emplace(key, 0);
    if (is_new) {
      found->second =
          new_vertex(fmt::format("{} on the {} axis of {}", agreed_text(rank, group, *collective),
                                 name_of(group.axis), rank.mesh.text()));
    }
    return found->second;
  }

  int new_vertex(std::string text) {
    before_.emplace_back();
    texts_.push_back(std::move(text));
    return static_cast<int>(before_.size()) - 1;
  }

  /// Follows vertices that still wait until one comes again.
  [[nodiscard]] std::vector<std::string> cycle_from(int vertex,
                                                    const std::vector<int>& waiting) const {
    std::vector<int> path;
    std::vector<bool> is_on_path(before_.size());
    while (!at(is_on_path, vertex)) {
      path.push_back(vertex);
      at(is_on_path, vertex) = true;
      vertex = *std::ranges::find_if(at(before_, vertex),
                                     [&](int earlier) { return at(waiting, earlier) > 0; });
    }
    std::vector<std::string> texts;
    for (auto at_path = std::ranges::find(path, vertex); at_path != path.end(); ++at_path) {
      if (!at(texts_, *at_path).empty()) texts.push_back(at(texts_, *at_path));
    }
    return texts;
  }

  std::vector<std::vector<int>> before_;  // by vertex, what ends before it begins
  std::vector<std::string> texts_;        // of collectives; else empty
  std::map<std::pair<Meeting, int>, int> of_collectives_;
};

}  // namespace

std::string check_ranks(std::span<const RankProgram> ranks) {
  for (const Meeting& group : groups_of(ranks)) {
    std::string text = difference(group, ranks);
    if (!text.empty()) return text;
  }
  const std::vector<std::string> cycle = JointGraph(ranks).cycle();
  if (cycle.empty()) return "";
  return fmt::format("ranks can be stuck: {}, which waits for the first",
                     fmt::join(cycle, ", which waits for "));
}

}  // namespace barestep
