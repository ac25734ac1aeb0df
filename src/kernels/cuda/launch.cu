#include <algorithm>
#include <type_traits>

#include "core/error.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/clock.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layer_norm.cuh"
#include "kernels/cuda/linear_adam.cuh"
#include "kernels/cuda/optimizers.cuh"
#include "kernels/cuda/reductions.cuh"

namespace barestep {
namespace {

__global__ void spin(std::uint64_t duration_ns, const float* more_seconds) {
  begin_kernel();
  const std::uint64_t begin = clock_ns();
  if (more_seconds != nullptr && *more_seconds > 0) {
    duration_ns += static_cast<std::uint64_t>(1e9 * *more_seconds);
  }
  while (clock_ns() - begin < duration_ns) {
  }
}

std::int64_t tiles(std::int64_t extent, std::int64_t of) {
  return extent / of + (extent % of != 0 ? 1 : 0);
}

constexpr dim3 kTile(kTileCols, kTileRows);
constexpr dim3 kSquare(kSide, kSide);

/// Launches one op; one overload for each op type.
struct Launcher {
  const Addresses& addresses;
  LaunchMemory memory;
  const KernelTarget& target;
  KernelQueue queue;
  const CudaGeometry& geometry = target.geometry;

  cudaError_t operator()(const QuantizeWeight& op) const {
    const bool one_scale = op.scales.cols == 1;
    float* const scales = addresses.at(op.scales);
    if (one_scale) {
      const int blocks = partial_blocks(op.from.size());
      const cudaError_t error = find_ranges_of(op.from, blocks);
      if (error != cudaSuccess) return error;
      const cudaError_t found = start(queue, 1, find_weight_scale, scales, ranges(), blocks);
      if (found != cudaSuccess) return found;
    }
    return start(queue, blocks_for(op.from.rows * kWarpThreads, geometry), quantize_weight,
                 addresses.at<std::int8_t>(op.to), scales, addresses.at<std::int32_t>(op.sums),
                 addresses.at(op.from), op.from.rows, op.from.cols, one_scale);
  }

  cudaError_t operator()(const Quantize& op) const {
    auto* const to = addresses.at<std::int8_t>(op.to);
    const float* const from = addresses.at(op.from);
    float* const scales = addresses.at(op.scales);
    if (!op.zero_point) {
      return start(queue, blocks_for(op.from.rows * kWarpThreads, geometry), quantize_rows, to,
                   scales, from, op.from.rows, op.from.cols, op.bits);
    }
    const std::int64_t n = op.from.size();
    auto* const zero_point = addresses.at<std::int32_t>(*op.zero_point);
    const int blocks = partial_blocks(n);
    const cudaError_t error = find_ranges_of(op.from, blocks);
    if (error != cudaSuccess) return error;
    const cudaError_t found =
        start(queue, 1, find_batch_scale, scales, zero_point, ranges(), blocks, op.bits);
    if (found != cudaSuccess) return found;
    return start(queue, blocks_for(n, geometry), quantize_batch, to, from, n, scales, zero_point,
                 op.bits);
  }

  cudaError_t operator()(const QuantizedGemm& op) const {
    return with_activation(op.activation, [&]<class Formula>(Formula) {
      return start(queue, blocks_for(op.c.size() * kWarpThreads, geometry), quantized_gemm<Formula>,
                   addresses.at<std::int8_t>(op.a), addresses.at<std::int8_t>(op.b), op.a.rows,
                   op.a.cols, DequantizeElement<Formula>(op, addresses));
    });
  }

  [[nodiscard]] cudaError_t dequantize(const QuantizedGemm& op) const {
    return with_activation(op.activation, [&]<class Formula>(Formula) {
      return each_of(op.c.rows, op.c.cols,
                     DequantizeInPlace<Formula>{DequantizeElement<Formula>(op, addresses)});
    });
  }

  cudaError_t operator()(const BiasActivation& op) const {
    return with_activation(op.activation, [&]<class Formula>(Formula) {
      if (op.bias && op.values.dtype != DType::kF32) {
        return with_number(op.values.dtype, [&]<class Number>(Number) {
          return each_of(op.values.rows, op.values.cols,
                         BiasActivationElement<Formula, Number>{
                             {addresses.at<Number>(op.values), at<Number>(op.pre_activation)},
                             addresses.at<Number>(*op.bias),
                             op.values.cols});
        });
      }
      if (op.bias) {
        const BiasActivationElement<Formula> element{
            {addresses.at(op.values), at(op.pre_activation)},
            addresses.at(*op.bias),
            op.values.cols};
        constexpr int kCount = kPackOf<float>;
        const bool packs =
            op.values.cols % kCount == 0 &&
            are_aligned(element.activation.values, element.activation.pre_activation, element.bias);
        return packs ? each_of(op.values.rows, op.values.cols / kCount,
                               BiasActivationPack<kCount, Formula>{element})
                     : each_of(op.values.rows, op.values.cols, element);
      }
      return with_number(op.values.dtype, [&]<class Number>(Number) {
        Number* const values = addresses.at<Number>(op.values);
        Number* const kept = at<Number>(op.pre_activation);
        return each<kPackOf<Number>>(op.values.size(), are_aligned(values, kept),
                                     ActivateElement<Formula, Number>{{values, kept}});
      });
    });
  }

  cudaError_t operator()(const ActivationGrad& op) const {
    return with_activation(op.activation, [&]<class Formula>(Formula) {
      if (op.sums) {
        const ActivationGradElement<Formula, float> element(op, addresses);
        constexpr int kCount = kPackOf<float>;
        const bool aligned = op.grad.cols % kCount == 0 && are_aligned(element.grad, element.from);
        return start(queue, column_tiles(op.grad.cols, kCount), dim3(kSumThreads, kSumRows),
                     aligned ? activation_grad_sums<kCount, true, Formula>
                             : activation_grad_sums<kCount, false, Formula>,
                     addresses.at(*op.sums), element, op.grad.rows, op.grad.cols, op.beta);
      }
      return with_number(op.grad.dtype, [&]<class Number>(Number) {
        const ActivationGradElement<Formula, Number> element(op, addresses);
        return each<kPackOf<Number>>(op.grad.size(), are_aligned(element.grad, element.from),
                                     element);
      });
    });
  }

  cudaError_t operator()(const Dropout& op) const {
    return with_number(op.values.dtype, [&]<class Number>(Number) {
      const DropoutElement<Number> element(op, addresses);
      constexpr int kCount = kPackOf<Number>;
      const bool packs = op.values.cols % (4 * kCount) == 0 && are_aligned(element.values);
      return packs ? each_of(op.values.rows, element.groups / kCount,
                             DropoutPack<kCount, Number>{element})
                   : each_of(op.values.rows, element.groups, element);
    });
  }

  cudaError_t operator()(const SumRows& op) const {
    if (op.in.rows <= 1 && op.in.dtype == DType::kF32) {
      const float* const row = op.in.rows == 0 ? nullptr : addresses.at(op.in);
      float* const out = addresses.at(op.out);
      return by_packs<kPackOf<float>>(op.out.size(), are_aligned(out, row), add_row, out, row,
                                      op.beta);
    }
    return with_number(op.in.dtype, [&]<class In>(In) {
      const auto sum = [&]<class Out>(Out) {
        constexpr int kCount = kPackOf<In>;
        const In* const in = addresses.at<In>(op.in);
        const bool aligned = op.in.cols % kCount == 0 && are_aligned(in);
        return start(queue, column_tiles(op.in.cols, kCount), dim3(kSumThreads, kSumRows),
                     aligned ? sum_rows<kCount, true, Out, In> : sum_rows<kCount, false, Out, In>,
                     addresses.at<Out>(op.out), in, op.in.rows, op.in.cols, op.beta);
      };
      return op.out.dtype == DType::kF32 ? sum(float{}) : sum(In{});
    });
  }

  cudaError_t operator()(const SquaredErrors& op) const {
    return with_number(op.output.dtype, [&]<class Number>(Number) {
      return start(queue, column_tiles(op.output.cols, 1), dim3(kSumThreads, kSumRows),
                   squared_errors<Number>, addresses.at(op.out),
                   static_cast<const Number*>(addresses.at<Number>(op.output)),
                   static_cast<const float*>(addresses.at(op.target)), op.output.rows,
                   op.output.cols);
    });
  }

  cudaError_t operator()(const PointwiseLoss& op) const {
    const std::int64_t n = op.output.size();
    const int blocks =
        partial_blocks(tiles(n, std::int64_t{kVectorBytes} / bytes_of(op.output.dtype)));
    return with_loss_element(op, addresses, [&]<class Element>(const Element& element) {
      constexpr int kCount = kPackOf<typename Element::Value>;
      const bool aligned = are_aligned(element.output, element.target, element.grad);
      return start(
          queue, blocks,
          aligned ? pointwise_loss<kCount, true, Element> : pointwise_loss<kCount, false, Element>,
          partials(), n, element, total_of(op));
    });
  }

  cudaError_t operator()(const CrossEntropy& op) const {
    const int blocks = partial_blocks(op.logits.rows * kWarpThreads);
    return with_number(op.logits.dtype, [&]<class Number>(Number) {
      const CrossEntropyRow<Number> row(op, addresses);
      // With few classes, lanes take single logits, so that more lanes have work.
      constexpr int kCount = kPackOf<Number>;
      const bool packs = row.cols % kCount == 0 && row.cols >= kCount * kWarpThreads;
      const bool aligned = packs && are_aligned(row.logits, row.grad);
      const auto kernel = aligned ? cross_entropy<kCount, true, Number>
                          : packs ? cross_entropy<kCount, false, Number>
                                  : cross_entropy<1, false, Number>;
      return start(queue, blocks, kernel, partials(), op.logits.rows, row, total_of(op));
    });
  }

  cudaError_t operator()(const CountCorrect& op) const {
    const int blocks = partial_blocks(op.logits.rows * kWarpThreads);
    return with_number(op.logits.dtype, [&]<class Number>(Number) {
      return start(queue, blocks, count_correct<Number>, partials(), op.logits.rows,
                   CorrectRow<Number>(op, addresses), addresses.at<std::int32_t>(op.correct));
    });
  }

  cudaError_t operator()(const OptimizerUpdate& op) const {
    float* const weights = addresses.at(op.weights);
    return with_update_numbers(op, [&]<class Grad, class Number>(Grad, Number) {
      const Grad* const grads = addresses.at<Grad>(op.grads);
      const UpdateCommons<Number> commons(op, addresses);
      return with_rule(op.step, [&]<class Rule>(const Rule& rule) {
        const auto state = arrays_of<Rule>(op.state, addresses);
        const bool aligned = are_aligned(weights, grads, commons.rounded_weights) &&
                             std::ranges::all_of(state.arrays, is_aligned);
        return by_packs<4>(op.weights.size(), aligned, update<Rule, Grad, Number>, weights, grads,
                           state, static_cast<const float*>(addresses.at(op.scalars)), commons,
                           rule);
      });
    });
  }

  cudaError_t operator()(const LinearAdam& op) const {
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
      return with_tile_product<Number>([&]<class Product>(Product) {
        return fused_update<Product>(arrays, AdamConstants(op.step));
      });
    });
  }

  cudaError_t operator()(const SumSquares& op) const {
    return with_number(op.in.dtype, [&]<class Number>(Number) {
      return sum_of(op.out, op.in.size(), SquareTerm<Number>(op, addresses));
    });
  }

  cudaError_t operator()(const CheckFinite& op) const {
    return with_number(op.in.dtype, [&]<class Number>(Number) {
      const Number* const in = addresses.at<Number>(op.in);
      constexpr int kCount = kPackOf<Number>;
      return by_packs<kCount>(op.in.size(), are_aligned(in), check_finite<kCount, Number>, in,
                              addresses.at(op.found_inf));
    });
  }

  cudaError_t operator()(const UpdateLossScale& op) const {
    return start(queue, dim3(1), dim3(1), end_loss_scale, op, addresses.at(op.state.scale),
                 static_cast<const float*>(addresses.at(op.state.found_inf)),
                 addresses.at<std::int32_t>(op.good_steps),
                 addresses.at<std::int32_t>(op.state.updates));
  }

  cudaError_t operator()(const GramSquares& op) const {
    return sum_of(op.out, op.gram_y.size(),
                  GramTerm{addresses.at(op.gram_y), addresses.at(op.gram_x)});
  }

  cudaError_t operator()(const ClipFactor& op) const {
    return start(queue, dim3(1), dim3(1), find_clip_factor, addresses.at(op.factor),
                 addresses.at(op.squares), op.squares.size(), op.max_norm);
  }

  cudaError_t operator()(const Cast& op) const {
    return with_cast(op, addresses, [&]<class To, class From>(const CastElement<To, From>& cast) {
      return each<kPackOf<To, From>>(op.to.size(), are_aligned(cast.to, cast.from), cast);
    });
  }

  cudaError_t operator()(const Fill& op) const {
    if (op.out.dtype == DType::kF32) {
      float* const out = addresses.at(op.out);
      return each<kPackOf<float>>(op.out.size(), are_aligned(out), FillElement{out, op.value});
    }
    BARESTEP_REQUIRE(op.value == 0, "only floats have a value");
    if (queue.follows_kernel != nullptr) *queue.follows_kernel = false;
    return cudaMemsetAsync(addresses.at<std::byte>(op.out), 0,
                           static_cast<std::size_t>(op.out.bytes()), queue.stream);
  }

  cudaError_t operator()(const Randn& op) const {
    return static_cast<cudaError_t>(launch_randn(op, addresses, geometry, queue));
  }

  cudaError_t operator()(const Delay& op) const {
    const float* const more = op.more_seconds ? addresses.at(*op.more_seconds) : nullptr;
    return start(queue, dim3(1), dim3(1), spin, static_cast<std::uint64_t>(op.seconds * 1e9), more);
  }

  cudaError_t operator()(const Add& op) const {
    return with_number(op.b.dtype, [&]<class Number>(Number) {
      const AddElement<Number> element(op, addresses);
      return each<kPackOf<float, Number>>(op.out.size(),
                                          are_aligned(element.out, element.a, element.b), element);
    });
  }

  cudaError_t operator()(const LayerNorm& op) const {
    return with_number(op.y.dtype, [&]<class Number>(Number) {
      return start(queue, blocks_for(op.x.rows * kWarpThreads, geometry), layer_norm<Number>,
                   LayerNormElement<Number>(op, addresses));
    });
  }

  cudaError_t operator()(const LayerNormGrad& op) const {
    return with_number(op.grad_y.dtype, [&]<class Number>(Number) {
      const LayerNormGradElement<Number> element(op, addresses);
      const cudaError_t error = start(
          queue, column_tiles(op.x.cols, 1), dim3(kSumThreads, kSumRows), layer_norm_sums<Number>,
          addresses.at(op.grad_weight), addresses.at(op.grad_bias), element, op.beta);
      if (error != cudaSuccess || !op.grad_x) return error;
      return start(queue, blocks_for(op.x.rows * kWarpThreads, geometry), layer_norm_grad<Number>,
                   element);
    });
  }

  cudaError_t operator()(const Attention& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      const AttentionHead<Number> head = head_of<Number>(op);
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

  cudaError_t operator()(const AttentionGrad& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      AttentionHead<Number> head = head_of<Number>(op);
      head.out = addresses.at<Number>(op.out);
      head.grad_out = addresses.at<Number>(op.grad_out);
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

  cudaError_t operator()(const Gemm&) const { return no_kernel(); }
  cudaError_t operator()(const Copy&) const { return no_kernel(); }

 private:
  template <class Number = float>
  [[nodiscard]] Number* at(const std::optional<Tensor>& tensor) const {
    return tensor ? addresses.at<Number>(*tensor) : nullptr;
  }

  template <class Number, class AttentionOp>
  [[nodiscard]] AttentionHead<Number> head_of(const AttentionOp& op) const {
    const std::int64_t width = op.out.cols / op.shape.heads;
    return {.shape = op.shape,
            .columns = op.out.cols,
            .width = width,
            .scale = attention_scale(width),
            .qkv = addresses.at<Number>(op.qkv),
            .out = nullptr,
            .grad_out = nullptr,
            .kept = addresses.at(op.kept)};
  }

  /// Calls use(tile, width) with the sizes of tiles, which fit in the static shared memory.
  template <class Number, class Use>
  static cudaError_t with_tile(const AttentionHead<Number>& head, const Use& use) {
    using std::integral_constant;
    if (head.width <= 32) return use(integral_constant<int, 32>{}, integral_constant<int, 32>{});
    if (head.width <= 64) return use(integral_constant<int, 32>{}, integral_constant<int, 64>{});
    return use(integral_constant<int, 16>{}, integral_constant<int, 128>{});
  }

  /// The tiles of all heads.
  static dim3 attention_grid(const AttentionShape& shape, const Tensor& out, int tile) {
    const std::int64_t heads = out.rows / shape.length * shape.heads;
    return {static_cast<unsigned>(heads * tiles(shape.length, tile))};
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

  /// Calls use(product) with the product for LinearAdam's kernel.
  template <class Number, class Use>
  cudaError_t with_tile_product(const Use& use) const {
    using OnTensorCores = TensorProduct<1, Number>;
    if constexpr (sizeof(Number) < sizeof(float)) {
      return target.tensor_cores ? use(OnTensorCores{}) : use(FmaProduct<32, Number>{});
    } else {
      using Fma = FmaProduct<64>;
      const auto needed = static_cast<std::int64_t>(
          std::max(sizeof(LinearAdamShared<Fma>), sizeof(LinearAdamShared<OnTensorCores>)));
      if (target.block_shared_bytes < needed) return use(FmaProduct<32>{});
      return target.tensor_cores ? use(OnTensorCores{}) : use(Fma{});
    }
  }

  template <class Product>
  cudaError_t fused_update(const LinearAdamArrays<typename Product::Number>& a,
                           const AdamConstants& constants) const {
    const bool vectors = a.in % 4 == 0 && a.out % 4 == 0 &&
                         are_aligned(a.weight, a.weight_moments1, a.weight_moments2, a.grad_y, a.x,
                                     a.rounded_weight);
    const std::int64_t strips = std::max(std::int64_t{1}, tiles(a.in, kStripCols));
    const std::int64_t max = tiles(a.out, kRows) * tiles(a.in, kStripCols);
    return start_persistent(queue, geometry, max, strips, sizeof(LinearAdamShared<Product>),
                            vectors ? linear_adam<Product, true> : linear_adam<Product, false>, a,
                            constants);
  }

  [[nodiscard]] OrderRange* ranges() const {
    return reinterpret_cast<OrderRange*>(memory.workspace);
  }

  [[nodiscard]] Partials partials() const {
    return {reinterpret_cast<double*>(memory.workspace), memory.finished_blocks};
  }

  template <class LossOp>
  [[nodiscard]] LossTotal total_of(const LossOp& op) const {
    return {addresses.at(op.loss), op.count, op.beta};
  }

  /// The grid of sum_rows.
  static dim3 column_tiles(std::int64_t cols, int of_thread) {
    return {static_cast<unsigned>(tiles(cols, std::int64_t{kSumThreads} * of_thread))};
  }

  [[nodiscard]] cudaError_t find_ranges_of(const Tensor& tensor, int blocks) const {
    return start(queue, blocks, find_ranges, ranges(), addresses.at(tensor), tensor.size());
  }

  /// out = the sum of term(i) over [0, n).
  template <class Term>
  cudaError_t sum_of(const Tensor& out, std::int64_t n, const Term& term) const {
    return start(queue, partial_blocks(n), sum_terms<Term>, partials(), n, term,
                 LossTotal{addresses.at(out)});
  }

  template <int kCount, class Element>
  cudaError_t each(std::int64_t n, bool aligned, const Element& element) const {
    return by_packs<kCount>(n, aligned, each_element<kCount, Element>, element);
  }

  template <class Element>
  cudaError_t each_of(std::int64_t rows, std::int64_t cols, const Element& element) const {
    constexpr std::int64_t kMaxGridRows = 65535;
    const auto row_tiles = std::min(kMaxGridRows, tiles(rows, kTileRows));
    const dim3 grid(static_cast<unsigned>(tiles(cols, kTileCols)),
                    static_cast<unsigned>(row_tiles));
    return start(queue, grid, kTile, each_of_rows<Element>, rows, cols, element);
  }

  /// Launches a kernel over n numbers in each of several arrays. The kernel gets n and the number
  /// of packs of kCount numbers for which it may use 16-byte accesses; that is 0 unless the arrays
  /// are `aligned`.
  template <int kCount, class Kernel, class... Arguments>
  cudaError_t by_packs(std::int64_t n, bool aligned, Kernel* kernel, Arguments... arguments) const {
    const std::int64_t packs = aligned ? n / kCount : 0;
    const std::int64_t threads = aligned ? tiles(n, kCount) : n;
    return start_persistent(queue, geometry, tiles(threads, kBlockThreads), 1, 0, kernel, n, packs,
                            arguments...);
  }

  /// At least one, since an empty sum is written too.
  [[nodiscard]] int partial_blocks(std::int64_t threads) const {
    return std::clamp(blocks_for(threads, geometry), 1, kMaxPartials);
  }

  /// Whether the array is aligned to 16 bytes; null counts as aligned. Four 16-bit numbers that
  /// accompany four floats need less.
  static bool is_aligned(const void* array) {
    return reinterpret_cast<std::uintptr_t>(array) % kVectorBytes == 0;
  }
  template <class... Arrays>
  static bool are_aligned(const Arrays*... arrays) {
    return (is_aligned(arrays) && ...);
  }

  static cudaError_t no_kernel() {
    report_bug(__FILE__, __LINE__, "no kernel", "libraries do products and copies");
  }
};

}  // namespace

int kernel_architecture() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, spin) == cudaSuccess) return attributes.ptxVersion;
  static_cast<void>(cudaGetLastError());
  return 0;
}

int launch(const DeviceOp& op, const Addresses& addresses, const LaunchMemory& memory,
           const KernelTarget& target, CudaStream stream) {
  return std::visit(Launcher{addresses, memory, target, KernelQueue{stream, target.follows_kernel}},
                    op);
}

int launch_dequantize(const QuantizedGemm& op, const Addresses& addresses,
                      const CudaGeometry& geometry, CudaStream stream) {
  return Launcher{addresses, {}, {.geometry = geometry}, KernelQueue{stream}}.dequantize(op);
}

}  // namespace barestep
