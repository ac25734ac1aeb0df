// What rounding may do to sums of 16-bit numbers: the order in which a device adds is its own, and
// tensor cores drop the bits of a term below the last bit of the largest one.
#pragma once

#include "core/index.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {

/// A sum in double precision, and how far one in fp32 may be from it: each of its additions loses
/// at most one unit of the 24th bit of the numbers added.
struct ExactSum {
  double value = 0;
  double error = 0;
};

/// The numbers added are no larger than the largest sum of consecutive terms, or twice that if
/// terms are interleaved, and never larger than the sum of all magnitudes.
inline ExactSum exact_sum(const std::vector<double>& terms) {
  double value = 0;
  double magnitude = 0;
  double min = 0;
  double max = 0;
  for (const double term : terms) {
    value += term;
    magnitude += std::abs(term);
    min = std::min(min, value);
    max = std::max(max, value);
  }
  return {value,
          static_cast<double>(terms.size()) * 0x1p-23 * std::min(magnitude, 2 * (max - min))};
}

/// The distance of a type's numbers at this magnitude.
inline double step_of(DType type, double magnitude) {
  const bool is_half = type == DType::kF16;
  const int bits = is_half ? 10 : type == DType::kBF16 ? 7 : 23;
  const int min = is_half ? -14 : -126;
  return std::ldexp(1, (magnitude > 0 ? std::max(std::ilogb(magnitude), min) : min) - bits);
}

/// Whether a device may have summed `sum` in fp32, in any order, and rounded once, to `number`.
inline bool explains(const ExactSum& sum, DType type, double number) {
  const double largest = std::max(std::abs(sum.value) + sum.error, std::abs(number));
  return std::abs(number - sum.value) <= sum.error + 0.5 * step_of(type, largest);
}

/// The sum of terms of which the last is a bias, where the device rounds the sum of the others to
/// `type` before it adds the bias. cuBLASLt 13.1 does so on an H200 if a row of a 16-bit matrix is
/// not a multiple of 16 bytes.
inline ExactSum sum_after_rounding(std::vector<double> terms, DType type) {
  const double bias = terms.back();
  terms.pop_back();
  const ExactSum product = exact_sum(terms);
  const auto rounded_to_type = [&](double number) {
    const double step = step_of(type, std::abs(number));
    return std::nearbyint(number / step) * step;
  };
  const double low = rounded_to_type(product.value - product.error);
  const double high = rounded_to_type(product.value + product.error);
  return {(low + high) / 2 + bias, (high - low) / 2 + 0x1p-23 * std::abs(bias)};
}

/// The terms of every number that an op sums from 16-bit numbers, before its activation; nothing if
/// it sums none. Reads what the op reads.
inline std::optional<std::vector<std::vector<double>>> terms_of(const DeviceOp& op,
                                                                Memory& memory) {
  std::vector<std::vector<double>> all;
  if (const auto* const rows = std::get_if<SumRows>(&op)) {
    if (rows->in.dtype == DType::kF32) return std::nullopt;
    const std::vector<float> in = numbers_of(memory, rows->in);
    const std::vector<float> old = numbers_of(memory, rows->out);
    for (std::int64_t j = 0; j < rows->in.cols; ++j) {
      auto& terms = all.emplace_back();
      for (std::int64_t i = 0; i < rows->in.rows; ++i)
        terms.push_back(at(in, i * rows->in.cols + j));
      if (rows->beta != 0) terms.push_back(double{rows->beta} * at(old, j));
    }
    return all;
  }
  const auto* const gemm = std::get_if<Gemm>(&op);
  if (gemm == nullptr || gemm->a.dtype == DType::kF32) return std::nullopt;
  const std::vector<float> a = numbers_of(memory, gemm->a);
  const std::vector<float> b = numbers_of(memory, gemm->b);
  const std::vector<float> old = numbers_of(memory, gemm->c);
  const std::vector<float> bias =
      gemm->bias ? numbers_of(memory, *gemm->bias) : std::vector<float>();
  const std::int64_t depth = gemm->transpose_a ? gemm->a.rows : gemm->a.cols;
  for (std::int64_t i = 0; i < gemm->c.rows; ++i) {
    for (std::int64_t j = 0; j < gemm->c.cols; ++j) {
      auto& terms = all.emplace_back();
      for (std::int64_t k = 0; k < depth; ++k) {
        terms.push_back(double{at(a, gemm->transpose_a ? k * gemm->a.cols + i : i * depth + k)} *
                        at(b, gemm->transpose_b ? j * depth + k : k * gemm->b.cols + j));
      }
      if (gemm->bias) terms.push_back(at(bias, j));
      if (gemm->beta != 0) terms.push_back(double{gemm->beta} * at(old, i * gemm->c.cols + j));
    }
  }
  return all;
}

/// Whether rounding explains the number that a product gave, where the CPU's has `on_cpu`. An
/// activation takes the rounded sum, and is rounded too. Only that of ReLU is exact; of the others,
/// the steepest slope is GELU's, 1.13.
inline bool explains_output(const ExactSum& sum, Activation activation, DType type, double number,
                            double on_cpu) {
  if (activation == Activation::kNone) return explains(sum, type, number);
  if (activation == Activation::kRelu) {
    return number > 0 ? explains(sum, type, number)
                      : number == 0 && sum.value <= sum.error + 0.5 * step_of(type, 0);
  }
  const double input = 2 * sum.error + step_of(type, std::abs(sum.value) + sum.error);
  const double largest = std::max(std::abs(number), std::abs(on_cpu));
  return std::abs(number - on_cpu) <= 1.13 * input + step_of(type, largest);
}

}  // namespace barestep
