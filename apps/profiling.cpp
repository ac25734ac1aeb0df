#include "profiling.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/clock.h"
#include "core/error.h"
#include "core/price.h"
#include "profiler/account.h"
#include "profiler/breakdown.h"
#include "profiler/memory_timeline.h"
#include "profiler/monitor_report.h"
#include "profiler/operator_table.h"
#include "profiler/overhead.h"
#include "profiler/trace.h"
#include "train/schedule.h"

namespace barestep {
namespace {

/// The most records of a kind: 16 MiB of them.
constexpr std::int64_t kMostRecords = 1 << 18;
constexpr std::size_t kMostOverheadSteps = 1 << 16;

/// The programs of a run, in the order in which a trainer hands them to its runner.
std::vector<const Program*> programs_of(const StepPrograms& programs) {
  std::vector<const Program*> all;
  for (const StepProgram* step :
       {&programs.train(), programs.last_batch(), programs.evaluate(), programs.last_evaluate()}) {
    if (step != nullptr) all.push_back(&step->program);
  }
  return all;
}

/// The runner's steps from training step numbers.first to the last of them; batches of evaluation
/// are steps of the runner too.
StepRange runner_steps(const TrainConfig& config, const StepPrograms& programs, StepRange numbers) {
  StepRange steps;
  Schedule schedule(config.training, programs);
  for (std::int64_t step = 0;; ++step) {
    const std::optional<Batch> batch = schedule.next();
    BARESTEP_REQUIRE(batch.has_value(), "a run ends before a step that it has");
    if (batch->evaluates) continue;
    if (batch->number == numbers.first) steps.first = step;
    steps.end = step + 1;
    if (batch->number + 1 == numbers.end) return steps;
  }
}

std::int64_t capacity_for(const StepPrograms& programs, std::int64_t steps) {
  std::int64_t nodes = 0;
  for (const Program* program : programs_of(programs)) {
    nodes = std::max<std::int64_t>(nodes, program->size());
  }
  return std::min(kMostRecords, nodes * std::min(steps, kMostRecords));
}

std::int64_t steps_of_run(const TrainConfig& config, const StepPrograms& programs) {
  return Schedule(config.training, programs).steps();
}

StepRange kept_steps(const TrainConfig& config, StepRange numbers, std::int64_t steps) {
  const bool closes = !config.output.trace.empty() && numbers.end < steps;
  return {numbers.first, numbers.end + (closes ? 1 : 0)};
}

}  // namespace

Profiling::Profiling(const TrainConfig& config, const StepPrograms& programs, Device& device,
                     TrainObserver& told)
    : config_(config),
      programs_(programs),
      device_(device),
      told_(told),
      numbers_(profiled_steps_of(config, steps_of_run(config, programs))),
      kept_(kept_steps(config, numbers_, steps_of_run(config, programs))),
      first_counted_(warmup_of(config.training, steps_of_run(config, programs))),
      collector_(runner_steps(config, programs, kept_),
                 capacity_for(programs, runner_steps(config, programs, kept_).size())),
      profiled_(device, collector_) {
  // Nothing is allocated in a step.
  steps_.reserve(static_cast<std::size_t>(std::min(kept_.size(), kMostRecords)));
  overhead_wall_s_.reserve(kMostOverheadSteps);
  find_peaks();
  // A device that sends no records says so now and not in the middle of a run.
  profiled_.turn(true);
  profiled_.turn(false);
  turn_for(0);
}

void Profiling::find_peaks() {
  const std::string key = peaks_key(device_, config_.device.precision);
  const auto file = peaks_file();
  if (file) {
    if (const auto known = load_peaks(*file, key)) {
      peaks_ = *known;
      return;
    }
  }
  try {
    peaks_ = measure_peaks(device_);
    if (file) save_peaks(*file, key, peaks_);
  } catch (const Error& error) {
    // Neither is worth a training run: columns stay empty, or the next run measures again.
    note_ = fmt::format("Note: the device's peaks were not {}: {}\n",
                        peaks_.flops_per_s > 0 ? "kept" : "measured", error.what());
  }
}

void Profiling::turn_for(std::int64_t number) {
  // The step before the first one fetches that one's input.
  const bool wanted = kept_.contains(number) || number + 1 == kept_.first;
  for_overhead_ =
      !wanted && number >= first_counted_ && overhead_wall_s_.size() < kMostOverheadSteps;
  const auto index = static_cast<std::int64_t>(overhead_wall_s_.size());
  profiled_.turn(wanted || (for_overhead_ && is_profiled_for_overhead(index)));
}

void Profiling::on_step(const StepReport& report) {
  told_.on_step(report);
  const HostTimes& host = report.times.host;
  if (kept_.contains(report.step) && steps_.size() < steps_.capacity()) {
    steps_.push_back({.step = report.times.step,
                      .number = report.step,
                      .begin_s = host.begin_s,
                      .start_s = host.start_s,
                      .queued_s = host.queued_s,
                      .fetched_s = host.fetched_s,
                      .end_s = host.end_s,
                      .reported_s = now_s()});
  }
  if (for_overhead_) overhead_wall_s_.push_back(report.times.wall_s);
  turn_for(report.step + 1);
}

void Profiling::on_evaluation(const EvaluationReport& report) {
  told_.on_evaluation(report);
}

std::string Profiling::tables(const Profile& profile) const {
  TableLayout layout{.device = device_.kind(),
                     .sort_by = config_.output.sort_by.value_or(SortBy::kDeviceTotal),
                     .row_limit = config_.output.row_limit.value_or(kDefaultRowLimit)};
  const auto table = [&](RowsBy by) {
    return operator_table(operator_rows(profile, by, peaks_), layout);
  };
  std::string text = table(RowsBy::kOp);
  layout.footer = false;
  text += "\nBy layer\n" + table(RowsBy::kLayer);
  text += "\nBy phase\n" + table(RowsBy::kPhase);
  return text + "\nThe host, beside it\n" + host_table(profile) + "\n";
}

Profile Profiling::profile() const {
  return join(programs_of(programs_), collector_, steps_);
}

void Profiling::write_files(const Monitor* monitor) const {
  const std::filesystem::path& path = config_.output.trace;
  if (path.empty()) return;
  const DeviceInfo info = device_.info();
  // A device's index stands where a process has its number; in a container that may be small.
  constexpr std::int64_t kSmall = 1000;
  const TraceContext context{.program = "mlp_single",
                             .version = BARESTEP_VERSION,
                             .trace_name = path.string(),
                             .backend = "",
                             .device = device_.index(),
                             .device_name = info.model,
                             .kind = device_.kind(),
                             .device_bytes = info.total_bytes,
                             .pid = ::getpid() + (::getpid() < kSmall ? 1000 * kSmall : 0),
                             .thread = ::gettid()};
  TraceEvents events(origin_);
  const Profile profile = this->profile();
  add_profile(events, profile, context);
  add_memory(events, profile, MemoryPlan(programs_.buffers()), context);
  if (monitor != nullptr && !profile.steps.empty()) {
    add_monitor(events, *monitor, host_row(context), profile.steps.front().begin_s,
                profile.steps.back().end_s);
  }
  events.close();
  write_trace(path, events.file(trace_head(context), context.trace_name));
}

std::string Profiling::text() const {
  if (!config_.output.profile) return "";
  const Profile profile = this->profile().of(numbers_);
  std::string text = fmt::format("Profile of the steps {} to {}, {}\n", numbers_.first,
                                 numbers_.end - 1, peaks_key(device_, config_.device.precision));
  if (profile.dropped > 0) {
    text += fmt::format(
        "There was no room for {} of the records: this is about the first {} of these steps.\n",
        profile.dropped, profile.steps.size());
  }
  const auto accounts = accounts_of(profile);
  text += tables(profile);
  text += account_table(accounts) + "\n";
  text += bottleneck(profile, accounts, peaks_) + backward_ratio(profile);
  text += breakdown_text(breakdown_of(profile, device_.index()));
  text += step_rate(profile, peaks_) + note_;
  text += overhead_text(overhead_of(overhead_wall_s_));
  const std::string memory =
      memory_table(programs_.train().program, MemoryPlan(programs_.buffers()), device_.index(),
                   config_.output.row_limit.value_or(kDefaultRowLimit));
  return text + fmt::format("\nMemory in use over a step\n{}", memory);
}

}  // namespace barestep
