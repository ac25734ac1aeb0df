// The watchdog: ends a job whose ranks wait for something that will never happen.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/mesh.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// The file for the records that belong to the metrics file `metrics`; both may be empty.
std::string flight_file(const std::filesystem::path& metrics);

/// Such a file if the ranks are on several hosts, each of which has a file of its own.
std::string flight_file_of_host(const std::string& file, const std::string& host);

struct WatchdogOptions {
  std::string program{};  // printed in front of its line
  double limit_s = 300;   // the longest that an entry of this rank may take
  int ranks = 0;          // in the job; 0: unknown
  Mesh mesh{};            // which these ranks form; its own rank does not matter
  bool one_host = true;   // all ranks are on this host
  /// The file for the records of this host's ranks when the job is ended; with several hosts, the
  /// host's name is appended. May be empty.
  std::string record_file{};
  /// Ends all ranks with `code`. Called from the watchdog's thread.
  std::function<void(ExitCode code)> end_all{};
  /// Why collectives can no longer succeed; empty if they can.
  std::function<std::string()> poll_error{};
  /// When the launcher asked this process to end (core/clock.h); 0: it did not.
  std::function<double()> termination_requested_s{};
  /// When this process last received SIGCONT, as a stopped process does on waking; 0: never.
  std::function<double()> continued_s{};
};

/// A thread that checks 50 times a second
///   - whether a rank of this host died: its process is gone although it has not left,
///   - whether this rank has been in one entry for longer than the limit,
///   - whether the transport has had an error for two seconds that no rank has reported,
///   - on several hosts: whether the launcher ends the job, by SIGCONT and SIGTERM, while this rank
///     waits for others for longer than it ever did,
///   - on one host: whether the launcher ends the job while MPI starts and a rank has no place on
///     the board, which means that the rank died earlier.
/// In each case one rank of the host writes one line on stderr and ends all with exit code 75. The
/// line names the rank that others wait for, if that is known, what that rank is in, and the state
/// of other late ranks. A job of one process has only the limit, and no ranks to name. The other
/// ranks, once they see that a rank is reporting, end at most half a second later. Each host
/// reports what its own ranks know, so a job on several hosts may end with one line from each.
class Watchdog {
 public:
  /// `board` must outlive the watchdog.
  Watchdog(FlightBoard& board, WatchdogOptions options);
  /// Stops checking, and marks this rank as having left.
  ~Watchdog();
  /// Marks this rank as having left normally; blocks until the other ranks of this host have left
  /// too. Checking continues until then: a rank may still die, and launchers may not report it.
  void leave();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void check_all();
  [[nodiscard]] bool may_report() const;
  [[nodiscard]] std::string name_of_rank(std::int64_t rank) const;
  [[nodiscard]] bool was_stopped() const;
  [[nodiscard]] double last_continued_s() const;
  [[nodiscard]] double begin_of(const FlightEntry& entry) const;
  void check_for_dead_ranks();
  void check_own_entries();
  void check_transport();
  void check_launcher();
  [[nodiscard]] std::optional<std::int64_t> absent_rank() const;
  void check_for_absent_ranks();
  void end_after_other_report();
  /// Writes one line and ends the job, unless another process has already done so.
  void report(const Problem& problem);
  void write_records() const;
  [[nodiscard]] std::string own_name() const;
  [[nodiscard]] std::vector<const FlightRecord*> late_ranks() const;
  [[nodiscard]] std::string text_of_late(const FlightRecord* but = nullptr) const;
  [[nodiscard]] Problem overdue(const FlightEntry& entry) const;

  FlightBoard& board_;
  WatchdogOptions options_;
  double woken_s_ = 0;
  double failed_since_s_ = 0;
  double claimed_since_s_ = 0;
  std::atomic<bool> reported_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace barestep
