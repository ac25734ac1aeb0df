// The inner loops of products, of the fused update, of attention and of GELU, for vectors of any
// length, and the table of them for one type of vectors. Each source of vector_*.cpp includes this
// for the instruction set it is compiled for; all instantiations depend on the vector type, so no
// two sources share one.
//
// Vec has kWidth floats, which divides kAttentionLanes. The sums of kVectors vectors in each of
// kGroupRows rows fit in registers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/formulas.h"

namespace barestep {

/// What a product does beside its sums; see ChainProduct.
enum class Beside { kNothing, kFetches, kCopies };

/// Rows of a tile, which read a as `kTogether` says: rows next to each other, or columns.
template <class Vec, bool kTogether>
class ChainTile {
 public:
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kPanel = Vec::kVectors * kWidth;

  /// Computes kRows x kVectors vectors of c, in `steps` parts of the chains, each followed by
  /// between(). Of the last vector, only `last` numbers are in b and c, unless kWhole.
  template <std::int64_t kRows, std::int64_t kVectors, bool kWhole, Beside kBeside, class Between>
  [[gnu::always_inline]] static void run(const ChainProduct& p, const float* a, const float* b,
                                         float* c, std::int64_t last, std::int64_t steps,
                                         const Between& between) {
    using RowOfSums = Vec[static_cast<std::size_t>(kVectors)];
    RowOfSums sums[static_cast<std::size_t>(kRows)];
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) {
        sums[i][j] = p.adds ? load<kVectors, kWhole>(c + i * p.row_c, j, last) : Vec(0.0F);
      }
    }
    [[maybe_unused]] const float* ahead = p.ahead;
    [[maybe_unused]] float* copy = p.copy;
    std::int64_t k = 0;
    for (std::int64_t step = 1; step <= steps; ++step) {
#pragma GCC unroll 2
      for (const std::int64_t end = kBeside != Beside::kNothing ? k + p.lines_ahead
                                                                : step * p.k / steps;
           k < end; ++k) {
        const float* const from = kTogether ? a + k * p.col_a : a + k;
        if constexpr (kBeside == Beside::kFetches) {
          // Into the second-level cache: in the first, rows a power of two apart share few sets.
          __builtin_prefetch(ahead, 0, 2);
        }
        if constexpr (kBeside == Beside::kCopies) {
#pragma GCC unroll 4
          for (std::int64_t i = 0; i < kLineFloats; i += kWidth) {
            Vec::load(ahead + i).store(copy + i);
          }
          copy += kLineFloats;
        }
        if constexpr (kBeside != Beside::kNothing) ahead += kLineFloats;
        RowOfSums factors;
#pragma GCC unroll 4
        for (std::int64_t j = 0; j < kVectors; ++j) {
          factors[j] = load<kVectors, kWhole>(b + k * p.row_b, j, last);
        }
#pragma GCC unroll 6
        for (std::int64_t i = 0; i < kRows; ++i) {
          const Vec factor(kTogether ? from[i] : from[i * p.row_a]);
#pragma GCC unroll 4
          for (std::int64_t j = 0; j < kVectors; ++j) {
            sums[i][j] = fma(factor, factors[j], sums[i][j]);
          }
        }
      }
      between();
      if constexpr (kBeside != Beside::kNothing) ahead = p.ahead + step * p.row_ahead;
    }
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) {
        float* const to = c + i * p.row_c + j * kWidth;
        if (kWhole || j + 1 < kVectors) {
          sums[i][j].store(to);
        } else {
          sums[i][j].store_part(to, last);
        }
      }
    }
  }

  /// All of c.
  static void multiply(const ChainProduct& p) {
    std::int64_t col = 0;
    for (; col + kPanel <= p.n; col += kPanel) all_rows<Vec::kVectors, true>(p, col, kWidth);
    if (col < p.n) last_panel<Vec::kVectors>(p, col);
  }

 private:
  template <std::int64_t kVectors, bool kWhole>
  [[gnu::always_inline]] static Vec load(const float* row, std::int64_t j, std::int64_t last) {
    const float* const from = row + j * kWidth;
    return kWhole || j + 1 < kVectors ? Vec::load(from) : Vec::load_part(from, last);
  }

  template <std::int64_t kVectors>
  static void last_panel(const ChainProduct& p, std::int64_t col) {
    const std::int64_t last = p.n - col - (kVectors - 1) * kWidth;
    if constexpr (kVectors > 1) {
      if (last <= 0) return last_panel<kVectors - 1>(p, col);
    }
    if (last == kWidth) return all_rows<kVectors, true>(p, col, last);
    all_rows<kVectors, false>(p, col, last);
  }

  template <std::int64_t kVectors, bool kWhole>
  static void all_rows(const ChainProduct& p, std::int64_t col, std::int64_t last) {
    std::int64_t row = 0;
    for (; row + kGroupRows <= p.m; row += kGroupRows) {
      rows<kGroupRows, kVectors, kWhole>(p, row, 0, col, last);
    }
    // The last group may have fewer rows: 4, 2 and 1 of them make up any number.
    std::int64_t in_group = 0;
    const std::int64_t left = p.m - row;
    if ((left & 4) != 0) {
      rows<4, kVectors, kWhole>(p, row, in_group, col, last);
      in_group += 4;
    }
    if ((left & 2) != 0) {
      rows<2, kVectors, kWhole>(p, row, in_group, col, last);
      in_group += 2;
    }
    if ((left & 1) != 0) rows<1, kVectors, kWhole>(p, row, in_group, col, last);
  }

  template <std::int64_t kRows, std::int64_t kVectors, bool kWhole>
  static void rows(const ChainProduct& p, std::int64_t row, std::int64_t in_group, std::int64_t col,
                   std::int64_t last) {
    if constexpr (kWhole && kVectors == Vec::kVectors) {
      if (p.ahead != nullptr) return rows_beside<kRows>(p, row, in_group, col);
    }
    rows_of<kRows, kVectors, kWhole, Beside::kNothing>(p, row, in_group, col, last);
  }

  template <std::int64_t kRows>
  static void rows_beside(const ChainProduct& p, std::int64_t row, std::int64_t in_group,
                          std::int64_t col) {
    if (p.copy == nullptr) {
      return rows_of<kRows, Vec::kVectors, true, Beside::kFetches>(p, row, in_group, col, kWidth);
    }
    rows_of<kRows, Vec::kVectors, true, Beside::kCopies>(p, row, in_group, col, kWidth);
  }

  template <std::int64_t kRows, std::int64_t kVectors, bool kWhole, Beside kBeside>
  [[gnu::noinline]] static void rows_of(const ChainProduct& p, std::int64_t row,
                                        std::int64_t in_group, std::int64_t col,
                                        std::int64_t last) {
    const float* const a =
        p.a + row / kGroupRows * p.group_a + in_group * (kTogether ? 1 : p.row_a);
    run<kRows, kVectors, kWhole, kBeside>(
        p, a, p.b + col, p.c + (row + in_group) * p.row_c + col, last,
        kBeside != Beside::kNothing ? p.k / p.lines_ahead : 1, [] {});
  }
};

template <class Vec>
void multiply_chains(const ChainProduct& p) {
  if (p.row_a == 1) {
    ChainTile<Vec, true>::multiply(p);
  } else {
    ChainTile<Vec, false>::multiply(p);
  }
}

/// See VectorKernels::pack.
template <class Vec>
class PackLoops {
 public:
  static void pack(const float* from, std::int64_t step, std::int64_t depth_step,
                   std::int64_t count, std::int64_t depth, float* to) {
    if (depth_step == 1 && count > 1) return transpose(from, step, count, depth, to);
    if (count == kPanel) return copy<true>(from, depth_step, count, depth, to);
    copy<false>(from, depth_step, count, depth, to);
  }

 private:
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kPanel = Vec::kVectors * kWidth;

  template <bool kWhole>
  static void copy(const float* from, std::int64_t depth_step, std::int64_t count,
                   std::int64_t depth, float* to) {
    for (std::int64_t k = 0; k < depth; ++k, from += depth_step, to += kPanel) {
#pragma GCC unroll 4
      for (std::int64_t i = 0; i < kPanel; i += kWidth) {
        (kWhole ? Vec::load(from + i) : Vec::load_part(from + i, count - i)).store(to + i);
      }
    }
  }

  static void transpose(const float* from, std::int64_t step, std::int64_t count,
                        std::int64_t depth, float* to) {
    for (std::int64_t k = 0; k < depth; k += kWidth) {
      for (std::int64_t i = 0; i < count; i += kWidth) {
        const float* const block = from + i * step + k;
        float* const into = to + k * kPanel + i;
        if (count - i >= kWidth && depth - k >= kWidth) {
          transpose_block<true>(block, step, kWidth, kWidth, into);
        } else {
          transpose_block<false>(block, step, count - i, depth - k, into);
        }
      }
    }
  }

  template <bool kWhole>
  static void transpose_block(const float* from, std::int64_t step, std::int64_t count,
                              std::int64_t depth, float* to) {
    Vec rows[static_cast<std::size_t>(kWidth)];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kWidth; ++i) {
      rows[i] = kWhole ? Vec::load(from + i * step) : Vec(0.0F);
      if (!kWhole && i < count) rows[i] = Vec::load_part(from + i * step, depth);
    }
    // Row 2 i becomes the first half of rows i and i + kWidth / 2, number by number in turn, and
    // row 2 i + 1 the second half: after log2(kWidth) times, rows are columns.
#pragma GCC unroll 4
    for (std::int64_t stage = 1; stage < kWidth; stage *= 2) {
      Vec next[static_cast<std::size_t>(kWidth)];
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kWidth / 2; ++i) {
        next[2 * i] = first_halves_in_turn(rows[i], rows[i + kWidth / 2]);
        next[2 * i + 1] = second_halves_in_turn(rows[i], rows[i + kWidth / 2]);
      }
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kWidth; ++i) rows[i] = next[i];
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kWidth; ++i) {
      if (kWhole || i < depth) rows[i].store(to + i * kPanel);
    }
  }
};

/// Always computes the full width of a block, so that the inner loop has a fixed length. Vec only
/// tells the instantiations apart.
template <class Vec>
void multiply_plainly(const PlainBlock& a, const PlainBlock& b, std::int64_t rows,
                      std::int64_t depth, PlainBlock& sums) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t j = 0; j < kPlainBlock; ++j)
        sums[i][j] = std::fma(a[i][k], b[k][j], sums[i][j]);
}

/// Weights and moments are prefetched this many numbers before their update: early enough for
/// memory to answer, late enough that they are still in the first-level cache.
constexpr std::int64_t kLinearAdamAhead = 512;

/// Batches are summed in parts of this many rows, so that a panel's part fits the first-level
/// cache.
constexpr std::int64_t kLinearAdamDepth = 512;

struct VectorArithmetic {
  template <class Vec>
  static Vec divide(const Vec& a, const Vec& b) {
    return a / b;
  }
  template <class Vec>
  static Vec root(const Vec& x) {
    return sqrt(x);
  }
};

template <class Vec>
class LinearAdamLoop {
 public:
  static void update(const LinearAdamStrip& strip) { LinearAdamLoop(strip).run(); }

 private:
  using Tile = ChainTile<Vec, true>;
  static constexpr std::int64_t kWidth = Vec::kWidth;

  explicit LinearAdamLoop(const LinearAdamStrip& strip)
      : s_(strip), ahead_(strip.cols < kLinearAdamAhead ? strip.cols : kLinearAdamAhead) {}

  void run() {
    for (std::int64_t row = 0; row < s_.rows; row += kGroupRows) {
      float* const grads = grads_[row / kGroupRows % 2];
      make_gradients(s_.grad_y + row * s_.batch, grads);
      finish();
      rows_left_ = s_.rows - row < kGroupRows ? s_.rows - row : kGroupRows;
      next_grads_ = grads;
      begin_row();
    }
    finish();
  }

  /// Computes the gradients of a group of rows, stored kLinearAdamStripCols apart, with the columns
  /// and rows that the last panel and the last group are padded with.
  void make_gradients(const float* grad_y, float* grads) {
    std::int64_t first = 0;
    do {
      const std::int64_t left = s_.batch - first;
      ChainProduct part{.m = kGroupRows,
                        .n = Tile::kPanel,
                        .k = left < kLinearAdamDepth ? left : kLinearAdamDepth,
                        .a = grad_y + first * kGroupRows,
                        .row_a = 1,
                        .col_a = kGroupRows,
                        .group_a = 0,
                        .b = nullptr,
                        .row_b = Tile::kPanel,
                        .c = nullptr,
                        .row_c = kLinearAdamStripCols,
                        .adds = first > 0};
      for (std::int64_t col = 0; col < s_.cols; col += Tile::kPanel) {
        part.b = s_.x + col * s_.batch + first * Tile::kPanel;
        part.c = grads + col;
        multiply(part);
      }
      first += part.k;
    } while (first < s_.batch);
  }

  /// The sums are cut into as many parts as there are vectors, and a vector of weights is updated
  /// after each part.
  [[gnu::noinline]] void multiply(const ChainProduct& part) {
    Tile::template run<kGroupRows, Vec::kVectors, true, Beside::kNothing>(
        part, part.a, part.b, part.c, kWidth, kGroupRows * Vec::kVectors, [this] { advance(); });
  }

  /// Starts updating the next row.
  void begin_row() {
    const std::int64_t first = row_++ * s_.stride;
    weight_ = s_.weight + first;
    moments1_ = s_.moments1 + first;
    moments2_ = s_.moments2 + first;
    grads_left_ = next_grads_;
    next_grads_ += kLinearAdamStripCols;
    left_ = s_.cols;
  }

  void finish() {
    while (rows_left_ > 0) advance();
  }

  /// Updates one vector of weights whose gradients are complete, and prefetches data from later in
  /// the row or from the next one.
  [[gnu::always_inline]] void advance() {
    if (rows_left_ == 0) return;
    const std::int64_t ahead = left_ > ahead_ ? ahead_ : ahead_ + s_.stride - s_.cols;
    __builtin_prefetch(weight_ + ahead);
    __builtin_prefetch(moments1_ + ahead);
    __builtin_prefetch(moments2_ + ahead);
    if (left_ > kWidth) {
      update<true>();
      weight_ += kWidth;
      moments1_ += kWidth;
      moments2_ += kWidth;
      grads_left_ += kWidth;
      left_ -= kWidth;
      return;
    }
    if (left_ == kWidth) {
      update<true>();
    } else {
      update<false>();
    }
    if (--rows_left_ > 0) begin_row();
  }

  template <bool kWhole>
  [[nodiscard, gnu::always_inline]] Vec load(const float* from) const {
    return kWhole ? Vec::load(from) : Vec::load_part(from, left_);
  }
  template <bool kWhole>
  [[gnu::always_inline]] void store(const Vec& numbers, float* to) const {
    return kWhole ? numbers.store(to) : numbers.store_part(to, left_);
  }

  /// Without kWhole, only `left_` numbers.
  template <bool kWhole>
  [[gnu::always_inline]] void update() {
    Vec weight = load<kWhole>(weight_);
    Vec moment1 = load<kWhole>(moments1_);
    Vec moment2 = load<kWhole>(moments2_);
    adam_step<VectorArithmetic>(s_.constants, s_.scalars, Vec::load(grads_left_), weight, moment1,
                                moment2);
    store<kWhole>(weight, weight_);
    store<kWhole>(moment1, moments1_);
    store<kWhole>(moment2, moments2_);
  }

  const LinearAdamStrip& s_;
  const std::int64_t ahead_;
  // Pending updates: `left_` numbers of the current row, and the rows after it.
  std::int64_t row_ = 0, rows_left_ = 0, left_ = 0;
  float *weight_ = nullptr, *moments1_ = nullptr, *moments2_ = nullptr;
  const float *grads_left_ = nullptr, *next_grads_ = nullptr;
  alignas(64) float grads_[2][kGroupRows * kLinearAdamStripCols];
};

template <class Vec>
class SoftmaxLoops {
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kColumns =
      kAttentionQueries / kWidth;  // vectors of a row of scores
  static constexpr std::int64_t kParts = kAttentionLanes / kWidth;

 public:
  static void softmax(float* scores, std::int64_t keys, float* maximum, float* sum, float* shrink) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      float* const first = scores + column * kWidth;
      const Vec old = Vec::load(maximum + column * kWidth);
      Vec largest = old;
      for (std::int64_t key = 0; key < keys; ++key) {
        largest = larger(Vec::load(first + key * kAttentionQueries), largest);
      }
      Vec total(0);
      for (std::int64_t key = 0; key < keys; ++key) {
        float* const at = first + key * kAttentionQueries;
        const Vec p = exponential(Vec::load(at) - largest);
        p.store(at);
        total = total + p;
      }
      const Vec factor = exponential(old - largest);
      fma(Vec::load(sum + column * kWidth), factor, total).store(sum + column * kWidth);
      factor.store(shrink + column * kWidth);
      largest.store(maximum + column * kWidth);
    }
  }

  static void softmax_grad(float* scores, float* grads, std::int64_t keys, const float* log_sum,
                           const float* delta) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const Vec of_sum = Vec::load(log_sum + column * kWidth);
      const Vec of_grad = Vec::load(delta + column * kWidth);
      for (std::int64_t key = 0; key < keys; ++key) {
        const std::int64_t at = key * kAttentionQueries + column * kWidth;
        // Rounding may put a score above the logarithm of its row's sum.
        const Vec below = Vec::load(scores + at) - of_sum;
        const Vec p = exponential(below);
        p.store(scores + at);
        (p * (Vec::load(grads + at) - of_grad)).store(grads + at);
      }
    }
  }

  /// As kAttentionLanes sums, whatever the width of vectors.
  static void softmax_row(float* row, std::int64_t n) {
    const std::int64_t whole = n / kAttentionLanes * kAttentionLanes;
    float largest = row[0];
    for (std::int64_t i = 1; i < n; ++i) {
      // NaN stays.
      largest = row[i] > largest || row[i] != row[i] ? row[i] : largest;
    }
    Vec sums[static_cast<std::size_t>(kParts)];
    for (Vec& each : sums) each = Vec(0);
    for (std::int64_t i = 0; i < whole; i += kAttentionLanes) {
      for (std::int64_t part = 0; part < kParts; ++part) {
        const Vec p = exponential(Vec::load(row + i + part * kWidth) - Vec(largest));
        p.store(row + i + part * kWidth);
        sums[part] = sums[part] + p;
      }
    }
    float lanes[static_cast<std::size_t>(kAttentionLanes)];
    for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] = row[i];
    for (std::int64_t i = n - whole; i < kAttentionLanes; ++i) lanes[i] = largest;
    for (std::int64_t part = 0; part < kParts; ++part) {
      exponential(Vec::load(lanes + part * kWidth) - Vec(largest)).store(lanes + part * kWidth);
    }
    float sum = 0;
    for (std::int64_t i = whole; i < n; ++i) {
      row[i] = lanes[i - whole];
      sum += row[i];
    }
    for (std::int64_t part = 0; part < kParts; ++part) sums[part].store(lanes + part * kWidth);
    for (const float lane : lanes) sum += lane;
    const float inverse = 1.0F / sum;
    for (std::int64_t i = 0; i < n; ++i) row[i] *= inverse;
  }
};

template <class Vec>
struct GeluLoops {
  using Formula = ActivationFormula<Activation::kGelu>;
  static constexpr std::int64_t kWidth = Vec::kWidth;

  static void value(float* values, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) Formula::of(Vec::load(values + i)).store(values + i);
    if (i < n) Formula::of(Vec::load_part(values + i, n - i)).store_part(values + i, n - i);
  }

  static void grad(float* grads, const float* from, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      Formula::grad_of(Vec::load(grads + i), Vec::load(from + i)).store(grads + i);
    }
    if (i == n) return;
    Formula::grad_of(Vec::load_part(grads + i, n - i), Vec::load_part(from + i, n - i))
        .store_part(grads + i, n - i);
  }
};

template <class Vec>
constexpr VectorKernels kernels_of(std::string_view name) {
  return {.name = name,
          .panel = Vec::kVectors * Vec::kWidth,
          .pack = PackLoops<Vec>::pack,
          .multiply = multiply_chains<Vec>,
          .multiply_plainly = multiply_plainly<Vec>,
          .update = LinearAdamLoop<Vec>::update,
          .softmax = SoftmaxLoops<Vec>::softmax,
          .softmax_grad = SoftmaxLoops<Vec>::softmax_grad,
          .softmax_row = SoftmaxLoops<Vec>::softmax_row,
          .gelu = GeluLoops<Vec>::value,
          .gelu_grad = GeluLoops<Vec>::grad};
}

}  // namespace barestep
