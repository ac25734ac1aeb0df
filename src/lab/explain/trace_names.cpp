#include "lab/explain/trace_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace barestep {
namespace {

/// A stretch of the host's time that has a name.
struct Scope {
  HostStretch times{};
  std::size_t name = 0;  // an index
};

/// Finds what has a name on some threads.
class ScopeReader {
 public:
  ScopeReader(const TraceFile& file, const std::set<TraceIndex>& rows, bool on_device)
      : file_(file), on_device_(on_device) {
    for (const TraceEvent& event : file.events) {
      if (rows.contains(event.row)) read(event);
    }
    for (const TraceEvent& event : file.functions) {
      if (rows.contains(event.row) && !is_step(event)) add(event, file.names[event.name]);
    }
    std::ranges::stable_sort(scopes_, {}, [](const Scope& scope) {
      return std::pair(scope.times.begin_ns, -scope.times.end_ns);
    });
  }

  [[nodiscard]] const std::vector<Scope>& scopes() const { return scopes_; }
  [[nodiscard]] std::vector<std::string> take_names() { return std::move(names_); }

 private:
  struct Thread {
    std::int64_t compiles_until_ns = std::numeric_limits<std::int64_t>::min();
    std::int64_t op_ends_ns = std::numeric_limits<std::int64_t>::min();
    TraceIndex op = 0;  // the outermost one
  };

  void read(const TraceEvent& event) {
    using Kind = TraceEvent::Kind;
    const std::string& name = file_.names[event.name];
    Thread& thread = threads_[event.row];
    if (event.begin_ns < thread.compiles_until_ns) return;
    if (event.is_on_host() && is_compilation(name)) {
      thread.compiles_until_ns = event.end_ns;
      return add(event, std::string(kCompilation));
    }
    const bool is_in_op = event.begin_ns < thread.op_ends_ns;
    if (event.kind == Kind::kAnnotation) {
      if (!is_step(event) && event.collective < 0) add(event, name);
    } else if (event.kind == Kind::kOp && (on_device_ || only_reads(name)) && !is_in_op &&
               !is_wrapper(name)) {
      thread.op_ends_ns = event.end_ns;
      thread.op = event.name;
      add(event, name);
    } else if (event.kind == Kind::kCall) {
      const bool launches = name.find("Launch") != name.npos;
      add(event,
          launches || !is_in_op ? name : fmt::format("{} in {}", name, file_.names[thread.op]));
    }
  }

  /// Whether it is a step, or goes on beyond the begin of one.
  [[nodiscard]] bool is_step(const TraceEvent& event) const {
    const bool updates = event.is_update || has_within(file_.updates_ns, event);
    return event.is_step || has_within(file_.steps_ns, event) ||
           (updates && has_within(file_.backward_ns, event));
  }

  void add(const TraceEvent& event, const std::string& name) {
    if (event.end_ns <= event.begin_ns || name == "unknown") return;  // a name PyTorch cannot write
    const auto [at, is_new] = numbers_.try_emplace(name, names_.size());
    if (is_new) names_.push_back(name);
    scopes_.push_back({{event.begin_ns, event.end_ns}, at->second});
  }

  const TraceFile& file_;
  bool on_device_;
  std::unordered_map<TraceIndex, Thread> threads_;
  std::vector<Scope> scopes_;  // by begin; of those, the longest first
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> numbers_;  // of names
};

}  // namespace

bool is_wrapper(std::string_view op) {
  return op.starts_with("autograd::engine::") ||
         (op.find("::") == std::string_view::npos && !op.starts_with("CompiledFunction") &&
          !op.starts_with("Torch-Compiled Region"));
}

TracedNames::TracedNames(const TraceFile& file, const std::set<TraceIndex>& rows, bool on_device) {
  ScopeReader reader(file, rows, on_device);
  names_ = reader.take_names();
  const std::vector<Scope>& scopes = reader.scopes();
  std::vector<Edge<std::size_t>> edges;
  edges.reserve(2 * scopes.size());
  for (std::size_t i = 0; i < scopes.size(); ++i) {
    edges.push_back({scopes[i].times.begin_ns, i, true});
    edges.push_back({scopes[i].times.end_ns, i, false});
  }
  std::map<std::vector<std::size_t>, std::size_t> found;
  found[{}] = 0;
  visit_open(std::move(edges), [&](std::int64_t at_ns, const std::set<std::size_t>& open) {
    std::vector<std::size_t> path;
    for (const std::size_t i : open) {
      if (path.empty() || path.back() != scopes[i].name) path.push_back(scopes[i].name);
    }
    const auto [at, is_new] = found.try_emplace(path, paths_.size());
    if (is_new) paths_.push_back(std::move(path));
    moments_.push_back({at_ns, at->second});
  });
}

void TracedNames::visit(
    const HostStretch& stretch,
    const std::function<void(std::size_t, const HostStretch&)>& on_piece) const {
  auto next = std::ranges::upper_bound(moments_, stretch.begin_ns, {}, &Moment::from_ns);
  std::size_t path = next == moments_.begin() ? 0 : std::prev(next)->path;
  std::int64_t from_ns = stretch.begin_ns;
  for (; next != moments_.end() && next->from_ns < stretch.end_ns; ++next) {
    on_piece(path, {from_ns, next->from_ns});
    path = next->path;
    from_ns = next->from_ns;
  }
  if (from_ns < stretch.end_ns) on_piece(path, {from_ns, stretch.end_ns});
}

void TracedNames::shift(std::int64_t ns) {
  for (Moment& moment : moments_) moment.from_ns += ns;
}

}  // namespace barestep
