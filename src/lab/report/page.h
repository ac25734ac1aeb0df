// Pages of HTML, without scripts or files from elsewhere but pictures, for the screen and for A4;
// and the part of Markdown that sheets use.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/findings.h"

namespace barestep {

/// Escapes &, <, > and quotes for HTML, and puts no line break between a number and its unit.
std::string html_text(std::string_view text);

std::string html_table(const FindingTable& table);

/// A whole page with the style that all pages share.
std::string html_page(const std::string& title, const std::string& body);

/// The blocks of a Markdown text, between blank lines, as their lines.
std::vector<std::vector<std::string>> blocks_of(std::string_view markdown);

/// The cells of a line "| a | b |" of a table, without blanks at their ends.
std::vector<std::string> cells_of(std::string_view line);

/// The body of a page. Headings, paragraphs, tables, lists without levels, quotes; in them bold,
/// italic, code, links and pictures. Everything else stays as it is written.
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
