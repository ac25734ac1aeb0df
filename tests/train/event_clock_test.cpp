

#include "core/clock.h"
#include "kernels/make_device.h"
#include "support/busy_machine.h"
#include "support/distant_events.h"
#include "support/testing.h"
#include "train/step_marks.h"

namespace barestep {
namespace {

void expect_to_tell_times(Device& device) {
  const EventClock clock(device);
  const auto stream = device.new_stream("test");
  const auto event = device.new_event(EventUse::kTime);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before_s = now_s();
  event->record(*stream);
  event->synchronize();
  const double after_s = now_s();
  EXPECT_GE(clock.time_of(*event), before_s - clock.error_s());
  EXPECT_LE(clock.time_of(*event), after_s + clock.error_s());
}

TEST(EventClock, TellsWhenAnEventWasReached) {
  const auto cpu = make_cpu_device({.threads = 1});
  expect_to_tell_times(*cpu);
  DistantEvents device(*cpu);
  expect_to_tell_times(device);
}

TEST(EventClock, IsExactAndNeverOldWhereEventsKnowTheHostsTime) {
  const auto cpu = make_cpu_device({.threads = 1});
  EXPECT_EQ(EventClock(*cpu).error_s(), 0);
  EXPECT_FALSE(EventClock(*cpu).is_old());
  DistantEvents device(*cpu);
  EXPECT_GT(EventClock(device).error_s(), 0);
}

TEST(EventClock, IsOldASecondAfterItWasCompared) {
  const auto cpu = make_cpu_device({.threads = 1});
  DistantEvents device(*cpu);
  EventClock clock(device);
  const double compared_s = now_s();
  while (!clock.is_old()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GT(now_s() - compared_s, 0.9);
  repeat_while_busy([&] {
    clock.compare();
    EXPECT_FALSE(clock.is_old());
  });
}

}  // namespace
}  // namespace barestep
