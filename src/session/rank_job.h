// One rank of a job started by mpirun or srun, or a single process: MPI, the watchdog, and the
// choice of the process that reports why a job ends.
#pragma once

#include <mutex>
#include <optional>

#include "core/config.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/job/flight_record.h"
#include "parallel/job/launcher.h"
#include "parallel/job/watchdog.h"
#include "session/job.h"

namespace barestep {

class RankJob final : public Job {
 public:
  /// Installs the stop signals' handlers, starts the watchdog and joins MPI. `config` comes from
  /// the command line, or is the default if that is invalid, which together() reports later. If
  /// this fails, one rank reports it, and all throw SilentExit. Call once per process. Blocks.
  RankJob(const char* program, const TrainConfig& config);
  /// Leaves the job together with the other ranks: either all end or none. Blocks.
  ~RankJob() override;
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  [[nodiscard]] Group* ranks() override { return place_.group.get(); }
  [[nodiscard]] Group* background_ranks() override { return place_.background.get(); }
  [[nodiscard]] int processes_of_host() const override { return place_.local_size; }
  void together(const std::function<void()>& work) override;
  /// All ranks detect a divergence in the same step; the first rank reports it.
  void end_all_on_error(const std::function<void()>& work) override;
  void enter(Activity activity, std::int64_t step) override {
    record().begin(Track::kPhase, activity, step);
  }
  /// Installed from the start: mpirun ends the other ranks if one dies at its start.
  void take_signals() override {}

  [[nodiscard]] const MpiRank& place() const { return place_; }
  /// Whether all ranks are on this host, as the launcher says.
  [[nodiscard]] bool is_on_one_host() const { return !launched_ || launched_->one_host; }
  [[nodiscard]] FlightRecord& record() { return board_.mine(); }

  /// From now on, the watchdog polls `transport` for errors; null stops that.
  void watch(Transport* transport);

 private:
  [[nodiscard]] WatchdogOptions watchdog_options(const TrainConfig& config);
  [[nodiscard]] MpiRank join();

  const char* program_;
  std::optional<LaunchedRank> launched_;
  FlightBoard board_;
  std::mutex watched_mutex_;
  Transport* watched_ = nullptr;
  std::optional<Watchdog> watchdog_;  // none for a single rank, since nothing waits for it
  MpiRank place_;
};

}  // namespace barestep
