// Where each layer's weight and bias lie in a flat buffer.
//
// Parameters, gradients and moments share one layout, so the optimizer is one op over the whole
// buffer and a range of layers is one message. Tensors lie in the order in which backward completes
// their gradients: last layer first, bias before weight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace barestep {

class ParameterLayout {
 public:
  /// `widths` are those of the layers' inputs and of the last output: widths.size() - 1 layers.
  explicit ParameterLayout(std::vector<std::int64_t> widths);

  [[nodiscard]] int layers() const { return static_cast<int>(widths_.size()) - 1; }
  [[nodiscard]] const std::vector<std::int64_t>& widths() const { return widths_; }
  [[nodiscard]] std::int64_t inputs(int layer) const;
  [[nodiscard]] std::int64_t outputs(int layer) const;

  // Of a flat buffer of that real type, whose tensors stand at the same numbers.
  [[nodiscard]] Tensor weight(BufferId flat, int layer,
                              DType type = DType::kF32) const;  // outputs x inputs
  [[nodiscard]] Tensor bias(BufferId flat, int layer,
                            DType type = DType::kF32) const;  // 1 x outputs
  [[nodiscard]] Tensor flat(BufferId flat,
                            DType type = DType::kF32) const;  // 1 x everything, with padding

  /// Numbers of weights and biases, without padding.
  [[nodiscard]] std::int64_t parameters() const;

  /// Numbers of the largest weight or bias.
  [[nodiscard]] std::int64_t largest_tensor() const;

  /// Size of a flat buffer: every tensor starts on 64 bytes, of 16-bit numbers on 32, the gaps hold
  /// zeros.
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

// The rows of a step that one of several ranks computes.

/// `count` rows from `first` on.
struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const Rows&, const Rows&) = default;
};

/// The rows of one of `ranks` ranks: as even as can be, the first ranks take one more.
Rows share_of_rank(std::int64_t rows, int rank, int ranks);

/// A rank's rows of a tensor, by the same rule; what ReduceScatter and AllGather go by.
Tensor share_of_rank(const Tensor& tensor, int rank, int ranks);

}  // namespace barestep
