// Runs a Trainer from a configuration and keeps what it reports.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "kernels/cpu_device.h"
#include "train/dataset.h"
#include "train/trainer.h"

namespace barestep {

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
    trainer = std::make_unique<Trainer>(c, *programs, *device, data);
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
