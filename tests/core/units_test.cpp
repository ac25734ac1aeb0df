#include "core/units.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(HumanBytes, ChoosesTheLargestUnitThatReadsWell) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1610809344), "1.50 GiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(human_bytes(kMax), "8.00 EiB");
}

TEST(HumanBytes, NeverShowsAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(human_bytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(1024 * 1024 - 6), "1023.99 KiB");
}

TEST(NumberText, SaysWhatIsNoNumber) {
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(number_text(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Grouped, PutsACommaBeforeEveryThreeDigits) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(402702336), "402,702,336");
  EXPECT_EQ(grouped(-100), "-100");
  EXPECT_EQ(grouped(-1000), "-1,000");
  EXPECT_EQ(grouped(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Counted, PutsTheNounInThePluralUnlessThereIsOne) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(20, "step"), "20 steps");
  EXPECT_EQ(counted(2, "batch"), "2 batches");
  EXPECT_EQ(counted(60000, "sample"), "60000 samples");
  EXPECT_EQ(noun_for(1, "sample"), "sample");
}

TEST(ParseBytes, AcceptsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("--memory", "1024"), 1024);
  EXPECT_EQ(parse_bytes("--memory", "7 B"), 7);
  EXPECT_EQ(parse_bytes("--memory", "2KiB"), 2048);
  EXPECT_EQ(parse_bytes("--memory", "2kB"), 2000);
  EXPECT_EQ(parse_bytes("--memory", "500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("--memory", "16GiB"), std::int64_t{16} << 30);
  EXPECT_EQ(parse_bytes("--memory", "1.5 GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("--memory", "16gib"), std::int64_t{16} << 30);
  EXPECT_EQ(parse_bytes("--memory", " 0.5 TiB "), std::int64_t{1} << 39);
  EXPECT_EQ(parse_bytes("--memory", "2TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("--memory", "9223372036854775807"), kMax);
  EXPECT_EQ(parse_bytes("--memory", "9007199254740993"), 9007199254740993);
}

TEST(ParseBytes, RefusesEverythingElseByName) {
  for (const char* text : {"",           " ",
                           "0",          "0.0GiB",
                           "-1",         "-1GiB",
                           "+1",         "nan",
                           "inf",        "1e9",
                           "GiB",        ".",
                           "1.2.3GiB",   "16XB",
                           "16 G iB",    "9223372036854775808",
                           "8388608TiB", "99999999999.5TiB",
                           "0.1B",       "1,5GiB",
                           "0x10",       "16GiB!",
                           "12 34",      "\xff"}) {
    SCOPED_TRACE(text);
    const std::string value = *text == '\0' ? "" : " '" + std::string(text) + "'";
    expect_error(ExitCode::kUsage,
                 "--memory" + value +
                     ": is not a number of bytes from 1 to 2^63 - 1; write it like 16GiB, 500MB, "
                     "1.5 GiB or 1048576",
                 [&] { parse_bytes("--memory", text); });
  }
}

TEST(ParseDuration, AcceptsTimesFromLargeToSmallUnits) {
  EXPECT_EQ(parse_duration("--t", "90s"), 90);
  EXPECT_EQ(parse_duration("--t", "10m"), 600);
  EXPECT_EQ(parse_duration("--t", "3h50m"), 13800);
  EXPECT_EQ(parse_duration("--t", "1d1s"), 86401);
  EXPECT_EQ(parse_duration("--t", "1.5h"), 5400);
  EXPECT_EQ(parse_duration("--t", "0.001s"), 0.001);
  EXPECT_EQ(parse_duration("--t", "10000d"), 864e6);
}

TEST(ParseDuration, IsWrittenAsItIsRead) {
  for (const char* text :
       {"10m", "3h50m", "1d", "1h1s", "0.25s", "2m0.001s", "9999d23h59m59.999s"}) {
    EXPECT_EQ(duration_text(parse_duration("--t", text)), text);
  }
  EXPECT_EQ(duration_text(90), "1m30s");
}

TEST(ParseDuration, RefusesEverythingElseByName) {
  for (const char* text : {"", "0s", "10", "m", "-1m", "1m1h", "1m1m", "1x", "1 m", "1.2.3s",
                           "10001d", "9999d24h1s", "0.0001s", "99999999999999999999s"}) {
    SCOPED_TRACE(text);
    const std::string value = *text == '\0' ? "" : " '" + std::string(text) + "'";
    expect_error(ExitCode::kUsage,
                 "--time-limit" + value +
                     ": is not a time from 0.001s to 10000d; write it like 90s, 10m, 3h50m or 1d",
                 [&] { parse_duration("--time-limit", text); });
  }
}

}  // namespace
}  // namespace barestep
