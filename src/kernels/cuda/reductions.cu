#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/reductions.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

// LayerNorm: a warp computes a row, and a block the sums of some columns.

/// The mean of term(col) over a row of `cols` numbers, in every lane of the warp. It is double, so
/// that the mean of equal numbers is that number: LayerNorm multiplies what is left of such a row
/// by 316.
template <class Term>
__device__ double mean_of_row(std::int64_t cols, const Term& term) {
  double sum = 0;
  for (std::int64_t col = threadIdx.x % kWarpThreads; col < cols; col += kWarpThreads)
    sum += term(col);
  return warp_sum(sum) / static_cast<double>(cols);
}

template <class Number>
__global__ void __launch_bounds__(kBlockThreads) layer_norm(LayerNormElement<Number> element) {
  begin_kernel();
  each_row_by_a_warp(element.rows, [&](std::int64_t row, std::int64_t lane) {
    const float* const x = element.x + row * element.cols;
    const double exact = mean_of_row(element.cols, [=](std::int64_t col) { return x[col]; });
    const double variance = mean_of_row(element.cols, [=](std::int64_t col) {
      const double deviation = x[col] - exact;
      return deviation * deviation;
    });
    const auto mean = static_cast<float>(exact);
    const float rstd = layer_norm_rstd(variance);
    if (lane == 0) {
      element.means[row] = mean;
      element.rstds[row] = rstd;
    }
    for (std::int64_t col = lane; col < element.cols; col += kWarpThreads)
      element(row, col, mean, rstd);
  });
}

/// Adds to the gradient of x.
template <class Number>
__global__ void __launch_bounds__(kBlockThreads)
    layer_norm_grad(LayerNormGradElement<Number> element) {
  begin_kernel();
  each_row_by_a_warp(element.rows, [&](std::int64_t row, std::int64_t lane) {
    const std::int64_t first = row * element.cols;
    const auto scaled = static_cast<float>(mean_of_row(
        element.cols, [&](std::int64_t col) { return element.scaled_grad(first + col, col); }));
    const auto projected = static_cast<float>(mean_of_row(element.cols, [&](std::int64_t col) {
      return element.projected_grad(row, first + col, col);
    }));
    for (std::int64_t col = lane; col < element.cols; col += kWarpThreads)
      element(row, col, scaled, projected);
  });
}

/// The gradients of weight and bias, in the order of sum_rows. Grid: tiles of kSumThreads columns.
template <class Number>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    layer_norm_sums(float* grad_weight, float* grad_bias, LayerNormGradElement<Number> element,
                    float beta) {
  begin_kernel();
  const std::int64_t col = first_column<1>();
  float of_weight[1] = {};
  float of_bias[1] = {};
  if (col < element.cols) {
    for (std::int64_t row = threadIdx.y; row < element.rows; row += kSumRows) {
      const std::int64_t i = row * element.cols + col;
      of_weight[0] += element.weight_term(row, i);
      of_bias[0] += element.bias_term(i);
    }
  }
  add_columns(grad_weight, of_weight, element.cols, beta);
  __syncthreads();  // before the second call uses the same shared memory
  add_columns(grad_bias, of_bias, element.cols, beta);
}
namespace {

/// out = row + beta * out; a null `row` stands for zeros. `vectors` times four numbers with 16-byte
/// accesses, the rest one by one. Equivalent to sum_rows for a single row, but with all threads.
/// The numbers of `row` are not read again, so they leave the cache first.
__global__ void __launch_bounds__(kBlockThreads)
    add_row(std::int64_t n, std::int64_t vectors, float* out, const float* row, float beta) {
  begin_kernel();
  auto* const out4 = reinterpret_cast<float4*>(out);
  const auto* const row4 = reinterpret_cast<const float4*>(row);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 add = row == nullptr ? float4{} : __ldcs(row4 + i);
    float4 sum = beta == 0.0F ? float4{} : out4[i];
    // A sum starts with 0, which turns -0 in a row into 0.
    sum.x = accumulate(0.0F + add.x, beta, sum.x);
    sum.y = accumulate(0.0F + add.y, beta, sum.y);
    sum.z = accumulate(0.0F + add.z, beta, sum.z);
    sum.w = accumulate(0.0F + add.w, beta, sum.w);
    out4[i] = sum;
  }
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) {
    out[i] = accumulate(0.0F + (row == nullptr ? 0.0F : row[i]), beta, out[i]);
  }
}

/// One thread is enough: there is one number per layer.
__global__ void find_clip_factor(float* factor, const float* squares, std::int64_t n,
                                 double max_norm) {
  begin_kernel();
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(squares[i]);
  *factor = clip_factor(max_norm, sum);
}

/// A single thread.
__global__ void end_loss_scale(UpdateLossScale op, float* scale, const float* found_inf,
                               std::int32_t* good_steps, std::int32_t* updates) {
  begin_kernel();
  LossScaleNumbers numbers{*scale, *good_steps, *updates};
  update_loss_scale(op, *found_inf > 0.0F, numbers);
  *scale = numbers.scale;
  *good_steps = numbers.good_steps;
  *updates = numbers.updates;
}

Partials partials_of(const Launcher& on) {
  return {reinterpret_cast<double*>(on.memory.workspace), on.memory.finished_blocks};
}

/// out = the sum of term(i) over [0, n).
template <class Term>
cudaError_t sum_of(const Launcher& on, const Tensor& out, std::int64_t n, const Term& term) {
  return start(on.queue, on.partial_blocks(n), sum_terms<Term>, partials_of(on), n, term,
               LossTotal{on.addresses.at(out)});
}

}  // namespace

cudaError_t Launcher::operator()(const SumRows& op) const {
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

cudaError_t Launcher::operator()(const SquaredErrors& op) const {
  return with_number(op.output.dtype, [&]<class Number>(Number) {
    return start(
        queue, column_tiles(op.output.cols, 1), dim3(kSumThreads, kSumRows), squared_errors<Number>,
        addresses.at(op.out), static_cast<const Number*>(addresses.at<Number>(op.output)),
        static_cast<const float*>(addresses.at(op.target)), op.output.rows, op.output.cols);
  });
}

cudaError_t Launcher::operator()(const PointwiseLoss& op) const {
  const std::int64_t n = op.output.size();
  const int blocks =
      partial_blocks(tiles(n, std::int64_t{kVectorBytes} / bytes_of(op.output.dtype)));
  return with_loss_element(op, addresses, [&]<class Element>(const Element& element) {
    constexpr int kCount = kPackOf<typename Element::Value>;
    const bool aligned = are_aligned(element.output, element.target, element.grad);
    return start(
        queue, blocks,
        aligned ? pointwise_loss<kCount, true, Element> : pointwise_loss<kCount, false, Element>,
        partials_of(*this), n, element, total_of(op, addresses));
  });
}

cudaError_t Launcher::operator()(const CrossEntropy& op) const {
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
    return start(queue, blocks, kernel, partials_of(*this), op.logits.rows, row,
                 total_of(op, addresses));
  });
}

cudaError_t Launcher::operator()(const CountCorrect& op) const {
  const int blocks = partial_blocks(op.logits.rows * kWarpThreads);
  return with_number(op.logits.dtype, [&]<class Number>(Number) {
    return start(queue, blocks, count_correct<Number>, partials_of(*this), op.logits.rows,
                 CorrectRow<Number>(op, addresses), addresses.at<std::int32_t>(op.correct));
  });
}

cudaError_t Launcher::operator()(const SumSquares& op) const {
  return with_number(op.in.dtype, [&]<class Number>(Number) {
    return sum_of(*this, op.out, op.in.size(), SquareTerm<Number>(op, addresses));
  });
}

cudaError_t Launcher::operator()(const CheckFinite& op) const {
  return with_number(op.in.dtype, [&]<class Number>(Number) {
    const Number* const in = addresses.at<Number>(op.in);
    constexpr int kCount = kPackOf<Number>;
    return by_packs<kCount>(op.in.size(), are_aligned(in), check_finite<kCount, Number>, in,
                            addresses.at(op.found_inf));
  });
}

cudaError_t Launcher::operator()(const UpdateLossScale& op) const {
  return start(queue, dim3(1), dim3(1), end_loss_scale, op, addresses.at(op.state.scale),
               static_cast<const float*>(addresses.at(op.state.found_inf)),
               addresses.at<std::int32_t>(op.good_steps),
               addresses.at<std::int32_t>(op.state.updates));
}

cudaError_t Launcher::operator()(const GramSquares& op) const {
  return sum_of(*this, op.out, op.gram_y.size(),
                GramTerm{addresses.at(op.gram_y), addresses.at(op.gram_x)});
}

cudaError_t Launcher::operator()(const ClipFactor& op) const {
  return start(queue, dim3(1), dim3(1), find_clip_factor, addresses.at(op.factor),
               addresses.at(op.squares), op.squares.size(), op.max_norm);
}

cudaError_t Launcher::operator()(const LayerNorm& op) const {
  return with_number(op.y.dtype, [&]<class Number>(Number) {
    return start(queue, blocks_for(op.x.rows * kWarpThreads, geometry), layer_norm<Number>,
                 LayerNormElement<Number>(op, addresses));
  });
}

cudaError_t Launcher::operator()(const LayerNormGrad& op) const {
  return with_number(op.grad_y.dtype, [&]<class Number>(Number) {
    const LayerNormGradElement<Number> element(op, addresses);
    const cudaError_t error = start(queue, column_tiles(op.x.cols, 1), dim3(kSumThreads, kSumRows),
                                    layer_norm_sums<Number>, addresses.at(op.grad_weight),
                                    addresses.at(op.grad_bias), element, op.beta);
    if (error != cudaSuccess || !op.grad_x) return error;
    return start(queue, blocks_for(op.x.rows * kWarpThreads, geometry), layer_norm_grad<Number>,
                 element);
  });
}

}  // namespace barestep
