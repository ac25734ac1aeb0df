#include "kernels/cpu/thread_pool.h"

#include <string>
#include <system_error>

#include "core/error.h"
#include "core/index.h"
#include "kernels/cpu/denormals.h"

namespace barestep {
namespace {

/// How long to check before sleeping: about the gap between two ops of a step. Longer spins take
/// the core from the thread that queues the next op.
constexpr double kSpinSeconds = 12e-6;

/// Returns once `value` is no longer `old`.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  if (spin_until(value, kSpinSeconds, [old](std::uint32_t now) { return now != old; })) return;
  value.wait(old, std::memory_order_acquire);
}

constexpr std::uint64_t ticket_of(std::uint64_t next, std::uint64_t end) {
  return end << 32 | next;
}
constexpr std::uint64_t next_of(std::uint64_t ticket) {
  return ticket & 0xffffffff;
}
constexpr std::uint64_t end_of(std::uint64_t ticket) {
  return ticket >> 32;
}

}  // namespace

ThreadPool::ThreadPool(int threads, Denormals denormals, std::span<const CpuSet> places)
    : threads_(threads), tickets_(new Ticket[static_cast<std::size_t>(std::max(threads, 1))]) {
  BARESTEP_REQUIRE(threads >= 1, "a pool has at least the caller's thread");
  try {
    for (int thread = 1; thread < threads; ++thread) {
      std::optional<CpuSet> place;
      if (thread < std::ssize(places)) place = at(places, thread);
      workers_.emplace_back([this, thread, denormals, place] { work(thread, denormals, place); });
    }
  } catch (const std::system_error&) {
    stop();
    fail(ExitCode::kMemory,
         {"threads", std::to_string(threads),
          "the system allows no more than " + std::to_string(workers_.size() + 1),
          "give a smaller --threads"});
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_release);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_job(std::int64_t tasks, const Job& job) {
  // Half of what a ticket can count, since threads that come too late move it a little beyond its
  // end.
  BARESTEP_REQUIRE(tasks < std::int64_t{1} << 31, "too many tasks for one job");
  if (tasks <= 1 || threads_ == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t task = 0; task < tasks; ++task) job.call(job.function, task, 0);
    return;
  }
  deal(tasks, job);
  while (do_one_task(0)) {
  }
  for (std::uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;
       left = unfinished_.load(std::memory_order_acquire))
    wait_while(unfinished_, left);
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::deal(std::int64_t tasks, const Job& job) {
  job_ = job;
  unfinished_.store(static_cast<std::uint32_t>(tasks), std::memory_order_relaxed);
  const auto count = static_cast<std::uint64_t>(tasks);
  const auto threads = static_cast<std::uint64_t>(threads_);
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    tickets_[thread].word.store(ticket_of(count * thread / threads, count * (thread + 1) / threads),
                                std::memory_order_release);
  }
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
}

bool ThreadPool::do_one_task(int thread) {
  for (int k = 0; k < threads_; ++k) {
    std::atomic<std::uint64_t>& word =
        tickets_[static_cast<std::size_t>((thread + k) % threads_)].word;
    std::uint64_t ticket = word.load(std::memory_order_relaxed);
    if (next_of(ticket) >= end_of(ticket)) continue;
    ticket = word.fetch_add(1, std::memory_order_acquire);
    if (next_of(ticket) >= end_of(ticket)) continue;
    job_.call(job_.function, static_cast<std::int64_t>(next_of(ticket)), thread);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    return true;
  }
  return false;
}

void ThreadPool::work(int thread, Denormals denormals, const std::optional<CpuSet>& place) {
  if (place) bind_this_thread(*place);
  const DenormalScope scope(denormals);
  for (;;) {
    // Before stop_ is read: a thread that sees the count from stop() also sees stop_.
    const std::uint32_t seen = jobs_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    while (do_one_task(thread)) {
    }
    wait_while(jobs_, seen);
  }
}

}  // namespace barestep
