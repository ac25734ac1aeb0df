#include "train/pass_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <tuple>

#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

using Direction = ScheduledPass::Direction;

/// The schedules differ in how many forward passes come before the first backward pass, and in
/// whether the gradients of weights are passes of their own.
PassSchedule schedule_of_stage(const PipelineSpec& pipeline, int stage) {
  const int micro_batches = pipeline.micro_batches;
  const bool is_gpipe = pipeline.schedule == PipelineSchedule::kGPipe;
  const int below = is_gpipe ? micro_batches : std::min(micro_batches, pipeline.stages - 1 - stage);
  const int ahead = pipeline.schedule == PipelineSchedule::kNaive ? 0 : below;
  const bool splits = pipeline.schedule == PipelineSchedule::kZeroBubbleH1;
  PassSchedule schedule;
  int forward = 0;
  int weights = 0;
  for (; forward < ahead; ++forward) schedule.push_back({Direction::kForward, forward, stage});
  for (int backward = 0; backward < micro_batches; ++backward) {
    const bool is_steady = forward < micro_batches;
    if (is_steady) schedule.push_back({Direction::kForward, forward++, stage});
    schedule.push_back({Direction::kBackward, backward, stage});
    const int waiting = backward + 1 - weights;
    if (splits && (!is_steady || waiting > stage)) {
      schedule.push_back({Direction::kWeights, weights++, stage});
    }
  }
  while (splits && weights < micro_batches) {
    schedule.push_back({Direction::kWeights, weights++, stage});
  }
  return schedule;
}

bool is_for_weights(const ScheduledPass& pass) {
  return pass.direction == Direction::kWeights;
}

/// Of passes, the forward or backward pass that follows in their stage.
using NextPasses = std::map<std::tuple<int, Direction, int>, ScheduledPass>;

void add_next_passes(NextPasses& next, PassSchedule list) {
  std::erase_if(list, is_for_weights);
  for (std::size_t i = 1; i < list.size(); ++i) {
    const auto& [direction, number, stage] = list[i - 1];
    next[{stage, direction, number}] = list[i];
  }
}

}  // namespace

PassSchedule accumulation(int micro_steps) {
  return schedule_of_stage({.micro_batches = micro_steps, .schedule = PipelineSchedule::kNaive}, 0);
}

std::vector<PassSchedule> schedules_of_stages(const PipelineSpec& pipeline) {
  BARESTEP_REQUIRE(pipeline.stages >= 1 && pipeline.micro_batches >= 1,
                   "a pipeline has a stage and a micro-batch");
  std::vector<PassSchedule> all;
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    all.push_back(schedule_of_stage(pipeline, stage));
  }
  return all;
}

bool splits_backward(const PassSchedule& schedule) {
  return std::ranges::any_of(schedule, is_for_weights);
}

std::optional<ScheduledPass> source_of(const ScheduledPass& pass, int stages) {
  if (is_for_weights(pass)) return std::nullopt;
  const int stage = pass.stage + (pass.direction == Direction::kForward ? -1 : 1);
  if (stage < 0 || stage == stages) return std::nullopt;
  return ScheduledPass{pass.direction, pass.micro_step, stage};
}

std::optional<ScheduledPass> reader_of(const ScheduledPass& pass, int stages) {
  if (is_for_weights(pass)) return std::nullopt;
  const int stage = pass.stage + (pass.direction == Direction::kForward ? 1 : -1);
  if (stage < 0 || stage == stages) return std::nullopt;
  return ScheduledPass{pass.direction, pass.micro_step, stage};
}

PassSchedule by_time_slots(const std::vector<PassSchedule>& of_stages) {
  const int stages = static_cast<int>(of_stages.size());
  PassSchedule merged;
  std::vector<std::size_t> next(of_stages.size());
  // Micro-steps follow each other in every list, so the number of those done says which.
  struct Done {
    std::array<int, 3> counts{};
    [[nodiscard]] int& of(Direction direction) {
      return counts[static_cast<std::size_t>(direction)];
    }
  };
  std::vector<Done> done(of_stages.size());
  for (bool advances = true; advances;) {
    advances = false;
    std::vector<Done> before = done;
    for (int stage = 0; stage < stages; ++stage) {
      if (at(next, stage) == at(of_stages, stage).size()) continue;
      const ScheduledPass& pass = at(of_stages, stage)[at(next, stage)];
      const std::optional<ScheduledPass> source = source_of(pass, stages);
      const bool is_ready =
          !source || at(before, source->stage).of(pass.direction) > pass.micro_step;
      if (!is_ready) continue;
      merged.push_back(pass);
      ++at(next, stage);
      ++at(done, stage).of(pass.direction);
      advances = true;
    }
  }
  for (int stage = 0; stage < stages; ++stage) {
    BARESTEP_REQUIRE(at(next, stage) == at(of_stages, stage).size(),
                     "a pipeline's stages wait for each other");
  }
  return merged;
}

std::vector<std::vector<int>> places_of_activations(const PassSchedule& schedule, int micro_steps,
                                                    bool frees) {
  std::vector<std::vector<int>> places;      // by stage and micro-step
  std::vector<std::vector<bool>> is_in_use;  // by stage and place
  const Direction last = splits_backward(schedule) ? Direction::kWeights : Direction::kBackward;
  for (const auto& [direction, number, stage] : schedule) {
    const auto row = static_cast<std::size_t>(stage);
    if (row >= places.size()) {
      places.resize(row + 1, std::vector<int>(static_cast<std::size_t>(micro_steps)));
      is_in_use.resize(row + 1);
    }
    std::vector<bool>& in_use = is_in_use[row];
    int& place = at(places[row], number);
    if (direction != Direction::kForward) {
      if (direction != last) continue;
      in_use[static_cast<std::size_t>(place)] = !frees;
      continue;
    }
    const auto free = std::ranges::find(in_use, false);
    place = static_cast<int>(free - in_use.begin());
    if (free == in_use.end()) in_use.push_back(false);
    in_use[static_cast<std::size_t>(place)] = true;
  }
  return places;
}

std::vector<std::vector<StageExchange>> exchanges_of_stage(
    const std::vector<PassSchedule>& of_stages, int stage) {
  const int stages = static_cast<int>(of_stages.size());
  PassSchedule list = at(of_stages, stage);
  std::erase_if(list, is_for_weights);
  std::vector<std::vector<StageExchange>> exchanges(list.size() + 1);
  NextPasses next;
  for (const int peer : {stage - 1, stage + 1}) {
    if (peer >= 0 && peer < stages) add_next_passes(next, at(of_stages, peer));
  }
  const auto follows = [&](const ScheduledPass& pass, const ScheduledPass& before) {
    const auto found = next.find({before.stage, before.direction, before.micro_step});
    return found != next.end() && found->second == pass;
  };
  for (std::size_t i = 0; i <= list.size(); ++i) {
    std::optional<StageExchange> send, receive;
    if (const auto reader = i > 0 ? reader_of(list[i - 1], stages) : std::nullopt) {
      send = {.peer = reader->stage, .sends = list[i - 1]};
    }
    if (const auto source = i < list.size() ? source_of(list[i], stages) : std::nullopt) {
      receive = {.peer = source->stage, .receives = list[i]};
    }
    const bool at_once = send && receive && send->peer == receive->peer &&
                         follows(*reader_of(list[i - 1], stages), *source_of(list[i], stages));
    if (at_once) send->receives = receive->receives;
    if (send) exchanges[i].push_back(*send);
    if (receive && !at_once) exchanges[i].push_back(*receive);
  }
  return exchanges;
}

double ideal_bubble(const PipelineSpec& pipeline) {
  const double waits = pipeline.stages - 1;
  if (pipeline.schedule == PipelineSchedule::kNaive) return waits / pipeline.stages;
  const int passes = pipeline.schedule == PipelineSchedule::kZeroBubbleH1 ? 3 : 1;
  return waits / (passes * pipeline.micro_batches + waits);
}

}  // namespace barestep
