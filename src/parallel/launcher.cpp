#include "parallel/launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

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

/// The variables in which a launcher tells a process its place.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;  // or null
  const char* hosts;        // or null
};

// The order matters: an mpirun inside a Slurm job sets its own beside Slurm's.
constexpr Variables kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
     "SLURM_STEP_NUM_NODES"},
};

bool is_one_host(const Variables& names, int ranks) {
  if (names.hosts != nullptr) return number_in(names.hosts).value_or(1) <= 1;
  return number_in(names.local_ranks).value_or(ranks) == ranks;
}

/// In the folder that the launcher's daemon has on this host for this job, and removes behind it.
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
  const bool by_srun = launched->launcher == "srun";
  std::string remedy = "use the mpirun of the MPI that barestep was built with";
  if (by_srun) remedy = "use srun --mpi=pmix";
  if (joined == 0) remedy = "configure with -DBARESTEP_MPI=ON";
  fail(ExitCode::kConfiguration,
       {.what = "ranks",
        .value = "",
        .why = fmt::format("{} started {} copies that do not see each other{}", launched->launcher,
                           launched->ranks, joined == 0 ? ", as this build has no MPI" : ""),
        .remedy = remedy});
}

}  // namespace barestep
