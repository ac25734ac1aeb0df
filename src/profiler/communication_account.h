// Where the time of communication goes: hidden beside computing, waiting for a rank, moving bytes.
// It is derived from the records of all ranks, whose clocks are compared first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// For each rank, what to add to a time of its clock to get that of rank 0's, and by how much that
/// may be wrong at most.
struct ClockAlignment {
  std::vector<double> shift_s;
  std::vector<double> error_s;

  [[nodiscard]] double largest_error_s() const;
};

/// Compares the clocks by messages; every rank calls it and gets the same result. `clock` gives
/// seconds.
///
/// A message that rank a sends when its clock shows s cannot arrive before that: rank b's clock
/// shows e when it has the message, so shift_a - shift_b <= e - s. With messages both ways the
/// shift lies between two bounds, as in Cristian's algorithm; of many rounds, in which the ranks
/// take turns in being last, the closest bounds count. Blocks for some milliseconds.
ClockAlignment align_clocks(Communicator& ranks, double (*clock)());

/// When one rank was at the points of a collective, in seconds of core/clock.h.
struct CollectiveTimes {
  double ready_s = 0;      // what it reduces was complete
  double start_s = 0;      // the rank began
  double end_s = 0;        // it was done
  double held_from_s = 0;  // from when to when it held up the rank's computing; equal where it
  double held_to_s = 0;    // did not
};

/// The collectives of one step of one rank, in the order of the program.
using CommunicatedStep = std::vector<CollectiveTimes>;

/// Seconds of communication: beside other work, and holding it up, which is what costs.
struct CommunicationParts {
  double hidden_s = 0;
  double waiting_s = 0;  // exposed, until the last rank began
  double moving_s = 0;   // exposed, since then

  CommunicationParts& operator+=(const CommunicationParts& other);
  CommunicationParts& operator/=(double divisor);
};

/// What steps came to; times are means of ranks and steps.
struct CommunicationSummary {
  struct OfCollective {
    std::string name;  // "loss", "bucket 1", ...
    std::int64_t bytes = 0;
    double ready_before_start_s = 0;  // it waited for the collective before it
    CommunicationParts parts{};
  };
  struct OfRank {
    std::int64_t steps_waited_for = 0;  // in which it was waited for longer than any other
    double cost_s = 0;                  // of a step to each other rank: exposed waiting for it
  };
  std::int64_t steps = 0;
  CommunicationParts parts{};
  std::vector<OfCollective> collectives{};
  std::vector<OfRank> ranks{};
  double clock_error_s = 0;

  [[nodiscard]] std::string text() const;
};

/// Adds up `steps[step][rank]`, all on one clock. The last rank to begin a collective is the one
/// the others wait for. `names` and `bytes` of the collectives are left to the caller.
CommunicationSummary summary_of(std::span<const std::vector<CommunicatedStep>> steps);

/// Keeps the times of this rank's collectives, and adds up at the end what all ranks kept.
class CommunicationAccount final {
 public:
  /// Of the training steps after warm-up that run `programs.train()`, 10,000 at most: `steps` are
  /// those of the run. Takes all its memory. `programs` must outlive the account.
  CommunicationAccount(const StepPrograms& programs, std::int64_t steps);

  /// A training step that is finished, the newest of the report's timeline. Every rank calls it for
  /// the same steps, whatever it evaluates between them.
  void add(const StepReport& report);

  /// Every rank calls it while no work is queued, and gets the same. Compares clocks. Blocks.
  [[nodiscard]] CommunicationSummary gather(Communicator& ranks) const;

 private:
  static constexpr std::int64_t kMostSteps = 10'000;

  void keep(const StepTimeline& step);
  [[nodiscard]] std::size_t place_of(const NodeRun& collective) const;

  const Program& program_;
  std::vector<NodeId> collectives_;     // in their order
  std::vector<CollectiveTimes> times_;  // by step and collective
  std::size_t steps_ = 0;               // that are kept
  double error_s_ = 0;                  // by which they may be off
  std::int64_t last_step_ = -1;         // the runner's number of the last of them
};

}  // namespace barestep
