// A step under construction: the operations from which schemes compose it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/mesh.h"
#include "core/ops.h"
#include "core/program.h"
#include "model/model.h"
#include "train/optimizer.h"
#include "train/pass_schedule.h"

namespace barestep {

/// Where a step's samples come from.
struct InputSpec {
  DataKind data = DataKind::kRandn;
  Generator generator = Generator::kTorchCpu;  // for random data; see generator_of
  bool own_data = false;        // random data: a stream for each data rank, not one for all
  std::int64_t train_rows = 0;  // rows of the training set; 0: endless random data
  std::int64_t test_rows = 0;
  bool drop_last = false;          // drops the rows of an epoch after its last whole step
  bool in_turns = true;            // files: ranks take the rows of an epoch in turn
  std::int64_t workers_ahead = 0;  // batches that the loader's workers may be ahead together
  bool streams = false;            // samples stay in their files and are read batch by batch
  // Random data: the targets are a teacher's outputs, plus this times random numbers.
  std::optional<double> teacher_noise{};
};

/// How gradients become new weights.
struct UpdateSpec {
  OptimizerConfig optimizer{};
  bool tries_both = false;  // builds steps with stored gradients and without
  bool zero_grad = true;
  std::optional<double> clip_norm{};        // upper bound of the norm of all gradients
  std::optional<LossScaling> loss_scale{};  // for fp16
  std::int64_t staleness = 0;               // steps by which gradients are applied late
  std::int64_t sync_every = 1;              // steps of local SGD in a round
  OuterOptimizer outer = OuterOptimizer::kNone;
  // Numbers in this rank's flat buffer of parameters, if data ranks divide it; StepPrograms asks
  // the scheme.
  std::optional<std::int64_t> held_parameters{};
};

/// All inputs from which the programs of a run are built.
struct StepSpec {
  ModelSpec model;
  InputSpec input{};
  UpdateSpec update{};
  Mesh mesh{};                   // the place of these programs among the ranks
  std::int64_t batch_size = 64;  // rows per micro-step, all ranks together
  std::int64_t accumulate = 1;   // micro-steps per step
  // Above 0, with --reproducible: a step consists of chunks of so many rows, and the last one may
  // be smaller. A rank has whole chunks, and each is a micro-step, whatever `accumulate` says.
  std::int64_t chunk_rows = 0;
  PipelineSpec pipeline{};           // its stages are ranks, or devices of this process
  double delay_s = 0;                // a pause before backward
  double jitter_s = 0;               // and a random one, up to this long
  double io_delay_s = 0;             // a pause before all other work on the compute lane
  std::int64_t workspace_bytes = 0;  // for the compute lane; see core/device.h
  bool saves_state = false;          // the run may be asked for its state between any two steps
  bool verifies = false;             // steps may run again from the state that they began with
  bool has_own_memory = false;       // the device's memory is not the host's

  /// The stages of the pipeline that this process has, each on a device: all, or where stages are
  /// ranks, its own.
  [[nodiscard]] int stages_here() const { return mesh.pipeline > 1 ? 1 : pipeline.stages; }

  /// Whether this process has the end of the model, where the loss is computed.
  [[nodiscard]] bool has_loss() const { return mesh.stage() + 1 == mesh.pipeline; }

  /// Rows of a whole step, all ranks together.
  [[nodiscard]] std::int64_t step_rows() const { return batch_size * accumulate; }

  /// The chunks of a step of `rows`, and those of this rank.
  [[nodiscard]] std::int64_t chunks_of(std::int64_t rows) const {
    return (rows + chunk_rows - 1) / chunk_rows;
  }
  [[nodiscard]] Rows own_chunks(std::int64_t rows) const {
    return share_of_rank(chunks_of(rows), mesh.data_rank(), mesh.data);
  }

  /// The largest number of rows in this rank's micro-steps, whose activations are stored.
  [[nodiscard]] std::int64_t micro_rows() const {
    if (chunk_rows > 0) return chunk_rows;
    const std::int64_t own = (batch_size + mesh.data - 1) / mesh.data;
    return (own + pipeline.micro_batches - 1) / pipeline.micro_batches;
  }

  /// The largest number of rows that this rank reads from the files for a batch of training or
  /// evaluation.
  [[nodiscard]] std::int64_t max_own_rows() const {
    const std::int64_t rows = std::min(step_rows(), epoch_rows());
    // The last chunk of a smaller batch may be whole where that of a larger one is not.
    const std::int64_t of_batch =
        chunk_rows > 0 ? own_chunks(rows).count * chunk_rows : own_rows(rows).count;
    return std::max(of_batch, std::min(micro_rows(), own_test_rows().count));
  }

  /// The batches that are kept ahead of the run: at most those of an epoch. A rank that
  /// input.streams samples knows two steps before it lacks any, so that all ranks can end after the
  /// same step.
  [[nodiscard]] std::int64_t batches_ahead() const {
    const std::int64_t least = input.streams && mesh.ranks() > 1 ? 2 : 0;
    return std::min(std::max(input.workers_ahead, least), steps_of_epoch());
  }

  /// Rows of an epoch: the training set, plus its first rows again if ranks take turns and their
  /// shares would otherwise be unequal, or without the rows after the last whole step if those are
  /// dropped.
  [[nodiscard]] std::int64_t epoch_rows() const {
    const std::int64_t padded = (input.train_rows + mesh.data - 1) / mesh.data * mesh.data;
    const std::int64_t rows = input.in_turns ? padded : input.train_rows;
    return input.drop_last ? rows / step_rows() * step_rows() : rows;
  }
  /// 0 for random data.
  [[nodiscard]] std::int64_t steps_of_epoch() const {
    return (epoch_rows() + step_rows() - 1) / step_rows();
  }

  /// This rank's rows in a step of `rows`. If ranks take the rows of files in turn, as with
  /// torch.utils.data.DistributedSampler, only their number counts.
  [[nodiscard]] Rows own_rows(std::int64_t rows) const {
    if (chunk_rows == 0) return share_of_rank(rows, mesh.data_rank(), mesh.data);
    const Rows own = own_chunks(rows);
    const std::int64_t first = std::min(own.first * chunk_rows, rows);
    return {first, std::min((own.first + own.count) * chunk_rows, rows) - first};
  }

  /// The rows of the test set that this rank evaluates.
  [[nodiscard]] Rows own_test_rows() const { return own_rows(input.test_rows); }

  /// Whether each rank draws its rows out of one stream of all ranks' rows.
  [[nodiscard]] bool draws_all() const { return input.data == DataKind::kRandn && !input.own_data; }
};

/// The model whose outputs are the targets of --data teacher: two layers, the first as wide as the
/// inputs, with the activation of `model`, or GELU if that is a transformer; it works on rows. Its
/// parameters are in the flat buffer "teacher_parameters", in fp32, whole on every rank.
ModelSpec teacher_of(const ModelSpec& model);

/// The state of loss scaling: four numbers in a separate buffer.
struct ScalingState {
  LossScale numbers;
  Tensor good_steps;  // 1 x 1, i32; see UpdateLossScale
  Tensor bytes;       // all of them, as bytes
};

/// The same numbers in a copy of `bytes`.
ScalingState scaling_in(const Tensor& bytes);

/// The number of updates whose scalars a step with loss scaling receives. The host knows only how
/// many updates the device had applied three steps earlier.
constexpr std::int64_t kScalarRows = 4;

/// The tensors that the host and a program exchange. Pinned ones have two slots.
struct StepTensors {
  Tensor x, y;                               // this rank's rows of a batch, on the device
  std::optional<Tensor> x_host{}, y_host{};  // pinned; files only
  std::optional<Tensor> generator{};         // the random stream's state; random data only
  std::optional<Tensor> scalars_host{};      // pinned: the optimizer's numbers; training only
  std::optional<Tensor> jitter_host{};       // pinned, 1 x 1: seconds; only with jitter
  std::optional<Tensor> number_host{};       // pinned, 1 x 1, i32: step, from 1; with dropout
  // For loss scaling. Pinned, 1 x 1, i32: the update that the first row of scalars belongs to.
  std::optional<Tensor> first_update_host{};
  std::optional<ScalingState> scaling{},
      scaling_host{};         // on the device; and pinned, after the step
  Tensor loss;                // of this rank's rows, where the last stage is here; 1 x 1
  double own_loss_scale = 1;  // factor for own_loss_host
  std::optional<Tensor> own_loss_host{};  // loss, pinned; training, where the loss is computed
  Tensor loss_host;                       // of all ranks' rows; pinned, 1 x 1
  // For evaluations, pinned. Classifiers: the number of correct samples and, if the run only
  // evaluates, the class of each; i32. Others: the sum of squared errors of each output, 1 x n, and
  // the mean absolute error, 1 x 1.
  std::optional<Tensor> correct_host{}, classes_host{};
  std::optional<Tensor> squared_errors_host{}, absolute_error_host{};
  // For training steps of several ranks; pinned, 1 x requests_of(spec). The host writes this rank's
  // requests (1 or 0) and reads those of any rank in `requests_of_all_host` (above 0).
  std::optional<Tensor> requests_host{}, requests_of_all_host{};
  // Pinned: the random stream's state before the step's data were drawn. Only for random data, in
  // runs that save their state.
  std::optional<Tensor> generator_host{};
};

/// A rank's request to all ranks, which takes effect after the same step on all.
enum class StepRequest { kStop, kPause };

/// The number of requests that ranks exchange; a run that does not save its state never pauses.
constexpr std::int64_t requests_of(const StepSpec& spec) {
  return spec.saves_state ? 2 : 1;
}

struct StepProgram {
  Program program;
  std::int64_t rows = 0;  // all ranks' rows; in an evaluation, this rank's
  bool is_fused = false;  // updates without storing gradients
  StepTensors tensors;
};

/// Samples of this rank's step that pass through the model together.
struct MicroStep {
  int number = 0;
  std::int64_t first_sample = 0;
  Tensor x, y;
};

/// How a pipeline's stages hand results to each other.
struct StageHooks {
  /// The result of a pass is complete: an output, or the gradient of an input, which stays until
  /// Draft::give_back().
  std::function<void(const ScheduledPass&, const Tensor& result)> send{};
  /// The pass is about to read `to`, where the result of source_of() must then be.
  std::function<void(const ScheduledPass&, const Tensor& to)> receive{};
};

/// What a scheme adds to the passes of a step.
struct StepHooks {
  PassHooks pass{};
  StageHooks stage{};
  /// The loss of all of this rank's samples has been computed.
  std::function<void()> loss_ready{};
  /// In place of the passes through the draft's model on device 0. Backward starts from the `grad`
  /// that forward returned, and adds to existing gradients if beta is 1.
  std::function<ModelOutput(const MicroStep&)> forward{};
  std::function<void(const MicroStep&, float beta)> backward{};
};

/// A part of the flat buffers that a process updates; its parameters, their 16-bit copy if there is
/// one, and its gradients: 1 x range.count.
struct UpdatedPart {
  FlatRange range;
  Tensor parameters;
  std::optional<Tensor> rounded{};
  Tensor gradients;
};

/// How gradients become new weights; a single rank leaves all members empty.
struct UpdateOptions {
  /// With stored gradients; otherwise all of the flat buffers.
  std::optional<std::vector<UpdatedPart>> parts{};
  /// Clipping uses the norm of all gradients on device 0, where they must be, not of the parts.
  bool norm_is_of_all = false;
  /// Called with the sum of squares of these gradients, before clipping uses it.
  std::function<void(const Tensor& squares)> squares_ready{};
  /// Called with a number above 0 if any of these gradients is not finite, before the step uses it.
  std::function<void(const Tensor& found_inf)> found_inf_ready{};
  /// With gradients that are not stored: the factors of the gradients of a Linear, which is
  /// numbered as in Model::linears().
  std::function<Factors(int linear)> factors{};
};

/// kFirstTraining is a step at the start of a run that differs from later ones, kLocalTraining one
/// of local SGD after which the ranks' weights differ.
enum class StepKind { kTraining, kFirstTraining, kLocalTraining, kEvaluation };

/// A flat buffer that a run needs to resume, besides parameters and the optimizer's memory. It
/// starts with zeros or with the parameters.
struct KeptBuffer {
  std::string prefix;  // of its tensors' names in checkpoints: "gradients."
  BufferId flat = kNoBuffer;
  bool starts_as_parameters = false;

  friend bool operator==(const KeptBuffer&, const KeptBuffer&) = default;
};

/// Builds a step. Its methods append nodes, without waits, and create the buffers named in their
/// comments.
class Draft {
 public:
  using Ready = std::function<void()>;

  /// `rows` is the number of rows of all ranks together; for an evaluation, of this rank. Buffers
  /// and spec must outlive the draft.
  Draft(StepKind kind, const char* name, std::int64_t rows, Buffers& buffers, const StepSpec& spec);
  // Passes point to the draft.
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] StepKind kind() const { return kind_; }
  [[nodiscard]] std::int64_t rows() const { return step_.rows; }
  [[nodiscard]] const StepSpec& spec() const { return spec_; }
  [[nodiscard]] Buffers& buffers() const { return buffers_; }
  [[nodiscard]] Program& program() { return step_.program; }
  [[nodiscard]] StepTensors& tensors() { return step_.tensors; }

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }

  /// The flat gradients on device 0. Throws Error(kConfiguration) if gradients are not stored.
  BufferId require_gradients();
  void require_stored_gradients() const;

  /// This rank's share of the step's rows: the weight of its mean gradients and loss among all
  /// ranks'. With equal shares this is 1/ranks, as in PyTorch. With chunks it is 1, because each
  /// one's loss is its part of the mean over all rows.
  [[nodiscard]] float share() const;

  void add(Node node) { step_.program.add(std::move(node)); }

  /// Adds a collective on the comm lane.
  void exchange(Collective collective);

  /// The ranks that have the same parameters and other rows: those among which gradients are
  /// summed.
  [[nodiscard]] Axis data_axis() const { return spec_.mesh.simplest(Axis::kData); }

  /// Adds a copy on the comm lane of the device of `to`.
  void copy_between(const Tensor& to, const Tensor& from);

  /// For several ranks; call before anything else. Copies this rank's requests to the device. Pass
  /// the result as StepHooks::loss_ready: then the losses of all ranks, each times `scale`, are
  /// summed together with the requests, as the first work on the comm lane. They are read back on
  /// that lane too; on the compute lane, backward would wait for the other ranks. A rank's own loss
  /// is kept. Creates the buffers "global_loss", "global_loss_host" and "requests_host". The losses
  /// of chunks are gathered and then added up, so the sum does not depend on the ranks.
  [[nodiscard]] Ready share_loss(float scale);

  /// Copies this rank's samples to the device and, for training, the numbers that change with every
  /// step. Calls `x_ready` when x is there.
  void input(const Ready& x_ready = {});

  /// Call before input(): random data of all ranks stay in the buffers of x and y.
  void keep_all_rows() { keeps_all_rows_ = true; }

  /// From now on the loss, and so its gradients, is this rank's part of the mean over all ranks'
  /// rows; otherwise it is the mean over its own.
  void count_all_rows();

  /// From now on the passes leave the factors of the gradients, as they do whenever gradients are
  /// not stored. The factors of all micro-steps are kept, and a rank without rows takes part with
  /// empty tensors. Includes count_all_rows(). Throws Error(kConfiguration), naming `option`, if a
  /// parameter is not a Linear's.
  void leave_factors(std::string_view option, std::string_view value);

  /// Up to `accumulate` with micro_rows() samples each, or torch.chunk's pieces for a pipeline's
  /// micro-batches; always at least one. A rank without samples gets one whose loss and gradients
  /// are zeros, so they do not change the other ranks' sums.
  [[nodiscard]] std::vector<MicroStep> micro_steps() const;

  /// Call before passes(), for schemes that exchange in every micro-step: this rank has as many as
  /// those with the most samples; the last one may be empty.
  void align_micro_steps() { aligns_micro_steps_ = true; }

  /// A device's flat buffers of parameters.
  [[nodiscard]] FlatBuffers flat_buffers(int device = 0) { return placed(device).flat; }

  /// Adds the passes of all micro-steps: forward with the loss, backward, and the injected pause
  /// after the first loss. Call after input(). Creates "stage_input" and "stage_grad" where stages
  /// receive.
  void passes(const PassSchedule& schedule, const StepHooks& hooks = {});
  /// In the order of accumulation; where stages are ranks, in that of this rank's stage, which
  /// exchanges with its neighbors. There the losses are shared last: until then some stages wait
  /// for others.
  void passes(const StepHooks& hooks = {});

  /// The model on a device, and with several micro-steps in flight one for each. Remembers what it
  /// added last.
  [[nodiscard]] const Model& model(int device = 0, int slot = 0);

  /// A pass through the model on a device.
  [[nodiscard]] Pass pass(Phase phase, const PassHooks& hooks, int device = 0, int slot = 0);

  /// The memory of a result that StageHooks::send was called with may be used again.
  void give_back(const ScheduledPass& pass, const Tensor& result);

  /// Where the gradient of the loss with respect to these outputs of the model is stored; one row
  /// per sample.
  [[nodiscard]] Tensor take_output_grad(const Tensor& values, int device = 0,
                                        std::int64_t first_sample = 0);

  /// The numbers of a micro-step's samples in the step of all ranks together, which determine
  /// dropout; nothing without dropout. Call after input().
  [[nodiscard]] std::optional<StepRows> step_rows(const MicroStep& part, int device = 0);

  /// Call after leave_factors() and the passes, or in their hooks: the factors of a Linear's
  /// gradients, of all of this rank's samples.
  [[nodiscard]] Factors factors(int linear);

  /// The optimizer's step, after clipping if the spec requests it. With stored gradients it is one
  /// op over the flat buffers; otherwise one op for each Linear not yet updated, directly from the
  /// factors of its gradients.
  void update(const UpdateOptions& options = {});

  /// In place of update(), for --staleness: updates with the gradients of that many steps before,
  /// except in a first step, and keeps this step's. Returns the flat buffer in which they are kept;
  /// until the next step's update, the ranks' may be summed there.
  [[nodiscard]] BufferId update_later();

  /// Creates a flat buffer on device 0 that the run keeps from step to step.
  [[nodiscard]] BufferId keep(const char* name, Category category, KeptBuffer kept);
  [[nodiscard]] const std::vector<KeptBuffer>& kept_buffers() const { return kept_; }

  /// The op over the complete flat buffers, for schemes that cut it and add the parts.
  [[nodiscard]] Op whole_update();

  /// Computes the quantized weights that evaluations read.
  void quantize();

  /// An evaluation's pass through the model on device 0, or through the stages of a pipeline; where
  /// these are ranks, through this rank's, whose neighbors have the rest. Call after input().
  [[nodiscard]] ModelOutput evaluation_output(const StageHooks& hooks = {},
                                              const PassHooks& pass_hooks = {});

  /// The result of an evaluation: the loss and the other results in StepTensors. `output` is empty
  /// where the model does not end here.
  void evaluate(const ModelOutput& output);

  /// The step with its waits, and the optimizer's flat buffers by device. Call last.
  [[nodiscard]] StepProgram finish() &&;
  [[nodiscard]] const std::map<int, std::vector<BufferId>>& optimizer_state() const {
    return optimizer_state_;
  }

 private:
  class Update;

  /// What a device has of the model.
  struct Placed {
    LayerRange layers;
    Parameters parameters;
    FlatBuffers flat;
    Scratch scratch;
    std::vector<std::unique_ptr<Model>> models;  // by slot
  };

  Placed& placed(int device);
  /// The device of a stage, and the last one, which has the loss if this process has it.
  [[nodiscard]] int device_of(int stage) const { return spec_.mesh.pipeline > 1 ? 0 : stage; }
  [[nodiscard]] int loss_device() const { return spec_.stages_here() - 1; }
  /// The same numbers on another device: copied when first asked for in this step.
  Tensor on_device(const Tensor& numbers, int device);
  /// The place for what a stage receives: an activation stays until its backward pass.
  [[nodiscard]] Tensor take_received(const ScheduledPass& scheduled, const Pass& pass,
                                     std::int64_t samples);
  /// Whether a rank has no samples and does not take part in the passes.
  [[nodiscard]] bool is_zero(const MicroStep& part) const;
  /// Of a pipeline, gives the nodes of a pass, from `first` on, the number of its micro-batch.
  void number_nodes(NodeId first, const Pass& pass, bool is_for_weights = false);
  [[nodiscard]] ModelOutput forward(const ScheduledPass& scheduled, const MicroStep& part,
                                    const Model& tree, Pass& own, const StepHooks& hooks);
  [[nodiscard]] ModelOutput evaluation_output(int first_stage, int end_stage,
                                              const StageHooks& hooks, const PassHooks& pass_hooks);
  void add_loss(const MicroStep& part, const ModelOutput& output, bool is_first);
  /// After the last chunk: this rank's loss.
  void add_up_chunk_losses();
  /// The injected pause.
  void add_pause();
  void backward(const ScheduledPass& scheduled, const MicroStep& part, const Tensor& grad,
                const Model& tree, Pass& own, const StepHooks& hooks);
  void add_zero_gradients(const Model& tree, Pass& own, bool wants_grad_x);
  /// The targets of these samples, 1 row each; `noise` are random numbers that are scaled and
  /// added.
  [[nodiscard]] Tensor targets_of_teacher(const Tensor& x, const std::optional<Tensor>& noise);
  /// Whether the random stream can skip the other rows of such a matrix.
  [[nodiscard]] bool can_skip(const Rows& taken, const Rows& whole, std::int64_t cols) const;
  /// Saves the stream's state, since the next step's data may be drawn before this step's state is
  /// saved.
  void keep_generator();
  /// An op of an evaluation and the number that the host reads from it. Every rank has the places
  /// of all results; only where the model ends are they computed.
  void add_result(DeviceOp op, const Tensor& result, const Tensor& host);
  void count_correct(const ModelOutput& output, const Tensor& labels);
  /// Copies numbers into the pinned slot that the host reads.
  void read_back(const Tensor& host, const Tensor& from, Phase phase);
  void read_loss_back();
  void add_scalars();
  void add_jitter();
  void add_step_number();
  void take_scaling();

  StepKind kind_;
  Buffers& buffers_;
  const StepSpec& spec_;
  ModelSpec model_;  // for the passes
  Parameters parameters_;
  StepProgram step_;
  std::map<int, Placed> placed_;          // by device
  std::int64_t loss_rows_ = 0;            // 0: this rank's rows
  std::optional<Tensor> chunk_losses_{};  // of all ranks, a row each; only with chunks
  bool keeps_all_rows_ = false;
  bool aligns_micro_steps_ = false;
  Tensor scalars_{};
  std::optional<Tensor> first_update_{};
  std::optional<Tensor> jitter_{};
  std::optional<Tensor> number_{};                          // the step's number
  std::map<int, std::vector<BufferId>> optimizer_state_{};  // by device
  std::vector<KeptBuffer> kept_{};
  std::map<std::pair<BufferId, int>, Tensor> copies_{};  // by original and device
};

/// The exchanges of a stage with its neighbors, where stages are ranks: hooks that add a
/// SendReceive wherever exchanges_of_stage() has an exchange. `of_stages` are the passes of all
/// stages. The draft must outlive the hooks.
StageHooks stage_exchanges(Draft& draft, const std::vector<PassSchedule>& of_stages);

/// Rejects `--update fused`. Throws Error(kConfiguration).
[[noreturn]] void refuse_fused_update(const char* why);

}  // namespace barestep
