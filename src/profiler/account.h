// Accounts for the wall time of a step: every instant has one cause.
//
// The account is that of one compute lane. While the lane runs, the cause is the phase of its work.
// While it waits, the cause is found by walking back: from its next run to the unfinished
// predecessor that ends last, and on from there, to something that is running: input being copied,
// communication, another device. Otherwise the host has not queued it yet, or nothing holds it
// (idle). So the parts are never negative and add up to the wall time.
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

/// The cause of an instant of a step.
enum class Part {
  kDataWait,              // input is not being copied yet: the host prepares it, or it is drawn
  kHostToDevice,          // input is being copied
  kInjected,              // a requested delay
  kForward,               // work of that phase, as for the empty ones below
  kLoss,                  //
  kRecompute,             //
  kBackward,              //
  kExposedCommunication,  // a collective must finish before anything can run
  kOptimizer,             //
  kOtherDevice,           // another device of this process is computing
  kHost,                  // the host has not queued the next work
  kIdle,                  // next work is queued, and nothing known holds the lane
};
template <>
inline constexpr std::string_view kNamesOf<Part>[] = {
    "data wait", "host to device",        "injected",  "forward",      "loss", "recompute",
    "backward",  "exposed communication", "optimizer", "other device", "host", "idle"};

/// A run of the step that is `steps_back` steps before the newest.
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

/// Calls visit(stretch) for consecutive stretches of the wall time of the timeline's newest step,
/// from begin to end, without gaps or overlaps. `lane` is a compute lane. Allocates nothing.
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

/// Why a stream waited between two pieces of work.
struct StreamIdle {
  int stream = 0;            // as in a trace: 1 is the compute lane
  double host_wait_s = 0;    // the host had not queued the next one
  double kernel_wait_s = 0;  // it was queued; gaps shorter than kShortGapSeconds
  double other_s = 0;
};

struct Breakdown {
  double span_s = 0;         // from the first start to the last end
  double compute_s = 0;      // time with computation
  double non_compute_s = 0;  // time with only copies and communication
  double idle_s = 0;         // time with no work
  /// The share of communication that overlaps with computation; nothing without communication.
  std::optional<double> overlap{};
  std::vector<StreamIdle> streams;
};

/// HolisticTraceAnalysis's default, which it interprets as microseconds.
constexpr double kShortGapSeconds = 30e-6;

/// The breakdown of one device. Copies and communication are distinguished from computation by
/// their ops.
Breakdown breakdown_of(const Profile& profile, int device);

/// One sentence. Empty if the device did no work.
std::string breakdown_text(const Breakdown& breakdown);

}  // namespace barestep
