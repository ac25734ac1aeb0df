#include "core/error.h"

#include <gtest/gtest.h>

namespace barestep {
namespace {

TEST(Error, IsOneLineThatSteersNoTerminal) {
  const Error error(ExitCode::kBadData, {.what = "file",
                                         .value = "a\nb\tc",
                                         .why = "holds '\x1b[2J\x7f'",
                                         .remedy = "look at \xc3\xa9 \xc2\x9b"});
  EXPECT_STREQ(error.what(), "file 'a b c': holds '?[2J?'; look at \xc3\xa9 ??");
}

}  // namespace
}  // namespace barestep
