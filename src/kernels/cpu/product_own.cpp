// Products of our own: every number of c is one chain of fused multiply-adds in the order of k,
// whatever the shape, the instructions and the number of threads.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "kernels/cpu/packs.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_tiles.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {
namespace {

/// The rows of a task, a multiple of kGroupRows.
constexpr std::int64_t kRowsOfTask = 96;

/// The columns of a task.
constexpr std::int64_t kMaxStrip = 128;
constexpr std::int64_t kMaxPanel = 64;
std::int64_t strip_of(const VectorKernels& kernels) {
  return std::max<std::int64_t>(64, 2 * kernels.panel);
}

/// The numbers of a part of a panel, and the depth of one that is packed where it is needed: both
/// stay in the first-level cache.
constexpr std::int64_t kPartOfPanel = 8192;
constexpr std::int64_t kDepthOfStrip = 128;

/// The rows of memory that are read together where columns are not packed.
constexpr std::int64_t kDepthInPlace = 16;

/// The depth that is packed at once where both sides are: packs of more would leave the caches
/// before they are used.
constexpr std::int64_t kPackedDepth = 512;

/// Below this many multiply-adds, waking threads takes longer than it saves.
constexpr std::int64_t kMinSharedWork = std::int64_t{1} << 18;

/// A product as the kernel sees it: rows, read in their place if their numbers are next to each
/// other, times columns packed in panels.
struct Roles {
  OperandSide rows, columns;
  bool is_transposed;  // the rows are those of op(b)
};

OperandSide side_of(const float* values, std::int64_t extent, std::int64_t depth, bool by_depth,
                    std::int64_t stride) {
  return {values, extent, depth, by_depth ? stride : 1, by_depth ? 1 : stride};
}

/// Numbers of a side that are next to each other are best read as rows. So the larger side is then
/// not packed at all; but few columns would leave parts of vectors empty.
Roles roles_of(const TileProduct& p) {
  constexpr std::int64_t kFew = 48;
  const OperandSide a = side_of(p.a, p.m, p.k, !p.transpose_a, p.stride_a);
  const OperandSide b = side_of(p.b, p.n, p.k, p.transpose_b, p.stride_b);
  if (p.transpose_b && (p.transpose_a || (p.m > kFew && p.m <= p.n))) return {b, a, true};
  return {a, b, false};
}

bool packs_rows(const Roles& roles) {
  return roles.rows.depth_step != 1;
}

/// Columns that several tasks may need are packed once, by all threads. The others, of the larger
/// side, are packed part by part where they are needed.
bool packs_columns(const Roles& roles) {
  return packs_rows(roles) || roles.columns.extent <= roles.rows.extent;
}

/// Of the depth, only the numbers from `first` on.
Roles in_depth(const Roles& roles, std::int64_t first, std::int64_t depth) {
  const auto in_side = [=](const OperandSide& side) -> OperandSide {
    return {side.values + first * side.depth_step, side.extent, depth, side.step, side.depth_step};
  };
  return {in_side(roles.rows), in_side(roles.columns), roles.is_transposed};
}

/// The numbers of the depth that are packed at once. A sum goes on where it stopped, in the same
/// order.
std::int64_t packed_depth(const Gemm& op, const Roles& roles) {
  const std::int64_t all = roles.rows.depth;
  const bool goes_on = is_sum(op) && !roles.is_transposed && packs_rows(roles);
  return goes_on ? std::min(all, kPackedDepth) : all;
}

/// Packing columns that are next to each other would take longer than multiplying them by a single
/// group of rows, or by a few where they stay in the second-level cache.
bool reads_in_place(const Gemm& op, const Roles& roles) {
  constexpr std::int64_t kFewRows = 4 * kGroupRows;
  constexpr std::int64_t kSmallSide = 65536;
  const OperandSide& columns = roles.columns;
  const bool is_small = columns.extent * columns.depth <= kSmallSide;
  return is_sum(op) && !roles.is_transposed && columns.step == 1 &&
         roles.rows.extent <= (is_small ? kFewRows : kGroupRows);
}

class OwnProduct final : public Product {
 public:
  explicit OwnProduct(Instructions most)
      : kernels_(vector_kernels(most)), strip_(strip_of(kernels_)) {
    // What else is chosen changes no bit, so ranks and resumed runs need not agree on it.
    if (most != Instructions::kAuto) name_ += fmt::format(" with {} instructions", kernels_.name);
  }

  [[nodiscard]] std::string_view name() const override { return name_; }

  void prepare(const Gemm& op, const ThreadPool& /*pool*/) override {
    const Roles all = roles_of(operands(op, nullptr, nullptr));
    const Roles roles = in_depth(all, 0, packed_depth(op, all));
    packs_.reserve(size_of_rows(roles) + size_of_columns(roles));
  }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    const OperandSide a = side_of(p.a, p.m, p.k, !p.transpose_a, p.stride_a);
    const OperandSide b = side_of(p.b, p.n, p.k, p.transpose_b, p.stride_b);
    const Rows rows = rows_in_place(a);
    for (std::int64_t col = 0; col < p.n; col += strip_) {
      multiply_strip(rows, 0, p.m, b, col, p.c + col, p.stride_c, p.beta != 0);
    }
    return true;
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    if (op.c.size() == 0) return;
    const Roles roles = roles_of(operands(op, addresses.at(op.a), addresses.at(op.b)));
    if (reads_in_place(op, roles)) return multiply_in_place(roles, addresses.at(op.c), pool);
    const Packs::Taken taken = packs_.take();
    const std::int64_t depth = packed_depth(op, roles);
    std::int64_t k = 0;
    do {
      const Roles part = in_depth(roles, k, std::min(depth, roles.rows.depth - k));
      run_part(op, addresses, part, taken.floats(), k > 0, pool);
      k += depth;
    } while (k < roles.rows.depth);
  }

 private:
  /// c = or += its product, of which `packs` holds what is packed.
  void run_part(const Gemm& op, const Addresses& addresses, const Roles& roles, float* packs,
                bool adds, ThreadPool& pool) const {
    Rows rows = rows_in_place(roles.rows);
    if (packs_rows(roles)) {
      rows = {packs, 1, kGroupRows, kGroupRows * roles.rows.depth};
      pack_groups(roles.rows, packs, pool);
    }
    float* const panels = packs_columns(roles) ? packs + size_of_rows(roles) : nullptr;
    if (panels != nullptr) pack_panels(kernels_, roles.columns, panels, pool);

    const std::int64_t groups = slices_of(roles.rows.extent, kGroupRows);
    const std::int64_t across = slices_of(roles.columns.extent, strip_);
    const std::int64_t chunks = chunks_of(groups, across, pool.threads());
    const auto task = [&](std::int64_t i, int) {
      const std::int64_t chunk = i / across;
      const std::int64_t first = chunk * groups / chunks * kGroupRows;
      const std::int64_t end =
          std::min(roles.rows.extent, (chunk + 1) * groups / chunks * kGroupRows);
      run_task(op, addresses, roles, rows, panels, first, end - first, i % across * strip_, adds);
    };
    if (op.c.size() * roles.rows.depth < kMinSharedWork) {
      for (std::int64_t i = 0; i < chunks * across; ++i) task(i, 0);
    } else {
      pool.run(chunks * across, task);
    }
  }

  /// Rows as the kernel reads them: number k of row i is at values[i * row + k * col].
  struct Rows {
    const float* values;
    std::int64_t row, col, group;
  };

  static TileProduct operands(const Gemm& op, const float* a, const float* b) {
    return {.transpose_a = op.transpose_a,
            .transpose_b = op.transpose_b,
            .m = op.c.rows,
            .n = op.c.cols,
            .k = op.transpose_a ? op.a.rows : op.a.cols,
            .a = a,
            .stride_a = op.a.cols,
            .b = b,
            .stride_b = op.b.cols,
            .beta = op.beta,
            .c = nullptr,
            .stride_c = op.c.cols};
  }

  static Rows rows_in_place(const OperandSide& side) {
    return {side.values, side.step, side.depth_step, kGroupRows * side.step};
  }

  [[nodiscard]] static std::int64_t size_of_rows(const Roles& roles) {
    return packs_rows(roles) ? (packed_size(roles.rows, kGroupRows) + 15) / 16 * 16 : 0;
  }
  [[nodiscard]] std::int64_t size_of_columns(const Roles& roles) const {
    return packs_columns(roles) ? packed_size(roles.columns, kernels_.panel) : 0;
  }

  /// The groups of rows are cut into this many chunks.
  static std::int64_t chunks_of(std::int64_t groups, std::int64_t across, int threads) {
    std::int64_t chunks = std::max(slices_of(groups * kGroupRows, kRowsOfTask),
                                   std::min(groups, slices_of(4 * threads, across)));
    if (across % threads != 0) chunks = slices_of(chunks, threads) * threads;
    return std::min(chunks, groups);
  }

  /// Each thread has a range of columns, of which it reads some rows at a time, from end to end.
  void multiply_in_place(const Roles& roles, float* c, ThreadPool& pool) const {
    const OperandSide& columns = roles.columns;
    const Rows rows = rows_in_place(roles.rows);
    const bool is_small = roles.rows.extent * columns.extent * columns.depth < kMinSharedWork;
    const std::int64_t panels = slices_of(columns.extent, kernels_.panel);
    const std::int64_t tasks = is_small ? 1 : std::min<std::int64_t>(panels, pool.threads());
    pool.run(tasks, [&](std::int64_t task, int) {
      const std::int64_t first = task * panels / tasks * kernels_.panel;
      const std::int64_t end =
          std::min(columns.extent, (task + 1) * panels / tasks * kernels_.panel);
      std::int64_t k = 0;
      do {
        const std::int64_t depth = std::min(kDepthInPlace, columns.depth - k);
        ChainProduct part = chain(rows, 0, roles.rows.extent, end - first, k, depth,
                                  columns.values + first + k * columns.depth_step, c + first,
                                  columns.extent, k > 0);
        part.row_b = columns.depth_step;
        kernels_.multiply(part);
        k += kDepthInPlace;
      } while (k < columns.depth);
    });
  }

  /// c = or += rows times a panel that is packed already.
  void multiply_panel(const Rows& rows, std::int64_t first, std::int64_t count,
                      const OperandSide& columns, const float* panels, std::int64_t col, float* c,
                      std::int64_t row_c, bool adds) const {
    const std::int64_t width = kernels_.panel;
    const std::int64_t depth = kPartOfPanel / width;
    const bool is_in_place = rows.col == 1;
    const std::int64_t together = is_in_place ? kGroupRows : count;
    std::int64_t k = 0;
    do {
      const std::int64_t depth_here = std::min(depth, columns.depth - k);
      for (std::int64_t row = 0; row < count; row += together) {
        ChainProduct product = chain(rows, first + row, std::min(together, count - row),
                                     std::min(width, columns.extent - col), k, depth_here,
                                     panels + (col * columns.depth + k * width), c + row * row_c,
                                     row_c, adds || k > 0);
        if (is_in_place) fetch_rows(rows, product);
        kernels_.multiply(product);
      }
      k += depth;
    } while (k < columns.depth);
  }

  /// Has the product of a group of rows that are read in place fetch those of the next groups:
  /// their runs are too short for the processor to see them coming.
  static void fetch_rows(const Rows& rows, ChainProduct& product) {
    if (product.k % kLineFloats != 0 || product.k == 0) return;
    product.ahead = product.a + rows.group;
    product.row_ahead = rows.row;
    product.lines_ahead = product.k / kLineFloats;
  }

  /// c = or += rows times a strip of columns, whose panels are packed here, part by part. While one
  /// part is multiplied, the next is fetched from memory and, if many rows leave the time and it
  /// need not be transposed, packed.
  void multiply_strip(const Rows& rows, std::int64_t first, std::int64_t count,
                      const OperandSide& columns, std::int64_t col, float* c, std::int64_t row_c,
                      bool adds) const {
    alignas(64) float packs[2][kDepthOfStrip * kMaxPanel];
    const std::int64_t width = kernels_.panel;
    const std::int64_t end = std::min(col + strip_, columns.extent);
    if (count < kGroupRows && columns.depth_step == 1) {
      return multiply_few(rows, first, count, columns, col, end, packs[0], c, row_c, adds);
    }
    const std::int64_t panels = slices_of(end - col, width);
    const std::int64_t parts =
        panels * std::max<std::int64_t>(slices_of(columns.depth, kDepthOfStrip), 1);
    // A group of rows fetches or copies a line for each number of the depth.
    const bool packs_ahead = columns.step == 1 && count >= 2 * width / kLineFloats * kGroupRows;
    bool is_packed = false;
    for (std::int64_t i = 0; i < parts; ++i) {
      const OperandSide part = part_of(columns, col, end, i);
      const OperandSide next = part_of(columns, col, end, i + 1);
      float* const pack = packs[packs_ahead ? i % 2 : 0];
      if (!is_packed) pack_panel(kernels_, part, 0, 0, part.depth, pack);
      is_packed = packs_ahead && part.depth == kDepthOfStrip && is_whole(next);
      for (std::int64_t row = 0; row < count; row += kGroupRows) {
        float* const to = c + row * row_c + i % panels * width;
        ChainProduct product =
            chain(rows, first + row, std::min(kGroupRows, count - row), part.extent,
                  i / panels * kDepthOfStrip, part.depth, pack, to, row_c, adds || i >= panels);
        prepare(next, row / kGroupRows, is_packed ? packs[(i + 1) % 2] : nullptr, product);
        kernels_.multiply(product);
      }
    }
  }

  /// The same for a few rows: from memory comes one cache line of columns after the other.
  void multiply_few(const Rows& rows, std::int64_t first, std::int64_t count,
                    const OperandSide& columns, std::int64_t col, std::int64_t end, float* part,
                    float* c, std::int64_t row_c, bool adds) const {
    for (std::int64_t at = col; at < end; at += kLineFloats) {
      const std::int64_t width = std::min(kLineFloats, end - at);
      std::int64_t k = 0;
      do {
        const std::int64_t depth = std::min(kDepthOfStrip, columns.depth - k);
        kernels_.pack(columns.values + at * columns.step + k, columns.step, 1, width, depth, part);
        kernels_.multiply(
            chain(rows, first, count, width, k, depth, part, c + (at - col), row_c, adds || k > 0));
        k += kDepthOfStrip;
      } while (k < columns.depth);
    }
  }

  /// Part i of the columns from `col` to `end`: of each panel in turn kDepthOfStrip numbers, if
  /// that many are left.
  [[nodiscard]] OperandSide part_of(const OperandSide& columns, std::int64_t col, std::int64_t end,
                                    std::int64_t i) const {
    const std::int64_t panels = slices_of(end - col, kernels_.panel);
    const std::int64_t at = col + i % panels * kernels_.panel;
    const std::int64_t k = i / panels * kDepthOfStrip;
    return {columns.values + at * columns.step + k * columns.depth_step,
            std::min(kernels_.panel, end - at), std::min(kDepthOfStrip, columns.depth - k),
            columns.step, columns.depth_step};
  }

  [[nodiscard]] bool is_whole(const OperandSide& part) const {
    return part.extent == kernels_.panel && part.depth == kDepthOfStrip;
  }

  /// Has the product of a group of rows fetch its share of the next part, or if the groups above
  /// have fetched all of it and `pack` is not null, copy its share there.
  void prepare(const OperandSide& next, std::int64_t group, float* pack,
               ChainProduct& product) const {
    const bool by_depth = next.depth_step != 1;
    const std::int64_t rows = by_depth ? kDepthOfStrip : kernels_.panel;
    const std::int64_t cols = by_depth ? kernels_.panel : kDepthOfStrip;
    const std::int64_t lines = cols / kLineFloats;
    const std::int64_t first = group * product.k / lines;
    const bool copies = pack != nullptr && first >= rows;
    if (!is_whole(next) || product.k < kDepthOfStrip || first >= (copies ? 2 : 1) * rows) return;
    product.row_ahead = by_depth ? next.depth_step : next.step;
    product.ahead = next.values + first % rows * product.row_ahead;
    product.lines_ahead = lines;
    if (copies) product.copy = pack + first % rows * cols;
  }

  ChainProduct chain(const Rows& rows, std::int64_t first, std::int64_t count, std::int64_t cols,
                     std::int64_t k, std::int64_t depth, const float* b, float* c,
                     std::int64_t row_c, bool adds) const {
    return {.m = count,
            .n = cols,
            .k = depth,
            .a = rows.values + first / kGroupRows * rows.group + k * rows.col,
            .row_a = rows.row,
            .col_a = rows.col,
            .group_a = rows.group,
            .b = b,
            .row_b = kernels_.panel,
            .c = c,
            .row_c = row_c,
            .adds = adds};
  }

  void multiply_task(const Rows& rows, std::int64_t first, std::int64_t count,
                     const OperandSide& columns, const float* panels, std::int64_t col, float* c,
                     std::int64_t row_c, bool adds) const {
    if (panels == nullptr) return multiply_strip(rows, first, count, columns, col, c, row_c, adds);
    for (std::int64_t at = col; at < std::min(col + strip_, columns.extent); at += kernels_.panel) {
      multiply_panel(rows, first, count, columns, panels, at, c + (at - col), row_c, adds);
    }
  }

  void run_task(const Gemm& op, const Addresses& addresses, const Roles& roles, const Rows& rows,
                const float* panels, std::int64_t first, std::int64_t count, std::int64_t col,
                bool adds) const noexcept {
    const std::int64_t cols = std::min(strip_, roles.columns.extent - col);
    if (is_sum(op) && !roles.is_transposed) {
      float* const c = addresses.at(op.c) + first * op.c.cols + col;
      return multiply_task(rows, first, count, roles.columns, panels, col, c, op.c.cols, adds);
    }
    alignas(64) float sums[kRowsOfTask * kMaxStrip];
    multiply_task(rows, first, count, roles.columns, panels, col, sums, cols, adds);
    if (!roles.is_transposed) {
      return finish_tile(op, addresses, {first, count, col, cols}, sums, cols);
    }
    alignas(64) float transposed[kMaxStrip * kMaxPanel];
    for (std::int64_t row = 0; row < count; row += kernels_.panel) {
      const std::int64_t rows_here = std::min(kernels_.panel, count - row);
      kernels_.pack(sums + row * cols, cols, 1, rows_here, cols, transposed);
      finish_tile(op, addresses, {col, cols, first + row, rows_here}, transposed, kernels_.panel);
    }
  }

  const VectorKernels& kernels_;
  const std::int64_t strip_;
  std::string name_ = "barestep";
  Packs packs_;
};

}  // namespace

std::unique_ptr<Product> make_own_product(Instructions most) {
  return std::make_unique<OwnProduct>(most);
}

}  // namespace barestep
