// The profiler of a run: decides how finely steps are measured, keeps some of them, and reports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/group.h"
#include "profiler/gpu_records.h"
#include "profiler/monitor.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "profiler/trace.h"
#include "session/observer.h"
#include "train/step_marks.h"

namespace barestep {

class OtherPrograms;

/// What is profiled.
struct ProfilingScope {
  std::string program{};           // e.g. "mlp_ddp"
  std::vector<Device*> devices{};  // by their index in the programs
  std::string backend{};           // transport of the collectives: "mpi", "nccl"; may be empty
};

class Profiling final : public Observer, public StepProfiler {
 public:
  /// Allocates the memory for all steps that are kept. For --profile on rank 0, measures the
  /// device's peaks unless an earlier run has. `done` is the number of steps done before this run
  /// resumed. All arguments must outlive this. Throws Error(kConfiguration) for steps that the run
  /// does not have, and for a graph whose ops cannot be measured separately.
  Profiling(const TrainConfig& config, const StepPrograms& programs, const ProfilingScope& scope,
            std::int64_t done = 0);

  /// Adds the monitor's counters to the traces; it must outlive this.
  void show(const Monitor& monitor) { monitor_ = &monitor; }

  /// Leaves conclusions out where other programs disturbed the run; `others` must outlive this.
  void consider(const OtherPrograms& others) { others_ = &others; }

  /// Call when the trainer is set up, which belongs to no step.
  void begin() { turn_for(0); }

  void on_step(const StepFigures& step) override;

  RunDetail detail_of(std::int64_t number) override;
  void before_work(const Tag& tag, std::string_view label, int device) override;
  void after_work() override;
  void on_capture(bool on) override;

  /// Call when nothing runs any more. Failures become notes.
  void close() override;

  /// Converts this rank's records to rank 0's clock, in seconds of core/clock.h.
  void gather(Group& ranks) override;

  /// The output of --profile; empty without that option, or if a record is missing.
  [[nodiscard]] std::string text() const override;

  /// Writes the traces, if requested: one for each device, with the monitor's counters. Then throws
  /// Error(kBug) naming any node of a profiled step that has no record, because its time is missing
  /// from the result.
  void save(bool failed) override;

 private:
  /// The index of a training step among those that measure the profiler's cost.
  [[nodiscard]] std::optional<std::int64_t> overhead_place(std::int64_t number) const;
  [[nodiscard]] bool is_profiled(std::int64_t number) const;
  /// Turns the GPU's profiling tool on or off for the training step `number`.
  void turn_for(std::int64_t number);
  void find_peaks();
  /// Keeps what it measures, unless other programs had this one's cores meanwhile.
  /// `was_unreadable`: the file cannot be read, which a note reports.
  void measure_peaks_again(bool was_unreadable);
  /// Measures the peaks anew if a profiled op was faster than they allow.
  void check_peaks();
  /// Of the processes; if there are several, each has one device.
  [[nodiscard]] const Mesh& mesh() const { return programs_.spec().mesh; }
  [[nodiscard]] bool prints_tables() const { return config_.output.profile && mesh().rank == 0; }
  [[nodiscard]] Profile profile() const;
  /// Opens CUPTI if possible.
  void open_gpu();
  /// From now on events measure the GPU, since CUPTI cannot.
  void use_events(const std::string& why);
  /// The source of the device's times.
  [[nodiscard]] std::string source() const;
  [[nodiscard]] std::filesystem::path trace_of(const Device& device) const;
  [[nodiscard]] TraceContext context_of(const Device& device) const;
  void write_trace(const Profile& profile, const Device& device) const;
  /// Returns an error text if there are none.
  [[nodiscard]] std::string write_traces() const;
  /// Writes traces of the profiled steps that were completed. Returns a text about the result.
  [[nodiscard]] std::string write_traces_of_failed_run() const;
  void require_records() const;
  [[nodiscard]] std::string title(const Profile& profile) const;
  /// Of the phases asked for.
  [[nodiscard]] std::string tables(const Profile& of_steps) const;
  [[nodiscard]] std::string breakdowns(const Profile& profile) const;

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

}  // namespace barestep
