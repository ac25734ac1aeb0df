#include <limits>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/skinny_product.cuh"

namespace barestep {
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
