#include "core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace barestep {
namespace {

/// "MemTotal:       24011244 kB" -> bytes.
std::int64_t meminfo_bytes(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::int64_t kib = 0;
    if (name == field && file >> kib) return kib * 1024;
    file.ignore(256, '\n');
  }
  return 0;
}

/// The number a cgroup file holds; nothing where there is no such file or it says "max".
std::optional<std::int64_t> number_in_file(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

HostMemory host_memory() {
  HostMemory memory{meminfo_bytes("MemTotal:"), meminfo_bytes("MemAvailable:")};
  const auto limit = number_in_file("/sys/fs/cgroup/memory.max");
  const auto used = number_in_file("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    memory.total_bytes = std::min(memory.total_bytes, *limit);
    memory.free_bytes = std::min(memory.free_bytes, std::max<std::int64_t>(0, *limit - *used));
  }
  return memory;
}

}  // namespace barestep
