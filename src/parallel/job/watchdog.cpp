#include "parallel/job/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <utility>

#include "core/clock.h"
#include "core/host.h"

namespace barestep {
namespace {

constexpr std::chrono::milliseconds kPause(20);
constexpr double kHeldUpSeconds = 0.5;  // a rank that was held up waits this long for its signals
constexpr double kAwakeSeconds = 3;     // a rank that was stopped waits this long to be ended
constexpr double kSilentSeconds = 0.5;  // a watchdog without a beat for this long is stopped
constexpr double kLauncherGraceSeconds = 0.3;  // a wait may last this long after SIGTERM
constexpr double kLongerThanEver = 1.5;        // a wait is too long if longer by this factor
constexpr double kLateStartSeconds = 0.3;      // how much later than another a rank may start
constexpr double kOwnReportSeconds = 2;        // time for a failed rank to print its own line
constexpr double kOtherReportSeconds = 0.5;    // time for another rank's end_all() to end this one
constexpr std::size_t kMaxRanksNamed = 4;

/// Whether the process is gone, as far as this process can find out.
bool is_gone(const FlightRecord& record, const FlightRecord& mine) {
  if (record.id_space != mine.id_space || now_s() - record.beat_s < 10 * kPause.count() / 1e3) {
    return false;
  }
  return ::kill(static_cast<pid_t>(record.process), 0) != 0 && errno == ESRCH;
}

/// The open entry in which this rank waits for others, if there is one.
std::optional<FlightEntry> waiting_in(const FlightRecord& record) {
  for (const Track track : {Track::kCollective, Track::kHostCall}) {
    if (auto entry = record.open(track)) return entry;
  }
  const auto phase = record.open(Track::kPhase);
  const bool is_mpi =
      phase && (phase->activity == Activity::kStart || phase->activity == Activity::kLeave);
  return is_mpi ? phase : std::nullopt;
}

/// Seconds since the rank's watchdog last ran, if the rank is stopped; 0 otherwise.
double stopped_for_s(const FlightRecord& record) {
  const double silent_s = now_s() - record.beat_s;
  return silent_s > kSilentSeconds ? silent_s : 0;
}

/// Writes without stdio, whose locks a hung thread may hold.
void write_line(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (count <= 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<std::size_t>(count);
  }
}

}  // namespace

std::string flight_file(const std::filesystem::path& metrics) {
  return metrics.empty() ? "" : metrics.string() + ".flight";
}

std::string flight_file_of_host(const std::string& file, const std::string& host) {
  return file + "." + host;
}

Watchdog::Watchdog(FlightBoard& board, WatchdogOptions options)
    : board_(board), options_(std::move(options)), thread_([this] {
        while (!stopping_ && !reported_) {
          check_all();
          std::this_thread::sleep_for(kPause);
        }
      }) {}

Watchdog::~Watchdog() {
  stopping_ = true;
  thread_.join();
  board_.mine().has_left = true;
}

void Watchdog::leave() {
  FlightRecord& mine = board_.mine();
  mine.has_left = true;
  const auto stays = [&](const FlightRecord& record) {
    return &record != &mine && record.process != 0 && !record.has_left;
  };
  while (std::ranges::any_of(board_.all(), stays)) std::this_thread::sleep_for(kPause / 4);
}

void Watchdog::check_all() {
  if (now_s() - board_.mine().beat_s > kSilentSeconds) woken_s_ = now_s();
  board_.mine().beat_s = now_s();
  if (board_.is_report_claimed()) return end_after_other_report();
  claimed_since_s_ = 0;
  check_for_dead_ranks();
  if (!reported_ && may_report()) check_own_entries();
  if (!reported_) check_transport();
  if (!reported_ && may_report()) check_launcher();
  if (!reported_ && may_report()) check_for_absent_ranks();
}

/// A rank that was stopped itself does not judge others: it may have been woken only to be ended,
/// for which mpirun takes two seconds. A rank that a busy machine held up judges after a short
/// wait.
bool Watchdog::may_report() const {
  return now_s() - woken_s_ > (was_stopped() ? kAwakeSeconds : kHeldUpSeconds);
}

std::string Watchdog::name_of_rank(std::int64_t rank) const {
  Mesh place = options_.mesh;
  place.rank = static_cast<int>(rank);
  return place.text();
}

/// Whether this rank was stopped, rather than held up, when it last woke.
bool Watchdog::was_stopped() const {
  return woken_s_ > 0 && std::abs(woken_s_ - last_continued_s()) < kHeldUpSeconds;
}

double Watchdog::last_continued_s() const {
  return options_.continued_s ? options_.continued_s() : 0;
}

/// The time from which this rank's entry counts: a stopped rank makes no progress.
double Watchdog::begin_of(const FlightEntry& entry) const {
  return was_stopped() ? std::fmax(entry.begin_s, woken_s_) : entry.begin_s;
}

void Watchdog::check_for_dead_ranks() {
  const FlightRecord& mine = board_.mine();
  for (const FlightRecord& record : board_.all()) {
    if (&record == &mine || record.process == 0 || record.has_left) continue;
    if (!is_gone(record, mine) || record.has_left) continue;
    return report({fmt::format("{} on {}", name_of_rank(record.rank.load()), host_name()),
                   fmt::format("process {}", record.process.load()),
                   fmt::format("died during {}", record.state()),
                   "see its output and the system log, then run again"});
  }
}

void Watchdog::check_own_entries() {
  for (const Track track : {Track::kCollective, Track::kHostCall, Track::kPhase}) {
    const auto entry = board_.mine().open(track);
    if (!entry) continue;
    if (now_s() - begin_of(*entry) < options_.limit_s) continue;
    return report(overdue(*entry));
  }
}

/// `entry` is this rank's, and overdue. The rank that this one waits for is to blame; a rank that
/// waits for this one is not late.
Problem Watchdog::overdue(const FlightEntry& entry) const {
  const FlightRecord& mine = board_.mine();
  const auto waiting = waiting_in(mine);
  const double age_s = now_s() - begin_of(entry);
  if (const auto absent = absent_rank()) {
    return {fmt::format("{} on {}", name_of_rank(*absent), host_name()), "",
            fmt::format("has not reached the start of MPI, and {} has waited for it for {:.1f} s",
                        name_of_rank(mine.rank.load()), age_s),
            "find out what delays it, or give a larger --timeout"};
  }
  if (!waiting) {
    return {own_name(), entry.text(), fmt::format("not done after {:.1f} s", age_s),
            "find out what delays it, or give a larger --timeout"};
  }
  const auto late = late_ranks();
  const auto to_blame = std::ranges::find_if(late, [](const FlightRecord* record) {
    return stopped_for_s(*record) > 0 || !waiting_in(*record);
  });
  if (to_blame == late.end()) {
    return {own_name(), entry.text(),
            fmt::format("not done after {:.1f} s{}", age_s, text_of_late()),
            "find out what delays the late ranks, or give a larger --timeout"};
  }
  const FlightRecord& blamed = **to_blame;
  const auto phase = blamed.open(Track::kPhase);
  const double stopped_s = stopped_for_s(blamed);
  const std::string how = stopped_s > 0 ? fmt::format("has been stopped for {:.1f} s", stopped_s)
                                        : fmt::format("is not done after {:.1f} s",
                                                      phase ? now_s() - phase->begin_s : age_s);
  return {fmt::format("{} on {}", name_of_rank(blamed.rank.load()), host_name()), blamed.state(),
          fmt::format("process {} {}, and {} waits for it in {}{}", blamed.process.load(), how,
                      name_of_rank(mine.rank.load()), waiting->text(), text_of_late(&blamed)),
          "find out what delays it, or give a larger --timeout"};
}

void Watchdog::check_transport() {
  const std::string why = options_.poll_error ? options_.poll_error() : "";
  if (why.empty()) return;
  if (failed_since_s_ == 0) failed_since_s_ = now_s();
  if (now_s() - failed_since_s_ < kOwnReportSeconds) return;
  report({own_name(), board_.mine().state(), why + text_of_late(),
          "see the errors of the other ranks"});
}

/// The only sign of a rank that died on another host is that the launcher ends the rest, to which
/// mpirun gives a second. Ranks that do not wait for others end normally. So do all ranks when
/// SIGTERM comes without SIGCONT: launchers wake the processes that they end.
void Watchdog::check_launcher() {
  const double requested_s =
      options_.termination_requested_s ? options_.termination_requested_s() : 0;
  if (options_.one_host || requested_s == 0 || now_s() - requested_s < kLauncherGraceSeconds)
    return;
  if (std::abs(requested_s - last_continued_s()) > kAwakeSeconds) return;
  const auto entry = waiting_in(board_.mine());
  if (!entry || entry->begin_s > requested_s) return;
  // What took as long before may end yet, and the run in order after it.
  if (now_s() - entry->begin_s < kLongerThanEver * board_.mine().longest_wait_s()) return;
  const auto phase = board_.mine().open(Track::kPhase);
  const bool is_first = phase && phase->activity == Activity::kStep && phase->step == 0;
  report({own_name(), entry->text(),
          fmt::format("the launcher is ending the job while this process waits for other ranks{}",
                      is_first ? ", before the first step is done, so nothing is saved" : ""),
          "see the output of the other hosts, then run again"});
}

/// While MPI starts, the first rank of this host that has no place on the board.
std::optional<std::int64_t> Watchdog::absent_rank() const {
  const auto phase = board_.mine().open(Track::kPhase);
  const bool starts = phase && phase->activity == Activity::kStart;
  if (!starts || !options_.one_host || !board_.is_shared()) return std::nullopt;
  const auto places = board_.all().first(
      static_cast<std::size_t>(std::clamp(options_.ranks, 0, FlightBoard::kPlaces)));
  const auto absent =
      std::ranges::find_if(places, [](const FlightRecord& record) { return record.process == 0; });
  if (absent == places.end()) return std::nullopt;
  return absent - places.begin();
}

/// The only sign of a rank that died before it had a place on the board is that mpirun ends the
/// others, for which it takes two seconds.
void Watchdog::check_for_absent_ranks() {
  if (!options_.termination_requested_s) return;
  const double requested_s = options_.termination_requested_s();
  if (requested_s == 0 || now_s() - requested_s < kLateStartSeconds) return;
  const auto absent = absent_rank();
  if (!absent) return;
  report({fmt::format("{} on {}", name_of_rank(*absent), host_name()), "",
          "never reached the start of MPI, and the launcher is ending the job",
          "see its output and the system log, then run again"});
}

void Watchdog::end_after_other_report() {
  if (claimed_since_s_ == 0) claimed_since_s_ = now_s();
  if (now_s() - claimed_since_s_ > kOtherReportSeconds)
    ::_exit(static_cast<int>(ExitCode::kTryAgain));
}

void Watchdog::report(const Problem& problem) {
  if (!board_.claim_report()) return;
  reported_ = true;
  write_line(
      fmt::format("{}: error: {}\n", options_.program, Error(ExitCode::kTryAgain, problem).what()));
  write_records();
  board_.close();
  options_.end_all(ExitCode::kTryAgain);
}

/// Best effort: the job ends anyway.
void Watchdog::write_records() const {
  if (options_.record_file.empty()) return;
  const std::string& all = options_.record_file;
  std::ofstream file(options_.one_host ? all : flight_file_of_host(all, host_name()));
  for (const FlightRecord& record : board_.all()) {
    if (record.process == 0) continue;
    file << fmt::format("{} on {}, process {}\n{}", name_of_rank(record.rank.load()), host_name(),
                        record.process.load(), record.text());
  }
}

std::string Watchdog::own_name() const {
  if (options_.ranks == 1) return fmt::format("process {} on {}", ::getpid(), host_name());
  return fmt::format("{} on {}", name_of_rank(board_.mine().rank.load()), host_name());
}

/// The other ranks of this host that are stopped or have not reached this point.
std::vector<const FlightRecord*> Watchdog::late_ranks() const {
  const FlightRecord& mine = board_.mine();
  const std::string here = mine.state();
  std::vector<const FlightRecord*> late;
  for (const FlightRecord& record : board_.all()) {
    if (&record == &mine || record.process == 0 || record.has_left) continue;
    if (stopped_for_s(record) > 0 || record.state() != here) late.push_back(&record);
  }
  return late;
}

/// Describes the late ranks except `but`, as a list that continues a sentence; may be empty.
std::string Watchdog::text_of_late(const FlightRecord* but) const {
  std::vector<std::string> texts;
  for (const FlightRecord* const record : late_ranks()) {
    if (record == but) continue;
    const double stopped_s = stopped_for_s(*record);
    const std::string how =
        stopped_s > 0 ? fmt::format("has been stopped for {:.1f} s", stopped_s) : "is";
    texts.push_back(fmt::format("{} (process {}) {} at {}", name_of_rank(record->rank.load()),
                                record->process.load(), how, record->state()));
  }
  if (texts.size() > kMaxRanksNamed) texts.resize(kMaxRanksNamed);
  return texts.empty() ? "" : fmt::format(", {}", fmt::join(texts, ", "));
}

}  // namespace barestep
