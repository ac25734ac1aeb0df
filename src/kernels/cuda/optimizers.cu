#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/linear_adam.cuh"
#include "kernels/cuda/optimizers.cuh"

namespace barestep {
namespace {

struct LinearAdamLauncher : Launcher {
  cudaError_t run(const LinearAdam& op) const {
    return with_number(op.x.dtype, [&]<class Number>(Number) {
      const LinearAdamArrays<Number> arrays{.out = op.weight.rows,
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
      const bool small = std::max({arrays.out, arrays.in, arrays.n}) < kMaxLinearAdamExtent;
      BARESTEP_REQUIRE(small, "a layer's extents fit in 31 bits");
      const bool vectors =
          arrays.in % 4 == 0 && arrays.out % 4 == 0 &&
          are_aligned(arrays.weight, arrays.weight_moments1, arrays.weight_moments2, arrays.grad_y,
                      arrays.x, arrays.rounded_weight);
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

 private:
  /// Calls use(product) with the product for LinearAdam's kernel.
  template <class Number, class Use>
  cudaError_t with_tile_product(bool vectors, const Use& use) const {
    using OnTensorCores = TensorProduct<1, Number>;
    const bool tall = target.tall_tiles && vectors;
    if constexpr (sizeof(Number) < sizeof(float)) {
      using Tall = TensorProduct<1, Number, kTallRows>;
      if (!target.tensor_cores) return use(FmaProduct<32, Number>{});
      return tall && fits<Tall>() ? use(Tall{}) : use(OnTensorCores{});
    } else {
      using Fma = FmaProduct<64>;
      using Tall = FmaProduct<64, float, kTallRows>;
      if (!fits<Fma>() || !fits<OnTensorCores>()) return use(FmaProduct<32>{});
      if (target.tensor_cores) return use(OnTensorCores{});  // tall ones would be alone
      return tall && fits<Tall>() ? use(Tall{}) : use(Fma{});
    }
  }

  template <class Product>
  [[nodiscard]] bool fits() const {
    return target.block_shared_bytes >=
           static_cast<std::int64_t>(sizeof(LinearAdamShared<Product>));
  }

  template <class Product, class Kernel>
  cudaError_t fused_update(const LinearAdamArrays<typename Product::Number>& a,
                           const AdamConstants& constants, Kernel* kernel) const {
    const std::int64_t strips = std::max(std::int64_t{1}, tiles(a.in, kStripCols));
    const std::int64_t max = tiles(a.out, Product::kRows) * tiles(a.in, kStripCols);
    return start_persistent(queue, geometry, max, strips, sizeof(LinearAdamShared<Product>), kernel,
                            a, constants);
  }
};

}  // namespace

cudaError_t Launcher::operator()(const OptimizerUpdate& op) const {
  float* const weights = addresses.at(op.weights);
  return with_update_numbers(op, [&]<class Grad, class Number>(Grad, Number) {
    const Grad* const grads = addresses.at<Grad>(op.grads);
    const UpdateCommons<Number> commons(op, addresses);
    return with_rule(op.step, [&]<class Rule>(const Rule& rule) {
      const auto state = arrays_of<Rule>(op.state, addresses);
      const bool aligned = are_aligned(weights, grads, commons.rounded_weights) &&
                           std::ranges::all_of(state.arrays, is_aligned);
      return by_packs<4>(op.weights.size(), aligned, update<Rule, Grad, Number>, weights, grads,
                         state, static_cast<const float*>(addresses.at(op.scalars)), commons, rule);
    });
  });
}

cudaError_t Launcher::operator()(const LinearAdam& op) const {
  return LinearAdamLauncher{*this}.run(op);
}

}  // namespace barestep
