// A CUDA device on the fake runtime, for a test.
#pragma once

#include "gpu/cuda_harness.h"
#include "support/expect_error.h"
#include "support/fake_cuda.h"
#include "support/testing.h"

namespace barestep {

class OnFake : public OnGpu {
 protected:
  void SetUp() override {
    fake_cuda::reset();
    OnGpu::SetUp();
  }
  void TearDown() override {
    close();
    EXPECT_EQ(fake_cuda::allocated_bytes(), 0);
    EXPECT_EQ(fake_cuda::objects(), 0);
    fake_cuda::reset();
  }

  void close() {
    stream.reset();
    workspace.reset();
    device.reset();
  }

  /// Opens the device again on this machine.
  void restart(const fake_cuda::Machine& machine, const DeviceConfig& config = {.device = "cuda"}) {
    close();
    fake_cuda::reset(machine);
    open(config);
  }

  void expect_not_opened(const fake_cuda::Machine& machine, const DeviceConfig& config,
                         const std::string& text) {
    close();
    fake_cuda::reset(machine);
    expect_error(ExitCode::kNoDevice, text, [&] { make_cuda_device(config, 0); });
  }
};

}  // namespace barestep
