// Each experiment is given two made-up sets of measurements with opposite outcomes; its sentences
// must turn round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lab/made_up.h"
#include "lab/opposites.h"

namespace barestep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Seconds that depend on the number of ranks or devices.
HowCasesWent by_ranks(const std::function<MadeUpStep(int)>& how) {
  return [how](const Case& what) { return how(what.workload.ranks); };
}

HowCasesWent by_batch(const std::function<double(double)>& seconds) {
  return [seconds](const Case& what) {
    return MadeUpStep{.step_s = seconds(static_cast<double>(what.workload.batch_size()))};
  };
}

HowCasesWent by_key(const std::function<MadeUpStep(const std::string&)>& how) {
  return [how](const Case& what) { return how(what.key); };
}

/// Where ranks divide the work, or communicate more than they save.
MadeUpStep divided(int ranks) {
  return {.step_s = 0.1 / ranks, .phase_s = {{"forward", 0.1 / ranks}}};
}
MadeUpStep communicating(int ranks) {
  const double reduce = ranks == 1 ? 0 : 0.2;
  return {.step_s = 0.1 / ranks + reduce,
          .phase_s = {{"forward", 0.1 / ranks}, {"reduce", reduce}}};
}

std::vector<Opposites> opposites() {
  std::vector<Opposites> all;
  all.push_back({"batch-sweep", by_batch([](double batch) { return 1e-3 * batch; }),
                 "in proportion to the batch",
                 by_batch([](double batch) { return 0.05 + 1e-5 * batch; }),
                 "growth is not proportional"});
  all.push_back({"batch-sweep", by_batch([](double batch) { return 0.01 + 1e-3 * batch; }),
                 "saturates at batch 64", by_batch([](double) { return 0.01; }),
                 "does not saturate up to batch 512"});
  all.push_back({"amdahl",
                 by_ranks([](int ranks) { return MadeUpStep{.step_s = 0.03 + 0.07 / ranks}; }),
                 "30.0 % of a step behave as if they were serial", by_ranks(communicating),
                 "More ranks do not make the step faster"});
  for (const char* scaling : {"strong-scaling"}) {
    all.push_back({scaling, by_ranks(divided), "stays above 80.0 % up to 4 ranks",
                   by_ranks(communicating),
                   "falls below 80.0 % at 2 ranks (20.0 %): a step takes 250 ms, 200 ms more than "
                   "the 50.0 ms of perfect scaling, and most of that is exposed communication"});
  }
  all.push_back({"strong-scaling", by_ranks(divided), "4 ranks train fastest",
                 by_ranks(communicating), "One rank trains fastest"});
  all.push_back({"weak-scaling", by_ranks([](int) { return MadeUpStep{.step_s = 0.1}; }),
                 "stays above 80.0 % up to 4 ranks, where it is 100.0 %", by_ranks(communicating),
                 "most of that is exposed communication (200 ms)"});
  all.push_back({"timing", [](const Case&) { return MadeUpStep{.step_s = 0.1, .queued_s = 0.001}; },
                 "lies by a factor of 100.0",
                 [](const Case&) { return MadeUpStep{.step_s = 0.1, .queued_s = 0.099}; },
                 "hardly lies"});
  const auto sync = [](double often, double seldom) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = key == "every-step" ? often : seldom};
    });
  };
  all.push_back({"sync", sync(0.012, 0.010), "costs 2.00 ms a step", sync(0.010, 0.010),
                 "costs nothing that can be measured"});
  all.push_back(
      {"sync", sync(0.012, 0.010), "costs 2.00 ms a step", sync(0.010, 0.012), "even faster"});
  return all;
}

std::vector<Opposites> opposites_of_data() {
  std::vector<Opposites> all;
  const auto disk = [](bool hidden) {
    return [hidden](const Case& what) {
      const bool slow = what.key != "no-delay" && (!hidden || what.key == "workers-0");
      const char* phase = what.key == "workers-0" ? "injected" : "data";
      return MadeUpStep{.step_s = slow ? 0.011 : 0.001,
                        .phase_s = {{"forward", 0.001}, {phase, slow ? 0.01 : 0}}};
    };
  };
  all.push_back({"io-delay", disk(true), "1 worker hides the disk: a step takes 1.00 ms",
                 disk(false), "No number of workers here hides the disk"});
  all.push_back({"io-delay", disk(true), "the bottleneck is the injected delay: 90.9 %",
                 [](const Case&) {
                   return MadeUpStep{.step_s = 0.1, .phase_s = {{"backward", 0.09}}};
                 },
                 "the bottleneck is backward"});
  const auto loading = [](double per_worker, double pageable) {
    return [=](const Case& what) {
      const double workers = what.workload.config.data.workers == 0 ? 1 : per_worker;
      const bool pinned = what.key.ends_with("-pinned");
      return MadeUpStep{.step_s = 0.01 * workers * (pinned ? 1 : pageable)};
    };
  };
  all.push_back({"data-loading", loading(0.5, 1), "workers-1-pinned is fastest: 5.00 ms",
                 loading(1, 1), "Workers bring nothing here"});
  all.push_back({"data-loading", loading(1, 1.5), "Pinned memory makes a step faster: 1.50x",
                 loading(1, 1), "no measurable difference"});
  all.push_back({"data-loading", loading(1, 1.5), "makes a step faster", loading(1, 0.5),
                 "makes a step slower: 0.50x"});
  const auto ladder = [](double graph) {
    return by_key([graph](const std::string& key) {
      return MadeUpStep{.step_s = key == "graph" ? 0.01 / graph : 0.01};
    });
  };
  all.push_back({"optimisations", ladder(9), "Most of it comes from a captured graph: 9.00x",
                 ladder(1), "Most of it comes from a batch of 256: 4.00x"});
  all.push_back({"optimisations", ladder(9), "Most of it comes from",
                 [](const Case& what) {
                   return MadeUpStep{.step_s =
                                         1e-4 * static_cast<double>(what.workload.batch_size())};
                 },
                 "No single one of them is of measurable use here"});
  return all;
}

std::vector<Opposites> opposites_of_devices() {
  std::vector<Opposites> all;
  all.push_back({"data-parallel", by_ranks(divided), "Two devices are 2.00x",
                 by_ranks(communicating), "Two devices are slower than one: 250 ms"});
  all.push_back({"splits", by_ranks(divided), "5 devices are fastest here",
                 by_ranks([](int ranks) { return MadeUpStep{.step_s = 0.1 * ranks}; }),
                 "2 devices are fastest here"});
  const auto device_0 = [](double loss) {
    return [loss](const Case&) {
      return MadeUpStep{.step_s = 0.1, .phase_s = {{"loss", loss}, {"reduce", 0.01}}};
    };
  };
  all.push_back({"gpu0-bottleneck", device_0(0.08), "device 0 is the bottleneck", device_0(0.001),
                 "device 0 is not the bottleneck"});
  const auto duel = [](double ddp, double dp) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = key == "ddp" ? ddp : dp,
                        .phase_s = {{"forward", key == "ddp" ? 0.9 * ddp : 0.5 * dp}}};
    });
  };
  all.push_back({"dp-vs-ddp", duel(0.01, 0.02), "DDP is faster: 10.0 ms", duel(0.02, 0.01),
                 "DataParallel is faster: 10.0 ms"});
  all.push_back(
      {"dp-vs-ddp", duel(0.01, 0.02), "DDP is faster", duel(0.02, 0.02), "cannot be told apart"});
  return all;
}

std::vector<Opposites> opposites_of_ranks() {
  std::vector<Opposites> all;
  const auto paused = [](double one, double two) {
    return [=](const Case& what) {
      const double pause = 1e-3 * what.workload.config.injected.delay_ms;
      return MadeUpStep{.step_s = (what.workload.ranks == 1 ? one : two) + pause};
    };
  };
  // Of steps that are long against the pause, the loss is nearly linear.
  all.push_back({"delay", paused(0.02, 0.01), "The loss is not linear", paused(10, 5),
                 "The loss is linear in the pause"});
  all.push_back({"delay", paused(0.02, 0.01), "The loss is not linear", paused(0.02, 0.04),
                 "There was no speed-up to lose"});
  const auto scheme = [](const std::string& fastest) {
    return by_key([fastest](const std::string& key) {
      return MadeUpStep{.step_s = key == fastest ? 0.05 : key == "one-rank" ? 0.1 : 0.2};
    });
  };
  all.push_back({"schemes", scheme("factor"), "factor is fastest: 50.0 ms", scheme("zero1"),
                 "zero1 is fastest: 50.0 ms"});
  all.push_back(
      {"schemes", scheme("factor"), "2.00x", scheme("none"), "so none of them pays here"});
  const auto waits = [](bool rank_1) {
    return [rank_1](const Case& what) {
      const bool slow = what.key == "slow-rank-0";
      const MadeUpStep idle{.step_s = 0.03, .phase_s = {{"reduce", 0.02}}};
      const MadeUpStep busy{.step_s = slow ? 0.03 : 0.01, .phase_s = {{"reduce", 0.0}}};
      MadeUpStep first = slow && !rank_1 ? idle : busy;
      first.other_ranks = {slow && rank_1 ? idle : busy};
      return first;
    };
  };
  all.push_back({"imbalance", waits(true), "Rank 1 waits for rank 0: it is 20.0 ms longer",
                 waits(false), "Rank 0 waits for rank 1: it is 20.0 ms longer"});
  const auto bucket = [](const std::string& best, double gain) {
    return [=](const Case& what) {
      const bool is_best = what.workload.config.parallel.bucket_mib == std::stod(best);
      return MadeUpStep{.step_s = is_best ? 0.1 / gain : 0.1,
                        .phase_s = {{"reduce", is_best ? 0.01 : 0.03}}};
    };
  };
  all.push_back({"bucket-size", bucket("4", 2), "4 MiB are best: 50.0 ms", bucket("4", 1),
                 "25 MiB are as good as any here"});
  all.push_back(
      {"bucket-size", bucket("4", 2), "4 MiB are best", bucket("0.25", 2), "0.25 MiB are best"});
  const auto pays = [](double from) {
    return [from](const Case& what) {
      const auto batch = static_cast<double>(what.workload.batch_size());
      const bool two = what.workload.ranks == 2;
      return MadeUpStep{.step_s = two ? 1e-3 * (batch / 2 + from / 2) : 1e-3 * batch,
                        .phase_s = {{"reduce", two ? 1e-3 * from / 2 : 0}}};
    };
  };
  all.push_back({"batch-scaling", pays(100), "Two ranks pay from a batch of 128", pays(1000),
                 "Two ranks do not pay up to a batch of 256"});
  const auto models = [](double small, double large) {
    return [=](const Case& what) {
      const double gain = what.key == "small-2" ? small : what.key == "large-2" ? large : 1;
      const bool two = what.workload.ranks == 2;
      return MadeUpStep{.step_s = 0.1 / gain,
                        .phase_s = {{"reduce", two && gain < 1 ? 0.08 : 0.0}, {"forward", 0.02}}};
    };
  };
  all.push_back({"comm-vs-compute", models(0.5, 1.8), "Ranks bring more on the large model: 1.80x",
                 models(1.8, 0.5), "Ranks bring more on the small model: 1.80x"});
  all.push_back({"comm-vs-compute", models(0.5, 1.8),
                 "are dominated by communication; on 2048 x 8 it is 0.0 %, dominated by computing",
                 models(1, 1), "What two ranks bring cannot be told apart on the two models"});
  return all;
}

std::vector<Opposites> opposites_of_one_step() {
  std::vector<Opposites> all;
  const auto profile = [](double forward, double backward, double layer_1) {
    return [=](const Case&) {
      return MadeUpStep{.step_s = 0.01,
                        .ops = {{"gemm", "forward", 0, forward / 2},
                                {"gemm", "forward", 1, forward / 2 * layer_1},
                                {"gemm", "backward", 0, backward / 2},
                                {"gemm", "backward", 1, backward / 2 * layer_1},
                                {"adam", "optimizer", -1, 0.001}}};
    };
  };
  all.push_back({"profile", profile(0.002, 0.004, 1),
                 "Backward takes 2.00 times as long as forward", profile(0.004, 0.002, 1),
                 "Forward takes 2.00 times as long as backward"});
  all.push_back({"profile", profile(0.002, 0.004, 5), "The longest op is gemm, backward of layer 1",
                 profile(0.0002, 0.0004, 1), "The longest op is adam, optimizer"});
  const auto first_steps = [](double first) {
    return [first](const Case&) {
      return MadeUpStep{.step_s = 0.01, .phase_s = {{"forward", 0.004}}, .first_s = {first}};
    };
  };
  all.push_back({"warmup", first_steps(0.03), "The first step takes 3.00 times as long",
                 first_steps(0.01), "The first step is not slower"});
  const auto seeds = [](const char* again, const char* other) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.01,
                        .weights_hash = key == "seed-0-again" ? again
                                        : key == "seed-1"     ? other
                                                              : "a"};
    });
  };
  all.push_back({"reproducibility", seeds("a", "b"), "The same seed repeats to the bit",
                 seeds("c", "b"), "The same seed does not repeat"});
  all.push_back({"reproducibility", seeds("a", "b"), "Another seed gives other losses",
                 seeds("a", "a"), "the seed is not used"});
  return all;
}

class Sentences : public testing::TestWithParam<Opposites> {};

TEST_P(Sentences, TurnRoundWithTheData) {
  const Opposites& expected = GetParam();
  EXPECT_THAT(sentences_of(concluded(expected.experiment, expected.one)),
              AllOf(HasSubstr(expected.says_of_one), Not(HasSubstr(expected.says_of_other))));
  EXPECT_THAT(sentences_of(concluded(expected.experiment, expected.other)),
              AllOf(HasSubstr(expected.says_of_other), Not(HasSubstr(expected.says_of_one))));
}

std::string name_of_opposites(const testing::TestParamInfo<Opposites>& info) {
  std::string name = info.param.experiment + std::to_string(info.index);
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(OfSteps, Sentences, testing::ValuesIn(opposites()), name_of_opposites);
INSTANTIATE_TEST_SUITE_P(OfData, Sentences, testing::ValuesIn(opposites_of_data()),
                         name_of_opposites);
INSTANTIATE_TEST_SUITE_P(OfDevices, Sentences, testing::ValuesIn(opposites_of_devices()),
                         name_of_opposites);
INSTANTIATE_TEST_SUITE_P(OfRanks, Sentences, testing::ValuesIn(opposites_of_ranks()),
                         name_of_opposites);
INSTANTIATE_TEST_SUITE_P(OfOneStep, Sentences, testing::ValuesIn(opposites_of_one_step()),
                         name_of_opposites);

INSTANTIATE_TEST_SUITE_P(OfMonitor, Sentences, testing::ValuesIn(opposites_of_monitor()),
                         name_of_opposites);

INSTANTIATE_TEST_SUITE_P(OfPytorch, Sentences, testing::ValuesIn(opposites_of_pytorch()),
                         name_of_opposites);

TEST(Experiments, AreAllAskedForOppositeSentences) {
  std::vector<Opposites> all = opposites();
  for (const auto& more :
       {opposites_of_data(), opposites_of_devices(), opposites_of_ranks(), opposites_of_one_step(),
        opposites_of_monitor(), opposites_of_pytorch()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const Experiment& experiment : experiments()) {
    EXPECT_TRUE(std::ranges::any_of(all, [&](const Opposites& each) {
      return each.experiment == experiment.name;
    })) << experiment.name;
  }
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
    const Findings findings = concluded(experiment.name, [](const Case& what) {
      MadeUpStep step{.step_s = 0.1, .ops = {{"gemm", "forward", 0, 0.1}}};
      step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1,
                              MadeUpStep{.step_s = 0.1});
      return step;
    });
    for (const FindingTable& table : findings.tables) {
      for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size()) << table.title;
    }
  }
}

TEST(Experiments, LeaveRanksBeyondTheCoresOutOfFits) {
  const Experiment& amdahl = experiment_of("amdahl");
  Setting setting = made_up_setting();
  setting.units = 2;
  const auto results = made_up(amdahl, setting, by_ranks([](int ranks) {
                                 return MadeUpStep{.step_s = ranks == 4 ? 1 : 0.03 + 0.07 / ranks};
                               }));
  EXPECT_TRUE(results.at("ranks-4").what().beyond_cores);
  EXPECT_THAT(sentences_of(amdahl.conclude(results)), HasSubstr("30.0 % of a step"));
  setting.units = 1;
  EXPECT_THAT(sentences_of(amdahl.conclude(made_up(amdahl, setting, by_ranks(divided)))),
              HasSubstr("There is room for one rank here"));
}

TEST(Verdict, IsInvalidWhereTheMachineWasDisturbedOrUnsteady) {
  Case what{.key = "a"};
  Start start{};
  start.ranks.push_back(made_up_rank({.step_s = 0.1}, 40));
  const auto verdict = [&](std::vector<Start> starts) {
    std::vector<Measurement> cases;
    cases.emplace_back(what, std::move(starts));
    return verdict_of(cases);
  };
  EXPECT_EQ(verdict({start, start, start}), "");

  Start disturbed = start;
  disturbed.others_share = 0.4;
  EXPECT_EQ(verdict({start, start, disturbed}), "");
  EXPECT_EQ(verdict({start, disturbed, disturbed}),
            "INVALID: other programs took up to 40.0 % of the cores during 2 of 3 runs; run it "
            "again on a quiet machine");

  Start drifting = start;
  for (std::size_t i = 25; i < 40; ++i) drifting.ranks[0].step_s[i] = 0.15;
  EXPECT_THAT(verdict({start, drifting, drifting}),
              HasSubstr("the step time changed its level within 2 of 3 runs"));

  Start slower = start;
  slower.ranks[0] = made_up_rank({.step_s = 0.3}, 40);
  EXPECT_THAT(verdict({start, slower}), HasSubstr("the median of a is uncertain"));
}

}  // namespace
}  // namespace barestep
