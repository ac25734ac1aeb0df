// The flight record: what a rank is doing and did last, readable by the watchdogs of its host.
//
// Every rank has a place on a board in memory that the ranks of a host share. It enters each phase,
// host call and collective there when it begins and when it ends. The board outlives a rank that is
// killed, and stays readable while one is stopped, so the other ranks see its last state.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "core/ops.h"

namespace barestep {

/// The activities of a rank.
enum class Activity : std::int64_t {
  kStart,          // MPI's start
  kSetUp,          // options, files, device
  kStep,           // a training step, as the host sees it
  kEnd,            // results and files
  kLeave,          // MPI's end
  kHostBroadcast,  // from here on, waits for other ranks
  kHostAllGather,
  kBarrier,
  kAllReduce,  // collectives of a program, in the order of Collective's alternatives
  kBroadcast,
  kReduce,
  kReduceScatter,
  kAllGather,
  kSendReceive,
};

/// The activity of a collective.
Activity activity_of(const Collective& collective);

/// What a rank can be in at the same time: a phase, a host call within it, and a collective on
/// another thread.
enum class Track : int { kPhase, kHostCall, kCollective };
constexpr int kTracks = 3;

/// An entry; `step` and `bytes` are -1 if they do not apply.
struct FlightEntry {
  std::int64_t number = 0;  // among the entries of its rank, from 1
  Activity activity = Activity::kStart;
  std::int64_t step = -1;
  std::int64_t bytes = -1;
  double begin_s = 0;  // on the clock of core/clock.h
  double end_s = 0;    // 0: not ended

  /// "all_reduce (4.00 MiB) in step 5".
  [[nodiscard]] std::string text() const;
};

/// One rank's place on the board. Holds plain numbers, so that zeroed memory is an empty record.
class FlightRecord {
 public:
  static constexpr std::int64_t kKept = 64;

  /// begin() ends the open entry of the track. Each track is written by one thread.
  void begin(Track track, Activity activity, std::int64_t step = -1, std::int64_t bytes = -1);
  void end(Track track);

  /// The open entry of a track, or nothing. Any thread or process.
  [[nodiscard]] std::optional<FlightEntry> open(Track track) const;

  /// The longest of the last kKept entries that were waits for other ranks and have ended; 0 if
  /// there is none. Any thread.
  [[nodiscard]] double longest_wait_s() const;

  /// The open entry of the most informative track, as text. Any thread or process.
  [[nodiscard]] std::string state() const;

  /// The last kKept entries, oldest first.
  [[nodiscard]] std::string text() const;

  // The owner; written by the rank itself, read by the other watchdogs.
  std::atomic<std::int64_t> process{0};   // its id; 0: not taken yet
  std::atomic<std::int64_t> id_space{0};  // namespace of that id (a container's)
  std::atomic<std::int64_t> rank{0};
  std::atomic<double> beat_s{0};      // when its watchdog last ran
  std::atomic<bool> has_left{false};  // ended normally

 private:
  struct Kept {
    std::atomic<std::int64_t> number, activity, step, bytes;
    std::atomic<double> begin_s, end_s;
  };
  [[nodiscard]] std::optional<FlightEntry> entry(std::int64_t number) const;

  std::atomic<std::int64_t> entries_{0};
  std::array<std::atomic<std::int64_t>, kTracks> open_{};  // number of the open entry; 0: none
  std::array<Kept, kKept> kept_{};                         // entry n is at index n modulo kKept
};

/// Records a host call for the lifetime of this object; `record` may be null.
class FlightScope {
 public:
  FlightScope(FlightRecord* record, Activity activity, std::int64_t bytes = -1) : record_(record) {
    if (record_ != nullptr) record_->begin(Track::kHostCall, activity, -1, bytes);
  }
  ~FlightScope() {
    if (record_ != nullptr) record_->end(Track::kHostCall);
  }
  FlightScope(const FlightScope&) = delete;
  FlightScope& operator=(const FlightScope&) = delete;

 private:
  FlightRecord* record_;
};

/// The board with the records of the ranks of a host.
class FlightBoard {
 public:
  static constexpr int kPlaces = 256;

  /// Takes the place `local_rank`. Processes that give the same file share the board; the file need
  /// not exist yet. Without a file, or if it cannot be opened or its space cannot be reserved, the
  /// board is private to this process.
  FlightBoard(std::string file, int local_rank, int rank);
  ~FlightBoard();
  FlightBoard(const FlightBoard&) = delete;
  FlightBoard& operator=(const FlightBoard&) = delete;

  /// Whether other processes can have places on the board.
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  /// Why the board is not shared although a file was given; empty otherwise.
  [[nodiscard]] const std::string& why_alone() const { return why_alone_; }

  [[nodiscard]] FlightRecord& mine() { return *mine_; }
  [[nodiscard]] std::span<const FlightRecord> all() const { return {records(), kPlaces}; }

  /// Claims the right to report the failure: true for one thread of one rank of the host, every
  /// time it asks. Does not block; any thread.
  bool claim_report();
  /// Whether another rank of the host has claimed that right.
  [[nodiscard]] bool is_report_claimed() const;

  /// Removes the file, after which no other process can join. Any rank may call it, more than once.
  void close() noexcept;

 private:
  struct Shared;
  [[nodiscard]] FlightRecord* records() const;
  [[nodiscard]] int open_file();

  std::string file_;
  std::string why_alone_;
  bool is_shared_ = false;
  Shared* shared_ = nullptr;
  FlightRecord* mine_ = nullptr;
  std::atomic<std::thread::id> holder_{};  // the thread of this process that may report, if any
};

}  // namespace barestep
