#include "kernels/cpu/thread_pool.h"

#include <pthread.h>

#include "support/expect_error.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

void expect_each_task_once(ThreadPool& pool, std::int64_t tasks) {
  std::vector<int> done(static_cast<std::size_t>(tasks));
  pool.run(tasks, [&](std::int64_t task, int) { ++done[static_cast<std::size_t>(task)]; });
  for (const int times : done) ASSERT_EQ(times, 1);
}

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 3, 4, 7, 100, 100000})
      expect_each_task_once(pool, tasks);
  }
}

TEST(ThreadPool, RunsManyJobsInARow) {
  ThreadPool pool(3);
  for (int i = 0; i < 3000; ++i) expect_each_task_once(pool, 1 + i % 7);
}

TEST(ThreadPool, NumbersItsThreads) {
  ThreadPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::thread::id> ids(3000);
  std::vector<int> threads(ids.size());
  pool.run(3000, [&](std::int64_t task, int thread) {
    ids[static_cast<std::size_t>(task)] = std::this_thread::get_id();
    threads[static_cast<std::size_t>(task)] = thread;
  });
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_GE(threads[i], 0);
    ASSERT_LT(threads[i], 3);
    ASSERT_EQ(threads[i] == 0, ids[i] == caller);
  }
}

TEST(ThreadPool, DealsTheSameTasksToTheSameThreadWhenNobodyIsLate) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::vector<int> threads(2);
  pool.run(2, [&](std::int64_t task, int thread) {
    threads[static_cast<std::size_t>(task)] = thread;
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(threads, (std::vector{0, 1}));
}

TEST(ThreadPool, TakesOverTheTasksOfAThreadThatIsHeldUp) {
  ThreadPool pool(2);
  constexpr std::int64_t kTasks = 100;
  std::atomic<std::int64_t> done{0};
  // The first task ends only after all others, including those dealt to the same thread.
  pool.run(kTasks, [&](std::int64_t task, int) {
    if (task == 0)
      while (done.load() < kTasks - 1) std::this_thread::yield();
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), kTasks);
}

TEST(ThreadPool, RunsAJobOfItsOwnTaskOnTheThreadOfTheTask) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  pool.run(8, [&](std::int64_t, int) {
    const std::thread::id here = std::this_thread::get_id();
    pool.run(5, [&](std::int64_t, int thread) {
      EXPECT_EQ(thread, 0);
      EXPECT_EQ(std::this_thread::get_id(), here);
      done.fetch_add(1);
    });
  });
  EXPECT_EQ(done.load(), 40);
}

TEST(ThreadPool, ServesTwoCallersAtOnce) {
  ThreadPool pool(2);
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) expect_each_task_once(pool, 9);
  });
  for (int i = 0; i < 1000; ++i) expect_each_task_once(pool, 5);
  other.join();
}

TEST(ThreadPool, WakesUpAfterALongPause) {
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect_each_task_once(pool, 1000);
  }
}

// A thread that starts late must not go to sleep after its pool has ended.
TEST(ThreadPool, EndsHoweverSoonAfterItsStart) {
  // Threads start slowly under the thread sanitizer, which finds a race without needing luck.
  const int pools = kThreadSanitized || kAddressSanitized ? 400 : 5000;
  for (int i = 0; i < pools; ++i) ThreadPool(1 + i % 5);
}

TEST(ThreadPool, RefusesToHaveNoThread) {
  EXPECT_THROW(ThreadPool pool(0), Error);
}

/// While this object exists, new threads request more stack than there are addresses.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&saved_);
    pthread_attr_t huge = saved_;
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    pthread_setattr_default_np(&huge);
  }
  ~NoMoreThreads() { pthread_setattr_default_np(&saved_); }

 private:
  pthread_attr_t saved_;
};

TEST(ThreadPool, SaysHowManyThreadsTheSystemStarts) {
  const NoMoreThreads here;
  expect_error(ExitCode::kMemory,
               "threads '3': the system allows no more than 1; give a smaller --threads",
               [] { const ThreadPool pool(3); });
}

TEST(ForRanges, SplitsByTheLengthAlone) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<std::int64_t> ends(4, -1);
    for_ranges(pool, 103, 30, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 30, 0);
      ends[static_cast<std::size_t>(begin / 30)] = end;
    });
    EXPECT_EQ(ends, (std::vector<std::int64_t>{30, 60, 90, 103}));
  }
}

TEST(ForRanges, CallsNothingForAnEmptyRange) {
  ThreadPool pool(2);
  for_ranges(pool, 0, 30, [](std::int64_t, std::int64_t) { FAIL(); });
}

}  // namespace
}  // namespace barestep
