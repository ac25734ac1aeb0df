#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "parallel/comm/nccl_transport.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The files that are mapped into this process's memory.
std::string mapped_files() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

TEST(Nccl, IsLoadedWhenItIsFirstCalled) {
  EXPECT_THAT(mapped_files(), Not(HasSubstr("libnccl")));
  ASSERT_EQ(why_no_nccl(), "");
  EXPECT_THAT(mapped_files(), HasSubstr("libnccl"));
  EXPECT_GE(nccl_version_code(), 21800) << "the oldest that the build takes";
}

}  // namespace
}  // namespace barestep
