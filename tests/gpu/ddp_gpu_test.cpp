// mlp_ddp on a GPU, started like a user does.
#include "kernels/make_device.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/nccl_transport.h"
#include "support/near.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr const char* kRun = "--device cuda --steps 6 --metrics m.jsonl";
constexpr const char* kMlp = "--layers 64,128,32 --fusion off";
constexpr const char* kTransformer = "--block transformer --dim 32 --depth 2 --heads 4 --length 12";

class DdpOnGpu : public ProgramTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }

  /// The losses on rank 0, one per step.
  std::vector<double> losses(const std::string& command, const std::string& says,
                             const std::string& options = kMlp) {
    const auto result = succeeded(
        bash(fmt::format(". '{}' && exec {} {} {}", BARESTEP_MPI_ENV, command, kRun, options)));
    EXPECT_THAT(result.out, HasSubstr(says));
    return ProgramTest::losses("m.jsonl");
  }

  void expect_near_single(const std::string& command, const std::string& says,
                          const std::string& options = kMlp) {
    // Ranks that exchange gradients cannot update from factors.
    const std::vector<double> single =
        losses(fmt::format("{} --update separate", MLP_SINGLE), "batch", options);
    const std::vector<double> ranks = losses(command, says, options);
    expect_within(ranks, single, 1e-6);
  }
};

TEST_F(DdpOnGpu, OneRankOverNcclTrainsAsSingleDoesInAGraphToo) {
  for (const char* const how : {"", " --graph"}) {
    expect_near_single(fmt::format("mpirun -np 1 {} --transport nccl{}", MLP_DDP, how),
                       "NCCL: all_reduce");
  }
}

TEST_F(DdpOnGpu, RanksThatShareAGpuTrainAsSingleDoes) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    expect_near_single(fmt::format("mpirun -np {} {} --transport mpi", ranks, MLP_DDP),
                       "MPI through pinned memory: all_reduce");
  }
}

TEST_F(DdpOnGpu, RanksThatShareAGpuOverNcclTrainAsSingleDoes) {
  const std::string why = why_gpus_are_not_shared(nccl_version_code(), "1");
  if (!why.empty()) GTEST_SKIP() << "NCCL " << why;
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    expect_near_single(
        fmt::format("env NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun -np {} {} --transport nccl", ranks,
                    MLP_DDP),
        "NCCL: all_reduce");
  }
}

/// 64 rows on 3 ranks are 22, 21 and 21: products of different shapes, with the same algorithms.
TEST_F(DdpOnGpu, FactorsGiveRanksThatShareAGpuTheBitsOfOneRank) {
  const auto weights = [&](int ranks) {
    losses(fmt::format("mpirun -np {} {} --transport mpi --scheme factor --save w", ranks, MLP_DDP),
           "all_gather of");
    return text("w");
  };
  const std::string one = weights(1);
  for (const int ranks : {2, 3}) EXPECT_EQ(weights(ranks), one) << ranks << " ranks";
}

/// Rounded results differ from unrounded ones by at most bf16's precision.
TEST_F(DdpOnGpu, OneRankOverNcclReducesAsBf16) {
  const std::vector<double> fp32 =
      losses(fmt::format("mpirun -np 1 {} --transport nccl", MLP_DDP), "NCCL: all_reduce");
  const std::vector<double> bf16 =
      losses(fmt::format("mpirun -np 1 {} --transport nccl --grad-dtype bf16", MLP_DDP),
             "reduced as bf16 by NCCL");
  EXPECT_NE(bf16, fp32);
  expect_within(bf16, fp32, 1.0 / 256);
}

TEST_F(DdpOnGpu, TellsWhoWasWaitedFor) {
  for (const char* const how : {"", " --graph"}) {
    losses(fmt::format("mpirun -np 2 {} --transport mpi --slow-rank 1:20{}", MLP_DDP, how),
           "Waited for rank 1: longest in 1 of 1 step,");
  }
}

TEST_F(DdpOnGpu, RanksWithAGpuEachTrainAsSingleDoes) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "there is one GPU";
  expect_near_single(fmt::format("mpirun -np 2 {}", MLP_DDP), "NCCL: all_reduce");
}

/// A run of two ranks that share a model or its parameters.
struct SharedModel {
  const char* name;
  const char* options;
  const char* model = kMlp;
};

class DdpOfAModelOnGpu : public DdpOnGpu, public testing::WithParamInterface<SharedModel> {
 protected:
  /// Eagerly, and in a graph.
  void expect_both_near_single(const std::string& transport, const std::string& says) {
    const auto& [name, options, model] = GetParam();
    for (const char* const how : {"", " --graph"}) {
      SCOPED_TRACE(how);
      expect_near_single(
          fmt::format("mpirun -np 2 {} --transport {} {}{}", MLP_DDP, transport, options, how),
          says, model);
    }
  }
};

TEST_P(DdpOfAModelOnGpu, RanksThatShareAGpuTrainAsSingleDoes) {
  expect_both_near_single("mpi", "by MPI through pinned memory");
}

TEST_P(DdpOfAModelOnGpu, RanksWithAGpuEachTrainAsSingleDoes) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "there is one GPU";
  expect_both_near_single("nccl", "by NCCL");
}

INSTANTIATE_TEST_SUITE_P(
    Ddp, DdpOfAModelOnGpu,
    testing::Values(SharedModel{"tensor", "--tensor 2"},
                    SharedModel{"tensor_transformer", "--tensor 2", kTransformer},
                    SharedModel{"tensor_zero1", "--tensor 2 --scheme zero1"},
                    SharedModel{"pipeline", "--pipeline 2 --micro-batches 4"},
                    SharedModel{"zb_h1", "--pipeline 2 --micro-batches 4 --schedule zb-h1"},
                    SharedModel{"pipeline_transformer", "--pipeline 2", kTransformer},
                    SharedModel{"zero2", "--scheme zero2"},
                    SharedModel{"zero3_transformer", "--scheme zero3", kTransformer},
                    SharedModel{"server", "--scheme server"},
                    SharedModel{"reproducible", "--reproducible 2"}),
    [](const auto& run) { return run.param.name; });

/// The data ranks are groups of one, in which NCCL queues nothing that could be recorded.
TEST_F(DdpOnGpu, ProfilesRanksWhoseGroupsHaveOneRank) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "there is one GPU";
  losses(fmt::format("mpirun -np 2 {} --tensor 2 --scheme zero1 --profile", MLP_DDP), "by NCCL");
}

}  // namespace
}  // namespace barestep
