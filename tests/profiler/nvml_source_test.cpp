#include <dlfcn.h>

#include "profiler/fake_nvml.h"
#include "profiler/monitor.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr const char* kBus = "00000000:17:00.0";

class Nvml : public testing::Test {
 protected:
  Nvml() : handle_(::dlopen(FAKE_NVML, RTLD_NOW)) {
    if (handle_ == nullptr) std::abort();
    fake_ = reinterpret_cast<FakeNvmlState*>(::dlsym(handle_, kFakeNvmlState))();
    *fake_ = {};
    fake_->gpus = {kBus, "00000000:65:00.0"};
    fake_->value = {{"gpu", 97},         {"memory", 41},   {"used", 3ULL << 30}, {"power", 612'345},
                    {"temperature", 64}, {"clock1", 1980}, {"clock2", 3201},     {"processes", 1}};
  }
  ~Nvml() override { ::dlclose(handle_); }

  /// The only GPU; fails if there are others.
  static std::unique_ptr<MonitorSource> open() {
    const GpuPlace gpu{"cuda:0", kBus};
    GpuSources opened = open_gpu_sources(std::span(&gpu, 1), FAKE_NVML);
    EXPECT_THAT(opened.notes, IsEmpty());
    return opened.sources.empty() ? nullptr : std::move(opened.sources[0]);
  }
  static std::vector<std::string> notes(const std::string& library) {
    const GpuPlace gpu{"cuda:0", kBus};
    const GpuSources opened = open_gpu_sources(std::span(&gpu, 1), library);
    EXPECT_THAT(opened.sources, IsEmpty());
    return opened.notes;
  }
  static std::vector<double> look(MonitorSource& source) {
    std::vector<double> values(source.gauges.size(), -1);
    source.sample(values);
    return values;
  }
  static double value(const MonitorSource& source, const std::vector<double>& values,
                      const std::string& name) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (source.gauges[i].name == name) return values[i];
    }
    ADD_FAILURE() << "no gauge " << name;
    return 0;
  }

  FakeNvml* fake_;

 private:
  void* handle_;
};

TEST_F(Nvml, TellsEveryGaugeInItsUnit) {
  const auto gpu = open();
  const auto values = look(*gpu);
  EXPECT_EQ(gpu->name, "cuda:0");
  EXPECT_EQ(value(*gpu, values, "gpu_percent"), 97);
  EXPECT_EQ(value(*gpu, values, "memory_percent"), 41);
  EXPECT_EQ(value(*gpu, values, "memory_mib"), 3072);
  EXPECT_DOUBLE_EQ(value(*gpu, values, "power_w"), 612.345);
  EXPECT_DOUBLE_EQ(value(*gpu, values, "energy_j"), 0.5);
  EXPECT_EQ(value(*gpu, values, "temperature_c"), 64);
  EXPECT_EQ(value(*gpu, values, "sm_clock_mhz"), 1980);
  EXPECT_EQ(value(*gpu, values, "memory_clock_mhz"), 3201);
  EXPECT_EQ(value(*gpu, values, "throttle_reasons"), 0);
  EXPECT_EQ(value(*gpu, values, "other_processes"), 0);
  EXPECT_EQ(gpu->trouble(), "");
}

TEST_F(Nvml, CountsProcessesButThisOne) {
  const auto gpu = open();
  for (const auto& [processes, others] : {std::pair(0, 0), {1, 0}, {3, 2}}) {
    fake_->value["processes"] = static_cast<unsigned long long>(processes);
    EXPECT_EQ(value(*gpu, look(*gpu), "other_processes"), others);
  }
}

TEST_F(Nvml, OpensEachGpuOnceAndShutsTheLibraryDownBehindTheLast) {
  const std::vector<GpuPlace> gpus = {
      {"cuda:0#0", kBus}, {"cuda:0#1", kBus}, {"cuda:1", "00000000:65:00.0"}};
  auto opened = open_gpu_sources(gpus, FAKE_NVML);
  ASSERT_EQ(opened.sources.size(), 2U);
  EXPECT_EQ(opened.sources[1]->name, "cuda:1");
  opened.sources.erase(opened.sources.begin());
  EXPECT_EQ(fake_->open, 1);
  opened.sources.clear();
  EXPECT_EQ(fake_->open, 0);
}

TEST_F(Nvml, WithoutGpusNeedsNoLibrary) {
  const GpuSources opened = open_gpu_sources({}, "/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(opened.sources, IsEmpty());
  EXPECT_THAT(opened.notes, IsEmpty());
}

TEST_F(Nvml, SaysWhyThereIsNoLibrary) {
  EXPECT_THAT(notes("/nowhere/libnvidia-ml.so.1"),
              ElementsAre(StartsWith("no monitor of GPUs: /nowhere/libnvidia-ml.so.1: cannot open "
                                     "shared object file")));
  EXPECT_THAT(notes("libm.so.6"), ElementsAre("no monitor of GPUs: libm.so.6 has no nvmlInit_v2"));
}

TEST_F(Nvml, SaysWhyTheLibraryDoesNotStart) {
  fake_->status["nvmlInit_v2"] = 18;
  EXPECT_THAT(notes(FAKE_NVML), ElementsAre("no monitor of GPUs: nvmlInit_v2 failed: "
                                            "Driver/library version mismatch (18)"));
  EXPECT_EQ(fake_->open, 0);
  fake_->status["nvmlInit_v2"] = 77;  // from a newer driver, without a description
  EXPECT_THAT(notes(FAKE_NVML),
              ElementsAre("no monitor of GPUs: nvmlInit_v2 failed: unknown (77)"));
}

TEST_F(Nvml, SaysWhichGpuItCannotLookAt) {
  fake_->gpus.clear();
  EXPECT_THAT(notes(FAKE_NVML),
              ElementsAre("no monitor of cuda:0: nvmlDeviceGetHandleByPciBusId_v2 of "
                          "'00000000:17:00.0' failed: unknown (6)"));
  EXPECT_EQ(fake_->open, 0);
}

TEST_F(Nvml, LeavesOutWhatTheGpuDoesNotSupport) {
  fake_->status["nvmlDeviceGetTotalEnergyConsumption"] = 3;
  fake_->status["nvmlDeviceGetPowerUsage"] = 3;
  const auto gpu = open();
  const auto values = look(*gpu);
  EXPECT_TRUE(std::isnan(value(*gpu, values, "energy_j")));
  EXPECT_TRUE(std::isnan(value(*gpu, values, "power_w")));
  EXPECT_EQ(value(*gpu, values, "temperature_c"), 64);
  EXPECT_EQ(gpu->trouble(), "");
}

TEST_F(Nvml, AsksNoMoreForWhatIsForbiddenAndSaysSo) {
  fake_->status["nvmlDeviceGetComputeRunningProcesses_v3"] = 4;
  const auto gpu = open();
  look(*gpu);
  fake_->status.clear();
  EXPECT_TRUE(std::isnan(value(*gpu, look(*gpu), "other_processes")));
  EXPECT_EQ(gpu->trouble(),
            "nvmlDeviceGetComputeRunningProcesses_v3 failed: Insufficient Permissions (4)");
}

TEST_F(Nvml, GoesOnBehindAFailureAndSaysSo) {
  const auto gpu = open();
  fake_->status["nvmlDeviceGetPowerUsage"] = 999;
  look(*gpu);
  EXPECT_TRUE(std::isnan(value(*gpu, look(*gpu), "power_w")));
  fake_->status.clear();
  EXPECT_DOUBLE_EQ(value(*gpu, look(*gpu), "power_w"), 612.345);
  EXPECT_EQ(gpu->trouble(), "nvmlDeviceGetPowerUsage failed: Unknown Error (999)");
}

TEST_F(Nvml, LooksNoMoreAtAGpuThatIsLost) {
  const auto gpu = open();
  fake_->status["nvmlDeviceGetMemoryInfo"] = 15;
  look(*gpu);
  fake_->status.clear();
  for (const double value : look(*gpu)) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(gpu->trouble(),
            "nvmlDeviceGetMemoryInfo failed: GPU is lost (15); it is no longer read");
}

TEST_F(Nvml, TakesTheLibraryThatTheEnvironmentNames) {
  ::unsetenv("BARESTEP_NVML");
  EXPECT_EQ(nvml_library(), "libnvidia-ml.so.1");
  ::setenv("BARESTEP_NVML", "/opt/nvml.so", 1);
  EXPECT_EQ(nvml_library(), "/opt/nvml.so");
  ::unsetenv("BARESTEP_NVML");
}

}  // namespace
}  // namespace barestep
