
#include "parallel/comm/nccl_transport.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// What is mapped into this process's memory.
constexpr const char* kMappedFiles = "/proc/self/maps";

TEST(Nccl, IsLoadedWhenItIsFirstCalled) {
  EXPECT_THAT(read_file(kMappedFiles), Not(HasSubstr("libnccl")));
  ASSERT_EQ(why_no_nccl(), "");
  EXPECT_THAT(read_file(kMappedFiles), HasSubstr("libnccl"));
  EXPECT_GE(nccl_version_code(), 21800) << "the oldest that the build takes";
}

}  // namespace
}  // namespace barestep
