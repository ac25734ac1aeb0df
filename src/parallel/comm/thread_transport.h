// Ranks as threads of one process, for tests: every rank runs its own device, streams and programs,
// and ThreadSanitizer sees the whole protocol.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/group.h"
#include "parallel/comm/host_transport.h"

namespace barestep {

/// One rank, used only by its threads. Its collectives run on host memory, with one tensor per
/// rank, and sum in rank order, so all ranks get the same bits.
class ThreadRank : public Group, public HostTransport {
 public:
  using Group::rank;
  using Group::size;

 protected:
  ThreadRank(int rank, int size) : Group(rank, size), HostTransport(rank, size) {}
};

/// State that the ranks share; must outlive them.
class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  std::unique_ptr<ThreadRank> join(int rank);

 private:
  friend class RankInGroup;
  struct Rendezvous;

  /// The group of the n-th split() whose members gave this color; made by the first to ask.
  ThreadGroup& child(int split, int color, int ranks);
  /// Where two ranks of this group exchange; made by the first to ask.
  Rendezvous& between(int lower, int higher);
  void abort();

  // Collectives run in the ranks' stream threads, host calls in their main threads.
  std::unique_ptr<Rendezvous> collectives_;
  std::unique_ptr<Rendezvous> host_calls_;
  std::mutex mutex_;  // guards the members below
  std::map<std::pair<int, int>, std::unique_ptr<ThreadGroup>> children_;
  std::map<std::pair<int, int>, std::unique_ptr<Rendezvous>> pairs_;  // by lower and higher rank
  bool is_aborted_ = false;
};

}  // namespace barestep
