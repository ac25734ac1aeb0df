#include "model/block.h"

#include <algorithm>

#include "core/error.h"

namespace barestep {
namespace {

/// rows x cols of a buffer of activations, after `first_row` rows of other passes.
Tensor take_rows(Buffers& buffers, const std::string& name, int device, std::int64_t first_row,
                 std::int64_t rows, std::int64_t cols, DType dtype) {
  const std::int64_t row_bytes = cols * bytes_of(dtype);
  const BufferId buffer =
      buffers.get(name, Category::kActivations, (first_row + rows) * row_bytes, device);
  return {buffer, first_row * row_bytes, rows, cols, dtype};
}

}  // namespace

BufferId take_gradients(Buffers& buffers, const ModelSpec& model, const Parameters& parameters,
                        int device) {
  return buffers.get("gradients", Category::kGradients, parameters.bytes(model.gradient_type()),
                     device);
}

Tensor Scratch::take(const std::string& name, std::int64_t first_row, std::int64_t rows,
                     std::int64_t cols, DType dtype) {
  if (!is_shared_) return take_rows(buffers_, name, device_, first_row, rows, cols, dtype);
  const auto free = std::ranges::find(slots_, 0, &std::pair<BufferId, int>::second);
  const auto number = free - slots_.begin();
  if (free == slots_.end()) slots_.emplace_back(kNoBuffer, 0);
  const Tensor tensor =
      take_rows(buffers_, "scratch." + std::to_string(number), device_, 0, rows, cols, dtype);
  slots_[static_cast<std::size_t>(number)] = {tensor.buffer, 1};
  return tensor;
}

void Scratch::share(const Tensor& tensor) {
  for (auto& [buffer, users] : slots_) {
    if (buffer == tensor.buffer) ++users;
  }
}

void Scratch::give_back(const Tensor& tensor) {
  for (auto& [buffer, users] : slots_) {
    if (buffer == tensor.buffer && users > 0) --users;
  }
}

void Pass::add(DeviceOp op, const std::string& block) const {
  if (is_empty) return;
  program.add({.op = std::move(op),
               .device = device,
               .lane = Lane::kCompute,
               .phase = phase,
               .block = block});
}

void Pass::sum_over_tensor_ranks(const Tensor& tensor, const std::string& block,
                                 const char* what) const {
  if (is_empty) return;
  program.add({.op = Collective{AllReduce{
                   .tensors = {tensor}, .axis = Axis::kTensor, .name = block + " " + what}},
               .device = device,
               .lane = Lane::kComm,
               .phase = Phase::kCommunication,
               .block = block});
}

void Pass::complete(ParameterId id) const {
  // Flat buffers are filled with zeros as a whole.
  if (is_empty && hooks.gradient && beta == 0) {
    program.add(
        {.op = DeviceOp{Fill{.out = hooks.gradient(id)}}, .device = device, .phase = phase});
  }
  if (hooks.complete) hooks.complete(*this, id);
}

Tensor Pass::weight(ParameterId id) const {
  if (hooks.weight) return hooks.weight(id);
  const Parameter& parameter = parameters[id];
  if (!parameter.is_wide || model.numbers == DType::kF32) {
    return parameters.in(flat.operands, id, model.numbers);
  }
  if (flat.parameters != kNoBuffer) return parameters.in(flat.parameters, id);
  return buffers.tensor(parameter.name, Category::kParameters, parameter.rows(), parameter.cols(),
                        DType::kF32, device);
}

Tensor Pass::gradient(ParameterId id) const {
  return hooks.gradient ? hooks.gradient(id)
                        : parameters.in(take_gradients(buffers, model, parameters, device), id,
                                        model.gradient_type());
}

Tensor Pass::activation(const std::string& name, std::int64_t rows, std::int64_t cols,
                        std::optional<DType> type) const {
  const bool is_shared = !shared_name.empty();
  return kept_activation(is_shared ? shared_name + name.substr(shared_block.size()) : name, rows,
                         cols, type);
}

Tensor Pass::kept_activation(const std::string& name, std::int64_t rows, std::int64_t cols,
                             std::optional<DType> type) const {
  return take_rows(buffers, name, device, first_row, rows, cols, type.value_or(model.numbers));
}

}  // namespace barestep
