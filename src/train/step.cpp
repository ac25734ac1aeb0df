#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/plan.h"
#include "core/units.h"
#include "train/chunk_sums.h"
#include "train/training_state.h"

namespace barestep {
namespace {

void require_whole_step(const StepSpec& spec) {
  if (!spec.input.drop_last || spec.input.train_rows == 0 || spec.epoch_rows() > 0) return;
  fail(ExitCode::kConfiguration,
       {"--drop-last", "",
        fmt::format("the training set has {} {}, a step takes {}", grouped(spec.input.train_rows),
                    noun_for(spec.input.train_rows, "sample"), grouped(spec.step_rows())),
        "use a smaller --batch-size"});
}

/// With workers, the delay is theirs and runs alongside the step.
double io_delay_in_step_s(const DataConfig& data) {
  const bool in_worker = data.kind != DataKind::kRandn && data.workers > 0;
  return in_worker ? 0 : data.io_delay_ms / 1e3;
}

/// PyTorch's x86 kernels use 7 bits on every processor; ours use 8 if their products are exact.
std::optional<QuantizationSpec> quantization_of(const DeviceConfig& config, DeviceKind kind) {
  if (!quantizes(config.precision)) return std::nullopt;
  const Quantization scheme = config.quantization.value_or(Quantization::kRow);
  const bool is_exact = kind == DeviceKind::kCuda || has_vnni();
  return QuantizationSpec{.scheme = scheme,
                          .bits = scheme == Quantization::kRow && is_exact ? 8 : 7};
}

ModelSpec model_spec_of(const TrainConfig& config, DeviceKind kind) {
  const ModelConfig& model = config.model;
  ModelSpec spec{.widths = widths_of(model, default_dim(kind)),
                 .activation = model.activation,
                 .last_relu = model.last_relu,
                 .loss = model.loss,
                 .label_smoothing = model.label_smoothing,
                 .dropout = model.dropout,
                 .dropout_seed = config.training.seed,
                 .fusion = config.device.fusion,
                 .stores_gradients = config.training.update != Update::kFused,
                 .numbers = type_of(config.device.precision),
                 .segments = static_cast<int>(std::max<std::int64_t>(config.training.recompute, 1)),
                 .quantized = quantization_of(config.device, kind)};
  if (model.block == BlockKind::kTransformer) {
    const std::int64_t dim = spec.widths.front();
    spec.transformer =
        TransformerSpec{.attention = attention_of(model, dim), .ffn = ffn_of(model, dim)};
    spec.activation = Activation::kNone;  // none follows a block
    spec.rows_per_sample = spec.transformer->attention.length;
  }
  return spec;
}

/// Throws Error(kConfiguration) if a pipeline has more stages than the model has layers.
void require_layer_for_each_stage(const StepSpec& spec) {
  const int layers = spec.model.layers();
  if (spec.pipeline.stages <= layers) return;
  fail(ExitCode::kConfiguration,
       {"--pipeline", std::to_string(spec.pipeline.stages),
        fmt::format("the model has {}, and each stage needs one", counted(layers, "layer")),
        fmt::format("use at most --pipeline {}", layers)});
}

}  // namespace

StepSpec spec_of(const TrainConfig& config, DeviceKind kind, const Dataset* dataset) {
  StepSpec spec{
      .model = model_spec_of(config, kind),
      .input = {.data = config.data.kind,
                .generator = generator_of(kind),
                .train_rows = dataset == nullptr ? 0 : dataset->train_rows(),
                .test_rows = dataset == nullptr ? 0 : dataset->test_rows(),
                .drop_last = config.data.drop_last,
                .workers_ahead = config.data.kind == DataKind::kRandn
                                     ? 0
                                     : std::int64_t{config.data.workers} * config.data.prefetch,
                .streams = dataset != nullptr && !dataset->is_loaded(),
                .teacher_noise =
                    config.data.teacher ? std::optional(config.data.teacher_noise) : std::nullopt},
      .update = {.optimizer = config.optimizer,
                 .zero_grad = config.training.zero_grad,
                 .clip_norm = config.training.clip_norm,
                 .loss_scale = loss_scaling_of(config),
                 .staleness = config.training.staleness,
                 .sync_every = config.parallel.sync_every,
                 .outer = config.parallel.outer},
      .batch_size = config.data.batch_size,
      .accumulate = config.training.accumulate,
      .chunk_rows = config.training.chunk_rows.value_or(0),
      .pipeline = {.stages = static_cast<int>(config.parallel.pipeline),
                   .micro_batches = static_cast<int>(micro_batches_of(config.parallel)),
                   .schedule = config.parallel.schedule},
      .delay_s = config.injected.delay_ms / 1e3,
      .jitter_s = config.injected.jitter_ms / 1e3,
      .io_delay_s = io_delay_in_step_s(config.data),
      .workspace_bytes = workspace_bytes(kind),
      .saves_state = !config.checkpoint.folder.empty(),
      .verifies = config.output.verify_every.has_value(),
      .has_own_memory = kind == DeviceKind::kCuda};
  require_layer_for_each_stage(spec);
  return spec;
}

StepSpec evaluation_spec_of(StepSpec training) {
  StepSpec spec = std::move(training);
  spec.model.trains = false;
  if (spec.input.test_rows == 0) spec.input.test_rows = spec.input.train_rows;
  spec.input.train_rows = 0;
  return spec;
}

std::optional<DeviceOp> rounding_of(const StepPrograms& programs, const HeldStage& stage) {
  const DType type = programs.spec().model.numbers;
  if (type == DType::kF32) return std::nullopt;
  const FlatRange held{0, stage.held_numbers};
  return Cast{.to = held.of(stage.flat.operands, type), .from = held.of(stage.flat.parameters)};
}

void Scheme::build(Draft& draft) const {
  draft.input();
  std::optional<ChunkSums> chunks;
  if (draft.spec().chunk_rows > 0) chunks.emplace(draft);
  draft.passes({.pass = chunks ? chunks->hooks() : PassHooks{}});
  if (draft.spec().update.staleness == 0) return draft.update();
  static_cast<void>(draft.update_later());
}

std::vector<StepKind> Scheme::kinds(const StepSpec& spec) const {
  if (spec.update.staleness == 0) return {StepKind::kTraining};
  return {StepKind::kTraining, StepKind::kFirstTraining};
}

StepKind Scheme::kind_of(const StepPlace& place, const StepSpec& spec) const {
  return place.number < spec.update.staleness ? StepKind::kFirstTraining : StepKind::kTraining;
}

void Scheme::evaluate(Draft& draft) const {
  draft.input();
  draft.evaluate(draft.evaluation_output());
}

std::vector<FlatRange> Scheme::held(Category /*category*/, const Parameters& parameters,
                                    int /*rank*/, int /*ranks*/) const {
  return {{0, parameters.bytes() / bytes_of(DType::kF32)}};
}

StepPrograms::StepPrograms(const StepSpec& spec, const Scheme* scheme)
    : spec_(spec),
      scheme_(scheme),
      list_(parameters_of(spec.model)),
      whole_(whole_parameters_of(spec.model)) {
  // PyTorch reduces and accumulates gradients in fp32, and so are those of norms.
  ModelSpec& model = spec_.model;
  model.wide_gradients = model.numbers == DType::kF32 || model.transformer || scheme != nullptr ||
                         spec.accumulate > 1 || spec.chunk_rows > 0 || !spec.update.zero_grad ||
                         spec.update.staleness > 0;
  require_whole_step(spec);
  spec_.update.held_parameters.reset();  // the spec may be another scheme's
  if (scheme != nullptr) {
    const Mesh& mesh = spec.mesh;
    std::int64_t held = 0;
    for (const FlatRange& range :
         scheme->held(Category::kParameters, list_, mesh.data_rank(), mesh.data)) {
      held += range.count;
    }
    if (held != list_.bytes() / bytes_of(DType::kF32)) spec_.update.held_parameters = held;
  }
  hold_stages();
  if (spec.model.trains) used_ = training_steps(spec_);
  if (spec.model.trains && spec.update.tries_both) {
    StepSpec other = spec_;
    other.model.stores_gradients = !other.model.stores_gradients;
    other_ = training_steps(other);
  }
  if (spec.verifies) make_room_for_verification();
  if (spec.saves_state) make_room_for_state();
  if (spec.model.trains && spec.batches_ahead() > 0) make_room_for_batches();
  if (spec.input.test_rows > 0) build_evaluation();
  if (spec.model.quantized) {
    Draft draft(StepKind::kEvaluation, "quantize", 0, buffers_, spec_);
    draft.quantize();
    quantize_ = std::make_unique<StepProgram>(std::move(draft).finish());
  }
}

void StepPrograms::hold_stages() {
  const int stages = spec_.stages_here();
  const std::vector<LayerRange> held =
      stages == 1 ? std::vector{spec_.model.held_layers()} : layers_of_stages(spec_.model, stages);
  for (const LayerRange& layers : held) {
    const int device = static_cast<int>(stages_.size());
    if (spec_.workspace_bytes > 0) {
      buffers_.get("workspace", Category::kWorkspace, spec_.workspace_bytes, device);
    }
    const Parameters parameters = parameters_of(spec_.model, layers);
    const std::int64_t numbers = parameters.bytes() / bytes_of(DType::kF32);
    stages_.push_back(
        {.device = device,
         .parameters = parameters,
         .range = {0, numbers},
         .held_numbers = spec_.update.held_parameters.value_or(numbers),
         .flat = take_flat_buffers(buffers_, spec_.model, parameters, device, Holding::kParameters,
                                   spec_.update.held_parameters)});
    // The parameters added last come first.
    for (HeldStage& before : stages_) {
      if (before.device < device) before.range.first += numbers;
    }
  }
}

void StepPrograms::build_evaluation() {
  const std::int64_t own = spec_.own_test_rows().count;
  const std::int64_t rows = std::min(spec_.micro_rows(), own);
  const auto programs_for = [&](std::int64_t count) {
    const std::int64_t each = std::max<std::int64_t>(std::min(spec_.micro_rows(), count), 1);
    return std::max<std::int64_t>((count + each - 1) / each, 1);
  };
  evaluations_ = programs_for(own);
  // The first data rank has the most rows.
  if (spec_.update.held_parameters) {
    evaluations_ = programs_for(share_of_rank(spec_.input.test_rows, 0, spec_.mesh.data).count);
  }
  evaluate_ = new_step(StepKind::kEvaluation, "evaluate", rows, spec_);
  if (const std::int64_t rest = own - (evaluations_ - 1) * rows; rest != rows) {
    last_evaluate_ = new_step(StepKind::kEvaluation, "last evaluate", rest, spec_);
  }
}

StepPrograms::TrainingSteps StepPrograms::training_steps(const StepSpec& spec) {
  TrainingSteps steps;
  const std::int64_t rest = spec_.epoch_rows() % spec_.step_rows();
  for (const StepKind kind : used_scheme().kinds(spec_)) {
    const bool is_usual = kind == StepKind::kTraining;
    const bool is_first = kind == StepKind::kFirstTraining;
    const char* const name = is_usual ? "train" : is_first ? "first step" : "local step";
    steps.whole[kind] = new_step(kind, name, spec_.step_rows(), spec);
    if (rest == 0) continue;
    const char* const name_of_last = is_usual   ? "last batch"
                                     : is_first ? "first step, last batch"
                                                : "local step, last batch";
    steps.last_batch[kind] = new_step(kind, name_of_last, rest, spec);
  }
  return steps;
}

const StepProgram* StepPrograms::last_batch() const {
  const auto found = used_.last_batch.find(StepKind::kTraining);
  return found == used_.last_batch.end() ? nullptr : found->second.get();
}

void StepPrograms::settle_update(bool stores_gradients) {
  BARESTEP_REQUIRE(spec_.update.tries_both, "the programs have both ways to update");
  spec_.update.tries_both = false;
  if (spec_.model.stores_gradients == stores_gradients) return;
  spec_.model.stores_gradients = stores_gradients;
  std::swap(used_, other_);
}

const Scheme& StepPrograms::used_scheme() const {
  static const Scheme alone;
  return scheme_ == nullptr ? alone : *scheme_;
}

const StepProgram& StepPrograms::of(const StepPlace& place, bool is_whole) const {
  const TrainingSteps& steps = place.tries_other ? other_ : used_;
  const StepKind kind = used_scheme().kind_of(place, spec_);
  return *(is_whole ? steps.whole : steps.last_batch).at(kind);
}

bool StepPrograms::has_common_weights_after(const StepPlace& place) const {
  return used_scheme().kind_of(place, spec_) != StepKind::kLocalTraining;
}

void StepPrograms::make_room_for_batches() {
  const auto bytes_of_row = [](const Tensor& batch) { return bytes_of(batch.dtype) * batch.cols; };
  const StepTensors& tensors = train().tensors;
  const std::int64_t bytes = bytes_of_row(*tensors.x_host) + bytes_of_row(*tensors.y_host);
  batches_ahead_ = buffers_.tensor("batches_ahead", Category::kData, spec_.batches_ahead(),
                                   bytes * spec_.max_own_rows(), DType::kU8, 0, 1, true);
}

void StepPrograms::make_room_for_state() {
  const auto room = [&](const char* name, std::int64_t bytes, bool pinned) {
    return buffers_.tensor(name, Category::kCheckpoint, 1, bytes, DType::kU8, 0, 1, pinned);
  };
  state_host_ = room("state_host", bytes_saved(*this), true);
  // A snapshot of all stages has no room beside one of them.
  if (spec_.has_own_memory && spec_.stages_here() == 1) {
    state_snapshot_ = room("state_snapshot", generator_offset(*this), false);
  }
}

void StepPrograms::make_room_for_verification() {
  const int devices = MemoryPlan(buffers_).devices();
  for (const StepProgram* const step : all()) {
    for (int device = 0; device < devices; ++device) {
      for (const Tensor& each : state_of_step(step->program, device)) {
        const bool is_known = std::ranges::find(verified_state_, each) != verified_state_.end();
        if (!is_known) verified_state_.push_back(each);
      }
    }
  }
  for (const Tensor& each : verified_state_) {
    const Buffer buffer = buffers_[each.buffer];
    BARESTEP_REQUIRE(buffer.slots == 1, "a step finds its state where the one before it left it");
    buffers_.get("kept " + buffer.name, Category::kCheckpoint, buffer.bytes, buffer.device, 1,
                 buffer.pinned);
  }
}

Tensor StepPrograms::room_for_kept(BufferId buffer) const {
  const Buffer& of = buffers_[buffer];
  return {buffers_.find("kept " + of.name, of.device), 0, 1, of.bytes, DType::kU8};
}

StepPrograms::Step StepPrograms::new_step(StepKind kind, const char* name, std::int64_t rows,
                                          const StepSpec& spec) {
  Draft draft(kind, name, rows, buffers_, spec);
  if (kind == StepKind::kEvaluation) {
    used_scheme().evaluate(draft);
  } else {
    used_scheme().build(draft);
    if (kind == StepKind::kTraining) {
      for (HeldStage& stage : stages_) {
        stage.optimizer_state = draft.optimizer_state().at(stage.device);
      }
      kept_ = draft.kept_buffers();
    }
  }
  return std::make_unique<StepProgram>(std::move(draft).finish());
}

std::vector<const StepProgram*> StepPrograms::all() const {
  std::vector<const StepProgram*> found;
  const auto add = [&](const Step& step) {
    if (step != nullptr) found.push_back(step.get());
  };
  for (const TrainingSteps* steps : {&used_, &other_}) {
    for (const auto& [kind, step] : steps->whole) add(step);
    for (const auto& [kind, step] : steps->last_batch) add(step);
  }
  for (const Step* step : {&evaluate_, &last_evaluate_, &quantize_}) add(*step);
  return found;
}

std::vector<FlatRange> StepPrograms::held_by(int data_rank, BufferId flat) const {
  return used_scheme().held(buffers_[flat].category, list_, data_rank, spec_.mesh.data);
}

bool StepPrograms::is_shared_out(BufferId flat) const {
  return spec_.mesh.data > 1 && held_by(0, flat) != held_by(1, flat);
}

bool StepPrograms::is_own(BufferId flat) const {
  // A round of local SGD starts for all ranks from the same average, and the same momentum.
  const auto is_kept = [&](const KeptBuffer& kept) { return kept.flat == flat; };
  return spec_.mesh.data > 1 && used_scheme().is_own(buffers_[flat].category) &&
         std::ranges::none_of(kept_, is_kept);
}

BufferId StepPrograms::gradients() const {
  if (!spec_.model.stores_gradients) {
    refuse_fused_update("stores no gradients that could be read");
  }
  return buffers_.find("gradients");
}

}  // namespace barestep
