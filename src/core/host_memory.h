// How much memory the host has, and how much of it is free.
#pragma once

#include <cstdint>

namespace barestep {

struct HostMemory {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

/// What this process may still allocate: MemAvailable of /proc/meminfo, or what the cgroup leaves
/// if that is less. Both are 0 where neither can be read.
HostMemory host_memory();

}  // namespace barestep
