// A fake GPU whose streams run the fake NCCL's work, for a whole test program.

#include "support/cuda_fake_state.h"
#include "support/fake_nccl.h"
#include "support/testing.h"

namespace barestep {
namespace {

class GpuWithNccl final : public testing::Environment {
 public:
  void SetUp() override {
    fake_cuda::reset();
    fake_nccl::reset();
    fake_nccl::set_queue([](void* stream, std::function<void()> work) {
      EXPECT_EQ(fake_cuda::submit(static_cast<cudaStream_t>(stream), {.run = std::move(work)}),
                cudaSuccess);
    });
  }
  void TearDown() override {
    EXPECT_TRUE(fake_nccl::complaints().empty());
    EXPECT_EQ(fake_cuda::allocated_bytes(), 0);
    EXPECT_EQ(fake_cuda::objects(), 0);
  }
};

[[maybe_unused]] testing::Environment* const gpu_with_nccl =
    testing::AddGlobalTestEnvironment(new GpuWithNccl);

}  // namespace
}  // namespace barestep
