// Sums in the order of PyTorch's CPU kernels, so that losses and bias gradients are bit-identical
// to PyTorch's.
//
// Source: PyTorch 1.13.1, aten/src/ATen/native/cpu/SumKernel.cpp, with vectors of 8 floats. The
// order depends only on shapes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace barestep {

/// Lanes of one of PyTorch's vectors.
constexpr int kSumLanes = 8;

/// The number of columns that PyTorch sums together. Columns after the last full group are summed
/// in another order (interleaved_sum).
constexpr int kSumColumns = 4 * kSumLanes;

template <int kSize>
using Sums = float[static_cast<std::size_t>(kSize)];

/// Adds `rows` rows of kParts vectors of kWidth lanes; load(v, lane) returns a lane of vector v,
/// and row r consists of the vectors r * kParts + part. Runs of rows are summed first, then runs of
/// runs, in four levels, to keep rounding errors small.
template <int kParts, int kWidth, class Load>
void cascade_sum(std::int64_t rows, const Load& load, Sums<kParts * kWidth>& sums) {
  constexpr int kLevels = 4;
  constexpr int kSize = kParts * kWidth;
  const int log2_rows =
      rows > 1 ? static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows - 1))) : 0;
  const int level_power = std::max(4, log2_rows / kLevels);
  const std::int64_t level_step = std::int64_t{1} << level_power;
  const std::int64_t level_mask = level_step - 1;

  Sums<kSize> levels[kLevels] = {};
  const auto add_row = [&](std::int64_t row) {
    for (int part = 0; part < kParts; ++part)
      for (int lane = 0; lane < kWidth; ++lane)
        levels[0][part * kWidth + lane] += load(row * kParts + part, lane);
  };
  const auto carry = [&](int level) {
    for (int k = 0; k < kSize; ++k) {
      levels[level][k] += levels[level - 1][k];
      levels[level - 1][k] = 0;
    }
  };

  std::int64_t row = 0;
  while (row + level_step <= rows) {
    for (std::int64_t j = 0; j < level_step; ++j, ++row) add_row(row);
    for (int level = 1; level < kLevels; ++level) {
      carry(level);
      if ((row & (level_mask << (level * level_power))) != 0) break;
    }
  }
  for (; row < rows; ++row) add_row(row);
  for (int level = 1; level < kLevels; ++level)
    for (int k = 0; k < kSize; ++k) levels[0][k] += levels[level][k];
  std::copy_n(levels[0], kSize, sums);
}

/// Adds `rows` vectors of kWidth lanes in four interleaved sums.
template <int kWidth, class Load>
void interleaved_sum(std::int64_t rows, const Load& load, Sums<kWidth>& sums) {
  constexpr int kParts = 4;
  Sums<kParts * kWidth> parts;
  cascade_sum<kParts, kWidth>(rows / kParts, load, parts);
  std::copy_n(parts, kWidth, sums);
  for (std::int64_t row = rows - rows % kParts; row < rows; ++row)
    for (int lane = 0; lane < kWidth; ++lane) sums[lane] += load(row, lane);
  for (int part = 1; part < kParts; ++part)
    for (int lane = 0; lane < kWidth; ++lane) sums[lane] += parts[part * kWidth + lane];
}

/// The sum of load(0) .. load(n - 1), in the order in which torch.sum adds a contiguous tensor on
/// one thread.
template <class Load>
float contiguous_sum(std::int64_t n, const Load& load) {
  if (n < kSumLanes) {
    Sums<1> sum;
    interleaved_sum<1>(
        n, [&](std::int64_t i, int) { return load(i); }, sum);
    return sum[0];
  }
  Sums<kSumLanes> lanes;
  interleaved_sum<kSumLanes>(
      n / kSumLanes, [&](std::int64_t v, int lane) { return load(v * kSumLanes + lane); }, lanes);
  float sum = 0;
  for (std::int64_t i = n - n % kSumLanes; i < n; ++i) sum += load(i);
  for (const float lane : lanes) sum += lane;
  return sum;
}

/// Calls store(column, sum) for the columns first .. last - 1 of a row-major rows x cols matrix,
/// added in the order of torch.sum(dim=0). `first` must be a multiple of kSumColumns, and so must
/// `last` unless it is cols. `in` is of a real type.
template <class Number, class Store>
void sum_columns(const Number* in, std::int64_t rows, std::int64_t cols, std::int64_t first,
                 std::int64_t last, const Store& store) {
  if (cols == 1) {
    store(std::int64_t{0}, contiguous_sum(rows, [&](std::int64_t i) { return float_of(in[i]); }));
    return;
  }
  std::int64_t column = first;
  const auto full_groups = [&]<int kWidth>() {
    for (; column + kWidth <= last; column += kWidth) {
      const Number* group = in + column;
      Sums<kWidth> sums;
      cascade_sum<1, kWidth>(
          rows, [&](std::int64_t row, int lane) { return float_of(group[row * cols + lane]); },
          sums);
      for (int lane = 0; lane < kWidth; ++lane) store(column + lane, sums[lane]);
    }
  };
  if (cols >= kSumLanes) {
    full_groups.template operator()<kSumColumns>();
  } else {
    full_groups.template operator()<4>();
  }
  for (; column < last; ++column) {
    Sums<1> sum;
    interleaved_sum<1>(
        rows, [&](std::int64_t row, int) { return float_of(in[row * cols + column]); }, sum);
    store(column, sum[0]);
  }
}

/// The sum of term(i) over [0, n) in 16 interleaved sums, an order of our own for ops whose sums
/// need not be PyTorch's.
template <class Sum = float, class Term>
Sum lane_sum(std::int64_t n, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  Sum lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  Sum sum = 0;
  for (; i < n; ++i) sum += term(i);
  for (const Sum lane : lanes) sum += lane;
  return sum;
}

}  // namespace barestep
