// mlp_lab check-schedule: examines the schedule of a pipeline that somebody wrote: whether stages
// wait for each other forever, read what is not there, or add up gradients in another order; how
// long they wait, and what they keep.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/pass_schedule.h"

namespace barestep {

/// What a stage does next: a pass, or an exchange of which both parts travel at once.
struct ScheduleEntry {
  std::string text{};  // "F0", "send F1, receive B0"
  std::optional<ScheduledPass> pass{};
  std::optional<ScheduledPass> sends{};     // the pass of this stage whose result leaves
  std::optional<ScheduledPass> receives{};  // the pass of this stage that reads what arrives
};

/// Seconds, or any other unit.
struct PassTimes {
  double forward = 1;
  double backward = 1;  // of the gradients that go back
  double weights = 1;   // of those of weights; a list without such passes has them in its backward
  double message = 0;   // from the meeting of both stages until both go on
};

struct WrittenSchedule {
  int micro_batches = 1;
  std::vector<std::vector<ScheduleEntry>> stages{};
  PassTimes times{};

  /// Without any, results travel by themselves as soon as they are there, and nothing waits to
  /// send.
  [[nodiscard]] bool has_messages() const;
};

/// Reads JSON: {"micro_batches": 2, "stages": [["F0", "send F0", ...], ...], "times": {...}}, where
/// times and each of its members may be missing. Throws Error(kNoInput), and Error(kBadData) naming
/// the entry that cannot be read.
WrittenSchedule read_schedule(const std::filesystem::path& file);

/// A built-in schedule; without exchanges, results travel by themselves.
WrittenSchedule built_in_schedule(const PipelineSpec& pipeline, const PassTimes& times,
                                  bool exchanges);

/// The lists of a built-in schedule with their exchanges, as JSON that read_schedule() takes.
std::string schedule_json(const PipelineSpec& pipeline);

struct PlacedEntry {
  const ScheduleEntry* entry = nullptr;
  double begin = 0, end = 0;
};

struct ScheduleFindings {
  std::vector<std::string> faults{};                 // one line each; empty: the schedule works
  std::vector<std::vector<PlacedEntry>> timeline{};  // of each stage, up to its end or its last
  std::vector<std::string> stuck{};  // of each stage: where it stands and why, or empty
  double step = 0;                   // the time of all passes, unless stuck
  double waits = 0;                  // the share of it in which stages wait
  std::vector<int> kept{};           // of each stage: most micro-batches kept at once
  std::string
      other_order{};  // where gradients add up in another order than --accumulate's, or empty
};

/// Runs the lists as programs of ranks, which check_ranks() and the simulator judge. As in
/// barestep, and with NCCL, exchanges run beside passes, but one after the other: one begins when
/// what it sends is there and the one before it has ended, and it ends when the other stage has
/// begun its own. `schedule` must outlive the result.
ScheduleFindings examine(const WrittenSchedule& schedule);

/// Verdict, timeline and figures, beside those of the built-in schedules.
std::string text_of(const WrittenSchedule& schedule, const ScheduleFindings& findings);

/// Prints the text for a file. Throws what read_schedule() throws, and Error(kBadData) if the
/// schedule has faults.
void check_schedule_file(const std::filesystem::path& file);

}  // namespace barestep
