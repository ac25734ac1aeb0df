// Gradients that are reduced as bf16, with ranks as threads.

#include "core/plan.h"
#include "core/program.h"
#include "kernels/make_device.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "support/rank_run.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

DdpSettings in_bf16() {
  DdpSettings settings = small_buckets();
  settings.bf16_gradients = true;
  return settings;
}

/// The gradients after one step; without a scheme, a rank's own.
FlatWeights gradients_of(const TrainConfig& config, int rank, int ranks, const Scheme* scheme,
                         const Connection& connection) {
  const StepPrograms programs(spec_of_rank(config, DeviceKind::kCpu, nullptr, rank, ranks), scheme);
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  Trainer trainer(config, programs, {device.get()}, connection, nullptr);
  TrainObserver observer;
  trainer.run(observer);
  return trainer.download(programs.gradients());
}

/// The nearest number with 8 significant bits; ties go to the even one.
float rounded(float x) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(x), &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
}

/// 3 ranks have 4, 3 and 3 of 10 rows.
TEST(Bf16Gradients, AreTheRanksRoundedOnesAddedUpAndRounded) {
  TrainConfig config = rank_config();
  config.training.steps = 1;
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    FlatWeights sums;
    for (int rank = 0; rank < ranks; ++rank) {
      const FlatWeights own = gradients_of(config, rank, ranks, nullptr, {});
      const auto scale =
          static_cast<float>(static_cast<double>(10 / ranks + (rank < 10 % ranks ? 1 : 0)) / 10);
      sums.resize(own.size());
      for (std::size_t i = 0; i < own.size(); ++i) sums[i] += rounded(scale * own[i]);
    }
    for (float& sum : sums) sum = rounded(sum);
    const Ddp scheme(in_bf16());
    std::vector<FlatWeights> found(static_cast<std::size_t>(ranks));
    on_threads(ranks, [&](ThreadRank& self) {
      const int rank = self.rank();
      found[static_cast<std::size_t>(rank)] =
          gradients_of(config, rank, ranks, &scheme, {&self, &self});
    });
    EXPECT_THAT(found, Each(sums));
  }
}

TEST(Bf16Gradients, TrainWithinABf16sPrecisionOfFp32) {
  TrainConfig config = rank_config();
  config.optimizer.kind = OptimizerKind::kSgd;
  const auto fp32 = train_threads(3, config);
  const auto bf16 = train_threads(3, config, in_bf16());
  for (const Trained& rank : bf16) EXPECT_EQ(rank.parameters, bf16[0].parameters);
  const double distance = relative_distance(bf16[0].losses, fp32[0].losses);
  EXPECT_GT(distance, 0);
  EXPECT_LT(distance, 1.0 / 256);
}

TEST(Bf16Gradients, MoveHalfTheBytesByWayOfTheLargestBucket) {
  TrainConfig config;
  config.model.layers = {1024, 1024, 64};
  const StepSpec spec = spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 2);
  const Ddp ddp({.bf16_gradients = true});
  const StepPrograms programs(spec, &ddp);
  const std::int64_t gradients = 4 * (1024 * 1024 + 1024 + 64 * 1024 + 64);
  EXPECT_EQ(bytes_sent(programs.train().program, Mesh::of_data(0, 2)), gradients / 2 + 2 * 4);
  const MemoryPlan plan(programs.buffers());
  const std::int64_t all = plan.category_bytes(0, Category::kCommunication);
  const Ddp plain({});
  const StepPrograms with_fp32(spec, &plain);
  const std::int64_t without =
      MemoryPlan(with_fp32.buffers()).category_bytes(0, Category::kCommunication);
  // The first bucket closes above 1 MiB with the last gradient, so there is only one. Aligned to
  // 256 bytes.
  EXPECT_NEAR(static_cast<double>(all - without), gradients / 2, 256) << "all are one bucket";
}

}  // namespace
}  // namespace barestep
