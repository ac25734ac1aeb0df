#include "profiler/pipeline_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/index.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

/// Of ideal_bubble().
constexpr EnumArray<PipelineSchedule, const char*> kFormulasOfBubble = {
    {{"(P - 1) / (m + P - 1)", "(P - 1) / (m + P - 1)", "(P - 1) / P", "(P - 1) / (3 m + P - 1)"}}};

}  // namespace

std::string stages_text(std::span<const StageAccount> stages, const PipelineSpec& pipeline,
                        std::int64_t steps) {
  if (steps == 0) return "";
  const bool cuts_layers = std::ranges::any_of(
      stages, [](const StageAccount& stage) { return stage.mean[Part::kTensorRanks] > 0; });
  std::vector<std::string> titles = {"Stage",         ">Forward (ms)",  ">Backward", ">Optimizer",
                                     ">Other stages", ">Communication", ">Rest"};
  if (cuts_layers) titles.insert(titles.end() - 2, ">Tensor ranks");
  TextTable table(std::move(titles));
  double waiting_s = 0, wall_s = 0;
  for (const auto& [name, mean] : stages) {
    const double forward_s = mean[Part::kForward] + mean[Part::kLoss];
    const double others_s = mean[Part::kOtherDevice] + mean[Part::kOtherStages];
    std::vector<double> seconds = {forward_s, mean[Part::kBackward], mean[Part::kOptimizer],
                                   others_s};
    if (cuts_layers) seconds.push_back(mean[Part::kTensorRanks]);
    seconds.push_back(mean[Part::kExposedCommunication]);
    seconds.push_back(mean.wall_s - std::accumulate(seconds.begin(), seconds.end(), 0.0));
    std::vector<std::string> row = {name};
    for (const double value : seconds) row.push_back(milliseconds(value));
    table.add_row(row);
    waiting_s += others_s;
    wall_s += mean.wall_s;
  }
  return fmt::format(
      "Stages of a step, mean of {}\n{}Waiting for other stages: {} of the step. Stages that take "
      "equally long would wait {} = {} (calculated, without optimizer and messages)\n",
      counted(steps, "step"), table.text(), percent_text(waiting_s / wall_s),
      kFormulasOfBubble[pipeline.schedule], percent_text(ideal_bubble(pipeline)));
}

std::string gather_stages(Group& ranks, const StepSpec& spec, const MeanAccount& mine) {
  const std::int64_t steps = std::ranges::min(gather_values(ranks, mine.count()));
  if (steps == 0) return "";
  const std::vector<StepAccount> of_ranks = gather_values(ranks, mine.mean());
  const int per_stage = spec.mesh.ranks_of_stage();
  std::vector<StageAccount> stages;
  for (int stage = 0; stage < spec.mesh.pipeline; ++stage) {
    const int first = stage * per_stage;
    MeanAccount of_stage;
    for (int i = 0; i < per_stage; ++i) of_stage.add(at(of_ranks, first + i));
    stages.push_back({.name = per_stage == 1 ? fmt::format("{} on rank {}", stage, first)
                                             : fmt::format("{} on ranks {} to {}", stage, first,
                                                           first + per_stage - 1),
                      .mean = of_stage.mean()});
  }
  PipelineSpec pipeline = spec.pipeline;
  pipeline.stages = spec.mesh.pipeline;
  return stages_text(stages, pipeline, steps);
}

PipelineAccount::PipelineAccount(const StepPrograms& programs, std::vector<std::string> names)
    : programs_(programs), names_(std::move(names)), stages_(programs.stages().size()) {}

void PipelineAccount::add(const StepReport& report) {
  if (report.warmup) return;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const LaneId lane{.device = programs_.stages()[stage].device, .lane = Lane::kCompute};
    stages_[stage].add(account_of(*report.timeline, lane));
  }
}

std::string PipelineAccount::text() const {
  const std::int64_t steps = stages_.front().count();
  if (steps == 0) return "";
  std::vector<StageAccount> stages;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    stages.push_back({fmt::format("{} on {}", i, names_[i]), stages_[i].mean()});
  }
  return stages_text(stages, programs_.spec().pipeline, steps);
}

}  // namespace barestep
