// Which ranks have their own GPU, and whether NCCL can join them.
#include "parallel/comm/gpu_places.h"

#include "parallel/comm/nccl_transport.h"
#include "support/expect_error.h"
#include "support/rank_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr const char* kOnce = "takes each GPU once";

std::vector<RankGpu> places(std::initializer_list<std::pair<const char*, const char*>> all) {
  std::vector<RankGpu> ranks;
  for (const auto& [host, bus_id] : all) ranks.push_back({host, bus_id, kOnce});
  return ranks;
}

/// As with Slurm's --gpus-per-task=1: each rank sees one GPU, and all of them differ.
TEST(GpuPlaces, RanksThatEachSeeOneGpuHaveGpusOfTheirOwn) {
  const auto ranks = places({{"a", "17"}, {"a", "18"}, {"b", "17"}, {"b", "18"}});
  EXPECT_EQ(why_nccl_cannot_join(ranks), "") << "hosts number their GPUs alike";
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(is_first_on_gpu(ranks, rank));
}

TEST(GpuPlaces, RanksOnOneGpuAreNamed) {
  const auto ranks = places({{"a", "17"}, {"a", "18"}, {"b", "17"}, {"a", "18"}});
  EXPECT_EQ(why_nccl_cannot_join(ranks),
            "ranks 1 and 3 have the same GPU, 18, and NCCL takes each GPU once");
  EXPECT_TRUE(is_first_on_gpu(ranks, 1));
  EXPECT_FALSE(is_first_on_gpu(ranks, 3)) << "a GPU is monitored once";
}

TEST(GpuPlaces, RanksWithoutAGpuShareNone) {
  const auto ranks = places({{"a", ""}, {"a", ""}});
  EXPECT_EQ(why_nccl_cannot_join(ranks), "");
  EXPECT_FALSE(is_first_on_gpu(ranks, 0));
}

TEST(GpuPlaces, RanksMayShareAGpuWhereAllOfThemSaySo) {
  auto ranks = places({{"a", "17"}, {"a", "17"}});
  ranks[0].why_not_shared.clear();
  EXPECT_NE(why_nccl_cannot_join(ranks), "") << "the other rank lacks the variable";
  ranks[1].why_not_shared.clear();
  EXPECT_EQ(why_nccl_cannot_join(ranks), "");
}

TEST(GpuPlaces, DecideWhetherNcclJoinsThem) {
  const auto apart = places({{"a", "17"}, {"a", "18"}}),
             shared = places({{"a", "17"}, {"a", "17"}});
  EXPECT_EQ(joins_by_nccl(TransportKind::kAuto, apart), why_no_nccl().empty());
  EXPECT_FALSE(joins_by_nccl(TransportKind::kAuto, shared));
  EXPECT_FALSE(joins_by_nccl(TransportKind::kMpi, apart));
  EXPECT_TRUE(joins_by_nccl(TransportKind::kNccl, apart));
  require_nccl_joins(apart);
  expect_error(ExitCode::kConfiguration,
               "--transport 'nccl': ranks 0 and 1 have the same GPU, 17, and NCCL takes each GPU "
               "once; use mpi or auto, or start a rank for each GPU",
               [&] { require_nccl_joins(shared); });
}

TEST(GpuPlaces, AreTheSameOnEveryRank) {
  on_threads(3, [](Group& ranks) {
    const std::string mine = ranks.rank() == 1 ? "" : "00000000:17:00.0";
    const auto all = gather_gpu_places(ranks, mine);
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[0].bus_id, "00000000:17:00.0");
    EXPECT_EQ(all[1].bus_id, "");
    EXPECT_EQ(all[2].host, host_identity());
    EXPECT_EQ(ranks_on_one_gpu(all), std::pair(0, 2));
  });
}

TEST(GpuPlaces, HostsAreKnownByNameAndBoot) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 2U);
}

TEST(GpuPlaces, NcclSharesAGpuSinceAVersionAndWhereItIsAsked) {
  EXPECT_EQ(why_gpus_are_not_shared(23003, "1"), "");
  EXPECT_EQ(why_gpus_are_not_shared(23003, nullptr),
            "takes each GPU once without NCCL_MULTI_RANK_GPU_ENABLE=1");
  EXPECT_EQ(why_gpus_are_not_shared(23003, "0"),
            "takes each GPU once without NCCL_MULTI_RANK_GPU_ENABLE=1");
  EXPECT_EQ(why_gpus_are_not_shared(22809, nullptr), kOnce);
  EXPECT_EQ(why_gpus_are_not_shared(22809, "1"),
            "takes each GPU once: NCCL_MULTI_RANK_GPU_ENABLE needs NCCL 2.30.3, this is 2.28.9");
}

}  // namespace
}  // namespace barestep
