// Sessions on GPUs of the fake runtime: what they ask of the GPUs before they train, and which
// kernels they choose.

#include "parallel/comm/nccl_transport.h"
#include "session/session.h"
#include "support/fake_cuda.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

class SessionOnGpus : public TempDirTest {
 protected:
  void SetUp() override { restart(); }
  static void restart(std::optional<int> fast_tensor_cores = {}) {
    constexpr std::int64_t kRoomForNccl = std::int64_t{4} << 30;
    fake_cuda::reset(
        {.devices = 2, .memory_bytes = kRoomForNccl, .fast_tensor_cores = fast_tensor_cores});
  }
  void TearDown() override {
    EXPECT_EQ(fake_cuda::allocated_bytes(), 0);
    EXPECT_EQ(fake_cuda::objects(), 0);
    fake_cuda::reset();
  }

  /// How often GPUs were asked to reach each other, by a run on these devices.
  int peers_enabled(std::vector<std::string> devices, TransportKind transport) {
    const int before = fake_cuda::calls("cudaDeviceEnablePeerAccess");
    TrainConfig config;
    config.model.layers = {8, 8};
    config.device.devices = std::move(devices);
    config.parallel.scheme = SchemeKind::kDataParallel;
    config.parallel.transport = transport;
    const auto place = several_devices();
    const Session session(*place, config, alone_);
    return fake_cuda::calls("cudaDeviceEnablePeerAccess") - before;
  }

  /// Two steps of a transformer block, whose kernels are timed whatever their size.
  [[nodiscard]] TrainConfig config_of_block(const std::string& choices) const {
    TrainConfig config;
    config.model = {
        .dim = 16, .depth = 1, .block = BlockKind::kTransformer, .heads = 2, .length = 4};
    config.data.batch_size = 4;
    config.training.steps = 2;
    config.device.autotune = (folder() / choices).string();
    config.output.quiet = true;
    return config;
  }

  Job alone_;
};

/// Whether a device has attention on tensor cores.
bool has_attention_on_tensor_cores(const Device& device) {
  return device.info().product_library.find("attention on tensor cores") != std::string::npos;
}

/// A rank that gives its turn away while it waits for others, since the fake runtime is for one
/// thread.
class GroupInTurns final : public Group {
 public:
  /// `turn` is locked by the calling thread; both must outlive this.
  GroupInTurns(Group& rank, std::mutex& turn)
      : Group(rank.rank(), rank.size()), rank_(rank), turn_(turn) {}

  void broadcast(std::span<std::byte> bytes, int root) override {
    const Away away(turn_);
    rank_.broadcast(bytes, root);
  }
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    const Away away(turn_);
    rank_.all_gather(bytes, all);
  }
  void barrier() override {
    const Away away(turn_);
    rank_.barrier();
  }
  void abort(ExitCode code) noexcept override { rank_.abort(code); }

 private:
  struct Away {
    std::mutex& turn;
    explicit Away(std::mutex& given) : turn(given) { turn.unlock(); }
    ~Away() { turn.lock(); }
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;
  };

  Group& rank_;
  std::mutex& turn_;
};

class JobOfRank final : public Job {
 public:
  explicit JobOfRank(Group& ranks) : ranks_(ranks) {}
  Group* ranks() override { return &ranks_; }

 private:
  Group& ranks_;
};

// Over NCCL too, since scatter and gather are copies.
TEST_F(SessionOnGpus, DistinctGpusReachEachOtherUnderAnyTransport) {
  EXPECT_EQ(peers_enabled({"cuda:0", "cuda:1"}, TransportKind::kPeer), 2);
  EXPECT_EQ(peers_enabled({"cuda:0", "cuda:0"}, TransportKind::kPeer), 0);
  EXPECT_EQ(peers_enabled({"cuda:0", "cuda:1", "cuda:0"}, TransportKind::kPeer), 2);
  if (why_no_nccl().empty()) {
    EXPECT_EQ(peers_enabled({"cuda:0", "cuda:1"}, TransportKind::kNccl), 2);
  }
}

/// The first GPU times; on the other one the other kernels are faster.
TEST_F(SessionOnGpus, DevicesTakeTheFirstOnesChoiceOfAttention) {
  for (const int fast : {0, 1}) {
    SCOPED_TRACE(fast);
    restart(fast);
    TrainConfig config = config_of_block(std::to_string(fast));
    config.device.devices = {"cuda:0", "cuda:1"};
    config.parallel.scheme = SchemeKind::kDataParallel;
    config.parallel.transport = TransportKind::kPeer;
    const auto place = several_devices();
    Session session(*place, config, alone_);
    session.run();
    ASSERT_EQ(place->devices().size(), 2U);
    for (const Device* const device : place->devices()) {
      EXPECT_EQ(has_attention_on_tensor_cores(*device), fast == 0) << device->name();
    }
  }
}

/// The same of ranks, which exchange nothing else here.
TEST_F(SessionOnGpus, RanksTakeTheFirstOnesChoiceOfAttention) {
  for (const int fast : {0, 1}) {
    SCOPED_TRACE(fast);
    restart(fast);
    std::mutex turn;
    on_threads(2, [&](ThreadRank& self) {
      const std::lock_guard lock(turn);
      const std::string number = std::to_string(self.rank());
      GroupInTurns ranks(self, turn);
      JobOfRank job(ranks);
      TrainConfig config = config_of_block(std::to_string(fast) + " of rank " + number);
      config.device.device = "cuda:" + number;
      config.parallel.scheme = SchemeKind::kSingle;
      const auto place = one_device();
      Session session(*place, config, job);
      session.run();
      const Device& device = *place->devices().front();
      EXPECT_EQ(has_attention_on_tensor_cores(device), fast == 0) << device.name();
      EXPECT_EQ(std::filesystem::exists(config.device.autotune), self.rank() == 0)
          << "where it was timed";
    });
  }
}

}  // namespace
}  // namespace barestep
