#include "rank_evaluation.h"

#include <fmt/format.h>

#include <optional>

#include "core/output_file.h"
#include "core/units.h"
#include "options/options.h"
#include "profiler/report.h"
#include "run_program.h"
#include "train/evaluator.h"

namespace barestep {

void evaluate_on_ranks(RankSetup& setup, Communicator& ranks, FlightRecord& record) {
  const TrainConfig& config = setup.config();
  std::optional<OutputFile> metrics;
  if (setup.is_first() && !config.output.metrics.empty()) metrics.emplace(config.output.metrics);
  const FlatWeights weights = setup.weights_of_all();
  Evaluator evaluator(setup.programs(), setup.device(), *setup.data(), weights, &ranks);
  record.begin(Track::kPhase, Activity::kStep, 0);
  const Evaluation evaluation = evaluator.run(
      config.training.warmup.value_or(kDefaultWarmup), [&](const EvaluatedBatch& batch) {
        record.begin(Track::kPhase, Activity::kStep, batch.number + 1);
      });
  record.begin(Track::kPhase, Activity::kEnd);
  if (!setup.is_first()) return;
  const int size = ranks.size();
  print_now(fmt::format("{} of {} samples on {} rank{}\n{}", config.output.load.string(),
                        grouped(evaluation.total.samples), size, size == 1 ? "" : "s",
                        evaluation_table({&evaluation, 1})));
  if (!metrics) return;
  metrics->write(configuration_record(config, TrainerKind::kDdp));
  for (const EvaluatedBatch& batch : evaluation.batches) {
    metrics->write(evaluation_record(evaluation.batch_size, batch));
  }
  metrics->close();
}

}  // namespace barestep
