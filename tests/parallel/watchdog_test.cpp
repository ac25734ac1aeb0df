// The watchdog and its inputs: the board, the records of ranks, the launcher's variables.
#include "parallel/job/watchdog.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/clock.h"
#include "core/stop_request.h"
#include "parallel/job/flight_record.h"
#include "parallel/job/launcher.h"
#include "support/busy_machine.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A board with a watchdog for place 0, and the code with which it ended all ranks.
struct Watched {
  explicit Watched(const std::string& file = "") : board(file, 0, 0) {}

  /// The output of the watchdog until it ends all ranks, or for `seconds`.
  std::string said(WatchdogOptions options, double seconds) {
    std::atomic<bool> ended{false};
    options.program = "test";
    options.ranks = ranks;
    options.end_all = [&](ExitCode with) {
      code = with;
      ended = true;
    };
    testing::internal::CaptureStderr();
    {
      const Watchdog watchdog(board, options);
      for (const double start_s = now_s(); !ended && now_s() - start_s < seconds;) ::usleep(1000);
    }
    return testing::internal::GetCapturedStderr();
  }

  FlightBoard board;
  int ranks = 2;
  std::optional<ExitCode> code;
};

class WatchdogTest : public TempDirTest {
 protected:
  /// Tests that expect no output pass a time to wait; others wait as long as it takes.
  std::string said(const WatchdogOptions& options, double seconds = 60) {
    return watched_.said(options, seconds);
  }

  /// A rank of this host in another process, at place 1, which runs `body`.
  template <class F>
  pid_t other_rank(const F& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      FlightBoard board(file_, 1, 1);
      body(board);
      ::_exit(0);
    }
    while (board_.all()[1].process == 0) ::usleep(1000);
    return child;
  }

  const std::string file_ = folder() / "board";
  Watched watched_{file_};
  FlightBoard& board_ = watched_.board;
  int& ranks_ = watched_.ranks;
  std::optional<ExitCode>& code_ = watched_.code;
};

TEST_F(WatchdogTest, NamesTheCollectiveThatLastsTooLong) {
  board_.mine().begin(Track::kPhase, Activity::kStep, 5);
  board_.mine().begin(Track::kCollective, activity_of(AllReduce{}), 5, 4 << 20);
  const std::string line = said({.limit_s = 0.1});
  EXPECT_THAT(line, StartsWith("test: error: rank 0 on "));
  EXPECT_THAT(line,
              ContainsRegex(" 'all_reduce \\(4.00 MiB\\) in step 5': not done after [0-9.]+ s; "
                            "find out what delays the late ranks, or give a larger --timeout\n$"));
  EXPECT_EQ(code_, ExitCode::kTryAgain);
}

TEST_F(WatchdogTest, SaysNothingWhileEachThingIsDoneInTime) {
  repeat_while_busy([] {
    Watched watched;
    FlightRecord& record = watched.board.mine();
    std::atomic<bool> stop{false};
    std::thread rank([&] {
      for (std::int64_t step = 0; !stop; ++step) {
        record.begin(Track::kPhase, Activity::kStep, step);
        ::usleep(20'000);
      }
      record.end(Track::kPhase);
    });
    EXPECT_EQ(watched.said({.limit_s = 0.2}, 0.5), "");
    stop = true;
    rank.join();
    EXPECT_EQ(watched.code, std::nullopt);
  });
}

TEST_F(WatchdogTest, NamesARankThatDiedAndKeepsTheRecords) {
  const pid_t child =
      other_rank([](FlightBoard& board) { board.mine().begin(Track::kPhase, Activity::kStep, 7); });
  ::waitpid(child, nullptr, 0);
  board_.mine().begin(Track::kHostCall, Activity::kBarrier);
  const std::filesystem::path records = folder() / "records";
  EXPECT_THAT(
      said({.record_file = records}),
      ContainsRegex(fmt::format(
          "test: error: rank 1 on .* 'process {}': died during step 7; see its output", child)));
  EXPECT_EQ(code_, ExitCode::kTryAgain);
  EXPECT_THAT(read_file(records),
              ContainsRegex(fmt::format("^rank 0 on .*, process {}\n         1 barrier: not ended\n"
                                        "rank 1 on .*, process {}\n         1 step 7: not ended\n",
                                        ::getpid(), child)));
}

TEST_F(WatchdogTest, SaysNothingOfARankThatHasLeftInOrder) {
  const pid_t child = other_rank([](FlightBoard& board) { const Watchdog watchdog(board, {}); });
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(said({}, 0.4), "");
}

TEST_F(WatchdogTest, TellsWhoIsStopped) {
  const pid_t child = other_rank([](FlightBoard& board) {
    board.mine().begin(Track::kPhase, Activity::kStep, 2);
    for (;;) ::pause();
  });
  while (board_.all()[1].state() != "step 2") ::usleep(1000);
  board_.mine().begin(Track::kHostCall, Activity::kBarrier);
  EXPECT_THAT(said({.limit_s = 0.7}),
              ContainsRegex(fmt::format("rank 1 on .* 'step 2': process {} has been stopped for "
                                        "[0-9.]+ s, and rank 0 waits for it in barrier; ",
                                        child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

/// Enters the rank's activity, then stays alive.
template <class F>
void live(FlightBoard& board, const F& enter) {
  const Watchdog watchdog(board, {});
  enter(board.mine());
  for (;;) ::pause();
}

TEST_F(WatchdogTest, BlamesTheRankThatHasNotArrived) {
  const pid_t child = other_rank([](FlightBoard& board) {
    live(board, [](FlightRecord& record) { record.begin(Track::kPhase, Activity::kStep, 2); });
  });
  board_.mine().begin(Track::kPhase, Activity::kStep, 2);
  board_.mine().begin(Track::kCollective, activity_of(AllReduce{}), 2, 8);
  // On a busy machine, a rank may seem to be stopped.
  EXPECT_THAT(said({.limit_s = 0.7}, 60),
              ContainsRegex(fmt::format(
                  "^test: error: rank 1 on .* '(step 2|an unknown state)': process {} (is not done "
                  "after|has been stopped for) [0-9.]+ s, and rank 0 waits for it in all_reduce "
                  "\\(8 B\\) in step 2; find out what delays it, or give a larger --timeout\n$",
                  child)));
  EXPECT_EQ(code_, ExitCode::kTryAgain);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(WatchdogTest, ARankForWhichOthersWaitBlamesItself) {
  const pid_t child = other_rank([](FlightBoard& board) {
    live(board, [](FlightRecord& record) { record.begin(Track::kHostCall, Activity::kBarrier); });
  });
  board_.mine().begin(Track::kPhase, Activity::kStep, 2);
  EXPECT_THAT(said({.limit_s = 0.3}, 60),
              ContainsRegex("^test: error: rank 0 on .* 'step 2': not done after [0-9.]+ s; find "
                            "out what delays it, or give a larger --timeout\n$"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(WatchdogTest, TellsOfARankThatDiedBeforeItHadAPlace) {
  board_.mine().begin(Track::kPhase, Activity::kStart);
  EXPECT_EQ(said({}, 0.4), "") << "it may come yet";
  const double now = now_s();
  const WatchdogOptions options{.termination_requested_s = [now] { return now; }};
  EXPECT_THAT(
      said(options, 60),
      ContainsRegex("^test: error: rank 1 on .*: never reached the start of MPI, and the launcher "
                    "is ending the job; see its output and the system log, then run again\n$"));
  EXPECT_EQ(code_, ExitCode::kTryAgain);
}

TEST_F(WatchdogTest, BlamesARankThatIsStoppedBeforeItHasAPlace) {
  board_.mine().begin(Track::kPhase, Activity::kStart);
  EXPECT_THAT(
      said({.limit_s = 0.3}),
      ContainsRegex(
          "^test: error: rank 1 on .*: has not reached the start of MPI, and rank 0 has waited for "
          "it for [0-9.]+ s; find out what delays it, or give a larger --timeout\n$"));
}

TEST_F(WatchdogTest, MissesNobodyWhereRanksHaveNoCommonBoard) {
  FlightBoard board("", 0, 0);
  board.mine().begin(Track::kPhase, Activity::kStart);
  bool ended = false;
  testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(board, {.ranks = 2,
                                    .end_all = [&](ExitCode) { ended = true; },
                                    .termination_requested_s = [] { return 1.0; }});
    ::usleep(300'000);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(ended);
}

TEST_F(WatchdogTest, AProcessThatIsNoRankIsNamedByItsId) {
  ranks_ = 1;
  board_.mine().begin(Track::kPhase, Activity::kStep, 2);
  EXPECT_THAT(said({.limit_s = 0.1}, 60),
              ContainsRegex(fmt::format("^test: error: process {} on .* 'step 2': not done after ",
                                        ::getpid())));
}

TEST_F(WatchdogTest, LeavesTheWordToTheRankThatHasIt) {
  const pid_t child = other_rank([](FlightBoard& board) { board.claim_report(); });
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(board_.is_report_claimed());
  EXPECT_FALSE(board_.claim_report());
  EXPECT_EQ(said({}, 0.3), "");
}

TEST_F(WatchdogTest, OneThreadOfARankHasTheWord) {
  EXPECT_TRUE(board_.claim_report());
  bool other = true;
  std::thread([&] { other = board_.claim_report(); }).join();
  EXPECT_FALSE(other);
  EXPECT_TRUE(board_.claim_report());
}

TEST_F(WatchdogTest, TellsAFailureThatNobodyElseTells) {
  const std::string line = said({.poll_error = [] { return "NCCL: remote error"; }});
  EXPECT_THAT(line, HasSubstr("': NCCL: remote error; see the errors of the other ranks\n"));
}

/// A rank on several hosts that its launcher is ending: it is woken, then asked to end.
WatchdogOptions ended_by_launcher() {
  const double now = now_s();
  return {.one_host = false,
          .termination_requested_s = [now] { return now; },
          .continued_s = [now] { return now; }};
}

TEST_F(WatchdogTest, TellsThatTheLauncherEndsAJobOnSeveralHosts) {
  board_.mine().begin(Track::kCollective, activity_of(Broadcast{}), 1, 8);
  WatchdogOptions options = ended_by_launcher();
  EXPECT_THAT(
      said(options),
      EndsWith("'broadcast (8 B) in step 1': the launcher is ending the job while this process "
               "waits for other ranks; see the output of the other hosts, then run again\n"));
  options.one_host = true;
  EXPECT_EQ(said(options, 0.5), "");
}

TEST_F(WatchdogTest, TellsThatNothingIsSavedBeforeTheFirstStepIsDone) {
  FlightRecord& record = board_.mine();
  const char* const why = "other ranks, before the first step is done, so nothing is saved; see";
  record.begin(Track::kPhase, Activity::kStep, 0);
  record.begin(Track::kCollective, activity_of(AllReduce{}), 0, 8);
  EXPECT_THAT(said(ended_by_launcher()), HasSubstr(why));
}

TEST_F(WatchdogTest, LetsAStepThatWaitsForNobodyEndInOrder) {
  board_.mine().begin(Track::kPhase, Activity::kStep, 1);
  EXPECT_EQ(said(ended_by_launcher(), 0.7), "");
}

TEST_F(WatchdogTest, LetsAWaitEndThatIsNoLongerThanOnesBefore) {
  FlightRecord& record = board_.mine();
  record.begin(Track::kPhase, Activity::kSetUp);
  ::usleep(2'000'000);  // was no wait
  record.begin(Track::kPhase, Activity::kStep, 1);
  record.begin(Track::kCollective, activity_of(AllReduce{}), 1, 8);
  ::usleep(1'000'000);
  record.begin(Track::kCollective, activity_of(AllReduce{}), 2, 8);
  const double begin_s = now_s();
  EXPECT_EQ(said(ended_by_launcher(), 0.7), "");
  EXPECT_THAT(said(ended_by_launcher()), HasSubstr("this process waits for other ranks; see"));
  EXPECT_GT(now_s() - begin_s, 1.5);
}

TEST_F(WatchdogTest, LetsAWaitEndInOrderWhenSigtermComesAlone) {
  board_.mine().begin(Track::kCollective, activity_of(Broadcast{}), 1, 8);
  WatchdogOptions options = ended_by_launcher();
  options.continued_s = [] { return 0.0; };
  EXPECT_EQ(said(options, 0.7), "");
}

TEST_F(WatchdogTest, EachOfSeveralHostsKeepsRecordsOfItsOwn) {
  board_.mine().begin(Track::kHostCall, Activity::kBarrier);
  said({.limit_s = 0.1, .one_host = false, .record_file = folder() / "records"});
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  EXPECT_THAT(read_file(folder() / fmt::format("records.{}", host)),
              HasSubstr("1 barrier: not ended\n"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "records"));
}

/// A process that stops this one for 0.7 s, like Ctrl-Z and fg.
pid_t stop_for_a_while() {
  take_stop_signals(SecondSignal::kIsIgnored);
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(100'000);
    ::kill(::getppid(), SIGSTOP);
    ::usleep(700'000);
    ::kill(::getppid(), SIGCONT);
    ::_exit(0);
  }
  return child;
}

/// The limit of 3.6 s ends after the 3 s in which this rank does not judge, and 0.7 s later than
/// usual.
TEST_F(WatchdogTest, DoesNotCountTheTimeInWhichItWasStopped) {
  repeat_while_busy([] {
    Watched watched;
    watched.board.mine().begin(Track::kPhase, Activity::kStep, 1);
    const pid_t child = stop_for_a_while();
    EXPECT_EQ(watched.said({.limit_s = 3.6, .continued_s = &continued_s}, 4.1), "");
    ::waitpid(child, nullptr, 0);
  });
}

TEST_F(WatchdogTest, IsNoJudgeOfOthersWhenItWasStoppedItself) {
  repeat_while_busy([] {
    Watched watched;
    watched.board.mine().begin(Track::kHostCall, Activity::kBarrier);
    const pid_t child = stop_for_a_while();
    EXPECT_EQ(watched.said({.limit_s = 0.3, .continued_s = &continued_s}, 1.8), "");
    ::waitpid(child, nullptr, 0);
  });
}

TEST_F(WatchdogTest, IsAJudgeOfOthersWhenItWasNotStopped) {
  take_stop_signals(SecondSignal::kIsIgnored);
  board_.mine().begin(Track::kHostCall, Activity::kBarrier);
  EXPECT_THAT(said({.limit_s = 0.3}), HasSubstr("not done after"));
}

/// Creates, in a private mount, a folder too small for a board; false if the machine does not allow
/// it.
bool mount_small_disk(const char* folder) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("small", folder, "tmpfs", 0, "size=4k") == 0;
}

TEST(FlightBoardTest, IsTheProcessesAloneWhereTheDiskIsFull) {
  constexpr int kNotAllowed = 77;
  const std::string folder = std::filesystem::temp_directory_path();
  const pid_t child = ::fork();
  if (child == 0) {
    if (!mount_small_disk(folder.c_str())) ::_exit(kNotAllowed);
    FlightBoard board(folder + "/board", 1, 1);
    const bool alone = !board.is_shared() && board.why_alone() == "No space left on device";
    for (int step = 0; step < 1000; ++step)
      board.mine().begin(Track::kPhase, Activity::kStep, step);
    ::_exit(alone && board.mine().state() == "step 999" && board.claim_report() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "no mount allowed";
  EXPECT_EQ(status, 0) << "a signal, or the wrong board";
}

using FlightBoardInAFolder = TempDirTest;

TEST_F(FlightBoardInAFolder, TellsWhyItIsNotShared) {
  EXPECT_EQ(FlightBoard("", 0, 0).why_alone(), "");
  const FlightBoard board(folder() / "missing" / "board", 0, 0);
  EXPECT_FALSE(board.is_shared());
  EXPECT_EQ(board.why_alone(), "No such file or directory");
}

TEST(FlightRecord, KeepsTheLastEntriesInTheirOrder) {
  FlightBoard board("", 0, 0);
  FlightRecord& record = board.mine();
  for (int step = 0; step < 100; ++step) record.begin(Track::kPhase, Activity::kStep, step);
  const std::string text = record.text();
  EXPECT_THAT(text, StartsWith("        37 step 36: "));
  EXPECT_THAT(text, EndsWith("       100 step 99: not ended\n"));
  EXPECT_EQ(record.state(), "step 99");
  record.end(Track::kPhase);
  EXPECT_EQ(record.state(), "an unknown state");
}

/// Sets environment variables while this object exists.
class Variables {
 public:
  explicit Variables(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      ::setenv(name, value, 1);
      names_.emplace_back(name);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::string> names_;
};

TEST(Launcher, TellsAProcessItsPlace) {
  EXPECT_EQ(launched_rank(), std::nullopt);
  {
    const Variables open_mpi({{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    const auto place = launched_rank();
    ASSERT_TRUE(place);
    EXPECT_EQ(place->launcher, "mpirun");
    EXPECT_EQ(place->rank, 3);
    EXPECT_EQ(place->local_rank, 1);
    EXPECT_FALSE(place->one_host);
  }
  {
    const Variables torchrun({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}});
    EXPECT_EQ(launched_rank()->launcher, "torchrun");
    EXPECT_EQ(launched_rank()->rank, 1);
  }
  {
    const Variables mpich({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}});
    EXPECT_EQ(launched_rank()->launcher, "mpiexec");
    EXPECT_EQ(launched_rank()->rank, 2);
  }
  const Variables slurm({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(launched_rank()->launcher, "srun");
  {
    const Variables pmi2({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
    EXPECT_EQ(launched_rank()->launcher, "srun") << "srun --mpi=pmi2 sets both";
    // Hydra starts its daemons by srun, which leave Slurm's variables as they are.
    const Variables hydra({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
    EXPECT_EQ(launched_rank()->launcher, "mpiexec");
  }
  const Variables broken({{"SLURM_PROCID", "x"}});
  EXPECT_EQ(launched_rank(), std::nullopt);
}

TEST(Launcher, CopiesThatDoNotSeeEachOtherAreRefused) {
  EXPECT_NO_THROW(require_joined(std::nullopt, 1));
  LaunchedRank place{.rank = 1, .ranks = 4, .launcher = "srun"};
  EXPECT_NO_THROW(require_joined(place, 4));
  expect_error(ExitCode::kConfiguration,
               "ranks: srun started 4 copies that do not see each other; use srun --mpi=pmix",
               [&] { require_joined(place, 1); });
  place.launcher = "mpirun";
  expect_error(ExitCode::kConfiguration,
               "ranks: mpirun started 4 copies that do not see each other; use the mpirun of the "
               "MPI that barestep was built with",
               [&] { require_joined(place, 1); });
  expect_error(ExitCode::kConfiguration,
               "ranks: mpirun started 4 copies that do not see each other, as this build has no "
               "MPI; configure with -DBARESTEP_MPI=ON",
               [&] { require_joined(place, 0); });
  place.launcher = "torchrun";
  expect_error(ExitCode::kConfiguration,
               "ranks: torchrun started 4 copies that do not see each other; start them with "
               "mpirun -np 4, or srun --mpi=pmix -n 4",
               [&] { require_joined(place, 1); });
}

TEST(Launcher, TheLowestOfTheCopiesThatAreThereTells) {
  const auto copy = [](int rank) {
    return LaunchedRank{.rank = rank, .ranks = 4, .launcher = "test"};
  };
  const LoneCopy third(copy(3));
  EXPECT_TRUE(third.is_first(0.1));
  const LoneCopy again(copy(3));
  EXPECT_TRUE(again.is_first(0.1)) << "another start, with the same variables";
  {
    const LoneCopy second(copy(2));
    EXPECT_FALSE(third.is_first(60));
    EXPECT_TRUE(second.is_first(0.1));
    const LoneCopy other_launcher(LaunchedRank{.rank = 3, .ranks = 4, .launcher = "other"});
    EXPECT_TRUE(other_launcher.is_first(0.1));
  }
  EXPECT_TRUE(third.is_first(0.1));
  const LoneCopy first(copy(0));
  EXPECT_TRUE(first.is_first(60)) << "at once";
  EXPECT_FALSE(third.is_first(60));
}

}  // namespace
}  // namespace barestep
