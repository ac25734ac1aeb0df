// The host: which CPUs a process may use, what others take of them, and how much memory is free.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace barestep {

/// CPUs by their number; as many as Linux can be built for.
using CpuSet = std::bitset<8192>;

/// The CPUs that the calling thread may run on, as taskset, mpirun --bind-to and cpusets leave
/// them; CPU 0 where the kernel does not tell.
CpuSet allowed_cpus();

/// How many CPUs' time the quotas of this process's cgroup and its parents leave, as a container's
/// --cpus does; nothing without a quota. Reads proc/self/cgroup and sys/fs/cgroup in `root`, of
/// cgroups version 2 and 1.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many of the `allowed` CPUs a quota keeps busy; rounded up, at least 1.
int cpus_within(const CpuSet& allowed, std::optional<double> quota);

/// How many CPUs this process may use: threads for all of them make sense, more do not. At least 1.
int usable_cpus();

/// The part of one of several processes of a host: `ranks` has what each may run on, `rank` is the
/// place of the one. CPUs are divided among the processes that may run on them, a quota among all.
/// At least 1.
int share_of_cpus(std::span<const CpuSet> ranks, std::size_t rank, std::optional<double> quota);

/// Counts the time that other programs, and the hosts of a virtual machine, spend on all cores
/// since its construction (/proc/stat, proc(5)). The system counts in ticks of about 10 ms: what is
/// watched for less than some tenths of a second is a rough guess.
class CoreWatch {
 public:
  CoreWatch();

  /// Share of all cores' time since the construction that was spent neither idle nor, as `own_s`
  /// says, on this program and its children. 0 where the system does not tell.
  [[nodiscard]] double others_share(double own_s) const;

 private:
  struct Times {
    double busy_s = 0;
    double all_s = 0;
  };
  static Times now();

  Times begin_;
};

struct HostMemory {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

/// As gethostname(2) tells it.
std::string host_name();

/// What this process may still allocate: MemAvailable of /proc/meminfo, or what the cgroup leaves
/// if that is less. Both are 0 where neither can be read.
HostMemory host_memory();

}  // namespace barestep
