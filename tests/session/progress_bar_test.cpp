#include "session/progress_bar.h"

#include "support/testing.h"

namespace barestep {
namespace {

TEST(ProgressBar, ShowsWhatFitsOfItsFields) {
  const Progress progress{.done = 450,
                          .steps = 1000,
                          .samples_per_s = 12345,
                          .left_s = 83.4,
                          .loss = 0.123456,
                          .epoch = 2,
                          .epochs = 5,
                          .accuracy = 0.971};
  const std::string all =
      " 450/1000 | 1:23 left | loss 0.1235 | epoch 2/5 | test 97.10% | 12,345 samples/s";
  EXPECT_EQ(progress_text(progress, 200), "[=============                 ]" + all);
  EXPECT_EQ(progress_text(progress, 12 + 80), "[====      ]" + all);
  EXPECT_EQ(progress_text(progress, 12 + 79),
            "[============                ] 450/1000 | 1:23 left | loss 0.1235 | epoch 2/5 | "
            "test 97.10%");
  EXPECT_EQ(progress_text(progress, 23), "[=====       ] 450/1000");
  EXPECT_EQ(progress_text(progress, 12), "[====      ]");
  EXPECT_EQ(progress_text(progress, 1), "");
}

TEST(ProgressBar, CountsAnythingElse) {
  const std::vector<std::string> fields = {"0:42 left", "amdahl: ranks-2, start 1 of 4"};
  EXPECT_EQ(bar_text(12, 60, fields, 62),
            "[==        ] 12/60 | 0:42 left | amdahl: ranks-2, start 1 of 4");
  EXPECT_EQ(bar_text(12, 60, fields, 61), "[======                        ] 12/60 | 0:42 left");
  EXPECT_EQ(bar_text(0, 2, {}, 20), "[              ] 0/2");
}

TEST(ProgressBar, LeavesOutWhatARunDoesNotHave) {
  const Progress random{.done = 10, .steps = 10, .samples_per_s = 1, .loss = 2};
  EXPECT_EQ(progress_text(random, 100),
            "[==============================] 10/10 | 0:00 left | loss 2 | 1.00 samples/s");
  EXPECT_EQ(progress_text({}, 100).substr(0, 36), "[                              ] 0/0");
}

TEST(ClockText, HasHoursWhereThereAreSome) {
  EXPECT_EQ(clock_text(0.4), "0:00");
  EXPECT_EQ(clock_text(59.6), "1:00");
  EXPECT_EQ(clock_text(754), "12:34");
  EXPECT_EQ(clock_text(3 * 3600 + 61), "3:01:01");
  EXPECT_EQ(clock_text(-1), "0:00");
  EXPECT_EQ(clock_text(1e300), "8784:00:00");
}

}  // namespace
}  // namespace barestep
