// What the stages of a pipeline do in a step, each on a device of this process or on ranks of its
// own, and how long they wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/mesh.h"
#include "profiler/account.h"
#include "train/pass_schedule.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// A stage's mean step.
struct StageAccount {
  std::string name;  // "0 on cpu:0"
  StepAccount mean;
};

/// A row for each stage, and the share of the step in which stages wait for other stages, beside
/// the one of ideal_bubble(). Empty if `steps`, the number that the means are of, is 0.
std::string stages_text(std::span<const StageAccount> stages, const PipelineSpec& pipeline,
                        std::int64_t steps);

/// The text for the stages of a mesh of ranks, each row the mean of a stage's ranks; `mine` is this
/// rank's account, of as many steps as the others'. Every rank calls it and gets the same. Blocks.
std::string gather_stages(Group& ranks, const StepSpec& spec, const MeanAccount& mine);

/// Collects the steps after warm-up of the stages of one process. Allocates only during
/// construction.
class PipelineAccount {
 public:
  /// `names` are those of the devices, by stage. `programs` must outlive it.
  PipelineAccount(const StepPrograms& programs, std::vector<std::string> names);

  /// Adds a finished training step.
  void add(const StepReport& report);

  [[nodiscard]] std::string text() const;

 private:
  const StepPrograms& programs_;
  std::vector<std::string> names_;
  std::vector<MeanAccount> stages_;
};

}  // namespace barestep
