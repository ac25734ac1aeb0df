// Where the time of a step goes, and what the machine does meanwhile.
#include <fmt/ranges.h>

#include "option_table.h"

namespace barestep {
std::vector<Option> profiling_options() {
  return {
      {"profile", kObservingGroup, "", JsonKind::kBoolean,
       "print where the time of a step goes: by op, layer and phase, in\n"
       "PyTorch's columns",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.output.profile = true;
       }},
      {"trace", kObservingGroup, "FILE", JsonKind::kString,
       "write the profiled steps, and the one after them, for Perfetto,\n"
       "HolisticTraceAnalysis and TensorBoard; F.json or F.json.gz; of\n"
       "several ranks or devices F.rank0.json or F.device0.json and so on",
       [](const Given& given, TrainConfig& c) { c.output.trace = file_path(given); }},
      {"tensorboard",
       kObservingGroup,
       "DIR",
       JsonKind::kString,
       "write loss, step time, throughput and utilisation of every step\n"
       "as event files for TensorBoard",
       [](const Given& given, TrainConfig& c) { c.output.tensorboard = file_path(given); },
       {},
       {"mlp_single", "mlp_ddp"}},
      {"profile-steps", kObservingGroup, "A:B", JsonKind::kString,
       "the steps from A to before B (default: the last half of those\n"
       "after warm-up, at most 50)",
       [](const Given& given, TrainConfig& c) { c.output.profile_steps = step_range(given); }},
      {"sort-by", kObservingGroup, "KEY", JsonKind::kString,
       fmt::format("what rows are sorted by, largest first: {}\n(default {})",
                   fmt::join(kNamesOf<SortBy>, ",\n"), kNamesOf<SortBy>[0]),
       [](const Given& given, TrainConfig& c) {
         c.output.sort_by = static_cast<SortBy>(choice(given, kNamesOf<SortBy>));
       }},
      {"row-limit", kObservingGroup, "N", JsonKind::kNumber,
       with_range(fmt::format("rows of a table (default {})", kDefaultRowLimit), limits::kRows),
       [](const Given& given, TrainConfig& c) {
         c.output.row_limit = whole_number(given, limits::kRows);
       }},
  };
}

std::vector<Option> monitor_options() {
  return {
      {"monitor", kObservingGroup, "", JsonKind::kBoolean,
       "look at the machine ten times a second: load, memory, clocks, a\n"
       "GPU's power; lines, a summary, records in --metrics, and\n"
       "counters in the trace",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.output.monitor = true;
       }},
  };
}

}  // namespace barestep
