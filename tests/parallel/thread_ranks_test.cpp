// DDP with ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/checker.h"
#include "core/order.h"
#include "kernels/cpu_device.h"
#include "parallel/ddp.h"
#include "parallel/thread_communicator.h"
#include "train/mlp.h"
#include "train/runner.h"

namespace barestep {
namespace {

constexpr std::int64_t kBatch = 10;
constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kBytes = bytes_of(DType::kF32);

const MlpSpec& spec() {
  static const MlpSpec kSpec{.layout = ParameterLayout({5, 7, 6, 3}), .last_relu = false};
  return kSpec;
}

/// The rows of the global batch that a rank works on: the first ranks take one more.
struct Rows {
  std::int64_t first, count;
};

Rows rows_of(int rank, int ranks) {
  const std::int64_t each = kBatch / ranks;
  const std::int64_t more = kBatch % ranks;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

/// One rank's step. Every rank has the whole batch's x and y and works on its own rows.
struct RankStep {
  RankStep(int rank, int ranks, const DdpOptions& options = {}) : program("rank step", buffers) {
    const Rows rows = rows_of(rank, ranks);
    const auto take = [&](const char* name, Category category, std::int64_t row_count,
                          std::int64_t cols, int slots, bool pinned) {
      const BufferId buffer =
          buffers.get(name, category, row_count * cols * kBytes, 0, slots, pinned);
      return Tensor{buffer, 0, row_count, cols};
    };
    x_host = take("x_host", Category::kData, kBatch, 5, 2, true);
    y_host = take("y_host", Category::kData, kBatch, 3, 2, true);
    const Tensor x = take("x", Category::kData, kBatch, 5, 2, false);
    const Tensor y = take("y", Category::kData, kBatch, 3, 2, false);
    const Tensor loss = take("loss", Category::kData, 1, 1, 2, false);
    scalars = take("scalars", Category::kOptimizer, 1, 2, 1, false);
    add_data(Copy{.to = x, .from = x_host});
    add_data(Copy{.to = y, .from = y_host});
    const Mlp model(buffers, spec(), rows.count);
    const Tensor my_x = x.row_slice(rows.first, rows.count);
    model.forward(program, my_x);
    model.loss(program, y.row_slice(rows.first, rows.count), loss, rows.count);
    model.backward(program, my_x, 0);
    const ParameterLayout& layout = spec().layout;
    parameters = layout.flat(model.parameters());
    const auto moment = [&](const char* name) {
      return layout.flat(buffers.get(name, Category::kOptimizer, layout.bytes()));
    };
    state = {moment("moments1"), moment("moments2"), layout.flat(model.gradients())};
    program.add({.op = DeviceOp{Adam{.weights = parameters,
                                     .grads = layout.flat(model.gradients()),
                                     .moments1 = state[0],
                                     .moments2 = state[1],
                                     .scalars = scalars}},
                 .phase = Phase::kOptimizer});
    DdpOptions scaled = options;
    scaled.scale = static_cast<float>(static_cast<double>(rows.count) / kBatch);
    const GlobalLoss global{.local = loss,
                            .global = take("global_loss", Category::kData, 1, 1, 2, false),
                            .host = take("global_loss_host", Category::kData, 1, 1, 2, true)};
    loss_host = global.host;
    // Small limits, so that this small model has several buckets.
    program = with_gradient_reduction(
        program, gradient_buckets(layout, model.gradients(), 50, 100), global, scaled);
    order(program);
  }

  void add_data(DeviceOp op) {
    program.add({.op = std::move(op), .lane = Lane::kCopy, .phase = Phase::kData});
  }

  Buffers buffers;
  Program program;
  Tensor x_host, y_host, scalars, parameters, loss_host;
  std::vector<Tensor> state;  // moments and gradients: zero at the start
};

/// The same numbers on every rank.
class GlobalBatch final : public StepInput {
 public:
  explicit GlobalBatch(const RankStep& step) : step_(step) {}
  void fill(std::int64_t step, const Program& /*program*/, const Addresses& addresses) override {
    std::minstd_rand random(static_cast<unsigned>(step) + 1);
    std::uniform_real_distribution<float> number(-1, 1);
    for (const Tensor& tensor : {step_.x_host, step_.y_host}) {
      float* values = addresses.at(tensor);
      for (std::int64_t i = 0; i < tensor.size(); ++i) values[i] = number(random);
    }
  }

 private:
  const RankStep& step_;
};

struct Trained {
  std::vector<float> parameters;
  std::vector<float> losses;  // global ones

  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained train_rank(int rank, int ranks, Communicator& communicator, const DdpOptions& options) {
  RankStep step(rank, ranks, options);
  const MemoryPlan plan(step.buffers);
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  Runner runner(std::array<Device*, 1>{device.get()}, &communicator, step.buffers, plan,
                {.fetch = Fetch::kAhead});
  runner.add(step.program);

  const Addresses& addresses = runner.addresses(0);
  for (const Tensor& tensor : step.state) {
    std::fill_n(addresses.at(tensor), tensor.size(), 0.0F);
  }
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> number(-0.4F, 0.4F);
  std::fill_n(addresses.at(step.parameters), step.parameters.size(), 0.0F);
  for (int layer = 0; layer < spec().layout.layers(); ++layer) {
    for (const Tensor& tensor : {spec().layout.weight(step.parameters.buffer, layer),
                                 spec().layout.bias(step.parameters.buffer, layer)}) {
      for (std::int64_t i = 0; i < tensor.size(); ++i) addresses.at(tensor)[i] = number(random);
    }
  }
  addresses.at(step.scalars)[0] = -1e-2F;
  addresses.at(step.scalars)[1] = 1;

  GlobalBatch input(step);
  Trained result;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    runner.step(step.program, &step.program, input);
    result.losses.push_back(*runner.addresses(i).at(step.loss_host));
  }
  const float* values = addresses.at(step.parameters);
  result.parameters = {values, values + step.parameters.size()};
  return result;
}

std::vector<Trained> train(int ranks, const DdpOptions& options = {}) {
  ThreadGroup group(ranks);
  std::vector<Trained> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = group.join(rank);
      results[static_cast<std::size_t>(rank)] = train_rank(rank, ranks, *communicator, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
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
  EXPECT_GT(end_bytes, spec().layout.bytes() - 64);
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
