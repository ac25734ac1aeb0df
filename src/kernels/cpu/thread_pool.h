// The threads that loops of the CPU device run on.
//
// The tasks of a job are dealt in contiguous ranges, one per thread, and the deal depends only on
// their number: the same rows go to the same thread in every step, so they stay in its cache. Who
// is done with its own range takes tasks from the others.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace barestep {

class ThreadPool {
 public:
  /// The caller of run() is one of the `threads`, so threads - 1 are started. Throws
  /// Error(kTryAgain) when the system has no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  /// Calls f(task, thread) once for each task in [0, tasks); blocks until all are done. Tasks run
  /// in any order and must be independent of each other. `thread` is in [0, threads()), 0 for the
  /// caller. When the pool is already busy, for another caller or for a job whose task calls
  /// run(), the caller does all tasks itself, as thread 0. Allocates nothing. f must not throw: an
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

  /// A thread's range of tasks: those before the low half are taken, the high half is its end. One
  /// word, so that whoever takes a task learns in the same instant whether there was one. A thread
  /// that reads a ticket while it is dealt anew takes a task of the old job or of the new one,
  /// never of both.
  struct alignas(64) Ticket {
    std::atomic<std::uint64_t> word{0};
  };

  void stop();
  void run_job(std::int64_t tasks, const Job& job);
  void deal(std::int64_t tasks, const Job& job);
  bool do_one_task(int thread);
  void work(int thread);

  const int threads_;
  const std::unique_ptr<Ticket[]> tickets_;
  Job job_;  // published by the tickets
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};
  alignas(64) std::atomic<std::uint32_t> jobs_{0};  // moves when there is work, or an end to it
  std::vector<std::thread> workers_;
};

/// Calls f(begin, end) for ranges of at most `grain` that make up [0, n). The split does not depend
/// on the number of threads, so neither do results.
template <class F>
void for_ranges(ThreadPool& pool, std::int64_t n, std::int64_t grain, const F& f) {
  pool.run((n + grain - 1) / grain,
           [&](std::int64_t task, int) { f(task * grain, std::min(n, (task + 1) * grain)); });
}

}  // namespace barestep
