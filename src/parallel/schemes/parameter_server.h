// A parameter server (Li et al. 2014): ranks push gradients to servers and pull weights from them.
#pragma once

#include <string>
#include <vector>

#include "parallel/schemes/zero.h"
#include "train/step.h"

namespace barestep {

/// The first data ranks are servers, beside their own share of the batch. Each bucket of gradients
/// belongs to the server that has the fewest numbers so far; only that one has the optimizer's
/// memory for it, and updates its weights. Ranks push a bucket as soon as backward has completed
/// it; after the update they pull the weights, those of the first layers first.
///
/// With M bytes of gradients, n ranks and one server, the server's link carries (n - 1) M in and as
/// much out. With a star the server receives rank by rank into memory for n - 1 copies of the
/// largest bucket, and adds in the order of ranks, its own first; with a tree the transport
/// decides.
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

}  // namespace barestep
