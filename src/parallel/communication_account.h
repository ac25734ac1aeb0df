// Where the time of communication goes: hidden behind backward, waiting for a rank, moving bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/record.h"
#include "parallel/clock_alignment.h"
#include "train/step.h"

namespace barestep {

/// When one rank was at three points of a collective.
struct CollectiveTimes {
  double ready_s = 0;  // what it reduces was complete
  double start_s = 0;  // the rank began
  double end_s = 0;    // it was done
};

/// One step of one rank.
struct CommunicatedStep {
  double computing_end_s = 0;  // when the rank's gradients were complete
  std::vector<CollectiveTimes> collectives;
};

/// Seconds of communication: beside the rank's own computing, and behind it, which is what costs.
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

/// Listens to this rank's device and communicator, and adds up at the end what all ranks heard.
class CommunicationAccount final : public RecordSink {
 public:
  /// Of the training steps from `first_step` on that run `programs.train()`, 10,000 at most: these
  /// are the same on all ranks, while the runner's steps are not, since ranks may evaluate
  /// different numbers of batches. `programs` must outlive the account.
  CommunicationAccount(const StepPrograms& programs, const TrainingConfig& training,
                       std::int64_t first_step);

  void on_record(const Record& record) override;

  /// The nodes whose records it needs, in their order; none of them brings data.
  [[nodiscard]] std::vector<NodeId> nodes() const;

  /// Every rank calls it while no work is queued, and gets the same. Compares clocks. The times of
  /// this rank's records may be off by `own_error_s`. Blocks.
  [[nodiscard]] CommunicationSummary gather(Communicator& ranks, double own_error_s = 0) const;

 private:
  /// From the first step on, how many this rank heard of.
  [[nodiscard]] std::int64_t steps_heard() const;

  const Program& program_;
  std::vector<std::int64_t> steps_;              // the runner's numbers of those it is about
  std::vector<NodeId> collectives_;              // in their order
  std::vector<std::vector<std::size_t>> feeds_;  // by node: the collectives that wait for it
  std::vector<double> computing_end_s_;          // by place in steps_
  std::vector<CollectiveTimes> times_;           // by place in steps_, and collective
};

}  // namespace barestep
