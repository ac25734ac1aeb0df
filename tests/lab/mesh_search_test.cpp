#include "lab/predict/mesh_search.h"

#include "core/plan.h"
#include "lab/made_up.h"
#include "lab/predict/workload.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::int64_t kGib = 1 << 30;

TEST(MeshSearch, PutsTheFastestThatFitsFirst) {
  const MachineCard h200 = load_card("h200-nvlink");
  const std::int64_t memory = 3 * kGib;
  const auto all = search_meshes(asked("--batch-size 256"), h200, 8, memory).candidates;
  const auto first_too_large =
      std::ranges::find_if(all, [&](const MeshCandidate& each) { return each.bytes > memory; });
  EXPECT_GT(first_too_large - all.begin(), 5);
  EXPECT_GT(all.end() - first_too_large, 1);
  EXPECT_TRUE(std::all_of(first_too_large, all.end(),
                          [&](const MeshCandidate& each) { return each.bytes > memory; }));
  for (auto each = all.begin(); each != first_too_large; ++each) {
    SCOPED_TRACE(each->text());
    EXPECT_EQ(each->step.step_s, predicted_run(each->run, h200).step_s);
    if (each != all.begin()) EXPECT_GE(each->step.step_s, (each - 1)->step.step_s);
  }
}

TEST(MeshSearch, CountsTheMemoryOfTheFullestRank) {
  const MachineCard h200 = load_card("h200-nvlink");
  // Widths and rows that neither tensor ranks nor copies divide evenly.
  const auto all =
      search_meshes(asked("--dim 103 --depth 7 --batch-size 50"), h200, 8, kGib).candidates;
  EXPECT_GT(all.size(), 30U);
  for (const MeshCandidate& each : all) {
    SCOPED_TRACE(each.text());
    std::int64_t max = 0;
    for (int rank = 0; rank < 8; ++rank) {
      const WorkloadPrograms programs(each.run, rank);
      max = std::max(max, MemoryPlan(programs.steps().buffers()).device_bytes(0));
    }
    EXPECT_EQ(each.bytes, max);
  }
}

TEST(MeshSearch, TriesEverySchemeAndCutThatTheTrainerAccepts) {
  const auto all = search_meshes(asked("--dim 64"), load_card("h200-nvlink"), 4, kGib).candidates;
  std::vector<std::string> texts;
  for (const MeshCandidate& each : all) texts.push_back(each.text());
  EXPECT_THAT(texts, testing::IsSupersetOf(
                         {"ddp, 4 copies", "zero1, 4 copies", "zero2, 4 copies", "zero3, 4 copies",
                          "factor, 4 copies", "ddp, one copy on 4 tensor ranks",
                          "zero1, 2 copies on 2 tensor ranks",
                          "ddp, one copy on 4 stages, 1f1b with 4 micro-batches",
                          "zero1, 2 copies on 2 stages, 1f1b with 2 micro-batches",
                          "ddp, one copy on 2 stages of 2 tensor ranks, 1f1b with 4 "
                          "micro-batches"}));
  EXPECT_THAT(texts, Not(Contains(HasSubstr("factor, 2 copies")))) << "which cuts no layers";
  EXPECT_THAT(texts, Not(Contains(HasSubstr("zero1, one copy")))) << "which shares nothing";
}

/// Simulates those too.
TEST(MeshSearch, PassesOverOnlyWhatIsSlowerThanTheFastest) {
  const MachineCard h200 = load_card("h200-nvlink");
  std::int64_t passed_over = 0;
  for (const char* options : {"--dim 64", "--dim 1024 --depth 16", "--dim 2048 --batch-size 1024",
                              "--block transformer --dim 256 --length 64"}) {
    SCOPED_TRACE(options);
    const MeshSearch search = search_meshes(asked(options), h200, 8, 16 * kGib);
    passed_over += search.passed_over;
    std::int64_t not_built = 0;
    for (const MeshCandidate& each : search.candidates) {
      const ParallelConfig& parallel = each.parallel();
      if (parallel.micro_batches != parallel.pipeline) continue;
      for (const std::int64_t times : {2, 4, 8}) {
        MeshCandidate more = each;
        more.run.config.parallel.micro_batches = times * parallel.pipeline;
        const bool fits = times * parallel.pipeline * more.copies() <= each.run.batch_size();
        if (!fits || why_not(more.run)) continue;
        const std::string text = more.text();
        if (std::ranges::find(search.candidates, text, &MeshCandidate::text) !=
            search.candidates.end()) {
          continue;
        }
        ++not_built;
        constexpr std::size_t kLastShown = 11;
        EXPECT_GE(predicted_run(more.run, h200).step_s, search.candidates[kLastShown].step.step_s)
            << text;
      }
    }
    EXPECT_EQ(not_built, search.passed_over);
  }
  EXPECT_GT(passed_over, 40);
}

TEST(BestMesh, TurnsRoundWithTheBatchAndTheMemory) {
  const MachineCard h200 = load_card("h200-nvlink");
  const auto best = [&](const std::string& options, std::int64_t memory) {
    return texts_of(best_mesh(asked(options), h200, 8, memory).timed);
  };
  const auto small = best("", 16 * kGib);
  EXPECT_THAT(small[0], HasSubstr("Simulated: 8 ranks train fastest as ddp, one copy on 8 tensor "
                                  "ranks: 1.1 ms a step, with 817."));
  EXPECT_THAT(small[0], HasSubstr(" of 16.00 GiB for each; 5.2x as fast as one."));
  EXPECT_THAT(small[1], HasSubstr("Sharing only the batch (factor, 8 copies) would take "));
  EXPECT_THAT(small[2], HasSubstr("Sharing every layer is fastest: its ranks wait "));
  EXPECT_THAT(small[3], HasSubstr("A stage on each rank is refused for this model on 8 ranks."));
  EXPECT_THAT(small[4], HasSubstr("A mesh of several axes (ddp, one copy on 2 stages of 4 tensor "
                                  "ranks, 1f1b with 2 micro-batches) would take "));
  EXPECT_THAT(best("--batch-size 65536", 64 * kGib)[1],
              HasSubstr("Sharing only the batch is fastest: "));
  const auto deep = best("--depth 24", 4 * kGib);
  EXPECT_THAT(deep[0], ContainsRegex("; one would need 2[0-9.]+ GiB and does not fit\\."));
  EXPECT_THAT(deep[1], HasSubstr("Sharing only the batch would not fit: "));
}

TEST(BestMesh, IsRefusedWhereNoneFits) {
  const MachineCard h200 = load_card("h200-nvlink");
  expect_error(ExitCode::kMemory,
               "--memory '512.00 MiB': the least that a rank of 8 needs is 808.75 MiB, with ddp, "
               "one copy on 2 stages of 4 tensor ranks, 1f1b with 16 micro-batches; ask for more "
               "--ranks, or for a smaller --batch-size",
               [&] { best_mesh({}, h200, 8, kGib / 2); });
  expect_error(ExitCode::kConfiguration,
               "--ranks '7': cannot share this model and its batch in any way; ask for fewer, or "
               "for a larger --batch-size",
               [&] { best_mesh(asked("--dim 4 --depth 2 --batch-size 3"), h200, 7, kGib); });
}

}  // namespace
}  // namespace barestep
