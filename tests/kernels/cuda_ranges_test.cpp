// The ranges that tools see from a CUDA device, here on the fake runtime.
#include <dlfcn.h>

#include "kernels/on_fake.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Must run before NVTX searches for a tool, which it does once.
[[maybe_unused]] const int kAttached = ::setenv("NVTX_INJECTION64_PATH", FAKE_NVTX, 1);

class CudaRanges : public OnFake {};

TEST_F(CudaRanges, AreNamedAsRecordsAre) {
  const DeviceMemory memory(*device, 256);
  const Addresses addresses(std::vector{memory.get()});
  const Tensor out{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 4};
  const Tensor copy{.buffer = 0, .offset_bytes = 64, .rows = 1, .cols = 4};
  const DeviceOp fill = Fill{.out = out};
  const DeviceOp copied = Copy{.to = copy, .from = out};

  device->run(fill, addresses, *stream, {});
  void* const tool = ::dlopen(FAKE_NVTX, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(tool, nullptr) << "NVTX did not load the tool";
  auto& ranges =
      *reinterpret_cast<std::vector<std::string>* (*)()>(::dlsym(tool, "fake_nvtx_ranges"))();
  device->run(copied, addresses, *stream, {});
  EXPECT_THAT(ranges, ElementsAre("fill", "end", "copy", "end"));

  ranges.clear();
  device->begin_capture(*stream);
  device->run(fill, addresses, *stream, {});
  const auto graph = device->end_capture(*stream);
  device->launch(*graph, *stream, 1);
  EXPECT_THAT(ranges, ElementsAre("fill", "end", "launch graph", "end"));
  stream->synchronize();
}

}  // namespace
}  // namespace barestep
