#include "train/step.h"

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
  train_ = std::make_unique<StepProgram>(training_step("train", spec.batch_size));
  if (const std::int64_t rest = spec.train_rows % spec.batch_size; rest != 0) {
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

StepProgram StepPrograms::training_step(const char* name, std::int64_t rows) {
  StepProgram step{.program = Program(name, buffers_), .rows = rows, .tensors = {}};
  Program& program = step.program;
  step.tensors = add_input(program, rows);

  const ParameterLayout& layout = spec_.model.layout;
  const std::int64_t scalar_bytes = 2 * kF32Bytes;
  const Tensor scalars{buffers_.get("scalars", Category::kOptimizer, scalar_bytes, 0, 2), 0, 1, 2};
  step.tensors.scalars_host =
      Tensor{buffers_.get("scalars_host", Category::kData, scalar_bytes, 0, 2, true), 0, 1, 2};
  add_data(program, Copy{.to = scalars, .from = *step.tensors.scalars_host});

  const Mlp model(buffers_, spec_.model, rows);
  parameters_ = model.parameters();
  gradients_ = model.gradients();
  moments1_ = buffers_.get("moments1", Category::kOptimizer, layout.bytes());
  moments2_ = buffers_.get("moments2", Category::kOptimizer, layout.bytes());
  const Result loss = take_result(buffers_, "loss", "loss_host", DType::kF32);
  step.tensors.loss_host = loss.host;

  model.forward(program, step.tensors.x);
  model.loss(program, step.tensors.y, loss.device, rows);
  read_back(program, loss, Phase::kLoss);
  model.backward(program, step.tensors.x, spec_.zero_grad ? 0.0F : 1.0F);
  program.add({.op = DeviceOp{Adam{.weights = layout.flat(parameters_),
                                   .grads = layout.flat(gradients_),
                                   .moments1 = layout.flat(moments1_),
                                   .moments2 = layout.flat(moments2_),
                                   .scalars = scalars,
                                   .beta1 = spec_.beta1,
                                   .beta2 = spec_.beta2,
                                   .eps = spec_.eps}},
               .phase = Phase::kOptimizer});
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
  model.loss(program, step.tensors.y, loss.device, rows, Phase::kEvaluate);
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
