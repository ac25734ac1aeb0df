// Communication versus computation, by the size of the model and by the size of the batch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lab/experiments/figures.h"
#include "lab/predict/prediction.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

std::string model_key(bool is_large, int ranks) {
  return fmt::format("{}-{}", is_large ? "large" : "small", ranks);
}

Case model_case(const Setting& setting, bool is_large, int ranks) {
  Workload workload = ddp_workload(setting, ranks);
  const std::int64_t dim = setting.quick ? setting.dim : 1024;
  const std::int64_t large = setting.on_gpu ? std::max<std::int64_t>(8192, dim) : 2 * dim;
  workload.config.model.dim = is_large ? large : dim;
  workload.config.model.depth = is_large ? (setting.quick ? 4 : 8) : 2;
  return new_case(setting, model_key(is_large, ranks), workload);
}

std::vector<Case> comm_vs_compute_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const bool is_large : {false, true}) {
    for (const int ranks : rank_counts(setting)) {
      cases.push_back(model_case(setting, is_large, ranks));
    }
  }
  return cases;
}

/// The number of ranks that answers compare with one: the most within the cores, or the
/// most that were run if only one rank is within them.
int compared_ranks(const Results& results) {
  int max = 0;
  for (const Measurement& each : results.cases) {
    if (!each.what().beyond_cores) max = std::max(max, each.workload().ranks);
  }
  return max > 1 ? max : rank_counts(results.setting).back();
}

/// The two models of the course (docs/lab.md) on the hardware that they were meant for.
FindingTable course_table() {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format("Simulated: a small and a large model, batch 64, on {}", card.name),
      .name = "simulated-table",
      .columns = {"width x layers", "1 rank", "2 ranks", "speed-up", "exposed communication",
                  "of a step"}};
  for (const Run& asked : {asked_run({{"dim", "1024"}, {"depth", "2"}}),
                           asked_run({{"dim", "8192"}, {"depth", "8"}})}) {
    const SimulatedStep one = predicted_step(asked, card, 1), two = predicted_step(asked, card, 2);
    const double exposed = two.account[Part::kExposedCommunication];
    table.rows.push_back({model_text(asked.dim(), asked.depth()), time_text(one.step_s),
                          time_text(two.step_s), factor_text(one.step_s / two.step_s),
                          time_text(exposed), percent_text(exposed / two.step_s)});
  }
  return table;
}

/// The part that dominates a step of several ranks, with its share.
std::string dominated_text(const Measurement& each) {
  const std::vector<double> step_s = each.mean_s_by_start();
  const std::vector<double> reduce_s = each.phase_s_by_start("communication");
  const std::vector<double> computing_s = each.phases_s_by_start(computing_phases());
  const auto rest_s =
      by_round(by_round(step_s, reduce_s, std::minus<double>()), computing_s, std::minus<double>());
  const LargestPart largest = largest_of(
      std::array{PartSeries{"exposed communication", reduce_s},
                 PartSeries{"computing", computing_s}, PartSeries{"other waiting", rest_s}},
      step_s);
  return fmt::format(
      "On {}, {}", model_text(each.workload()),
      largest_text(largest, fmt::format("a step of {} ranks", each.workload().ranks)));
}

/// Whether ranks gain more on one of the models, by the ratio of the speed-ups in each round.
std::string models_sentence(const Comparison& small, const Comparison& large, int ranks,
                            const Estimate& larger_gain) {
  const std::string of_small = factor_text(small.speed()), of_large = factor_text(large.speed());
  return by_side(
      side_of(larger_gain, 1),
      fmt::format("{} ranks do better on the large model: {} against {}.", ranks, of_large,
                  of_small),
      fmt::format("{} ranks do better on the small model: {} against {}.", ranks, of_small,
                  of_large),
      fmt::format("The gains of {} ranks on the two models are indistinguishable: {} on the small, "
                  "{} on the large one. Gradients and computing both grow with the square of the "
                  "width.",
                  ranks, of_small, of_large));
}

Findings conclude_comm_vs_compute(const Results& results) {
  const int ranks = compared_ranks(results);
  const auto gain = [&](bool is_large) {
    return results.compare(model_key(is_large, 1), model_key(is_large, ranks));
  };
  FindingTable table{.title = "Ranks by the size of the model",
                     .columns = {"width x layers", "ranks", "mean step", "speed-up",
                                 "exposed communication", "of a step", ""}};
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    const bool is_large = each.what().key.starts_with("large");
    const Comparison of_ranks = results.compare(model_key(is_large, 1), each.what().key);
    table.rows.push_back({model_text(each.workload()), std::to_string(each.workload().ranks),
                          time_text(each.mean_s()), factor_text(of_ranks.speed()),
                          time_text(each.phase_s("communication")),
                          percent_text(share_of(each, "communication")), beyond_text(each)});
    labels.push_back(fmt::format("{}, {}", model_text(each.workload()), each.workload().ranks));
  }
  Findings findings{.tables = {table, course_table()},
                    .plots = {account_plot(results.cases, labels)}};
  if (ranks == 1) {
    findings.facts = {{"not-compared", "Only one rank was run, so there is no communication."}};
    return findings;
  }
  const Comparison small_gain = gain(false), large_gain = gain(true);
  const Estimate larger_gain = relative_gain(results, large_gain, small_gain);
  findings.sentences = {{"gains", models_sentence(small_gain, large_gain, ranks, larger_gain)},
                        {"small", dominated_text(results.at(small_gain.b)) + "."},
                        {"large", dominated_text(results.at(large_gain.b)) + "."}};
  findings.comparisons = {small_gain, large_gain};
  return findings;
}

const std::vector<int> kScaledBatches = {32, 64, 128, 256};

std::string scaled_key(int ranks, int batch) {
  return fmt::format("ranks-{}-batch-{}", ranks, batch);
}

std::vector<Case> batch_scaling_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int batch : kScaledBatches) {
    for (const int ranks : {1, compared_with_one(setting)}) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.data.batch_size = batch;
      cases.push_back(new_case(setting, scaled_key(ranks, batch), workload));
    }
  }
  return cases;
}

/// The batch from which every comparison is faster.
std::string pays_sentence(const std::vector<Comparison>& gains, int count) {
  const std::string words = several_words(count, "rank");
  const std::string first_words = several_words(count, "rank", true);
  std::size_t first = gains.size();
  while (first > 0 && gains[first - 1].is_faster()) --first;
  if (const std::string too_few = too_few_of(gains); !too_few.empty()) {
    return fmt::format("From which batch on {} pay off: {}.", words, too_few);
  }
  if (std::ranges::all_of(gains, [](const auto& each) { return !each.is_faster(); })) {
    const bool slower =
        std::ranges::all_of(gains, [](const auto& each) { return each.is_slower(); });
    return fmt::format("{} are {} up to a batch of {}.", first_words,
                       slower ? "slower than one" : "not measurably faster than one",
                       kScaledBatches.back());
  }
  if (first == gains.size()) {
    return fmt::format(
        "From which batch on {} pay off is unclear: they are faster at a smaller batch, but not "
        "measurably at {}.",
        words, kScaledBatches.back());
  }
  std::string text =
      fmt::format("{} pay off from a batch of {}", first_words, kScaledBatches[first]);
  if (first == 0) return text + ", the smallest here.";
  const int below = kScaledBatches[first - 1];
  const Comparison& before = gains[first - 1];
  if (before.is_slower()) return text + fmt::format("; at {} they are slower.", below);
  if (before.word == Word::kNoDifference) {
    return text + fmt::format("; at {} they make no difference beyond {}.", below,
                              chosen_percent(before.margin - 1));
  }
  return text + fmt::format(" on; whether they already do at {} is unclear.", below);
}

/// The change in the share of exposed communication from the smallest batch to the largest.
std::string exposed_sentence(const Measurement& small, const Measurement& large) {
  const Estimate change = estimate_by_round(
      std::array{large.phase_s_by_start("communication"), large.mean_s_by_start(),
                 small.phase_s_by_start("communication"), small.mean_s_by_start()},
      [](std::span<const double> s) { return s[0] / s[1] - s[2] / s[3]; });
  const std::string ends =
      fmt::format("from {} at batch {} to {} at batch {}",
                  percent_text(share_of(small, "communication")), small.workload().batch_size(),
                  percent_text(share_of(large, "communication")), large.workload().batch_size());
  return by_side(
      side_of(change, 0),
      fmt::format("The share of exposed communication grows {}, although the bytes to reduce stay "
                  "the same.",
                  ends),
      fmt::format("The share of exposed communication falls {}: the bytes to reduce stay the same.",
                  ends),
      fmt::format("Whether the share of exposed communication changes is unclear: it goes {}.",
                  ends));
}

Findings conclude_batch_scaling(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  FindingTable table{
      .title = fmt::format("{} against one, by the size of the batch",
                           several_words(ranks, "rank", true)),
      .columns = {"batch", "1 rank", counted(ranks, "rank"), "speed-up", "exposed communication",
                  "of a step", "samples/s of 1 rank", "of " + counted(ranks, "rank")}};
  PlotSeries measured{.name = fmt::format("speed-up of {}", counted(ranks, "rank"))};
  PlotSeries of_one{.name = "1 rank"}, of_several{.name = counted(ranks, "rank")};
  PlotSeries even{.name = "no gain", .style = SeriesStyle::kDashed};
  // One sentence chooses from these comparisons, so they form one family.
  std::vector<Comparison> gains;
  for (const int batch : kScaledBatches) {
    gains.push_back(results.compare(scaled_key(1, batch), scaled_key(ranks, batch)));
  }
  adjust_together(gains);
  const auto cases_of = [&](int count) {
    std::vector<const Measurement*> cases;
    for (const int batch : kScaledBatches) cases.push_back(&results.at(scaled_key(count, batch)));
    return cases;
  };
  for (std::size_t i = 0; i < gains.size(); ++i) {
    const Measurement &one = results.at(gains[i].a), &two = results.at(gains[i].b);
    const int batch = kScaledBatches[i];
    table.rows.push_back({std::to_string(batch), time_text(one.mean_s()), time_text(two.mean_s()),
                          factor_text(gains[i].speed()), time_text(two.phase_s("communication")),
                          percent_text(share_of(two, "communication")),
                          number_text(one.samples_per_s().median),
                          number_text(two.samples_per_s().median)});
    of_one.points.push_back(plot_point(batch, one.samples_per_s()));
    of_several.points.push_back(plot_point(batch, two.samples_per_s()));
    measured.points.push_back(plot_point(batch, gains[i].speed()));
    measured.points.back().is_hollow = of_several.points.back().is_hollow = two.what().beyond_cores;
    even.points.push_back(plot_point(batch, 1));
  }
  return {
      .sentences = {{"pays", pays_sentence(gains, ranks)},
                    {"exposed",
                     exposed_sentence(results.at(scaled_key(ranks, kScaledBatches.front())),
                                      results.at(scaled_key(ranks, kScaledBatches.back())))},
                    {"saturation-of-one", saturation_sentence(cases_of(1), " of one rank")},
                    {"saturation",
                     saturation_sentence(cases_of(ranks), " of " + several_words(ranks, "rank"))}},
      .comparisons = gains,
      .tables = {table},
      .plots = {{.title = fmt::format("Speed-up of {} against the batch", counted(ranks, "rank")),
                 .x_label = "batch size, all ranks together",
                 .y_label = "speed-up",
                 .log_x = true,
                 .series = {even, measured}},
                {.title = "Throughput against the batch",
                 .name = "throughput-plot",
                 .x_label = "batch size, all ranks together",
                 .y_label = "samples/s",
                 .log_x = true,
                 .series = {of_one, of_several}}}};
}

}  // namespace

Experiment comm_vs_compute_experiment() {
  return {.name = "comm-vs-compute",
          .title = "Communication against computing",
          .question =
              "A small and a large model on 1, 2, 4 ranks: which is dominated by communication?",
          .cases = comm_vs_compute_cases,
          .conclude = conclude_comm_vs_compute,
          .names =
              "gains small large not-compared table simulated-table "
              "phases-plot",
          .needs_mpi = true,
          .chooses = false};
}

Experiment batch_scaling_experiment() {
  return {.name = "batch-scaling",
          .title = "The batch at a fixed number of ranks",
          .question = "From which batch on do ranks pay off, and where does throughput saturate?",
          .cases = batch_scaling_cases,
          .conclude = conclude_batch_scaling,
          .names =
              "pays exposed saturation-of-one saturation table plot "
              "throughput-plot",
          .needs_mpi = true};
}

}  // namespace barestep
