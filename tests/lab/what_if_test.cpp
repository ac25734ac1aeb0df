// What changes of a run are predicted to gain, from measurements that are made up.
#include "lab/made_up.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/study/experiment.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A run of a small model with these options, on four cores or GPUs.
Setting asked_setting(GivenOptions options, bool on_gpu = false) {
  options.insert({{"dim", "64"}, {"depth", "2"}});
  return new_setting(false, on_gpu, 4, options);
}

/// Every step of every start takes as long, but for what MadeUpStep does within a start, which
/// leaves the mean.
Results measured(const Setting& setting, MadeUpStep step, bool checks = false) {
  return made_up(what_if_experiments()[checks ? 1 : 0], setting, [&](const Case&) {
    step.noise = 0;
    for (MadeUpStep& other : step.other_ranks) other.noise = 0;
    return step;
  });
}

std::vector<PredictedGain> gains_of(const Results& results) {
  return what_if_experiments()[0].findings(results).gains;
}

std::vector<std::string> change_keys(const std::vector<PredictedGain>& gains) {
  std::vector<std::string> keys;
  for (const PredictedGain& gain : gains) keys.push_back(gain.key);
  return keys;
}

PredictedGain gain_with(const std::vector<PredictedGain>& gains, const std::string& key) {
  const auto found = std::ranges::find(gains, key, &PredictedGain::key);
  if (found != gains.end()) return *found;
  ADD_FAILURE() << "no change is " << key;
  return {.step_s = Estimate{}, .gain = Estimate{}};
}

/// The step that is left, and the gain that this is.
void expect_step(const PredictedGain& gain, double before_s, double after_s) {
  ASSERT_TRUE(gain.step_s && gain.gain) << gain.key;
  EXPECT_NEAR(gain.step_s->median, after_s, 1e-9) << gain.key;
  EXPECT_NEAR(gain.gain->median, before_s / after_s, 1e-6) << gain.key;
  EXPECT_EQ(gain.made_from, "measured spans") << gain.key;
}

TEST(WhatIf, APauseThatIsRemovedGainsTheSpanThatWasMeasured) {
  // The system woke it up a millisecond late.
  const MadeUpStep slow{.step_s = 0.05, .phase_s = {{"injected", 0.021}, {"forward", 0.029}}};
  const Results delayed = measured(asked_setting({{"delay-ms", "20"}}), slow);
  expect_step(gain_with(gains_of(delayed), "no-delay"), 0.05, 0.029);
  EXPECT_EQ(gains_of(delayed).front().key, "no-delay") << "the largest gain is first";
  EXPECT_THAT(sentences_of(what_if_experiments()[0].findings(delayed)),
              AllOf(HasSubstr("--delay-ms 0 is predicted to gain most: 1.72x (1.72x to 1.72x) the "
                              "samples/s, from measured spans."),
                    HasSubstr("In a step of 50.0 ms (50.0 ms to 50.0 ms), ")));
  const Results disk = measured(asked_setting({{"io-delay-ms", "20"}}), slow);
  expect_step(gain_with(gains_of(disk), "no-io-delay"), 0.05, 0.029);
  // Of two pauses, each has its own length.
  const Results both = measured(asked_setting({{"io-delay-ms", "15"}, {"delay-ms", "5"}}), slow);
  expect_step(gain_with(gains_of(both), "no-io-delay"), 0.05, 0.035);
  expect_step(gain_with(gains_of(both), "no-delay"), 0.05, 0.045);
}

/// Two ranks, the second of which pauses for longer.
MadeUpStep two_ranks(double pause_s, double other_pause_s) {
  MadeUpStep step{.step_s = 0.05, .phase_s = {{"injected", pause_s}}};
  step.other_ranks = {step};
  step.other_ranks[0].phase_s["injected"] = other_pause_s;
  return step;
}

TEST(WhatIf, RanksWaitForTheOneThatPausesLongest) {
  const Results slow =
      measured(asked_setting({{"ranks", "2"}, {"slow-rank", "1:20"}}), two_ranks(0, 0.02));
  expect_step(gain_with(gains_of(slow), "no-slow-rank"), 0.05, 0.03);
  const Results all =
      measured(asked_setting({{"ranks", "2"}, {"slow-rank", "1:20"}, {"delay-ms", "5"}}),
               two_ranks(0.005, 0.025));
  expect_step(gain_with(gains_of(all), "no-slow-rank"), 0.05, 0.03);
  expect_step(gain_with(gains_of(all), "no-delay"), 0.05, 0.045);
  // The spans say how long jitter was.
  const Results jitter =
      measured(asked_setting({{"ranks", "2"}, {"jitter-ms", "10"}}), two_ranks(0.004, 0.007));
  expect_step(gain_with(gains_of(jitter), "no-jitter"), 0.05, 0.043);
  const Results two =
      measured(asked_setting({{"ranks", "2"}, {"jitter-ms", "10"}, {"delay-ms", "5"}}),
               two_ranks(0.009, 0.012));
  expect_step(gain_with(gains_of(two), "no-jitter"), 0.05, 0.043);
  expect_step(gain_with(gains_of(two), "no-delay"), 0.05, 0.045);
}

TEST(WhatIf, AnotherWorkerLoadsAtTheSameTime) {
  const auto step_with = [](const char* workers, double data_s, double injected_s,
                            const char* key) {
    const Results results = measured(
        asked_setting({{"data", "npy:x.npy,y.npy"}, {"workers", workers}, {"io-delay-ms", "10"}}),
        {.step_s = 0.01, .phase_s = {{"data", data_s}, {"injected", injected_s}}});
    return gain_with(gains_of(results), key);
  };
  // One worker loads all the time, two take half as long for each step.
  expect_step(step_with("1", 0.008, 0, "worker"), 0.01, 0.005);
  expect_step(step_with("1", 0.004, 0, "worker"), 0.01, 0.006);  // then computing takes longer
  expect_step(step_with("2", 0.008, 0, "worker"), 0.01, 0.01 * 2 / 3);
  expect_step(step_with("2", 0, 0, "worker"), 0.01, 0.01);
  expect_step(step_with("2", 0.004, 0, "no-io-delay"), 0.01, 0.006);
  // Loading inside the step moves beside it.
  expect_step(step_with("0", 0.001, 0.003, "worker"), 0.01, 0.006);
  expect_step(step_with("0", 0.001, 0.007, "worker"), 0.01, 0.008);
  expect_step(step_with("0", 0.001, 0.007, "no-io-delay"), 0.01, 0.003);
}

TEST(WhatIf, OtherChangesScaleTheMeasuredStepAsTheSimulatedOne) {
  Results results =
      measured(asked_setting({{"dim", "4096"}, {"optimizer", "sgd"}}, true), {.step_s = 0.01});
  const auto at_speed = [&](double factor) {
    results.card = load_card("h200-nvlink");
    Workload run = results.cases.front().workload();
    const double alone_s = predicted_run(run, *results.card).step_s;
    Results measured_so = measured(results.setting, MadeUpStep{.step_s = factor * alone_s});
    measured_so.card = results.card;
    const PredictedGain gain = gain_with(gains_of(measured_so), "batch");
    run.config.data.batch_size *= 2;
    const double ratio = predicted_run(run, *results.card).step_s / alone_s;
    EXPECT_LT(ratio, 2);
    EXPECT_EQ(gain.change, "--batch-size 128");
    EXPECT_EQ(gain.made_from, "measured step x simulated ratio");
    EXPECT_NEAR(gain.step_s->median / (factor * alone_s * ratio), 1, 1e-9);
    EXPECT_NEAR(gain.gain->median, 2 / ratio, 1e-9)
        << "of samples, of which there are twice as many";
    const double off = std::max(factor, 1 / factor);
    EXPECT_NEAR(gain.gain->low, 2 / ratio / off, 1e-9);
    EXPECT_NEAR(gain.gain->high, 2 / ratio * off, 1e-9);
    EXPECT_NEAR(gain.step_s->high / (factor * alone_s * ratio * off), 1, 1e-9);
    EXPECT_FALSE(gain_with(gains_of(measured_so), "bf16").gain->median < 1);
  };
  at_speed(1.25);
  at_speed(0.5);
  results.card.reset();
  const PredictedGain none = gain_with(gains_of(results), "batch");
  EXPECT_FALSE(none.gain.has_value());
  EXPECT_EQ(none.made_from, "no card");
  EXPECT_EQ(gain_with(gains_of(results), "affinity").made_from,
            "no card has rates of bound threads");
}

// A pause stays as long whatever is computed beside it.
TEST(WhatIf, OtherChangesLeaveThePauses) {
  const GivenOptions options = {{"dim", "4096"}, {"optimizer", "sgd"}, {"delay-ms", "20"}};
  Results results =
      measured(asked_setting(options, true), {.step_s = 0.05, .phase_s = {{"injected", 0.021}}});
  results.card = load_card("h200-nvlink");
  Workload run = results.cases.front().workload();
  run.config.injected = {};
  const double alone_s = predicted_run(run, *results.card).step_s;
  run.config.data.batch_size *= 2;
  const double ratio = predicted_run(run, *results.card).step_s / alone_s;
  const PredictedGain gain = gain_with(gains_of(results), "batch");
  EXPECT_NEAR(gain.step_s->median, 0.029 * ratio + 0.021, 1e-9);
  EXPECT_NEAR(gain.gain->median, 2 * 0.05 / (0.029 * ratio + 0.021), 1e-6);
  EXPECT_NEAR(gain.step_s->low, 0.029 * ratio * alone_s / 0.029 + 0.021, 1e-9) << "too fast";
}

TEST(WhatIf, ShowsOnlyWhatTheTrainersDoAndWhatIsNotSet) {
  const auto changes = [](const GivenOptions& options) {
    return gains_of(measured(asked_setting(options), {.step_s = 0.01}));
  };
  const auto plain = change_keys(changes({}));
  EXPECT_THAT(plain, AllOf(Contains("fused"), Contains("bf16"), Contains("batch"),
                           Contains("accumulate"), Contains("threads"), Contains("affinity")));
  EXPECT_THAT(plain, AllOf(Not(Contains("no-delay")), Not(Contains("factor")),
                           Not(Contains("overlap")), Not(Contains("worker"))));
  EXPECT_THAT(change_keys(changes({{"update", "fused"}})), Not(Contains("fused")));
  EXPECT_THAT(change_keys(changes({{"dim", "1024"}})), Not(Contains("fused"))) << "auto chooses it";
  EXPECT_THAT(change_keys(changes({{"precision", "bf16"}})), Not(Contains("bf16")));
  const auto ranks = change_keys(changes({{"ranks", "2"}}));
  EXPECT_THAT(ranks, AllOf(Contains("factor"), Contains("bucket-4"), Contains("reproducible"),
                           Not(Contains("overlap"))));
  EXPECT_THAT(change_keys(changes({{"ranks", "2"}, {"bucket-mib", "4"}})),
              Not(Contains("bucket-4")));
  EXPECT_THAT(change_keys(changes({{"ranks", "2"}, {"scheme", "factor"}})),
              Not(Contains("factor")));
  EXPECT_THAT(change_keys(changes({{"ranks", "2"}, {"no-overlap", "true"}})), Contains("overlap"));
  const auto devices = change_keys(changes({{"scheme", "data-parallel"}, {"devices", "cpu,cpu"}}));
  EXPECT_THAT(devices, AllOf(Contains("batch"), Not(Contains("factor")), Not(Contains("fused"))));
  // What is refused is said in the trainers' words.
  const Results results = measured(asked_setting({{"ranks", "2"}}), {.step_s = 0.01});
  Workload fused = results.cases.front().workload();
  fused.config.training.update = Update::kFused;
  EXPECT_THAT(sentences_of(what_if_experiments()[0].findings(results)),
              HasSubstr(std::string("Refused: ") + why_not(fused).value().what()));
}

TEST(WhatIf, ComparesThePredictedGainWithThatOfTheChange) {
  const Experiment& checked = what_if_experiments()[1];
  const Setting setting = asked_setting(
      {{"ranks", "2"}, {"delay-ms", "20"}, {"io-delay-ms", "10"}, {"slow-rank", "0:5"}});
  const Results results = made_up(checked, setting, [](const Case& what) {
    const double step_s = what.key == "no-delay"       ? 0.035
                          : what.key == "no-io-delay"  ? 0.055
                          : what.key == "no-slow-rank" ? 0.045
                          : what.key == "batch"        ? 0.1
                                                       : 0.05;
    return MadeUpStep{.step_s = step_s, .noise = 0, .phase_s = {{"injected", 0.035}}};
  });
  const Findings findings = checked.findings(results);
  // Predicted 0.03 s; measured 0.035 s.
  const PredictedGain delay = gain_with(findings.gains, "no-delay");
  EXPECT_NEAR(delay.measured->median, 0.05 / 0.035, 1e-3);
  EXPECT_NEAR(*delay.error(), (0.05 / 0.03) / (0.05 / 0.035) - 1, 1e-3);
  EXPECT_NEAR(gain_with(findings.gains, "batch").measured->median, 1, 1e-3) << "of samples";
  EXPECT_FALSE(gain_with(findings.gains, "batch").error().has_value()) << "no card";
  // The disk was predicted to gain, and loses; the slow rank gains what was predicted.
  EXPECT_THAT(sentences_of(findings),
              HasSubstr("The predicted gains of 3 changes are off by 16.7 % in the median, 33.3 % "
                        "in the 90th percentile and 37.5 % at most; of 3 that certainly gain or "
                        "lose, 2 had the right direction."));
  for (const auto& row : findings.tables.front().rows) {
    EXPECT_EQ(row.size(), findings.tables.front().columns.size());
  }
  EXPECT_EQ(findings.comparisons.size(), results.cases.size() - 1);
}

TEST(WhatIf, TakesTheOptionsOfARunAsTheStudysOwn) {
  Workload run{{.ranks = 4}};
  run.config.parallel.scheme = SchemeKind::kZero1;
  run.config.parallel.batch_per_rank = true;
  run.config.parallel.overlap = false;
  run.config.parallel.tensor = 2;
  run.config.data.batch_size = 24;
  run.config.injected.slow_rank = SlowRank{.rank = 3, .delay_ms = 2.5};
  const GivenOptions expected = {{"scheme", "zero1"},
                                 {"global-batch-size", "48"},
                                 {"tensor", "2"},
                                 {"no-overlap", "true"},
                                 {"slow-rank", "3:2.5"}};
  EXPECT_EQ(given_of(run), expected);
  const auto again = asked_run(given_of(run));
  EXPECT_EQ(given_of(again), expected);
  EXPECT_EQ(again.config.data.batch_size, 48);
}

}  // namespace
}  // namespace barestep
