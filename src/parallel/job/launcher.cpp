#include "parallel/job/launcher.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/clock.h"
#include "core/error.h"

namespace barestep {
namespace {

std::string text_in(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<int> number_in(const char* name) {
  const std::string text = text_in(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// The environment variables in which a launcher passes a process its place.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;       // or null
  const char* hosts;             // or null
  const char* needed = nullptr;  // a variable without which the others mean nothing
};

// The order matters: an mpirun inside a Slurm job sets its own variables in addition to Slurm's,
// and a container's environment may contain torchrun's. `srun --mpi=pmi2` sets PMI_RANK as mpiexec
// does, but not MPI_LOCALRANKID.
constexpr Variables kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr,
     "MPI_LOCALRANKID"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
     "SLURM_STEP_NUM_NODES"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
};

bool is_one_host(const Variables& names, int ranks) {
  if (names.hosts != nullptr) return number_in(names.hosts).value_or(1) <= 1;
  return number_in(names.local_ranks).value_or(ranks) == ranks;
}

/// A name outside the file system; it disappears together with the socket bound to it.
struct SocketName {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;

  /// The name of the copy `rank` started by this process's parent.
  SocketName(const std::string& launcher, int rank) {
    const std::string name = fmt::format("barestep.{}.{}.{}", launcher, ::getppid(), rank);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// A file in the folder that the launcher's daemon keeps for this job on this host and removes
/// afterwards.
std::string board_file() {
  const std::string folder = text_in("PMIX_SERVER_TMPDIR");
  const std::string space = text_in("PMIX_NAMESPACE");
  return folder.empty() || space.empty() ? "" : fmt::format("{}/barestep.{}", folder, space);
}

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  for (const Variables& names : kLaunchers) {
    const auto rank = number_in(names.rank);
    const auto ranks = number_in(names.ranks);
    if (!rank || !ranks) continue;
    if (names.needed != nullptr && text_in(names.needed).empty()) continue;
    return LaunchedRank{.rank = *rank,
                        .ranks = *ranks,
                        .local_rank = number_in(names.local_rank).value_or(0),
                        .one_host = is_one_host(names, *ranks),
                        .launcher = names.launcher,
                        .board = board_file()};
  }
  return std::nullopt;
}

void require_joined(const std::optional<LaunchedRank>& launched, int joined) {
  if (!launched || launched->ranks == 1 || joined > 1) return;
  std::string remedy = "use the mpirun of the MPI that barestep was built with";
  if (launched->launcher == "srun") remedy = "use srun --mpi=pmix";
  if (launched->launcher == "torchrun") {
    remedy =
        fmt::format("start them with mpirun -np {0}, or srun --mpi=pmix -n {0}", launched->ranks);
  }
  if (joined == 0) remedy = "configure with -DBARESTEP_MPI=ON";
  fail(ExitCode::kConfiguration,
       {"ranks", "",
        fmt::format("{} started {} copies that do not see each other{}", launched->launcher,
                    launched->ranks, joined == 0 ? ", as this build has no MPI" : ""),
        remedy});
}

std::string note_of_copies(const std::optional<LaunchedRank>& launched) {
  if (!launched || launched->ranks == 1 || launched->rank > 0) return "";
  return fmt::format(
      "{} started {} copies, and each is a run of its own; start mlp_ddp instead, "
      "which trains one model on all of them",
      launched->launcher, launched->ranks);
}

LoneCopy::LoneCopy(const LaunchedRank& launched)
    : launched_(launched), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const SocketName own(launched_.launcher, launched_.rank);
  // If bind fails, the other copies do not see this one, and one more of them reports.
  static_cast<void>(::bind(socket_, own.get(), own.size));
}

LoneCopy::~LoneCopy() {
  ::close(socket_);
}

bool LoneCopy::is_first(double seconds) const {
  constexpr std::chrono::milliseconds kPause(50);
  if (launched_.rank == 0) return true;
  for (const double start_s = now_s(); now_s() - start_s < seconds;) {
    for (int lower = 0; lower < launched_.rank; ++lower) {
      if (is_running(lower)) return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

bool LoneCopy::is_running(int rank) const {
  const SocketName other(launched_.launcher, rank);
  return ::connect(socket_, other.get(), other.size) == 0;
}

}  // namespace barestep
