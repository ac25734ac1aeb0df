#include "lab/sheets/sheets.h"

#include "lab/made_up.h"
#include "lab/predict/prediction.h"
#include "lab/report/page.h"
#include "support/expect_error.h"
#include "support/pattern.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A step whose parts all differ from nothing, on every rank and device.
MadeUpStep usual_step(const Case& what) {
  MadeUpStep step{.step_s = 0.1 / what.workload.ranks,
                  .phase_s = {{"forward", 0.02},
                              {"loss", 0.001},
                              {"backward", 0.03},
                              {"optimizer", 0.01},
                              {"communication", 0.01},
                              {"injected", 0.01}},
                  .ops = {}};
  for (int device = 0; device < what.workload.ranks; ++device) {
    for (const OpTime& op :
         {OpTime{"gemm", "forward", "net.0", 0.01}, OpTime{"bias_relu", "forward", "net.0", 0.002},
          OpTime{"mse_loss", "loss", "", 0.001}, OpTime{"gemm", "backward", "net.0", 0.02},
          OpTime{"adam", "optimizer", "", 0.03}}) {
      if (device > 0 && op.name == "adam") continue;
      step.ops.push_back(op);
      step.ops.back().device = device;
    }
  }
  const Watched host{.source = "host",
                     .gauges = {{"own_percent", {91, 90, 92}}, {"resident_mib", {100, 100, 100}}}};
  if (what.workload.config.output.monitor) step.watched = {host};
  if (what.workload.config.device.precision == Precision::kFp16) step.scale = {65536};
  step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1,
                          MadeUpStep{.step_s = 0.1});
  return step;
}

Report made_up_report(const std::vector<const Experiment*>& requested,
                      const HowCasesWent& how = usual_step) {
  Report report{.environment = {{"processor", "made up"}}, .options = "", .sections = {}};
  for (const Experiment* const experiment : requested) {
    Results results = made_up(*experiment, made_up_setting(), how);
    Findings findings = experiment->findings(results);
    report.sections.push_back({experiment, std::move(results), std::move(findings), ""});
  }
  return report;
}

MachineCard gpus() {
  return load_card("h200-nvlink");
}

std::string blank_of(const Sheet& sheet) {
  return blank_copy_of(sheet, Simulations(load_card("t4")));
}

/// Of all that the sheet asks for; made once for all its tests.
const Report& made_up_report(const Sheet& sheet) {
  static std::map<std::string, Report> made;
  const auto [found, is_new] = made.try_emplace(sheet.text);
  if (is_new) found->second = made_up_report(experiments_of(sheet));
  return found->second;
}

std::string filled(const Sheet& sheet, SheetCopy copy = SheetCopy::kFilled) {
  return markdown_of(sheet, SheetRuns(made_up_report(sheet), gpus()), copy);
}

/// A question of a sheet, and the paragraph below it that answers it.
struct Answered {
  std::string question, answer;
};

std::vector<Answered> questions_of(const std::string& markdown) {
  std::vector<Answered> all;
  for (const std::vector<std::string>& block : blocks_of(markdown)) {
    std::string text;
    for (const std::string& line : block) text += line + " ";
    const bool is_question =
        text.starts_with("**") && (text.ends_with("?** ") || text.ends_with(".** "));
    if (is_question) {
      all.push_back({text, ""});
    } else if (!all.empty() && text.find_first_of("#|>") != 0 &&
               text.find('*') != std::string::npos) {
      if (all.back().answer.empty()) all.back().answer = text;
    }
  }
  return all;
}

/// The headings of tasks that ask nothing: a task without a question is only a table.
std::vector<std::string> tasks_without_questions(const std::string& markdown) {
  std::vector<std::string> without;
  bool asks = true;
  for (const std::vector<std::string>& block : blocks_of(markdown)) {
    if (block.front().starts_with("## ")) {
      without.push_back(block.front());
      asks = false;
    } else if (block.front().starts_with("**") && !asks) {
      without.pop_back();
      asks = true;
    }
  }
  return without;
}

class EverySheet : public testing::TestWithParam<std::string> {};

TEST_P(EverySheet, AnswersEachQuestionByFigureThenFormulaThenReason) {
  const std::string text = filled(load_sheet(GetParam()));
  const std::vector<Answered> questions = questions_of(text);
  EXPECT_FALSE(questions.empty());
  EXPECT_THAT(tasks_without_questions(text), IsEmpty());
  for (const Answered& each : questions) {
    SCOPED_TRACE(each.question);
    const auto parts = first_match(each.answer, "^([^*]+) \\*([^*]+(?: \\* [^*]+)*)\\* (.+)$");
    ASSERT_FALSE(parts.empty()) << each.answer;
    EXPECT_NE(parts[1].find_first_of("0123456789"), std::string::npos) << "no figure: " << parts[1];
    EXPECT_GT(parts[3].size(), 40U) << "no reason: " << parts[3];
  }
  EXPECT_THAT(text, Not(HasSubstr("{{")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("was not measured")));
  EXPECT_THAT(text, Not(HasSubstr("> Look for")));
}

TEST_P(EverySheet, HasAFigureInEachCellInTheUnitOfItsColumn) {
  for (const std::vector<std::string>& block : blocks_of(filled(load_sheet(GetParam())))) {
    if (!block.front().starts_with('|')) continue;
    const std::vector<std::string> titles = cells_of(block.front());
    for (const std::string& line : block) {
      const std::vector<std::string> cells = cells_of(line);
      ASSERT_EQ(cells.size(), titles.size()) << line;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        EXPECT_NE(cells[i], "not run") << line;
        if (&line == &block.front()) continue;
        if (titles[i].ends_with("(s)")) EXPECT_THAT(cells[i], Not(EndsWith("s"))) << line;
      }
    }
  }
}

TEST_P(EverySheet, CallsCoresNoGpus) {
  for (const std::vector<std::string>& block : blocks_of(filled(load_sheet(GetParam())))) {
    if (!block.front().starts_with('|')) continue;
    const std::vector<std::string> titles = cells_of(block.front());
    for (const std::string& line : block) {
      const std::vector<std::string> cells = cells_of(line);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (!titles[i].starts_with("Simulated")) EXPECT_THAT(cells[i], Not(HasSubstr("GPU")));
      }
    }
  }
}

TEST_P(EverySheet, LeavesTheStudentsPlacesEmptyOnABlankCopy) {
  const Sheet sheet = load_sheet(GetParam());
  const std::string blank = blank_of(sheet), text = filled(sheet);
  EXPECT_THAT(blank, AllOf(Not(HasSubstr("Simulated")), Not(HasSubstr("{{")),
                           Not(HasSubstr("Look for")), HasSubstr("\n\\_\\_")));
  for (const Answered& each : questions_of(text)) {
    const std::string question = each.question.substr(0, each.question.size() - 1);
    EXPECT_THAT(blank, HasSubstr(question + "\n\n\\_\\_"));
  }
  EXPECT_TRUE(all_matches(blank, " (ms|us|samples/s|%|MiB) [|]").empty()) << "a figure is left";
}

TEST_P(EverySheet, TellsTheTeacherWhatAGoodAnswerHas) {
  const Sheet sheet = load_sheet(GetParam());
  const std::string key = filled(sheet, SheetCopy::kKey);
  EXPECT_EQ(all_matches(key, "\n> Look for: ").size(), questions_of(key).size());
  for (const SheetQuestion& each : questions_in(key)) {
    EXPECT_THAT(each.key, AllOf(StartsWith("Look for: "), Not(HasSubstr("> "))));
  }
}

// Definitions, counts, formulas and what is simulated need no times.
TEST_P(EverySheet, WithholdsOfAnInvalidSectionOnlyWhatIsTimed) {
  const Sheet sheet = load_sheet(GetParam());
  Report report = made_up_report(sheet);
  for (ReportSection& section : report.sections) section.trouble = "INVALID: it was disturbed";
  const std::string text = markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kFilled);
  EXPECT_THAT(text, HasSubstr("INVALID. No conclusion: it was disturbed.\n"));
  for (const ReportSection& section : report.sections) {
    for (const std::string& sentence : texts_of(section.findings.timed)) {
      EXPECT_THAT(text, Not(HasSubstr(sentence)));
    }
  }
  for (const Answered& each : questions_of(text)) {
    const std::string said = each.answer.substr(0, each.answer.find("No conclusion: "));
    const auto parts = first_match(said, "^([^*]+) \\*([^*]+(?: \\* [^*]+)*)\\* (.+)$");
    EXPECT_FALSE(parts.empty()) << each.question << each.answer;
    if (parts.empty()) continue;
    EXPECT_NE(parts[1].find_first_of("0123456789"), std::string::npos) << each.question << said;
    EXPECT_GT(parts[3].size(), 40U) << each.question << said;
  }
}

/// The case of a name of a figure, measured or simulated; nothing for other names.
std::optional<Workload> workload_of(const std::string& name) {
  const auto parts = first_match(name, "^(simulated[.])?([^.]+)[.](.+)[.]([^.]+)$");
  if (parts.empty()) return std::nullopt;
  for (const std::vector<int>& ranks : {std::vector<int>{}, {1, 2, 4}}) {
    Setting setting = new_setting(false, !parts[1].empty(), 8);
    setting.ranks = ranks;
    for (const Case& each : experiment_of(parts[2]).cases(setting)) {
      if (each.key == parts[3]) return each.workload;
    }
  }
  return std::nullopt;
}

std::vector<std::string> figures_in(const Sheet& sheet) {
  std::vector<std::string> names;
  filled_template(sheet.text, [&](std::string_view name) {
    if (sheet_name(name)->kind == SheetNameKind::kFigure) names.emplace_back(name);
    return "";
  });
  return names;
}

// What is simulated beside a measured case has as many samples, or the sheet says how many both
// have.
TEST_P(EverySheet, SimulatesTheBatchThatItMeasuresOrNamesBoth) {
  const Sheet sheet = load_sheet(GetParam());
  const std::vector<std::string> names = figures_in(sheet);
  const auto has = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const std::string& name : names) {
    if (name.starts_with("simulated.") || !has("simulated." + name)) continue;
    const std::string case_name = name.substr(0, name.rfind('.'));
    const std::string experiment = name.substr(0, name.find('.'));
    const bool names_batches = std::ranges::any_of(names, [&](const std::string& each) {
      return each.starts_with("simulated." + experiment + ".") && each.ends_with(".batch");
    });
    EXPECT_TRUE(names_batches || workload_of(name)->step_samples() ==
                                     workload_of("simulated." + name)->step_samples())
        << case_name;
  }
}

TEST_P(EverySheet, StaysAsItIsIfAnExperimentFindsMore) {
  const Sheet sheet = load_sheet(GetParam());
  Report report = made_up_report(sheet);
  for (ReportSection& section : report.sections) {
    Findings& findings = section.findings;
    findings.timed.insert(findings.timed.begin(), {"more", "A new sentence."});
    findings.untimed.insert(findings.untimed.begin(), {"more-facts", "A new fact."});
    findings.tables.insert(findings.tables.begin(), {.title = "A new table", .name = "new-table"});
  }
  EXPECT_EQ(markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kFilled), filled(sheet));
}

TEST_P(EverySheet, EndsWithTheChecklistOfWhatWasMeasured) {
  const std::string line = "Checklist: [?] no frequency scaling: the system does not say; ";
  EXPECT_EQ(all_matches(filled(load_sheet(GetParam())), "\n\nChecklist: [^\n]+\n\n$").size(), 1U);
  EXPECT_THAT(filled(load_sheet(GetParam())), HasSubstr(line));
  EXPECT_THAT(blank_of(load_sheet(GetParam())), Not(HasSubstr("Checklist")));
}

INSTANTIATE_TEST_SUITE_P(OfTheCourse, EverySheet, testing::ValuesIn(sheet_names()),
                         [](const auto& info) { return info.param; });

/// What is shown of one figure of one case: a simulated one wherever it is, a measured one in its
/// experiment.
class ShownOnce {
 public:
  void add(const std::string& experiment, const std::string& command, const std::string& figure,
           const std::string& text, const std::string& where) {
    if (text == kNotRun || text == kNotSimulated) return;
    const auto [found, is_new] =
        shown_.try_emplace(experiment + " | " + command + " | " + figure, text);
    EXPECT_EQ(found->second, text) << found->first << ", in " << where;
    seen_again_ += is_new ? 0 : 1;
  }
  [[nodiscard]] int seen_again() const { return seen_again_; }

 private:
  std::map<std::string, std::string> shown_;
  int seen_again_ = 0;
};

TEST(AStudy, ShowsOneValueOfAFigureOfACaseInAllSheetsAndItsReport) {
  std::vector<const Experiment*> all;
  for (const Experiment& each : experiments()) all.push_back(&each);
  // With long steps among others, so that medians are not means.
  const Report report = made_up_report(all, [](const Case& what) {
    MadeUpStep step = usual_step(what);
    step.burst_s = 2 * step.step_s;
    return step;
  });
  const SheetRuns runs(report, gpus());
  ShownOnce shown;
  for (const std::string& sheet_of : sheet_names()) {
    for (const std::string& name : figures_in(load_sheet(sheet_of))) {
      const std::optional<Workload> workload = workload_of(name);
      ASSERT_TRUE(workload) << name;
      const bool is_simulated = name.starts_with("simulated.");
      const SheetName found = sheet_name(name).value();
      const std::string figure = name.substr(name.rfind('.') + 1);
      const std::string experiment = is_simulated ? "simulated" : found.experiments.front();
      const std::string command =
          is_simulated ? command_line_of(*workload)
                       : command_line_of(runs.section(experiment).results.at(found.key).what());
      shown.add(experiment, command, figure, found.text(runs), sheet_of);
    }
  }
  for (const ReportSection& section : report.sections) {
    for (const FindingTable& table : section.findings.tables) {
      const bool is_simulated = table.name == "simulated-table";
      for (std::size_t row = 0; row < table.commands.size(); ++row) {
        for (std::size_t column = 0; column < table.figures.size(); ++column) {
          if (table.figures[column].empty() || table.figures[column] == "case") continue;
          shown.add(is_simulated ? "simulated" : section.experiment->name, table.commands[row],
                    table.figures[column], table.rows[row][column],
                    std::string(section.experiment->name) + "." + table.name);
        }
      }
    }
  }
  EXPECT_GT(shown.seen_again(), 100);
}

/// What a name stands for, if cases went like this.
std::string text_of(const std::string& name, const HowCasesWent& how = usual_step) {
  const SheetName found = sheet_name(name).value();
  std::vector<const Experiment*> requested;
  for (const std::string& each : found.experiments) requested.push_back(&experiment_of(each));
  const Report report = made_up_report(requested, how);
  return found.text(SheetRuns(report, gpus()));
}

TEST(SheetNames, StandForTheFiguresThatTheCourseAsksFor) {
  EXPECT_EQ(text_of("data-parallel.devices-2.split"), "32/32");
  EXPECT_EQ(text_of("data-parallel.devices-3.split"), "22/22/20");
  EXPECT_EQ(text_of("data-parallel.devices-5.split"), "13/13/13/13/12");
  EXPECT_EQ(text_of("strong-scaling.ranks-4.speed-up"), "4.00x (3.98x to 4.01x)");
  EXPECT_EQ(text_of("strong-scaling.ranks-2.ran-on"), "2 cores");
  EXPECT_EQ(text_of("no-sync.once-4.speed-up"), "not run") << "one rank alone was not measured";
  EXPECT_EQ(text_of("no-sync.once-4.efficiency"), "not run");
  EXPECT_EQ(text_of("simulated.comm-vs-compute.small-1.speed-up"), "1.0x");
  EXPECT_EQ(text_of("batch-sweep.batch-64.seconds"), "0.1000 (0.09976 to 0.1003)");
  EXPECT_EQ(text_of("comm-vs-compute.large-2.model"), "2048 x 8");
  EXPECT_EQ(text_of("simulated.comm-vs-compute.large-2.model"), "8192 x 8");
  EXPECT_EQ(text_of("warmup.from-start.starts") + " " + text_of("warmup.from-start.steps") + " " +
                text_of("warmup.from-start.warmup") + " " + text_of("warmup.from-start.steady"),
            "9 30 5 225");
  EXPECT_EQ(text_of("amdahl.ranks-1.batch"), "512");
  EXPECT_EQ(text_of("simulated.amdahl.ranks-1.batch"), "512");
  EXPECT_EQ(text_of("ddp-amp.both-8.batch") + " " + text_of("ddp-amp.both-8.micro-steps"), "128 8");
  EXPECT_EQ(text_of("simulated.ddp-amp.both-8.batch"), "512");
}

// A step of 8192 x 6 at batch 64 in fp32 on one GPU, wherever a sheet shows it, and in predict.
TEST(SheetNames, HaveOneTimeOfOneStepOnEverySheet) {
  const std::string time = simulated_time(predicted_step({}, gpus(), 1).step_s);
  for (const char* const name :
       {"batch-sweep.batch-64", "io-delay.no-delay", "data-parallel.devices-1",
        "strong-scaling.ranks-1", "precision.fp32-64"}) {
    EXPECT_EQ(text_of(std::string("simulated.") + name + ".time"), time) << name;
  }
  EXPECT_EQ(text_of("simulated.data-parallel.devices-1.speed-up"), "1.0x");
}

// What is simulated is compared with the same case as what is measured: one copy on one device that
// accumulates as many micro-steps.
TEST(SheetNames, DivideBySimulatedAndMeasuredTimesOfTheSameCase) {
  const auto seconds = [](const char* key) {
    return std::stod(text_of(std::string("simulated.hybrid.") + key + ".seconds"));
  };
  EXPECT_NEAR(std::stod(text_of("simulated.hybrid.2x2-batch-64-micro-4.speed-up")),
              seconds("1x1-batch-64-micro-4") / seconds("2x2-batch-64-micro-4"), 0.1)
      << "two digits";
}

// Half of the model on each stage; one rank alone has it all.
TEST(SheetNames, StandForTheFiguresOfAPipeline) {
  EXPECT_EQ(text_of("simulated.pipeline.one-rank.speed-up"), "1.0x");
  EXPECT_EQ(text_of("simulated.pipeline.one-rank.waits"), "0.0 %");
  const double naive = std::stod(text_of("simulated.pipeline.naive.waits"));
  EXPECT_GT(naive, 25) << "only one stage works at a time, but both update";
  EXPECT_LT(naive, 50);
  EXPECT_LT(std::stod(text_of("simulated.pipeline.1f1b-8.waits")), naive);
  EXPECT_THAT(text_of("pipeline.naive.memory"), HasSubstr(", ")) << "of each stage";
  EXPECT_THAT(text_of("pipeline.one-rank.memory"), Not(HasSubstr(", ")));
  EXPECT_EQ(text_of("pipeline.naive.split"), "3/3") << "layers";
  EXPECT_EQ(text_of("data-parallel.devices-1.sends"), "-");
}

// Between its two layers go 64 x 2000 outputs, and their gradients back; 64 x 1000 targets go to
// the device that has the loss.
TEST(SheetNames, StandForTheFiguresOfASmallModelInTwo) {
  EXPECT_EQ(text_of("two-splits.layers-64.model"), "1000-2000-1000");
  EXPECT_EQ(text_of("two-splits.layers-64.split") + " " + text_of("two-splits.batch-64.split"),
            "1/1 32/32");
  EXPECT_EQ(text_of("two-splits.layers-64.moved"), "1.22 MiB");
  EXPECT_EQ(text_of("two-splits.whole-64.moved"), "-");
}

// Two products of 64 x 1024 x 1024 in 10 ms.
TEST(SheetNames, StandForTheRateOfAForwardPass) {
  EXPECT_EQ(text_of("matmul.fp32-64.forward-rate"), "26.9 GFLOP/s") << "of the products";
  EXPECT_EQ(text_of("matmul.fp32-64.ran-on"), "4 cores");
  EXPECT_EQ(text_of("matmul.fp32-64-threads-1.ran-on"), "1 core");
  EXPECT_THAT(text_of("simulated.matmul.bf16-64.forward-rate"), HasSubstr(" TFLOP/s"));
}

// The sheet's formula: two launches of 3 us, and twice 256 MiB at 4.3 TB/s. Half the bytes are
// twice as fast at most.
TEST(SheetNames, HaveTheTimeOfAProductWithAVectorByTheFormulaBesideIt) {
  const double single = std::stod(text_of("simulated.matmul.fp32-1.forward"));
  EXPECT_NEAR(single, 2e6 * (3e-6 + 8192.0 * 8192 * 4 / 4.3e12), 3);
  EXPECT_LE(single / std::stod(text_of("simulated.matmul.bf16-1.forward")), 2);
}

TEST(SheetNames, StandForLossesAndScales) {
  const auto overflows = [](const Case& what) {
    MadeUpStep step = usual_step(what);
    step.loss = 0.5;
    if (what.workload.config.device.precision == Precision::kFp16) {
      step.scale = {65536, 16384};
      step.skipped = 2;
    }
    return step;
  };
  EXPECT_EQ(text_of("ddp-amp.amp.last-loss", overflows), "0.500000");
  EXPECT_EQ(text_of("ddp-amp.amp.scale", overflows), "65536 to 16384");
  EXPECT_EQ(text_of("ddp-amp.amp.skipped", overflows), "2 of 12");
  EXPECT_EQ(text_of("ddp-amp.ddp.scale", overflows), "-");
}

TEST(SheetAnswers, ShowTheListsOfSchedules) {
  EXPECT_EQ(text_of("pipeline.order"),
            "Stage 0 of 2, with 4 micro-batches: naive F0 B0 F1 B1 F2 B2 F3 B3; GPipe F0 F1 F2 F3 "
            "B0 B1 B2 B3; 1F1B F0 F1 B0 F2 B1 F3 B2 B3.");
  EXPECT_THAT(text_of("pipeline.equal-bubbles"),
              AllOf(HasSubstr("In 28 of 28 pipelines"),
                    HasSubstr("with 32 micro-batches, the largest number here, a stage of 1F1B "
                              "keeps 8 of them at most, one of GPipe 32")));
}

TEST(SheetNames, StandForThePartsOfAStep) {
  EXPECT_EQ(text_of("strong-scaling.ranks-1.passes"), "51.0 ms");
  EXPECT_EQ(text_of("strong-scaling.ranks-1.optimizer"), "10.0 ms");
  EXPECT_EQ(text_of("strong-scaling.ranks-1.optimizer-share"), "10.0 % (10.0 % to 10.0 %)");
  EXPECT_THAT(text_of("data-parallel.devices-2.alone"), HasSubstr("42.0 %"))
      << "loss, update and exchange are 21 of 50 ms";
  EXPECT_EQ(text_of("imbalance.balanced.total").substr(0, 6), "1.50 s");
}

// The card sums 256 MiB and 4 MiB over two GPUs in 786.5 and 36.2 us. By a calculation apart from
// the program, the three products of a layer take 783 and 788 us with 90 and 92 rows of 8192 on
// each GPU, and 36.0 and 36.3 us with 138 and 139 rows of 1024.
TEST(SheetNames, SayFromWhichBatchComputingIsLongerAtEachWidth) {
  const std::string text = text_of("communication.bottleneck");
  const auto batches = first_match(text, "about ([0-9]+) at width 8192 and ([0-9]+) at width 1024");
  ASSERT_FALSE(batches.empty()) << text;
  EXPECT_NEAR(std::stod(batches[1]), 184, 4);
  EXPECT_NEAR(std::stod(batches[2]), 278, 6);
  const std::string reason = text_of("communication.bottleneck-why");
  EXPECT_THAT(reason, HasSubstr("sum in 787 us; its products at batch 64 take two GPUs 320 us."));
  EXPECT_THAT(reason, HasSubstr("at batch 64 it is not."));
}

TEST(SheetNames, SayWhichSizesAreNotTheCourses) {
  Report report = made_up_report({&experiment_of("sharding")});
  const auto size = [&] { return sheet_name("size").value().text(SheetRuns(report, gpus())); };
  EXPECT_THAT(size(),
              AllOf(HasSubstr("1024 x 6 (width x layers) in place of the course's 8192 x 6"),
                    Not(HasSubstr("Tasks that do not vary the batch"))));
  report.sections.front().results.setting.batch_size = 128;
  EXPECT_THAT(size(), HasSubstr(" Tasks that do not vary the batch take 128 in place of 64. "));
}

TEST(SheetNames, CompareNothingOnAMachineWithOneGpu) {
  const Report none;
  const SheetRuns runs(none, load_card("t4"));
  EXPECT_EQ(sheet_name("communication.bottleneck").value().text(runs),
            "Not on one T4, which has one device.");
  EXPECT_EQ(sheet_name("communication.bottleneck-why").value().text(runs),
            "One device has no gradients to sum with others.");
}

TEST(SheetNames, OfTheSimulatorAreThatMachines) {
  const SheetName name = sheet_name("simulated.strong-scaling.ranks-4.time").value();
  EXPECT_TRUE(name.experiments.empty()) << "nothing is measured for it";
  const Report none;
  const std::string here = name.text(SheetRuns(none, load_card("h200-nvlink")));
  const std::string there = name.text(SheetRuns(none, load_card("a100-nvlink")));
  EXPECT_THAT(here, HasSubstr(" ms"));
  EXPECT_NE(here, there);
  EXPECT_EQ(name.text(SheetRuns(none, load_card("t4"))), "-") << "it has one GPU";
}

TEST(SheetNames, AreKnownOrNear) {
  EXPECT_FALSE(sheet_name("strong-scaling").has_value());
  EXPECT_FALSE(sheet_name("strong-scaling.ranks-3.time").has_value());
  EXPECT_FALSE(sheet_name("simulated.strong-scaling.ranks-2.p95").has_value());
  EXPECT_TRUE(sheet_name("strong_scaling.table").has_value());
  EXPECT_EQ(nearest_sheet_name("strong-scaling.ranks-2.tim"), "strong-scaling.ranks-2.time");
  EXPECT_EQ(nearest_sheet_name("data-parallel.lod"), "data-parallel.load");
  EXPECT_EQ(nearest_sheet_name("data.load"), "data-parallel.load");
  EXPECT_EQ(nearest_sheet_name("simulated.strong.ranks-2.time"),
            "simulated.strong-scaling.ranks-2.time");
  EXPECT_EQ(nearest_sheet_name("communication.botleneck"), "communication.bottleneck");
  EXPECT_EQ(nearest_sheet_name("nothing like it"), "");
  EXPECT_EQ(nearest_sheet_name("nothing.like.it"), "");
  const std::string all = sheet_names_text();
  EXPECT_THAT(all, HasSubstr("\n  imbalance  "));
  EXPECT_THAT(all, HasSubstr("waiting cost longer"));
  for (const SheetName& each : sheet_notes()) {
    EXPECT_THAT(all, HasSubstr("\n  " + each.name + "  "));
    EXPECT_TRUE(sheet_name(each.name).has_value());
  }
}

HowCasesWent profiled(double forward, double backward, double relu) {
  return [=](const Case&) {
    return MadeUpStep{.step_s = 1,
                      .ops = {{"gemm", "forward", "net.0", forward / 2},
                              {"gemm", "forward", "net.2", forward / 2},
                              {"gemm", "backward", "net.0", backward / 2},
                              {"gemm", "backward", "net.2", backward / 2},
                              {"bias_relu", "forward", "net.0", relu},
                              {"adam", "optimizer", "", 9}}};
  };
}

/// What device 0 and the others compute, in milliseconds, and the exchange.
HowCasesWent loaded(double first, double others, double update, double exchange) {
  return [=](const Case& what) {
    MadeUpStep step{.step_s = 0.1,
                    .phase_s = {{"optimizer", 1e-3 * update}, {"communication", 1e-3 * exchange}}};
    for (int device = 0; device < what.workload.ranks; ++device) {
      step.ops.push_back(
          {"gemm", "forward", "net.0", 1e-3 * (device == 0 ? first : others), device});
    }
    return step;
  };
}

HowCasesWent paused(double one, double many, double of_pause) {
  return [=](const Case& what) {
    return MadeUpStep{.step_s = (what.workload.ranks == 1 ? one : many) +
                                1e-3 * what.workload.config.injected.delay_ms *
                                    (what.workload.ranks == 1 ? 1 : of_pause)};
  };
}

// The ratio of two times in a table, wherever it is shown.
TEST(SheetAnswers, HaveTheSpeedUpsOfTheTables) {
  std::size_t calls = 0;
  const auto uneven = [&](const Case& what) {
    MadeUpStep step = paused(0.1, 0.06, 1)(what);
    step.noise = 0.01 * static_cast<double>(++calls % 7);
    return step;
  };
  for (const auto& [experiment, name] :
       {std::pair{"delay", "delay.law"}, {"batch-scaling", "batch-scaling.improves"}}) {
    const std::string table = text_of(std::string(experiment) + ".table", uneven);
    calls = 0;
    const auto shown = all_matches(text_of(name, uneven), "[0-9.]+x [(][0-9.]+x to [0-9.]+x[)]");
    EXPECT_EQ(shown.size(), 2U);
    for (const auto& found : shown) {
      EXPECT_THAT(table, HasSubstr(" " + found[0] + " |")) << name;
    }
    calls = 0;
  }
}

// 6 x (1024 x 1024 + 1024) parameters to device 1 and as many gradients back, 24.02 MiB; 32 rows of
// outputs in, 0.13 MiB, and of inputs and their outputs' gradients out, 0.25 MiB.
TEST(SheetAnswers, HaveTheBytesThatMlpDpPrints) {
  const std::string table = text_of("data-parallel.devices-table", loaded(60, 20, 0, 0));
  EXPECT_THAT(
      table,
      HasSubstr("| 0 | 32 | 60.0 ms (59.9 ms to 60.2 ms) | 60.0 % | 24.15 MiB | 24.27 MiB |"));
  EXPECT_THAT(table, HasSubstr("| 1 | 32 | 20.0 ms"));
  EXPECT_EQ(text_of("data-parallel.devices-2.through-0"), "48.42 MiB");
  EXPECT_EQ(text_of("data-parallel.devices-2.moved"), "48.42 MiB");
  EXPECT_EQ(text_of("strong-scaling.ranks-2.moved"), "-") << "only DataParallel has a device 0";
}

TEST(SheetAnswers, KeepTheProfiledRegionToForwardLossAndBackward) {
  const std::string table = text_of("profile.region-table", profiled(1, 2, 0.1));
  EXPECT_THAT(table, HasSubstr("| aten::mm | 2.00 s"));
  EXPECT_THAT(table, HasSubstr("| aten::addmm | 1.00 s"));
  EXPECT_THAT(table, Not(HasSubstr("adam")));
}

class OwnSheet : public TempDirTest {
 protected:
  Sheet own(const std::string& text) { return load_sheet(file("own.md", text).string()); }
};

TEST_F(OwnSheet, MayAskForAnyNameAndHasPlots) {
  const Sheet sheet =
      own("{{warmup.plot}}\n\n{{warmup.from-start.command}} {{strong-scaling.not-compared}}\n");
  EXPECT_EQ(sheet.name, "own");
  const std::string text = filled(sheet);
  EXPECT_THAT(text, HasSubstr("![The first steps](plots/warmup-1.svg)\n"));
  EXPECT_THAT(text, HasSubstr("mlp_single --dim 1024 "));
  EXPECT_THAT(text, HasSubstr("This was not measured."));
  EXPECT_EQ(blank_of(sheet).find("warmup"), std::string::npos);
}

/// Of each item the case that meets it least, over all experiments.
TEST_F(OwnSheet, HasTheChecklistAtItsFootOrWhereItAsksForIt) {
  Report report = made_up_report({&experiment_of("warmup"), &experiment_of("sharding")});
  const auto change = [](ReportSection& section, const std::string& governor, double lost_share,
                         std::size_t count) {
    for (Measurement& each : section.results.cases) {
      std::vector<Start> starts(each.starts().begin(),
                                each.starts().begin() + static_cast<std::ptrdiff_t>(count));
      for (Start& start : starts) {
        start.governor = governor;
        start.lost_share = lost_share;
      }
      each = Measurement(each.what(), std::move(starts));
    }
  };
  change(report.sections.front(), "powersave", 0.01, 9);
  change(report.sections.back(), "performance", 0.02, 5);
  const std::string line =
      "Checklist: [ ] no frequency scaling: governor powersave; [x] no other programs: they took "
      "2.0 % of the time; [x] seed: 0; [x] warm-up: 5 steps left out; [ ] repeats: 5 starts of 25 "
      "steps\n\n";
  const SheetRuns runs(report, gpus());
  const auto text = [&](const std::string& sheet) {
    return markdown_of(own(sheet), runs, SheetCopy::kFilled);
  };
  EXPECT_EQ(text("{{warmup.from-start.batch}}\n\n{{sharding.data-parallel.split}}\n"),
            "64\n\n32/32\n\n" + line);
  EXPECT_EQ(text("{{checklist}}\n\nEnd.\n"), line + "End.\n\n");
  EXPECT_THAT(blank_of(own("{{checklist}}\n\nEnd.\n")),
              AllOf(Not(HasSubstr("Checklist")), EndsWith("\n\nEnd.\n\n")));
  const Report none;
  EXPECT_EQ(markdown_of(own("End.\n"), SheetRuns(none, gpus()), SheetCopy::kFilled), "End.\n\n")
      << "nothing was measured";
}

TEST_F(OwnSheet, SaysAThingOnceInAParagraph) {
  const std::string name = "{{data-parallel.uneven}}";
  const std::string text = filled(own(name + " " + name + "\n\n" + name + "\n"));
  EXPECT_EQ(all_matches(text, "Not every number divides").size(), 2U);
}

TEST_F(OwnSheet, GivesTheReasonWhereAnExperimentIsInvalid) {
  const Sheet sheet = own(
      "A step takes {{warmup.from-start.time}}. *t.* It has {{warmup.from-start.batch}} "
      "samples.\n\n"
      "| t |\n| --- |\n| {{warmup.from-start.time}} |\n\n"
      "Four ranks took {{strong-scaling.ranks-4.time}}; two {{strong-scaling.ranks-2.time}}.\n");
  Report report = made_up_report(experiments_of(sheet));
  std::vector<Measurement>& ranks = report.sections.back().results.cases;
  std::erase_if(ranks, [](const Measurement& each) { return each.what().key == "ranks-4"; });
  report.sections.front().trouble = "INVALID: it was disturbed";
  const std::string text = markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kFilled);
  EXPECT_THAT(text, StartsWith("*t.* It has 64 samples. No conclusion: warmup is "
                               "INVALID.\n\n| t |\n| --- |\n| 100 ms"));
  EXPECT_THAT(text, HasSubstr("\n\nThis was not run.\n\nChecklist: "));
  const Sheet four = own("On GPUs {{simulated.strong-scaling.ranks-4.speed-up}}.\n");
  const Report none;
  EXPECT_EQ(markdown_of(four, SheetRuns(none, load_card("t4")), SheetCopy::kFilled),
            "Not simulated: the card of one T4 has 1 device.\n\n");
  const Sheet bf16 = own("On GPUs {{simulated.precision.bf16-64.time}}.\n");
  EXPECT_EQ(markdown_of(bf16, SheetRuns(none, load_card("t4")), SheetCopy::kFilled),
            "Not simulated: the card of one T4 has no rate of products in bf16.\n\n");
}

TEST_F(OwnSheet, ConcludesNothingWhereRanksShareACore) {
  const Sheet sheet = own("{{strong-scaling.linear}} {{strong-scaling.efficiency}} *n.*\n");
  const Experiment& scaling = experiment_of("strong-scaling");
  Setting one_core = made_up_setting();
  one_core.units = 1;
  Report report;
  report.sections.push_back(section_of(scaling, made_up(scaling, one_core, usual_step)));
  EXPECT_EQ(report.sections.front().trouble, "");
  EXPECT_THAT(markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kFilled),
              StartsWith("*n.* No conclusion: strong-scaling compares no times here."));
}

// A time of ranks that share cores answers nothing; where they ran, and tables, are shown.
TEST_F(OwnSheet, ConcludesNothingFromTheTimesOfRanksThatShareCores) {
  const Sheet sheet =
      own("Four took {{strong-scaling.ranks-4.time}}. They ran on "
          "{{strong-scaling.ranks-4.ran-on}}.\n");
  const Experiment& scaling = experiment_of("strong-scaling");
  Setting two_cores = made_up_setting();
  two_cores.units = 2;
  Report report;
  report.sections.push_back(section_of(scaling, made_up(scaling, two_cores, usual_step)));
  EXPECT_THAT(markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kFilled),
              StartsWith("They ran on 4 ranks on 2 cores. No conclusion: the 4 ranks of "
                         "ranks-4 share 2 cores.\n"));
}

TEST_F(OwnSheet, SaysAtTheEndOfAParagraphWhatItWithholds) {
  Report report = made_up_report({&experiment_of("warmup")});
  report.sections.front().trouble = "INVALID: it was disturbed";
  const Sheet sheet = own("{{warmup.first-step}}\n*t.* {{warmup.length}}\n\n> Look.\n> There.\n");
  EXPECT_THAT(markdown_of(sheet, SheetRuns(report, gpus()), SheetCopy::kKey),
              StartsWith("*t.* No conclusion: warmup is INVALID.\n\n> Look.\n> There.\n\n"
                         "Checklist: "));
}

TEST_F(OwnSheet, HasOnABlankCopyWhatStudentsNeed) {
  const Sheet sheet =
      own("# A: {{warmup.from-start.model}} for more\n\nRun {{warmup.from-start.command}}.\n\n"
          "{{warmup.table}}\n\n**Is it?**\n\n3 of 10, without a name. *3.*\n\nMore of it.\n\n> "
          "Look.\n\nThe end.\n");
  const std::string blank = blank_of(sheet);
  EXPECT_THAT(blank, MatchesRegex(
                         R"(# A

Name: (\\_){16} Date: (\\_){8}

Cost: ([0-9]+ starts), about [0-9]+ minutes? on one T4 \(simulated\)\. `mlp_lab` says [^
]+

To measure: `build/mlp_lab run warmup` \([0-9]+ starts\)

((\\_){38}

){3}\*\*1 Is it\?\*\*

((\\_){38}

){3}The end\.

)"));
  EXPECT_THAT(
      blank_of(own("A {{warmup.table}}\n\n## B\n\n{{batch-sweep.table}}\n\n## C\n\nEnd.\n")),
      AllOf(HasSubstr("## B\n\nTo measure: `build/mlp_lab run batch-sweep` (54 starts)\n\n"),
            HasSubstr("## C\n\nEnd.")));
}

TEST_F(OwnSheet, IsRefusedWithTheLineOfAnUnknownName) {
  expect_error(ExitCode::kBadData,
               "name 'data-parallel.unevn': own.md, line 3, has a name that stands for nothing; "
               "did you mean "
               "'data-parallel.uneven'? mlp_lab sheet --names lists all",
               [&] { own("# Mine\n\n{{data-parallel.unevn}}\n"); });
  expect_error(ExitCode::kBadData, "name 'pipeline.answer-7'",
               [&] { own("{{pipeline.answer-7}}\n"); });
}

TEST_F(OwnSheet, IsRefusedWithTheLineOfWhatItLacks) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line '1': own.md has no text there; write a sheet"},
      {"a\n\n{{warmup.table}\n", "line '3': own.md has a name without one of its braces there"},
      {"a\n\n{warmup.table}}\n", "line '3': own.md has a name without one of its braces there"},
      {"| a | b |\n| --- | --- |\n| 1 |\n", "line '3': own.md has 1 cell below 2 there"},
      {"## Task\n| a |\n| --- |\n", "line '2': own.md has a table right below other text there"},
      {"a\n\n**Is it?**\n\n## Next\n", "line '3': own.md has a question without an answer there"},
      {"**Is it?**\n\n**Or not?**\n\nYes.\n", "line '1': own.md has a question without an answer"},
      {"**Is it?**\n\n> Look.\n", "line '1': own.md has a question without an answer"}};
  for (const auto& [text, error] : cases) {
    expect_error(ExitCode::kBadData, error, [&, of = text] { own(of); });
  }
}

TEST(SizeNote, NamesWhatACardHasNoRateOf) {
  const Report report;
  const auto note = [&](const char* card) {
    return sheet_name("size")->text(SheetRuns(report, load_card(card)));
  };
  EXPECT_THAT(note("t4"),
              HasSubstr("The card of one T4 has no rate of products in tf32 and bf16, so "
                        "such figures are \"-\"."));
  EXPECT_THAT(note("h200-nvlink"), HasSubstr(kSimulationError));
  EXPECT_THAT(note("h200-nvlink"), EndsWith("are assumed or from data sheets."));
}

TEST(MarkdownPage, KeepsAQuestionOnThePageOfItsAnswer) {
  EXPECT_EQ(html_of_markdown("**Is it?**\n"), "<p class=\"title\"><strong>Is it?</strong></p>\n");
  EXPECT_THAT(html_page("", ""), HasSubstr(".title{break-after:avoid}"));
}

TEST(MarkdownPage, HasTheHtmlOfEachPart) {
  EXPECT_EQ(html_of_markdown("# A & B\n\n**Is it?** *No*: 2 * 3 `a*b` \\_\n\n- one\n- two\n"),
            "<h1>A &amp; B</h1>\n<p><strong>Is it?</strong> <em>No</em>: 2 * 3 <code>a*b</code> "
            "_</p>\n<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n");
  EXPECT_EQ(html_of_markdown("> **Look**\n"),
            "<blockquote class=\"invalid\">\n<p><strong>Look</strong></p>\n</blockquote>\n");
  EXPECT_EQ(html_of_markdown("| | b |\n| --- | ---: |\n| a\\|b | `c` |\n"),
            "<div class=\"scroll\"><table class=\"summary\">\n<thead>\n<tr>\n<th></th>\n"
            "<th align=\"right\">b</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>a|b</td>\n"
            "<td align=\"right\"><code>c</code></td>\n</tr>\n</tbody>\n</table>\n</div>\n");
  EXPECT_EQ(html_of_markdown("Runs, 5 ms:\n```\na *b* <c> 5 ms\n  d\n```\n"),
            "<details><summary>Runs, 5\u00a0ms:</summary><pre><code>a *b* &lt;c&gt; 5 ms\n  d\n"
            "</code></pre>\n</details>\n");
  EXPECT_EQ(html_of_markdown("![p](q.svg) [l](m) <b>\n"),
            "<p><img src=\"q.svg\" alt=\"p\"> <a href=\"m\">l</a> &lt;b&gt;</p>\n");
}

TEST(MarkdownPage, ShowsDataAsItIs) {
  for (const std::string data :
       {"a|b", "2 * 3 * 4", "<b>", "`c`", "[d](e)", "a\\*b", "f_g_h", "aten::_adam_", "&amp;"}) {
    const FindingTable table{.title = data, .columns = {data}, .rows = {{data}}};
    const std::string html = html_of_markdown(markdown_table(table));
    EXPECT_THAT(html, HasSubstr("<strong>" + html_text(data) + "</strong>"));
    EXPECT_THAT(html, HasSubstr("<th>" + html_text(data) + "</th>"));
    EXPECT_THAT(html, HasSubstr("<td>" + html_text(data) + "</td>"));
  }
}

TEST(MarkdownPage, LinksToPagesAndPeopleOnly) {
  for (const char* const address : {"a.html", "../a:b", "#a", "?a:b", "//a.b/c", "http://a.b:80/c",
                                    "https://a.b", "mailto:a@b.c", ""}) {
    EXPECT_EQ(html_of_markdown(fmt::format("[x]({})\n", address)),
              fmt::format("<p><a href=\"{}\">x</a></p>\n", address));
  }
  for (const char* const address :
       {"javascript:a", "JavaScript:a", " javascript:a", "data:a", "vbscript:a", "java\tscript:a",
        "&#106;avascript:a", "file:///a"}) {
    const std::string html = html_of_markdown(fmt::format("[x]({0}) <{0}>\n", address));
    EXPECT_THAT(html, Not(HasSubstr("href"))) << address;
  }
}

}  // namespace
}  // namespace barestep
