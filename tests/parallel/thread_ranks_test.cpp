// DDP with ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "core/checker.h"
#include "core/error.h"
#include "parallel/thread_communicator.h"
#include "support/rank_step.h"

namespace barestep {
namespace {

std::vector<Trained> train(int ranks, const DdpOptions& options = {},
                           const OptimizerSpec& optimizer = {}) {
  ThreadGroup group(ranks);
  std::vector<Trained> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = group.join(rank);
      results[static_cast<std::size_t>(rank)] = train_rank(*communicator, options, optimizer);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(ThreadRanks, EndWithTheSameBitsAsEachOtherAndNearOneRank) {
  const Trained one = train(1)[0];
  for (const int ranks : {2, 3, 4}) {
    const auto all = train(ranks);
    for (const Trained& rank : all) EXPECT_EQ(rank, all[0]) << ranks << " ranks";
    // Each gradient is a sum of at most 10 numbers in another order: some ulp a step.
    EXPECT_LT(relative_distance(all[0].parameters, one.parameters), 1e-6) << ranks << " ranks";
    EXPECT_LT(relative_distance(all[0].losses, one.losses), 1e-6) << ranks << " ranks";
  }
}

TEST(ThreadRanks, ComputeTheSameBitsWithAndWithoutOverlap) {
  EXPECT_EQ(train(3, {.overlap = true}), train(3, {.overlap = false}));
}

TEST(ThreadRanks, ComputeTheSameBitsWhenEachBucketIsUpdatedAtOnce) {
  EXPECT_EQ(train(3, {.update_per_bucket = true}), train(3));
}

TEST(ThreadRanks, TrainWithEveryOptimizer) {
  const OptimizerSpec optimizers[] = {
      {.kind = OptimizerKind::kAdamW, .weight_decay = 0.1},
      {.kind = OptimizerKind::kSgd},
      {.kind = OptimizerKind::kSgd, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
  };
  std::vector<std::vector<float>> parameters{train(1)[0].parameters};
  for (const OptimizerSpec& optimizer : optimizers) {
    const Trained one = train(1, {}, optimizer)[0];
    EXPECT_THAT(parameters, testing::Not(testing::Contains(one.parameters)));
    parameters.push_back(one.parameters);
    const auto all = train(3, {}, optimizer);
    EXPECT_LT(relative_distance(all[0].parameters, one.parameters), 1e-6);
    EXPECT_EQ(train(3, {.update_per_bucket = true}, optimizer), all);
    const RankStep step(0, 3, {.update_per_bucket = true}, optimizer);
    EXPECT_THAT(check(step.program), testing::IsEmpty());
  }
}

class DdpProgram : public testing::TestWithParam<DdpOptions> {};

TEST_P(DdpProgram, IsOrderedAndNeedsEveryWait) {
  RankStep step(0, 2, GetParam());
  ASSERT_THAT(check(step.program), testing::IsEmpty());
  int deleted = 0;
  for (Node& node : step.program.nodes()) {
    const std::vector<Wait> waits = node.waits;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      node.waits.erase(node.waits.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THAT(check(step.program), testing::Not(testing::IsEmpty()));
      node.waits = waits;
      ++deleted;
    }
  }
  EXPECT_GT(deleted, 6);
}

TEST_P(DdpProgram, ReducesEveryGradientOnceAndTheLossFirst) {
  RankStep step(0, 2, GetParam());
  std::vector<Tensor> reduced;
  for (const Node& node : step.program.nodes()) {
    if (const auto* op = std::get_if<Collective>(&node.op)) {
      reduced.push_back(std::get<AllReduce>(*op).tensors[0]);
    }
  }
  ASSERT_GT(reduced.size(), 3U);
  EXPECT_EQ(step.buffers[reduced[0].buffer].name, "global_loss");
  std::int64_t end_bytes = 0;
  for (std::size_t i = 1; i < reduced.size(); ++i) {
    EXPECT_GE(reduced[i].offset_bytes, end_bytes);
    EXPECT_LT(reduced[i].offset_bytes - end_bytes, 64) << "only padding lies between buckets";
    end_bytes = reduced[i].end_bytes();
  }
  EXPECT_GT(end_bytes, rank_model().layout.bytes() - 64);
}

INSTANTIATE_TEST_SUITE_P(Options, DdpProgram,
                         testing::Values(DdpOptions{}, DdpOptions{.overlap = false},
                                         DdpOptions{.update_per_bucket = true}));

TEST(ThreadRanks, HostCallsCarryBytesInRankOrder) {
  constexpr int kRanks = 3;
  ThreadGroup group(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = group.join(rank);
      const int mine = 10 + rank;
      std::array<int, kRanks> all{};
      communicator->all_gather(std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)));
      EXPECT_THAT(all, testing::ElementsAre(10, 11, 12));
      int told = rank;
      communicator->broadcast(std::as_writable_bytes(std::span(&told, 1)), 2);
      EXPECT_EQ(told, 2);
      communicator->barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRanks, ARankThatGivesUpReleasesTheOthers) {
  ThreadGroup group(2);
  std::thread waiting([&] {
    const auto communicator = group.join(0);
    EXPECT_THROW(communicator->barrier(), Error);
  });
  group.join(1)->abort(ExitCode::kTryAgain);
  waiting.join();
}

}  // namespace
}  // namespace barestep
