#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"

namespace barestep {

Loader::Loader(const Dataset& dataset, NextBatch next_batch, const LoaderOptions& options)
    : dataset_(dataset),
      next_batch_(std::move(next_batch)),
      options_(options),
      order_(static_cast<std::size_t>(dataset.train_rows())),
      y_bytes_(dataset.y_bytes()),
      slots_(static_cast<std::size_t>(std::max<std::int64_t>(options.ahead, 1))) {
  const auto max_rows = static_cast<std::size_t>(options.max_rows);
  const auto x_bytes = max_rows * sizeof(float) * static_cast<std::size_t>(dataset.features());
  const auto y_bytes = max_rows * static_cast<std::size_t>(y_bytes_);
  for (Slot& slot : slots_) slot.rows.resize(max_rows);
  if (options.ahead == 0) return;
  BARESTEP_REQUIRE(options.room.size() >= slots_.size() * (x_bytes + y_bytes),
                   "the room holds the batches ahead");
  std::byte* next = options.room.data();
  for (Slot& slot : slots_) {
    slot.x = reinterpret_cast<float*>(next);
    slot.y = next + x_bytes;
    next += x_bytes + y_bytes;
  }
  const auto threads = std::min<std::int64_t>(options.workers, std::ssize(slots_));
  try {
    for (std::int64_t i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

Loader::~Loader() {
  stop();
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Loader::take_order(std::int64_t epoch) {
  if (epoch == ordered_epoch_) return;
  if (options_.shuffle) {
    epoch_order(options_.seed, epoch, order_);
  } else {
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
  }
  ordered_epoch_ = epoch;
}

bool Loader::next_rows(Slot& slot) {
  const std::optional<BatchRows> batch = next_batch_();
  if (!batch) return false;
  slot.count = batch->count;
  const auto rows = std::span(slot.rows).first(static_cast<std::size_t>(slot.count));
  if (batch->from_test_set) {
    std::iota(rows.begin(), rows.end(), dataset_.train_rows() + batch->first);
    return true;
  }
  take_order(batch->epoch);
  auto place = static_cast<std::size_t>(batch->first);
  for (std::int64_t& row : rows) {
    row = order_[place % order_.size()];
    place += static_cast<std::size_t>(batch->stride);
  }
  return true;
}

void Loader::gather(Slot& slot) const {
  try {
    dataset_.gather(std::span(slot.rows).first(static_cast<std::size_t>(slot.count)), slot.x,
                    slot.y);
  } catch (...) {
    slot.error = std::current_exception();
  }
}

void Loader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || slot_of(started_).state == State::kFree; });
    if (stopping_) return;
    Slot& slot = slot_of(started_);
    if (!next_rows(slot)) break;
    ++started_;
    slot.state = State::kTaken;
    lock.unlock();
    if (options_.delay_s > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.delay_s));
    }
    gather(slot);
    lock.lock();
    slot.state = State::kReady;
    changed_.notify_all();
  }
  ended_ = true;
  changed_.notify_all();
}

void Loader::take(float* x, void* y) {
  Slot& slot = slot_of(taken_++);
  if (workers_.empty() && started_ < taken_) {
    ++started_;
    const bool is_there = next_rows(slot);
    BARESTEP_REQUIRE(is_there, "there is a next batch");
    dataset_.gather(std::span(slot.rows).first(static_cast<std::size_t>(slot.count)), x, y);
    return;
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return slot.state == State::kReady; });
  }
  // Until it is released, the slot belongs to this thread.
  if (slot.error) std::rethrow_exception(slot.error);
  std::memcpy(x, slot.x,
              sizeof(float) * static_cast<std::size_t>(slot.count * dataset_.features()));
  std::memcpy(y, slot.y, static_cast<std::size_t>(slot.count * y_bytes_));
  {
    const std::lock_guard lock(mutex_);
    slot.state = State::kFree;
  }
  changed_.notify_all();
}

std::exception_ptr Loader::failure_ahead(std::int64_t count) {
  if (options_.ahead == 0) return nullptr;
  const std::int64_t end = taken_ + std::min(count, std::ssize(slots_));
  while (workers_.empty() && !ended_ && started_ < end) {
    Slot& slot = slot_of(started_);
    ended_ = !next_rows(slot);
    if (ended_) break;
    ++started_;
    gather(slot);
    slot.state = State::kReady;
  }
  std::unique_lock lock(mutex_);
  for (std::int64_t batch = taken_; batch < end; ++batch) {
    const Slot& slot = slot_of(batch);
    changed_.wait(lock,
                  [&] { return slot.state == State::kReady || (ended_ && batch >= started_); });
    if (slot.state != State::kReady) return nullptr;
    if (slot.error) return slot.error;
  }
  return nullptr;
}

}  // namespace barestep
