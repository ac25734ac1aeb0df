// A profile: steps of the timeline, measured by nodes, combined with their programs and prices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/mesh.h"
#include "core/ops.h"
#include "core/program.h"
#include "core/record.h"
#include "profiler/gpu_records.h"
#include "train/timeline.h"

namespace barestep {

/// One training step. If it is profiled, its timeline has a run for every node and part.
struct ProfiledStep {
  std::int64_t number = 0;  // the training step's, as in step lines
  double reported_s = 0;    // when its user was informed
  double between_s = 0;     // between the previous step's wall time and this one's
  double checkpoint_s = 0;  // pause before it to save the run's state; not in either
  StepTimeline timeline{};

  [[nodiscard]] const HostTimes& host() const { return timeline.host; }
};

/// Stores steps of a runner's timeline, in memory allocated before the run.
class ProfiledSteps {
 public:
  /// Allocates for `steps` steps of at most `spans` spans each, limited to `max_spans` in total.
  ProfiledSteps(std::int64_t steps, std::size_t spans, std::int64_t max_spans);

  /// Copies the newest step; the run paused before it for `checkpoint_s`. Allocates nothing. Counts
  /// spans that do not fit.
  void add(std::int64_t number, const Timeline& timeline, double reported_s,
           double checkpoint_s = 0);
  void clear() { count_ = 0; }

  /// Replaces the times of all steps' runs with those of their nodes as recorded by a GPU's tool.
  void amend(const GpuRecords& gpu);

  [[nodiscard]] std::span<const ProfiledStep> kept() const {
    return std::span(steps_).first(count_);
  }
  /// Spans of steps that did not fit.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }

 private:
  std::vector<ProfiledStep> steps_;
  std::size_t count_ = 0;
  std::int64_t dropped_ = 0;
};

/// A piece of work with its times.
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
  std::vector<TimedOp> ops;               // in order of their start
  std::vector<Record> queued;             // by the host: ops and graphs, in that order
  std::vector<ProfiledStep> steps;        // complete ones
  std::int64_t dropped = 0;               // records that did not fit
  std::vector<GpuActivity> activities{};  // GPU activities, if recorded

  /// Only the ops and steps of these training steps.
  [[nodiscard]] Profile of(StepRange numbers) const;
  /// Only the ops of these phases, and the host's times to queue them; the steps are complete.
  [[nodiscard]] Profile of(std::span<const Phase> phases) const;
};

/// The time of each node on each GPU, from the first piece of its work to the last. Sorted by step,
/// node and device.
std::vector<Record> node_records(const GpuRecords& gpu);

/// The profile of steps of a rank of `mesh`, measured by nodes. If records were dropped, it omits
/// the first step that lacks one and all later ones.
Profile profile_of(std::span<const ProfiledStep> steps, std::int64_t dropped, const Mesh& mesh,
                   std::span<const GpuActivity> activities = {});

/// The first node of a step in the profile without a record, "gemm of net.3 in backward, step 7";
/// empty if all have their times. A node that has nothing to write needs none, nor does a
/// collective that moves nothing: of no bytes, or in a group of one rank, for which NCCL queues
/// nothing.
std::string node_without_record(std::span<const ProfiledStep> steps, const Mesh& mesh);

// The cost of profiling itself: steps with and without it, alternating in one process.

/// Steps come in groups of four: without, with, with, without. So a drift of the machine's speed
/// that is constant over a group cancels out.
constexpr std::int64_t kOverheadGroup = 4;
constexpr bool is_profiled_for_overhead(std::int64_t index) {
  return index % kOverheadGroup == 1 || index % kOverheadGroup == 2;
}

struct Overhead {
  std::int64_t groups = 0;  // 0: unknown
  double plain_s = 0;       // median step without profiling
  double median_s = 0;      // median of the groups' differences
  double low_s = 0;         // interval that contains the true median
  double high_s = 0;
  bool is_95 = false;        // with 95 % confidence; below 6 groups, false: the full range
  bool is_of_pairs = false;  // a group is a step without and one with profiling
};

/// `wall_s` are the times of the steps in sequence; an incomplete group is ignored. The interval is
/// based on order statistics, which assume nothing about the distribution.
Overhead overhead_of(std::span<const double> wall_s);

/// For profiling that is turned on only once: steps before that, and steps after it.
Overhead overhead_of(std::span<const double> plain_s, std::span<const double> profiled_s);

/// One sentence.
std::string overhead_text(const Overhead& overhead);

}  // namespace barestep
