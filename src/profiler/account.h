// Where the wall time of a step went: every instant of it has one cause.
//
// Seen from one compute lane. While the lane runs, the cause is the phase of its work. While it
// does not, the cause is found by walking from its next run to the unfinished predecessor that ends
// last, and on from there, until something is found that runs: input on its way, communication,
// another device. Or the host has not queued it yet, or nothing holds it (idle). So parts are never
// negative and add up to the wall time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "train/timeline.h"

namespace barestep {

/// What an instant of a step is due to.
enum class Part {
  kDataWait,              // input is not being copied yet: the host makes it, or it is drawn
  kHostToDevice,          // input is on its way
  kInjected,              // a delay that was asked for
  kForward,               // work of the phase
  kLoss,                  //
  kRecompute,             //
  kBackward,              //
  kExposedCommunication,  // nothing can run until a collective is done
  kOptimizer,             //
  kOtherDevice,           // another device of this process computes
  kHost,                  // the host has not queued what comes next
  kIdle,                  // it has, and nothing that is known holds the lane
};
template <>
inline constexpr std::string_view kNamesOf<Part>[] = {
    "data wait", "host to device",        "injected",  "forward",      "loss", "recompute",
    "backward",  "exposed communication", "optimizer", "other device", "host", "idle"};

/// A run of the step that many steps before the newest.
struct RunOfStep {
  std::size_t run = 0;
  int steps_back = 0;
};

/// A stretch of time with one cause, in seconds of core/clock.h.
struct CauseSpan {
  double begin_s = 0;
  double end_s = 0;
  Part part = Part::kIdle;
  bool is_own_work = false;            // the lane itself ran
  std::optional<RunOfStep> held_by{};  // what ran meanwhile, on whatever lane

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
};

/// Calls visit(stretch) along the wall time of the timeline's newest step, from its begin to its
/// end without gaps or overlaps. `lane` is a compute lane. Allocates nothing.
void visit_stretches(const Timeline& timeline, LaneId lane,
                     const std::function<void(const CauseSpan&)>& visit);

struct StepAccount {
  std::int64_t number = 0;  // of the training step
  double wall_s = 0;
  EnumArray<Part, double> part_s{};
  double hidden_communication_s = 0;  // beside work of the lane or beside other waits; in no part
  double between_s = 0;      // between the wall time of the step before it and its own; in neither
  double checkpoint_s = 0;   // saving the state before the step; in neither
  double clock_error_s = 0;  // by how much its times may be off at most

  [[nodiscard]] double& operator[](Part part) { return part_s[part]; }
  [[nodiscard]] double operator[](Part part) const { return part_s[part]; }
};

/// Of the timeline's newest step; allocates nothing. `number` is left to the caller.
StepAccount account_of(const Timeline& timeline, LaneId lane);

/// One for each step of the profile, seen from device 0. A step that overlaps the one before it
/// needs that one's records, and has no account without them.
std::vector<StepAccount> accounts_of(const Profile& profile);

/// The mean of accounts that are added to it.
class MeanAccount {
 public:
  void add(const StepAccount& account);
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The clocks' error is the largest. There must be a step.
  [[nodiscard]] StepAccount mean() const;

 private:
  StepAccount sum_;
  std::int64_t count_ = 0;
};

/// A table of the parts, in milliseconds and percents of the wall time, and what is in none.
std::string account_table(const StepAccount& account);

/// One sentence that names the largest part of a step of the profile and its largest cause. Empty
/// without steps.
std::string bottleneck(const Profile& profile, const MeanAccount& account, const Peaks& peaks);

// How busy a device was, by the definitions of HolisticTraceAnalysis: from the start of its first
// work to the end of its last, all streams together.

/// Why a stream waited between two pieces of work.
struct StreamIdle {
  int stream = 0;            // as in a trace: 1 is the compute lane's
  double host_wait_s = 0;    // the host had not queued the next one
  double kernel_wait_s = 0;  // it had, and the gap is shorter than kShortGapSeconds
  double other_s = 0;
};

struct Breakdown {
  double span_s = 0;         // first start to last end
  double compute_s = 0;      // of it with computation
  double non_compute_s = 0;  // with nothing but copies and communication
  double idle_s = 0;         // with nothing
  /// The share of communication that computation hides; nothing without communication.
  std::optional<double> overlap{};
  std::vector<StreamIdle> streams;
};

/// HolisticTraceAnalysis's default, which it takes for microseconds.
constexpr double kShortGapSeconds = 30e-6;

/// Of one device. Copies and communication are distinguished from computation by their ops.
Breakdown breakdown_of(const Profile& profile, int device);

/// One sentence. Empty where the device did nothing.
std::string breakdown_text(const Breakdown& breakdown);

}  // namespace barestep
