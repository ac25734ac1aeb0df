// Adam's step on a linear layer without storing its gradients: a matrix product whose epilogue
// updates the weights of each tile.
//
// To keep the memory busy all the time, weights and moments are transferred while the product is
// computed. A persistent block walks from tile to tile. The x of a strip of kStripCols columns
// stays in shared memory in two chunks of kDepth rows of the batch; if these are enough, it is read
// only when the block comes to another strip. The tiles of grad_y arrive through asynchronous
// copies one step ahead. Weights and moments bypass shared memory: those of the next tile move into
// the L2 cache during the product, and a thread loads each of its rows into registers as soon as it
// has stored an earlier one.
//
// If two chunks are not enough, x is read again for every tile, half as often for tall tiles; or a
// block has room for kChunksKept of them, in fp32 with a multiprocessor to itself.
#pragma once

#include <type_traits>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/tile_products.cuh"
#include "kernels/formulas.h"

namespace barestep {

/// A LinearAdam with its addresses: `out` x `in` weights, `n` rows of grad_y and x. Each extent is
/// below kMaxLinearAdamExtent. Rounded weights exist with 16-bit factors; otherwise null.
template <class Number>
struct LinearAdamArrays {
  std::int64_t out, in, n;
  float *weight, *weight_moments1, *weight_moments2;
  float *bias, *bias_moments1, *bias_moments2;
  const Number *grad_y, *x;
  const float *scalars, *clip;
  Number *rounded_weight, *rounded_bias;
};
constexpr std::int64_t kMaxLinearAdamExtent = INT32_MAX - kStripCols;

/// Square roots and quotients without the branches of the compiler's versions, so that four weights
/// are computed side by side. The bits are the same as long as no intermediate number is subnormal:
/// from 2^-100 on. A root is at least that of the smallest normal number, which is negligible next
/// to an eps above 1e-15. Infinity becomes NaN, and the run then ends as diverged.
struct StraightArithmetic {
  static BARESTEP_HD float divide(float a, float b) {
    float r = approximate_reciprocal(b);
    r = std::fma(r, std::fma(-b, r, 1.0F), r);
    float q = a * r;
    q = std::fma(r, std::fma(-b, q, a), q);
    return std::fma(r, std::fma(-b, q, a), q);
  }
  static BARESTEP_HD float root(float x) {
    constexpr float kSmallestNormal = 1.17549435e-38F;
    x = std::fmax(x, kSmallestNormal);
    const float r = approximate_root_reciprocal(x);
    const float half = 0.5F * r;
    float s = x * r;
    s = std::fma(half, std::fma(-s, s, x), s);
    return std::fma(half, std::fma(-s, s, x), s);
  }
};

/// The chunks of x that a block usually has, and those of one that keeps more.
constexpr int kChunksOfX = 2;
constexpr int kChunksKept = 4;

/// A block's shared memory.
template <class Product, int kChunks = kChunksOfX>
struct LinearAdamShared {
  using Number = typename Product::Number;
  alignas(kVectorBytes) Number x[kChunks][Product::kDepth * kStride<Number, kStripCols>];
  alignas(kVectorBytes) Number grad_y[2][Product::kDepth * kStride<Number, Product::kRows>];
  [[no_unique_address]] typename Product::Exchange exchange;
  AdamScalars step;  // registers cost more than loads
};

/// A block's path: tile by tile, each in chunks of the batch. All blocks together go through the
/// weight from its first row to its last, so that what they access at a time lies close together.
/// If their number is a multiple of the strips, a block stays in its strip.
struct TileWalk {
  int strips, chunks;
  int rows_on, strips_on;  // from a tile to the block's next
  int tile, strip, chunk;  // the tile's row and column among tiles

  __device__ __forceinline__ void advance() {
    if (++chunk < chunks) return;
    chunk = 0;
    tile += rows_on;
    strip += strips_on;
    if (strip < strips) return;
    strip -= strips;
    ++tile;
  }
  /// Whether this tile's block updates the biases of its rows. Every strip has its share of them.
  [[nodiscard]] __device__ __forceinline__ bool has_biases() const {
    return tile % strips == strip;
  }
  /// The index of a chunk of x, counted across all strips.
  [[nodiscard]] __device__ __forceinline__ int chunk_of_x() const { return strip * chunks + chunk; }
};

/// Starts copying rows row .. row + kDepth - 1 and kCols columns from `col` of `from` [rows][cols];
/// zeros replace numbers outside the matrix.
template <int kDepth, int kCols, bool kVectors, class Number>
__device__ __forceinline__ void fetch_factor(Number* to, const Number* from, int row, int rows,
                                             int col, int cols) {
  constexpr int kCount = kVectors ? 4 : 1;
  constexpr int kAcross = kCols / kCount;
  constexpr int kBytes = kCount * static_cast<int>(sizeof(Number));
  constexpr int kStep = kBlockThreads / kAcross;
  static_assert(kDepth % kStep == 0 && kBlockThreads % kAcross == 0);
  const int across = block_thread() % kAcross * kCount;
  int down = block_thread() / kAcross;
  // If half a warp copies two rows, it takes every second row; these are 16 banks apart.
  if constexpr (kAcross * kBytes == 64 && kVectors)
    down = (down & ~3) | (down & 1) << 1 | (down & 2) >> 1;
  col += across;
  row += down;
  to += down * kStride<Number, kCols> + across;
  const Number* source = from + std::int64_t{row} * cols + col;
#pragma unroll 8
  for (int k = 0; k < kDepth; k += kStep) {
    const bool valid = row + k < rows && col < cols;
    copy_async<kBytes>(to + k * kStride<Number, kCols>, valid ? source : from, valid);
    source += std::int64_t{kStep} * cols;
  }
}

/// Four neighboring weights and their moments, of which only `count` exist.
template <bool kVectors, class Number>
struct FourWeights {
  float4 weight{}, moment1{}, moment2{};

  __device__ __forceinline__ void load(const LinearAdamArrays<Number>& a, std::int64_t at,
                                       int count) {
    if constexpr (kVectors) {
      weight = *reinterpret_cast<const float4*>(a.weight + at);
      moment1 = __ldcs(reinterpret_cast<const float4*>(a.weight_moments1 + at));
      moment2 = __ldcs(reinterpret_cast<const float4*>(a.weight_moments2 + at));
    } else {
      weight = load_some(a.weight + at, count);
      moment1 = load_some(a.weight_moments1 + at, count);
      moment2 = load_some(a.weight_moments2 + at, count);
    }
  }

  __device__ __forceinline__ void store(const LinearAdamArrays<Number>& a, std::int64_t at,
                                        int count) const {
    if constexpr (kVectors) {
      *reinterpret_cast<float4*>(a.weight + at) = weight;
      __stcs(reinterpret_cast<float4*>(a.weight_moments1 + at), moment1);
      __stcs(reinterpret_cast<float4*>(a.weight_moments2 + at), moment2);
    } else {
      store_some(a.weight + at, weight, count);
      store_some(a.weight_moments1 + at, moment1, count);
      store_some(a.weight_moments2 + at, moment2, count);
    }
    if constexpr (sizeof(Number) < sizeof(float)) {
      const Pack<Number, 4> rounded = narrowed<Number>(weight);
      if constexpr (kVectors) {
        *reinterpret_cast<std::uint64_t*>(a.rounded_weight + at) =
            std::bit_cast<std::uint64_t>(rounded);
      } else {
        store_some(a.rounded_weight + at, rounded, count);
      }
    }
  }

  template <class Arithmetic>
  __device__ __forceinline__ void update(const AdamConstants& constants, const AdamScalars& step,
                                         float4 grad) {
    adam_step<Arithmetic>(constants, step, grad.x, weight.x, moment1.x, moment2.x);
    adam_step<Arithmetic>(constants, step, grad.y, weight.y, moment1.y, moment2.y);
    adam_step<Arithmetic>(constants, step, grad.z, weight.z, moment1.z, moment2.z);
    adam_step<Arithmetic>(constants, step, grad.w, weight.w, moment1.w, moment2.w);
  }

 private:
  static __device__ __forceinline__ float4 load_some(const float* from, int count) {
    return {from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0, count > 3 ? from[3] : 0};
  }
  static __device__ __forceinline__ void store_some(float* to, float4 values, int count) {
    to[0] = values.x;
    if (count > 1) to[1] = values.y;
    if (count > 2) to[2] = values.z;
    if (count > 3) to[3] = values.w;
  }
  template <class OfNumber>
  static __device__ __forceinline__ void store_some(OfNumber* to, const Pack<OfNumber, 4>& values,
                                                    int count) {
    to[0] = values.of[0];
    if (count > 1) to[1] = values.of[1];
    if (count > 2) to[2] = values.of[2];
    if (count > 3) to[3] = values.of[3];
  }
};

/// Does nothing; bench/sass_budget marks the code that few tiles reach.
struct NoMarks {
  static __device__ __forceinline__ void rare() {}
};

/// The work of one block. One that kKeeps has a buffer for each chunk of a tile, of which there are
/// at least two.
template <class Product, bool kVectors, class Arithmetic, class Marks, int kMaxAhead, int kChunks>
struct LinearAdamBlock {
  using Number = typename Product::Number;
  static constexpr bool kKeeps = kChunks > kChunksOfX;
  static constexpr int kDepth = Product::kDepth;
  static constexpr int kRows = Product::kRows;
  static constexpr int kSlots = Product::kSlots;
  /// Slots whose weights are in registers ahead; a tall tile's sums need many.
  static constexpr int kAhead = kSlots <= kMaxAhead ? kSlots : 2;

  const LinearAdamArrays<Number>& a;
  const AdamConstants& constants;
  LinearAdamShared<Product, kChunks>& shared;
  int out, in, n;
  TileWalk now, next;
  int x_buffer = 0;
  int held, other = -1;  // the chunks of x in this buffer and in the other; or the strip it keeps
  FourWeights<kVectors, Number> weights[kAhead]{};
  typename Product::Sums sums{};
  float bias_sum = 0;

  __device__ __forceinline__ void fetch_x(int buffer, const TileWalk& at) {
    fetch_factor<kDepth, kStripCols, kVectors>(shared.x[buffer], a.x, at.chunk * kDepth, n,
                                               at.strip * kStripCols, in);
  }
  __device__ __forceinline__ void fetch_grad_y(int buffer, const TileWalk& at) {
    fetch_factor<kDepth, kRows, kVectors>(shared.grad_y[buffer], a.grad_y, at.chunk * kDepth, n,
                                          at.tile * kRows, out);
  }

  __device__ __forceinline__ void load(int slot, const TileWalk& of) {
    const int row = of.tile * kRows + row_of<kSlots>(slot);
    const int col = of.strip * kStripCols + col_of();
    if (row >= out || col >= in) return;
    weights[slot % kAhead].load(a, std::int64_t{row} * in + col, in - col);
  }

  /// Starts moving the weights and moments of a tile into the L2 cache: memory then has work while
  /// the product is computed, and loads take less time.
  __device__ __forceinline__ void prefetch_weights(const TileWalk& of) {
    const int col = of.strip * kStripCols + col_of();
    if (lane_of_warp() % 8 != 0 || col >= in) return;  // eight lanes load 128 bytes
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int row = of.tile * kRows + row_of<kSlots>(slot);
      if (row >= out) return;
      const std::int64_t at = std::int64_t{row} * in + col;
      prefetch(a.weight + at);
      prefetch(a.weight_moments1 + at);
      prefetch(a.weight_moments2 + at);
    }
  }

  /// Starts loading the factors of the block's first step and the weights of its first slots.
  __device__ __forceinline__ void begin() {
    if (block_thread() == 0) shared.step = AdamScalars(constants, a.scalars, a.clip);
    fetch_x(0, now);
    fetch_grad_y(0, now);
    commit_copies();
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) load(slot, now);
  }

  /// Starts copying the data of the next step that is not in the buffers. Returns whether its x is
  /// in the other buffer.
  __device__ __forceinline__ bool fetch_next(int grad_y_buffer) {
    bool elsewhere = false;
    if constexpr (kKeeps) {
      if (next.strip != held) {
        Marks::rare();
        fetch_x(next.chunk, next);  // not the one in use, since a tile has several
        if (next.chunk + 1 == next.chunks) held = next.strip;
      }
    } else {
      const int requested = next.chunk_of_x();
      elsewhere = requested != held;
      if (elsewhere && requested != other) {
        Marks::rare();
        fetch_x(x_buffer ^ 1, next);
        other = requested;
      }
    }
    fetch_grad_y(grad_y_buffer, next);
    return elsewhere;
  }

  /// Sums the gradients of biases, in the order of the rows.
  __device__ __forceinline__ void add_biases(const Number* grad_y) {
    if (!now.has_biases() || block_thread() >= kRows) return;
    Marks::rare();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k)
      bias_sum +=
          float_of(load_shared<Number>(grad_y + k * kStride<Number, kRows> + block_thread()));
  }

  __device__ __forceinline__ void update_weights(bool more) {
    Product::exchange(sums, shared.exchange);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int row = now.tile * kRows + row_of<kSlots>(slot);
      const int col = now.strip * kStripCols + col_of();
      auto& four = weights[slot % kAhead];
      const float4 grads = widened(narrowed<Number>(Product::grads(sums, shared.exchange, slot)));
      four.template update<Arithmetic>(constants, shared.step, grads);
      if (row < out && col < in) four.store(a, std::int64_t{row} * in + col, in - col);
      const int ahead = slot + kAhead;
      if (ahead < kSlots) load(ahead, now);
      if (ahead >= kSlots && more) load(ahead - kSlots, next);
    }
    sums = {};
  }

  __device__ __forceinline__ void update_biases() {
    if (!now.has_biases() || block_thread() >= kRows) return;
    Marks::rare();
    const int at = now.tile * kRows + block_thread();
    if (at < out) {
      const float grad = float_of(rounded<Number>(bias_sum));
      adam_step<Arithmetic>(constants, shared.step, grad, a.bias[at], a.bias_moments1[at],
                            a.bias_moments2[at]);
      if constexpr (sizeof(Number) < sizeof(float)) {
        a.rounded_bias[at] = rounded<Number>(a.bias[at]);
      }
    }
    bias_sum = 0;
  }

  __device__ __forceinline__ void run(int steps) {
    begin();
    for (int i = 0; i < steps; ++i) {
      wait_for_copies();
      __syncthreads();  // factors complete, the last step's no longer read
      next = now;
      next.advance();
      const bool more = i + 1 < steps;
      const bool elsewhere = more && fetch_next((i + 1) & 1);
      commit_copies();
      if (more && next.chunk == 0) prefetch_weights(next);
      const Number* const grad_y = shared.grad_y[i & 1];
      Product::add(grad_y, shared.x[kKeeps ? now.chunk : x_buffer], sums);
      add_biases(grad_y);
      if (next.chunk == 0) {
        update_weights(more);
        update_biases();
      }
      if (elsewhere) {
        x_buffer ^= 1;
        const int left = held;
        held = other;
        other = left;
      }
      now = next;
    }
  }
};

/// The tiles of a layer of block `first` of `blocks`.
template <class Product, bool kVectors, class Arithmetic, class Marks, int kMaxAhead = 4,
          int kChunks = kChunksOfX>
__device__ __forceinline__ void update_layer(const LinearAdamArrays<typename Product::Number>& a,
                                             const AdamConstants& constants, int first,
                                             int blocks) {
  const int out = static_cast<int>(a.out);
  const int in = static_cast<int>(a.in);
  const int n = static_cast<int>(a.n);
  const int down = (out + Product::kRows - 1) / Product::kRows;
  const int strips = (in + kStripCols - 1) / kStripCols;
  const int chunks = n <= Product::kDepth ? 1 : (n + Product::kDepth - 1) / Product::kDepth;
  const std::int64_t tiles = std::int64_t{down} * strips;
  const auto own = static_cast<int>((tiles - first + blocks - 1) / blocks);
  if (own <= 0) return;
  const TileWalk begin{.strips = strips,
                       .chunks = chunks,
                       .rows_on = blocks / strips,
                       .strips_on = blocks % strips,
                       .tile = first / strips,
                       .strip = first % strips,
                       .chunk = 0};
  using Block = LinearAdamBlock<Product, kVectors, Arithmetic, Marks, kMaxAhead, kChunks>;
  Block block{.a = a,
              .constants = constants,
              .shared = dynamic_shared<LinearAdamShared<Product, kChunks>>(),
              .out = out,
              .in = in,
              .n = n,
              .now = begin,
              .next = begin,
              .held = Block::kKeeps ? -1 : begin.chunk_of_x()};
  block.run(own * chunks);
}

/// Grid: any number of persistent blocks of kBlockThreads, each with a LinearAdamShared; they
/// divide the tiles. Gradients are rounded to the type of the factors, and so are the new weights.
/// Sums over the batch have a fixed order that does not depend on the grid. With kVectors, `in` and
/// `out` are multiples of four and all arrays except the biases' are aligned to 16 bytes.
template <class Product, bool kVectors, class Arithmetic = StraightArithmetic,
          class Marks = NoMarks>
__global__ void __launch_bounds__(kBlockThreads, 2)
    linear_adam(LinearAdamArrays<typename Product::Number> a, AdamConstants constants) {
  begin_kernel();
  update_layer<Product, kVectors, Arithmetic, Marks>(a, constants, static_cast<int>(blockIdx.x),
                                                     static_cast<int>(gridDim.x));
}

/// How many blocks that keep x a multiprocessor has room for.
template <class Product>
constexpr int kBlocksKeeping = 2 * sizeof(LinearAdamShared<Product, kChunksKept>) <= 226 * 1024 ? 2
                                                                                                : 1;

/// The same, but a block keeps the x of its strip, which has two chunks at least and kChunksKept at
/// most, so that it is read once a strip. A block alone has registers for weights of many slots.
template <class Product>
__global__ void __launch_bounds__(kBlockThreads, kBlocksKeeping<Product>)
    linear_adam_keeping_x(LinearAdamArrays<typename Product::Number> a, AdamConstants constants) {
  begin_kernel();
  constexpr int kMaxAhead = kBlocksKeeping<Product> == 1 ? 8 : 4;
  update_layer<Product, true, StraightArithmetic, NoMarks, kMaxAhead, kChunksKept>(
      a, constants, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

/// The most layers of one launch.
constexpr int kMaxLayers = 16;

template <class Number>
struct LinearAdamLayers {
  LinearAdamArrays<Number> of[kMaxLayers];
  int tiles_before[kMaxLayers];  // of the layers before it
  int count;
};

/// The same for several layers, one after another, without an end of the grid between them.
template <class Product>
__global__ void __launch_bounds__(kBlockThreads, 2)
    linear_adam_of_layers(const __grid_constant__ LinearAdamLayers<typename Product::Number> layers,
                          AdamConstants constants) {
  begin_kernel();
  // The loop takes registers, which the exchange of tf32 also needs.
  constexpr int kMaxAhead = std::is_same_v<Product, TensorProduct<1, float>> ? 2 : 4;
  __shared__ LinearAdamArrays<typename Product::Number> layer;
  const auto blocks = static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int i = 0; i < layers.count; ++i) {
    if (i > 0) __syncthreads();  // the factors of the layer before are no longer read
    if (block_thread() == 0) layer = layers.of[i];
    __syncthreads();
    // The block after the last one of the layer before has the first tile.
    const int first =
        (static_cast<int>(blockIdx.x) + blocks - layers.tiles_before[i] % blocks) % blocks;
    update_layer<Product, true, StraightArithmetic, NoMarks, kMaxAhead>(layer, constants, first,
                                                                        blocks);
  }
}

}  // namespace barestep
