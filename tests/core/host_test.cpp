#include "core/host.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <utility>

#include "support/busy_machine.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

CpuSet cpus(std::initializer_list<std::size_t> numbers) {
  CpuSet set;
  for (const std::size_t number : numbers) set.set(number);
  return set;
}

/// An artificial root folder with the files of cgroups.
class CpuQuota : public TempDirTest {
 protected:
  void add(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder() / path).parent_path());
    file(path, text);
  }
  [[nodiscard]] std::optional<double> quota() const { return cpu_quota(folder()); }
};

class Vnni : public CpuQuota {};

TEST_F(Vnni, IsThereWhereTheCpuSaysSo) {
  EXPECT_FALSE(has_vnni(folder()));
  const auto says = [&](const std::string& flags) {
    add("proc/cpuinfo", "model name\t: One\nflags\t\t: " + flags + "\n");
    return has_vnni(folder());
  };
  EXPECT_TRUE(says("fpu avx512_vnni avx512_bitalg"));
  EXPECT_FALSE(says("fpu avx2 avx_vnni avx512f"));
  EXPECT_FALSE(says(""));
}

class Caches : public CpuQuota {};

TEST_F(Caches, AreAsLargeAsTheLargestOfThem) {
  EXPECT_EQ(cache_bytes(folder()), 0);
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/";
  add(cache + "index0/size", "48K\n");
  EXPECT_EQ(cache_bytes(folder()), 48 << 10);
  add(cache + "index3/size", "32768K\n");
  add(cache + "index1/size", "what\n");
  EXPECT_EQ(cache_bytes(folder()), 32 << 20);
  add(cache + "index2/size", "2M\n");
  EXPECT_EQ(cache_bytes(folder()), 32 << 20);
}

TEST_F(CpuQuota, IsNoneWithoutGroupsAndWithoutALimit) {
  EXPECT_EQ(quota(), std::nullopt);
  add("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(quota(), std::nullopt);
  add("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, IsTheTightestOfTheGroupAndItsParents) {
  add("proc/self/cgroup", "0::/slice/job/step\n");
  add("sys/fs/cgroup/slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 4.0);
  add("sys/fs/cgroup/slice/job/step/cpu.max", "600000 100000\n");
  EXPECT_EQ(quota(), 4.0);
  add("sys/fs/cgroup/slice/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CpuQuota, OfAContainerIsThatOfTheMountedGroup) {
  add("sys/fs/cgroup/cpu.max", "250000 100000\n");
  for (const char* const name : {"0::/\n", "0::/system.slice/docker-7f.scope\n", "0::/../7f\n"}) {
    add("proc/self/cgroup", name);
    EXPECT_EQ(quota(), 2.5) << name;
  }
}

TEST_F(CpuQuota, IsReadFromVersionOneToo) {
  add("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/7f\n1:cpuset:/\n0::/\n");
  add("sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_quota_us", "-1\n");
  add("sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  add("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "50000\n");
  add("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "25000\n");
  EXPECT_EQ(quota(), 2.0);
  add("sys/fs/cgroup/cpu/docker/7f/cpu.cfs_quota_us", "50000\n");
  add("sys/fs/cgroup/cpu/docker/7f/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuota, ThatCannotBeReadIsNone) {
  add("proc/self/cgroup", "nonsense\n7\n0::/job\n");
  for (const char* const text : {"", "x y", "100000", "100000 0", "-5 100000", "nan 1"}) {
    add("sys/fs/cgroup/job/cpu.max", text);
    EXPECT_EQ(quota(), std::nullopt) << text;
  }
}

TEST(HostCpus, AreThoseOfTheMaskThatTheQuotaKeepsBusy) {
  const CpuSet four = cpus({0, 2, 5, 8000});
  EXPECT_EQ(cpus_within(four, std::nullopt), 4);
  EXPECT_EQ(cpus_within(four, 1e18), 4);
  EXPECT_EQ(cpus_within(four, 2.1), 3) << "rounded up";
  EXPECT_EQ(cpus_within(four, 0.2), 1);
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), static_cast<int>(allowed_cpus().count()));
}

TEST(HostCpus, AreNotDividedWhereEachRankHasItsOwn) {
  const CpuSet sets[] = {cpus({0, 1}), cpus({2, 3, 4}), cpus({5})};
  EXPECT_EQ(share_of_cpus(sets, 0, std::nullopt), 2);
  EXPECT_EQ(share_of_cpus(sets, 1, std::nullopt), 3);
  EXPECT_EQ(share_of_cpus(sets, 2, std::nullopt), 1);
}

TEST(HostCpus, AreDividedAmongTheRanksThatShareThem) {
  const CpuSet one_socket = cpus({0, 1, 2, 3, 4, 5, 6, 7});
  const CpuSet other = cpus({8, 9, 10, 11});
  const CpuSet sets[] = {one_socket, one_socket, one_socket, other};
  EXPECT_EQ(share_of_cpus(sets, 0, std::nullopt), 2);
  EXPECT_EQ(share_of_cpus(sets, 3, std::nullopt), 4);
  EXPECT_EQ(share_of_cpus(sets, 3, 8.0), 2) << "the quota is of all ranks";
  EXPECT_EQ(share_of_cpus(sets, 3, 0.5), 1);
  const CpuSet crowded[] = {cpus({0}), cpus({0}), cpus({0})};
  EXPECT_EQ(share_of_cpus(crowded, 1, std::nullopt), 1);
}

TEST(HostCpus, AreWrittenAsRanges) {
  EXPECT_EQ(text_of(CpuSet(0)), "");
  EXPECT_EQ(text_of(CpuSet(0b1)), "0");
  EXPECT_EQ(text_of(CpuSet(0b1'0000'1111)), "0-3,8");
  CpuSet last;
  EXPECT_EQ(text_of(last.set(8190).set(8191)), "8190-8191");
}

TEST(HostCpus, AreThoseThatAThreadIsBoundTo) {
  EXPECT_EQ(cpus_at_start(), allowed_cpus());
  const CpuSet all = allowed_cpus();
  CpuSet one;
  one.set(all._Find_first());
  std::thread([&] {
    EXPECT_TRUE(bind_this_thread(one));
    EXPECT_EQ(allowed_cpus(), one);
    EXPECT_EQ(cpus_at_start(), all);
    std::thread([&] { EXPECT_EQ(allowed_cpus(), one) << "inherited"; }).join();
    EXPECT_FALSE(bind_this_thread(CpuSet()));
    EXPECT_EQ(allowed_cpus(), one);
  }).join();
  EXPECT_EQ(allowed_cpus(), all);
}

class Frequency : public CpuQuota {};

TEST_F(Frequency, HasAGovernorWhereTheSystemSaysSo) {
  EXPECT_EQ(frequency_governor(folder()), std::nullopt);
  add("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n");
  EXPECT_EQ(frequency_governor(folder()), "schedutil");
}

TEST(HostMemory, IsNoMoreThanTheMachineHas) {
  const HostMemory memory = host_memory();
  const std::int64_t machine =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGE_SIZE)};
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_LE(memory.total_bytes, machine + (std::int64_t{1} << 30));
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

class HostMemoryOf : public CpuQuota {};

TEST_F(HostMemoryOf, AMachineIsAllOfItWhereNothingCanBeRead) {
  const std::int64_t machine =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGE_SIZE)};
  EXPECT_EQ(host_memory(folder()).total_bytes, machine);
  EXPECT_EQ(host_memory(folder()).free_bytes, machine);
  add("sys/fs/cgroup/memory.max", "3000\n");
  add("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 3000);
  EXPECT_EQ(host_memory(folder()).free_bytes, 2000);
  add("proc/meminfo", "MemTotal:  2 kB\nMemFree:  0 kB\nMemAvailable:  1 kB\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 2048);
  EXPECT_EQ(host_memory(folder()).free_bytes, 1024);
}

TEST_F(HostMemoryOf, AGroupAndItsParentsIsWhatTheTightestLeaves) {
  add("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  add("sys/fs/cgroup/slurm/job_7/memory.max", "5000\n");
  add("sys/fs/cgroup/slurm/job_7/memory.current", "1000\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 5000);
  EXPECT_EQ(host_memory(folder()).free_bytes, 4000);
  add("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  add("sys/fs/cgroup/slurm/job_7/step_0/memory.current", "900\n");
  EXPECT_EQ(host_memory(folder()).free_bytes, 4000);
  add("sys/fs/cgroup/slurm/memory.max", "6000\n");
  add("sys/fs/cgroup/slurm/memory.current", "5500\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 5000);
  EXPECT_EQ(host_memory(folder()).free_bytes, 500) << "its siblings use the rest";
}

TEST_F(HostMemoryOf, GroupsDoesNotCountFilesThatTheKernelGivesUp) {
  add("proc/self/cgroup", "0::/job\n");
  add("sys/fs/cgroup/job/memory.max", "3000\n");
  add("sys/fs/cgroup/job/memory.current", "2900\n");
  EXPECT_EQ(host_memory(folder()).free_bytes, 100);
  add("sys/fs/cgroup/job/memory.stat",
      "anon 700\nfile 2000\nshmem 500\ninactive_file 1000\nactive_file 400\n"
      "slab_reclaimable 100\nslab 300\nworkingset_refault_file 50\n");
  EXPECT_EQ(host_memory(folder()).free_bytes, 1600) << "a tmpfs keeps its pages";
  add("sys/fs/cgroup/job/memory.stat", "inactive_file 9000\n");
  EXPECT_EQ(host_memory(folder()).free_bytes, 3000);
}

TEST_F(HostMemoryOf, GroupsIsReadFromVersionOneToo) {
  add("proc/self/cgroup", "9:name=systemd:/\n8:memory:/slurm/uid_0/job_7\n4:cpu,cpuacct:/\n");
  const std::string uid = "sys/fs/cgroup/memory/slurm/uid_0/";
  add(uid + "job_7/memory.limit_in_bytes", "9223372036854771712\n");
  add(uid + "job_7/memory.usage_in_bytes", "10\n");
  add("proc/meminfo", "MemTotal:  9 kB\nMemAvailable:  8 kB\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 9 * 1024) << "no limit is the largest number";
  EXPECT_EQ(host_memory(folder()).free_bytes, 8 * 1024);
  add(uid + "memory.limit_in_bytes", "4096\n");
  add(uid + "memory.usage_in_bytes", "4000\n");
  add(uid + "memory.stat", "inactive_file 5\ntotal_inactive_file 904\ntotal_active_file 1000\n");
  EXPECT_EQ(host_memory(folder()).total_bytes, 4096);
  EXPECT_EQ(host_memory(folder()).free_bytes, 2000) << "with the groups below it";
}

TEST(HostFiles, MayBeOpenUpToTheHardLimit) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit low{40, 70};
    const bool is_set = ::setrlimit(RLIMIT_NOFILE, &low) == 0;
    const OpenFiles files = raise_open_files();
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    const bool is_raised = files.at_start == 40 && files.now == 70 && now.rlim_cur == 70;
    const OpenFiles again = raise_open_files();
    ::_exit(is_set && is_raised && again.at_start == 40 && again.now == 70 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

double cpu_s(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Many ticks of the system's clocks.
constexpr double kSpun_s = 0.5;

/// Uses the processor for that long, however long it waits for it.
void spin() {
  const double end_s = cpu_s(CLOCK_THREAD_CPUTIME_ID) + kSpun_s;
  while (cpu_s(CLOCK_THREAD_CPUTIME_ID) < end_s) {
  }
}

/// The calling thread may then run on one core only.
void stay_on_one_core() {
  const CpuSet allowed = allowed_cpus();
  std::size_t first = 0;
  while (!allowed.test(first)) ++first;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

class Count {
 public:
  void add() {
    ++value_;
    value_.notify_all();
  }
  void wait_for(int requested) const {
    for (int now = value_; now < requested; now = value_) value_.wait(now);
  }

 private:
  std::atomic<int> value_ = 0;
};

/// What threads lost that spin on the same core at the same time, next to one that sleeps.
LostTime lost_by_threads(int count) {
  Count ready, begins, spun, ends;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      stay_on_one_core();
      ready.add();
      begins.wait_for(1);
      spin();
      spun.add();
      ends.wait_for(1);  // a thread that has ended is not counted
    });
  }
  threads.emplace_back([&] {
    ready.add();
    ends.wait_for(1);
  });
  ready.wait_for(count + 1);
  const LostTimeWatch watch;
  begins.add();
  spun.wait_for(count);
  const LostTime lost = watch.lost();
  ends.add();
  for (std::thread& thread : threads) thread.join();
  return lost;
}

TEST(LostTimeWatch, CountsTheThreadsThatWorkAndWhatTheyWaitedFor) {
  const LostTime lost = lost_by_threads(2);
  EXPECT_EQ(lost.busy_threads, 2);
  EXPECT_GE(lost.wall_s, 2 * kSpun_s);
  EXPECT_GE(lost.own_ran_s, 1.9 * kSpun_s);
  EXPECT_LE(lost.own_ran_s, cpu_s(CLOCK_PROCESS_CPUTIME_ID));
  EXPECT_GT(lost.all_ran_s, kSpun_s) << "the system counts roughly";
  EXPECT_GT(lost.waited_s, kSpun_s / 2) << "for the other thread";
  EXPECT_NEAR(lost.ready_s - lost.waited_s, kSpun_s, 0.1 * kSpun_s);
  EXPECT_LE(lost.ready_s, 1.01 * lost.wall_s) << "by clocks that are read one after the other";
  EXPECT_GE(lost.stolen_s, 0);
}

TEST(LostTimeWatch, CountsThreadsThatStartedOrEndedMeanwhile) {
  const LostTimeWatch watch;
  std::thread(spin).join();
  Count spun, ends;
  std::thread thread([&] {
    spin();
    spun.add();
    ends.wait_for(1);
  });
  spun.wait_for(1);
  const LostTime lost = watch.lost();
  ends.add();
  thread.join();
  EXPECT_GE(lost.own_ran_s, 1.9 * kSpun_s);
  EXPECT_EQ(lost.busy_threads, 1);
}

/// The first thread waited most, but mostly for the others of its process.
TEST(LostTimeWatch, BoundsAWaitBeforeItTakesTheLargest) {
  const ThreadTimes threads[] = {
      {.ran_s = 1, .waited_s = 9}, {.ran_s = 1, .waited_s = 1}, {.ran_s = 0.1, .waited_s = 1}};
  const LostTime lost = lost_by(threads, 1);
  EXPECT_EQ(lost.waited_s, 1);
  EXPECT_EQ(lost.ready_s, 2) << "half of its time, the first a tenth";
  EXPECT_EQ(lost.busy_threads, 2);
  EXPECT_EQ(lost_by(threads, 10).waited_s, 9);
  EXPECT_EQ(lost_by(threads, 0).waited_s, 9) << "as good as any";
}

TEST(CoreDistance, IsThatOfALineBetweenTwoCores) {
  const CpuSet allowed = allowed_cpus();
  const double distance_s = core_distance_s();
  EXPECT_EQ(allowed_cpus(), allowed) << "the calling thread is bound to no core";
  if (allowed.count() < 2) {
    EXPECT_EQ(distance_s, 0);
    return;
  }
  EXPECT_GT(distance_s, 1e-9);
  EXPECT_LT(distance_s, 1e-3);
}

TEST(ShortSlices, KeepTheThreadsPriority) {
  std::thread([] {
    constexpr int kNice = 5;
    const auto self = static_cast<id_t>(::syscall(SYS_gettid));
    ASSERT_EQ(::setpriority(PRIO_PROCESS, self, kNice), 0);
    ask_for_short_slices();
    EXPECT_EQ(::getpriority(PRIO_PROCESS, self), kNice);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
    std::array<std::uint64_t, 6> attributes{};  // sched_getattr(2): the slice is the fourth
    if (::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) != 0) return;
    utsname system{};
    ASSERT_EQ(::uname(&system), 0);
    int major = 0, minor = 0;
    ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2);
    if (std::pair(major, minor) >= std::pair(6, 12)) EXPECT_EQ(attributes[3], 100'000);
  }).join();
}

TEST(CoreDistance, IsZeroWithASingleCore) {
  const CpuSet allowed = allowed_cpus();
  std::size_t first = 0;
  while (!allowed[first]) ++first;
  std::thread([&] {
    ASSERT_TRUE(bind_this_thread(CpuSet().set(first)));
    EXPECT_EQ(core_distance_s(), 0);
  }).join();
}

TEST(CoreDistance, IsTheSameWithinAFactorOfTwo) {
  EXPECT_TRUE(same_core_distance(40e-9, 60e-9));
  EXPECT_TRUE(same_core_distance(185e-9, 195e-9));
  EXPECT_FALSE(same_core_distance(40e-9, 185e-9));
  EXPECT_FALSE(same_core_distance(185e-9, 40e-9));
  EXPECT_TRUE(same_core_distance(0, 185e-9)) << "unknown";
  EXPECT_TRUE(same_core_distance(40e-9, 0)) << "unknown";
}

TEST(LostTimeWatch, FindsNoTimeLostToThreadsOfTheSameProcess) {
  repeat_while_busy([] {
    const LostTime lost = lost_by_threads(2);
    EXPECT_LT(waited_share({&lost, 1}), 0.2);
  });
}

TEST(LostTimeWatch, FindsTheTimeThatAnotherProgramTook) {
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay_on_one_core();
    while (true) spin();
  }
  const LostTime lost = lost_by_threads(1);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_GT(waited_share({&lost, 1}), 0.2);
}

/// Ran alone for a second, waiting for `waited_s` of it while others ran for `others_s`.
JobProcess ran_beside(double waited_s, double others_s, std::initializer_list<std::size_t> on,
                      std::uint64_t host = 1) {
  return {.lost = {.wall_s = 1,
                   .waited_s = waited_s,
                   .own_ran_s = 1 - waited_s,
                   .all_ran_s = 1 - waited_s + others_s + 2 * kTickS,
                   .busy_threads = 1},
          .cpus = cpus(on),
          .host = host};
}

TEST(LostShares, AreOfEachProcessBesideThoseOfItsHost) {
  const JobProcess apart[] = {ran_beside(0.4, 0.5, {0}), ran_beside(0.1, 0, {0}, 2)};
  EXPECT_THAT(lost_shares(apart), ElementsAre(testing::DoubleNear(0.4, 1e-9), 0));
  // What ran beside one is the other.
  const JobProcess together[] = {ran_beside(0.9, 0.9, {0}), ran_beside(0.1, 0.1, {1})};
  EXPECT_THAT(lost_shares(together), ElementsAre(0, 0));
}

TEST(LostShares, NameNothingShorterThanTheSystemsClockTells) {
  EXPECT_THAT(lost_shares(std::vector{ran_beside(0.04, 1, {0})}), ElementsAre(0));
}

TEST(LostShares, OfMoreProcessesThanCpusAreWhatOthersTookOfAllCpus) {
  const auto online = static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  const auto all = static_cast<double>(online);
  JobProcess crowded = ran_beside(0.9, 0, {});
  for (std::size_t cpu = 0; cpu < online; ++cpu) crowded.cpus.set(cpu);
  crowded.lost.all_ran_s = all + 2 * kTickS;
  crowded.lost.own_ran_s = 0.75 * all / (all + 1);  // others ran for a quarter
  for (const double share : lost_shares(std::vector(online + 1, crowded))) {
    EXPECT_NEAR(share, 0.25, 1e-9);
  }
  if (online == 1) return;
  EXPECT_THAT(lost_shares(std::vector(2, ran_beside(0.9, 0.9, {0}))), ElementsAre(0, 0));
}

}  // namespace
}  // namespace barestep
