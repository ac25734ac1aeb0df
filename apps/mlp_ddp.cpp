// mlp_ddp: trains on many ranks, each a process with one device.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "command_line.h"
#include "console.h"
#include "core/error.h"
#include "core/stop_request.h"
#include "monitoring.h"
#include "parallel/flight_record.h"
#include "parallel/launcher.h"
#include "parallel/mpi_communicator.h"
#include "parallel/watchdog.h"
#include "profiler/communication_account.h"
#include "profiling.h"
#include "rank_evaluation.h"
#include "rank_profiling.h"
#include "rank_setup.h"
#include "run_end.h"
#include "run_program.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kMlpDdp = "mlp_ddp";

Error unexpected(const std::exception& error) {
  return {ExitCode::kBug,
          {.what = "unexpected",
           .value = "",
           .why = error.what(),
           .remedy = "this is a bug, please report it"}};
}

/// What the watchdog polls for errors, as long as there is something.
class Polled {
 public:
  /// Null: nothing any more.
  void set(Communicator* transport) {
    const std::lock_guard lock(mutex_);
    transport_ = transport;
  }
  std::string poll_error() {
    const std::lock_guard lock(mutex_);
    return transport_ == nullptr ? "" : transport_->poll_error();
  }

  /// When it ends, there is nothing any more.
  class Scope {
   public:
    explicit Scope(Polled& polled) : polled_(polled) {}
    ~Scope() { polled_.set(nullptr); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Polled& polled_;
  };

 private:
  std::mutex mutex_;
  Communicator* transport_ = nullptr;
};

/// Runs `work` on every rank. If it fails on any, it ends on all, and the first rank that failed
/// tells why: before any other ends, whereupon mpirun would kill it.
template <class F>
void together(Communicator& ranks, const F& work) {
  std::optional<Error> error;
  try {
    work();
  } catch (const Error& failed) {
    error = failed;
  } catch (const std::exception& failed) {
    error = unexpected(failed);
  }
  const int code = error ? static_cast<int>(error->code()) : 0;
  std::vector<int> codes(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&code, 1)), std::as_writable_bytes(std::span(codes)));
  const auto failed = std::ranges::find_if(codes, [](int each) { return each != 0; });
  if (failed == codes.end()) return;
  if (failed - codes.begin() == ranks.rank()) print_error(kMlpDdp, *error);
  ranks.barrier();
  throw QuietEnd{*failed};
}

/// Runs `work`, which may fail on this rank alone, while others wait for it in a collective: then
/// all end. A divergence is met by all ranks in the same step, and told by the first.
template <class F>
void or_end_all(Communicator& ranks, FlightBoard& board, const F& work) {
  const auto end_all = [&](const Error& error) {
    if (board.claim_word()) print_error(kMlpDdp, error);
    ranks.abort(error.code());
  };
  try {
    work();
  } catch (const Error& error) {
    if (ranks.size() == 1) throw;
    if (error.code() == ExitCode::kDiverged) together(ranks, [] { throw; });
    end_all(error);
  } catch (const std::exception& error) {
    if (ranks.size() == 1) throw;
    end_all(unexpected(error));
  }
}

/// Shows the run on rank 0; for the metrics the others tell it how each step was for them.
class RankObserver final : public TrainObserver {
 public:
  RankObserver(const RankSetup& setup, Communicator& ranks, FlightRecord& record,
               CommunicationAccount& communication)
      : ranks_(ranks),
        record_(record),
        communication_(communication),
        gathers_(!setup.config().output.metrics.empty()) {
    record_.begin(Track::kPhase, Activity::kStep, batches_);
    if (setup.is_first()) console_.emplace(TrainerKind::kDdp, setup.config(), setup.steps());
    all_.resize(static_cast<std::size_t>(ranks.size()));
  }

  void on_batch() override { record_.begin(Track::kPhase, Activity::kStep, ++batches_); }

  void on_step(const StepReport& report) override {
    static_assert(std::is_trivially_copyable_v<StepFigures>);
    communication_.add(report);
    const StepFigures step(report);
    if (console_) console_->show_step(step);
    if (!gathers_) return;
    ranks_.all_gather(std::as_bytes(std::span(&step, 1)), std::as_writable_bytes(std::span(all_)));
    if (!console_) return;
    for (std::size_t rank = 1; rank < all_.size(); ++rank) {
      console_->on_step_of(static_cast<int>(rank), all_[rank]);
    }
  }

  void on_evaluation(const EvaluationReport& report) override {
    if (console_) console_->on_evaluation(report);
  }

  /// Null on all ranks but the first.
  [[nodiscard]] Console* console() { return console_ ? &*console_ : nullptr; }

 private:
  Communicator& ranks_;
  FlightRecord& record_;
  CommunicationAccount& communication_;
  std::int64_t batches_ = 0;
  bool gathers_;
  std::optional<Console> console_;
  std::vector<StepFigures> all_;
};

/// What outlives the end of all ranks: its streams may be inside a collective.
struct RankRun {
  std::unique_ptr<Profiling> profiling;
  std::unique_ptr<Trainer> trainer;
};

/// All steps. A run that diverges does so on all ranks in the same step; its traces hold the steps
/// before.
void run_steps(RankRun& run, Communicator& ranks, TrainObserver& observer, const Monitor* monitor) {
  Profiling* const profiling = run.profiling.get();
  if (profiling == nullptr) return run.trainer->run(observer);
  profiling->begin(observer);
  try {
    run.trainer->run(*profiling);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    run.trainer.reset();  // waits for what is queued: nothing is recorded any more
    profiling->end();
    align_traces(ranks, *profiling);
    const std::string note = profiling->write_files_of_failed_run(monitor);
    if (ranks.rank() == 0 && !note.empty()) print_note(kMlpDdp, note);
    throw;
  }
  profiling->end();
  align_traces(ranks, *profiling);
}

/// Ends the run on all ranks. What comes after the weights and the metrics has collectives.
void end_ranks(const RankSetup& setup, Communicator& ranks, RankRun& run,
               const CommunicationAccount& account, Monitoring* monitoring, Console* console) {
  const TrainConfig& config = setup.config();
  std::string seen;
  const auto close = [&] {
    if (monitoring != nullptr) seen = monitoring->finish();
    if (console != nullptr) console->close();
  };
  const auto report = [&] {
    const double error_s = run.trainer->runner().clock_error_s();
    const std::string communication = account.gather(ranks, error_s).text();
    if (monitoring != nullptr) seen = setup.text_of_all(seen);
    if (console == nullptr) return;
    console->show_summary(*run.trainer, setup.device(), communication);
    console->print(seen);
    if (config.output.profile) console->print("\n" + run.profiling->text());
  };
  const auto failure =
      end_run(kMlpDdp, config, *run.trainer,
              {.close = close,
               .report = report,
               .profiling = run.profiling.get(),
               .monitor = monitoring == nullptr ? nullptr : &monitoring->monitor()});
  together(ranks, [&] {
    if (failure) throw Error(*failure);
  });
  end_if_stopped(kMlpDdp, config, *run.trainer);
}

void train_rank(RankSetup& setup, Communicator& ranks, FlightRecord& record, RankRun& run) {
  const TrainConfig& config = setup.config();
  if (config.output.records()) {
    run.profiling = std::make_unique<Profiling>(config, setup.programs(), setup.profiling_scope());
  }
  run.trainer = setup.new_trainer(run.profiling.get());
  CommunicationAccount communication(setup.programs(), run.trainer->steps());
  run.trainer->stop_when(stop_is_asked_for());
  RankObserver observer(setup, ranks, record, communication);
  if (Console* const console = observer.console()) {
    console->print(setup.text() + run_header(setup.programs(), setup.device()));
  }
  std::optional<Monitoring> monitoring;
  if (config.output.monitor) {
    monitoring.emplace(setup.monitor_scope(), warmup_of(config.training, run.trainer->steps()),
                       observer.console(), observer);
  }
  const Monitor* const monitor = monitoring ? &monitoring->monitor() : nullptr;
  run_steps(run, ranks, monitoring ? static_cast<TrainObserver&>(*monitoring) : observer, monitor);
  record.begin(Track::kPhase, Activity::kEnd);
  end_ranks(setup, ranks, run, communication, monitoring ? &*monitoring : nullptr,
            observer.console());
}

void train(const std::vector<std::string>& arguments, const MpiRank& place, FlightRecord& record,
           FlightBoard& board, Polled& polled) {
  Communicator& ranks = *place.communicator;
  std::optional<RankSetup> setup;
  const Polled::Scope scope(polled);
  together(ranks, [&] { setup.emplace(kMlpDdp, arguments, place); });
  together(ranks, [&] { setup->require_agreement(); });
  if (!setup->answer().empty()) {
    if (setup->is_first()) print_now(setup->answer());
    return;
  }
  RankRun run;
  or_end_all(ranks, board, [&] {
    if (setup->config().training.evaluate_only) return evaluate_on_ranks(*setup, ranks, record);
    setup->connect(record);
    polled.set(&setup->transport());
    train_rank(*setup, ranks, record, run);
  });
}

/// As the command line has it; what is wrong with that is told later, by one rank.
TrainConfig config_of(const std::vector<std::string>& arguments) {
  try {
    return parse_command_line(TrainerKind::kDdp, arguments).config;
  } catch (const Error&) {
    return {};
  }
}

WatchdogOptions watchdog_options(const TrainConfig& config, const LaunchedRank& launched,
                                 Polled& polled) {
  return {.program = kMlpDdp,
          .limit_s = config.parallel.timeout_s,
          .ranks = launched.ranks,
          .one_host = launched.one_host,
          .record_file = flight_file(config.output.metrics),
          .end_all = &end_all_ranks,
          .poll_error = [&polled] { return polled.poll_error(); },
          .asked_to_end_s = &asked_to_end_s,
          .continued_s = &continued_s};
}

/// What goes wrong in here is told by one rank.
MpiRank join(const std::optional<LaunchedRank>& launched, FlightRecord& record,
             FlightBoard& board) {
  try {
    return join_mpi(&record);
  } catch (const Error& error) {
    // Copies that do not see each other may have no common board.
    std::optional<LoneCopy> copy;
    if (launched && error.code() == ExitCode::kConfiguration) copy.emplace(*launched);
    if (copy ? copy->is_first(1) : board.claim_word()) print_error(kMlpDdp, error);
    // A launcher may end all when one has ended: who tells is given time, and stays to be seen.
    if (launched) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw QuietEnd{static_cast<int>(error.code())};
  } catch (const std::exception& error) {
    if (board.claim_word()) throw unexpected(error);
    throw QuietEnd{static_cast<int>(ExitCode::kBug)};
  }
}

void run_mlp_ddp(const std::vector<std::string>& arguments) {
  const std::optional<LaunchedRank> launched = launched_rank();
  // Soon: mpirun ends the others of a rank that dies at its start.
  take_stop_signals(launched ? SecondSignal::kIsIgnored : SecondSignal::kEndsAtOnce);
  FlightBoard board(launched ? launched->board : "", launched ? launched->local_rank : 0,
                    launched ? launched->rank : 0);
  if (launched && launched->local_rank == 0 && !board.why_alone().empty()) {
    print_note(kMlpDdp,
               fmt::format("no flight board '{}': {}; only {} will report a rank that dies",
                           launched->board, board.why_alone(), launched->launcher));
  }
  FlightRecord& record = board.mine();
  record.begin(Track::kPhase, Activity::kStart);
  // Nobody waits for one rank alone. The watchdog looks until MPI has ended.
  Polled polled;
  std::optional<Watchdog> watchdog;
  if (launched && launched->ranks > 1) {
    watchdog.emplace(board, watchdog_options(config_of(arguments), *launched, polled));
  }
  MpiRank place = join(launched, record, board);
  board.close();
  record.begin(Track::kPhase, Activity::kSetUp);
  const auto leave = [&] {
    record.begin(Track::kPhase, Activity::kLeave);
    place.communicator.reset();
    if (watchdog) watchdog->leave();
  };
  try {
    train(arguments, place, record, board, polled);
  } catch (...) {
    // All ranks come here or none, so they can take leave of each other.
    leave();
    throw;
  }
  leave();
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpDdp, argc, argv, barestep::run_mlp_ddp);
}
