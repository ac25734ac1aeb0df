#include "profiler/pipeline_account.h"

#include <fmt/format.h>

#include <utility>

#include "core/index.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {

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
  if (stages_.front().count() == 0) return "";
  const PipelineSpec& pipeline = programs_.spec().pipeline;
  TextTable table({{"Stage", Align::kLeft},
                   {"Forward (ms)", Align::kRight},
                   {"Backward", Align::kRight},
                   {"Optimizer", Align::kRight},
                   {"Other stages", Align::kRight},
                   {"Copies", Align::kRight},
                   {"Rest", Align::kRight}});
  double waiting_s = 0, wall_s = 0;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const StepAccount mean = stages_[stage].mean();
    const double forward_s = mean[Part::kForward] + mean[Part::kLoss];
    const double backward_s = mean[Part::kBackward];
    const double rest_s = mean.wall_s - forward_s - backward_s - mean[Part::kOptimizer] -
                          mean[Part::kOtherDevice] - mean[Part::kExposedCommunication];
    waiting_s += mean[Part::kOtherDevice];
    wall_s += mean.wall_s;
    table.add_row({fmt::format("{} on {}", stage, names_[stage]), milliseconds(forward_s),
                   milliseconds(backward_s), milliseconds(mean[Part::kOptimizer]),
                   milliseconds(mean[Part::kOtherDevice]),
                   milliseconds(mean[Part::kExposedCommunication]), milliseconds(rest_s)});
  }
  const bool is_naive = pipeline.schedule == PipelineSchedule::kNaive;
  return fmt::format(
      "Stages of a step, mean of {}\n{}Waiting for other stages: {:.1f} % of the step. Stages that "
      "take equally long would wait {} = {:.1f} % (calculated, without optimizer and copies)\n",
      counted(stages_.front().count(), "step"), table.text(), 100 * waiting_s / wall_s,
      is_naive ? "(P - 1) / P" : "(P - 1) / (m + P - 1)", 100 * ideal_bubble(pipeline));
}

}  // namespace barestep
