// The programs of a run: one training step, the smaller last batch, and an evaluation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/program.h"
#include "data/dataset.h"
#include "train/draft.h"

namespace barestep {

/// The random stream that PyTorch uses for tensors on such a device. Any device can draw from
/// either.
constexpr Generator generator_of(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? Generator::kTorchCuda : Generator::kTorchCpu;
}

/// The width of layers if none is given.
constexpr std::int64_t default_dim(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? kDefaultDimCuda : kDefaultDimCpu;
}

/// The spec of a configuration's programs on a device of this kind, for one rank. `dataset` is null
/// for random data. Throws Error(kConfiguration) if a pipeline has more stages than the model has
/// layers.
StepSpec spec_of(const TrainConfig& config, DeviceKind kind, const Dataset* dataset);

/// The spec for programs that only evaluate, derived from the spec for training. They use the test
/// set, or all samples if none is split off.
StepSpec evaluation_spec_of(StepSpec training);

class StepPrograms;

/// A training step of a run.
struct StepPlace {
  std::int64_t number = 0;   // from 0
  bool is_last = false;      // of the run, or before an evaluation
  bool tries_other = false;  // the other way to update
};

/// What a device of this process has of the model: all of it, or a stage of a pipeline.
struct HeldStage {
  int device = 0;
  Parameters parameters;
  FlatRange range;                // their place in the flat buffers of the whole model
  std::int64_t held_numbers = 0;  // in its own flat buffers of parameters
  FlatBuffers flat;
  std::vector<BufferId> optimizer_state{};  // in the order of state_of()
};

/// The op that creates the 16-bit copy of the parameters once these are on the device; nothing if
/// products are in fp32. Later the optimizer updates the copy.
std::optional<DeviceOp> rounding_of(const StepPrograms& programs, const HeldStage& stage);

/// How a step is built. This class is for a single device; derived classes are for one of many.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// Builds a training step, input first.
  virtual void build(Draft& draft) const;

  /// Builds an evaluation of this rank's rows.
  virtual void evaluate(Draft& draft) const;

  /// The kinds of training steps that a run has; kTraining is one of them.
  [[nodiscard]] virtual std::vector<StepKind> kinds(const StepSpec& spec) const;

  /// The kind of such a step.
  [[nodiscard]] virtual StepKind kind_of(const StepPlace& place, const StepSpec& spec) const;

  /// Whether each data rank has its own values in flat buffers of this category.
  [[nodiscard]] virtual bool is_own(Category /*category*/) const { return false; }

  /// The ranges of a flat buffer of this category that a data rank holds; its own buffer has them
  /// one after the other. All of it, unless ranks divide it.
  [[nodiscard]] virtual std::vector<FlatRange> held(Category category, const Parameters& parameters,
                                                    int rank, int ranks) const;
};

/// The buffers and programs of a run, ordered and ready to plan. Copies `spec`. `scheme` may be
/// null and must outlive the programs. Throws Error(kConfiguration) if epochs consist of whole
/// steps but contain none, and what the scheme throws.
class StepPrograms {
 public:
  explicit StepPrograms(const StepSpec& spec, const Scheme* scheme = nullptr);
  // Its programs point to its buffers.
  StepPrograms(const StepPrograms&) = delete;
  StepPrograms& operator=(const StepPrograms&) = delete;

  [[nodiscard]] const StepSpec& spec() const { return spec_; }
  [[nodiscard]] const Scheme* scheme() const { return scheme_; }
  [[nodiscard]] const Buffers& buffers() const { return buffers_; }

  /// All programs of the run, each once.
  [[nodiscard]] std::vector<const StepProgram*> all() const;

  /// Must not be called if the model does not train.
  [[nodiscard]] const StepProgram& train() const { return *used_.whole.at(StepKind::kTraining); }
  /// For the last batch of an epoch, if the batch size does not divide the training set.
  [[nodiscard]] const StepProgram* last_batch() const;
  /// Whether both ways to update are there, and none has been settled on; train() is the one of
  /// spec().model.stores_gradients.
  [[nodiscard]] bool tries_updates() const { return spec_.update.tries_both; }
  /// From now on all training steps update this way, which does not change a bit of their results.
  /// Call between steps.
  void settle_update(bool stores_gradients);
  /// For a step of a run, with the rows of a whole step or of the last batch of an epoch.
  [[nodiscard]] const StepProgram& of(const StepPlace& place, bool is_whole) const;
  /// Whether the ranks' weights are equal after such a step, so that the run may be evaluated,
  /// saved or ended.
  [[nodiscard]] bool has_common_weights_after(const StepPlace& place) const;
  /// For this rank's rows of the test set; null without one.
  [[nodiscard]] const StepProgram* evaluate() const { return evaluate_.get(); }
  /// The programs that an evaluation of the test set runs. If ranks divide the parameters, each
  /// gathers the others', so all run as many, and the last one of some may be empty.
  [[nodiscard]] std::int64_t evaluations() const { return evaluations_; }
  [[nodiscard]] const StepProgram* last_evaluate() const { return last_evaluate_.get(); }
  /// Runs once after the parameters have been copied, if evaluations quantize.
  [[nodiscard]] const StepProgram* quantize() const { return quantize_.get(); }

  /// This rank's parameters, and those of the whole model.
  [[nodiscard]] const Parameters& parameter_list() const { return list_; }
  [[nodiscard]] const Parameters& whole_list() const { return whole_; }

  /// The parts of the model that are updated here: a single one without a pipeline.
  [[nodiscard]] const std::vector<HeldStage>& stages() const { return stages_; }

  // Flat buffers of device 0; if the model is cut into stages, those of the first.

  /// The flat buffer of parameters, for initialization, loading and saving.
  [[nodiscard]] BufferId parameters() const { return stages_[0].flat.parameters; }
  /// The parameters that products read, possibly the rounded copy.
  [[nodiscard]] Tensor operands() const {
    return FlatRange{0, stages_[0].held_numbers}.of(stages_[0].flat.operands, spec_.model.numbers);
  }
  /// Throws Error(kConfiguration) if gradients are not stored.
  [[nodiscard]] BufferId gradients() const;
  [[nodiscard]] const std::vector<BufferId>& optimizer_state() const {
    return stages_[0].optimizer_state;
  }
  /// Whether each data rank holds only part of a flat buffer.
  [[nodiscard]] bool is_shared_out(BufferId flat) const;
  /// Whether each data rank has its own values of a flat buffer; see Scheme::is_own().
  [[nodiscard]] bool is_own(BufferId flat) const;
  /// What the run keeps besides parameters and the optimizer's memory.
  [[nodiscard]] const std::vector<KeptBuffer>& kept() const { return kept_; }
  /// The ranges of this rank's flat buffer that a data rank holds; see Scheme::held().
  [[nodiscard]] std::vector<FlatRange> held_by(int data_rank, BufferId flat) const;
  [[nodiscard]] std::vector<FlatRange> held(BufferId flat) const {
    return held_by(spec_.mesh.data_rank(), flat);
  }

  /// Pinned memory for the batches that are loaded ahead, spec().batches_ahead() rows of them;
  /// nothing if there are none.
  [[nodiscard]] const std::optional<Tensor>& batches_ahead() const { return batches_ahead_; }

  /// With `verifies`: the bytes that training steps leave to the next ones, and where a buffer's
  /// are kept while a step runs again.
  [[nodiscard]] const std::vector<Tensor>& verified_state() const { return verified_state_; }
  [[nodiscard]] Tensor room_for_kept(BufferId buffer) const;

  /// For programs that save their state: pinned memory for this rank's part of it
  /// (train/training_state.h).
  [[nodiscard]] const std::optional<Tensor>& state_host() const { return state_host_; }
  /// On a single device with its own memory: a copy of these numbers on the device.
  [[nodiscard]] const std::optional<Tensor>& state_snapshot() const { return state_snapshot_; }

 private:
  using Step = std::unique_ptr<StepProgram>;
  /// The programs of training steps with one way to update.
  struct TrainingSteps {
    std::map<StepKind, Step> whole, last_batch;
  };

  void hold_stages();
  void build_evaluation();
  [[nodiscard]] TrainingSteps training_steps(const StepSpec& spec);
  void make_room_for_batches();
  void make_room_for_state();
  void make_room_for_verification();
  Step new_step(StepKind kind, const char* name, std::int64_t rows, const StepSpec& spec);
  /// Without ranks or devices that share a step, that of a single device.
  [[nodiscard]] const Scheme& used_scheme() const;

  StepSpec spec_;
  const Scheme* scheme_;
  Buffers buffers_;
  Parameters list_, whole_;
  std::vector<HeldStage> stages_;
  std::int64_t evaluations_ = 0;
  std::vector<KeptBuffer> kept_;
  std::optional<Tensor> batches_ahead_, state_host_, state_snapshot_;
  std::vector<Tensor> verified_state_;
  TrainingSteps used_, other_;
  Step evaluate_, last_evaluate_, quantize_;
};

}  // namespace barestep
