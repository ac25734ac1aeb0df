// Each experiment gets two simulated sets of measurements with opposite outcomes; its sentences
// must be opposite too.
#include "core/units.h"
#include "lab/experiments/calculations.h"
#include "lab/made_up.h"
#include "lab/opposites.h"
#include "lab/sheets/sheet_names.h"
#include "lab/study/report.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// The word of a finding, if it is about a comparison, else its text; empty if there is none.
std::string said(const Opposites& of, const HowCasesWent& how) {
  const std::size_t dot = of.finding.find('.');
  const Findings findings = concluded(of.finding.substr(0, dot), how, of.on_gpu);
  for (const auto* const all : {&findings.timed, &findings.untimed}) {
    const auto found = std::ranges::find(*all, of.finding.substr(dot + 1), &Finding::name);
    if (found == all->end()) continue;
    return found->word ? std::string(name_of(*found->word)) : found->text;
  }
  return "";
}

class FindingsOf : public testing::TestWithParam<Opposites> {};

TEST_P(FindingsOf, TurnRoundWithTheData) {
  const Opposites& of = GetParam();
  const std::string one = said(of, of.one), other = said(of, of.other);
  EXPECT_THAT(one, AllOf(HasSubstr(of.says_of_one), Not(testing::StrEq(other))));
  EXPECT_THAT(other, HasSubstr(of.says_of_other));
  if (!of.tie) return;
  EXPECT_THAT(said(of, of.tie), AllOf(HasSubstr(of.says_of_tie), Not(HasSubstr(of.says_of_one))));
}

std::string name_of_opposites(const testing::TestParamInfo<Opposites>& info) {
  std::string name = info.param.finding + std::to_string(info.index);
  std::erase_if(name, [](char each) { return each == '-' || each == '.'; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Experiments, FindingsOf, testing::ValuesIn(opposites()),
                         name_of_opposites);

TEST(Experiments, AreAllAskedForOppositeFindings) {
  const std::vector<Opposites> all = opposites();
  for (const Experiment& experiment : experiments()) {
    if (experiment.cases(made_up_setting()).empty()) continue;  // nothing is measured
    EXPECT_TRUE(std::ranges::any_of(all, [&](const Opposites& each) {
      return each.finding.starts_with(std::string(experiment.name) + ".");
    })) << experiment.name;
  }
}

/// Nothing but its ranks and devices distinguishes a case from others.
MadeUpStep plain_step(const Case& what) {
  MadeUpStep step{.step_s = 0.1, .ops = {{"gemm", "forward", "net.0", 0.1}}};
  step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1,
                          MadeUpStep{.step_s = 0.1});
  return step;
}

TEST(Experiments, HaveCasesWithDifferentKeysAndTablesWithFullRows) {
  for (const Experiment& experiment : experiments()) {
    SCOPED_TRACE(experiment.name);
    for (const bool quick : {false, true}) {
      for (const bool on_gpu : {false, true}) {
        std::set<std::string> keys;
        for (const Case& each : experiment.cases(new_setting(quick, on_gpu, 2))) {
          EXPECT_TRUE(keys.insert(each.key).second) << each.key;
        }
      }
    }
    for (const FindingTable& table : concluded(experiment.name, plain_step).tables) {
      for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size()) << table.title;
    }
  }
}

/// Of all findings, tables and plots.
std::vector<std::string> names_in(const Findings& findings) {
  std::vector<std::string> names;
  const auto add = [&](const auto& all) {
    for (const auto& each : all) names.push_back(each.name);
  };
  add(findings.timed);
  add(findings.untimed);
  add(findings.tables);
  add(findings.plots);
  return names;
}

/// Two flips of a case of bit-flips, found or not by each detector.
std::map<std::string, std::vector<double>> flips_of(const std::string& key) {
  const std::vector<Case> cases = experiment_of("bit-flips").cases(made_up_setting());
  const Case& flipped = *std::ranges::find(cases, key, &Case::key);
  const Start start = flipped.made(flipped, 0);
  const std::vector<double>& loss = start.ranks.front().loss;
  EXPECT_EQ(loss.size(), 200U);
  EXPECT_LT(loss.back(), 0.7 * loss.front()) << "it learns";
  std::map<std::string, std::vector<double>> readings;
  for (const Watched& flip : start.watched) {
    for (const auto& [gauge, level] : flip.gauges) readings[gauge].push_back(level.mean);
  }
  return readings;
}

TEST(BitFlips, AreFoundByTheStepThatRunsAgainOrByTheOtherRanks) {
  using testing::Each;
  auto weights = flips_of("weights-between-steps"), outputs = flips_of("outputs");
  EXPECT_THAT(weights["again"], Each(0));
  EXPECT_THAT(weights["later"], Contains(1)) << "a low bit may be rounded away";
  EXPECT_THAT(outputs["again"], Each(1));
  EXPECT_THAT(outputs["later"], Each(0)) << "the ranks have the same wrong sum";
  for (auto& gauges : {&weights, &outputs}) EXPECT_THAT((*gauges)["every"], Each(1));
}

TEST(Findings, HaveNamesOfTheirOwnThatSheetsKnow) {
  for (const Experiment& experiment : experiments()) {
    const auto check = [&](const Findings& findings) {
      std::set<std::string> different;
      for (const std::string& name : names_in(findings)) {
        EXPECT_TRUE(different.insert(name).second) << experiment.name << "." << name;
        EXPECT_TRUE(sheet_name(fmt::format("{}.{}", experiment.name, name)).has_value())
            << experiment.name << "." << name;
      }
    };
    for (const int units : {1, 4}) {
      Setting setting = made_up_setting();
      setting.units = units;
      check(experiment.findings(made_up(experiment, setting, plain_step)));
    }
  }
}

/// The facts of an experiment in which nothing is measured.
Findings calculated(const std::string& name, const Setting& setting = made_up_setting()) {
  const Experiment& experiment = experiment_of(name);
  EXPECT_TRUE(experiment.cases(setting).empty());
  Findings findings = experiment.findings({.setting = setting, .name = name, .cases = {}});
  EXPECT_TRUE(findings.timed.empty()) << "no time is measured";
  EXPECT_FALSE(findings.untimed.empty());
  return findings;
}

// 10.0001, 9.9531 and 10.0021 are what PyTorch prints for the same sums, in the assignment that
// asks for them (Stanford CS336, assignment 2). The others follow from Python's struct.pack.
TEST(Rounding, AddsAsPyTorchDoesAndSaysWhereSumsStop) {
  const Findings findings = calculated("rounding");
  const auto sum = [&](std::size_t row) { return findings.tables.at(0).rows.at(row).at(3); };
  EXPECT_EQ(sum(0), "10.0001");
  EXPECT_EQ(sum(1), "9.95312");
  EXPECT_EQ(sum(2), "4");
  EXPECT_EQ(sum(3), "10.0021");
  EXPECT_EQ(sum(4), "10.0098");
  EXPECT_EQ(sum(5), "10");
  EXPECT_EQ(sum(6), "10");
  const std::string says = sentences_of(findings);
  EXPECT_THAT(says, HasSubstr("In bf16 the sum is 4: it stops growing after 350 additions, since "
                              "from there on neighboring numbers are 0.03125 apart, and 0.01 is "
                              "not more than half of that"));
  EXPECT_THAT(says, HasSubstr("In fp16 the sum is 9.95312. It would stop growing at 32: "));
  EXPECT_THAT(says, HasSubstr("In fp32 the sum is 10.0001. It would stop growing at 262,144: "));
  for (const PlotSeries& series : findings.plots.at(0).series) {
    EXPECT_EQ(series.points.size(), 51U);
  }
}

TEST(AttentionExperiment, SaysWhatThePlanSaysOfLengths) {
  const Findings findings = concluded("attention", [](const Case& what) {
    return MadeUpStep{.step_s = what.key == "standard-8192" ? 0.4 : 0.1};
  });
  // Scores of 2 heads: 4 * 2 * 8192 * 8192 bytes, besides 4 * 16 * 8192 * 128 of the rest.
  const std::string facts = fmt::format("{}", fmt::join(texts_of(findings.untimed), "\n"));
  EXPECT_THAT(facts, ContainsRegex("sequences of 8,192 rows instead of 128 take 9[.]99x"
                                   " the memory of activations with standard "
                                   "attention and 1[.]00x with flash attention"));
  EXPECT_THAT(facts, ContainsRegex("A step of 12 blocks 768 wide fits into 16[.]00 GiB "
                                   "with a sequence of at most [0-9],[0-9]* rows with "
                                   "standard attention and [0-9]*,[0-9]* with flash"));
  EXPECT_THAT(facts, HasSubstr("With flash attention a device needs "));
  EXPECT_NEAR(findings.plots.at(0).series[1].points.back().y, 400, 4) << "ms of standard at 8192";
}

TEST(ModelParallel, CountsTransfersAndSimulatesTheCoursesWidth) {
  const Findings findings = concluded("model-parallel", plain_step);
  EXPECT_THAT(findings.untimed.front().text,
              HasSubstr("256.00 KiB each: 1 and 1 on 2 devices, 4 and 4 on 5 devices (counted in "
                        "the program)."));
  EXPECT_THAT(sentences_of(findings),
              HasSubstr("5 devices have to share 4 cores here, so the answers leave them out."));
  // By the card with 52 TFLOP/s and 4.3 TB/s: 18.9, 14.6 and 12.1 ms for 20 layers.
  const std::vector<std::vector<std::string>>& rows = findings.tables.back().rows;
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_NEAR(std::stod(rows[3].at(1)), 19, 1);
  EXPECT_NEAR(std::stod(rows[4].at(2)), 1.3, 0.1);
  EXPECT_NEAR(std::stod(rows[5].at(2)), 1.55, 0.15);
}

TEST(Hybrid, SaysWhichRanksDoWhatWithinTheCores) {
  const Experiment& hybrid = experiment_of("hybrid");
  Setting setting = made_up_setting();
  const auto says = [&] {
    return sentences_of(hybrid.findings(made_up(hybrid, setting, plain_step)));
  };
  EXPECT_THAT(says(), AllOf(HasSubstr("Of 4 ranks, ranks 0 and 1 have stage 0 and ranks 2 and 3 "
                                      "have stage 1, each of another copy: 0 and 2 are the first "
                                      "copy."),
                            HasSubstr("two copies of the model in two stages each a step")));
  setting.units = 2;
  EXPECT_THAT(says(), AllOf(HasSubstr("one copy of the model in two stages a step"),
                            Not(HasSubstr("two stages each a step"))));
}

TEST(Precision, SaysWhereItCostsMemory) {
  const std::string says = sentences_of(concluded("precision", plain_step));
  EXPECT_THAT(says, HasSubstr("At a batch of 512 mixed precision saves memory: "));
  EXPECT_THAT(says,
              HasSubstr("On each of two ranks with 64 samples mixed precision costs memory: "))
      << "gradients of fp32 and rounded weights are more than what half the activations save";
}

TEST(Experiments, LeaveRanksBeyondTheCoresOutOfFits) {
  const Experiment& amdahl = experiment_of("amdahl");
  Setting setting = made_up_setting();
  setting.units = 2;
  const auto results = made_up(amdahl, setting, by_ranks([](int ranks) {
                                 return MadeUpStep{.step_s = ranks == 4 ? 1 : 0.03 + 0.07 / ranks};
                               }));
  EXPECT_TRUE(results.at("ranks-4").what().beyond_cores);
  EXPECT_THAT(sentences_of(amdahl.findings(results)),
              HasSubstr("ranks 30.0 % (29.4 % to 30.5 %) of a step behaves"));
  setting.units = 1;
  EXPECT_THAT(sentences_of(amdahl.findings(made_up(amdahl, setting, by_ranks(divided)))),
              HasSubstr("so they are not compared."));
}

TEST(CasesBeyondTheCores, AreNotCompared) {
  Setting setting = made_up_setting();
  const auto says = [&](const std::string& name) {
    const Experiment& experiment = experiment_of(name);
    return sentences_of(experiment.findings(made_up(experiment, setting, by_ranks(divided))));
  };
  setting.units = 2;
  EXPECT_THAT(says("data-parallel"),
              AllOf(HasSubstr("with 2 devices the others"), Not(HasSubstr("with 4 devices"))));
  setting.units = 1;
  EXPECT_EQ(says("strong-scaling"),
            "Fewer than two of these numbers of ranks have enough cores here, so they are not "
            "compared.\n");
}

ReportSection plain_section(const Experiment& experiment, const Setting& setting) {
  return section_of(experiment, made_up(experiment, setting, plain_step));
}

TEST(CasesBeyondTheCores, AreInNoAnswerOfAnyExperiment) {
  Setting one_core = made_up_setting();
  one_core.units = 1;
  Sample sample;
  for (const Experiment& experiment : experiments()) {
    if (experiment.cases(one_core).empty() || !sample.takes_next()) continue;
    SCOPED_TRACE(experiment.name);
    const ReportSection section = plain_section(experiment, one_core);
    if (!section.trouble.empty()) {
      EXPECT_THAT(section.trouble, MatchesRegex("INVALID: the [0-9]+ (ranks|devices) of "
                                                ".* share 1 core"));
      continue;
    }
    for (const std::string& sentence : texts_of(section.findings.timed)) {
      EXPECT_THAT(sentence, AllOf(Not(HasSubstr("two ranks")), Not(HasSubstr("two devices")),
                                  Not(HasSubstr("two stages")), Not(HasSubstr("two copies"))));
    }
  }
}

TEST(CasesBeyondTheCores, LeaveTheOtherAnswersValid) {
  Setting one_core = made_up_setting();
  one_core.units = 1;
  const auto section = [&](const char* name) {
    return plain_section(experiment_of(name), one_core);
  };
  EXPECT_EQ(section("sharding").trouble, "INVALID: the 2 devices of data-parallel share 1 core");
  EXPECT_EQ(texts_of(section("data-parallel")).front(),
            "No conclusion: the 2 devices of devices-2 share 1 core.");
  for (const char* const name : {"memory", "pytorch"}) {
    EXPECT_EQ(section(name).trouble, "") << name;
    EXPECT_FALSE(section(name).findings.timed.empty()) << name;
  }
  EXPECT_THAT(sentences_of(section("hybrid").findings),
              HasSubstr("Two stages have too few cores here, so times are not compared."));
  EXPECT_THAT(sentences_of(section("model-parallel").findings),
              HasSubstr("2 and 5 devices have to share 1 core here"));
}

TEST(Experiments, ConcludeOnOneGpuAndWithOneRank) {
  Sample sample;
  for (const bool on_gpu : {false, true}) {
    for (const std::vector<int>& ranks : {std::vector<int>{}, std::vector{1}, std::vector{1, 3}}) {
      Setting setting = made_up_setting(on_gpu);
      setting.units = 1;
      setting.ranks = ranks;
      for (const Experiment& experiment : experiments()) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(fmt::format("{}, {} ranks", experiment.name, ranks.size()));
        const ReportSection section = plain_section(experiment, setting);
        EXPECT_FALSE(texts_of(section).empty());
        for (const std::string& answer : texts_of(section)) {
          EXPECT_THAT(answer, AllOf(Not(HasSubstr(" 1 ranks")), Not(HasSubstr(" nan")),
                                    Not(HasSubstr(" infx")), Not(HasSubstr(" inf "))));
        }
      }
    }
  }
}

TEST(LocalSgd, MeasuresAsManyAveragesAsItSays) {
  constexpr std::int64_t kWarmup = 5;
  for (const bool quick : {false, true}) {
    for (const std::int64_t steps : {20, 100}) {
      const Setting setting = new_setting(quick, false, 4, {{"steps", std::to_string(steps)}});
      for (const Case& each : experiment_of("local-sgd").cases(setting)) {
        if (each.key.ends_with("-learns")) continue;
        const std::int64_t every = each.workload.config.parallel.sync_every;
        const std::int64_t all = each.workload.steps();
        std::int64_t averages = 0;  // after warm-up
        for (std::int64_t step = 0; step < all; ++step) {
          const bool ends_round = (step + 1) % every == 0 || step + 1 == all;
          averages += step >= kWarmup && ends_round ? 1 : 0;
        }
        EXPECT_NEAR(static_cast<double>(every * averages) / static_cast<double>(all - kWarmup), 1,
                    0.1)
            << each.key;
      }
    }
  }
}

TEST(Samples, AreAsManyInEachPartitionOfAStep) {
  const Setting setting = new_setting(false, false, 4, {{"batch-size", "100"}});
  std::set<std::int64_t> samples;
  for (const Case& each : experiment_of("hybrid").cases(setting)) {
    if (each.key.find("batch-48") != std::string::npos) continue;  // half and twice the batch
    if (each.key.find("batch-192") != std::string::npos) continue;
    samples.insert(each.workload.step_samples());
  }
  EXPECT_THAT(samples, ElementsAre(96));
}

TEST(Amdahl, HasNoCurveForASpeedUpThatNoShareExplains) {
  const Findings findings = concluded("amdahl", by_ranks([](int ranks) {
                                        return MadeUpStep{.step_s = 0.1 / (ranks * ranks * ranks)};
                                      }));
  EXPECT_EQ(findings.tables.front().rows.back().at(4), "-");
  for (const PlotSeries& series : findings.plots.front().series) {
    for (const PlotPoint& point : series.points) EXPECT_GT(point.y, 0) << series.name;
  }
}

// One unknown fits two numbers of ranks, whatever the law.
TEST(Amdahl, SetsNoLimitForMoreRanksFromTwoNumbersOfThem) {
  const Experiment& amdahl = experiment_of("amdahl");
  Setting setting = made_up_setting();
  setting.ranks = {1, 2};
  const std::string says =
      sentences_of(amdahl.findings(made_up(amdahl, setting, by_ranks([](int ranks) {
                                             return MadeUpStep{.step_s = 0.03 + 0.07 / ranks};
                                           }))));
  EXPECT_THAT(says, AllOf(HasSubstr("which two numbers of ranks cannot show, the limit is 3.3"),
                          Not(HasSubstr("any number of ranks"))));
}

TEST(Profile, AsksOfTwoLayersNotWhichStandsOut) {
  const Experiment& profile = experiment_of("profile");
  Setting setting = made_up_setting();
  setting.depth = 2;
  EXPECT_THAT(sentences_of(profile.findings(made_up(profile, setting, plain_step))),
              HasSubstr("2 layers are too few for one to stand out."));
}

TEST(Matmul, SaysNothingOfACaseWithoutRecords) {
  const Findings findings = concluded("matmul", by_key([](const std::string& key) {
                                        MadeUpStep step{.step_s = 0.1};
                                        if (key != "bf16-64") {
                                          step.ops = {{"gemm", "forward", "net.0", 1e-3}};
                                        }
                                        return step;
                                      }));
  EXPECT_THAT(sentences_of(findings),
              AllOf(HasSubstr("Highest rate of forward products: fp32-1024-threads-1, "),
                    Not(HasSubstr("infx")),
                    Not(HasSubstr("In bf16 with 4 threads a forward product "
                                  "of 64 rows"))));
}

/// What a report says of the mean step, one of four steady steps taking `burst_s` instead of 1 ms.
std::string bursts_of(double burst_s) {
  const auto went = [=](const Case&) {
    return MadeUpStep{.step_s = 1e-3, .noise = 0, .burst_every = 4, .burst_s = burst_s};
  };
  return bursts_of_cases(made_up(experiment_of("strong-scaling"), made_up_setting(), went).cases);
}

TEST(Bursts, AreToldOfOneCaseWhichNamesTheOthers) {
  EXPECT_THAT(bursts_of(3e-3),
              AllOf(StartsWith("The mean step of ranks-1 takes 1.48 ms, its median step "
                               "1.00 ms: the longest tenth of its steps takes "),
                    EndsWith(" of the time. Means and medians also differ by more than 5 "
                             "% in ranks-2 and ranks-4.")));
  EXPECT_THAT(bursts_of(0.5e-3), HasSubstr(": some steps are much shorter."));
  EXPECT_EQ(bursts_of(1.1e-3), "") << "within 5 %";
}

TEST(Throughput, IsThatOfAllSteadySteps) {
  Start start{};
  RankSteps& rank = start.ranks.emplace_back();
  rank.step_s = {9, 9, 0.01, 0.01, 0.01, 0.05};  // two of warm-up
  rank.loss = rank.queued_s = rank.step_s;
  const Case what{.key = "a", .workload = made_up_workload(8, 1)};
  const Measurement whole(what, std::vector<Start>(9, start));
  EXPECT_DOUBLE_EQ(whole.samples_per_s().median, 4 * 64 / 0.08);
  EXPECT_DOUBLE_EQ(whole.mean_s().median, 0.02);
  EXPECT_DOUBLE_EQ(whole.step_s().median, 0.01);
  start.ranks.front().samples = {64, 64, 64, 64, 64, 32};
  const Measurement smaller_last(what, std::vector<Start>(9, start));
  EXPECT_DOUBLE_EQ(smaller_last.samples_per_s().median, (3 * 64 + 32) / 0.08);
}

TEST(CommandLine, NamesWhatACaseAddsToItsWorkload) {
  const Workload workload = made_up_workload(64, 1);
  EXPECT_EQ(command_line_of(Case{.workload = workload}), command_line_of(workload));
  EXPECT_EQ(command_line_of(Case{.workload = workload, .record_ops = true}),
            command_line_of(workload) + " --trace FILE");
}

/// The verdict on a case with these starts.
std::string trouble_on(const std::vector<Start>& starts) {
  Results results;
  results.cases.emplace_back(Case{.key = "a"}, starts);
  return trouble_of(results);
}

Start made_up_start(double step_s) {
  Start start{};
  start.ranks.push_back(made_up_rank({.step_s = step_s}, 30));
  return start;
}

TEST(Verdict, IsInvalidWhereMoreThanAQuarterOfTheStartsWereDisturbed) {
  std::vector<Start> starts(9, made_up_start(0.1));
  starts[0].lost_share = starts[1].lost_share = 0.4;
  EXPECT_EQ(trouble_on(starts), "");
  starts[2].lost_share = 0.26;
  EXPECT_EQ(trouble_on(starts),
            "INVALID: 3 of 9 starts of a lost more than 25 % of their time to other programs; the "
            "same command with --wait-quiet repeats these starts");
}

bool is_uncertain(const std::vector<Start>& starts, bool beyond_cores = false) {
  return Measurement(Case{.key = "a", .beyond_cores = beyond_cores}, starts).is_uncertain();
}

TEST(Measurement, IsUncertainWhereItsIntervalIsWiderThanHalfOfTheFigure) {
  std::vector<Start> starts(9, made_up_start(0.1));
  starts[0] = starts[1] = made_up_start(0.17);
  EXPECT_TRUE(is_uncertain(starts));
  EXPECT_FALSE(is_uncertain(starts, true)) << "ranks that share cores go up and down";
  EXPECT_EQ(trouble_on(starts), "") << "ratios of rounds may be certain";
  starts[1] = made_up_start(0.1);
  EXPECT_FALSE(is_uncertain(starts)) << "one bad start of nine moves nothing";
}

/// The rounds of a machine that is twice as slow in some of them.
Results uneven_rounds(const std::string& name, double longer_s,
                      const Setting& setting = made_up_setting()) {
  const Experiment& experiment = experiment_of(name);
  Results results{.setting = setting, .name = name, .cases = {}};
  for (const Case& what : experiment.cases(results.setting)) {
    const bool is_first = results.cases.empty();
    std::vector<Start> starts;
    for (int round = 0; round < results.setting.starts; ++round) {
      const double slow = round % 3 == 0 ? 2 : 1;
      starts.push_back(made_up_start(slow * (is_first ? 0.01 : 0.01 + longer_s)));
      starts.back().ranks.resize(2, starts.back().ranks.front());
    }
    results.cases.emplace_back(what, std::move(starts));
  }
  return results;
}

TEST(Section, AnswersWithARatioOfRoundsThatIsCertainThoughTheTimesAreNot) {
  const ReportSection slower =
      section_of(experiment_of("imbalance"), uneven_rounds("imbalance", 0.02));
  EXPECT_EQ(slower.trouble, "");
  const std::string says = sentences_of(slower.findings);
  EXPECT_THAT(says, HasSubstr("With 20 ms on one rank of 2 a step is slower than without: it takes "
                              "3.00x (3.00x to 3.00x) as long."));
  EXPECT_THAT(says, HasSubstr("No conclusion: a time of 20 ms (20 ms to 40 ms) is uncertain by "
                              "more than half of it."));
  EXPECT_THAT(says, Not(HasSubstr("longer.")));
  EXPECT_TRUE(slower.results.cases.front().is_uncertain());
  const ReportSection faster =
      section_of(experiment_of("imbalance"), uneven_rounds("imbalance", -0.005));
  EXPECT_THAT(sentences_of(faster.findings), HasSubstr("2.00x (2.00x to 2.00x) as fast."));
}

/// Four of nine starts are disturbed.
Results disturbed(const std::string& name, const Setting& setting = made_up_setting()) {
  Results results = uneven_rounds(name, 0, setting);
  std::vector<Measurement> cases;
  for (const Measurement& each : results.cases) {
    std::vector<Start> starts = each.starts();
    for (std::size_t i = 0; i < 4; ++i) starts[i].lost_share = 0.4;
    cases.emplace_back(each.what(), std::move(starts));
  }
  results.cases = std::move(cases);
  return results;
}

TEST(Section, IsNeverInvalidWhereItsAnswersAreFacts) {
  const ReportSection facts =
      section_of(experiment_of("reproducibility"), disturbed("reproducibility"));
  EXPECT_EQ(facts.trouble, "");
  EXPECT_THAT(texts_of(facts).front(), HasSubstr("The same seed repeats to the bit"));
  EXPECT_THAT(section_of(experiment_of("imbalance"), disturbed("imbalance")).trouble,
              HasSubstr("INVALID: 4 of 9 starts of balanced lost more than 25 %"));
  Setting one_core = made_up_setting();
  one_core.units = 1;
  EXPECT_EQ(
      section_of(experiment_of("strong-scaling"), disturbed("strong-scaling", one_core)).trouble,
      "");
  const ReportSection devices =
      section_of(experiment_of("data-parallel"), disturbed("data-parallel"));
  EXPECT_THAT(devices.trouble, HasSubstr("INVALID: "));
  EXPECT_THAT(texts_of(devices), Contains(HasSubstr("Not every number divides the batch")));
  const ReportSection amdahl = section_of(experiment_of("amdahl"), disturbed("amdahl"));
  EXPECT_THAT(texts_of(amdahl).back(), HasSubstr("and 3.33x at most (calculated)."));
}

TEST(LostShare, OfStepsThatSleepIsTheirWallTimeAndNotTheirThreads) {
  // In 10 s, a thread was ready for 1 s, of which it waited 0.4 s.
  const std::vector<LostTime> ranks = {
      {.wall_s = 10, .waited_s = 0.4, .ready_s = 1, .all_ran_s = 9, .busy_threads = 1}};
  EXPECT_DOUBLE_EQ(lost_share(ranks, 4, false), 0.04);
  EXPECT_DOUBLE_EQ(waited_share(ranks), 0.4);
}

/// Cases that differ as much as this, in six rounds.
Findings of_six(const std::string& name, double faster) {
  const Experiment& experiment = experiment_of(name);
  Setting setting = made_up_setting();
  setting.starts = 6;
  bool is_first = true;
  return experiment.findings(made_up(experiment, setting, [&](const Case& what) {
    const bool is_second = name == "batch-scaling" ? what.workload.ranks > 1 : !is_first;
    is_first = false;
    MadeUpStep step{.step_s = is_second ? 0.1 / faster : 0.1};
    if (name == "monitor") {
      step.watched = {{.source = "host", .energy_j_per_sample = is_second ? 1 / faster : 1}};
    }
    return step;
  }));
}

// A scheme that shares more of the state may need more memory, and then says why.
TEST(Sharding, SaysWhyASchemeThatSharesMoreNeedsMore) {
  const Experiment& sharding = experiment_of("sharding");
  int explained = 0;
  for (const std::int64_t depth : {2, 6, 24}) {
    Setting setting = made_up_setting();
    setting.depth = depth;
    const Results results = made_up(sharding, setting, plain_step);
    const Findings findings = sharding.findings(results);
    const auto bytes = [&](const char* key) { return max_rank_bytes(results.at(key).workload()); };
    for (const char* const key : {"zero2", "zero3"}) {
      const bool says = std::ranges::any_of(findings.untimed, [&](const Finding& each) {
        return each.name == fmt::format("{}-memory", key);
      });
      EXPECT_EQ(says, bytes(key) > bytes("zero1")) << key << " " << depth;
      explained += says ? 1 : 0;
    }
  }
  EXPECT_GT(explained, 0);
}

/// The losses decide the words about losses, and formulas the tables.
TEST(SharedState, IsJudgedByLossesAndFormulas) {
  const auto with_losses = [](double late) {
    return by_key([=](const std::string& key) {
      MadeUpStep step{.step_s = 0.1};
      if (key == "late-8-learns" || key == "zero3") step.loss = late;
      step.other_ranks = {step};
      return step;
    });
  };
  const auto facts = [&](const char* experiment, double late) {
    return fmt::format("{}",
                       fmt::join(texts_of(concluded(experiment, with_losses(late)).untimed), "\n"));
  };
  EXPECT_THAT(facts("local-sgd", 1.5),
              HasSubstr("The small model's loss at the end, against that with ddp: 1.00x with "
                        "gradients a step late, 1.50x with gradients 8 steps late, 1.00x "));
  EXPECT_THAT(facts("sharding", 1.01),
              HasSubstr("The last losses differ from ddp's by a share of "
                        "1.0e-02 at most: not all compute the same step."));
  EXPECT_THAT(facts("sharding", 1 + 1e-6),
              HasSubstr("by a share of 1.0e-06 at most: all compute the same step."));
  EXPECT_THAT(facts("sharding", 1), HasSubstr("Least memory: tensor, "));
  EXPECT_THAT(facts("sharding", 1), HasSubstr("its link carries 1 times the gradients each way"));
}

TEST(Network, HasWhatIsSentAndSimulatedBesideEachStep) {
  const Experiment& network = experiment_of("network");
  Results results = made_up(network, made_up_setting(), plain_step);
  const auto column = [&](const std::string& title) {
    const FindingTable table = network.findings(results).tables.front();
    const auto place = std::ranges::find(table.columns, title) - table.columns.begin();
    std::vector<std::string> cells;
    for (const auto& row : table.rows) cells.push_back(row.at(static_cast<std::size_t>(place)));
    return cells;
  };
  EXPECT_THAT(column("simulated"), testing::Each(kNotSimulated));
  results.predictions = {SimulatedStep{.step_s = 0.1}, SimulatedStep{.step_s = 0.2}, {}, {}, {}};
  EXPECT_EQ(column("simulated").at(1), "200 ms");
  EXPECT_EQ(column("simulated").at(2), kNotSimulated);
  EXPECT_EQ(column("a rank sends").front(), "0 B");
  const Workload ddp = results.at("ddp").workload(), rare = results.at("every-8").workload();
  EXPECT_NEAR(static_cast<double>(mean_sent_bytes(rare)),
              static_cast<double>(mean_sent_bytes(ddp)) / 8, 64);
}

TEST(TooFewStarts, AreSaidWhereNoRoundsCouldDecide) {
  const std::string of_4 = "too few starts to say among 4 comparisons; 9 are needed";
  for (const double faster : {1.44, 1 / 1.44}) {
    EXPECT_THAT(sentences_of(of_six("batch-scaling", faster)),
                AllOf(HasSubstr("From which batch on more ranks pay off: " + of_4 + "."),
                      Not(HasSubstr("not measurably"))));
    EXPECT_THAT(sentences_of(of_six("monitor", faster)),
                HasSubstr("Least energy per sample: too few starts to say among 2"));
    EXPECT_THAT(sentences_of(of_six("sharding", faster)),
                HasSubstr(" as long as on one rank: too few starts to say among 10"));
  }
}

TEST(Quick, MakesAsManyStartsAsTheAnswersOfAnExperimentNeed) {
  Sample sample;
  for (const bool on_gpu : {false, true}) {
    Setting setting = new_setting(true, on_gpu, 4);
    setting.data = "data";
    for (const Experiment& experiment : experiments()) {
      if (!sample.takes_next()) continue;
      SCOPED_TRACE(experiment.name);
      setting.starts = 6;
      setting.starts = starts_of(experiment, setting);
      EXPECT_THAT(setting.starts, AnyOf(6, 9));
      std::map<std::string, double> times;
      const Findings findings =
          experiment.findings(made_up(experiment, setting, [&](const Case& what) {
            const auto place = static_cast<double>(times.size());
            MadeUpStep step = plain_step(what);
            step.step_s = times.try_emplace(what.key, 0.1 * (1 + place)).first->second;
            return step;
          }));
      for (const Comparison& each : findings.comparisons) {
        EXPECT_NE(each.word, Word::kTooFewStarts) << each.a << ", " << each.b;
      }
    }
    EXPECT_EQ(starts_of(experiment_of("dp-vs-ddp"), new_setting(true, on_gpu, 4)), 6);
    EXPECT_EQ(starts_of(experiment_of("local-sgd"), new_setting(true, on_gpu, 4)), 6);
  }
}

/// Phases and steps that vary apart from each other, so that figures of rounds differ from the
/// same figures of medians.
Results varied(const std::string& name, const Setting& setting) {
  return made_up(experiment_of(name), setting, [](const Case& what) {
    const double pause_s = 1e-3 * what.workload.config.injected.delay_ms;
    return MadeUpStep{.step_s = 0.03 + 0.07 / what.workload.ranks + pause_s,
                      .noise = 0.1,
                      .phase_s = {{"forward", 0.04}, {"communication", 0.01}}};
  });
}

TEST(Delays, AreThoseThatAreAskedFor) {
  Setting setting = new_setting(false, false, 4, {{"pause-ms", "13"}});
  setting.data = "data";
  std::vector<std::string> keys;
  for (const Case& what : experiment_of("delay").cases(setting)) {
    if (what.workload.ranks > 1) keys.push_back(what.key.substr(8));
  }
  EXPECT_THAT(keys, ElementsAre("delay-0", "delay-6.5", "delay-13", "delay-26"));
  const std::string sentences =
      sentences_of(experiment_of("delay").findings(varied("delay", setting)));
  EXPECT_THAT(sentences, HasSubstr(" with 13 ms before backward, "));
  EXPECT_THAT(sentences, HasSubstr(" with 26."));
  EXPECT_THAT(sentences, HasSubstr("A pause of 13 ms limits the speed-up to (T1 + d) / d, "));
  const Case slow = experiment_of("imbalance").cases(setting).back();
  EXPECT_EQ(slow.workload.config.injected.slow_rank->delay_ms, 26);
  EXPECT_THAT(command_line_of(slow), HasSubstr("--slow-rank 0:26"));
}

TEST(OneValue, IsShownForOneQuantity) {
  Setting setting = made_up_setting();
  setting.ranks = {1, 2};
  const Results delay = varied("delay", setting);
  const Measurement& each = delay.cases.front();
  EXPECT_NE(estimate_of(by_round(each.phase_s_by_start("forward"), each.mean_s_by_start(),
                                 std::divides<double>()))
                .median,
            share_of(each, "forward").median);
  EXPECT_DOUBLE_EQ(share_of(each, "forward").median,
                   each.phase_s("forward") / each.mean_s().median);
  // A line through two points meets them.
  const FindingTable amdahl =
      experiment_of("amdahl").findings(varied("amdahl", setting)).tables.front();
  EXPECT_EQ(amdahl.figures[3], "speed-up");
  EXPECT_EQ(amdahl.columns[4], "by Amdahl's law, fitted");
  EXPECT_THAT(amdahl.rows[1][3], StartsWith(amdahl.rows[1][4] + " ("));
}

TEST(Verdict, IsInvalidForFewerThanSixRounds) {
  EXPECT_EQ(trouble_on(std::vector<Start>(5, made_up_start(0.1))),
            "INVALID: 5 rounds were made, a 95 % interval needs 6; run it again with --starts 6");
  EXPECT_EQ(trouble_on({made_up_start(0.1)}),
            "INVALID: 1 round was made, a 95 % interval needs 6; run it again with --starts 6");
}

TEST(LostShare, IsTheWaitOfTheWorstRankAndWhatTheHostTook) {
  const std::vector<LostTime> ranks = {{.wall_s = 1,
                                        .waited_s = 0.05,
                                        .ready_s = 0.5,
                                        .all_ran_s = 9,
                                        .stolen_s = 0.4 + kTickS,
                                        .busy_threads = 1},
                                       {.wall_s = 1,
                                        .waited_s = 0.3,
                                        .ready_s = 1,
                                        .all_ran_s = 9,
                                        .stolen_s = 0.4 + kTickS,
                                        .busy_threads = 1}};
  EXPECT_DOUBLE_EQ(lost_share(ranks, 4, false), 0.5);
  EXPECT_DOUBLE_EQ(lost_share(ranks, 4, true), 0.2) << "ranks wait for each other";
  EXPECT_DOUBLE_EQ(lost_share(ranks, 1, true), 0.4);
  EXPECT_DOUBLE_EQ(lost_share({}, 4, false), 0);
}

/// Two ranks with two busy threads each on two cores, which they and other programs keep busy. Each
/// thread ran for half of the time that the others left.
std::vector<LostTime> crowded_ranks(double others_s) {
  const double wall_s = 2, own_ran_s = wall_s - others_s / 2;
  return std::vector<LostTime>(2, {.wall_s = wall_s,
                                   .waited_s = wall_s - own_ran_s / 2,
                                   .ready_s = wall_s,
                                   .own_ran_s = own_ran_s,
                                   .all_ran_s = 2 * wall_s,
                                   .busy_threads = 2});
}

TEST(LostShare, IsNotTheWaitForOtherRanksOfTheJob) {
  EXPECT_DOUBLE_EQ(lost_share(crowded_ranks(0), 2, false), 0);
}

TEST(LostShare, IsNotWhatTheSystemsClockRounds) {
  EXPECT_DOUBLE_EQ(lost_share(crowded_ranks(1.8 * kTickS), 2, false), 0);
}

TEST(LostShare, IsTheWaitForCoreUsersNextToOtherRanks) {
  EXPECT_DOUBLE_EQ(lost_share(crowded_ranks(0.8 + 2 * kTickS), 2, false), 0.4);
  EXPECT_DOUBLE_EQ(lost_share(crowded_ranks(4), 2, false), 1) << "no longer than it waited";
}

TEST(LostShare, IsNeverNegative) {
  std::vector<LostTime> ranks = crowded_ranks(0);
  for (LostTime& rank : ranks) rank.all_ran_s -= 0.04;  // the system counts in ticks
  EXPECT_DOUBLE_EQ(lost_share(ranks, 2, false), 0);
}

}  // namespace
}  // namespace barestep
