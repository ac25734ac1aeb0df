#include "session/rank_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/stop_request.h"
#include "parallel/schemes/scheme_of.h"
#include "session/run_program.h"

namespace barestep {
namespace {

/// Installed early: mpirun ends the other ranks if one dies at its start.
std::optional<LaunchedRank> launched_with_signals() {
  auto launched = launched_rank();
  take_stop_signals(launched ? SecondSignal::kIsIgnored : SecondSignal::kEndsAtOnce);
  return launched;
}

/// The mesh of the options, if the ranks form one; they are refused later if they do not.
Mesh shape_of(const TrainConfig& config, int ranks) {
  const std::int64_t per_copy = config.parallel.tensor * config.parallel.pipeline;
  return ranks % per_copy == 0 ? mesh_of(config, 0, ranks) : Mesh::of_data(0, ranks);
}

}  // namespace

RankJob::RankJob(const char* program, const TrainConfig& config)
    : program_(program),
      launched_(launched_with_signals()),
      board_(launched_ ? launched_->board : "", launched_ ? launched_->local_rank : 0,
             launched_ ? launched_->rank : 0) {
  if (launched_ && launched_->local_rank == 0 && !board_.why_alone().empty()) {
    print_note(program_,
               fmt::format("no flight board '{}': {}; only {} will report a rank that dies",
                           launched_->board, board_.why_alone(), launched_->launcher));
  }
  record().begin(Track::kPhase, Activity::kStart);
  if (launched_ && launched_->ranks > 1) watchdog_.emplace(board_, watchdog_options(config));
  place_ = join();
  board_.close();
  record().begin(Track::kPhase, Activity::kSetUp);
}

RankJob::~RankJob() {
  record().begin(Track::kPhase, Activity::kLeave);
  place_.background.reset();
  place_.transport.reset();
  place_.group.reset();
  // The watchdog watches until MPI has ended.
  if (watchdog_) watchdog_->leave();
}

WatchdogOptions RankJob::watchdog_options(const TrainConfig& config) {
  const auto poll_error = [this]() -> std::string {
    const std::lock_guard lock(watched_mutex_);
    return watched_ == nullptr ? "" : watched_->poll_error();
  };
  return {.program = program_,
          .limit_s = config.parallel.timeout_s,
          .ranks = launched_->ranks,
          .mesh = shape_of(config, launched_->ranks),
          .one_host = launched_->one_host,
          .record_file = flight_file(config.output.metrics),
          .end_all = &end_all_ranks,
          .poll_error = poll_error,
          .termination_requested_s = &termination_requested_s,
          .continued_s = &continued_s};
}

MpiRank RankJob::join() {
  try {
    return join_mpi(&record());
  } catch (const Error& error) {
    // Copies that cannot see each other may have no common board.
    std::optional<LoneCopy> copy;
    if (launched_ && error.code() == ExitCode::kConfiguration) copy.emplace(*launched_);
    if (copy ? copy->is_first(1) : board_.claim_report()) print_error(program_, error);
    // A launcher may end all processes when one has ended. This gives the reporting rank time to
    // finish.
    if (launched_) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw SilentExit{static_cast<int>(error.code())};
  } catch (const std::exception& error) {
    if (board_.claim_report()) throw error_of(error);
    throw SilentExit{static_cast<int>(ExitCode::kBug)};
  }
}

void RankJob::watch(Transport* transport) {
  const std::lock_guard lock(watched_mutex_);
  watched_ = transport;
}

void RankJob::together(const std::function<void()>& work) {
  std::optional<Error> error;
  try {
    work();
  } catch (const std::exception& failed) {
    error = error_of(failed);
  }
  Group& ranks = *place_.group;
  const int code = error ? static_cast<int>(error->code()) : 0;
  const std::vector<int> codes = gather_values(ranks, code);
  const auto failed = std::ranges::find_if(codes, [](int each) { return each != 0; });
  if (failed == codes.end()) return;
  if (failed - codes.begin() == ranks.rank()) print_error(program_, *error);
  ranks.barrier();  // else mpirun could kill the reporting rank when another ends
  throw SilentExit{*failed};
}

void RankJob::end_all_on_error(const std::function<void()>& work) {
  Group& ranks = *place_.group;
  const auto end_all = [&](const Error& error) {
    if (board_.claim_report()) print_error(program_, error);
    ranks.abort(error.code());
  };
  try {
    work();
  } catch (const Error& error) {
    if (ranks.size() == 1) throw;
    if (is_of_all_ranks(error.code())) together([] { throw; });
    end_all(error);
  } catch (const std::exception& error) {
    if (ranks.size() == 1) throw;
    end_all(error_of(error));
  }
}

}  // namespace barestep
