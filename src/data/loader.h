// The data loader: gathers the batches of a run in the order in which they are needed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/dataset.h"

namespace barestep {

struct LoaderOptions {
  std::uint64_t seed = 0;
  bool shuffle = true;         // else epochs visit the training set in its order
  std::int64_t most_rows = 0;  // of a batch
  int workers = 0;             // threads that gather ahead; 0: take() gathers
  int prefetch = 2;            // batches each worker may be ahead
  double delay_s = 0;  // injected: what a slow disk would cost, for each batch a worker gathers
};

/// The samples of a batch. Of the training set: those at places first, first + stride, ... of the
/// epoch's order, which starts again after its end. Of the test set: rows first, first + 1, ... of
/// it.
struct BatchRows {
  bool from_test_set = false;
  std::int64_t epoch = 0;  // from 0
  std::int64_t first = 0;
  std::int64_t stride = 1;  // ranks that share a batch take turns
  std::int64_t count = 0;
};

/// The next batch of a run, or nothing after the last.
using NextBatch = std::function<std::optional<BatchRows>()>;

/// Which samples a batch holds is a function of seed and epoch alone, however many workers there
/// are: the order of an epoch is epoch_order()'s.
class Loader {
 public:
  /// Starts the workers. `next_batch` yields the batches of the run, and is asked by one thread at
  /// a time; `dataset` and what `next_batch` refers to must outlive the loader.
  Loader(const Dataset& dataset, NextBatch next_batch, const LoaderOptions& options);

  /// Stops the workers, which finish what they gather. Blocks.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Copies the next batch, as Dataset::gather() lays it out. Blocks until it is there; throws what
  /// gathering it threw. There must be a next one. Allocates nothing.
  void take(float* x, void* y);

 private:
  enum class State { kFree, kTaken, kReady };

  /// A batch on its way.
  struct Slot {
    State state = State::kFree;
    std::vector<std::int64_t> rows;
    std::int64_t count = 0;  // of rows
    std::vector<float> x;
    std::vector<std::byte> y;
    std::exception_ptr error;
  };

  /// Writes the next batch's rows; false after the last. Batches come out in their order, so
  /// callers take turns.
  bool next_rows(Slot& slot);
  void take_order(std::int64_t epoch);
  void work();
  void gather(Slot& slot) const;

  const Dataset& dataset_;
  NextBatch next_batch_;
  LoaderOptions options_;
  std::vector<std::int64_t> order_;
  std::int64_t ordered_epoch_ = -1;
  std::int64_t y_bytes_;  // of a row

  // Batch b is in slot b modulo the number of slots.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::int64_t started_ = 0;  // batches that a worker has taken on
  std::int64_t taken_ = 0;    // batches that take() handed out
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace barestep
