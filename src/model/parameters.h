// The parameters of a model: names, shapes, initial values, and places in flat buffers.
//
// Parameters, gradients and moments are flat buffers with the same places, so the optimizer is one
// op over a whole buffer and a range of parameters is one message. The parameter added last comes
// first, because backward completes its gradient first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"

namespace barestep {

/// The position of a parameter in its list.
using ParameterId = int;

/// The values before training: uniform in +-bound, drawn from the run's random stream; or, without
/// a bound, all the same and not drawn.
struct InitialValues {
  std::optional<double> bound{};
  float value = 0;
};

/// How tensor ranks share a parameter: each has all of it, or some of its rows or columns. The
/// numbers of a parameter with one dimension are its columns.
enum class Cut { kNone, kRows, kCols };

struct Parameter {
  std::string name;                 // in PyTorch's state_dict: "net.0.weight"
  std::vector<std::int64_t> shape;  // one or two dimensions
  InitialValues initial{};
  Cut cut = Cut::kNone;

  [[nodiscard]] std::int64_t rows() const { return shape.size() == 1 ? 1 : shape.front(); }
  [[nodiscard]] std::int64_t cols() const { return shape.back(); }
  [[nodiscard]] std::int64_t size() const { return rows() * cols(); }
};

/// A flat buffer on the host; padding is zero.
using FlatWeights = std::vector<float>;

class Parameters {
 public:
  /// In the order in which PyTorch's modules are constructed, which is that of the state_dict and
  /// of the draws from the random stream.
  ParameterId add(Parameter parameter);

  [[nodiscard]] const std::vector<Parameter>& all() const { return all_; }
  [[nodiscard]] int count() const { return static_cast<int>(all_.size()); }
  [[nodiscard]] const Parameter& operator[](ParameterId id) const;

  /// A parameter in a flat buffer of this real type; one with one dimension is a row. Positions,
  /// counted in numbers, do not depend on the type.
  [[nodiscard]] Tensor in(BufferId flat, ParameterId id, DType type = DType::kF32) const;

  /// 1 x everything, with padding.
  [[nodiscard]] Tensor flat(BufferId flat, DType type = DType::kF32) const;

  /// The size of a flat buffer. Every parameter is aligned to 64 bytes, or 32 bytes for 16-bit
  /// numbers; the gaps hold zeros.
  [[nodiscard]] std::int64_t bytes(DType type = DType::kF32) const;

  /// Numbers in all parameters, without padding.
  [[nodiscard]] std::int64_t size() const;

  /// Numbers in the largest parameter.
  [[nodiscard]] std::int64_t largest_size() const;

  /// The values of a parameter in a flat buffer on the host.
  [[nodiscard]] std::span<float> in(FlatWeights& flat, ParameterId id) const;

  /// A flat buffer of zeros on the host.
  [[nodiscard]] FlatWeights zeros() const;

  /// The values before training; advances the generator.
  [[nodiscard]] FlatWeights initial_values(TorchGenerator& generator) const;

  /// The parameters of one of `ranks` tensor ranks, which share rows and columns as
  /// share_of_rank() does.
  [[nodiscard]] Parameters part(int rank, int ranks) const;

  /// That rank's values out of those of all: a flat buffer of part(rank, ranks).
  [[nodiscard]] FlatWeights part(FlatWeights& all, int rank, int ranks) const;

 private:
  std::vector<Parameter> all_;
  std::vector<std::int64_t> ends_;  // aligned numbers of each parameter and those added before it
};

}  // namespace barestep
