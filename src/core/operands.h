// What an op says of each of its tensors, once: name, use, dimensions and type. What the op reads
// and writes, its rules, its bytes and the parts that it can be cut into follow from this list.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ops.h"

namespace barestep {

/// What an op does with an operand. accesses_of() goes through the operands in this order.
enum class OperandUse {
  kReads,
  kWrites,
  kAccumulates,  // beta * old + new, with the op's beta: reads the old only where that is not 0
  kUpdates,      // reads and writes
};

/// A tensor of an op. `rows` and `cols` say what these count. A letter is a dimension, which has
/// one size in all operands of the op; 'r' is the rows of the batch. A capital is a dimension that
/// cannot be cut, since each result depends on all of it. A digit is the number itself. '*' may be
/// any number.
struct Operand {
  std::string_view name;
  const Tensor* tensor = nullptr;  // a member of the op
  OperandUse use = OperandUse::kReads;
  char rows = '*';
  char cols = '*';
  DType dtype = DType::kF32;  // the type it must have
  int part = 0;               // see parts_of()
};

/// Null for an operand that the op does without; the list then leaves it out.
inline const Tensor* optional_tensor(const std::optional<Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

/// The type of an operand that may be of any real one: the tensor's own, if it is.
constexpr DType real_type(const Tensor& tensor) {
  return is_real(tensor.dtype) ? tensor.dtype : DType::kF32;
}

/// In the order of the op's members. They point into the op.
std::vector<Operand> operands_of(const Op& op);
std::vector<Operand> operands_of(const Op&& op) = delete;

/// The op with other tensors: what `replacement` returns for each operand.
Op with_tensors(Op op, const std::function<Tensor(const Operand&)>& replacement);

/// Whether the op sums over a dimension: it reads operands that have it, and writes none.
bool sums_over(const Op& op, char dimension);

/// The part of an op that covers first .. first + count - 1 of a dimension. Parts that cover all of
/// it and are not empty do, one after the other, what the op does: the first starts a sum over the
/// dimension, the others add to it. Operands are cut by rows or, where they are a single row, by
/// columns; those without the dimension stay whole. Throws Error(kBug) where the op has no such
/// parts.
Op slice(const Op& op, char dimension, std::int64_t first, std::int64_t count);

}  // namespace barestep
