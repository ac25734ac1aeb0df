// PyTorch's DistributedDataParallel and DistributedSampler, from the files of
// scripts/golden_ddp.py.
#include <nlohmann/json.hpp>

#include "kernels/make_device.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "support/each_step.h"
#include "support/golden.h"
#include "support/idx_bytes.h"
#include "support/layers.h"
#include "support/near.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "train/schedule.h"

namespace barestep {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  return json::parse(std::ifstream(golden_path(name)));
}

/// The run that a golden file's entry is of.
TrainConfig config_of(const json& run) {
  TrainConfig config;
  config.model.layers.assign(run.at("depth").get<std::size_t>() + 1, run.at("dim"));
  config.data.batch_size = run.at("batch");
  config.training.seed = run.at("seed");
  const bool is_adam = run.at("optimizer") == "adam";
  config.optimizer.kind = is_adam ? OptimizerKind::kAdam : OptimizerKind::kSgd;
  config.optimizer.lr = is_adam ? 1e-3 : 0.1;
  config.device.threads = 1;
  return config;
}

/// Of ranks that share a model: {tensor ranks, all ranks}. 5e-7 is what another order of sums
/// changes.
TEST(GoldenMesh, LossesArePyTorchsOfOneProcess) {
  const json file = golden("ddp_mesh");
  for (const json& run : file.at("runs")) {
    TrainConfig config = config_of(run);
    config.training.steps = run.at("safe_steps").get<std::int64_t>();
    // The steps are safe for PyTorch's order of sums. Another order rounds other numbers near 0 to
    // the other side, and Adam makes a whole step of a gradient that is 0 on one side: with 256
    // columns and seed 1, sums of two halves lead to losses that are 7e-7 apart at step 21.
    const bool is_adam = config.optimizer.kind == OptimizerKind::kAdam;
    if (is_adam && run.at("dim") == 256) config.training.steps = 20;
    config.device.gemm = GemmProvider::kAuto;
    const auto losses = run.at("losses").get<std::vector<float>>();
    for (const auto& [tensor, ranks] : {std::pair{2, 2}, std::pair{4, 4}, std::pair{2, 4}}) {
      SCOPED_TRACE(testing::Message() << run.at("optimizer") << " " << run.at("dim") << ", seed "
                                      << run.at("seed") << ", " << tensor << " of " << ranks);
      config.parallel.tensor = tensor;
      const Trained first = train_threads(ranks, config, {}).front();
      ASSERT_EQ(std::ssize(first.losses), *config.training.steps);
      expect_within(first.losses, std::span(losses).first(first.losses.size()), 5e-7);
    }
  }
}

/// Gradients that are applied late, local SGD, and targets of a teacher. On one rank delayed
/// gradients are a matter of the order of ops, on two they are sums over ranks too.
TEST(GoldenLateAndLocal, LossesArePyTorchs) {
  const json file = golden("ddp_late_and_local");
  for (const json& run : file.at("runs")) {
    TrainConfig config = config_of(run);
    const auto losses = run.at("losses").get<std::vector<float>>();
    config.training.steps = std::ssize(losses);
    config.training.staleness = run.at("staleness");
    config.parallel.sync_every = run.at("sync_every");
    if (run.at("outer") == "diloco") config.parallel.outer = OuterOptimizer::kDiLoCo;
    config.device.gemm = GemmProvider::kReference;
    std::vector<Trained> found;
    if (run.contains("teacher_noise")) {
      config.data.teacher = true;
      config.data.teacher_noise = run.at("teacher_noise");
    }
    if (run.at("ranks") == 1) {
      found = {train_single(config), train_threads(2, config).front()};
    } else {
      const auto scheme = scheme_of(config);
      found = {train_threads_by(*scheme, run.at("ranks"), config).front()};
    }
    for (const Trained& trained : found) {
      SCOPED_TRACE(run.dump().substr(0, 150));
      expect_within(trained.losses, losses, 5e-7);
    }
  }
}

class GoldenDdp : public testing::TestWithParam<const char*> {};

TEST_P(GoldenDdp, LossesAndParametersArePyTorchs) {
  const json file = golden(GetParam());
  TrainConfig config;
  config.model.layers = file.at("layers").get<std::vector<std::int64_t>>();
  config.data.batch_size = file.at("batch");
  config.training.steps = file.at("steps").get<std::int64_t>();
  config.training.seed = file.at("seed");
  config.parallel.seed_per_rank = file.at("per_rank_seed");
  config.device.threads = 1;
  config.device.gemm = GemmProvider::kReference;
  const auto all = train_threads(file.at("world"), config, {});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SCOPED_TRACE(rank);
    expect_within(all[rank].own_losses, file.at("losses")[rank].get<std::vector<float>>(), 1e-6);
  }
  const ModelSpec spec{.widths = config.model.layers};
  FlatWeights weights = all[0].parameters;
  for (int layer = 0; layer < spec.layers(); ++layer) {
    const auto near = [&](const char* what, std::span<const float> values) {
      const auto expected =
          file.at("parameters").at(state_dict_name(spec, layer, what)).get<std::vector<float>>();
      EXPECT_LT(relative_distance({values.begin(), values.end()}, expected), 1e-6)
          << what << " of layer " << layer;
    };
    near("weight", weight_in(weights, spec, layer));
    near("bias", bias_in(weights, spec, layer));
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenDdp,
                         testing::Values("ddp_w2", "ddp_w3", "ddp_w2_perrank", "ddp_w3_perrank"));

TEST(GoldenBuckets, AreThoseOfRandomLists) {
  const json rules = golden("ddp_rules");
  ASSERT_GE(rules.at("bucket_lists").size(), 50U);
  for (const json& list : rules.at("bucket_lists")) {
    EXPECT_EQ(assign_buckets(list.at("sizes_bytes").get<std::vector<std::int64_t>>(),
                             list.at("limits_bytes").get<std::vector<std::int64_t>>()),
              list.at("buckets").get<std::vector<std::vector<int>>>())
        << list;
  }
}

class GoldenSampler : public TempDirTest {
 protected:
  /// The rows that one rank takes in each epoch of a run with one row per step; a sample's only
  /// feature is its row.
  std::vector<std::vector<int>> rows_of(const TrainConfig& config, const Dataset& data, int rank,
                                        int ranks);
};

std::vector<std::vector<int>> GoldenSampler::rows_of(const TrainConfig& config, const Dataset& data,
                                                     int rank, int ranks) {
  const StepPrograms programs(spec_of_rank(config, DeviceKind::kCpu, &data, rank, ranks));
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  Trainer trainer(config, programs, {device.get()}, {}, &data);
  std::vector<int> rows;
  EachStep observer([&](const StepReport& report) {
    const Tensor x = programs.train().tensors.x;
    rows.push_back(static_cast<int>(*trainer.runner().addresses(report.step).at(x)));
  });
  trainer.run(observer);
  const auto half = static_cast<std::ptrdiff_t>(rows.size() / 2);
  return {{rows.begin(), rows.begin() + half}, {rows.begin() + half, rows.end()}};
}

TEST_F(GoldenSampler, GivesEachRankItsShareOfFiles) {
  const json rules = golden("ddp_rules");
  for (const json& expected : rules.at("sampler_shares")) {
    SCOPED_TRACE(expected.dump());
    const int ranks = expected.at("world");
    const auto samples = expected.at("samples").get<std::uint32_t>();
    std::vector<float> numbers(samples);
    for (std::uint32_t i = 0; i < samples; ++i) numbers[i] = static_cast<float>(i);
    TrainConfig config;
    config.model.layers = {1, 1};
    config.data = {.kind = DataKind::kIdx,
                   .x = file("x.idx", idx_bytes(0x0D, {samples, 1}, numbers)),
                   .y = folder() / "x.idx",
                   .batch_size = ranks};
    config.training.epochs = 2;
    config.training.seed = expected.at("seed");
    const Dataset data =
        load_dataset(config.data, std::array<std::int64_t, 2>{1, 1}, LossKind::kMse);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rows = rows_of(config, data, rank, ranks);
      EXPECT_EQ(rows[expected.at("epoch").get<std::size_t>()],
                expected.at("shares")[static_cast<std::size_t>(rank)].get<std::vector<int>>());
    }
  }
}

// Published runs of PyTorch's DDP tutorial: 2048 samples, 32 per rank.
TEST(StepsPerEpoch, AreThoseThatOthersPublished) {
  for (const auto& [ranks, steps] :
       {std::pair{1, 64}, std::pair{2, 32}, std::pair{4, 16}, std::pair{8, 8}, std::pair{16, 4}}) {
    const StepSpec spec{.model = {.widths = {20, 1}},
                        .input = {.data = DataKind::kIdx, .train_rows = 2048},
                        .mesh = Mesh::of_data(0, ranks),
                        .batch_size = std::int64_t{32} * ranks};
    EXPECT_EQ(spec.steps_of_epoch(), steps);
  }
}

}  // namespace
}  // namespace barestep
