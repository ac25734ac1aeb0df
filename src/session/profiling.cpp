#include "session/profiling.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "core/clock.h"
#include "core/error.h"
#include "core/group.h"
#include "core/program.h"
#include "profiler/account.h"
#include "profiler/communication_account.h"
#include "profiler/gpu_records.h"
#include "profiler/memory_timeline.h"
#include "profiler/operator_table.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "profiler/trace.h"
#include "session/console.h"
#include "session/outputs.h"
#include "session/run_program.h"
#include "train/schedule.h"

namespace barestep {
namespace {

/// The maximum number of spans kept, and of pieces of work for a GPU: 8 MiB of spans.
constexpr std::int64_t kMaxRecords = 1 << 18;
constexpr std::int64_t kMaxOverheadSteps = 1 << 16;
/// Peaks that were measured while threads waited longer for their cores are not a device's best.
constexpr double kMaxWaitedShare = 0.25;

/// The largest number of spans that any step of the run has, measured by nodes.
std::size_t max_parts(const StepPrograms& programs) {
  std::size_t max = 1;
  for (const StepProgram* step : programs.all()) max = std::max(max, parts_of(step->program));
  return max;
}

std::int64_t steps_of_run(const TrainConfig& config, const StepPrograms& programs) {
  return steps_of(config.training, programs.spec());
}

StepRange kept_steps(const TrainConfig& config, StepRange numbers, std::int64_t steps) {
  const bool closes = !config.output.trace.empty() && numbers.end < steps;
  return {numbers.first, numbers.end + (closes ? 1 : 0)};
}

class RunProfiling final : public Profiling {
 public:
  RunProfiling(const TrainConfig& config, const StepPrograms& programs, const ProfilingScope& scope,
               std::int64_t done)
      : config_(config),
        programs_(programs),
        scope_(scope),
        numbers_(profiled_steps_of(config, steps_of_run(config, programs))),
        kept_(kept_steps(config, numbers_, steps_of_run(config, programs))),
        first_counted_(first_measured_step(config.training, steps_of_run(config, programs), done)),
        source_("the CPU"),
        steps_(kept_.size(), max_parts(programs), kMaxRecords),
        overhead_steps_(1, max_parts(programs), kMaxRecords) {
    if (scope.devices[0]->kind() != DeviceKind::kCpu) open_gpu();
    // So that nothing is allocated in a step.
    overhead_wall_s_.reserve(static_cast<std::size_t>(kMaxOverheadSteps));
    profiled_wall_s_.reserve(static_cast<std::size_t>(kMaxOverheadSteps));
    if (prints_tables()) find_peaks();
  }

  void show(const Monitor& monitor) override { monitor_ = &monitor; }
  void consider(const OtherPrograms& others) override { others_ = &others; }
  void begin() override { turn_for(0); }

  void on_step(const StepFigures& step) override {
    const StepReport& report = step.report;
    if (kept_.contains(report.step)) {
      steps_.add(report.step, *report.timeline, now_s(), report.checkpoint_s);
    } else if (is_profiled(report.step)) {
      overhead_steps_.clear();
      overhead_steps_.add(report.step, *report.timeline, now_s());
    }
    if (overhead_place(report.step)) {
      const bool with = on_from_ && is_profiled(report.step);
      (with ? profiled_wall_s_ : overhead_wall_s_).push_back(report.wall_s);
    }
    if (gpu_ != nullptr) gpu_->collect();
    turn_for(report.step + 1);
  }

  RunDetail detail_of(std::int64_t number) override {
    // CUPTI measures nodes more accurately than events do.
    return gpu_ == nullptr && is_profiled(number) ? RunDetail::kNodes : RunDetail::kRuns;
  }

  void before_work(const Tag& tag, std::string_view label, int device) override {
    if (gpu_ != nullptr) gpu_->begin(tag, label, device);
  }

  void after_work() override {
    if (gpu_ != nullptr) gpu_->end();
  }

  void on_capture(bool on) override {
    if (gpu_ != nullptr) gpu_->capture(on);
  }

  /// Call when nothing runs any more. Failures become notes.
  void close() override {
    if (gpu_ != nullptr) {
      try {
        gpu_->finish();
        static_cast<void>(gpu_->turn(false, false));
        steps_.amend(*gpu_);
      } catch (const Error& error) {
        // Without CUPTI's times of nodes, these steps are not a profile.
        steps_.clear();
        note_ += fmt::format("Note: the records are missing: {}\n", error.what());
      }
    }
    if (prints_tables()) check_peaks();
  }

  /// Converts this rank's records to rank 0's clock, in seconds of core/clock.h.
  void gather(Group& ranks) override {
    const ClockAlignment clocks = align_clocks(ranks, &now_s);
    ranks.broadcast(std::as_writable_bytes(std::span(&origin_, 1)), 0);
    const auto rank = static_cast<std::size_t>(ranks.rank());
    // A time t of this rank is t + shift on rank 0's clock.
    origin_.host_s -= clocks.shift_s[rank];
    clock_error_s_ = clocks.error_s[rank];
  }

  /// The output of --profile; empty without that option, or if a record is missing.
  [[nodiscard]] std::string text() const override {
    if (!prints_tables()) return "";
    const Profile profile = this->profile().of(numbers_);
    if (profile.steps.empty()) {
      return fmt::format(
          "There is nothing to show of the steps {} to {}: {}\n{}", numbers_.first,
          numbers_.end - 1,
          profile.dropped > 0 ? "there was no room for their records" : "the run ended before them",
          note_);
    }
    if (!node_without_record(profile.steps, programs_.spec().mesh).empty()) return "";
    MeanAccount account;
    for (const StepAccount& of_step : accounts_of(profile)) account.add(of_step);
    const int devices = static_cast<int>(scope_.devices.size());
    std::string text = title(profile) + tables(profile);
    if (account.count() > 0) {
      text += fmt::format("Account of a profiled step, mean of {}\n", account.count());
      text += account_table(account.mean()) + "\n";
    }
    if (others_ == nullptr || !others_->disturb()) {
      text += bottleneck(profile, account, peaks_) + backward_ratio(profile);
    }
    text += breakdowns(profile);
    text += step_rate(profile, peaks_, devices) + note_;
    text += overhead_text(on_from_ ? overhead_of(overhead_wall_s_, profiled_wall_s_)
                                   : overhead_of(overhead_wall_s_));
    const std::string memory =
        memory_table(programs_.train().program, MemoryPlan(programs_.buffers()), 0,
                     config_.output.row_limit.value_or(kDefaultRowLimit));
    return text + fmt::format("\nMemory in use over a step{}\n{}",
                              devices > 1 ? " on the first device" : "", memory);
  }

  /// Writes the traces, if requested: one for each device, with the monitor's counters. Then throws
  /// Error(kBug) naming any node of a profiled step that has no record, because its time is missing
  /// from the result.
  void save(bool failed) override {
    if (!config_.output.trace.empty()) {
      const std::string note = failed ? write_traces_of_failed_run() : write_traces();
      if (mesh().rank == 0) print_note(scope_.program, note);
    }
    if (!failed) require_records();
  }

 private:
  /// The index of a training step among those that measure the profiler's cost.
  [[nodiscard]] std::optional<std::int64_t> overhead_place(std::int64_t number) const {
    // The step before the kept ones fetches the first one's input.
    const StepRange requested{kept_.first - 1, kept_.end};
    if (number < first_counted_ || requested.contains(number)) return std::nullopt;
    std::int64_t place = number - first_counted_;
    if (number >= requested.end) {
      place -= std::max(std::int64_t{0}, requested.end - std::max(requested.first, first_counted_));
    }
    if (place >= kMaxOverheadSteps) return std::nullopt;
    return place;
  }

  [[nodiscard]] bool is_profiled(std::int64_t number) const {
    if (on_from_) return number >= *on_from_ && number < kept_.end;
    const auto place = overhead_place(number);
    return kept_.contains(number) || (place && is_profiled_for_overhead(*place));
  }

  /// Turns the GPU's profiling tool on or off for the training step `number`.
  void turn_for(std::int64_t number) {
    if (gpu_ == nullptr) return;
    const bool keeps = kept_.contains(number) || number + 1 == kept_.first;
    const std::string why = gpu_->turn(keeps || is_profiled(number), keeps);
    if (!why.empty()) use_events(why);
  }

  void find_peaks() {
    const std::string key = peaks_key(*scope_.devices[0], config_.device.precision);
    const auto file = peaks_file();
    bool was_unreadable = false;
    try {
      const auto known = file ? load_peaks(*file, key) : std::nullopt;
      if (known) {
        peaks_ = *known;
        return;
      }
    } catch (const Error& unreadable) {
      was_unreadable = true;
      note_ += fmt::format("Note: the device's peaks are measured again: {}\n", unreadable.what());
    }
    measure_peaks_again(was_unreadable);
  }

  /// Keeps what it measures, unless other programs had this one's cores meanwhile.
  /// `was_unreadable`: the file cannot be read, which a note reports.
  void measure_peaks_again(bool was_unreadable) {
    Device& device = *scope_.devices[0];
    const auto file = peaks_file();
    bool is_measured = false;
    try {
      peaks_ = measure_peaks(device, config_.device.precision);
      is_measured = true;
      if (peaks_.waited_share > kMaxWaitedShare) {
        note_ += fmt::format(
            "Note: the device's peaks were not kept: threads waited for their cores "
            "for {:.0f} % of the time\n",
            100 * peaks_.waited_share);
      } else if (file) {
        save_peaks(*file, peaks_key(device, config_.device.precision), peaks_);
      }
    } catch (const Error& error) {
      // A failure here must not end a training run: columns stay empty, or the next run measures
      // again. An unreadable file can usually not be replaced either.
      if (is_measured && was_unreadable) return;
      note_ += fmt::format("Note: the device's peaks were not {}: {}\n",
                           is_measured ? "kept" : "measured", error.what());
    }
  }

  /// Measures the peaks anew if a profiled op was faster than they allow.
  void check_peaks() {
    const Profile profile = this->profile().of(numbers_);
    const std::int64_t cache_bytes = scope_.devices[0]->info().cache_bytes;
    const auto found = [&] {
      return contradiction(operator_rows(profile, RowsBy::kOp, peaks_), peaks_, cache_bytes);
    };
    const std::string by_old = found();
    if (by_old.empty()) return;
    note_ += fmt::format("Note: the device's peaks are measured again: {}\n", by_old);
    measure_peaks_again(false);
    if (const std::string by_new = found(); !by_new.empty()) {
      note_ +=
          fmt::format("Note: with the new peaks, too, {}: this machine's speed varies\n", by_new);
    }
  }

  /// Of the processes; if there are several, each has one device.
  [[nodiscard]] const Mesh& mesh() const { return programs_.spec().mesh; }
  [[nodiscard]] bool prints_tables() const { return config_.output.profile && mesh().rank == 0; }
  [[nodiscard]] Profile profile() const {
    const std::int64_t dropped = steps_.dropped() + (gpu_ == nullptr ? 0 : gpu_->dropped());
    Profile all = profile_of(steps_.kept(), dropped, programs_.spec().mesh,
                             gpu_ == nullptr ? std::span<const GpuActivity>() : gpu_->activities());
    if (all.steps.empty()) return all;
    // CUPTI recorded parts of the steps before and after these; drop them.
    return all.of({all.steps.front().number, all.steps.back().number + 1});
  }

  /// Opens CUPTI if possible.
  void open_gpu() {
    std::string why;
    gpu_ = open_cupti(scope_.devices, kMaxRecords, cupti_files(), why);
    if (gpu_ == nullptr) return use_events(why);
    // Half of the steps after warm-up and before the kept ones show the cost. The input of a kept
    // step is queued up to two steps before it.
    const std::int64_t spare = std::max(std::int64_t{0}, kept_.first - 1 - first_counted_);
    on_from_ = std::max(std::int64_t{0}, std::min(kept_.first - 3, kept_.first - 1 - spare / 2));
  }

  /// From now on events measure the GPU, since CUPTI cannot.
  void use_events(const std::string& why) {
    gpu_.reset();
    source_ = fmt::format("CUDA events, to about a microsecond: CUPTI cannot be used: {}", why);
    if (!config_.device.graph) return;
    fail(ExitCode::kConfiguration,
         {config_.output.profile ? "--profile" : "--trace", "",
          fmt::format("the ops of a graph cannot be identified by {}", source_),
          "leave out --graph"});
  }

  /// The source of the device's times.
  [[nodiscard]] std::string source() const { return gpu_ == nullptr ? source_ : gpu_->source(); }

  [[nodiscard]] std::filesystem::path trace_of(const Device& device) const {
    const int devices = static_cast<int>(scope_.devices.size());
    return trace_files(config_.output.trace, "device",
                       devices)[static_cast<std::size_t>(device.index())];
  }

  [[nodiscard]] TraceContext context_of(const Device& device) const {
    const DeviceInfo info = device.info();
    const int devices = static_cast<int>(scope_.devices.size());
    // The device's index is used as the process id; in a container, real process ids may be as
    // small.
    constexpr std::int64_t kSmall = 1000;
    return {.program = scope_.program,
            .version = BARESTEP_VERSION,
            .trace_name = trace_of(device).string(),
            .mesh = devices > 1 ? Mesh::of_data(device.index(), devices) : mesh(),
            .backend = scope_.backend,
            .device = device.index(),
            .device_name = info.model,
            .kind = device.kind(),
            .device_bytes = info.total_bytes,
            .multiprocessors = info.multiprocessors,
            .pid = ::getpid() + (::getpid() < kSmall ? 1000 * kSmall : 0),
            .thread = ::gettid(),
            .clock_error_s = clock_error_s_};
  }

  void write_trace(const Profile& profile, const Device& device) const {
    const TraceContext context = context_of(device);
    TraceEvents events(origin_);
    add_profile(events, profile, context);
    add_memory(events, profile, MemoryPlan(programs_.buffers()), context);
    if (monitor_ != nullptr && !profile.steps.empty()) {
      add_monitor(events, *monitor_, host_row(context), profile.steps.front().host().begin_s,
                  profile.steps.back().host().end_s);
    }
    events.close();
    barestep::write_trace(context.trace_name, trace_text(events, context));
  }

  /// Returns an error text if there are none.
  [[nodiscard]] std::string write_traces() const {
    if (steps_.kept().empty()) {
      return fmt::format("no profiled step was done, so '{}' is not written",
                         trace_of(*scope_.devices[0]).string());
    }
    const Profile profile = this->profile();
    for (const Device* device : scope_.devices) write_trace(profile, *device);
    return "";
  }

  /// Writes traces of the profiled steps that were completed. Returns a text about the result.
  [[nodiscard]] std::string write_traces_of_failed_run() const {
    try {
      if (std::string why = write_traces(); !why.empty()) return why;
    } catch (const Error& error) {
      return error.what();
    }
    return fmt::format("'{}' holds the profiled steps before that: {} to {}",
                       trace_of(*scope_.devices[0]).string(), steps_.kept().front().number,
                       steps_.kept().back().number);
  }

  void require_records() const {
    const Profile profile = this->profile();
    const std::string node = node_without_record(profile.steps, programs_.spec().mesh);
    if (node.empty()) return;
    std::string remedy = "this is a bug, please report it";
    if (gpu_ != nullptr) remedy = "set BARESTEP_CUPTI=none, which profiles by CUDA events";
    if (profile.dropped > 0) remedy = "profile fewer steps with --profile-steps";
    fail(
        ExitCode::kBug,
        {"profile", node,
         fmt::format("has no record from {}{}", source(),
                     profile.dropped > 0 ? fmt::format(", which dropped {}", profile.dropped) : ""),
         remedy});
  }

  [[nodiscard]] std::string title(const Profile& profile) const {
    const std::int64_t last = profile.dropped > 0 ? numbers_.end - 1 : profile.steps.back().number;
    std::string text = fmt::format("Profile of the steps {} to {}, ", numbers_.first, last);
    if (mesh().ranks() > 1) text += fmt::format("rank {} of {}, ", mesh().rank, mesh().ranks());
    if (scope_.devices.size() > 1) text += fmt::format("{} devices, each ", scope_.devices.size());
    for (const Phase phase : config_.output.profile_phases) {
      text += fmt::format("{}{}", name_of(phase),
                          phase == config_.output.profile_phases.back() ? " only, " : ", ");
    }
    text += peaks_key(*scope_.devices[0], config_.device.precision) + "\n";
    if (scope_.devices[0]->kind() != DeviceKind::kCpu) {
      text += fmt::format("The GPU's times are from {}\n", source());
    }
    if (profile.dropped > 0) {
      text += fmt::format(
          "There was no room for {} of the records, so this shows only the first {} of these "
          "steps.\n",
          profile.dropped, profile.steps.size());
    }
    return text;
  }

  /// Of the phases asked for.
  [[nodiscard]] std::string tables(const Profile& of_steps) const {
    const std::vector<Phase>& phases = config_.output.profile_phases;
    const Profile profile = phases.empty() ? of_steps : of_steps.of(phases);
    if (profile.ops.empty()) return "No op of these phases ran in these steps.\n\n";
    TableLayout layout{.device = scope_.devices[0]->kind(),
                       .sort_by = config_.output.sort_by.value_or(SortBy::kDeviceTotal),
                       .row_limit = config_.output.row_limit.value_or(kDefaultRowLimit)};
    const auto table = [&](RowsBy by) {
      return operator_table(operator_rows(profile, by, peaks_), layout);
    };
    std::string text = table(RowsBy::kOp);
    layout.footer = false;
    text += "\nBy block\n" + table(RowsBy::kBlock);
    text += "\nBy phase\n" + table(RowsBy::kPhase);
    const std::string roofline = roofline_table(operator_rows(profile, RowsBy::kOp, peaks_), peaks_,
                                                std::ssize(profile.steps));
    if (!roofline.empty()) text += "\nRoofline, by op\n" + roofline;
    return text + "\nThe host, in parallel with the device\n" + host_table(profile) + "\n";
  }

  [[nodiscard]] std::string breakdowns(const Profile& profile) const {
    std::string text;
    for (const Device* device : scope_.devices) {
      if (scope_.devices.size() > 1) text += fmt::format("{}: ", device->name());
      text += breakdown_text(breakdown_of(profile, device->index()));
    }
    return text;
  }

  const TrainConfig& config_;
  const StepPrograms& programs_;
  ProfilingScope scope_;
  const Monitor* monitor_ = nullptr;
  const OtherPrograms* others_ = nullptr;
  StepRange numbers_;           // training steps that the tables cover
  StepRange kept_;              // those of the trace too: readers drop its last step
  std::int64_t first_counted_;  // the first after warm-up
  ClockOrigin origin_ = clock_origin();
  double clock_error_s_ = 0;
  std::unique_ptr<GpuRecords> gpu_;  // null: only marks measure
  // CUPTI is turned on once, before this step, and off after the last that is kept. Without CUPTI,
  // profiled steps alternate with others.
  std::optional<std::int64_t> on_from_{};
  std::string source_;  // of the times
  ProfiledSteps steps_;
  ProfiledSteps overhead_steps_;  // steps that only measure the profiler's cost
  Peaks peaks_;
  std::string note_;
  std::vector<double> overhead_wall_s_;  // if CUPTI is turned on once, of steps without it
  std::vector<double> profiled_wall_s_;  // then, of steps with it that are not kept
};

}  // namespace

std::unique_ptr<Profiling> new_profiling(const TrainConfig& config, const StepPrograms& programs,
                                         const ProfilingScope& scope, std::int64_t done) {
  return std::make_unique<RunProfiling>(config, programs, scope, done);
}

}  // namespace barestep
