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
#include "train/trainer.h"

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

/// The traces of a run of so many `what` ("rank", "device"), by number: "f.rank1.json.gz" of
/// "f.json.gz", and where there is one, the path itself. None of an empty path.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& path,
                                               std::string_view what, int count);

class Profiling final : public TrainObserver, public StepProfiler {
 public:
  /// Takes the memory for all steps that are kept; for --profile on rank 0, measures the device's
  /// peaks unless an earlier run has. All that is referred to must outlive it. Throws
  /// Error(kConfiguration) for steps that the run has not, and for a graph whose ops cannot be told
  /// apart.
  Profiling(const TrainConfig& config, const StepPrograms& programs, const ProfilingScope& scope);

  /// Call it when the trainer is set up, which is work of no step. `told` hears of everything.
  void begin(TrainObserver& told);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_batch() override { told_->on_batch(); }

  [[nodiscard]] bool measures_nodes() const override { return gpu_ == nullptr; }
  RunDetail detail_of(std::int64_t number) override;
  void before_work(const Tag& tag, std::string_view label, int device) override;
  void after_work() override;
  void on_capture(bool on) override;

  /// Call it once nothing runs any more, before what follows. Never throws: what fails is noted.
  void end();

  /// What --profile asks for; empty where it was not given, and where require_records() throws.
  [[nodiscard]] std::string text() const;

  /// Throws Error(kBug) that names a node of a profiled step without a record: what lacks one shows
  /// too little time. Call it last, when all files are written.
  void require_records() const;

  /// From where this process's times count, and by how much that may be wrong where clocks were
  /// compared; another origin puts traces on another clock.
  [[nodiscard]] ClockOrigin origin() const { return origin_; }
  void set_origin(ClockOrigin origin, double error_s) {
    origin_ = origin;
    clock_error_s_ = error_s;
  }

  /// Writes the traces, if they were asked for: one for each device, with counters of what
  /// `monitor` saw meanwhile, if it is not null. Returns why there is none, if so. Throws Error as
  /// replace_file() does.
  [[nodiscard]] std::string write_files(const Monitor* monitor) const;

  /// The same for a run that failed: of the profiled steps that were done. Returns what became of
  /// it; empty if no trace was asked for.
  [[nodiscard]] std::string write_files_of_failed_run(const Monitor* monitor) const;

 private:
  /// The place of a training step among those that tell what profiling costs.
  [[nodiscard]] std::optional<std::int64_t> overhead_place(std::int64_t number) const;
  [[nodiscard]] bool is_profiled(std::int64_t number) const;
  /// Turns the GPU's tool on or off for the training step `number`.
  void turn_for(std::int64_t number);
  void find_peaks();
  [[nodiscard]] bool tells() const { return config_.output.profile && scope_.rank == 0; }
  [[nodiscard]] Profile profile() const;
  [[nodiscard]] bool exchanges() const;
  /// Opens CUPTI if it can be had.
  void open_gpu();
  /// Where the times of the device's work come from.
  [[nodiscard]] std::string source() const;
  [[nodiscard]] std::filesystem::path trace_of(const Device& device) const;
  [[nodiscard]] TraceContext context_of(const Device& device) const;
  void write_trace(const Profile& profile, const Device& device, const Monitor* monitor) const;
  [[nodiscard]] std::string title(const Profile& profile) const;
  [[nodiscard]] std::string tables(const Profile& profile) const;
  [[nodiscard]] std::string breakdowns(const Profile& profile) const;

  const TrainConfig& config_;
  const StepPrograms& programs_;
  ProfilingScope scope_;
  TrainObserver* told_ = nullptr;
  StepRange numbers_;           // of training, that tables are about
  StepRange kept_;              // and those of the trace: readers drop the last step of one
  std::int64_t first_counted_;  // behind warm-up
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
