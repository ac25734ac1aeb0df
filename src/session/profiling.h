// The profiler as a run sees it: it says how finely steps are measured, keeps some, and reports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/device.h"
#include "profiler/gpu_records.h"
#include "profiler/monitor.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "profiler/trace.h"
#include "session/observer.h"
#include "train/step_marks.h"

namespace barestep {

/// Whose work is profiled.
struct ProfilingScope {
  std::string program{};           // "mlp_ddp"
  std::vector<Device*> devices{};  // of the programs, by index
  Communicator* communicator = nullptr;
  std::string backend{};  // what carries collectives: "mpi", "nccl"; empty for none
  int rank = 0;           // of this process
  int ranks = 1;          // processes; where there are several, each has one device
};

class Profiling final : public Observer, public StepProfiler {
 public:
  /// Takes the memory for all steps that are kept; for --profile on rank 0, measures the device's
  /// peaks unless an earlier run has. `done` are the steps that the run goes on from. All that is
  /// referred to must outlive it. Throws Error(kConfiguration) for steps that the run does not
  /// have, and for a graph whose ops cannot be told apart.
  Profiling(const TrainConfig& config, const StepPrograms& programs, const ProfilingScope& scope,
            std::int64_t done = 0);

  /// Whose counters the traces show too; it must outlive this.
  void show(const Monitor& monitor) { monitor_ = &monitor; }

  /// Call it when the trainer is set up, which is work of no step.
  void begin() { turn_for(0); }

  void on_step(const StepFigures& step) override;

  [[nodiscard]] bool measures_nodes() const override { return gpu_ == nullptr; }
  RunDetail detail_of(std::int64_t number) override;
  void before_work(const Tag& tag, std::string_view label, int device) override;
  void after_work() override;
  void on_capture(bool on) override;

  /// Nothing may run any more. What fails is noted.
  void close() override;

  /// Puts what this rank recorded on rank 0's clock, by core/clock.h.
  void gather(Communicator& ranks) override;

  /// What --profile asks for; empty where it was not given, and where a record is missing.
  [[nodiscard]] std::string text() const override;

  /// Writes the traces, if they were asked for: one for each device, with counters of what the
  /// monitor saw meanwhile. Then throws Error(kBug) that names a node of a profiled step without a
  /// record: what lacks one shows too little time.
  void save(bool failed) override;

 private:
  /// The place of a training step among those that tell what profiling costs.
  [[nodiscard]] std::optional<std::int64_t> overhead_place(std::int64_t number) const;
  [[nodiscard]] bool is_profiled(std::int64_t number) const;
  /// Turns the GPU's tool on or off for the training step `number`.
  void turn_for(std::int64_t number);
  void find_peaks();
  /// Keeps what it measures, unless other programs had this one's cores meanwhile.
  /// `is_spoiled`: the file cannot be read, which was said.
  void measure_peaks_anew(bool is_spoiled);
  /// Measures the peaks anew if a profiled op was faster than they allow.
  void check_peaks();
  [[nodiscard]] bool tells() const { return config_.output.profile && scope_.rank == 0; }
  [[nodiscard]] Profile profile() const;
  [[nodiscard]] bool exchanges() const;
  /// Opens CUPTI if it can be had.
  void open_gpu();
  /// Where the times of the device's work come from.
  [[nodiscard]] std::string source() const;
  [[nodiscard]] std::filesystem::path trace_of(const Device& device) const;
  [[nodiscard]] TraceContext context_of(const Device& device) const;
  void write_trace(const Profile& profile, const Device& device) const;
  /// Returns why there are none, if so.
  [[nodiscard]] std::string write_traces() const;
  /// Of the profiled steps that were done. Returns what became of it.
  [[nodiscard]] std::string write_traces_of_failed_run() const;
  void require_records() const;
  [[nodiscard]] std::string title(const Profile& profile) const;
  [[nodiscard]] std::string tables(const Profile& profile) const;
  [[nodiscard]] std::string breakdowns(const Profile& profile) const;

  const TrainConfig& config_;
  const StepPrograms& programs_;
  ProfilingScope scope_;
  const Monitor* monitor_ = nullptr;
  StepRange numbers_;           // of training, that tables are about
  StepRange kept_;              // and those of the trace: readers drop the last step of one
  std::int64_t first_counted_;  // after warm-up
  ClockOrigin origin_ = clock_origin();
  double clock_error_s_ = 0;
  std::unique_ptr<GpuRecords> gpu_;  // null where marks alone tell
  std::string source_;               // of times
  ProfiledSteps steps_;
  ProfiledSteps forgotten_;  // those that only tell what keeping one costs
  Peaks peaks_;
  std::string note_;
  std::vector<double> overhead_wall_s_;
};

}  // namespace barestep
