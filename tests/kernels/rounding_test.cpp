// The rule by which results of 16-bit sums are compared: everything that rounding does to a right
// sum is accepted, and mistakes of a kernel are not.
#include "kernels/rounding.h"

#include "support/testing.h"

namespace barestep {
namespace {

/// A 16-bit or fp32 number, rounded to nearest, ties to even, from double precision.
double rounded_to(DType type, double number) {
  const double step = step_of(type, std::abs(number));
  return std::nearbyint(number / step) * step;
}

/// `number` without its bits below `step`.
double cut(double number, double step) {
  return std::trunc(number / step) * step;
}

/// As a tensor core adds: groups of terms and the sum so far, each without the bits below the 24th
/// of the largest of them.
double in_groups(const std::vector<double>& terms) {
  constexpr std::size_t kGroup = 16;
  double sum = 0;
  for (std::size_t first = 0; first < terms.size(); first += kGroup) {
    const std::size_t end = std::min(first + kGroup, terms.size());
    double largest = std::abs(sum);
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(terms[i]));
    const double step = step_of(DType::kF32, largest);
    double next = cut(sum, step);
    for (std::size_t i = first; i < end; ++i) next += cut(terms[i], step);
    sum = cut(next, step_of(DType::kF32, std::abs(next)));
  }
  return sum;
}

double one_by_one(const std::vector<double>& terms, DType type) {
  double sum = 0;
  for (const double term : terms) sum = rounded_to(type, sum + term);
  return sum;
}

/// The 16-bit products of the op cases that have something to sum.
template <class Use>
void for_each_product(const Use& use) {
  for (OpCase& op_case : all_op_cases()) {
    const auto* const gemm = std::get_if<Gemm>(&op_case.op);
    if (gemm == nullptr) continue;
    const auto all = terms_of(op_case.op, op_case.memory);
    if (all) use(*gemm, *all);
  }
}

TEST(RoundingOf16Bits, ExplainsEveryOrderOfAddingAndTensorCores) {
  int more_than_a_step = 0;
  for_each_product([&](const Gemm& gemm, const std::vector<std::vector<double>>& all) {
    const DType type = gemm.c.dtype;
    for (const std::vector<double>& terms : all) {
      const ExactSum sum = exact_sum(terms);
      const std::vector<double> backwards(terms.rbegin(), terms.rend());
      std::vector<double> interleaved;
      for (std::size_t first = 0; first < 4; ++first) {
        for (std::size_t i = first; i < terms.size(); i += 4) interleaved.push_back(terms[i]);
      }
      const double one = rounded_to(type, one_by_one(terms, DType::kF32));
      const double other = rounded_to(type, in_groups(terms));
      for (const double number :
           {one, other, rounded_to(type, one_by_one(backwards, DType::kF32)),
            rounded_to(type, in_groups(backwards)), rounded_to(type, in_groups(interleaved)),
            rounded_to(type, one_by_one(interleaved, DType::kF32))}) {
        ASSERT_TRUE(explains(sum, type, number)) << number << " for " << sum.value;
      }
      if (std::abs(one - other) > step_of(type, std::max(std::abs(one), std::abs(other)))) {
        ++more_than_a_step;
      }
    }
  });
  // Cancellation: a rule of one step would be wrong.
  EXPECT_GT(more_than_a_step, 0);
}

TEST(RoundingOf16Bits, DoesNotExplainATermLeftOut) {
  std::size_t explained = 0;
  std::size_t count = 0;
  for_each_product([&](const Gemm& gemm, const std::vector<std::vector<double>>& all) {
    for (const std::vector<double>& terms : all) {
      // What is smaller than the last bit cannot be seen.
      if (terms.empty() || std::abs(terms.back()) < 0x1p-4) continue;
      const std::vector<double> fewer(terms.begin(), terms.end() - 1);
      ++count;
      explained += explains(exact_sum(terms), gemm.c.dtype,
                            rounded_to(gemm.c.dtype, one_by_one(fewer, DType::kF32)));
    }
  });
  EXPECT_GT(count, 10'000U);
  EXPECT_LT(explained, count / 100) << "of " << count;
}

/// One wrong number fails a comparison.
TEST(RoundingOf16Bits, DoesNotExplainSumsIn16BitsOrABiasAddedAfterRounding) {
  std::size_t in_16_bits = 0;
  std::size_t count = 0;
  std::size_t rounded_twice = 0;
  std::size_t with_bias = 0;
  for_each_product([&](const Gemm& gemm, const std::vector<std::vector<double>>& all) {
    const DType type = gemm.c.dtype;
    if (type == DType::kF32 || all.empty() || all.front().size() < 30) return;
    for (const std::vector<double>& terms : all) {
      const ExactSum sum = exact_sum(terms);
      ++count;
      in_16_bits += explains(sum, type, one_by_one(terms, type)) ? 0 : 1;
      if (!gemm.bias) continue;
      const std::vector<double> before_bias(terms.begin(), terms.end() - 1);
      const double product = rounded_to(type, one_by_one(before_bias, DType::kF32));
      ++with_bias;
      rounded_twice += explains(sum, type, rounded_to(type, product + terms.back())) ? 0 : 1;
    }
  });
  EXPECT_GT(in_16_bits, count / 2);
  EXPECT_GT(rounded_twice, with_bias / 50);
}

TEST(RoundingOf16Bits, ExplainsOnlyOneNumberIfNothingCancels) {
  const ExactSum sum = exact_sum({1.0, 0x1p-9});
  EXPECT_TRUE(explains(sum, DType::kBF16, 1.0));
  EXPECT_FALSE(explains(sum, DType::kBF16, 1.0 + 0x1p-7));
  EXPECT_FALSE(explains(sum, DType::kBF16, -1.0));
  EXPECT_FALSE(explains(sum, DType::kF16, 1.0));
  EXPECT_TRUE(explains(sum, DType::kF16, 1.0 + 0x1p-9));
}

TEST(RoundingOf16Bits, ExplainsABiasAddedAfterRoundingWhereThatIsAsked) {
  // 1 + 2^-9 rounds to 1 in bf16, and so does 1 + 2^-9 - 1 to 2^-9 unless it was rounded before.
  const std::vector<double> terms{1.0, 0x1p-9, -1.0};
  EXPECT_TRUE(explains(exact_sum(terms), DType::kBF16, 0x1p-9));
  EXPECT_FALSE(explains(exact_sum(terms), DType::kBF16, 0));
  EXPECT_TRUE(explains(sum_after_rounding(terms, DType::kBF16), DType::kBF16, 0));
  EXPECT_FALSE(explains(sum_after_rounding(terms, DType::kBF16), DType::kBF16, 0x1p-9));
  // A sum within its error of the middle of two numbers may round to either.
  const std::vector<double> middle{1.0, 0x1p-8, -1.0};
  EXPECT_TRUE(explains(sum_after_rounding(middle, DType::kBF16), DType::kBF16, 0));
  EXPECT_TRUE(explains(sum_after_rounding(middle, DType::kBF16), DType::kBF16, 0x1p-7));
}

TEST(RoundingOf16Bits, AppliesToWhatAnActivationMakesOfASum) {
  using enum Activation;
  const ExactSum sum = exact_sum({1.0, -1.0 - 0x1p-20});
  // The sum may come out on either side of 0, but no further away than its error.
  EXPECT_TRUE(explains_output(sum, kRelu, DType::kBF16, 0, 0));
  EXPECT_TRUE(explains_output(exact_sum({1.0, -1.0}), kRelu, DType::kBF16, 0x1p-22, 0));
  EXPECT_FALSE(explains_output(sum, kRelu, DType::kBF16, 0x1p-18, 0));
  EXPECT_FALSE(explains_output(sum, kRelu, DType::kBF16, -0x1p-20, 0));
  EXPECT_FALSE(explains_output(exact_sum({0.5, 0.5}), kRelu, DType::kBF16, 0, 1));
  const ExactSum two = exact_sum({1.5, 0.5});
  EXPECT_TRUE(explains_output(two, kTanh, DType::kF16, 0.9643, 0.9640));
  EXPECT_FALSE(explains_output(two, kTanh, DType::kF16, 0.9685, 0.9640));
}

}  // namespace
}  // namespace barestep
