// The data loader: gathers a run's batches in the order in which they are needed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "data/dataset.h"

namespace barestep {

struct LoaderOptions {
  std::uint64_t seed = 0;
  bool shuffle = true;          // false: each epoch in the training set's order
  std::int64_t max_rows = 0;    // per batch
  int workers = 0;              // threads that gather ahead; 0: the caller's thread gathers
  std::int64_t ahead = 0;       // batches that may be gathered ahead; at least 1 with workers
  std::span<std::byte> room{};  // for `ahead` batches of most_rows: x and y as gather() writes them
  double delay_s = 0;           // injected: a slow disk's delay, for each batch a worker gathers
};

/// The samples of a batch depend only on seed and epoch, not on the number of workers. The order of
/// an epoch is that of epoch_order().
class Loader {
 public:
  /// Starts the workers, at most one for each batch ahead. `next_batch` returns the batches of the
  /// run and is called by one thread at a time. `dataset`, the room and everything that
  /// `next_batch` refers to must outlive the loader.
  Loader(const Dataset& dataset, NextBatch next_batch, const LoaderOptions& options);

  /// Stops the workers after the batches they are gathering. Blocks.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Copies the next batch in the layout of Dataset::gather(). Blocks until it is ready; rethrows
  /// the error of gathering it. There must be a next batch. Allocates nothing.
  void take(float* x, void* y);

  /// The first error of gathering one of the next `count` batches, or of the next `ahead` if those
  /// are fewer; null if there is none. Blocks until they are gathered, by this thread if there are
  /// no workers.
  std::exception_ptr failure_ahead(std::int64_t count);

 private:
  enum class State { kFree, kTaken, kReady };

  /// A batch being gathered.
  struct Slot {
    State state = State::kFree;
    std::vector<std::int64_t> rows;
    std::int64_t count = 0;  // rows
    float* x = nullptr;
    std::byte* y = nullptr;
    std::exception_ptr error;
  };

  /// Fills in the next batch's rows; false after the last. Batches are in order, so callers take
  /// turns.
  bool next_rows(Slot& slot);
  void take_order(std::int64_t epoch);
  void stop();
  void work();
  void gather(Slot& slot) const;
  Slot& slot_of(std::int64_t batch) {
    return slots_[static_cast<std::size_t>(batch) % slots_.size()];
  }

  const Dataset& dataset_;
  NextBatch next_batch_;
  LoaderOptions options_;
  std::vector<std::int64_t> order_;
  std::int64_t ordered_epoch_ = -1;
  std::int64_t y_bytes_;  // per row

  // Batch b is in slot b modulo the number of slots.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::int64_t started_ = 0;  // batches that a worker has started
  std::int64_t taken_ = 0;    // batches that take() has returned
  bool ended_ = false;        // every batch has been started
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace barestep
