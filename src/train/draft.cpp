#include "train/draft.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/program.h"

namespace barestep {
namespace {

/// A loss over `count_rows` rows, of which `output` may be a part; for beta see MicroStep. The
/// gradient includes that of `activation`.
DeviceOp loss_op(const ModelSpec& model, const Tensor& loss, const ModelOutput& output,
                 const Tensor& target, std::int64_t count_rows, float beta,
                 const std::optional<Tensor>& scale = {},
                 Activation activation = Activation::kNone) {
  if (is_pointwise(model.loss)) {
    return PointwiseLoss{.loss = loss,
                         .grad = output.grad,
                         .output = output.values,
                         .target = target,
                         .count = count_rows * output.values.cols,
                         .beta = beta,
                         .kind = model.loss,
                         .scale = scale,
                         .activation = activation};
  }
  return CrossEntropy{.loss = loss,
                      .grad = output.grad,
                      .logits = output.values,
                      .labels = target,
                      .count = count_rows,
                      .beta = beta,
                      .smoothing = static_cast<float>(model.label_smoothing),
                      .scale = scale};
}

const PassHooks kNoHooks;

Node data_node(DeviceOp op) {
  return {.op = std::move(op), .lane = Lane::kCopy, .phase = Phase::kData};
}

/// Copies a number into the pinned slot that the host reads.
Node read_back(const Tensor& host, const Tensor& device, Phase phase) {
  return {.op = DeviceOp{Copy{.to = host, .from = device}}, .phase = phase};
}

/// A number that the host reads or writes in every step.
Tensor take_number(Buffers& buffers, const char* name, bool pinned, DType dtype = DType::kF32) {
  return buffers.tensor(name, Category::kData, 1, 1, dtype, 0, 2, pinned);
}

}  // namespace

void refuse_fused_update(const char* why) {
  fail(ExitCode::kConfiguration,
       {.what = "--update", .value = "fused", .why = why, .remedy = "use --update separate"});
}

Draft::Draft(StepKind kind, const char* name, std::int64_t rows, Buffers& buffers,
             const StepSpec& spec)
    : kind_(kind),
      buffers_(buffers),
      spec_(spec),
      model_(spec.model),
      parameters_(parameters_of(spec.model)),
      step_{.program = Program(name, buffers), .rows = rows, .tensors = {}} {}

BufferId Draft::require_gradients() {
  if (!spec_.model.stores_gradients) {
    refuse_fused_update("stores no gradients, which several ranks or devices exchange");
  }
  return take_gradients(buffers_, spec_.model, parameters_);
}

float Draft::share() const {
  const auto own_rows = static_cast<double>(spec_.own_rows(rows()).count);
  return static_cast<float>(own_rows / static_cast<double>(rows()));
}

void Draft::exchange(Collective collective) {
  add({.op = std::move(collective), .lane = Lane::kComm, .phase = Phase::kCommunication});
}

Draft::Ready Draft::share_loss(float scale) {
  const auto take = [&](const char* name, Category category, std::int64_t numbers, bool pinned) {
    return buffers_.tensor(name, category, 1, numbers, DType::kF32, 0, 2, pinned);
  };
  const std::int64_t requests = requests_of(spec_);
  const Tensor global = take("global_loss", Category::kCommunication, 1 + requests, false);
  const Tensor host = take("global_loss_host", Category::kData, 1 + requests, true);
  tensors().requests_host = take("requests_host", Category::kData, requests, true);
  add(data_node(Copy{.to = global.flat_slice(1, requests), .from = *tensors().requests_host}));
  return [this, global, host, requests, scale] {
    // The ranks of a copy of the model have the same loss; one of them adds it.
    const Tensor own = global.flat_slice(0, 1);
    add({.op = spec_.mesh.has_results() ? DeviceOp{Copy{.to = own, .from = tensors().loss}}
                                        : DeviceOp{Fill{.out = own}},
         .phase = Phase::kLoss});
    exchange(AllReduce{.tensors = {global}, .scale = scale, .name = "loss"});
    add({.op = DeviceOp{Copy{.to = host, .from = global}},
         .lane = Lane::kComm,
         .phase = Phase::kCommunication});
    tensors().loss_host = host.flat_slice(0, 1);
    tensors().requests_of_all_host = host.flat_slice(1, requests);
  };
}

void Draft::leave_factors(std::string_view option, std::string_view value) {
  const std::int64_t own_rows = spec_.own_rows(rows()).count;
  model_.stores_gradients = false;
  require_only_linears(parameters_, model().linears(), option, value);
  loss_rows_ = rows();
  tensors().own_loss_scale =
      own_rows == 0 ? 0 : static_cast<double>(rows()) / static_cast<double>(own_rows);
}

void Draft::input(const Ready& x_ready) {
  const bool trains = kind_ != StepKind::kEvaluation;
  if (trains && spec_.io_delay_s > 0) {
    add({.op = DeviceOp{Delay{spec_.io_delay_s}}, .phase = Phase::kInjected});
  }
  StepTensors& tensors = step_.tensors;
  const Rows own = trains ? spec_.own_rows(rows()) : Rows{0, rows()};
  const bool takes_all = trains && spec_.draws_all();
  const std::int64_t taken = takes_all ? rows() : own.count;
  const auto bring = [&](const std::string& name, std::int64_t cols, DType dtype,
                         std::optional<Tensor>& host) {
    const Tensor all = buffers_.tensor(name, Category::kData, taken, cols, dtype, 0, 2);
    if (spec_.data == DataKind::kRandn) {
      const std::int64_t bytes = state_bytes(spec_.generator);
      tensors.generator = buffers_.tensor("generator", Category::kData, 1, bytes, DType::kU8);
      if (spec_.saves_state && !tensors.generator_host) keep_generator();
      add(data_node(Randn{.out = all, .state = *tensors.generator, .generator = spec_.generator}));
    } else {
      host = buffers_.tensor(name + "_host", Category::kData, taken, cols, dtype, 0, 2, true);
      add(data_node(Copy{.to = all, .from = *host}));
    }
    return takes_all ? all.row_slice(own.first, own.count) : all;
  };
  tensors.x = bring("x", spec_.model.inputs(), DType::kF32, tensors.x_host);
  if (x_ready) x_ready();
  tensors.y = takes_labels(spec_.model.loss)
                  ? bring("y", 1, DType::kI32, tensors.y_host)
                  : bring("y", spec_.model.outputs(), DType::kF32, tensors.y_host);
  tensors.loss = take_number(buffers_, "loss", false);
  tensors.loss_host = take_number(buffers_, "loss_host", true);
  if (!trains) return;
  tensors.own_loss_host = tensors.loss_host;
  add_scalars();
  add_jitter();
  if (spec_.model.dropout > 0) add_step_number();
}

void Draft::keep_generator() {
  const Tensor& state = *step_.tensors.generator;
  const Tensor host =
      buffers_.tensor("generator_host", Category::kData, 1, state.cols, DType::kU8, 0, 2, true);
  step_.tensors.generator_host = host;
  add(data_node(Copy{.to = host, .from = state}));
}

void Draft::add_scalars() {
  const std::int64_t rows = spec_.loss_scale ? kScalarRows : 1;
  const std::int64_t count = scalars_of(spec_.optimizer);
  scalars_ = buffers_.tensor("scalars", Category::kOptimizer, rows, count, DType::kF32, 0, 2);
  const Tensor host =
      buffers_.tensor("scalars_host", Category::kData, rows, count, DType::kF32, 0, 2, true);
  tensors().scalars_host = host;
  add(data_node(Copy{.to = scalars_, .from = host}));
  if (spec_.loss_scale) take_scaling();
}

void Draft::take_scaling() {
  first_update_ = take_number(buffers_, "first_update", false, DType::kI32);
  tensors().first_update_host = take_number(buffers_, "first_update_host", true, DType::kI32);
  add(data_node(Copy{.to = *first_update_, .from = *tensors().first_update_host}));
  constexpr std::int64_t kBytes = 4 * bytes_of(DType::kF32);
  const auto numbers_in = [&](const Tensor& bytes) {
    const auto number = [&](std::int64_t place, DType type) {
      return Tensor{bytes.buffer, place * bytes_of(type), 1, 1, type};
    };
    return ScalingState{.numbers = {.scale = number(0, DType::kF32),
                                    .found_inf = number(1, DType::kF32),
                                    .updates = number(2, DType::kI32)},
                        .good_steps = number(3, DType::kI32),
                        .bytes = bytes};
  };
  tensors().scaling =
      numbers_in(buffers_.tensor("loss_scale", Category::kOptimizer, 1, kBytes, DType::kU8));
  tensors().scaling_host = numbers_in(
      buffers_.tensor("loss_scale_host", Category::kData, 1, kBytes, DType::kU8, 0, 2, true));
}

void Draft::add_jitter() {
  if (spec_.jitter_s == 0) return;
  jitter_ = take_number(buffers_, "jitter", false);
  tensors().jitter_host = take_number(buffers_, "jitter_host", true);
  add(data_node(Copy{.to = *jitter_, .from = *tensors().jitter_host}));
}

void Draft::add_step_number() {
  number_ = take_number(buffers_, "step_number", false, DType::kI32);
  tensors().number_host = take_number(buffers_, "step_number_host", true, DType::kI32);
  add(data_node(Copy{.to = *number_, .from = *tensors().number_host}));
}

std::optional<StepRows> Draft::step_rows(const MicroStep& part) const {
  if (!number_) return std::nullopt;
  const bool takes_turns = spec_.data != DataKind::kRandn;
  const StepRows own = takes_turns ? StepRows{*number_, spec_.mesh.data_rank(), spec_.mesh.data}
                                   : StepRows{*number_, spec_.own_rows(rows()).first};
  return own.from(part.first_sample);
}

std::vector<MicroStep> Draft::micro_steps() const {
  const Tensor& x = step_.tensors.x;
  const Tensor& y = step_.tensors.y;
  std::vector<MicroStep> parts;
  for (std::int64_t first = 0; first == 0 || first < x.rows; first += spec_.micro_rows()) {
    const std::int64_t count = std::min(spec_.micro_rows(), x.rows - first);
    parts.push_back({.number = static_cast<int>(parts.size()),
                     .first_sample = first,
                     .x = x.row_slice(first, count),
                     .y = y.row_slice(first, count)});
  }
  return parts;
}

namespace {

/// For each micro-step the place of its activations: the lowest that is free from its forward to
/// its backward pass; a place of its own if nothing is freed.
std::vector<int> slots_of(const PassSchedule& schedule, std::int64_t micro_steps, bool frees) {
  std::vector<int> slots(static_cast<std::size_t>(micro_steps));
  std::vector<bool> in_use;
  for (const auto& [direction, number] : schedule) {
    if (direction == ScheduledPass::Direction::kBackward) {
      in_use[static_cast<std::size_t>(at(slots, number))] = !frees;
      continue;
    }
    const auto free = std::ranges::find(in_use, false);
    at(slots, number) = static_cast<int>(free - in_use.begin());
    if (free == in_use.end()) in_use.push_back(false);
    in_use[static_cast<std::size_t>(at(slots, number))] = true;
  }
  return slots;
}

}  // namespace

PassSchedule accumulation(int micro_steps) {
  using Direction = ScheduledPass::Direction;
  PassSchedule schedule;
  for (int number = 0; number < micro_steps; ++number) {
    schedule.push_back({Direction::kForward, number});
    schedule.push_back({Direction::kBackward, number});
  }
  return schedule;
}

Draft::Placed& Draft::placed(int device) {
  const auto found = placed_.find(device);
  if (found != placed_.end()) return found->second;
  return placed_
      .emplace(device, Placed{.flat = take_flat_buffers(buffers_, spec_.model, parameters_, device),
                              .scratch = Scratch(buffers_, device, model_.stores_gradients),
                              .models = {}})
      .first->second;
}

const Model& Draft::model(int device, int slot) {
  auto& models = placed(device).models;
  while (std::ssize(models) <= slot) models.push_back(std::make_unique<Model>(model_));
  return *at(models, slot);
}

Pass Draft::pass(Phase phase, const PassHooks& hooks, int device, int slot) {
  Placed& place = placed(device);
  return {.program = program(),
          .buffers = buffers_,
          .scratch = place.scratch,
          .model = model_,
          .parameters = parameters_,
          .flat = place.flat,
          .hooks = hooks,
          .device = device,
          .phase = phase,
          .first_row = slot * spec_.micro_rows() * model_.rows_per_sample};
}

Tensor Draft::take_output_grad(const Tensor& values, int device, std::int64_t first_sample) {
  return placed(device).scratch.take("grad_output", first_sample, values.rows, values.cols,
                                     values.dtype);
}

Factors Draft::factors(int linear) {
  const auto all_rows = [&](const Tensor& of_first_micro_step) {
    Tensor all = of_first_micro_step;
    all.rows = tensors().x.rows * model_.rows_per_sample;
    return all;
  };
  const Factors& first = at(model().linears(), linear)->factors();
  return {all_rows(first.grad_y), all_rows(first.x)};
}

bool Draft::is_zero(const MicroStep& part) const {
  return part.x.rows == 0 && model_.stores_gradients;
}

void Draft::passes(const PassSchedule& schedule, const StepHooks& hooks) {
  const std::vector<MicroStep> parts = micro_steps();
  const std::vector<int> slots = slots_of(schedule, std::ssize(parts), model_.stores_gradients);
  std::vector<ModelOutput> outputs(parts.size());
  std::size_t forwards = 0, backwards = 0;
  for (const auto& [direction, number] : schedule) {
    const MicroStep& part = at(parts, number);
    const bool is_forward = direction == ScheduledPass::Direction::kForward;
    std::size_t& count = is_forward ? forwards : backwards;
    const bool is_first = count++ == 0;
    const int slot = at(slots, number);
    const Model& tree = model(0, slot);
    Pass own = pass(is_forward ? Phase::kForward : Phase::kBackward, hooks.pass, 0, slot);
    own.micro_step = number;
    own.is_last = count == parts.size();
    own.step_rows = step_rows(part);
    own.beta = is_first && spec_.zero_grad ? 0 : 1;
    if (!is_forward) {
      backward(part, at(outputs, number).grad, tree, own, hooks);
      continue;
    }
    at(outputs, number) = forward(part, tree, own, hooks);
    add_loss(part, at(outputs, number), is_first);
    if (own.is_last && hooks.loss_ready) hooks.loss_ready();
    if (is_first && !is_zero(part)) add_pause();
  }
}

ModelOutput Draft::forward(const MicroStep& part, const Model& tree, Pass& own,
                           const StepHooks& hooks) {
  if (is_zero(part)) return {};
  if (hooks.forward) return hooks.forward(part);
  const Tensor values = model_.as_samples(tree.root().forward(own, model_.as_rows(part.x)));
  return {values, take_output_grad(values, 0, own.first_row / model_.rows_per_sample)};
}

void Draft::backward(const MicroStep& part, const Tensor& grad, const Model& tree, Pass& own,
                     const StepHooks& hooks) {
  if (hooks.backward) return hooks.backward(part, own.beta);
  if (!is_zero(part)) {
    tree.root().backward(own, model_.as_rows(grad), false);
    return;
  }
  if (!hooks.pass.gradient) {
    const Tensor all = parameters_.flat(require_gradients(), model_.gradient_type());
    add({.op = DeviceOp{Fill{.out = all}}, .phase = Phase::kBackward});
  }
  for (ParameterId id = parameters_.count() - 1; id >= 0; --id) {
    if (hooks.pass.gradient) own.add(Fill{.out = own.gradient(id)}, "");
    own.released(id);
    own.complete(id);
  }
}

void Draft::add_loss(const MicroStep& part, const ModelOutput& output, bool is_first) {
  const Tensor& loss = tensors().loss;
  const std::int64_t own_rows = std::max<std::int64_t>(tensors().x.rows, 1);
  std::optional<Tensor> scale;
  if (const auto& scaling = tensors().scaling) scale = scaling->numbers.scale;
  const Activation activation =
      model_.loss_includes_activation() ? model_.activation : Activation::kNone;
  DeviceOp op = is_zero(part)
                    ? DeviceOp{Fill{.out = loss}}
                    : loss_op(model_, loss, output, part.y, loss_rows_ > 0 ? loss_rows_ : own_rows,
                              is_first ? 0 : 1, scale, activation);
  add({.op = std::move(op), .phase = Phase::kLoss});
}

void Draft::add_pause() {
  if (spec_.delay_s == 0 && !jitter_) return;
  add({.op = DeviceOp{Delay{.seconds = spec_.delay_s, .more_seconds = jitter_}},
       .phase = Phase::kInjected});
}

void Draft::quantize() {
  const Pass own = pass(Phase::kEvaluate, kNoHooks);
  for (const Linear* linear : model().linears()) linear->quantize(own);
}

ModelOutput Draft::evaluation_output() {
  Pass own = pass(Phase::kEvaluate, kNoHooks);
  const Tensor values = model_.as_samples(model().root().forward(own, model_.as_rows(tensors().x)));
  return {values, take_output_grad(values)};
}

void Draft::evaluate(const ModelOutput& output) {
  const auto add_loss = [&](const ModelSpec& model, const Tensor& loss, const Tensor& host) {
    add({.op = loss_op(model, loss, output, step_.tensors.y, std::max<std::int64_t>(rows(), 1), 0),
         .phase = Phase::kEvaluate});
    add(read_back(host, loss, Phase::kEvaluate));
  };
  add_loss(spec_.model, step_.tensors.loss, step_.tensors.loss_host);
  if (takes_labels(spec_.model.loss)) return count_correct(output);
  const auto take_errors = [&](const char* name, bool pinned) {
    return buffers_.tensor(name, Category::kData, 1, output.values.cols, DType::kF32, 0, 2, pinned);
  };
  const SquaredErrors squares{take_errors("squared_errors", false), output.values, step_.tensors.y};
  step_.tensors.squared_errors_host = take_errors("squared_errors_host", true);
  add({.op = DeviceOp{squares}, .phase = Phase::kEvaluate});
  add(read_back(*step_.tensors.squared_errors_host, squares.out, Phase::kEvaluate));
  step_.tensors.absolute_error_host = step_.tensors.loss_host;
  if (spec_.model.loss == LossKind::kL1) return;
  // Computed as a loss whose gradient is not used.
  ModelSpec model = spec_.model;
  model.loss = LossKind::kL1;
  step_.tensors.absolute_error_host = take_number(buffers_, "absolute_error_host", true);
  add_loss(model, take_number(buffers_, "absolute_error", false),
           *step_.tensors.absolute_error_host);
}

/// A run that does not train also reports the class of each sample.
void Draft::count_correct(const ModelOutput& output) {
  CountCorrect op{.correct = take_number(buffers_, "correct", false, DType::kI32),
                  .logits = output.values,
                  .labels = step_.tensors.y,
                  .binary = spec_.model.loss == LossKind::kBce};
  step_.tensors.correct_host = take_number(buffers_, "correct_host", true, DType::kI32);
  const auto take_classes = [&](const char* name, bool pinned) {
    return buffers_.tensor(name, Category::kData, rows(), 1, DType::kI32, 0, 2, pinned);
  };
  if (!spec_.model.trains) {
    op.classes = take_classes("classes", false);
    step_.tensors.classes_host = take_classes("classes_host", true);
  }
  add({.op = DeviceOp{op}, .phase = Phase::kEvaluate});
  add(read_back(*step_.tensors.correct_host, op.correct, Phase::kEvaluate));
  if (op.classes) add(read_back(*step_.tensors.classes_host, *op.classes, Phase::kEvaluate));
}

/// The host reads the loss after the step, so the copy does not stand between loss and backward.
void Draft::read_loss_back() {
  if (kind_ == StepKind::kEvaluation) return;
  add(read_back(step_.tensors.own_loss_host, step_.tensors.loss, Phase::kOptimizer));
}

StepProgram Draft::finish() && {
  read_loss_back();
  order(step_.program);
  return std::move(step_);
}

}  // namespace barestep
