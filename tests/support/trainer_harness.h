// Runs a Trainer from a configuration and keeps what it reports.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/checker.h"
#include "core/config.h"
#include "core/device.h"
#include "kernels/cpu_device.h"
#include "train/dataset.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace barestep {

/// Every program of a run.
inline std::vector<const StepProgram*> programs_of(const StepPrograms& programs) {
  std::vector<const StepProgram*> all{&programs.train()};
  for (const StepProgram* step :
       {programs.last_batch(), programs.evaluate(), programs.last_evaluate()}) {
    if (step != nullptr) all.push_back(step);
  }
  return all;
}

/// What every program that a test builds must pass.
inline void expect_ordered(const Program& program) {
  for (const Violation& violation : check(program)) {
    ADD_FAILURE() << program.name() << ": " << describe(program, violation);
  }
}

class TrainerHarness final : public TrainObserver {
 public:
  explicit TrainerHarness(TrainConfig wanted, std::int64_t default_dim = kDefaultDimCpu,
                          Generator generator = Generator::kTorchCpu,
                          std::unique_ptr<Device> opened = nullptr)
      : config(std::move(wanted)), device(std::move(opened)) {
    const TrainConfig& c = config;
    if (device == nullptr) {
      device = make_cpu_device({.threads = c.device.threads, .gemm = c.device.gemm});
    }
    if (c.data.kind == DataKind::kIdx) {
      dataset.emplace(load_dataset(c.data, widths_of(c.model, default_dim), c.model.loss));
    }
    const Dataset* data = dataset ? &*dataset : nullptr;
    StepSpec spec = spec_of(c, default_dim, data);
    spec.generator = generator;
    spec.workspace_bytes = workspace_bytes(device->kind());
    programs = std::make_unique<StepPrograms>(spec);
    for (const StepProgram* step : programs_of(*programs)) expect_ordered(step->program);
    FlatWeights loaded;
    if (!c.output.load.empty()) loaded = load_weights(c.output.load, programs->spec().model);
    trainer = std::make_unique<Trainer>(c, *programs, *device, data, std::move(loaded));
  }

  void run() { trainer->run(*this); }

  void on_step(const StepReport& report) override {
    steps.push_back(report);
    if (after_step) after_step(report);
  }
  void on_evaluation(const EvaluationReport& report) override { evaluations.push_back(report); }

  [[nodiscard]] std::vector<float> losses() const {
    std::vector<float> all;
    for (const StepReport& report : steps) all.push_back(report.loss);
    return all;
  }

  TrainConfig config;
  std::optional<Dataset> dataset;
  std::unique_ptr<StepPrograms> programs;
  std::unique_ptr<Device> device;
  std::unique_ptr<Trainer> trainer;
  std::vector<StepReport> steps;
  std::vector<EvaluationReport> evaluations;
  std::function<void(const StepReport&)> after_step;
};

}  // namespace barestep
