// Small runs of DataParallel and pipelines on any devices, for tests to compare.
#pragma once

#include "core/config.h"
#include "core/device.h"
#include "support/testing.h"
#include "train/weights.h"

namespace barestep {

struct Spread {
  int devices = 2;
  bool adds_by_pieces = false;
  std::int64_t max_numbers = 1 << 20;  // in a piece
};

struct SpreadRun {
  FlatWeights parameters;
  std::vector<float> losses;  // including those of evaluations, and their accuracies

  friend bool operator==(const SpreadRun&, const SpreadRun&) = default;
};

/// The device with this number.
using OpenDevice = std::function<std::unique_ptr<Device>(const DeviceConfig& config, int index)>;

/// A CPU device of one thread.
std::unique_ptr<Device> open_cpu(const DeviceConfig& config, int index);

/// The whole run. Programs are checked.
SpreadRun train_spread(const TrainConfig& config, const Spread& spread,
                       const OpenDevice& open = open_cpu);

/// The same of the configuration's pipeline, a stage a device.
SpreadRun train_pipeline(const TrainConfig& config, const OpenDevice& open = open_cpu);

/// The same on one device, without a scheme.
SpreadRun train_alone(const TrainConfig& config, const OpenDevice& open = open_cpu);

/// Losses within a relative `bound` of each other, and parameters within 1e-6.
void expect_near(const SpreadRun& run, const SpreadRun& one, const TrainConfig& config,
                 double bound = 5e-7);

}  // namespace barestep
