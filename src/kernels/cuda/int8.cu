// Kernels that quantize, and the product of int8 numbers for shapes that cuBLASLt does not support.
//
// Integer sums are exact, so results are bit-identical to the CPU's.
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/reductions.cuh"
#include "kernels/int8.h"
#include "kernels/loop_ops.h"

namespace barestep {

/// A range of numbers in the order of floats (kernels/formulas.h); it always includes 0.
struct OrderRange {
  std::int32_t min, largest;

  BARESTEP_HD void add(const OrderRange& other) {
    min = other.min < min ? other.min : min;
    largest = other.largest > largest ? other.largest : largest;
  }
};
static_assert(sizeof(OrderRange) == sizeof(double));  // stored in place of a partial sum

/// The combined range of a warp's lanes, in every lane.
inline __device__ OrderRange warp_range(OrderRange range) {
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    range.add({__shfl_xor_sync(kAllLanes, range.min, step),
               __shfl_xor_sync(kAllLanes, range.largest, step)});
  }
  return range;
}

/// The combined range of a block's threads, in its first thread. Call once per kernel.
static __device__ OrderRange block_range(OrderRange range) {
  __shared__ OrderRange warps[kBlockWarps];
  range = warp_range(range);
  if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = range;
  __syncthreads();
  for (int warp = 0; warp < kBlockWarps; ++warp) range.add(warps[warp]);
  return range;
}

/// Each block's part of the range of n numbers.
static __global__ void __launch_bounds__(kBlockThreads)
    find_ranges(OrderRange* partials, const float* from, std::int64_t n) {
  begin_kernel();
  OrderRange range{0, 0};
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    const std::int32_t order = order_of(from[i]);
    range.add({order, order});
  }
  range = block_range(range);
  if (threadIdx.x == 0) partials[blockIdx.x] = range;
}

inline __device__ OrderRange range_of_partials(const OrderRange* partials, int count) {
  OrderRange range{0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) range.add(partials[i]);
  return block_range(range);
}

/// The scale of all weights; a single block.
static __global__ void __launch_bounds__(kBlockThreads)
    find_weight_scale(float* scale, const OrderRange* partials, int count) {
  begin_kernel();
  const OrderRange range = range_of_partials(partials, count);
  if (threadIdx.x != 0) return;
  const std::int32_t below = order_of_magnitude(float_of_order(range.min));
  *scale =
      Int8Range::of_weights(float_of_order(below > range.largest ? below : range.largest)).scale;
}

/// The scale and the zero point of a batch; a single block.
static __global__ void __launch_bounds__(kBlockThreads)
    find_batch_scale(float* scale, std::int32_t* zero_point, const OrderRange* partials, int count,
                     int bits) {
  begin_kernel();
  const OrderRange range = range_of_partials(partials, count);
  if (threadIdx.x != 0) return;
  const Int8Range found =
      Int8Range::of_batch(float_of_order(range.min), float_of_order(range.largest), bits);
  *scale = found.scale;
  *zero_point = found.zero_point;
}

static __global__ void __launch_bounds__(kBlockThreads)
    quantize_batch(std::int8_t* to, const float* from, std::int64_t n, const float* scale,
                   const std::int32_t* zero_point, int bits) {
  begin_kernel();
  Int8Range range = Int8Range::of_batch(0, 0, bits);
  range.scale = *scale;
  range.zero_point = *zero_point;
  const QuantizeElement element(to, from, range);
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) element(i);
}

/// The largest magnitude of a row, in every lane of the warp.
inline __device__ float magnitude_of_row(const float* from, std::int64_t cols) {
  OrderRange range{0, 0};
  for (std::int64_t i = threadIdx.x % kWarpThreads; i < cols; i += kWarpThreads) {
    range.add({0, order_of_magnitude(from[i])});
  }
  return float_of_order(warp_range(range).largest);
}

static __global__ void __launch_bounds__(kBlockThreads)
    quantize_rows(std::int8_t* to, float* scales, const float* from, std::int64_t rows,
                  std::int64_t cols, int bits) {
  begin_kernel();
  each_row_by_a_warp(rows, [&](std::int64_t row, std::int64_t lane) {
    const float* const numbers = from + row * cols;
    const Int8Range range = Int8Range::of_row(magnitude_of_row(numbers, cols), bits);
    if (lane == 0) scales[row] = range.scale;
    const QuantizeElement element(to + row * cols, numbers, range);
    for (std::int64_t i = lane; i < cols; i += kWarpThreads) element(i);
  });
}

/// With one scale for each row, which it computes, or one for all, which already exists.
static __global__ void __launch_bounds__(kBlockThreads)
    quantize_weight(std::int8_t* to, float* scales, std::int32_t* sums, const float* from,
                    std::int64_t rows, std::int64_t cols, bool one_scale) {
  begin_kernel();
  each_row_by_a_warp(rows, [&](std::int64_t row, std::int64_t lane) {
    const float* const numbers = from + row * cols;
    Int8Range range = Int8Range::of_weights(one_scale ? 0 : magnitude_of_row(numbers, cols));
    if (one_scale) {
      range.scale = *scales;
    } else if (lane == 0) {
      scales[row] = range.scale;
    }
    const QuantizeElement element(to + row * cols, numbers, range);
    std::int32_t sum = 0;
    for (std::int64_t i = lane; i < cols; i += kWarpThreads) {
      element(i);
      sum += to[row * cols + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[row] = sum;
  });
}

/// One warp per sum, for shapes that cuBLASLt does not support, which have few outputs.
template <class Formula>
__global__ void __launch_bounds__(kBlockThreads)
    quantized_gemm(const std::int8_t* a, const std::int8_t* b, std::int64_t rows,
                   std::int64_t depth, DequantizeElement<Formula> element) {
  begin_kernel();
  each_row_by_a_warp(rows * element.cols, [&](std::int64_t i, std::int64_t lane) {
    const std::int64_t row = i / element.cols;
    const std::int64_t col = i % element.cols;
    std::int32_t sum = 0;
    for (std::int64_t k = lane; k < depth; k += kWarpThreads) {
      sum += std::int32_t{a[row * depth + k]} * b[col * depth + k];
    }
    sum = warp_sum(sum);
    if (lane == 0) element(row, col, sum);
  });
}

/// Converts the int32 sums in c to the op's result, in place.
template <class Formula>
struct DequantizeInPlace {
  DequantizeElement<Formula> element;

  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col) const {
    element(row, col, std::bit_cast<std::int32_t>(element.c[row * element.cols + col]));
  }
};

namespace {

OrderRange* ranges_of(const Launcher& on) {
  return reinterpret_cast<OrderRange*>(on.memory.workspace);
}

cudaError_t find_ranges_of(const Launcher& on, const Tensor& tensor, int blocks) {
  return start(on.queue, blocks, find_ranges, ranges_of(on), on.addresses.at(tensor),
               tensor.size());
}

}  // namespace

cudaError_t Launcher::operator()(const QuantizeWeight& op) const {
  const bool one_scale = op.scales.cols == 1;
  float* const scales = addresses.at(op.scales);
  if (one_scale) {
    const int blocks = partial_blocks(op.from.size());
    const cudaError_t error = find_ranges_of(*this, op.from, blocks);
    if (error != cudaSuccess) return error;
    const cudaError_t found = start(queue, 1, find_weight_scale, scales, ranges_of(*this), blocks);
    if (found != cudaSuccess) return found;
  }
  return start(queue, blocks_for(op.from.rows * kWarpThreads, geometry), quantize_weight,
               addresses.at<std::int8_t>(op.to), scales, addresses.at<std::int32_t>(op.sums),
               addresses.at(op.from), op.from.rows, op.from.cols, one_scale);
}

cudaError_t Launcher::operator()(const Quantize& op) const {
  auto* const to = addresses.at<std::int8_t>(op.to);
  const float* const from = addresses.at(op.from);
  float* const scales = addresses.at(op.scales);
  if (!op.zero_point) {
    return start(queue, blocks_for(op.from.rows * kWarpThreads, geometry), quantize_rows, to,
                 scales, from, op.from.rows, op.from.cols, op.bits);
  }
  const std::int64_t n = op.from.size();
  auto* const zero_point = addresses.at<std::int32_t>(*op.zero_point);
  const int blocks = partial_blocks(n);
  const cudaError_t error = find_ranges_of(*this, op.from, blocks);
  if (error != cudaSuccess) return error;
  const cudaError_t found =
      start(queue, 1, find_batch_scale, scales, zero_point, ranges_of(*this), blocks, op.bits);
  if (found != cudaSuccess) return found;
  return start(queue, blocks_for(n, geometry), quantize_batch, to, from, n, scales, zero_point,
               op.bits);
}

cudaError_t Launcher::operator()(const QuantizedGemm& op) const {
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    return start(queue, blocks_for(op.c.size() * kWarpThreads, geometry), quantized_gemm<Formula>,
                 addresses.at<std::int8_t>(op.a), addresses.at<std::int8_t>(op.b), op.a.rows,
                 op.a.cols, DequantizeElement<Formula>(op, addresses));
  });
}

int launch_dequantize(const QuantizedGemm& op, const Addresses& addresses,
                      const CudaGeometry& geometry, CudaStream stream) {
  const Launcher on{addresses, {}, {.geometry = geometry}, KernelQueue{stream}};
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    return on.each_of(op.c.rows, op.c.cols,
                      DequantizeInPlace<Formula>{DequantizeElement<Formula>(op, addresses)});
  });
}

}  // namespace barestep
