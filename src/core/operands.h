// The operands of an op: the name, use, dimensions and type of each tensor, listed once. The op's
// reads and writes, its rules, its bytes and the parts that it can be cut into are derived from
// this list.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ops.h"

namespace barestep {

/// How an op uses an operand. accesses_of() lists operands in this order.
enum class OperandUse {
  kReads,
  kWrites,
  kAccumulates,  // beta * old + new, with the op's beta; reads the old value only if beta is not 0
  kUpdates,      // reads and writes
};

/// A tensor of an op. `rows` and `cols` name its dimensions. A letter is a dimension that has the
/// same size in all operands of the op; 'r' is the rows of the batch. A capital letter is a
/// dimension that cannot be cut, since each result depends on all of it. A digit is the size
/// itself. '*' is any size.
struct Operand {
  std::string_view name;
  const Tensor* tensor = nullptr;  // a member of the op
  OperandUse use = OperandUse::kReads;
  char rows = '*';
  char cols = '*';
  DType dtype = DType::kF32;  // the required type
  int part = 0;               // see parts_of()
};

/// Null if the op lacks this operand; the list then omits it.
inline const Tensor* optional_tensor(const std::optional<Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

/// The required type for an operand that may have any real type: its own if that is real.
constexpr DType real_type(const Tensor& tensor) {
  return is_real(tensor.dtype) ? tensor.dtype : DType::kF32;
}

/// In the order of the op's members. The operands point into the op.
std::vector<Operand> operands_of(const Op& op);
std::vector<Operand> operands_of(const Op&& op) = delete;

/// The op with other tensors: `replacement` returns the new tensor for each operand.
Op with_tensors(Op op, const std::function<Tensor(const Operand&)>& replacement);

/// Whether the op sums over a dimension: it reads operands with that dimension and writes none.
bool sums_over(const Op& op, char dimension);

/// The part of an op that covers first .. first + count - 1 of a dimension. Run one after another,
/// nonempty parts that cover the whole dimension are equivalent to the op: the first starts a sum
/// over the dimension, the others add to it. Operands are cut by rows, or by columns if they have a
/// single row; those without the dimension stay whole. Throws Error(kBug) if the op cannot be cut
/// this way.
Op slice(const Op& op, char dimension, std::int64_t first, std::int64_t count);

}  // namespace barestep
