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
/// a bound, all the same and not drawn. PyTorch's modules draw some that they then overwrite.
struct InitialValues {
  std::optional<double> bound{};
  float value = 0;
  bool is_overwritten = false;  // drawn, but then all are `value`
  int turn = 0;                 // parameters are drawn by turns, and within a turn in their order
};

/// How tensor ranks share a parameter: each has all of it, or some of its rows or columns. The
/// numbers of a parameter with one dimension are its columns.
enum class Cut { kNone, kRows, kCols };

/// What tensor ranks share as share_of_rank() does: in each of `groups` equal groups of rows or
/// columns, blocks of `unit` of them. Heads of attention are such blocks, and queries, keys and
/// values are groups of them.
struct CutGrid {
  std::int64_t groups = 1, unit = 1;

  /// A rank's in each group, of so many rows or columns in all groups.
  [[nodiscard]] Rows share(std::int64_t count, int rank, int ranks) const {
    const Rows blocks = share_of_rank(count / groups / unit, rank, ranks);
    return {blocks.first * unit, blocks.count * unit};
  }
};

/// The numbers of a parameter that a rank has, in the parameter of the whole model.
struct PartOfParameter {
  std::vector<std::int64_t> whole;  // the shape of all of it
  Rows rows, cols;                  // in each group
  std::int64_t groups = 1;          // of rows; of columns if there is one row

  friend bool operator==(const PartOfParameter&, const PartOfParameter&) = default;
};

struct Parameter {
  std::string name;                 // in PyTorch's state_dict: "net.0.weight"
  std::vector<std::int64_t> shape;  // one or two dimensions
  InitialValues initial{};
  Cut cut = Cut::kNone;
  CutGrid grid{};
  bool is_wide = false;                   // read in fp32, whatever the type of products
  std::optional<PartOfParameter> part{};  // a tensor rank's; nothing: these are all numbers

  [[nodiscard]] std::int64_t rows() const { return shape.size() == 1 ? 1 : shape.front(); }
  [[nodiscard]] std::int64_t cols() const { return shape.back(); }
  [[nodiscard]] std::int64_t size() const { return rows() * cols(); }

  /// These numbers in the parameter of the whole model, and its shape.
  [[nodiscard]] PartOfParameter in_whole() const {
    return part.value_or(PartOfParameter{shape, {0, rows()}, {0, cols()}});
  }
};

/// A flat buffer on the host; padding is zero.
using FlatWeights = std::vector<float>;

/// Calls use(first in the whole parameter, first in the part, count) for each run of numbers that
/// are next to each other in both, in order.
template <class Use>
void for_each_run(const PartOfParameter& part, const Use& use) {
  const std::int64_t width = part.whole.back();
  const std::int64_t numbers = part.whole.size() == 1 ? width : part.whole.front() * width;
  const bool has_whole_rows = part.cols.count == width;
  const std::int64_t runs = has_whole_rows ? 1 : part.rows.count;
  const std::int64_t count = part.cols.count * (has_whole_rows ? part.rows.count : 1);
  for (std::int64_t group = 0; group < part.groups; ++group) {
    const std::int64_t first = group * (numbers / part.groups);
    for (std::int64_t run = 0; run < runs; ++run) {
      use(first + (part.rows.first + run) * width + part.cols.first, (group * runs + run) * count,
          count);
    }
  }
}

/// Copies a rank's numbers of a parameter between a tensor of all its numbers and one of the rank's
/// only.
void copy_from_whole(const PartOfParameter& part, std::span<const float> whole,
                     std::span<float> own);
void copy_to_whole(const PartOfParameter& part, std::span<const float> own, std::span<float> whole);

class Parameters {
 public:
  /// In the order in which a forward pass reads them. That of the draws from the random stream is
  /// the same, unless their turns say otherwise.
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

  /// The values of a parameter in a flat buffer on the host.
  [[nodiscard]] std::span<float> in(FlatWeights& flat, ParameterId id) const;

  /// A flat buffer of zeros on the host.
  [[nodiscard]] FlatWeights zeros() const;

  /// Nothing if no parameter has this name.
  [[nodiscard]] std::optional<ParameterId> find(std::string_view name) const;

  /// The values before training: these parameters' of those of the `whole` model. Advances the
  /// generator past all of them; numbers of other ranks are skipped, not computed.
  [[nodiscard]] FlatWeights initial_values(TorchGenerator& generator,
                                           const Parameters& whole) const;
  [[nodiscard]] FlatWeights initial_values(TorchGenerator& generator) const {
    return initial_values(generator, *this);
  }

  /// Advances the generator past the values before training.
  void skip_initial_values(TorchGenerator& generator) const;

  /// The parameters of one of `ranks` tensor ranks.
  [[nodiscard]] Parameters part(int rank, int ranks) const;

 private:
  /// In the order of the draws.
  [[nodiscard]] std::vector<const Parameter*> by_turns() const;

  std::vector<Parameter> all_;
  std::vector<std::int64_t> ends_;  // aligned numbers of each parameter and those added before it
};

}  // namespace barestep
