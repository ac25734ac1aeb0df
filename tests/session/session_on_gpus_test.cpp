// Sessions on GPUs of the fake runtime: what they ask of the GPUs before they train.

#include "parallel/comm/nccl_transport.h"
#include "session/session.h"
#include "support/fake_cuda.h"
#include "support/testing.h"

namespace barestep {
namespace {

class SessionOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    constexpr std::int64_t kRoomForNccl = std::int64_t{4} << 30;
    fake_cuda::reset({.devices = 2, .memory_bytes = kRoomForNccl});
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

  Job alone_;
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

}  // namespace
}  // namespace barestep
