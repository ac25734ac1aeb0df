// How near lists of numbers are.
#include "support/testing.h"
#pragma once

namespace barestep {

/// Each number differs from the expected one by at most `bound` times that.
template <class Numbers, class Expected>
void expect_within(const Numbers& actual, const Expected& expected, double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto wanted = static_cast<double>(expected[i]);
    EXPECT_NEAR(static_cast<double>(actual[i]), wanted, bound * std::abs(wanted)) << "number " << i;
  }
}

/// The L2 norm of the difference, divided by that of b.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace barestep
