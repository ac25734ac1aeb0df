// The host: which CPUs a process may use, what others take of them, and how much memory is free.
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace barestep {

/// Where this user keeps what another run may use again and none needs: $XDG_CACHE_HOME/barestep or
/// $HOME/.cache/barestep, which need not exist; nothing where neither is an absolute path.
std::optional<std::filesystem::path> cache_folder();

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

/// Whether the CPU adds up products of bytes exactly in one instruction (AVX-512 VNNI), as
/// proc/cpuinfo in `root` says.
bool has_vnni(const std::filesystem::path& root = "/");

/// The bytes of the CPU's largest cache, as sys/devices/system/cpu/cpu0/cache in `root` says; 0
/// where it does not. (sysconf() says what a whole package has, of which a virtual machine may be
/// given a part.)
std::int64_t cache_bytes(const std::filesystem::path& root = "/");

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

/// What the threads of this process lost to others.
struct LostTime {
  double wall_s = 0;
  double waited_share = 0;  // of the time that a thread was ready to run: others had its core
  double stolen_s = 0;      // by the host of a virtual machine, of all cores
  double busy_threads = 0;  // that ran at least half as long as the one that ran longest
};

/// Watches the threads of this process since its construction (/proc/self/task/*/schedstat and
/// /proc/stat, proc(5)). Threads of a process wait for each other too, so a wait counts up to what
/// other programs ran meanwhile. Threads that began or ended meanwhile are not counted.
class LostTimeWatch {
 public:
  LostTimeWatch();

  /// Of the busy thread that waited for cores longest. All 0 where the system does not tell.
  [[nodiscard]] LostTime lost() const;

 private:
  struct RunTimes {
    double ran_s = 0;
    double waited_s = 0;
  };
  static std::map<int, RunTimes> times_of_threads();

  std::chrono::steady_clock::time_point begin_;
  std::map<int, RunTimes> threads_;  // by their ids
  double ran_s_ = 0;                 // by all programs, on all cores
  double stolen_s_ = 0;
};

struct HostMemory {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

/// As gethostname(2) returns it.
std::string host_name();

/// What this process may still allocate: MemAvailable of /proc/meminfo, or what the cgroup leaves
/// if that is less. Both are 0 where neither can be read.
HostMemory host_memory();

}  // namespace barestep
