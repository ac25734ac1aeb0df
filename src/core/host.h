// The host: which CPUs a process may use, how much other programs use them, how much memory is
// free, and how many files may be open.
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
#include <vector>

namespace barestep {

/// This user's folder for data that later runs can reuse but none needs: $XDG_CACHE_HOME/barestep
/// or $HOME/.cache/barestep. The folder need not exist. Nothing if neither is an absolute path.
std::optional<std::filesystem::path> cache_folder();

/// A set of CPU numbers; the size is the largest that Linux can be built for.
using CpuSet = std::bitset<8192>;

/// The CPUs that the calling thread may run on, as set by taskset, mpirun --bind-to or cpusets; CPU
/// 0 if the kernel does not report them.
CpuSet allowed_cpus();

/// The CPUs that this process was given when it was started. Those that it may use now are fewer if
/// a library bound the first thread before main(), as libgomp does if OMP_PROC_BIND is set.
CpuSet cpus_at_start();

/// From now on the calling thread, and the threads that it starts, run on these CPUs only. Returns
/// false, and changes nothing, if the system refuses.
bool bind_this_thread(const CpuSet& cpus);

/// From now on the calling thread asks for time slices of a tenth of a millisecond: once it has
/// work, it interrupts a thread that computes on its core, rather than wait for the end of that
/// one's slice of milliseconds. For threads that work briefly. Linux does so from 6.12 on; older
/// ones and sandboxes ignore it.
void ask_for_short_slices();

/// "0-3,8"
std::string text_of(const CpuSet& cpus);

/// How the frequency of the CPUs is set, "performance" or another governor of Linux; nothing if the
/// system does not say, as virtual machines do not. Reads sys under `root`.
std::optional<std::string> frequency_governor(const std::filesystem::path& root = "/");

/// The CPU quota of this process's cgroup and its parents, in CPUs, possibly fractional, as set by
/// a container's --cpus; nothing without a quota. Reads proc/self/cgroup and sys/fs/cgroup under
/// `root`, for cgroups version 2 and 1.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many of the `allowed` CPUs a quota can keep busy; rounded up, at least 1.
int cpus_within(const CpuSet& allowed, std::optional<double> quota);

/// Whether the CPU sums products of bytes exactly in one instruction (AVX-512 VNNI), according to
/// proc/cpuinfo under `root`.
bool has_vnni(const std::filesystem::path& root = "/");

/// The bytes of the CPU's largest cache, according to sys/devices/system/cpu/cpu0/cache under
/// `root`; 0 if it does not say. (sysconf() reports the cache of a whole package, of which a
/// virtual machine may have a part.)
std::int64_t cache_bytes(const std::filesystem::path& root = "/");

/// How many CPUs this process may use; more threads than that do not help. At least 1.
int usable_cpus();

/// A variable of the environment and the threads that it asks for.
struct EnvironmentThreads {
  const char* variable;
  int threads;
};
/// What OMP_NUM_THREADS asks for, its first number, else SLURM_CPUS_PER_TASK if that is less than
/// the threads `available`; at most OMP_THREAD_LIMIT. Nothing if none of them says a number that
/// --threads takes, or if they change nothing.
std::optional<EnvironmentThreads> threads_of_environment(int available);

/// The share of CPUs for one of several processes on a host. `ranks` has the CPUs that each may run
/// on; `rank` is the index of this one. Each CPU is divided among the processes that may run on it,
/// and a quota among all. At least 1.
int share_of_cpus(std::span<const CpuSet> ranks, std::size_t rank, std::optional<double> quota);

/// Seconds that a cache line takes from the first to the last CPU of allowed_cpus(): on a Zen 5
/// about 40 ns where they share their L3 cache, 190 ns where they do not; 0 with a single one. A
/// hypervisor moves the CPUs of a virtual machine between the two, and the times of memory with it
/// (bench/core_distance.cpp). Blocks for some milliseconds.
double core_distance_s();

/// Whether two such distances are of one arrangement of the cores; true if one is unknown, 0.
bool same_core_distance(double distance_s, double other_s);

/// Measures the time that other programs, and the host of a virtual machine, have used on all cores
/// since construction (/proc/stat, proc(5)). The system counts in ticks of about 10 ms, so the
/// result is only a rough guess before a few tenths of a second have passed.
class CoreWatch {
 public:
  CoreWatch();

  /// The share of all cores' time since construction that was neither idle nor used by this program
  /// and its children; those used `own_s`. 0 if the system does not report it.
  [[nodiscard]] double others_share(double own_s) const;

 private:
  struct Times {
    double busy_s = 0;
    double all_s = 0;
  };
  static Times now();

  Times begin_;
};

/// How long the threads of a process waited for cores, and who ran meanwhile.
struct LostTime {
  double wall_s = 0;
  double waited_s = 0;      // the busy thread that lost most was ready to run but had no core
  double ready_s = 0;       // that thread ran or waited
  double own_ran_s = 0;     // this process ran, summed over its threads
  double all_ran_s = 0;     // all programs ran, summed over all cores
  double stolen_s = 0;      // taken by the host of a virtual machine, summed over all cores
  double busy_threads = 0;  // threads that ran at least half as long as the busiest one
};

/// The resolution of /proc/stat, which rounds the time of each state down (USER_HZ is 100 wherever
/// Linux runs).
constexpr double kTickS = 0.01;

/// The seconds in which the busy thread of a process waited for programs other than the processes
/// of its `job`, which run on one host. Threads of a job wait for each other too, so a wait counts
/// only up to the time that other programs ran meanwhile, less two ticks, since user and system
/// time are both rounded.
double waited_for_others_s(const LostTime& process, std::span<const LostTime> job);

/// Those seconds as a share of the time when the thread was ready to run; the largest of all
/// processes.
double waited_share(std::span<const LostTime> job);

/// The share of a run's wall time in which its busiest thread waited for a core while programs
/// other than its `ranks` ran (waited_for_others_s()), plus the share taken by the host of a
/// virtual machine. A step that mostly sleeps needs its core rarely, so a wait that takes much of
/// the thread's own time may take little of the step's. Ranks beyond the `cores` wait mostly for
/// each other, so with `beyond_cores` only the latter counts. Both run-queue delay and steal are
/// needed: neither detects every slow run.
double lost_share(std::span<const LostTime> ranks, int cores, bool beyond_cores);

/// A process of a job and what it lost.
struct JobProcess {
  LostTime lost{};
  CpuSet cpus{};           // that it may run on
  std::uint64_t host = 0;  // the same for all processes of a host
};
JobProcess process_of_job(const LostTime& lost);

/// The share of its wall time that each process of a job lost, as lost_share() counts it among the
/// processes of its host. Those that are more than their CPUs wait for each other; if these are all
/// CPUs of the host, other programs' share of them counts instead, else only what the host of a
/// virtual machine took. 0 where less than 50 ms were lost, which the system's clock does not tell
/// from nothing.
std::vector<double> lost_shares(std::span<const JobProcess> job);

/// The time of a thread since a watch began.
struct ThreadTimes {
  double ran_s = 0;
  double waited_s = 0;  // ready to run, but without a core
};

/// The fields waited_s, ready_s and busy_threads of a process, while other programs ran for
/// `others_s`: its busy thread that lost the largest share of its time to them. A wait counts only
/// up to `others_s`; if that makes threads equal, the one that waited most is taken.
LostTime lost_by(std::span<const ThreadTimes> threads, double others_s);

/// Watches the threads of this process from construction on (/proc/self/task/*/schedstat,
/// /proc/stat and the process's CPU clock, proc(5)). Threads that ended meanwhile count as having
/// run, but not as waiting.
class LostTimeWatch {
 public:
  LostTimeWatch();

  /// 0 for what the system does not report.
  [[nodiscard]] LostTime lost() const;

 private:
  static std::map<int, ThreadTimes> times_of_threads();

  std::chrono::steady_clock::time_point begin_;
  std::map<int, ThreadTimes> threads_;  // by thread id
  double own_ran_s_ = 0;                // this process, all its threads
  double ran_s_ = 0;                    // all programs, all cores
  double stolen_s_ = 0;
};

struct HostMemory {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

/// As gethostname(2) returns it.
std::string host_name();

/// The memory this process may still allocate: MemAvailable of proc/meminfo under `root`, or what
/// the limits of its cgroups, version 1 or 2, and of their parents leave, if that is less. Pages of
/// files that the kernel can give up do not count as used. What cannot be read does not limit:
/// without meminfo, all of the machine's memory is taken to be free.
HostMemory host_memory(const std::filesystem::path& root = "/");

/// How many files a process may have open.
struct OpenFiles {
  std::uint64_t at_start = 0;
  std::uint64_t now = 0;
};

/// Raises this process's limit of open files to the hard limit, which programs that it starts
/// inherit. Both 0 if the system does not report the limit.
OpenFiles raise_open_files();

}  // namespace barestep
