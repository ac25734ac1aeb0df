// DataParallel on GPUs, each used once, or one used twice.

#include "kernels/make_device.h"
#include "support/rank_run.h"
#include "support/spread_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// How much CUDA's products may differ for different shapes.
constexpr double kLossBound = 1e-6;

class DataParallelOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    config_.training.steps = 2;
    one_ = train_alone(config_, one_gpu());
  }

  /// All devices are the first GPU.
  static OpenDevice one_gpu() {
    return [](const DeviceConfig& config, int index) {
      DeviceConfig first = config;
      first.device = "cuda:0";
      return make_cuda_device(first, index);
    };
  }

  static OpenDevice own_gpus() {
    return [](const DeviceConfig& config, int index) {
      DeviceConfig own = config;
      own.device = fmt::format("cuda:{}", index);
      return make_cuda_device(own, index);
    };
  }

  TrainConfig config_ = rank_config();
  SpreadRun one_;
};

TEST_F(DataParallelOnGpus, OneGpuGivenTwiceComputesTheLossesOfOne) {
  const SpreadRun twice = train_spread(config_, {.devices = 2}, one_gpu());
  expect_near(twice, one_, config_, kLossBound);
  EXPECT_EQ(train_spread(config_, {.devices = 2}, one_gpu()), twice) << "it repeats to the bit";
}

TEST_F(DataParallelOnGpus, AddsTheSameSumsByPieces) {
  const SpreadRun direct = train_spread(config_, {.devices = 3}, one_gpu());
  expect_near(direct, one_, config_, kLossBound);
  for (const std::int64_t max : {50, 1 << 20}) {
    EXPECT_EQ(train_spread(config_, {.devices = 3, .adds_by_pieces = true, .max_numbers = max},
                           one_gpu()),
              direct);
  }
}

TEST_F(DataParallelOnGpus, EachGivenOnceComputeTheLossesOfOne) {
  const int gpus = std::min(3, cuda_device_count());
  if (gpus < 2) GTEST_SKIP() << "there is one GPU only";
  const SpreadRun several =
      train_spread(config_, {.devices = gpus, .adds_by_pieces = true}, own_gpus());
  expect_near(several, one_, config_, kLossBound);
}

}  // namespace
}  // namespace barestep
