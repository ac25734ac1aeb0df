// ZeRO (Rajbhandari et al. 2020): data ranks share out the state of training. Each keeps the
// optimizer's state of its share of the parameters only (stage 1), also the gradients of this share
// only (stage 2), also the share only (stage 3), and updates it.
#pragma once

#include <string>
#include <vector>

#include "parallel/schemes/ddp.h"
#include "train/step.h"

namespace barestep {

/// What ranks exchange together: whole lines of the flat buffers, of which each rank owns a share
/// (share_of_lines), and the parameters in them.
struct ShardedBucket {
  std::string name;
  FlatRange range;
  std::vector<ParameterId> parameters;

  /// The same numbers of a flat buffer of all parameters, one row per line.
  [[nodiscard]] Tensor lines_of(BufferId flat, DType type = DType::kF32) const;
};

/// The parameters of each, for BucketCounts.
std::vector<std::vector<ParameterId>> parameters_by_bucket(
    const std::vector<ShardedBucket>& buckets);

/// Those of gradient_buckets(), each from its first line to the end of its padding.
std::vector<ShardedBucket> bucket_lines(const Parameters& parameters, const DdpSettings& settings);

/// Gradients are weighted as in Ddp. Each bucket is reduce-scattered as soon as backward has
/// completed it. After backward, each rank updates its shares, and the parameters are gathered
/// bucket by bucket, those of the first layers first; the next step's layers wait only for their
/// own. For clipping, the ranks sum the squares of their shares.
///
/// With stage 3 a bucket is a block's parameters. Before passes read one, it is gathered into one
/// of two places, while they read the one before it. What is still there is not gathered again:
/// backward begins with the two blocks that forward ended with, and in L equal layers it does not
/// read the first one, so a step gathers 2 L - 3 of them.
///
/// A parameter takes 4 bytes for itself, 4 for its gradient and 8 for Adam's moments. Of N ranks,
/// each keeps 8 + 8 / N of them with stage 1, 4 + 12 / N with stage 2, 16 / N with stage 3. With
/// stages 2 and 3, gradients on their way take the memory of two buckets, and with stage 3 gathered
/// parameters take as much.
///
/// With chunks, ChunkSums adds up gradients in one order, and for clipping each rank gathers all of
/// them. Then each rank keeps the gradients of all parameters with every stage: sums that wait for
/// their sibling in the tree would take as much memory on the rank that owns them.
///
/// With stage 1, gradients that accumulate from step to step (--no-zero-grad) are all-reduced,
/// because each rank needs all of them in the next step. With stages 2 and 3, what micro-steps or
/// steps add up is what the ranks have summed, so these sums are in another order.
class Zero final : public Scheme {
 public:
  Zero(int stage, const DdpSettings& settings, bool has_chunks = false)
      : stage_(stage), keeps_gradients_(stage == 1 || has_chunks), settings_(settings) {}

  /// In the order in which backward completes them: those of Ddp, with their padding, or blocks.
  [[nodiscard]] std::vector<ShardedBucket> buckets(const Parameters& parameters) const;

  /// Creates the buffers of Draft::share_loss(). From stage 2 on, without chunks, "gradients" has
  /// this rank's shares only, and buckets on their way are in "bucket_gradients.0" and
  /// "bucket_gradients.1". With stage 3, so do flat buffers of parameters and
  /// "gathered_parameters.0" and ".1".
  void build(Draft& draft) const override;
  void evaluate(Draft& draft) const override;
  [[nodiscard]] std::vector<FlatRange> held(Category category, const Parameters& parameters,
                                            int rank, int ranks) const override;

 private:
  int stage_;
  bool keeps_gradients_;  // of all parameters
  DdpSettings settings_;
};

}  // namespace barestep
