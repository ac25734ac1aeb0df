// Accounts for communication time: hidden behind computing, waiting for a rank, or moving bytes.
// Derived from the records of all ranks, whose clocks are compared first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/group.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// For each rank, what to add to its clock's times to get rank 0's, with an upper bound of the
/// error.
struct ClockAlignment {
  std::vector<double> shift_s;
  std::vector<double> error_s;

  [[nodiscard]] double largest_error_s() const;
};

/// Compares the clocks through messages; every rank calls it and gets the same result. `clock`
/// returns seconds.
///
/// A message that rank a sends when its clock reads s cannot arrive earlier. So if rank b's clock
/// reads e on arrival, shift_a - shift_b <= e - s. Messages in both directions bound the shift on
/// both sides, as in Cristian's algorithm. The tightest bounds of many rounds count; in these, the
/// ranks take turns at being last. Blocks for some milliseconds.
ClockAlignment align_clocks(Group& ranks, double (*clock)());

/// What a step exchanges besides the loss: "all_reduce of 2 buckets (4.00 MiB to 1.00 MiB) while
/// backward goes on".
std::string exchange_text(const StepPrograms& programs);

/// The times of one rank in a collective, in seconds of core/clock.h.
struct CollectiveTimes {
  double ready_s = 0;      // the data it reduces were complete
  double start_s = 0;      // the rank began
  double end_s = 0;        // the rank finished
  double held_from_s = 0;  // when it began to hold up the rank's computing
  double held_to_s = 0;    // and when it stopped; equal if it never did
};

/// The collectives of one step on one rank, in program order.
using CommunicatedStep = std::vector<CollectiveTimes>;

/// Seconds of communication. Hidden communication runs alongside other work; exposed communication
/// holds it up, and only that costs time.
struct CommunicationParts {
  double hidden_s = 0;
  double waiting_s = 0;  // exposed, until the last rank began
  double moving_s = 0;   // exposed, after that

  CommunicationParts& operator+=(const CommunicationParts& other);
  CommunicationParts& operator/=(double divisor);
};

/// The summary of all steps; times are means over ranks and steps.
struct CommunicationSummary {
  struct OfCollective {
    std::string name;  // e.g. "loss", "bucket 1"
    Axis axis = Axis::kAll;
    std::int64_t bytes = 0;
    double ready_before_start_s = 0;  // it waited for the previous collective
    CommunicationParts parts{};
  };
  struct OfRank {
    std::int64_t steps_waited_for = 0;  // steps in which others waited longest for this rank
    double cost_s = 0;                  // each other rank's exposed wait for it, per step
  };
  std::int64_t steps = 0;
  Mesh mesh{};  // of the ranks
  CommunicationParts parts{};
  std::vector<OfCollective> collectives{};
  std::vector<OfRank> ranks{};
  double clock_error_s = 0;

  [[nodiscard]] std::string text() const;

 private:
  /// A row for each, in the order of the program, or only those that were exposed longest.
  [[nodiscard]] std::string by_collective() const;
  /// A row for each axis; empty if the ranks only share the batch.
  [[nodiscard]] std::string by_axis() const;
};

/// The ranks of each group in which a collective runs.
using RankGroups = std::vector<std::vector<std::size_t>>;

/// Adds up `steps[step][rank]`, all on one clock; every rank's step has a place for each
/// collective. The last rank of a group to begin a collective is the one that the others of the
/// group wait for. `groups` has an entry for each collective; without it, all ranks form one group.
/// The caller sets the collectives' names, axes and bytes.
CommunicationSummary summary_of(std::span<const std::vector<CommunicatedStep>> steps,
                                std::span<const RankGroups> groups = {});

/// Stores the times of this rank's collectives, and at the end combines those of all ranks.
class CommunicationAccount final {
 public:
  /// Covers the training steps after warm-up that run `programs.train()`, 10,000 at most; `steps`
  /// is the run's number of steps. Both ways to update have as many collectives. Allocates all its
  /// memory here. `programs` must outlive the
  /// account.
  CommunicationAccount(const StepPrograms& programs, std::int64_t steps);

  /// Adds a finished training step, the newest in the report's timeline. Every rank calls it for
  /// the same steps, regardless of evaluations in between.
  void add(const StepReport& report);

  /// Every rank calls it while no work is queued, and gets the same result. Compares clocks.
  /// Blocks.
  [[nodiscard]] CommunicationSummary gather(Group& ranks) const;

 private:
  static constexpr std::int64_t kMaxSteps = 10'000;

  void follow(const Program& program);
  void keep(const StepTimeline& step);
  [[nodiscard]] std::size_t place_of(const NodeRun& collective) const;

  const StepPrograms& programs_;
  const Program* program_;  // of the steps that count
  Mesh mesh_;
  std::vector<NodeId> collectives_;     // in program order
  std::vector<CollectiveTimes> times_;  // by step and collective
  std::size_t steps_ = 0;               // number stored
  double error_s_ = 0;                  // upper bound of their error
  std::int64_t last_step_ = -1;         // the runner's number of the last stored step
};

}  // namespace barestep
