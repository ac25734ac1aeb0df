// Schedules that others write: those of the built-in kinds work, and every damage to them is found.
#include "lab/predict/schedule_check.h"

#include "core/index.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

class Schedules : public TempDirTest {
 protected:
  WrittenSchedule read(const std::string& text) {
    file("s.json", text);
    return read_schedule(folder() / "s.json");
  }
  WrittenSchedule built_in(int stages, int micro_batches, PipelineSchedule kind) {
    return read(schedule_json({stages, micro_batches, kind}));
  }
  /// One stage's list in each text, entries separated by blanks and commas as in JSON.
  WrittenSchedule of_lists(int micro_batches, const std::vector<std::string>& lists) {
    std::string text;
    for (const std::string& list : lists) text += (text.empty() ? "[" : ", [") + list + "]";
    return read("{\"micro_batches\": " + std::to_string(micro_batches) + ", \"stages\": [" + text +
                "]}");
  }
};

TEST_F(Schedules, OfEveryBuiltInKindWorkAndTakeTheTimeOfTheirFormula) {
  for (const PipelineSchedule kind : kValuesOf<PipelineSchedule>) {
    for (const int stages : {1, 2, 4, 5}) {
      for (const int micro_batches : {1, 3, 6, 8}) {
        SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(stages) + " stages, " +
                     std::to_string(micro_batches));
        const WrittenSchedule schedule = built_in(stages, micro_batches, kind);
        const ScheduleFindings findings = examine(schedule);
        EXPECT_THAT(findings.faults, IsEmpty());
        EXPECT_EQ(findings.other_order, "");
        if (kind != PipelineSchedule::kZeroBubbleH1 || micro_batches >= stages) {
          EXPECT_NEAR(findings.waits, ideal_bubble({stages, micro_batches, kind}), 1e-12);
        }
      }
    }
  }
}

TEST_F(Schedules, WithoutMessagesTakeAsLongAsWithMessagesInNoTime) {
  const WrittenSchedule with = built_in(4, 6, PipelineSchedule::kOneForwardOneBackward);
  WrittenSchedule without = with;
  for (auto& list : without.stages) {
    std::erase_if(list, [](const ScheduleEntry& entry) { return !entry.pass; });
  }
  const ScheduleFindings findings = examine(without);
  EXPECT_THAT(findings.faults, IsEmpty());
  EXPECT_DOUBLE_EQ(findings.step, examine(with).step);
  EXPECT_THAT(findings.kept, ElementsAre(4, 3, 2, 1));
}

/// The books' 1F1B with sends and receives one by one: 49 of 56 hang, which two stages show that
/// send to each other.
TEST_F(Schedules, WithSeparateSendsHang) {
  int hanging = 0;
  for (int stages = 2; stages <= 8; ++stages) {
    for (const int micro_batches : {1, 2, 3, 4, 5, 8, 16, 32}) {
      WrittenSchedule schedule =
          built_in(stages, micro_batches, PipelineSchedule::kOneForwardOneBackward);
      for (auto& list : schedule.stages) {
        std::vector<ScheduleEntry> split;
        for (const ScheduleEntry& entry : list) {
          if (!entry.sends || !entry.receives) {
            split.push_back(entry);
            continue;
          }
          const std::size_t comma = entry.text.find(", ");
          split.push_back({.text = entry.text.substr(0, comma), .sends = entry.sends});
          split.push_back({.text = entry.text.substr(comma + 2), .receives = entry.receives});
        }
        list = split;
      }
      const ScheduleFindings findings = examine(schedule);
      hanging += findings.faults.empty() ? 0 : 1;
      if (stages != 2 || micro_batches != 2) continue;
      EXPECT_THAT(
          findings.faults,
          ElementsAre("stage 0: 'send F1' waits forever for stage 1, which is at 'send B0'",
                      "stage 1: 'send B0' waits forever for stage 0, which is at 'send F1'"));
      EXPECT_THAT(text_of(schedule, findings),
                  HasSubstr("\nstage 0 F0 F1 | send F1: waits forever\n"
                            "stage 1 ...F0 B0    | send B0: waits forever\n"));
    }
  }
  EXPECT_EQ(hanging, 49);
}

/// As NCCL's groups do: a message of a group meets whatever sends or receives it alone.
TEST_F(Schedules, MayExchangeWithBothNeighborsAtOnceOrMeetSeparateMessages) {
  const WrittenSchedule both =
      of_lists(2, {R"("F0", "send F0", "F1", "send F1", "receive B0", "B0", "receive B1", "B1")",
                   R"("receive F0", "F0", "send F0, receive F1", "F1", "send F1",
             "receive B0", "B0", "send B0, receive B1", "B1", "send B1")",
                   R"("receive F0", "F0", "receive F1", "F1", "B0", "send B0", "B1", "send B1")"});
  EXPECT_THAT(examine(both).faults, IsEmpty());
  EXPECT_DOUBLE_EQ(examine(both).waits, ideal_bubble({3, 2, PipelineSchedule::kGPipe}));
  const WrittenSchedule separate =
      of_lists(2, {R"("F0", "send F0", "F1", "send F1, receive B0", "B0", "receive B1", "B1")",
                   R"("receive F0", "F0", "B0", "send B0", "receive F1", "F1", "B1", "send B1")"});
  EXPECT_THAT(examine(separate).faults, IsEmpty());
}

TEST_F(Schedules, AreFoundToLackAnyEntryThatIsDeleted) {
  for (const PipelineSchedule kind : kValuesOf<PipelineSchedule>) {
    const WrittenSchedule whole = built_in(3, 4, kind);
    for (std::size_t stage = 0; stage < whole.stages.size(); ++stage) {
      for (std::size_t entry = 0; entry < whole.stages[stage].size(); ++entry) {
        WrittenSchedule damaged = whole;
        const auto place = damaged.stages[stage].begin() + static_cast<std::ptrdiff_t>(entry);
        const std::string text = place->text;
        damaged.stages[stage].erase(place);
        EXPECT_FALSE(examine(damaged).faults.empty()) << text << " of stage " << stage;
        damaged = whole;
        damaged.stages[stage].push_back(damaged.stages[stage][entry]);
        EXPECT_FALSE(examine(damaged).faults.empty()) << text << " twice";
      }
    }
  }
}

/// Neighbors in a list swapped: what then works gives every pass what it reads.
TEST_F(Schedules, WithTwoEntriesSwappedAreFaultyOrStillInOrder) {
  int faulty = 0;
  const WrittenSchedule whole = built_in(3, 4, PipelineSchedule::kZeroBubbleH1);
  for (std::size_t stage = 0; stage < whole.stages.size(); ++stage) {
    for (std::size_t entry = 0; entry + 1 < whole.stages[stage].size(); ++entry) {
      WrittenSchedule damaged = whole;
      std::swap(damaged.stages[stage][entry], damaged.stages[stage][entry + 1]);
      const ScheduleFindings findings = examine(damaged);
      faulty += findings.faults.empty() ? 0 : 1;
      if (!findings.faults.empty()) continue;
      std::set<std::string> seen;
      for (const ScheduleEntry& each : damaged.stages[stage]) {
        if (each.sends) EXPECT_TRUE(seen.contains(each.text.substr(5, 2))) << each.text;
        seen.insert(each.text);
      }
    }
  }
  EXPECT_GT(faulty, 20);
}

TEST_F(Schedules, NameTheirFaults) {
  const auto faults = [&](int micro_batches, const std::vector<std::string>& lists) {
    return examine(of_lists(micro_batches, lists)).faults;
  };
  EXPECT_THAT(faults(1, {R"("B0", "F0")"}), ElementsAre("stage 0: B0 runs before F0"));
  EXPECT_THAT(faults(1, {R"("F0")"}), ElementsAre("stage 0: 'B0' is missing"));
  EXPECT_THAT(faults(1, {R"("F0", "B0", "B0")"}), ElementsAre("stage 0: 'B0' is there 2 times"));
  EXPECT_THAT(faults(1, {R"("F0", "W0", "B0")"}), ElementsAre("stage 0: W0 runs before B0"));
  EXPECT_THAT(faults(1, {R"("F0", "send F0", "B0")"}),
              ElementsAre("stage 0: 'send F0' has no stage to send to"));
  EXPECT_THAT(faults(1, {R"("receive F0", "F0", "B0")"}),
              ElementsAre("stage 0: 'receive F0' has no stage to receive from"));
  EXPECT_THAT(faults(1, {R"("send F0", "F0", "receive B0", "B0")",
                         R"("receive F0", "F0", "B0", "send B0")"}),
              ElementsAre("stage 0: 'send F0' sends what F0 has not computed yet"));
  EXPECT_THAT(faults(1, {R"("F0", "send F0", "receive B0", "B0")",
                         R"("F0", "receive F0", "B0", "send B0")"}),
              ElementsAre("stage 1: F0 reads what has not been received; 'receive F0' must come "
                          "first"));
  EXPECT_THAT(faults(1, {R"("F0", "send F0", "B0")", R"("receive F0", "F0", "B0", "send B0")"}),
              ElementsAre("stage 0: B0 reads what has not been received; 'receive B0' must come "
                          "first",
                          "stage 0: 'receive B0' is missing"));
  // Without messages, a pass may wait for one that waits for it.
  EXPECT_THAT(faults(2, {R"("F0", "B0", "F1", "B1")", R"("F0", "F1", "B0", "B1")"}),
              ElementsAre("stage 0: 'B0' waits forever for stage 1, which is at 'F1'",
                          "stage 1: 'F1' waits forever for stage 0, which is at 'B0'"));
}

TEST_F(Schedules, WithFaultsAreDrawnUpToWhereStagesStand) {
  const auto drawn = [&](const std::vector<std::string>& lists) {
    const WrittenSchedule schedule = of_lists(1, lists);
    return text_of(schedule, examine(schedule));
  };
  EXPECT_THAT(drawn({R"("B0", "F0")"}), HasSubstr("\nstage 0 | B0: does not belong here\n"));
  EXPECT_THAT(
      drawn({R"("F0", "send F0", "receive B0", "B0")", R"("F0", "receive F0", "B0", "send B0")"}),
      HasSubstr("\nstage 0 F0 | send F0: waits forever\n"
                "stage 1 | F0: does not belong here\n"));
  EXPECT_THAT(drawn({R"("F0", "send F0", "receive B0", "B0")", R"("receive F0", "F0", "B0")"}),
              HasSubstr("\nstage 0 F0 | receive B0: waits forever\nstage 1 ...F0 B0"));
}

/// ZB-H1 is the best of one step where neither B nor F + B - W is more than F.
TEST_F(Schedules, SayWhetherAnyOtherTakesLess) {
  const auto text = [&](PipelineSchedule kind, double weights) {
    WrittenSchedule schedule = built_in(4, 8, kind);
    schedule.times.weights = weights;
    return text_of(schedule, examine(schedule));
  };
  const std::string best = "forward passes (calculated). This one takes no longer.\n";
  EXPECT_THAT(text(PipelineSchedule::kZeroBubbleH1, 1), HasSubstr("takes less than 27: "));
  EXPECT_THAT(text(PipelineSchedule::kZeroBubbleH1, 1), HasSubstr(best));
  EXPECT_THAT(text(PipelineSchedule::kZeroBubbleH1, 0.5), Not(HasSubstr(best)));
  EXPECT_THAT(text(PipelineSchedule::kOneForwardOneBackward, 1), Not(HasSubstr(best)));
}

TEST_F(Schedules, SayWhereGradientsAddUpInAnotherOrder) {
  const WrittenSchedule schedule = of_lists(2, {R"("F0", "F1", "B1", "B0")"});
  const ScheduleFindings findings = examine(schedule);
  EXPECT_THAT(findings.faults, IsEmpty());
  EXPECT_THAT(text_of(schedule, findings),
              HasSubstr("Gradients do not have the bits of --accumulate 2: stage 0 adds the "
                        "gradients of B1 where micro-batch 0 would be next.\n"));
  const WrittenSchedule usual = of_lists(2, {R"("F0", "F1", "B0", "B1")"});
  EXPECT_THAT(text_of(usual, examine(usual)),
              HasSubstr("Gradients add up as with --accumulate 2, to the bit.\n"));
}

TEST_F(Schedules, TakeTheTimesThatAreGiven) {
  const WrittenSchedule schedule = read(
      R"({"micro_batches": 1, "stages": [["F0", "send F0", "receive B0", "B0", "W0"],
          ["receive F0", "F0", "B0", "send B0", "W0"]],
          "times": {"forward": 2, "backward": 3, "weights": 4, "message": 0.5}})");
  const ScheduleFindings findings = examine(schedule);
  EXPECT_THAT(findings.faults, IsEmpty());
  // Stage 0: F until 2; the message until 2.5; stage 1: F until 4.5, B until 7.5; back at 8.
  EXPECT_DOUBLE_EQ(findings.step, 8 + 3 + 4);
  EXPECT_DOUBLE_EQ(findings.waits, 1 - 9.0 / 15);
}

TEST_F(Schedules, ThatCannotBeReadAreRefused) {
  const auto refused = [&](const std::string& text, const std::string& why) {
    expect_error(ExitCode::kBadData, why, [&] { read(text); });
  };
  refused(R"({"stages": []})", "micro_batches");
  refused(R"({"micro_batches": 1, "stages": []})", "stages must have 1 to 1024 lists");
  refused(R"({"micro_batches": 1, "stages": [["F1"]]})",
          "is of micro-batch 1, but the last one is 0");
  for (const char* const entry : {"", ", ", "F", "G0", "send F0, ", "send F0receive B0", "send W0",
                                  "F0 B0", ", receive F0"}) {
    refused(R"({"micro_batches": 1, "stages": [[")" + std::string(entry) + R"("]]})",
            "is not a pass");
  }
}

}  // namespace
}  // namespace barestep
