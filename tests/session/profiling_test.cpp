// A profile without a node's record is an error, whatever the source of records.
#include "session/profiling.h"

#include <dlfcn.h>

#include "kernels/make_device.h"
#include "support/expect_error.h"
#include "support/forwarding_device.h"
#include "support/testing.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// Sends no records of products. It can present itself as a GPU, on which CUPTI reports.
class LossyDevice final : public FilteredRecords {
 public:
  LossyDevice(Device& inner, DeviceKind kind)
      : FilteredRecords(inner, [](const Record& record) { return record.label != "gemm"; }),
        kind_(kind) {}
  [[nodiscard]] DeviceKind kind() const override { return kind_; }

 private:
  DeviceKind kind_;
};

TrainConfig profiled_config() {
  TrainConfig config;
  config.model.layers = {4, 4, 4};
  config.training.steps = 3;
  config.output.profile_steps = {1, 2};
  return config;
}

/// Trains with profiling and passes on the recording.
template <class F>
void with_profile(Device& device, const TrainConfig& config, const F& look) {
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const ProfilingScope scope{.program = "test", .devices = {&device}};
  Observers observers;
  auto made = new_profiling(config, programs, scope);
  Profiling& profiling = *made;
  observers.add(std::move(made));
  {
    Trainer trainer(config, programs, {&device}, {}, nullptr, {}, &profiling);
    profiling.begin();
    trainer.run(observers);
  }
  profiling.close();
  look(profiling);
}

TEST(Profiling, OfACpuNamesANodeThatHasNoRecord) {
  const auto cpu = make_cpu_device({.threads = 1});
  LossyDevice device(*cpu, DeviceKind::kCpu);
  TrainConfig config = profiled_config();
  config.output.profile = true;
  with_profile(device, config, [](Profiling& profiling) {
    EXPECT_EQ(profiling.text(), "") << "a table without products would be wrong";
    expect_error(ExitCode::kBug,
                 "profile 'gemm of net.0 in forward, step 1': has no record from the CPU; this "
                 "is a bug, please report it",
                 [&] { profiling.save(false); });
  });
  with_profile(*cpu, config, [](Profiling& profiling) {
    EXPECT_NE(profiling.text(), "");
    profiling.save(false);
  });
}

class ByEvents : public testing::Test {
 protected:
  ByEvents() { ::setenv("BARESTEP_CUPTI", "/nowhere/libcupti.so", 1); }
  ~ByEvents() override { ::unsetenv("BARESTEP_CUPTI"); }

  std::unique_ptr<Device> cpu_ = make_cpu_device({.threads = 1});
  LossyDevice device_{*cpu_, DeviceKind::kCuda};
  TrainConfig config_ = profiled_config();
};

TEST_F(ByEvents, HasTheTimesOfEachNodeAndSaysWhereTheyAreFrom) {
  config_.output.profile = true;
  with_profile(device_, config_, [](Profiling& profiling) {
    profiling.save(false);
    EXPECT_THAT(profiling.text(),
                HasSubstr("The GPU's times are from CUDA events, to about a microsecond: "
                          "CUPTI cannot be used: "));
  });
}

TEST_F(ByEvents, RefusesAGraph) {
  config_.device.graph = true;
  expect_error(ExitCode::kConfiguration,
               "--trace: the ops of a graph cannot be identified by CUDA events, to about a "
               "microsecond: CUPTI cannot be used: ",
               [&] { with_profile(device_, config_, [](Profiling&) {}); });
}

/// The fake library reports no work at all.
TEST(Profiling, ByCuptiNamesANodeThatHasNoRecordAndTheWayRound) {
  if (std::string_view(FAKE_CUPTI).empty()) GTEST_SKIP() << "this build has no CUPTI";
  ::setenv("BARESTEP_CUPTI", FAKE_CUPTI, 1);
  const auto cpu = make_cpu_device({.threads = 1});
  LossyDevice device(*cpu, DeviceKind::kCuda);
  with_profile(device, profiled_config(), [](Profiling& profiling) {
    expect_error(ExitCode::kBug,
                 "profile 'randn in data, step 1': has no record from CUPTI 13.0.1; set "
                 "BARESTEP_CUPTI=none, which profiles by CUDA events",
                 [&] { profiling.save(false); });
  });
  ::unsetenv("BARESTEP_CUPTI");
}

/// That is only known when records are enabled, after the marks were made.
TEST(Profiling, FallsBackToEventsIfCuptiRefusesToRecord) {
  if (std::string_view(FAKE_CUPTI).empty()) GTEST_SKIP() << "this build has no CUPTI";
  void* const library = ::dlopen(FAKE_CUPTI, RTLD_NOW | RTLD_LOCAL);
  const auto restrict_to_administrators = reinterpret_cast<void (*)(int)>(
      ::dlsym(library, "fake_cupti_lets_only_administrators_record"));
  ::setenv("BARESTEP_CUPTI", FAKE_CUPTI, 1);
  restrict_to_administrators(1);
  const auto cpu = make_cpu_device({.threads = 1});
  LossyDevice device(*cpu, DeviceKind::kCuda);
  TrainConfig config = profiled_config();
  config.output.profile = true;
  config.training.steps = 12;
  config.output.profile_steps = {8, 10};
  for (const int log_every : {1, 12}) {
    config.training.log_every = log_every;
    with_profile(device, config, [](Profiling& profiling) {
      profiling.save(false);
      EXPECT_THAT(profiling.text(), AllOf(HasSubstr("The GPU's times are from CUDA events, to "
                                                    "about a microsecond: CUPTI cannot be used: "
                                                    "cuptiActivityEnable failed: "),
                                          HasSubstr("the driver lets only administrators profile"),
                                          HasSubstr(" of steps without and with")));
    });
  }
  config.device.graph = true;
  expect_error(ExitCode::kConfiguration,
               "--profile: the ops of a graph cannot be identified by CUDA events",
               [&] { with_profile(device, config, [](Profiling&) {}); });
  restrict_to_administrators(0);
  ::unsetenv("BARESTEP_CUPTI");
}

}  // namespace
}  // namespace barestep
