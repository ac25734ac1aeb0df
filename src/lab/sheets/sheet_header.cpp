#include "lab/sheets/sheet_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"
#include "core/lookup.h"
#include "core/units.h"
#include "lab/predict/asked_run.h"
#include "lab/report/page.h"
#include "lab/sheets/sheets.h"
#include "lab/study/experiment.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr std::pair<std::string_view, Word> kHeaderWords[] = {{"faster", Word::kFaster},
                                                              {"slower", Word::kSlower},
                                                              {"same", Word::kNoDifference},
                                                              {"above", Word::kAbove},
                                                              {"below", Word::kBelow}};

constexpr std::array kChecks = {kIdentityCheck, kArithmeticCheck, kPhysicsCheck};

/// What stands before and after the separator; nothing if it is not there.
std::optional<std::pair<std::string_view, std::string_view>> parted(std::string_view text,
                                                                    std::string_view separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  return std::pair(without_blanks(text.substr(0, at)),
                   without_blanks(text.substr(at + separator.size())));
}

/// Reads a header line by line.
class HeaderReader {
 public:
  explicit HeaderReader(const Sheet& sheet) : sheet_(sheet) {
    for (const std::string_view check : kChecks) {
      header_.items.push_back({.name = std::string(check), .points = 2, .by = MarkedBy::kCheck});
    }
    for (const SheetQuestion& question : questions_of(sheet)) {
      header_.items.push_back({.name = question.number});
    }
  }

  SheetHeader read() {
    std::size_t number = 1;
    bool is_table = false;
    for (const std::string_view line : split(sheet_.header, "\n")) {
      line_ = ++number;
      if (without_blanks(line).empty()) continue;
      if (!line.starts_with('|')) {
        read_setting(line);
      } else if (!is_table) {
        is_table = true;
        if (item_named(cells_of(line).front()) != header_.items.end()) {
          refuse("a table without its titles", "write '| check | points | marked by |' above it");
        }
      } else if (line.find_first_not_of("|-: ") != std::string_view::npos) {
        read_item(cells_of(line));
      }
    }
    if (std::ranges::find(header_.varied, "seed", &VariedOption::name) == header_.varied.end()) {
      header_.varied.push_back({"seed", 1, 1'000'000});
    }
    std::erase_if(header_.items, [](const MarkedItem& item) { return item.points == 0; });
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, std::string remedy) const {
    refuse_line(sheet_, line_, what, std::move(remedy));
  }

  [[nodiscard]] RawValue given(std::string_view text) const {
    return {.where = fmt::format("{}.md:{}", sheet_.name, line_),
            .text = std::string(text),
            .code = ExitCode::kBadData};
  }

  [[nodiscard]] std::int64_t whole(std::string_view text) const {
    return whole_number(given(text), {0, std::int64_t{1} << 40});
  }

  void read_setting(std::string_view line) {
    const auto setting = parted(line, ":");
    const std::string_view key = setting ? setting->first : "";
    if (key == "vary") {
      read_varied(setting->second);
    } else if (key == "band" && setting->second.ends_with('%')) {
      const std::string_view percent = setting->second.substr(0, setting->second.size() - 1);
      header_.band = 0.01 * static_cast<double>(whole(without_blanks(percent)));
    } else if (key == "intervals" && (setting->second == "yes" || setting->second == "no")) {
      header_.asks_intervals = setting->second == "yes";
    } else if (key == "measure") {
      for (const std::string_view name : split(setting->second, ",")) {
        const auto why = refusal_of(
            [&] { header_.measured.push_back(&experiment_of(std::string(without_blanks(name)))); });
        if (why) {
          refuse(fmt::format("an experiment that does not exist ({})", why->what()),
                 "write 'measure: monitor'");
        }
      }
    } else {
      refuse("what is no setting of a header",
             "write 'vary: OPTION LOW to HIGH by STEP', 'band: P %', 'intervals: yes', 'measure: "
             "EXPERIMENT' or a row of the table");
    }
  }

  void read_varied(std::string_view text) {
    constexpr const char* kForm = "write 'vary: dim 896 to 1152 by 64'";
    const auto named = parted(text, " ");
    const auto range = named ? parted(named->second, " to ") : std::nullopt;
    if (!range) refuse("a range that cannot be read", kForm);
    const bool takes_parts = !refusal_of([&] {
      new_setting(false, false, 1, {{std::string(named->first), "0.5"}});
    });
    if (takes_parts && !named->first.ends_with("-ms")) {
      refuse(fmt::format("'{}', which is no option of whole numbers", named->first), kForm);
    }
    const auto stepped = parted(range->second, " by ");
    VariedOption option{.name = std::string(named->first),
                        .low = whole(range->first),
                        .high = whole(stepped ? stepped->first : range->second),
                        .step = stepped ? whole(stepped->second) : 1};
    if (option.low > option.high || option.step < 1) refuse("a range without a value", kForm);
    if (std::ranges::find(header_.varied, option.name, &VariedOption::name) !=
        header_.varied.end()) {
      refuse(fmt::format("'{}' a second time", option.name), "write one line for each option");
    }
    if (option.low < option.high && option.step > option.high - option.low) {
      refuse("a step that is larger than its range", kForm);
    }
    for (const std::int64_t end : {option.low, option.high}) {
      const auto why = refusal_of([&] {
        new_setting(false, false, 1, {{option.name, text_of_number(end)}});
      });
      if (why) {
        refuse(fmt::format("an option that no run takes ({})", why->what()), kForm);
      }
    }
    header_.varied.push_back(std::move(option));
  }

  std::vector<MarkedItem>::iterator item_named(const std::string& name) {
    return std::ranges::find(header_.items, name, &MarkedItem::name);
  }

  void read_item(const std::vector<std::string>& cells) {
    constexpr const char* kForm = "write '| 2.1 | 1 | text |'";
    if (cells.size() < 2) refuse("a row without points", kForm);
    const auto found = item_named(cells[0]);
    if (found == header_.items.end()) {
      const std::size_t first = std::min(kChecks.size(), header_.items.size() - 1);
      refuse(fmt::format("points for '{}', which is no question of the sheet", cells[0]),
             fmt::format("the first one is '{}'", header_.items[first].name));
    }
    found->points = real_number(given(cells[1]), {.low = 0, .with_low = true, .end = 1000});
    if (cells.size() < 3 || cells[2].empty()) return;
    if (found->by == MarkedBy::kCheck) {
      refuse(fmt::format("a way of marking for {}, a check of the program", cells[0]),
             "leave this cell empty");
    }
    read_marking(cells[2], *found);
  }

  void read_marking(std::string_view text, MarkedItem& item) {
    if (text == "prediction") item.by = MarkedBy::kPrediction;
    if (text == "text" || text == "prediction") return;
    constexpr const char* kForm = "write 'text', 'prediction' or 'FINDING: yes=above, no=below'";
    const auto by = parted(text, ":");
    if (!by) refuse("a way of marking that does not exist", kForm);
    item.by = MarkedBy::kWord;
    const std::optional<SheetName> name = sheet_name(by->first);
    if (!name || name->finding.empty()) {
      const std::string near = nearest_sheet_name(by->first);
      refuse(fmt::format("'{}', which no experiment finds", by->first),
             near.empty() ? "mlp_lab sheet --names lists all" : "did you mean '" + near + "'?");
    }
    item.experiment = name->experiments.front();
    item.finding = name->finding;
    header_.measured.push_back(&experiment_of(item.experiment));
    for (const std::string_view answer : split(by->second, ",")) {
      const auto choice = parted(answer, "=");
      const Word* const word = choice ? found_in(kHeaderWords, choice->second) : nullptr;
      if (word == nullptr) {
        refuse(fmt::format("'{}', which is no answer with its word", without_blanks(answer)),
               "the words are faster, slower, same, above and below, as in 'yes=above'");
      }
      item.choices[std::string(choice->first)].push_back(*word);
    }
  }

  const Sheet& sheet_;
  SheetHeader header_;
  std::size_t line_ = 0;
};

}  // namespace

const MarkedItem* SheetHeader::item(std::string_view name) const {
  const auto found = std::ranges::find(items, name, &MarkedItem::name);
  return found == items.end() ? nullptr : &*found;
}

SheetHeader header_of(const Sheet& sheet) {
  return HeaderReader(sheet).read();
}

}  // namespace barestep
