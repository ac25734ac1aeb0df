// Tests of time on a machine that other programs use too.
#pragma once

#include <cstdint>
#include <functional>

namespace barestep {

/// If others take more than this share of the cores' time, a time measurement is not meaningful.
constexpr double kBusyShare = 0.05;

/// A test of time: calls `attempt`, which tests with EXPECT_ and ASSERT_, at most ten times, until
/// it has no failure. If every attempt fails, the test fails like the last one; if others took more
/// than `busy_share` of the cores meanwhile, it is skipped, with that share and the failures. Must
/// be the last call of a test, because it does not end a test that it skips.
///
/// Only for figures of time. Counts are the same on any machine, and are tested separately.
void repeat_while_busy(const std::function<void()>& attempt, double busy_share = kBusyShare);

/// A test of time: `work(2 * size)` must take less than three times as long as `work(size)`, in
/// processor time of this thread. Quadratic work takes four times as long.
void expect_linear_time(const std::function<void(std::int64_t)>& work, std::int64_t size);

}  // namespace barestep
