// Accounts for the wall time of a step: every instant has one cause.
//
// The account is that of one compute lane. While the lane runs, the cause is the phase of its work.
// While it waits, the cause is found by walking back: from its next run to the unfinished
// predecessor that ends last, and on from there, to something that is running: input being copied,
// communication, another device. Otherwise the host has not queued it yet, or nothing holds it
// (idle). So the parts are never negative and add up to the wall time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "train/timeline.h"

namespace barestep {

/// The cause of an instant of a step.
enum class Part {
  kDataWait,              // input is not being copied yet: the host prepares it, or it is drawn
  kHostToDevice,          // input is being copied
  kInjected,              // a requested delay
  kForward,               // work of that phase, as for the empty ones below
  kLoss,                  //
  kRecompute,             //
  kBackward,              //
  kTensorRanks,           // a sum over the ranks that share every layer must finish
  kOtherStages,           // an exchange with another stage of the pipeline must finish
  kExposedCommunication,  // any other collective must finish before anything can run
  kOptimizer,             //
  kGraph,                 // work of a graph whose phases are not measured
  kEvaluation,            // work of an evaluation after the update, in a trace of others
  kOtherDevice,           // another device of this process is computing
  kVerification,          // the step stands still to be compared with itself and other ranks
  kHost,                  // the host has not queued the next work
  kIdle,                  // next work is queued, and nothing known holds the lane
};

/// What programs, records and reports call a part.
struct PartTraits {
  std::string_view name;   // in tables
  std::string_view key;    // in records, which add up neighbors with the same key; empty: in none
  std::string_view words;  // in sentences
  std::string_view cause;  // ": the messages are slow, or a rank is late"; empty for work
  std::size_t color = 0;   // in plots
  bool is_rare = false;    // left out of tables of runs that have none
  std::optional<Phase> work_of{};  // the phase whose work on the compute lane it is
  bool computes = false;

  /// In legends: the words without their article.
  [[nodiscard]] constexpr std::string_view plot_name() const {
    constexpr std::string_view kArticle = "the ";
    return words.starts_with(kArticle) ? words.substr(kArticle.size()) : words;
  }
};

/// By Part.
inline constexpr PartTraits kAccountParts[] = {
    {"data wait", "data", "waiting for data", ": input is produced more slowly than it is consumed",
     4},
    {"host to device", "data", "waiting for data",
     ": input is copied more slowly than it is consumed", 4, true},
    {"injected", "injected", "the injected delay", ": an injected delay", 6, true,
     Phase::kInjected},
    {"forward", "forward", "forward", "", 0, false, Phase::kForward, true},
    {"loss", "loss", "the loss", "", 5, false, Phase::kLoss, true},
    {"recompute", "recompute", "recomputation", "", 10, true, Phase::kRecompute, true},
    {"backward", "backward", "backward", "", 2, false, Phase::kBackward, true},
    {"tensor ranks", "tensor_ranks", "the other tensor ranks",
     ": their sums are slow, or a tensor rank is late", 11, true},
    {"other stages", "other_stages", "the other stages",
     ": other stages have more to compute, or there are few micro-batches", 12, true},
    {"exposed communication", "communication", "exposed communication",
     ": the messages are slow, or a rank is late", 1, true, Phase::kCommunication},
    {"optimizer", "optimizer", "the optimizer", "", 3, false, Phase::kOptimizer, true},
    {"graph", "", "the step's graph", "", 3, true, {}, true},
    {"evaluation", "", "evaluation", "", 10, true, {}, true},
    {"other device", "other_device", "the other devices", ": another device has more to compute", 8,
     true},
    {"verification", "verification", "verification",
     ": --verify-every runs steps again; give a larger number", 6, true},
    {"host", "host", "the host", ": the host queues work more slowly than it is done", 9},
    {"idle", "idle", "idle gaps",
     ": no known cause; work starts late, its end is noticed late, or the machine is busy", 7}};

template <>
inline constexpr auto kNamesOf<Part> = [] {
  std::array<std::string_view, std::size(kAccountParts)> names;
  std::ranges::transform(kAccountParts, names.begin(), &PartTraits::name);
  return names;
}();

constexpr const PartTraits& traits_of(Part part) {
  return kAccountParts[static_cast<std::size_t>(part)];
}

/// What "the bottleneck is".
constexpr std::string_view subject_of(Part part) {
  constexpr std::pair<Part, std::string_view> kSubjects[] = {
      {Part::kForward, "the forward pass"},
      {Part::kBackward, "the backward pass"},
      {Part::kTensorRanks, "waiting for the other tensor ranks"},
      {Part::kOtherStages, "waiting for the other stages"},
      {Part::kOtherDevice, "waiting for the other devices"},
      {Part::kIdle, "idle time"}};
  const auto* const found =
      std::ranges::find(kSubjects, part, &std::pair<Part, std::string_view>::first);
  return found == std::end(kSubjects) ? traits_of(part).words : found->second;
}

/// What makes a part long that is not work.
constexpr std::string_view cause_of(Part part) {
  return traits_of(part).cause;
}

/// The part for work of a phase that has one: every phase but that of the input.
constexpr Part part_for(Phase work) {
  if (work == Phase::kEvaluate) work = Phase::kForward;
  return *std::ranges::find(kValuesOf<Part>, work,
                            [](Part part) { return traits_of(part).work_of; });
}

/// Whether the lane waits for a collective: for its bytes, or for a rank that is late.
constexpr bool is_exchange(Part part) {
  return part == Part::kTensorRanks || part == Part::kOtherStages ||
         part == Part::kExposedCommunication;
}

/// A run of the step that is `steps_back` steps before the newest, or a piece of a trace's work.
struct RunOfStep {
  std::size_t run = 0;
  int steps_back = 0;
};

/// An interval with one cause, in seconds of core/clock.h.
struct CauseSpan {
  double begin_s = 0;
  double end_s = 0;
  Part part = Part::kIdle;
  bool is_own_work = false;            // the lane itself was running
  std::optional<RunOfStep> held_by{};  // the run that the lane waited for, on any lane

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
};

/// What ran in a step, and in those that it waits for: the timeline of a run, a trace that was
/// read, or a simulated step. The account of any of them is found by one walk over this view. Its
/// pieces of work are those that a RunOfStep names; times are in seconds of one clock.
class Spans {
 public:
  struct Work {
    double queued_s = 0;  // the host had begun to queue it
    double begin_s = 0, end_s = 0;
    Part part = Part::kIdle;  // while it runs, as seen from the account's lane
    bool is_own = false;      // of that lane
    bool is_input = false;
  };

  /// The last of some moments after `after_s`.
  struct Last {
    double after_s = 0;
    std::optional<RunOfStep> work{};

    void add(RunOfStep of, double at_s) {
      if (at_s <= after_s) return;
      after_s = at_s;
      work = of;
    }
  };

  virtual ~Spans() = default;

  [[nodiscard]] virtual WallTime wall() const = 0;
  /// When the host, which has queued the step, makes the next one's input; empty if it does not.
  [[nodiscard]] virtual WallTime fetch() const = 0;
  /// The step's work by number; that of a lane is in its order.
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual RunOfStep work_at(std::size_t number) const = 0;
  [[nodiscard]] virtual Work work(RunOfStep which) const = 0;
  /// Adds the begins of the parts of the same collective, without which it moves nothing.
  virtual void add_parts(RunOfStep of, Last& last) const = 0;
  /// Adds the ends of all that must end before it begins.
  virtual void add_awaited(RunOfStep held, Last& last) const = 0;
  /// What the host does that has yet to queue work, from `now_s` to `until_s` or earlier.
  [[nodiscard]] virtual CauseSpan host_at(double now_s, double until_s) const {
    return {now_s, until_s, Part::kHost};
  }
  /// What it does when all work is done.
  [[nodiscard]] virtual CauseSpan end_at(double now_s, double until_s) const {
    return {now_s, until_s, Part::kIdle};
  }
};

/// Calls visit(stretch) for consecutive stretches of the step's wall time, from begin to end,
/// without gaps or overlaps. Allocates nothing.
void visit_stretches(const Spans& spans, const std::function<void(const CauseSpan&)>& visit);

/// The same of the timeline's newest step, along a lane; for an account, a compute lane.
void visit_stretches(const Timeline& timeline, LaneId lane,
                     const std::function<void(const CauseSpan&)>& visit);

struct StepAccount {
  std::int64_t number = 0;  // the training step's
  double wall_s = 0;
  EnumArray<Part, double> part_s{};
  double hidden_communication_s = 0;  // alongside the lane's work or other waits; not in any part
  double between_s = 0;      // between the previous step's wall time and this one's; not in either
  double checkpoint_s = 0;   // saving the state before the step; not in either
  double clock_error_s = 0;  // upper bound of the times' error

  [[nodiscard]] double& operator[](Part part) { return part_s[part]; }
  [[nodiscard]] double operator[](Part part) const { return part_s[part]; }
  /// For ranks, stages or devices.
  [[nodiscard]] double waits_for_others_s() const;
  /// Of the parts with this key in records.
  [[nodiscard]] double seconds_of(std::string_view key) const;
};

/// The account of the timeline's newest step; allocates nothing. The caller sets `number`.
StepAccount account_of(const Timeline& timeline, LaneId lane);

/// One account for each step of the profile, for device 0. A step that overlaps the one before it
/// needs that one's records, and has no account without them.
std::vector<StepAccount> accounts_of(const Profile& profile);

/// The mean of the accounts added to it.
class MeanAccount {
 public:
  void add(const StepAccount& account);
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The clocks' error is the largest one. At least one step must have been added.
  [[nodiscard]] StepAccount mean() const;

 private:
  StepAccount sum_;
  std::int64_t count_ = 0;
};

/// A table of the parts, in milliseconds and percent of the wall time, followed by times outside
/// the parts.
std::string account_table(const StepAccount& account);

/// One sentence that names the largest part of a step of the profile and its main cause. Empty
/// without steps.
std::string bottleneck(const Profile& profile, const MeanAccount& account, const Peaks& peaks);

// How busy a device was, as defined by HolisticTraceAnalysis: from the start of its first work to
// the end of its last, over all streams.

struct Breakdown {
  double span_s = 0;           // from the first start to the last end
  double compute_s = 0;        // time with computation
  double non_compute_s = 0;    // time with only copies and communication
  double idle_s = 0;           // time with no work
  double communication_s = 0;  // time with communication
  /// The share of communication that overlaps with computation; nothing without communication.
  std::optional<double> overlap{};
};

/// A piece of a device's work.
struct DeviceWork {
  enum class Kind { kCompute, kCopy, kCommunication };
  Kind kind = Kind::kCompute;
  double begin_s = 0, end_s = 0;
};

/// The breakdown of a device's work, given in the order of its begin.
Breakdown breakdown_of(std::span<const DeviceWork> works);

/// The breakdown of one device. Copies and communication are distinguished from computation by
/// their ops.
Breakdown breakdown_of(const Profile& profile, int device);

/// One sentence. Empty if the device did no work.
std::string breakdown_text(const Breakdown& breakdown);

}  // namespace barestep
