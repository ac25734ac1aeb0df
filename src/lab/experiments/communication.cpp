// Communication against computing: by the size of the model, and by the size of the batch.
#include <fmt/format.h>

#include <algorithm>

#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/prediction.h"

namespace barestep {
namespace {

double exposed_share(const Measurement& each) {
  return each.phase_s("reduce") / each.step_s().median;
}

Case model_case(const Setting& setting, const char* key, int ranks, bool is_large) {
  Workload workload = ddp_workload(setting, ranks);
  const std::int64_t dim = setting.quick ? 256 : 1024;
  const std::int64_t large = setting.on_gpu ? 8192 : 2 * dim;
  workload.config.model.dim = is_large ? large : dim;
  workload.config.model.depth = is_large ? (setting.quick ? 4 : 8) : 2;
  if (is_large && !setting.on_gpu)
    workload.config.training.steps = std::min<std::int64_t>(workload.steps(), 16);
  return new_case(setting, key, workload);
}

std::vector<Case> comm_vs_compute_cases(const Setting& setting) {
  return {model_case(setting, "small-1", 1, false), model_case(setting, "small-2", 2, false),
          model_case(setting, "large-1", 1, true), model_case(setting, "large-2", 2, true)};
}

std::string model_text(const Measurement& each) {
  return fmt::format("{} x {}", each.workload().dim(), each.workload().depth());
}

/// The course's two models where they were meant to run.
FindingTable course_table() {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format("Simulated: the course's models, batch 64, on {}", card.name),
      .columns = {"width x layers", "1 rank", "2 ranks", "speed-up", "exposed communication",
                  "of a step"}};
  for (const PredictedModel& model :
       {PredictedModel{.dim = 1024, .depth = 2}, PredictedModel{.dim = 8192, .depth = 8}}) {
    const SimulatedStep one = predicted_step(model, card, 1), two = predicted_step(model, card, 2);
    const double exposed = two.phase_s[Phase::kReduce];
    table.rows.push_back({fmt::format("{} x {}", model.dim, model.depth), time_text(one.step_s),
                          time_text(two.step_s), factor_text(one.step_s / two.step_s),
                          time_text(exposed), percent_text(exposed / two.step_s)});
  }
  return table;
}

Findings conclude_comm_vs_compute(const Results& results) {
  const Measurement &small = results.at("small-2"), &large = results.at("large-2");
  const Estimate small_gain = ratio(results.at("small-1").step_s(), small.step_s());
  const Estimate large_gain = ratio(results.at("large-1").step_s(), large.step_s());
  FindingTable table{.title = "Two ranks against one, by the size of the model",
                     .columns = {"width x layers", "1 rank", "2 ranks", "speed-up",
                                 "exposed communication", "of a step"}};
  for (const auto& [one, two, gain] :
       {std::tuple{"small-1", &small, small_gain}, std::tuple{"large-1", &large, large_gain}}) {
    table.rows.push_back({model_text(*two), time_text(results.at(one).step_s()),
                          time_text(two->step_s()), factor_text(gain),
                          time_text(two->phase_s("reduce")), percent_text(exposed_share(*two))});
  }
  const auto dominated = [](const Measurement& each) {
    const double compute = each.phase_s("forward") + each.phase_s("loss") +
                           each.phase_s("backward") + each.phase_s("optimizer");
    return each.phase_s("reduce") > compute ? "communication" : "computing";
  };
  const std::string models = fmt::format(
      "Two ranks on {} spend {} of a step on communication that nothing hides and are dominated by "
      "{}; on {} it is {}, dominated by {}.",
      model_text(small), percent_text(exposed_share(small)), dominated(small), model_text(large),
      percent_text(exposed_share(large)), dominated(large));
  std::string answer;
  if (!differ(small_gain, large_gain)) {
    answer = fmt::format(
        "What two ranks bring cannot be told apart on the two models: {} and {}. Gradients and "
        "computing both grow with the square of the width.",
        factor_text(small_gain), factor_text(large_gain));
  } else {
    answer = fmt::format("Ranks bring more on the {} model: {} against {}.",
                         large_gain.median > small_gain.median ? "large" : "small",
                         factor_text(std::max(large_gain.median, small_gain.median)),
                         factor_text(std::min(large_gain.median, small_gain.median)));
  }
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    labels.push_back(fmt::format("{}, {}", model_text(each), each.workload().ranks));
  }
  return {.sentences = {answer, models},
          .tables = {table, course_table()},
          .plots = {account_plot(results.cases, labels)}};
}

const std::vector<int> kScaledBatches = {32, 64, 128, 256};

std::string scaled_key(int ranks, int batch) {
  return fmt::format("ranks-{}-batch-{}", ranks, batch);
}

std::vector<Case> batch_scaling_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int batch : kScaledBatches) {
    for (const int ranks : {1, 2}) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.data.batch_size = batch;
      cases.push_back(new_case(setting, scaled_key(ranks, batch), workload));
    }
  }
  return cases;
}

Findings conclude_batch_scaling(const Results& results) {
  FindingTable table{
      .title = "Two ranks against one, by the size of the batch",
      .columns = {"batch", "1 rank", "2 ranks", "speed-up", "exposed communication", "of a step"}};
  PlotSeries measured{.name = "speed-up of 2 ranks"};
  PlotSeries even{.name = "no gain", .style = SeriesStyle::kDashed};
  int pays_from = 0;
  for (const int batch : kScaledBatches) {
    const Measurement& one = results.at(scaled_key(1, batch));
    const Measurement& two = results.at(scaled_key(2, batch));
    const Estimate gain = ratio(one.step_s(), two.step_s());
    table.rows.push_back({std::to_string(batch), time_text(one.step_s()), time_text(two.step_s()),
                          factor_text(gain), time_text(two.phase_s("reduce")),
                          percent_text(exposed_share(two))});
    measured.points.push_back(plot_point(batch, gain));
    even.points.push_back(plot_point(batch, 1));
    if (gain.median <= 1) pays_from = 0;
    if (gain.median > 1 && pays_from == 0) pays_from = batch;
  }
  const double first = exposed_share(results.at(scaled_key(2, kScaledBatches.front())));
  const double last = exposed_share(results.at(scaled_key(2, kScaledBatches.back())));
  const std::string pays =
      pays_from == 0
          ? fmt::format("Two ranks do not pay up to a batch of {}.", kScaledBatches.back())
          : fmt::format("Two ranks pay from a batch of {}.", pays_from);
  return {.sentences = {pays, fmt::format("From batch {} to {} the share of exposed communication "
                                          "{} from {} to {}: the bytes to reduce stay the same{}.",
                                          kScaledBatches.front(), kScaledBatches.back(),
                                          last < first ? "falls" : "does not fall, it goes",
                                          percent_text(first), percent_text(last),
                                          last < first ? " while computing grows" : "")},
          .tables = {table},
          .plots = {{.title = "Speed-up of 2 ranks against the batch",
                     .x_label = "batch size, both ranks together",
                     .y_label = "speed-up",
                     .log_x = true,
                     .series = {even, measured}}}};
}

}  // namespace

Experiment comm_vs_compute_experiment() {
  return {
      .name = "comm-vs-compute",
      .title = "Communication against computing",
      .question = "A small and a large model on two ranks: which is dominated by communication?",
      .cases = comm_vs_compute_cases,
      .conclude = conclude_comm_vs_compute,
      .needs_mpi = true};
}

Experiment batch_scaling_experiment() {
  return {.name = "batch-scaling",
          .title = "The batch at a fixed number of ranks",
          .question = "From which batch on do two ranks pay?",
          .cases = batch_scaling_cases,
          .conclude = conclude_batch_scaling,
          .needs_mpi = true};
}

}  // namespace barestep
