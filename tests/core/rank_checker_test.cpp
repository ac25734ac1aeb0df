#include "core/rank_checker.h"

#include "core/program.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A collective of a rank's program: a sum of `floats` numbers.
struct Step {
  std::string name{};
  Axis axis = Axis::kAll;
  Lane lane = Lane::kComm;
  std::int64_t floats = 4;
  std::vector<Wait> waits{};
};

/// A job whose ranks do nothing but sums.
class SummingRanks {
 public:
  SummingRanks(Mesh mesh, const std::vector<std::vector<Step>>& ranks) {
    for (mesh.rank = 0; mesh.rank < mesh.ranks(); ++mesh.rank) add(mesh, at(ranks, mesh.rank));
  }

  [[nodiscard]] std::string check() const {
    std::vector<RankProgram> all;
    for (const auto& [program, mesh] : ranks_) all.push_back({program, mesh});
    return check_ranks(all);
  }

 private:
  void add(const Mesh& mesh, const std::vector<Step>& steps) {
    Program& program = ranks_.emplace_back(Program("step", buffers_), mesh).first;
    for (const Step& step : steps) {
      const std::string buffer = mesh.text() + step.name;
      program.add({.op = AllReduce{.tensors = {buffers_.tensor(buffer, Category::kCommunication, 1,
                                                               step.floats)},
                                   .axis = step.axis,
                                   .name = step.name},
                   .lane = step.lane,
                   .waits = step.waits});
    }
  }

  Buffers buffers_;
  std::vector<std::pair<Program, Mesh>> ranks_;
};

std::string checked(const Mesh& mesh, const std::vector<std::vector<Step>>& ranks) {
  return SummingRanks(mesh, ranks).check();
}

TEST(RankChecker, FindsNothingWhereAllRanksDoTheSame) {
  const std::vector<Step> steps{{.name = "a"}, {.name = "b", .axis = Axis::kData}};
  EXPECT_EQ(checked({.data = 3}, {steps, steps, steps}), "");
  EXPECT_EQ(checked({.data = 1}, {{}}), "");
}

TEST(RankChecker, FindsWhereRanksDoNotHaveTheSameCollectives) {
  const Mesh two{.data = 2};
  EXPECT_EQ(checked(two, {{{.name = "a"}, {.name = "b"}}, {{.name = "a"}, {.name = "c"}}}),
            "rank 1 has all_reduce 'c' of 16 B as number 2 of the collectives on its all axis, "
            "where rank 0 has all_reduce 'b' of 16 B");
  EXPECT_EQ(checked(two, {{{.name = "a"}}, {{.name = "a", .floats = 5}}}),
            "rank 1 has all_reduce 'a' of 20 B as number 1 of the collectives on its all axis, "
            "where rank 0 has all_reduce 'a' of 16 B");
  EXPECT_EQ(checked(two, {{{.name = "a"}, {.name = "b"}}, {{.name = "a"}}}),
            "rank 1 has 1 collectives on its all axis, where rank 0 has 2");
}

TEST(RankChecker, ComparesOnlyTheRanksOfAGroup) {
  const Mesh mesh{.data = 2, .tensor = 2};
  const std::vector<Step> even{{.name = "e", .axis = Axis::kData}};
  const std::vector<Step> odd{{.name = "o", .axis = Axis::kData, .floats = 9}};
  EXPECT_EQ(checked(mesh, {even, odd, even, odd}), "");
  EXPECT_EQ(checked(mesh, {even, odd, odd, even}),
            "rank 2 (data 1, tensor 0) has all_reduce 'o' of 36 B as number 1 of the collectives "
            "on its data axis, where rank 0 (data 0, tensor 0) has all_reduce 'e' of 16 B");
}

// Every group agrees, and yet each of the four waits for its neighbor.
TEST(RankChecker, FindsRanksThatWaitInACircle) {
  const Mesh mesh{.data = 2, .tensor = 2};
  const auto circle = [&](Lane second) {
    const Step data{.name = "d", .axis = Axis::kData};
    const Step tensor{.name = "t", .axis = Axis::kTensor, .lane = second};
    return checked(mesh, {{data, tensor}, {tensor, data}, {tensor, data}, {data, tensor}});
  };
  const std::string found = circle(Lane::kComm);
  EXPECT_TRUE(found.starts_with("ranks can be stuck: all_reduce '")) << found;
  EXPECT_TRUE(found.ends_with(", which waits for the first")) << found;
  for (const char* const part :
       {"all_reduce 'd' of 16 B on the data axis of rank 0 (data 0, tensor 0)",
        "all_reduce 't' of 16 B on the tensor axis of rank 0 (data 0, tensor 0)",
        "all_reduce 'd' of 16 B on the data axis of rank 1 (data 0, tensor 1)",
        "all_reduce 't' of 16 B on the tensor axis of rank 2 (data 1, tensor 0)"}) {
    EXPECT_NE(found.find(part), std::string::npos) << part << " in " << found;
  }
  EXPECT_EQ(circle(Lane::kCompute), "") << "on a lane of their own they pass each other";
}

TEST(RankChecker, FollowsWaitsAndEarlierSteps) {
  const Mesh mesh{.data = 2, .tensor = 2};
  const Step data{.name = "d", .axis = Axis::kData};
  Step waiting{.name = "t", .axis = Axis::kTensor, .lane = Lane::kCompute};
  // Lanes of their own, but the second waits for the first, in this step or in the one before.
  for (const int steps_back : {0, 1}) {
    waiting.waits = {{.node = 0, .steps_back = steps_back}};
    const Step tensor{.name = "t", .axis = Axis::kTensor, .lane = Lane::kCompute};
    Step late = data;
    late.waits = {{.node = 0, .steps_back = 0}};
    const std::string found =
        checked(mesh, {{data, waiting}, {tensor, late}, {tensor, late}, {data, waiting}});
    EXPECT_EQ(found.empty(), steps_back == 1) << found;
  }
}

/// Rank 0 sends 4 numbers to its peer and gets 2 back, and rank 1 is its mirror image.
SendReceive exchange_of(Buffers& buffers, int rank) {
  const std::string own = "rank " + std::to_string(rank);
  const auto tensor = [&](const char* name, std::int64_t floats) {
    return buffers.tensor(own + name, Category::kCommunication, 1, floats);
  };
  return {.sends = tensor("sent", rank == 0 ? 4 : 2),
          .receives = tensor("received", rank == 0 ? 2 : 4),
          .peer = 1 - rank,
          .name = "e"};
}

/// Two ranks, each with these exchanges; what only receives is on a lane.
std::string checked(const Buffers& buffers, const std::vector<std::vector<SendReceive>>& ranks,
                    Lane of_receives = Lane::kComm) {
  std::vector<Program> programs;
  for (const auto& exchanges : ranks) {
    Program& program = programs.emplace_back("step", buffers);
    for (const SendReceive& exchange : exchanges) {
      program.add({.op = Collective{exchange}, .lane = exchange.sends ? Lane::kComm : of_receives});
    }
  }
  std::vector<RankProgram> all;
  for (const Program& program : programs) {
    all.push_back(
        {program,
         {.pipeline = static_cast<int>(ranks.size()), .rank = static_cast<int>(all.size())}});
  }
  return check_ranks(all);
}

TEST(RankChecker, FindsExchangesThatAreNotMirrorImages) {
  Buffers buffers;
  const SendReceive first = exchange_of(buffers, 0);
  const SendReceive second = exchange_of(buffers, 1);
  EXPECT_EQ(checked(buffers, {{first}, {second}}), "");
  SendReceive more = second;
  more.sends->cols = 1;
  EXPECT_EQ(checked(buffers, {{first}, {more}}),
            "rank 1 (stage 1) has send_receive 'e' of 16 B there and 4 B back as number 1 of the "
            "collectives on its pipeline axis, where rank 0 (stage 0) has send_receive 'e' of 16 B "
            "there and 8 B back");
  EXPECT_EQ(
      checked(buffers, {{first}, {}}),
      "rank 1 (stage 1) has 0 collectives on its pipeline axis, where rank 0 (stage 0) has 1");
}

TEST(RankChecker, FindsARankThatExchangesWithItselfOrNobody) {
  Buffers buffers;
  SendReceive lost = exchange_of(buffers, 1);
  const std::string expected =
      "rank 1 exchanges with itself, or with a rank outside its pipeline axis";
  for (const int peer : {1, 2}) {
    lost.peer = peer;
    EXPECT_EQ(checked(buffers, {{}, {lost}}), expected);
  }
}

// In one exchange both directions progress; in two, each rank stands at its first, unless these
// are on lanes of their own.
TEST(RankChecker, FindsTwoRanksThatBothSendFirst) {
  Buffers buffers;
  const auto split = [&](int rank) {
    SendReceive sends = exchange_of(buffers, rank);
    SendReceive receives = sends;
    sends.receives.reset();
    sends.name = "from " + std::to_string(rank);
    receives.sends.reset();
    receives.name = "from " + std::to_string(1 - rank);
    return std::vector{sends, receives};
  };
  const std::string why = checked(buffers, {split(0), split(1)});
  EXPECT_NE(why.find("ranks can be stuck: send_receive 'from 0'"), std::string::npos) << why;
  EXPECT_EQ(checked(buffers, {split(0), split(1)}, Lane::kCopy), "");
  std::vector<SendReceive> answers = split(1);
  std::swap(answers[0], answers[1]);
  EXPECT_EQ(checked(buffers, {split(0), answers}), "");
}

// Three ranks send to the next one before they receive from the one before.
TEST(RankChecker, FindsACircleOfExchanges) {
  Buffers buffers;
  std::vector<std::vector<SendReceive>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string own = "rank " + std::to_string(rank);
    const int next = (rank + 1) % 3, before = (rank + 2) % 3;
    ranks.push_back({{.sends = buffers.tensor(own + "s", Category::kCommunication, 1, 4),
                      .peer = next,
                      .name = own},
                     {.receives = buffers.tensor(own + "r", Category::kCommunication, 1, 4),
                      .peer = before,
                      .name = "rank " + std::to_string(before)}});
  }
  const std::string why = checked(buffers, ranks);
  EXPECT_NE(why.find("ranks can be stuck: "), std::string::npos) << why;
  std::swap(ranks[2][0], ranks[2][1]);
  EXPECT_EQ(checked(buffers, ranks), "");
}

}  // namespace
}  // namespace barestep
