// Which of our kernels compute what has two kinds of them: the usual ones, or others where both
// were timed and those are faster.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "core/product_choices.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

/// The properties of an attention, or of its gradient, that determine the choice of its kernel: all
/// but the number of sequences, so that each is computed alike wherever it is.
struct AttentionKind {
  std::int64_t heads = 1, length = 1, width = 1;
  bool causal = false, gradient = false;
  DType type = DType::kF32;

  friend auto operator<=>(const AttentionKind&, const AttentionKind&) = default;
};

class TimedKernels {
 public:
  /// Keeps times beside those of `product`, and times if that does. All must outlive this.
  TimedKernels(CudaContext& context, const KernelTarget& target, CudaProduct& product)
      : context_(context), target_(target), product_(product) {}

  /// ", attention on tensor cores, which is faster here", if so. What has the same bits is not
  /// named.
  [[nodiscard]] std::string text() const;

  /// Chooses the kernels of an attention, on tensor cores or not, and the tiles of a fused update
  /// over many rows; leaves other ops. `cached` as for products.
  void prepare(const DeviceOp& op, bool cached);
  /// As Device::joins(): updates of small layers, or a product by our kernel and what it includes.
  std::size_t joins(std::span<const DeviceOp* const> ops, bool cached);

  /// Queues an op with the kernels chosen, or several as one launch, which the first of them
  /// follows. `follows_kernel` as in KernelQueue. Not for products and copies alone. Returns the
  /// CUDA error.
  int launch(const DeviceOp& op, const Addresses& addresses, const CudaDeviceStream& stream,
             bool* follows_kernel = nullptr) const;
  int launch(std::span<const DeviceOp* const> ops, const Addresses& addresses,
             const CudaDeviceStream& stream, bool* follows_kernel = nullptr) const;

 private:
  /// The times of both kinds of kernels: as kept, or as taken now if ops of so many flops are
  /// timed; none otherwise. Calls usual(addresses, stream) and other(addresses, stream).
  template <class Usual, class Other>
  std::optional<KernelTimes> times_of(const std::string& work, std::span<const DeviceOp* const> ops,
                                      bool cached, CudaProduct::Bits bits, const Usual& usual,
                                      const Other& other);
  void prepare(const LinearAdam& update, const DeviceOp& op, bool cached);
  template <class AttentionOp>
  [[nodiscard]] bool is_on_tensor_cores(const AttentionOp* op) const;

  CudaContext& context_;
  const KernelTarget& target_;
  CudaProduct& product_;
  std::set<AttentionKind> on_tensor_cores_{};
  std::map<ProductSize, UpdateTiles> tiles_{};  // of fused updates: rows, columns, of the batch
  std::set<const DeviceOp*> apart_{};           // of launches of several that are not faster
};

}  // namespace barestep
