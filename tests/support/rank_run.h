// Small data-parallel runs, one rank at a time, over any communicator: what tests of ranks compare.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "parallel/schemes/ddp.h"
#include "train/trainer.h"

namespace barestep {

/// Eight steps of a small model with batches of 10; one thread and plain loops.
TrainConfig rank_config();

/// Limits so small that the model has several buckets.
DdpSettings small_buckets();

struct Evaluated {
  std::int64_t samples = 0;
  double loss = 0;
  std::optional<double> accuracy{};

  friend bool operator==(const Evaluated&, const Evaluated&) = default;
};

struct Trained {
  FlatWeights parameters;
  std::vector<float> losses;      // global ones
  std::vector<float> own_losses;  // of this rank's rows
  std::vector<Evaluated> evaluations{};

  friend bool operator==(const Trained&, const Trained&) = default;
};

/// What a run has to do with states between its steps.
struct Interruption {
  const TrainingState* start = nullptr;  // of rank 0: where the run goes on
  TrainingState* kept = nullptr;         // of all ranks: filled at the first pause, or at a stop
  std::int64_t pause_every = 0;
  // After this step rank 0 asks for a pause or a stop.
  std::int64_t asks_behind = -1;
  StepRequest asks_for = StepRequest::kPause;
};

/// The whole run of one rank with any scheme; every rank calls it. Programs are checked. All ranks
/// end early once `stop` is true on any.
Trained train_rank_by(const Scheme& scheme, Communicator& communicator,
                      const TrainConfig& config = rank_config(),
                      const std::atomic<bool>* stop = nullptr,
                      const Interruption& interruption = {});

/// The same with ranks as threads.
std::vector<Trained> train_threads_by(const Scheme& scheme, int ranks,
                                      const TrainConfig& config = rank_config(),
                                      const Interruption& interruption = {});

/// The same with DDP.
Trained train_rank(Communicator& communicator, const TrainConfig& config = rank_config(),
                   const DdpSettings& settings = small_buckets());

/// The same with ranks as threads.
std::vector<Trained> train_threads(int ranks, const TrainConfig& config = rank_config(),
                                   const DdpSettings& settings = small_buckets());

/// The run of mlp_single: one device, no ranks, no scheme. `own_losses` stays empty.
Trained train_single(const TrainConfig& config, const Interruption& interruption = {});

/// Runs body(communicator) on a thread for each rank and waits for all. Throws what the first of
/// them throws, which ends the others.
void on_threads(int ranks, const std::function<void(Communicator&)>& body);

/// L2 norm of the difference over that of b.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

/// The largest of the tensors' relative distances, each weight and bias by itself.
double largest_distance(const ParameterLayout& layout, FlatWeights a, FlatWeights b);

}  // namespace barestep
