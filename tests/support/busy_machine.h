// Tests of time on a machine that others use too.
#pragma once

#include <cstdint>
#include <functional>

namespace barestep {

/// Share of the cores' time that others may take before a figure of time says nothing.
constexpr double kBusyShare = 0.05;

/// A test of time: calls `attempt`, which tests with EXPECT_ and ASSERT_, until nothing fails in
/// it, at most ten times. If each attempt fails, the test fails as the last one did; if others
/// took more than `busy_share` of the cores meanwhile, it is skipped, with that share and what
/// failed. The last call of a test: it does not end a test that it skips.
///
/// For figures of time alone. What is counted comes out the same on any machine, and is tested
/// outside.
void repeat_while_busy(const std::function<void()>& attempt, double busy_share = kBusyShare);

/// Such a test: `work(2 * size)` takes less than three times as long as `work(size)`, in processor
/// time of this thread. What grows with the square takes four times as long.
void expect_linear_time(const std::function<void(std::int64_t)>& work, std::int64_t size);

}  // namespace barestep
