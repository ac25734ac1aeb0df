#include "core/error.h"

#include "support/testing.h"

namespace barestep {
namespace {

TEST(Error, IsOneLineThatSteersNoTerminal) {
  const Error error(ExitCode::kBadData, {.what = "file",
                                         .value = "a\nb\tc",
                                         .why = "holds '\x1b[2J\x7f'",
                                         .remedy = "look at \xc3\xa9 \xc2\x9b"});
  EXPECT_STREQ(error.what(), "file 'a b c': holds '?[2J?'; look at \xc3\xa9 ??");
}

TEST(Error, IsALineThatCanBeReadWhateverItQuotes) {
  const std::string name = "start-" + std::string(1 << 20, 'x') + "-end";
  const std::string line =
      Error(ExitCode::kBadData, {.what = name, .value = name, .why = name, .remedy = name}).what();
  EXPECT_LT(line.size(), 2000U);
  EXPECT_TRUE(line.starts_with("start-x"));
  EXPECT_NE(line.find("xxx...xxx"), std::string::npos);
  EXPECT_TRUE(line.ends_with("x-end"));
  // A character of several bytes is kept or left out whole.
  for (const std::size_t shift : {0UL, 1UL, 2UL}) {
    std::string text(shift, 'x');
    for (int i = 0; i < 1000; ++i) text += "\u20ac";
    std::string rest = Error(ExitCode::kBadData, {.what = text}).what();
    for (std::size_t at; (at = rest.find("\u20ac")) != std::string::npos;) rest.erase(at, 3);
    EXPECT_EQ(rest, std::string(shift, 'x') + "...");
  }
}

TEST(Nearest, FindsSlipsAndAbbreviationsButGuessesNothing) {
  constexpr std::string_view kNames[] = {"sa",         "sc",   "steps",    "lr",
                                         "batch-size", "load", "log-every"};
  EXPECT_EQ(nearest("stpes", kNames), "steps");
  EXPECT_EQ(nearest("step", kNames), "steps");
  EXPECT_EQ(nearest("batch_size", kNames), "batch-size");
  EXPECT_EQ(nearest("lor", kNames), "lr");
  EXPECT_EQ(nearest("sb", kNames), "");
  EXPECT_EQ(nearest("load", std::array<std::string_view, 2>{"load", "loud"}), "load");
  EXPECT_EQ(nearest("xyz", kNames), "");
  EXPECT_EQ(nearest("", kNames), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), kNames), "");
}

}  // namespace
}  // namespace barestep
