// The flight record: what a rank does and did, where the watchdogs of its host can read it.
//
// Every rank has a place on a board in memory that the ranks of a host share. It enters there each
// phase, host call and collective when it begins and when it ends. The board outlives a rank that
// was killed, and shows one that is stopped: the others see its last state.
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

/// What a rank can be doing.
enum class Activity : std::int64_t {
  kStart,  // of MPI
  kSetUp,  // options, files, device
  kStep,   // a training step, as the host sees it
  kEnd,    // results and files
  kLeave,  // MPI's end
  kHostBroadcast,
  kHostAllGather,
  kBarrier,
  kAllReduce,  // collectives of a program, in the order of Collective's alternatives
  kBroadcast,
  kReduce,
  kReduceScatter,
  kAllGather,
};

/// The activity of a collective.
Activity activity_of(const Collective& collective);

/// What a rank can be in at one time: a phase, a host call in it, and a collective on another
/// thread.
enum class Track : int { kPhase, kHostCall, kCollective };
constexpr int kTracks = 3;

/// An entry; `step` and `bytes` are -1 where they say nothing.
struct FlightEntry {
  std::int64_t number = 0;  // of the entries of its rank, from 1
  Activity activity = Activity::kStart;
  std::int64_t step = -1;
  std::int64_t bytes = -1;
  double begin_s = 0;  // of the clock of core/clock.h
  double end_s = 0;    // 0: not ended

  /// "all_reduce (4.00 MiB) in step 5".
  [[nodiscard]] std::string text() const;
};

/// One rank's place on the board. Plain numbers, so that zeros are an empty one.
class FlightRecord {
 public:
  static constexpr std::int64_t kKept = 64;

  /// Ends what was open in the track. One thread for each track.
  void begin(Track track, Activity activity, std::int64_t step = -1, std::int64_t bytes = -1);
  void end(Track track);

  /// Of a track: what it is in, or nothing. Any thread or process.
  [[nodiscard]] std::optional<FlightEntry> open(Track track) const;

  /// What the rank is in, the most telling track first; any thread or process.
  [[nodiscard]] std::string state() const;

  /// The last kKept entries, oldest first.
  [[nodiscard]] std::string text() const;

  // Whose it is; written by the rank itself, read by the other watchdogs.
  std::atomic<std::int64_t> process{0};   // its id; 0: not taken yet
  std::atomic<std::int64_t> id_space{0};  // in which that id counts (a container's)
  std::atomic<std::int64_t> rank{0};
  std::atomic<double> beat_s{0};      // when its watchdog last ran
  std::atomic<bool> has_left{false};  // in order

 private:
  struct Kept {
    std::atomic<std::int64_t> number, activity, step, bytes;
    std::atomic<double> begin_s, end_s;
  };
  [[nodiscard]] std::optional<FlightEntry> entry(std::int64_t number) const;

  std::atomic<std::int64_t> entries_{0};
  std::array<std::atomic<std::int64_t>, kTracks> open_{};  // number of the open entry; 0: none
  std::array<Kept, kKept> kept_{};                         // entry n in place n modulo kKept
};

/// Enters a host call for as long as it lives; `record` may be null.
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

/// The records of the ranks of a host.
class FlightBoard {
 public:
  static constexpr int kPlaces = 256;

  /// Takes the place `local_rank`. Processes that give the same file, which need not be there,
  /// share the board. Without a file, or where it cannot be opened or its space is not to be had,
  /// the board is this process's alone.
  FlightBoard(std::string file, int local_rank, int rank);
  ~FlightBoard();
  FlightBoard(const FlightBoard&) = delete;
  FlightBoard& operator=(const FlightBoard&) = delete;

  /// Whether other processes can have places on it.
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  /// Why it is not shared though a file was given; else empty.
  [[nodiscard]] const std::string& why_alone() const { return why_alone_; }

  [[nodiscard]] FlightRecord& mine() { return *mine_; }
  [[nodiscard]] std::span<const FlightRecord> all() const { return {records(), kPlaces}; }

  /// Who reports what went wrong: true for one thread of one rank of the host, as often as it asks.
  /// Does not block; any thread.
  bool claim_word();
  /// Whether another rank of the host has claimed it.
  [[nodiscard]] bool word_is_taken() const;

  /// Nobody else can come any more: removes the file. Any rank may call it, more than once.
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
  std::atomic<std::thread::id> holder_{};  // of the word, if it is a thread of this process
};

}  // namespace barestep
