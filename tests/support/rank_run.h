// Small data-parallel runs, rank by rank, over any transport, for tests to compare.
#pragma once

#include "core/config.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/comm/thread_transport.h"
#include "parallel/schemes/ddp.h"
#include "support/near.h"
#include "support/testing.h"
#include "train/trainer.h"

namespace barestep {

/// One of several ranks.
struct RankOfTest {
  RankOfTest(Group& ranks, Transport& by) : group(ranks), transport(by) {}
  RankOfTest(ThreadRank& rank) : RankOfTest(rank, rank) {}  // NOLINT(google-explicit-constructor)
  RankOfTest(const MpiRank& rank)                           // NOLINT(google-explicit-constructor)
      : RankOfTest(*rank.group, *rank.transport) {}

  Group& group;
  Transport& transport;
};

/// Eight steps of a small model with batches of 10, on one thread with plain loops.
TrainConfig rank_config();

/// Limits small enough that the model has several buckets.
DdpSettings small_buckets();

/// The programs of one rank of a run without files.
StepPrograms programs_by(const Scheme& scheme, const TrainConfig& config, int rank, int ranks);

struct Evaluated {
  std::int64_t samples = 0;
  double loss = 0;
  std::optional<double> accuracy{};

  friend bool operator==(const Evaluated&, const Evaluated&) = default;
};

struct Trained {
  FlatWeights parameters;
  std::vector<float> losses;      // over all ranks
  std::vector<float> own_losses;  // over this rank's rows
  std::vector<Evaluated> evaluations{};

  friend bool operator==(const Trained&, const Trained&) = default;
};

/// States that a run starts from or keeps between its steps.
struct Interruption {
  const TrainingState* start = nullptr;  // rank 0's: where the run continues
  TrainingState* kept = nullptr;         // on all ranks: filled at the first pause, or at a stop
  std::int64_t pause_every = 0;
  // Rank 0 requests a pause or a stop after this step.
  std::int64_t asks_after_step = -1;
  StepRequest asks_for = StepRequest::kPause;
};

/// The whole run of one rank with any scheme; every rank calls it. Programs are checked. All ranks
/// end early once `stop` is true on one of them.
Trained train_rank_by(const Scheme& scheme, const RankOfTest& rank,
                      const TrainConfig& config = rank_config(),
                      const std::atomic<bool>* stop = nullptr,
                      const Interruption& interruption = {});

/// The same with ranks as threads.
std::vector<Trained> train_threads_by(const Scheme& scheme, int ranks,
                                      const TrainConfig& config = rank_config(),
                                      const Interruption& interruption = {});

/// The same with DDP.
Trained train_rank(const RankOfTest& rank, const TrainConfig& config = rank_config(),
                   const DdpSettings& settings = small_buckets());

/// The same with ranks as threads.
std::vector<Trained> train_threads(int ranks, const TrainConfig& config = rank_config(),
                                   const DdpSettings& settings = small_buckets());

/// The equivalent run of mlp_single: one device, no ranks, no scheme. `own_losses` is empty.
Trained train_single(const TrainConfig& config, const Interruption& interruption = {});

/// The run trains on the ranks of a mesh as on one rank up to the order of sums: losses within a
/// relative `tolerance`, weights within ten times as much. All ranks have the same losses.
void expect_as_one_rank(const TrainConfig& config, int ranks,
                        const Scheme& scheme = Ddp(small_buckets()), double tolerance = 5e-7);

/// Numbers of one rank in buffer 0 and a stream, for single collectives.
class RankNumbers {
 public:
  explicit RankNumbers(std::vector<float> numbers);

  /// Prepares and queues it; it must outlive that.
  void queue(Transport& transport, const Collective& collective, Tag tag = {});
  /// The same, and waits for it.
  void run(Transport& transport, const Collective& collective, Tag tag = {});

  std::vector<float> values;
  const Addresses addresses;
  const std::unique_ptr<Device> device;
  const std::unique_ptr<Stream> stream;
};

/// Runs body(rank) on one thread per rank and waits for all of them. Throws the first
/// exception of a rank, which also ends the other ranks.
void on_threads(int ranks, const std::function<void(ThreadRank&)>& body);

/// The largest relative distance of any tensor, over all weights and biases but those of
/// attention's keys: their gradients are rounding errors, of which Adam makes whole steps, and no
/// output depends on them.
double largest_distance(const ModelSpec& model, FlatWeights a, FlatWeights b);

}  // namespace barestep
