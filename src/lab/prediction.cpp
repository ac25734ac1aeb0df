#include "lab/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "lab/findings.h"
#include "lab/simulator.h"

namespace barestep {
namespace {

constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr std::int64_t kLargestWidth = 1 << 17;

/// Two ranks against one.
bool two_ranks_pay(const PredictedModel& model, const MachineCard& card) {
  const double two = predicted_step(model, card, 2).step_s;
  const double one = predicted_step(model, card, 1).step_s;
  return model.batch_per_rank ? two < 2 * one : two < one;
}

std::string pays_sentence(const PredictedModel& model, const MachineCard& card) {
  if (card.most_ranks() < 2) return "The machine has one device, so ranks cannot pay.";
  std::string text;
  PredictedModel wider = model;
  for (wider.batch_size = 2; wider.batch_size <= kLargestBatch; wider.batch_size *= 2) {
    if (two_ranks_pay(wider, card)) break;
  }
  text = wider.batch_size <= kLargestBatch
             ? fmt::format("At width {}, two ranks pay from a batch of {}; ", model.dim,
                           wider.batch_size)
             : fmt::format("At width {}, two ranks pay at no batch up to {}; ", model.dim,
                           kLargestBatch);
  wider = model;
  for (wider.dim = 64; wider.dim <= kLargestWidth; wider.dim *= 2) {
    if (two_ranks_pay(wider, card)) break;
  }
  return text + (wider.dim <= kLargestWidth ? fmt::format("at a batch of {}, from a width of {}.",
                                                          model.batch_size, wider.dim)
                                            : fmt::format("at a batch of {}, at no width up to {}.",
                                                          model.batch_size, kLargestWidth));
}

void require_ranks(const PredictedModel& model, const MachineCard& card,
                   const std::vector<int>& ranks) {
  const int most = *std::ranges::max_element(ranks);
  if (most > card.most_ranks()) {
    fail(ExitCode::kConfiguration, {.what = "--ranks",
                                    .value = std::to_string(most),
                                    .why = fmt::format("{} has {}", card.name, card.most_ranks()),
                                    .remedy = "ask for fewer, or for a machine with a network"});
  }
  if (!model.batch_per_rank && most > model.batch_size) {
    fail(ExitCode::kConfiguration,
         {.what = "--batch-size",
          .value = std::to_string(model.batch_size),
          .why = fmt::format("leaves some of {} ranks without a sample", most),
          .remedy = "ask for fewer ranks, or give --batch-per-rank"});
  }
}

}  // namespace

SimulatedStep predicted_step(const PredictedModel& model, const MachineCard& card, int ranks) {
  // A rank of the CPU has a core.
  Workload workload{.trainer = ranks == 1 ? TrainerKind::kSingle : TrainerKind::kDdp,
                    .ranks = ranks,
                    .on_gpu = card.on_gpu};
  TrainConfig& config = workload.config;
  config.model.dim = model.dim;
  config.model.depth = model.depth;
  config.data.batch_size = model.batch_size * (model.batch_per_rank ? ranks : 1);
  config.parallel.scheme = model.scheme;
  if (!card.on_gpu) config.device.threads = 1;
  return predicted_run(workload, card);
}

Findings predict_scaling(const PredictedModel& model, const MachineCard& card,
                         const std::vector<int>& ranks) {
  require_ranks(model, card, ranks);
  FindingTable table{
      .title = fmt::format("Simulated: {}, {} x {}, batch {}{}, on {}", name_of(model.scheme),
                           model.dim, model.depth, model.batch_size,
                           model.batch_per_rank ? " on each rank" : "", card.name),
      .columns = {"ranks", "step time", "forward", "backward", "exposed communication", "optimizer",
                  "samples/s", "speed-up", "efficiency"}};
  PlotSeries simulated{.name = "simulated"}, ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  const double one_rate =
      static_cast<double>(model.batch_size) / predicted_step(model, card, 1).step_s;
  double best_rate = 0;
  int best = 1;
  for (const int count : ranks) {
    const SimulatedStep step = predicted_step(model, card, count);
    const double rate =
        static_cast<double>(model.batch_size) * (model.batch_per_rank ? count : 1) / step.step_s;
    const double gain = rate / one_rate;
    table.rows.push_back(
        {std::to_string(count), time_text(step.step_s), time_text(step.phase_s[Phase::kForward]),
         time_text(step.phase_s[Phase::kBackward]), time_text(step.phase_s[Phase::kReduce]),
         time_text(step.phase_s[Phase::kOptimizer]), number_text(rate), factor_text(gain),
         percent_text(gain / count)});
    simulated.points.push_back(plot_point(count, gain));
    ideal.points.push_back(plot_point(count, count));
    if (rate > best_rate) {
      best_rate = rate;
      best = count;
    }
  }
  return {.sentences = {fmt::format("Simulated: {} would train fastest, {} samples/s, {} as "
                                    "many as one.",
                                    counted(best, "rank"), number_text(best_rate),
                                    factor_text(best_rate / one_rate)),
                        "Simulated: " + pays_sentence(model, card)},
          .tables = {table},
          .plots = {{.title = "Simulated speed-up",
                     .x_label = "ranks",
                     .y_label = "speed-up",
                     .log_x = true,
                     .series = {ideal, simulated}}}};
}

namespace {

constexpr double kGoal = 0.1;

/// What simulator and account both tell of a step.
constexpr std::array kComparedPhases = {Phase::kInjected, Phase::kForward, Phase::kLoss,
                                        Phase::kBackward, Phase::kReduce,  Phase::kOptimizer};

struct Deviation {
  std::string name;
  double more_s = 0;  // predicted than measured
};

/// The part of a step that is predicted worst; the rest is what is in no phase.
Deviation worst_part(const Measurement& measured, const SimulatedStep& predicted) {
  Deviation worst;
  double rest_s = predicted.step_s - measured.step_s().median;
  const auto consider = [&](const Deviation& part) {
    if (worst.name.empty() || std::abs(part.more_s) > std::abs(worst.more_s)) worst = part;
  };
  for (const Phase phase : kComparedPhases) {
    const std::string name(name_of(phase));
    const double more_s = predicted.phase_s[phase] - measured.phase_s(name);
    consider({name, more_s});
    rest_s -= more_s;
  }
  consider({"host and data", rest_s});
  return worst;
}

std::string signed_percent(double share) {
  return fmt::format("{}{}", share >= 0 ? "+" : "", percent_text(share));
}

std::string difference_text(double seconds) {
  return fmt::format("{}{}", seconds >= 0 ? "+" : "", time_text(seconds));
}

/// How often which part is the worst of a run that misses the goal.
std::string cause_sentence(const std::vector<const Results*>& all) {
  std::map<std::string, int> causes;
  int misses = 0;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      const Measurement& each = results->cases[i];
      const bool misses_goal = std::abs(prediction_error(*results, i)) > kGoal;
      if (each.what().beyond_cores || !misses_goal) continue;
      ++causes[worst_part(each, results->predictions[i]).name];
      ++misses;
    }
  }
  if (misses == 0) return "Every run is within a tenth of its prediction.";
  const auto most =
      std::ranges::max_element(causes, {}, [](const auto& cause) { return cause.second; });
  return fmt::format(
      "{} run{} further off than a tenth, {} of them mostly by what was predicted for {}.", misses,
      misses == 1 ? " is" : "s are", most->second, most->first);
}

Plot prediction_plot(const std::vector<const Results*>& all) {
  PlotSeries within{.name = "runs", .style = SeriesStyle::kMarks};
  PlotSeries beyond{.name = "beyond the cores", .style = SeriesStyle::kMarks};
  PlotSeries equal{.name = "equal", .style = SeriesStyle::kDashed};
  std::set<double> ends;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      const Measurement& each = results->cases[i];
      const double predicted_ms = 1e3 * results->predictions[i].step_s;
      (each.what().beyond_cores ? beyond : within)
          .points.push_back(plot_point(predicted_ms, each.step_s(), 1e3));
      ends.insert({predicted_ms, 1e3 * each.step_s().median});
    }
  }
  for (const double ms : {*ends.begin(), *ends.rbegin()})
    equal.points.push_back(plot_point(ms, ms));
  Plot plot{.title = "Measured step times against predicted (simulated) ones",
            .x_label = "predicted, ms",
            .y_label = "measured, ms",
            .log_x = true,
            .log_y = true,
            .series = {equal, within}};
  if (!beyond.points.empty()) plot.series.push_back(std::move(beyond));
  return plot;
}

}  // namespace

double prediction_error(const Results& results, std::size_t number) {
  return results.predictions.at(number).step_s / results.cases.at(number).step_s().median - 1;
}

std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all) {
  PredictionSummary summary;
  std::vector<double> errors;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      if (results->cases[i].what().beyond_cores) {
        ++summary.beyond_cores;
      } else {
        errors.push_back(std::abs(prediction_error(*results, i)));
      }
    }
  }
  if (errors.empty()) return std::nullopt;
  summary.runs = static_cast<int>(errors.size());
  summary.median_error = median(errors);
  const auto within = std::ranges::count_if(errors, [](double error) { return error <= kGoal; });
  summary.within_tenth = static_cast<double>(within) / static_cast<double>(errors.size());
  return summary;
}

Findings prediction_findings(const std::vector<const Results*>& all) {
  const std::optional<PredictionSummary> summary = prediction_summary(all);
  if (!summary) return {};
  FindingTable table{.title = "Every case, predicted (simulated) and measured",
                     .columns = {"case", "predicted", "measured", "error", "most of it", ""}};
  double others_share = 0;
  for (const Results* results : all) {
    others_share = std::max(others_share, results->card ? results->card->others_share : 0);
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      const Measurement& each = results->cases[i];
      const SimulatedStep& predicted = results->predictions[i];
      const Deviation worst = worst_part(each, predicted);
      table.rows.push_back({fmt::format("{}: {}", results->name, each.what().key),
                            time_text(predicted.step_s), time_text(each.step_s()),
                            signed_percent(prediction_error(*results, i)),
                            fmt::format("{} {}", worst.name, difference_text(worst.more_s)),
                            each.what().beyond_cores ? "beyond the cores" : ""});
    }
  }
  std::vector<std::string> sentences = {
      fmt::format("The model's median error over {} within the cores is {} (goal: {}); {} of "
                  "them are within the goal.",
                  counted(summary->runs, "run"), percent_text(summary->median_error),
                  percent_text(kGoal), percent_text(summary->within_tenth)),
      cause_sentence(all)};
  if (summary->beyond_cores > 0) {
    sentences.push_back(fmt::format("{} beyond the cores {} shown and not counted.",
                                    counted(summary->beyond_cores, "run"),
                                    summary->beyond_cores == 1 ? "is" : "are"));
  }
  sentences.push_back(fmt::format(
      "Rates were measured here, op by op and apart from any run; other programs took at most {} "
      "of the cores meanwhile.",
      percent_text(others_share)));
  return {.sentences = sentences, .tables = {table}, .plots = {prediction_plot(all)}};
}

}  // namespace barestep
