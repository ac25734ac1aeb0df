// DDP with ranks as processes; run by mpirun, and also alone.

#include "parallel/schemes/zero.h"
#include "support/rank_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

MpiRank& mpi() {
  static MpiRank rank = join_mpi();
  return rank;
}

TEST(MpiRanks, EndWithTheSameBitsAsEachOtherAndNearOneRank) {
  Group& ranks = *mpi().group;
  Trained mine = train_rank(mpi());
  ThreadGroup alone(1);
  const Trained one = train_rank(*alone.join(0));
  EXPECT_LT(relative_distance(mine.parameters, one.parameters), 1e-6);
  EXPECT_LT(relative_distance(mine.losses, one.losses), 1e-6);

  std::vector<float> first = mine.parameters;
  ranks.broadcast(std::as_writable_bytes(std::span(first)), 0);
  EXPECT_EQ(mine.parameters, first);
}

/// A model without a ReLU whose input could be rounded to the other side of 0.
TEST(MpiRanks, ShareAModelAndTrainAsOneRank) {
  Group& ranks = *mpi().group;
  TrainConfig config = rank_config();
  config.model.layers = {6, 8, 5, 7, 4};
  config.model.activation = Activation::kTanh;
  config.training.clip_norm = 0.1;
  // The mean over a rank's few rows has larger gradients, which the usual scale makes too large.
  config.training.loss_scale = LossScaling{.initial = 1024};
  const Trained one = train_single(config);
  for (const int tensor : {2, ranks.size()}) {
    if (ranks.size() % tensor != 0 || tensor > 7) continue;  // a layer has 7 outputs
    config.parallel.tensor = tensor;
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
      config.device.precision = precision;
      const Trained mine = train_rank(mpi(), config);
      const double bound = precision == Precision::kFp32 ? 1e-6 : 1.0 / 256;
      EXPECT_LT(relative_distance(mine.losses, one.losses), bound);
      if (ranks.rank() == 0 && precision == Precision::kFp32) {
        EXPECT_LT(relative_distance(mine.parameters, one.parameters), 1e-5);
      }
    }
  }
}

TEST(MpiRanks, AreStagesOfAPipelineAndTrainAsOneRank) {
  Group& ranks = *mpi().group;
  TrainConfig config = rank_config();
  config.model.layers = {6, 8, 5, 7, 4};
  config.model.activation = Activation::kTanh;
  config.training.clip_norm = 0.1;
  const Trained one = train_single(config);
  for (const int tensor : {1, 2}) {
    for (const int pipeline : {2, 3, 4}) {
      if (ranks.size() % (tensor * pipeline) != 0) continue;
      config.parallel.tensor = tensor;
      config.parallel.pipeline = pipeline;
      config.parallel.micro_batches = 3;
      const Trained mine = train_rank(mpi(), config);
      EXPECT_LT(relative_distance(mine.losses, one.losses), 1e-6);
      if (ranks.rank() == 0) {
        EXPECT_LT(relative_distance(mine.parameters, one.parameters), 1e-5);
      }
    }
  }
}

TEST(MpiRanks, ComputeTheSameBitsWithAndWithoutOverlap) {
  DdpSettings apart = small_buckets();
  apart.overlap = false;
  EXPECT_EQ(train_rank(mpi(), rank_config(), apart), train_rank(mpi()));
}

/// Each rank adds up what it owns in the order of the ranks, whichever buckets the stages have.
TEST(MpiRanks, HaveTheBitsOfThreadsWithAllStagesOfZero) {
  const FlatWeights expected =
      train_threads_by(Zero(1, small_buckets()), mpi().group->size())[0].parameters;
  for (const int stage : {1, 2, 3}) {
    EXPECT_EQ(train_rank_by(Zero(stage, small_buckets()), mpi()).parameters, expected) << stage;
  }
}

TEST(MpiRanks, SumBf16GradientsToTheSameBitsOnAllRanks) {
  DdpSettings settings = small_buckets();
  settings.bf16_gradients = true;
  Group& ranks = *mpi().group;
  const Trained mine = train_rank(mpi(), rank_config(), settings);
  std::vector<float> first = mine.parameters;
  ranks.broadcast(std::as_writable_bytes(std::span(first)), 0);
  EXPECT_EQ(mine.parameters, first);
  const Trained fp32 = train_rank(mpi());
  EXPECT_NE(mine.losses, fp32.losses);
  EXPECT_LT(relative_distance(mine.losses, fp32.losses), 1.0 / 256) << "a bf16's precision";
}

/// Micro-steps have one row more than there are ranks. With 2 ranks and three of them, 3 or 4 ranks
/// and five, or 8 ranks and four, the last ranks have one less than the first.
TEST(MpiRanks, ReduceInEveryMicroStepWithUnequalRows) {
  Group& ranks = *mpi().group;
  TrainConfig config = rank_config();
  config.data.batch_size = ranks.size() + 1;
  DdpSettings every = small_buckets();
  every.reduces_every_micro_step = true;
  for (const int accumulate : {3, 4, 5}) {
    config.training.accumulate = accumulate;
    const Trained mine = train_rank(mpi(), config, every);
    EXPECT_LT(relative_distance(mine.losses, train_single(config).losses), 1e-6);
  }
}

TEST(MpiRanks, GatherBytesInRankOrder) {
  Group& ranks = *mpi().group;
  const int mine = 10 + ranks.rank();
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(all[static_cast<std::size_t>(rank)], 10 + rank);
  }
  ranks.barrier();
}

TEST(MpiRanks, GatherMoreBytesThanAPieceHolds) {
  constexpr std::size_t kNumbers = 300'001;
  const MpiRank& place = mpi();
  for (Group* const ranks : {place.group.get(), place.background.get()}) {
    const std::vector<std::int32_t> mine(kNumbers, 10 + ranks->rank());
    std::vector<std::int32_t> all(kNumbers * static_cast<std::size_t>(ranks->size()));
    ranks->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], 10 + static_cast<std::int32_t>(i / kNumbers)) << i;
    }
  }
}

TEST(MpiRanks, KnowTheirPlaceOnTheHost) {
  EXPECT_EQ(mpi().local_rank, mpi().group->rank());
  EXPECT_EQ(mpi().local_size, mpi().group->size());
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
