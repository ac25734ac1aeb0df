#include "core/event_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/clock.h"
#include "kernels/cpu_device.h"
#include "support/busy_machine.h"

namespace barestep {
namespace {

TEST(EventClock, TellsWhenAnEventWasReached) {
  const auto device = make_cpu_device({.threads = 1});
  const EventClock clock(*device);
  const auto stream = device->new_stream("test");
  const auto event = device->new_event(EventUse::kTime);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before_s = now_s();
  event->record(*stream);
  event->synchronize();
  const double after_s = now_s();
  EXPECT_GE(clock.time_of(*event), before_s - clock.error_s());
  EXPECT_LE(clock.time_of(*event), after_s + clock.error_s());
}

TEST(EventClock, IsOldASecondAfterItWasCompared) {
  const auto device = make_cpu_device({.threads = 1});
  EventClock clock(*device);
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
