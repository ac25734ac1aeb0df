#include "core/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <utility>

#include "support/temp_dir.h"

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

TEST(HostMemory, IsNoMoreThanTheMachineHas) {
  const HostMemory memory = host_memory();
  const std::int64_t machine =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGE_SIZE)};
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_LE(memory.total_bytes, machine + (std::int64_t{1} << 30));
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

void spin(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(LostTimeWatch, CountsTheThreadsThatWorkAndWhatTheyWaitedFor) {
  using std::chrono::milliseconds;
  std::atomic<bool> ends = false;
  std::thread busy([&] {
    while (!ends) spin(milliseconds(1));
  });
  std::thread idle([&] {
    while (!ends) std::this_thread::sleep_for(milliseconds(5));
  });
  std::this_thread::sleep_for(milliseconds(20));
  const LostTimeWatch watch;
  spin(milliseconds(200));
  const LostTime lost = watch.lost();
  ends = true;
  busy.join();
  idle.join();
  EXPECT_GE(lost.wall_s, 0.2);
  EXPECT_GE(lost.busy_threads, 1) << "2, but a busy machine may keep one waiting";
  EXPECT_LE(lost.busy_threads, 2);
  EXPECT_GE(lost.waited_share, 0);
  EXPECT_LE(lost.waited_share, 1);
  EXPECT_GE(lost.stolen_s, 0);
}

}  // namespace
}  // namespace barestep
