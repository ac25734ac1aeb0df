// DDP with ranks as threads.

#include "core/error.h"
#include "kernels/make_device.h"
#include "parallel/comm/host_transport.h"
#include "parallel/comm/staged_transport.h"
#include "parallel/schemes/run.h"
#include "parallel/schemes/scheme_of.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// All ranks have the same bits, and those of one rank except for rounding.
void expect_near_one_rank(const std::vector<Trained>& all, const Trained& one,
                          const TrainConfig& config) {
  for (const Trained& rank : all) {
    EXPECT_EQ(rank.parameters, all[0].parameters);
    EXPECT_EQ(rank.losses, all[0].losses);
  }
  ASSERT_EQ(all[0].losses.size(), one.losses.size());
  EXPECT_LT(largest_distance(model_of(config), all[0].parameters, one.parameters), 1e-6);
  EXPECT_LT(relative_distance(all[0].losses, one.losses), 1e-6);
}

// Sums of +-1/n cancel to 0 or to a rounding error, of which some optimizers make a whole step.
TEST(ThreadRanks, DifferByWholeStepsWhereTheSlopesOfL1Cancel) {
  TrainConfig config = rank_config();
  config.model.loss = LossKind::kL1;
  const auto distance = [&](OptimizerKind optimizer) {
    config.optimizer = {.kind = optimizer, .lr = 1e-3};
    return relative_distance(train_threads(3, config)[0].losses, train_single(config).losses);
  };
  EXPECT_LT(distance(OptimizerKind::kSgd), 5e-7);
  EXPECT_LT(distance(OptimizerKind::kAdam), 2e-6);
  EXPECT_LT(distance(OptimizerKind::kAdagrad), 1e-3);
  EXPECT_LT(distance(OptimizerKind::kLion), 1e-3);
}

/// Also where a step of one micro-step is reduced in every micro-step.
TEST(ThreadRanks, ComputeTheSameBitsWhateverTheBucketsAndWheneverTheyAreReduced) {
  for (const bool bf16 : {false, true}) {
    DdpSettings usual = small_buckets();
    usual.bf16_gradients = bf16;
    DdpSettings apart = usual, at_once = usual, whole = usual, every = usual;
    apart.overlap = false;
    at_once.update_per_bucket = true;
    whole.whole_first_bucket = true;
    every.reduces_every_micro_step = true;
    const DdpSettings large{.bf16_gradients = bf16};
    const std::vector<Trained> expected = train_threads(3, rank_config(), usual);
    for (const DdpSettings& other : {apart, at_once, whole, every, large}) {
      EXPECT_EQ(train_threads(3, rank_config(), other), expected);
    }
  }
}

DdpSettings in_every_micro_step() {
  DdpSettings settings = small_buckets();
  settings.reduces_every_micro_step = true;
  return settings;
}

/// With batches of 10 on 7 ranks, the last rank has 2 rows in one micro-step, the others 3 in two.
TEST(ThreadRanks, MayReduceInEveryMicroStep) {
  for (const bool zero_grad : {true, false}) {
    for (const auto& [ranks, accumulate] : {std::pair{2, 3}, {4, 8}, {7, 2}}) {
      SCOPED_TRACE(ranks);
      TrainConfig config = rank_config();
      config.training.accumulate = accumulate;
      config.training.zero_grad = zero_grad;
      const auto once = train_threads(ranks, config);
      const auto every = train_threads(ranks, config, in_every_micro_step());
      expect_near_one_rank(every, train_threads(1, config)[0], config);
      EXPECT_NE(every, once) << "sums in another order";
    }
  }
}

/// The reductions of gradients in a rank's step, and all that it sends.
std::pair<std::int64_t, std::int64_t> reductions(const TrainConfig& config,
                                                 const DdpSettings& settings, int rank, int ranks) {
  const Ddp scheme(settings);
  const StepPrograms programs = programs_by(scheme, config, rank, ranks);
  const Program& step = programs.train().program;
  EXPECT_GT(expect_every_deletion_found(step), 6);
  return {std::ranges::count_if(step.nodes(),
                                [](const Node& node) {
                                  const auto* const sum = op_if<AllReduce>(node.op);
                                  return sum != nullptr && sum->name.starts_with("bucket ");
                                }),
          bytes_sent(step, Mesh::of_data(rank, ranks))};
}

/// The last rank has one micro-step less than the others, and sends what they send.
TEST(ThreadRanks, SendGradientsOnceForEachMicroStepOnEveryRank) {
  TrainConfig config = rank_config();
  config.training.accumulate = 2;
  constexpr int kRanks = 7;
  const std::int64_t loss_bytes = 2 * (kRanks - 1) * 8 / kRanks;  // and the request to stop
  for (const int rank : {0, kRanks - 1}) {
    SCOPED_TRACE(rank);
    const auto [once, once_bytes] = reductions(config, small_buckets(), rank, kRanks);
    const auto [every, every_bytes] = reductions(config, in_every_micro_step(), rank, kRanks);
    EXPECT_GT(once, 2);
    EXPECT_EQ(every, 2 * once);
    EXPECT_NEAR(static_cast<double>(every_bytes - loss_bytes),
                static_cast<double>(2 * (once_bytes - loss_bytes)),
                static_cast<double>(every));  // each rounded down
  }
  config.parallel.reduces_every_micro_step = true;
  EXPECT_NO_THROW(check_all_ranks(config, DeviceKind::kCpu, nullptr, kRanks));
}

TEST(ThreadRanks, KeepTheLossOfTheirOwnRows) {
  TrainConfig config = rank_config();
  const auto all = train_threads(3, config);
  EXPECT_NE(all[0].own_losses, all[1].own_losses);
  // 10 rows: shares of 4, 3 and 3.
  const float mean =
      0.4F * all[0].own_losses[0] + 0.3F * all[1].own_losses[0] + 0.3F * all[2].own_losses[0];
  EXPECT_NEAR(all[0].losses[0], mean, 1e-6F);
}

TEST(ThreadRanks, WithABatchPerRankTheBatchGrows) {
  TrainConfig weak = rank_config();
  weak.parallel.batch_per_rank = true;
  TrainConfig whole = rank_config();
  whole.data.batch_size = 30;
  expect_near_one_rank(train_threads(3, weak), train_threads(1, whole)[0], weak);
}

TEST(ThreadRanks, SeededPerRankDrawDataOfTheirOwn) {
  TrainConfig config = rank_config();
  config.parallel.seed_per_rank = true;
  config.training.steps = 1;
  const auto all = train_threads(2, config);
  EXPECT_EQ(all[0].parameters, all[1].parameters) << "weights are rank 0's";
  EXPECT_NE(all[0].losses, train_threads(2)[0].losses);

  // Rank 0 draws the same as a run with its 5 rows; rank 1 draws with the next seed, but has rank
  // 0's weights.
  TrainConfig own = rank_config();
  own.data.batch_size = 5;
  EXPECT_EQ(train_threads(1, own)[0].losses[0], all[0].own_losses[0]);
}

class RanksOfFiles : public TempDirTest {};

/// The last step has 14 of 30 rows: two ranks have 5 rows in three micro-steps, the third 4 in two.
/// Or it has 2 rows, and the third rank none.
TEST_F(RanksOfFiles, ReduceInEveryMicroStepAlsoWithoutRows) {
  TrainConfig config = number_run(folder());
  for (const auto& [batch, accumulate] : {std::pair{4, 4}, {7, 2}}) {
    SCOPED_TRACE(batch);
    config.data.batch_size = batch;
    config.training.accumulate = accumulate;
    expect_near_one_rank(train_threads(3, config, in_every_micro_step()),
                         train_threads(1, config)[0], config);
  }
}

TEST(ThreadRanks, APauseBelongsToTheRankItIsFor) {
  TrainConfig config = rank_config();
  config.injected = {.delay_ms = 1, .slow_rank = SlowRank{1, 20}};
  EXPECT_DOUBLE_EQ(spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 2).delay_s, 0.001);
  EXPECT_DOUBLE_EQ(spec_of_rank(config, DeviceKind::kCpu, nullptr, 1, 2).delay_s, 0.021);
}

TEST(ThreadRanks, PausesOfAnyKindChangeNoBit) {
  TrainConfig config = rank_config();
  config.training.steps = 3;
  const auto expected = train_threads(2, config);
  config.injected = {.delay_ms = 0.1, .slow_rank = SlowRank{1, 2}, .jitter_ms = 1};
  EXPECT_EQ(train_threads(2, config), expected);
}

class DdpProgram : public testing::TestWithParam<DdpSettings> {
 protected:
  const Ddp scheme_{GetParam()};
  StepPrograms programs_{spec_of_rank(rank_config(), DeviceKind::kCpu, nullptr, 0, 2), &scheme_};
};

TEST_P(DdpProgram, ReducesEveryGradientOnceAndTheLossFirst) {
  std::vector<Tensor> reduced;
  for (const Node& node : programs_.train().program.nodes()) {
    if (const auto* op = std::get_if<Collective>(&node.op)) {
      reduced.push_back(std::get<AllReduce>(*op).tensors[0]);
    }
  }
  ASSERT_GT(reduced.size(), 3U);
  EXPECT_EQ(programs_.buffers()[reduced[0].buffer].name, "global_loss");
  std::int64_t end_bytes = 0;
  for (std::size_t i = 1; i < reduced.size(); ++i) {
    EXPECT_GE(reduced[i].offset_bytes, end_bytes);
    EXPECT_LT(reduced[i].offset_bytes - end_bytes, 64) << "only padding lies between buckets";
    end_bytes = reduced[i].end_bytes();
  }
  EXPECT_GT(end_bytes, programs_.parameter_list().bytes() - 64);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, DdpProgram,
    testing::Values(DdpSettings{.first_bucket_bytes = 50, .bucket_bytes = 100},
                    DdpSettings{.first_bucket_bytes = 50, .bucket_bytes = 100, .overlap = false},
                    DdpSettings{
                        .first_bucket_bytes = 50, .bucket_bytes = 100, .update_per_bucket = true}));

/// Notes on which threads and for which steps collectives run.
class NotingTransport final : public HostTransport, public RecordSink {
 public:
  NotingTransport() : HostTransport(0, 1) { set_record_sink(this); }
  void on_record(const Record& record) override { steps.push_back(record.tag.step); }

  std::vector<std::thread::id> threads;
  std::vector<std::int64_t> steps;

 private:
  void perform(const Collective& /*collective*/, const Addresses& /*addresses*/) override {
    threads.push_back(std::this_thread::get_id());
  }
};

/// Two steps are queued before the first runs. CUDA calls a stream's functions on a thread on which
/// an MPI may not call CUDA.
TEST(StagedRanks, KeepTheStepsOfCallsInProgressAndStayOffTheThreadOfTheStream) {
  RankNumbers numbers(std::vector<float>(5, 1));
  Stream* const stream = numbers.stream.get();
  const Collective sum = AllReduce{.tensors = {Tensor{0, 0, 1, 5}}};
  NotingTransport host;
  StagedTransport staged(host, *numbers.device, 12);
  staged.prepare(sum);
  std::thread::id of_stream;
  std::atomic<bool> may_go_on = false;
  stream->call([](void* id) { *static_cast<std::thread::id*>(id) = std::this_thread::get_id(); },
               &of_stream);
  stream->call([](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &may_go_on);
  for (const std::int64_t step : {6, 7}) {
    staged.run(sum, numbers.addresses, std::span(&stream, 1), {.step = step});
  }
  may_go_on = true;
  may_go_on.notify_all();
  stream->synchronize();
  EXPECT_THAT(host.steps, ElementsAre(6, 6, 7, 7)) << "two pieces each";
  ASSERT_EQ(host.threads.size(), 4U);
  for (const std::thread::id& id : host.threads) {
    EXPECT_NE(id, of_stream);
    EXPECT_EQ(id, host.threads.front());
  }
}

TEST(ThreadRanks, HostCallsCarryBytesInRankOrder) {
  on_threads(3, [](Group& ranks) {
    const int mine = 10 + ranks.rank();
    std::array<int, 3> all{};
    ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    EXPECT_THAT(all, ElementsAre(10, 11, 12));
    int message = ranks.rank();
    ranks.broadcast(std::as_writable_bytes(std::span(&message, 1)), 2);
    EXPECT_EQ(message, 2);
    ranks.barrier();
  });
}

TEST(ThreadRanks, ARankThatGivesUpReleasesTheOthers) {
  on_threads(2, [](Group& ranks) {
    if (ranks.rank() == 0) {
      EXPECT_THROW(ranks.barrier(), Error);
    } else {
      ranks.abort(ExitCode::kTryAgain);
    }
  });
}

}  // namespace
}  // namespace barestep
