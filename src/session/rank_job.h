// One rank of a job that mpirun or srun started, or alone: MPI, the watchdog, and which process
// reports why a job ends.
#pragma once

#include <mutex>
#include <optional>

#include "core/config.h"
#include "parallel/comm/mpi_communicator.h"
#include "parallel/job/flight_record.h"
#include "parallel/job/launcher.h"
#include "parallel/job/watchdog.h"
#include "session/job.h"

namespace barestep {

class RankJob final : public Job {
 public:
  /// Takes the stop signals, starts the watchdog and joins MPI. `config` is as the command line has
  /// it, or the default where that is wrong, which together() tells later. What fails here is told
  /// by one rank: then throws QuietEnd. Once in a process. Blocks.
  RankJob(const char* program, const TrainConfig& config);
  /// Takes leave of the other ranks, which all end or none. Blocks.
  ~RankJob() override;
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  [[nodiscard]] Communicator* ranks() override { return place_.communicator.get(); }
  [[nodiscard]] Communicator* background_ranks() override { return place_.background.get(); }
  void together(const std::function<void()>& work) override;
  /// A divergence is met by all ranks in the same step, and reported by the first.
  void end_all_on_error(const std::function<void()>& work) override;
  void enter(Activity activity, std::int64_t step) override {
    record().begin(Track::kPhase, activity, step);
  }
  /// They are taken from the start: mpirun ends the others of a rank that dies at its start.
  void take_signals() override {}

  [[nodiscard]] const MpiRank& place() const { return place_; }
  [[nodiscard]] FlightRecord& record() { return board_.mine(); }

  /// The watchdog asks `transport` for errors from now on; null: nothing any more.
  void watch(Communicator* transport);

 private:
  [[nodiscard]] WatchdogOptions watchdog_options(const TrainConfig& config);
  [[nodiscard]] MpiRank join();

  const char* program_;
  std::optional<LaunchedRank> launched_;
  FlightBoard board_;
  std::mutex watched_mutex_;
  Communicator* watched_ = nullptr;
  std::optional<Watchdog> watchdog_;  // not for one rank alone: nobody waits for it
  MpiRank place_;
};

}  // namespace barestep
