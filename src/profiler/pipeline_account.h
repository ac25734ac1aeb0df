// What the stages of a pipeline do in a step, each on a device of this process, and how long they
// wait for each other.
#pragma once

#include <string>
#include <vector>

#include "profiler/account.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// Collects the steps after warm-up. Allocates only during construction.
class PipelineAccount {
 public:
  /// `names` are those of the devices, by stage. `programs` must outlive it.
  PipelineAccount(const StepPrograms& programs, std::vector<std::string> names);

  /// Adds a finished training step.
  void add(const StepReport& report);

  /// A row for each stage, and the share of the step in which stages wait for other stages, beside
  /// the one of ideal_bubble(). Empty without a step after warm-up.
  [[nodiscard]] std::string text() const;

 private:
  const StepPrograms& programs_;
  std::vector<std::string> names_;
  std::vector<MeanAccount> stages_;
};

}  // namespace barestep
