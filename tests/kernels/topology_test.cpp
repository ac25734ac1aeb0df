// Where threads are placed on machines that hwloc describes by a text. Their CPUs are numbered in
// the order of the tree.
#include "kernels/cpu/topology.h"

#include "core/program.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/make_device.h"
#include "support/testing.h"

namespace barestep {
namespace {

// Two packages of four cores of two hardware threads: CPUs 0-7 and 8-15.
constexpr const char* kTwoPackages = "pack:2 numa:1 core:4 pu:2";

class Places : public testing::Test {
 protected:
  void SetUp() override {
    if (hwloc_version().empty()) GTEST_SKIP() << "this build has no hwloc";
  }

  /// The CPUs of each thread.
  static std::vector<std::string> of(PlaceRequest request, const char* machine = kTwoPackages) {
    if (request.within.none()) request.within = CpuSet(0xFFFF);
    const std::optional<Placement> placement = place_threads(request, machine);
    std::vector<std::string> cpus;
    for (const CpuSet& each : placement->threads) cpus.push_back(text_of(each));
    return cpus;
  }
};

TEST_F(Places, AreCoresNextToEachOtherOrFarApart) {
  EXPECT_THAT(of({.affinity = Affinity::kCompact, .threads = 3}), ElementsAre("0-1", "2-3", "4-5"));
  EXPECT_THAT(of({.affinity = Affinity::kSpread, .threads = 2}), ElementsAre("0-1", "8-9"));
  EXPECT_THAT(of({.affinity = Affinity::kSpread, .threads = 4}),
              ElementsAre("0-1", "4-5", "8-9", "12-13"));
}

TEST_F(Places, AreAllCoresIfThereAreAsManyThreads) {
  for (const Affinity affinity : {Affinity::kCompact, Affinity::kSpread}) {
    EXPECT_THAT(of({.affinity = affinity, .threads = 8}),
                ElementsAre("0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"));
  }
}

TEST_F(Places, AreSharedInTurnByThreadsBeyondTheCores) {
  for (const Affinity affinity : {Affinity::kCompact, Affinity::kSpread}) {
    EXPECT_THAT(of({.affinity = affinity, .threads = 3}, "core:2 pu:2"),
                ElementsAre("0-1", "2-3", "0-1"));
  }
}

TEST_F(Places, LieInsideTheGivenCpus) {
  EXPECT_THAT(of({.affinity = Affinity::kSpread, .within = CpuSet(0xF0), .threads = 2}),
              ElementsAre("4-5", "6-7"));
  EXPECT_THAT(of({.within = CpuSet(0b1000'0000'0010), .threads = 2}), ElementsAre("1", "11"))
      << "one hardware thread of each core";
}

TEST_F(Places, OfEachPartAreInAPackageOfItsOwn) {
  EXPECT_THAT(of({.threads = 2, .part = 0, .parts = 2}), ElementsAre("0-1", "2-3"));
  EXPECT_THAT(of({.threads = 2, .part = 1, .parts = 2}), ElementsAre("8-9", "10-11"));
  EXPECT_THAT(of({.affinity = Affinity::kSpread, .threads = 2, .part = 1, .parts = 2}),
              ElementsAre("8-9", "12-13"));
}

TEST_F(Places, OfAllPartsTogetherAreAllCores) {
  for (const int parts : {1, 2, 3, 4, 5, 8}) {
    CpuSet all;
    for (int part = 0; part < parts; ++part) {
      const PlaceRequest request{
          .within = CpuSet(0xFFFF), .threads = 1, .part = part, .parts = parts};
      const CpuSet own = place_threads(request, kTwoPackages)->all;
      EXPECT_TRUE((all & own).none()) << part << " of " << parts;
      all |= own;
    }
    EXPECT_EQ(all, CpuSet(0xFFFF)) << parts;
  }
}

TEST_F(Places, AreSharedByMorePartsThanCores) {
  const PlaceRequest request{.within = CpuSet(0b11), .threads = 1, .part = 2, .parts = 3};
  EXPECT_EQ(place_threads(request, "core:2 pu:1")->threads.size(), 1U);
}

TEST_F(Places, AreDescribedByCoresCpusAndMemory) {
  const auto text = [](PlaceRequest request, const char* machine) {
    request.within = CpuSet(0xFFFF);
    return place_threads(request, machine)->text;
  };
  EXPECT_EQ(text({.threads = 3}, kTwoPackages),
            "3 threads on 3 cores of 2 hardware threads, CPUs 0-5, near NUMA node 0");
  EXPECT_EQ(text({.threads = 1, .part = 1, .parts = 2}, kTwoPackages),
            "1 thread on 1 core of 2 hardware threads, CPUs 8-9, near NUMA node 1");
  EXPECT_EQ(text({.threads = 4}, "core:2 pu:1"),
            "4 threads on 2 cores, CPUs 0-1, near NUMA node 0");
  EXPECT_EQ(text({.threads = 0}, kTwoPackages), "CPUs 0-15, near NUMA node 0-1")
      << "beside a GPU of which hwloc knows nothing";
}

TEST_F(Places, OnThisMachineAreAmongTheGivenCpus) {
  const PlaceRequest request{.within = allowed_cpus(), .threads = 2};
  const std::optional<Placement> placement = place_threads(request);
  ASSERT_EQ(placement->threads.size(), 2U);
  EXPECT_TRUE((placement->all & ~request.within).none());
}

TEST(PlacesOfAPool, AreWhereItsThreadsRun) {
  const CpuSet all = allowed_cpus();
  CpuSet first, last;
  first.set(all._Find_first());
  for (std::size_t cpu = 0; cpu < all.size(); ++cpu) {
    if (all[cpu]) last = CpuSet().set(cpu);
  }
  ThreadPool pool(3, Denormals::kKeep, std::vector<CpuSet>{first, last, first});
  std::vector<CpuSet> ran(3);
  std::atomic<int> arrived = 0;
  pool.run(3, [&](std::int64_t, int thread) {
    ran[static_cast<std::size_t>(thread)] = allowed_cpus();
    ++arrived;
    while (arrived < 3) std::this_thread::yield();  // so that each thread has one task
  });
  EXPECT_THAT(ran, ElementsAre(all, last, first)) << "the caller is not bound";
}

// Its thread calls the pool, whose first thread it is.
TEST(PlacesOfADevice, BindTheThreadThatComputesToo) {
  const CpuSet all = allowed_cpus();
  CpuSet last;
  for (std::size_t cpu = 0; cpu < all.size(); ++cpu) {
    if (all[cpu]) last = CpuSet().set(cpu);
  }
  const auto device = make_cpu_device({.threads = 1, .places = {last}});
  const auto cpus_of = [&](Lane lane) {
    CpuSet ran;
    const auto stream = device->new_stream(name_of(lane));
    stream->call([](void* to) { *static_cast<CpuSet*>(to) = allowed_cpus(); }, &ran);
    stream->synchronize();
    return ran;
  };
  EXPECT_EQ(cpus_of(Lane::kCompute), last);
  EXPECT_EQ(cpus_of(Lane::kComm), all) << "other lanes need no core of their own";
}

}  // namespace
}  // namespace barestep
