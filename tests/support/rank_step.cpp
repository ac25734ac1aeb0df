#include "support/rank_step.h"

#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "core/order.h"
#include "core/plan.h"
#include "kernels/cpu_device.h"
#include "parallel/split.h"
#include "train/runner.h"

namespace barestep {
namespace {

constexpr std::int64_t kBatch = 10;
constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kBytes = bytes_of(DType::kF32);

}  // namespace

const MlpSpec& rank_model() {
  static const MlpSpec kSpec{.layout = ParameterLayout({5, 7, 6, 3}), .last_relu = false};
  return kSpec;
}

RankStep::RankStep(int rank, int ranks, const DdpOptions& options, const OptimizerSpec& optimizer)
    : program("rank step", buffers) {
  const auto add_data = [&](DeviceOp op) {
    program.add({.op = std::move(op), .lane = Lane::kCopy, .phase = Phase::kData});
  };
  const Rows rows = share_of_rank(kBatch, rank, ranks);
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
  scalars = take("scalars", Category::kOptimizer, 1, scalars_of(optimizer), 1, false);
  add_data(Copy{.to = x, .from = x_host});
  add_data(Copy{.to = y, .from = y_host});
  const Mlp model(buffers, rank_model(), rows.count);
  const Tensor my_x = x.row_slice(rows.first, rows.count);
  model.forward(program, my_x);
  model.loss(program, y.row_slice(rows.first, rows.count), loss, rows.count);
  model.backward(program, my_x, 0);
  const ParameterLayout& layout = rank_model().layout;
  parameters = layout.flat(model.parameters());
  const OptimizerState kept(buffers, optimizer, layout);
  state = {layout.flat(model.gradients())};
  for (const BufferId buffer : kept.buffers()) state.push_back(layout.flat(buffer));
  program.add({.op = kept.step(model.parameters(), model.gradients(), scalars),
               .phase = Phase::kOptimizer});
  DdpOptions scaled = options;
  scaled.scale = static_cast<float>(static_cast<double>(rows.count) / kBatch);
  const GlobalLoss global{.local = loss,
                          .global = take("global_loss", Category::kData, 1, 1, 2, false),
                          .host = take("global_loss_host", Category::kData, 1, 1, 2, true)};
  loss_host = global.host;
  // Small limits, so that this small model has several buckets.
  program = with_gradient_reduction(program, gradient_buckets(layout, model.gradients(), 50, 100),
                                    global, scaled);
  order(program);
}

namespace {

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

}  // namespace

Trained train_rank(Communicator& communicator, const DdpOptions& options,
                   const OptimizerSpec& optimizer) {
  RankStep step(communicator.rank(), communicator.size(), options, optimizer);
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
  for (int layer = 0; layer < rank_model().layout.layers(); ++layer) {
    for (const Tensor& tensor : {rank_model().layout.weight(step.parameters.buffer, layer),
                                 rank_model().layout.bias(step.parameters.buffer, layer)}) {
      for (std::int64_t i = 0; i < tensor.size(); ++i) addresses.at(tensor)[i] = number(random);
    }
  }
  // The numbers of a late step: Adam's corrections are 1.
  write_scalars({.optimizer = optimizer.kind, .lr = 1e-2, .weight_decay = optimizer.weight_decay},
                1'000'000, 1,
                {addresses.at(step.scalars), static_cast<std::size_t>(step.scalars.size())});

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

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace barestep
