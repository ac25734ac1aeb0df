// Kernels of attention in fp32 arithmetic. A block computes a tile of queries or of keys of one
// head, so each sum has one owner and its order is fixed.
//
// Backward computes scores once for the gradients of queries and once for those of keys and values:
// seven products instead of five, but no atomic additions and no memory for partial sums.
#include "kernels/cuda/attention_heads.cuh"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/reductions.cuh"

namespace barestep {

/// A block has kSide x kSide threads; a thread has every kSide-th row and column of a tile.
constexpr int kSide = 16;
/// Blocks on a multiprocessor, so 128 registers a thread. Otherwise the compiler aims at as many as
/// shared memory allows, and spills. The host's compiler has no use for it.
[[maybe_unused]] constexpr int kResidentBlocks = 2;

/// The i-th row and the j-th column of a tile that this thread has.
__device__ inline int own_row(int i) {
  return static_cast<int>(threadIdx.y) + i * kSide;
}
__device__ inline int own_col(int j) {
  return static_cast<int>(threadIdx.x) + j * kSide;
}

/// Tiles of kTile queries or keys, whose rows have up to kWidth numbers. Rows have a gap, so that
/// threads that read different rows read different banks.
template <int kTile, int kWidth>
struct AttentionTile {
  static constexpr int kRows = kTile / kSide;
  static constexpr int kCols = kWidth / kSide;
  using Rows = float[kTile][kWidth + 1];
  using Scores = float[kTile][kTile + 1];
  using ScoresOfThread = float[kRows][kRows];
  using SumsOfThread = float[kRows][kCols];
};

/// Loads a tile of rows, from `begin` on, of numbers that are `stride` apart; zeros beyond the end.
template <int kTile, int kWidth, class Number>
__device__ void load_rows(float (&to)[kTile][kWidth + 1], const Number* from, std::int64_t stride,
                          std::int64_t begin, const AttentionHead<Number>& head) {
  for (int i = static_cast<int>(threadIdx.y * kSide + threadIdx.x); i < kTile * kWidth;
       i += kSide * kSide) {
    const int row = i / kWidth;
    const int col = i % kWidth;
    const bool exists = begin + row < head.shape.length && col < head.width;
    to[row][col] = exists ? float_of(from[(begin + row) * stride + col]) : 0.0F;
  }
}

/// The products of rows of a with rows of b.
template <int kTile, int kWidth>
__device__ void multiply_rows(const float (&a)[kTile][kWidth + 1],
                              const float (&b)[kTile][kWidth + 1],
                              float (&sums)[kTile / kSide][kTile / kSide]) {
  constexpr int kRows = kTile / kSide;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kRows; ++j) sums[i][j] = 0;
#pragma unroll 4
  for (int k = 0; k < kWidth; ++k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        sums[i][j] = fmaf(a[own_row(i)][k], b[own_col(j)][k], sums[i][j]);
      }
    }
  }
}

/// sums += scores * rows, or with kTransposes their transpose: a row of sums for each key.
template <bool kTransposes, int kTile, int kWidth>
__device__ void add_products(const float (&scores)[kTile][kTile + 1],
                             const float (&rows)[kTile][kWidth + 1],
                             float (&sums)[kTile / kSide][kWidth / kSide]) {
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
#pragma unroll
    for (int i = 0; i < kTile / kSide; ++i) {
      const int row = own_row(i);
      const float factor = kTransposes ? scores[k][row] : scores[row][k];
#pragma unroll
      for (int j = 0; j < kWidth / kSide; ++j) {
        sums[i][j] = fmaf(factor, rows[k][own_col(j)], sums[i][j]);
      }
    }
  }
}

/// Stores sums times a factor for each row, rounded.
template <int kTile, int kWidth, class Number, class Factor>
__device__ void store_rows(const float (&sums)[kTile / kSide][kWidth / kSide], Number* to,
                           std::int64_t stride, std::int64_t begin,
                           const AttentionHead<Number>& head, const Factor& factor) {
#pragma unroll
  for (int i = 0; i < kTile / kSide; ++i) {
    const std::int64_t row = begin + own_row(i);
    if (row >= head.shape.length) continue;
#pragma unroll
    for (int j = 0; j < kWidth / kSide; ++j) {
      const std::int64_t col = own_col(j);
      if (col < head.width) to[row * stride + col] = rounded<Number>(sums[i][j] * factor(i));
    }
  }
}

/// Combines the values of the threads that share a row of a tile.
template <class Combine>
__device__ float over_row(float value, const Combine& combine) {
  for (int step = kSide / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
__device__ inline float row_maximum(float value) {
  return over_row(value, [](float a, float b) { return a > b ? a : b; });
}
__device__ inline float row_total(float value) {
  return over_row(value, [](float a, float b) { return a + b; });
}

/// One step of the online softmax: scores of this thread become exponentials, and the state of its
/// rows that of all keys so far. Returns in `shrink` the factors of earlier sums.
template <int kRows>
__device__ void add_softmax(float (&scores)[kRows][kRows], float (&maximum)[kRows],
                            float (&sum)[kRows], float (&shrink)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float largest = maximum[i];
    for (const float score : scores[i]) largest = score > largest ? score : largest;
    largest = row_maximum(largest);
    float total = 0;
    for (float& score : scores[i]) {
      score = std::exp(score - largest);
      total += score;
    }
    shrink[i] = std::exp(maximum[i] - largest);
    sum[i] = fmaf(sum[i], shrink[i], row_total(total));
    maximum[i] = largest;
  }
}

/// Attention in the flash form; a block computes a tile of queries.
template <int kTile, int kWidth, class Number>
__global__ void __launch_bounds__(kSide* kSide, kResidentBlocks)
    flash_attention(AttentionHead<Number> h, Number* out, float* log_sums) {
  using Tile = AttentionTile<kTile, kWidth>;
  __shared__ typename Tile::Rows queries, keys, values;
  __shared__ typename Tile::Scores p;
  begin_kernel();
  const PlaceOfBlock<kTile> place(h.shape);
  load_rows<kTile, kWidth>(queries, h.qkv + h.in_qkv(place.head, 0), 3 * h.columns, place.begin, h);
  typename Tile::SumsOfThread sums = {};
  float maximum[Tile::kRows], sum[Tile::kRows], shrink[Tile::kRows];
  for (int i = 0; i < Tile::kRows; ++i) {
    maximum[i] = -INFINITY;
    sum[i] = 0;
  }
  const std::int64_t end = h.end_of_keys(place.begin + kTile);
  for (std::int64_t key = 0; key < end; key += kTile) {
    __syncthreads();  // the tile before has been used
    load_rows<kTile, kWidth>(keys, h.qkv + h.in_qkv(place.head, 1), 3 * h.columns, key, h);
    load_rows<kTile, kWidth>(values, h.qkv + h.in_qkv(place.head, 2), 3 * h.columns, key, h);
    __syncthreads();
    typename Tile::ScoresOfThread scores;
    multiply_rows<kTile, kWidth>(queries, keys, scores);
    for (int i = 0; i < Tile::kRows; ++i) {
      for (int j = 0; j < Tile::kRows; ++j) {
        const bool counts = h.has_or_pads(place.begin + own_row(i), key + own_col(j));
        scores[i][j] = counts ? h.scale * scores[i][j] : -INFINITY;
      }
    }
    add_softmax(scores, maximum, sum, shrink);
    for (int i = 0; i < Tile::kRows; ++i) {
      for (int j = 0; j < Tile::kRows; ++j) {
        p[own_row(i)][own_col(j)] = float_of(rounded<Number>(scores[i][j]));
      }
      for (float& each : sums[i]) each *= shrink[i];
    }
    __syncthreads();
    add_products<false, kTile, kWidth>(p, values, sums);
  }
  store_rows<kTile, kWidth>(sums, out + h.in_out(place.head), h.columns, place.begin, h,
                            [&](int i) { return 1.0F / sum[i]; });
  if (threadIdx.x > 0) return;
  for (int i = 0; i < Tile::kRows; ++i) {
    const std::int64_t row = place.begin + own_row(i);
    if (row < h.shape.length) {
      log_sums[h.in_log_sums(place.head) + row * h.shape.heads] = maximum[i] + std::log(sum[i]);
    }
  }
}

/// What backward needs of a tile of queries and one of keys.
template <int kTile, int kWidth>
struct AttentionGradShared {
  typename AttentionTile<kTile, kWidth>::Rows queries, grads, keys, values;
  typename AttentionTile<kTile, kWidth>::Scores scores;
  float log_sum[kTile], delta[kTile];
};

/// Loads a tile of queries, with the sums of their rows: of exponentials, and of out * grad_out.
template <int kTile, int kWidth, class Number>
__device__ void load_queries(AttentionGradShared<kTile, kWidth>& s, const AttentionHead<Number>& h,
                             std::int64_t head, std::int64_t begin) {
  load_rows<kTile, kWidth>(s.queries, h.qkv + h.in_qkv(head, 0), 3 * h.columns, begin, h);
  load_rows<kTile, kWidth>(s.grads, h.grad_out + h.in_out(head), h.columns, begin, h);
  for (int row = static_cast<int>(threadIdx.y); row < kTile; row += kSide) {
    const std::int64_t query = begin + row;
    const bool exists = query < h.shape.length;
    const std::int64_t first = h.in_out(head) + query * h.columns;
    float sum = 0;
    for (std::int64_t col = threadIdx.x; exists && col < h.width; col += kSide)
      sum = fmaf(float_of(h.out[first + col]), float_of(h.grad_out[first + col]), sum);
    sum = row_total(sum);
    if (threadIdx.x > 0) continue;
    s.delta[row] = sum;
    s.log_sum[row] = exists ? h.kept[h.in_log_sums(head) + query * h.shape.heads] : 0.0F;
  }
}

template <int kTile, int kWidth, class Number>
__device__ void load_keys(AttentionGradShared<kTile, kWidth>& s, const AttentionHead<Number>& h,
                          std::int64_t head, std::int64_t begin) {
  load_rows<kTile, kWidth>(s.keys, h.qkv + h.in_qkv(head, 1), 3 * h.columns, begin, h);
  load_rows<kTile, kWidth>(s.values, h.qkv + h.in_qkv(head, 2), 3 * h.columns, begin, h);
}

/// The probabilities of this thread's pairs, and the gradients of their scores.
template <int kTile, int kWidth, class Number>
__device__ void score_gradients(const AttentionGradShared<kTile, kWidth>& s,
                                const AttentionHead<Number>& h, std::int64_t first_query,
                                std::int64_t first_key, float (&p)[kTile / kSide][kTile / kSide],
                                float (&grads)[kTile / kSide][kTile / kSide]) {
  multiply_rows<kTile, kWidth>(s.queries, s.keys, p);
  multiply_rows<kTile, kWidth>(s.grads, s.values, grads);
  for (int i = 0; i < kTile / kSide; ++i) {
    const int row = own_row(i);
    for (int j = 0; j < kTile / kSide; ++j) {
      const bool counts = h.has(first_query + row, first_key + own_col(j));
      p[i][j] = counts ? std::exp(h.scale * p[i][j] - s.log_sum[row]) : 0.0F;
      grads[i][j] = counts ? p[i][j] * (grads[i][j] - s.delta[row]) : 0.0F;
    }
  }
}

/// Shares a tile of scores, rounded to the type that products read.
template <int kTile, class Number>
__device__ void share_scores(float (&to)[kTile][kTile + 1],
                             const float (&from)[kTile / kSide][kTile / kSide]) {
  __syncthreads();  // the scores before have been used
  for (int i = 0; i < kTile / kSide; ++i)
    for (int j = 0; j < kTile / kSide; ++j)
      to[own_row(i)][own_col(j)] = float_of(rounded<Number>(from[i][j]));
  __syncthreads();
}

/// The gradients of keys and values; a block computes a tile of keys.
template <int kTile, int kWidth, class Number>
__global__ void __launch_bounds__(kSide* kSide, kResidentBlocks)
    flash_attention_grad_keys(AttentionHead<Number> h, Number* grad_qkv) {
  using Tile = AttentionTile<kTile, kWidth>;
  __shared__ AttentionGradShared<kTile, kWidth> s;
  begin_kernel();
  const PlaceOfBlock<kTile> place(h.shape);
  load_keys(s, h, place.head, place.begin);
  typename Tile::SumsOfThread of_keys = {}, of_values = {};
  for (std::int64_t query = h.shape.causal ? place.begin : 0; query < h.shape.length;
       query += kTile) {
    __syncthreads();
    load_queries(s, h, place.head, query);
    __syncthreads();
    typename Tile::ScoresOfThread p, grads;
    score_gradients(s, h, query, place.begin, p, grads);
    share_scores<kTile, Number>(s.scores, p);
    add_products<true, kTile, kWidth>(s.scores, s.grads, of_values);
    share_scores<kTile, Number>(s.scores, grads);
    add_products<true, kTile, kWidth>(s.scores, s.queries, of_keys);
  }
  store_rows<kTile, kWidth>(of_keys, grad_qkv + h.in_qkv(place.head, 1), 3 * h.columns, place.begin,
                            h, [&](int) { return h.scale; });
  store_rows<kTile, kWidth>(of_values, grad_qkv + h.in_qkv(place.head, 2), 3 * h.columns,
                            place.begin, h, [](int) { return 1.0F; });
}

/// The gradients of queries; a block computes a tile of queries.
template <int kTile, int kWidth, class Number>
__global__ void __launch_bounds__(kSide* kSide, kResidentBlocks)
    flash_attention_grad_queries(AttentionHead<Number> h, Number* grad_qkv) {
  using Tile = AttentionTile<kTile, kWidth>;
  __shared__ AttentionGradShared<kTile, kWidth> s;
  begin_kernel();
  const PlaceOfBlock<kTile> place(h.shape);
  load_queries(s, h, place.head, place.begin);
  typename Tile::SumsOfThread sums = {};
  const std::int64_t end = h.end_of_keys(place.begin + kTile);
  for (std::int64_t key = 0; key < end; key += kTile) {
    __syncthreads();
    load_keys(s, h, place.head, key);
    __syncthreads();
    typename Tile::ScoresOfThread p, grads;
    score_gradients(s, h, place.begin, key, p, grads);
    share_scores<kTile, Number>(s.scores, grads);
    add_products<false, kTile, kWidth>(s.scores, s.keys, sums);
  }
  store_rows<kTile, kWidth>(sums, grad_qkv + h.in_qkv(place.head, 0), 3 * h.columns, place.begin, h,
                            [&](int) { return h.scale; });
}

// The standard form: each product reads or writes all scores.

/// Rows of one operand of a product, of which a head has `width` numbers.
template <class Number>
struct RowsOfHeads {
  Number* first;        // of the tensor
  std::int64_t cols;    // its columns
  std::int64_t column;  // of head 0

  [[nodiscard]] __device__ Number* of(const AttentionHead<std::remove_const_t<Number>>& h,
                                      std::int64_t head) const {
    return first + h.row_of(head, cols) + column + head % h.shape.heads * h.width;
  }
};

/// scores = factor * (rows of a) (rows of b)^T, or minus infinity for later keys if kExcludes; a
/// block computes a tile of queries.
template <int kTile, int kWidth, bool kExcludes, class Number>
__global__ void __launch_bounds__(kSide* kSide, kResidentBlocks)
    multiply_to_scores(AttentionHead<Number> h, RowsOfHeads<const Number> a,
                       RowsOfHeads<const Number> b, float factor, float* scores) {
  using Tile = AttentionTile<kTile, kWidth>;
  __shared__ typename Tile::Rows queries, keys;
  begin_kernel();
  const PlaceOfBlock<kTile> place(h.shape);
  load_rows<kTile, kWidth>(queries, a.of(h, place.head), a.cols, place.begin, h);
  float* const to = scores + h.in_scores(place.head);
  const std::int64_t stride = h.shape.heads * h.shape.length;
  for (std::int64_t key = 0; key < h.shape.length; key += kTile) {
    __syncthreads();
    load_rows<kTile, kWidth>(keys, b.of(h, place.head), b.cols, key, h);
    __syncthreads();
    typename Tile::ScoresOfThread sums;
    multiply_rows<kTile, kWidth>(queries, keys, sums);
    for (int i = 0; i < Tile::kRows; ++i) {
      for (int j = 0; j < Tile::kRows; ++j) {
        const std::int64_t row = place.begin + own_row(i);
        const std::int64_t col = key + own_col(j);
        if (row >= h.shape.length || col >= h.shape.length) continue;
        const bool is_excluded = kExcludes && !h.has(row, col);
        to[row * stride + col] = is_excluded ? -INFINITY : factor * sums[i][j];
      }
    }
  }
}

/// to = factor * scores * rows of b, or with kTransposes their transpose; a block computes a tile
/// of rows of `to`.
template <int kTile, int kWidth, bool kTransposes, class Number>
__global__ void __launch_bounds__(kSide* kSide, kResidentBlocks)
    multiply_scores(AttentionHead<Number> h, const float* scores, RowsOfHeads<const Number> b,
                    float factor, RowsOfHeads<Number> to) {
  using Tile = AttentionTile<kTile, kWidth>;
  __shared__ typename Tile::Rows rows;
  __shared__ typename Tile::Scores tile;
  begin_kernel();
  const PlaceOfBlock<kTile> place(h.shape);
  const float* const from = scores + h.in_scores(place.head);
  const std::int64_t stride = h.shape.heads * h.shape.length;
  typename Tile::SumsOfThread sums = {};
  for (std::int64_t k = 0; k < h.shape.length; k += kTile) {
    __syncthreads();
    load_rows<kTile, kWidth>(rows, b.of(h, place.head), b.cols, k, h);
    for (int i = 0; i < Tile::kRows; ++i) {
      for (int j = 0; j < Tile::kRows; ++j) {
        const int down = own_row(i);
        const int across = own_col(j);
        const std::int64_t row = (kTransposes ? k : place.begin) + down;
        const std::int64_t col = (kTransposes ? place.begin : k) + across;
        const bool exists = row < h.shape.length && col < h.shape.length;
        tile[down][across] = exists ? from[row * stride + col] : 0.0F;
      }
    }
    __syncthreads();
    add_products<kTransposes, kTile, kWidth>(tile, rows, sums);
  }
  store_rows<kTile, kWidth>(sums, to.of(h, place.head), to.cols, place.begin, h,
                            [=](int) { return factor; });
}

/// The softmax of every row of `length` scores, in place.
static __global__ void __launch_bounds__(kBlockThreads)
    softmax_rows(float* scores, std::int64_t rows, std::int64_t length) {
  begin_kernel();
  each_row_by_a_warp(rows, [&](std::int64_t row, std::int64_t lane) {
    float* const x = scores + row * length;
    const float largest = largest_of_row<1, false>(x, length);
    float sum = 0;
    for (std::int64_t j = lane; j < length; j += kWarpThreads) {
      x[j] = std::exp(x[j] - largest);
      sum += x[j];
    }
    const float inverse = 1.0F / warp_sum(sum);
    for (std::int64_t j = lane; j < length; j += kWarpThreads) x[j] *= inverse;
  });
}

/// The gradients of scores from those of their softmax p, in place, by rows.
static __global__ void __launch_bounds__(kBlockThreads)
    softmax_grad_rows(float* grads, const float* p, std::int64_t rows, std::int64_t length) {
  begin_kernel();
  each_row_by_a_warp(rows, [&](std::int64_t row, std::int64_t lane) {
    const std::int64_t first = row * length;
    float sum = 0;
    for (std::int64_t j = lane; j < length; j += kWarpThreads)
      sum = fmaf(p[first + j], grads[first + j], sum);
    sum = warp_sum(sum);
    for (std::int64_t j = lane; j < length; j += kWarpThreads)
      grads[first + j] = p[first + j] * (grads[first + j] - sum);
  });
}

namespace {

constexpr dim3 kSquare(kSide, kSide);

struct AttentionLauncher : Launcher {
  cudaError_t run(const Attention& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      const AttentionHead<Number> head = head_of<Number>(op, addresses);
      return with_tile(head, [&]<int kTile, int kWidth>(std::integral_constant<int, kTile>,
                                                        std::integral_constant<int, kWidth>) {
        const dim3 grid = attention_grid(op.shape, op.out, kTile);
        Number* const out = addresses.at<Number>(op.out);
        float* const kept = addresses.at(op.kept);
        if (op.shape.form == AttentionForm::kFlash) {
          return start(queue, grid, kSquare, flash_attention<kTile, kWidth, Number>, head, out,
                       kept);
        }
        const cudaError_t multiplied =
            start(queue, grid, kSquare, multiply_to_scores<kTile, kWidth, true, Number>, head,
                  third_of(head.qkv, op.qkv, 0), third_of(head.qkv, op.qkv, 1), head.scale, kept);
        if (multiplied != cudaSuccess) return multiplied;
        const cudaError_t summed = over_scores(op.shape, op.out, softmax_rows, kept);
        if (summed != cudaSuccess) return summed;
        return start(queue, grid, kSquare, multiply_scores<kTile, kWidth, false, Number>, head,
                     static_cast<const float*>(kept), third_of(head.qkv, op.qkv, 2), 1.0F,
                     RowsOfHeads<Number>{out, op.out.cols, 0});
      });
    });
  }

  cudaError_t run(const AttentionGrad& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      const AttentionHead<Number> head = head_of<Number>(op, addresses);
      return with_tile(head, [&]<int kTile, int kWidth>(std::integral_constant<int, kTile>,
                                                        std::integral_constant<int, kWidth>) {
        const dim3 grid = attention_grid(op.shape, op.out, kTile);
        Number* const grads = addresses.at<Number>(op.grad_qkv);
        if (op.shape.form == AttentionForm::kStandard) {
          return standard_grad<kTile, kWidth, Number>(op, head, grid);
        }
        const cudaError_t error = start(
            queue, grid, kSquare, flash_attention_grad_keys<kTile, kWidth, Number>, head, grads);
        if (error != cudaSuccess) return error;
        return start(queue, grid, kSquare, flash_attention_grad_queries<kTile, kWidth, Number>,
                     head, grads);
      });
    });
  }

 private:
  /// Calls use(tile, width) with the sizes of tiles, which fit in the static shared memory.
  template <class Number, class Use>
  static cudaError_t with_tile(const AttentionHead<Number>& head, const Use& use) {
    using std::integral_constant;
    if (head.width <= 32) return use(integral_constant<int, 32>{}, integral_constant<int, 32>{});
    if (head.width <= 64) return use(integral_constant<int, 32>{}, integral_constant<int, 64>{});
    return use(integral_constant<int, 16>{}, integral_constant<int, 128>{});
  }

  /// Queries, keys or values in rows of qkv or of its gradient.
  template <class Number>
  static RowsOfHeads<Number> third_of(Number* first, const Tensor& qkv, int third) {
    return {first, qkv.cols, third * (qkv.cols / 3)};
  }

  /// Launches a kernel with a warp for every row of scores.
  template <class Kernel, class... Arrays>
  cudaError_t over_scores(const AttentionShape& shape, const Tensor& out, Kernel* kernel,
                          Arrays... arrays) const {
    const std::int64_t rows = out.rows * shape.heads;
    return start(queue, blocks_for(rows * kWarpThreads, geometry), kernel, arrays..., rows,
                 shape.length);
  }

  template <int kTile, int kWidth, class Number>
  [[nodiscard]] cudaError_t standard_grad(const AttentionGrad& op,
                                          const AttentionHead<Number>& head, dim3 grid) const {
    const RowsOfHeads<const Number> grad_out{head.grad_out, op.out.cols, 0};
    const float* const p = head.kept;
    float* const grads = addresses.at(*op.scratch);
    Number* const to = addresses.at<Number>(op.grad_qkv);
    const auto thirds = [&](auto* first, int third) { return third_of(first, op.qkv, third); };
    cudaError_t error = cudaSuccess;
    const auto then = [&](auto* kernel, auto... arguments) {
      if (error == cudaSuccess) error = start(queue, grid, kSquare, kernel, head, arguments...);
    };
    then(multiply_scores<kTile, kWidth, true, Number>, p, grad_out, 1.0F, thirds(to, 2));
    then(multiply_to_scores<kTile, kWidth, false, Number>, grad_out, thirds(head.qkv, 2), 1.0F,
         grads);
    if (error == cudaSuccess) error = over_scores(op.shape, op.out, softmax_grad_rows, grads, p);
    const auto* const changed = static_cast<const float*>(grads);
    then(multiply_scores<kTile, kWidth, false, Number>, changed, thirds(head.qkv, 1), head.scale,
         thirds(to, 0));
    then(multiply_scores<kTile, kWidth, true, Number>, changed, thirds(head.qkv, 0), head.scale,
         thirds(to, 1));
    return error;
  }
};

}  // namespace

cudaError_t Launcher::operator()(const Attention& op) const {
  return AttentionLauncher{*this}.run(op);
}

cudaError_t Launcher::operator()(const AttentionGrad& op) const {
  return AttentionLauncher{*this}.run(op);
}

}  // namespace barestep
