#include "lab/sheets/sheets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <tuple>

#include "core/error.h"
#include "core/input_file.h"
#include "core/units.h"
#include "lab/predict/prediction.h"
#include "lab/report/page.h"
#include "lab/sheets/sheet_header.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxSheetBytes = 1 << 20;

/// A line to write on, as wide as a phone's page.
std::string blank_line(int letters = 38) {
  std::string line;
  for (int i = 0; i < letters; ++i) line += "\\_";
  return line;
}

/// Room for an answer.
std::string blank_lines() {
  return fmt::format("{0}\n\n{0}\n\n{0}\n\n", blank_line());
}

bool has_name(std::string_view text) {
  return text.find(kNameOpen) != std::string_view::npos;
}

std::filesystem::path sheets_folder() {
  return installed_file(BARESTEP_LAB, "sheets");
}

[[noreturn]] void refuse_name(const Sheet& sheet, std::string_view name) {
  const std::size_t place = sheet.text.find(fmt::format("{}{}{}", kNameOpen, name, kNameClose));
  const auto line =
      static_cast<std::ptrdiff_t>(sheet.text_line) +
      std::count(sheet.text.begin(), sheet.text.begin() + static_cast<std::ptrdiff_t>(place), '\n');
  const std::string near = nearest_sheet_name(name);
  fail(ExitCode::kBadData,
       {.what = "name",
        .value = std::string(name),
        .why = fmt::format("{}.md, line {}, has a name that stands for nothing", sheet.name, line),
        .remedy = (near.empty() ? "" : "did you mean '" + near + "'? ") +
                  "mlp_lab sheet --names lists all"});
}

SheetName name_in(const Sheet& sheet, std::string_view name) {
  std::optional<SheetName> found = sheet_name(name);
  if (!found) refuse_name(sheet, name);
  return *std::move(found);
}

bool is_question(const std::vector<std::string>& lines) {
  return lines.front().starts_with("**") &&
         (lines.back().ends_with("?**") || lines.back().ends_with(".**"));
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

/// That tables stand alone and have a cell in each column, and that names have both braces. `lines`
/// are those of the sheet.
void require_line(const Sheet& sheet, const std::vector<std::string_view>& lines, std::size_t at) {
  const std::string_view line = lines[at];
  if (count_of(line, kNameOpen) != count_of(line, kNameClose)) {
    refuse_line(sheet, at + sheet.text_line, "a name without one of its braces",
                "write {{name}} on one line");
  }
  if (!line.starts_with('|') || at == 0 || lines[at - 1].empty()) return;
  if (!lines[at - 1].starts_with('|')) {
    refuse_line(sheet, at + sheet.text_line, "a table right below other text",
                "put an empty line above it");
  }
  const std::size_t cells = cells_of(std::string(line)).size();
  const std::size_t columns = cells_of(std::string(lines[at - 1])).size();
  if (cells == columns) return;
  refuse_line(sheet, at + sheet.text_line,
              fmt::format("{} below {}", counted(std::int64_t(cells), "cell"), columns),
              "write a cell in each column");
}

/// What a question lacks if it is followed by another block than its answer.
bool can_answer(const std::vector<std::string>& block) {
  return block.front().find_first_of("#>") != 0 && !is_question(block);
}

/// Refuses, with its line, what would be shown otherwise than it was meant.
void require_form(const Sheet& sheet) {
  const std::vector<std::string_view> lines = split(sheet.text, "\n");
  for (std::size_t at = 0; at < lines.size(); ++at) require_line(sheet, lines, at);
  const std::vector<std::vector<std::string>> blocks = blocks_of(sheet.text);
  if (blocks.empty())
    refuse_line(sheet, sheet.text_line, "no text", "write a sheet, such as one of src/lab/sheets");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!is_question(blocks[i]) || (i + 1 < blocks.size() && can_answer(blocks[i + 1]))) continue;
    const auto line = std::ranges::find(lines, std::string_view(blocks[i].front()));
    refuse_line(sheet, static_cast<std::size_t>(line - lines.begin()) + sheet.text_line,
                "a question without an answer", "write its answer in the paragraph below");
  }
}

/// A text's first sentence, with the blanks that separate it from the next one. A formula between
/// stars ends with its star; a name that stands for a sentence is one.
std::string_view first_sentence(const Sheet& sheet, std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    bool ends = std::string_view(".?!*").find(text[at]) != std::string_view::npos;
    if (text.substr(at).starts_with(kNameOpen)) {
      const std::size_t end = text.find(kNameClose, at);
      if (end == std::string_view::npos) return text;
      const SheetName name =
          name_in(sheet, text.substr(at + kNameOpen.size(), end - at - kNameOpen.size()));
      ends = name.kind != SheetNameKind::kFigure;
      at = end + 1;
    }
    ++at;
    if (!ends || (at < text.size() && text[at] != ' ' && text[at] != '\n')) continue;
    const std::size_t next = text.find_first_not_of(" \n", at);
    return text.substr(0, next);
  }
  return text;
}

/// `is_blank` leaves out simulated columns.
std::string table_text(const std::vector<std::string>& lines, const FillIn& fill, bool is_blank) {
  const std::vector<std::string> titles = cells_of(lines.front());
  std::string text;
  for (const std::string& line : lines) {
    text += '|';
    const std::vector<std::string> cells = cells_of(line);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (is_blank && i < titles.size() && titles[i].starts_with("Simulated")) continue;
      text += fmt::format(" {} |", filled_template(cells[i], fill));
    }
    text += '\n';
  }
  return text + '\n';
}

/// Moves the lines between the two of --- at the top.
void take_header(Sheet& sheet) {
  constexpr std::string_view kFence = "---\n";
  if (!sheet.text.starts_with(kFence)) return;
  const std::size_t end = sheet.text.find("\n---\n", kFence.size() - 1);
  if (end == std::string::npos) {
    refuse_line(sheet, 1, "a header without its end", "write --- on a line of its own below it");
  }
  sheet.header = sheet.text.substr(kFence.size(), std::max(end + 1, kFence.size()) - kFence.size());
  sheet.text.erase(0, end + 1 + kFence.size());
  sheet.text_line = 3 + count_of(sheet.header, "\n");
}

bool is_table(const std::vector<std::string>& lines) {
  return lines.front().starts_with('|');
}

/// A sentence filled in, and if it has a figure that cannot be shown, why.
struct FilledSentence {
  std::string text, withheld{};
};

FilledSentence filled_sentence(const Sheet& sheet, const SheetRuns& runs,
                               std::string_view sentence) {
  FilledSentence filled;
  filled.text = filled_template(sentence, [&](std::string_view name) {
    const SheetName found = name_in(sheet, name);
    std::string words = found.text(runs);
    if (filled.withheld.empty()) {
      const std::string trouble = found.trouble(runs);
      const std::string why =
          found.why_none && words == kNotSimulated ? found.why_none(runs) : std::string();
      filled.withheld = words == kNotRun         ? "This was not run."
                        : !trouble.empty()       ? trouble
                        : words != kNotSimulated ? ""
                        : why.empty()            ? "There is no such figure."
                                                 : fmt::format("Not simulated: {}.", why);
    }
    return words;
  });
  return filled;
}

/// A paragraph says a thing once. What cannot be said, for example because a section is invalid, is
/// told at its end, so that an answer begins with what needs no times.
std::string paragraph_text(const Sheet& sheet, const SheetRuns& runs,
                           const std::vector<std::string>& lines) {
  const bool keeps_lines = lines.front().starts_with("- ") || lines.front().starts_with('>');
  const std::string block = fmt::format("{}\n", fmt::join(lines, keeps_lines ? "\n" : " "));
  std::string text;
  std::vector<std::string> said, withheld;
  const auto is_new = [](std::vector<std::string>& all, const std::string& what) {
    if (std::ranges::find(all, what) != all.end()) return false;
    all.push_back(what);
    return true;
  };
  for (std::string_view rest = block; !rest.empty();) {
    const std::string_view sentence = first_sentence(sheet, rest);
    rest.remove_prefix(sentence.size());
    const FilledSentence filled = filled_sentence(sheet, runs, sentence);
    if (!filled.withheld.empty()) {
      is_new(withheld, filled.withheld);
    } else if (is_new(said, filled.text.substr(0, filled.text.find_last_not_of(" \n") + 1)) ||
               !has_name(sentence)) {
      text += filled.text;
    }
  }
  text.erase(text.find_last_not_of(" \n") + 1);
  for (const std::string& sentence : withheld) text += (text.empty() ? "" : " ") + sentence;
  return text.empty() ? "" : text + "\n\n";
}

std::string block_text(const std::vector<std::string>& lines) {
  return fmt::format("{}\n\n", fmt::join(lines, "\n"));
}

/// A block of a blank copy other than a table.
std::string blank_text(const Sheet& sheet, const std::vector<std::string>& lines) {
  bool is_answer = false;
  const std::string text = block_text(lines);
  if (lines.front().starts_with('#')) {
    const std::size_t name = text.find(kNameOpen);
    return has_name(text) ? text.substr(0, std::min(name, text.rfind(':', name))) + "\n\n" : text;
  }
  filled_template(text, [&](std::string_view name) {
    is_answer = is_answer || name_in(sheet, name).kind == SheetNameKind::kTable;
    return "";
  });
  return is_answer ? blank_lines() : has_name(text) ? "" : text;
}

/// Of a sheet without options on the machine of `simulations`.
SheetPrice plain_price(const Sheet& sheet, const Simulations& simulations) {
  const MachineCard& card = simulations.card();
  return price_of(sheet, new_setting(false, card.on_gpu, card.max_ranks()), simulations);
}

std::string cost_line(const SheetPrice& price) {
  constexpr const char* kOther = "`mlp_lab` says what your machine needs before its first start";
  return price.starts == 0 ? "" : fmt::format("Cost: {}. {}.\n\n", price.text(), kOther);
}

/// Below a heading: how students measure what the text up to the next one asks for.
std::string task_command(const Sheet& sheet, std::span<const std::vector<std::string>> blocks,
                         const Simulations& simulations) {
  Sheet task{.name = sheet.name, .text = ""};
  for (const std::vector<std::string>& block : blocks) {
    if (!task.text.empty() && block.front().starts_with('#')) break;
    task.text += block_text(block);
  }
  std::string names;
  for (const Experiment* const experiment : experiments_of(task)) {
    names += fmt::format(" {}", experiment->name);
  }
  if (names.empty()) return "";
  const std::int64_t starts = plain_price(task, simulations).starts;
  const std::string cost = starts == 0 ? "" : fmt::format(" ({})", counted(starts, "start"));
  return fmt::format("To measure: `build/mlp_lab run{}`{}\n\n", names, cost);
}

using SheetBlock = std::vector<std::string>;

/// What a question asks for besides its text.
std::string request_of(const MarkedItem* item) {
  if (item == nullptr || item->by == MarkedBy::kText) return "";
  if (item->by == MarkedBy::kPrediction) return " Write it, and why, before you measure.";
  std::vector<std::string> answers;
  for (const auto& [answer, words] : item->choices) answers.push_back(answer);
  return fmt::format(" Choose {} or {}.", fmt::join(answers, ", "), kCannotBeSaid);
}

/// The numbers of the headings of ##: "5B" of "## 5B. The batch", if each begins with one of its
/// own, else their places.
std::vector<std::string> heading_numbers(const std::vector<SheetBlock>& blocks) {
  std::vector<std::string> own, places;
  bool have_own = true;
  for (const SheetBlock& block : blocks) {
    if (!block.front().starts_with("## ")) continue;
    const std::string number = block.front().substr(3, block.front().find_first_of(". ", 3) - 3);
    have_own = have_own && std::ranges::find(own, number) == own.end() &&
               number.find_first_of("0123456789") == 0 &&
               std::ranges::all_of(number, [](unsigned char c) { return std::isalnum(c) != 0; });
    own.push_back(number);
    places.push_back(std::to_string(own.size()));
  }
  return have_own ? own : places;
}

/// Its blocks, with what questions ask for besides their text, and with their numbers: "2.1" is the
/// first one below heading 2.
std::vector<SheetBlock> asked_blocks(const Sheet& sheet, bool with_numbers = true) {
  const SheetHeader header = sheet.header.empty() ? SheetHeader{} : header_of(sheet);
  std::vector<SheetBlock> blocks = blocks_of(sheet.text);
  const std::vector<std::string> headings = heading_numbers(blocks);
  std::size_t heading = 0;
  int question = 0;
  for (SheetBlock& block : blocks) {
    if (block.front().starts_with("## ")) {
      ++heading;
      question = 0;
    }
    if (!is_question(block)) continue;
    const std::string number =
        fmt::format("{}{}", heading == 0 ? "" : headings[heading - 1] + ".", ++question);
    block.back().insert(block.back().size() - 2, request_of(header.item(number)));
    if (with_numbers) block.front().insert(2, number + " ");
  }
  return blocks;
}

/// The blocks of a copy for students: without the key, and with room in place of answers.
template <class TextOf>
std::string with_room(const std::vector<SheetBlock>& blocks, const TextOf& text_of) {
  std::string text;
  bool is_answer = false, is_answered = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SheetBlock& block = blocks[i];
    const bool ends_answer = is_table(block) || block.front().find_first_of("#>") == 0;
    is_answer = is_answer && !ends_answer && !is_question(block);
    if (!is_answer && !block.front().starts_with('>')) {
      text += text_of(i);
    } else if (is_answer && !is_answered) {
      text += blank_lines();
    }
    is_answered = is_answer;
    is_answer = is_answer || is_question(block);
  }
  return text;
}

/// Of a question of a copy; else empty.
std::string number_of(const SheetBlock& block) {
  const std::string& text = block.front();
  const std::size_t blank = std::min(text.find(' '), text.size());
  const bool has_number = is_question(block) && text.find_first_of("0123456789") == 2;
  return has_number ? text.substr(2, blank - 2) : "";
}

/// Lines to write on.
bool is_room(const SheetBlock& block) {
  return std::ranges::all_of(block, [](const std::string& line) {
    return line.find_first_not_of("\\_ ") == std::string::npos;
  });
}

/// Whether a block, other than a table, is no answer.
bool ends_answers(const SheetBlock& block) {
  return block.front().starts_with('#') || block.front().starts_with("Checklist: ");
}

constexpr std::string_view kNameLine = "Name: ";

bool is_name(const SheetBlock& block) {
  return block.front().starts_with(kNameLine);
}

/// Below the first block, unless the sheet has it already.
std::string name_line(const std::vector<SheetBlock>& blocks, std::size_t at,
                      const std::string& student = blank_line(16)) {
  if (at != 0 || std::ranges::any_of(blocks, is_name)) return "";
  return fmt::format("{}{} Date: {}\n\n", kNameLine, student, blank_line(8));
}

}  // namespace

void refuse_line(const Sheet& sheet, std::size_t line, const std::string& what,
                 std::string remedy) {
  fail(ExitCode::kBadData, {.what = "line",
                            .value = std::to_string(line),
                            .why = fmt::format("{}.md has {} there", sheet.name, what),
                            .remedy = std::move(remedy)});
}

std::vector<std::string> sheet_names() {
  std::vector<std::string> names = installed_names(sheets_folder(), ".md");
  // practical10 is the last one, not the first.
  std::ranges::stable_sort(names, {}, [](const std::string& name) {
    const std::size_t number = std::min(name.find_first_of("0123456789"), name.size());
    return std::tuple(name.substr(0, number), name.size() - number);
  });
  return names;
}

Sheet load_sheet(const std::string& name_or_file) {
  const std::filesystem::path path =
      given_or_installed("sheet", name_or_file, sheets_folder(), sheet_names(), ".md");
  Sheet sheet{.name = path.stem().string(), .text = InputFile(path, "sheet").text(kMaxSheetBytes)};
  std::erase(sheet.text, '\r');
  take_header(sheet);
  require_form(sheet);
  filled_template(sheet.text, [&](std::string_view name) {
    name_in(sheet, name);
    return "";
  });
  header_of(sheet);
  return sheet;
}

std::vector<const Experiment*> experiments_of(const Sheet& sheet) {
  std::vector<const Experiment*> all;
  const auto add = [&](const Experiment& experiment) {
    if (std::ranges::find(all, &experiment) == all.end()) all.push_back(&experiment);
  };
  filled_template(sheet.text, [&](std::string_view name) {
    for (const std::string& experiment : name_in(sheet, name).experiments)
      add(experiment_of(experiment));
    return "";
  });
  for (const Experiment* const experiment : header_of(sheet).measured) add(*experiment);
  return all;
}

std::string markdown_of(const Sheet& sheet, const SheetRuns& runs, SheetCopy copy) {
  const FillIn cell = [&](std::string_view name) {
    const SheetName found = name_in(sheet, name);
    const bool is_figure = found.kind == SheetNameKind::kFigure;
    const std::string trouble = is_figure ? "" : found.trouble(runs);
    return trouble.empty() ? found.text(runs) : trouble;
  };
  const std::vector<SheetBlock> blocks = asked_blocks(sheet);
  const auto filled = [&](const SheetBlock& block) {
    return is_table(block) ? table_text(block, cell, false) : paragraph_text(sheet, runs, block);
  };
  std::string text;
  if (copy == SheetCopy::kFigures) {
    text =
        with_room(blocks, [&](std::size_t i) { return filled(blocks[i]) + name_line(blocks, i); });
  } else {
    for (const SheetBlock& block : blocks) {
      if (!block.front().starts_with('>') || copy == SheetCopy::kKey) text += filled(block);
    }
  }
  const std::string foot = fmt::format("{}{}{}", kNameOpen, kChecklistName, kNameClose);
  if (sheet.text.find(foot) != std::string::npos) return text;
  return text + paragraph_text(sheet, runs, {foot});
}

SheetPrice price_of(const Sheet& sheet, const Setting& setting, const Simulations& simulations) {
  SheetPrice price{.machine = simulations.card().name};
  for (const Experiment* const experiment : experiments_of(sheet)) {
    const int starts = starts_of(*experiment, setting);
    for (const Case& what : experiment->cases(setting)) {
      const SimulatedStep* const step = simulations.step_of(what.workload);
      const bool is_run = what.made == nullptr && !what.workload.pytorch;
      price.starts += starts;
      price.runs += is_run ? 1 : 0;
      if (step == nullptr) {
        price.unpriced += is_run ? 1 : 0;
        continue;
      }
      price.step_s += step->step_s;
      price.seconds += starts * seconds_of_start(what.workload, step->step_s);
      if (price.trouble.empty()) {
        price.trouble = why_too_large(what.workload, simulations.card());
      }
    }
  }
  return price;
}

std::string SheetPrice::text() const {
  if (starts == 0) return "";
  constexpr std::string_view kMeasured = "this machine, ";  // perhaps not the reader's
  const std::string on = machine.substr(machine.starts_with(kMeasured) ? kMeasured.size() : 0);
  const std::string count = counted(starts, "start");
  if (seconds == 0) return fmt::format("{} on {} (their time cannot be simulated)", count, on);
  return fmt::format(
      "{}, about {} on {} (simulated{})", count,
      counted(std::lround(std::ceil(seconds / 60)), "minute"), on,
      unpriced == 0 ? "" : fmt::format(", without {} of {}", unpriced, counted(runs, "case")));
}

std::string blank_copy_of(const Sheet& sheet, const Simulations& simulations) {
  const std::vector<SheetBlock> blocks = asked_blocks(sheet);
  const FillIn nothing = [](std::string_view) { return ""; };
  return with_room(blocks, [&](std::size_t i) {
    const SheetBlock& block = blocks[i];
    std::string text =
        is_table(block) ? table_text(block, nothing, true) : blank_text(sheet, block);
    text += name_line(blocks, i);
    if (i == 0) text += cost_line(plain_price(sheet, simulations));
    if (block.front().starts_with('#')) {
      text += task_command(sheet, std::span(blocks).subspan(i), simulations);
    }
    return text;
  });
}

std::string template_of(const Sheet& sheet, const std::string& student) {
  const std::vector<SheetBlock> blocks = asked_blocks(sheet, false);
  const std::string text = with_room(blocks, [&](std::size_t i) {
    return block_text(blocks[i]) + name_line(blocks, i, markdown_text(student));
  });
  const std::vector<const Experiment*> named = experiments_of({.name = sheet.name, .text = text});
  std::vector<std::string> others;
  for (const Experiment* const experiment : experiments_of(sheet)) {
    if (std::ranges::find(named, experiment) == named.end()) others.emplace_back(experiment->name);
  }
  return others.empty() ? text
                        : fmt::format("---\nmeasure: {}\n---\n{}", fmt::join(others, ", "), text);
}

std::vector<SheetQuestion> questions_of(const Sheet& sheet) {
  const Sheet bare{.name = sheet.name, .text = sheet.text};
  std::string text;
  for (const SheetBlock& block : asked_blocks(bare)) text += block_text(block);
  return questions_in(text);
}

std::vector<SheetQuestion> questions_in(std::string_view copy) {
  std::vector<SheetQuestion> questions;
  bool is_answer = false;
  for (const SheetBlock& block : blocks_of(copy)) {
    const std::string text = fmt::format("{}", fmt::join(block, " "));
    if (const std::string number = number_of(block); !number.empty()) {
      const std::size_t begin = number.size() + 3;
      questions.push_back({number, text.substr(begin, text.size() - begin - 2)});
      is_answer = true;
    } else if (text.starts_with('>') && !questions.empty()) {
      std::string& key = questions.back().key;
      for (std::string line : block) {
        line.erase(0, line.find_first_not_of("> "));
        key += (key.empty() ? "" : " ") + line;
      }
    } else if (is_table(block) || ends_answers(block)) {
      is_answer = false;
    } else if (is_answer && !is_room(block)) {
      std::string& answer = questions.back().answer;
      answer += (answer.empty() ? "" : " ") + text;
    }
  }
  return questions;
}

std::string with_answers(std::string_view copy, std::string_view answered) {
  const std::vector<SheetBlock> blocks = blocks_of(copy);
  const auto is_of_sheet = [&](const SheetBlock& block) {  // a table
    return std::ranges::any_of(
        blocks, [&](const auto& of_copy) { return of_copy.front() == block.front(); });
  };
  std::map<std::string, std::string> answers;  // by number
  std::string name, number;
  for (const SheetBlock& block : blocks_of(answered)) {
    const std::string own = number_of(block);
    const bool ends =
        !own.empty() || ends_answers(block) || (is_table(block) && is_of_sheet(block));
    if (is_name(block)) name = block_text(block);
    if (!ends && !number.empty() && !is_room(block)) answers[number] += block_text(block);
    if (ends) number = own;
  }
  std::string text;
  number.clear();
  for (const SheetBlock& block : blocks) {
    const auto answer = answers.find(number);
    if (answer != answers.end() && is_room(block)) continue;
    text += is_name(block) && !name.empty() ? name : block_text(block);
    number = number_of(block);
    if (answers.contains(number)) text += answers[number];
  }
  return text;
}

std::string sheet_page(const Sheet& sheet, std::string_view markdown) {
  return html_page(sheet.name,
                   fmt::format("<main class=\"sheet\">\n{}</main>\n", html_of_markdown(markdown)));
}

}  // namespace barestep
