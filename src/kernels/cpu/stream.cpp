#include "kernels/cpu/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "kernels/cpu/denormals.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {
namespace {

/// Blocks until `counter` has reached `generation`. Spins for a while before sleeping, since a
/// wake-up costs more than that. Longer spins take a core from the pool if there are few.
void wait_until(const std::atomic<std::uint32_t>& counter, std::uint32_t generation) {
  constexpr double kSpinSeconds = 5e-6;
  const auto passed = [&](std::uint32_t value) {
    return static_cast<std::int32_t>(value - generation) >= 0;
  };
  if (spin_until(counter, kSpinSeconds, passed)) return;
  for (;;) {
    const std::uint32_t value = counter.load(std::memory_order_acquire);
    if (passed(value)) return;
    counter.wait(value, std::memory_order_acquire);
  }
}

/// Marks a recording as done. Recordings on different streams may finish in any order; the latest
/// counts.
void reach(CpuEventState& state, std::uint32_t generation) {
  std::uint32_t seen = state.reached.load(std::memory_order_relaxed);
  while (static_cast<std::int32_t>(generation - seen) > 0) {
    state.reached_at_s.store(now_s(), std::memory_order_relaxed);
    if (state.reached.compare_exchange_weak(seen, generation, std::memory_order_release)) break;
  }
  state.reached.notify_all();
}

}  // namespace

void CpuEvent::record(Stream& stream) {
  static_cast<CpuStream&>(stream).submit(CpuStream::RecordEvent{state_, 0});
}

bool CpuEvent::reached() const {
  return state_->reached.load(std::memory_order_acquire) ==
         state_->recorded.load(std::memory_order_acquire);
}

void CpuEvent::synchronize() const {
  wait_until(state_->reached, state_->recorded.load(std::memory_order_acquire));
}

double CpuEvent::seconds_since(const Event& earlier) const {
  const auto& other = static_cast<const CpuEvent&>(earlier);
  return *reached_at_s() - *other.reached_at_s();
}

std::optional<double> CpuEvent::reached_at_s() const {
  BARESTEP_REQUIRE(reached(), "an event is timed before it is reached");
  return state_->reached_at_s.load(std::memory_order_relaxed);
}

CpuStream::CpuStream(CpuExecutor& executor, std::optional<CpuSet> place, bool is_brief)
    : executor_(executor),
      ring_(1024),
      worker_([this, place, is_brief] { work(place, is_brief); }) {}

CpuStream::~CpuStream() {
  push(Stop{});
  worker_.join();
}

void CpuStream::wait(const Event& event) {
  submit(WaitForEvent{static_cast<const CpuEvent&>(event).state_, 0});
}

void CpuStream::call(void (*function)(void*), void* argument) {
  submit(CallHost{function, argument});
}

void CpuStream::run(const DeviceOp& op, const Addresses& addresses, const Tag& tag) {
  submit(RunOp{&op, &addresses, tag});
}

void CpuStream::copy(void* to, const void* from, std::int64_t bytes) {
  submit(CopyBytes{to, from, bytes});
}

void CpuStream::synchronize() {
  drained_.record(*this);
  drained_.synchronize();
  check();
}

void CpuStream::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CpuStream::submit(Command command) {
  if (executor_.capture != nullptr) {
    executor_.capture->commands_.push_back({this, std::move(command)});
    return;
  }
  // An event counts as recorded once its recording is queued; later waits refer to this recording.
  if (auto* record = std::get_if<RecordEvent>(&command)) {
    record->generation = record->state->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
  } else if (auto* wait = std::get_if<WaitForEvent>(&command)) {
    wait->generation = wait->state->recorded.load(std::memory_order_acquire);
    BARESTEP_REQUIRE(wait->generation != 0, "a stream waits for an event that was never recorded");
  }
  push(std::move(command));
}

void CpuStream::push(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (count_ == ring_.size()) {
      // A full queue grows. Blocking here could wait for an event that this thread has yet to
      // record.
      std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
      first_ = 0;
      ring_.resize(2 * ring_.size());
    }
    ring_[(first_ + count_) % ring_.size()] = std::move(command);
    ++count_;
  }
  pushed_.fetch_add(1, std::memory_order_release);
  pushed_.notify_one();
}

CpuStream::Command CpuStream::pop() {
  const std::lock_guard lock(mutex_);
  Command command = std::exchange(ring_[first_], Command{});
  first_ = (first_ + 1) % ring_.size();
  --count_;
  return command;
}

void CpuStream::work(const std::optional<CpuSet>& place, bool is_brief) {
  if (place) bind_this_thread(*place);
  if (is_brief) ask_for_short_slices();
  const DenormalScope scope(executor_.denormals());
  for (std::uint32_t taken = 1;; ++taken) {
    wait_until(pushed_, taken);
    Command command = pop();
    if (!perform(command)) return;
  }
}

template <class F>
void CpuStream::attempt(const F& work) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
  }
  try {
    work();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
}

bool CpuStream::perform(Command& command) {
  if (std::holds_alternative<Stop>(command)) return false;
  if (const auto* op = std::get_if<RunOp>(&command)) {
    attempt([&] { executor_.execute(*op->op, *op->addresses, op->tag); });
  } else if (const auto* copy = std::get_if<CopyBytes>(&command)) {
    attempt([&] { std::memcpy(copy->to, copy->from, static_cast<std::size_t>(copy->bytes)); });
  } else if (const auto* host = std::get_if<CallHost>(&command)) {
    attempt([&] { host->function(host->argument); });
  } else if (const auto* record = std::get_if<RecordEvent>(&command)) {
    reach(*record->state, record->generation);
  } else if (const auto* wait = std::get_if<WaitForEvent>(&command)) {
    wait_until(wait->state->reached, wait->generation);
  }
  return true;
}

void CpuGraph::launch(std::int64_t step) {
  for (const Submitted& submitted : commands_) {
    CpuStream::Command command = submitted.command;
    if (auto* op = std::get_if<CpuStream::RunOp>(&command)) op->tag.step = step;
    submitted.stream->submit(std::move(command));
  }
}

}  // namespace barestep
