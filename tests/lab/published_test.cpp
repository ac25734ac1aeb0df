// docs/published.md: published numbers beside ours, which are computed here.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/published_numbers.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

std::map<PublishedKind, int> counts_of_kinds(const std::vector<PublishedNumber>& all) {
  std::map<PublishedKind, int> counts;
  for (const PublishedNumber& each : all) ++counts[each.kind];
  return counts;
}

TEST(PublishedNumbers, ThatDependOnNoHardwareAreOurs) {
  const std::vector<PublishedNumber> all = exact_numbers();
  for (const PublishedNumber& each : all) {
    EXPECT_TRUE(each.agrees) << each.what;
    EXPECT_EQ(each.ours, each.published) << each.what;
  }
  // Splits, buckets, an epoch, pipelines and those without a bubble, a tensor pair, GPT-2's
  // parameters and a layer's flops, traffic and what hides it; memory by the allocator's
  // rules, by ZeRO's and by DeepSpeed's, servers, attention's memory, what GPT-2 keeps, and scores
  // of two models.
  const std::map<PublishedKind, int> kinds = {
      {PublishedKind::kReproduced, 6 + 2 + 1 + 4 + 4 + 1 + 2 + 3 + 3},
      {PublishedKind::kComputed, 5 + 4 + 2 + 4 + 8 + 1 + 4}};
  EXPECT_EQ(counts_of_kinds(all), kinds);
}

TEST(PublishedNumbers, NameTheAddressWhereTheyStand) {
  std::vector<PublishedNumber> all = exact_numbers();
  for (const PublishedNumber& each : cited_numbers()) all.push_back(each);
  for (const PublishedNumber& each : differing_numbers()) all.push_back(each);
  EXPECT_GE(all.size(), 60U);
  std::set<std::string> names;
  for (const PublishedNumber& each : all) {
    // A page may change, but the contents of a commit, or of a version of a paper, are fixed.
    EXPECT_THAT(each.address, testing::ContainsRegex(
                                  "^https://(github\\.com/[^/]+/[^/]+/blob/[0-9a-f]{8}/|"
                                  "arxiv\\.org/abs/[0-9.]+v[0-9],|courses\\.cs\\.ut\\.ee/2026/)"))
        << each.what;
    EXPECT_TRUE(names.insert(each.what).second) << each.what << " names two rows";
  }
}

// Each passage was read at its address, in the repository at that commit.
TEST(PublishedNumbers, ThatAreCitedStandAtTheirAddresses) {
  std::vector<PublishedNumber> quoted = cited_numbers();
  for (const PublishedNumber& each : differing_numbers()) {
    if (each.what.starts_with("FlashAttention")) quoted.push_back(each);
  }
  for (const PublishedNumber& each : quoted) {
    const std::string number = each.published.substr(0, each.published.find_first_of(" x"));
    EXPECT_THAT(each.quote, testing::ContainsRegex("(^|[^0-9.])" + number)) << each.what;
  }
}

// 150 steps make 1.65e14 flops at least: 8 products of 4096^3 each. In 7.738 s that is 21.3
// TFLOP/s, and an A100's peak in fp32 is 19.5.
TEST(PublishedNumbers, SayIfTheyNeedMoreThanTheCardsPeak) {
  const std::vector<PublishedNumber> all = cited_numbers();
  const auto amp = std::ranges::find_if(
      all, [](const PublishedNumber& each) { return each.what.starts_with("150 steps"); });
  ASSERT_NE(amp, all.end());
  EXPECT_THAT(amp->ours, HasSubstr("the published time takes 21.3 TFLOP/s, more than its 19.5"));
}

TEST(PublishedNumbers, ThatNeedAnAssumptionSayWhich) {
  int rows = 0;
  for (const PublishedNumber& each : exact_numbers()) {
    if (!each.what.starts_with("ZeRO recipe")) continue;
    ++rows;
    EXPECT_EQ(
        each.what.find("assuming that the last bucket takes a cached block") != std::string::npos,
        each.published != "335 MB")
        << each.what;
  }
  EXPECT_EQ(rows, 5);
}

TEST(PublishedNumbers, AreAllInTheFileAndAllCompared) {
  std::set<std::string> compared = {zero_recipe_sum().what}, published;
  for (const PublishedNumber& each : exact_numbers()) compared.insert(each.what);
  for (const PublishedNumber& each : cited_numbers()) compared.insert(each.what);
  for (const PublishedNumber& each : differing_numbers()) compared.insert(each.what);
  for (const PublishedNumber& each : published_numbers()) {
    published.insert(each.what);
  }
  EXPECT_EQ(compared, published);
}

TEST(PublishedNumbers, ThatDoNotReproduceSayWhatOursIs) {
  std::map<std::string, std::string> ours;
  for (const PublishedNumber& each : differing_numbers()) {
    EXPECT_EQ(each.kind, PublishedKind::kDoesNotReproduce) << each.what;
    EXPECT_THAT(each.ours, HasSubstr("(counted")) << each.what;
    EXPECT_NE(each.ours.substr(0, each.published.size()), each.published) << each.what;
    ours[each.what] = each.ours;
  }
  EXPECT_EQ(ours.size(), 5U);
  // (3 L - 3) / 2 L of six layers, and twice (p - 1) / (m + p - 1).
  EXPECT_THAT(ours["ZeRO, bytes that a rank sends with stage 3, over those without"],
              HasSubstr("1.25x"));
  EXPECT_THAT(ours["1F1B against GPipe, idle time of 8 stages and 32 micro-batches"],
              HasSubstr("17.9 % and 17.9 %"));
}

TEST(PublishedNumbers, OfOtherHardwareAreCitedBesideSimulatedOrCountedOnes) {
  for (const PublishedNumber& each : cited_numbers()) {
    EXPECT_EQ(each.kind, PublishedKind::kCited) << each.what;
    EXPECT_THAT(each.ours, testing::ContainsRegex("[(](simulated|counted)")) << each.what;
    EXPECT_TRUE(each.agrees) << "neither passes nor fails";
  }
}

// The rate of products comes from one GPU's step at batch 4096, the bandwidth from the two GPUs'
// step at batch 256; the rest is predicted.
TEST(PublishedNumbers, OfTwoV100SayWhichOfOursAreFitted) {
  std::map<std::string, std::string> how;
  for (const PublishedNumber& each : cited_numbers()) {
    if (!each.what.starts_with("two V100")) continue;
    const bool is_fitted = each.ours.find("fitted to it") != std::string::npos;
    EXPECT_NEAR(std::stod(each.ours) / std::stod(each.published), 1, is_fitted ? 0.005 : 0.1)
        << each.what;
    how[each.what] = each.ours.substr(each.ours.find('('));
  }
  const std::map<std::string, std::string> expected = {
      {"two V100, a step on one, batch 256 on each", "(simulated, predicted by the fit)"},
      {"two V100, a step on two, batch 256 on each", "(simulated, fitted to it)"},
      {"two V100, speed-up, batch 256 on each",
       "(simulated, of a fitted step and a predicted one)"},
      {"two V100, a step on one, batch 4096 on each", "(simulated, fitted to it)"},
      {"two V100, a step on two, batch 4096 on each", "(simulated, predicted by the fit)"},
      {"two V100, speed-up, batch 4096 on each",
       "(simulated, of a fitted step and a predicted one)"}};
  EXPECT_EQ(how, expected);
}

constexpr std::string_view kMark = "<!-- generated by tests/lab/published_test.cpp -->\n";

std::string table_of(std::string_view title, const std::vector<PublishedNumber>& numbers) {
  std::string text = fmt::format(
      "\n## {}\n\n| what | published | ours | is | address |\n| --- | ---: | ---: | --- | --- |\n",
      title);
  for (const PublishedNumber& each : numbers) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", each.what, each.published, each.ours,
                        name_of(each.kind), each.address);
  }
  return text;
}

/// The summaries that bench/predictions.sh and bench/what_if.sh keep of machines; older files have
/// none.
std::string errors_of_predictions() {
  std::string text;
  const std::filesystem::path results = std::filesystem::path(BARESTEP_DOCS) / "../bench/results";
  std::set<std::filesystem::path> machines;
  for (const auto& folder : std::filesystem::directory_iterator(results)) machines.insert(folder);
  for (const std::filesystem::path& machine : machines) {
    for (const char* name : {"predictions.txt", "predictions_held_out.txt", "what_if.txt"}) {
      if (!std::filesystem::exists(machine / name)) continue;
      const std::string kept = read_file(machine / name);
      const std::string summary = kept.substr(0, kept.find("\nexperiment: case"));
      if (summary.find("90th percentile") == std::string::npos) continue;
      text += fmt::format("\n`bench/results/{}/{}`:\n\n```\n{}```\n", machine.filename().string(),
                          name, summary);
    }
  }
  return text.empty() ? "" : "\n## Errors of our own predictions\n" + text;
}

TEST(PublishedNumbers, StandOnTheirPageBesideOurs) {
  const std::filesystem::path page = std::filesystem::path(BARESTEP_DOCS) / "published.md";
  const std::string text = read_file(page);
  const std::size_t mark = text.find(kMark);
  ASSERT_NE(mark, std::string::npos);
  std::vector<PublishedNumber> exact = exact_numbers();
  exact.push_back(zero_recipe_sum());
  EXPECT_TRUE(exact.back().agrees) << exact.back().ours;
  const std::string expected =
      text.substr(0, mark) + std::string(kMark) + table_of("Independent of hardware", exact) +
      table_of("Of other hardware, beside simulated ones", cited_numbers()) +
      table_of("Claims that do not reproduce", differing_numbers()) + errors_of_predictions();
  if (std::getenv("BARESTEP_WRITE_DOCS") != nullptr) std::ofstream(page) << expected;
  EXPECT_EQ(read_file(page), expected)
      << "run BARESTEP_WRITE_DOCS=1 build/tests/lab_test --gtest_filter='PublishedNumbers.*'";
}

}  // namespace
}  // namespace barestep
