// Which runs end with the same weights on any number of ranks, and what --reproducible costs.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// By scheme; whether reproducible is said in the options.
const std::vector<CaseRow> kBitsRungs = {{"factor", "--scheme factor"},
                                         {"ddp", "--scheme ddp"},
                                         {"ddp-reproducible", "--scheme ddp --reproducible"},
                                         {"zero1-reproducible", "--scheme zero1 --reproducible"}};

std::string key_on(std::string_view rung, int ranks) {
  return fmt::format("{}-{}", rung, ranks);
}

/// 8 samples, or fewer if ranks would have none.
std::int64_t chunk_of(const Setting& setting) {
  constexpr std::int64_t kUsual = 8;
  const std::int64_t of_rank = setting.batch_size / std::ranges::max(rank_counts(setting));
  return std::clamp<std::int64_t>(of_rank, 1, kUsual);
}

std::vector<Case> same_bits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const CaseRow& rung : kBitsRungs) {
    const bool is_reproducible = rung.words.ends_with("--reproducible");
    const std::string options =
        is_reproducible ? fmt::format("{} {}", rung.words, chunk_of(setting)) : rung.words;
    for (const int ranks : rank_counts(setting)) {
      cases.push_back(new_case(setting, key_on(rung.key, ranks),
                               with(ddp_workload(setting, ranks), "--update separate " + options)));
    }
  }
  return cases;
}

/// The weights that all starts of a rung end with, each once.
std::set<std::string> hashes_of(const Results& results, std::string_view rung) {
  std::set<std::string> hashes;
  for (const int ranks : rank_counts(results.setting)) {
    for (const Start& start : results.at(key_on(rung, ranks)).starts()) {
      hashes.insert(start.weights_hash);
    }
  }
  return hashes;
}

std::string bits_text(const Results& results, const CaseRow& rung) {
  std::vector<std::string> counts;
  for (const int ranks : rank_counts(results.setting)) counts.push_back(std::to_string(ranks));
  const std::size_t different = hashes_of(results, rung.key).size();
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
std::string price_text(const Results& results) {
  const int ranks = priced_ranks(results.setting).back();
  const Workload& before = results.at(key_on("ddp", ranks)).workload();
  const Workload& after = results.at(key_on("ddp-reproducible", ranks)).workload();
  const std::string sent = human_bytes(mean_sent_bytes(after));
  const std::string sent_before = human_bytes(mean_sent_bytes(before));
  return fmt::format(
      "On {} a rank with --scheme ddp --reproducible needs {} instead of {} and sends {} a step{} "
      "(from the plan).",
      several_words(ranks, "rank"), human_bytes(max_rank_bytes(after)),
      human_bytes(max_rank_bytes(before)), sent,
      sent == sent_before ? ", as without" : " instead of " + sent_before);
}

Findings same_bits_findings(const Results& results) {
  std::vector<Compared> pairs;
  for (const int ranks : priced_ranks(results.setting)) {
    pairs.push_back({key_on("ddp", ranks), key_on("ddp-reproducible", ranks),
                     fmt::format("with --reproducible {} on {}", chunk_of(results.setting),
                                 ranks == 1 ? "one rank" : several_words(ranks, "rank")),
                     "without"});
  }
  FindingsOf all(results);
  all.compare(pairs, {.as_family = false, .within_cores = true});
  for (const CaseRow& rung : kBitsRungs) all.untimed(rung.key, bits_text(results, rung));
  const bool same =
      hashes_of(results, "ddp-reproducible") == hashes_of(results, "zero1-reproducible");
  return all
      .untimed("schemes", fmt::format("With --reproducible, ddp and zero1 have {} weights.",
                                      same ? "the same" : "different"))
      .untimed("price", price_text(results))
      .table("Weights at the end, and their price",
             {{"options",
               [](const Measurement& measured) {
                 const std::string& key = measured.what().key;
                 return std::ranges::find(kBitsRungs, key.substr(0, key.rfind('-')), &CaseRow::key)
                     ->words;
               }},
              "ranks",
              {"weights",
               [](const Measurement& measured) {
                 std::set<std::string> hashes;
                 for (const Start& start : measured.starts()) hashes.insert(start.weights_hash);
                 return list_text({hashes.begin(), hashes.end()});
               }},
              "time",
              {"max-memory", "memory of a rank (plan)"},
              "sends"});
}

}  // namespace

Experiment same_bits_experiment() {
  return {"same-bits",
          "The same bits on any number of ranks",
          "Which runs end with the same weights on any number of ranks, and what does that cost?",
          same_bits_cases,
          same_bits_findings,
          "factor ddp ddp-reproducible zero1-reproducible schemes price table",
          false};
}

}  // namespace barestep
