// In which order a step's micro-batches pass through the model: lists, for accumulation and for the
// stages of a pipeline.
#pragma once

#include <optional>
#include <vector>

#include "core/config.h"

namespace barestep {

/// A pass of a micro-step's samples through the model, or through a stage of a pipeline.
struct ScheduledPass {
  /// kWeights computes the gradients of weights that the backward pass left out.
  enum class Direction { kForward, kBackward, kWeights } direction = Direction::kForward;
  int micro_step = 0;
  int stage = 0;

  friend bool operator==(const ScheduledPass&, const ScheduledPass&) = default;
};

/// The passes of a step in the order in which they run. Each micro-step has one forward pass in
/// each stage and, after it, one backward pass, and if the schedule splits these, a pass for the
/// weights after that. In every stage the passes of a direction are in the order of the
/// micro-steps, so gradients add up alike.
using PassSchedule = std::vector<ScheduledPass>;

/// Forward and backward of one micro-step after the other: activations of only one are kept.
PassSchedule accumulation(int micro_steps);

/// A model's cut into stages: stage 0 has the first layers, the last one the loss. Activations go
/// from a stage to the next, gradients back.
struct PipelineSpec {
  int stages = 1;
  int micro_batches = 1;  // of a step's samples, cut as torch.chunk does
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;

  friend bool operator==(const PipelineSpec&, const PipelineSpec&) = default;
};

/// The list of every stage. In stage p of P:
///
/// - gpipe (Huang et al. 2019): all forward passes, then all backward passes;
/// - 1f1b (Narayanan et al. 2019, PipeDream-Flush): min(m, P - 1 - p) forward passes, then forward
///   and backward in turn, then the backward passes that are left; so at most min(m, P - p)
///   micro-batches wait for their backward pass;
/// - naive: forward and backward of one micro-batch after the other, so only one stage works at a
///   time;
/// - zb-h1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): 1f1b whose backward passes leave
///   out the gradients of weights. While forward passes are left, those of p micro-batches wait;
///   then one is computed after each backward pass, and the rest at the end. At most min(m, P)
///   micro-batches wait for their weights' gradients, as many as wait in stage 0 of 1f1b.
std::vector<PassSchedule> schedules_of_stages(const PipelineSpec& pipeline);

/// The lists of all stages as one: by time slots, in each of which every stage runs its next pass
/// if the passes that this one needs have run in earlier slots. Throws Error(kBug) if stages wait
/// for each other.
PassSchedule by_time_slots(const std::vector<PassSchedule>& of_stages);

/// Whether backward passes leave the gradients of weights to passes of their own.
bool splits_backward(const PassSchedule& schedule);

/// For each stage and micro-step, the place of its activations: the lowest one that is free from
/// its forward to its last pass; a place of its own if nothing is freed.
std::vector<std::vector<int>> places_of_activations(const PassSchedule& schedule, int micro_steps,
                                                    bool frees);

/// The pass whose result this one reads, in the stage before it or, backward, after it; nothing
/// where it reads the data or the loss.
std::optional<ScheduledPass> source_of(const ScheduledPass& pass, int stages);
/// The pass in another stage that reads this one's result.
std::optional<ScheduledPass> reader_of(const ScheduledPass& pass, int stages);

/// An exchange with a neighboring stage, between two passes of a stage's list (those for weights
/// read and leave nothing and do not count): the result of `sends` goes to `peer`, or what
/// `receives` reads comes from there, or both at once.
struct StageExchange {
  int peer = 0;
  std::optional<ScheduledPass> sends{}, receives{};  // passes of the stage that exchanges

  friend bool operator==(const StageExchange&, const StageExchange&) = default;
};

/// The exchanges of a stage: before the first pass, and after each one. A send and the receive
/// after it are one exchange if the peer also receives the former right after it sends the latter.
/// Then the lists of two neighbors with each other are mirror images. Otherwise two stages that
/// each send first, and wait until that is received, would wait for each other.
std::vector<std::vector<StageExchange>> exchanges_of_stage(
    const std::vector<PassSchedule>& of_stages, int stage);

/// The share of the time in which a stage waits if every pass takes equally long in every stage and
/// messages take none: (P - 1) / (m + P - 1), and (P - 1) / P if only one stage works at a time. If
/// F, B and W are the times of a forward pass, a backward pass and one for weights, zb-h1 waits
/// (P - 1) max(F, B, F + B - W) in stage 0; all equal, that is (P - 1) / (3 m + P - 1).
double ideal_bubble(const PipelineSpec& pipeline);

}  // namespace barestep
