#include "core/error.h"
#include "kernels/cpu/stream.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Records the fill value of every op it runs; fails if the value is negative.
class NotingExecutor final : public CpuExecutor {
 public:
  void execute(const DeviceOp& op, const Addresses& /*addresses*/, const Tag& tag) override {
    if (const auto* delay = std::get_if<Delay>(&op)) {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay->seconds));
      return;
    }
    if (std::get<Fill>(op).value < 0) fail(ExitCode::kInputOutput, {.what = "op failed"});
    steps.push_back(tag.step);
  }
  std::vector<std::int64_t> steps;  // written by one stream at a time
};

class CpuStreamTest : public testing::Test {
 protected:
  NotingExecutor executor_;
  const Addresses addresses_{};
  const DeviceOp good_ = Fill{.out = {}, .value = 1};
  const DeviceOp bad_ = Fill{.out = {}, .value = -1};
  const DeviceOp slow_ = Delay{.seconds = 0.02};
};

TEST_F(CpuStreamTest, RunsWorkInTheOrderItWasQueued) {
  CpuStream stream(executor_);
  for (int i = 0; i < 100; ++i) stream.run(good_, addresses_, {.step = i});
  stream.synchronize();
  std::vector<std::int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(executor_.steps, expected);
}

TEST_F(CpuStreamTest, KeepsABacklogLongerThanItsFirstQueue) {
  CpuStream stream(executor_);
  stream.run(slow_, addresses_, {});
  constexpr std::int64_t kBacklog = 5000;
  for (std::int64_t i = 0; i < kBacklog; ++i) stream.run(good_, addresses_, {.step = i});
  stream.synchronize();
  std::vector<std::int64_t> expected(kBacklog);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(executor_.steps, expected);
}

TEST_F(CpuStreamTest, StreamsRunBesideEachOther) {
  CpuStream first(executor_);
  CpuStream second(executor_);
  // Each function ends only after the other has begun.
  struct Rendezvous {
    std::atomic<int> here{0};
    std::atomic<int> met{0};
  } meeting;
  const auto meet = [](void* argument) {
    auto& both = *static_cast<Rendezvous*>(argument);
    both.here.fetch_add(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (both.here.load() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (both.here.load() == 2) both.met.fetch_add(1);
  };
  first.call(meet, &meeting);
  second.call(meet, &meeting);
  first.synchronize();
  second.synchronize();
  EXPECT_EQ(meeting.met.load(), 2);
}

TEST_F(CpuStreamTest, AWaitOrdersWorkAcrossStreams) {
  CpuStream first(executor_);
  CpuStream second(executor_);
  for (std::int64_t round = 0; round < 50; ++round) {
    CpuEvent done;  // destroyed while its recording may still be queued
    first.run(good_, addresses_, {.step = 2 * round});
    done.record(first);
    second.wait(done);
    second.run(good_, addresses_, {.step = 2 * round + 1});
    CpuEvent back;
    back.record(second);
    first.wait(back);
  }
  first.synchronize();
  second.synchronize();
  std::vector<std::int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(executor_.steps, expected);
}

TEST_F(CpuStreamTest, WaitingForAnEventThatWasNeverRecordedIsAnError) {
  CpuStream stream(executor_);
  const CpuEvent never;
  EXPECT_THROW(stream.wait(never), Error);
}

TEST_F(CpuStreamTest, AnEventThatWasNeverRecordedCountsAsReached) {
  const CpuEvent never;
  EXPECT_TRUE(never.reached());
  never.synchronize();
}

TEST_F(CpuStreamTest, AnEventIsReachedOnlyWhenItsLatestRecordingIs) {
  CpuStream stream(executor_);
  CpuEvent event;
  event.record(stream);
  event.synchronize();
  EXPECT_TRUE(event.reached());
  stream.run(slow_, addresses_, {});
  event.record(stream);
  EXPECT_FALSE(event.reached());
  event.synchronize();
  EXPECT_TRUE(event.reached());
}

TEST_F(CpuStreamTest, TimesBetweenEventsCoverTheWorkBetweenThem) {
  CpuStream stream(executor_);
  CpuEvent begin;
  CpuEvent end;
  begin.record(stream);
  stream.run(slow_, addresses_, {});
  end.record(stream);
  stream.synchronize();
  EXPECT_GE(end.seconds_since(begin), 0.02);
}

TEST_F(CpuStreamTest, AFailedStreamSkipsItsOpsSignalsItsEventsAndThrowsOnce) {
  CpuStream stream(executor_);
  CpuEvent later;
  stream.run(good_, addresses_, {.step = 1});
  stream.run(bad_, addresses_, {.step = 2});
  stream.run(good_, addresses_, {.step = 3});
  later.record(stream);
  later.synchronize();
  EXPECT_THAT(executor_.steps, ElementsAre(1));
  try {
    stream.synchronize();
    FAIL() << "the error is lost";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "op failed");
    EXPECT_EQ(error.code(), ExitCode::kInputOutput);
  }
  stream.run(good_, addresses_, {.step = 4});
  stream.synchronize();
  EXPECT_THAT(executor_.steps, ElementsAre(1, 4));
}

TEST_F(CpuStreamTest, CheckThrowsTheErrorWithoutWaiting) {
  CpuStream stream(executor_);
  CpuEvent later;
  stream.run(bad_, addresses_, {});
  later.record(stream);
  later.synchronize();
  stream.run(slow_, addresses_, {});
  EXPECT_THROW(stream.check(), Error);
  EXPECT_NO_THROW(stream.check());
}

TEST_F(CpuStreamTest, HostFunctionsRunInStreamOrder) {
  CpuStream stream(executor_);
  struct Seen {
    NotingExecutor* executor;
    std::size_t ops_before = 0;
  } seen{&executor_};
  stream.run(good_, addresses_, {});
  stream.run(good_, addresses_, {});
  stream.call(
      [](void* argument) {
        auto* state = static_cast<Seen*>(argument);
        state->ops_before = state->executor->steps.size();
      },
      &seen);
  stream.run(good_, addresses_, {});
  stream.synchronize();
  EXPECT_EQ(seen.ops_before, 2U);
}

TEST_F(CpuStreamTest, CopiesBytes) {
  CpuStream stream(executor_);
  const std::vector<int> from{1, 2, 3};
  std::vector<int> to(3);
  stream.copy(to.data(), from.data(), 3 * sizeof(int));
  stream.synchronize();
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace barestep
