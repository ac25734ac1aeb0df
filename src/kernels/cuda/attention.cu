#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launcher.cuh"

namespace barestep {
namespace {

constexpr dim3 kSquare(kSide, kSide);

struct AttentionLauncher : Launcher {
  cudaError_t run(const Attention& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      const AttentionHead<Number> head = head_of<Number>(op, addresses);
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

  cudaError_t run(const AttentionGrad& op) const {
    return with_number(op.qkv.dtype, [&]<class Number>(Number) {
      const AttentionHead<Number> head = head_of<Number>(op, addresses);
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

 private:
  /// Calls use(tile, width) with the sizes of tiles, which fit in the static shared memory.
  template <class Number, class Use>
  static cudaError_t with_tile(const AttentionHead<Number>& head, const Use& use) {
    using std::integral_constant;
    if (head.width <= 32) return use(integral_constant<int, 32>{}, integral_constant<int, 32>{});
    if (head.width <= 64) return use(integral_constant<int, 32>{}, integral_constant<int, 64>{});
    return use(integral_constant<int, 16>{}, integral_constant<int, 128>{});
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
};

}  // namespace

cudaError_t Launcher::operator()(const Attention& op) const {
  return AttentionLauncher{*this}.run(op);
}

cudaError_t Launcher::operator()(const AttentionGrad& op) const {
  return AttentionLauncher{*this}.run(op);
}

}  // namespace barestep
