// Products of int8 matrices on the CPU, and the quantization that precedes them.
#include <algorithm>
#include <array>

#include "kernels/cpu/op_sources.h"
#include "kernels/int8.h"
#include "kernels/loop_ops.h"

namespace barestep {
namespace {

void sum_plainly(const ByteTile& tile, std::int32_t* sums) {
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int8_t* const a = tile.a + i * tile.depth;
    for (std::int64_t j = 0; j < tile.cols; ++j) {
      const std::int8_t* const b = tile.b + j * tile.depth;
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < tile.depth; ++k) sum += std::int32_t{a[k]} * b[k];
      sums[i * kByteTileCols + j] = sum;
    }
  }
}

std::int32_t largest_magnitude(const float* values, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, order_of_magnitude(values[i]));
  return largest;
}

/// Extremes in the order of floats, with 0 always included.
struct Extremes {
  std::int32_t min = 0, largest = 0;
};

Extremes extremes_of(const float* values, std::int64_t n) {
  Extremes found;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t order = order_of(values[i]);
    found.min = std::min(found.min, order);
    found.largest = std::max(found.largest, order);
  }
  return found;
}

/// The number of parts of an array that are scanned in parallel.
constexpr std::int64_t kInt8Pieces = 16;

/// Calls scan(values, count) for each part.
template <class Found, class Scan>
std::array<Found, kInt8Pieces> reduce_pieces(const float* values, std::int64_t n, ThreadPool& pool,
                                             const Scan& scan) {
  std::array<Found, kInt8Pieces> found{};
  const std::int64_t length = (n + kInt8Pieces - 1) / kInt8Pieces;
  pool.run(kInt8Pieces, [&](std::int64_t piece, int) {
    const std::int64_t begin = std::min(n, piece * length);
    found[static_cast<std::size_t>(piece)] = scan(values + begin, std::min(n - begin, length));
  });
  return found;
}

void quantize_numbers(const QuantizeElement& element, std::int64_t n) {
  const QuantizeElement own = element;  // a copy, which the numbers written cannot overlap
  for (std::int64_t i = 0; i < n; ++i) own(i);
}

/// The number of rows in one task: some microseconds of work.
std::int64_t int8_rows_per_task(std::int64_t cols) {
  constexpr std::int64_t kNumbers = 16384;
  return std::max(std::int64_t{1}, kNumbers / cols);
}

}  // namespace

ByteKernel plain_byte_kernel() {
  return {"plain loops", sum_plainly, 0};
}

ByteKernel byte_kernel(int bits) {
  const ByteKernel fast = vnni_kernel(bits);
  return fast.sum != nullptr ? fast : plain_byte_kernel();
}

void run_quantize_weight(const QuantizeWeight& op, const Addresses& addresses, ThreadPool& pool) {
  const float* const from = addresses.at(op.from);
  auto* const to = addresses.at<std::int8_t>(op.to);
  float* const scales = addresses.at(op.scales);
  auto* const sums = addresses.at<std::int32_t>(op.sums);
  const std::int64_t cols = op.from.cols;
  const bool by_rows = op.scales.cols > 1;
  if (!by_rows) {
    const auto found = reduce_pieces<std::int32_t>(from, op.from.size(), pool, largest_magnitude);
    scales[0] = Int8Range::of_weights(float_of_order(*std::ranges::max_element(found))).scale;
  }
  for_ranges(
      pool, op.from.rows, int8_rows_per_task(cols), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          Int8Range range = Int8Range::of_weights(0);
          if (by_rows) {
            range =
                Int8Range::of_weights(float_of_order(largest_magnitude(from + row * cols, cols)));
            scales[row] = range.scale;
          } else {
            range.scale = scales[0];
          }
          std::int8_t* const numbers = to + row * cols;
          quantize_numbers({numbers, from + row * cols, range}, cols);
          std::int32_t sum = 0;
          for (std::int64_t i = 0; i < cols; ++i) sum += numbers[i];
          sums[row] = sum;
        }
      });
}

void run_quantize(const Quantize& op, const Addresses& addresses, ThreadPool& pool) {
  const float* const from = addresses.at(op.from);
  auto* const to = addresses.at<std::int8_t>(op.to);
  float* const scales = addresses.at(op.scales);
  const std::int64_t cols = op.from.cols;
  const int bits = op.bits;
  if (op.zero_point) {
    Extremes all;
    for (const Extremes& each : reduce_pieces<Extremes>(from, op.from.size(), pool, extremes_of)) {
      all = {std::min(all.min, each.min), std::max(all.largest, each.largest)};
    }
    const Int8Range range =
        Int8Range::of_batch(float_of_order(all.min), float_of_order(all.largest), bits);
    scales[0] = range.scale;
    *addresses.at<std::int32_t>(*op.zero_point) = range.zero_point;
    for_ranges(
        pool, op.from.rows, int8_rows_per_task(cols), [=](std::int64_t begin, std::int64_t end) {
          quantize_numbers({to + begin * cols, from + begin * cols, range}, (end - begin) * cols);
        });
    return;
  }
  for_ranges(pool, op.from.rows, int8_rows_per_task(cols),
             [=](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 const float* const numbers = from + row * cols;
                 const Int8Range range =
                     Int8Range::of_row(float_of_order(largest_magnitude(numbers, cols)), bits);
                 scales[row] = range.scale;
                 quantize_numbers({to + row * cols, numbers, range}, cols);
               }
             });
}

void run_quantized_gemm(const QuantizedGemm& op, const Addresses& addresses, bool by_plain_loops,
                        ThreadPool& pool) {
  const ByteKernel kernel = by_plain_loops ? plain_byte_kernel() : byte_kernel(op.bits);
  const auto* const a = addresses.at<std::int8_t>(op.a);
  const auto* const b = addresses.at<std::int8_t>(op.b);
  const std::int64_t depth = op.a.cols;
  const std::int64_t down = (op.c.rows + kByteTileRows - 1) / kByteTileRows;
  const std::int64_t across = (op.c.cols + kByteTileCols - 1) / kByteTileCols;
  with_activation(op.activation, [&]<class Formula>(Formula) {
    const DequantizeElement<Formula> element(op, addresses);
    pool.run(down * across, [&](std::int64_t task, int) {
      const std::int64_t row = task / across * kByteTileRows;
      const std::int64_t col = task % across * kByteTileCols;
      const std::int64_t rows = std::min(kByteTileRows, op.c.rows - row);
      const std::int64_t cols = std::min(kByteTileCols, op.c.cols - col);
      alignas(64) std::int32_t sums[kByteTileRows * kByteTileCols];
      kernel.sum({a + row * depth, b + col * depth, depth, rows, cols}, sums);
      const DequantizeElement<Formula> own = element;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < cols; ++j)
          own(row + i, col + j, sums[i * kByteTileCols + j], kernel.offset);
    });
  });
}

}  // namespace barestep
