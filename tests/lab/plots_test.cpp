#include "lab/made_up.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/report/svg.h"
#include "lab/study/step_parts.h"
#include "support/testing.h"

namespace barestep {
namespace {

MachineCard round_card() {
  return {.name = "round", .on_gpu = false, .flops_per_s = 100e9, .memory_bytes_per_s = 10e9};
}

Results profiled(const std::vector<OpTime>& ops) {
  Results results = made_up(experiment_of("profile"), made_up_setting(),
                            [&](const Case&) { return MadeUpStep{.step_s = 0.1, .ops = ops}; });
  results.card = round_card();
  return results;
}

// A product of 64 rows and width 1024: 2 * 64 * 1024^2 flops, plus bias and ReLU; its bytes are the
// weight's 4 MiB, two activations of 256 KiB and the bias.
TEST(Roofline, PlacesOpsByTheWorkOfTheProgramAndTheMeasuredTime) {
  const Results results = profiled(
      {{"gemm", "forward", "net.0", 0.002}, {"adam", "optimizer", "", 0.02}, {"copy", "data"}});
  const auto points = roofline_points(results.cases.front(), round_card());
  ASSERT_THAT(points, SizeIs(2)) << "a copy computes nothing";
  const double flops = 2 * 64 * 1024.0 * 1024, bytes = 4 * (1024.0 * 1024 + 2 * 64 * 1024 + 1024);
  EXPECT_EQ(points[1].op, "gemm");
  EXPECT_NEAR(points[1].flops_per_byte, flops / bytes, 0.1);
  EXPECT_NEAR(points[1].flops_per_s, flops / 0.002, 1e8);
  EXPECT_NEAR(points[1].share_of_roof, flops / 0.002 / 100e9, 0.01);
  // Far fewer flops than bytes: on the memory slope of the roofline.
  EXPECT_LT(points[0].flops_per_byte, 1);
  EXPECT_NEAR(points[0].share_of_roof, 28 * 6 * (1024.0 * 1024 + 1024) / 0.02 / 10e9, 0.01);
  const Plot plot = roofline_plot(points, round_card());
  EXPECT_DOUBLE_EQ(plot.series.front().points.at(1).x, 10) << "the ridge";
  EXPECT_DOUBLE_EQ(plot.series.front().points.at(2).y, 100);
}

TEST(Roofline, SentenceTurnsRoundWithTheLongestOp) {
  const auto sentences = [](const std::vector<OpTime>& ops) {
    return sentences_of(experiment_of("profile").findings(profiled(ops)));
  };
  EXPECT_THAT(sentences({{"gemm", "forward", "net.0", 0.1}, {"adam", "optimizer", "", 0.01}}),
              HasSubstr("gemm does 28.4 flops a byte, so arithmetic bounds it (calculated)"));
  EXPECT_THAT(sentences({{"adam", "optimizer", "", 0.1}, {"gemm", "forward", "net.0", 0.01}}),
              HasSubstr("adam does 0.5 flops a byte, so memory bounds it (calculated)"));
}

/// The first plot of an experiment whose cases have so many cores.
Plot plot_with_cores(const std::string& name, int cores) {
  Setting setting = made_up_setting();
  setting.units = cores;
  const Experiment& experiment = experiment_of(name);
  return experiment
      .findings(made_up(experiment, setting, [](const Case&) { return MadeUpStep{.step_s = 0.1}; }))
      .plots.front();
}

TEST(Plots, HaveHollowPointsBeyondTheCores) {
  for (const char* name : {"strong-scaling", "amdahl", "batch-scaling", "delay"}) {
    EXPECT_THAT(svg_of(plot_with_cores(name, 1)), HasSubstr(">hollow: beyond the cores<")) << name;
    EXPECT_THAT(svg_of(plot_with_cores(name, 4)), Not(HasSubstr("beyond the cores"))) << name;
  }
  // Bars say it in their names.
  EXPECT_THAT(svg_of(plot_with_cores("comm-vs-compute", 2)),
              HasSubstr(">1024 x 2, 4, beyond the cores<"));
}

TEST(Plots, OfASlowRankHaveABarForEachRank) {
  const Findings found = concluded("imbalance", [](const Case&) {
    MadeUpStep step{.step_s = 0.1, .phase_s = {{"forward", 0.1}}};
    step.other_ranks = {{.step_s = 0.1, .phase_s = {{"forward", 0.02}, {"communication", 0.08}}}};
    return step;
  });
  const Plot& plot = found.plots.front();
  EXPECT_THAT(plot.categories, ElementsAre("balanced: rank 0", "balanced: rank 1",
                                           "rank 0 slow: rank 0", "rank 0 slow: rank 1"));
  ASSERT_EQ(plot.series.back().name, "exposed communication");
  EXPECT_EQ(plot.series.back().points[2].y, 0);
  EXPECT_NEAR(plot.series.back().points[3].y, 80, 1);
}

}  // namespace
}  // namespace barestep
