// Products grad_y^T x over kDepth rows of the batch in shared memory, for a tile of the weight; the
// sums are in the registers of a block of kBlockThreads.
//
// A product adds the product of two factors to the thread's sums.
// Both factors are row-major with kPadBytes after each row, so that no load has a bank conflict. In
// the end each thread has the sums of its own weights: kSlots rows (row_of()), four neighbors in
// each (col_of()). A warp then has whole rows of the tile, 512 bytes next to each other; with 64
// bytes an H200 moves weights at half the rate (bench/results/nvidia-h200/).
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/tensor_products.cuh"

namespace barestep {

constexpr int kStripCols = 128;            // of every tile
constexpr int kUsualRows = 32;             // of a tile
constexpr int kTallRows = 2 * kUsualRows;  // of a tall one
constexpr int kPadBytes = 32;              // neighboring rows start 8 or 24 banks apart

/// The stride between rows of a factor with kCols columns, in numbers.
template <class Number, int kCols>
constexpr int kStride = kCols + kPadBytes / static_cast<int>(sizeof(Number));

/// Loads neighboring numbers from shared memory, exact in fp32. Aligned to four, or two, numbers.
template <class Number>
__device__ __forceinline__ float4 load_four(const Number* from) {
  if constexpr (sizeof(Number) == sizeof(float)) {
    return load_shared<float4>(from);
  } else {
    return widened(std::bit_cast<Pack<Number, 4>>(load_shared<std::uint64_t>(from)));
  }
}
template <class Number>
__device__ __forceinline__ float2 load_two(const Number* from) {
  if constexpr (sizeof(Number) == sizeof(float)) {
    return load_shared<float2>(from);
  } else {
    const auto pair = std::bit_cast<Pack<Number, 2>>(load_shared<std::uint32_t>(from));
    return {float_of(pair.of[0]), float_of(pair.of[1])};
  }
}

/// A thread's weights in a tile: of each of kSlots rows, four from this column on.
template <int kSlots>
__device__ __forceinline__ int row_of(int slot) {
  return warp_of_block() * kSlots + slot;
}
__device__ __forceinline__ int col_of() {
  return lane_of_warp() * 4;
}
static_assert(kStripCols == 4 * kWarpThreads);

/// In fp32, with fused multiply-adds. A warp computes kSlots rows by 128 columns, a thread kSlots
/// rows by 4.
template <int kOfDepth, class OfNumber = float, int kOfRows = kUsualRows>
struct FmaProduct {
  using Number = OfNumber;
  static constexpr int kDepth = kOfDepth;
  static constexpr int kRows = kOfRows;
  static constexpr int kSlots = kRows / kBlockWarps;

  struct Sums {
    float at[kSlots][4] = {};
  };
  struct Exchange {};  // each thread computes the sums of its own weights

  static __device__ __forceinline__ void add(const Number* grad_y, const Number* x, Sums& sums) {
    grad_y += row_of<kSlots>(0);
    x += col_of();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
      const float4 b = load_four(x + k * kStride<Number, kStripCols>);
#pragma unroll
      for (int first = 0; first < kSlots; first += 4) {
        const float4 four = load_four(grad_y + k * kStride<Number, kRows> + first);
        const float a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          auto& row = sums.at[first + i];
          row[0] = std::fma(a[i], b.x, row[0]);
          row[1] = std::fma(a[i], b.y, row[1]);
          row[2] = std::fma(a[i], b.z, row[2]);
          row[3] = std::fma(a[i], b.w, row[3]);
        }
      }
    }
  }

  static __device__ __forceinline__ void exchange(const Sums& /*sums*/, Exchange& /*shared*/) {}

  static __device__ __forceinline__ float4 grads(const Sums& sums, const Exchange& /*shared*/,
                                                 int slot) {
    return {sums.at[slot][0], sums.at[slot][1], sums.at[slot][2], sums.at[slot][3]};
  }
};

/// With tensor cores, about as exact as fp32: of (high + low) (high + low), only low * low is
/// dropped. 16-bit numbers are exact in tf32. Tensor cores round towards zero, so they add up at
/// most 8 * kChain rows; their sums are then added in fp32.
///
/// A warp computes kRows by 16 columns, of each 32 rows two by two tiles of mma_tf32. Rows and
/// columns are assigned so that factors are read with wide loads and each thread computes four
/// neighbors, which it exchanges for those of its own weights in shared memory. For lane 4g + q:
/// row 4g + r of the warp is row g + 8 (r % 2) of tile r / 2;
/// its column 2c + j is column c of tile j.
template <int kChain = 1, class OfNumber = float, int kOfRows = kUsualRows>
struct TensorProduct {
  using Number = OfNumber;
  static constexpr int kDepth = 64;
  static constexpr int kRows = kOfRows;
  static constexpr int kSlots = kRows / kBlockWarps;
  static constexpr int kMmaDepth = 8;

  struct Sums {
    float at[kRows / 32][2][2][4] = {};
  };
  struct Exchange {
    static constexpr int kStrideOfRows = kStripCols + 4;  // four rows on are 16 banks on
    alignas(kVectorBytes) float at[kRows * kStrideOfRows];
  };

  static __device__ __forceinline__ void add(const Number* grad_y, const Number* x, Sums& sums) {
    const int g = lane_of_warp() / 4;
    const int q = lane_of_warp() % 4;
    grad_y += q * kStride<Number, kRows> + 4 * g;
    x += q * kStride<Number, kStripCols> + warp_of_block() * 16 + 2 * g;
// More unrolling would need more registers than there are.
#pragma unroll 2
    for (int first = 0; first < kDepth; first += kMmaDepth * kChain) {
      Sums part;
#pragma unroll
      for (int k = first; k < first + kMmaDepth * kChain; k += kMmaDepth) {
        add_eight_rows(grad_y + k * kStride<Number, kRows>, x + k * kStride<Number, kStripCols>,
                       part);
      }
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums.at[i / 2][i % 2][j][e] += part.at[i / 2][i % 2][j][e];
    }
  }

  /// Called by all threads of the block.
  static __device__ __forceinline__ void exchange(const Sums& sums, Exchange& shared) {
    float* const to = shared.at + lane_of_warp() / 4 * 4 * Exchange::kStrideOfRows +
                      warp_of_block() * 16 + lane_of_warp() % 4 * 4;
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const int row = i % 4;
      const auto& tile = sums.at[i / 4][row / 2];
      const int first = row % 2 * 2;
      store_shared(to + (i / 4 * 32 + row) * Exchange::kStrideOfRows,
                   float4{tile[0][first], tile[1][first], tile[0][first + 1], tile[1][first + 1]});
    }
    __syncthreads();
  }

  static __device__ __forceinline__ float4 grads(const Sums& /*sums*/, const Exchange& shared,
                                                 int slot) {
    return load_shared<float4>(shared.at + row_of<kSlots>(slot) * Exchange::kStrideOfRows +
                               col_of());
  }

 private:
  static __device__ __forceinline__ void add_eight_rows(const Number* grad_y, const Number* x,
                                                        Sums& sums) {
    const float2 b0 = load_two(x);
    const float2 b1 = load_two(x + 4 * kStride<Number, kStripCols>);
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) {
      const float4 a0 = load_four(grad_y + 32 * i);
      const float4 a1 = load_four(grad_y + 32 * i + 4 * kStride<Number, kRows>);
      if constexpr (sizeof(Number) == sizeof(float)) {
        multiply_split(a0, a1, b0, b1, sums.at[i]);
      } else {
        multiply(a0, a1, b0, b1, sums.at[i]);
      }
    }
  }

  static __device__ __forceinline__ void multiply(float4 a0, float4 a1, float2 b0, float2 b1,
                                                  float (&sums)[2][2][4]) {
    const std::uint32_t a[2][4] = {{bits_of(a0.x), bits_of(a0.y), bits_of(a1.x), bits_of(a1.y)},
                                   {bits_of(a0.z), bits_of(a0.w), bits_of(a1.z), bits_of(a1.w)}};
    const std::uint32_t b[2][2] = {{bits_of(b0.x), bits_of(b1.x)}, {bits_of(b0.y), bits_of(b1.y)}};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) mma_tf32(sums[i][j], a[i], b[j]);
  }

  static __device__ __forceinline__ void multiply_split(float4 a0, float4 a1, float2 b0, float2 b1,
                                                        float (&sums)[2][2][4]) {
    const SplitTf32 a[2][4] = {
        {SplitTf32(a0.x), SplitTf32(a0.y), SplitTf32(a1.x), SplitTf32(a1.y)},
        {SplitTf32(a0.z), SplitTf32(a0.w), SplitTf32(a1.z), SplitTf32(a1.w)}};
    const SplitTf32 b[2][2] = {{SplitTf32(b0.x), SplitTf32(b1.x)},
                               {SplitTf32(b0.y), SplitTf32(b1.y)}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t a_high[4] = {a[i][0].high, a[i][1].high, a[i][2].high, a[i][3].high};
      const std::uint32_t a_low[4] = {a[i][0].low, a[i][1].low, a[i][2].low, a[i][3].low};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t b_high[2] = {b[j][0].high, b[j][1].high};
        const std::uint32_t b_low[2] = {b[j][0].low, b[j][1].low};
        mma_tf32(sums[i][j], a_low, b_high);
        mma_tf32(sums[i][j], a_high, b_low);
        mma_tf32(sums[i][j], a_high, b_high);
      }
    }
  }
};

}  // namespace barestep
