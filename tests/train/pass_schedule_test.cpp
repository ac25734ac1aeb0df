// The lists of a pipeline's stages: their order, their messages, their time and their memory.
#include "train/pass_schedule.h"

#include "core/index.h"
#include "support/testing.h"

namespace barestep {
namespace {

using Direction = ScheduledPass::Direction;

std::string text_of(const PassSchedule& list) {
  std::string text;
  for (const ScheduledPass& pass : list) {
    text += (text.empty() ? "" : " ") + std::string(1, "FBW"[static_cast<int>(pass.direction)]) +
            std::to_string(pass.micro_step);
  }
  return text;
}

std::vector<std::string> texts_of(const PipelineSpec& pipeline) {
  std::vector<std::string> texts;
  for (const PassSchedule& list : schedules_of_stages(pipeline)) texts.push_back(text_of(list));
  return texts;
}

TEST(PassSchedule, OneForwardOneBackwardIsThatOfThePaper) {
  EXPECT_THAT(texts_of({.stages = 4, .micro_batches = 4}),
              ElementsAre("F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 B0 F3 B1 B2 B3",
                          "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"));
  EXPECT_THAT(texts_of({.stages = 3, .micro_batches = 1}), ElementsAre("F0 B0", "F0 B0", "F0 B0"));
}

TEST(PassSchedule, GPipeRunsAllForwardPassesFirst) {
  EXPECT_THAT(texts_of({.stages = 2, .micro_batches = 3, .schedule = PipelineSchedule::kGPipe}),
              ElementsAre("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"));
}

TEST(PassSchedule, NaiveRunsOneMicroBatchAfterTheOther) {
  EXPECT_THAT(texts_of({.stages = 2, .micro_batches = 2, .schedule = PipelineSchedule::kNaive}),
              ElementsAre("F0 B0 F1 B1", "F0 B0 F1 B1"));
  EXPECT_EQ(text_of(accumulation(3)), "F0 B0 F1 B1 F2 B2");
}

TEST(PassSchedule, ZeroBubbleH1HoldsBackTheGradientsOfWeights) {
  EXPECT_THAT(
      texts_of({.stages = 3, .micro_batches = 4, .schedule = PipelineSchedule::kZeroBubbleH1}),
      ElementsAre("F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3", "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                  "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"));
  EXPECT_THAT(
      texts_of({.stages = 2, .micro_batches = 1, .schedule = PipelineSchedule::kZeroBubbleH1}),
      ElementsAre("F0 B0 W0", "F0 B0 W0"));
}

/// Calls test(pipeline) for 2 to 8 stages, 1 to 32 micro-batches, and every schedule.
void for_all_pipelines(const std::function<void(const PipelineSpec&)>& test) {
  for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
    for (int stages = 2; stages <= 8; ++stages) {
      for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
        SCOPED_TRACE(std::string(name_of(schedule)) + ", " + std::to_string(stages) + " stages, " +
                     std::to_string(micro_batches) + " micro-batches");
        test({.stages = stages, .micro_batches = micro_batches, .schedule = schedule});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

/// What a stage does, in order: a pass, or an exchange with a neighbor.
struct Action {
  std::optional<ScheduledPass> pass{};
  StageExchange exchange{};
};

std::vector<std::vector<Action>> actions_of(const PipelineSpec& pipeline) {
  const std::vector<PassSchedule> lists = schedules_of_stages(pipeline);
  std::vector<std::vector<Action>> all;
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    const auto exchanges = exchanges_of_stage(lists, stage);
    std::vector<Action>& actions = all.emplace_back();
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      for (const StageExchange& exchange : exchanges[i]) {
        actions.push_back({.exchange = exchange});
      }
      if (i < at(lists, stage).size()) actions.push_back({.pass = at(lists, stage)[i]});
    }
  }
  return all;
}

/// The same if a send and a receive always stand alone, the send first.
std::vector<std::vector<Action>> unfused(const std::vector<std::vector<Action>>& all) {
  std::vector<std::vector<Action>> split;
  for (const std::vector<Action>& actions : all) {
    std::vector<Action>& list = split.emplace_back();
    for (const Action& action : actions) {
      const auto& [peer, sends, receives] = action.exchange;
      if (!sends || !receives) {
        list.push_back(action);
        continue;
      }
      list.push_back({.exchange = {.peer = peer, .sends = sends}});
      list.push_back({.exchange = {.peer = peer, .receives = receives}});
    }
  }
  return split;
}

/// Whether the one sends what the other receives, and the other way round.
bool mirror(int stage, const StageExchange& one, int other_stage, const StageExchange& other) {
  const auto fits = [](const std::optional<ScheduledPass>& sends,
                       const std::optional<ScheduledPass>& receives) {
    if (!sends || !receives) return !sends && !receives;
    return sends->direction == receives->direction && sends->micro_step == receives->micro_step;
  };
  return one.peer == other_stage && other.peer == stage && fits(one.sends, other.receives) &&
         fits(other.sends, one.receives);
}

/// Runs the lists with exchanges that end only when the peer has reached its own: whether all
/// stages reach their end.
bool all_end(const std::vector<std::vector<Action>>& all) {
  std::vector<std::size_t> next(all.size());
  const auto current = [&](std::size_t stage) -> const Action* {
    return next[stage] < all[stage].size() ? &all[stage][next[stage]] : nullptr;
  };
  for (bool advances = true; advances;) {
    advances = false;
    for (std::size_t stage = 0; stage < all.size(); ++stage) {
      const Action* const action = current(stage);
      if (action == nullptr) continue;
      if (action->pass) {
        ++next[stage];
        advances = true;
        continue;
      }
      const auto peer = static_cast<std::size_t>(action->exchange.peer);
      const Action* const other = current(peer);
      if (other == nullptr || other->pass) continue;
      if (!mirror(static_cast<int>(stage), action->exchange, static_cast<int>(peer),
                  other->exchange)) {
        continue;
      }
      ++next[stage];
      ++next[peer];
      advances = true;
    }
  }
  for (std::size_t stage = 0; stage < all.size(); ++stage) {
    if (next[stage] < all[stage].size()) return false;
  }
  return true;
}
TEST(PassSchedule, NoStageIsStuck) {
  for_all_pipelines(
      [](const PipelineSpec& pipeline) { EXPECT_TRUE(all_end(actions_of(pipeline))); });
}

// Two neighbors that both send first wait for each other: 49 of these 56 pipelines hang.
TEST(PassSchedule, SeparateSendsAndReceivesHang) {
  const auto hanging = [](PipelineSchedule schedule) {
    int count = 0;
    for (int stages = 2; stages <= 8; ++stages) {
      for (const int micro_batches : {1, 2, 3, 4, 5, 8, 16, 32}) {
        count += all_end(unfused(actions_of({stages, micro_batches, schedule}))) ? 0 : 1;
      }
    }
    return count;
  };
  EXPECT_EQ(hanging(PipelineSchedule::kOneForwardOneBackward), 49);
  EXPECT_EQ(hanging(PipelineSchedule::kGPipe), 0);
  EXPECT_EQ(hanging(PipelineSchedule::kNaive), 0);
}

TEST(PassSchedule, EveryPassRunsOnceAndAfterWhatItReads) {
  for_all_pipelines([](const PipelineSpec& pipeline) {
    const PassSchedule merged = by_time_slots(schedules_of_stages(pipeline));
    const bool splits = pipeline.schedule == PipelineSchedule::kZeroBubbleH1;
    EXPECT_EQ(splits_backward(merged), splits);
    EXPECT_EQ(std::ssize(merged), (splits ? 3 : 2) * pipeline.stages * pipeline.micro_batches);
    for (auto pass = merged.begin(); pass != merged.end(); ++pass) {
      EXPECT_EQ(std::find(merged.begin(), pass, *pass), pass);
      ScheduledPass read{Direction::kForward, pass->micro_step, pass->stage - 1};
      if (pass->direction == Direction::kBackward) {
        const bool is_last = pass->stage + 1 == pipeline.stages;
        read = {is_last ? Direction::kForward : Direction::kBackward, pass->micro_step,
                is_last ? pass->stage : pass->stage + 1};
      }
      if (pass->direction == Direction::kWeights) {
        read = {Direction::kBackward, pass->micro_step, pass->stage};
      }
      if (read.stage >= 0) EXPECT_NE(std::find(merged.begin(), pass, read), pass);
    }
  });
}

/// The time of a step without messages. A backward pass that leaves nothing out takes that of its
/// parts together.
double step_time(const PipelineSpec& pipeline, double forward_s, double backward_s,
                 double weights_s) {
  std::vector<double> free(static_cast<std::size_t>(pipeline.stages));
  std::map<std::tuple<Direction, int, int>, double> ends;
  const PassSchedule schedule = by_time_slots(schedules_of_stages(pipeline));
  const double whole_s = backward_s + (splits_backward(schedule) ? 0 : weights_s);
  const std::array takes_s = {forward_s, whole_s, weights_s};
  for (const ScheduledPass& pass : schedule) {
    const auto& [direction, number, stage] = pass;
    double begin = at(free, stage);
    if (const auto source = source_of(pass, pipeline.stages)) {
      begin = std::max(begin, ends.at({direction, number, source->stage}));
    }
    at(free, stage) = ends[{direction, number, stage}] =
        begin + takes_s[static_cast<std::size_t>(direction)];
  }
  return std::ranges::max(free);
}

TEST(PassSchedule, TheBubbleIsThatOfTheFormula) {
  for_all_pipelines([](const PipelineSpec& pipeline) {
    const bool splits = pipeline.schedule == PipelineSchedule::kZeroBubbleH1;
    // The formula is for steps in which each stage has something to do.
    if (splits && pipeline.micro_batches < pipeline.stages) return;
    const double work = 3.0 * pipeline.micro_batches;
    EXPECT_NEAR(1 - work / step_time(pipeline, 1, 1, 1), ideal_bubble(pipeline), 1e-12);
  });
}

/// Beyond the time of its passes, ZB-H1 takes (P - 1) max(F, B, F + B - W). No schedule of one step
/// takes less than (P - 1) F, as the last stage cannot begin before, so ZB-H1 is the best where
/// neither B nor F + B - W is more than F.
TEST(PassSchedule, ZeroBubbleH1WaitsAsLongAsTheFormulaSays) {
  int cases = 0;
  for (const double forward : {1.0, 1.5, 2.0}) {
    for (const double backward : {0.5, 1.0, 1.25, 2.0}) {
      for (const double weights : {0.25, 1.0, 1.75, 3.0}) {
        for (int stages = 2; stages <= 8; ++stages) {
          for (const int more : {0, 1, 3, 8, 24}) {
            const PipelineSpec pipeline{stages, stages + more, PipelineSchedule::kZeroBubbleH1};
            const double work = pipeline.micro_batches * (forward + backward + weights);
            const double waits =
                (stages - 1) * std::max({forward, backward, forward + backward - weights});
            EXPECT_NEAR(step_time(pipeline, forward, backward, weights), work + waits, 1e-9);
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 3 * 4 * 4 * 7 * 5);
}

TEST(PassSchedule, KeepsAsManyActivationsAsThePapersSay) {
  for_all_pipelines([](const PipelineSpec& pipeline) {
    const auto places = places_of_activations(by_time_slots(schedules_of_stages(pipeline)),
                                              pipeline.micro_batches, true);
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      int most = 0;
      switch (pipeline.schedule) {
        case PipelineSchedule::kOneForwardOneBackward:
          most = std::min(pipeline.micro_batches, pipeline.stages - stage);
          break;
        case PipelineSchedule::kGPipe:
          most = pipeline.micro_batches;
          break;
        case PipelineSchedule::kNaive:
          most = 1;
          break;
        case PipelineSchedule::kZeroBubbleH1:
          most = std::min(pipeline.micro_batches, pipeline.stages);
          break;
      }
      EXPECT_EQ(std::ranges::max(at(places, stage)) + 1, most) << "stage " << stage;
    }
  });
}

}  // namespace
}  // namespace barestep
