// Runs a Trainer from a configuration and keeps what it reports.
#pragma once

#include "core/config.h"
#include "core/device.h"
#include "core/index.h"
#include "data/dataset.h"
#include "kernels/make_device.h"
#include "support/testing.h"
#include "support/waits.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace barestep {

/// The programs of a run without files on the CPU.
inline StepPrograms programs_of(const TrainConfig& config, const Scheme* scheme = nullptr) {
  return StepPrograms(spec_of(config, DeviceKind::kCpu, nullptr), scheme);
}

/// The run's files, if it reads any, for one process.
inline std::optional<Dataset> dataset_of(const TrainConfig& config) {
  if (config.data.kind == DataKind::kRandn) return std::nullopt;
  const ModelSpec model = spec_of(config, DeviceKind::kCpu, nullptr).model;
  return load_dataset(config.data, std::array{model.inputs(), model.outputs()}, config.model.loss);
}

/// Adds the state that a rank saved to `state`, whose tensors may be empty.
inline void add_saved(TrainingState& state, const StepPrograms& programs,
                      std::span<const std::byte> saved) {
  if (state.tensors.empty()) {
    for (const TensorForm& form : state_tensors(programs)) {
      state.tensors.push_back({form.name, form.dtype, form.shape,
                               std::vector<std::byte>(static_cast<std::size_t>(form.bytes))});
    }
  }
  for (const TensorPiece& piece : saved_pieces(programs, saved)) {
    std::ranges::copy(piece.bytes,
                      at(state.tensors, piece.tensor).bytes.begin() + piece.first_byte);
  }
}

class TrainerHarness final : public TrainObserver {
 public:
  explicit TrainerHarness(TrainConfig requested, std::optional<Generator> generator = {},
                          std::unique_ptr<Device> opened = nullptr,
                          const TrainingState* start = nullptr, const Scheme* scheme = nullptr,
                          std::optional<std::int64_t> rows_per_sample = {})
      : config(std::move(requested)), device(std::move(opened)) {
    const TrainConfig& c = config;
    if (device == nullptr) {
      device = make_cpu_device({.threads = c.device.threads.value_or(0),
                                .denormals = c.device.denormals,
                                .gemm = c.device.gemm});
    }
    const Dataset* data = dataset ? &*dataset : nullptr;
    StepSpec spec = spec_of(c, device->kind(), data);
    if (generator) spec.input.generator = *generator;
    if (rows_per_sample) spec.model.rows_per_sample = *rows_per_sample;
    programs = std::make_unique<StepPrograms>(spec, scheme);
    for (const StepProgram* step : programs->all()) expect_ordered(step->program);
    FlatWeights loaded;
    if (!c.output.load.empty())
      loaded = load_weights(c.output.load, programs->parameter_list()).numbers;
    trainer = std::make_unique<Trainer>(c, *programs, std::vector{device.get()}, Connection{}, data,
                                        std::move(loaded), nullptr, start);
  }

  void run() { trainer->run(*this); }

  void on_step(const StepReport& report) override {
    steps.push_back(report);
    if (after_step) after_step(report);
  }
  void on_evaluation(const EvaluationReport& report) override { evaluations.push_back(report); }
  void on_pause() override {
    if (at_pause) at_pause();
  }

  [[nodiscard]] std::vector<float> losses() const {
    std::vector<float> all;
    for (const StepReport& report : steps) all.push_back(report.loss);
    return all;
  }

  TrainConfig config;
  const std::optional<Dataset> dataset = dataset_of(config);
  std::unique_ptr<StepPrograms> programs;
  std::unique_ptr<Device> device;
  std::unique_ptr<Trainer> trainer;
  std::vector<StepReport> steps;
  std::vector<EvaluationReport> evaluations;
  std::function<void(const StepReport&)> after_step;
  std::function<void()> at_pause;
};

}  // namespace barestep
