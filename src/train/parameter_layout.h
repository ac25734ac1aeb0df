// The positions of each layer's weight and bias in a flat buffer.
//
// Parameters, gradients and moments share one layout, so the optimizer is one op over the whole
// buffer and a range of layers is one message. Tensors are in the order in which backward completes
// their gradients: last layer first, bias before weight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace barestep {

class ParameterLayout {
 public:
  /// `widths` has the layers' inputs and the last output: widths.size() - 1 layers.
  explicit ParameterLayout(std::vector<std::int64_t> widths);

  [[nodiscard]] int layers() const { return static_cast<int>(widths_.size()) - 1; }
  [[nodiscard]] const std::vector<std::int64_t>& widths() const { return widths_; }
  [[nodiscard]] std::int64_t inputs(int layer) const;
  [[nodiscard]] std::int64_t outputs(int layer) const;

  // Tensors in a flat buffer of this real type; their positions, counted in numbers, do not depend
  // on it.
  [[nodiscard]] Tensor weight(BufferId flat, int layer,
                              DType type = DType::kF32) const;  // outputs x inputs
  [[nodiscard]] Tensor bias(BufferId flat, int layer,
                            DType type = DType::kF32) const;  // 1 x outputs
  [[nodiscard]] Tensor flat(BufferId flat,
                            DType type = DType::kF32) const;  // 1 x everything, with padding

  /// The number of weights and biases, without padding.
  [[nodiscard]] std::int64_t parameters() const;

  /// The size of the largest weight or bias, in numbers.
  [[nodiscard]] std::int64_t largest_tensor() const;

  /// The size of a flat buffer. Every tensor is aligned to 64 bytes, or 32 bytes for 16-bit
  /// numbers; the gaps hold zeros.
  [[nodiscard]] std::int64_t bytes(DType type = DType::kF32) const {
    return bytes_ / bytes_of(DType::kF32) * bytes_of(type);
  }

 private:
  struct Offsets {
    std::int64_t bias_bytes;
    std::int64_t weight_bytes;
  };
  std::vector<std::int64_t> widths_;
  std::vector<Offsets> offsets_;
  std::int64_t bytes_ = 0;
};

}  // namespace barestep
