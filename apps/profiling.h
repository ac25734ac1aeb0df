// The profiler as a run sees it: a device to run on, an observer to tell, a report at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "profiler/monitor.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"
#include "profiler/profiled_device.h"
#include "profiler/records.h"
#include "profiler/trace_file.h"
#include "train/trainer.h"

namespace barestep {

class Profiling final : public TrainObserver {
 public:
  /// Takes the memory for all records, and measures the device's peaks unless an earlier run has.
  /// `told` hears of everything. All must outlive it. Throws Error(kConfiguration) for steps that
  /// the run has not, and for a device that sends no records.
  Profiling(const TrainConfig& config, const StepPrograms& programs, Device& device,
            TrainObserver& told);

  /// What the trainer is to run on.
  [[nodiscard]] Device& device() { return profiled_; }

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

  /// What --profile asks for, once the run is over; empty where it was not given.
  [[nodiscard]] std::string text() const;

  /// Writes the trace, if one was asked for, with counters of what `monitor` saw meanwhile, if it
  /// is not null. Throws Error as replace_file() does.
  void write_files(const Monitor* monitor) const;

 private:
  /// Turns profiling on or off for the training step `number`.
  void turn_for(std::int64_t number);
  void find_peaks();
  [[nodiscard]] Profile profile() const;
  [[nodiscard]] std::string tables(const Profile& profile) const;

  const TrainConfig& config_;
  const StepPrograms& programs_;
  Device& device_;
  TrainObserver& told_;
  StepRange numbers_;           // of training, that tables are about
  StepRange kept_;              // and those of the trace: readers drop the last step of one
  std::int64_t first_counted_;  // behind warm-up
  ClockOrigin origin_ = clock_origin();
  RecordCollector collector_;
  ProfiledDevice profiled_;
  Peaks peaks_;
  std::string note_;
  std::vector<HostStep> steps_;
  std::vector<double> overhead_wall_s_;
  bool for_overhead_ = false;  // the coming step is one of those
};

}  // namespace barestep
