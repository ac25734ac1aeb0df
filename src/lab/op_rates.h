// How fast ops run, by their size, as measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/ops.h"

namespace barestep {

/// What an op's rate depends on.
struct OpSize {
  /// A product and its transposed operands: "gemm nt"; else the op's label.
  std::string op{};
  double rows = 1;   // of the batch, in a product
  double width = 1;  // of a product: the root of inputs times outputs; else the op's bytes
  double work = 0;   // flops of products, bytes of other ops
};

OpSize size_of(const DeviceOp& op);

struct OpRate {
  std::string op{};
  double rows = 1;
  double width = 1;
  double rate = 0;  // of its work, a second
};

/// Seconds of an op, from the rates of the same op at other sizes, interpolated in the logarithms
/// of rows and width; beyond them, the rate stays the nearest. The rates of an op are those of
/// every one of its widths at every one of its rows. 0 where there is none of this op.
double op_s(const OpSize& size, std::span<const OpRate> rates);

}  // namespace barestep
