// What tests do with the steps of a run, as functions.
#pragma once

#include "support/testing.h"
#include "train/trainer.h"

namespace barestep {

/// Calls a function with the report of every step.
class EachStep final : public TrainObserver {
 public:
  explicit EachStep(std::function<void(const StepReport&)> use) : use_(std::move(use)) {}
  void on_step(const StepReport& report) override { use_(report); }

 private:
  std::function<void(const StepReport&)> use_;
};

/// Has the steps for which a function is true measured by nodes, the others by runs.
class ByNodes final : public StepProfiler {
 public:
  explicit ByNodes(std::function<bool(std::int64_t step)> is_fine) : is_fine_(std::move(is_fine)) {}
  RunDetail detail_of(std::int64_t step) override {
    return is_fine_(step) ? RunDetail::kNodes : RunDetail::kRuns;
  }

 private:
  std::function<bool(std::int64_t)> is_fine_;
};

}  // namespace barestep
