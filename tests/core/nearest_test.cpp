#include "core/nearest.h"

#include <gtest/gtest.h>

#include <string>

namespace barestep {
namespace {

TEST(Nearest, FindsSlipsAndAbbreviationsButGuessesNothing) {
  constexpr std::string_view kNames[] = {"sa",         "sc",   "steps",    "lr",
                                         "batch-size", "load", "log-every"};
  EXPECT_EQ(nearest("stpes", kNames), "steps");
  EXPECT_EQ(nearest("step", kNames), "steps");
  EXPECT_EQ(nearest("batch_size", kNames), "batch-size");
  EXPECT_EQ(nearest("lor", kNames), "lr");
  EXPECT_EQ(nearest("sb", kNames), "");
  EXPECT_EQ(nearest("xyz", kNames), "");
  EXPECT_EQ(nearest("", kNames), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), kNames), "");
}

}  // namespace
}  // namespace barestep
