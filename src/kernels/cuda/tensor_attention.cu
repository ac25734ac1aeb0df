#include <limits>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/tensor_attention.cuh"

namespace barestep {
namespace {

/// Calls use(width) with the width of tiles for heads of this one.
template <class Number, class Use>
auto with_tile_width(std::int64_t width, const Use& use) {
  using std::integral_constant;
  if (width <= 32) return use(integral_constant<int, 32>{});
  if constexpr (sizeof(Number) < sizeof(float)) {
    if (width > 64) return use(integral_constant<int, kMaxTensorWidth<Number>>{});
  }
  return use(integral_constant<int, 64>{});
}

bool fits(const AttentionShape& shape, const Tensor& qkv, std::initializer_list<Tensor> by_vectors,
          const KernelTarget& target) {
  const std::int64_t width = qkv.cols / 3 / shape.heads;
  const bool is_aligned = std::ranges::all_of(
      by_vectors, [](const Tensor& tensor) { return tensor.offset_bytes % kVectorBytes == 0; });
  const auto fits_in_blocks = [&]<class Number>(Number) {
    const auto shared_bytes =
        with_tile_width<Number>(width, []<int kWidth>(std::integral_constant<int, kWidth>) {
          return std::max({sizeof(TensorAttentionShared<kWidth, Number>),
                           sizeof(TensorKeysShared<kWidth, Number>),
                           sizeof(TensorQueriesShared<kWidth, Number>)});
        });
    return width <= kMaxTensorWidth<Number> &&
           target.block_shared_bytes >= static_cast<std::int64_t>(shared_bytes);
  };
  constexpr std::int64_t kMaxExtent = std::numeric_limits<int>::max() / 2;
  return target.has_tf32 && shape.form == AttentionForm::kFlash && is_aligned &&
         width * bytes_of(qkv.dtype) % kVectorBytes == 0 && shape.length < kMaxExtent &&
         qkv.cols * kAttentionRows < kMaxExtent && with_number(qkv.dtype, fits_in_blocks);
}

/// Launches a kernel with a block for each tile of each head.
template <class AttentionOp, class... Parameters, class... Arguments>
cudaError_t start_tiles(const AttentionOp& op, const KernelQueue& queue, std::size_t shared_bytes,
                        void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaError_t status = allow_shared(kernel, shared_bytes);
  if (status != cudaSuccess) return status;
  return start_sharing(queue, attention_grid(op.shape, op.out, kAttentionRows),
                       dim3(kAttentionThreads), shared_bytes, kernel, arguments...);
}

template <bool kRounded, int kWidth, class Number>
cudaError_t launch_tiles(const Attention& op, const Addresses& addresses,
                         const KernelQueue& queue) {
  return start_tiles(op, queue, sizeof(TensorAttentionShared<kWidth, Number>),
                     tensor_attention<kRounded, kWidth, Number>, head_of<Number>(op, addresses),
                     addresses.at<Number>(op.out), addresses.at(op.kept));
}

template <bool kRounded, int kWidth, class Number>
cudaError_t launch_tiles(const AttentionGrad& op, const Addresses& addresses,
                         const KernelQueue& queue) {
  const AttentionHead<Number> head = head_of<Number>(op, addresses);
  Number* const grads = addresses.at<Number>(op.grad_qkv);
  const cudaError_t status =
      start_tiles(op, queue, sizeof(TensorKeysShared<kWidth, Number>),
                  tensor_attention_grad_keys<kRounded, kWidth, Number>, head, grads);
  if (status != cudaSuccess) return status;
  return start_tiles(op, queue, sizeof(TensorQueriesShared<kWidth, Number>),
                     tensor_attention_grad_queries<kRounded, kWidth, Number>, head, grads);
}

template <class AttentionOp>
int launch_any(const AttentionOp& op, bool rounded, const Addresses& addresses,
               const KernelQueue& queue) {
  return with_number(op.qkv.dtype, [&]<class Number>(Number) {
    return with_tile_width<Number>(
        op.out.cols / op.shape.heads, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
          if constexpr (sizeof(Number) == sizeof(float)) {
            if (rounded) return launch_tiles<true, kWidth, Number>(op, addresses, queue);
          }
          return launch_tiles<false, kWidth, Number>(op, addresses, queue);
        });
  });
}

}  // namespace

bool runs_on_tensor_cores(const Attention& op, const KernelTarget& target) {
  return fits(op.shape, op.qkv, {op.qkv, op.out}, target);
}
bool runs_on_tensor_cores(const AttentionGrad& op, const KernelTarget& target) {
  return fits(op.shape, op.qkv, {op.qkv, op.out, op.grad_out, op.grad_qkv}, target);
}

int launch_on_tensor_cores(const Attention& op, bool rounded, const Addresses& addresses,
                           const KernelQueue& queue) {
  return launch_any(op, rounded, addresses, queue);
}
int launch_on_tensor_cores(const AttentionGrad& op, bool rounded, const Addresses& addresses,
                           const KernelQueue& queue) {
  return launch_any(op, rounded, addresses, queue);
}

}  // namespace barestep
