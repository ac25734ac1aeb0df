#include "kernels/make_device.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(MakeDevice, OpensTheCpuWithAsManyThreadsAsAsked) {
  const auto device = make_device({.device = "cpu", .threads = 3}, 2);
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_EQ(device->index(), 2);
  EXPECT_EQ(device->info().threads, 3);
  EXPECT_FALSE(device->info().model.empty());
  EXPECT_FALSE(device->info().product_library.empty());
  EXPECT_GT(device->info().free_bytes, 0);
  EXPECT_GE(device->info().total_bytes, device->info().free_bytes);
}

TEST(MakeDevice, SaysWhereProductsWidenTheirOperands) {
  const auto library = [](Precision precision) {
    const DeviceConfig config{
        .device = "cpu", .threads = 1, .gemm = GemmProvider::kReference, .precision = precision};
    return make_device(config)->info().product_library;
  };
  EXPECT_EQ(library(Precision::kFp32), "reference");
  EXPECT_EQ(library(Precision::kBf16), "reference, bf16 widened to fp32");
  EXPECT_EQ(library(Precision::kFp16), "reference, fp16 widened to fp32");
}

TEST(MakeDevice, TakesTheBestThereIs) {
  const DeviceKind best = cuda_device_count() > 0 ? DeviceKind::kCuda : DeviceKind::kCpu;
  EXPECT_EQ(device_kind("auto"), best);
  EXPECT_EQ(make_device({.device = "auto"})->kind(), best);
  EXPECT_EQ(device_kind("cpu"), DeviceKind::kCpu);
  EXPECT_EQ(device_kind("cuda"), DeviceKind::kCuda);
  EXPECT_EQ(device_kind("cuda:7"), DeviceKind::kCuda);
}

TEST(MakeDevice, RefusesAGpuThatIsNotThere) {
  const std::string missing = "cuda:" + std::to_string(cuda_device_count());
  expect_error(ExitCode::kNoDevice,
               "device '" + missing + "': ", [&] { make_device({.device = missing}); });
}

TEST(MakeDevice, RefusesAnyGpuOnAMachineWithoutOne) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  expect_error(ExitCode::kNoDevice, "device 'cuda': ", [] { make_device({.device = "cuda"}); });
}

}  // namespace
}  // namespace barestep
