// A profile: steps of the timeline, measured by nodes, joined with their programs and prices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/ops.h"
#include "core/program.h"
#include "core/record.h"
#include "profiler/gpu_records.h"
#include "train/timeline.h"

namespace barestep {

/// One training step. Once profiled, its timeline has a run for every node and part.
struct ProfiledStep {
  std::int64_t number = 0;  // of training: what step lines carry
  double reported_s = 0;    // its user was informed
  double between_s = 0;     // from the wall time of the step before it to its own
  double checkpoint_s = 0;  // that the run paused before it to save its state; in neither
  StepTimeline timeline{};

  [[nodiscard]] const HostTimes& host() const { return timeline.host; }
};

/// Keeps steps of a runner's timeline, in memory that is taken before the run.
class ProfiledSteps {
 public:
  /// For as many as `steps` of at most `spans` spans each, unless they have more than `most_spans`
  /// together.
  ProfiledSteps(std::int64_t steps, std::size_t spans, std::int64_t most_spans);

  /// Copies the newest step, before which the run paused for `checkpoint_s`; allocates nothing.
  /// What there is no room for is counted.
  void add(std::int64_t number, const Timeline& timeline, double reported_s,
           double checkpoint_s = 0);
  void clear() { count_ = 0; }

  /// Replaces the times of all steps' runs by those of their nodes, which a GPU's tool saw.
  void amend(const GpuRecords& gpu);

  [[nodiscard]] std::span<const ProfiledStep> kept() const {
    return std::span(steps_).first(count_);
  }
  /// Spans of steps for which there was no room.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }

 private:
  std::vector<ProfiledStep> steps_;
  std::size_t count_ = 0;
  std::int64_t dropped_ = 0;
};

/// One piece of work as it ran.
struct TimedOp {
  Tag tag;
  const Node* node = nullptr;
  const Program* program = nullptr;
  Cost cost;
  int device = 0;
  double start_s = 0;
  double end_s = 0;

  [[nodiscard]] double seconds() const { return end_s - start_s; }
};

/// Programs and plans must outlive it.
struct Profile {
  std::vector<TimedOp> ops;               // in the order in which they began
  std::vector<Record> queued;             // by the host: ops and graphs, in that order
  std::vector<ProfiledStep> steps;        // whole ones
  std::int64_t dropped = 0;               // records for which there was no room
  std::vector<GpuActivity> activities{};  // what GPUs did, piece by piece, where that is known

  /// The ops and steps of these training steps only.
  [[nodiscard]] Profile of(StepRange numbers) const;
};

/// When GPUs did each node, on each device: from the first piece of its work to the last. By step,
/// node and device.
std::vector<Record> node_records(const GpuRecords& gpu);

/// Of steps that are measured by nodes. Where records were dropped, the first step that lacks one
/// and all after it are left out; `exchanges` as below.
Profile profile_of(std::span<const ProfiledStep> steps, std::int64_t dropped, bool exchanges,
                   std::span<const GpuActivity> activities = {});

/// The first node of a step of the profile that has no record, "gemm of layer 3 in backward, step
/// 7"; empty where each has its times. A node that writes nothing needs none, nor do collectives
/// where `exchanges` is false: one rank alone moves nothing.
std::string node_without_record(std::span<const ProfiledStep> steps, bool exchanges);

// What profiling itself costs: steps with and without it, taken in turns in one process.

/// Steps come in groups of four: without, with, with, without. So a drift of the machine's speed
/// that is even over a group cancels out.
constexpr std::int64_t kOverheadGroup = 4;
constexpr bool is_profiled_for_overhead(std::int64_t index) {
  return index % kOverheadGroup == 1 || index % kOverheadGroup == 2;
}

struct Overhead {
  std::int64_t groups = 0;  // 0: nothing is known
  double plain_s = 0;       // median step without profiling
  double median_s = 0;      // of the groups' differences
  double low_s = 0;         // the interval that holds the true median
  double high_s = 0;
  bool is_95 = false;  // with 95 % confidence; else, for fewer than 6 groups, their whole range
};

/// `wall_s` are the times of the steps in turn; a group that is not whole is left out. The interval
/// is that of order statistics: it assumes nothing about the distribution.
Overhead overhead_of(std::span<const double> wall_s);

/// One sentence.
std::string overhead_text(const Overhead& overhead);

}  // namespace barestep
