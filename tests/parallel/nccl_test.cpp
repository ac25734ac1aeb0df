// Ranks over a fake NCCL that needs no GPU.

#include "kernels/make_device.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/schemes/other_schemes.h"
#include "parallel/schemes/zero.h"
#include "support/expect_error.h"
#include "support/fake_nccl.h"
#include "support/file_runs.h"
#include "support/forwarding_device.h"
#include "support/forwarding_transport.h"
#include "support/rank_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Wraps a stream, which it may own; its native() is that stream, which the fake gets in place of a
/// CUDA stream.
class NativeStream final : public Stream {
 public:
  explicit NativeStream(Stream& inner) : inner_(inner) {}
  explicit NativeStream(std::unique_ptr<Stream> owned)
      : owned_(std::move(owned)), inner_(*owned_) {}
  void wait(const Event& event) override { inner_.wait(event); }
  void call(void (*function)(void*), void* argument) override { inner_.call(function, argument); }
  void synchronize() override { inner_.synchronize(); }
  void check() override { inner_.check(); }
  [[nodiscard]] void* native() const override { return &inner_; }

 private:
  std::unique_ptr<Stream> owned_;  // may be null
  Stream& inner_;
};

Stream& unwrapped(Stream& stream) {
  return *static_cast<Stream*>(stream.native());
}

class UnwrappingEvent final : public ForwardingEvent {
 public:
  using ForwardingEvent::ForwardingEvent;
  void record(Stream& stream) override { ForwardingEvent::record(unwrapped(stream)); }
};

/// Accepts and makes NativeStreams.
class UnwrappingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    return std::make_unique<NativeStream>(inner().new_stream(label));
  }
  std::unique_ptr<Event> new_event(EventUse use) override {
    return std::make_unique<UnwrappingEvent>(inner().new_event(use));
  }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    inner().run(op, addresses, unwrapped(stream), tag);
  }
};

/// Forwards NativeStreams.
class WrappingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  explicit WrappingTransport(std::unique_ptr<Transport> owned)
      : ForwardingTransport(*owned), owned_(std::move(owned)) {}
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    NativeStream native(*streams[0]);
    Stream* const wrapped = &native;
    inner().run(collective, addresses, std::span(&wrapped, 1), tag);
  }
  std::unique_ptr<Transport> split(int color) override {
    return std::make_unique<WrappingTransport>(inner().split(color));
  }

 private:
  std::unique_ptr<Transport> owned_;  // of a group
};

/// A rank over NCCL on a CPU device.
class NcclRank {
 public:
  explicit NcclRank(Group& ranks, FlightRecord* record = nullptr)
      : ranks_(ranks), nccl_(join_nccl(ranks, device_, record)), wrapping_(*nccl_) {}
  [[nodiscard]] Transport& get() { return wrapping_; }
  [[nodiscard]] RankOfTest rank() { return {ranks_, wrapping_}; }

 private:
  Group& ranks_;
  std::unique_ptr<Device> cpu_ = make_cpu_device({.threads = 1});
  UnwrappingDevice device_{*cpu_};
  std::unique_ptr<Transport> nccl_;
  WrappingTransport wrapping_;
};

class OverNccl : public TempDirTest {
 protected:
  OverNccl() { fake_nccl::reset(); }
  ~OverNccl() override {
    EXPECT_THAT(fake_nccl::complaints(), IsEmpty());
    EXPECT_EQ(fake_nccl::threads_started(), 0) << "each costs a collective tens of microseconds";
  }

  static std::vector<Trained> train(const Scheme& scheme, int ranks, const TrainConfig& config) {
    std::vector<Trained> results(static_cast<std::size_t>(ranks));
    on_threads(ranks, [&](ThreadRank& host) {
      NcclRank rank(host);
      results[static_cast<std::size_t>(host.rank())] = train_rank_by(scheme, rank.rank(), config);
    });
    return results;
  }

  static void expect_bits_of_threads(const Scheme& scheme, int ranks, const TrainConfig& config) {
    EXPECT_TRUE(train(scheme, ranks, config) == train_threads_by(scheme, ranks, config))
        << ranks << " ranks";
  }
};

TEST_F(OverNccl, RanksComputeTheBitsOfThreads) {
  DdpSettings bf16 = small_buckets();
  bf16.bf16_gradients = true;
  for (const int ranks : {1, 2, 3}) {
    expect_bits_of_threads(Ddp(small_buckets()), ranks, rank_config());
    expect_bits_of_threads(Ddp(bf16), ranks, rank_config());
    expect_bits_of_threads(Zero(1, small_buckets()), ranks, rank_config());
    expect_bits_of_threads(Factor(), ranks, rank_config());
  }
}

TEST_F(OverNccl, RanksThatShareAModelComputeTheBitsOfThreads) {
  TrainConfig config = rank_config();
  config.parallel.tensor = 2;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    config.device.precision = precision;
    for (const int ranks : {2, 4}) {
      expect_bits_of_threads(Ddp(small_buckets()), ranks, config);
      expect_bits_of_threads(Zero(1, small_buckets()), ranks, config);
    }
  }
  EXPECT_GT(fake_nccl::calls("ncclCommSplit"), 0);
}

TEST_F(OverNccl, StagesOfAPipelineComputeTheBitsOfThreads) {
  TrainConfig config = rank_config();
  config.parallel.pipeline = 3;
  config.parallel.micro_batches = 4;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    config.device.precision = precision;
    for (const int ranks : {3, 6}) {
      expect_bits_of_threads(Ddp(small_buckets()), ranks, config);
      expect_bits_of_threads(Zero(1, small_buckets()), ranks, config);
    }
  }
}

/// The last of 30 samples is a batch of its own: the first rank has all of it, the second rank
/// nothing, but both must call the same operation.
TEST_F(OverNccl, RanksCallTheSameOperationWhateverTheirSharesAre) {
  TrainConfig config = class_run(folder());
  config.data.batch_size = 29;
  expect_bits_of_threads(Ddp(small_buckets()), 2, config);
  expect_bits_of_threads(Zero(1, small_buckets()), 2, config);
}

TEST_F(OverNccl, AnyThreadMayAskForErrors) {
  on_threads(2, [&](ThreadRank& host) {
    NcclRank rank(host);
    std::atomic<bool> done = false;
    std::thread watchdog([&] {
      while (!done) EXPECT_EQ(rank.get().poll_error(), "");
    });
    train_rank_by(Ddp(small_buckets()), rank.rank());
    done = true;
    watchdog.join();
  });
}

TEST_F(OverNccl, TheFlightRecordTellsWhichCollectiveTheGpuIsAt) {
  FlightRecord record{};
  RankNumbers numbers(std::vector<float>(256, 1));
  Stream& stream = *numbers.stream;
  const Collective first = AllReduce{.tensors = {Tensor{0, 0, 1, 256}}};
  const Collective second = Broadcast{.tensors = {Tensor{0, 0, 1, 64}}};
  on_threads(1, [&](ThreadRank& host) {
    NcclRank rank(host, &record);
    std::atomic<bool> may_go_on = false;
    stream.call([](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &may_go_on);
    numbers.queue(rank.get(), first, {.program = 0, .step = 7, .node = 1});
    numbers.queue(rank.get(), second, {.program = 0, .step = 7, .node = 2});
    EXPECT_EQ(rank.get().poll_error(), "");
    EXPECT_EQ(record.state(), "all_reduce (1.00 KiB) in step 7");
    may_go_on = true;
    may_go_on.notify_all();
    stream.synchronize();
    EXPECT_EQ(rank.get().poll_error(), "");
    EXPECT_FALSE(record.open(Track::kCollective));
  });
  EXPECT_THAT(record.text(), HasSubstr("all_reduce (1.00 KiB) in step 7"));
}

TEST_F(OverNccl, TheFlightRecordTellsOfCollectivesInGroupsToo) {
  FlightRecord record{};
  on_threads(2, [&](ThreadRank& host) {
    const bool records = host.rank() == 0;
    NcclRank rank(host, records ? &record : nullptr);
    const auto group = rank.get().split(0);
    RankNumbers numbers(std::vector<float>(64, 1));
    const Collective sum = AllReduce{.tensors = {Tensor{0, 0, 1, 64}}};
    if (records) {
      // The other rank has not come yet.
      numbers.queue(*group, sum, {.program = 0, .step = 5, .node = 1});
      EXPECT_EQ(group->poll_error(), "");
      EXPECT_EQ(record.state(), "all_reduce (256 B) in step 5");
    }
    host.barrier();
    if (!records) numbers.queue(*group, sum, {.program = 0, .step = 5, .node = 1});
    numbers.stream->synchronize();
    EXPECT_EQ(group->poll_error(), "");
  });
  EXPECT_FALSE(record.open(Track::kCollective));
}

/// Two devices of one process on the same GPU.
void add_up_on_one_gpu() {
  const auto nccl = join_devices_by_nccl({0, 0});
  const auto cpu = make_cpu_device({.threads = 1});
  const std::unique_ptr<Stream> streams[] = {cpu->new_stream("comm"), cpu->new_stream("comm")};
  std::vector<float> numbers{1, 2, 30, 40};
  const Addresses addresses(std::vector{reinterpret_cast<std::byte*>(numbers.data())});
  const Collective sum = Reduce{.tensors = {Tensor{0, 0, 1, 2}, Tensor{0, 8, 1, 2}}, .root = 0};
  nccl->prepare(sum);
  NativeStream first(*streams[0]);
  NativeStream second(*streams[1]);
  Stream* const wrapped[] = {&first, &second};
  nccl->run(sum, addresses, wrapped, {});
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_THAT(numbers, ElementsAre(31, 42, 30, 40));
}

TEST(FakeNccl, JoinsDevicesOnOneGpuWhereItIsAskedToAndCan) {
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  fake_nccl::reset(23003);
  add_up_on_one_gpu();
  EXPECT_EQ(why_gpus_are_not_shared(), "");
  fake_nccl::reset(22809);
  expect_error(ExitCode::kTryAgain, "NCCL call 'ncclCommInitAll': ", &add_up_on_one_gpu);
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  EXPECT_THAT(fake_nccl::complaints(), IsEmpty());
}

/// Checks that the fake refuses this, so that passing tests are meaningful.
TEST(FakeNccl, TellsOfRanksThatCallDifferentOperations) {
  fake_nccl::reset();
  on_threads(2, [&](ThreadRank& host) {
    NcclRank rank(host);
    RankNumbers numbers(std::vector<float>(8));
    numbers.run(rank.get(), AllReduce{.tensors = {Tensor{0, 0, 1, 4 + host.rank()}}});
  });
  EXPECT_THAT(fake_nccl::complaints(), ElementsAre(HasSubstr("where another calls")));
}

/// Likewise: two ranks that each send first, and not in one group, wait for each other for ever.
TEST(FakeNccl, TellsOfRanksThatBothSendFirst) {
  fake_nccl::reset(22809, std::chrono::seconds(1));
  on_threads(2, [&](ThreadRank& host) {
    NcclRank rank(host);
    RankNumbers numbers(std::vector<float>(8));
    const int peer = 1 - host.rank();
    const Collective sends = SendReceive{.sends = Tensor{0, 0, 1, 4}, .peer = peer};
    const Collective receives = SendReceive{.receives = Tensor{0, 16, 1, 4}, .peer = peer};
    for (const Collective* const each : {&sends, &receives}) numbers.queue(rank.get(), *each);
    numbers.stream->synchronize();
  });
  EXPECT_THAT(fake_nccl::complaints(), Not(IsEmpty()));
}

}  // namespace
}  // namespace barestep
