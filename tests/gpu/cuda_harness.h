// Opens the first GPU for a test; shared by tests/gpu.
#pragma once

#include "core/device.h"
#include "core/error.h"
#include "kernels/make_device.h"
#include "kernels/op_cases.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {

/// Memory of a device; freed at the end.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, std::int64_t bytes, MemoryKind kind = MemoryKind::kDevice)
      : device_(device), kind_(kind), memory_(device.allocate(bytes, kind)) {}
  ~DeviceMemory() { device_.release(memory_, kind_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* get() const { return memory_; }

 private:
  Device& device_;
  MemoryKind kind_;
  std::byte* memory_;
};

/// An open GPU with a compute stream. Tests derived from it are skipped if there is no GPU.
class OnGpu : public TempDirTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    open({.device = "cuda"});
  }

  void open(const DeviceConfig& config) {
    stream.reset();
    workspace.reset();
    device.reset();
    device = make_cuda_device(config, 0);
    workspace = std::make_unique<DeviceMemory>(*device, workspace_bytes(DeviceKind::kCuda));
    stream = device->new_stream("compute");
    stream->set_workspace(
        {workspace->get(), static_cast<std::size_t>(workspace_bytes(DeviceKind::kCuda))});
  }

  /// The bytes of `memory` after the op ran on them.
  std::vector<std::byte> run(const DeviceOp& op, Memory& memory) {
    const auto bytes = static_cast<std::int64_t>(memory.bytes().size());
    const DeviceMemory on_device(*device, bytes);
    const Addresses addresses({std::vector{on_device.get()}});
    std::vector<std::byte> result(memory.bytes().size());
    device->copy(on_device.get(), memory.bytes().data(), bytes, *stream);
    device->prepare(op);
    device->run(op, addresses, *stream, {});
    device->copy(result.data(), on_device.get(), bytes, *stream);
    stream->synchronize();
    return result;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceMemory> workspace;
  std::unique_ptr<Stream> stream;
};

}  // namespace barestep
