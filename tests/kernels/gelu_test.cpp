// GELU's vector kernels against its formula, and the formula against double precision.

#include <numbers>

#include "kernels/cpu/activation.h"
#include "support/testing.h"

namespace barestep {
namespace {

using Gelu = ActivationFormula<Activation::kGelu>;

/// Numbers between -9 and 9, then special ones.
std::vector<float> inputs() {
  std::vector<float> all;
  for (int i = -9000; i <= 9000; ++i) all.push_back(static_cast<float>(i) / 1000);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float each : {0.0F, -0.0F, 1e-30F, -1e-38F, 13.2F, -13.2F, 1e20F, -1e20F, kInfinity,
                           -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    all.push_back(each);
  }
  return all;
}

/// The bits; any NaN is the same.
std::uint32_t bits_of(float number) {
  return std::isnan(number) ? 1 : std::bit_cast<std::uint32_t>(number);
}

TEST(GeluKernels, HaveTheBitsOfTheFormula) {
  const std::vector<float> from = inputs();
  const auto all = static_cast<std::int64_t>(from.size());
  for (const Instructions max :
       {Instructions::kPlain, Instructions::kAvx2, Instructions::kAvx512}) {
    const VectorKernels& kernels = vector_kernels(max);
    // Lengths with every rest of a vector; what follows stays as it is.
    for (std::int64_t n = all - 33; n < all; ++n) {
      std::vector<float> values = from;
      kernels.gelu(values.data(), n);
      std::vector<float> grads(from.size(), 1.5F);
      kernels.gelu_grad(grads.data(), from.data(), n);
      for (std::size_t i = 0; i < from.size(); ++i) {
        const bool is_done = static_cast<std::int64_t>(i) < n;
        ASSERT_EQ(bits_of(values[i]), bits_of(is_done ? Gelu::value(from[i]) : from[i])) << from[i];
        ASSERT_EQ(bits_of(grads[i]), bits_of(is_done ? Gelu::grad(1.5F, from[i]) : 1.5F))
            << from[i];
      }
    }
  }
}

TEST(GeluFormula, IsThatOfTheNormalDistribution) {
  for (const float x : inputs()) {
    if (!std::isfinite(x) || std::abs(x) > 100) continue;
    const double wide = x;
    const double below = 0.5 * (1 + std::erf(wide / std::numbers::sqrt2));
    const double density = std::exp(-wide * wide / 2) / std::sqrt(2 * std::numbers::pi);
    EXPECT_NEAR(Gelu::value(x), wide * below, 3e-7 * std::max(1.0, std::abs(wide))) << x;
    EXPECT_NEAR(Gelu::grad(1, x), below + wide * density, 5e-7) << x;
  }
  EXPECT_EQ(Gelu::value(9.0F), 9.0F);
  EXPECT_EQ(Gelu::value(-9.0F), 0.0F);
  EXPECT_TRUE(std::isnan(Gelu::value(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace barestep
