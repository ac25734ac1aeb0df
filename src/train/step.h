// The programs of a run: one training step, the smaller last batch, evaluation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/program.h"
#include "train/mlp.h"
#include "train/optimizer.h"
#include "train/rank_rows.h"

namespace barestep {

/// The random stream that PyTorch's tensors on such a device are drawn from. Any device can draw
/// from either.
constexpr Generator generator_of(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? Generator::kTorchCuda : Generator::kTorchCpu;
}

/// The width of layers where none is asked for.
constexpr std::int64_t default_dim(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? kDefaultDimCuda : kDefaultDimCpu;
}

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

  /// Rows of a whole step, all ranks together.
  [[nodiscard]] std::int64_t step_rows() const { return batch_size * accumulate; }

  /// The most rows this rank's micro-steps have, whose activations are kept.
  [[nodiscard]] std::int64_t micro_rows() const { return (batch_size + ranks - 1) / ranks; }

  /// The most rows of a batch, of a step or of an evaluation, that this rank takes from the files.
  [[nodiscard]] std::int64_t most_own_rows() const {
    return std::max(own_rows(step_rows()).count, micro_rows());
  }

  /// Rows of an epoch: the training set, its first rows once more where the ranks' shares would not
  /// be equal, or fewer where the rows behind the last whole step are dropped.
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
};

/// The tensors through which the host and a program meet. Pinned ones have two slots.
struct StepTensors {
  Tensor x, y;                               // this rank's rows of a batch, on the device
  std::optional<Tensor> x_host{}, y_host{};  // pinned; files only
  std::optional<Tensor> generator{};         // the random stream's state; random data only
  std::optional<Tensor> scalars_host{};      // pinned: what the optimizer reads; training only
  std::optional<Tensor> jitter_host{};       // pinned, 1 x 1: seconds; where there is jitter
  Tensor loss;                               // of this rank's rows, on the device; 1 x 1
  double own_loss_scale = 1;                 // what own_loss_host is to be multiplied by
  Tensor own_loss_host;                      // the same, pinned; training only
  Tensor loss_host;                          // of the rows of all ranks; pinned, 1 x 1
  std::optional<Tensor> correct_host{};      // pinned, 1 x 1 i32; evaluation of a classifier only
  // Pinned, 1 x 1; training steps of ranks. The host writes whether this rank wants to stop (1 or
  // 0), and reads in `stops_host` whether any does (above 0).
  std::optional<Tensor> stop_host{}, stops_host{};
};

struct StepProgram {
  Program program;
  std::int64_t rows = 0;  // all ranks together; of an evaluation this rank's
  StepTensors tensors;
};

/// A parallel scheme: makes the training steps of many ranks or devices from those of one.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// The model of `rows` samples: one on device 0, unless the scheme spreads it. `buffers` are
  /// those of the run, `spec` outlives the model.
  [[nodiscard]] virtual std::unique_ptr<Model> new_model(Buffers& buffers, const StepSpec& spec,
                                                         std::int64_t rows) const;

  /// What this process's optimizer updates of the flat buffers: all, unless the scheme shares it
  /// out. May lengthen the buffers "parameters" and "gradients".
  [[nodiscard]] virtual std::optional<FlatRange> updated_range(Buffers& /*buffers*/,
                                                               const StepSpec& /*spec*/) const {
    return std::nullopt;
  }

  /// Whether a rank without rows in a step takes part in the passes, with tensors of no rows.
  [[nodiscard]] virtual bool passes_without_rows() const { return false; }

  /// Whether the inputs and output gradients of all layers are kept for all micro-steps, as they
  /// are wherever gradients are not stored.
  [[nodiscard]] virtual bool keeps_factors() const { return false; }

  /// Whether it works on stored gradients.
  [[nodiscard]] virtual bool needs_gradients() const { return true; }

  /// Whether the first step of a run has a program of its own.
  [[nodiscard]] virtual bool has_first_step() const { return false; }

  /// `step` as built for one device, without waits, the optimizer's nodes its last. May replace the
  /// program, take buffers and move where the host finds the loss.
  virtual void apply(StepProgram& /*step*/, Buffers& /*buffers*/, const StepSpec& /*spec*/,
                     bool /*is_first_step*/) const {}
};

/// The buffers and programs of a run; ordered and ready to plan. `spec` is copied. `scheme` may be
/// null and must outlive the programs. Throws Error(kConfiguration) when an epoch of whole steps
/// has none, and when the scheme needs gradients that are not stored.
class StepPrograms {
 public:
  explicit StepPrograms(const StepSpec& spec, const Scheme* scheme = nullptr);
  // Its programs point to its buffers.
  StepPrograms(const StepPrograms&) = delete;
  StepPrograms& operator=(const StepPrograms&) = delete;

  [[nodiscard]] const StepSpec& spec() const { return spec_; }
  [[nodiscard]] const Scheme* scheme() const { return scheme_; }
  [[nodiscard]] const Buffers& buffers() const { return buffers_; }

  /// Those there are, each once.
  [[nodiscard]] std::vector<const StepProgram*> all() const;

  /// There is none where the model does not train.
  [[nodiscard]] const StepProgram& train() const { return *train_; }
  /// For step 0, where the scheme has a program of its own for it.
  [[nodiscard]] const StepProgram* first() const { return first_.get(); }
  /// For the last batch of an epoch, where the batch size does not divide the training set.
  [[nodiscard]] const StepProgram* last_batch() const { return last_batch_.get(); }
  /// Of this rank's rows of the test set; of none, where there are fewer rows than ranks.
  [[nodiscard]] const StepProgram* evaluate() const { return evaluate_.get(); }
  [[nodiscard]] const StepProgram* last_evaluate() const { return last_evaluate_.get(); }

  /// The flat buffers, for initialisation, loading and saving.
  [[nodiscard]] BufferId parameters() const { return parameters_; }
  /// Throws Error(kConfiguration) when they are not stored.
  [[nodiscard]] BufferId gradients() const;
  [[nodiscard]] const std::vector<BufferId>& optimizer_state() const { return optimizer_state_; }

 private:
  void build_training();
  StepProgram training_step(const char* name, std::int64_t rows, bool is_first_step = false);
  StepProgram evaluation_step(const char* name, std::int64_t rows);
  StepTensors add_input(Program& program, std::int64_t rows, const Rows& own);
  Tensor add_scalars(Program& program, StepTensors& tensors);
  void add_io_delay(Program& program) const;
  std::optional<Tensor> add_jitter(Program& program, StepTensors& tensors);
  void add_delay(Program& program, const std::optional<Tensor>& jitter) const;
  void add_micro_steps(Program& program, const StepTensors& tensors,
                       const std::optional<Tensor>& jitter);
  void add_zero_step(Program& program, const StepTensors& tensors);
  std::unique_ptr<Model> new_model(std::int64_t rows, std::int64_t first_row = 0);

  StepSpec spec_;
  const Scheme* scheme_;
  Buffers buffers_;
  BufferId parameters_ = kNoBuffer;
  BufferId gradients_ = kNoBuffer;
  std::vector<BufferId> optimizer_state_;
  std::unique_ptr<StepProgram> train_;
  std::unique_ptr<StepProgram> first_;
  std::unique_ptr<StepProgram> last_batch_;
  std::unique_ptr<StepProgram> evaluate_;
  std::unique_ptr<StepProgram> last_evaluate_;
};

}  // namespace barestep
