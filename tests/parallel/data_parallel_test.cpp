// DataParallel on CPU devices of one process.
#include "parallel/schemes/data_parallel.h"

#include "core/error.h"
#include "core/plan.h"
#include "kernels/make_device.h"
#include "parallel/comm/local_transport.h"
#include "profiler/data_parallel_account.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/spread_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// 64 rows, which neither 3 nor 5 devices can share equally.
TrainConfig baseline_config() {
  TrainConfig config;
  config.model.dim = 48;
  config.model.depth = 3;
  config.training.steps = 8;
  config.device.threads = 1;
  return config;
}

// nn.DataParallel's split in PyTorch's tutorial: batches of 30, and a last one of 10.
TEST(DataParallel, SplitsAsPyTorchsTutorialShows) {
  const auto counts = [](int devices, std::int64_t rows) {
    std::vector<std::int64_t> all;
    for (const Rows& piece : DataParallel(devices, false).split(rows)) all.push_back(piece.count);
    return all;
  };
  EXPECT_THAT(counts(2, 30), ElementsAre(15, 15));
  EXPECT_THAT(counts(2, 10), ElementsAre(5, 5));
  EXPECT_THAT(counts(3, 30), ElementsAre(10, 10, 10));
  EXPECT_THAT(counts(3, 10), ElementsAre(4, 4, 2));
  EXPECT_THAT(counts(8, 30), ElementsAre(4, 4, 4, 4, 4, 4, 4, 2));
  EXPECT_THAT(counts(8, 10), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(counts(3, 64), ElementsAre(22, 22, 20));
  EXPECT_THAT(counts(5, 64), ElementsAre(13, 13, 13, 13, 12));
  EXPECT_THAT(counts(5, 16), ElementsAre(4, 4, 4, 4));
}

TEST(DataParallel, ComputesTheLossesOfOneDeviceWithAnyNumberOfDevices) {
  const TrainConfig usual = baseline_config();
  TrainConfig accumulate = rank_config(), adds_up = rank_config(), adamw = rank_config(),
              sgd = rank_config(), clips = rank_config(), unfused = rank_config();
  accumulate.training.accumulate = adds_up.training.accumulate = 3;
  adds_up.training.zero_grad = false;
  adamw.optimizer.kind = OptimizerKind::kAdamW;
  sgd.optimizer.kind = OptimizerKind::kSgd;
  clips.training.clip_norm = 0.1;
  unfused.device.fusion = false;
  for (const TrainConfig& config : {usual, accumulate, adds_up, adamw, sgd, clips, unfused}) {
    const SpreadRun one = train_alone(config);
    for (const int devices : {2, 3, 5}) {
      SCOPED_TRACE(devices);
      expect_near(train_spread(config, {.devices = devices}), one, config);
    }
  }
}

TEST(DataParallel, OnOneDeviceComputesTheBitsOfNoScheme) {
  const TrainConfig config = baseline_config();
  EXPECT_EQ(train_spread(config, {.devices = 1}), train_alone(config));
}

TEST(DataParallel, UsesFewerDevicesThanThereAreForASmallBatch) {
  TrainConfig config = rank_config();
  config.data.batch_size = 3;
  const SpreadRun one = train_alone(config);
  for (const int devices : {3, 5})
    expect_near(train_spread(config, {.devices = devices}), one, config);
  const DataParallel scheme(5, false);
  config.data.batch_size = 16;
  EXPECT_EQ(MemoryPlan(programs_of(config, &scheme).buffers()).devices(), 4);
}

TEST(DataParallel, AddsTheSameSumsByPiecesOfAnySize) {
  const TrainConfig config = rank_config();
  const SpreadRun direct = train_spread(config, {.devices = 3});
  for (const std::int64_t max : {1, 7, 1 << 20}) {
    EXPECT_EQ(train_spread(config, {.devices = 3, .adds_by_pieces = true, .max_numbers = max}),
              direct);
  }
}

class DataParallelFiles : public TempDirTest {};

/// 30 rows in steps of 7: the last step has 2 rows, so the third device has none.
TEST_F(DataParallelFiles, TrainsAndEvaluatesAsOneDeviceDoes) {
  for (const auto run : {&class_run, &number_run}) {
    TrainConfig config = run(folder());
    for (const std::int64_t rows : {8, 7}) {
      config.data.batch_size = rows;
      expect_near(train_spread(config, {.devices = 3}), train_alone(config), config);
    }
  }
}

class DataParallelProgram : public testing::TestWithParam<int> {
 protected:
  DataParallelProgram() {
    config_.data.batch_size = 64;
    programs_ =
        std::make_unique<StepPrograms>(spec_of(config_, DeviceKind::kCpu, nullptr), &scheme_);
  }

  TrainConfig config_ = rank_config();
  const DataParallel scheme_{GetParam(), true};
  std::unique_ptr<StepPrograms> programs_;
};

TEST_P(DataParallelProgram, IsOrderedAndNeedsEveryWait) {
  EXPECT_GT(expect_every_deletion_found(programs_->train().program), 6);
}

// Each part of nn.DataParallel's step, once per step.
TEST_P(DataParallelProgram, MovesEachThingOnce) {
  EnumArray<Exchange, int> times{};
  EnumArray<Exchange, std::int64_t> bytes{};
  for (const Node& node : programs_->train().program.nodes()) {
    if (node.phase != Phase::kCommunication) continue;
    const Exchange exchange = exchange_of(node);
    ++times[exchange];
    const auto* op = std::get_if<DeviceOp>(&node.op);
    bytes[exchange] +=
        op == nullptr ? cost_of(node.op).message_bytes : std::get<Copy>(*op).to.bytes();
  }
  const int others = GetParam() - 1;
  EXPECT_THAT(times, ElementsAre(1, 2 * others, others, 1));
  const std::int64_t moved_rows = 64 - scheme_.split(64)[0].count;
  const std::int64_t flat = programs_->parameter_list().bytes();
  EXPECT_THAT(bytes, ElementsAre(flat, moved_rows * (5 + 3) * 4, moved_rows * 3 * 4, flat));
}

// Device 0 has the whole batch, its outputs and the optimizer's state; every device has only the
// activations of its own rows.
TEST_P(DataParallelProgram, KeepsActivationsOfADevicesOwnRows) {
  const MemoryPlan plan(programs_->buffers());
  const auto rounded = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  // Outputs of 7, 6 and 3 columns. Two gradients take turns: of the last output and of the first,
  // and of the one between them.
  const auto activations = [&](std::int64_t hidden_rows, std::int64_t output_rows) {
    return rounded(hidden_rows * 7 * 4) + rounded(hidden_rows * 6 * 4) +
           rounded(output_rows * 3 * 4) +
           rounded(std::max(output_rows * 3 * 4, hidden_rows * 7 * 4)) +
           rounded(hidden_rows * 6 * 4);
  };
  const std::vector<Rows> split = scheme_.split(64);
  for (int device = 0; device < GetParam(); ++device) {
    const std::int64_t rows = split[static_cast<std::size_t>(device)].count;
    EXPECT_EQ(plan.category_bytes(device, Category::kActivations),
              activations(rows, device == 0 ? 64 : rows));
    EXPECT_EQ(plan.category_bytes(device, Category::kOptimizer) > 0, device == 0);
    EXPECT_EQ(plan.category_bytes(device, Category::kCommunication) > 0, device == 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DataParallelProgram, testing::Values(2, 3, 4));

/// Three devices, two of which have three numbers each and a stream.
class LocalCollectives : public testing::TestWithParam<bool> {
 protected:
  LocalCollectives() {
    for (int i = 0; i < 3; ++i) {
      opened_.push_back(make_cpu_device({.index = i, .threads = 1}));
      devices_.push_back(opened_.back().get());
    }
    const bool by_pieces = GetParam();
    const Tensor piece{2, 0, 1, 2};
    transport_ =
        std::make_unique<LocalTransport>(devices_, by_pieces ? std::optional(piece) : std::nullopt);
    for (std::size_t i = 0; i < 2; ++i) {
      streams_.push_back(devices_[i]->new_stream("comm"));
      parts_.push_back(streams_.back().get());
    }
  }

  void run(const Collective& collective) {
    transport_->prepare(collective);
    transport_->run(collective, addresses_, parts_, {});
  }
  void finish() {
    for (Stream* stream : parts_) stream->synchronize();
  }

  std::vector<std::unique_ptr<Device>> opened_;
  std::vector<Device*> devices_;
  std::unique_ptr<LocalTransport> transport_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> parts_;
  std::vector<std::vector<float>> values_ = {{1, 2, 3}, {10, 20, 30}, {0, 0}};
  Addresses addresses_{{reinterpret_cast<std::byte*>(values_[0].data()),
                        reinterpret_cast<std::byte*>(values_[1].data()),
                        reinterpret_cast<std::byte*>(values_[2].data())}};
  std::vector<Tensor> tensors_ = {{0, 0, 1, 3}, {1, 0, 1, 3}};
};

TEST_P(LocalCollectives, BroadcastAndReduceBetweenTheFirstDevices) {
  EXPECT_EQ(transport_->size(), 3);
  const Collective reduce = Reduce{.tensors = tensors_, .root = 1};
  run(reduce);
  finish();
  EXPECT_THAT(values_[0], ElementsAre(1, 2, 3)) << "only the root's change";
  EXPECT_THAT(values_[1], ElementsAre(11, 22, 33));
  const Collective broadcast = Broadcast{.tensors = tensors_, .root = 1};
  run(broadcast);
  finish();
  EXPECT_THAT(values_[0], ElementsAre(11, 22, 33));
}

// Work queued before a collective on one device happens before it on all, and work queued after it
// happens afterwards, whichever device is late.
TEST_P(LocalCollectives, KeepTheOrderOfEveryDevicesStream) {
  const DeviceOp pause = Delay{0.003};
  for (const std::size_t late : {std::size_t{0}, std::size_t{1}}) {
    SCOPED_TRACE(late);
    const DeviceOp before[] = {Fill{.out = tensors_[0], .value = 1},
                               Fill{.out = tensors_[1], .value = 2}};
    const DeviceOp later[] = {Fill{.out = tensors_[0], .value = 8},
                              Fill{.out = tensors_[1], .value = 9}};
    const Collective broadcast = Broadcast{.tensors = tensors_, .root = 0};
    const Collective reduce = Reduce{.tensors = tensors_, .root = 0};
    const auto queue = [&](std::size_t device, const DeviceOp& op) {
      devices_[device]->run(op, addresses_, *parts_[device], {});
    };
    const auto run_between = [&](const Collective& collective, std::size_t overwritten) {
      queue(late, pause);
      queue(0, before[0]);
      queue(1, before[1]);
      run(collective);
      queue(overwritten, later[overwritten]);
      finish();
    };
    run_between(broadcast, 0);
    EXPECT_THAT(values_[0], Each(8));
    EXPECT_THAT(values_[1], Each(1));
    run_between(reduce, 1);
    EXPECT_THAT(values_[0], Each(3));
    EXPECT_THAT(values_[1], Each(9));
  }
}

INSTANTIATE_TEST_SUITE_P(DirectlyAndByPieces, LocalCollectives, testing::Bool());

TEST(LocalTransport, RefusesWhatDevicesOfOneProcessDoNotDo) {
  const auto device = make_cpu_device({.threads = 1});
  LocalTransport transport({device.get()}, std::nullopt);
  expect_error(ExitCode::kBug, "devices of one process broadcast and reduce", [&] {
    transport.prepare(AllReduce{.tensors = {{0, 0, 1, 3}}});
  });
  expect_error(ExitCode::kBug, "a collective has a device for each tensor", [&] {
    transport.prepare(Broadcast{.tensors = {{0, 0, 1, 3}}, .root = 1});
  });
}

}  // namespace
}  // namespace barestep
