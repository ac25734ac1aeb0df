// Whether updates run alongside backward: the times calculated for an H200, and the conditions
// against it.
#include "train/updates_beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "train/trainer.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

TrainConfig wide_config(Precision precision = Precision::kFp32) {
  TrainConfig config;
  config.model.dim = 8192;
  config.training.update = Update::kFused;
  config.device.precision = precision;
  return config;
}

UpdatesBeside choice_for(const TrainConfig& config, DeviceKind kind = DeviceKind::kCuda,
                         const Scheme* scheme = nullptr, const GpuRates& rates = {}) {
  const StepPrograms after(spec_of(config, kind, nullptr), scheme);
  return choose_updates_beside(config, kind, after, rates);
}

// 8192^2 weights of 24 bytes and 4.2 MB of factors at 4.3 TB/s take 0.3755 ms of memory time; 118
// instructions per weight at 33.45 T/s take 0.237 ms. An input gradient takes 0.0634 ms of memory
// time and 0.154 ms of instructions, and alone 0.1652 ms at 52 TFLOP/s. Together they take 0.4389 /
// 0.92, one after the other 0.3755 / 0.92 + 0.1652; there are four such pairs.
TEST(UpdatesBeside, PayInFp32WhereGradientsAreBoundByArithmetic) {
  const UpdatesBeside choice = choice_for(wide_config());
  EXPECT_TRUE(choice.beside);
  EXPECT_EQ(choice.why,
            "beside input gradients they take 1.909 ms together, after them 2.294; calculated with "
            "the rates of an H200");
}

TEST(UpdatesBeside, AreTooLittleInTf32WhereMemoryBoundsBoth) {
  const UpdatesBeside choice = choice_for(wide_config(Precision::kTf32));
  EXPECT_FALSE(choice.beside);
  EXPECT_THAT(choice.why, HasSubstr(", too little for a second lane"));
}

TEST(UpdatesBeside, AreTooLittleForFewRowsAndForManyRows) {
  for (const std::int64_t rows : {4, 4096}) {
    TrainConfig config = wide_config();
    config.data.batch_size = rows;
    EXPECT_FALSE(choice_for(config).beside) << rows << " rows";
  }
}

TEST(UpdatesBeside, AreTooLittleForSmallLayers) {
  TrainConfig config = wide_config();
  config.model.dim = 256;
  EXPECT_FALSE(choice_for(config).beside);
}

TEST(UpdatesBeside, DependOnTheRatesOfTheGpu) {
  // If arithmetic were free, memory would bound both; if memory were free, arithmetic would.
  const GpuRates fast{.instructions_per_s = 1e15, .fp32_flops_per_s = 1e15};
  EXPECT_FALSE(choice_for(wide_config(), DeviceKind::kCuda, nullptr, fast).beside);
  const GpuRates near{.memory_bytes_per_s = 1e15};
  EXPECT_FALSE(choice_for(wide_config(), DeviceKind::kCuda, nullptr, near).beside);
}

// At 8 TB/s the same pair takes 0.2019 and 0.0341 ms of memory time, and 0.211 and 0.137 ms of
// instructions on 148 multiprocessors: together as long as one after the other.
TEST(UpdatesBeside, AreDecidedByTheRatesMeasuredOnTheGpu) {
  const GpuRates rates = measured_rates(8e12, 60e12, 148);
  const UpdatesBeside choice = choice_for(wide_config(), DeviceKind::kCuda, nullptr, rates);
  EXPECT_FALSE(choice.beside);
  EXPECT_THAT(choice.why, HasSubstr("calculated with the rates of this GPU, too little"));
  EXPECT_TRUE(choice_for(wide_config()).beside) << "an H200's";
  EXPECT_EQ(measured_rates(8e12, 60e12, 0).instructions_per_s, GpuRates{}.instructions_per_s);
}

TEST(UpdatesBeside, SayWhatRulesThemOut) {
  const Scheme scheme;
  EXPECT_EQ(choice_for(wide_config(), DeviceKind::kCpu).why,
            "on the CPU each of them has all threads already");
  EXPECT_EQ(choice_for(wide_config(), DeviceKind::kCuda, &scheme).why,
            "ranks gather what a layer's gradient is made of first");
  const auto why = [](const std::function<void(TrainConfig&)>& adjust) {
    TrainConfig config = wide_config();
    adjust(config);
    const UpdatesBeside choice = choice_for(config);
    EXPECT_FALSE(choice.beside);
    return choice.why;
  };
  EXPECT_EQ(why([](TrainConfig& config) { config.training.clip_norm = 1; }),
            "--clip-norm needs all gradients first");
  EXPECT_EQ(why([](TrainConfig& config) { config.model.depth = 2; }),
            "no layer but the first two has an input gradient below");
  EXPECT_EQ(why([](TrainConfig& config) { config.training.update = Update::kSeparate; }),
            "--update separate takes all gradients at once");
}

}  // namespace
}  // namespace barestep
