#include <limits>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/skinny_product.cuh"

namespace barestep {
namespace {

constexpr std::int64_t kMaxRows = 2 * kSkinnyRows;

std::int64_t tiles_of(const ProductShape& shape) {
  return tiles(shape.m, kSkinnyRows) * tiles(shape.n, kSkinnyCols);
}

/// In steps, so that only the last split has fewer.
std::int64_t depth_of_split(std::int64_t k, int splits) {
  return tiles(tiles(k, kSkinnyDepth), splits) * kSkinnyDepth;
}

bool fits(const ProductShape& shape, const KernelTarget& target) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  constexpr auto kShared =
      static_cast<std::int64_t>(std::max(sizeof(SkinnyShared<true>), sizeof(SkinnyShared<false>)));
  return target.has_tf32 && target.block_shared_bytes >= kShared && !shape.transpose_a &&
         shape.type == DType::kF32 && shape.type_of_c == DType::kF32 && shape.m <= kMaxRows &&
         shape.k % 4 == 0 && shape.n % 4 == 0 && shape.k < kMax && shape.n < kMax &&
         std::min(shape.alignment_a, shape.alignment_b) >= kVectorBytes &&
         tiles_of(shape) <= kLaunchCounts;
}

}  // namespace

bool can_run(const SkinnyProduct& product, const ProductShape& shape, const KernelTarget& target) {
  // Each split has a step of its own.
  const std::int64_t depth = product.splits >= 1 ? depth_of_split(shape.k, product.splits) : 0;
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
    const std::int64_t steps = tiles(tiles(shape.k, kSkinnyDepth), wanted);
    const SkinnyProduct product{static_cast<int>(tiles(shape.k, steps * kSkinnyDepth))};
    if (products.empty() || products.back() != product) products.push_back(product);
  }
  return products;
}

std::int64_t workspace_bytes_of(const SkinnyProduct& product, const ProductShape& shape) {
  return tiles_of(shape) * product.splits * kSkinnyRows * kSkinnyCols *
         static_cast<std::int64_t>(sizeof(float));
}

int launch_skinny(const Gemm& op, const SkinnyProduct& product, bool rounded,
                  const Addresses& addresses, const LaunchMemory& memory,
                  const KernelQueue& queue) {
  const ProductShape shape = shape_of(op);
  const SkinnyArrays arrays{
      .x = addresses.at(op.a),
      .w = addresses.at(op.b),
      .bias = op.bias ? addresses.at(*op.bias) : nullptr,
      .y = addresses.at(op.c),
      .partial = reinterpret_cast<float4*>(memory.workspace),
      .finished = memory.finished_blocks,
      .m = static_cast<int>(shape.m),
      .n = static_cast<int>(shape.n),
      .k = static_cast<int>(shape.k),
      .splits = product.splits,
      .depth_of_split = static_cast<int>(depth_of_split(shape.k, product.splits)),
      .beta = op.beta,
      .relu = shape.relu};
  const dim3 grid(static_cast<unsigned>(tiles(shape.n, kSkinnyCols) * product.splits),
                  static_cast<unsigned>(tiles(shape.m, kSkinnyRows)));
  const auto start_on = [&](auto* kernel, std::size_t shared_bytes) -> cudaError_t {
    const cudaError_t status = allow_shared(kernel, shared_bytes);
    if (status != cudaSuccess) return status;
    return start_sharing(queue, grid, dim3(kBlockThreads), shared_bytes, kernel, arrays);
  };
  if (op.transpose_b) {
    return start_on(rounded ? skinny_product<true, true> : skinny_product<true, false>,
                    sizeof(SkinnyShared<true>));
  }
  return start_on(rounded ? skinny_product<false, true> : skinny_product<false, false>,
                  sizeof(SkinnyShared<false>));
}

}  // namespace barestep
