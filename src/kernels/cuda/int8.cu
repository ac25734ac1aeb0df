#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/launcher.cuh"

namespace barestep {
namespace {

OrderRange* ranges_of(const Launcher& on) {
  return reinterpret_cast<OrderRange*>(on.memory.workspace);
}

cudaError_t find_ranges_of(const Launcher& on, const Tensor& tensor, int blocks) {
  return start(on.queue, blocks, find_ranges, ranges_of(on), on.addresses.at(tensor),
               tensor.size());
}

}  // namespace

cudaError_t Launcher::operator()(const QuantizeWeight& op) const {
  const bool one_scale = op.scales.cols == 1;
  float* const scales = addresses.at(op.scales);
  if (one_scale) {
    const int blocks = partial_blocks(op.from.size());
    const cudaError_t error = find_ranges_of(*this, op.from, blocks);
    if (error != cudaSuccess) return error;
    const cudaError_t found = start(queue, 1, find_weight_scale, scales, ranges_of(*this), blocks);
    if (found != cudaSuccess) return found;
  }
  return start(queue, blocks_for(op.from.rows * kWarpThreads, geometry), quantize_weight,
               addresses.at<std::int8_t>(op.to), scales, addresses.at<std::int32_t>(op.sums),
               addresses.at(op.from), op.from.rows, op.from.cols, one_scale);
}

cudaError_t Launcher::operator()(const Quantize& op) const {
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
  const cudaError_t error = find_ranges_of(*this, op.from, blocks);
  if (error != cudaSuccess) return error;
  const cudaError_t found =
      start(queue, 1, find_batch_scale, scales, zero_point, ranges_of(*this), blocks, op.bits);
  if (found != cudaSuccess) return found;
  return start(queue, blocks_for(n, geometry), quantize_batch, to, from, n, scales, zero_point,
               op.bits);
}

cudaError_t Launcher::operator()(const QuantizedGemm& op) const {
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    return start(queue, blocks_for(op.c.size() * kWarpThreads, geometry), quantized_gemm<Formula>,
                 addresses.at<std::int8_t>(op.a), addresses.at<std::int8_t>(op.b), op.a.rows,
                 op.a.cols, DequantizeElement<Formula>(op, addresses));
  });
}

int launch_dequantize(const QuantizedGemm& op, const Addresses& addresses,
                      const CudaGeometry& geometry, CudaStream stream) {
  const Launcher on{addresses, {}, {.geometry = geometry}, KernelQueue{stream}};
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    return on.each_of(op.c.rows, op.c.cols,
                      DequantizeInPlace<Formula>{DequantizeElement<Formula>(op, addresses)});
  });
}

}  // namespace barestep
