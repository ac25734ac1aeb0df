// The expected figures come from NumPy 1.24: mean, std(ddof=1), percentile.
#include "core/statistics.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(Statistics, AreThoseOfNumPy) {
  const std::vector<double> values{3.5, -1.25, 8.0, 0.5, 2.75, 2.75, 100.0};
  const Statistics found = statistics_of(values);
  EXPECT_DOUBLE_EQ(found.mean, 16.607142857142858);
  EXPECT_DOUBLE_EQ(found.stddev, 36.88406869923008);
  EXPECT_DOUBLE_EQ(found.p5, -0.7249999999999999);
  EXPECT_DOUBLE_EQ(found.p50, 2.75);
  EXPECT_DOUBLE_EQ(found.p95, 72.39999999999993);
  EXPECT_DOUBLE_EQ(found.p99, 94.47999999999996);
}

TEST(Statistics, KeepTheirDigitsFarFromZero) {
  const std::vector<double> values{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16};
  EXPECT_DOUBLE_EQ(statistics_of(values).mean, 1000000010.0);
  EXPECT_DOUBLE_EQ(statistics_of(values).stddev, 5.477225575051661);
}

TEST(Statistics, OfASingleValueHaveNoSpread) {
  const std::vector<double> values{0.25};
  const Statistics found = statistics_of(values);
  EXPECT_EQ(found.mean, 0.25);
  EXPECT_EQ(found.stddev, 0);
  EXPECT_EQ(found.p5, 0.25);
  EXPECT_EQ(found.p99, 0.25);
}

TEST(Statistics, NeedValues) {
  expect_error(ExitCode::kBug, "statistics need values", [] { statistics_of({}); });
  expect_error(ExitCode::kBug, "a percentile needs values", [] { percentile({}, 50); });
}

TEST(IntervalRank, IsTheOneOfTheBinomialDistribution) {
  const std::vector<std::size_t> expected = {0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4};
  for (std::size_t count = 0; count < expected.size(); ++count) {
    EXPECT_EQ(interval_rank(count), expected[count]) << count;
  }
}

/// Where 2^-count is no double, it is close to the normal distribution's.
TEST(IntervalRank, OfManyValuesIsWithinTwoStandardDeviations) {
  for (const double count : {2e3, 6e4}) {
    const auto rank = static_cast<double>(interval_rank(static_cast<std::size_t>(count)));
    EXPECT_NEAR(rank, count / 2 - 1.96 * std::sqrt(count) / 2, 1) << count;
  }
}

TEST(Percentile, IsInterpolatedAsNumPyDoes) {
  const std::vector<double> sorted{-1.25, 0.5, 2.75, 2.75, 3.5, 8.0, 100.0};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), -1.25);
  EXPECT_DOUBLE_EQ(percentile(sorted, 12.5), 0.0625);
  EXPECT_DOUBLE_EQ(percentile(sorted, 25), 1.625);
  EXPECT_DOUBLE_EQ(percentile(sorted, 33), 2.705);
  EXPECT_DOUBLE_EQ(percentile(sorted, 100), 100);
}

}  // namespace
}  // namespace barestep
