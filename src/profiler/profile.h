// A profile: the records of a run joined with its programs and their prices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/ops.h"
#include "core/program.h"
#include "profiler/gpu_records.h"
#include "profiler/records.h"

namespace barestep {

/// What the host did around one training step, in seconds of its clock (core/clock.h).
struct HostStep {
  std::int64_t step = 0;    // of the runner: what tags carry
  std::int64_t number = 0;  // of training: what step lines carry
  double begin_s = 0;       // starts on its input
  double start_s = 0;       // the step's clock starts
  double queued_s = 0;      // the step's work is queued
  double fetched_s = 0;     // the next step's input is made and queued; queued_s where it is not
  double end_s = 0;         // the step is done
  double reported_s = 0;    // its user was told
  bool overlaps_previous = false;  // as HostTimes of train/timeline.h has them
  bool overlaps_next = false;
  bool joins_lanes = false;
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

/// Programs must outlive it.
struct Profile {
  std::vector<TimedOp> ops;               // of whole steps, in the order in which they began
  std::vector<Record> queued;             // the host's, in the order in which they began
  std::vector<HostStep> steps;            // whose records are complete
  std::int64_t dropped = 0;               // records for which there was no room
  std::vector<GpuActivity> activities{};  // what GPUs did, piece by piece, where that is known

  /// The ops and steps of these training steps only.
  [[nodiscard]] Profile of(StepRange numbers) const;
};

/// How many records a step of the program yields: one for each lane that a node occupies.
std::int64_t parts_of(const Program& program);

/// `programs` are those of the runner, in the order in which it got them. `steps` may hold others
/// than the collector kept. Where records were dropped, the first step that lacks one and all
/// behind it are left out.
Profile join(std::span<const Program* const> programs, const RecordCollector& collector,
             std::span<const HostStep> steps);

/// The first node of a step of the profile that has no record there, "gemm of layer 3 in backward,
/// step 7"; empty where each has one. A node that writes nothing needs none, nor do collectives
/// where `exchanges` is false: one rank alone moves nothing.
std::string node_without_record(std::span<const Program* const> programs, const Profile& profile,
                                bool exchanges);

}  // namespace barestep
