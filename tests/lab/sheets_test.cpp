#include "lab/sheets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/made_up.h"
#include "support/pattern.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report made_up_report(const Sheet& sheet) {
  Report report{.environment = {{"processor", "made up"}}, .options = "", .sections = {}};
  for (const std::string& name : sheet.experiments) {
    const Experiment& experiment = experiment_of(name);
    Results results = made_up(experiment, made_up_setting(), [](const Case& what) {
      MadeUpStep step{.step_s = 0.1 / what.workload.ranks,
                      .phase_s = {{"forward", 0.04}, {"reduce", 0.01}, {"injected", 0.03}},
                      .ops = {{"gemm", "forward", 0, 0.1}, {"gemm", "backward", 0, 0.2}}};
      step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1,
                              MadeUpStep{.step_s = 0.1});
      return step;
    });
    Findings findings = experiment.conclude(results);
    report.sections.push_back({&experiment, std::move(results), std::move(findings), ""});
  }
  return report;
}

class EverySheet : public testing::TestWithParam<std::string> {};

TEST_P(EverySheet, HasAnAnswerForEachQuestionAndAFigureInEachCell) {
  const Sheet& sheet = sheet_of(GetParam());
  const Report report = made_up_report(sheet);
  const SheetRuns runs(report);
  const std::string filled = markdown_of(sheet, report, SheetCopy::kFilled);
  for (const SheetTask& task : sheet.tasks) {
    EXPECT_THAT(filled, HasSubstr(task.title));
    for (const SheetQuestion& each : task.questions) {
      const std::string answer = each.answer(runs);
      EXPECT_GT(answer.size(), 20U) << each.question;
      EXPECT_EQ(answer.back(), '.') << answer;
      EXPECT_THAT(filled, HasSubstr(answer + "\n\n*By: " + each.formula));
    }
    if (!task.tables) continue;
    for (const SheetTable& each : task.tables(runs)) {
      EXPECT_FALSE(each.table.rows.empty()) << each.table.title;
      for (const auto& row : each.table.rows) {
        EXPECT_EQ(row.size(), each.table.columns.size()) << each.table.title;
      }
    }
  }
  EXPECT_THAT(filled, Not(HasSubstr("Look for: ")));
  EXPECT_THAT(filled, Not(HasSubstr("nan")));
}

TEST_P(EverySheet, LeavesTheStudentsCellsEmptyOnABlankCopy) {
  const Sheet& sheet = sheet_of(GetParam());
  const Report report = made_up_report(sheet);
  const SheetRuns runs(report);
  const std::string blank = markdown_of(sheet, report, SheetCopy::kBlank);
  EXPECT_THAT(blank, Not(HasSubstr("Simulated")));
  EXPECT_THAT(blank, Not(HasSubstr("By: ")));
  for (const SheetTask& task : sheet.tasks) {
    for (const SheetQuestion& each : task.questions) {
      EXPECT_THAT(blank, HasSubstr(each.question));
      EXPECT_THAT(blank, Not(HasSubstr(each.answer(runs))));
    }
  }
  EXPECT_TRUE(all_matches(blank, "[|][^|\n]+[|] [0-9.,]+ (ms|us|s|%|samples/s) ").empty())
      << "no figure is left";
}

TEST_P(EverySheet, TellsTheTeacherWhatAGoodAnswerHas) {
  const Sheet& sheet = sheet_of(GetParam());
  const Report report = made_up_report(sheet);
  EXPECT_THAT(markdown_of(sheet, report, SheetCopy::kKey), HasSubstr("> Look for: "));
}

TEST_P(EverySheet, ConcludesNothingFromAnInvalidSection) {
  const Sheet& sheet = sheet_of(GetParam());
  Report report = made_up_report(sheet);
  for (ReportSection& section : report.sections) section.verdict = "INVALID: it was disturbed";
  const std::string filled = markdown_of(sheet, report, SheetCopy::kFilled);
  EXPECT_THAT(filled, HasSubstr("INVALID. No conclusion: it was disturbed."));
  for (const ReportSection& section : report.sections) {
    for (const std::string& sentence : section.findings.sentences) {
      EXPECT_THAT(filled, Not(HasSubstr(sentence)));
    }
  }
  EXPECT_THAT(filled, Not(HasSubstr("a step is slower")));
}

INSTANTIATE_TEST_SUITE_P(OfTheCourse, EverySheet,
                         testing::Values("practical3", "practical5", "homework1"),
                         [](const auto& info) { return info.param; });

TEST(Sheets, HaveTheFiguresThatTheCourseAsksFor) {
  const Sheet& practical5 = sheet_of("practical5");
  const Report report = made_up_report(practical5);
  const std::string text = markdown_of(practical5, report, SheetCopy::kFilled);
  EXPECT_THAT(text, HasSubstr("| 2 | 64 | 32/32 |"));
  EXPECT_THAT(text, HasSubstr("| 3 | 64 | 22/22/20 |"));
  EXPECT_THAT(text, HasSubstr("| 5 | 64 | 13/13/13/13/12 |"));
  const Sheet& homework = sheet_of("homework1");
  const Report of_homework = made_up_report(homework);
  const std::string ddp = markdown_of(homework, of_homework, SheetCopy::kFilled);
  EXPECT_THAT(ddp, HasSubstr("| 4 | 25.0 ms (24.9 ms to 25.1 ms) | 4.00x"));
  EXPECT_THAT(ddp, HasSubstr("Simulated: DDP of 8192 x 8, batch 64, on 8 x H200, NVLink"));
  EXPECT_THAT(ddp, HasSubstr("has 256.00 MiB of gradients"));
}

}  // namespace
}  // namespace barestep
