#include "lab/sheets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/error.h"
#include "core/input_file.h"
#include "lab/page.h"

namespace barestep {
namespace {

constexpr std::string_view kOpen = "{{", kClose = "}}";
constexpr std::int64_t kMostSheetBytes = 1 << 20;
constexpr const char* kBlankLine = "\\_\\_\\_\\_\\_\\_\\_\\_\\_\\_\\_\\_\n\n";

/// Calls visit(name) for each {{name}}, and returns the text with its results in their places.
template <class Visit>
std::string replaced(std::string_view text, const Visit& visit) {
  std::string out;
  for (std::size_t at = text.find(kOpen); at != std::string_view::npos; at = text.find(kOpen)) {
    const std::size_t end = text.find(kClose, at);
    if (end == std::string_view::npos) break;
    out += text.substr(0, at);
    out += visit(text.substr(at + kOpen.size(), end - at - kOpen.size()));
    text.remove_prefix(end + kClose.size());
  }
  return out + std::string(text);
}

bool has_name(std::string_view text) {
  return text.find(kOpen) != std::string_view::npos;
}

std::filesystem::path file_of_sheet(const std::string& name) {
  return std::filesystem::path(BARESTEP_SHEETS) / (name + ".md");
}

[[noreturn]] void refuse_name(const Sheet& sheet, std::string_view name) {
  const std::size_t place = sheet.text.find(fmt::format("{}{}{}", kOpen, name, kClose));
  const auto line = 1 + std::count(sheet.text.begin(),
                                   sheet.text.begin() + static_cast<std::ptrdiff_t>(place), '\n');
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

using FillIn = std::function<std::string(std::string_view name)>;

/// `is_blank` leaves out simulated columns.
std::string table_text(const std::vector<std::string>& lines, const FillIn& fill, bool is_blank) {
  const std::vector<std::string> titles = cells_of(lines.front());
  std::string text;
  for (const std::string& line : lines) {
    text += '|';
    const std::vector<std::string> cells = cells_of(line);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (is_blank && i < titles.size() && titles[i].starts_with("Simulated")) continue;
      text += fmt::format(" {} |", replaced(cells[i], fill));
    }
    text += '\n';
  }
  return text + '\n';
}

bool is_table(const std::vector<std::string>& lines) {
  return lines.front().starts_with('|');
}

/// An answer says a thing once, for example that a section is invalid.
std::string paragraph_text(const std::vector<std::string>& lines, const FillIn& fill) {
  std::vector<std::string> said;
  std::string text;
  for (const std::string& line : lines) {
    text += replaced(line, [&](std::string_view name) -> std::string {
      std::string words = fill(name);
      if (std::ranges::find(said, words) != said.end()) return "";
      said.push_back(words);
      return words;
    });
    text += '\n';
  }
  // What was said before leaves its blanks behind.
  for (std::size_t at = text.find("  "); at != std::string::npos; at = text.find("  ", at)) {
    text.erase(at, 1);
  }
  return text.find_first_not_of(" \n") == std::string::npos ? "" : text + '\n';
}

}  // namespace

std::vector<std::string> sheet_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(BARESTEP_SHEETS)) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

Sheet load_sheet(const std::string& name_or_file) {
  const bool is_file = name_or_file.ends_with(".md");
  if (!is_file && !std::filesystem::exists(file_of_sheet(name_or_file))) {
    const std::vector<std::string> names = sheet_names();
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string near(nearest(name_or_file, views));
    fail(ExitCode::kUsage,
         {.what = "sheet",
          .value = name_or_file,
          .why = "no sheet has this name",
          .remedy = near.empty()
                        ? fmt::format("name one of {}, or a file in .md", fmt::join(names, ", "))
                        : fmt::format("did you mean '{}'? a file's name ends in .md", near)});
  }
  const std::filesystem::path path =
      is_file ? std::filesystem::path(name_or_file) : file_of_sheet(name_or_file);
  Sheet sheet{.name = path.stem().string(), .text = InputFile(path, "sheet").text(kMostSheetBytes)};
  replaced(sheet.text, [&](std::string_view name) {
    name_in(sheet, name);
    return "";
  });
  return sheet;
}

std::vector<const Experiment*> experiments_of(const Sheet& sheet) {
  std::vector<const Experiment*> all;
  replaced(sheet.text, [&](std::string_view name) {
    for (const std::string& each : name_in(sheet, name).experiments) {
      const Experiment* const experiment = &experiment_of(each);
      if (std::ranges::find(all, experiment) == all.end()) all.push_back(experiment);
    }
    return "";
  });
  return all;
}

std::string markdown_of(const Sheet& sheet, const SheetRuns& runs, SheetCopy copy) {
  const FillIn fill = [&](std::string_view name) { return name_in(sheet, name).text(runs); };
  std::string text;
  for (const std::vector<std::string>& block : blocks_of(sheet.text)) {
    if (block.front().starts_with('>') && copy != SheetCopy::kKey) continue;
    text += is_table(block) ? table_text(block, fill, false) : paragraph_text(block, fill);
  }
  return text;
}

std::string blank_copy_of(const Sheet& sheet) {
  const FillIn nothing = [](std::string_view) { return ""; };
  std::string text;
  for (const std::vector<std::string>& block : blocks_of(sheet.text)) {
    if (block.front().starts_with('>')) continue;
    if (is_table(block)) {
      text += table_text(block, nothing, true);
      continue;
    }
    bool is_answer = false, has_names = false;
    for (const std::string& line : block) {
      has_names = has_names || has_name(line);
      replaced(line, [&](std::string_view name) {
        is_answer = is_answer || !name_in(sheet, name).is_note;
        return "";
      });
    }
    if (!has_names) text += paragraph_text(block, nothing);
    if (is_answer) text += kBlankLine;
  }
  return text;
}

std::string sheet_page(const Sheet& sheet, std::string_view markdown) {
  return html_page(sheet.name,
                   fmt::format("<main class=\"sheet\">\n{}</main>\n", html_of_markdown(markdown)));
}

}  // namespace barestep
