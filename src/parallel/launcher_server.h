// What ranks of several hosts can ask the launcher that started them, also before MPI starts and
// behind its end: the launcher's daemons are PMIx servers.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

namespace barestep {

/// Who has the word of a job, as its launcher's server knows it.
enum class WordHolder {
  kNobody,
  kThisRank,
  kAnotherRank,
  kUnknown,  // this server keeps no words (Slurm's), or failed
};

/// A connection to the daemon of this host. Any thread may call; nothing blocks. A daemon that is
/// ending its ranks does not answer any more: then a future never becomes ready.
class LauncherServer {
 public:
  virtual ~LauncherServer() = default;

  /// Who published the word last.
  virtual std::future<WordHolder> find_word() = 0;
  /// Publishes this rank as the holder of the word. kThisRank, or kUnknown.
  virtual std::future<WordHolder> publish_word() = 0;
  /// The name of each rank's host, as the launcher calls it; empty where it does not tell.
  [[nodiscard]] virtual const std::vector<std::string>& hosts() const = 0;
};

/// Connects to the daemon that started this process as one of `ranks`. Null where there is none,
/// and in builds without PMIx. Blocks as long as MPI's start would for the same connection, which
/// MPI then shares. What it returns must end behind MPI.
std::unique_ptr<LauncherServer> connect_launcher(int ranks);

}  // namespace barestep
