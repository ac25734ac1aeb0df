#include "lab/report/comparison.h"

#include "support/testing.h"

namespace barestep {
namespace {

const Series kNine = {"a", {40.30, 40.34, 39.88, 38.82, 39.89, 40.35, 55.88, 38.30, 41.52}};
const Series kFaster = {"b", {37.10, 37.52, 36.30, 35.90, 37.80, 36.70, 38.20, 36.10, 38.60}};

/// Nine rounds with little noise around `seconds`.
Series steady(const char* key, double seconds) {
  Series series{key, {}};
  for (const double noise : {1.0, 1.004, 0.997, 1.001, 0.999, 1.002, 0.998, 1.003, 0.996}) {
    series.seconds.push_back(noise * seconds);
  }
  return series;
}

/// Rounds that deviate by a third in either direction.
Series wild(const char* key, double seconds) {
  Series series{key, {}};
  for (const double noise : {1.3, 0.8, 1.1, 0.9, 1.2, 0.75, 1.25, 0.85, 1.0}) {
    series.seconds.push_back(noise * seconds);
  }
  return series;
}

TEST(Compare, TakesTheIntervalOfTheRatiosOfTheRounds) {
  const Comparison faster = compare(kNine, kFaster);
  EXPECT_NEAR(faster.ratio.median, 37.10 / 40.30, 1e-12);
  EXPECT_NEAR(faster.ratio.low, 0.9095415, 1e-7);
  EXPECT_NEAR(faster.ratio.high, 0.9425588, 1e-7);
  EXPECT_EQ(faster.p, 0.00390625);
  EXPECT_EQ(faster.faster_rounds, 9U);
  EXPECT_EQ(faster.word, Word::kFaster);
  EXPECT_EQ(compare(kFaster, kNine).word, Word::kSlower);
}

TEST(Compare, FindsNoDifferenceBeyondTheMargin) {
  const Comparison same = compare({"a", {5.91, 6.02, 5.95, 5.88, 6.10, 5.97}},
                                  {"b", {5.95, 5.99, 6.01, 5.86, 6.08, 6.03}});
  EXPECT_NEAR(same.ratio.median, std::sqrt(5.99 * 6.01 / (5.95 * 5.97)), 1e-12);
  EXPECT_NEAR(same.ratio.low, 0.9950166, 1e-7);
  EXPECT_NEAR(same.ratio.high, 1.0100840, 1e-7);
  EXPECT_EQ(same.p, 1);
  EXPECT_EQ(same.word, Word::kNoDifference);
  EXPECT_EQ(compare({"a", {5.91, 6.02, 5.95, 5.88, 6.10, 5.97}},
                    {"b", {5.95, 5.99, 6.01, 5.86, 6.08, 6.03}}, 1.005)
                .word,
            Word::kUndecided);
}

TEST(EstimateByRound, IsThatOfTheFiguresShownAndLiesInItsInterval) {
  // The middle values are 2 and 3; the ratios of the rounds are 2, but for one of 3 / 2.
  const std::vector<double> a = {1, 1, 1, 2, 4, 4, 4, 4, 4}, b = {2, 2, 2, 3, 8, 8, 8, 8, 8};
  EXPECT_EQ(estimate_by_round(b, a, std::divides<double>()), (Estimate{2, 2, 2}));
  const std::vector<double> c = {1, 1, 1, 1, 4, 9, 9, 9, 9}, d = {9, 9, 9, 9, 2, 1, 1, 1, 1};
  const Estimate apart = estimate_by_round(d, c, std::divides<double>());
  EXPECT_DOUBLE_EQ(apart.median, 0.5);
  const std::vector<double> e = {3, 1, 4, 1, 5, 9, 2, 6, 5};
  const std::vector<double> f = {1, 5, 1, 4, 9, 2, 6, 5, 3};  // the same in another order
  const Estimate same = estimate_by_round(f, e, std::minus<double>());
  EXPECT_EQ(same.median, 0);
  EXPECT_LE(same.low, 0);
  EXPECT_GE(same.high, 0);
}

TEST(EstimateByRound, WidensAnIntervalThatDoesNotHoldIt) {
  EXPECT_EQ(around(0.5, {1, 0.9, 1.1}), (Estimate{0.5, 0.5, 1.1}));
  EXPECT_EQ(around(2, {1, 0.9, 1.1}), (Estimate{2, 0.9, 2}));
  EXPECT_EQ(around(1.05, {1, 0.9, 1.1}), (Estimate{1.05, 0.9, 1.1}));
  EXPECT_FALSE(around(1, {1, -std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::infinity()})
                   .has_interval());
}

TEST(Compare, DoesNotFindACaseFasterThanItself) {
  const Comparison itself = compare(kNine, kNine);
  EXPECT_EQ(itself.ratio, (Estimate{1, 1, 1}));
  EXPECT_EQ(itself.word, Word::kNoDifference);
}

TEST(Compare, SaysNothingOfFewerThanSixRounds) {
  const Comparison five = compare({"a", {2, 2, 2, 2, 2}}, {"b", {1, 1, 1, 1, 1}});
  EXPECT_EQ(five.word, Word::kTooFewStarts);
  EXPECT_EQ(text_of(five, "with b", "with a"),
            "With b a step takes 0.50x as long as with a: too few starts to say; 6 are needed.");
}

TEST(Compare, CountsAllComparisonsOfAFamily) {
  const std::vector<double> one(6, 1.0), two(6, 2.0);
  EXPECT_EQ(compare({"a", two}, {"b", one}).word, Word::kFaster);
  // With six rounds the least possible p is 1 / 32, so two comparisons are already one too many.
  const std::vector<Series> others = {{"b", one}, {"c", one}};
  for (const Comparison& each : compare({"a", two}, others)) {
    EXPECT_EQ(each.p_holm, 0.0625);
    EXPECT_EQ(each.word, Word::kTooFewStarts);
    EXPECT_EQ(text_of(each, "with b", "with a"),
              "With b a step takes 0.50x (0.50x to 0.50x) as long as with a: too few starts to say "
              "among 2 comparisons; 9 are needed.");
  }
  std::vector<Comparison> apart = {compare({"a", two}, {"b", one}),
                                   compare({"a", one}, {"b", two})};
  adjust_together(apart);
  EXPECT_EQ(apart[0].word, Word::kTooFewStarts);
  EXPECT_EQ(apart[1].word, Word::kTooFewStarts);
}

/// The first n of 6, 9, 12, 15 with 2 m / 2^n <= 0.05, by hand.
TEST(StartsNeeded, AreThoseOfWhichTheSignTestIsSignificantAmongAll) {
  for (const auto& [comparisons, starts] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 6}, {2, 9}, {4, 9}, {12, 9}, {13, 12}, {102, 12}, {103, 15}}) {
    EXPECT_EQ(starts_needed(comparisons), starts) << comparisons;
  }
}

TEST(Compare, MayBeChanceWhereEnoughStartsDisagree) {
  std::vector<double> one(9, 1.0);
  one[0] = 3;
  const std::vector<double> two(9, 2.0);
  const std::vector<Series> others = {{"b", one}, {"c", two}};
  const Comparison each = compare({"a", two}, others)[0];
  EXPECT_EQ(each.word, Word::kUndecided);
  EXPECT_EQ(text_of(each, "with b", "with a"),
            "With b a step was faster than with a in 8 of 9 rounds, which may be chance among 2 "
            "comparisons.");
}

TEST(Sentence, SaysWhatTheWordSays) {
  const auto says = [](const Series& b) {
    return text_of(compare(steady("a", 1), b), "with two ranks", "with one rank");
  };
  EXPECT_EQ(says(steady("b", 0.5)),
            "With two ranks a step is faster than with one rank: 2.00x (2.00x to 2.00x) as fast.");
  EXPECT_EQ(says(steady("b", 2)),
            "With two ranks a step is slower than with one rank: it takes 2.00x (2.00x to 2.00x) "
            "as long.");
  EXPECT_EQ(says(steady("b", 0.97)),
            "With two ranks a step is faster than with one rank: 1.03x (1.03x to 1.03x) as fast, a "
            "small difference.");
  EXPECT_EQ(
      says(steady("b", 1)),
      "With two ranks a step takes as long as with one rank, within 5 %: 1.00x (1.00x to 1.00x).");
  EXPECT_EQ(says(wild("b", 1)),
            "A step with two ranks and a step with one rank are indistinguishable: the difference "
            "lies between 20.3 % less and 25.3 % more time.");
}

TEST(Fastest, IsOneOrAllThatCannotBeToldFromIt) {
  const std::vector<Series> clear = {steady("a", 2), steady("b", 1), steady("c", 3)};
  const Fastest one = fastest_of(clear);
  EXPECT_EQ(one.place, 1U);
  EXPECT_TRUE(one.is_alone());
  EXPECT_THAT(one.others, SizeIs(2));
  const std::vector<Series> tie = {{"a", {1.1, 1, 1.1, 1, 1.1, 1}},
                                   {"b", {1, 1.1, 1, 1.1, 1, 1.05}}};
  EXPECT_THAT(fastest_of(tie).ties, ElementsAre(1, 0));
  const std::vector<Series> noise = {wild("a", 1.02), steady("b", 1)};
  EXPECT_THAT(fastest_of(noise).ties, ElementsAre(1, 0));
  EXPECT_TRUE(fastest_of(std::span(clear).first(1)).is_alone());
}

TEST(EstimateByRound, IsThatOfTheEstimatesWithinTheIntervalOfTheRounds) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6, 7, 8, 9}, b(9, 0.0);
  const std::vector<double> c = {1, 1, 1, 1, 10, 1, 1, 1, 1};
  // (5 - 0) / 1; the rounds give 0.5, 1, 2, 3, 4, 6, 7, 8, 9.
  EXPECT_EQ(estimate_by_round(std::array{a, b, c},
                              [](std::span<const double> s) { return (s[0] - s[1]) / s[2]; }),
            (Estimate{5, 1, 8}));
  EXPECT_EQ(largest_of(std::array{PartSeries{"a", a}}, c).share.median, 5);
}

TEST(Side, IsOpenWhereTheIntervalHoldsTheBorder) {
  EXPECT_EQ(side_of({0.515, 0.51, 0.52}, 0.5), Word::kAbove);
  EXPECT_EQ(side_of({0.515, 0.49, 0.54}, 0.5), Word::kOpen);
  EXPECT_EQ(side_of({0.4, 0.39, 0.41}, 0.5), Word::kBelow);
}

TEST(LargestPart, IsABottleneckFromMoreThanHalf) {
  const auto part = [](const char* name, const Series& shares) {
    return PartSeries{name, shares.seconds};
  };
  const std::vector<PartSeries> max = {part("x", steady("", 0.9)), part("y", steady("", 0.1))};
  const std::vector<double> whole(9, 1.0);
  EXPECT_EQ(largest_text(largest_of(max, whole), "a step"),
            "the bottleneck is x: 90.0 % (89.7 % to 90.3 %) of a step");
  const std::vector<PartSeries> largest = {part("x", steady("", 0.48)), part("y", steady("", 0.1))};
  EXPECT_EQ(largest_text(largest_of(largest, whole), "a step"),
            "no part is more than half; the largest is x: 48.0 % (47.9 % to 48.1 %) of a step");
  const std::vector<PartSeries> half = {part("x", steady("", 0.5)), part("y", steady("", 0.1))};
  EXPECT_EQ(largest_text(largest_of(half, whole), "a step"),
            "the largest part, perhaps more than half, is x: 50.0 % (49.9 % to 50.1 %) of a step");
  const std::vector<PartSeries> tie = {part("x", wild("", 0.3)), part("y", steady("", 0.3))};
  const LargestPart open = largest_of(tie, whole);
  EXPECT_THAT(open.names, SizeIs(2));
  EXPECT_THAT(largest_text(open, "a step"), HasSubstr("which are indistinguishable"));
}

}  // namespace
}  // namespace barestep
