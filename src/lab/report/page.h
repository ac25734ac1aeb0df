// Pages: written once, as Markdown with plots, and shown on a terminal or as HTML, without scripts
// or files from elsewhere, for the screen and for A4. md4c reads the Markdown.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/findings.h"

namespace barestep {

using Plots = std::map<std::string, Plot, std::less<>>;  // by file, as Markdown names them

struct Page {
  std::string title{};
  std::string markdown{};  // below the title
  Plots plots{};

  /// Adds a list of sentences, the tables and the plots, which plot_file(name, ...) names.
  void add(const std::vector<std::string>& sentences, const Findings& findings,
           std::string_view name);
};

/// With the plots within. A heading of ## begins a section, to which a link leads.
std::string html_of(const Page& page);

/// Writes report.md, report.html, or others with this name, and the plots into the folder. Throws
/// Error: kCannotCreate, kInputOutput.
void write_page(const std::filesystem::path& folder, const Page& page,
                const std::string& name = "report");

/// Escapes what Markdown would read as markup, for lines and for cells.
std::string markdown_text(std::string_view text);
/// Without a title if that is empty.
std::string markdown_table(const FindingTable& table);

/// A link to the section with this title, as Markdown.
std::string section_link(std::string_view title);

/// "plots/amdahl-1.svg"
std::string plot_file(std::string_view name, std::size_t number);

/// Escapes &, <, > and quotes for HTML, and puts no line break between a number and its unit.
std::string html_text(std::string_view text);

/// A whole page with the style that all pages share.
std::string html_page(const std::string& title, const std::string& body);

/// The blocks of a Markdown text, between blank lines, as their lines.
std::vector<std::vector<std::string>> blocks_of(std::string_view markdown);

/// The cells of a line "| a | b |" of a table, without blanks at their ends.
std::vector<std::string> cells_of(std::string_view line);

/// The body of a page: CommonMark with tables, without HTML of its own. A title right above code
/// folds it.
std::string html_of_markdown(std::string_view markdown);

/// Names in templates: {{name}}.
constexpr std::string_view kNameOpen = "{{", kNameClose = "}}";
using FillIn = std::function<std::string(std::string_view name)>;

/// The text with fill(name) in place of each {{name}}.
std::string filled_template(std::string_view text, const FillIn& fill);

/// The program on PATH that prints pages: Chromium, else WeasyPrint. Empty if there is none.
std::string find_page_printer();

/// The same. Throws Error(kNoDevice) if there is none.
std::string page_printer();

/// Prints a page to a PDF file by that program. Blocks. Throws Error: as page_printer() does;
/// kInputOutput if nothing is written.
void print_pdf(const std::filesystem::path& page, const std::filesystem::path& pdf);

}  // namespace barestep
