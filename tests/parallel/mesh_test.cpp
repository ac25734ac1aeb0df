// Ranks that share a model, as threads, compared with one rank.
#include "core/mesh.h"

#include "core/program.h"
#include "core/rank_checker.h"
#include "kernels/make_device.h"
#include "parallel/comm/mesh_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/run.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/near.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TEST(Mesh, NumbersTensorRanksFirstAndStagesLast) {
  const Mesh mesh{.data = 3, .tensor = 2, .pipeline = 4};
  ASSERT_EQ(mesh.ranks(), 24);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Mesh at = mesh;
    at.rank = rank;
    EXPECT_EQ(rank, at.tensor_rank() + 2 * (at.data_rank() + 3 * at.stage()));
  }
  Mesh last = mesh;
  last.rank = 23;
  EXPECT_EQ(last.text(), "rank 23 (data 2, tensor 1, stage 3)");
  EXPECT_EQ(Mesh::of_data(2, 3).text(), "rank 2");
}

/// What NCCL takes for a rank of a job, in bytes.
std::int64_t nccl_bytes_of(const TrainConfig& config, int rank, int ranks) {
  const auto scheme = scheme_of(config);
  return nccl_bytes(
      StepPrograms(spec_of_rank(config, DeviceKind::kCuda, nullptr, rank, ranks), scheme.get()));
}

TEST(NcclBytes, CountEachGroupWithCollectivesAndEachPeerOfExchanges) {
  const std::int64_t of_group = nccl_bytes(2);
  TrainConfig config = rank_config();
  EXPECT_EQ(nccl_bytes_of(config, 0, 1), 0);
  EXPECT_EQ(nccl_bytes_of(config, 0, 2), of_group);
  config.parallel.tensor = 2;
  EXPECT_EQ(nccl_bytes_of(config, 0, 2), 2 * of_group) << "all, those of tensor";
  EXPECT_EQ(nccl_bytes_of(config, 0, 4), 3 * of_group) << "all, those of data, those of tensor";
  config.parallel.tensor = 1;
  config.parallel.pipeline = 3;
  EXPECT_EQ(nccl_bytes_of(config, 0, 3), of_group + kNcclBytesOfPeer) << "all share the loss";
  EXPECT_EQ(nccl_bytes_of(config, 1, 3), of_group + 2 * kNcclBytesOfPeer);
}

TEST(Mesh, GroupsOfAnAxisShareAllOtherCoordinates) {
  for (const Axis axis : kGroupedAxes) {
    SCOPED_TRACE(name_of(axis));
    Mesh mesh{.data = 3, .tensor = 2, .pipeline = 4};
    std::map<int, std::vector<int>> groups;
    for (mesh.rank = 0; mesh.rank < mesh.ranks(); ++mesh.rank) {
      std::vector<int>& group = groups[mesh.first_on(axis)];
      group.push_back(mesh.rank);
    }
    EXPECT_EQ(std::ssize(groups), 24 / mesh.size_of(axis));
    for (const auto& [first, group] : groups) {
      EXPECT_EQ(group.front(), first);
      EXPECT_EQ(std::ssize(group), mesh.size_of(axis));
      EXPECT_EQ(group.back() - group.front() + 1, mesh.span_of(axis));
    }
  }
}

TEST(Mesh, SumsAmongTheRanksOfAnAxis) {
  on_threads(8, [](ThreadRank& all) {
    const Mesh mesh{.data = 2, .tensor = 2, .pipeline = 2, .rank = all.rank()};
    const auto groups = join_mesh(all, mesh);
    for (const Axis axis :
         {Axis::kData, Axis::kTensor, Axis::kPipeline, Axis::kModel, Axis::kAll}) {
      RankNumbers number({std::ldexp(1.0F, all.rank())});
      number.run(*groups, AllReduce{.tensors = {Tensor{0, 0, 1, 1}}, .axis = axis});
      float expected = 0;
      for (int rank = 0; rank < 8; ++rank) {
        Mesh other = mesh;
        other.rank = rank;
        if (other.first_on(axis) == mesh.first_on(axis)) expected += std::ldexp(1.0F, rank);
      }
      EXPECT_EQ(number.values[0], expected) << name_of(axis) << " on " << mesh.text();
      all.barrier();
    }
  });
}

TEST(Mesh, EndsAllGroupsWhenOneRankGivesUp) {
  EXPECT_THROW(on_threads(4,
                          [](ThreadRank& all) {
                            const Mesh mesh{.data = 2, .tensor = 2, .rank = all.rank()};
                            const auto half = all.split(mesh.first_on(Axis::kTensor));
                            if (all.rank() == 3) throw std::runtime_error("gave up");
                            RankNumbers({0}).run(*half, AllReduce{.tensors = {Tensor{0, 0, 1, 1}}});
                            if (all.rank() == 2) EXPECT_NE(half->poll_error(), "");
                          }),
               std::exception);
}

TEST(TensorRanks, NeedAnOutputEach) {
  TrainConfig config = rank_config();  // 5, 7, 6, 3
  config.parallel.tensor = 8;
  expect_error(ExitCode::kConfiguration,
               "--tensor '8': net.0 has 7 outputs, so some ranks would have none; use at most "
               "--tensor 7",
               [&] { require({.ranks = 8, .config = config}); });
  config.model = {.dim = 8, .depth = 1, .block = BlockKind::kTransformer, .heads = 4};
  expect_error(ExitCode::kConfiguration,
               "--tensor '8': layers.0 has 4 heads, so some ranks would have none; use at most "
               "--tensor 4",
               [&] { require({.ranks = 8, .config = config}); });
  config.model.heads = 8;
  config.model.ffn = 6;
  expect_error(ExitCode::kConfiguration,
               "--tensor '8': layers.0 has 6 hidden numbers, so some ranks would have none; use at "
               "most --tensor 6",
               [&] { require({.ranks = 8, .config = config}); });
}

/// A model without a ReLU whose input could be rounded to the other side of 0.
TrainConfig smooth_config() {
  TrainConfig config = rank_config();
  config.model.layers = {6, 8, 5, 7, 4};
  config.model.activation = Activation::kTanh;
  config.model.last_relu = true;
  config.optimizer.kind = OptimizerKind::kSgd;
  config.optimizer.lr = 0.1;
  return config;
}

/// Heads that two and four ranks share equally, and three do not.
TrainConfig config_of_blocks() {
  TrainConfig config = smooth_config();
  config.model = {
      .dim = 16, .depth = 2, .block = BlockKind::kTransformer, .heads = 4, .length = 5, .ffn = 23};
  return config;
}

TEST(TensorRanks, TrainAsOneRankWithAnyWidthsAndDepths) {
  TrainConfig config = smooth_config();
  Sample sample;
  using Widths = std::vector<std::int64_t>;
  for (const Widths& widths : {Widths{6, 8, 5, 7, 4}, Widths{5, 7, 6, 3}, Widths{3, 5, 2},
                               Widths{4, 9}, Widths{16, 16, 16, 16, 16, 16}}) {
    config.model.layers = widths;
    for (const int tensor : {2, 3, 4, 5}) {
      if (!sample.takes_next()) continue;
      SCOPED_TRACE(testing::Message() << testing::PrintToString(widths) << " on " << tensor);
      config.parallel.tensor = tensor;
      expect_as_one_rank(config, tensor);
    }
  }
}

TEST(TensorRanks, ShareTheHeadsOfBlocks) {
  TrainConfig config = config_of_blocks();
  for (const int tensor : {2, 3, 4}) {
    SCOPED_TRACE(tensor);
    config.parallel.tensor = tensor;
    expect_as_one_rank(config, tensor);
  }
  config.parallel.tensor = 2;
  TrainConfig accumulate = config, recompute = config, unfused = config, clip = config,
              standard = config;
  accumulate.training.accumulate = 3;
  recompute.training.recompute = 2;
  unfused.device.fusion = false;
  clip.training.clip_norm = 0.05;
  standard.model.causal = true;
  standard.model.attention = AttentionForm::kStandard;
  Sample sample;
  for (const TrainConfig& each : {accumulate, recompute, unfused, clip, standard}) {
    if (sample.takes_next()) expect_as_one_rank(each, 4);
    for (const int stage : {1, 3}) {
      if (sample.takes_next()) expect_as_one_rank(each, 4, Zero(stage, small_buckets()));
    }
  }
  config.device.precision = Precision::kBf16;
  expect_as_one_rank(config, 4, Ddp(small_buckets()), 1.0 / 256);
}

TEST(TensorRanks, SumFourTimesInABlock) {
  TrainConfig config = config_of_blocks();
  config.parallel.tensor = 2;
  const Ddp scheme(small_buckets());
  const StepPrograms programs = programs_by(scheme, config, 1, 2);
  int sums = 0;
  for (const Node& node : programs.train().program.nodes()) {
    const auto* const sum = op_if<AllReduce>(node.op);
    if (sum == nullptr || sum->axis != Axis::kTensor) continue;
    ++sums;
    EXPECT_EQ(sum->tensors.front().size(), 10 * 5 * 16) << sum->name;
  }
  EXPECT_EQ(sums, 4 * 2);
}

// The norm would be too large if every rank counted what all have.
TEST(TensorRanks, CountEveryGradientOnceInTheNorm) {
  TrainConfig config = smooth_config();
  config.model.layers = {4, 3, 40};  // the last bias is on every rank, and larger than all cuts
  config.training.clip_norm = 1e-3;
  config.parallel.tensor = 3;
  expect_as_one_rank(config, 3);
  expect_as_one_rank(config, 6, Zero(1, small_buckets()));
  expect_as_one_rank(config, 6, Zero(3, small_buckets()));
}

// If one rank finds a gradient that is not finite, all skip the step.
TEST(TensorRanks, SkipAStepTogetherThatOverflowsOnOneOfThem) {
  TrainConfig config = smooth_config();
  config.parallel.tensor = 2;
  config.device.precision = Precision::kFp16;
  config.training.loss_scale = LossScaling{.initial = 1e9};
  TrainConfig stays = config;
  stays.optimizer.lr = 1e-30;
  const auto trained = train_threads_by(Ddp(small_buckets()), 2, config);
  const auto same = train_threads_by(Ddp(small_buckets()), 2, stays);
  EXPECT_EQ(trained[0].losses[1], same[0].losses[1]) << "the first step was skipped";
  EXPECT_EQ(trained[1].losses, trained[0].losses);
}

TEST(TensorRanks, TrainAsOneRankWithRandomDataDrawnInBlocks) {
  TrainConfig config = smooth_config();
  config.model.layers = {16, 32, 16};
  config.data.batch_size = 8;
  config.parallel.tensor = 2;
  expect_as_one_rank(config, 4);
  // Skipped, not drawn: a rank's buffers have its own rows only.
  const Ddp scheme(small_buckets());
  const StepPrograms programs = programs_by(scheme, config, 2, 4);
  EXPECT_EQ(programs.train().tensors.x.rows, 4);
  EXPECT_EQ(programs.buffers()[programs.train().tensors.x.buffer].bytes, 4 * 16 * 4);
}

// Also the sums of forward and backward, of clipping and of the scaler.
TEST(TensorRanks, HaveProgramsThatNeedEveryWait) {
  const Ddp ddp(small_buckets());
  const Zero zero1(1, small_buckets());
  const Zero zero3(3, small_buckets());
  for (TrainConfig config : {smooth_config(), config_of_blocks()}) {
    config.parallel.tensor = 2;
    config.training.clip_norm = 1;
    config.device.precision = Precision::kFp16;
    for (const Scheme* scheme : std::initializer_list<const Scheme*>{&ddp, &zero1, &zero3}) {
      for (const int rank : {0, 3}) {
        const StepPrograms programs = programs_by(*scheme, config, rank, 4);
        EXPECT_GT(expect_every_deletion_found(programs.train().program), 15);
      }
    }
  }
}

TEST(RankPrograms, OfEverySchemeAndMeshMeet) {
  for (const SchemeKind scheme : kValuesOf<SchemeKind>) {
    if (!has_ranks(scheme)) continue;
    for (const int tensor : {1, 2, 4}) {
      if (scheme == SchemeKind::kFactor && tensor > 1) continue;  // refused
      TrainConfig config = smooth_config();
      config.parallel.scheme = scheme;
      config.parallel.tensor = tensor;
      for (const int pipeline : {1, 3}) {
        const bool has_stages = scheme == SchemeKind::kDdp || scheme == SchemeKind::kZero1;
        if (pipeline > 1 && !has_stages) continue;  // refused
        config.parallel.pipeline = pipeline;
        config.parallel.micro_batches = 2 * pipeline - 1;
        for (const double clip : {0.0, 1.0}) {
          if (clip > 0) config.training.clip_norm = clip;
          for (const int copies : {1, 2, 3}) {
            SCOPED_TRACE(
                fmt::format("{}, {} x {} x {}", name_of(scheme), copies, tensor, pipeline));
            EXPECT_NO_THROW(
                check_all_ranks(config, DeviceKind::kCpu, nullptr, copies * tensor * pipeline));
          }
        }
      }
    }
  }
}

TEST(RankPrograms, AreFoundNotToMeetIfOneDiffers) {
  TrainConfig config = smooth_config();
  config.parallel.tensor = 2;
  const Ddp scheme(small_buckets());
  std::vector<std::unique_ptr<StepPrograms>> all;
  std::vector<Program> steps;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(std::make_unique<StepPrograms>(
        spec_of_rank(config, DeviceKind::kCpu, nullptr, rank, 4), &scheme));
    steps.push_back(all.back()->train().program);
  }
  const auto check = [&] {
    std::vector<RankProgram> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back({at(steps, rank), at(all, rank)->spec().mesh});
    }
    return check_ranks(ranks);
  };
  EXPECT_EQ(check(), "");
  int collectives = 0;
  for (Node& node : steps[2].nodes()) {
    auto* const collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) continue;
    const Collective before = *collective;
    std::visit([](auto& op) { op.name += "?"; }, *collective);
    EXPECT_NE(check(), "") << label_of(node.op);
    *collective = before;
    ++collectives;
  }
  EXPECT_GT(collectives, 5);
}

TEST(TensorRanks, KeepTheirSharesOfWeightsAndState) {
  TrainConfig config = smooth_config();
  config.model.layers = {64, 64, 64, 64, 64};
  config.parallel.tensor = 4;
  const Ddp scheme(small_buckets());
  const StepPrograms shared = programs_by(scheme, config, 1, 4);
  config.parallel.tensor = 1;
  const StepPrograms whole = programs_by(scheme, config, 0, 1);
  // A quarter of the weights and the cut biases; two biases of 64 numbers are on every rank.
  const std::int64_t numbers = 4 * 64 * 64 / 4 + 2 * 64 / 4 + 2 * 64;
  EXPECT_EQ(shared.parameter_list().size(), numbers);
  EXPECT_EQ(shared.whole_list().size(), whole.parameter_list().size());
  EXPECT_EQ(shared.buffers()[shared.parameters()].bytes, numbers * 4);
}

TEST(TensorRanks, KeepTheirSharesOfBlocks) {
  constexpr std::int64_t kDim = 64, kFfn = 96, kRanks = 4;
  TrainConfig config = config_of_blocks();
  config.model = {.dim = kDim,
                  .depth = 1,
                  .block = BlockKind::kTransformer,
                  .heads = 8,
                  .length = 5,
                  .ffn = kFfn};
  config.parallel.tensor = kRanks;
  const Ddp scheme(small_buckets());
  const StepPrograms shared = programs_by(scheme, config, 1, kRanks);
  // Norms and the biases after sums are on every rank.
  const std::int64_t cut = 4 * kDim * kDim + 3 * kDim + 2 * kDim * kFfn + kFfn;
  EXPECT_EQ(shared.parameter_list().size(), cut / kRanks + 6 * kDim);
  EXPECT_EQ(shared.whole_list().size(), cut + 6 * kDim);
}

class TensorRanksWithFiles : public TempDirTest {};
TEST_F(TensorRanksWithFiles, LoadWeightsOfTheWholeModel) {
  for (TrainConfig config : {smooth_config(), config_of_blocks()}) {
    const ModelSpec model = spec_of(config, DeviceKind::kCpu, nullptr).model;
    TorchGenerator generator(99);
    FlatWeights weights = parameters_of(model).initial_values(generator);
    config.output.load = folder() / "weights.safetensors";
    save_flat_weights(config.output.load, parameters_of(model), weights);
    config.parallel.tensor = 3;
    expect_as_one_rank(config, 3);
    config.parallel.tensor = config.parallel.pipeline = 2;
    config.parallel.micro_batches = 3;
    expect_as_one_rank(config, 4);
  }
}

class ResumedRanks : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(, ResumedRanks, testing::Bool(),
                         [](const auto& with) { return with.param ? "WithBlocks" : "WithAnMlp"; });

TEST_P(ResumedRanks, GoOnFromAnyOtherMesh) {
  TrainConfig config = GetParam() ? config_of_blocks() : smooth_config();
  config.optimizer.momentum = 0.9;
  config.checkpoint.folder = "a folder";  // the programs can save their state
  const Trained one = train_single(config);
  const Ddp scheme(small_buckets());
  const Zero zero1(1, small_buckets());
  const Zero zero3(3, small_buckets());
  struct Job {
    int ranks, tensor, pipeline;
    const Scheme& by;
  };
  const Job jobs[] = {{1, 1, 1, scheme}, {2, 1, 2, scheme}, {3, 3, 1, scheme}, {8, 2, 2, zero1},
                      {3, 1, 1, zero1},  {4, 2, 1, zero3},  {2, 1, 1, zero3}};
  const auto train = [&](const Job& job, const Interruption& with) {
    TrainConfig cut = config;
    cut.parallel.tensor = job.tensor;
    cut.parallel.pipeline = job.pipeline;
    cut.parallel.micro_batches = job.pipeline;
    return train_threads_by(job.by, job.ranks, cut, with).front();
  };
  Sample sample;
  for (const Job& before : jobs) {
    TrainingState state;
    train(before, {.kept = &state, .pause_every = 3});
    ASSERT_EQ(state.position.steps, 3);
    for (const Job& after : jobs) {
      if (!sample.takes_next()) continue;
      SCOPED_TRACE(testing::Message() << "job " << &before - jobs << " to " << &after - jobs);
      const Trained rest = train(after, {.start = &state});
      expect_within(rest.losses, std::span(one.losses).subspan(3), 5e-7);
    }
  }
}

TEST(Trainer, RefusesRanksThatStartFromOtherWeights) {
  expect_error(ExitCode::kConfiguration,
               "ranks differ: the weights at the start are not the same on ranks 1 and 3; give all "
               "ranks the same build and the same kind of machine",
               [] {
                 on_threads(4, [](Group& ranks) {
                   // Tensor ranks 0 and 1 have others, which is right; data rank 1 differs.
                   const Mesh mesh{.data = 2, .tensor = 2, .rank = ranks.rank()};
                   const float weight =
                       ranks.rank() == 3 ? 9 : static_cast<float>(ranks.rank() % 2);
                   require_equal_weights(ranks, mesh, FlatWeights{weight});
                 });
               });
}

}  // namespace
}  // namespace barestep
