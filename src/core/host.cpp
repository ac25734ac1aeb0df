#include "core/host.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/config.h"

namespace barestep {
namespace {

/// The smaller of those that exist.
std::optional<double> tighter(std::optional<double> one, std::optional<double> other) {
  if (!one || !other) return one ? one : other;
  return std::min(*one, *other);
}

/// CPUs from "200000 100000", quota and period in microseconds; nothing for "max 100000".
std::optional<double> quota_in(std::istream& text) {
  double quota = 0;
  double period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// The quota in a group's own files: cpu.max in version 2, two files in version 1.
std::optional<double> quota_of_group(const std::filesystem::path& folder) {
  std::ifstream both(folder / "cpu.max");
  if (both) return quota_in(both);
  std::ifstream quota(folder / "cpu.cfs_quota_us");
  std::ifstream period(folder / "cpu.cfs_period_us");
  std::stringstream text;
  if (quota && period) text << quota.rdbuf() << ' ' << period.rdbuf();
  return quota_in(text);
}

/// Appends the mounted folder, and those of the group `name` and its parents below it. The mounted
/// folder may itself be a group: in a container, `name` is the group's name on the host.
void add_groups(const std::filesystem::path& mounted, const std::string& name,
                std::vector<std::filesystem::path>& folders) {
  std::filesystem::path folder = mounted;
  folders.push_back(folder);
  for (const auto& part : std::filesystem::path(name).lexically_normal().relative_path()) {
    if (part.empty() || part == "..") continue;
    folder /= part;
    folders.push_back(folder);
  }
}

/// The folders of this process's groups and all their parents that may have files of a controller,
/// such as "cpu". Not all of them need exist.
std::vector<std::filesystem::path> groups_in(const std::filesystem::path& root,
                                             const std::string& controller) {
  const std::filesystem::path mounted = root / "sys/fs/cgroup";
  std::vector<std::filesystem::path> folders;
  add_groups(mounted, "", folders);
  std::ifstream file(root / "proc/self/cgroup");
  // "0::/user.slice" in version 2, "4:cpu,cpuacct:/docker/7f" in version 1.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string name = line.substr(second + 1);
    if (controllers.empty()) {
      add_groups(mounted, name, folders);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      add_groups(mounted / controllers, name, folders);
      add_groups(mounted / controller, name, folders);
    }
  }
  return folders;
}

/// sched_setattr(2)'s, which glibc has from 2.41 on.
struct SchedAttributes {
  std::uint32_t size = sizeof(SchedAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

}  // namespace

std::optional<std::filesystem::path> cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::filesystem::path(cache) / "barestep";
  if (home != nullptr && *home == '/') return std::filesystem::path(home) / ".cache" / "barestep";
  return std::nullopt;
}

static_assert(8 * sizeof(CpuSet) == CpuSet().size(), "words of bits, as the kernel has them");

CpuSet allowed_cpus() {
  CpuSet cpus;
  ::sched_getaffinity(0, sizeof cpus, reinterpret_cast<cpu_set_t*>(&cpus));
  if (cpus.none()) cpus.set(0);
  return cpus;
}

bool bind_this_thread(const CpuSet& cpus) {
  return ::sched_setaffinity(0, sizeof cpus, reinterpret_cast<const cpu_set_t*>(&cpus)) == 0;
}

void ask_for_short_slices() {
  constexpr std::uint64_t kSliceNs = 100'000;  // the shortest one that Linux grants
  SchedAttributes attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kSliceNs;
  std::ignore = ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

std::string text_of(const CpuSet& cpus) {
  std::string text;
  for (std::size_t first = cpus._Find_first(); first < cpus.size();) {
    std::size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1]) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
    first = cpus._Find_next(last);
  }
  return text;
}

std::optional<std::string> frequency_governor(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  std::string governor;
  if (!(file >> governor)) return std::nullopt;
  return governor;
}

std::optional<double> cpu_quota(const std::filesystem::path& root) {
  std::optional<double> quota;
  for (const auto& folder : groups_in(root, "cpu")) quota = tighter(quota, quota_of_group(folder));
  return quota;
}

int cpus_within(const CpuSet& allowed, std::optional<double> quota) {
  const auto cpus = static_cast<double>(allowed.count());
  return std::max(1, static_cast<int>(quota ? std::min(cpus, std::ceil(*quota)) : cpus));
}

bool has_vnni(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(line);
    const std::istream_iterator<std::string> first(flags), last;
    return std::find(first, last, "avx512_vnni") != last;
  }
  return false;
}

std::int64_t cache_bytes(const std::filesystem::path& root) {
  std::int64_t max = 0;
  // Level 1 has two, of instructions and of data; no CPU has more than four levels.
  for (int index = 0; index < 6; ++index) {
    std::ifstream file(root / fmt::format("sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::int64_t size = 0;
    char unit = ' ';
    if (!(file >> size) || size < 0 || size > std::int64_t{1} << 30) continue;
    file >> unit;
    const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
    max = std::max(max, size << shift);
  }
  return max;
}

int usable_cpus() {
  return cpus_within(allowed_cpus(), cpu_quota());
}

std::optional<EnvironmentThreads> threads_of_environment(int available) {
  const auto number_in = [](const char* name) -> std::optional<EnvironmentThreads> {
    const char* const value = std::getenv(name);
    const std::string_view text = value == nullptr ? "" : value;
    const std::string_view first = text.substr(0, text.find(','));  // of nested levels
    int threads = 0;
    const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), threads);
    const bool is_number = error == std::errc() && end == first.data() + first.size();
    if (!is_number || !limits::kThreads.contains(threads)) return std::nullopt;
    return EnvironmentThreads{name, threads};
  };
  std::optional<EnvironmentThreads> found = number_in("OMP_NUM_THREADS");
  const auto limit_by = [&](const char* name) {
    const auto limit = number_in(name);
    if (limit && limit->threads < (found ? found->threads : available)) found = limit;
  };
  if (!found) limit_by("SLURM_CPUS_PER_TASK");
  limit_by("OMP_THREAD_LIMIT");
  return found;
}

int share_of_cpus(std::span<const CpuSet> ranks, std::size_t rank, std::optional<double> quota) {
  const CpuSet& mine = ranks[rank];
  const auto sharers =
      std::ranges::count_if(ranks, [&](const CpuSet& other) { return (other & mine).any(); });
  const auto among = [](int cpus, std::size_t count) {
    return std::max(1, cpus / static_cast<int>(count));
  };
  const int by_set = among(cpus_within(mine, std::nullopt), static_cast<std::size_t>(sharers));
  const int by_quota = among(cpus_within(~CpuSet(), quota), ranks.size());
  return std::min(by_set, by_quota);
}

namespace {

/// Seconds of all cores by state: user, nice, system, idle, iowait, irq, softirq, steal (proc(5));
/// guests' time is already in user. All 0 if the system does not report them.
std::array<double, 8> core_times() {
  std::ifstream stat("/proc/stat");
  std::string name;
  std::array<double, 8> times{};
  stat >> name;
  for (double& each : times) stat >> each;
  if (!stat || name != "cpu") return {};
  for (double& each : times) each /= static_cast<double>(::sysconf(_SC_CLK_TCK));
  return times;
}

/// All threads of this process, those that have ended too.
double process_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double cpu_s_of_programs(const std::array<double, 8>& times) {
  return times[0] + times[1] + times[2] + times[5] + times[6];
}

}  // namespace

CoreWatch::CoreWatch() : begin_(now()) {}

CoreWatch::Times CoreWatch::now() {
  const std::array<double, 8> times = core_times();
  const double all = std::accumulate(times.begin(), times.end(), 0.0);
  return {all - times[3] - times[4], all};
}

double CoreWatch::others_share(double own_s) const {
  const Times end = now();
  const double all_s = end.all_s - begin_.all_s;
  if (all_s <= 0) return 0;
  return std::clamp((end.busy_s - begin_.busy_s - own_s) / all_s, 0.0, 1.0);
}

namespace {

/// How long other programs ran; see waited_for_others_s().
double others_ran_s(double all_ran_s, double own_ran_s) {
  return std::max(0.0, all_ran_s - own_ran_s - 2 * kTickS);
}

}  // namespace

double waited_for_others_s(const LostTime& process, std::span<const LostTime> job) {
  double job_s = 0;
  for (const LostTime& each : job) job_s += each.own_ran_s;
  return std::min(process.waited_s, others_ran_s(process.all_ran_s, job_s));
}

double waited_share(std::span<const LostTime> job) {
  double share = 0;
  for (const LostTime& each : job) {
    if (each.ready_s > 0) share = std::max(share, waited_for_others_s(each, job) / each.ready_s);
  }
  return share;
}

namespace {

/// Steal is counted over all cores, busy or idle; the job keeps `used` of them busy.
double stolen_share(const LostTime& process, double used) {
  if (process.wall_s <= 0) return 0;
  return std::max(0.0, process.stolen_s - kTickS) / process.wall_s / used;
}

double cores_used(std::span<const LostTime> job, int cores) {
  double threads = 0;
  for (const LostTime& each : job) threads += each.busy_threads;
  return std::clamp(threads, 1.0, static_cast<double>(std::max(cores, 1)));
}

double waited_of_wall(const LostTime& process, std::span<const LostTime> job) {
  return process.wall_s <= 0 ? 0 : waited_for_others_s(process, job) / process.wall_s;
}

}  // namespace

double lost_share(std::span<const LostTime> ranks, int cores, bool beyond_cores) {
  const double used = cores_used(ranks, cores);
  double waited = 0, stolen = 0;
  for (const LostTime& rank : ranks) {
    if (!beyond_cores) waited = std::max(waited, waited_of_wall(rank, ranks));
    stolen = std::max(stolen, stolen_share(rank, used));
  }
  return std::min(1.0, waited + stolen);
}

JobProcess process_of_job(const LostTime& lost) {
  return {.lost = lost, .cpus = allowed_cpus(), .host = std::hash<std::string>{}(host_name())};
}

std::vector<double> lost_shares(std::span<const JobProcess> job) {
  constexpr double kLeastS = 0.05;
  std::vector<double> shares;
  for (const JobProcess& process : job) {
    std::vector<LostTime> neighbors;
    CpuSet cpus;
    double job_s = 0;
    for (const JobProcess& other : job) {
      if (other.host != process.host) continue;
      neighbors.push_back(other.lost);
      cpus |= other.cpus;
      job_s += other.lost.own_ran_s;
    }
    const LostTime& lost = process.lost;
    const auto cores = static_cast<int>(cpus.count());
    double waited = waited_of_wall(lost, neighbors);
    if (std::ssize(neighbors) > cores) {
      const bool has_all = cores >= ::sysconf(_SC_NPROCESSORS_ONLN);
      waited = has_all ? others_ran_s(lost.all_ran_s, job_s) / (lost.wall_s * cores) : 0;
    }
    const double share = std::min(1.0, waited + stolen_share(lost, cores_used(neighbors, cores)));
    shares.push_back(share * lost.wall_s < kLeastS ? 0 : share);
  }
  return shares;
}

LostTime lost_by(std::span<const ThreadTimes> threads, double others_s) {
  double max_s = 0;
  for (const ThreadTimes& thread : threads) max_s = std::max(max_s, thread.ran_s);
  LostTime lost{};
  std::pair<double, double> largest{-1, -1};
  for (const ThreadTimes& thread : threads) {
    if (thread.ran_s <= 0 || thread.ran_s < max_s / 2) continue;
    lost.busy_threads += 1;
    const double ready_s = thread.ran_s + thread.waited_s;
    const std::pair shares{std::min(thread.waited_s, others_s) / ready_s,
                           thread.waited_s / ready_s};
    if (shares <= largest) continue;
    largest = shares;
    lost.waited_s = thread.waited_s;
    lost.ready_s = ready_s;
  }
  return lost;
}

LostTimeWatch::LostTimeWatch()
    : begin_(std::chrono::steady_clock::now()),
      threads_(times_of_threads()),
      own_ran_s_(process_cpu_s()) {
  const std::array<double, 8> times = core_times();
  ran_s_ = cpu_s_of_programs(times);
  stolen_s_ = times[7];
}

std::map<int, ThreadTimes> LostTimeWatch::times_of_threads() {
  std::map<int, ThreadTimes> threads;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "schedstat");
    double ran_ns = 0, waited_ns = 0;
    if (file >> ran_ns >> waited_ns) {
      threads[std::stoi(thread.path().filename())] = {1e-9 * ran_ns, 1e-9 * waited_ns};
    }
  }
  return threads;
}

LostTime LostTimeWatch::lost() const {
  const std::array<double, 8> times = core_times();
  const double own_ran_s = process_cpu_s() - own_ran_s_;
  const double all_ran_s = std::max(0.0, cpu_s_of_programs(times) - ran_s_);
  std::vector<ThreadTimes> since;
  for (const auto& [id, now] : times_of_threads()) {
    const auto at_begin = threads_.find(id);
    const ThreadTimes before = at_begin == threads_.end() ? ThreadTimes{} : at_begin->second;
    since.push_back({now.ran_s - before.ran_s, now.waited_s - before.waited_s});
  }
  LostTime lost = lost_by(since, others_ran_s(all_ran_s, own_ran_s));
  lost.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  lost.own_ran_s = own_ran_s;
  lost.all_ran_s = all_ran_s;
  lost.stolen_s = std::max(0.0, times[7] - stolen_s_);
  return lost;
}

namespace {

/// "MemTotal:       24011244 kB" -> bytes; nothing if there is no such line.
std::optional<std::int64_t> meminfo_bytes(const std::filesystem::path& root,
                                          const std::string& field) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string name; file >> name;) {
    std::int64_t kib = 0;
    if (name == field && file >> kib) return kib * 1024;
    file.ignore(256, '\n');
  }
  return std::nullopt;
}

/// As the kernel says without files.
std::int64_t bytes_of_machine() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(info.totalram) * static_cast<std::int64_t>(info.mem_unit);
}

/// The number in a cgroup file; nothing if the file does not exist or contains "max".
std::optional<std::int64_t> number_in_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

/// The bytes of a group and those below it that the kernel gives up before a limit holds: file
/// pages that no tmpfs needs, and caches of its own. `prefix` is what version 1 writes before
/// numbers that include the groups below.
std::int64_t reclaimable_bytes(const std::filesystem::path& stat, const std::string& prefix) {
  std::int64_t sum = 0;
  std::ifstream file(stat);
  std::int64_t bytes = 0;
  for (std::string name; file >> name >> bytes;) {
    for (const char* const each : {"active_file", "inactive_file", "slab_reclaimable"}) {
      if (name == prefix + each) sum += std::max<std::int64_t>(0, bytes);
    }
  }
  return sum;
}

/// What a group's limit leaves, in version 2 or 1; nothing without a limit.
std::optional<HostMemory> memory_of_group(const std::filesystem::path& folder) {
  struct Names {
    const char *limit, *used, *prefix;
  };
  for (const Names& names : {Names{"memory.max", "memory.current", ""},
                             Names{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}}) {
    const auto limit = number_in_file(folder / names.limit);
    const auto used = number_in_file(folder / names.used);
    if (!limit || !used) continue;
    const std::int64_t held =
        std::max<std::int64_t>(0, *used - reclaimable_bytes(folder / "memory.stat", names.prefix));
    return HostMemory{*limit, std::max<std::int64_t>(0, *limit - held)};
  }
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

HostMemory host_memory(const std::filesystem::path& root) {
  HostMemory memory;
  memory.total_bytes = meminfo_bytes(root, "MemTotal:").value_or(bytes_of_machine());
  memory.free_bytes = meminfo_bytes(root, "MemAvailable:").value_or(memory.total_bytes);
  for (const auto& folder : groups_in(root, "memory")) {
    const auto group = memory_of_group(folder);
    if (!group) continue;
    memory.total_bytes = std::min(memory.total_bytes, group->total_bytes);
    memory.free_bytes = std::min(memory.free_bytes, group->free_bytes);
  }
  return memory;
}

OpenFiles raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  static const rlim_t at_start = limit.rlim_cur;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  const bool is_raised = ::setrlimit(RLIMIT_NOFILE, &raised) == 0;
  return {.at_start = at_start, .now = is_raised ? limit.rlim_max : limit.rlim_cur};
}

double core_distance_s() {
  constexpr int kBatches = 20, kRounds = 1000;
  const CpuSet allowed = allowed_cpus();
  if (allowed.count() < 2) return 0;
  std::size_t first = 0, last = allowed.size() - 1;
  while (!allowed[first]) ++first;
  while (!allowed[last]) --last;
  std::atomic<int> ball = 0;
  // The fastest batch was interrupted by nobody.
  double fastest_s = std::numeric_limits<double>::infinity();
  const auto play = [&](std::size_t cpu, int player) {
    bind_this_thread(CpuSet().set(cpu));
    for (int batch = 0; batch < kBatches; ++batch) {
      const double begin_s = now_s();
      for (int i = 0; i < kRounds; ++i) {
        while (ball.load(std::memory_order_acquire) % 2 != player) {
        }
        ball.fetch_add(1, std::memory_order_release);
      }
      if (player == 0) fastest_s = std::min(fastest_s, (now_s() - begin_s) / (2 * kRounds));
    }
  };
  std::thread other([&] { play(last, 1); });
  std::thread([&] { play(first, 0); }).join();
  other.join();
  return fastest_s;
}

bool same_core_distance(double distance_s, double other_s) {
  constexpr double kApart = 2;
  return distance_s == 0 || other_s == 0 ||
         std::max(distance_s, other_s) < kApart * std::min(distance_s, other_s);
}

}  // namespace barestep
