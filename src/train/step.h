// The programs of a run: one training step, the smaller last batch, evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/program.h"
#include "train/draft.h"

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

class StepPrograms;

/// What makes the parameters' copy of 16 bits, once they have come to device 0; nothing where
/// products are of fp32. Later the optimizer keeps it.
std::optional<DeviceOp> rounding_of(const StepPrograms& programs);

/// How a step is built: by this class for one device alone, by others for a place among many.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// A training step, input first.
  virtual void build(Draft& draft) const;

  /// An evaluation of this rank's rows.
  virtual void evaluate(Draft& draft) const;

  /// Whether the first step of a run has its own program.
  [[nodiscard]] virtual bool has_first_step() const { return false; }

  /// What a rank holds of the optimizer's flat buffers; all of them, unless ranks share them out.
  [[nodiscard]] virtual FlatRange optimizer_range(const StepSpec& spec, int rank) const;

  /// What ranks exchange in a step, and by what, in a few words; empty for a scheme without ranks.
  [[nodiscard]] virtual std::string exchange_text(const StepSpec& /*spec*/,
                                                  std::string_view /*transport*/) const {
    return "";
  }
};

/// The buffers and programs of a run; ordered and ready to plan. `spec` is copied. `scheme` may be
/// null and must outlive the programs. Throws Error(kConfiguration) when an epoch of whole steps
/// has none, and what the scheme throws.
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
  /// For step 0, if the scheme has a separate program for it.
  [[nodiscard]] const StepProgram* first() const { return first_.get(); }
  /// For the last batch of an epoch, where the batch size does not divide the training set.
  [[nodiscard]] const StepProgram* last_batch() const { return last_batch_.get(); }
  /// Of this rank's rows of the test set; of none, where there are fewer rows than ranks.
  [[nodiscard]] const StepProgram* evaluate() const { return evaluate_.get(); }
  [[nodiscard]] const StepProgram* last_evaluate() const { return last_evaluate_.get(); }
  /// What is run once, after the parameters have come, of a model whose evaluations are in int8.
  [[nodiscard]] const StepProgram* quantize() const { return quantize_.get(); }

  /// The flat buffers, for initialisation, loading and saving.
  [[nodiscard]] BufferId parameters() const { return parameters_; }
  /// What products read: these, or their rounded copy.
  [[nodiscard]] const Tensor& operands() const { return operands_; }
  /// Throws Error(kConfiguration) when they are not stored.
  [[nodiscard]] BufferId gradients() const;
  [[nodiscard]] const std::vector<BufferId>& optimizer_state() const { return optimizer_state_; }
  /// Whether each rank holds a part of a flat buffer only.
  [[nodiscard]] bool is_shared_out(BufferId flat) const;
  /// The numbers of a flat buffer that `rank` holds, by their places in the layout.
  [[nodiscard]] FlatRange held_by(int rank, BufferId flat) const;

  /// Of programs that save their state: pinned memory for what this rank saves of it
  /// (train/training_state.h).
  [[nodiscard]] const std::optional<Tensor>& state_host() const { return state_host_; }
  /// On a device with its own memory: a copy of these numbers there.
  [[nodiscard]] const std::optional<Tensor>& state_snapshot() const { return state_snapshot_; }

 private:
  using Step = std::unique_ptr<StepProgram>;

  void build_training();
  void make_room_for_state();
  Step new_step(StepKind kind, const char* name, std::int64_t rows);

  StepSpec spec_;
  const Scheme* scheme_;
  Buffers buffers_;
  BufferId parameters_ = kNoBuffer;
  Tensor operands_{};
  BufferId gradients_ = kNoBuffer;
  std::vector<BufferId> optimizer_state_;
  std::optional<Tensor> state_host_, state_snapshot_;
  Step train_, first_, last_batch_, evaluate_, last_evaluate_, quantize_;
};

}  // namespace barestep
