#include "core/ops.h"

#include "core/checked.h"
#include "core/operands.h"
#include "core/overloaded.h"
#include "core/philox.h"
#include "core/random.h"

namespace barestep {
namespace {

constexpr std::string_view kFlops = "the flops of an op";

std::int64_t flops_each(const Tensor& tensor, std::int64_t flops) {
  return checked_multiply(tensor.size(), flops, kFlops);
}

/// beta * old + new, for each number.
std::int64_t flops_of_beta(float beta) {
  return beta != 0 ? 2 : 0;
}

std::int64_t flops_of(const Gemm& op) {
  const std::int64_t inner = op.transpose_a ? op.a.rows : op.a.cols;
  return flops_each(op.c, 2 * inner + (op.bias ? 1 : 0) + traits_of(op.activation).flops +
                              flops_of_beta(op.beta));
}

/// A number: maximum, difference, exp, sum, times the inverse of sum and of count. A row: log, the
/// loss of the label and its sum, the inverse of the sum, the label's -1. Once: the division by
/// count.
std::int64_t flops_of(const CrossEntropy& op) {
  const std::int64_t rows = checked_multiply(op.logits.rows, 6, kFlops);
  return checked_add(flops_each(op.logits, 6), rows + 1 + flops_of_beta(op.beta), kFlops);
}

std::int64_t flops_of_device_op(const DeviceOp& op) {
  return std::visit(
      Overloaded{
          [](const Gemm& o) { return flops_of(o); },
          [](const BiasActivation& o) {
            return flops_each(o.values, 1 + traits_of(o.activation).flops);
          },
          [](const ActivationGrad& o) {
            return flops_each(o.grad, traits_of(o.activation).grad_flops);
          },
          [](const SumRows& o) {
            return flops_each(o.in, 1) + flops_each(o.out, flops_of_beta(o.beta));
          },
          // A number: difference, square and sum, times 2 / count. Once: the division by count.
          [](const MseLoss& o) {
            return checked_add(flops_each(o.output, 4), 1 + flops_of_beta(o.beta), kFlops);
          },
          [](const CrossEntropy& o) { return flops_of(o); },
          [](const CountCorrect& o) { return flops_each(o.logits, 1); },
          []<OptimizerOp Update>(const Update& o) { return o.flops(); },
          [](const SumSquares& o) { return flops_each(o.in, 2); },
          [](const GramSquares& o) { return flops_each(o.gram_y, 3); },
          // A sum for each, a root, a sum, a division and a comparison.
          [](const ClipFactor& o) { return o.squares.size() + 4; },
          [](const Copy&) { return std::int64_t{0}; },
          [](const Cast& o) { return o.scale == 1 ? 0 : flops_each(o.to, 1); },
          [](const Fill&) { return std::int64_t{0}; },
          // Two numbers (Box-Muller): two uniform numbers, 1 - u, log, times -2, root, times 2 pi,
          // cosine, sine and two products.
          [](const Randn& o) { return flops_each(o.out, 11) / 2; },
          [](const Delay&) { return std::int64_t{0}; },
      },
      op);
}

constexpr auto kLabelOfOne = [](const auto& o) -> std::string_view {
  if constexpr (requires { o.label(); }) {
    return o.label();
  } else {
    return o.kLabel;
  }
};

}  // namespace

std::int64_t state_bytes(Generator generator) {
  return generator == Generator::kTorchCpu ? sizeof(TorchGenerator) : sizeof(PhiloxState);
}

Cost& Cost::operator+=(const Cost& other) {
  flops = checked_add(flops, other.flops, "the flops of a program");
  bytes = checked_add(bytes, other.bytes, "the bytes of a program");
  message_bytes = checked_add(message_bytes, other.message_bytes, "the messages of a program");
  return *this;
}

Cost cost_of(const Op& op) {
  if (const auto* device_op = std::get_if<DeviceOp>(&op)) {
    Cost cost{.flops = flops_of_device_op(*device_op)};
    for (const Access& access : accesses_of(op)) {
      cost.bytes = checked_add(cost.bytes, access.tensor.bytes(), "the bytes of an op");
    }
    return cost;
  }
  return {.message_bytes = operands_of(op).front().tensor->bytes()};
}

std::string_view label_of(const DeviceOp& op) {
  return std::visit(kLabelOfOne, op);
}

std::string_view label_of(const Op& op) {
  return std::visit([](const auto& kind) { return std::visit(kLabelOfOne, kind); }, op);
}

}  // namespace barestep
