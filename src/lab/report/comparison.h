// The word for a comparison: the only place that decides between faster, slower, no difference
// that matters, and indistinguishable. Every sentence of a report uses it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/index.h"
#include "lab/report/samples.h"

namespace barestep {

/// Smaller differences are called small: ratios between 1 / 1.05 and 1.05.
constexpr double kDefaultMargin = 1.05;

/// The probability of a false word, over all comparisons that a sentence chose from.
constexpr double kSignificance = 0.05;

enum class Word {
  kFaster,
  kSlower,
  kNoDifference,  // beyond the margin
  kUndecided,     // indistinguishable
  kTooFewStarts,  // so few that no rounds could have decided it
  // Of an estimate beside a border (side_of()).
  kAbove,
  kBelow,
  kOpen,  // its interval does not decide
};
template <>
inline constexpr std::string_view kNamesOf<Word>[] = {"faster",
                                                      "slower",
                                                      "no difference beyond the margin",
                                                      "indistinguishable",
                                                      "too few starts",
                                                      "above",
                                                      "below",
                                                      "open"};

/// Whether it is an answer: figures may also decide nothing.
constexpr bool decides(Word word) {
  return word != Word::kUndecided && word != Word::kTooFewStarts && word != Word::kOpen;
}

/// a op b, round by round, for as many rounds as both have.
template <class Op>
std::vector<double> by_round(std::span<const double> a, std::span<const double> b, const Op& op) {
  std::vector<double> all;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) all.push_back(op(a[i], b[i]));
  return all;
}

/// The estimate with another value, and with the interval widened to contain it.
Estimate around(double value, const Estimate& interval);

/// op of two figures that are shown next to it: op of their estimates, so that all three agree,
/// within the interval of by_round(), widened to contain it. At least one round.
template <class Op>
Estimate estimate_by_round(std::span<const double> a, std::span<const double> b, const Op& op) {
  const std::vector<double> rounds = by_round(a, b, op);
  const Estimate of_a = estimate_of(a.first(rounds.size()));
  const Estimate of_b = estimate_of(b.first(rounds.size()));
  return around(op(of_a.median, of_b.median), estimate_of(rounds));
}
inline Estimate ratio_by_round(std::span<const double> a, std::span<const double> b) {
  return estimate_by_round(a, b, std::divides<double>());
}

/// The same for a figure that follows from any number of others: `op` takes one value of each.
Estimate estimate_by_round(std::span<const std::vector<double>> figures,
                           const std::function<double(std::span<const double>)>& op);

/// How many starts can decide one of so many comparisons: 6, 9, 12, ..., the numbers from which the
/// interval leaves out one more start at each end, and of which the sign test is significant if all
/// rounds agree.
std::size_t starts_needed(std::size_t comparisons);

/// Seconds by round, under the key of a case.
struct Series {
  std::string key{};
  std::vector<double> seconds{};
};

/// Compares the times of `b` with those of `a`, round by round.
struct Comparison {
  std::string a{};
  std::string b{};
  Estimate ratio{};  // b's time / a's time, as estimate_by_round() has it
  double p = 1;      // of the sign test
  double p_holm = 1;
  std::size_t compared = 1;  // number of comparisons that p_holm adjusts for
  std::size_t rounds = 0;
  std::size_t faster_rounds = 0;  // rounds in which b was faster
  double margin = kDefaultMargin;
  Word word = Word::kUndecided;

  [[nodiscard]] bool is_faster() const { return word == Word::kFaster; }
  [[nodiscard]] bool is_slower() const { return word == Word::kSlower; }
  /// The speed of b relative to a.
  [[nodiscard]] Estimate speed() const { return reciprocal(ratio); }
};

/// Compares each of `others` with `reference`, as one family: p is adjusted over all of them.
/// Rounds that only one of a pair has are skipped; each pair must share at least one.
std::vector<Comparison> compare(const Series& reference, std::span<const Series> others,
                                double margin = kDefaultMargin);
Comparison compare(const Series& a, const Series& b, double margin = kDefaultMargin);

/// Turns comparisons with different references into one family, for sentences that choose from
/// them.
void adjust_together(std::span<Comparison> comparisons);

/// "too few starts to say among 4 comparisons; 9 are needed" if one of a family has too few starts;
/// otherwise empty.
std::string too_few_of(std::span<const Comparison> family);

/// A sentence. `b` and `a` describe the conditions of a step, or of another `noun`, in lower case:
/// "with two ranks", "with one rank" give "With two ranks a step is faster than with one rank:
/// 1.85x (1.80x to 1.91x) as fast."
std::string text_of(const Comparison& comparison, const std::string& b, const std::string& a,
                    const std::string& noun = "step");

/// The fastest of several, and those that cannot be distinguished from it.
struct Fastest {
  std::size_t place = 0;             // index of the least median
  std::vector<Comparison> others{};  // the others against it, in their order
  std::vector<std::size_t> ties{};   // indices of those that are not slower, itself first

  [[nodiscard]] bool is_alone() const { return ties.size() == 1; }
};
Fastest fastest_of(std::span<const Series> all, double margin = kDefaultMargin);

/// Whether an estimate lies above a border; open if its interval does not decide it.
Word side_of(const Estimate& estimate, double border);

/// One of three texts; `open` if the interval does not decide.
std::string by_side(Word side, std::string above, std::string below, std::string open);

/// A part of a whole by round, such as the seconds of a phase.
struct PartSeries {
  std::string name{};
  std::vector<double> values{};
};

/// The largest part; a bottleneck if `share` is above one half of the whole.
struct LargestPart {
  std::vector<std::string> names{};  // the largest, then those that cannot be distinguished from it
  Estimate share{};                  // of the first

  [[nodiscard]] bool is_alone() const { return names.size() == 1; }
  [[nodiscard]] bool is_most() const { return side_of(share, 0.5) == Word::kAbove; }
  [[nodiscard]] bool is_less_than_half() const { return side_of(share, 0.5) == Word::kBelow; }
};

/// Compares differences within each round, which cancels what all parts share. At least one part.
LargestPart largest_of(std::span<const PartSeries> parts, std::span<const double> whole);

/// "the bottleneck is X: 90.1 % (89.0 % to 91.2 %) of a step", "the largest part of a step is X:
/// ...", "the largest parts of a step are X and Y, which are indistinguishable; X is ..."; `whole`
/// is "a step". A part is called the bottleneck only above half of the whole, and "no part is more
/// than half" needs an interval below half.
std::string largest_text(const LargestPart& largest, const std::string& whole);

}  // namespace barestep
