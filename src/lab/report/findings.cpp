#include "lab/report/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/text_table.h"

namespace barestep {
namespace {

/// `text` writes three digits or more, of which two are kept.
template <class Text>
std::string in_two_digits(double value, const Text& text) {
  std::string shown = text(std::stod(fmt::format("{:.1e}", value)));
  const std::size_t first = std::min(shown.find_first_of("123456789"), shown.size());
  const std::size_t end = std::min(shown.find_first_not_of("0123456789.", first), shown.size());
  const std::size_t point = shown.find('.');
  if (point >= end) return shown;
  const std::size_t keep = point < first ? first + 2 : point - first > 1 ? point : first + 3;
  return keep < end ? shown.erase(keep, end - keep) : shown;
}

/// `text` formats a number. A figure that is not certain has two digits, as have its ends.
template <class Text>
std::string interval_text(const Estimate& estimate, const Text& text) {
  if (!estimate.has_interval()) return text(estimate.median);
  const auto shown = [&](double value) {
    return is_certain(estimate) ? text(value) : in_two_digits(value, text);
  };
  return fmt::format("{} ({} to {})", shown(estimate.median), shown(estimate.low),
                     shown(estimate.high));
}

}  // namespace

const Finding* Findings::named(std::string_view name) const {
  for (const std::vector<Finding>* const all : {&timed, &untimed}) {
    const auto found = std::ranges::find(*all, name, &Finding::name);
    if (found != all->end()) return &*found;
  }
  return nullptr;
}

std::vector<std::string> texts_of(const std::vector<Finding>& findings) {
  std::vector<std::string> texts;
  for (const Finding& finding : findings) texts.push_back(finding.text);
  return texts;
}

std::vector<std::string> texts_of(const Findings& findings) {
  std::vector<std::string> texts = texts_of(findings.timed);
  std::ranges::move(texts_of(findings.untimed), std::back_inserter(texts));
  return texts;
}

std::string text_of(const std::vector<std::string>& sentences, const Findings& findings,
                    std::string_view rest) {
  std::string text;
  for (const std::string& sentence : sentences) text += fmt::format("  {}\n", sentence);
  std::vector<std::string_view> others;
  for (const FindingTable& table : findings.tables) {
    if (table.on_screen == 0) {
      others.push_back(table.title);
      continue;
    }
    std::vector<std::string> titles;
    for (const std::string& title : table.columns) {
      titles.push_back((titles.empty() ? "" : ">") + title);
    }
    TextTable shown(std::move(titles));
    const std::size_t rows = std::min(table.rows.size(), table.on_screen);
    for (std::size_t i = 0; i < rows; ++i) shown.add_row(table.rows[i]);
    text += fmt::format("\n  {}\n{}", table.title, shown.text(4));
    if (rows < table.rows.size()) {
      text += fmt::format("    and {} {}\n",
                          counted(static_cast<std::int64_t>(table.rows.size() - rows), "more row"),
                          rest);
    }
  }
  if (!others.empty()) text += fmt::format("\n  More {}: {}\n", rest, fmt::join(others, "; "));
  return text;
}

std::string time_text(const Estimate& seconds) {
  return interval_text(seconds, [](double value) { return time_text(value); });
}

std::string seconds_text(const Estimate& seconds) {
  return interval_text(seconds, [](double value) { return seconds_text(value); });
}

std::string if_certain(const Estimate& seconds, std::string sentence) {
  if (is_certain(seconds)) return sentence;
  return fmt::format("No conclusion: a time of {} is uncertain by more than half of it.",
                     time_text(seconds));
}

std::string factor_text(double factor) {
  return fmt::format("{:.2f}x", std::abs(factor) < 0.005 ? 0 : factor);  // not "-0.00x"
}

std::string factor_text(const Estimate& factor) {
  const bool is_on_a_side = factor.low > 1 || factor.high < 1;
  return interval_text(factor, [=](double value) {
    std::string text = factor_text(value);
    for (int digits = 3; is_on_a_side && digits < 9 && std::stod(text) == 1; ++digits) {
      text = fmt::format("{:.{}f}x", value, digits);
    }
    return text;
  });
}

std::string percent_text(const Estimate& share) {
  return interval_text(share, [](double value) { return percent_text(value); });
}

std::string simulated_time(double seconds) {
  return in_two_digits(seconds, [](double value) { return time_text(value); });
}

std::string simulated_number(double number) {
  return in_two_digits(number, number_text);
}

std::string simulated_percent(double share) {
  return in_two_digits(share, [](double value) { return percent_text(value); });
}

std::string simulated_factor(double factor) {
  return in_two_digits(factor, [](double value) { return factor_text(value); });
}

std::string list_text(const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string text = items.front();
  for (std::size_t i = 1; i < items.size(); ++i) {
    text += (i + 1 == items.size() ? " and " : ", ") + items[i];
  }
  return text;
}

}  // namespace barestep
