#include "profiler/checklist.h"

#include <gtest/gtest.h>

namespace barestep {
namespace {

TEST(Checklist, MarksWhatHoldsAndSaysHow) {
  const Conditions good{.governor = "performance",
                        .lost_share = 0.003,
                        .seed = 7,
                        .warmup_steps = 5,
                        .steps = 25,
                        .starts = 9};
  EXPECT_EQ(
      checklist_line(checklist(good)),
      "Checklist: [x] no frequency scaling: governor performance; [x] no other programs: they "
      "took 0.3 % of the time; [x] seed: 7; [x] warm-up: 5 steps left out; [x] repeats: 9 "
      "starts of 25 steps");
}

TEST(Checklist, LeavesBlankWhatDoesNotHold) {
  const Conditions bad{.governor = "powersave", .lost_share = 0.26, .steps = 1, .starts = 5};
  EXPECT_EQ(checklist_line(checklist(bad)),
            "Checklist: [ ] no frequency scaling: governor powersave; [ ] no other programs: they "
            "took 26.0 % of the time; [x] seed: 0; [ ] warm-up: 0 steps left out; [ ] repeats: 5 "
            "starts of 1 step");
}

TEST(Checklist, MarksWhatIsUnknown) {
  const std::vector<CheckedItem> items = checklist({});
  EXPECT_EQ(items[0].holds, Holds::kUnknown);
  EXPECT_EQ(items[0].is, "the system does not say");
  EXPECT_EQ(items[1].holds, Holds::kUnknown);
}

}  // namespace
}  // namespace barestep
