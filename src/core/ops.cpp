#include "core/ops.h"

#include "core/checked.h"
#include "core/overloaded.h"
#include "core/philox.h"
#include "core/random.h"

namespace barestep {
namespace {

Access reads(const Tensor& tensor) {
  return {tensor, false};
}
Access writes(const Tensor& tensor) {
  return {tensor, true};
}

/// Written as beta * old + new: read only where beta asks for it.
void accumulates(std::vector<Access>& list, const Tensor& tensor, float beta) {
  if (beta != 0) list.push_back(reads(tensor));
  list.push_back(writes(tensor));
}

void updates(std::vector<Access>& list, const Tensor& tensor) {
  list.push_back(reads(tensor));
  list.push_back(writes(tensor));
}

std::vector<Access> accesses_of_update(const Adam& op) {
  std::vector<Access> list = {reads(op.grads), reads(op.scalars)};
  if (op.clip) list.push_back(reads(*op.clip));
  for (const Tensor& tensor : {op.weights, op.moments1, op.moments2}) updates(list, tensor);
  return list;
}

std::vector<Access> accesses_of_update(const Sgd& op) {
  std::vector<Access> list = {reads(op.grads), reads(op.scalars)};
  if (op.clip) list.push_back(reads(*op.clip));
  updates(list, op.weights);
  if (op.velocities) updates(list, *op.velocities);
  return list;
}

std::vector<Access> accesses_of_update(const LinearAdam& op) {
  std::vector<Access> list = {reads(op.grad_y), reads(op.x), reads(op.scalars)};
  if (op.clip) list.push_back(reads(*op.clip));
  for (const Tensor& tensor : {op.weight, op.weight_moments1, op.weight_moments2, op.bias,
                               op.bias_moments1, op.bias_moments2}) {
    updates(list, tensor);
  }
  return list;
}

std::vector<Access> accesses_of_device_op(const DeviceOp& op) {
  std::vector<Access> list;
  std::visit(Overloaded{
                 [&](const Gemm& o) {
                   list = {reads(o.a), reads(o.b)};
                   if (o.bias) list.push_back(reads(*o.bias));
                   accumulates(list, o.c, o.beta);
                 },
                 [&](const BiasRelu& o) {
                   list = {reads(o.bias)};
                   updates(list, o.values);
                 },
                 [&](const ReluGrad& o) {
                   list = {reads(o.output)};
                   updates(list, o.grad);
                 },
                 [&](const SumRows& o) {
                   list = {reads(o.in)};
                   accumulates(list, o.out, o.beta);
                 },
                 [&](const MseLoss& o) {
                   list = {reads(o.output), reads(o.target), writes(o.grad)};
                   accumulates(list, o.loss, o.beta);
                 },
                 [&](const CrossEntropy& o) {
                   list = {reads(o.logits), reads(o.labels), writes(o.grad)};
                   accumulates(list, o.loss, o.beta);
                 },
                 [&](const CountCorrect& o) {
                   list = {reads(o.logits), reads(o.labels), writes(o.correct)};
                 },
                 [&](const Adam& o) { list = accesses_of_update(o); },
                 [&](const Sgd& o) { list = accesses_of_update(o); },
                 [&](const LinearAdam& o) { list = accesses_of_update(o); },
                 [&](const SumSquares& o) {
                   list = {reads(o.in), writes(o.out)};
                 },
                 [&](const GramSquares& o) {
                   list = {reads(o.gram_y), reads(o.gram_x), writes(o.out)};
                 },
                 [&](const ClipFactor& o) {
                   list = {reads(o.squares), writes(o.factor)};
                 },
                 [&](const Copy& o) {
                   list = {reads(o.from), writes(o.to)};
                 },
                 [&](const Cast& o) {
                   list = {reads(o.from), writes(o.to)};
                 },
                 [&](const Fill& o) { list = {writes(o.out)}; },
                 [&](const Randn& o) {
                   list = {writes(o.out)};
                   updates(list, o.state);
                 },
                 [&](const Delay& o) {
                   if (o.more_seconds) list = {reads(*o.more_seconds)};
                 },
             },
             op);
  return list;
}

std::vector<std::vector<Access>> parts_of_collective(const Collective& op) {
  std::vector<std::vector<Access>> parts;
  std::visit(Overloaded{
                 [&](const AllReduce& o) {
                   for (const Tensor& t : o.tensors) parts.push_back({reads(t), writes(t)});
                 },
                 // Which of the tensors is the root's is known to the communicator alone: a rank
                 // counts over all processes. So every tensor counts as read and written.
                 [&](const Broadcast& o) {
                   for (const Tensor& t : o.tensors) parts.push_back({reads(t), writes(t)});
                 },
                 [&](const Reduce& o) {
                   for (const Tensor& t : o.tensors) parts.push_back({reads(t), writes(t)});
                 },
                 // Nor is it known here which rows are a rank's own.
                 [&](const ReduceScatter& o) {
                   for (const Tensor& t : o.tensors) parts.push_back({reads(t), writes(t)});
                 },
                 [&](const AllGather& o) {
                   for (std::size_t i = 0; i < o.tensors.size(); ++i) {
                     const Tensor& from = o.own.empty() ? o.tensors[i] : o.own[i];
                     parts.push_back({writes(o.tensors[i]), reads(from)});
                   }
                 },
             },
             op);
  return parts;
}

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
  return flops_each(op.c,
                    2 * inner + (op.bias ? 1 : 0) + (op.relu ? 1 : 0) + flops_of_beta(op.beta));
}

/// A number: maximum, difference, exp, sum, times the inverse of sum and of count. A row: log, the
/// loss of the label and its sum, the inverse of the sum, the label's -1. Once: the division by
/// count.
std::int64_t flops_of(const CrossEntropy& op) {
  const std::int64_t rows = checked_multiply(op.logits.rows, 6, kFlops);
  return checked_add(flops_each(op.logits, 6), rows + 1 + flops_of_beta(op.beta), kFlops);
}

/// For each weight: the first moment takes 3, the second 4, the divisor 3, the weight 3.
template <class AdamOp>
std::int64_t flops_of_adam_step(const AdamOp& op) {
  const std::int64_t decay = op.weight_decay == 0 ? 0 : op.decoupled ? 1 : 2;
  return 13 + decay + (op.clip ? 1 : 0);
}

std::int64_t flops_of(const LinearAdam& op) {
  const std::int64_t step = flops_of_adam_step(op);
  const std::int64_t bias =
      checked_add(flops_each(op.grad_y, 1), flops_each(op.bias, step), kFlops);
  return checked_add(flops_each(op.weight, 2 * op.x.rows + step), bias, kFlops);
}

/// Each of decay, momentum, Nesterov's step and the weight is a product and a sum.
std::int64_t flops_of(const Sgd& op) {
  return flops_each(op.weights, 2 + (op.weight_decay != 0 ? 2 : 0) + (op.velocities ? 2 : 0) +
                                    (op.nesterov ? 2 : 0) + (op.clip ? 1 : 0));
}

std::int64_t flops_of_device_op(const DeviceOp& op) {
  return std::visit(
      Overloaded{
          [](const Gemm& o) { return flops_of(o); },
          [](const BiasRelu& o) { return flops_each(o.values, o.relu ? 2 : 1); },
          [](const ReluGrad& o) { return flops_each(o.grad, 1); },
          [](const SumRows& o) {
            return flops_each(o.in, 1) + flops_each(o.out, flops_of_beta(o.beta));
          },
          // A number: difference, square and sum, times 2 / count. Once: the division by count.
          [](const MseLoss& o) {
            return checked_add(flops_each(o.output, 4), 1 + flops_of_beta(o.beta), kFlops);
          },
          [](const CrossEntropy& o) { return flops_of(o); },
          [](const CountCorrect& o) { return flops_each(o.logits, 1); },
          [](const Adam& o) { return flops_each(o.weights, flops_of_adam_step(o)); },
          [](const Sgd& o) { return flops_of(o); },
          [](const LinearAdam& o) { return flops_of(o); },
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

}  // namespace

std::int64_t state_bytes(Generator generator) {
  return generator == Generator::kTorchCpu ? sizeof(TorchGenerator) : sizeof(PhiloxState);
}

std::vector<std::vector<Access>> parts_of(const Op& op) {
  if (const auto* device_op = std::get_if<DeviceOp>(&op))
    return {accesses_of_device_op(*device_op)};
  return parts_of_collective(std::get<Collective>(op));
}

std::vector<Access> accesses_of(const Op& op) {
  std::vector<Access> all;
  for (const auto& part : parts_of(op)) all.insert(all.end(), part.begin(), part.end());
  return all;
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
  const auto parts = parts_of(op);
  return {.message_bytes = parts.front().front().tensor.bytes()};
}

std::string_view label_of(const Op& op) {
  if (const auto* device_op = std::get_if<DeviceOp>(&op)) {
    return std::visit(Overloaded{
                          [](const Gemm&) { return "gemm"; },
                          [](const BiasRelu&) { return "bias_relu"; },
                          [](const ReluGrad&) { return "relu_grad"; },
                          [](const SumRows&) { return "sum_rows"; },
                          [](const MseLoss&) { return "mse_loss"; },
                          [](const CrossEntropy&) { return "cross_entropy"; },
                          [](const CountCorrect&) { return "count_correct"; },
                          [](const Adam&) { return "adam"; },
                          [](const Sgd&) { return "sgd"; },
                          [](const LinearAdam&) { return "linear_adam"; },
                          [](const SumSquares&) { return "sum_squares"; },
                          [](const GramSquares&) { return "gram_squares"; },
                          [](const ClipFactor&) { return "clip_factor"; },
                          [](const Copy&) { return "copy"; },
                          [](const Cast&) { return "cast"; },
                          [](const Fill&) { return "fill"; },
                          [](const Randn&) { return "randn"; },
                          [](const Delay&) { return "delay"; },
                      },
                      *device_op);
  }
  return std::visit(Overloaded{
                        [](const AllReduce&) { return "all_reduce"; },
                        [](const Broadcast&) { return "broadcast"; },
                        [](const Reduce&) { return "reduce"; },
                        [](const ReduceScatter&) { return "reduce_scatter"; },
                        [](const AllGather&) { return "all_gather"; },
                    },
                    std::get<Collective>(op));
}

}  // namespace barestep
