// Which runs end with the same weights on any number of ranks, and what --reproducible costs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

struct BitsRung {
  const char* key;
  const char* words;
  RankScheme scheme;
  bool reproducible;
};

constexpr BitsRung kBitsRungs[] = {
    {"factor", "--scheme factor", RankScheme::kFactor, false},
    {"ddp", "--scheme ddp", RankScheme::kDdp, false},
    {"ddp-reproducible", "--scheme ddp --reproducible", RankScheme::kDdp, true},
    {"zero1-reproducible", "--scheme zero1 --reproducible", RankScheme::kZero1, true}};

std::string key_on(const BitsRung& rung, int ranks) {
  return fmt::format("{}-{}", rung.key, ranks);
}

/// 8 samples, or fewer if ranks would have none.
std::int64_t chunk_of(const Setting& setting) {
  constexpr std::int64_t kUsual = 8;
  const std::int64_t of_rank = setting.batch_size / std::ranges::max(rank_counts(setting));
  return std::clamp<std::int64_t>(of_rank, 1, kUsual);
}

std::vector<Case> same_bits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const BitsRung& rung : kBitsRungs) {
    for (const int ranks : rank_counts(setting)) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.training.update = Update::kSeparate;
      workload.config.parallel.scheme = rung.scheme;
      if (rung.reproducible) workload.config.training.chunk_rows = chunk_of(setting);
      Case what = new_case(setting, key_on(rung, ranks), workload);
      what.hash_weights = true;
      cases.push_back(what);
    }
  }
  return cases;
}

/// The weights that all starts of a rung end with, each once.
std::set<std::string> hashes_of(const Results& results, const BitsRung& rung) {
  std::set<std::string> hashes;
  for (const int ranks : rank_counts(results.setting)) {
    for (const Start& start : results.at(key_on(rung, ranks)).starts()) {
      hashes.insert(start.weights_hash);
    }
  }
  return hashes;
}

std::string bits_fact(const Results& results, const BitsRung& rung) {
  std::vector<std::string> counts;
  for (const int ranks : rank_counts(results.setting)) counts.push_back(std::to_string(ranks));
  const std::size_t different = hashes_of(results, rung).size();
  const std::string who = fmt::format("With {}, runs on {} {}", rung.words, list_text(counts),
                                      counts.size() == 1 ? "rank" : "ranks");
  return different == 1 ? who + " end with the same weights in every bit."
                        : fmt::format("{} end with {} different sets of weights.", who, different);
}

/// The numbers of ranks whose prices are compared: one, and the usual one if it was run.
std::vector<int> priced_ranks(const Setting& setting) {
  const int several = compared_with_one(setting);
  return rank_counts(setting).back() < several ? std::vector{1} : std::vector{1, several};
}

/// What --reproducible costs a rank: memory and messages, which have no noise.
std::string price_fact(const Results& results, const BitsRung& plain, const BitsRung& rung) {
  const int ranks = priced_ranks(results.setting).back();
  const Workload& before = results.at(key_on(plain, ranks)).workload();
  const Workload& after = results.at(key_on(rung, ranks)).workload();
  const std::string sent = human_bytes(mean_sent_bytes(after));
  const std::string sent_before = human_bytes(mean_sent_bytes(before));
  return fmt::format(
      "On {} a rank with {} needs {} instead of {} and sends {} a step{} (from the plan).",
      several_words(ranks, "rank"), rung.words, human_bytes(max_rank_bytes(after)),
      human_bytes(max_rank_bytes(before)), sent,
      sent == sent_before ? ", as without" : " instead of " + sent_before);
}

FindingTable bits_table(const Results& results) {
  FindingTable table{.title = "Weights at the end, and their price",
                     .columns = {"options", "ranks", "weights", "mean step",
                                 "memory of a rank (plan)", "a rank sends"}};
  for (const BitsRung& rung : kBitsRungs) {
    for (const int ranks : rank_counts(results.setting)) {
      const Measurement& each = results.at(key_on(rung, ranks));
      std::set<std::string> hashes;
      for (const Start& start : each.starts()) hashes.insert(start.weights_hash);
      table.rows.push_back({rung.words, std::to_string(ranks),
                            list_text({hashes.begin(), hashes.end()}), time_text(each.mean_s()),
                            human_bytes(max_rank_bytes(each.workload())),
                            human_bytes(mean_sent_bytes(each.workload()))});
    }
  }
  return table;
}

Findings conclude_same_bits(const Results& results) {
  const auto& [factor, ddp, reproducible, zero1] = kBitsRungs;
  Findings findings{.tables = {bits_table(results)}};
  for (const int ranks : priced_ranks(results.setting)) {
    if (results.at(key_on(ddp, ranks)).what().beyond_cores) continue;
    const Comparison price = results.compare(key_on(ddp, ranks), key_on(reproducible, ranks));
    const std::string where = ranks == 1 ? "one rank" : several_words(ranks, "rank");
    findings.sentences.push_back(
        {price.b,
         sentence_of(price,
                     fmt::format("with --reproducible {} on {}", chunk_of(results.setting), where),
                     "without"),
         price.word});
    findings.comparisons.push_back(price);
  }
  for (const BitsRung& rung : kBitsRungs) {
    findings.facts.push_back({rung.key, bits_fact(results, rung)});
  }
  findings.facts.emplace_back("schemes",
                              hashes_of(results, reproducible) == hashes_of(results, zero1)
                                  ? "With --reproducible, ddp and zero1 have the same weights."
                                  : "With --reproducible, ddp and zero1 have different weights.");
  findings.facts.push_back({"price", price_fact(results, ddp, reproducible)});
  return findings;
}

}  // namespace

Experiment same_bits_experiment() {
  return {.name = "same-bits",
          .title = "The same bits on any number of ranks",
          .question =
              "Which runs end with the same weights on any number of ranks, and what does that "
              "cost?",
          .cases = same_bits_cases,
          .conclude = conclude_same_bits,
          .names =
              "factor ddp ddp-reproducible zero1-reproducible schemes price "
              "table",
          .needs_mpi = true,
          .chooses = false};
}

}  // namespace barestep
