

#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/ddp.h"
#include "support/testing.h"

namespace barestep {
namespace {

std::vector<std::int64_t> counts(const std::vector<Rows>& pieces) {
  std::vector<std::int64_t> all;
  for (const Rows& rows : pieces) all.push_back(rows.count);
  return all;
}

// torch.chunk of PyTorch 1.13.1, and the batches of 30 and 10 in the DataParallel tutorial.
TEST(Chunk, SplitsAsTorchDoes) {
  EXPECT_THAT(counts(chunk(64, 3)), ElementsAre(22, 22, 20));
  EXPECT_THAT(counts(chunk(64, 5)), ElementsAre(13, 13, 13, 13, 12));
  EXPECT_THAT(counts(chunk(64, 6)), ElementsAre(11, 11, 11, 11, 11, 9));
  EXPECT_THAT(counts(chunk(16, 5)), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(counts(chunk(5, 4)), ElementsAre(2, 2, 1));
  EXPECT_THAT(counts(chunk(9, 8)), ElementsAre(2, 2, 2, 2, 1));
  EXPECT_THAT(counts(chunk(3, 4)), ElementsAre(1, 1, 1));
  EXPECT_THAT(counts(chunk(30, 8)), ElementsAre(4, 4, 4, 4, 4, 4, 4, 2));
  EXPECT_THAT(counts(chunk(10, 8)), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(chunk(0, 3), ElementsAre());
}

TEST(ShareOfRank, GivesTheFirstRanksOneMore) {
  EXPECT_EQ(share_of_rank(10, 0, 4), (Rows{0, 3}));
  EXPECT_EQ(share_of_rank(10, 1, 4), (Rows{3, 3}));
  EXPECT_EQ(share_of_rank(10, 2, 4), (Rows{6, 2}));
  EXPECT_EQ(share_of_rank(10, 3, 4), (Rows{8, 2}));
}

TEST(ShareOfRank, CoversAllRowsForAnyNumberOfRanks) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (int ranks = 1; ranks < 9; ++ranks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Rows share = share_of_rank(rows, rank, ranks);
        EXPECT_EQ(share.first, next);
        next += share.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

// PyTorch's own unit tests of _compute_bucket_assignment_by_size
// (test/distributed/test_c10d_common.py).
TEST(AssignBuckets, ClosesABucketThatReachesItsLimit) {
  const std::vector<std::int64_t> sizes{400, 800, 400, 200};
  EXPECT_THAT(assign_buckets(sizes, std::vector<std::int64_t>{400}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  const std::vector<std::int64_t> tens(4, 40);
  EXPECT_THAT(assign_buckets(tens, std::vector<std::int64_t>{40, 80}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3)));
  // Two alternating types, as the tensors of each type alone.
  const std::vector<std::int64_t> of_one_type(3, 200);
  EXPECT_THAT(assign_buckets(of_one_type, std::vector<std::int64_t>{400}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(assign_buckets(of_one_type, std::vector<std::int64_t>{200, 400}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
  const std::vector<std::int64_t> equal(6, 80);
  EXPECT_THAT(assign_buckets(equal, std::vector<std::int64_t>{200}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

// Linear(700, 700) x 6 in PyTorch 1.13.1: its rebuilt buckets have 1962800 and 9814000 bytes.
TEST(AssignBuckets, ReproducesTheSizesOfASixLayerModel) {
  std::vector<std::int64_t> sizes;
  for (int layer = 0; layer < 6; ++layer) {
    sizes.push_back(700 * 4);
    sizes.push_back(700 * 700 * 4);
  }
  const auto buckets = assign_buckets(
      sizes, std::vector<std::int64_t>{std::int64_t{1} << 20, std::int64_t{25} << 20});
  std::vector<std::int64_t> bytes;
  for (const auto& bucket : buckets) {
    std::int64_t sum = 0;
    for (const int tensor : bucket) sum += sizes[static_cast<std::size_t>(tensor)];
    bytes.push_back(sum);
  }
  EXPECT_THAT(bytes, ElementsAre(1962800, 9814000));
}

TEST(AssignBuckets, KeepsEveryTensorInOrder) {
  std::minstd_rand random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 20);
    for (auto& size : sizes) size = static_cast<std::int64_t>(random() % 1000);
    const std::vector<std::int64_t> limits{static_cast<std::int64_t>(1 + random() % 500),
                                           static_cast<std::int64_t>(1 + random() % 2000)};
    std::vector<int> seen;
    for (const auto& bucket : assign_buckets(sizes, limits)) {
      EXPECT_FALSE(bucket.empty());
      seen.insert(seen.end(), bucket.begin(), bucket.end());
    }
    std::vector<int> all(sizes.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

/// How many of six layers of 700 x 700 each bucket has.
std::vector<std::int64_t> layers_in_buckets(std::optional<double> mib) {
  TrainConfig config;
  config.parallel.bucket_mib = mib;
  const DdpSettings settings = ddp_settings_of(config);
  const ModelSpec model{.widths = std::vector<std::int64_t>(7, 700)};
  std::vector<std::int64_t> layers;
  for (const Bucket& bucket : gradient_buckets(
           parameters_of(model), BufferId{}, settings.first_bucket_bytes, settings.bucket_bytes)) {
    layers.push_back(std::llround(static_cast<double>(bucket.gradients.bytes()) / (4 * 701 * 700)));
  }
  return layers;
}

// Sizes of rebuilt buckets that PyTorch 2.15 reports for
// DistributedDataParallel(bucket_cap_mb=...): 1962800, 9814000 without it; 11776800 with 25; 2 x
// 5888400 with 4; 3 x 3925600 with 2.
TEST(DdpSettingsOfOptions, GiveTheFirstBucketNoLimitOfItsOwnWhereOneIsGiven) {
  EXPECT_THAT(layers_in_buckets(std::nullopt), ElementsAre(1, 5));
  EXPECT_THAT(layers_in_buckets(25), ElementsAre(6));
  EXPECT_THAT(layers_in_buckets(4), ElementsAre(3, 3));
  EXPECT_THAT(layers_in_buckets(2), ElementsAre(2, 2, 2));
}

}  // namespace
}  // namespace barestep
