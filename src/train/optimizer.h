// The optimizer of a run: its op, the memory it keeps from step to step, and the numbers that
// change with every step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/ops.h"
#include "core/program.h"
#include "train/mlp.h"
#include "train/parameter_layout.h"

namespace barestep {

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdam;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

OptimizerSpec optimizer_of(const TrainingConfig& training);

/// Numbers `first` .. `first` + `count` - 1 of a flat buffer.
struct FlatRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  /// These of `flat`.
  [[nodiscard]] Tensor of(BufferId flat) const {
    return {flat, first * bytes_of(DType::kF32), 1, count};
  }
};

/// Flat buffers in the layout of the parameters, or of the range of them that this process updates,
/// zero before the first step: "moments1" and
/// "moments2", or "velocities" where there is momentum.
class OptimizerState {
 public:
  /// Takes its buffers.
  OptimizerState(Buffers& buffers, const OptimizerSpec& spec, const ParameterLayout& layout,
                 int device = 0, std::optional<FlatRange> range = {});

  /// One step over all parameters, or those of the range. `scalars` is 1 x scalars_of(spec); the
  /// gradients are multiplied by `clip`, 1 x 1, where there is one.
  [[nodiscard]] DeviceOp step(BufferId parameters, BufferId gradients, const Tensor& scalars,
                              const std::optional<Tensor>& clip = {}) const;

  /// The same over one layer, from the factors of its gradients. Adam and AdamW only.
  [[nodiscard]] DeviceOp step(BufferId parameters, int layer, const Factors& factors,
                              const Tensor& scalars, const std::optional<Tensor>& clip) const;

  /// What this process updates of a flat buffer.
  [[nodiscard]] Tensor updated(BufferId flat) const { return range_.of(flat); }

  [[nodiscard]] const std::vector<BufferId>& buffers() const { return buffers_; }

 private:
  OptimizerSpec spec_;
  ParameterLayout layout_;
  FlatRange range_;
  std::vector<BufferId> buffers_;
};

/// How many numbers change with every step.
std::int64_t scalars_of(const OptimizerSpec& spec);

/// Those numbers, for step `t`, counted from 1, on `world` ranks.
void write_scalars(const TrainingConfig& training, std::int64_t t, int world,
                   std::span<float> scalars);

/// What to change when training has diverged: --lr, and before it what is set so unusually that it
/// may be at fault.
std::string divergence_remedy(const TrainingConfig& training);

/// lr, times `world` with --lr-scale linear (Goyal et al. 2017), and over the first
/// --lr-warmup steps the share t / lr_warmup of that.
double learning_rate(const TrainingConfig& training, std::int64_t t, int world);

}  // namespace barestep
