#include <span>
#include <tuple>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/linear_adam.cuh"

namespace barestep {
namespace {

/// Calls use(product) with the product for the kernel whose blocks keep x.
template <class Number, class Use>
auto with_keeping_product(const KernelTarget& target, const Use& use) {
  if constexpr (sizeof(Number) < sizeof(float)) {
    return use(TensorProduct<1, Number>{});
  } else {
    if (target.tensor_cores) return use(TensorProduct<1, float, kTallRows>{});
    return use(FmaProduct<64, float, kTallRows>{});
  }
}

struct LinearAdamLauncher : Launcher {
  cudaError_t run(const LinearAdam& op) const {
    return with_number(op.x.dtype, [&]<class Number>(Number) {
      const auto arrays = arrays_of<Number>(op);
      const bool small = std::max({arrays.out, arrays.in, arrays.n}) < kMaxLinearAdamExtent;
      BARESTEP_REQUIRE(small, "a layer's extents fit in 31 bits");
      const bool vectors =
          arrays.in % 4 == 0 && arrays.out % 4 == 0 &&
          are_aligned(arrays.weight, arrays.weight_moments1, arrays.weight_moments2, arrays.grad_y,
                      arrays.x, arrays.rounded_weight);
      if (target.tiles == UpdateTiles::kKeeping && keeps(op, target) && vectors) {
        return with_keeping_product<Number>(target, [&]<class Product>(Product) {
          return fused_update<Product, kChunksKept>(arrays, AdamConstants(op.step),
                                                    linear_adam_keeping_x<Product>);
        });
      }
      return with_tile_product<Number>(vectors, [&]<class Product>(Product) {
        const auto start_update = [&](auto* kernel) {
          return fused_update<Product>(arrays, AdamConstants(op.step), kernel);
        };
        if constexpr (Product::kRows == kUsualRows) {
          if (!vectors) return start_update(linear_adam<Product, false>);
        }
        return start_update(linear_adam<Product, true>);
      });
    });
  }

  /// All at once; they are alike (are_alike() below).
  cudaError_t run(std::span<const DeviceOp* const> ops) const {
    const auto& first = std::get<LinearAdam>(*ops.front());
    return with_number(first.x.dtype, [&]<class Number>(Number) {
      LinearAdamLayers<Number> layers{};
      std::int64_t tiles_of_all = 0;
      for (const DeviceOp* const op : ops) {
        const auto& update = std::get<LinearAdam>(*op);
        layers.tiles_before[layers.count] = static_cast<int>(tiles_of_all);
        layers.of[layers.count++] = arrays_of<Number>(update);
        tiles_of_all += tiles_of(update);
      }
      const auto start_updates = [&]<class Product>(Product) {
        return start_persistent(queue, geometry, tiles_of_all, tiles(first.x.cols, kStripCols),
                                sizeof(LinearAdamShared<Product>), linear_adam_of_layers<Product>,
                                layers, AdamConstants(first.step));
      };
      if constexpr (sizeof(Number) == sizeof(float)) {
        if (!target.tensor_cores) return start_updates(FmaProduct<64>{});
      }
      return start_updates(TensorProduct<1, Number>{});
    });
  }

  static std::int64_t tiles_of(const LinearAdam& op) {
    return tiles(op.weight.rows, kUsualRows) * tiles(op.weight.cols, kStripCols);
  }

  /// Whether blocks of this op's kernel may keep the x of a strip.
  static bool keeps(const LinearAdam& op, const KernelTarget& on) {
    return with_number(op.x.dtype, [&]<class Number>(Number) {
      return with_keeping_product<Number>(on, [&]<class Product>(Product) {
        const bool has_product = op.x.dtype == DType::kF32 || on.tensor_cores;
        return has_product && op.x.rows > Product::kDepth &&
               op.x.rows <= kChunksKept * Product::kDepth && fits<Product, kChunksKept>(on);
      });
    });
  }

 private:
  template <class Number>
  [[nodiscard]] LinearAdamArrays<Number> arrays_of(const LinearAdam& op) const {
    return {.out = op.weight.rows,
            .in = op.weight.cols,
            .n = op.x.rows,
            .weight = addresses.at(op.weight),
            .weight_moments1 = addresses.at(op.weight_moments1),
            .weight_moments2 = addresses.at(op.weight_moments2),
            .bias = addresses.at(op.bias),
            .bias_moments1 = addresses.at(op.bias_moments1),
            .bias_moments2 = addresses.at(op.bias_moments2),
            .grad_y = addresses.at<Number>(op.grad_y),
            .x = addresses.at<Number>(op.x),
            .scalars = addresses.at(op.scalars),
            .clip = at(op.clip),
            .rounded_weight = at<Number>(op.rounded_weight),
            .rounded_bias = at<Number>(op.rounded_bias)};
  }

  /// Calls use(product) with the product for LinearAdam's kernel.
  template <class Number, class Use>
  cudaError_t with_tile_product(bool vectors, const Use& use) const {
    using OnTensorCores = TensorProduct<1, Number>;
    const bool tall = target.tiles == UpdateTiles::kTall && vectors;
    if constexpr (sizeof(Number) < sizeof(float)) {
      using Tall = TensorProduct<1, Number, kTallRows>;
      if (!target.tensor_cores) return use(FmaProduct<32, Number>{});
      return tall && fits<Tall>(target) ? use(Tall{}) : use(OnTensorCores{});
    } else {
      using Fma = FmaProduct<64>;
      using Tall = FmaProduct<64, float, kTallRows>;
      if (!fits<Fma>(target) || !fits<OnTensorCores>(target)) return use(FmaProduct<32>{});
      if (target.tensor_cores) return use(OnTensorCores{});  // tall ones would be alone
      return tall && fits<Tall>(target) ? use(Tall{}) : use(Fma{});
    }
  }

  template <class Product, int kChunks = kChunksOfX>
  static bool fits(const KernelTarget& on) {
    return on.block_shared_bytes >=
           static_cast<std::int64_t>(sizeof(LinearAdamShared<Product, kChunks>));
  }

  template <class Product, int kChunks = kChunksOfX, class Kernel>
  cudaError_t fused_update(const LinearAdamArrays<typename Product::Number>& a,
                           const AdamConstants& constants, Kernel* kernel) const {
    const std::int64_t strips = std::max(std::int64_t{1}, tiles(a.in, kStripCols));
    const std::int64_t max = tiles(a.out, Product::kRows) * tiles(a.in, kStripCols);
    return start_persistent(queue, geometry, max, strips,
                            sizeof(LinearAdamShared<Product, kChunks>), kernel, a, constants);
  }
};

/// Up to so many tiles a multiprocessor, the end of a grid is a part of its time worth saving.
constexpr std::int64_t kTilesOfSmall = 4;

/// Up to so many rows of the batch, usual tiles read x once a strip.
constexpr std::int64_t kRowsOfUsualTiles = kChunksOfX * FmaProduct<64>::kDepth;

/// Whether accesses of 16 bytes fit the layer, wherever its buffers begin.
bool has_vectors(const LinearAdam& op) {
  const std::int64_t offsets = op.weight.offset_bytes | op.weight_moments1.offset_bytes |
                               op.weight_moments2.offset_bytes | op.grad_y.offset_bytes |
                               op.x.offset_bytes |
                               (op.rounded_weight ? op.rounded_weight->offset_bytes : 0);
  return op.weight.rows % 4 == 0 && op.weight.cols % 4 == 0 && offsets % kVectorBytes == 0;
}

/// Whether a layer is one of those that linear_adam_of_layers() updates.
bool is_small(const LinearAdam& op, const KernelTarget& target) {
  const bool has_product = op.x.dtype == DType::kF32 || target.tensor_cores;
  constexpr auto kShared =
      static_cast<std::int64_t>(std::max(sizeof(LinearAdamShared<FmaProduct<64>>),
                                         sizeof(LinearAdamShared<TensorProduct<1, float>>)) +
                                sizeof(LinearAdamArrays<float>));
  return has_product && target.block_shared_bytes >= kShared && op.x.rows <= kRowsOfUsualTiles &&
         has_vectors(op) &&
         LinearAdamLauncher::tiles_of(op) <= kTilesOfSmall * target.geometry.multiprocessors;
}

bool are_alike(const LinearAdam& a, const LinearAdam& b) {
  const auto constants = [](const AdamStep& step) {
    return std::tuple(step.beta1, step.beta2, step.eps, step.weight_decay, step.decoupled);
  };
  return a.x.dtype == b.x.dtype && constants(a.step) == constants(b.step);
}

}  // namespace

cudaError_t Launcher::operator()(const LinearAdam& op) const {
  return LinearAdamLauncher{*this}.run(op);
}

std::vector<UpdateTiles> other_tiles(const LinearAdam& op, const KernelTarget& target) {
  std::vector<UpdateTiles> others;
  if (op.x.rows <= kRowsOfUsualTiles || !has_vectors(op)) return others;
  // Tall ones of tf32 need more registers than two blocks on a multiprocessor have.
  const bool is_narrow = op.x.dtype != DType::kF32;
  if (is_narrow == target.tensor_cores) others.push_back(UpdateTiles::kTall);
  if (LinearAdamLauncher::keeps(op, target)) others.push_back(UpdateTiles::kKeeping);
  return others;
}

std::size_t updates_of_one_launch(std::span<const DeviceOp* const> ops,
                                  const KernelTarget& target) {
  const auto* const first = std::get_if<LinearAdam>(ops.front());
  if (first == nullptr) return 0;
  const auto other = std::ranges::find_if(
      ops.first(std::min<std::size_t>(ops.size(), kMaxLayers)), [&](const DeviceOp* op) {
        const auto* const update = std::get_if<LinearAdam>(op);
        return update == nullptr || !is_small(*update, target) || !are_alike(*first, *update);
      });
  return static_cast<std::size_t>(other - ops.begin());
}

int launch_updates(std::span<const DeviceOp* const> ops, const Addresses& addresses,
                   const KernelTarget& target, const KernelQueue& queue) {
  return LinearAdamLauncher{{addresses, {}, target, queue}}.run(ops);
}

}  // namespace barestep
