// y = x W^T, and grad_x = grad_y W, for few rows: on tensor cores, each weight read once.
//
// A block computes 64 rows by 128 columns of the result over a part of the depth, its share of a
// split sum; it passes its sums on in memory, and the last block of a tile to arrive adds them in
// the order of the depth. So the result does not depend on which block that is.
//
// In fp32, sums over eight numbers of the depth leave the tensor cores and are added outside of
// them: they round towards zero, so a long chain of theirs would not be as exact as fp32.
#include <limits>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/reductions.cuh"
#include "kernels/cuda/tile_products.cuh"

namespace barestep {

constexpr int kSkinnyRows = 64;
constexpr int kSkinnyCols = 128;
/// The depth of a step; two steps are in shared memory.
template <class Number>
constexpr int kSkinnyDepth = 256 / static_cast<int>(sizeof(Number));
/// Neighbors in depth that are stored together, and one mma's; a lane has a quarter of them.
template <class Number>
constexpr int kSkinnyRun = 32 / static_cast<int>(sizeof(Number));
template <class Number>
constexpr int kOfVector = kVectorBytes / static_cast<int>(sizeof(Number));

template <class Number>
using ReluGradElement = ActivationGradElement<ActivationFormula<Activation::kRelu>, Number>;

/// A pointwise loss of any kind, as a LossElement.
template <class Number>
struct SkinnyLoss {
  LossKind kind = LossKind::kMse;
  Number* grad = nullptr;  // null: there is no such loss
  const void* target = nullptr;
  const float* scale = nullptr;
  float factor = 0;
  bool of_relu = false;  // the gradient is that of the ReLU before it too

  /// Writes the gradient of number i of y; returns its term of the loss.
  __device__ __forceinline__ double operator()(std::int64_t i, Number y) const {
    switch (kind) {
      case LossKind::kL1:
        return by<LossKind::kL1>(i, y);
      case LossKind::kHuber:
        return by<LossKind::kHuber>(i, y);
      case LossKind::kBce:
        return by<LossKind::kBce>(i, y);
      default:
        return by<LossKind::kMse>(i, y);
    }
  }

 private:
  template <LossKind kKind>
  __device__ __forceinline__ double by(std::int64_t i, Number y) const {
    using Formula = LossFormula<kKind>;
    LossElement<Formula, Number> element;
    element.scale = scale;
    element.factor = factor;
    const auto expected = static_cast<const typename Formula::Target*>(target)[i];
    const Number of_y = element.grad_of(y, expected);
    grad[i] = of_relu ? ReluGradElement<Number>::of(of_y, y) : of_y;
    return element.value_of(y, expected);
  }
};

/// What the launch of a product computes after it, of y.
template <class Number>
struct SkinnyNext {
  const Number* relu = nullptr;  // y becomes the gradient of the ReLU that this is the result of
  SkinnyLoss<Number> loss{};
  CrossEntropyRow<Number> classes{};  // without a grad: none
  LossTotal total{};
  double* partial = nullptr;  // of each tile

  [[nodiscard]] __device__ bool has_loss() const {
    return loss.grad != nullptr || classes.grad != nullptr;
  }
};

/// x [m][k], y [m][n], W [n][k] or [k][n]; rows of x and W are multiples of kVectorBytes, and so
/// are their addresses. y = activation(x W^T + bias + beta y); of 16 bits, beta is 0, and the sum
/// with the bias is rounded.
template <class Number>
struct SkinnyArrays {
  const Number* x;
  const Number* w;
  const Number* bias;  // [n], or null
  Number* y;
  float4* partial;     // kSkinnySums of each thread, split and tile
  unsigned* finished;  // of each tile, and of all; 0 before and after
  int m, n, k;
  int splits, depth_of_split;  // a multiple of kSkinnyDepth
  float beta;
  bool relu;
  SkinnyNext<Number> next{};
};

/// Rows are stored in runs of their depth, so that 8-byte loads have no bank conflicts; a gap
/// between runs keeps those of the copies apart.
template <class Number, int kRowsOfRun>
struct SkinnyRuns {
  static constexpr int kOfRun = kSkinnyRun<Number>;
  struct Run {
    Number at[kRowsOfRun][kOfRun];
    Number gap[kOfRun];
  };
  alignas(kVectorBytes) Run runs[kSkinnyDepth<Number> / kOfRun];

  [[nodiscard]] __device__ __forceinline__ Number* at(int row, int k) {
    return &runs[k / kOfRun].at[row][k % kOfRun];
  }
};

/// The depths of W [k][n], their columns permuted for the same reason.
template <class Number>
struct SkinnyDepths {
  alignas(kVectorBytes) Number depths[kSkinnyDepth<Number>][kSkinnyCols];

  [[nodiscard]] __device__ __forceinline__ Number* at(int k, int col) {
    return &depths[k][col ^ (k / (kSkinnyRun<Number> / 4) % 4 * kSkinnyRun<Number>)];
  }
};

template <bool kByRows, class Number>
struct SkinnyShared {
  SkinnyRuns<Number, kSkinnyRows> x[2];
  std::conditional_t<kByRows, SkinnyRuns<Number, kSkinnyCols>, SkinnyDepths<Number>> w[2];
  bool is_last;
};

/// Starts copying a step of kRows rows from `row` of `from` [rows][k]; zeros replace numbers
/// outside the matrix and the split.
template <int kRows, class Number>
__device__ __forceinline__ void fetch_runs(SkinnyRuns<Number, kRows>& to, const Number* from,
                                           int row, int rows, int depth, int end, int k) {
  constexpr int kAcross = kSkinnyDepth<Number> / kOfVector<Number>;
  constexpr int kStep = kBlockThreads / kAcross;
  const int across = block_thread() % kAcross * kOfVector<Number>;
  int down = block_thread() / kAcross;
  const bool in_depth = depth + across < end;
  const Number* source = from + std::int64_t{row + down} * k + depth + across;
#pragma unroll 1
  for (; down < kRows; down += kStep, source += std::int64_t{kStep} * k) {
    const bool valid = in_depth && row + down < rows;
    copy_async<kVectorBytes>(to.at(down, across), valid ? source : from, valid);
  }
}

/// The same of kSkinnyCols columns from `col` of `from` [k][n].
template <class Number>
__device__ __forceinline__ void fetch_depths(SkinnyDepths<Number>& to, const Number* from, int col,
                                             int n, int depth, int end) {
  constexpr int kAcross = kSkinnyCols / kOfVector<Number>;
  constexpr int kStep = kBlockThreads / kAcross;
  const int across = block_thread() % kAcross * kOfVector<Number>;
  const Number* source = from + std::int64_t{depth + block_thread() / kAcross} * n + col + across;
#pragma unroll 1
  for (int down = block_thread() / kAcross; down < kSkinnyDepth<Number>; down += kStep) {
    const bool valid = col + across < n && depth + down < end;
    copy_async<kVectorBytes>(to.at(down, across), valid ? source : from, valid);
    source += std::int64_t{kStep} * n;
  }
}

/// A thread's sums: of two tiles of 16 rows and four of 8 columns, in mma_tf32's layout. A warp has
/// 32 rows and 32 columns.
struct SkinnySums {
  float at[2][4][4] = {};
};
constexpr int kSkinnySums = 2 * 4;  // of four numbers

__device__ __forceinline__ float part_of(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/// A lane's neighbors in depth in a run.
template <class Number>
using SkinnyPart = Pack<Number, kSkinnyRun<Number> / 4>;
template <class Number>
__device__ __forceinline__ SkinnyPart<Number> load_part(const Number* from) {
  return std::bit_cast<SkinnyPart<Number>>(load_shared<uint2>(from));
}

/// The parts of four columns of W [k][n], from `col` on.
template <class Number>
__device__ __forceinline__ void load_parts(SkinnyPart<Number> (&parts)[4], SkinnyDepths<Number>& w,
                                           int k, int col) {
  using Four = std::conditional_t<sizeof(Number) == sizeof(float), float4, uint2>;
#pragma unroll
  for (int i = 0; i < kSkinnyRun<Number> / 4; ++i) {
    const auto row = std::bit_cast<Pack<Number, 4>>(load_shared<Four>(w.at(k + i, col)));
#pragma unroll
    for (int j = 0; j < 4; ++j) parts[j].of[i] = row.of[j];
  }
}

/// One step. Lane 4g + q loads the q-th quarter of a run, for a product that counts its depth in
/// this order. Of W [k][n], column g of tile j is column 4g + j of the warp.
template <bool kByRows, bool kRounded, class Number>
__device__ __forceinline__ void multiply_skinny(SkinnyShared<kByRows, Number>& shared, int buffer,
                                                SkinnySums& sums) {
  constexpr int kRun = kSkinnyRun<Number>;
  const int g = lane_of_warp() / 4;
  const int q = lane_of_warp() % 4;
  const int row = warp_of_block() / 4 * 32 + g;
  const int col = warp_of_block() % 4 * 32;
#pragma unroll 1
  for (int k = 0; k < kSkinnyDepth<Number>; k += kRun) {
    SkinnyPart<Number> w[4];
    const int depth = k + q * kRun / 4;
    if constexpr (kByRows) {
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = load_part(shared.w[buffer].at(col + 8 * j + g, depth));
    } else {
      load_parts(w, shared.w[buffer], depth, col + 4 * g);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const SkinnyPart<Number> x = load_part(shared.x[buffer].at(row + 16 * i, depth));
      const SkinnyPart<Number> below = load_part(shared.x[buffer].at(row + 16 * i + 8, depth));
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_run<kRounded>(sums.at[i][j], x, below, w[j]);
    }
  }
}

/// Adds the splits' sums of a tile and writes its part of y. Returns the thread's part of the loss,
/// if one follows.
template <bool kByRows, class Number>
__device__ __forceinline__ double finish_skinny(const SkinnyArrays<Number>& a,
                                                const float4* partial, int first_row,
                                                int first_col) {
  double loss = 0;
  const int row = first_row + warp_of_block() / 4 * 32 + lane_of_warp() / 4;
  const int col = first_col + warp_of_block() % 4 * 32;
  const int q = lane_of_warp() % 4;
#pragma unroll 1
  for (int s = 0; s < kSkinnySums; ++s) {
    float4 sum{};
    for (int split = 0; split < a.splits; ++split) {
      // Past the first-level cache, which other blocks do not write through.
      const float4 more = __ldcg(partial + (std::int64_t{split} * kSkinnySums + s) * kBlockThreads);
      sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = row + s / 4 * 16 + e / 2 * 8;
      const int c = col + (kByRows ? s % 4 * 8 + 2 * q + e % 2 : 4 * (2 * q + e % 2) + s % 4);
      if (r >= a.m || c >= a.n) continue;
      const std::int64_t i = std::int64_t{r} * a.n + c;
      float value = part_of(sum, e);
      if constexpr (sizeof(Number) == sizeof(float)) value = accumulate(value, a.beta, a.y[i]);
      if (a.bias != nullptr) value += float_of(a.bias[c]);
      auto y = rounded<Number>(a.relu ? relu(value) : value);
      if (a.next.relu != nullptr) y = ReluGradElement<Number>::of(y, a.next.relu[i]);
      a.y[i] = y;
      if (a.next.loss.grad != nullptr) loss += a.next.loss(i, y);
    }
  }
  return loss;
}

/// The cross-entropy of a tile, which has whole rows: row by row by a warp, as cross_entropy() does
/// with so few classes. Returns the sum in the first lane of each warp.
template <class Number>
__device__ __forceinline__ double classify_skinny(const SkinnyArrays<Number>& a, int first_row) {
  static_assert(kSkinnyCols <= kPackOf<Number> * kWarpThreads, "lanes take single logits");
  __syncthreads();  // y is complete
  double loss = 0;
#pragma unroll 1
  for (int row = first_row + warp_of_block(); row < first_row + kSkinnyRows; row += kBlockWarps) {
    if (row >= a.m) break;
    const double of_row = cross_entropy_row<1, false>(a.next.classes, row);
    if (lane_of_warp() == 0) loss += of_row;
  }
  return loss;
}

/// Grid: the tiles of columns, times the splits; in y, the tiles of rows. Of shared memory, a
/// SkinnyShared.
template <bool kByRows, bool kRounded, class Number>
__global__ void __launch_bounds__(kBlockThreads, 2) skinny_product(SkinnyArrays<Number> a) {
  begin_kernel();
  auto& shared = dynamic_shared<SkinnyShared<kByRows, Number>>();
  constexpr int kDepth = kSkinnyDepth<Number>;
  const int tiles = (a.n + kSkinnyCols - 1) / kSkinnyCols;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int split = static_cast<int>(blockIdx.x) / tiles;
  const int row = static_cast<int>(blockIdx.y) * kSkinnyRows;
  const int col = tile * kSkinnyCols;
  const int begin = split * a.depth_of_split;
  const int end = begin + a.depth_of_split < a.k ? begin + a.depth_of_split : a.k;
  const auto fetch = [&](int buffer, int depth) {
    fetch_runs(shared.x[buffer], a.x, row, a.m, depth, end, a.k);
    if constexpr (kByRows) {
      fetch_runs(shared.w[buffer], a.w, col, a.n, depth, end, a.k);
    } else {
      fetch_depths(shared.w[buffer], a.w, col, a.n, depth, end);
    }
  };
  SkinnySums sums;
  fetch(0, begin);
  commit_copies();
  for (int depth = begin, buffer = 0; depth < end; depth += kDepth, buffer ^= 1) {
    wait_for_copies();
    __syncthreads();  // complete, and the other buffer is no longer read
    if (depth + kDepth < end) fetch(buffer ^ 1, depth + kDepth);
    commit_copies();
    multiply_skinny<kByRows, kRounded>(shared, buffer, sums);
  }
  wait_for_copies();

  const std::int64_t place = std::int64_t{blockIdx.y} * tiles + tile;
  float4* const partial =
      a.partial + place * a.splits * kSkinnySums * kBlockThreads + block_thread();
#pragma unroll
  for (int s = 0; s < kSkinnySums; ++s) {
    const auto& four = sums.at[s / 4][s % 4];
    partial[(std::int64_t{split} * kSkinnySums + s) * kBlockThreads] = {four[0], four[1], four[2],
                                                                        four[3]};
  }
  __threadfence();  // before the count, so that whoever sees the count sees the sums
  __syncthreads();
  if (block_thread() == 0) {
    const auto last = static_cast<unsigned>(a.splits - 1);
    shared.is_last = atomicInc(a.finished + place, last) == last;  // which sets it to 0 again
  }
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();  // after the count, so that the sums of the others are seen with it
  double loss = finish_skinny<kByRows>(a, partial, row, col);
  if (!a.next.has_loss()) return;
  if (a.next.classes.grad != nullptr) loss = classify_skinny(a, row);
  const unsigned all = static_cast<unsigned>(tiles) * gridDim.y;
  if (grid_sum(loss, {a.next.partial, a.finished + all}, static_cast<unsigned>(place), all)) {
    a.next.total(loss);
  }
}

namespace {

constexpr std::int64_t kMaxRows = 2 * kSkinnyRows;

std::int64_t tiles_of(const ProductShape& shape) {
  return tiles(shape.m, kSkinnyRows) * tiles(shape.n, kSkinnyCols);
}

std::int64_t depth_of_step(const ProductShape& shape) {
  return with_number(shape.type, []<class Number>(Number) { return kSkinnyDepth<Number>; });
}

/// In steps, so that only the last split has fewer.
std::int64_t depth_of_split(const ProductShape& shape, int splits) {
  const std::int64_t step = depth_of_step(shape);
  return tiles(tiles(shape.k, step), splits) * step;
}

bool fits(const ProductShape& shape, const KernelTarget& target) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  // That of other types is the same.
  constexpr auto kShared = static_cast<std::int64_t>(
      std::max(sizeof(SkinnyShared<true, float>), sizeof(SkinnyShared<false, float>)));
  const std::int64_t of_vector = kVectorBytes / bytes_of(shape.type);
  return target.has_tf32 && target.block_shared_bytes >= kShared && !shape.transpose_a &&
         is_real(shape.type) && shape.type_of_c == shape.type && shape.m <= kMaxRows &&
         shape.k % of_vector == 0 && (shape.transpose_b || shape.n % of_vector == 0) &&
         shape.k < kMax && shape.n < kMax &&
         std::min(shape.alignment_a, shape.alignment_b) >= kVectorBytes &&
         tiles_of(shape) <= kLaunchCounts;
}

}  // namespace

bool can_run(const SkinnyProduct& product, const ProductShape& shape, const KernelTarget& target) {
  // Each split has a step of its own.
  const std::int64_t depth = product.splits >= 1 ? depth_of_split(shape, product.splits) : 0;
  return depth > 0 && tiles(shape.k, depth) == product.splits && fits(shape, target) &&
         tiles_of(shape) * product.splits <= std::numeric_limits<int>::max();
}

std::vector<SkinnyProduct> skinny_products(const ProductShape& shape, const KernelTarget& target) {
  std::vector<SkinnyProduct> products;
  if (!fits(shape, target)) return products;
  // One, two and four blocks on each multiprocessor: two fit at a time.
  for (const int blocks : {1, 2, 4}) {
    const std::int64_t wanted = std::max(
        std::int64_t{1}, std::int64_t{blocks} * target.geometry.multiprocessors / tiles_of(shape));
    const std::int64_t step = depth_of_step(shape);
    const std::int64_t steps = tiles(tiles(shape.k, step), wanted);
    const SkinnyProduct product{static_cast<int>(tiles(shape.k, steps * step))};
    if (products.empty() || products.back() != product) products.push_back(product);
  }
  return products;
}

namespace {

std::int64_t bytes_of_sums(const SkinnyProduct& product, const ProductShape& shape) {
  return tiles_of(shape) * product.splits * kSkinnyRows * kSkinnyCols *
         static_cast<std::int64_t>(sizeof(float));
}

template <class Number>
SkinnyNext<Number> next_of(const DeviceOp& op, const Addresses& addresses, std::byte* partial) {
  if (const auto* const gradient = std::get_if<ActivationGrad>(&op)) {
    return {.relu = addresses.at<Number>(gradient->from)};
  }
  SkinnyNext<Number> next{.partial = reinterpret_cast<double*>(partial)};
  if (const auto* const classes = std::get_if<CrossEntropy>(&op)) {
    next.classes = CrossEntropyRow<Number>(*classes, addresses);
    next.total = total_of(*classes, addresses);
    return next;
  }
  const auto& loss = std::get<PointwiseLoss>(op);
  with_loss(loss.kind, [&]<class Formula>(Formula) {
    const LossElement<Formula, Number> element(loss, addresses);
    next.loss = {.kind = loss.kind,
                 .grad = element.grad,
                 .target = element.target,
                 .scale = element.scale,
                 .factor = element.factor,
                 .of_relu = loss.activation == Activation::kRelu};
  });
  next.total = total_of(loss, addresses);
  return next;
}

}  // namespace

std::int64_t workspace_bytes_of(const SkinnyProduct& product, const ProductShape& shape) {
  return bytes_of_sums(product, shape) +
         tiles_of(shape) * static_cast<std::int64_t>(sizeof(double));
}

bool skinny_includes(const Gemm& op, const DeviceOp& next) {
  if (const auto* const gradient = std::get_if<ActivationGrad>(&next)) {
    return gradient->activation == Activation::kRelu && gradient->grad == op.c && !gradient->sums;
  }
  if (tiles_of(shape_of(op)) >= kLaunchCounts) return false;  // the loss needs a count of its own
  if (const auto* const loss = std::get_if<PointwiseLoss>(&next)) return loss->output == op.c;
  const auto* const classes = std::get_if<CrossEntropy>(&next);
  return classes != nullptr && classes->logits == op.c && op.c.cols < kSkinnyCols;
}

int launch_skinny(const Gemm& op, const SkinnyProduct& product, bool rounded,
                  const Addresses& addresses, const LaunchMemory& memory, const KernelQueue& queue,
                  const DeviceOp* next) {
  const ProductShape shape = shape_of(op);
  const dim3 grid(static_cast<unsigned>(tiles(shape.n, kSkinnyCols) * product.splits),
                  static_cast<unsigned>(tiles(shape.m, kSkinnyRows)));
  return with_number(shape.type, [&]<class Number>(Number) {
    SkinnyArrays<Number> arrays{
        .x = addresses.at<Number>(op.a),
        .w = addresses.at<Number>(op.b),
        .bias = op.bias ? addresses.at<Number>(*op.bias) : nullptr,
        .y = addresses.at<Number>(op.c),
        .partial = reinterpret_cast<float4*>(memory.workspace),
        .finished = memory.finished_blocks,
        .m = static_cast<int>(shape.m),
        .n = static_cast<int>(shape.n),
        .k = static_cast<int>(shape.k),
        .splits = product.splits,
        .depth_of_split = static_cast<int>(depth_of_split(shape, product.splits)),
        .beta = op.beta,
        .relu = shape.relu};
    if (next != nullptr) {
      arrays.next =
          next_of<Number>(*next, addresses, memory.workspace + bytes_of_sums(product, shape));
    }
    const auto start_on = [&](auto* kernel, std::size_t shared_bytes) -> cudaError_t {
      const cudaError_t status = allow_shared(kernel, shared_bytes);
      if (status != cudaSuccess) return status;
      return start_sharing(queue, grid, dim3(kBlockThreads), shared_bytes, kernel, arrays);
    };
    const auto start_with = [&]<bool kRounded>(std::bool_constant<kRounded>) {
      return op.transpose_b ? start_on(skinny_product<true, kRounded, Number>,
                                       sizeof(SkinnyShared<true, Number>))
                            : start_on(skinny_product<false, kRounded, Number>,
                                       sizeof(SkinnyShared<false, Number>));
    };
    if constexpr (sizeof(Number) == sizeof(float)) {
      if (rounded) return start_with(std::true_type{});
    }
    return start_with(std::false_type{});
  });
}

}  // namespace barestep
