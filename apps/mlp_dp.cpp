// mlp_dp: trains on several devices of one process.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "console.h"
#include "core/config.h"
#include "core/stop_request.h"
#include "data/dataset.h"
#include "device_setup.h"
#include "monitoring.h"
#include "options/options.h"
#include "parallel/data_parallel.h"
#include "parallel/data_parallel_account.h"
#include "parallel/flight_record.h"
#include "parallel/watchdog.h"
#include "profiling.h"
#include "run_end.h"
#include "run_program.h"
#include "setup.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kMlpDp = "mlp_dp";

/// Shows the run, with the split of each step where that is asked for, keeps the account, and
/// enters each step in the record.
class SpreadObserver final : public TrainObserver {
 public:
  SpreadObserver(const TrainConfig& config, const StepPrograms& programs,
                 const DataParallel& scheme, const DeviceSetup& setup, std::int64_t steps,
                 FlightRecord& record)
      : config_(config),
        programs_(programs),
        scheme_(scheme),
        setup_(setup),
        record_(record),
        console_(TrainerKind::kDataParallel, config, steps),
        account_(programs, scheme, setup.names(), setup.route()) {}

  void on_batch() override { record_.begin(Track::kPhase, Activity::kStep, ++batches_); }

  void on_step(const StepReport& report) override {
    if (config_.output.show_split) show_split(report.samples);
    StepReport shown = report;
    shown.own_loss.reset();  // this process has all rows
    console_.on_step(shown);
    account_.add(report);
  }

  void on_evaluation(const EvaluationReport& report) override { console_.on_evaluation(report); }

  void show_summary(const Trainer& trainer, const Device& device) {
    std::string account = account_.text();
    if (!account.empty()) account += "\n";
    console_.show_summary(trainer, device, account, setup_.names());
  }
  [[nodiscard]] Console& console() { return console_; }

 private:
  /// The line that the practical's model prints in its forward pass.
  void show_split(std::int64_t step_rows) {
    const StepSpec& spec = programs_.spec();
    for (std::int64_t first = 0; first < step_rows; first += spec.batch_size) {
      const auto split = scheme_.split(std::min(spec.batch_size, step_rows - first));
      for (std::size_t i = 0; i < split.size(); ++i) {
        console_.print_line(fmt::format("Inside model on device {}, shape: [{}, {}]",
                                        setup_.names()[i], split[i].count,
                                        spec.model.layout.widths().front()));
      }
    }
  }

  const TrainConfig& config_;
  const StepPrograms& programs_;
  const DataParallel& scheme_;
  const DeviceSetup& setup_;
  FlightRecord& record_;
  std::int64_t batches_ = 0;
  Console console_;
  DataParallelAccount account_;
};

/// Trains on opened devices and tells of it.
void train_on(const DeviceSetup& setup, const TrainConfig& config, const StepPrograms& programs,
              const DataParallel& scheme, const Dataset* dataset, FlatWeights loaded,
              FlightRecord& record) {
  const StepSpec& spec = programs.spec();
  const std::int64_t steps = steps_of(config.training, spec.epoch_rows(), spec.step_rows());
  const auto communicator = setup.join(programs);
  SpreadObserver observer(config, programs, scheme, setup, steps, record);
  const ProfilingScope scope{.program = kMlpDp,
                             .devices = setup.opened(),
                             .communicator = communicator.get(),
                             .backend = setup.backend()};
  std::optional<Profiling> profiling;
  if (config.output.records()) profiling.emplace(config, programs, scope);
  auto trainer =
      std::make_unique<Trainer>(config, programs, scope.devices, scope.communicator, dataset,
                                std::move(loaded), profiling ? &*profiling : nullptr);
  const Device& first = *scope.devices[0];
  observer.console().print(setup.text(scheme.split(spec.batch_size)) + run_header(programs, first));
  TrainObserver* told = &observer;
  std::optional<Monitoring> monitoring;
  if (config.output.monitor) {
    const auto opened = setup.opened();
    const MonitorScope seen{.devices = {opened.begin(), opened.end()}};
    told =
        &monitoring.emplace(seen, warmup_of(config.training, steps), &observer.console(), observer);
  }
  const Monitor* const monitor = monitoring ? &monitoring->monitor() : nullptr;
  record.begin(Track::kPhase, Activity::kStep, 0);
  run_training(trainer, *told, kMlpDp, profiling ? &*profiling : nullptr, monitor);
  record.begin(Track::kPhase, Activity::kEnd);
  std::string seen;
  const auto close = [&] {
    if (monitoring) seen = "\n" + monitoring->finish();
    observer.console().close();
  };
  const auto report = [&] {
    observer.show_summary(*trainer, first);
    observer.console().print(seen);
    if (config.output.profile) observer.console().print("\n" + profiling->text());
  };
  const auto failure = end_run(kMlpDp, config, *trainer,
                               {.close = close,
                                .report = report,
                                .profiling = profiling ? &*profiling : nullptr,
                                .monitor = monitor});
  if (failure) throw Error(*failure);
  end_if_stopped(kMlpDp, config, *trainer);
}

void train_on_devices(TrainConfig config, FlightRecord& record) {
  DeviceSetup setup(config.device, config.parallel.transport);
  const bool takes_any = config.device.devices.empty() && config.device.device == "auto";
  config.device.device = "auto";
  config.device.devices = setup.devices();
  require_outputs(config, trace_files(config.output.trace, "device", setup.size()),
                  {{"--metrics", flight_file(config.output.metrics)}});
  const std::optional<Dataset> dataset = open_data(config, setup.kind());
  const Dataset* const data = dataset ? &*dataset : nullptr;
  const StepSpec spec = spec_of(config, setup.kind(), data);
  const DataParallel scheme(setup.size(), setup.exchanges() == Exchanges::kPieces);
  const StepPrograms programs(spec, &scheme);
  config = resolve(std::move(config), setup.kind(), spec);
  if (config.output.memory) setup.require_stated_memory(programs, *config.output.memory);
  if (config.output.plan || config.output.explain) {
    return print_now(preview(config, programs, setup.names()));
  }

  FlatWeights loaded;
  if (!config.output.load.empty()) loaded = load_weights(config.output.load, spec.model);
  if (takes_any) note_missing_gpu(kMlpDp);
  setup.open(MemoryPlan(programs.buffers()).devices());
  if (!config.output.memory) setup.require_free_memory(programs);
  train_on(setup, config, programs, scheme, data, std::move(loaded), record);
}

void run_mlp_dp(const std::vector<std::string>& arguments) {
  const CommandLine line = parse_command_line(TrainerKind::kDataParallel, arguments);
  if (!line.answer.empty()) return print_now(line.answer);
  if (!line.note.empty()) print_note(kMlpDp, line.note);
  validate(line.config, TrainerKind::kDataParallel);
  // A device that hangs would keep this process for ever.
  FlightBoard board("", 0, 0);
  board.mine().begin(Track::kPhase, Activity::kSetUp);
  const Watchdog watchdog(board,
                          {.program = kMlpDp,
                           .limit_s = line.config.parallel.timeout_s,
                           .ranks = 1,
                           .record_file = flight_file(line.config.output.metrics),
                           .end_all = [](ExitCode code) { std::_Exit(static_cast<int>(code)); },
                           .continued_s = &continued_s});
  train_on_devices(line.config, board.mine());
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpDp, argc, argv, barestep::run_mlp_dp);
}
