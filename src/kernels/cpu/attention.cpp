#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/cascade_sum.h"
#include "kernels/cpu/op_sources.h"
#include "kernels/cpu/widen.h"
#include "kernels/formulas.h"

namespace barestep {
namespace {

constexpr std::int64_t kQueries = kAttentionQueries;

/// Keys of a tile of forward. With 16 bits, products take exponentials that are rounded relative to
/// the largest score so far; then a tile is as long as that of PyTorch's CPU kernel.
template <class Number>
constexpr std::int64_t kForwardKeys = std::is_same_v<Number, float> ? 128 : 512;

/// Keys of a tile of backward.
constexpr std::int64_t kBackwardKeys = 256;

/// Tiles of queries that share the keys and values that a task has packed.
constexpr std::int64_t kGroup = 4;

/// A tile of rows, padded to a multiple of kAttentionLanes numbers.
template <std::int64_t kRows>
struct alignas(64) PackedRows {
  float of[static_cast<std::size_t>(kRows * kMaxHeadWidth)];
};

/// A tile of transposed scores, or a transposed tile of queries, which has at most as many rows.
template <std::int64_t kKeys>
struct alignas(64) PackedColumns {
  float of[static_cast<std::size_t>(kKeys * kQueries)];
};

/// A number for each query.
struct alignas(64) PerQuery {
  float of[static_cast<std::size_t>(kQueries)];

  void fill(float value) { std::fill_n(of, kQueries, value); }
};

std::int64_t tiles_of(std::int64_t extent, std::int64_t tile) {
  return (extent + tile - 1) / tile;
}

/// What a head has in a tensor: `width` numbers of each of the sequence's rows.
template <class Number>
struct HeadRows {
  Number* first;
  std::int64_t stride;

  [[nodiscard]] Number* row(std::int64_t i) const { return first + i * stride; }
};

/// An Attention or its gradient with its addresses.
template <class Number>
struct BoundAttention {
  AttentionShape shape;
  std::int64_t sequences, columns, width, padded;
  float scale;
  const VectorKernels& kernel;
  ThreadPool& pool;

  BoundAttention(const AttentionShape& of, const Tensor& out, const VectorKernels& by,
                 ThreadPool& threads)
      : shape(of),
        sequences(out.rows / of.length),
        columns(out.cols),
        width(out.cols / of.heads),
        padded(tiles_of(width, kAttentionLanes) * kAttentionLanes),
        scale(attention_scale(width)),
        kernel(by),
        pool(threads) {}

  /// Calls f(sequence, head, part) for all parts of all heads.
  template <class F>
  void for_parts(std::int64_t parts, const F& f) const {
    pool.run(sequences * shape.heads * parts, [&](std::int64_t task, int) {
      const std::int64_t head = task / parts;
      f(head / shape.heads, head % shape.heads, task % parts);
    });
  }

  /// A head's numbers in a tensor with `cols` columns, from column `column` on.
  template <class N>
  [[nodiscard]] HeadRows<N> head(N* tensor, std::int64_t cols, std::int64_t sequence,
                                 std::int64_t column) const {
    return {tensor + sequence * shape.length * cols + column, cols};
  }
  /// Its queries, keys or values in rows of qkv.
  template <class N>
  [[nodiscard]] HeadRows<N> third(N* qkv, std::int64_t sequence, std::int64_t head_number,
                                  int number) const {
    return head(qkv, 3 * columns, sequence, number * columns + head_number * width);
  }

  /// The end of the keys that queries before `end` attend to.
  [[nodiscard]] std::int64_t keys_of(std::int64_t end) const {
    return shape.causal ? std::min(end, shape.length) : shape.length;
  }

  template <class N>
  void pack(const HeadRows<N>& from, std::int64_t begin, std::int64_t rows, float* to) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      widen(from.row(begin + i), width, to + i * padded);
      std::fill(to + i * padded + width, to + (i + 1) * padded, 0.0F);
    }
  }

  /// Packs the columns of up to kQueries rows, times `factor`; zeros for the queries that are not.
  template <class N>
  void transpose(const HeadRows<N>& from, std::int64_t begin, std::int64_t rows, float factor,
                 float* to) const {
    float wide[static_cast<std::size_t>(kMaxHeadWidth)];
    for (std::int64_t i = 0; i < rows; ++i) {
      widen(from.row(begin + i), width, wide);
      for (std::int64_t k = 0; k < width; ++k) to[k * kQueries + i] = factor * wide[k];
    }
    if (rows == kQueries) return;
    for (std::int64_t k = 0; k < width; ++k)
      std::fill(to + k * kQueries + rows, to + (k + 1) * kQueries, 0.0F);
  }

  /// Writes rows times a factor for each, rounded.
  template <class N, class Factor>
  void unpack(const float* from, std::int64_t begin, std::int64_t rows, const Factor& factor,
              const HeadRows<N>& to) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float by = factor(i);
      for (std::int64_t k = 0; k < width; ++k) {
        to.row(begin + i)[k] = rounded<N>(from[i * padded + k] * by);
      }
    }
  }

  /// scores (keys x kQueries) = rows * columns.
  void multiply_scores(const float* rows, std::int64_t keys, const float* transposed,
                       float* scores) const {
    kernel.multiply({.m = keys,
                     .n = kQueries,
                     .k = width,
                     .a = rows,
                     .row_a = padded,
                     .col_a = 1,
                     .group_a = kGroupRows * padded,
                     .b = transposed,
                     .row_b = kQueries,
                     .c = scores,
                     .row_c = kQueries,
                     .adds = false});
  }

  /// sums (keys x padded) += scores * rows, which has a row per query.
  void add_by_keys(const float* scores, std::int64_t keys, const float* rows, std::int64_t queries,
                   float* sums) const {
    kernel.multiply({.m = keys,
                     .n = padded,
                     .k = queries,
                     .a = scores,
                     .row_a = kQueries,
                     .col_a = 1,
                     .group_a = kGroupRows * kQueries,
                     .b = rows,
                     .row_b = padded,
                     .c = sums,
                     .row_c = padded,
                     .adds = true});
  }

  /// sums (queries x padded) = or += scores^T * rows, which has a row per key.
  void add_by_queries(const float* scores, std::int64_t keys, const float* rows,
                      std::int64_t queries, float* sums, bool adds) const {
    kernel.multiply({.m = queries,
                     .n = padded,
                     .k = keys,
                     .a = scores,
                     .row_a = 1,
                     .col_a = kQueries,
                     .group_a = kGroupRows,
                     .b = rows,
                     .row_b = padded,
                     .c = sums,
                     .row_c = padded,
                     .adds = adds});
  }

  /// Scores of later keys count as minus infinity, whose exponential is exactly 0.
  void exclude_later(float* scores, std::int64_t first_key, std::int64_t keys,
                     std::int64_t first_query) const {
    if (!shape.causal) return;
    for (std::int64_t key = std::max<std::int64_t>(0, first_query + 1 - first_key); key < keys;
         ++key) {
      const std::int64_t end = std::min(kQueries, first_key + key - first_query);
      std::fill_n(scores + key * kQueries, end, -std::numeric_limits<float>::infinity());
    }
  }

  static void round(float* numbers, std::int64_t n) {
    if constexpr (!std::is_same_v<Number, float>) {
      for (std::int64_t i = 0; i < n; ++i) numbers[i] = float_of(rounded<Number>(numbers[i]));
    }
  }

  /// delta = sums of the products of two tensors' rows.
  template <class N>
  void multiply_rows(const HeadRows<N>& a, const HeadRows<N>& b, std::int64_t begin,
                     std::int64_t rows, PerQuery& delta) const {
    delta.fill(0);
    for (std::int64_t i = 0; i < rows; ++i) {
      float lanes[static_cast<std::size_t>(kAttentionLanes)] = {};
      const N* const from_a = a.row(begin + i);
      const N* const from_b = b.row(begin + i);
      std::int64_t k = 0;
      for (; k + kAttentionLanes <= width; k += kAttentionLanes)
        for (std::int64_t lane = 0; lane < kAttentionLanes; ++lane)
          lanes[lane] += float_of(from_a[k + lane]) * float_of(from_b[k + lane]);
      for (; k < width; ++k) lanes[0] += float_of(from_a[k]) * float_of(from_b[k]);
      for (const float lane : lanes) delta.of[i] += lane;
    }
  }
};

/// Tiles of queries in the order of the sequence.
struct QueryTile {
  std::int64_t begin, rows;
};

QueryTile query_tile(std::int64_t number, std::int64_t length) {
  const std::int64_t begin = number * kQueries;
  return {begin, std::min(kQueries, length - begin)};
}

template <class Number>
class FlashForward {
 public:
  FlashForward(const Attention& op, const Addresses& addresses, const VectorKernels& kernel,
               ThreadPool& pool)
      : a_(op.shape, op.out, kernel, pool),
        qkv_(addresses.at<Number>(op.qkv)),
        out_(addresses.at<Number>(op.out)),
        kept_(addresses.at(op.kept)) {}

  void run() const {
    const std::int64_t groups = tiles_of(a_.shape.length, kGroup * kQueries);
    a_.for_parts(groups, [&](std::int64_t sequence, std::int64_t head, std::int64_t group) {
      run_group(sequence, head, group);
    });
  }

 private:
  static constexpr std::int64_t kKeys = kForwardKeys<Number>;

  /// The state of a tile of queries.
  struct Tile {
    PackedColumns<kMaxHeadWidth> queries;
    PackedRows<kQueries> sums;
    PerQuery maximum, sum;
  };
  struct Work {
    Tile tiles[static_cast<std::size_t>(kGroup)];
    PackedRows<kKeys> keys, values;
    PackedColumns<kKeys> scores;
    PerQuery shrink;
  };

  void run_group(std::int64_t sequence, std::int64_t head, std::int64_t group) const {
    Work w;
    const std::int64_t length = a_.shape.length;
    const std::int64_t first = group * kGroup;
    const std::int64_t count = std::min(kGroup, tiles_of(length, kQueries) - first);
    const auto queries = a_.third(qkv_, sequence, head, 0);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto [begin, rows] = query_tile(first + t, length);
      a_.transpose(queries, begin, rows, a_.scale, w.tiles[t].queries.of);
      w.tiles[t].maximum.fill(-std::numeric_limits<float>::infinity());
      w.tiles[t].sum.fill(0);
    }
    const std::int64_t end = a_.keys_of((first + count) * kQueries);
    for (std::int64_t key = 0; key < end; key += kKeys) {
      const std::int64_t keys = std::min(kKeys, end - key);
      a_.pack(a_.third(qkv_, sequence, head, 1), key, keys, w.keys.of);
      a_.pack(a_.third(qkv_, sequence, head, 2), key, keys, w.values.of);
      for (std::int64_t t = 0; t < count; ++t) add_keys(w, w.tiles[t], first + t, key, keys);
    }
    for (std::int64_t t = 0; t < count; ++t) finish(w.tiles[t], sequence, head, first + t);
  }

  void add_keys(Work& w, Tile& tile, std::int64_t number, std::int64_t key,
                std::int64_t keys) const {
    const auto [begin, rows] = query_tile(number, a_.shape.length);
    const std::int64_t own = std::min(keys, a_.keys_of(begin + rows) - key);
    if (own <= 0) return;
    a_.multiply_scores(w.keys.of, own, tile.queries.of, w.scores.of);
    a_.exclude_later(w.scores.of, key, own, begin);
    a_.kernel.softmax(w.scores.of, own, tile.maximum.of, tile.sum.of, w.shrink.of);
    a_.round(w.scores.of, own * kQueries);
    if (key > 0) {
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t k = 0; k < a_.padded; ++k)
          tile.sums.of[i * a_.padded + k] *= w.shrink.of[i];
    }
    a_.add_by_queries(w.scores.of, own, w.values.of, rows, tile.sums.of, key > 0);
  }

  void finish(const Tile& tile, std::int64_t sequence, std::int64_t head,
              std::int64_t number) const {
    const auto [begin, rows] = query_tile(number, a_.shape.length);
    a_.unpack(
        tile.sums.of, begin, rows, [&](std::int64_t i) { return 1.0F / tile.sum.of[i]; },
        a_.head(out_, a_.columns, sequence, head * a_.width));
    const auto kept = a_.head(kept_, a_.shape.heads, sequence, head);
    for (std::int64_t i = 0; i < rows; ++i) {
      *kept.row(begin + i) = tile.maximum.of[i] + logarithm(tile.sum.of[i]);
    }
  }

  BoundAttention<Number> a_;
  const Number* qkv_;
  Number* out_;
  float* kept_;
};

/// One task computes a head: for each tile of keys, their gradients and those of values are
/// complete when all queries have been added; gradients of queries add up from tile to tile.
template <class Number>
class FlashBackward {
 public:
  FlashBackward(const AttentionGrad& op, const Addresses& addresses, const VectorKernels& kernel,
                ThreadPool& pool)
      : a_(op.shape, op.out, kernel, pool),
        qkv_(addresses.at<Number>(op.qkv)),
        out_(addresses.at<Number>(op.out)),
        grad_out_(addresses.at<Number>(op.grad_out)),
        kept_(addresses.at(op.kept)),
        grad_qkv_(addresses.at<Number>(op.grad_qkv)),
        scratch_(op.scratch ? addresses.at(*op.scratch) : nullptr) {}

  void run() const {
    a_.for_parts(1, [&](std::int64_t sequence, std::int64_t head, std::int64_t /*part*/) {
      run_head(sequence, head);
    });
  }

 private:
  struct Work {
    PackedRows<kBackwardKeys> keys, values, grad_keys, grad_values;
    PackedRows<kQueries> queries, grads, grad_queries;
    PackedColumns<kMaxHeadWidth> queries_t, grads_t;
    PackedColumns<kBackwardKeys> scores, grad_scores;
    PerQuery log_sum, delta;
  };

  /// Where the gradients of queries add up.
  [[nodiscard]] HeadRows<float> sums_of(std::int64_t sequence, std::int64_t head) const {
    if constexpr (std::is_same_v<Number, float>) {
      return a_.third(grad_qkv_, sequence, head, 0);
    } else {
      return a_.head(scratch_, a_.columns, sequence, head * a_.width);
    }
  }

  void run_head(std::int64_t sequence, std::int64_t head) const {
    Work w;
    const std::int64_t length = a_.shape.length;
    for (std::int64_t key = 0; key < length; key += kBackwardKeys) {
      const std::int64_t keys = std::min(kBackwardKeys, length - key);
      a_.pack(a_.third(qkv_, sequence, head, 1), key, keys, w.keys.of);
      a_.pack(a_.third(qkv_, sequence, head, 2), key, keys, w.values.of);
      std::fill_n(w.grad_keys.of, keys * a_.padded, 0.0F);
      std::fill_n(w.grad_values.of, keys * a_.padded, 0.0F);
      const std::int64_t first = a_.shape.causal ? key / kQueries : 0;
      for (std::int64_t number = first; number < tiles_of(length, kQueries); ++number) {
        add_queries(w, sequence, head, number, key, keys);
      }
      a_.unpack(
          w.grad_keys.of, key, keys, [&](std::int64_t) { return a_.scale; },
          a_.third(grad_qkv_, sequence, head, 1));
      a_.unpack(
          w.grad_values.of, key, keys, [](std::int64_t) { return 1.0F; },
          a_.third(grad_qkv_, sequence, head, 2));
    }
  }

  void add_queries(Work& w, std::int64_t sequence, std::int64_t head, std::int64_t number,
                   std::int64_t key, std::int64_t keys) const {
    const auto [begin, rows] = query_tile(number, a_.shape.length);
    const std::int64_t end = a_.keys_of(begin + rows);
    const std::int64_t own = std::min(keys, end - key);
    load_queries(w, sequence, head, begin, rows);
    a_.multiply_scores(w.keys.of, own, w.queries_t.of, w.scores.of);
    a_.multiply_scores(w.values.of, own, w.grads_t.of, w.grad_scores.of);
    a_.exclude_later(w.scores.of, key, own, begin);
    a_.kernel.softmax_grad(w.scores.of, w.grad_scores.of, own, w.log_sum.of, w.delta.of);
    a_.round(w.scores.of, own * kQueries);
    a_.round(w.grad_scores.of, own * kQueries);
    a_.add_by_keys(w.scores.of, own, w.grads.of, rows, w.grad_values.of);
    a_.add_by_keys(w.grad_scores.of, own, w.queries.of, rows, w.grad_keys.of);
    const HeadRows<float> sums = sums_of(sequence, head);
    if (key > 0) a_.pack(sums, begin, rows, w.grad_queries.of);
    a_.add_by_queries(w.grad_scores.of, own, w.keys.of, rows, w.grad_queries.of, key > 0);
    const bool is_last = key + own == end;
    // In fp32 the last sums are the gradient; scratch is written in any case, as the op declares.
    if (!is_last || !std::is_same_v<Number, float>) {
      a_.unpack(
          w.grad_queries.of, begin, rows, [](std::int64_t) { return 1.0F; }, sums);
    }
    if (!is_last) return;
    a_.unpack(
        w.grad_queries.of, begin, rows, [&](std::int64_t) { return a_.scale; },
        a_.third(grad_qkv_, sequence, head, 0));
  }

  void load_queries(Work& w, std::int64_t sequence, std::int64_t head, std::int64_t begin,
                    std::int64_t rows) const {
    const auto queries = a_.third(qkv_, sequence, head, 0);
    const auto out = a_.head(out_, a_.columns, sequence, head * a_.width);
    const auto grads = a_.head(grad_out_, a_.columns, sequence, head * a_.width);
    a_.pack(queries, begin, rows, w.queries.of);
    a_.pack(grads, begin, rows, w.grads.of);
    a_.transpose(queries, begin, rows, a_.scale, w.queries_t.of);
    a_.transpose(grads, begin, rows, 1.0F, w.grads_t.of);
    a_.multiply_rows(out, grads, begin, rows, w.delta);
    w.log_sum.fill(0);
    const auto kept = a_.head(kept_, a_.shape.heads, sequence, head);
    for (std::int64_t i = 0; i < rows; ++i) w.log_sum.of[i] = *kept.row(begin + i);
  }

  BoundAttention<Number> a_;
  const Number* qkv_;
  const Number* out_;
  const Number* grad_out_;
  const float* kept_;
  Number* grad_qkv_;
  float* scratch_;
};

/// The standard form: each product is a pass over all scores, as in the formulas.
template <class Number>
class StandardAttention {
 public:
  StandardAttention(const AttentionShape& shape, const Tensor& out, const VectorKernels& kernel,
                    ThreadPool& pool)
      : a_(shape, out, kernel, pool), row_(shape.heads * shape.length) {}

  void forward(const Number* qkv, float* p, Number* out) const {
    // Scores.
    multiply_by_columns(qkv, 3 * a_.columns, 0, qkv, a_.columns, a_.scale, p, true);
    a_.for_parts(a_.shape.length, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
      const HeadRows<float> rows = a_.head(p, row_, sequence, head * a_.shape.length);
      a_.kernel.softmax_row(rows.row(i), a_.shape.length);
    });
    multiply_by_rows(p, false, qkv, 3 * a_.columns, 2 * a_.columns, 1.0F, out, a_.columns, 0);
  }

  void backward(const Number* qkv, const Number* grad_out, const float* p, float* grads,
                Number* grad_qkv) const {
    const std::int64_t length = a_.shape.length;
    const std::int64_t thirds = 3 * a_.columns;
    multiply_by_rows(p, true, grad_out, a_.columns, 0, 1.0F, grad_qkv, thirds, 2 * a_.columns);
    multiply_by_columns(grad_out, a_.columns, 0, qkv, 2 * a_.columns, 1.0F, grads, false);
    a_.for_parts(length, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
      const float* const probabilities = a_.head(p, row_, sequence, head * length).row(i);
      float* const row = a_.head(grads, row_, sequence, head * length).row(i);
      const float sum = lane_sum(length, [=](std::int64_t j) { return probabilities[j] * row[j]; });
      for (std::int64_t j = 0; j < length; ++j) row[j] = probabilities[j] * (row[j] - sum);
    });
    multiply_by_rows(grads, false, qkv, thirds, a_.columns, a_.scale, grad_qkv, thirds, 0);
    multiply_by_rows(grads, true, qkv, thirds, 0, a_.scale, grad_qkv, thirds, a_.columns);
  }

 private:
  static constexpr std::int64_t kKeys = 128;

  /// scores = factor * (rows of `queries`) (rows of the third of qkv at `column`)^T.
  void multiply_by_columns(const Number* queries, std::int64_t cols, std::int64_t query_column,
                           const Number* qkv, std::int64_t column, float factor, float* scores,
                           bool excludes) const {
    const std::int64_t length = a_.shape.length;
    a_.for_parts(tiles_of(length, kQueries),
                 [&](std::int64_t sequence, std::int64_t head, std::int64_t number) {
                   PackedColumns<kMaxHeadWidth> transposed;
                   PackedRows<kKeys> keys;
                   PackedColumns<kKeys> tile;
                   const auto [begin, rows] = query_tile(number, length);
                   a_.transpose(a_.head(queries, cols, sequence, query_column + head * a_.width),
                                begin, rows, factor, transposed.of);
                   const HeadRows<float> to = a_.head(scores, row_, sequence, head * length);
                   for (std::int64_t key = 0; key < length; key += kKeys) {
                     const std::int64_t count = std::min(kKeys, length - key);
                     a_.pack(a_.head(qkv, 3 * a_.columns, sequence, column + head * a_.width), key,
                             count, keys.of);
                     a_.multiply_scores(keys.of, count, transposed.of, tile.of);
                     if (excludes) a_.exclude_later(tile.of, key, count, begin);
                     for (std::int64_t i = 0; i < rows; ++i)
                       for (std::int64_t j = 0; j < count; ++j)
                         to.row(begin + i)[key + j] = tile.of[j * kQueries + i];
                   }
                 });
  }

  /// to = factor * scores (or their transpose) * rows of `from`.
  void multiply_by_rows(const float* scores, bool transposes, const Number* from,
                        std::int64_t from_cols, std::int64_t from_column, float factor, Number* to,
                        std::int64_t to_cols, std::int64_t to_column) const {
    const std::int64_t length = a_.shape.length;
    a_.for_parts(tiles_of(length, kQueries),
                 [&](std::int64_t sequence, std::int64_t head, std::int64_t number) {
                   PackedRows<kKeys> packed;
                   PackedRows<kQueries> sums;
                   const auto [begin, rows] = query_tile(number, length);
                   const HeadRows<const float> s = a_.head(scores, row_, sequence, head * length);
                   for (std::int64_t k = 0; k < length; k += kKeys) {
                     const std::int64_t count = std::min(kKeys, length - k);
                     a_.pack(a_.head(from, from_cols, sequence, from_column + head * a_.width), k,
                             count, packed.of);
                     a_.kernel.multiply({.m = rows,
                                         .n = a_.padded,
                                         .k = count,
                                         .a = transposes ? s.row(k) + begin : s.row(begin) + k,
                                         .row_a = transposes ? 1 : row_,
                                         .col_a = transposes ? row_ : 1,
                                         .group_a = kGroupRows * (transposes ? 1 : row_),
                                         .b = packed.of,
                                         .row_b = a_.padded,
                                         .c = sums.of,
                                         .row_c = a_.padded,
                                         .adds = k > 0});
                   }
                   a_.unpack(
                       sums.of, begin, rows, [=](std::int64_t) { return factor; },
                       a_.head(to, to_cols, sequence, to_column + head * a_.width));
                 });
  }

  BoundAttention<Number> a_;
  std::int64_t row_;  // numbers of a row's scores
};

}  // namespace

void run_attention(const Attention& op, const Addresses& addresses, const VectorKernels& kernel,
                   ThreadPool& pool) {
  with_number(op.qkv.dtype, [&]<class Number>(Number) {
    if (op.shape.form == AttentionForm::kFlash) {
      return FlashForward<Number>(op, addresses, kernel, pool).run();
    }
    StandardAttention<Number>(op.shape, op.out, kernel, pool)
        .forward(addresses.at<Number>(op.qkv), addresses.at(op.kept), addresses.at<Number>(op.out));
  });
}

void run_attention_grad(const AttentionGrad& op, const Addresses& addresses,
                        const VectorKernels& kernel, ThreadPool& pool) {
  with_number(op.qkv.dtype, [&]<class Number>(Number) {
    if (op.shape.form == AttentionForm::kFlash) {
      return FlashBackward<Number>(op, addresses, kernel, pool).run();
    }
    StandardAttention<Number>(op.shape, op.out, kernel, pool)
        .backward(addresses.at<Number>(op.qkv), addresses.at<Number>(op.grad_out),
                  addresses.at(op.kept), addresses.at(*op.scratch),
                  addresses.at<Number>(op.grad_qkv));
  });
}

}  // namespace barestep
