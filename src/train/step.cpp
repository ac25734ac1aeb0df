#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/order.h"
#include "core/units.h"
#include "train/update.h"

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

void require_whole_step(const StepSpec& spec) {
  if (!spec.drop_last || spec.train_rows == 0 || spec.epoch_rows() > 0) return;
  fail(ExitCode::kConfiguration,
       {.what = "--drop-last",
        .value = "",
        .why = fmt::format("the training set has {} {}, a step takes {}", grouped(spec.train_rows),
                           noun_for(spec.train_rows, "sample"), grouped(spec.step_rows())),
        .remedy = "use a smaller --batch-size"});
}

[[noreturn]] void refuse_fused_update(const char* why) {
  fail(ExitCode::kConfiguration,
       {.what = "--update", .value = "fused", .why = why, .remedy = "use --update separate"});
}

}  // namespace

StepPrograms::StepPrograms(const StepSpec& spec, const Scheme* scheme)
    : spec_(spec), scheme_(scheme) {
  require_whole_step(spec);
  if (scheme != nullptr && scheme->needs_gradients() && !spec.model.stores_gradients) {
    refuse_fused_update("stores no gradients, which several ranks or devices exchange");
  }
  if (spec.workspace_bytes > 0) {
    buffers_.get("workspace", Category::kWorkspace, spec.workspace_bytes);
  }
  parameters_ = Mlp(buffers_, spec_.model, 0).parameters();
  if (spec.model.trains) build_training();
  if (spec.test_rows > 0) {
    const std::int64_t own = spec.own_test_rows().count;
    const std::int64_t rows = std::min(spec.micro_rows(), own);
    evaluate_ = std::make_unique<StepProgram>(evaluation_step("evaluate", rows));
    if (const std::int64_t rest = own % std::max<std::int64_t>(rows, 1); rest != 0) {
      last_evaluate_ = std::make_unique<StepProgram>(evaluation_step("last evaluate", rest));
    }
  }
}

void StepPrograms::build_training() {
  train_ = std::make_unique<StepProgram>(training_step("train", spec_.step_rows()));
  if (scheme_ != nullptr && scheme_->has_first_step()) {
    first_ = std::make_unique<StepProgram>(training_step("first step", spec_.step_rows(), true));
  }
  if (const std::int64_t rest = spec_.epoch_rows() % spec_.step_rows(); rest != 0) {
    last_batch_ = std::make_unique<StepProgram>(training_step("last batch", rest));
  }
}

std::vector<const StepProgram*> StepPrograms::all() const {
  std::vector<const StepProgram*> found;
  for (const auto* step : {&train_, &first_, &last_batch_, &evaluate_, &last_evaluate_}) {
    if (*step != nullptr) found.push_back(step->get());
  }
  return found;
}

std::unique_ptr<Model> Scheme::new_model(Buffers& buffers, const StepSpec& spec,
                                         std::int64_t rows) const {
  return std::make_unique<Mlp>(buffers, spec.model, rows);
}

BufferId StepPrograms::gradients() const {
  if (!spec_.model.stores_gradients) {
    refuse_fused_update("stores no gradients that could be looked at");
  }
  return gradients_;
}

std::unique_ptr<Model> StepPrograms::new_model(std::int64_t rows, std::int64_t first_row) {
  const bool keeps_factors = scheme_ != nullptr && scheme_->keeps_factors();
  if (keeps_factors || !spec_.model.stores_gradients) {
    return std::make_unique<Mlp>(buffers_, spec_.model, rows, 0, first_row);
  }
  if (scheme_ != nullptr) return scheme_->new_model(buffers_, spec_, rows);
  return std::make_unique<Mlp>(buffers_, spec_.model, rows);
}

/// Brings `rows` rows to the device; `own` of them are the step's x and y.
StepTensors StepPrograms::add_input(Program& program, std::int64_t rows, const Rows& own) {
  const std::int64_t x_cols = spec_.model.layout.widths().front();
  const bool labels = takes_labels(spec_.model.loss);
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
  tensors.x = tensors.x.row_slice(own.first, own.count);
  tensors.y = tensors.y.row_slice(own.first, own.count);
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
  program.add({.op = DeviceOp{Delay{spec_.io_delay_s}}, .phase = Phase::kInjected});
}

std::optional<Tensor> StepPrograms::add_jitter(Program& program, StepTensors& tensors) {
  if (spec_.jitter_s == 0) return std::nullopt;
  const Tensor jitter = buffers_.tensor("jitter", Category::kData, 1, 1, DType::kF32, 0, 2);
  tensors.jitter_host =
      buffers_.tensor("jitter_host", Category::kData, 1, 1, DType::kF32, 0, 2, true);
  add_data(program, Copy{.to = jitter, .from = *tensors.jitter_host});
  return jitter;
}

void StepPrograms::add_delay(Program& program, const std::optional<Tensor>& jitter) const {
  if (spec_.delay_s == 0 && !jitter) return;
  program.add({.op = DeviceOp{Delay{.seconds = spec_.delay_s, .more_seconds = jitter}},
               .phase = Phase::kInjected});
}

/// Each micro-step takes its rows of the input; gradients and loss add up, or the gradients'
/// factors lie behind each other.
void StepPrograms::add_micro_steps(Program& program, const StepTensors& tensors,
                                   const std::optional<Tensor>& jitter) {
  const std::int64_t rows = tensors.x.rows;
  for (std::int64_t first = 0; first == 0 || first < rows; first += spec_.micro_rows()) {
    const std::int64_t count = std::min(spec_.micro_rows(), rows - first);
    const auto model = new_model(count, first);
    const Tensor x = tensors.x.row_slice(first, count);
    model->forward(program, x, Phase::kForward);
    model->loss(program, tensors.y.row_slice(first, count), tensors.loss,
                std::max<std::int64_t>(rows, 1), first > 0 ? 1.0F : 0, Phase::kLoss);
    if (first + count == rows) read_back(program, {tensors.loss, tensors.loss_host}, Phase::kLoss);
    if (first == 0) add_delay(program, jitter);
    model->backward(program, x, first > 0 || !spec_.zero_grad ? 1.0F : 0);
  }
}

/// The step of a rank that has no rows in it. What others add up counts this rank's gradients with
/// the weight 0, so any number will do.
void StepPrograms::add_zero_step(Program& program, const StepTensors& tensors) {
  program.add({.op = DeviceOp{Fill{.out = tensors.loss}}, .phase = Phase::kLoss});
  read_back(program, {tensors.loss, tensors.loss_host}, Phase::kLoss);
  program.add({.op = DeviceOp{Fill{.out = spec_.model.layout.flat(gradients_)}},
               .phase = Phase::kBackward});
}

StepProgram StepPrograms::training_step(const char* name, std::int64_t rows, bool is_first_step) {
  StepProgram step{.program = Program(name, buffers_), .rows = rows, .tensors = {}};
  Program& program = step.program;
  add_io_delay(program);
  const Rows own = spec_.own_rows(rows);
  const bool draws_all = spec_.data == DataKind::kRandn && !spec_.own_data;
  step.tensors =
      draws_all ? add_input(program, rows, own) : add_input(program, own.count, {0, own.count});
  const Result loss = take_result(buffers_, "loss", "loss_host", DType::kF32);
  step.tensors.loss = loss.device;
  step.tensors.loss_host = step.tensors.own_loss_host = loss.host;
  const Tensor scalars = add_scalars(program, step.tensors);
  const std::optional<Tensor> jitter = add_jitter(program, step.tensors);
  const Mlp model(buffers_, spec_.model, 0);
  gradients_ = model.gradients();
  if (step.tensors.x.rows > 0 || (scheme_ != nullptr && scheme_->passes_without_rows())) {
    add_micro_steps(program, step.tensors, jitter);
  } else {
    add_zero_step(program, step.tensors);
  }

  std::optional<FlatRange> range;
  if (scheme_ != nullptr) range = scheme_->updated_range(buffers_, spec_);
  const OptimizerState optimizer(buffers_, spec_.optimizer, spec_.model.layout, 0, range);
  optimizer_state_ = optimizer.buffers();
  add_update(program, buffers_, spec_, optimizer, step.tensors.x, scalars);
  if (scheme_ != nullptr) scheme_->apply(step, buffers_, spec_, is_first_step);
  order(program);
  return step;
}

StepProgram StepPrograms::evaluation_step(const char* name, std::int64_t rows) {
  StepProgram step{.program = Program(name, buffers_), .rows = rows, .tensors = {}};
  Program& program = step.program;
  step.tensors = add_input(program, rows, {0, rows});

  const auto model = new_model(rows);
  const Result loss = take_result(buffers_, "loss", "loss_host", DType::kF32);
  step.tensors.loss_host = loss.host;
  model->forward(program, step.tensors.x, Phase::kEvaluate);
  model->loss(program, step.tensors.y, loss.device, std::max<std::int64_t>(rows, 1), 0,
              Phase::kEvaluate);
  read_back(program, loss, Phase::kEvaluate);
  if (takes_labels(spec_.model.loss)) {
    const Result correct = take_result(buffers_, "correct", "correct_host", DType::kI32);
    step.tensors.correct_host = correct.host;
    program.add(
        {.op = DeviceOp{CountCorrect{
             .correct = correct.device, .logits = model->output(), .labels = step.tensors.y}},
         .phase = Phase::kEvaluate});
    read_back(program, correct, Phase::kEvaluate);
  }
  order(program);
  return step;
}

}  // namespace barestep
