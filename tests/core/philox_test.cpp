// The host's Philox streams compared with known answers. The golden file is a prediction by an
// independent model that agrees with every published output of real GPUs we know of, including the
// numbers in a notebook.
#include "core/philox.h"

#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

/// A list of the golden file, "raw" or "fills".
json predicted(const char* list) {
  json all = json::parse(std::ifstream(golden_path("cuda_philox_predicted")));
  EXPECT_FALSE(all.at(list).empty());
  return all.at(list);
}

CudaGeometry geometry_of(const json& fill) {
  return {.multiprocessors = fill.at("sm"),
          .threads_per_multiprocessor = fill.at("threads_per_sm")};
}

PhiloxState state_before(const json& fill) {
  return {.seed = fill.at("seed"), .offset = fill.at("offset_before")};
}

TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  EXPECT_THAT(philox4x32_10({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_THAT(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
  EXPECT_THAT(philox4x32_10({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                            {0xa4093822U, 0x299f31d0U}),
              ElementsAre(0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U));
}

TEST(Philox, DrawsThePredictedWords) {
  for (const json& raw : predicted("raw")) {
    SCOPED_TRACE(raw.dump());
    const std::uint64_t seed = raw.at("seed");
    const std::uint64_t subsequence = raw.at("subsequence");
    const std::uint64_t block = raw.at("offset").get<std::uint64_t>() / 4;
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const auto words =
        philox4x32_10({low(block), low(block >> 32U), low(subsequence), low(subsequence >> 32U)},
                      {low(seed), low(seed >> 32U)});
    EXPECT_EQ(json(words), raw.at("words"));
  }
}

TEST(Philox, PlansPyTorchsLaunchOnEachPredictedGpu) {
  for (const json& fill : predicted("fills")) {
    SCOPED_TRACE(fill.dump());
    EXPECT_EQ(philox_blocks(fill.at("n"), geometry_of(fill)), fill.at("blocks"));
    EXPECT_EQ(state_before(fill).offset + philox_advance(fill.at("n"), geometry_of(fill)),
              fill.at("offset_after"));
  }
}

TEST(PhiloxRandn, LiesWithinFiveMillionthsOfThePrediction) {
  for (const json& fill : predicted("fills")) {
    SCOPED_TRACE(fill.dump());
    PhiloxState state = state_before(fill);
    std::vector<float> numbers(fill.at("n").get<std::size_t>());
    philox_randn(state, numbers, geometry_of(fill));
    EXPECT_EQ(state.offset, fill.at("offset_after"));
    for (std::size_t k = 0; k < fill.at("index").size(); ++k) {
      EXPECT_NEAR(numbers[fill.at("index")[k]], fill.at("randn_approx")[k], 5e-6);
    }
  }
}

TEST(PhiloxRandn, PrintsWhatAGpuPrintedForSeed0) {
  PhiloxState state;
  std::vector<float> numbers(9);
  philox_randn(state, numbers);
  const std::vector<float> printed{-0.9247F, -0.4253F, -2.6438F, 0.1452F, -0.1209F,
                                   -0.5797F, -0.6229F, -0.3284F, -1.0745F};
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(numbers[i], printed[i], 5.1e-5F);
}

// https://github.com/pytorch/pytorch/issues/143086: the last three of 9,483,264 numbers with seed
// 1.
TEST(PhiloxRandn, PrintsWhatAnH100AndAnA100PrintedFarIntoTheStream) {
  std::vector<float> numbers(9'483'264);
  PhiloxState h100{.seed = 1};
  philox_randn(h100, numbers, {.multiprocessors = 132});
  EXPECT_NEAR(numbers[numbers.size() - 3], -0.6970F, 5.1e-5F);
  EXPECT_NEAR(numbers[numbers.size() - 2], -0.7780F, 5.1e-5F);
  EXPECT_NEAR(numbers[numbers.size() - 1], 0.3267F, 5.1e-5F);
  PhiloxState a100{.seed = 1};
  philox_randn(a100, numbers, {.multiprocessors = 108});
  EXPECT_NEAR(numbers[numbers.size() - 3], 0.1549F, 5.1e-5F);
  EXPECT_NEAR(numbers[numbers.size() - 2], -0.6797F, 5.1e-5F);
  EXPECT_NEAR(numbers[numbers.size() - 1], -0.1656F, 5.1e-5F);
}

TEST(Philox, DrawsNothingForNoNumbers) {
  PhiloxState state{.seed = 3, .offset = 12};
  philox_randn(state, {});
  EXPECT_EQ(state.offset, 12U);
}

}  // namespace
}  // namespace barestep
