// A run as a whole, in this process.
#include "session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "session/checkpoints.h"
#include "support/expect_error.h"
#include "support/metrics.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

/// Writes down what it is asked.
class Diary final : public Observer {
 public:
  Diary(std::string name, std::vector<std::string>& lines)
      : name_(std::move(name)), lines_(lines) {}
  void on_step(const StepFigures& step) override {
    lines_.push_back(name_ + " step " + std::to_string(step.report.step));
  }
  void close() override { lines_.push_back(name_ + " closes"); }

 private:
  std::string name_;
  std::vector<std::string>& lines_;
};

TEST(Observers, AreToldInTheirOrderAndClosedInTheReverse) {
  std::vector<std::string> lines;
  Observers observers;
  observers.make<Diary>("first", lines);
  observers.add(nullptr);
  observers.make<Diary>("second", lines);
  TrainConfig config;
  config.model.layers = {2, 2};
  config.training.steps = 1;
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const auto place = one_device();
  config.device.device = "cpu";
  place->settle(config);
  place->open(config, programs);
  Trainer(config, programs, place->devices(), nullptr, nullptr).run(observers);
  for (const auto& close : observers.closing()) close();
  EXPECT_THAT(lines, ElementsAre("first step 0", "second step 0", "second closes", "first closes"));
}

class SessionTest : public TempDirTest {
 protected:
  TrainConfig config_ = [] {
    TrainConfig config;
    config.model.layers = {4, 4, 4};
    config.training.steps = 3;
    config.device.device = "cpu";
    return config;
  }();
  Job alone_;
  std::unique_ptr<Place> place_ = one_device();
};

TEST_F(SessionTest, ThatIsOnlyShownOpensNoDevice) {
  config_.output.plan = true;
  const Session session(*place_, config_, alone_);
  EXPECT_THAT(session.answer(), StartsWith("40 parameters\n--update auto takes fused: "));
  EXPECT_TRUE(place_->names().empty());
}

TEST_F(SessionTest, TellsWhichUpdateItTook) {
  const auto shown = [&](Update update) {
    config_.training.update = update;
    config_.output.explain = true;
    return Session(*place_, config_, alone_).answer();
  };
  EXPECT_THAT(shown(Update::kAuto),
              testing::EndsWith("\n--update auto takes fused: Adam runs beside the products of the "
                                "weight gradients\n"));
  EXPECT_THAT(shown(Update::kAuto), HasSubstr("linear_adam"));
  EXPECT_THAT(shown(Update::kSeparate), testing::Not(HasSubstr("--update")));
  EXPECT_THAT(shown(Update::kSeparate), testing::Not(HasSubstr("linear_adam")));
}

TEST_F(SessionTest, SavesItsFilesAndTellsItsTimes) {
  config_.output.metrics = folder() / "m";
  config_.output.save = folder() / "w";
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  session.run();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("\nStep 02 | Step time: "));
  EXPECT_EQ(session.row().step_samples, 64);
  EXPECT_GT(session.row().step_time_s.mean, 0);
  EXPECT_THAT(read_file(folder() / "m"), StartsWith("{\"configuration\":{"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "w"));
}

TEST_F(SessionTest, TellsWhatAStepWaitedForACheckpoint) {
  config_.output.metrics = folder() / "m";
  config_.checkpoint = {.folder = folder() / "c", .every = {.steps = 1}};
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  session.run();
  ::testing::internal::GetCapturedStdout();
  const std::vector<nlohmann::json> records = records_of(read_file(folder() / "m"));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_FALSE(records[0].contains("checkpoint_s"));
  for (const int step : {1, 2}) {
    const auto& record = records[static_cast<std::size_t>(step)];
    EXPECT_GT(record.at("checkpoint_s"), 0);
    EXPECT_GE(record.at("between_s"), 0);
  }
}

TEST_F(SessionTest, WritesProductChoicesAgainThatAreGone) {
  config_.checkpoint.folder = folder() / "c";
  Session(*place_, config_, alone_).run();
  config_.checkpoint.resume = true;
  std::optional<ResumePoint> point = find_resume_point("mlp_single", config_.checkpoint);
  ASSERT_TRUE(point.has_value());
  nlohmann::json state = nlohmann::json::parse(point->text);
  EXPECT_EQ(state.at("steps"), 3);
  EXPECT_EQ(state.at("product_choices"), "");
  DeviceConfig device;
  device.autotune = folder() / "choices";
  restore_product_choices(*point, device);
  EXPECT_FALSE(std::filesystem::exists(device.autotune));
  state["product_choices"] = "those of then";
  point->text = state.dump();
  restore_product_choices(*point, device);
  EXPECT_EQ(read_file(device.autotune), "those of then");
  file("choices", "those of now");
  restore_product_choices(*point, device);
  EXPECT_EQ(read_file(device.autotune), "those of now");
}

TEST_F(SessionTest, ThatDivergesKeepsItsMetricsAndTraces) {
  config_.optimizer.kind = OptimizerKind::kSgd;
  config_.optimizer.lr = 1e30;
  config_.output.metrics = folder() / "m";
  config_.output.trace = folder() / "t.json";
  config_.output.profile_steps = StepRange{0, 2};
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  int code = 0;
  try {
    session.run();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
  }
  ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("t.json' holds the profiled steps before that: 0 to "));
  EXPECT_EQ(code, static_cast<int>(ExitCode::kDiverged));
  EXPECT_THAT(read_file(folder() / "m"), HasSubstr("\"step\":0,"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "t.json"));
}

TEST_F(SessionTest, ThatDivergesFinishesTheCheckpointThatIsBeingWritten) {
  config_.model.layers = {1024, 1024, 1024};
  config_.optimizer.kind = OptimizerKind::kSgd;
  config_.optimizer.lr = 1e25;  // the weights stay finite for one step, the loss does not
  config_.checkpoint = {.folder = folder() / "c", .every = {.steps = 1}};
  Session session(*place_, config_, alone_);
  ::testing::internal::CaptureStdout();
  expect_error(ExitCode::kDiverged, "at step 1, ", [&] { session.run(); });
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(read_checkpoint(folder() / "c" / name_of_checkpoint(1)).step, 1);
}

}  // namespace
}  // namespace barestep
