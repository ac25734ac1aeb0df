// The optimizer of a run: its op, its memory from step to step, and the numbers that change with
// every step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/ops.h"
#include "core/program.h"
#include "model/linear.h"
#include "model/parameters.h"

namespace barestep {

/// The numbers of a line of 64 bytes, to which parameters are aligned.
constexpr std::int64_t kLineNumbers = 64 / bytes_of(DType::kF32);

/// Numbers `first` .. `first` + `count` - 1 of a flat buffer.
struct FlatRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  /// These numbers of `flat`, whose elements have that type.
  [[nodiscard]] Tensor of(BufferId flat, DType type = DType::kF32) const {
    return {flat, first * bytes_of(type), 1, count, type};
  }

  /// The numbers that are in both; a count of 0 if none is.
  [[nodiscard]] FlatRange common(const FlatRange& other) const {
    const std::int64_t begin = std::max(first, other.first);
    return {begin,
            std::max<std::int64_t>(std::min(first + count, other.first + other.count) - begin, 0)};
  }

  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

/// A rank's share of a range of whole lines, which are divided as share_of_rank() does.
FlatRange share_of_lines(const FlatRange& range, int rank, int ranks);

/// The place of a number of a flat buffer in one that has only the `held` ranges, one after the
/// other.
std::int64_t place_in(std::span<const FlatRange> held, std::int64_t number);

/// The optimizer's step with the numbers of its options.
OptimizerStep step_of(const OptimizerConfig& config);

/// The tensors of an optimizer's step other than its own memory.
struct UpdateTensors {
  Tensor parameters;                // what is updated, f32
  Tensor gradients{};               // of the same numbers; unused if not stored
  std::optional<Tensor> rounded{};  // the 16-bit copy of the parameters
  Tensor scalars;                   // rows of scalars_of(config) numbers
  std::optional<Tensor> clip{};     // factor of gradients, 1 x 1
  std::optional<LossScale> loss_scale{};
  std::optional<Tensor> first_update{};  // see OptimizerUpdate
};

/// Flat buffers with the places of the parameters, or only of the ranges that this process updates,
/// one after the other; zero before the first step. One for each name that state_of() its step
/// gives.
class OptimizerState {
 public:
  /// Creates its buffers.
  OptimizerState(Buffers& buffers, const OptimizerConfig& config, const Parameters& parameters,
                 int device = 0, std::optional<std::vector<FlatRange>> ranges = {});

  /// One step over all parameters, or over those of a range.
  [[nodiscard]] DeviceOp step(const UpdateTensors& tensors, int range = 0) const;

  /// The same for one Linear, from the factors of its gradients and whole flat buffers; for
  /// optimizers with a fused update.
  [[nodiscard]] DeviceOp step(const UpdateTensors& tensors, const Linear& linear,
                              const Factors& factors) const;

  [[nodiscard]] const std::vector<BufferId>& buffers() const { return buffers_; }

 private:
  OptimizerConfig config_;
  Parameters parameters_;
  std::vector<FlatRange> ranges_;
  std::vector<BufferId> buffers_;
};

/// What to change when training has diverged: --lr, and before it any option whose value is so
/// unusual that it may be the cause.
std::string divergence_remedy(const OptimizerConfig& config);

/// The learning rate after warm-up and before any schedule: lr, times the number of ranks `world`
/// with --lr-scale linear (Goyal et al. 2017).
double full_learning_rate(const OptimizerConfig& config, int world);

/// The learning rate of update `t`, counted from 1, in a run of `steps`. During the first
/// --lr-warmup updates it is t / lr_warmup of the full rate; afterwards it follows --lr-schedule,
/// whose step 0 is the first update after warm-up, as in torch.optim.lr_scheduler.SequentialLR.
double learning_rate(const OptimizerConfig& config, std::int64_t t, int world, std::int64_t steps);

}  // namespace barestep
