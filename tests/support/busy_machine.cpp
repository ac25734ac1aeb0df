#include "support/busy_machine.h"

#include <gtest/gtest-spi.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <ctime>

#include "core/clock.h"
#include "core/host.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr int kMaxAttempts = 10;
constexpr double kMinWatched_s = 0.5;  // because CoreWatch counts in ticks

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Processor time of this process and of the children that it has waited for.
double own_cpu_s() {
  double sum_s = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    sum_s += seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  return sum_s;
}

double thread_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Locations and messages of the attempt's failures, on any thread; empty if there are none.
std::string failures_of(const std::function<void()>& attempt) {
  using Reporter = testing::ScopedFakeTestPartResultReporter;
  testing::TestPartResultArray results;
  {
    const Reporter reporter(Reporter::INTERCEPT_ALL_THREADS, &results);
    attempt();
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i) {
    const testing::TestPartResult& result = results.GetTestPartResult(i);
    if (!result.failed()) continue;
    const std::string file = result.file_name() != nullptr ? result.file_name() : "";
    text += file + ":" + std::to_string(result.line_number()) + "\n" + result.message() + "\n";
  }
  return text;
}

}  // namespace

void repeat_while_busy(const std::function<void()>& attempt, double busy_share) {
  const CoreWatch cores;
  const double start_s = now_s();
  const double own_start_s = own_cpu_s();
  std::string failures;
  for (int i = 0; i < kMaxAttempts; ++i) {
    failures = failures_of(attempt);
    if (failures.empty()) return;
  }
  const double unwatched_s = kMinWatched_s - (now_s() - start_s);
  if (unwatched_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(unwatched_s));
  const double others = cores.others_share(own_cpu_s() - own_start_s);
  if (others > busy_share) {
    GTEST_SKIP() << "others took " << 100 * others << " % of the cores: " << failures;
  }
  ADD_FAILURE() << "others took no more than " << 100 * others << " % of the cores: " << failures;
}

void expect_linear_time(const std::function<void(std::int64_t)>& work, std::int64_t size) {
  const auto cpu_s_of = [&](std::int64_t each) {
    const double start_s = thread_cpu_s();
    work(each);
    return thread_cpu_s() - start_s;
  };
  repeat_while_busy([&] {
    const double once_s = cpu_s_of(size);
    EXPECT_LT(cpu_s_of(2 * size), 3 * once_s);
  });
}

}  // namespace barestep
