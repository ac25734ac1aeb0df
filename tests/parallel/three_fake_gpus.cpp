// A machine with three fake GPUs, for a whole test program.

#include "support/fake_cuda.h"
#include "support/testing.h"

namespace barestep {
namespace {

class ThreeGpus final : public testing::Environment {
 public:
  void SetUp() override { fake_cuda::reset({.devices = 3}); }
  void TearDown() override {
    EXPECT_EQ(fake_cuda::allocated_bytes(), 0);
    EXPECT_EQ(fake_cuda::objects(), 0);
  }
};

[[maybe_unused]] testing::Environment* const three_gpus =
    testing::AddGlobalTestEnvironment(new ThreeGpus);

}  // namespace
}  // namespace barestep
