// A step while it is built: the verbs that schemes put together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/ops.h"
#include "core/program.h"
#include "train/mlp.h"
#include "train/optimizer.h"
#include "train/parameter_layout.h"

namespace barestep {

/// Everything the programs of a run are built from.
struct StepSpec {
  MlpSpec model;
  DataKind data = DataKind::kRandn;
  Generator generator = Generator::kTorchCpu;  // of random data; see generator_of
  int rank = 0;                                // of these programs, among `ranks`
  int ranks = 1;
  bool own_data = false;         // random data: of this rank's rows only, not of all rows
  std::int64_t batch_size = 64;  // rows of a micro-step, all ranks together
  std::int64_t accumulate = 1;   // micro-steps of a step
  std::int64_t train_rows = 0;   // of the data set; 0: endless random data
  std::int64_t test_rows = 0;
  bool drop_last = false;  // an epoch has whole steps only
  OptimizerConfig optimizer{};
  bool zero_grad = true;
  std::optional<double> clip_norm{};  // the most that the norm of all gradients together may be
  double delay_s = 0;                 // a pause before backward
  double jitter_s = 0;                // and one of random length up to this
  double io_delay_s = 0;              // ahead of everything on the compute lane
  std::int64_t workspace_bytes = 0;   // of the compute lane; see core/device.h
  bool saves_state = false;           // the run can be asked for its state between any two steps
  bool has_own_memory = false;        // the device's is not the host's
  bool updates_beside = false;        // see Draft::updates_beside()
  std::optional<LossScaling> loss_scale{};  // of fp16

  /// Rows of a whole step, all ranks together.
  [[nodiscard]] std::int64_t step_rows() const { return batch_size * accumulate; }

  /// The most rows this rank's micro-steps have, whose activations are kept.
  [[nodiscard]] std::int64_t micro_rows() const { return (batch_size + ranks - 1) / ranks; }

  /// The most rows of a batch, of a step or of an evaluation, that this rank takes from the files.
  [[nodiscard]] std::int64_t most_own_rows() const {
    return std::max(own_rows(step_rows()).count, micro_rows());
  }

  /// Rows of an epoch: the training set, its first rows once more where the ranks' shares would not
  /// be equal, or fewer where the rows after the last whole step are dropped.
  [[nodiscard]] std::int64_t epoch_rows() const {
    const std::int64_t rows = (train_rows + ranks - 1) / ranks * ranks;
    return drop_last ? rows / step_rows() * step_rows() : rows;
  }

  /// This rank's rows of a step of `rows`. Of random data it takes just these; of files as many:
  /// those at places rank, rank + ranks, ... of the step in the epoch's order, as
  /// torch.utils.data.DistributedSampler has it.
  [[nodiscard]] Rows own_rows(std::int64_t rows) const { return share_of_rank(rows, rank, ranks); }

  /// The rows of the test set that this rank evaluates.
  [[nodiscard]] Rows own_test_rows() const { return own_rows(test_rows); }

  /// Whether each rank draws the rows of all ranks and uses its own.
  [[nodiscard]] bool draws_all() const { return data == DataKind::kRandn && !own_data; }
};

/// The state of loss scaling: four numbers in a separate buffer.
struct ScalingState {
  LossScale numbers;
  Tensor good_steps;  // 1 x 1, i32; see UpdateLossScale
  Tensor bytes;       // all of them
};

/// How many updates' scalars a step with loss scaling takes along. The host knows how many updates
/// the device has applied as of three steps before.
constexpr std::int64_t kScalarRows = 4;

/// The tensors through which the host and a program meet. Pinned ones have two slots.
struct StepTensors {
  Tensor x, y;                               // this rank's rows of a batch, on the device
  std::optional<Tensor> x_host{}, y_host{};  // pinned; files only
  std::optional<Tensor> generator{};         // the random stream's state; random data only
  std::optional<Tensor> scalars_host{};      // pinned: what the optimizer reads; training only
  std::optional<Tensor> jitter_host{};       // pinned, 1 x 1: seconds; where there is jitter
  std::optional<Tensor> number_host{};  // pinned, 1 x 1, i32: the step's from 1; where it drops
  // Of loss scaling. Pinned, 1 x 1, i32: the update of which the first row of scalars is.
  std::optional<Tensor> first_update_host{};
  std::optional<ScalingState> scaling{},
      scaling_host{};         // on the device, and pinned after the step
  Tensor loss;                // of this rank's rows, on the device; 1 x 1
  double own_loss_scale = 1;  // what own_loss_host is to be multiplied by
  Tensor own_loss_host;       // the same, pinned; training only
  Tensor loss_host;           // of the rows of all ranks; pinned, 1 x 1
  // Of an evaluation, pinned. A classifier: how many are right, and where nothing trains the class
  // of each; i32. Others: means, 1 x 1.
  std::optional<Tensor> correct_host{}, classes_host{};
  std::optional<Tensor> squared_error_host{}, absolute_error_host{};
  // Pinned, 1 x wishes_of(spec); training steps of ranks. The host writes which of them this rank
  // has (1 or 0), and reads in `wishes_of_all_host` which any has (above 0).
  std::optional<Tensor> wishes_host{}, wishes_of_all_host{};
  // Pinned: the stream's state as it was before the step's data were drawn; random data of runs
  // that save their state only.
  std::optional<Tensor> generator_host{};
};

/// What a rank may want to happen after a step, to all at the same time.
enum class StepRequest { kStop, kPause };

/// How many of them ranks tell each other: a run that does not save its state never pauses.
constexpr std::int64_t wishes_of(const StepSpec& spec) {
  return spec.saves_state ? 2 : 1;
}

struct StepProgram {
  Program program;
  std::int64_t rows = 0;  // all ranks together; of an evaluation this rank's
  StepTensors tensors;
};

/// Some of this rank's rows of a step, which pass through the model together.
struct MicroStep {
  Tensor x, y;
  std::int64_t first_row = 0;
  float beta = 0;  // 1: gradients add to those that are there
  bool is_last = false;
};

/// How gradients become new weights; empty members stand for what one rank alone does.
struct UpdateOptions {
  /// Where gradients are stored: what this process updates of the flat buffers.
  std::optional<FlatRange> range{};
  /// Gets the sum of squares of these gradients before clipping goes by it.
  std::function<void(const Tensor& squares)> squares_ready{};
  /// Gets what is above 0 where one of these gradients is not finite, before the step goes by it.
  std::function<void(const Tensor& found_inf)> found_inf_ready{};
  /// Where they are not: what a layer's are made of.
  std::function<Factors(int layer)> factors{};
};

enum class StepKind { kTraining, kFirstTraining, kEvaluation };

/// A step as it grows. Its verbs append nodes, without waits, and take the buffers that they name.
/// What they call when something is `ready` is called once a step: in the last micro-step, where
/// all of this rank's rows have come so far.
class Draft {
 public:
  using Ready = std::function<void()>;

  /// `rows` are those of all ranks together, of an evaluation this rank's. Buffers and spec must
  /// outlive the draft.
  Draft(StepKind kind, const char* name, std::int64_t rows, Buffers& buffers, const StepSpec& spec);
  // Models point to its spec of the passes.
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] StepKind kind() const { return kind_; }
  [[nodiscard]] std::int64_t rows() const { return step_.rows; }
  [[nodiscard]] const StepSpec& spec() const { return spec_; }
  [[nodiscard]] Buffers& buffers() const { return buffers_; }
  [[nodiscard]] Program& program() { return step_.program; }
  [[nodiscard]] StepTensors& tensors() { return step_.tensors; }

  /// The flat gradients. Throws Error(kConfiguration) when they are not stored.
  BufferId require_gradients() const;

  /// This rank's rows over those of the step: what its mean gradients and loss count among all
  /// ranks'. For equal shares that is 1/ranks, as PyTorch's.
  [[nodiscard]] float share() const;

  void add(Node node) { step_.program.add(std::move(node)); }

  /// A collective on the comm lane.
  void exchange(Collective collective);

  /// Of ranks, in front of everything: brings this rank's wishes. Give what it returns to loss():
  /// the losses of all ranks, each times `scale`, are summed, first on the comm lane and read back
  /// there, since on the compute lane backward would wait for the other ranks. Beside the loss go
  /// the wishes. A rank's own loss is kept. Takes the buffers "global_loss", "global_loss_host" and
  /// "wishes_host".
  [[nodiscard]] Ready share_loss(float scale);

  /// This rank's rows, and for training what changes with every step, come to the device.
  /// `x_ready`: x has come.
  void input(const Ready& x_ready = {});

  /// From now on the passes leave the factors of the gradients, as wherever gradients are not
  /// stored: those of all micro-steps are kept, and a rank without rows takes part with tensors of
  /// no rows. The loss, and so its gradients, are this rank's part of the mean over all ranks'
  /// rows.
  void leave_factors();

  /// The rows of a micro-step among those of the step, all ranks together, by which they are
  /// dropped; none where nothing is. Call it after input().
  [[nodiscard]] std::optional<StepRows> step_rows(const MicroStep& part) const;

  /// At least one. Of a rank without rows, whose gradients count nothing among those of the others,
  /// loss and gradients are zeros.
  [[nodiscard]] std::vector<MicroStep> micro_steps() const;

  void forward(const MicroStep& part, const LayerReady& ready = {});

  /// The loss, and after it the injected pause.
  void loss(const MicroStep& part, const Ready& ready = {});

  /// The same for a model of the scheme's own.
  void loss(const MicroStep& part, const ModelOutput& output, const Ready& ready = {});

  void backward(const MicroStep& part, const BackwardReady& ready = {});

  /// For the backward of one device that stores no gradients: adds the update of a layer, on the
  /// side lane, as soon as backward has read its weights, so that it runs beside the input
  /// gradients of the layers below. The first two layers have none below and are left to update().
  /// Empty unless the spec asks for it.
  [[nodiscard]] BackwardReady updates_beside();

  /// The optimizer's step, after clipping where the spec asks for it: one op over the flat
  /// buffers, or, where gradients are not stored, one for each layer that has not been updated,
  /// straight from the factors of its gradients.
  void update(const UpdateOptions& options = {});

  /// The op over all of the flat buffers, to be cut and added by the scheme.
  [[nodiscard]] Op whole_update();

  /// The result of an evaluation: the loss, and what StepTensors has beside it.
  void evaluate(const ModelOutput& output);

  /// The step with its waits, and the flat buffers of the optimizer. Call it last.
  [[nodiscard]] StepProgram finish() &&;
  [[nodiscard]] const std::vector<BufferId>& optimizer_state() const { return optimizer_state_; }

 private:
  [[nodiscard]] Mlp model_of(const MicroStep& part) const;
  /// Of a rank without rows, but where it takes part in the passes.
  [[nodiscard]] bool is_zero(const MicroStep& part) const;
  /// The next step's data may be drawn before this step's state is saved.
  void keep_generator();
  void count_correct(const ModelOutput& output);
  void add_scalars();
  void add_jitter();
  void add_step_number();
  void take_scaling();
  /// Everything of a step but the optimizer's own memory.
  [[nodiscard]] UpdateTensors update_tensors() const;
  OptimizerState optimizer(const std::optional<FlatRange>& range = {});
  void add_update(DeviceOp op, int layer = -1);
  /// Before the step: checks the gradients that this process updates by.
  void find_inf(const Tensor& grads, const UpdateOptions& options);
  /// After it.
  void update_scale();
  Tensor add_squares(const Tensor& grads, const UpdateOptions& options);
  /// One number for each layer, from Gram matrices of its factors; the layers share their memory.
  Tensor add_squares_of(const std::function<Factors(int layer)>& factors);

  StepKind kind_;
  Buffers& buffers_;
  const StepSpec& spec_;
  MlpSpec model_;  // of the passes
  StepProgram step_;
  BufferId parameters_, gradients_;
  std::optional<Tensor> rounded_{};  // the parameters' copy that products of 16 bits read
  std::int64_t loss_rows_ = 0;       // 0: this rank's
  Tensor scalars_{};
  std::optional<Tensor> first_update_{};
  std::optional<Tensor> jitter_{};
  std::optional<Tensor> number_{};  // of the step
  std::vector<BufferId> optimizer_state_{};
  std::optional<int> lowest_updated_{};  // layers from this one on are updated on the side lane
};

/// The first layer whose update may run beside the input gradient of the layer below it.
constexpr int kFirstUpdatedBeside = 2;

/// Refuses `--update fused`. Throws Error(kConfiguration).
[[noreturn]] void refuse_fused_update(const char* why);

}  // namespace barestep
