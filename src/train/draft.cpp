#include "train/draft.h"

#include "core/error.h"
#include "core/index.h"
#include "core/random.h"

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

/// A number that the host reads or writes in every step.
Tensor take_number(Buffers& buffers, const char* name, bool pinned, DType dtype = DType::kF32,
                   int device = 0) {
  return buffers.tensor(name, Category::kData, 1, 1, dtype, device, 2, pinned);
}

}  // namespace

ModelSpec teacher_of(const ModelSpec& model) {
  return {.widths = {model.widths.front(), model.widths.front(), model.widths.back()},
          .activation = model.transformer ? Activation::kGelu : model.activation,
          .last_relu = model.last_relu && !model.transformer,
          .rows_per_sample = model.rows_per_sample,
          .fusion = model.fusion,
          .trains = false,
          .name = "teacher"};
}

void refuse_fused_update(const char* why) {
  fail(ExitCode::kConfiguration, {"--update", "fused", why, "use --update separate"});
}

ScalingState scaling_in(const Tensor& bytes) {
  const auto number = [&](std::int64_t place, DType type) {
    return Tensor{bytes.buffer, place * bytes_of(type), 1, 1, type};
  };
  return {.numbers = {.scale = number(0, DType::kF32),
                      .found_inf = number(1, DType::kF32),
                      .updates = number(2, DType::kI32)},
          .good_steps = number(3, DType::kI32),
          .bytes = bytes};
}

Draft::Draft(StepKind kind, const char* name, std::int64_t rows, Buffers& buffers,
             const StepSpec& spec)
    : kind_(kind),
      buffers_(buffers),
      spec_(spec),
      model_(spec.model),
      parameters_(parameters_of(spec.model)),
      step_{.program = Program(name, buffers),
            .rows = rows,
            .is_fused = !spec.model.stores_gradients,
            .tensors = {}} {
  if (spec.chunk_rows > 0 && kind != StepKind::kEvaluation) count_all_rows();
}

void Draft::require_stored_gradients() const {
  if (spec_.model.stores_gradients) return;
  refuse_fused_update("stores no gradients, which several ranks or devices exchange");
}

BufferId Draft::require_gradients() {
  require_stored_gradients();
  return take_gradients(buffers_, spec_.model, placed(0).parameters);
}

float Draft::share() const {
  if (spec_.chunk_rows > 0) return 1;
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
  const std::int64_t chunks = spec_.chunk_rows > 0 ? spec_.chunks_of(rows()) : 0;
  const Tensor global = take("global_loss", Category::kCommunication, 1 + requests + chunks, false);
  const Tensor host = take("global_loss_host", Category::kData, 1 + requests, true);
  tensors().requests_host = take("requests_host", Category::kData, requests, true);
  add(data_node(Copy{.to = global.flat_slice(1, requests), .from = *tensors().requests_host}));
  if (chunks > 0) {
    chunk_losses_ = {global.buffer, global.flat_slice(1 + requests, 0).offset_bytes, chunks, 1};
    // Each is a sum of one rank's number and zeros, which is exact.
    if (spec_.mesh.data > 1)
      add({.op = DeviceOp{Fill{.out = *chunk_losses_}}, .phase = Phase::kLoss});
  }
  return [this, global, host, requests, chunks, scale] {
    // The ranks of a copy of the model have the same loss; one of them adds it.
    const Tensor sum = global.flat_slice(0, 1);
    const auto add_there = [&](DeviceOp op) {
      add({.op = std::move(op), .lane = Lane::kComm, .phase = Phase::kCommunication});
    };
    if (chunks > 0) {
      exchange(AllReduce{.tensors = {global.flat_slice(1, requests + chunks)}, .name = "loss"});
      add_there(SumRows{.out = sum, .in = *chunk_losses_});
    } else {
      add({.op = spec_.mesh.has_results() ? DeviceOp{Copy{.to = sum, .from = tensors().loss}}
                                          : DeviceOp{Fill{.out = sum}},
           .phase = Phase::kLoss});
      exchange(AllReduce{.tensors = {global}, .scale = scale, .name = "loss"});
    }
    add_there(Copy{.to = host, .from = global.flat_slice(0, 1 + requests)});
    tensors().loss_host = host.flat_slice(0, 1);
    tensors().requests_of_all_host = host.flat_slice(1, requests);
  };
}

void Draft::leave_factors(std::string_view option, std::string_view value) {
  model_.stores_gradients = false;
  require_only_linears(parameters_, model().linears(), option, value);
  count_all_rows();
}

void Draft::count_all_rows() {
  const std::int64_t own_rows = spec_.own_rows(rows()).count;
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
  const bool is_part = trains && spec_.draws_all();
  const bool reads_y = spec_.has_loss();
  const bool reads_x = spec_.mesh.stage() == 0 || (reads_y && spec_.input.teacher_noise);
  const auto bring = [&](const std::string& name, std::int64_t cols, DType dtype, bool is_read,
                         std::optional<Tensor>& host) {
    const bool is_drawn = spec_.input.data == DataKind::kRandn;
    const Rows whole{0, is_part ? rows() : own.count};
    Rows taken = is_part ? own : whole;
    if (!is_read) taken.count = 0;  // another stage does
    if (is_drawn && !can_skip(taken, whole, cols)) taken = whole;
    const Tensor all = buffers_.tensor(name, Category::kData, taken.count, cols, dtype, 0, 2);
    if (is_drawn) {
      const std::int64_t bytes = state_bytes(spec_.input.generator);
      tensors.generator = buffers_.tensor("generator", Category::kData, 1, bytes, DType::kU8);
      if (spec_.saves_state && !tensors.generator_host) keep_generator();
      add(data_node(Randn{.out = all,
                          .state = *tensors.generator,
                          .generator = spec_.input.generator,
                          .before = taken.first * cols,
                          .after = (whole.count - taken.first - taken.count) * cols}));
    } else {
      host = buffers_.tensor(name + "_host", Category::kData, own.count, cols, dtype, 0, 2, true);
      if (is_read) add(data_node(Copy{.to = all, .from = *host}));
    }
    // Its rows say how many samples there are, also where none of their numbers are.
    Tensor samples = all.row_slice(is_part ? own.first - taken.first : 0, 0);
    samples.rows = own.count;
    return samples;
  };
  tensors.x = bring("x", spec_.model.inputs(), DType::kF32, reads_x, tensors.x_host);
  if (x_ready) x_ready();
  if (takes_labels(spec_.model.loss)) {
    tensors.y = bring("y", 1, DType::kI32, reads_y, tensors.y_host);
  } else if (spec_.input.teacher_noise) {
    std::optional<Tensor> noise;
    if (*spec_.input.teacher_noise > 0) {
      noise = bring("y", spec_.model.outputs(), DType::kF32, reads_y, tensors.y_host);
    }
    tensors.y = targets_of_teacher(tensors.x, noise);
  } else {
    tensors.y = bring("y", spec_.model.outputs(), DType::kF32, reads_y, tensors.y_host);
  }
  tensors.loss = take_number(buffers_, "loss", false, DType::kF32, loss_device());
  tensors.loss_host = take_number(buffers_, "loss_host", true, DType::kF32, loss_device());
  if (!trains) return;
  if (spec_.has_loss()) tensors.own_loss_host = tensors.loss_host;
  if (spec_.chunk_rows > 0 && !chunk_losses_) {
    chunk_losses_ =
        buffers_.tensor("chunk_losses", Category::kData, spec_.chunks_of(rows()), 1, DType::kF32);
  }
  add_scalars();
  add_jitter();
  if (spec_.model.dropout > 0) add_step_number();
}

Tensor Draft::targets_of_teacher(const Tensor& x, const std::optional<Tensor>& noise) {
  const ModelSpec spec = teacher_of(spec_.model);
  const Model teacher(spec);
  const BufferId flat =
      buffers_.get("teacher_parameters", Category::kData, teacher.parameters().bytes());
  Scratch scratch(buffers_, 0, true);
  Pass pass{.program = program(),
            .buffers = buffers_,
            .scratch = scratch,
            .model = spec,
            .parameters = teacher.parameters(),
            .flat = {flat, flat},
            .hooks = kNoHooks,
            .phase = Phase::kForward};
  const std::int64_t outputs = spec_.model.outputs();
  // A rank without samples or without the loss has no nodes, but a place for its targets.
  if (x.rows == 0 || !spec_.has_loss()) return {flat, 0, x.rows, outputs};
  const Tensor y = spec.as_samples(teacher.root().forward(pass, spec.as_rows(x)));
  if (!noise) return y;
  const auto in_a_row = [](const Tensor& tensor) { return tensor.flat_slice(0, tensor.size()); };
  pass.add(SumRows{.out = in_a_row(*noise),
                   .in = in_a_row(y),
                   .beta = static_cast<float>(*spec_.input.teacher_noise)},
           "teacher");
  return *noise;
}

bool Draft::can_skip(const Rows& taken, const Rows& whole, std::int64_t cols) const {
  const bool in_blocks = taken.first * cols % kNormalBlock == 0 &&
                         taken.count * cols % kNormalBlock == 0 &&
                         whole.count * cols % kNormalBlock == 0;
  return in_blocks && !keeps_all_rows_ && spec_.input.generator == Generator::kTorchCpu;
}

void Draft::keep_generator() {
  const Tensor& state = *step_.tensors.generator;
  const Tensor host =
      buffers_.tensor("generator_host", Category::kData, 1, state.cols, DType::kU8, 0, 2, true);
  step_.tensors.generator_host = host;
  add(data_node(Copy{.to = host, .from = state}));
}

void Draft::add_scalars() {
  const std::int64_t rows = spec_.update.loss_scale ? kScalarRows : 1;
  const std::int64_t count = scalars_of(step_of(spec_.update.optimizer));
  scalars_ = buffers_.tensor("scalars", Category::kOptimizer, rows, count, DType::kF32, 0, 2);
  const Tensor host =
      buffers_.tensor("scalars_host", Category::kData, rows, count, DType::kF32, 0, 2, true);
  tensors().scalars_host = host;
  add(data_node(Copy{.to = scalars_, .from = host}));
  if (spec_.update.loss_scale) take_scaling();
}

void Draft::take_scaling() {
  first_update_ = take_number(buffers_, "first_update", false, DType::kI32);
  tensors().first_update_host = take_number(buffers_, "first_update_host", true, DType::kI32);
  add(data_node(Copy{.to = *first_update_, .from = *tensors().first_update_host}));
  constexpr std::int64_t kBytes = 4 * bytes_of(DType::kF32);
  tensors().scaling =
      scaling_in(buffers_.tensor("loss_scale", Category::kOptimizer, 1, kBytes, DType::kU8));
  tensors().scaling_host = scaling_in(
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

std::optional<StepRows> Draft::step_rows(const MicroStep& part, int device) {
  if (!number_) return std::nullopt;
  const Tensor number = on_device(*number_, device);
  const bool takes_turns = spec_.input.data != DataKind::kRandn && spec_.input.in_turns;
  const StepRows own = takes_turns ? StepRows{number, spec_.mesh.data_rank(), spec_.mesh.data}
                                   : StepRows{number, spec_.own_rows(rows()).first};
  return own.from(part.first_sample);
}

std::vector<MicroStep> Draft::micro_steps() const {
  const Tensor& x = step_.tensors.x;
  const Tensor& y = step_.tensors.y;
  std::vector<MicroStep> parts;
  const std::int64_t pieces = spec_.pipeline.micro_batches;
  const std::int64_t each =
      pieces == 1 ? spec_.micro_rows() : std::max<std::int64_t>((x.rows + pieces - 1) / pieces, 1);
  // The first data rank has the most.
  const auto most_of = [&](std::int64_t all) {
    return share_of_rank(all, 0, spec_.mesh.data).count;
  };
  std::int64_t rows = x.rows;
  if (aligns_micro_steps_) {
    rows = spec_.chunk_rows > 0 ? most_of(spec_.chunks_of(step_.rows)) * each : most_of(step_.rows);
  }
  for (std::int64_t next = 0; next == 0 || next < rows; next += each) {
    const std::int64_t first = std::min(next, x.rows);
    const std::int64_t count = std::min(each, x.rows - first);
    parts.push_back({.number = static_cast<int>(parts.size()),
                     .first_sample = first,
                     .x = x.row_slice(first, count),
                     .y = y.row_slice(first, count)});
  }
  return parts;
}

Draft::Placed& Draft::placed(int device) {
  const auto found = placed_.find(device);
  if (found != placed_.end()) return found->second;
  const int stages = spec_.stages_here();
  const LayerRange layers =
      stages == 1 ? model_.held_layers() : at(layers_of_stages(model_, stages), device);
  const Parameters parameters = parameters_of(model_, layers);
  const Holding holding = stages == 1 && device > 0 ? Holding::kOperands : Holding::kParameters;
  return placed_
      .emplace(device, Placed{.layers = layers,
                              .parameters = parameters,
                              .flat = take_flat_buffers(buffers_, spec_.model, parameters, device,
                                                        holding, spec_.update.held_parameters),
                              .scratch = Scratch(buffers_, device, model_.stores_gradients),
                              .models = {}})
      .first->second;
}

const Model& Draft::model(int device, int slot) {
  Placed& place = placed(device);
  while (std::ssize(place.models) <= slot) {
    place.models.push_back(std::make_unique<Model>(model_, place.layers));
  }
  return *at(place.models, slot);
}

Pass Draft::pass(Phase phase, const PassHooks& hooks, int device, int slot) {
  Placed& place = placed(device);
  return {.program = program(),
          .buffers = buffers_,
          .scratch = place.scratch,
          .model = model_,
          .parameters = place.parameters,
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

void Draft::passes(const StepHooks& hooks) {
  const int micro_steps_here = static_cast<int>(micro_steps().size());
  if (spec_.mesh.pipeline == 1) return passes(accumulation(micro_steps_here), hooks);
  PipelineSpec pipeline = spec_.pipeline;
  pipeline.micro_batches = micro_steps_here;
  const std::vector<PassSchedule> of_stages = schedules_of_stages(pipeline);
  StepHooks own = hooks;
  own.stage = stage_exchanges(*this, of_stages);
  own.loss_ready = {};
  passes(at(of_stages, spec_.mesh.stage()), own);
  if (hooks.loss_ready) hooks.loss_ready();
}

namespace {

/// Keeps what a backward pass says of gradients until its result is sent. Another stage waits for
/// the result, and sums of gradients before it on the lane would hold it up.
class HeldHooks {
 public:
  explicit HeldHooks(const PassHooks& hooks) : hooks_(hooks) {
    hold(hooks_.complete);
    hold(hooks_.released);
  }
  HeldHooks(const HeldHooks&) = delete;
  HeldHooks& operator=(const HeldHooks&) = delete;

  [[nodiscard]] const PassHooks& hooks() const { return hooks_; }

  void call(const Pass& pass) {
    for (const auto& call : calls_) call(pass);
    calls_.clear();
  }

 private:
  void hold(std::function<void(const Pass&, ParameterId)>& hook) {
    if (!hook) return;
    hook = [this, original = hook](const Pass& /*pass*/, ParameterId id) {
      calls_.push_back([original, id](const Pass& pass) { original(pass, id); });
    };
  }

  PassHooks hooks_;
  std::vector<std::function<void(const Pass&)>> calls_;
};

}  // namespace

void Draft::passes(const PassSchedule& schedule, const StepHooks& hooks) {
  const std::vector<MicroStep> parts = micro_steps();
  const int last_stage = spec_.pipeline.stages - 1;
  const auto places =
      places_of_activations(schedule, static_cast<int>(parts.size()), model_.stores_gradients);
  std::vector<ModelOutput> outputs(parts.size());  // of the last stage
  std::map<std::pair<int, ScheduledPass::Direction>, std::size_t> counts;
  const bool splits = splits_backward(schedule);
  HeldHooks held(hooks.pass);
  for (const ScheduledPass& scheduled : schedule) {
    const auto& [direction, number, stage] = scheduled;
    const MicroStep& part = at(parts, number);
    const bool is_forward = direction == ScheduledPass::Direction::kForward;
    const Phase phase = is_forward ? Phase::kForward : Phase::kBackward;
    std::size_t& count = counts[{stage, direction}];
    const bool is_first = count++ == 0;
    const int slot = at(at(places, stage), number);
    const Model& tree = model(device_of(stage), slot);
    const bool is_last = count == parts.size();
    const bool sends_first =
        is_last && direction == ScheduledPass::Direction::kBackward && stage > 0;
    Pass own = pass(phase, sends_first ? held.hooks() : hooks.pass, device_of(stage), slot);
    own.micro_step = number;
    own.is_last = is_last;
    own.step_rows = step_rows(part, own.device);
    own.beta = (is_first && spec_.update.zero_grad) || hooks.pass.overwrites_gradients ? 0 : 1;
    own.is_empty = is_zero(part);
    own.leaves_weights = splits;
    const NodeId first_node = step_.program.size();
    if (direction == ScheduledPass::Direction::kWeights) {
      const std::vector<Linear*>& linears = tree.linears();
      for (auto linear = linears.rbegin(); linear != linears.rend(); ++linear) {
        (*linear)->add_left_gradient(own);
      }
      number_nodes(first_node, own, true);
      continue;
    }
    if (!is_forward) {
      if (is_first && !spec_.has_loss() && !is_zero(part)) add_pause();
      backward(scheduled, part, at(outputs, number).grad, tree, own, hooks);
      number_nodes(first_node, own);
      held.call(own);
      continue;
    }
    ModelOutput output = forward(scheduled, part, tree, own, hooks);
    number_nodes(first_node, own);
    if (stage != last_stage) continue;
    add_loss(part, output, is_first);
    at(outputs, number) = output;
    if (own.is_last && hooks.loss_ready) hooks.loss_ready();
    if (is_first && !is_zero(part)) add_pause();
  }
}

void Draft::number_nodes(NodeId first, const Pass& pass, bool is_for_weights) {
  if (spec_.pipeline.stages == 1) return;
  for (NodeId id = first; id < step_.program.size(); ++id) {
    Node& node = at(step_.program.nodes(), id);
    if (node.lane != Lane::kCompute) continue;
    node.micro_batch = pass.micro_step;
    node.is_for_weights = is_for_weights;
  }
}

Tensor Draft::take_received(const ScheduledPass& scheduled, const Pass& pass,
                            std::int64_t samples) {
  const bool is_forward = scheduled.direction == ScheduledPass::Direction::kForward;
  const LayerRange& layers = placed(pass.device).layers;
  const std::int64_t cols = model_.inputs_of(is_forward ? layers.first : layers.end);
  // A gradient is needed until the pass for the weights, if there is one.
  const std::int64_t first = is_forward || pass.leaves_weights ? pass.first_row : 0;
  const std::int64_t rows = samples * model_.rows_per_sample;
  Tensor all = buffers_.tensor(is_forward ? "stage_input" : "stage_grad", Category::kActivations,
                               first + rows, cols, model_.stream(), pass.device);
  return all.row_slice(first, rows);
}

ModelOutput Draft::forward(const ScheduledPass& scheduled, const MicroStep& part, const Model& tree,
                           Pass& own, const StepHooks& hooks) {
  if (hooks.forward) return hooks.forward(part);
  Tensor x = model_.as_rows(part.x);
  if (own.is_empty) {
    tree.root().forward(own, x);
    return {};
  }
  if (scheduled.stage > 0) {
    x = take_received(scheduled, own, part.x.rows);
    hooks.stage.receive(scheduled, x);
  }
  const Tensor y = tree.root().forward(own, x);
  if (scheduled.stage + 1 < spec_.pipeline.stages) {
    hooks.stage.send(scheduled, y);
    return {};
  }
  const Tensor values = model_.as_samples(y);
  return {values, take_output_grad(values, own.device, own.first_row / model_.rows_per_sample)};
}

void Draft::backward(const ScheduledPass& scheduled, const MicroStep& part, const Tensor& grad,
                     const Model& tree, Pass& own, const StepHooks& hooks) {
  if (hooks.backward) return hooks.backward(part, own.beta);
  if (own.is_empty) return add_zero_gradients(tree, own, scheduled.stage > 0);
  Tensor grad_y = model_.as_rows(grad);
  if (scheduled.stage + 1 < spec_.pipeline.stages) {
    grad_y = take_received(scheduled, own, part.x.rows);
    hooks.stage.receive(scheduled, grad_y);
  }
  const Tensor grad_x = tree.root().backward(own, grad_y, scheduled.stage > 0);
  if (scheduled.stage > 0) hooks.stage.send(scheduled, grad_x);
}

void Draft::add_zero_gradients(const Model& tree, Pass& own, bool wants_grad_x) {
  if (!own.hooks.gradient && own.beta == 0) {
    const Tensor all = parameters_.flat(require_gradients(), model_.gradient_type());
    add({.op = DeviceOp{Fill{.out = all}}, .phase = Phase::kBackward});
  }
  tree.root().backward(own, Tensor{.dtype = model_.stream()}, wants_grad_x);
}

void Draft::give_back(const ScheduledPass& pass, const Tensor& result) {
  if (pass.direction == ScheduledPass::Direction::kBackward) {
    placed(device_of(pass.stage)).scratch.give_back(result);
  }
}

void Draft::copy_between(const Tensor& to, const Tensor& from) {
  add({.op = DeviceOp{Copy{.to = to, .from = from}},
       .device = buffers_[to.buffer].device,
       .lane = Lane::kComm,
       .phase = Phase::kCommunication});
}

Tensor Draft::on_device(const Tensor& numbers, int device) {
  const Buffer original = buffers_[numbers.buffer];
  if (original.device == device) return numbers;
  const auto [copy, is_new] = copies_.try_emplace({numbers.buffer, device});
  if (is_new) {
    copy->second = buffers_.tensor(original.name, original.category, numbers.rows, numbers.cols,
                                   numbers.dtype, device);
    copy_between(copy->second, numbers);
  }
  return copy->second;
}

void Draft::add_loss(const MicroStep& part, const ModelOutput& output, bool is_first) {
  if (is_zero(part) && !is_first) return;
  const bool is_chunk = chunk_losses_ && !is_zero(part);
  const Rows own = is_chunk ? spec_.own_chunks(rows()) : Rows{};
  const std::int64_t number = own.first + part.number;
  const Tensor loss = is_chunk ? chunk_losses_->row_slice(number, 1) : tensors().loss;
  const std::int64_t own_rows = std::max<std::int64_t>(tensors().x.rows, 1);
  std::optional<Tensor> scale;
  if (const auto& scaling = tensors().scaling) {
    scale = scaling_in(on_device(scaling->bytes, loss_device())).numbers.scale;
  }
  const Tensor target =
      on_device(tensors().y, loss_device()).row_slice(part.first_sample, part.y.rows);
  const Activation activation =
      model_.loss_includes_activation() ? model_.activation : Activation::kNone;
  DeviceOp op = is_zero(part)
                    ? DeviceOp{Fill{.out = loss}}
                    : loss_op(model_, loss, output, target, loss_rows_ > 0 ? loss_rows_ : own_rows,
                              is_first || is_chunk ? 0 : 1, scale, activation);
  add({.op = std::move(op), .device = loss_device(), .phase = Phase::kLoss});
  if (is_chunk && part.number + 1 == own.count) add_up_chunk_losses();
}

void Draft::add_up_chunk_losses() {
  const Rows own = spec_.own_chunks(rows());
  add({.op = DeviceOp{SumRows{.out = tensors().loss,
                              .in = chunk_losses_->row_slice(own.first, own.count)}},
       .phase = Phase::kLoss});
}

void Draft::add_pause() {
  if (spec_.delay_s == 0 && !jitter_) return;
  std::optional<Tensor> jitter;
  if (jitter_) jitter = on_device(*jitter_, loss_device());
  add({.op = DeviceOp{Delay{.seconds = spec_.delay_s, .more_seconds = jitter}},
       .device = loss_device(),
       .phase = Phase::kInjected});
}

void Draft::quantize() {
  const Pass own = pass(Phase::kEvaluate, kNoHooks);
  for (const Linear* linear : model().linears()) linear->quantize(own);
}

ModelOutput Draft::evaluation_output(const StageHooks& hooks, const PassHooks& pass_hooks) {
  if (spec_.mesh.pipeline == 1) {
    return evaluation_output(0, spec_.pipeline.stages, hooks, pass_hooks);
  }
  std::vector<PassSchedule> of_stages;
  for (int stage = 0; stage < spec_.mesh.pipeline; ++stage) {
    of_stages.push_back({ScheduledPass{.stage = stage}});
  }
  const int own = spec_.mesh.stage();
  return evaluation_output(own, own + 1, stage_exchanges(*this, of_stages), pass_hooks);
}

ModelOutput Draft::evaluation_output(int first_stage, int end_stage, const StageHooks& hooks,
                                     const PassHooks& pass_hooks) {
  Tensor x = model_.as_rows(tensors().x);
  for (int stage = first_stage; stage < end_stage; ++stage) {
    const ScheduledPass scheduled{.stage = stage};
    Pass own = pass(Phase::kEvaluate, pass_hooks, device_of(stage));
    if (stage > 0) {
      x = take_received(scheduled, own, tensors().x.rows);
      hooks.receive(scheduled, x);
    }
    const Tensor y = model(own.device).root().forward(own, x);
    if (stage + 1 == spec_.pipeline.stages) {
      const Tensor values = model_.as_samples(y);
      return {values, take_output_grad(values, own.device)};
    }
    hooks.send(scheduled, y);
  }
  return {};  // another rank has the end of the model
}

void Draft::evaluate(const ModelOutput& output) {
  const Tensor y = on_device(step_.tensors.y, loss_device());
  const auto add_loss = [&](const ModelSpec& model, const Tensor& loss, const Tensor& host) {
    add_result(loss_op(model, loss, output, y, std::max<std::int64_t>(rows(), 1), 0), loss, host);
  };
  add_loss(spec_.model, step_.tensors.loss, step_.tensors.loss_host);
  if (takes_labels(spec_.model.loss)) return count_correct(output, y);
  const auto take_errors = [&](const char* name, bool pinned) {
    return buffers_.tensor(name, Category::kData, 1, spec_.model.outputs(), DType::kF32,
                           loss_device(), 2, pinned);
  };
  const SquaredErrors squares{take_errors("squared_errors", false), output.values, y};
  step_.tensors.squared_errors_host = take_errors("squared_errors_host", true);
  add_result(squares, squares.out, *step_.tensors.squared_errors_host);
  step_.tensors.absolute_error_host = step_.tensors.loss_host;
  if (spec_.model.loss == LossKind::kL1) return;
  // Computed as a loss whose gradient is not used.
  ModelSpec model = spec_.model;
  model.loss = LossKind::kL1;
  const auto take = [&](const char* name, bool pinned) {
    return take_number(buffers_, name, pinned, DType::kF32, loss_device());
  };
  step_.tensors.absolute_error_host = take("absolute_error_host", true);
  add_loss(model, take("absolute_error", false), *step_.tensors.absolute_error_host);
}

/// A run that does not train also reports the class of each sample.
void Draft::count_correct(const ModelOutput& output, const Tensor& labels) {
  const auto take = [&](const char* name, std::int64_t count, bool pinned) {
    return buffers_.tensor(name, Category::kData, count, 1, DType::kI32, loss_device(), 2, pinned);
  };
  CountCorrect op{.correct = take("correct", 1, false),
                  .logits = output.values,
                  .labels = labels,
                  .binary = spec_.model.loss == LossKind::kBce};
  step_.tensors.correct_host = take("correct_host", 1, true);
  if (!spec_.model.trains) {
    op.classes = take("classes", rows(), false);
    step_.tensors.classes_host = take("classes_host", rows(), true);
  }
  add_result(op, op.correct, *step_.tensors.correct_host);
  if (op.classes) read_back(*step_.tensors.classes_host, *op.classes, Phase::kEvaluate);
}

void Draft::add_result(DeviceOp op, const Tensor& result, const Tensor& host) {
  if (!spec_.has_loss()) return;
  add({.op = std::move(op), .device = loss_device(), .phase = Phase::kEvaluate});
  read_back(host, result, Phase::kEvaluate);
}

void Draft::read_back(const Tensor& host, const Tensor& from, Phase phase) {
  add({.op = DeviceOp{Copy{.to = host, .from = from}},
       .device = buffers_[from.buffer].device,
       .phase = phase});
}

/// The host reads the loss after the step, so the copy does not stand between loss and backward.
void Draft::read_loss_back() {
  if (kind_ == StepKind::kEvaluation) return;
  if (const auto& host = step_.tensors.own_loss_host) {
    read_back(*host, step_.tensors.loss, Phase::kOptimizer);
  }
}

StepProgram Draft::finish() && {
  read_loss_back();
  order(step_.program);
  return std::move(step_);
}

}  // namespace barestep
