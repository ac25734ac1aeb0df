// The last word of a job: who tells why it ends.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <span>
#include <string>

#include "parallel/flight_record.h"
#include "parallel/launcher_server.h"

namespace barestep {

/// Who tells of a rank that died on another host. There nothing is known of it but that the
/// launcher ends the job; and ranks of its own host, if there are any, tell what they saw.
enum class Duty {
  kNone,       // each other host has several ranks
  kThisHost,   // one other host has all other ranks, and that is one
  kFirstHost,  // some host has one rank: the host of rank 0 tells, or the first that can, by
               // messages
};

/// The duty of the host of `rank`. `hosts`: of each rank the name of its host; may be empty.
Duty duty_of(std::span<const std::string> hosts, int rank);

/// One thread of one rank has the word. The ranks of a host share it on their board. Those of
/// several hosts agree by the launcher's server, before MPI starts and behind its end too. It is
/// deaf while it ends ranks itself, as when one of them died; then there is a duty to tell. MPI's
/// messages, which whoever ends all ranks sends while MPI runs (end_all_ranks()), stand in for a
/// server that keeps no words, as Slurm's, and let the first of several hosts tell of a death.
class LastWord {
 public:
  /// `board` must outlive it. `told_by_message` is for ranks on several hosts; it may be empty.
  explicit LastWord(FlightBoard& board, std::function<bool()> told_by_message = {});

  /// From now on ranks of several hosts agree by `server`, which must outlive this. Once; any
  /// thread.
  void ask(LauncherServer& server);

  /// True for one thread of the job, as often as it asks. On several hosts blocks, for two seconds
  /// at most: others may ask at the same time, and where this thread does not get the word, who has
  /// it is given the time to tell. If the server is deaf, true where there is a duty to tell; else
  /// the ranks of this host may still claim_here(). Without a server true for one rank of each host
  /// that no message reached. Any thread.
  bool claim();
  /// The same among the ranks of this host; does not block.
  bool claim_here() { return board_.claim_word(); }

  /// Whether another rank has it. Does not block for the server, whose answers count when they are
  /// there. One thread.
  [[nodiscard]] bool is_taken();

  /// Whether it is this host's duty, as things are now, to tell of a death on another host.
  [[nodiscard]] bool is_for_other_hosts() const;

 private:
  enum class Verdict { kMine, kTaken, kForOthers };
  Verdict ask_hosts(LauncherServer& server);
  [[nodiscard]] bool hears_messages() const;

  FlightBoard& board_;
  std::function<bool()> told_by_message_;
  Duty duty_ = Duty::kFirstHost;          // set before the server
  bool is_first_host_ = true;             // so is this
  std::atomic<bool> keeps_words_{false};  // the server, as far as it is known
  std::atomic<LauncherServer*> server_{nullptr};
  std::future<WordHolder> asked_;
  bool was_asked_ = false;
};

}  // namespace barestep
