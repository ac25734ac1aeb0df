#include "train/step.h"

#include <algorithm>

#include "core/order.h"

namespace barestep {
namespace {

constexpr std::int64_t kF32Bytes = bytes_of(DType::kF32);

void add_data(Program& program, DeviceOp op) {
  program.add({.op = std::move(op), .lane = Lane::kCopy, .phase = Phase::kData});
}

/// A one-number result: on the device, and in the pinned slot where the host reads it.
struct Result {
  Tensor device, host;
};

Result take_result(Buffers& buffers, const char* name, const char* host_name, DType dtype) {
  const BufferId device = buffers.get(name, Category::kData, kF32Bytes, 0, 2);
  const BufferId host = buffers.get(host_name, Category::kData, kF32Bytes, 0, 2, true);
  return {{device, 0, 1, 1, dtype}, {host, 0, 1, 1, dtype}};
}

void read_back(Program& program, const Result& result, Phase phase) {
  program.add({.op = DeviceOp{Copy{.to = result.host, .from = result.device}}, .phase = phase});
}

}  // namespace

StepPrograms::StepPrograms(const StepSpec& spec) : spec_(spec) {
  if (spec.workspace_bytes > 0) {
    buffers_.get("workspace", Category::kWorkspace, spec.workspace_bytes);
  }
  train_ = std::make_unique<StepProgram>(training_step("train", spec.step_rows()));
  if (const std::int64_t rest = spec.train_rows % spec.step_rows(); rest != 0) {
    last_batch_ = std::make_unique<StepProgram>(training_step("last batch", rest));
  }
  if (spec.test_rows > 0) {
    const std::int64_t rows = std::min(spec.batch_size, spec.test_rows);
    evaluate_ = std::make_unique<StepProgram>(evaluation_step("evaluate", rows));
    if (const std::int64_t rest = spec.test_rows % rows; rest != 0) {
      last_evaluate_ = std::make_unique<StepProgram>(evaluation_step("last evaluate", rest));
    }
  }
}

StepTensors StepPrograms::add_input(Program& program, std::int64_t rows) {
  const std::int64_t x_cols = spec_.model.layout.widths().front();
  const bool labels = spec_.model.loss == LossKind::kCrossEntropy;
  const std::int64_t y_cols = labels ? 1 : spec_.model.layout.widths().back();
  const DType y_dtype = labels ? DType::kI32 : DType::kF32;
  const auto take = [&](const char* name, std::int64_t cols, DType dtype, bool pinned) {
    const BufferId buffer =
        buffers_.get(name, Category::kData, rows * cols * kF32Bytes, 0, 2, pinned);
    return Tensor{buffer, 0, rows, cols, dtype};
  };

  StepTensors tensors;
  tensors.x = take("x", x_cols, DType::kF32, false);
  tensors.y = take("y", y_cols, y_dtype, false);
  if (spec_.data == DataKind::kRandn) {
    const std::int64_t bytes = state_bytes(spec_.generator);
    const Tensor state{buffers_.get("generator", Category::kData, bytes), 0, 1, bytes, DType::kU8};
    tensors.generator = state;
    add_data(program, Randn{.out = tensors.x, .state = state, .generator = spec_.generator});
    add_data(program, Randn{.out = tensors.y, .state = state, .generator = spec_.generator});
  } else {
    tensors.x_host = take("x_host", x_cols, DType::kF32, true);
    tensors.y_host = take("y_host", y_cols, y_dtype, true);
    add_data(program, Copy{.to = tensors.x, .from = *tensors.x_host});
    add_data(program, Copy{.to = tensors.y, .from = *tensors.y_host});
  }
  return tensors;
}

Tensor StepPrograms::add_scalars(Program& program, StepTensors& tensors) {
  const std::int64_t count = scalars_of(spec_.optimizer);
  const auto take = [&](const char* name, Category category, bool pinned) {
    const BufferId buffer = buffers_.get(name, category, count * kF32Bytes, 0, 2, pinned);
    return Tensor{buffer, 0, 1, count};
  };
  const Tensor scalars = take("scalars", Category::kOptimizer, false);
  tensors.scalars_host = take("scalars_host", Category::kData, true);
  add_data(program, Copy{.to = scalars, .from = *tensors.scalars_host});
  return scalars;
}

void StepPrograms::add_io_delay(Program& program) const {
  if (spec_.io_delay_s == 0) return;
  const Delay delay{spec_.io_delay_s};
  if (spec_.data == DataKind::kRandn) {
    program.add({.op = DeviceOp{delay}, .phase = Phase::kInjected});
  } else {
    add_data(program, delay);
  }
}

/// Each micro-step takes its rows of the input; gradients and loss add up.
void StepPrograms::add_micro_steps(Program& program, const StepTensors& tensors) {
  const Result loss = take_result(buffers_, "loss", "loss_host", DType::kF32);
  const std::int64_t rows = tensors.x.rows;
  for (std::int64_t first = 0; first < rows; first += spec_.batch_size) {
    const std::int64_t count = std::min(spec_.batch_size, rows - first);
    const Mlp model(buffers_, spec_.model, count);
    const Tensor x = tensors.x.row_slice(first, count);
    model.forward(program, x);
    model.loss(program, tensors.y.row_slice(first, count), loss.device, rows, first > 0 ? 1.0F : 0);
    if (first + count == rows) read_back(program, loss, Phase::kLoss);
    model.backward(program, x, first > 0 || !spec_.zero_grad ? 1.0F : 0);
    parameters_ = model.parameters();
    gradients_ = model.gradients();
  }
}

StepProgram StepPrograms::training_step(const char* name, std::int64_t rows) {
  StepProgram step{.program = Program(name, buffers_), .rows = rows, .tensors = {}};
  Program& program = step.program;
  add_io_delay(program);
  step.tensors = add_input(program, rows);
  step.tensors.loss_host = take_result(buffers_, "loss", "loss_host", DType::kF32).host;
  const Tensor scalars = add_scalars(program, step.tensors);
  add_micro_steps(program, step.tensors);

  const OptimizerState optimizer(buffers_, spec_.optimizer, spec_.model.layout);
  optimizer_state_ = optimizer.buffers();
  program.add({.op = optimizer.step(parameters_, gradients_, scalars), .phase = Phase::kOptimizer});
  order(program);
  return step;
}

StepProgram StepPrograms::evaluation_step(const char* name, std::int64_t rows) {
  StepProgram step{.program = Program(name, buffers_), .rows = rows, .tensors = {}};
  Program& program = step.program;
  step.tensors = add_input(program, rows);

  const Mlp model(buffers_, spec_.model, rows);
  const Result loss = take_result(buffers_, "loss", "loss_host", DType::kF32);
  step.tensors.loss_host = loss.host;
  model.forward(program, step.tensors.x, Phase::kEvaluate);
  model.loss(program, step.tensors.y, loss.device, rows, 0, Phase::kEvaluate);
  read_back(program, loss, Phase::kEvaluate);
  if (spec_.model.loss == LossKind::kCrossEntropy) {
    const Result correct = take_result(buffers_, "correct", "correct_host", DType::kI32);
    step.tensors.correct_host = correct.host;
    program.add(
        {.op = DeviceOp{CountCorrect{
             .correct = correct.device, .logits = model.output(), .labels = step.tensors.y}},
         .phase = Phase::kEvaluate});
    read_back(program, correct, Phase::kEvaluate);
  }
  order(program);
  return step;
}

}  // namespace barestep
