#include "profiler/checklist.h"

#include "support/testing.h"

namespace barestep {
namespace {

TEST(Checklist, MarksWhatHoldsAndSaysHow) {
  const Conditions good{.governor = "performance",
                        .lost_share = 0.003,
                        .seed = 7,
                        .warmup_steps = 5,
                        .steps = 25,
                        .starts = 9};
  EXPECT_EQ(checklist_line(checklist(good)),
            "Checklist: [x] no frequency scaling: governor performance; [x] no other programs: "
            "they took 0.3 % of the time; [x] seed: 7; [x] warm-up: 5 steps left out; [x] repeats: "
            "9 starts of 25 steps");
}

TEST(Checklist, LeavesBlankWhatDoesNotHold) {
  const Conditions bad{.governor = "powersave",
                       .lost_share = 0.26,
                       .seed = 0,
                       .warmup_steps = 0,
                       .steps = 1,
                       .starts = 5};
  EXPECT_EQ(checklist_line(checklist(bad)),
            "Checklist: [ ] no frequency scaling: governor powersave; [ ] no other programs: they "
            "took 26.0 % of the time; [x] seed: 0; [ ] warm-up: 0 steps left out; [ ] repeats: 5 "
            "starts of 1 step");
}

TEST(Checklist, MarksWhatIsUnknown) {
  EXPECT_EQ(checklist_line(checklist({.source = "trace", .steps = 3})),
            "Checklist: [?] no frequency scaling: the trace does not say; [?] no other programs: "
            "the trace does not say; [?] seed: the trace does not say; [?] warm-up: the trace does "
            "not say; [ ] repeats: 1 start of 3 steps");
  EXPECT_EQ(checklist({}).front().is, "the system does not say");
  EXPECT_EQ(checklist_line({}), "");
}

}  // namespace
}  // namespace barestep
