#include "core/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/error.h"
#include "support/sample_programs.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

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
  const SampleProgram sample = data_parallel_step({.widths = {33, 65, 17}, .rows = 10}, 3);
  const MemoryPlan plan(*sample.buffers);
  ASSERT_EQ(plan.devices(), 3);
  for (int device = 0; device < 3; ++device) {
    expect_disjoint(*sample.buffers, false, device);
    expect_disjoint(*sample.buffers, true, device);
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

std::string memory_error(const Buffers& buffers) {
  try {
    const MemoryPlan plan(buffers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kMemory);
    return error.what();
  }
  return "no error";
}

TEST(MemoryPlan, RefusesSumsBeyondSixtyThreeBits) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::string end = "': is larger than 2^63 - 1; make the model or the batch smaller";
  Buffers rounded;
  rounded.get("x", Category::kData, kMax);
  EXPECT_EQ(memory_error(rounded), "size of 'x" + end);
  Buffers slots;
  slots.get("y", Category::kData, kMax / 2 + 1, 0, 2);
  EXPECT_EQ(memory_error(slots), "size of 'y" + end);
  Buffers sum;
  sum.get("a", Category::kData, kMax / 2 + 1);
  sum.get("b", Category::kData, kMax / 2 + 1);
  EXPECT_EQ(memory_error(sum), "size of 'all buffers of a device" + end);
}

TEST(MemoryPlan, RefusesToAnswerForWhatItDoesNotKnow) {
  Buffers buffers;
  buffers.get("x", Category::kData, 100);
  const MemoryPlan plan(buffers);
  const auto message = [](auto question) -> std::string {
    try {
      question();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBug);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { static_cast<void>(plan.device_bytes(1)); }),
              HasSubstr("no such device in the memory plan"));
  EXPECT_THAT(message([&] { static_cast<void>(plan.offset_bytes(1, 0)); }),
              HasSubstr("no such buffer in the memory plan"));
  EXPECT_THAT(message([&] { static_cast<void>(plan.offset_bytes(0, 1)); }),
              HasSubstr("no such slot in the memory plan"));
}

}  // namespace
}  // namespace barestep
