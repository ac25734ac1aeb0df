// mlp_single: trains on one device.
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "console.h"
#include "core/config.h"
#include "core/output_file.h"
#include "core/plan.h"
#include "core/printer.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
#include "kernels/make_device.h"
#include "run_program.h"
#include "train/dataset.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kName = "mlp_single";

/// What --plan and --explain print; needs no device.
std::string preview(const TrainConfig& config, const StepPrograms& programs,
                    const MemoryPlan& plan) {
  std::string text;
  if (config.output.plan) {
    text += fmt::format("{} parameters\n\n", grouped(programs.spec().model.layout.parameters()));
    text += plan_table(plan, programs.buffers());
  }
  if (config.output.explain) {
    if (!text.empty()) text += "\n";
    text += explain(programs.train().program);
  }
  return text;
}

/// A build for GPUs that trains on the CPU says so.
void note_missing_gpu() {
  const std::string why = why_no_cuda_device();
  if (!why.empty()) fmt::print(stderr, "{}: note: training on the CPU: {}\n", kName, why);
}

/// Nothing where the run is only shown beforehand.
std::optional<SweepRow> train(const TrainConfig& config) {
  for (const auto& path : {config.output.save, config.output.metrics, config.device.autotune}) {
    if (!path.empty()) require_writable(path);
  }
  const DeviceKind kind = device_kind(config.device.device);
  const std::int64_t dim = kind == DeviceKind::kCuda ? kDefaultDimCuda : kDefaultDimCpu;
  std::optional<Dataset> dataset;
  if (config.data.kind == DataKind::kIdx) {
    dataset = load_dataset(config.data, widths_of(config.model, dim), config.model.loss);
  }
  StepSpec spec = spec_of(config, dim, dataset ? &*dataset : nullptr);
  spec.workspace_bytes = workspace_bytes(kind);
  spec.generator = generator_of(kind);
  const StepPrograms programs(spec);
  const MemoryPlan plan(programs.buffers());
  // Known only now where the files say how long an epoch is; throws if no step is left to measure.
  warmup_of(config.training, steps_of(config.training, spec.train_rows, spec.step_rows()));
  if (config.output.memory) {
    require_memory(spec, plan, *config.output.memory, kind, "the device that --memory states");
  }
  if (config.output.plan || config.output.explain) {
    print_now(preview(config, programs, plan));
    return std::nullopt;
  }

  FlatWeights loaded;
  if (!config.output.load.empty()) loaded = load_weights(config.output.load, spec.model);

  if (config.device.device == "auto") note_missing_gpu();
  const auto device = make_device(config.device);
  if (!config.output.memory) {
    require_memory(spec, plan, device->info().free_bytes, kind, device->name());
  }
  Trainer trainer(config, programs, *device, dataset ? &*dataset : nullptr, std::move(loaded));
  Console console(config, trainer.steps());
  print_now(run_header(programs, *device));
  trainer.run(console);
  if (!config.output.save.empty()) {
    FlatWeights weights = trainer.weights();
    save_weights(config.output.save, spec.model, weights);
  }
  console.finish(trainer, *device);
  return SweepRow{config.data.batch_size, console.summary().step_time_s(),
                  console.summary().samples_per_s()};
}

/// A run for each batch size, then the practical's table.
void sweep(TrainConfig config) {
  std::vector<SweepRow> rows;
  for (const std::int64_t batch_size : config.data.sweep) {
    config.data.batch_size = batch_size;
    if (batch_size != config.data.sweep.front()) print_now("\n");
    if (const auto row = train(config)) rows.push_back(*row);
  }
  if (!rows.empty()) print_now(fmt::format("\n{}", sweep_table(rows)));
}

void run(const std::vector<std::string>& arguments) {
  const CommandLine line = parse_command_line(kName, arguments);
  if (!line.answer.empty()) return print_now(line.answer);
  if (!line.note.empty()) fmt::print(stderr, "{}: note: {}\n", kName, line.note);
  validate(line.config);
  if (line.config.data.sweep.empty()) {
    train(line.config);
  } else {
    sweep(line.config);
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kName, argc, argv, barestep::run);
}
