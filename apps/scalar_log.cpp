#include "scalar_log.h"

#include "profiler/account.h"

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

void ScalarLog::on_step(const StepReport& report) {
  told_.on_step(report);
  last_step_ = report.step;
  const double now_s = unix_now_s();
  const double seconds = report.wall_s;
  for (const Scalar& scalar :
       {Scalar{"loss", report.loss},
        {"step_time_s", seconds},
        {"samples_per_s", static_cast<double>(report.samples) / seconds},
        {"utilisation", utilisation(account_of(*report.timeline, kMainLane))}}) {
    file_.add(report.step, now_s, scalar);
  }
}

void ScalarLog::on_evaluation(const EvaluationReport& report) {
  told_.on_evaluation(report);
  file_.add(last_step_, unix_now_s(), {"test_loss", report.loss});
  if (report.accuracy) file_.add(last_step_, unix_now_s(), {"test_accuracy", *report.accuracy});
}

}  // namespace barestep
