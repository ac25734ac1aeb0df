#include "lab/predict.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "lab/cost_model.h"
#include "lab/words.h"

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
    table.rows.push_back({std::to_string(count), time_text(step.step_s),
                          time_text(step.of(Phase::kForward)), time_text(step.of(Phase::kBackward)),
                          time_text(step.of(Phase::kReduce)), time_text(step.of(Phase::kOptimizer)),
                          number_text(rate), factor_text(gain), percent_text(gain / count)});
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

}  // namespace barestep
