// Pipelines whose stages are ranks, as threads. The oracles are accumulation on one rank, for its
// bits, and one rank with whole batches.

#include "kernels/make_device.h"
#include "parallel/comm/staged_transport.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Five layers without a ReLU, whose input could be rounded to the other side of 0.
TrainConfig stage_config() {
  TrainConfig config = rank_config();
  config.model.layers = {6, 8, 5, 7, 9, 4};
  config.model.activation = Activation::kTanh;
  config.model.last_relu = true;
  config.data.batch_size = 12;
  config.optimizer.kind = OptimizerKind::kSgd;
  config.optimizer.lr = 0.1;
  return config;
}

struct Cut {
  std::int64_t tensor = 1, pipeline = 2, micro_batches = 2;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;

  [[nodiscard]] int ranks(int copies = 1) const {
    return copies * static_cast<int>(tensor * pipeline);
  }
  [[nodiscard]] TrainConfig of(TrainConfig config) const {
    config.parallel.tensor = tensor;
    config.parallel.pipeline = pipeline;
    config.parallel.micro_batches = micro_batches;
    config.parallel.schedule = schedule;
    return config;
  }
};

/// The same run on one rank.
TrainConfig alone(TrainConfig config) {
  config.parallel = {};
  config.training.update = Update::kSeparate;
  return config;
}

void expect_accumulated_bits(const TrainConfig& config) {
  Sample sample;
  for (const std::int64_t micro_batches : {1, 2, 3, 6}) {
    TrainConfig accumulates = alone(config);
    accumulates.data.batch_size = config.data.batch_size / micro_batches;
    accumulates.training.accumulate = micro_batches;
    const Trained expected = train_single(accumulates);
    for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
      for (const std::int64_t stages : {2, 3, 5}) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(fmt::format("{}, {} stages, {} micro-batches", name_of(schedule), stages,
                                 micro_batches));
        const Cut cut{.pipeline = stages, .micro_batches = micro_batches, .schedule = schedule};
        TrainConfig own = cut.of(config);
        own.device.instructions = kValuesOf<Instructions>[static_cast<std::size_t>(stages % 4)];
        const auto ranks = train_threads_by(Ddp(small_buckets()), cut.ranks(), own);
        EXPECT_EQ(ranks.front().parameters, expected.parameters);
        for (const Trained& rank : ranks) EXPECT_EQ(rank.losses, expected.losses);
      }
    }
  }
}

TEST(PipelineOfRanks, HasTheBitsOfAccumulationOnOneRank) {
  const TrainConfig usual = stage_config();
  TrainConfig relu = usual, bf16 = usual, fp16 = usual, adds_up = usual;
  relu.model.activation = Activation::kRelu;
  relu.model.dropout = 0.25;
  relu.optimizer = {.kind = OptimizerKind::kAdam, .lr = 1e-2};
  bf16.device.precision = Precision::kBf16;
  fp16.device.precision = Precision::kFp16;
  // A scale that some steps find too large.
  fp16.training.loss_scale = LossScaling{.initial = 0x1p24, .window = 3};
  adds_up.training.zero_grad = false;
  for (const TrainConfig& config : {usual, relu, bf16, fp16, adds_up}) {
    expect_accumulated_bits(config);
  }
}

class PipelineOfRanksWithFiles : public TempDirTest {};

/// The last batch of an epoch has 6 of 8 rows.
TEST_F(PipelineOfRanksWithFiles, HasTheBitsOfAccumulationForClassesAndNumbers) {
  for (const auto run : {&class_run, &number_run}) {
    TrainConfig config = run(folder());
    config.model.layers = {6, 12, 9, 4};
    TrainConfig accumulates = alone(config);
    accumulates.data.batch_size = 2;
    accumulates.training.accumulate = 4;
    const Trained expected = train_single(accumulates);
    for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
      const Cut cut{.pipeline = 3, .micro_batches = 4, .schedule = schedule};
      for (const Trained& rank :
           train_threads_by(Ddp(small_buckets()), cut.ranks(), cut.of(config))) {
        EXPECT_EQ(rank.losses, expected.losses);
        EXPECT_EQ(rank.evaluations, expected.evaluations);
      }
    }
  }
}

/// On `copies` of the cut model.
void expect_as_one_rank(const TrainConfig& config, const Cut& cut, int copies,
                        const Scheme& scheme = Ddp(small_buckets())) {
  SCOPED_TRACE(fmt::format("{} x {} x {}", copies, cut.tensor, cut.pipeline));
  expect_as_one_rank(cut.of(config), cut.ranks(copies), scheme);
}

TEST(PipelineOfRanks, TrainsAsOneRankBesideTensorAndDataRanks) {
  const TrainConfig config = stage_config();
  for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
    const Cut cut{.tensor = 2, .pipeline = 2, .micro_batches = 3, .schedule = schedule};
    expect_as_one_rank(config, cut, 2);
    expect_as_one_rank(config, cut, 2, Zero(1, small_buckets()));
  }
  // Stages that begin and end within a pair of tensor layers, and a copy with fewer rows.
  expect_as_one_rank(config, {.tensor = 3, .pipeline = 5, .micro_batches = 4}, 1);
  expect_as_one_rank(config, {.pipeline = 3, .micro_batches = 2}, 5);
}

// A batch of 11 rows and one of 3, over two copies and four micro-batches.
TEST(PipelineOfRanks, TrainsAsOneRankWhereCopiesHaveOtherNumbersOfMicroBatches) {
  TrainConfig config = stage_config();
  for (const std::int64_t rows : {11, 3}) {
    config.data.batch_size = rows;
    expect_as_one_rank(config, {.pipeline = 2, .micro_batches = 4}, 2);
  }
}

/// The place of the first or last node of a program that `is` one; -1 if there is none.
template <class Property>
std::pair<int, int> first_and_last(const Program& program, Property is) {
  std::pair<int, int> found = {-1, -1};
  for (NodeId id = 0; id < program.size(); ++id) {
    if (!is(program.node(id))) continue;
    if (found.first < 0) found.first = id;
    found.second = id;
  }
  return found;
}

// Another stage waits for the gradient, none for the sums.
TEST(PipelineOfRanks, SendsItsGradientBeforeCopiesSumTheirs) {
  const TrainConfig config = Cut{.pipeline = 2, .micro_batches = 3}.of(stage_config());
  const Ddp ddp(small_buckets());
  for (const int rank : {0, 1, 2, 3}) {
    SCOPED_TRACE(rank);
    const StepPrograms programs = programs_by(ddp, config, rank, 4);
    const Program& program = programs.train().program;
    const auto sums = first_and_last(program, [](const Node& node) {
      const auto* const sum = op_if<AllReduce>(node.op);
      return sum != nullptr && sum->axis == Axis::kData && sum->name.starts_with("bucket");
    });
    const auto exchanges = first_and_last(
        program, [](const Node& node) { return op_if<SendReceive>(node.op) != nullptr; });
    const auto backward =
        first_and_last(program, [](const Node& node) { return node.phase == Phase::kBackward; });
    ASSERT_GE(sums.first, 0);
    EXPECT_GT(sums.first, exchanges.second);
    // The first stage sends no gradient, and sums beside backward.
    if (rank < 2) EXPECT_LT(sums.first, backward.second);
  }
}

// The stream of random numbers goes on everywhere; only the first stage has x, the last one y.
TEST(PipelineOfRanks, DrawsOnlyWhatItsStageReads) {
  TrainConfig config = stage_config();
  config.model.layers = {16, 8, 16, 16};
  for (const bool from_files : {false, true}) {
    for (const int rank : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{}, rank {}", from_files ? "files" : "randn", rank));
      StepSpec spec =
          spec_of_rank(Cut{.pipeline = 3}.of(config), DeviceKind::kCpu, nullptr, rank, 3);
      if (from_files) {
        spec.input.data = DataKind::kIdx;
        spec.input.train_rows = 4 * spec.step_rows();
      }
      const Ddp ddp(small_buckets());
      const StepPrograms programs(spec, &ddp);
      const auto bytes_of_buffer = [&](const char* name) {
        return programs.buffers()[programs.buffers().find(name)].bytes;
      };
      EXPECT_EQ(bytes_of_buffer("x"), rank == 0 ? 12 * 16 * 4 : 0);
      EXPECT_EQ(bytes_of_buffer("y"), rank == 2 ? 12 * 16 * 4 : 0);
      EXPECT_EQ(programs.train().tensors.x.rows, 12);
      std::int64_t drawn = 0, passed = 0;
      for (const Node& node : programs.train().program.nodes()) {
        const auto* const draw = op_if<Randn>(node.op);
        if (draw == nullptr) continue;
        drawn += draw->out.size();
        passed += draw->before + draw->out.size() + draw->after;
      }
      EXPECT_EQ(drawn, from_files || rank == 1 ? 0 : 12 * 16);
      EXPECT_EQ(passed, from_files ? 0 : 2 * 12 * 16);
    }
  }
}

TEST(PipelineOfRanks, HasTheBitsOfAccumulationWhereStagesSkipOthersNumbers) {
  TrainConfig config = stage_config();
  config.model.layers = {16, 8, 5, 7, 9, 16};
  expect_accumulated_bits(config);
  config.data.teacher = true;
  config.data.teacher_noise = 0.1;
  expect_accumulated_bits(config);
}

// Exchanges mirror each other, and no rank waits for itself.
TEST(PipelineOfRanks, HasProgramsThatMeetForAnyStagesAndMicroBatches) {
  TrainConfig config = rank_config();
  config.data.batch_size = 32;
  Sample sample;
  for (const std::int64_t stages : {2, 3, 4, 5, 6, 7, 8}) {
    config.model.layers.assign(static_cast<std::size_t>(stages + 1), 4);
    for (const std::int64_t micro_batches : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
      for (const PipelineSchedule schedule : kValuesOf<PipelineSchedule>) {
        if (!sample.takes_next()) continue;
        const Cut cut{.pipeline = stages, .micro_batches = micro_batches, .schedule = schedule};
        SCOPED_TRACE(fmt::format("{}, {} stages, {} micro-batches", name_of(schedule), stages,
                                 micro_batches));
        EXPECT_NO_THROW(check_all_ranks(cut.of(config), DeviceKind::kCpu, nullptr, cut.ranks()));
      }
    }
  }
}

TEST(PipelineOfRanks, HasProgramsThatNeedEveryWait) {
  TrainConfig config = stage_config();
  config.training.clip_norm = 1;
  config.device.precision = Precision::kFp16;
  const Cut cut{.tensor = 2, .pipeline = 3, .micro_batches = 4};
  const Ddp ddp(small_buckets());
  const Zero zero1(1, small_buckets());
  for (const Scheme* const scheme :
       {static_cast<const Scheme*>(&ddp), static_cast<const Scheme*>(&zero1)}) {
    for (const int rank : {0, 5, 11}) {
      const StepPrograms programs = programs_by(*scheme, cut.of(config), rank, cut.ranks(2));
      EXPECT_GT(expect_every_deletion_found(programs.train().program), 15) << rank;
    }
  }
}

TEST(PipelineOfRanks, EachRankHasItsLayersOnly) {
  const Cut cut{.pipeline = 3, .micro_batches = 3};
  const Ddp scheme(small_buckets());
  // Of 56, 45, 42, 72 and 40 numbers; the largest stage of any other cut is as large or larger.
  const std::int64_t expected[] = {56 + 45, 42, 72 + 40};
  for (int rank = 0; rank < 3; ++rank) {
    const StepPrograms programs = programs_by(scheme, cut.of(stage_config()), rank, 3);
    EXPECT_EQ(programs.parameter_list().size(), expected[rank]);
    EXPECT_EQ(programs.whole_list().size(), expected[0] + expected[1] + expected[2]);
    EXPECT_EQ(programs.train().tensors.own_loss_host.has_value(), rank == 2);
  }
}

/// Lets two of three ranks exchange many times, with other sizes there and back, over `transport`.
template <class Make>
void expect_exchanges(const Make& transport) {
  on_threads(3, [&](ThreadRank& host) {
    RankNumbers numbers(std::vector<float>(1301));
    const std::unique_ptr<Transport> own = transport(host, *numbers.device);
    Transport& ranks = own == nullptr ? host : *own;
    if (host.rank() == 1) return;
    const bool is_first = host.rank() == 0;
    const std::int64_t sent = is_first ? 1001 : 300, received = is_first ? 300 : 1001;
    const Tensor all_sent{0, 0, 1, sent}, all_received{0, 4 * sent, 1, received};
    const Collective both =
        SendReceive{.sends = all_sent, .receives = all_received, .peer = 2 - host.rank()};
    const Collective one_way = is_first ? SendReceive{.sends = all_sent, .peer = 2}
                                        : SendReceive{.receives = all_received, .peer = 0};
    const auto end_of_sent = numbers.values.begin() + sent;
    for (int round = 0; round < 4; ++round) {
      for (const Collective* const each : {&both, &one_way}) {
        const bool receives = !is_first || each == &both;
        const auto base = static_cast<float>(1000 * round + (each == &both ? 1 : 2));
        std::fill(numbers.values.begin(), end_of_sent, base + (is_first ? 0.25F : 0.5F));
        std::fill(end_of_sent, numbers.values.end(), -1.0F);
        numbers.run(ranks, *each, {.step = round});
        EXPECT_EQ(ranks.poll_error(), "");
        const float expected = receives ? base + (is_first ? 0.5F : 0.25F) : -1.0F;
        EXPECT_EQ(std::count(end_of_sent, numbers.values.end(), expected), received);
      }
    }
  });
}

TEST(Exchange, BringsEachRankWhatTheOtherSends) {
  expect_exchanges([](Transport&, Device&) { return std::unique_ptr<Transport>(); });
}

// 512 bytes are pieces of 256 in each direction; 1001 numbers are not a multiple.
TEST(Exchange, BringsItByWayOfPinnedMemoryInPieces) {
  expect_exchanges([](Transport& host, Device& device) -> std::unique_ptr<Transport> {
    return std::make_unique<StagedTransport>(host, device, 512);
  });
}

TEST(Exchange, EndsWhenThePeerGivesUp) {
  EXPECT_THROW(
      on_threads(2,
                 [](ThreadRank& ranks) {
                   if (ranks.rank() == 1) throw std::runtime_error("gave up");
                   const Collective op = SendReceive{.sends = Tensor{0, 0, 1, 1}, .peer = 1};
                   RankNumbers({0}).run(ranks, op);
                   EXPECT_NE(ranks.poll_error(), "");
                 }),
      std::runtime_error);
}

}  // namespace
}  // namespace barestep
