// NCCL with one rank, which needs one GPU and no MPI: eagerly, and captured on a stream that forks
// from another one, as in a training step.

#include "gpu/cuda_harness.h"
#include "parallel/comm/nccl_transport.h"
#include "support/rank_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::int64_t kCount = 1000;

/// A rank on the first GPU, and numbers that its collectives change. Exchanges are with itself.
class OneRankOverNccl : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    memory_ = std::make_unique<DeviceMemory>(*device, 4 * kCount);
    addresses_ = Addresses(std::vector{memory_->get()});
    comm_ = device->new_stream("comm");
    for (std::int64_t i = 0; i < kCount; ++i) numbers_.push_back(static_cast<float>(i));
    device->copy(memory_->get(), numbers_.data(), 4 * kCount, *stream);
    stream->synchronize();
  }
  void TearDown() override {
    comm_.reset();
    memory_.reset();
  }

  /// Calls use(transport) with the numbers' sum over all ranks, which is `scale` times them.
  template <class Use>
  void joined(const Use& use) {
    on_threads(1, [&](Group& host) {
      const auto nccl = join_nccl(host, *device);
      for (const Collective* each : {&sum_, &broadcast_, &exchange_}) nccl->prepare(*each);
      use(*nccl);
      EXPECT_EQ(nccl->poll_error(), "");
    });
  }
  void run(Transport& nccl, const Collective& collective) {
    Stream* const streams[] = {comm_.get()};
    nccl.run(collective, addresses_, streams, {});
  }
  /// Launches twice a graph of these collectives, which ran before: the first one sets up
  /// connections, which a capture does not allow.
  void run_in_a_graph(Transport& nccl, std::vector<const Collective*> collectives) {
    const auto forked = device->new_event(EventUse::kOrder);
    const auto joined_again = device->new_event(EventUse::kOrder);
    comm_->synchronize();
    device->begin_capture(*stream);
    forked->record(*stream);
    comm_->wait(*forked);
    for (const Collective* each : collectives) run(nccl, *each);
    joined_again->record(*comm_);
    stream->wait(*joined_again);
    const auto graph = device->end_capture(*stream);
    for (int launch = 0; launch < 2; ++launch) device->launch(*graph, *stream, 0);
    stream->synchronize();
  }
  void expect_numbers_times(float factor) {
    std::vector<float> now(numbers_.size());
    device->copy(now.data(), memory_->get(), 4 * kCount, *comm_);
    comm_->synchronize();
    for (std::size_t i = 0; i < now.size(); ++i) ASSERT_EQ(now[i], factor * numbers_[i]) << i;
  }

  const Tensor tensor_{0, 0, 1, kCount};
  const Collective sum_ = AllReduce{.tensors = {tensor_}, .scale = 0.5F};
  const Collective broadcast_ = Broadcast{.tensors = {tensor_}, .root = 0};
  // The first quarter becomes the second one.
  const Collective exchange_ = SendReceive{.sends = Tensor{0, 0, 1, kCount / 4},
                                           .receives = Tensor{0, kCount, 1, kCount / 4}};
  std::unique_ptr<DeviceMemory> memory_;
  Addresses addresses_;
  std::unique_ptr<Stream> comm_;
  std::vector<float> numbers_;
};

TEST_F(OneRankOverNccl, ReducesAndBroadcasts) {
  joined([&](Transport& nccl) {
    run(nccl, sum_);
    run(nccl, broadcast_);
    comm_->synchronize();
    expect_numbers_times(0.5F);
  });
}

TEST_F(OneRankOverNccl, ReducesInAGraphThatIsLaunchedTwice) {
  joined([&](Transport& nccl) {
    run(nccl, sum_);
    run_in_a_graph(nccl, {&sum_});
    expect_numbers_times(0.125F);
  });
}

TEST_F(OneRankOverNccl, ReducesInAGroup) {
  joined([&](Transport& nccl) {
    const auto group = nccl.split(0);
    group->prepare(sum_);
    run(*group, sum_);
    run_in_a_graph(*group, {&sum_});
    expect_numbers_times(0.125F);
    EXPECT_EQ(group->poll_error(), "");
  });
}

TEST_F(OneRankOverNccl, ExchangesAlsoInAGraph) {
  joined([&](Transport& nccl) {
    run(nccl, exchange_);
    for (std::size_t i = 0; i < kCount / 4; ++i) numbers_[kCount / 4 + i] = numbers_[i];
    comm_->synchronize();
    expect_numbers_times(1);
    run_in_a_graph(nccl, {&sum_, &exchange_});
    expect_numbers_times(0.25F);
  });
}

}  // namespace
}  // namespace barestep
