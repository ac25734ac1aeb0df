#include "lab/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "lab/findings.h"

namespace barestep {
namespace {

/// Normal noise of 2 % around a level.
std::vector<double> noisy(double level, std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(level, 0.02 * level);
  std::vector<double> values(count);
  for (double& value : values) value = noise(random);
  return values;
}

std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(SteadyStart, LiesBehindTheSlowFirstSteps) {
  for (const std::size_t slow : {1U, 3U, 8U}) {
    EXPECT_EQ(steady_start(joined(noisy(2, slow, 2), noisy(1, 40))), slow);
  }
  EXPECT_EQ(steady_start(joined(noisy(9, 1), joined(noisy(2, 5, 3), noisy(1, 40)))), 6U);
}

TEST(SteadyStart, IsTheFirstStepWhereNoLevelChanges) {
  int found = 0;
  for (unsigned seed = 0; seed < 100; ++seed) found += steady_start(noisy(1, 40, seed)) != 0;
  EXPECT_LE(found, 10) << "noise alone looks like a change of level too often";
  EXPECT_EQ(steady_start(std::vector<double>(30, 1.0)), 0U);
  EXPECT_EQ(steady_start(std::vector<double>{5, 1, 1}), 0U);
}

TEST(SteadyStart, DoesNotTakeALateChangeForWarmUp) {
  EXPECT_LE(steady_start(joined(noisy(1, 30), noisy(2, 10))), 20U);
}

TEST(Drifts, SeesAChangeOfLevelAndNoOutliers) {
  EXPECT_TRUE(drifts(joined(noisy(1, 20), noisy(1.3, 20))));
  EXPECT_FALSE(drifts(joined(noisy(1, 20), noisy(1.05, 20))));
  EXPECT_FALSE(drifts(noisy(1, 40)));
  EXPECT_FALSE(drifts(joined(noisy(1, 39), {4})));
}

TEST(SlowOutliers, AreCountedFarAboveTheMedianOnly) {
  EXPECT_EQ(slow_outliers(joined(noisy(1, 40), {3, 0.2, 5})), 2U);
  EXPECT_EQ(slow_outliers(noisy(1, 40)), 0U);
  EXPECT_EQ(slow_outliers(std::vector<double>{1, 1, 1, 1, 1.05}), 0U);
}

TEST(MedianOfStarts, HoldsTheTruthInAboutNinetyFiveOfHundredIntervals) {
  int held = 0;
  for (unsigned study = 0; study < 100; ++study) {
    std::vector<std::vector<double>> starts;
    for (unsigned start = 0; start < 6; ++start) starts.push_back(noisy(1, 20, 10 * study + start));
    const Estimate estimate = median_of_starts(starts);
    EXPECT_LE(estimate.low, estimate.median);
    EXPECT_LE(estimate.median, estimate.high);
    held += estimate.low <= 1 && 1 <= estimate.high;
  }
  EXPECT_GE(held, 88);
}

TEST(MedianOfStarts, IsAsUncertainAsStartsDiffer) {
  const std::vector<std::vector<double>> alike = {noisy(1, 20, 1), noisy(1, 20, 2)};
  const std::vector<std::vector<double>> apart = {noisy(1, 20, 1), noisy(1.5, 20, 2)};
  EXPECT_LT(median_of_starts(alike).high - median_of_starts(alike).low, 0.05);
  EXPECT_GT(median_of_starts(apart).high - median_of_starts(apart).low, 0.4);
  EXPECT_EQ(median_of_starts(apart), median_of_starts(apart));
}

TEST(Median, LiesInTheMiddle) {
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
}

TEST(FitLine, FindsTheLineThatPointsLieOn) {
  const Line line = fit_line(std::vector<double>{1, 2, 4}, std::vector<double>{5, 7, 11});
  EXPECT_NEAR(line.intercept, 3, 1e-12);
  EXPECT_NEAR(line.slope, 2, 1e-12);
  EXPECT_NEAR(line.r_squared, 1, 1e-12);
}

TEST(SerialFraction, IsThatOfAmdahlsLaw) {
  std::vector<SpeedUp> speed_ups;
  for (const int ranks : {2, 4, 8}) {
    const double factor = amdahl_speed_up(0.3, ranks);
    speed_ups.push_back({ranks, {factor, 0.9 * factor, 1.1 * factor}});
  }
  EXPECT_NEAR(amdahl_speed_up(0.3, 2), 1 / 0.65, 1e-12);
  const Estimate serial = serial_fraction(speed_ups);
  EXPECT_NEAR(serial.median, 0.3, 1e-12);
  EXPECT_LT(serial.low, 0.3);
  EXPECT_GT(serial.high, 0.3);
}

TEST(Words, HaveThreeDigitsAndAUnit) {
  EXPECT_EQ(time_text(0.0123456), "12.3 ms");
  EXPECT_EQ(time_text(1.2), "1.20 s");
  EXPECT_EQ(time_text(456e-6), "456 us");
  EXPECT_EQ(time_text(-2e-3), "-2.00 ms");
  EXPECT_EQ(time_text(Estimate{1e-3, 9e-4, 2e-3}), "1.00 ms (900 us to 2.00 ms)");
  EXPECT_EQ(percent_text(0.3621), "36.2 %");
  EXPECT_EQ(number_text(12345.6), "12,346");
  EXPECT_EQ(number_text(0.01234), "0.0123");
  EXPECT_EQ(list_text({"a", "b", "c"}), "a, b and c");
  EXPECT_EQ(list_text({"a"}), "a");
}

}  // namespace
}  // namespace barestep
