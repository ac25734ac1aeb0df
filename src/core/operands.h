// What is derived from an op's list of operands: its reads and writes, the shapes that must match,
// its bytes, and the parts that it can be cut into.
#pragma once

#include <cstdint>
#include <functional>

#include "core/ops.h"

namespace barestep {

/// The operands that this op has. They point into the op.
Operands operands_of(const Op& op);
Operands operands_of(const Op&& op) = delete;

/// The op with other tensors: `replacement` returns the new tensor for each operand.
Op with_tensors(Op op, const std::function<Tensor(const Operand&)>& replacement);

/// The part of an op that covers first .. first + count - 1 of a dimension. Run one after another,
/// nonempty parts that cover the whole dimension are equivalent to the op: the first starts a sum
/// over the dimension, the others add to it. Operands are cut by rows, or by columns if they have a
/// single row; those without the dimension stay whole. Throws Error(kBug) if the op cannot be cut
/// this way.
Op slice(const Op& op, char dimension, std::int64_t first, std::int64_t count);

}  // namespace barestep
