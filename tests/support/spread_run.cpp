#include "support/spread_run.h"

#include "core/plan.h"
#include "kernels/make_device.h"
#include "parallel/comm/local_transport.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/other_schemes.h"
#include "support/near.h"
#include "support/rank_run.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

class LossList final : public TrainObserver {
 public:
  void on_step(const StepReport& report) override { values.push_back(report.loss); }
  void on_evaluation(const EvaluationReport& report) override {
    values.push_back(static_cast<float>(report.loss));
    if (report.accuracy) values.push_back(static_cast<float>(*report.accuracy));
  }

  std::vector<float> values;
};

SpreadRun train(const TrainConfig& config, const Scheme* scheme, std::int64_t max_numbers,
                const OpenDevice& open) {
  const std::optional<Dataset> dataset = dataset_of(config);
  const Dataset* const data = dataset ? &*dataset : nullptr;
  std::vector<std::unique_ptr<Device>> opened;
  opened.push_back(open(config.device, 0));
  const StepPrograms programs(spec_of(config, opened[0]->kind(), data), scheme);
  for (const StepProgram* step : programs.all()) expect_ordered(step->program);
  for (int i = 1; i < MemoryPlan(programs.buffers()).devices(); ++i) {
    opened.push_back(open(config.device, i));
  }
  std::vector<Device*> devices;
  for (const auto& device : opened) devices.push_back(device.get());
  std::optional<Tensor> piece = reduce_piece_of(programs.buffers());
  if (piece) piece->cols = std::min(piece->cols, max_numbers);
  LocalTransport transport(devices, piece);
  Trainer trainer(config, programs, devices, {nullptr, scheme == nullptr ? nullptr : &transport},
                  data);
  LossList losses;
  trainer.run(losses);
  return {trainer.weights(), losses.values};
}

}  // namespace

std::unique_ptr<Device> open_cpu(const DeviceConfig& config, int index) {
  return make_cpu_device({.index = index, .threads = 1, .gemm = config.gemm});
}

SpreadRun train_spread(const TrainConfig& config, const Spread& spread, const OpenDevice& open) {
  const DataParallel scheme(spread.devices, spread.adds_by_pieces);
  return train(config, &scheme, spread.max_numbers, open);
}

SpreadRun train_pipeline(const TrainConfig& config, const OpenDevice& open) {
  const Pipeline scheme;
  return train(config, &scheme, 0, open);
}

SpreadRun train_alone(const TrainConfig& config, const OpenDevice& open) {
  return train(config, nullptr, 0, open);
}

void expect_near(const SpreadRun& run, const SpreadRun& one, const TrainConfig& config,
                 double bound) {
  expect_within(run.losses, one.losses, bound);
  EXPECT_LT(
      largest_distance({.widths = widths_of(config.model, 1)}, run.parameters, one.parameters),
      1e-6);
}

}  // namespace barestep
