// Exponentials, logarithms and hyperbolic tangents against double precision.
#include "kernels/elementary.h"

#include "kernels/formulas.h"
#include "support/testing.h"

namespace barestep {
namespace {

using Limits = std::numeric_limits<float>;

/// The largest error in ulps of the exact result, of about two million numbers in [low, high].
template <class Function, class Exact>
double largest_error(float low, float high, const Function& function, const Exact& exact) {
  const std::int64_t first = order_of(low), last = order_of(high);
  const std::int64_t step = (last - first) / 2'000'000 + 1;
  double largest = 0;
  for (std::int64_t order = first; order <= last; order += step) {
    const float x = float_of_order(static_cast<std::int32_t>(order));
    const double expected = exact(static_cast<double>(x));
    int exponent = 0;
    std::frexp(expected, &exponent);
    const double ulp = std::ldexp(1.0, exponent - Limits::digits);
    const double error = std::abs(static_cast<double>(function(x)) - expected) / ulp;
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

TEST(Elementary, FunctionsAreAsCloseAsTheySay) {
  EXPECT_LT(largest_error(-87.3F, -1e-9F, exponential<float>, [](double x) { return std::exp(x); }),
            0.9);
  const auto log = [](double x) { return std::log(x); };
  EXPECT_LT(largest_error(0.5F, 2.0F, logarithm, log), 0.83);
  EXPECT_LT(largest_error(Limits::min(), Limits::max(), logarithm, log), 0.83);
  EXPECT_LT(
      largest_error(Limits::min(), 1, log_of_one_plus, [](double x) { return std::log1p(x); }),
      0.84);
  const auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_LT(largest_error(Limits::min(), 20, hyperbolic_tangent, tanh), 1.4);
  EXPECT_LT(largest_error(-20, -Limits::min(), hyperbolic_tangent, tanh), 1.4);
  EXPECT_LT(largest_error(-87.3F, 87.3F, sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }),
            2.2);
}

TEST(Elementary, FunctionsAreRightAtTheirEnds) {
  constexpr float kInfinity = Limits::infinity();
  EXPECT_EQ(exponential(0.0F), 1.0F);
  EXPECT_EQ(exponential(-88.0F), 0.0F);
  EXPECT_EQ(exponential(-kInfinity), 0.0F);
  EXPECT_EQ(logarithm(1.0F), 0.0F);
  EXPECT_EQ(logarithm(kInfinity), kInfinity);
  EXPECT_EQ(log_of_one_plus(0.0F), 0.0F);
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_EQ(std::signbit(hyperbolic_tangent(sign * 0.0F)), sign < 0);
    EXPECT_EQ(hyperbolic_tangent(sign * 1e-30F), sign * 1e-30F);
    EXPECT_EQ(hyperbolic_tangent(sign * 50.0F), sign);
    EXPECT_EQ(hyperbolic_tangent(sign * kInfinity), sign);
  }
  EXPECT_EQ(sigmoid(0.0F), 0.5F);
  EXPECT_EQ(sigmoid(kInfinity), 1.0F);
  EXPECT_EQ(sigmoid(-kInfinity), 0.0F);
  for (const auto& function : {exponential<float>, logarithm, log_of_one_plus, hyperbolic_tangent,
                               sigmoid, error_function<float>}) {
    EXPECT_TRUE(std::isnan(function(Limits::quiet_NaN())));
  }
}

}  // namespace
}  // namespace barestep
