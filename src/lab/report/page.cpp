#include "lab/report/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <md4c-html.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "core/error.h"
#include "core/output_file.h"
#include "core/units.h"
#include "lab/child.h"
#include "lab/report/svg.h"

namespace barestep {
namespace {

constexpr const char* kPageStyle = R"(:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:80rem;color:#222;background:#fff}
.option{white-space:nowrap}h1,h2{line-height:1.2}h1,h2,p,li{overflow-wrap:break-word}p,ul,blockquote{max-width:62rem}section{border-top:1px solid #ccc;padding-top:1rem;margin-top:2.5rem}
section h2{margin-top:0}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;font-variant-numeric:tabular-nums}
.title{margin-bottom:.3rem}
th,td{padding:.25rem .45rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child,.summary th,.summary td{text-align:left}
pre{overflow-x:auto;background:#f5f5f5;padding:.7rem;font-size:12px}
nav ul{list-style:none;padding:0;columns:2}#summary ul{font-size:13px;color:#555;columns:2}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),46rem))}
figure{margin:0;padding:.5rem;background:#fff;border:1px solid #ddd;border-radius:6px;break-inside:avoid}
.summary{width:100%}.summary td{vertical-align:middle}.summary svg{width:7.5rem;display:block;border-radius:4px}
.scroll,figure{overflow-x:auto}blockquote p{margin:0}blockquote{border-left:4px solid #009e73;margin:0;padding:.1rem .8rem}
.invalid{border-color:#d55e00;padding:.3rem .8rem;background:#fdf0e8}
.sheet img{max-width:100%;background:#fff}
@media screen{td:first-child{min-width:7em}.summary td:first-child,.sheet td:first-child{min-width:0}
.bs-plot{min-width:600px}}
@media screen and (max-width:40rem){h1{font-size:1.5em}.summary th:first-child,.summary td:first-child{display:none}
td+td{white-space:nowrap}.summary td{white-space:normal}}
@media screen and (min-width:100rem){body{max-width:110rem;padding:1rem 2rem}
.page{display:grid;grid-template-columns:15rem minmax(0,1fr);gap:2.5rem}
nav{position:sticky;top:1rem;align-self:start;max-height:95vh;overflow-y:auto;font-size:14px}nav ul{columns:1}}
@media screen and (prefers-color-scheme:dark){body{color:#ddd;background:#161616}#summary ul{color:#aaa}
section,th,td,figure{border-color:#444}pre{background:#222}figure{background:#1c1c1c}.invalid{background:#3a2418}}
@page{size:A4;margin:12mm}
@media print{body{max-width:none;margin:0;padding:0;font-size:9.5pt}nav,details{display:none}
h1{margin:0}section{margin-top:1.2rem}h2,.title{break-after:avoid}
#summary{margin:0;padding:0;border:0;break-after:page}#summary ul{font-size:7pt;margin:.2rem 0}
.summary{font-size:6.5pt;margin:.2rem 0;line-height:1.2}.summary th,.summary td{padding:.06rem .3rem}
.summary svg{width:16mm}.scroll{overflow:visible}
table{font-size:7pt;break-inside:avoid}th,td{padding:.12rem .25rem}
.sheet p{break-inside:avoid}.plots{display:block}figure{border:0;overflow:visible}.bs-plot{max-width:17cm}}
)";

constexpr std::string_view kNoBreak = "\u00a0";

/// "ms" in "12.3 ms", "%" in "5 %".
bool is_unit(std::string_view word) {
  static constexpr std::array<std::string_view, 29> kUnits = {
      "s",     "ms",    "us",     "ns",      "%",       "B",       "KiB",       "MiB",
      "GiB",   "TiB",   "kB",     "MB",      "GB",      "TB",      "GB/s",      "MB/s",
      "GiB/s", "MiB/s", "FLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "samples/s", "flops",
      "W",     "J",     "mJ",     "MHz",     "GHz"};
  return std::ranges::find(kUnits, word) != kUnits.end();
}

/// Puts no line break between a number and its unit.
std::string unbroken(std::string text) {
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1)) {
    if (at == 0 || text[at - 1] < '0' || text[at - 1] > '9') continue;
    const std::size_t end = text.find_first_of(" ,;:.)(", at + 1);
    if (is_unit(std::string_view(text).substr(at + 1, end - at - 1))) {
      text.replace(at, 1, kNoBreak);
    }
  }
  return text;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += fmt::format(" {} |", markdown_text(cell));
  return row + "\n";
}

/// Whether an address leads to a page or a person, and not to a script: it is relative, or says so.
bool is_safe(std::string_view address) {
  const std::size_t colon = address.find_first_of(":/?#");
  if (colon == std::string_view::npos || address[colon] != ':') return true;
  const std::string_view scheme = address.substr(0, colon);
  return scheme == "http" || scheme == "https" || scheme == "mailto";
}

/// The HTML with tag_of(tag, address) in place of each tag that begins with `opening`, up to an
/// address.
template <class TagOf>
std::string replaced_tags(std::string_view html, std::string_view opening, const TagOf& tag_of) {
  std::string out;
  for (std::size_t at = html.find(opening); at != std::string_view::npos; at = html.find(opening)) {
    const std::string_view tag = html.substr(at, html.find('>', at) + 1 - at);
    const std::size_t end = tag.find('"', opening.size());
    out += html.substr(0, at);
    out += tag_of(tag, tag.substr(opening.size(), end - opening.size()));
    html.remove_prefix(at + tag.size());
  }
  return out.append(html);
}

/// Puts no line break at the hyphens of options.
std::string with_whole_options(std::string html) {
  constexpr std::string_view kBegin = "<span class=\"option\">", kEnd = "</span>";
  for (std::size_t at = html.find("--", 1); at < html.size(); at = html.find("--", at)) {
    const bool is_in_tag = html.find('>', at) < html.find('<', at);
    const bool begins = std::string_view(" >(").find(html[at - 1]) != std::string_view::npos;
    const std::size_t end = html.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at);
    if (begins && !is_in_tag && end < html.size() && end > at + 2) {
      html.insert(end, kEnd);
      html.insert(at, kBegin);
      at += kBegin.size();
    }
    at += 2;
  }
  return html;
}

/// What md4c makes of Markdown, without HTML that stands there, and with the plots within.
std::string html_of_block(const std::string& markdown, const Plots& plots = {},
                          PlotSize size = PlotSize::kFull) {
  std::string html;
  const auto append = [](const MD_CHAR* text, MD_SIZE length, void* to) {
    static_cast<std::string*>(to)->append(text, length);
  };
  md_html(markdown.data(), static_cast<MD_SIZE>(markdown.size()), append, &html,
          MD_FLAG_TABLES | MD_FLAG_NOHTML | MD_FLAG_NOINDENTEDCODEBLOCKS, 0);
  if (!html.starts_with("<pre")) html = with_whole_options(std::move(html));
  html = replaced_tags(html, "<a href=\"", [](std::string_view tag, std::string_view address) {
    return std::string(is_safe(address) ? tag : "<a>");
  });
  return replaced_tags(html, "<img src=\"", [&](std::string_view tag, std::string_view address) {
    const auto plot = plots.find(address);
    return plot == plots.end() ? std::string(tag) : svg_of(plot->second, size);
  });
}

/// What is in the heading or paragraph that the HTML is.
std::string inner_html(const std::string& html) {
  const std::size_t begin = html.find('>') + 1;
  return html.substr(begin, html.rfind("</") - begin);
}

std::string block_html(const std::vector<std::string>& lines, const Plots& plots) {
  const std::string& first = lines.front();
  const std::string markdown = fmt::format("{}\n", fmt::join(lines, "\n"));
  if (const std::size_t code = markdown.find("```"); code != std::string::npos) {
    std::string html = html_of_block(markdown.substr(code));
    if (code == 0) return html;  // else a title is above it
    return fmt::format("<details><summary>{}</summary>{}</details>\n",
                       inner_html(html_of_block(unbroken(markdown.substr(0, code)))), html);
  }
  if (first.starts_with("![") && !plots.empty()) {
    std::string figures;
    for (const std::string& line : lines) {
      figures += fmt::format("<figure>{}</figure>\n", inner_html(html_of_block(line, plots)));
    }
    return fmt::format("<div class=\"plots\">\n{}</div>\n", figures);
  }
  const bool is_table = first.starts_with('|');
  std::string html =
      html_of_block(unbroken(markdown), plots, is_table ? PlotSize::kThumbnail : PlotSize::kFull);
  const auto add_class = [&](std::string_view name) {
    html.insert(html.find('>'), fmt::format(" class=\"{}\"", name));
  };
  // A question, or the title of a table: it stays with what is below it.
  if (first.starts_with("**") && lines.back().ends_with("**")) add_class("title");
  if (first.starts_with("> **")) add_class("invalid");
  if (first.starts_with("| |")) add_class("summary");
  return is_table ? fmt::format("<div class=\"scroll\">{}</div>\n", html) : html;
}

/// As GitHub makes it.
std::string id_of(std::string_view title) {
  std::string id;
  for (const char c : title) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      id += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (c == ' ' || c == '-') {
      id += '-';
    }
  }
  return id;
}

}  // namespace

std::string html_text(std::string_view text) {
  return unbroken(xml_text(text));
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n"
      "<style>{}{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      xml_text(title), kPageStyle, dark_plot_style(), body);
}

std::string plot_file(std::string_view name, std::size_t number) {
  return fmt::format("plots/{}-{}.svg", name, number + 1);
}

std::string markdown_text(std::string_view text) {
  const auto is_in_word = [&](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins_markup = std::string_view("\\<[`*|&").find(text[i]) != std::string_view::npos;
    // Within a word it is no markup: i - 1 is past the end for the first letter.
    const bool emphasizes = text[i] == '_' && !(is_in_word(i - 1) && is_in_word(i + 1));
    if (begins_markup || emphasizes) safe += '\\';
    safe += text[i];
  }
  return safe;
}

std::string markdown_table(const FindingTable& table) {
  std::string text = markdown_row(table.columns) + "|";
  if (!table.title.empty()) text = fmt::format("**{}**\n\n{}", markdown_text(table.title), text);
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const bool has_sentences = std::ranges::any_of(
        table.rows, [&](const auto& row) { return i < row.size() && row[i].ends_with('.'); });
    text += i == 0 || has_sentences ? " --- |" : " ---: |";
  }
  text += "\n";
  for (const auto& row : table.rows) text += markdown_row(row);
  return text + "\n";
}

void Page::add(const std::vector<std::string>& sentences, const Findings& findings,
               std::string_view name) {
  for (const std::string& sentence : sentences)
    markdown += fmt::format("- {}\n", markdown_text(sentence));
  if (!sentences.empty()) markdown += "\n";
  for (const FindingTable& table : findings.tables) markdown += markdown_table(table);
  for (std::size_t i = 0; i < findings.plots.size(); ++i) {
    const Plot& plot = findings.plots[i];
    markdown += fmt::format("![{}]({})\n", markdown_text(plot.title), plot_file(name, i));
    plots[plot_file(name, i)] = plot;
  }
  if (!findings.plots.empty()) markdown += "\n";
}

std::string section_link(std::string_view title) {
  return fmt::format("[{}](#{})", markdown_text(title), id_of(title));
}

std::string html_of(const Page& page) {
  std::string links, body;
  for (const std::vector<std::string>& block : blocks_of(page.markdown)) {
    const std::string html = block_html(block, page.plots);
    const bool is_heading = block.front().starts_with("## ");
    if (is_heading && !body.empty()) body += "</section>\n";
    if (is_heading) {
      const std::string id = id_of(block.front().substr(3));
      links += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", id, inner_html(html));
      body += fmt::format("<section id=\"{}\">\n", id);
    } else if (body.empty()) {
      body = "<section>\n";
    }
    body += html;
  }
  if (!links.empty()) links = fmt::format("<nav><ul>\n{}</ul></nav>\n", links);
  return html_page(page.title,
                   fmt::format("<h1>{}</h1>\n<div class=\"page\">\n{}<main>\n{}</section>\n"
                               "</main>\n</div>\n",
                               html_text(page.title), links, body));
}

void write_page(const std::filesystem::path& folder, const Page& page, const std::string& name) {
  make_folder(folder);
  if (!page.plots.empty()) make_folder(folder / "plots");
  for (const auto& [file, plot] : page.plots) replace_file(folder / file, svg_of(plot) + "\n");
  replace_file(folder / (name + ".md"),
               fmt::format("# {}\n\n{}", markdown_text(page.title), page.markdown));
  replace_file(folder / (name + ".html"), html_of(page));
}

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  const std::size_t end = line.find_last_of('|');
  for (std::size_t at = 1; at <= end && end != std::string_view::npos;) {
    std::size_t next = at;
    while (next < end && line[next] != '|') next += line[next] == '\\' ? 2U : 1U;
    next = std::min(next, end);
    cells.emplace_back(without_blanks(line.substr(at, next - at)));
    at = next + 1;
  }
  return cells;
}

std::vector<std::vector<std::string>> blocks_of(std::string_view markdown) {
  std::vector<std::vector<std::string>> blocks(1);
  std::istringstream lines{std::string(markdown)};
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(' ') != std::string::npos) {
      blocks.back().push_back(line);
    } else if (!blocks.back().empty()) {
      blocks.emplace_back();
    }
  }
  if (blocks.back().empty()) blocks.pop_back();
  return blocks;
}

std::string filled_template(std::string_view text, const FillIn& fill) {
  std::string out;
  for (std::size_t at = text.find(kNameOpen); at != std::string_view::npos;
       at = text.find(kNameOpen)) {
    const std::size_t end = text.find(kNameClose, at);
    if (end == std::string_view::npos) break;
    out += text.substr(0, at);
    out += fill(text.substr(at + kNameOpen.size(), end - at - kNameOpen.size()));
    text.remove_prefix(end + kNameClose.size());
  }
  return out + std::string(text);
}

std::string html_of_markdown(std::string_view markdown) {
  std::string text;
  for (const std::vector<std::string>& block : blocks_of(markdown)) text += block_html(block, {});
  return text;
}

std::string find_page_printer() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "weasyprint"}) {
    if (std::string found = find_on_path(name); !found.empty()) return found;
  }
  return "";
}

std::string page_printer() {
  std::string found = find_page_printer();
  if (!found.empty()) return found;
  fail(ExitCode::kNoDevice, {"--pdf", "", "neither Chromium nor WeasyPrint is on PATH",
                             "install chromium or weasyprint, or leave it out and print "
                             "the page in .html from a browser"});
}

void print_pdf(const std::filesystem::path& page, const std::filesystem::path& pdf) {
  const std::string printer = page_printer();
  const std::filesystem::path from = std::filesystem::absolute(page);
  const std::filesystem::path to = std::filesystem::absolute(pdf);
  const TemporaryFolder profile("page-");  // the browser's own files
  std::vector<std::string> command = {printer, from.string(), to.string()};
  if (!printer.ends_with("weasyprint")) {
    command = {printer,
               "--headless",
               "--disable-gpu",
               "--no-pdf-header-footer",
               "--user-data-dir=" + profile.path().string(),
               "--print-to-pdf=" + to.string(),
               "file://" + from.string()};
    // It refuses to sandbox itself for root; the page is ours and has no scripts.
    if (::geteuid() == 0) command.insert(command.begin() + 1, "--no-sandbox");
  }
  std::filesystem::remove(to);
  const ChildResult result = run_child(command);
  if (result.exit_code == 0 && std::filesystem::exists(to)) return;
  const std::string name = std::filesystem::path(printer).filename().string();
  fail(ExitCode::kInputOutput,
       {"--pdf", pdf.string(),
        result.exit_code == 0 ? name + " wrote nothing"
                              : fmt::format("{} ended with code {}: {}", name, result.exit_code,
                                            error_line(result.err)),
        "print " + page.string() + " from a browser"});
}

}  // namespace barestep
