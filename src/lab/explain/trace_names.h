// What covered the host's time in a trace, by the names that a user knows: annotations
// (record_function), functions of Python if stacks were recorded, torch.compile, and for a device
// the ops that launch work and the calls of its runtime, with the op that makes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lab/explain/trace_events.h"

namespace barestep {

/// A stretch of the host's time.
struct HostStretch {
  std::int64_t begin_ns = 0, end_ns = 0;

  [[nodiscard]] std::int64_t ns() const { return end_ns - begin_ns; }
};

/// The begin or the end of something.
template <class Key>
struct Edge {
  std::int64_t at_ns = 0;
  Key key{};
  bool begins = false;
};

/// Calls visit(at_ns, open) whenever something begins or ends, with the keys of all that is open
/// from then on, in their order.
template <class Key, class Visit>
void visit_open(std::vector<Edge<Key>> edges, const Visit& visit) {
  std::ranges::sort(edges, {}, &Edge<Key>::at_ns);
  std::set<Key> open;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].begins) {
      open.insert(edges[i].key);
    } else {
      open.erase(edges[i].key);
    }
    const bool is_last = i + 1 == edges.size() || edges[i + 1].at_ns != edges[i].at_ns;
    if (is_last) visit(edges[i].at_ns, open);
  }
}

/// An op that only calls others and hooks: a node of autograd's graph. What another one does beside
/// the ops in it is its own work.
bool is_wrapper(std::string_view op);

/// Whether torch.compile compiles meanwhile, by the name of an event.
constexpr bool is_compilation(std::string_view name) {
  return name.ends_with("(dynamo_timed)");
}

/// Whether a name is that of a whole pass, and so of no cause.
constexpr bool names_phase(std::string_view name) {
  return name.starts_with("DistributedDataParallel.") ||
         name.starts_with("FullyShardedDataParallel.") || name.starts_with("## ") ||
         name.starts_with("nn.Module: ");
}

/// The name under which that stands.
constexpr std::string_view kCompilation = "torch.compile";

/// The names that cover moments of the host.
class TracedNames {
 public:
  TracedNames() = default;
  /// Of a file's threads that train. What has a whole step in it, or the begin of one, is no name
  /// for time in a step.
  TracedNames(const TraceFile& file, const std::set<TraceIndex>& rows, bool on_device);

  /// Calls on_piece(path, piece) for consecutive pieces of a stretch. A path is an index.
  void visit(const HostStretch& stretch,
             const std::function<void(std::size_t, const HostStretch&)>& on_piece) const;
  /// The names of a path, the outermost first; none for what nothing covers.
  [[nodiscard]] const std::vector<std::size_t>& path(std::size_t index) const {
    return paths_[index];
  }
  [[nodiscard]] const std::string& name(std::size_t index) const { return names_[index]; }
  void shift(std::int64_t ns);

 private:
  struct Moment {
    std::int64_t from_ns = 0;  // until the next one's
    std::size_t path = 0;
  };
  std::vector<std::string> names_{};
  std::vector<std::vector<std::size_t>> paths_{{}};
  std::vector<Moment> moments_{};  // ascending
};

}  // namespace barestep
