// A simulated step has the parts that a measured one has: for every scheme, on real streams and
// ranks that are threads, whose nodes sleep for as long as the simulator is told that they take.
#include "core/clock.h"
#include "kernels/make_device.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "parallel/comm/local_transport.h"
#include "parallel/comm/mesh_transport.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/scheme_of.h"
#include "profiler/account.h"
#include "support/busy_machine.h"
#include "support/forwarding_device.h"
#include "support/forwarding_transport.h"
#include "support/rank_run.h"
#include "support/testing.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// Products take 2 ms, updates 3 ms, collectives of more than a number 5 ms, and all else nothing.
double pause_of(const Node& node) {
  if (node.phase == Phase::kData) return 0;
  if (const auto* const collective = std::get_if<Collective>(&node.op)) {
    return cost_of(*collective).message_bytes > 8 ? 5e-3 : 0;
  }
  if (product_of(std::get<DeviceOp>(node.op))) return 2e-3;
  return node.phase == Phase::kOptimizer ? 3e-3 : 0;
}

double seconds_of(const Node& node) {
  const auto* const delay = op_if<Delay>(node.op);
  return delay == nullptr ? pause_of(node) : delay->seconds;
}

/// Sleeps in streams in front of nodes, and makes their records begin with the sleep.
class Pauses {
 public:
  explicit Pauses(const StepPrograms& programs) : programs_(programs) {}

  void queue(Stream& stream, const Tag& tag, int device) {
    if (tag.node < 0) return;
    const double seconds = pause_of(at(programs_.all(), tag.program)->program.node(tag.node));
    const std::lock_guard lock(mutex_);
    const auto [pause, is_new] =
        pauses_.try_emplace({tag.program, tag.node, device}, Pause{.seconds = seconds});
    stream.call(&Pauses::take, &pause->second);
  }
  [[nodiscard]] Record with_pause(Record record) {
    const std::lock_guard lock(mutex_);
    const auto found = pauses_.find({record.tag.program, record.tag.node, record.device});
    if (found != pauses_.end()) record.start_s = found->second.begin_s;
    return record;
  }

 private:
  struct Pause {
    double seconds = 0, begin_s = 0;
  };
  static void take(void* argument) {
    auto& pause = *static_cast<Pause*>(argument);
    pause.begin_s = now_s();
    std::this_thread::sleep_for(std::chrono::duration<double>(pause.seconds));
  }

  const StepPrograms& programs_;
  std::mutex mutex_;
  std::map<std::tuple<int, NodeId, int>, Pause> pauses_;
};

class SleepyDevice final : public ForwardingDevice, public RecordSink {
 public:
  SleepyDevice(Device& inner, Pauses& pauses, const StepPrograms& programs)
      : ForwardingDevice(inner), pauses_(pauses), programs_(programs) {
    inner.set_record_sink(this);
  }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    // The pieces of a collective come after its own pause.
    const bool is_node =
        tag.node >= 0 && std::holds_alternative<DeviceOp>(
                             at(programs_.all(), tag.program)->program.node(tag.node).op);
    if (is_node) pauses_.queue(stream, tag, index());
    ForwardingDevice::run(op, addresses, stream, tag);
  }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }
  void on_record(const Record& record) override {
    if (sink_ != nullptr) sink_->on_record(pauses_.with_pause(record));
  }

 private:
  Pauses& pauses_;
  const StepPrograms& programs_;
  RecordSink* sink_ = nullptr;
};

class SleepyTransport final : public ForwardingTransport, public RecordSink {
 public:
  SleepyTransport(Transport& inner, Pauses& pauses) : ForwardingTransport(inner), pauses_(pauses) {
    inner.set_record_sink(this);
  }
  ~SleepyTransport() override { inner().set_record_sink(nullptr); }
  SleepyTransport(const SleepyTransport&) = delete;
  SleepyTransport& operator=(const SleepyTransport&) = delete;

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    for (std::size_t device = 0; device < streams.size(); ++device) {
      pauses_.queue(*streams[device], tag, static_cast<int>(device));
    }
    ForwardingTransport::run(collective, addresses, streams, tag);
  }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }
  void on_record(const Record& record) override {
    if (sink_ != nullptr) sink_->on_record(pauses_.with_pause(record));
  }

 private:
  Pauses& pauses_;
  RecordSink* sink_ = nullptr;
};

/// The account of the step that takes as long as the median one: a busy machine slows some down,
/// and the next ones wait less.
class MedianAccount final : public TrainObserver {
 public:
  void on_step(const StepReport& report) override {
    constexpr std::int64_t kWarmUp = 2;
    if (report.step >= kWarmUp) accounts_.push_back(account_of(*report.timeline, kMainLane));
  }

  [[nodiscard]] StepAccount take() {
    const auto middle = accounts_.begin() + std::ssize(accounts_) / 2;
    std::ranges::nth_element(accounts_, middle, {}, &StepAccount::wall_s);
    return *middle;
  }

 private:
  std::vector<StepAccount> accounts_;
};

/// A way to share a step of a model with four layers.
struct Share {
  const char* name;
  SchemeKind scheme = SchemeKind::kDdp;
  int ranks = 2;  // or devices
  void (*change)(ParallelConfig& parallel, TrainConfig& config) = [](auto&, auto&) {};
  std::vector<Part> waits{};  // of rank or device 0, each longer than a twentieth of the step
};

class SimulatedAccounts : public testing::TestWithParam<Share> {
 protected:
  SimulatedAccounts() {
    config_.model.layers = {8, 8, 8, 8, 8};
    config_.data.batch_size = 8;
    config_.training.steps = 9;
    config_.training.update = Update::kSeparate;
    config_.device.threads = 1;
    config_.device.gemm = GemmProvider::kReference;
    config_.parallel.scheme = GetParam().scheme;
    GetParam().change(config_.parallel, config_);
    if (!has_ranks()) config_.device.devices.assign(static_cast<std::size_t>(count()), "cpu");
    scheme_ = scheme_of(config_, {.devices = count()});
    for (int rank = 0; rank < (has_ranks() ? count() : 1); ++rank) {
      const StepSpec spec = has_ranks()
                                ? spec_of_rank(config_, DeviceKind::kCpu, nullptr, rank, count())
                                : spec_of(config_, DeviceKind::kCpu, nullptr);
      programs_.push_back(std::make_unique<StepPrograms>(spec, scheme_.get()));
    }
  }

  [[nodiscard]] static bool has_ranks() { return barestep::has_ranks(GetParam().scheme); }
  [[nodiscard]] static int count() { return GetParam().ranks; }

  [[nodiscard]] StepAccount measured(int rank, ThreadRank* ranks) const {
    const StepPrograms& programs = *at(programs_, rank);
    Pauses pauses(programs);
    std::vector<std::unique_ptr<Device>> opened;
    std::vector<Device*> devices;
    for (int i = 0; i < (has_ranks() ? 1 : count()); ++i) {
      opened.push_back(make_cpu_device({.index = i, .threads = 1, .gemm = config_.device.gemm}));
      opened.push_back(std::make_unique<SleepyDevice>(*opened.back(), pauses, programs));
      devices.push_back(opened.back().get());
    }
    std::unique_ptr<Transport> moves, transport;
    if (ranks != nullptr) {
      moves = join_mesh(*ranks, programs.spec().mesh);
    } else if (scheme_ != nullptr) {
      moves = std::make_unique<LocalTransport>(devices, reduce_piece_of(programs.buffers()));
    }
    if (moves) transport = std::make_unique<SleepyTransport>(*moves, pauses);
    Trainer trainer(config_, programs, devices, {ranks, transport.get()}, nullptr);
    MedianAccount median;
    trainer.run(median);
    return median.take();
  }

  /// By rank.
  [[nodiscard]] std::vector<StepAccount> measured() const {
    std::vector<StepAccount> accounts(programs_.size());
    if (!has_ranks()) {
      accounts[0] = measured(0, nullptr);
    } else {
      on_threads(count(), [&](ThreadRank& ranks) {
        at(accounts, ranks.rank()) = measured(ranks.rank(), &ranks);
      });
    }
    return accounts;
  }

  [[nodiscard]] std::vector<SimulatedStep> simulated() const {
    std::vector<RankProgram> ranks;
    for (const auto& each : programs_) ranks.push_back({each->train().program, each->spec().mesh});
    return simulate(ranks, [](const Program&, const Node& node) { return seconds_of(node); });
  }

  TrainConfig config_;
  std::unique_ptr<Scheme> scheme_;
  std::vector<std::unique_ptr<StepPrograms>> programs_;
};

TEST_P(SimulatedAccounts, HaveThePartsOfMeasuredOnes) {
  const std::vector<SimulatedStep> steps = simulated();
  const SimulatedStep& first = steps.front();
  for (const Part part : kValuesOf<Part>) {
    const auto& waits = GetParam().waits;
    const bool is_long = first.account[part] > first.step_s / 20;
    const bool is_work = traits_of(part).work_of && part != Part::kExposedCommunication;
    if (is_work) continue;
    EXPECT_EQ(is_long, std::ranges::count(waits, part) > 0) << name_of(part);
  }
  repeat_while_busy([&] {
    const std::vector<StepAccount> accounts = measured();
    for (std::size_t rank = 0; rank < accounts.size(); ++rank) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      const double within_s = steps[rank].step_s / 10;
      for (const Part part : kValuesOf<Part>) {
        EXPECT_NEAR(steps[rank].account[part], accounts[rank][part], within_s) << name_of(part);
      }
      EXPECT_NEAR(steps[rank].account.hidden_communication_s, accounts[rank].hidden_communication_s,
                  within_s);
      EXPECT_NEAR(steps[rank].step_s, accounts[rank].wall_s, within_s);
    }
  });
}

using enum Part;
using enum SchemeKind;

const Share kAll[] = {
    {.name = "OneDevice", .scheme = kSingle, .ranks = 1},
    {.name = "Ddp", .waits = {kExposedCommunication}},
    {.name = "DdpOfSmallBuckets",
     .change = [](auto& parallel, auto&) { parallel.bucket_mib = 1e-4; },
     .waits = {kExposedCommunication}},
    {.name = "DdpWithASlowRank",
     .change =
         [](auto&, auto& config) {
           config.injected.slow_rank = SlowRank{1, 20};
         },
     .waits = {kExposedCommunication}},
    {.name = "Zero1", .scheme = kZero1, .waits = {kExposedCommunication}},
    {.name = "Zero2", .scheme = kZero2, .waits = {kExposedCommunication}},
    {.name = "Zero3", .scheme = kZero3, .waits = {kExposedCommunication}},
    {.name = "Factor", .scheme = kFactor, .waits = {kExposedCommunication}},
    {.name = "Server", .scheme = kServer, .waits = {kExposedCommunication}},
    {.name = "TensorRanks",
     .change = [](auto& parallel, auto&) { parallel.tensor = 2; },
     .waits = {kTensorRanks}},
    {.name = "Stages",
     .change =
         [](auto& parallel, auto&) {
           parallel.pipeline = 2;
           parallel.micro_batches = 4;
         },
     .waits = {kOtherStages}},
    {.name = "TensorRanksOfStages",
     .ranks = 4,
     .change =
         [](auto& parallel, auto&) {
           parallel.tensor = parallel.pipeline = 2;
           parallel.micro_batches = 2;
         },
     .waits = {kTensorRanks, kOtherStages}},
    {.name = "DataParallel", .scheme = kDataParallel, .waits = {kExposedCommunication}},
    {.name = "StagesOfDevices",
     .scheme = kDataParallel,
     .change =
         [](auto& parallel, auto&) {
           parallel.pipeline = 2;
           parallel.micro_batches = 2;
         },
     .waits = {kOtherDevice}}};

INSTANTIATE_TEST_SUITE_P(OfSchemes, SimulatedAccounts, testing::ValuesIn(kAll),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace barestep
