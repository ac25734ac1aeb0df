#include "scalar_log.h"

namespace barestep {
namespace {

/// The share of a step's wall time in which the compute lane worked, 0 to 1.
double utilisation(const StepAccount& account) {
  double work_s = 0;
  for (const Part part : {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer}) {
    work_s += account[part];
  }
  return work_s / account.wall_s;
}

}  // namespace

void ScalarLog::add(const StepFigures& step) {
  const StepReport& report = step.report;
  last_step_ = report.step;
  const double now_s = unix_now_s();
  const double seconds = report.wall_s;
  for (const Scalar& scalar : {Scalar{"loss", report.loss},
                               {"step_time_s", seconds},
                               {"samples_per_s", static_cast<double>(report.samples) / seconds},
                               {"utilisation", utilisation(step.account)}}) {
    file_.add(report.step, now_s, scalar);
  }
}

void ScalarLog::add(const EvaluationReport& report) {
  file_.add(last_step_, unix_now_s(), {"test_loss", report.loss});
  if (report.accuracy) file_.add(last_step_, unix_now_s(), {"test_accuracy", *report.accuracy});
}

}  // namespace barestep
