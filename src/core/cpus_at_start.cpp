// The CPUs that the process was given, read before the constructors of libraries run. Compiled
// without sanitizers, which do not work yet at that time.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <limits>

#include "core/host.h"

namespace barestep {
namespace {

constexpr std::size_t kWordBits = std::numeric_limits<unsigned long>::digits;

std::array<unsigned long, CpuSet().size() / kWordBits> words;

void keep_cpus(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  ::syscall(SYS_sched_getaffinity, 0, sizeof words, words.data());
}

// The loader calls what is in this section of a program first of all.
[[gnu::section(".preinit_array"), gnu::used]] void (*keep_first)(int, char**, char**) = keep_cpus;

}  // namespace

CpuSet cpus_at_start() {
  CpuSet cpus;
  for (std::size_t cpu = 0; cpu < cpus.size(); ++cpu) {
    cpus[cpu] = (words[cpu / kWordBits] >> (cpu % kWordBits) & 1) != 0;
  }
  return cpus.none() ? allowed_cpus() : cpus;
}

}  // namespace barestep
