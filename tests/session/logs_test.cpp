#include "session/logs.h"

#include "support/metrics.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::SizeIs;

/// Rank 0 of two; the other one sends what this one does.
class Twins final : public Group {
 public:
  Twins() : Group(0, 2) {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  void abort(ExitCode) noexcept override {}
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    ++gathered;
    std::ranges::copy(bytes, all.begin());
    std::ranges::copy(bytes, all.begin() + std::ssize(bytes));
  }
  int gathered = 0;
};

class MetricsLogOfTwins : public TempDirTest {
 protected:
  MetricsLogOfTwins() { config_.output.metrics = folder() / "m"; }

  void report(MetricsLog& log, std::int64_t first, std::int64_t end, double wall_s) {
    StepFigures step;
    step.report.samples = 1;
    for (step.report.step = first; step.report.step < end; ++step.report.step) {
      step.report.wall_s = wall_s;
      log.on_step(step);
    }
  }

  /// "0.1": step 0 of rank 1.
  [[nodiscard]] std::vector<std::string> steps() const {
    std::vector<std::string> all;
    for (const auto& record : records_of(read_file(folder() / "m"))) {
      all.push_back(
          fmt::format("{}.{}", record.at("step").get<int>(), record.at("rank").get<int>()));
    }
    return all;
  }

  TrainConfig config_;
  Twins twins_;
};

// After the first step, whose time says how many a second has.
TEST_F(MetricsLogOfTwins, GathersShortStepsASecondAtATimeAndLongOnesOneByOne) {
  MetricsLog log(config_, &twins_);
  report(log, 0, 101, 0.1);
  EXPECT_EQ(twins_.gathered, 11);
  report(log, 101, 111, 10);
  EXPECT_EQ(twins_.gathered, 12);
  report(log, 111, 114, 10);
  EXPECT_EQ(twins_.gathered, 15);
  log.close();
  EXPECT_EQ(twins_.gathered, 16) << "the time lost to others";
  EXPECT_THAT(steps(), SizeIs(2 * 114));
}

TEST_F(MetricsLogOfTwins, WritesStepsInTheirOrder) {
  MetricsLog log(config_, &twins_);
  report(log, 0, 3, 1e-3);
  log.close();
  EXPECT_THAT(steps(), ElementsAre("0.0", "0.1", "1.0", "1.1", "2.0", "2.1"));
}

TEST_F(MetricsLogOfTwins, WritesWhatOthersRecordAfterTheStepsBeforeIt) {
  for (const bool fails : {false, true}) {
    {
      MetricsLog log(config_, &twins_);
      report(log, 0, 2, 1e-3);
      log.write(R"({"step": 9, "rank": 9})");
      report(log, 2, 3, 1e-3);
      if (!fails) log.close();
    }
    const std::vector<std::string> all = steps();
    EXPECT_EQ(all.back(), "9.9");
    EXPECT_THAT(all, SizeIs(fails ? 5 : 7));
  }
}

TEST_F(MetricsLogOfTwins, HasAllStepsWhereARunPauses) {
  MetricsLog log(config_, &twins_);
  report(log, 0, 2, 1e-3);
  log.on_pause();
  EXPECT_THAT(steps(), ElementsAre("0.0", "0.1", "1.0", "1.1"));
}

TEST_F(MetricsLogOfTwins, OfARunThatFailedHasTheStepsOfRankZero) {
  {
    MetricsLog log(config_, &twins_);
    report(log, 0, 3, 1e-3);
  }
  EXPECT_THAT(steps(), ElementsAre("0.0", "0.1", "1.0", "2.0"));
}

}  // namespace
}  // namespace barestep
