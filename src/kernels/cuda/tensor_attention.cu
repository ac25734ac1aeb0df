// Attention in the flash form on tensor cores: the formulas of attention.cu, with other tiles.
//
// A warp has 16 queries or 16 keys. The sums of two products next to each other are four neighbors
// in depth of the product that follows (multiply_16), if that counts keys, or queries, in the order
// 2q, 2q + 1, 2q + 8, 2q + 9. So scores stay in registers, and what they are multiplied with is
// stored by columns, in this order.
//
// Products in fp32 are 3xTF32, or with kRounded of the nearest tf32 numbers.
#include <limits>

#include "kernels/cuda/attention_heads.cuh"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/tensor_products.cuh"

namespace barestep {

constexpr int kRowsOfWarp = 16;
constexpr int kAttentionWarps = 4;
constexpr int kAttentionThreads = kAttentionWarps * kWarpThreads;
constexpr int kAttentionRows = kAttentionWarps * kRowsOfWarp;  // of a block
/// The widest head, whose sums fit into registers.
template <class Number>
constexpr int kMaxTensorWidth = 256 / static_cast<int>(sizeof(Number));
/// Queries or keys of a step of backward, and keys of one of forward: as many as registers allow.
template <class Number>
constexpr int kStepRows = sizeof(Number) == sizeof(float) ? 16 : 32;
template <int kWidth, class Number>
constexpr int kStepKeys = (kWidth <= 64 ? 2 : 1) * kStepRows<Number>;

/// Four neighbors, for one access.
template <class Number>
using FourAsOne = std::conditional_t<sizeof(Number) == sizeof(float), float4, std::uint64_t>;

template <class Number>
__device__ __forceinline__ Pack<Number, 4> four_of(const Number* from) {
  return std::bit_cast<Pack<Number, 4>>(*reinterpret_cast<const FourAsOne<Number>*>(from));
}

/// kCols numbers of each row, 16 or a multiple of 32. With rows 16 numbers apart, but for multiples
/// of 32, lanes that access four neighbors each, in multiply_tiles() or fetch_columns(), have no
/// bank conflicts.
template <class Number, int kRows, int kCols>
struct TensorTile {
  alignas(kVectorBytes) Number numbers[kRows][kCols + (kCols % 32 == 0 ? 16 : 0)];

  [[nodiscard]] __device__ __forceinline__ Pack<Number, 4> four(int row, int col) const {
    return std::bit_cast<Pack<Number, 4>>(load_shared<FourAsOne<Number>>(&numbers[row][col]));
  }
};

/// Rows of a head that are `stride` numbers apart, of which `rows` are left.
template <class Number>
struct RowsOfHead {
  const Number* first;
  int stride, rows, width;

  __device__ __forceinline__ RowsOfHead(const Number* of_head, std::int64_t begin,
                                        std::int64_t stride_of, const AttentionHead<Number>& h)
      : first(of_head + begin * stride_of),
        stride(static_cast<int>(stride_of)),
        rows(static_cast<int>(h.shape.length - begin)),
        width(static_cast<int>(h.width)) {}
};

/// Which pairs of a query and a key count, as AttentionHead::has() and has_or_pads().
struct CountedPairs {
  int length;
  bool causal;

  [[nodiscard]] __device__ __forceinline__ bool has(int query, int key) const {
    return query < length && key < length && (!causal || key <= query);
  }
  [[nodiscard]] __device__ __forceinline__ bool has_or_pads(int query, int key) const {
    return query < length ? has(query, key) : key == 0;
  }
};

/// Starts copying the next kRows rows; zeros beyond the end.
template <int kRows, int kCols, class Number>
__device__ __forceinline__ void fetch_rows(TensorTile<Number, kRows, kCols>& to,
                                           const RowsOfHead<Number>& from) {
  constexpr int kOfCopy = kVectorBytes / static_cast<int>(sizeof(Number));
#pragma unroll 1
  for (int i = block_thread() * kOfCopy; i < kRows * kCols; i += kAttentionThreads * kOfCopy) {
    const int col = i % kCols;
    int row = i / kCols;
    // If eight lanes copy two rows, they take every second row; these are 16 banks apart.
    if constexpr (kCols == 4 * kOfCopy) row = (row & ~3) | (row & 1) << 1 | (row & 2) >> 1;
    const bool exists = row < from.rows && col < from.width;
    copy_async<kVectorBytes>(&to.numbers[row][col],
                             exists ? from.first + row * from.stride + col : from.first, exists);
  }
}

/// The same of kDepth rows, by columns. Column 4c + i of the source is row c + i * kCols / 4 of the
/// tile, so that lanes store four neighbors without bank conflicts.
template <int kCols, int kDepth, class Number>
__device__ __forceinline__ void fetch_columns(TensorTile<Number, kCols, kDepth>& to,
                                              const RowsOfHead<Number>& from) {
  constexpr int kFours = kCols / 4;
#pragma unroll 1
  for (int i = block_thread(); i < kDepth / 4 * kFours; i += kAttentionThreads) {
    const int q = i % 4;
    const int first = i / kCols * 16;
    const int c = i / 4 % kFours;
    Pack<Number, 4> rows[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = first + 2 * q + k % 2 + k / 2 * 8;
      const bool exists = row < from.rows && 4 * c < from.width;
      rows[k] = exists ? four_of(from.first + row * from.stride + 4 * c) : Pack<Number, 4>{};
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Pack<Number, 4> column{{rows[0].of[e], rows[1].of[e], rows[2].of[e], rows[3].of[e]}};
      store_shared(&to.numbers[c + e * kFours][first + 4 * q],
                   std::bit_cast<FourAsOne<Number>>(column));
    }
  }
}

/// A thread's sums of 16 rows by 8 * kTiles columns, in mma_tf32's layout.
template <int kTiles>
using TensorSums = float[kTiles][4];

/// sums += the products of 16 rows of a, from `row` on, with rows of b.
template <bool kRounded, int kRows, int kCols, int kDepth, class Number>
__device__ __forceinline__ void multiply_tiles(const TensorTile<Number, kRows, kDepth>& a, int row,
                                               const TensorTile<Number, kCols, kDepth>& b,
                                               float (&sums)[kCols / 8][4]) {
  const int g = lane_of_warp() / 4;
  const int q = lane_of_warp() % 4;
#pragma unroll 1
  for (int k = 0; k < kDepth; k += 16) {
    const Pack<Number, 4> top = a.four(row + g, k + 4 * q);
    const Pack<Number, 4> bottom = a.four(row + g + 8, k + 4 * q);
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j)
      multiply_16<kRounded>(sums[j], top, bottom, b.four(8 * j + g, k + 4 * q));
  }
}

/// sums += scores * what fetch_columns() stored; scores are sums of multiply_tiles(), and rounded
/// to the type that they are multiplied with.
template <bool kRounded, int kCols, int kDepth, class Number>
__device__ __forceinline__ void multiply_scores(const float (&scores)[kDepth / 8][4],
                                                const TensorTile<Number, kCols, kDepth>& b,
                                                float (&sums)[kCols / 8][4]) {
  const int g = lane_of_warp() / 4;
  const int q = lane_of_warp() % 4;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    const auto& left = scores[k / 8];
    const auto& right = scores[k / 8 + 1];
    const auto top = narrowed<Number>(float4{left[0], left[1], right[0], right[1]});
    const auto bottom = narrowed<Number>(float4{left[2], left[3], right[2], right[3]});
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j)
      multiply_16<kRounded>(sums[j], top, bottom, b.four(8 * j + g, k + 4 * q));
  }
}

/// Calls use(half, col, number) for each of a thread's sums, in row 8 * half + lane / 4.
template <int kTiles, class Use>
__device__ __forceinline__ void each_sum(float (&sums)[kTiles][4], const Use& use) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) use(e / 2, 8 * j + 2 * (lane_of_warp() % 4) + e % 2, sums[j][e]);
}

/// Stores sums of a product with what fetch_columns() stored, times a factor for each row, from
/// `row` on, rounded. A thread has four neighboring columns in four of its tiles.
template <int kTiles, class Number, class Factor>
__device__ __forceinline__ void store_columns(const float (&sums)[kTiles][4], Number* to,
                                              std::int64_t stride, std::int64_t row,
                                              const AttentionHead<Number>& h,
                                              const Factor& factor) {
  constexpr int kFours = kTiles / 4;
#pragma unroll
  for (int t = 0; t < kFours; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::int64_t at = row + lane_of_warp() / 4 + e / 2 * 8;
      const int col = 4 * (8 * t + 2 * (lane_of_warp() % 4) + e % 2);
      if (at >= h.shape.length || col >= h.width) continue;
      const float times = factor(e / 2);
      const auto four = narrowed<Number>(float4{sums[t][e] * times, sums[t + kFours][e] * times,
                                                sums[t + 2 * kFours][e] * times,
                                                sums[t + 3 * kFours][e] * times});
      *reinterpret_cast<FourAsOne<Number>*>(to + at * stride + col) =
          std::bit_cast<FourAsOne<Number>>(four);
    }
  }
}

/// Combines the values of the four lanes that share a row.
template <class Combine>
__device__ __forceinline__ float over_quad(float value, const Combine& combine) {
  value = combine(value, __shfl_xor_sync(kAllLanes, value, 2));
  return combine(value, __shfl_xor_sync(kAllLanes, value, 1));
}

/// As add_softmax(), for a thread's rows `half` = 0 and 1.
template <int kTiles>
__device__ __forceinline__ void add_softmax_of_warp(float (&scores)[kTiles][4], float (&maximum)[2],
                                                    float (&sum)[2], float (&shrink)[2]) {
  float largest[2] = {maximum[0], maximum[1]};
  each_sum(scores, [&](int half, int, float score) {
    largest[half] = score > largest[half] ? score : largest[half];
  });
  float total[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    largest[half] = over_quad(largest[half], [](float a, float b) { return a > b ? a : b; });
  each_sum(scores, [&](int half, int, float& score) {
    score = std::exp(score - largest[half]);
    total[half] += score;
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    shrink[half] = std::exp(maximum[half] - largest[half]);
    sum[half] = fmaf(sum[half], shrink[half],
                     over_quad(total[half], [](float a, float b) { return a + b; }));
    maximum[half] = largest[half];
  }
}

template <int kWidth, class Number>
struct TensorAttentionShared {
  TensorTile<Number, kAttentionRows, kWidth> queries;
  TensorTile<Number, kStepKeys<kWidth, Number>, kWidth> keys;
  TensorTile<Number, kWidth, kStepKeys<kWidth, Number>> values;  // by columns
};

/// A block computes kAttentionRows queries. Grid: the tiles of each head.
template <bool kRounded, int kWidth, class Number>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tensor_attention(AttentionHead<Number> h, Number* out, float* log_sums) {
  begin_kernel();
  auto& s = dynamic_shared<TensorAttentionShared<kWidth, Number>>();
  constexpr int kKeys = kStepKeys<kWidth, Number>;
  const PlaceOfBlock<kAttentionRows> place(h.shape);
  const int row = warp_of_block() * kRowsOfWarp;
  const int query = static_cast<int>(place.begin) + row + lane_of_warp() / 4;
  const CountedPairs pairs{static_cast<int>(h.shape.length), h.shape.causal};
  const std::int64_t stride = 3 * h.columns;
  const auto rows_of = [&](int third, std::int64_t begin) {
    return RowsOfHead<Number>(h.qkv + h.in_qkv(place.head, third), begin, stride, h);
  };
  fetch_rows(s.queries, rows_of(0, place.begin));
  TensorSums<kWidth / 8> sums = {};
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {}, shrink[2] = {};
  const auto end = static_cast<int>(h.end_of_keys(place.begin + kAttentionRows));
  for (int key = 0; key < end; key += kKeys) {
    __syncthreads();  // the tile before has been used
    fetch_rows(s.keys, rows_of(1, key));
    commit_copies();
    fetch_columns(s.values, rows_of(2, key));
    wait_for_copies();
    __syncthreads();
    TensorSums<kKeys / 8> p = {};
    multiply_tiles<kRounded>(s.queries, row, s.keys, p);
    each_sum(p, [&](int half, int col, float& score) {
      const bool counts = pairs.has_or_pads(query + 8 * half, key + col);
      score = counts ? h.scale * score : -INFINITY;
    });
    add_softmax_of_warp(p, maximum, sum, shrink);
    each_sum(sums, [&](int half, int, float& each) { each *= shrink[half]; });
    multiply_scores<kRounded>(p, s.values, sums);
  }
  store_columns(sums, out + h.in_out(place.head), h.columns, place.begin + row, h,
                [&](int half) { return 1.0F / sum[half]; });
  if (lane_of_warp() % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (query + 8 * half >= h.shape.length) continue;
    log_sums[h.in_log_sums(place.head) + (query + 8 * half) * h.shape.heads] =
        maximum[half] + std::log(sum[half]);
  }
}

/// The sums of kRows queries' rows: of exponentials, and of out * grad_out.
template <int kRows>
struct SumsOfQueries {
  float log_sum[kRows], delta[kRows];

  template <class Number>
  __device__ __forceinline__ void load(const AttentionHead<Number>& h, std::int64_t head,
                                       std::int64_t begin) {
    constexpr int kLanes = kAttentionThreads / kRows;
    const int row = block_thread() / kLanes;
    const int lane = block_thread() % kLanes;
    const std::int64_t query = begin + row;
    const bool exists = query < h.shape.length;
    const std::int64_t first = h.in_out(head) + query * h.columns;
    float sum = 0;
    for (std::int64_t col = 4 * lane; exists && col < h.width; col += 4 * kLanes) {
      const float4 a = widened(four_of(h.out + first + col));
      const float4 b = widened(four_of(h.grad_out + first + col));
      sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane != 0) return;
    delta[row] = sum;
    log_sum[row] = exists ? h.kept[h.in_log_sums(head) + query * h.shape.heads] : 0.0F;
  }
};

/// A score and the derivative of its probability become the probability and the derivative of the
/// score.
template <class Number, int kRows>
__device__ __forceinline__ void score_gradient(const AttentionHead<Number>& h, bool counts,
                                               const SumsOfQueries<kRows>& queries, int query,
                                               float& p, float& grad) {
  p = counts ? std::exp(h.scale * p - queries.log_sum[query]) : 0.0F;
  grad = counts ? p * (grad - queries.delta[query]) : 0.0F;
}

template <int kWidth, class Number>
struct TensorKeysShared {
  TensorTile<Number, kAttentionRows, kWidth> keys, values;
  TensorTile<Number, kStepRows<Number>, kWidth> queries, grads;
  TensorTile<Number, kWidth, kStepRows<Number>> queries_by_columns, grads_by_columns;
  SumsOfQueries<kStepRows<Number>> sums;
};

/// The gradients of keys and values; a block computes kAttentionRows keys.
template <bool kRounded, int kWidth, class Number>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tensor_attention_grad_keys(AttentionHead<Number> h, Number* grad_qkv) {
  begin_kernel();
  auto& s = dynamic_shared<TensorKeysShared<kWidth, Number>>();
  const PlaceOfBlock<kAttentionRows> place(h.shape);
  const int row = warp_of_block() * kRowsOfWarp;
  const int key = static_cast<int>(place.begin) + row + lane_of_warp() / 4;
  const CountedPairs pairs{static_cast<int>(h.shape.length), h.shape.causal};
  const std::int64_t stride = 3 * h.columns;
  const auto rows_of = [&](int third, std::int64_t begin) {
    return RowsOfHead<Number>(h.qkv + h.in_qkv(place.head, third), begin, stride, h);
  };
  fetch_rows(s.keys, rows_of(1, place.begin));
  fetch_rows(s.values, rows_of(2, place.begin));
  TensorSums<kWidth / 8> of_keys = {}, of_values = {};
  for (int query = h.shape.causal ? static_cast<int>(place.begin) : 0; query < pairs.length;
       query += kStepRows<Number>) {
    __syncthreads();  // the tile before has been used
    const RowsOfHead<Number> queries = rows_of(0, query);
    const RowsOfHead<Number> grads_out(h.grad_out + h.in_out(place.head), query, h.columns, h);
    fetch_rows(s.queries, queries);
    fetch_rows(s.grads, grads_out);
    commit_copies();
    fetch_columns(s.queries_by_columns, queries);
    fetch_columns(s.grads_by_columns, grads_out);
    s.sums.load(h, place.head, query);
    wait_for_copies();
    __syncthreads();
    TensorSums<kStepRows<Number> / 8> p = {}, grads = {};  // keys by queries
    multiply_tiles<kRounded>(s.keys, row, s.queries, p);
    multiply_tiles<kRounded>(s.values, row, s.grads, grads);
#pragma unroll
    for (int j = 0; j < kStepRows<Number> / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int col = 8 * j + 2 * (lane_of_warp() % 4) + e % 2;
        score_gradient(h, pairs.has(query + col, key + e / 2 * 8), s.sums, col, p[j][e],
                       grads[j][e]);
      }
    multiply_scores<kRounded>(p, s.grads_by_columns, of_values);
    multiply_scores<kRounded>(grads, s.queries_by_columns, of_keys);
  }
  store_columns(of_keys, grad_qkv + h.in_qkv(place.head, 1), stride, place.begin + row, h,
                [&](int) { return h.scale; });
  store_columns(of_values, grad_qkv + h.in_qkv(place.head, 2), stride, place.begin + row, h,
                [](int) { return 1.0F; });
}

template <int kWidth, class Number>
struct TensorQueriesShared {
  TensorTile<Number, kAttentionRows, kWidth> queries, grads;
  TensorTile<Number, kStepRows<Number>, kWidth> keys, values;
  TensorTile<Number, kWidth, kStepRows<Number>> keys_by_columns;
  SumsOfQueries<kAttentionRows> sums;
};

/// The gradients of queries; a block computes kAttentionRows queries.
template <bool kRounded, int kWidth, class Number>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tensor_attention_grad_queries(AttentionHead<Number> h, Number* grad_qkv) {
  begin_kernel();
  auto& s = dynamic_shared<TensorQueriesShared<kWidth, Number>>();
  const PlaceOfBlock<kAttentionRows> place(h.shape);
  const int row = warp_of_block() * kRowsOfWarp;
  const auto begin = static_cast<int>(place.begin);
  const CountedPairs pairs{static_cast<int>(h.shape.length), h.shape.causal};
  const std::int64_t stride = 3 * h.columns;
  const auto rows_of = [&](int third, std::int64_t begin) {
    return RowsOfHead<Number>(h.qkv + h.in_qkv(place.head, third), begin, stride, h);
  };
  fetch_rows(s.queries, rows_of(0, place.begin));
  fetch_rows(s.grads,
             RowsOfHead<Number>(h.grad_out + h.in_out(place.head), place.begin, h.columns, h));
  s.sums.load(h, place.head, place.begin);
  TensorSums<kWidth / 8> of_queries = {};
  const auto end = static_cast<int>(h.end_of_keys(place.begin + kAttentionRows));
  for (int key = 0; key < end; key += kStepRows<Number>) {
    __syncthreads();  // the tile before has been used
    const RowsOfHead<Number> keys = rows_of(1, key);
    fetch_rows(s.keys, keys);
    fetch_rows(s.values, rows_of(2, key));
    commit_copies();
    fetch_columns(s.keys_by_columns, keys);
    wait_for_copies();
    __syncthreads();
    TensorSums<kStepRows<Number> / 8> p = {}, grads = {};  // queries by keys
    multiply_tiles<kRounded>(s.queries, row, s.keys, p);
    multiply_tiles<kRounded>(s.grads, row, s.values, grads);
#pragma unroll
    for (int j = 0; j < kStepRows<Number> / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = row + lane_of_warp() / 4 + e / 2 * 8;
        const int at = key + 8 * j + 2 * (lane_of_warp() % 4) + e % 2;
        score_gradient(h, pairs.has(begin + query, at), s.sums, query, p[j][e], grads[j][e]);
      }
    multiply_scores<kRounded>(grads, s.keys_by_columns, of_queries);
  }
  store_columns(of_queries, grad_qkv + h.in_qkv(place.head, 0), stride, place.begin + row, h,
                [&](int) { return h.scale; });
}

namespace {

/// Calls use(width) with the width of tiles for heads of this one.
template <class Number, class Use>
auto with_tile_width(std::int64_t width, const Use& use) {
  using std::integral_constant;
  if (width <= 32) return use(integral_constant<int, 32>{});
  if constexpr (sizeof(Number) < sizeof(float)) {
    if (width > 64) return use(integral_constant<int, kMaxTensorWidth<Number>>{});
  }
  return use(integral_constant<int, 64>{});
}

bool fits(const AttentionShape& shape, const Tensor& qkv, std::initializer_list<Tensor> by_vectors,
          const KernelTarget& target) {
  const std::int64_t width = qkv.cols / 3 / shape.heads;
  const bool is_aligned = std::ranges::all_of(
      by_vectors, [](const Tensor& tensor) { return tensor.offset_bytes % kVectorBytes == 0; });
  const auto fits_in_blocks = [&]<class Number>(Number) {
    const auto shared_bytes =
        with_tile_width<Number>(width, []<int kWidth>(std::integral_constant<int, kWidth>) {
          return std::max({sizeof(TensorAttentionShared<kWidth, Number>),
                           sizeof(TensorKeysShared<kWidth, Number>),
                           sizeof(TensorQueriesShared<kWidth, Number>)});
        });
    return width <= kMaxTensorWidth<Number> &&
           target.block_shared_bytes >= static_cast<std::int64_t>(shared_bytes);
  };
  constexpr std::int64_t kMaxExtent = std::numeric_limits<int>::max() / 2;
  return target.has_tf32 && shape.form == AttentionForm::kFlash && is_aligned &&
         width * bytes_of(qkv.dtype) % kVectorBytes == 0 && shape.length < kMaxExtent &&
         qkv.cols * kAttentionRows < kMaxExtent && with_number(qkv.dtype, fits_in_blocks);
}

/// Launches a kernel with a block for each tile of each head.
template <class AttentionOp, class... Parameters, class... Arguments>
cudaError_t start_tiles(const AttentionOp& op, const KernelQueue& queue, std::size_t shared_bytes,
                        void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaError_t status = allow_shared(kernel, shared_bytes);
  if (status != cudaSuccess) return status;
  return start_sharing(queue, attention_grid(op.shape, op.out, kAttentionRows),
                       dim3(kAttentionThreads), shared_bytes, kernel, arguments...);
}

template <bool kRounded, int kWidth, class Number>
cudaError_t launch_tiles(const Attention& op, const Addresses& addresses,
                         const KernelQueue& queue) {
  return start_tiles(op, queue, sizeof(TensorAttentionShared<kWidth, Number>),
                     tensor_attention<kRounded, kWidth, Number>, head_of<Number>(op, addresses),
                     addresses.at<Number>(op.out), addresses.at(op.kept));
}

template <bool kRounded, int kWidth, class Number>
cudaError_t launch_tiles(const AttentionGrad& op, const Addresses& addresses,
                         const KernelQueue& queue) {
  const AttentionHead<Number> head = head_of<Number>(op, addresses);
  Number* const grads = addresses.at<Number>(op.grad_qkv);
  const cudaError_t status =
      start_tiles(op, queue, sizeof(TensorKeysShared<kWidth, Number>),
                  tensor_attention_grad_keys<kRounded, kWidth, Number>, head, grads);
  if (status != cudaSuccess) return status;
  return start_tiles(op, queue, sizeof(TensorQueriesShared<kWidth, Number>),
                     tensor_attention_grad_queries<kRounded, kWidth, Number>, head, grads);
}

template <class AttentionOp>
int launch_any(const AttentionOp& op, bool rounded, const Addresses& addresses,
               const KernelQueue& queue) {
  return with_number(op.qkv.dtype, [&]<class Number>(Number) {
    return with_tile_width<Number>(
        op.out.cols / op.shape.heads, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
          if constexpr (sizeof(Number) == sizeof(float)) {
            if (rounded) return launch_tiles<true, kWidth, Number>(op, addresses, queue);
          }
          return launch_tiles<false, kWidth, Number>(op, addresses, queue);
        });
  });
}

}  // namespace

bool runs_on_tensor_cores(const Attention& op, const KernelTarget& target) {
  return fits(op.shape, op.qkv, {op.qkv, op.out}, target);
}
bool runs_on_tensor_cores(const AttentionGrad& op, const KernelTarget& target) {
  return fits(op.shape, op.qkv, {op.qkv, op.out, op.grad_out, op.grad_qkv}, target);
}

int launch_on_tensor_cores(const Attention& op, bool rounded, const Addresses& addresses,
                           const KernelQueue& queue) {
  return launch_any(op, rounded, addresses, queue);
}
int launch_on_tensor_cores(const AttentionGrad& op, bool rounded, const Addresses& addresses,
                           const KernelQueue& queue) {
  return launch_any(op, rounded, addresses, queue);
}

}  // namespace barestep
