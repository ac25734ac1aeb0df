#include "core/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace barestep {
namespace {

TEST(HostMemory, IsNoMoreThanTheMachineHas) {
  const HostMemory memory = host_memory();
  const std::int64_t machine =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGE_SIZE)};
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_LE(memory.total_bytes, machine + (std::int64_t{1} << 30));
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace barestep
