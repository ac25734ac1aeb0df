// The programs of a run: one training step, the smaller last batch, evaluation.
#pragma once

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

namespace barestep {

/// The random stream that PyTorch's tensors on such a device are drawn from. Any device can draw
/// from either.
constexpr Generator generator_of(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? Generator::kTorchCuda : Generator::kTorchCpu;
}

/// Everything the programs of a run are built from.
struct StepSpec {
  MlpSpec model;
  DataKind data = DataKind::kRandn;
  Generator generator = Generator::kTorchCpu;  // of random data; see generator_of
  std::int64_t batch_size = 64;                // rows of a micro-step, whose activations are kept
  std::int64_t accumulate = 1;                 // micro-steps of a step
  std::int64_t train_rows = 0;                 // of the data set; 0: endless random data
  std::int64_t test_rows = 0;
  OptimizerSpec optimizer{};
  bool zero_grad = true;
  double io_delay_s = 0;  // on the compute lane with random data, before the copies with files
  std::int64_t workspace_bytes = 0;  // of the compute lane; see core/device.h

  /// Rows of a whole step.
  [[nodiscard]] std::int64_t step_rows() const { return batch_size * accumulate; }
};

/// The tensors through which the host and a program meet. Pinned ones have two slots.
struct StepTensors {
  Tensor x, y;                               // a batch on the device
  std::optional<Tensor> x_host{}, y_host{};  // pinned; files only
  std::optional<Tensor> generator{};         // the random stream's state; random data only
  std::optional<Tensor> scalars_host{};      // pinned: what the optimizer reads; training only
  Tensor loss_host;                          // pinned, 1 x 1
  std::optional<Tensor> correct_host{};      // pinned, 1 x 1 i32; evaluation of a classifier only
};

struct StepProgram {
  Program program;
  std::int64_t rows = 0;
  StepTensors tensors;
};

/// The buffers and programs of a run; ordered and ready to plan. `spec` is copied.
class StepPrograms {
 public:
  explicit StepPrograms(const StepSpec& spec);
  // Its programs point to its buffers.
  StepPrograms(const StepPrograms&) = delete;
  StepPrograms& operator=(const StepPrograms&) = delete;

  [[nodiscard]] const StepSpec& spec() const { return spec_; }
  [[nodiscard]] const Buffers& buffers() const { return buffers_; }

  [[nodiscard]] const StepProgram& train() const { return *train_; }
  /// For the last batch of an epoch, where the batch size does not divide the training set.
  [[nodiscard]] const StepProgram* last_batch() const { return last_batch_.get(); }
  [[nodiscard]] const StepProgram* evaluate() const { return evaluate_.get(); }
  [[nodiscard]] const StepProgram* last_evaluate() const { return last_evaluate_.get(); }

  /// The flat buffers, for initialisation, loading and saving.
  [[nodiscard]] BufferId parameters() const { return parameters_; }
  [[nodiscard]] BufferId gradients() const { return gradients_; }
  [[nodiscard]] const std::vector<BufferId>& optimizer_state() const { return optimizer_state_; }

 private:
  StepProgram training_step(const char* name, std::int64_t rows);
  StepProgram evaluation_step(const char* name, std::int64_t rows);
  StepTensors add_input(Program& program, std::int64_t rows);
  Tensor add_scalars(Program& program, StepTensors& tensors);
  void add_io_delay(Program& program) const;
  void add_micro_steps(Program& program, const StepTensors& tensors);

  StepSpec spec_;
  Buffers buffers_;
  BufferId parameters_ = kNoBuffer;
  BufferId gradients_ = kNoBuffer;
  std::vector<BufferId> optimizer_state_;
  std::unique_ptr<StepProgram> train_;
  std::unique_ptr<StepProgram> last_batch_;
  std::unique_ptr<StepProgram> evaluate_;
  std::unique_ptr<StepProgram> last_evaluate_;
};

}  // namespace barestep
