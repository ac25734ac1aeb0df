#include "core/plan.h"

#include "core/program.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(MemoryPlan, RoundsUpSlotsAndKeepsKindsAndDevicesApart) {
  Buffers buffers;
  const BufferId weights = buffers.get("weights", Category::kParameters, 257);
  const BufferId x = buffers.get("x", Category::kData, 100, 0, 2);
  const BufferId host = buffers.get("host", Category::kData, 1, 0, 2, true);
  const BufferId far = buffers.get("far", Category::kActivations, 512, 1);
  const BufferId none = buffers.get("none", Category::kActivations, 0, 1);
  const MemoryPlan plan(buffers);

  EXPECT_EQ(plan.devices(), 2);
  EXPECT_EQ(plan.device_bytes(0), 512 + 2 * 256);
  EXPECT_EQ(plan.category_bytes(0, Category::kParameters), 512);
  EXPECT_EQ(plan.category_bytes(0, Category::kData), 512);
  EXPECT_EQ(plan.category_bytes(0, Category::kActivations), 0);
  EXPECT_EQ(plan.pinned_bytes(0), 512);
  EXPECT_EQ(plan.pinned_category_bytes(0, Category::kData), 512);
  EXPECT_EQ(plan.device_bytes(1), 512);
  EXPECT_EQ(plan.pinned_bytes(1), 0);

  EXPECT_EQ(plan.offset_bytes(weights, 0), 0);
  EXPECT_EQ(plan.offset_bytes(x, 0), 512);
  EXPECT_EQ(plan.offset_bytes(x, 1), 768);
  EXPECT_EQ(plan.offset_bytes(host, 1), 256);
  EXPECT_EQ(plan.offset_bytes(far, 0), 0);
  EXPECT_EQ(plan.offset_bytes(none, 0), 512);
  EXPECT_EQ(plan.buffer_bytes(x), 512);
}

/// Each slot lies inside its allocation, is aligned, and shares no byte with another.
void expect_disjoint(const Buffers& buffers, bool pinned, int device) {
  const MemoryPlan plan(buffers);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const Buffer& buffer = buffers[id];
    if (buffer.pinned != pinned || buffer.device != device) continue;
    for (int slot = 0; slot < buffer.slots; ++slot) {
      const std::int64_t begin = plan.offset_bytes(id, slot);
      EXPECT_EQ(begin % kPlanAlignmentBytes, 0);
      ranges.emplace_back(begin, begin + buffer.bytes);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (const auto& [begin, range_end] : ranges) {
    EXPECT_GE(begin, end);
    end = range_end;
  }
  EXPECT_LE(end, pinned ? plan.pinned_bytes(device) : plan.device_bytes(device));
}

TEST(MemoryPlan, PlacesNoTwoSlotsOnTheSameBytesAndItsCategoriesSumToTheTotal) {
  Buffers buffers;
  for (int device = 0; device < 3; ++device) {
    for (const Category category : kValuesOf<Category>) {
      const std::string name(name_of(category));
      const std::int64_t bytes = 100 * (1 + static_cast<std::int64_t>(category)) + device;
      buffers.get(name, category, bytes, device);
      buffers.get("slots of " + name, category, bytes + 300, device, 2);
      buffers.get("host's " + name, category, bytes, device, 2, true);
    }
  }
  const MemoryPlan plan(buffers);
  ASSERT_EQ(plan.devices(), 3);
  for (int device = 0; device < 3; ++device) {
    expect_disjoint(buffers, false, device);
    expect_disjoint(buffers, true, device);
    std::int64_t sum = 0;
    std::int64_t pinned_sum = 0;
    for (const Category category : kValuesOf<Category>) {
      sum += plan.category_bytes(device, category);
      pinned_sum += plan.pinned_category_bytes(device, category);
    }
    EXPECT_EQ(sum, plan.device_bytes(device));
    EXPECT_EQ(pinned_sum, plan.pinned_bytes(device));
    EXPECT_GT(sum, 0);
  }
}

TEST(MemoryPlan, NeedsNothingForNoBuffers) {
  const MemoryPlan plan{Buffers{}};
  EXPECT_EQ(plan.devices(), 1);
  EXPECT_EQ(plan.device_bytes(0), 0);
}

TEST(MemoryPlan, RefusesSumsBeyondSixtyThreeBits) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto refuses = [](const std::string& what, const Buffers& buffers) {
    expect_error(
        ExitCode::kMemory,
        "size of '" + what + "': is larger than 2^63 - 1; make the model or the batch smaller",
        [&] { const MemoryPlan plan(buffers); });
  };
  Buffers rounded;
  rounded.get("x", Category::kData, kMax);
  refuses("x", rounded);
  Buffers slots;
  slots.get("y", Category::kData, kMax / 2 + 1, 0, 2);
  refuses("y", slots);
  Buffers sum;
  sum.get("a", Category::kData, kMax / 2 + 1);
  sum.get("b", Category::kData, kMax / 2 + 1);
  refuses("all buffers of a device", sum);
}

TEST(MemoryPlan, RefusesToAnswerForWhatItDoesNotKnow) {
  Buffers buffers;
  buffers.get("x", Category::kData, 100);
  const MemoryPlan plan(buffers);
  expect_error(ExitCode::kBug, "no such device in the memory plan",
               [&] { static_cast<void>(plan.device_bytes(1)); });
  expect_error(ExitCode::kBug, "no such buffer in the memory plan",
               [&] { static_cast<void>(plan.offset_bytes(1, 0)); });
  expect_error(ExitCode::kBug, "no such slot in the memory plan",
               [&] { static_cast<void>(plan.offset_bytes(0, 1)); });
}

}  // namespace
}  // namespace barestep
