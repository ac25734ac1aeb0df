#include "lab/explain/trace_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/units.h"

namespace barestep {
namespace {

/// Of "ProfilerStep#12".
std::int64_t number_of_step(std::string_view name, std::size_t otherwise) {
  std::int64_t number = 0;
  const std::string_view digits = name.substr(name.find('#') + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() ? number : static_cast<std::int64_t>(otherwise);
}

bool is_loss(std::string_view op) {
  return op.starts_with("aten::") && !op.ends_with("_backward") &&
         (op.find("_loss") != op.npos || op.find("binary_cross_entropy") != op.npos);
}

/// Whether an average of parameters that follows an update has such an op.
bool may_average(std::string_view op) {
  return op.starts_with("aten::_foreach_") || op == "aten::mul" ||
         (op.starts_with("aten::") && op.ends_with('_'));
}

/// Whether what autograd does not record can be nothing else.
bool averages(std::string_view op) {
  return op == "aten::lerp_" || (op.starts_with("aten::_foreach_") && op.ends_with('_'));
}

bool is_loader(std::string_view name) {
  return name.starts_with("enumerate(DataLoader)");
}

/// Whether an op hands a message to a process group.
bool is_message_post(std::string_view op) {
  return op == "c10d::send" || op == "c10d::recv_";
}

/// Whether it hands a collective to one. On a busy machine it returns long after it has begun.
bool is_collective_post(std::string_view op) {
  return (op.starts_with("c10d::") || op.starts_with("_c10d_functional::")) &&
         !is_message_post(op) && !op.ends_with("::wait_tensor");
}

/// Whether a function of Python or an annotation is called after an evaluation.
bool names_evaluation(std::string_view name) {
  constexpr std::string_view kWords[] = {"eval",     "evaluate",   "evaluation", "val",
                                         "validate", "validation", "test"};
  if (const auto function = name.find("): "); function != name.npos) name.remove_prefix(function);
  std::string word;
  for (const char c : std::string(name) + ' ') {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (std::ranges::find(kWords, std::exchange(word, "")) != std::end(kWords)) {
      return true;
    }
  }
  return false;
}

/// Whether a moment is in one of these, which are united.
bool is_in(const std::vector<HostStretch>& stretches, std::int64_t at_ns) {
  const auto after = std::ranges::upper_bound(stretches, at_ns, {}, &HostStretch::begin_ns);
  return after != stretches.begin() && at_ns < std::prev(after)->end_ns;
}

/// What a thread of the host was doing: the events around a moment.
class HostPlace {
 public:
  /// Events come in the order of their begin, the longest first. `has_closure`: an optimizer's step
  /// in which backward runs.
  void enter(const TraceEvent& event, std::string_view name, bool has_closure) {
    leave_until(event.begin_ns);
    open_.push_back({.event = &event,
                     .is_op = event.kind == TraceEvent::Kind::kOp,
                     .is_optimizer = name.starts_with("Optimizer."),
                     .has_closure = has_closure,
                     .is_loss = is_loss(name),
                     .is_loader = is_loader(name),
                     .is_compilation = is_compilation(name)});
  }
  void leave_until(std::int64_t now_ns) {
    while (!open_.empty() && open_.back().event->end_ns <= now_ns) open_.pop_back();
  }
  [[nodiscard]] bool is_in_op() const { return std::ranges::any_of(open_, &Open::is_op); }
  [[nodiscard]] bool is_compiling() const {
    return std::ranges::any_of(open_, &Open::is_compilation);
  }
  [[nodiscard]] std::optional<TraceIndex> op() const {
    for (auto outer = open_.rbegin(); outer != open_.rend(); ++outer) {
      if (outer->is_op) return outer->event->name;
    }
    return std::nullopt;
  }
  /// The collective that is being launched, an index; -1 if none is.
  [[nodiscard]] std::int32_t collective() const {
    for (const Open& outer : open_) {
      if (outer.event->collective >= 0) return outer.event->collective;
    }
    return -1;
  }
  /// The innermost of them decides between the optimizer and backward, either of which may call the
  /// other. What autograd records within the optimizer is the forward pass of a closure.
  [[nodiscard]] Part part() const {
    if (std::ranges::any_of(open_, &Open::is_loader)) return Part::kDataWait;
    const Part forward = std::ranges::any_of(open_, &Open::is_loss) ? Part::kLoss : Part::kForward;
    bool is_recorded = false;
    for (auto outer = open_.rbegin(); outer != open_.rend(); ++outer) {
      if (outer->event->is_backward) return Part::kBackward;
      if (outer->is_optimizer) {
        return outer->has_closure && is_recorded ? forward : Part::kOptimizer;
      }
      is_recorded |= outer->event->is_recorded;
    }
    return forward;
  }
  /// Whether it does what autograd does not record: clipping behind backward, for example.
  [[nodiscard]] bool is_unrecorded() const {
    return is_in_op() &&
           std::ranges::none_of(open_, [](const Open& outer) { return outer.event->is_recorded; });
  }

 private:
  struct Open {
    const TraceEvent* event = nullptr;
    bool is_op = false, is_optimizer = false, has_closure = false, is_loss = false,
         is_loader = false, is_compilation = false;
  };
  std::vector<Open> open_;
};

/// A call that queued work. The work may begin before the call returns.
struct HostLaunch {
  std::int64_t at_ns = 0, end_ns = 0;
  Part part = Part::kForward;
  std::optional<TraceIndex> op{};
  std::int32_t collective = -1;
};

/// A stretch of an op that certainly is no wait for a collective, or the op in it that posts one.
struct BusyStretch {
  HostStretch times{};
  const TraceEvent* post = nullptr;
};

/// An op of a trace without a device that no other one contains.
struct OutermostOp {
  const TraceEvent* event = nullptr;
  Part part = Part::kForward;
  std::vector<BusyStretch> busy{};
};

/// What a thread does in a trace without a device.
struct TracedThread {
  HostPlace place{};
  bool runs_backward = false;
  bool follows_update = false;             // it has only changed parameters since
  bool averages = false;                   // its newest outermost op does, unless it is recorded
  std::optional<std::size_t> outermost{};  // its newest, an index
  std::optional<HostStretch> busy{};       // its newest op that is no wrapper, or the rest of it
  const TraceEvent* poster = nullptr;      // its newest op that posts a message
};

/// Adds one file's steps and works to a run.
class RankReader {
 public:
  RankReader(TracedRun& run, std::size_t index)
      : run_(run), rank_(run.ranks[index]), index_(index) {}

  void read() {
    const bool has_nodes = rank_.file.is_ours && !rank_.file.nodes.empty() && !file().steps.empty();
    rank_.on_host = std::ranges::none_of(file().events, &TraceEvent::is_work);
    read_steps(has_nodes);
    read_host();
    if (has_nodes) {
      read_nodes();
    } else {
      read_works();
    }
    choose_main(has_nodes);
    order_lanes(has_nodes);
    if (!has_nodes) {
      read_stream_waits();
      find_walls();
    }
  }

 private:
  [[nodiscard]] const TraceFile& file() const { return rank_.file; }
  [[nodiscard]] std::string_view name_of_event(const TraceEvent& event) const {
    return file().names[event.name];
  }

  void read_steps(bool has_nodes) {
    std::set<TraceIndex> seen;
    for (const TraceEvent& event : file().events) {
      if (!event.is_step) continue;
      if ((has_nodes && event.details < 0) || !seen.insert(event.name).second) continue;
      step_row_ = event.row;
      rank_.steps.push_back({.number = number_of_step(name_of_event(event), rank_.steps.size()),
                             .begin_ns = event.begin_ns,
                             .end_ns = event.end_ns});
      if (!has_nodes) continue;
      rank_.traced_steps.push_back(file().steps[static_cast<std::size_t>(event.details)]);
    }
    if (rank_.steps.empty()) read_steps_of_optimizer();
    if (!rank_.steps.empty()) return;
    rank_.is_whole = true;
    const auto last = std::ranges::max_element(file().events, {}, &TraceEvent::end_ns);
    rank_.steps.push_back({.begin_ns = file().events.front().begin_ns, .end_ns = last->end_ns});
  }

  /// An update of an optimizer, or several without backward between them.
  struct Update {
    TraceIndex name = 0, row = 0;
    std::int64_t end_ns = 0;
    std::vector<TraceIndex> work{};  // backward since the one before, and its own
  };

  [[nodiscard]] std::vector<Update> updates() const {
    std::vector<Update> all;
    std::vector<TraceIndex> backward;  // since the last one
    for (const TraceEvent& event : file().events) {
      const bool is_inside = !all.empty() && event.begin_ns < all.back().end_ns;
      if (is_inside) {
        const bool is_own = event.kind == TraceEvent::Kind::kOp && event.row == all.back().row;
        if (is_own || event.is_backward) all.back().work.push_back(event.name);
      } else if (event.is_update) {
        const bool follows = !all.empty() && backward.empty() && !file().backward_ns.empty() &&
                             !has_within(file().backward_ns, event);
        if (!follows) all.push_back({event.name, event.row, event.end_ns, std::move(backward)});
        backward.clear();
        all.back().end_ns = event.end_ns;
        all.back().work.push_back(event.name);
      } else if (event.is_backward) {
        backward.push_back(event.name);
      }
    }
    for (Update& update : all) std::ranges::sort(update.work);
    return all;
  }

  /// After how many updates their work recurs, as that of several optimizers in turns does; the
  /// first ones may prepare. 1 if it never does.
  static std::ptrdiff_t turns_of(const std::vector<Update>& all) {
    const std::ptrdiff_t count = std::ssize(all);
    for (std::ptrdiff_t turns = 1; 2 * turns <= count; ++turns) {
      const auto first = all.begin() + (3 * turns <= count ? turns : 0);
      if (std::equal(first, all.end() - turns, first + turns,
                     [](const Update& a, const Update& b) { return a.work == b.work; })) {
        return turns;
      }
    }
    return 1;
  }

  /// A step ends when the optimizers have had their turns.
  void read_steps_of_optimizer() {
    std::vector<Update> all = updates();
    if (all.empty()) return;
    rank_.updates_of_step = turns_of(all);
    if (rank_.updates_of_step == 1) {
      const TraceIndex name = all.front().name;
      rank_.other_updates =
          std::erase_if(all, [&](const Update& update) { return update.name != name; });
    }
    step_row_ = all.front().row;
    std::int64_t begin_ns = file().events.front().begin_ns;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if ((i + 1) % static_cast<std::size_t>(rank_.updates_of_step) != 0) continue;
      const std::int64_t end_ns = all[i].end_ns;
      rank_.steps.push_back({.number = std::ssize(rank_.steps),
                             .begin_ns = std::exchange(begin_ns, end_ns),
                             .end_ns = end_ns});
    }
  }

  /// Walks along the host's threads: where calls were made, and, without a device, the outermost
  /// ops.
  void read_host() {
    std::unordered_map<TraceIndex, TracedThread> threads;
    const bool tells_recorded = std::ranges::any_of(file().events, &TraceEvent::is_recorded);
    find_training();
    // Behind backward, what autograd does not record is backward's on a thread of its engine, as
    // that of DDP's hooks is, and prepares the update on the thread of the steps.
    bool is_after_backward = false;
    const auto part_of = [&](const TracedThread& thread, const TraceEvent& event) {
      const Part part = thread.place.part();
      const bool is_forward = part == Part::kForward || part == Part::kLoss;
      if (!is_forward || !tells_recorded || !thread.place.is_unrecorded()) return part;
      if (is_in(evaluating_, event.begin_ns)) {
        rank_.evaluates = true;
        return Part::kEvaluation;
      }
      if (!is_after_backward) return event.row == step_row_ ? untrained_part(thread, event) : part;
      return thread.runs_backward && event.row != step_row_ ? Part::kBackward : Part::kOptimizer;
    };
    for (const TraceEvent& event : file().events) {
      const std::string_view name = name_of_event(event);
      TracedThread& thread = threads[event.row];
      HostPlace& place = thread.place;
      if (event.is_on_host()) {
        place.leave_until(event.begin_ns);
        set_peer(event, thread);
        if (is_posted(event, thread)) {
          exchanges_.push_back({event.begin_ns, event.end_ns});
          continue;
        }
        const bool is_outermost = rank_.on_host && read_op(event, thread);
        const bool has_backward = has_within(file().backward_ns, event);
        look_for_average(event, name, thread);
        place.enter(event, name, has_backward);
        const Part part = place.part();
        thread.follows_update |= part == Part::kOptimizer;
        if (part == Part::kBackward) is_after_backward = thread.runs_backward = true;
        const bool is_forward = part == Part::kForward && event.is_recorded;
        if (part == Part::kOptimizer || is_forward) is_after_backward = false;
        if (is_outermost) outermost_.back().part = part_of(thread, event);
        if (is_loader(name)) rank_.loading.push_back({event.begin_ns, event.end_ns});
        const bool is_plain = name.starts_with("Optimizer.") && !has_backward;
        if (is_plain) rank_.updating.push_back({event.begin_ns, event.end_ns});
      } else if (event.kind == TraceEvent::Kind::kCall) {
        place.leave_until(event.begin_ns);
        read_call(event, place, part_of(thread, event));
      }
    }
    std::set<TraceIndex> rows;
    for (auto& [row, thread] : threads) {
      end_busy(thread, std::numeric_limits<std::int64_t>::max());
      if (!step_row_ || row == *step_row_ || thread.runs_backward) rows.insert(row);
    }
    rank_.names = TracedNames(file(), rows, !rank_.on_host);
    std::ranges::sort(exchanges_, {}, &HostStretch::end_ns);
    rank_.blocked = united(std::move(rank_.blocked));
    rank_.loading = united(std::move(rank_.loading));
    rank_.updating = united(std::move(rank_.updating));
  }

  /// Averages of parameters follow an update: then all that changes tensors is one.
  static void look_for_average(const TraceEvent& event, std::string_view name,
                               TracedThread& thread) {
    if (event.kind != TraceEvent::Kind::kOp || thread.place.is_in_op()) return;
    thread.averages = averages(name) || (thread.follows_update && may_average(name));
    thread.follows_update &= may_average(name) || only_reads(name);
  }

  /// Finds until when each step trains, and what evaluates.
  void find_training() {
    trains_until_ns_.resize(rank_.steps.size());
    std::unordered_map<TraceIndex, Untrained> threads;
    for (const TraceEvent& event : file().events) {
      if (event.is_backward) threads.clear();
      if (event.is_recorded && !event.is_backward && !may_average(name_of_event(event))) {
        forward_ops_.insert(event.name);
      }
      Untrained& thread = threads[event.row];
      if (!event.is_backward && !event.is_recorded && !event.is_update) {
        look_for_evaluation(event, thread);
        continue;
      }
      thread = {std::max(thread.trained_ns, event.end_ns), std::nullopt};
      if (const auto step = step_at(event.begin_ns)) {
        trains_until_ns_[*step] = std::max(trains_until_ns_[*step], event.end_ns);
      }
    }
    for (const TraceEvent& event : file().functions) find_named_evaluation(event);
    evaluating_ = united(std::move(evaluating_));
  }

  /// A thread that does what autograd does not record, and no training.
  struct Untrained {
    std::int64_t trained_ns = std::numeric_limits<std::int64_t>::min();
    std::optional<std::int64_t> from_ns{};
  };

  /// Backward never follows a loss that autograd does not record; what led to it evaluates.
  void look_for_evaluation(const TraceEvent& event, Untrained& thread) {
    if (event.kind == TraceEvent::Kind::kAnnotation) find_named_evaluation(event);
    if (event.kind != TraceEvent::Kind::kOp || event.begin_ns < thread.trained_ns) return;
    const std::string_view name = name_of_event(event);
    if (!thread.from_ns && !may_average(name)) thread.from_ns = event.begin_ns;
    if (is_loss(name)) evaluating_.push_back({*thread.from_ns, event.end_ns});
  }

  void find_named_evaluation(const TraceEvent& event) {
    const bool trains =
        has_within(file().backward_ns, event) || has_within(file().updates_ns, event);
    if (!trains && names_evaluation(name_of_event(event))) {
      evaluating_.push_back({event.begin_ns, event.end_ns});
    }
  }

  /// The part of what autograd does not record in the forward pass: an average of the parameters,
  /// or, after the last update of a step, an evaluation.
  [[nodiscard]] Part untrained_part(const TracedThread& thread, const TraceEvent& event) const {
    if (thread.averages) return Part::kOptimizer;
    const std::optional<std::size_t> step = step_at(event.begin_ns);
    if (!step || event.begin_ns < trains_until_ns_[*step]) return thread.place.part();
    rank_.evaluates |= forward_ops_.contains(thread.place.op().value_or(event.name));
    return Part::kEvaluation;
  }

  /// A call of the runtime, which may queue work or wait for it.
  void read_call(const TraceEvent& event, const HostPlace& place, Part part) {
    const std::string_view name = name_of_event(event);
    launches_.try_emplace(event.correlation, HostLaunch{event.begin_ns, event.end_ns, part,
                                                        place.op(), place.collective()});
    const auto has = [&](std::string_view what) { return name.find(what) != name.npos; };
    if (has("LaunchKernel") || has("GraphLaunch")) lost_.insert(event.correlation);
    if (has("Synchronize") || name.starts_with("cudaMemcpy") || name.starts_with("hipMemcpy")) {
      rank_.blocked.push_back({event.begin_ns, event.end_ns});
    }
  }

  /// Whether it is an outermost op. The thread is where the event begins.
  bool read_op(const TraceEvent& event, TracedThread& thread) {
    if (thread.place.is_compiling()) return false;
    const bool is_exchange = is_on_thread(event);
    if (is_exchange) exchanges_.push_back({event.begin_ns, event.end_ns});
    const std::string_view name = name_of_event(event);
    const bool compiles = is_compilation(name);
    const bool is_op = event.kind == TraceEvent::Kind::kOp && !is_loader(name) &&
                       thread.place.collective() < 0 &&  // its copies are no work of their own
                       !only_reads(name);                // the host's
    if (!is_op && !is_exchange && !compiles) return false;
    const bool is_outermost = is_op && !compiles && !thread.place.is_in_op();
    const bool posts = is_op && is_collective_post(name);
    const bool waits = is_exchange || compiles || posts || name.ends_with("::wait_tensor");
    if (waits || !thread.busy || event.begin_ns >= thread.busy->end_ns) {
      end_busy(thread, event.begin_ns);
      if (thread.busy && waits) thread.busy->begin_ns = event.end_ns;
    }
    if (is_outermost) {
      thread.outermost = outermost_.size();
      outermost_.push_back({.event = &event});
    }
    const bool is_inside =
        thread.outermost && event.begin_ns < outermost_[*thread.outermost].event->end_ns;
    if (is_inside && posts) {
      const HostStretch times{event.begin_ns, event.end_ns};
      outermost_[*thread.outermost].busy.push_back({times, &event});
      if (!thread.busy)
        thread.busy = HostStretch{event.end_ns, event.end_ns};  // all in it is of it
    } else if (is_inside && !waits && !thread.busy && !is_wrapper(name)) {
      thread.busy = HostStretch{event.begin_ns, event.end_ns};
    }
    return is_outermost;
  }

  /// Keeps what the thread's op was busy until a moment; afterwards it has the rest.
  void end_busy(TracedThread& thread, std::int64_t now_ns) {
    if (!thread.busy) return;
    const HostStretch until_now{thread.busy->begin_ns, std::min(thread.busy->end_ns, now_ns)};
    if (until_now.begin_ns < until_now.end_ns) {
      outermost_[*thread.outermost].busy.push_back({until_now});
    }
    if (thread.busy->end_ns <= now_ns) thread.busy.reset();
  }

  /// A collective on a thread of the host, as gloo's and MPI's are. PyTorch's annotations of NCCL
  /// are around a launch.
  [[nodiscard]] bool is_on_thread(const TraceEvent& event) const {
    return event.collective >= 0 && event.is_on_host() &&
           !name_of_event(event).starts_with("nccl:");
  }

  [[nodiscard]] const TracedCollective& collective_of(std::int32_t index) const {
    return file().collectives[static_cast<std::size_t>(index)];
  }

  /// gloo's record of a message lacks the other rank; the op that posts it has it.
  void set_peer(const TraceEvent& event, TracedThread& thread) {
    if (name_of_event(event).starts_with("c10d::")) thread.poster = &event;
    if (event.collective < 0 || thread.poster == nullptr) return;
    TracedCollective& of = rank_.file.collectives[static_cast<std::size_t>(event.collective)];
    if (event.begin_ns < thread.poster->end_ns && of.is_message()) of.peer = thread.poster->details;
  }

  /// A message that is on its way when the op that posted it has ended: its thread goes on.
  [[nodiscard]] bool is_posted(const TraceEvent& event, const TracedThread& thread) const {
    return is_on_thread(event) && collective_of(event.collective).is_message() &&
           !(thread.outermost && event.end_ns <= outermost_[*thread.outermost].event->end_ns);
  }

  /// The last collective that ended in a stretch, or a moment after it; empty if none did.
  [[nodiscard]] HostStretch last_exchange_in(const HostStretch& stretch) const {
    const auto after =
        std::ranges::upper_bound(exchanges_, noticed_until(stretch), {}, &HostStretch::end_ns);
    const bool has = after != exchanges_.begin() && std::prev(after)->end_ns > stretch.begin_ns;
    return has ? *std::prev(after) : HostStretch{stretch.begin_ns, stretch.begin_ns};
  }

  /// Whether a thread that was not busy waited for a collective: one ended with the stretch.
  [[nodiscard]] bool waited(const HostStretch& stretch) const {
    return last_exchange_in(stretch).end_ns >= 2 * stretch.end_ns - noticed_until(stretch);
  }

  /// The op's work: all of it but where it waited for collectives, and where a node of autograd's
  /// graph ran what has a name: hooks of the user's, and compilation. To post a collective is
  /// communication: until one ends in that time it is waited for.
  void add_host_works(const OutermostOp& op) {
    const std::optional<std::size_t> step = step_at(op.event->begin_ns);
    const std::string_view name = name_of_event(*op.event);
    const Part part = is_message_post(name) ? Part::kOtherStages : op.part;
    bool continues = false;
    const auto add = [&](std::int64_t begin_ns, std::int64_t end_ns,
                         const TraceEvent* post = nullptr,
                         std::optional<std::size_t> posted = std::nullopt) {
      if (end_ns <= begin_ns) return;
      TracedWork& work = add_work(post == nullptr ? *op.event : *post);
      work.part = post == nullptr ? part : Part::kExposedCommunication;
      work.posted = posted;
      work.step = step;
      work.begin_ns = begin_ns;
      work.end_ns = end_ns;
      work.continues = std::exchange(continues, true);
    };
    std::int64_t begin_ns = op.event->begin_ns;  // of a piece
    std::int64_t done_ns = begin_ns;             // of what was busy before
    std::size_t depth = 0;
    rank_.names.visit({begin_ns, begin_ns + 1}, [&](std::size_t path, const HostStretch&) {
      depth = rank_.names.path(path).size();
    });
    const auto leave_out = [&](const HostStretch& gap) {
      add(begin_ns, gap.begin_ns);
      begin_ns = gap.end_ns;
    };
    const auto look_at = [&](const HostStretch& gap) {
      if (gap.end_ns <= gap.begin_ns) return;
      if (waited(gap)) return leave_out(gap);
      rank_.names.visit(gap, [&](std::size_t path, const HostStretch& piece) {
        if (rank_.names.path(path).size() > depth) leave_out(piece);
      });
    };
    for (const auto& [busy, post] : op.busy) {
      look_at({done_ns, busy.begin_ns});
      done_ns = busy.end_ns;
      if (post == nullptr) continue;
      const HostStretch awaited = last_exchange_in(busy);
      add(begin_ns, busy.begin_ns);
      add(busy.begin_ns, awaited.begin_ns, post);
      const std::int64_t free_ns = std::min(busy.end_ns, awaited.end_ns);
      const auto record = records_.lower_bound(busy.begin_ns);
      const bool outlives = record != records_.end() && record->first < busy.end_ns &&
                            run_.works[record->second].end_ns > busy.end_ns;
      const std::int64_t held_ns = outlives ? std::max(free_ns, record->first) : busy.end_ns;
      add(free_ns, held_ns, post);
      if (outlives) add(held_ns, busy.end_ns, post, record->second);
      begin_ns = busy.end_ns;
    }
    look_at({done_ns, op.event->end_ns});
    add(begin_ns, op.event->end_ns);
  }

  std::size_t lane_of(TraceIndex row) {
    const auto [at, is_new] = lane_of_row_.try_emplace(row, rank_.lanes.size());
    if (is_new) rank_.lanes.push_back({.row = row});
    return at->second;
  }

  /// The row of the messages that threads of the host posted.
  TraceIndex message_row() {
    if (!message_row_) {
      message_row_ = static_cast<TraceIndex>(file().rows.size());
      rank_.file.rows.push_back({file().process, "messages"});
    }
    return *message_row_;
  }

  TracedWork& add_work(const TraceEvent& event) {
    const bool is_message = is_on_thread(event) && collective_of(event.collective).is_message();
    const std::size_t lane = lane_of(is_message ? message_row() : event.row);
    rank_.lanes[lane].works.push_back(run_.works.size());
    run_.works.push_back({.rank = index_,
                          .lane = lane,
                          .name = event.name,
                          .op = event.name,
                          .collective = event.collective,
                          .begin_ns = event.begin_ns,
                          .end_ns = event.end_ns});
    TracedWork& work = run_.works.back();
    set_part_of_exchange(work);
    return work;
  }

  void set_part_of_exchange(TracedWork& work) const {
    if (!work.is_collective()) return;
    work.part = collective_of(work.collective).is_message() ? Part::kOtherStages
                                                            : Part::kExposedCommunication;
  }

  [[nodiscard]] const HostLaunch* launch_of(const TraceEvent& event) const {
    const auto found = launches_.find(event.correlation);
    return event.correlation == 0 || found == launches_.end() ? nullptr : &found->second;
  }

  /// The work of a trace by barestep: the kernels of a node are one piece of work.
  void read_nodes() {
    std::map<std::int64_t, std::size_t> step_of;
    for (std::size_t i = 0; i < rank_.traced_steps.size(); ++i)
      step_of[rank_.traced_steps[i].step] = i;
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::size_t> found;
    for (const TraceEvent& event : file().events) {
      if (!event.is_work() || event.details < 0) continue;
      const TracedNode& node = file().nodes[static_cast<std::size_t>(event.details)];
      const auto step = step_of.find(node.step);
      if (step == step_of.end()) continue;
      const auto [at, is_new] =
          found.try_emplace({node.step, node.node, node.device}, run_.works.size());
      if (!is_new) {
        TracedWork& work = run_.works[at->second];
        work.end_ns = std::max(work.end_ns, event.end_ns);
        continue;
      }
      TracedWork& work = add_work(event);
      work.node = node.node;
      work.step = step->second;
      work.is_input = node.phase == Phase::kData;
      work.queued_ns = 0;  // known to be queued
      if (const HostLaunch* const launch = launch_of(event)) work.queued_ns = launch->at_ns;
      if (work.is_collective()) continue;
      work.part = !work.is_input                          ? part_for(node.phase)
                  : event.kind == TraceEvent::Kind::kCopy ? Part::kHostToDevice
                                                          : Part::kDataWait;
    }
    find_walls_of_ours();
  }

  /// As Timeline::wall_of_newest().
  void find_walls_of_ours() {
    std::vector<std::int64_t> lane_end_ns(rank_.steps.size(), 0);
    for (const TracedWork& work : run_.works) {
      if (work.rank != index_ || work.lane != compute_lane()) continue;
      lane_end_ns[*work.step] = std::max(lane_end_ns[*work.step], work.end_ns);
    }
    for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
      const TracedStep& traced = rank_.traced_steps[i];
      RankStep& step = rank_.steps[i];
      const bool follows = i > 0 && rank_.traced_steps[i - 1].step + 1 == traced.step;
      step.has_account = follows || !traced.overlaps_previous;
      step.wall_begin_ns =
          follows && traced.overlaps_previous ? lane_end_ns[i - 1] : traced.start_ns;
      const std::int64_t end_ns = traced.overlaps_next ? lane_end_ns[i] : step.end_ns;
      step.wall_end_ns = std::max(step.wall_begin_ns, end_ns);
      step.fetch_begin_ns = traced.fetch_begin_ns;
      step.fetched_ns = traced.fetched_ns;
    }
  }

  /// In our traces stream 1 is the compute lane.
  std::size_t compute_lane() {
    for (std::size_t lane = 0; lane < rank_.lanes.size(); ++lane) {
      if (file().rows[rank_.lanes[lane].row].thread == "1") return lane;
    }
    return 0;
  }

  void read_works() {
    rank_.launches = std::ssize(lost_);
    for (const TraceEvent& event : file().events) {
      if (!event.is_work() && !is_on_thread(event)) continue;
      lost_.erase(event.correlation);
      if (is_on_thread(event)) records_[event.begin_ns] = run_.works.size();
      TracedWork& work = add_work(event);
      std::int64_t at_ns = event.begin_ns;
      if (const HostLaunch* const launch = launch_of(event)) {
        rank_.has_launches = true;
        at_ns = launch->at_ns;
        work.queued_ns = std::min(launch->end_ns, event.begin_ns);
        if (!work.is_collective()) work.part = launch->part;
        work.op = launch->op.value_or(event.name);
        // In older traces, kernels of NCCL do not tell their sizes.
        const bool is_told = !work.is_collective() || collective_of(work.collective).bytes > 0;
        if (!is_told && launch->collective >= 0) {
          work.collective = launch->collective;
          set_part_of_exchange(work);
        }
      }
      if (event.kind == TraceEvent::Kind::kCopy &&
          name_of_event(event).find("HtoD") != std::string_view::npos) {
        work.part = Part::kHostToDevice;
      }
      work.step = step_at(at_ns);
    }
    rank_.lost_launches = std::ssize(lost_);
    leave_out_backlog();
    for (const OutermostOp& op : outermost_) add_host_works(op);
  }

  /// A stream works in the order of its launches. So what precedes its first work with a launch was
  /// launched before the profile, and belongs to no step.
  void leave_out_backlog() {
    for (const TracedLane& lane : rank_.lanes) {
      std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
      for (const std::size_t i : lane.works) {
        const TracedWork& work = run_.works[i];
        if (work.queued_ns && work.step) first_ns = std::min(first_ns, work.begin_ns);
      }
      if (first_ns == std::numeric_limits<std::int64_t>::max()) continue;
      for (const std::size_t i : lane.works) {
        if (run_.works[i].begin_ns < first_ns) run_.works[i].step.reset();
      }
    }
  }

  /// The step that contains a moment on the host.
  [[nodiscard]] std::optional<std::size_t> step_at(std::int64_t at_ns) const {
    const auto after = std::ranges::upper_bound(rank_.steps, at_ns, {}, &RankStep::begin_ns);
    if (after == rank_.steps.begin()) return std::nullopt;
    const auto step = std::prev(after);
    if (at_ns > step->end_ns) return std::nullopt;
    return static_cast<std::size_t>(step - rank_.steps.begin());
  }

  /// The lane that computes longest; without a device, the thread of the steps.
  void choose_main(bool has_nodes) {
    if (has_nodes) {
      rank_.main = compute_lane();
      return;
    }
    std::vector<std::int64_t> computed_ns(rank_.lanes.size(), 0);
    for (const TracedLane& lane : rank_.lanes) {
      for (const std::size_t i : lane.works) {
        const TracedWork& work = run_.works[i];
        if (!work.is_collective()) computed_ns[work.lane] += work.end_ns - work.begin_ns;
      }
    }
    if (computed_ns.empty()) {
      refuse_trace(file().path, "has no op and no work of a device",
                   "profile with ProfilerActivity.CPU, and .CUDA on a GPU");
    }
    rank_.main =
        static_cast<std::size_t>(std::ranges::max_element(computed_ns) - computed_ns.begin());
    if (!rank_.on_host || !step_row_) return;
    if (const auto lane = lane_of_row_.find(*step_row_); lane != lane_of_row_.end()) {
      rank_.main = lane->second;
    }
  }

  void order_lanes(bool has_nodes) {
    for (TracedLane& lane : rank_.lanes) {
      std::ranges::stable_sort(lane.works, {}, [&](std::size_t i) {
        const TracedWork& work = run_.works[i];
        const auto step = static_cast<std::int64_t>(work.step.value_or(0));
        return has_nodes ? std::tuple(step, work.node) : std::tuple(work.begin_ns, work.end_ns);
      });
      std::optional<std::size_t> before;
      for (const std::size_t i : lane.works) {
        TracedWork& work = run_.works[i];
        // Steps of ours that do not follow each other do not wait for each other.
        const bool follows =
            before && (!has_nodes || step_of_ours(work) - step_of_ours(run_.works[*before]) <= 1);
        if (follows) work.previous = before;
        if (follows && !has_nodes && !rank_.on_host) cut_at(run_.works[*before], work.begin_ns);
        before = i;
      }
    }
    if (has_nodes) join_lanes();
    rank_.works_of_step.resize(rank_.steps.size());
    for (const TracedLane& lane : rank_.lanes) {
      for (const std::size_t i : lane.works) {
        if (const auto step = run_.works[i].step) rank_.works_of_step[*step].push_back(i);
      }
    }
  }

  /// A stream runs one work after the other; a kernel may end a moment after the next one began.
  void cut_at(TracedWork& work, std::int64_t next_ns) {
    constexpr std::int64_t kMomentNs = 5'000;
    if (work.end_ns <= next_ns) return;
    if (work.end_ns > next_ns + kMomentNs) ++rank_.overlaps;
    work.end_ns = next_ns;
  }

  [[nodiscard]] std::int64_t step_of_ours(const TracedWork& work) const {
    return rank_.traced_steps[*work.step].step;
  }

  /// When the program changes, every lane waits for all lanes.
  void join_lanes() {
    std::map<std::size_t, std::vector<std::size_t>> firsts, lasts;  // by step, one a lane
    for (const TracedLane& lane : rank_.lanes) {
      for (std::size_t i = 0; i < lane.works.size(); ++i) {
        const std::size_t step = *run_.works[lane.works[i]].step;
        const bool is_first = i == 0 || *run_.works[lane.works[i - 1]].step != step;
        const bool is_last =
            i + 1 == lane.works.size() || *run_.works[lane.works[i + 1]].step != step;
        if (is_first) firsts[step].push_back(lane.works[i]);
        if (is_last) lasts[step].push_back(lane.works[i]);
      }
    }
    for (std::size_t step = 1; step < rank_.traced_steps.size(); ++step) {
      const bool follows = rank_.traced_steps[step - 1].step + 1 == rank_.traced_steps[step].step;
      if (!rank_.traced_steps[step].joins_lanes || !follows) continue;
      for (const std::size_t first : firsts[step]) {
        auto& awaited = run_.works[first].awaited;
        awaited.insert(awaited.end(), lasts[step - 1].begin(), lasts[step - 1].end());
      }
    }
  }

  /// The next work on the waiting stream waits for what the other stream had been given when the
  /// event was recorded.
  void read_stream_waits() {
    std::map<std::pair<std::string_view, std::string_view>, const TracedLane*> lanes;
    for (const TracedLane& lane : rank_.lanes) {
      const TracedRow& row = file().rows[lane.row];
      lanes.try_emplace({row.process, row.thread}, &lane);
    }
    const auto works_of = [&](const TraceEvent& event, std::int64_t stream) {
      const auto lane = lanes.find({file().rows[event.row].process, std::to_string(stream)});
      return lane == lanes.end() ? std::span<const std::size_t>() : std::span(lane->second->works);
    };
    const auto queued = [&](std::size_t i) { return run_.works[i].queued_ns.value_or(0); };
    for (const TraceEvent& event : file().events) {
      if (event.kind != TraceEvent::Kind::kStreamWait || event.details < 0) continue;
      const TracedStreamWait& wait = file().waits[static_cast<std::size_t>(event.details)];
      const auto record = launches_.find(wait.record_correlation);
      const auto call = launches_.find(event.correlation);
      const std::int64_t at_ns = call == launches_.end() ? event.begin_ns : call->second.at_ns;
      if (record == launches_.end()) continue;
      const auto works = works_of(event, wait.stream), holders = works_of(event, wait.on_stream);
      const auto held = std::ranges::upper_bound(works, at_ns, {}, queued);
      const auto next = std::ranges::lower_bound(holders, record->second.at_ns, {}, queued);
      const bool is_known = held != works.end() && next != holders.begin();
      if (!is_known || *held == *std::prev(next)) continue;
      rank_.has_stream_waits = true;
      run_.works[*held].awaited.push_back(*std::prev(next));
    }
  }

  /// A step lasts until the host and the lane are done with it; the next begins after that, and the
  /// first one after what the lane had to do before.
  void find_walls() {
    std::vector<std::int64_t> lane_end_ns(rank_.steps.size(), 0);
    std::int64_t free_ns = std::numeric_limits<std::int64_t>::min();
    const std::vector<std::size_t>& works = rank_.lanes[rank_.main].works;
    const auto has_step = [&](std::size_t i) { return run_.works[i].step.has_value(); };
    const auto first = std::ranges::find_if(works, has_step);
    for (const std::size_t i : works) {
      const TracedWork& work = run_.works[i];
      if (work.step) lane_end_ns[*work.step] = std::max(lane_end_ns[*work.step], work.end_ns);
    }
    for (auto i = works.begin(); i != first && first != works.end() && !rank_.on_host; ++i) {
      const TracedWork& work = run_.works[*i];
      if (work.end_ns <= rank_.steps.front().begin_ns) continue;
      free_ns = std::max(free_ns, work.end_ns);
      ++rank_.backlog;
    }
    find_start_up();
    for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
      RankStep& step = rank_.steps[i];
      const std::int64_t begin_ns = step.begin_ns + (i == 0 ? rank_.start_up_ns : 0);
      step.wall_begin_ns = std::max(begin_ns, free_ns);
      step.wall_end_ns = std::max({step.wall_begin_ns, step.end_ns, lane_end_ns[i]});
      free_ns = step.wall_end_ns;
    }
    find_cut_steps();
  }

  /// Seconds before the first launch of a program, half of its first step or more, are its
  /// start-up.
  void find_start_up() {
    constexpr std::int64_t kLongNs = 1'000'000'000;
    if (rank_.on_host || !rank_.has_launches) return;
    std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
    for (const TracedWork& work : run_.works) {
      if (work.rank == index_ && work.queued_ns) first_ns = std::min(first_ns, *work.queued_ns);
    }
    const RankStep& step = rank_.steps.front();
    const std::int64_t before_ns = first_ns - step.begin_ns;
    if (before_ns < kLongNs || 2 * before_ns < step.end_ns - step.begin_ns) return;
    rank_.start_up_ns = before_ns;
  }

  /// A step without work is one that the profiler cut, and so is a first step that lacks most of
  /// the forward pass, or a last one that lacks most of the update, that all others have, and a
  /// first step with backward of what ran before the profile.
  void find_cut_steps() {
    struct Seen {
      bool work = false;
      std::int64_t forward_ns = 0, optimizer_ns = 0;
    };
    std::vector<Seen> seen(rank_.steps.size());
    for (const TracedWork& work : run_.works) {
      if (work.rank != index_ || !work.step) continue;
      Seen& of = seen[*work.step];
      of.work = true;
      const bool evaluates = work.part == Part::kEvaluation;
      const std::int64_t ns = std::max<std::int64_t>(1, work.end_ns - work.begin_ns);
      if (evaluates || work.part == Part::kForward) of.forward_ns += ns;
      if (evaluates || work.part == Part::kOptimizer) of.optimizer_ns += ns;
    }
    if (std::ranges::none_of(seen, &Seen::work)) return;
    for (std::size_t i = 0; i < seen.size(); ++i) rank_.steps[i].has_account = seen[i].work;
    if (seen.size() < 2) return;
    const auto cut = [&](std::size_t i, std::int64_t Seen::*what, bool is_known = false) {
      std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
      for (std::size_t other = 0; other < seen.size(); ++other) {
        if (other != i) least_ns = std::min(least_ns, seen[other].*what);
      }
      rank_.steps[i].is_cut = seen[i].work && (is_known || 10 * (seen[i].*what) < least_ns);
      if (rank_.steps[i].is_cut) rank_.steps[i].has_account = false;
    };
    cut(0, &Seen::forward_ns, goes_back_in_first_step());
    if (rank_.updates_of_step == 0 && seen.size() > 2) cut(seen.size() - 1, &Seen::optimizer_ns);
  }

  /// Whether the first step, and no later one, has backward of an op that ran before all that
  /// autograd recorded in the trace.
  [[nodiscard]] bool goes_back_in_first_step() const {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    for (const TraceEvent& event : file().events) {
      const bool is_forward = event.is_recorded && !event.is_backward;
      if (is_forward) first = std::min(first, event.correlation);
    }
    std::optional<std::size_t> last;  // step
    for (const TraceEvent& event : file().events) {
      const bool goes_back = event.is_backward && event.is_recorded && event.correlation < first;
      if (goes_back) last = step_at(event.begin_ns);
    }
    return last == std::size_t{0};
  }

  TracedRun& run_;
  TracedRank& rank_;
  std::size_t index_;
  std::optional<TraceIndex> step_row_, message_row_;
  std::vector<std::int64_t> trains_until_ns_;  // like rank_.steps; 0: it does not
  std::vector<HostStretch> evaluating_;        // where nothing trains; united
  std::set<TraceIndex> forward_ops_;           // that autograd records
  std::unordered_map<std::int64_t, HostLaunch> launches_;
  std::unordered_set<std::int64_t> lost_;  // launches of kernels, until they are found
  // Of a trace without a device:
  std::vector<OutermostOp> outermost_;
  std::map<std::int64_t, std::size_t> records_;  // works of collectives, by begin
  std::vector<HostStretch> exchanges_;           // collectives, by end
  std::unordered_map<TraceIndex, std::size_t> lane_of_row_;
};

/// What identifies a collective on every rank: step, group, name, bytes, and how many of these came
/// before in the step. Ranks may begin those of two threads in another order.
using ExchangeKey = std::tuple<std::int64_t, std::string, std::string, std::int64_t, std::int64_t>;

/// Of a message: from which rank to which, as far as the traces tell; of two ranks they do.
std::string direction_of(const TracedRun& run, std::size_t rank, const TracedCollective& message) {
  const std::int64_t own = run.ranks[rank].rank;
  std::int64_t other = message.peer;
  if (run.ranks.size() == 2) other = run.ranks[1 - rank].rank;
  if (other < 0) return fmt::format("{} of {}", message.name, own);
  return message.name == "send" ? fmt::format("from {} to {}", own, other)
                                : fmt::format("from {} to {}", other, own);
}

void match_exchanges(TracedRun& run) {
  std::map<ExchangeKey, TracedExchange> found;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const TracedRank& of = run.ranks[rank];
    std::vector<std::size_t> works;
    for (const TracedLane& lane : of.lanes) {
      for (const std::size_t i : lane.works) {
        if (run.works[i].is_collective() && run.works[i].step) works.push_back(i);
      }
    }
    std::ranges::stable_sort(works, {}, [&](std::size_t i) { return run.works[i].begin_ns; });
    std::map<ExchangeKey, std::int64_t> counts;
    for (const std::size_t i : works) {
      const TracedCollective& record = run.collective_of(run.works[i]);
      const std::string name = record.is_message() ? direction_of(run, rank, record) : record.name;
      ExchangeKey key{of.steps[*run.works[i].step].number, record.group, name, record.bytes, 0};
      std::get<4>(key) = counts[key]++;
      TracedExchange& exchange = found[key];
      exchange.step = std::get<0>(key);
      exchange.works.push_back(i);
    }
  }
  for (auto& [key, exchange] : found) run.exchanges.push_back(std::move(exchange));
  std::ranges::stable_sort(run.exchanges, {}, [&](const TracedExchange& exchange) {
    return std::pair(exchange.step, run.works[exchange.works.front()].begin_ns);
  });
}

/// Whether no rank can leave before all have entered.
bool holds_all(const std::string& collective) {
  return collective == "all_reduce" || collective == "all_gather" || collective == "all_to_all" ||
         collective == "reduce_scatter" || collective == "barrier";
}

/// Shifts a rank's clock if it contradicts the first rank's.
void align_clock(TracedRun& run, std::size_t rank) {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  for (const TracedExchange& exchange : run.exchanges) {
    const TracedWork& first = run.works[exchange.works.front()];
    const auto other =
        std::ranges::find(exchange.works, rank, [&](std::size_t i) { return run.works[i].rank; });
    if (first.rank != 0 || other == exchange.works.end()) continue;
    if (!holds_all(run.collective_of(first).name)) continue;
    min = std::max(min, first.begin_ns - run.works[*other].end_ns);
    max = std::min(max, first.end_ns - run.works[*other].begin_ns);
  }
  if (max == std::numeric_limits<std::int64_t>::max() || (min <= 0 && max >= 0)) return;
  TracedRank& of = run.ranks[rank];
  of.shift_ns = min / 2 + max / 2;
  of.names.shift(of.shift_ns);
  of.shift_error_ns = std::abs(max / 2 - min / 2);
  const auto shift = [&](std::initializer_list<std::int64_t*> times) {
    for (std::int64_t* const at : times) *at += of.shift_ns;
  };
  for (TracedWork& work : run.works) {
    if (work.rank != rank) continue;
    shift({&work.begin_ns, &work.end_ns});
    if (work.queued_ns) *work.queued_ns += of.shift_ns;
  }
  for (RankStep& step : of.steps) {
    shift({&step.begin_ns, &step.end_ns, &step.fetch_begin_ns, &step.fetched_ns,
           &step.wall_begin_ns, &step.wall_end_ns});
  }
  for (auto* const stretches : {&of.blocked, &of.loading, &of.updating}) {
    for (HostStretch& stretch : *stretches) shift({&stretch.begin_ns, &stretch.end_ns});
  }
}

/// Finds who entered each collective last, if the traces of all of its ranks are here. What posts
/// one is part of it.
void find_last_ranks(TracedRun& run) {
  // Where a collective does not tell its ranks, as gloo's do not, they are all of the job's.
  const bool has_all_ranks = std::ranges::all_of(run.ranks, [&](const TracedRank& rank) {
    return rank.file.world_size <= std::ssize(run.ranks);
  });
  for (std::size_t e = 0; e < run.exchanges.size(); ++e) {
    TracedExchange& exchange = run.exchanges[e];
    const std::ptrdiff_t ranks = std::ssize(exchange.works);
    int told = 0;
    std::int64_t end_ns = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t i : exchange.works) {
      TracedWork& work = run.works[i];
      work.exchange = e;
      told = run.collective_of(work).is_message() ? 2 : run.collective_of(work).ranks;
      end_ns = std::min(end_ns, work.end_ns);
      if (work.begin_ns <= exchange.last_begin_ns.value_or(work.begin_ns - 1)) continue;
      exchange.last_begin_ns = work.begin_ns;
      exchange.last_rank = work.rank;
    }
    for (const std::size_t i : exchange.works) {
      TracedWork& work = run.works[i];
      work.first_end_ns = holds_all(run.collective_of(work).name) ? end_ns : work.end_ns;
    }
    if (ranks > 1 && (told == 0 ? has_all_ranks : told == ranks)) continue;
    exchange.last_begin_ns.reset();
    exchange.last_rank.reset();
  }
  for (TracedWork& work : run.works) {
    if (work.posted) work.exchange = run.works[*work.posted].exchange;
  }
}

/// What runs when, of the works that `counts` selects. On a lane, a work runs until the next one
/// begins.
template <class Counts>
std::vector<RunningWork> running_works(const TracedRun& run, const TracedRank& rank,
                                       const Counts& counts) {
  using LaneWork = std::pair<std::size_t, std::size_t>;  // its lane, itself
  std::vector<Edge<LaneWork>> edges;
  for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
    const std::vector<std::size_t>& works = rank.lanes[lane].works;
    for (std::size_t i = 0; i < works.size(); ++i) {
      const TracedWork& work = run.works[works[i]];
      const std::int64_t end_ns = i + 1 == works.size()
                                      ? work.end_ns
                                      : std::min(work.end_ns, run.works[works[i + 1]].begin_ns);
      if (end_ns <= work.begin_ns || !counts(work)) continue;
      edges.push_back({work.begin_ns, {lane, works[i]}, true});
      edges.push_back({end_ns, {lane, works[i]}, false});
    }
  }
  std::vector<RunningWork> running;
  visit_open(std::move(edges), [&](std::int64_t from_ns, const std::set<LaneWork>& open) {
    running.push_back({.from_ns = from_ns});
    if (!open.empty()) running.back().work = open.begin()->second;
  });
  return running;
}

TracedMoments moments_of(const TracedRun& run, const TracedRank& rank) {
  TracedMoments moments;
  moments.running = running_works(run, rank, [](const TracedWork&) { return true; });
  moments.backward =
      running_works(run, rank, [](const TracedWork& work) { return work.part == Part::kBackward; });
  // Backward, so that of works that end at once the first lane's last one is the last.
  for (auto lane = rank.lanes.rbegin(); lane != rank.lanes.rend(); ++lane) {
    for (const std::size_t i : lane->works) {
      moments.begins_ns.push_back(run.works[i].begin_ns);
      moments.by_end.push_back(i);
    }
  }
  std::ranges::sort(moments.begins_ns);
  std::ranges::stable_sort(moments.by_end, {}, [&](std::size_t i) { return run.works[i].end_ns; });
  std::ranges::copy_if(moments.by_end, std::back_inserter(moments.exchanges_by_end),
                       [&](std::size_t i) { return run.works[i].is_collective(); });
  moments.exchanges_by_first_end = moments.exchanges_by_end;
  std::ranges::stable_sort(moments.exchanges_by_first_end, {},
                           [&](std::size_t i) { return run.works[i].first_end_ns; });
  return moments;
}

std::int64_t end_ns(const TraceFile& file) {
  return std::ranges::max_element(file.events, {}, &TraceEvent::end_ns)->end_ns;
}

/// Refuses repeats of a program and cycles of a profiler's schedule: they are no other ranks. Files
/// of one process at the same time are of its devices, or of containers that number their processes
/// alike.
void require_no_repeat(const TracedRun& run, const TraceFile& file) {
  const auto is_alone = [](const TraceFile& of) {
    return !of.rank && of.world_size <= 1 && of.collectives.empty();
  };
  for (const TracedRank& rank : run.ranks) {
    const TraceFile& other = rank.file;
    const bool is_apart = file.events.front().begin_ns >= end_ns(other) ||
                          other.events.front().begin_ns >= end_ns(file);
    if (!is_apart || file.host != other.host) continue;
    const bool is_told = file.rank && other.rank,
               is_process = !file.process.empty() && file.process == other.process;
    const char* what = nullptr;
    if (is_alone(file) && is_alone(other)) what = "a single process, as";
    if (!is_told && !file.is_ours && is_process) what = "the process of";
    if (is_told && file.rank == other.rank) what = "the same rank as";
    if (what == nullptr) continue;
    refuse_trace(
        file.path,
        fmt::format("is of {} '{}', at another time: a repeat or a cycle, not another rank", what,
                    other.path.string()),
        "explain one at a time, or compare two by their folders: mlp_lab explain A/ B/");
  }
}

/// Refuses traces of several jobs. Ranks of one are numbered, or meet in a collective, and run at
/// the same time, as far as clocks of two machines agree.
void require_one_job(const TracedRun& run) {
  constexpr std::int64_t kApartNs = 5'000'000'000;
  std::set<std::size_t> meet;
  for (const TracedExchange& exchange : run.exchanges) {
    for (const std::size_t i : exchange.works) {
      if (exchange.works.size() > 1) meet.insert(run.works[i].rank);
    }
  }
  const TraceFile& first = run.ranks.front().file;
  const std::int64_t count = std::ssize(run.ranks);
  for (std::size_t rank = 1; rank < run.ranks.size(); ++rank) {
    const TraceFile& file = run.ranks[rank].file;
    const auto refuse = [&](const std::string& why) {
      refuse_trace(file.path, why,
                   "give the traces of one job, or a folder for each of two runs to compare them");
    };
    const auto other = first.path.string();
    const auto [least, most] = std::minmax(first.world_size, file.world_size);
    if (least > 0 && least != most) {
      refuse(fmt::format("is of a job of {}, and '{}' of one of {}",
                         counted(file.world_size, "rank"), other, first.world_size));
    }
    if (most > 0 && most < count) {
      refuse(fmt::format("is of a job of {}, and {} are given", counted(most, "rank"),
                         counted(count, "trace")));
    }
    if (!(file.rank && first.rank) && !meet.contains(rank)) {
      refuse(fmt::format(
          "has no collective in common with '{}', and they do not both tell their rank", other));
    }
    const std::int64_t apart_ns = std::max(file.events.front().begin_ns - end_ns(first),
                                           first.events.front().begin_ns - end_ns(file));
    if (apart_ns > kApartNs) {
      refuse(fmt::format("was recorded {} apart from '{}'",
                         time_text(1e-9 * static_cast<double>(apart_ns)), other));
    }
  }
}

/// Whether a wait of a step of ours reaches one that is kept, without a change of the program in
/// between.
bool is_reached(const TracedRank& rank, std::int64_t step, std::int64_t steps_back) {
  const auto at = [&](std::int64_t number) {
    return std::ranges::find(rank.traced_steps, number, &TracedStep::step);
  };
  for (std::int64_t back = 0; back < steps_back; ++back) {
    const auto found = at(step - back);
    if (found == rank.traced_steps.end() || found->joins_lanes) return false;
  }
  return at(step - steps_back) != rank.traced_steps.end();
}

/// What nodes of ours waited for, also on other devices of their process, whose traces are files of
/// their own.
void link_nodes(TracedRun& run) {
  std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, std::size_t> work_of;
  for (std::size_t i = 0; i < run.works.size(); ++i) {
    const TracedWork& work = run.works[i];
    if (work.node < 0) continue;
    work_of[{work.rank, run.ranks[work.rank].traced_steps[*work.step].step, work.node}] = i;
  }
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const TraceFile& file = run.ranks[rank].file;
    const auto device_of = [&](std::int64_t device) {  // its rank
      const auto found = std::ranges::find_if(run.ranks, [&](const TracedRank& other) {
        return other.file.process == file.process && !other.file.nodes.empty() &&
               other.file.nodes.front().device == device;
      });
      return static_cast<std::size_t>(found - run.ranks.begin());
    };
    for (const TraceEvent& event : file.events) {
      if (!event.is_work() || event.details < 0) continue;
      const TracedNode& node = file.nodes[static_cast<std::size_t>(event.details)];
      const auto held = work_of.find({rank, node.step, node.node});
      if (held == work_of.end()) continue;
      for (const TracedNode::Wait& wait : node.waits) {
        if (!is_reached(run.ranks[rank], node.step, wait.steps_back)) continue;
        const auto holder =
            work_of.find({wait.device == node.device ? rank : device_of(wait.device),
                          node.step - wait.steps_back, wait.node});
        std::vector<std::size_t>& awaited = run.works[held->second].awaited;
        const bool is_new =
            holder != work_of.end() && std::ranges::find(awaited, holder->second) == awaited.end();
        if (is_new) awaited.push_back(holder->second);
      }
    }
  }
}

}  // namespace

std::vector<HostStretch> united(std::vector<HostStretch> stretches) {
  std::ranges::sort(stretches, {}, &HostStretch::begin_ns);
  std::vector<HostStretch> all;
  for (const HostStretch& stretch : stretches) {
    if (all.empty() || stretch.begin_ns > all.back().end_ns) {
      all.push_back(stretch);
    } else {
      all.back().end_ns = std::max(all.back().end_ns, stretch.end_ns);
    }
  }
  return all;
}

TracedRun run_from(std::vector<TraceFile> files) {
  TracedRun run;
  std::set<std::int64_t> seen;
  for (TraceFile& file : files) {
    const std::int64_t rank = file.rank.value_or(static_cast<std::int64_t>(run.ranks.size()));
    require_no_repeat(run, file);
    if (!seen.insert(rank).second) {
      refuse_trace(file.path, fmt::format("another file also holds rank {}", rank), kRankRemedy);
    }
    run.ranks.push_back({.file = std::move(file), .rank = rank});
  }
  std::ranges::sort(run.ranks, {}, &TracedRank::rank);
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) RankReader(run, rank).read();
  link_nodes(run);
  match_exchanges(run);
  require_one_job(run);
  for (std::size_t rank = 1; rank < run.ranks.size(); ++rank) align_clock(run, rank);
  find_last_ranks(run);
  for (TracedRank& rank : run.ranks) rank.moments = moments_of(run, rank);
  return run;
}

}  // namespace barestep
