// What the launches of all kernels share. Each family of kernels has a source of its own, named as
// the header of its kernels, so that a build with several cores compiles them at the same time.
#pragma once

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reductions.cuh"

namespace barestep {

/// Launches one op; one overload for each op type.
struct Launcher {
  const Addresses& addresses;
  LaunchMemory memory;
  const KernelTarget& target;
  KernelQueue queue;
  const CudaGeometry& geometry = target.geometry;

  cudaError_t operator()(const QuantizeWeight& op) const;
  cudaError_t operator()(const Quantize& op) const;
  cudaError_t operator()(const QuantizedGemm& op) const;
  cudaError_t operator()(const BiasActivation& op) const;
  cudaError_t operator()(const ActivationGrad& op) const;
  cudaError_t operator()(const Dropout& op) const;
  cudaError_t operator()(const SumRows& op) const;
  cudaError_t operator()(const SquaredErrors& op) const;
  cudaError_t operator()(const PointwiseLoss& op) const;
  cudaError_t operator()(const CrossEntropy& op) const;
  cudaError_t operator()(const CountCorrect& op) const;
  cudaError_t operator()(const OptimizerUpdate& op) const;
  cudaError_t operator()(const LinearAdam& op) const;
  cudaError_t operator()(const SumSquares& op) const;
  cudaError_t operator()(const CheckFinite& op) const;
  cudaError_t operator()(const UpdateLossScale& op) const;
  cudaError_t operator()(const GramSquares& op) const;
  cudaError_t operator()(const ClipFactor& op) const;
  cudaError_t operator()(const Cast& op) const;
  cudaError_t operator()(const Fill& op) const;
  cudaError_t operator()(const Randn& op) const;
  cudaError_t operator()(const Delay& op) const;
  cudaError_t operator()(const Add& op) const;
  cudaError_t operator()(const LayerNorm& op) const;
  cudaError_t operator()(const LayerNormGrad& op) const;
  cudaError_t operator()(const Attention& op) const;
  cudaError_t operator()(const AttentionGrad& op) const;
  cudaError_t operator()(const Gemm&) const { return no_kernel(); }
  cudaError_t operator()(const Copy&) const { return no_kernel(); }

  template <class Number = float>
  [[nodiscard]] Number* at(const std::optional<Tensor>& tensor) const {
    return tensor ? addresses.at<Number>(*tensor) : nullptr;
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
    return start(queue, grid, dim3(kTileCols, kTileRows), each_of_rows<Element>, rows, cols,
                 element);
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

}  // namespace barestep
