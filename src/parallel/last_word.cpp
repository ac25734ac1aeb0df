#include "parallel/last_word.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace barestep {
namespace {

constexpr double kSecondsBetweenQuestions = 0.2;
constexpr std::chrono::milliseconds kPatience(500);  // for an answer
constexpr std::chrono::milliseconds kSettling(300);  // longer than from a question to the next

/// Nothing if the server is deaf.
std::optional<WordHolder> waited_for(std::future<WordHolder> answer) {
  if (answer.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

/// Whether messages come: not while MPI starts and ends.
bool mpi_runs(const FlightRecord& record) {
  const auto phase = record.open(Track::kPhase);
  return phase && phase->activity != Activity::kStart && phase->activity != Activity::kLeave;
}

}  // namespace

Duty duty_of(std::span<const std::string> hosts, int rank) {
  if (hosts.empty()) return Duty::kFirstHost;
  std::map<std::string_view, int> ranks;
  for (const std::string& host : hosts) ++ranks[host];
  const std::string_view here = hosts[static_cast<std::size_t>(rank)];
  const bool may_die_alone = std::ranges::any_of(
      ranks, [&](const auto& each) { return each.first != here && each.second == 1; });
  if (!may_die_alone) return Duty::kNone;
  return ranks.size() == 2 ? Duty::kThisHost : Duty::kFirstHost;
}

LastWord::LastWord(FlightBoard& board, std::function<bool()> told_by_message)
    : board_(board), told_by_message_(std::move(told_by_message)) {}

void LastWord::ask(LauncherServer& server) {
  const std::vector<std::string>& hosts = server.hosts();
  const auto rank = static_cast<std::size_t>(board_.mine().rank);
  duty_ = duty_of(hosts, static_cast<int>(rank));
  is_first_host_ = hosts.empty() || hosts[rank] == hosts[0];
  server_ = &server;
}

bool LastWord::hears_messages() const {
  return told_by_message_ && (!keeps_words_ || duty_ == Duty::kFirstHost);
}

bool LastWord::is_for_other_hosts() const {
  if (server_ == nullptr) return true;
  if (duty_ == Duty::kFirstHost) return is_first_host_ || mpi_runs(board_.mine());
  return duty_ == Duty::kThisHost;
}

bool LastWord::claim() {
  if (!board_.claim_word()) return false;
  LauncherServer* const server = server_;
  if (server == nullptr) return true;
  const Verdict verdict = ask_hosts(*server);
  if (verdict == Verdict::kMine) return true;
  if (verdict == Verdict::kForOthers) board_.drop_word();
  if (verdict == Verdict::kTaken) {
    board_.give_word_away();
    std::this_thread::sleep_for(2 * kSettling);
  }
  return false;
}

/// Fischer's algorithm (L. Lamport, "A fast mutual exclusion algorithm", ACM TOCS 5(1), 1987): who
/// saw nobody publishes itself, and has the word if it is the last one when all who saw nobody too
/// have published.
LastWord::Verdict LastWord::ask_hosts(LauncherServer& server) {
  const auto before = waited_for(server.find_word());
  if (!before) return is_for_other_hosts() ? Verdict::kMine : Verdict::kForOthers;
  if (before == WordHolder::kAnotherRank) return Verdict::kTaken;
  if (before != WordHolder::kNobody) return Verdict::kMine;
  if (waited_for(server.publish_word()) != WordHolder::kThisRank) return Verdict::kMine;
  std::this_thread::sleep_for(kSettling);
  const auto after = waited_for(server.find_word());
  return after == WordHolder::kAnotherRank ? Verdict::kTaken : Verdict::kMine;
}

bool LastWord::is_taken() {
  if (board_.word_is_taken() || (hears_messages() && told_by_message_())) return true;
  LauncherServer* const server = server_;
  if (server == nullptr) return false;
  if (asked_.valid()) {
    if (asked_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    const WordHolder holder = asked_.get();
    keeps_words_ = holder != WordHolder::kUnknown;
    if (holder == WordHolder::kAnotherRank) board_.give_word_away();
    return board_.word_is_taken();
  }
  // Once to learn whether it keeps words. Then again and again where it is a duty to speak when the
  // launcher ends the job, since the server is deaf by then: one rank asks for all of its host.
  const bool asks =
      keeps_words_ && is_for_other_hosts() && board_.takes_turn(kSecondsBetweenQuestions);
  if (asks || !was_asked_) asked_ = server->find_word();
  was_asked_ = true;
  return false;
}

}  // namespace barestep
