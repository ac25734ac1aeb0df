#include "core/arena.h"

#include "kernels/make_device.h"
#include "support/expect_error.h"
#include "support/forwarding_device.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Records allocations, and refuses one of a given kind on request.
class NotingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    if (refused == kind) fail(ExitCode::kMemory, {.what = "no room", .why = "refused"});
    ++held;
    allocated.emplace_back(bytes, kind);
    return ForwardingDevice::allocate(bytes, kind);
  }
  void release(std::byte* memory, MemoryKind kind) noexcept override {
    --held;
    ForwardingDevice::release(memory, kind);
  }
  std::optional<MemoryKind> refused;
  int held = 0;
  std::vector<std::pair<std::int64_t, MemoryKind>> allocated;
};

class ArenaTest : public testing::Test {
 protected:
  BufferId take(const char* name, std::int64_t bytes, int slots = 1, bool pinned = false) {
    return buffers_.get(name, Category::kData, bytes, 0, slots, pinned);
  }
  std::unique_ptr<Device> cpu_ = make_cpu_device({.threads = 1});
  NotingDevice device_{*cpu_};
  Buffers buffers_;
};

TEST_F(ArenaTest, PlacesBuffersAsThePlanSays) {
  const BufferId a = take("a", 100);
  const BufferId b = take("b", 300, 2);
  const BufferId host = take("host", 40, 2, true);
  const MemoryPlan plan(buffers_);
  const Arena arena(device_, plan, buffers_);
  EXPECT_EQ(arena.at(b, 0) - arena.at(a, 0), plan.offset_bytes(b, 0) - plan.offset_bytes(a, 0));
  EXPECT_EQ(arena.at(b, 1) - arena.at(a, 0), plan.offset_bytes(b, 1) - plan.offset_bytes(a, 0));
  EXPECT_EQ(arena.at(host, 1) - arena.at(host, 0), plan.slot_bytes(host));
  for (const BufferId buffer : {a, b, host}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.at(buffer, 0)) % 256, 0U);
  }
}

TEST_F(ArenaTest, AllocatesOnceAndReachesThePlanWhenEverythingIsBound) {
  take("a", 1000, 2);
  take("b", 70);
  take("host", 8, 1, true);
  const MemoryPlan plan(buffers_);
  {
    std::vector<Arena> arenas;
    arenas.emplace_back(device_, plan, buffers_);
    EXPECT_EQ(arenas[0].high_water_bytes(), 0);
    barestep::bind(buffers_, arenas);
    EXPECT_EQ(arenas[0].high_water_bytes(), plan.device_bytes(0));
    const std::vector<std::pair<std::int64_t, MemoryKind>> expected = {
        {plan.device_bytes(0), MemoryKind::kDevice}, {plan.pinned_bytes(0), MemoryKind::kPinned}};
    EXPECT_EQ(device_.allocated, expected);
    EXPECT_EQ(device_.held, 2);
  }
  EXPECT_EQ(device_.held, 0);
}

TEST_F(ArenaTest, GivesBothSlotsOfABufferToTheStepsInTurn) {
  const BufferId one = take("one", 4);
  const BufferId two = take("two", 4, 2);
  const MemoryPlan plan(buffers_);
  std::vector<Arena> arenas;
  arenas.emplace_back(device_, plan, buffers_);
  const auto tables = barestep::bind(buffers_, arenas);
  const auto at = [&](std::size_t table, BufferId id) {
    return tables[table].at(Tensor{id, 0, 1, 1});
  };
  EXPECT_EQ(at(0, one), at(1, one));
  EXPECT_NE(at(0, two), at(1, two));
}

TEST_F(ArenaTest, TakesNothingWhereNothingIsPlanned) {
  const MemoryPlan plan(buffers_);
  const Arena arena(device_, plan, buffers_);
  EXPECT_TRUE(device_.allocated.empty());
}

TEST_F(ArenaTest, GivesBackWhatItHasWhenTheRestIsRefused) {
  take("a", 1000);
  take("host", 8, 1, true);
  const MemoryPlan plan(buffers_);
  device_.refused = MemoryKind::kPinned;
  expect_error(ExitCode::kMemory, "no room", [&] { const Arena arena(device_, plan, buffers_); });
  EXPECT_EQ(device_.held, 0);
}

TEST_F(ArenaTest, MoreThanTheMachineGivesIsAnErrorThatSaysHowMuch) {
  take("huge", std::int64_t{1} << 56);
  const MemoryPlan plan(buffers_);
  expect_error(ExitCode::kMemory, "memory of device 'cpu': 64.00 PiB could not be allocated; ",
               [&] { const Arena arena(*cpu_, plan, buffers_); });
}

TEST_F(ArenaTest, IsPoisonedWhereTheBuildAsksForIt) {
  if (BARESTEP_POISON == 0) GTEST_SKIP() << "configured without BARESTEP_POISON";
  const BufferId a = take("a", 4000);
  const BufferId host = take("host", 400, 1, true);
  const MemoryPlan plan(buffers_);
  const Arena arena(device_, plan, buffers_);
  for (const auto& [buffer, count] : {std::pair{a, 1000}, {host, 100}}) {
    const auto* numbers = reinterpret_cast<const float*>(arena.at(buffer, 0));
    for (int i = 0; i < count; ++i) EXPECT_TRUE(std::isnan(numbers[i])) << i;
  }
}

}  // namespace
}  // namespace barestep
