// Records of a CUDA device by its events, on the fake runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/clock.h"
#include "kernels/on_fake.h"
#include "profiler/gpu_event_records.h"
#include "profiler/profiled_device.h"
#include "support/busy_machine.h"

namespace barestep {
namespace {

class CudaRecords : public OnFake {
 protected:
  /// Fills, profiled, and returns what was recorded.
  void fill(ProfiledDevice& profiled, std::int64_t step) {
    const Tensor out{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 4};
    const DeviceOp op = Fill{.out = out};
    const DeviceMemory memory(*device, 256);
    const Addresses addresses(std::vector{memory.get()});
    profiled.run(op, addresses, *stream, {.program = 0, .step = step, .node = 3});
    stream->synchronize();
  }
};

TEST_F(CudaRecords, ComeFromEventsAroundEachOp) {
  // The fake's events know the host's time, up to when the clocks were compared.
  constexpr double kNear = 0.01;
  repeat_while_busy([&] {
    RecordCollector collector({.first = 0, .end = 10}, 100);
    GpuEventRecords events({device.get()}, collector, "for the test");
    ProfiledDevice profiled(*device, collector, &events);
    fill(profiled, 0);
    events.turn(true, true);
    profiled.turn(true);
    const double before_s = now_s();
    fill(profiled, 1);
    fill(profiled, 2);
    events.collect();
    profiled.turn(false);
    events.turn(false, false);
    fill(profiled, 3);
    const double after_s = now_s();
    ASSERT_EQ(collector.records().size(), 2U);
    EXPECT_EQ(collector.queued().size(), 2U);
    double last_s = before_s;
    for (std::size_t i = 0; i < 2; ++i) {
      const Record& record = collector.records()[i];
      EXPECT_EQ(record.label, "fill");
      EXPECT_EQ(record.tag.step, static_cast<std::int64_t>(i) + 1);
      EXPECT_EQ(record.tag.node, 3);
      EXPECT_GE(record.start_s, last_s - kNear);
      EXPECT_GE(record.end_s, record.start_s);
      EXPECT_LE(record.end_s, after_s + kNear);
      last_s = record.start_s;
    }
  });
}

/// The events of a capture would be marks in a graph.
TEST_F(CudaRecords, AreNotMadeOfWhatIsCaptured) {
  RecordCollector collector({.first = 0, .end = 10}, 100);
  GpuEventRecords events({device.get()}, collector, "for the test");
  ProfiledDevice profiled(*device, collector, &events);
  const Tensor out{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 4};
  const DeviceOp op = Fill{.out = out};
  const DeviceMemory memory(*device, 256);
  const Addresses addresses(std::vector{memory.get()});
  events.turn(true, true);
  profiled.turn(true);
  profiled.begin_capture(*stream);
  profiled.run(op, addresses, *stream, {});
  const auto graph = profiled.end_capture(*stream);
  events.finish();
  EXPECT_TRUE(collector.records().empty());
  EXPECT_TRUE(collector.queued().empty());
  EXPECT_FALSE(events.knows_graphs());
}

}  // namespace
}  // namespace barestep
