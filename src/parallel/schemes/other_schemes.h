// The schemes besides Ddp, Zero and DataParallel.
#pragma once

#include <vector>

#include "parallel/schemes/zero.h"
#include "train/step.h"

namespace barestep {

/// Factor gather ("sufficient factor broadcasting", Xie et al. 2014): a weight's gradient is
/// grad_y^T x, so ranks gather these two factors instead of reducing gradients.
///
/// Every rank computes the passes of its own rows. Forward gathers the inputs of the layers,
/// backward the gradients of their outputs. From all rows, each rank computes the same gradients
/// and the same update as a single rank, in the same order; with `--update fused`, it computes the
/// update directly from the factors. So all ranks have the same bits. These are a single rank's if
/// a product's rows do not depend on how many there are, as with our own products. From files, each
/// rank takes consecutive rows of a batch, not every N-th as with other schemes, so the gathered
/// rows have a single rank's order too. Moves 2 x rows x width numbers per layer, where Ddp moves 2
/// x width^2. In a step of several micro-steps, each rank keeps all of its rows and computes
/// gradients in a single rank's micro-steps.
class Factor final : public Scheme {
 public:
  /// Allocates the buffers "all_out0", "all_grad_out0", ..., "all_x" if a rank does not draw all
  /// rows itself, and those of Draft::share_loss(). Throws Error(kConfiguration) if clipping is
  /// requested but gradients are not stored.
  void build(Draft& draft) const override;
};

/// Local SGD: ranks train apart and average their weights now and then.
///
/// Each data rank computes gradients of its own rows and updates its own weights. Every sync_every
/// steps, and before evaluations and the end of a run, the weights become the sum of those of all
/// ranks, each times fl(1 / ranks); so ranks send 1 / sync_every of what Ddp sends. The optimizer's
/// memory stays each rank's own, as with torch.distributed.algorithms.model_averaging.
///
/// With DiLoCo (Douillard et al. 2023, arXiv 2311.08105) the weights at the start of the round
/// move toward that average instead: start - average is the gradient of a step of SGD with
/// learning rate 0.7 and Nesterov momentum 0.9.
class LocalSgd final : public Scheme {
 public:
  /// Creates the buffers of Draft::share_loss(), and for DiLoCo "outer_start", "outer_momentum" and
  /// "outer_rate".
  void build(Draft& draft) const override;
  [[nodiscard]] std::vector<StepKind> kinds(const StepSpec& spec) const override;
  [[nodiscard]] StepKind kind_of(const StepPlace& place, const StepSpec& spec) const override;
  [[nodiscard]] bool is_own(Category category) const override;
};

/// A parameter server (Li et al. 2014): ranks push gradients to servers and pull weights from them.
///
/// The first data ranks are servers, beside their own share of the batch. Each bucket of gradients
/// belongs to the server that has the fewest numbers so far; only that one has the optimizer's
/// memory for it, and updates its weights. Ranks push a bucket as soon as backward has completed
/// it; after the update they pull the weights, those of the first layers first.
///
/// With M bytes of gradients, n ranks and one server, the server's link carries (n - 1) M in and as
/// much out. With a star the server receives rank by rank into memory for n - 1 copies of the
/// largest bucket, those of the next servers first, so that these begin early; it adds in the order
/// of ranks, its own first. With a tree the transport decides.
class ParameterServer final : public Scheme {
 public:
  ParameterServer(int servers, ServerReduce reduce, const DdpSettings& settings)
      : servers_(servers), reduce_(reduce), settings_(settings) {}

  /// The data rank that serves each bucket of bucket_lines().
  [[nodiscard]] std::vector<int> servers_of(const std::vector<ShardedBucket>& buckets) const;

  /// Creates the buffers of Draft::share_loss(), and on the servers of a star "pushed_gradients".
  void build(Draft& draft) const override;
  [[nodiscard]] std::vector<FlatRange> held(Category category, const Parameters& parameters,
                                            int rank, int ranks) const override;

 private:
  int servers_;
  ServerReduce reduce_;
  DdpSettings settings_;
};

/// A pipeline: the model's layers are cut into stages, and the micro-batches of a step pass through
/// them one after the other, so that several stages work at the same time. GPipe (Huang et al.
/// 2019) and 1F1B (Narayanan et al. 2019) differ only in the order of passes
/// (train/pass_schedule.h). Every stage adds up the gradients of its micro-batches in their order
/// and is updated after the last one, so a step has the bits of --accumulate on one device.
///
/// The stages of the spec's pipeline, each on a device of this process. A stage's input and the
/// gradient of its output are copied from the device that computed them, on the communication lane
/// of the device that reads them.
class Pipeline final : public Scheme {
 public:
  /// Allocates the buffers of its layers on the device of each stage, and "x" and the random stream
  /// on device 0.
  void build(Draft& draft) const override;
  void evaluate(Draft& draft) const override;
};

}  // namespace barestep
