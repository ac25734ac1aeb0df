#include "lab/report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

std::string capitalized(std::string text) {
  if (!text.empty()) {
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  }
  return text;
}

/// "6.0 % less", "3.0 % more", from a ratio of times.
std::string more_text(double ratio) {
  return fmt::format("{} {}", percent_text(std::abs(ratio - 1)), ratio < 1 ? "less" : "more");
}

bool is_within(const Estimate& ratio, double margin) {
  return 1 / margin < ratio.low && ratio.high < margin;
}

/// The interval lies on one side of 1, and only the number of comparisons prevents the word.
std::string chance_text(const Comparison& comparison, const std::string& b, const std::string& a,
                        const std::string& noun) {
  const bool faster = comparison.ratio.high < 1;
  const std::size_t rounds =
      faster ? comparison.faster_rounds : comparison.rounds - comparison.faster_rounds;
  return fmt::format(
      "{} a {} was {} than {} in {} of {} rounds, which may be chance among {} comparisons.",
      capitalized(b), noun, faster ? "faster" : "slower", a, rounds, comparison.rounds,
      comparison.compared);
}

/// Whether so many rounds, if all agree, decide one of so many comparisons.
bool can_decide(std::size_t rounds, std::size_t comparisons) {
  const std::vector<double> agreeing(rounds, 1);
  return sign_test_p(agreeing) * static_cast<double>(comparisons) <= kSignificance;
}

std::string too_few_text(std::size_t comparisons) {
  return fmt::format("too few starts to say{}; {} are needed",
                     comparisons == 1 ? "" : fmt::format(" among {} comparisons", comparisons),
                     starts_needed(comparisons));
}

/// Given the sign test's p, adjusted for all comparisons that were examined. Faster (slower) if p
/// is at most 5 % and the interval is below (above) 1; otherwise no difference if the interval is
/// within the margin (two one-sided tests); otherwise undecided.
Word word_of(const Estimate& ratio, double p_holm, double margin) {
  if (p_holm <= kSignificance && ratio.high < 1) return Word::kFaster;
  if (p_holm <= kSignificance && ratio.low > 1) return Word::kSlower;
  return is_within(ratio, margin) ? Word::kNoDifference : Word::kUndecided;
}

}  // namespace

std::size_t starts_needed(std::size_t comparisons) {
  constexpr std::size_t kMin = 6, kMore = 3;
  std::size_t starts = kMin;
  while (!can_decide(starts, comparisons)) starts += kMore;
  return starts;
}

std::string too_few_of(std::span<const Comparison> family) {
  for (const Comparison& comparison : family) {
    if (comparison.word == Word::kTooFewStarts) return too_few_text(comparison.compared);
  }
  return "";
}

Estimate around(double value, const Estimate& interval) {
  return {value, std::min(interval.low, value), std::max(interval.high, value)};
}

Estimate estimate_by_round(std::span<const std::vector<double>> figures,
                           const std::function<double(std::span<const double>)>& op) {
  const std::size_t count =
      std::ranges::min(figures, {}, [](const auto& starts) { return starts.size(); }).size();
  std::vector<double> shown, rounds, of_round(figures.size());
  for (const std::vector<double>& starts : figures) {
    shown.push_back(estimate_of(std::span(starts).first(count)).median);
  }
  for (std::size_t round = 0; round < count; ++round) {
    std::ranges::transform(figures, of_round.begin(), [&](const auto& all) { return all[round]; });
    rounds.push_back(op(of_round));
  }
  return around(op(shown), estimate_of(rounds));
}

std::vector<Comparison> compare(const Series& reference, std::span<const Series> others,
                                double margin) {
  std::vector<Comparison> all;
  for (const Series& other : others) {
    const std::vector<double> differences =
        by_round(other.seconds, reference.seconds, std::minus<double>());
    const auto faster = std::ranges::count_if(differences, [](double value) { return value < 0; });
    all.push_back({.a = reference.key,
                   .b = other.key,
                   .ratio = ratio_by_round(other.seconds, reference.seconds),
                   .p = sign_test_p(differences),
                   .rounds = differences.size(),
                   .faster_rounds = static_cast<std::size_t>(faster),
                   .margin = margin});
  }
  adjust_together(all);
  return all;
}

void adjust_together(std::span<Comparison> comparisons) {
  std::vector<double> p;
  for (const Comparison& comparison : comparisons) p.push_back(comparison.p);
  const std::vector<double> adjusted = holm_adjusted(p);
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    Comparison& comparison = comparisons[i];
    comparison.p_holm = adjusted[i];
    comparison.compared = comparisons.size();
    comparison.word = word_of(comparison.ratio, comparison.p_holm, comparison.margin);
    if (comparison.word == Word::kUndecided &&
        !can_decide(comparison.rounds, comparison.compared)) {
      comparison.word = Word::kTooFewStarts;
    }
  }
}

Comparison compare(const Series& a, const Series& b, double margin) {
  return compare(a, std::span(&b, 1), margin).front();
}

std::string text_of(const Comparison& comparison, const std::string& b, const std::string& a,
                    const std::string& noun) {
  const Estimate& ratio = comparison.ratio;
  const std::string small =
      is_within(ratio, comparison.margin) ? ", a small difference"
      : is_within({ratio.median, ratio.median, ratio.median}, comparison.margin)
          ? ", perhaps a small difference"
          : "";
  switch (comparison.word) {
    case Word::kFaster:
      return fmt::format("{} a {} is faster than {}: {} as fast{}.", capitalized(b), noun, a,
                         factor_text(comparison.speed()), small);
    case Word::kSlower:
      return fmt::format("{} a {} is slower than {}: it takes {} as long{}.", capitalized(b), noun,
                         a, factor_text(ratio), small);
    case Word::kNoDifference:
      return fmt::format("{} a {} takes as long as {}, within {}: {}.", capitalized(b), noun, a,
                         chosen_percent(comparison.margin - 1), factor_text(ratio));
    case Word::kTooFewStarts:
      return fmt::format("{} a {} takes {} as long as {}: {}.", capitalized(b), noun,
                         factor_text(ratio), a, too_few_text(comparison.compared));
    default:
      break;
  }
  if (ratio.high < 1 || ratio.low > 1) return chance_text(comparison, b, a, noun);
  return fmt::format(
      "A {} {} and a {} {} are indistinguishable: the difference lies between {} and {} time.",
      noun, b, noun, a, more_text(ratio.low), more_text(ratio.high));
}

Fastest fastest_of(std::span<const Series> all, double margin) {
  BARESTEP_REQUIRE(!all.empty(), "the fastest needs a candidate");
  const auto best = std::ranges::min_element(
      all, {}, [](const Series& series) { return estimate_of(series.seconds).median; });
  Fastest fastest{.place = static_cast<std::size_t>(best - all.begin())};
  fastest.ties.push_back(fastest.place);
  std::vector<Series> others;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == fastest.place) continue;
    others.push_back(all[i]);
    places.push_back(i);
  }
  fastest.others = compare(*best, others, margin);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!fastest.others[i].is_slower()) fastest.ties.push_back(places[i]);
  }
  return fastest;
}

Word side_of(const Estimate& estimate, double border) {
  if (estimate.low > border) return Word::kAbove;
  return estimate.high < border ? Word::kBelow : Word::kOpen;
}

std::string by_side(Word side, std::string above, std::string below, std::string open) {
  return std::move(side == Word::kAbove ? above : side == Word::kBelow ? below : open);
}

LargestPart largest_of(std::span<const PartSeries> parts, std::span<const double> whole) {
  BARESTEP_REQUIRE(!parts.empty(), "the largest needs a part");
  const auto share_of = [&](const PartSeries& part) { return ratio_by_round(part.values, whole); };
  const auto first = std::ranges::max_element(
      parts, {}, [&](const PartSeries& part) { return share_of(part).median; });
  LargestPart largest{.names = {first->name}, .share = share_of(*first)};
  for (const PartSeries& part : parts) {
    if (&part == &*first) continue;
    const auto ahead = by_round(by_round(first->values, part.values, std::minus<double>()), whole,
                                std::divides<double>());
    if (side_of(estimate_of(ahead), 0) != Word::kAbove) largest.names.push_back(part.name);
  }
  return largest;
}

std::string largest_text(const LargestPart& largest, const std::string& whole) {
  const std::string share = percent_text(largest.share);
  if (!largest.is_alone()) {
    return fmt::format("the largest parts of {} are {}, which are indistinguishable; {} is {}",
                       whole, list_text(largest.names), largest.names.front(), share);
  }
  return fmt::format("{} is {}: {} of {}",
                     largest.is_most()             ? "the bottleneck"
                     : largest.is_less_than_half() ? "no part is more than half; the largest"
                                                   : "the largest part, perhaps more than half,",
                     largest.names.front(), share, whole);
}

}  // namespace barestep
