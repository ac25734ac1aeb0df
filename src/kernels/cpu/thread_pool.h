// The threads that run the CPU device's loops.
//
// The tasks of a job are dealt to the threads in contiguous ranges. The deal depends only on the
// number of tasks: the same rows go to the same thread in every step, so they stay in its cache. A
// thread that has finished its own range takes tasks from the others.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/config.h"
#include "core/host.h"

namespace barestep {

/// Reads `value` for about `seconds`, or until passed(what it read); whether it has passed. Does
/// not yield: on a busy machine that costs a time slice, while a sleeping thread is woken at once.
/// Goes by the clock, since an instrumented read takes a hundred times as long.
template <class Passed>
bool spin_until(const std::atomic<std::uint32_t>& value, double seconds, const Passed& passed) {
  constexpr int kReads = 200;  // between two looks at the clock
  const auto reads_it = [&] {
    for (int i = 0; i < kReads; ++i) {
      if (passed(value.load(std::memory_order_acquire))) return true;
    }
    return false;
  };
  if (reads_it()) return true;
  for (const double end_s = now_s() + seconds; now_s() < end_s;) {
    if (reads_it()) return true;
  }
  return false;
}

class ThreadPool {
 public:
  /// The caller of run() is one of the `threads`, so threads - 1 are started. These compute with
  /// denormal numbers as told, and callers should do the same. Each runs on its own of `places`, if
  /// there are any; the first of them is the caller's, which the pool does not bind. Throws
  /// Error(kMemory) if the system cannot start more threads.
  explicit ThreadPool(int threads, Denormals denormals = Denormals::kKeep,
                      std::span<const CpuSet> places = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  /// Calls f(task, thread) once for each task in [0, tasks); blocks until all are done. Tasks run
  /// in any order and must be independent of each other. `thread` is in [0, threads()), 0 for the
  /// caller. If the pool is already busy, for another caller or for a job whose task calls run(),
  /// the caller does all tasks itself, as thread 0. Allocates nothing. f must not throw: an
  /// exception ends the program.
  template <class F>
  void run(std::int64_t tasks, const F& f) {
    run_job(tasks, {&f, [](const void* function, std::int64_t task, int thread) noexcept {
                      (*static_cast<const F*>(function))(task, thread);
                    }});
  }

 private:
  struct Job {
    const void* function = nullptr;
    void (*call)(const void* function, std::int64_t task, int thread) noexcept = nullptr;
  };

  /// A thread's range of tasks: the low half is the first task not yet taken, the high half is the
  /// end. It is one word, so taking a task and checking that there is one are a single atomic
  /// operation. A thread that reads a ticket while it is dealt again takes a task of either the old
  /// or the new job, never a mixture.
  struct alignas(64) Ticket {
    std::atomic<std::uint64_t> word{0};
  };

  void stop();
  void run_job(std::int64_t tasks, const Job& job);
  void deal(std::int64_t tasks, const Job& job);
  bool do_one_task(int thread);
  void work(int thread, Denormals denormals, const std::optional<CpuSet>& place);

  const int threads_;
  const std::unique_ptr<Ticket[]> tickets_;
  Job job_;  // published by the tickets
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};
  alignas(64) std::atomic<std::uint32_t> jobs_{0};  // changes when there is work, and to stop
  std::vector<std::thread> workers_;
};

/// Calls f(begin, end) for ranges of at most `grain` that make up [0, n). The split, and so the
/// result, does not depend on the number of threads.
template <class F>
void for_ranges(ThreadPool& pool, std::int64_t n, std::int64_t grain, const F& f) {
  pool.run((n + grain - 1) / grain,
           [&](std::int64_t task, int) { f(task * grain, std::min(n, (task + 1) * grain)); });
}

}  // namespace barestep
