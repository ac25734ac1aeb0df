// Who tells why a job ends: ranks of one host by their board, of several by a launcher's server,
// which is a fake here. Each rank is a thread with a board of its own, as on a host of its own.
#include "parallel/last_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "parallel/launcher_server.h"
#include "support/busy_machine.h"

namespace barestep {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

using Hosts = std::vector<std::string>;

/// What the daemons of a job have in common.
struct Daemons {
  std::mutex mutex;
  int holder = -1;  // rank that published last
  int questions = 0;
  bool deaf = false;
  bool keep_words = true;
};

/// The daemon of one rank's host.
class FakeServer final : public LauncherServer {
 public:
  FakeServer(Daemons& daemons, int rank, Hosts hosts)
      : daemons_(daemons), rank_(rank), hosts_(std::move(hosts)) {}

  std::future<WordHolder> find_word() override {
    return answer([&] {
      ++daemons_.questions;
      if (daemons_.holder < 0) return WordHolder::kNobody;
      return daemons_.holder == rank_ ? WordHolder::kThisRank : WordHolder::kAnotherRank;
    });
  }
  std::future<WordHolder> publish_word() override {
    return answer([&] {
      daemons_.holder = rank_;
      return WordHolder::kThisRank;
    });
  }
  [[nodiscard]] const Hosts& hosts() const override { return hosts_; }

 private:
  template <class F>
  std::future<WordHolder> answer(const F& holder) {
    const std::lock_guard lock(daemons_.mutex);
    unanswered_.push_back(std::make_unique<std::promise<WordHolder>>());
    std::promise<WordHolder>& promise = *unanswered_.back();
    if (!daemons_.deaf) promise.set_value(daemons_.keep_words ? holder() : WordHolder::kUnknown);
    return promise.get_future();
  }

  Daemons& daemons_;
  int rank_;
  Hosts hosts_;
  std::vector<std::unique_ptr<std::promise<WordHolder>>> unanswered_;
};

constexpr double kSoonSeconds = 60;  // for what happens at once unless the machine is busy

/// A rank with a board of its own.
struct Rank {
  Rank(Daemons& daemons, int rank, const Hosts& hosts)
      : board("", 0, rank),
        server(daemons, rank, hosts),
        word(board, [this] { return told.load(); }) {
    board.mine().begin(Track::kPhase, Activity::kStart);
    word.ask(server);
  }
  /// Looks as often as a watchdog would, for as long as the word is not taken.
  bool is_taken_within(double seconds) {
    for (const double start_s = now_s(); now_s() - start_s < seconds;) {
      if (word.is_taken()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::atomic<bool> told{false};  // a message came
  FlightBoard board;
  FakeServer server;
  LastWord word;
};

void expect_one_of_four_to_have_it() {
  const Hosts hosts = {"a", "b", "c", "d"};
  Daemons daemons;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::future<bool>> claims;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<Rank>(daemons, rank, hosts));
  }
  for (const auto& rank : ranks) {
    claims.push_back(std::async(std::launch::async, [&] { return rank->word.claim(); }));
  }
  std::vector<bool> has_it;
  for (auto& claim : claims) has_it.push_back(claim.get());
  EXPECT_THAT(has_it, UnorderedElementsAre(true, false, false, false));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NE(ranks[rank]->word.is_taken(), has_it[rank]) << rank;
  }
}

/// Three jobs at a time, since claims mostly wait. Ranks agree by waiting for longer than a
/// question takes.
TEST(LastWord, OneRankOfThoseThatClaimItAtOnceHasIt) {
  repeat_while_busy([] {
    std::vector<std::future<void>> jobs;
    for (int job = 0; job < 3; ++job) {
      jobs.push_back(std::async(std::launch::async, expect_one_of_four_to_have_it));
    }
    for (auto& job : jobs) job.get();
  });
}

TEST(LastWord, WhoHasItKeepsItAndOthersAreTooLate) {
  Daemons daemons;
  const Hosts hosts = {"a", "b"};
  Rank first(daemons, 0, hosts);
  Rank second(daemons, 1, hosts);
  EXPECT_TRUE(second.word.claim());
  EXPECT_TRUE(second.word.claim());
  EXPECT_FALSE(first.word.claim());
  EXPECT_FALSE(first.word.claim());
  EXPECT_FALSE(first.word.claim_here());
}

TEST(LastWord, WhoIsToTellOfOtherHostsKnowsWithoutClaimingIt) {
  Daemons daemons;
  const Hosts hosts = {"a", "b"};
  Rank first(daemons, 0, hosts);
  Rank second(daemons, 1, hosts);
  EXPECT_FALSE(first.is_taken_within(0.3));
  EXPECT_TRUE(second.word.claim());
  EXPECT_TRUE(first.is_taken_within(kSoonSeconds));
  EXPECT_FALSE(second.is_taken_within(0.3));
}

TEST(LastWord, AskIsFiveTimesASecond) {
  repeat_while_busy([] {
    Daemons daemons;
    const Hosts hosts = {"a", "a", "b"};
    Rank first(daemons, 0, hosts);
    EXPECT_FALSE(first.is_taken_within(1));
    EXPECT_GE(daemons.questions, 3);
    EXPECT_LE(daemons.questions, 7);
  });
}

/// Ranks 0 and 1 tell of their own dead.
TEST(LastWord, AskIsOnceOfWhoIsNotToTell) {
  Daemons daemons;
  const Hosts hosts = {"a", "a", "b"};
  Rank third(daemons, 2, hosts);
  EXPECT_FALSE(third.is_taken_within(0.6));
  EXPECT_EQ(daemons.questions, 1);
}

TEST(LastWord, OfADeafServerItIsThatOfWhoIsToTell) {
  Daemons daemons;
  daemons.deaf = true;
  const Hosts two = {"a", "b"};
  Rank first(daemons, 0, two);
  EXPECT_TRUE(first.word.claim());
  // On these hosts everybody tells of their own dead only.
  const Hosts pairs = {"a", "a", "b", "b"};
  Rank third(daemons, 2, pairs);
  EXPECT_FALSE(third.word.claim());
  EXPECT_FALSE(third.word.is_taken());
  EXPECT_TRUE(third.word.claim_here());
}

TEST(LastWord, MessagesCountWhereTheServerKeepsNoWords) {
  Daemons daemons;
  daemons.keep_words = false;
  const Hosts pairs = {"a", "a", "b", "b"};
  Rank first(daemons, 0, pairs);
  Rank third(daemons, 2, pairs);
  EXPECT_FALSE(third.is_taken_within(0.1));
  EXPECT_TRUE(first.word.claim());
  third.told = true;
  EXPECT_TRUE(third.is_taken_within(kSoonSeconds));
}

TEST(LastWord, MessagesDoNotCountWhereTheServerKeepsWords) {
  Daemons daemons;
  Rank first(daemons, 0, {"a", "b"});
  EXPECT_FALSE(first.is_taken_within(0.1));  // it learns what the server does
  first.told = true;
  EXPECT_FALSE(first.is_taken_within(0.1));
  Rank of_three(daemons, 0, {"a", "b", "c"});
  of_three.told = true;
  EXPECT_TRUE(of_three.is_taken_within(kSoonSeconds));
}

TEST(LastWord, WithoutAServerMessagesCountAndEachHostMayHaveIt) {
  FlightBoard board("", 0, 0);
  bool told = false;
  LastWord word(board, [&] { return told; });
  EXPECT_TRUE(word.is_for_other_hosts());
  EXPECT_FALSE(word.is_taken());
  EXPECT_TRUE(word.claim());
  told = true;
  EXPECT_TRUE(word.is_taken());
}

TEST(LastWord, TheFirstHostTellsOfThoseThatDiedAloneUnlessMessagesCome) {
  Daemons daemons;
  const Hosts hosts = {"a", "b", "c"};
  Rank first(daemons, 0, hosts);
  Rank second(daemons, 1, hosts);
  EXPECT_TRUE(first.word.is_for_other_hosts());
  EXPECT_FALSE(second.word.is_for_other_hosts());
  second.board.mine().begin(Track::kPhase, Activity::kStep, 0);
  EXPECT_TRUE(second.word.is_for_other_hosts());
  second.board.mine().begin(Track::kPhase, Activity::kLeave);
  EXPECT_FALSE(second.word.is_for_other_hosts());
}

std::vector<Duty> duties_of(const Hosts& hosts) {
  std::vector<Duty> duties;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    duties.push_back(duty_of(hosts, rank));
  }
  return duties;
}

TEST(Duty, IsToTellOfHostsThatHaveOneRank) {
  constexpr Duty kNone = Duty::kNone;
  EXPECT_THAT(duties_of({"a", "a", "b", "b"}), ElementsAre(kNone, kNone, kNone, kNone));
  EXPECT_THAT(duties_of({"a", "b"}), ElementsAre(Duty::kThisHost, Duty::kThisHost));
  EXPECT_THAT(duties_of({"a", "a", "b"}), ElementsAre(Duty::kThisHost, Duty::kThisHost, kNone));
  EXPECT_THAT(duties_of({"a", "b", "c"}),
              ElementsAre(Duty::kFirstHost, Duty::kFirstHost, Duty::kFirstHost));
  EXPECT_THAT(
      duties_of({"a", "a", "b", "b", "c"}),
      ElementsAre(Duty::kFirstHost, Duty::kFirstHost, Duty::kFirstHost, Duty::kFirstHost, kNone));
  EXPECT_EQ(duty_of({}, 5), Duty::kFirstHost);
}

}  // namespace
}  // namespace barestep
