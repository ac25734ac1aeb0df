#include "core/ops.h"

#include <fmt/format.h>

#include <string>

#include "core/error.h"

namespace barestep {
namespace {

template <class... T>
struct Overloaded : T... {
  using T::operator()...;
};
template <class... T>
Overloaded(T...) -> Overloaded<T...>;

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

std::vector<Access> accesses_of_device_op(const DeviceOp& op) {
  std::vector<Access> list;
  const auto updates = [&](const Tensor& tensor) {
    list.push_back(reads(tensor));
    list.push_back(writes(tensor));
  };
  std::visit(Overloaded{
                 [&](const Gemm& o) {
                   list = {reads(o.a), reads(o.b)};
                   if (o.bias) list.push_back(reads(*o.bias));
                   accumulates(list, o.c, o.beta);
                 },
                 [&](const BiasRelu& o) {
                   list = {reads(o.bias)};
                   updates(o.values);
                 },
                 [&](const ReluGrad& o) {
                   list = {reads(o.output)};
                   updates(o.grad);
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
                 [&](const Adam& o) {
                   list = {reads(o.grads), reads(o.scalars)};
                   for (const Tensor& t : {o.weights, o.moments1, o.moments2}) updates(t);
                 },
                 [&](const Copy& o) {
                   list = {reads(o.from), writes(o.to)};
                 },
                 [&](const Fill& o) { list = {writes(o.out)}; },
                 [&](const Randn& o) {
                   list = {writes(o.out)};
                   updates(o.state);
                 },
                 [&](const Delay&) {},
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
             },
             op);
  return parts;
}

}  // namespace

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
                          [](const Copy&) { return "copy"; },
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
                    },
                    std::get<Collective>(op));
}

}  // namespace barestep
