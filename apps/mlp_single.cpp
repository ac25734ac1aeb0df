// mlp_single: trains on one device.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "console.h"
#include "core/config.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/dataset.h"
#include "kernels/make_device.h"
#include "monitoring.h"
#include "options/options.h"
#include "profiling.h"
#include "run_end.h"
#include "run_file.h"
#include "run_program.h"
#include "setup.h"
#include "train/evaluator.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kMlpSingle = "mlp_single";

/// Trains and tells of it, as the configuration asks.
SweepRow train_on(Device& device, const TrainConfig& config, const StepPrograms& programs,
                  const Dataset* dataset, FlatWeights loaded) {
  const StepSpec& spec = programs.spec();
  const std::int64_t steps = steps_of(config.training, spec.epoch_rows(), spec.step_rows());
  Console console(TrainerKind::kSingle, config, steps);
  TrainObserver* observer = &console;
  std::optional<Monitoring> monitoring;
  if (config.output.monitor) {
    const MonitorScope scope{.devices = {&device}};
    observer = &monitoring.emplace(scope, warmup_of(config.training, steps), &console, *observer);
  }
  const std::vector<Device*> devices{&device};
  std::optional<Profiling> profiling;
  if (config.output.records()) {
    const ProfilingScope scope{.program = kMlpSingle, .devices = devices};
    profiling.emplace(config, programs, scope);
  }
  const Monitor* const monitor = monitoring ? &monitoring->monitor() : nullptr;
  auto trainer = std::make_unique<Trainer>(config, programs, devices, nullptr, dataset,
                                           std::move(loaded), profiling ? &*profiling : nullptr);
  console.print(run_header(programs, device));
  run_training(trainer, *observer, kMlpSingle, profiling ? &*profiling : nullptr, monitor);
  std::string seen;
  const auto close = [&] {
    if (monitoring) seen = "\n" + monitoring->finish();
    console.close();
  };
  const auto report = [&] {
    console.show_summary(*trainer, device);
    console.print(seen);
    if (config.output.profile) console.print("\n" + profiling->text());
  };
  const auto failure = end_run(kMlpSingle, config, *trainer,
                               {.close = close,
                                .report = report,
                                .profiling = profiling ? &*profiling : nullptr,
                                .monitor = monitor});
  if (failure) throw Error(*failure);
  end_if_stopped(kMlpSingle, config, *trainer);
  return SweepRow{config.data.batch_size, console.summary().step_samples(),
                  console.summary().step_time_s()};
}

/// Prints what --plan and --explain ask for, if they do: then there is nothing else to be done.
/// Needs no device.
bool is_only_shown(const TrainConfig& config, const StepPrograms& programs, DeviceKind kind) {
  if (config.output.memory) {
    require_memory(programs, *config.output.memory, kind, "the device that --memory states");
  }
  if (!config.output.plan && !config.output.explain) return false;
  print_now(preview(config, programs));
  return true;
}

void require_free_memory(const TrainConfig& config, const StepPrograms& programs,
                         const Device& device) {
  if (config.output.memory) return;  // it was looked at without a device
  require_memory(programs, device.info().free_bytes, device.kind(), device.name());
}

/// Nothing where the run is only shown beforehand.
std::optional<SweepRow> train(const TrainConfig& asked) {
  require_outputs(asked, trace_files(asked.output.trace, "device", 1));
  const DeviceKind kind = device_kind(asked.device.device);
  const std::optional<Dataset> dataset = open_data(asked, kind);
  const StepSpec spec = spec_of(asked, kind, dataset ? &*dataset : nullptr);
  const StepPrograms programs(spec);
  // Known only now where the files say how long an epoch is.
  TrainConfig config = resolve(asked, kind, spec);
  if (is_only_shown(config, programs, kind)) return std::nullopt;

  FlatWeights loaded;
  if (!config.output.load.empty()) loaded = load_weights(config.output.load, spec.model);

  if (asked.device.device == "auto") note_missing_gpu(kMlpSingle);
  const auto device = make_device(config.device);
  require_free_memory(config, programs, *device);
  if (kind == DeviceKind::kCpu) config.device.threads = device->info().threads;
  return train_on(*device, config, programs, dataset ? &*dataset : nullptr, std::move(loaded));
}

/// One batch size. Nothing where it is only shown beforehand.
std::optional<Evaluation> evaluate(const TrainConfig& config, const Dataset& dataset,
                                   RunFile<OutputFile>* metrics) {
  const DeviceKind kind = device_kind(config.device.device);
  const StepPrograms programs(evaluation_spec_of(spec_of(config, kind, &dataset)));
  if (is_only_shown(config, programs, kind)) return std::nullopt;
  const FlatWeights weights = load_weights(config.output.load, programs.spec().model);
  const auto device = make_device(config.device);
  require_free_memory(config, programs, *device);
  Evaluator evaluator(programs, *device, dataset, weights);
  return evaluator.run(config.training.warmup.value_or(kDefaultWarmup),
                       [&](const EvaluatedBatch& batch) {
                         if (metrics == nullptr) return;
                         metrics->write([&](OutputFile& file) {
                           file.write(evaluation_record(config.data.batch_size, batch));
                         });
                       });
}

/// Each batch size, then the table of all.
void evaluate_each(TrainConfig config) {
  require_outputs(config, trace_files(config.output.trace, "device", 1));
  const bool runs = !config.output.plan && !config.output.explain;
  if (runs && config.device.device == "auto") note_missing_gpu(kMlpSingle);
  const std::optional<Dataset> dataset = open_data(config, device_kind(config.device.device));
  std::optional<RunFile<OutputFile>> metrics;
  if (!config.output.metrics.empty()) {
    metrics.emplace(kMlpSingle, config.output.metrics);
    const DeviceKind kind = device_kind(config.device.device);
    const TrainConfig shown = resolve(config, kind, spec_of(config, kind, &*dataset));
    metrics->write(
        [&](OutputFile& file) { file.write(configuration_record(shown, TrainerKind::kSingle)); });
  }
  std::vector<std::int64_t> sizes = config.data.sweep;
  if (sizes.empty()) sizes.push_back(config.data.batch_size);
  std::vector<Evaluation> rows;
  for (const std::int64_t size : sizes) {
    config.data.batch_size = size;
    const auto row = evaluate(config, *dataset, metrics ? &*metrics : nullptr);
    if (row) rows.push_back(*row);
  }
  if (rows.empty()) return;
  show(fmt::format("{} of {} {}\n{}", config.output.load.string(),
                   grouped(rows.front().total.samples),
                   noun_for(rows.front().total.samples, "sample"), evaluation_table(rows)));
  if (metrics) metrics->close();
}

/// A run for each batch size, then the practical's table.
void sweep(TrainConfig config) {
  std::vector<SweepRow> rows;
  for (const std::int64_t batch_size : config.data.sweep) {
    config.data.batch_size = batch_size;
    if (batch_size != config.data.sweep.front()) show("\n");
    if (const auto row = train(config)) rows.push_back(*row);
  }
  if (!rows.empty()) show(fmt::format("\n{}", sweep_table(rows)));
}

void run_mlp_single(const std::vector<std::string>& arguments) {
  const CommandLine line = parse_command_line(TrainerKind::kSingle, arguments);
  if (!line.answer.empty()) return print_now(line.answer);
  if (!line.note.empty()) print_note(kMlpSingle, line.note);
  validate(line.config, TrainerKind::kSingle);
  if (line.config.training.evaluate_only) {
    evaluate_each(line.config);
  } else if (line.config.data.sweep.empty()) {
    train(line.config);
  } else {
    sweep(line.config);
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpSingle, argc, argv, barestep::run_mlp_single);
}
