#include "setup.h"

#include <fmt/format.h>

#include <limits>

#include "core/host.h"
#include "core/output_file.h"
#include "core/plan.h"
#include "core/printer.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
#include "run_program.h"

namespace barestep {

void require_outputs(const TrainConfig& config, const std::vector<std::filesystem::path>& traces,
                     const std::vector<FileUse>& of_others) {
  for (const auto& path : {config.output.save, config.output.metrics, config.device.autotune}) {
    if (!path.empty()) require_writable(path);
  }
  if (!config.output.tensorboard.empty()) require_writable_folder(config.output.tensorboard);
  for (const auto& path : traces) require_writable(path);
  require_separate_files(config, traces, of_others);
}

std::optional<Dataset> open_data(const TrainConfig& config, DeviceKind kind) {
  if (config.data.kind == DataKind::kRandn) return std::nullopt;
  // The other half is for the run itself.
  const std::int64_t free_bytes = host_memory().free_bytes;
  const std::int64_t memory_bytes =
      free_bytes > 0 ? free_bytes / 2 : std::numeric_limits<std::int64_t>::max();
  return load_dataset(config.data, widths_of(config.model, default_dim(kind)), config.model.loss,
                      memory_bytes);
}

std::string preview(const TrainConfig& config, const StepPrograms& programs,
                    const std::vector<std::string>& names) {
  std::string text;
  if (config.output.plan) {
    text += fmt::format("{} parameters\n\n", grouped(programs.spec().model.layout.parameters()));
    text += plan_table(MemoryPlan(programs.buffers()), programs.buffers(), names);
  }
  if (config.output.explain) {
    if (!text.empty()) text += "\n";
    text += explain(programs.all().front()->program);
  }
  return text;
}

void note_missing_gpu(std::string_view program) {
  const std::string why = why_no_cuda_device();
  if (!why.empty()) print_note(program, "training on the CPU: " + why);
}

}  // namespace barestep
