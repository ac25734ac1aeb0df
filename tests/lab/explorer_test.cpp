#include "lab/predict/explorer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "lab/explored.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace barestep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json answer_to(const std::string& options, const std::string& others = "") {
  return json::parse(explore(question_with(options, others)));
}

/// "error: ..." for what is refused, by either.
template <class Run>
std::string result_of(Run run) {
  try {
    return fmt::format("{}", run());
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(Explorer, AnswersWhatPredictPredicts) {
  constexpr int kQuestions = 200 / kOneOf;
  int answered = 0;
  for (const Explored& each : drawn_questions(kQuestions)) {
    const std::string predicted = result_of([&] {
      const MachineCard card = load_card(each.card);
      require_prediction(each.model, card, {each.ranks});
      return predicted_step(each.model, card, each.ranks).step_s;
    });
    const std::string answer =
        result_of([&] { return json::parse(explore(each.question)).at("step_s").get<double>(); });
    EXPECT_EQ(answer, predicted) << each.question;
    answered += answer.starts_with("error") ? 0 : 1;
  }
  EXPECT_EQ(answered, kQuestions);
}

TEST(Explorer, PartsAddUpToTheStep) {
  const json answer = answer_to(R"("slow-rank": "2:20", "batch-size": "4096")");
  double sum_s = 0;
  for (const json& part : answer.at("account")) sum_s += part.at("seconds").get<double>();
  const double step_s = answer.at("step_s");
  EXPECT_NEAR(sum_s, step_s, 1e-12);
  EXPECT_GT(step_s, 0.020);
  EXPECT_THAT(answer.at("timeline_svg").get<std::string>(), HasSubstr("rank 2, compute"));
  EXPECT_THAT(answer.at("timeline_svg").get<std::string>(), HasSubstr("for other ranks"));
}

TEST(Explorer, NamesTheRunThatIsTheSame) {
  const json answer = answer_to(R"("dim": "64", "optimizer": "sgd", "bucket-mib": "1")");
  const std::string command = answer.at("command");
  EXPECT_THAT(command, HasSubstr("mpirun -np 4 mlp_ddp "));
  EXPECT_THAT(command, HasSubstr("--dim 64"));
  EXPECT_THAT(command, HasSubstr("--optimizer sgd"));
  EXPECT_THAT(command, HasSubstr("--bucket-mib 1"));
  EXPECT_THAT(answer.at("explain").get<std::string>(), HasSubstr("all_reduce"));
}

TEST(Explorer, SaysWhatMemoryIsShort) {
  EXPECT_EQ(answer_to(R"("dim": "64")", R"(, "memory": "1GiB")").at("shortage"), "");
  EXPECT_THAT(answer_to("", R"(, "memory": "1GiB")").at("shortage").get<std::string>(),
              HasSubstr("more than a device has"));
}

TEST(Explorer, DrawsTheMemoryOfADeviceIfThatIsKnown) {
  EXPECT_THAT(answer_to("", R"(, "memory": "16GiB")").at("memory_svg").get<std::string>(),
              HasSubstr(">a device has 16.00 GiB<"));
  EXPECT_EQ(answer_to("").at("memory_svg").get<std::string>().find("a device has"),
            std::string::npos);
}

TEST(Explorer, NamesTheCauseOfAWait) {
  const auto timeline = [](const std::string& options) {
    return answer_to(options).at("timeline_svg").get<std::string>();
  };
  EXPECT_THAT(timeline(R"("batch-size": "64")"),
              HasSubstr(" for exposed communication: all_reduce"));
  EXPECT_THAT(timeline(R"("pipeline": "2", "batch-size": "4096")"),
              HasSubstr(" for the other stages: send_receive"));
}

TEST(Explorer, RefusesInTheWordsOfThePrograms) {
  const auto refused = [](ExitCode code, const std::string& options, const std::string& line) {
    expect_error(code, line, [&] { explore(question_with(options)); });
  };
  refused(ExitCode::kUsage, R"("dim": "x")",
          "--dim 'x': not a whole number; give a whole number from 1 to 16777216");
  refused(ExitCode::kConfiguration, R"("batch-size": "2")",
          "--batch-size '2': leaves some of 4 ranks without a sample; ask for fewer ranks, or give "
          "--batch-per-rank");
  refused(ExitCode::kConfiguration, R"("pipeline": "3")",
          "--pipeline '3': a copy of the model takes 3 ranks, which do not divide 4 ranks; start 3 "
          "ranks, or a multiple");
  refused(ExitCode::kUsage, R"("colour": "red")",
          "option '--colour': no trainer has it; see the trainers' --help");
  refused(ExitCode::kConfiguration, R"("depth": "10000", "accumulate": "10000")",
          "--depth '10000': with its micro-batches and devices, a step has more than 1024 layers; "
          "use smaller numbers here, or mlp_lab predict");
}

}  // namespace
}  // namespace barestep
