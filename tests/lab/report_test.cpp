#include "lab/study/report.h"

#include <nlohmann/json.hpp>

#include "lab/child.h"
#include "lab/commands.h"
#include "lab/json_schema.h"
#include "lab/made_up.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/report/page.h"
#include "lab/report/svg.h"
#include "lab/sheets/sheets.h"
#include "lab/study/run_workload.h"
#include "support/pattern.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

/// All experiments, of which the second is invalid.
Report made_up_report_of_all() {
  Report report{.environment = {{"processor", "a <processor>"},
                                {"cores", "4"},
                                {"memory", "1 GiB"},
                                {"system", "Linux"},
                                {"barestep", "0.1.0 abc"},
                                {"devices", "CPU"}},
                .options = " --quick",
                .sections = {}};
  for (const Experiment& experiment : experiments()) {
    Results results = made_up(experiment, made_up_setting(), [](const Case& what) {
      MadeUpStep step{.step_s = what.workload.ranks == 1 ? 0.1 : 0.095,
                      .phase_s = {{"forward", 0.04}, {"communication", 0.05}},
                      .ops = {{"gemm", "forward", "net.0", 0.1}}};
      step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1,
                              MadeUpStep{.step_s = 0.1});
      return step;
    });
    results.card = load_card("h200-nvlink");
    for (const Measurement& each : results.cases) {
      std::optional<SimulatedStep>& prediction = results.predictions.emplace_back();
      if (!why_no_prediction(each.workload(), *results.card).empty()) continue;
      prediction = predicted_run(each.workload(), *results.card);
      prediction->step_s = 0.9 * each.step_s().median;
    }
    Findings findings = experiment.findings(results);
    report.sections.push_back({&experiment, std::move(results), std::move(findings), ""});
  }
  for (ReportSection& section : report.sections) {
    if (section.experiment == &experiment_of("data-parallel")) {
      section.trouble = "INVALID: it was disturbed";
    }
  }
  return report;
}

/// The same, made once: it takes seconds, and a sheet's test needs it for each sheet.
const Report& whole_report() {
  static const Report report = made_up_report_of_all();
  return report;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Every tag is closed in order; those in `void_tags` have no end tag.
std::string unbalanced(const std::string& text) {
  std::vector<std::string> open;
  for (const auto& tag : all_matches(text, "<(/?)([a-z0-9]+)([^>]*)>")) {
    const std::string &name = tag[2], &rest = tag[3];
    if (name == "meta" || rest.ends_with('/')) continue;
    if (tag[1].empty()) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes nothing";
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

constexpr std::string_view kOptionBegin = "<span class=\"option\">", kOptionEnd = "</span>";

/// The page without the tags that keep an option on one line.
std::string without_option_tags(std::string html) {
  for (std::size_t at = 0; (at = html.find(kOptionBegin, at)) != std::string::npos;) {
    html.erase(html.find(kOptionEnd, at), kOptionEnd.size());
    html.erase(at, kOptionBegin.size());
  }
  return html;
}

TEST(Report, HasEveryAnswerTablePlotAndCommand) {
  const Report& report = whole_report();
  const Page page = page_of(report);
  const std::string tagged = html_of(page), html = without_option_tags(tagged);
  const std::string& markdown = page.markdown;
  EXPECT_THAT(tagged, HasSubstr(fmt::format(" {}--no-pin{} ", kOptionBegin, kOptionEnd)));
  int plots = 0;
  for (const ReportSection& section : report.sections) {
    SCOPED_TRACE(section.experiment->name);
    for (const std::string& sentence : shown_texts(section)) {
      EXPECT_THAT(html, HasSubstr(html_text(sentence)));
      EXPECT_THAT(markdown, HasSubstr(markdown_text(sentence)));
    }
    for (const Measurement& each : section.results.cases) {
      EXPECT_THAT(html, HasSubstr(xml_text(command_line_of(each.what()))));
      EXPECT_THAT(markdown, HasSubstr(command_line_of(each.what())));
    }
    const std::string configurations = configurations_of(section.results);
    EXPECT_THAT(html, HasSubstr(xml_text(configurations)));
    EXPECT_THAT(markdown, HasSubstr(configurations));
    const std::string command = "mlp_lab run " + std::string(section.experiment->name) + " --quick";
    EXPECT_THAT(html, HasSubstr(command));
    EXPECT_THAT(markdown, HasSubstr(command));
    plots += static_cast<int>(section.findings.plots.size());
  }
  EXPECT_EQ(count_of(html, "class=\"bs-plot\""), plots + 1) << "and the prediction's";
  for (const auto& link : all_matches(html, "<a href=\"#([^\"]*)\">")) {
    EXPECT_EQ(count_of(html, "<section id=\"" + link[1] + "\">"), 1) << link[1];
  }
  EXPECT_EQ(count_of(html, "class=\"bs-thumbnail\""), count_of(markdown, "![]("));
  EXPECT_EQ(count_of(markdown, "![") - count_of(markdown, "![]("), plots + 1)
      << "beside those of the summary";
  EXPECT_THAT(markdown, HasSubstr(" | -10.0 % |"));
  EXPECT_EQ(count_of(html, "INVALID. No conclusion: it was disturbed."), 1);
  EXPECT_EQ(count_of(markdown, "INVALID. No conclusion: it was disturbed."), 1);
  EXPECT_THAT(html, HasSubstr("a &lt;processor&gt;"));
  // The plots that the course (docs/sheets.md) asks for.
  for (const char* part :
       {">ideal<", ">Amdahl, fitted<", "Where the time of a step goes", ">exposed communication<",
        "Roofline of the ops", ">roof, measured here<", "Throughput against batch size",
        "Memory by category", ">optimizer<",
        "Measured step times against predicted (simulated) ones", "class=\"bs-error\""}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(Report, HasEveryOptionOfEachCaseAndThoseThatAllShareOnce) {
  for (const ReportSection& section : whole_report().sections) {
    SCOPED_TRACE(section.experiment->name);
    std::map<std::string, json> options_of;
    std::istringstream lines(configurations_of(section.results));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(": ");
      options_of[line.substr(0, colon)] = json::parse(line.substr(colon + 2));
    }
    for (const Measurement& each : section.results.cases) {
      json options = options_of.at("all");
      const json own = options_of[each.what().key];
      if (own.is_object()) options.update(own);
      EXPECT_EQ(options, json::parse(each.configuration()));
    }
    const json first = section.results.cases.empty()
                           ? json()
                           : options_of[section.results.cases.front().what().key];
    for (const auto& option : first.items()) {
      EXPECT_TRUE(std::ranges::any_of(section.results.cases, [&](const Measurement& each) {
        const json& own = options_of[each.what().key];
        return !own.contains(option.key()) || own.at(option.key()) != option.value();
      })) << option.key();
    }
  }
}

TEST(Report, ConcludesNothingFromTimesThatAreInvalid) {
  const Report& report = whole_report();
  const json results = json::parse(json_of(report));
  const Page page = page_of(report);
  const std::string html = html_of(page), &markdown = page.markdown;
  for (std::size_t i = 0; i < report.sections.size(); ++i) {
    const ReportSection& section = report.sections[i];
    SCOPED_TRACE(section.experiment->name);
    const json& answers = results.at("experiments").at(i).at("answers");
    for (const json& each : results.at("experiments").at(i).at("comparisons")) {
      EXPECT_EQ(each.at("word").is_null(), !section.trouble.empty());
    }
    if (section.trouble.empty()) continue;
    EXPECT_EQ(answers.at(0), "No conclusion: it was disturbed.");
    for (const std::string& sentence : texts_of(section.findings.timed)) {
      EXPECT_THAT(answers, Not(Contains(sentence)));
      EXPECT_THAT(html, Not(HasSubstr(html_text(sentence))));
      EXPECT_THAT(markdown, Not(HasSubstr(markdown_text(sentence))));
    }
    for (const std::string& fact : texts_of(section.findings.untimed)) {
      EXPECT_THAT(answers, Contains(fact)) << "bytes and splits are no times";
    }
  }
}

TEST(Report, NeedsNothingFromElsewhere) {
  const std::string html = html_of(page_of(whole_report()));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  // The only address is the name of the SVG namespace.
  EXPECT_EQ(count_of(html, "http"), count_of(html, "http://www.w3.org/2000/svg"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(html, HasSubstr("@media print"));
}

/// A headless browser's view of a page: all complaints of its scripts, and the number of its charts
/// in which something is drawn, with title and marks.
class ReportInBrowser : public TempDirTest {
 protected:
  struct Seen {
    std::string complaints;
    int charts = 0;
  };

  void SetUp() override {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      if (browser_.empty()) browser_ = find_on_path(name);
    }
    if (browser_.empty())
      GTEST_SKIP() << "no Chromium (Debian: chromium, 300 MB, so not installed)";
  }

  /// Runs the browser on a page in a file.
  ChildResult browse(const std::string& page, const std::vector<std::string>& options) {
    std::vector<std::string> command = {browser_,
                                        "--headless",
                                        "--no-sandbox",
                                        "--disable-gpu",
                                        "--enable-logging=stderr",
                                        "--v=0",
                                        "--user-data-dir=" + (folder() / "profile").string()};
    command.insert(command.end(), options.begin(), options.end());
    command.push_back("file://" + file("page.html", page).string());
    return run_child(command);
  }

  Seen open(std::string page) {
    page += R"(<script>
let drawn = 0;
for (const chart of document.querySelectorAll('svg.bs-plot')) {
  const marks = chart.querySelectorAll('circle, polyline, rect');
  const boxes = [...marks].map(mark => mark.getBBox());
  const title = chart.querySelector('.bs-title').getComputedTextLength();
  if (title > 0 && boxes.some(box => box.width + box.height > 0)) ++drawn;
}
document.title = 'charts drawn: ' + drawn;
</script>)";
    const ChildResult result = browse(page, {"--dump-dom"});
    Seen seen;
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("CONSOLE") != std::string::npos) seen.complaints += line + "\n";
    }
    const auto count = first_match(result.out, "<title>charts drawn: ([0-9]+)</title>");
    seen.charts = count.empty() ? -1 : std::stoi(count[1]);
    return seen;
  }

 private:
  std::string browser_;
};

TEST_F(ReportInBrowser, DrawsEveryChartWithoutAComplaint) {
  const std::string html = html_of(page_of(whole_report()));
  const Seen seen = open(html);
  EXPECT_EQ(seen.complaints, "");
  EXPECT_EQ(seen.charts, count_of(html, "class=\"bs-plot\""));
}

/// The words on a printed page, and the right end of its rightmost word, in points.
struct PrintedPage {
  std::vector<std::string> words;
  double right = 0;
  double min_legend = 100;  // height of the word "ideal", which only legends of plots have
};

std::vector<PrintedPage> printed_pages(const std::filesystem::path& pdf) {
  const ChildResult boxes = run_child({find_on_path("pdftotext"), "-bbox", pdf.string(), "-"});
  std::vector<PrintedPage> pages;
  std::istringstream lines(boxes.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("<page ") != std::string::npos) pages.emplace_back();
    const auto word = first_match(
        line, "<word [^>]*yMin=\"([0-9.]+)\" xMax=\"([0-9.]+)\" yMax=\"([0-9.]+)\">([^<]*)</word>");
    if (word.empty() || pages.empty()) continue;
    pages.back().words.push_back(word[4]);
    pages.back().right = std::max(pages.back().right, std::stod(word[2]));
    if (word[4] != "ideal") continue;
    pages.back().min_legend =
        std::min(pages.back().min_legend, std::stod(word[3]) - std::stod(word[1]));
  }
  return pages;
}

constexpr double kA4Points = 595.3, kMarginPoints = 12 / 25.4 * 72;

TEST_F(ReportInBrowser, PrintsEveryTableOnA4) {
  if (find_on_path("pdftotext").empty()) GTEST_SKIP() << "no pdftotext (Debian: poppler-utils)";
  const Report& report = whole_report();
  const std::filesystem::path pdf = folder() / "report.pdf";
  browse(html_of(page_of(report)), {"--no-pdf-header-footer", "--print-to-pdf=" + pdf.string()});
  const std::vector<PrintedPage> pages = printed_pages(pdf);
  ASSERT_GT(pages.size(), report.sections.size() / 3);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_LE(pages[i].right, kA4Points - kMarginPoints + 1) << "page " << i + 1;
    // A word is about 1.17 times as high as its font, and the smallest text of a plot 11/12 of it.
    EXPECT_GE(pages[i].min_legend, 7 * 1.17 * 12 / 11) << "page " << i + 1;
  }
  // Text cut off at the edge of a page is not in the PDF: checks the last column of each table of
  // steps.
  std::size_t errors = 0;
  for (const PrintedPage& page : pages) {
    errors += static_cast<std::size_t>(std::ranges::count(page.words, "error"));
  }
  EXPECT_GE(errors, report.sections.size());
  EXPECT_THAT(pages.front().words, Contains("Summary"));
  EXPECT_THAT(pages.front().words, Contains("simulated")) << "its last row";
  EXPECT_THAT(pages.at(1).words, Not(Contains("Verdict")));
}

/// The page in a frame of this width: what does not fit.
struct Fits {
  double page = 0;    // its width
  double tables = 0;  // tables wider than their place
  double min_px = 0;  // the smallest text of a plot
};

/// The browser's own window cannot be as narrow as a phone's.
std::string framed(const std::string& page, int width) {
  const std::string script = R"(
const frame = document.querySelector('iframe');
frame.onload = () => {
  const inner = frame.contentDocument;
  let least = 1e9, tables = 0;
  for (const plot of inner.querySelectorAll('svg.bs-plot')) {
    const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
    for (const text of plot.querySelectorAll('text')) {
      const size = parseFloat(inner.defaultView.getComputedStyle(text).fontSize);
      least = Math.min(least, size * scale);
    }
  }
  for (const place of inner.querySelectorAll('.scroll')) {
    if (place.scrollWidth > place.clientWidth) ++tables;
  }
  document.title = `page ${inner.documentElement.scrollWidth} tables ${tables} least ${least}`;
};
)";
  return "<!DOCTYPE html><title>not seen</title><iframe width=\"" + std::to_string(width) +
         "\" height=\"800\" style=\"border:0\"></iframe><script>" + script +
         "frame.srcdoc = " + json(page).dump() + ";</script>";
}

class PageInBrowser : public ReportInBrowser {
 protected:
  Fits seen(std::string html, int width) {
    // A string of JSON ends the script at the end tag of another one.
    for (std::size_t at = html.find("</"); at != std::string::npos; at = html.find("</", at)) {
      html.replace(at, 2, "\x01");
    }
    std::string page = framed(html, width);
    for (std::size_t at = page.find("\\u0001"); at != std::string::npos;
         at = page.find("\\u0001", at)) {
      page.replace(at, 6, "<\\/");
    }
    const ChildResult result =
        browse(page, {"--dump-dom", "--window-size=1400,900", "--virtual-time-budget=20000"});
    const auto found =
        first_match(result.out, "<title>page ([0-9.]+) tables ([0-9]+) least ([0-9.e]+)</title>");
    EXPECT_FALSE(found.empty()) << result.err;
    return found.empty() ? Fits{}
                         : Fits{std::stod(found[1]), std::stod(found[2]), std::stod(found[3])};
  }

  /// Also checks that every column is seen on a desktop, and that on a phone not the page but
  /// tables and plots scroll.
  Fits on_phone(const std::string& html) {
    const Fits desktop = seen(html, 1280);
    EXPECT_LE(desktop.page, 1280);
    EXPECT_EQ(desktop.tables, 0);
    const Fits phone = seen(html, 390);
    EXPECT_LE(phone.page, 390);
    EXPECT_GT(phone.tables, 0);
    return phone;
  }
};

TEST_F(PageInBrowser, OfAReportFitsADesktopAndAPhone) {
  EXPECT_GE(on_phone(html_of(page_of(whole_report()))).min_px, 9) << "text of plots";
}

TEST_F(ReportInBrowser, DrawsDarkPlotsOnADarkPage) {
  const std::string page =
      html_page("", svg_of({.series = {{.points = {plot_point(1, 2), plot_point(2, 1)}}}})) +
      R"(<script>
const color = (name, what) => getComputedStyle(document.querySelector(name))[what];
document.title = `${color('.bs-card', 'fill')} on ${color('body', 'backgroundColor')}`;
</script>)";
  EXPECT_THAT(browse(page, {"--dump-dom"}).out,
              HasSubstr("<title>rgb(255, 255, 255) on rgb(255, 255, 255)</title>"));
  EXPECT_THAT(browse(page, {"--dump-dom", "--blink-settings=preferredColorScheme=0"}).out,
              HasSubstr("<title>rgb(28, 28, 28) on rgb(22, 22, 22)</title>"));
}

/// What `mlp_lab explain` writes for each question about traces: the picture first.
TEST_F(PageInBrowser, OfExplainedTracesFitsADesktopAndAPhone) {
  const std::filesystem::path traces = BARESTEP_TEST_TRACES, scaling = BARESTEP_TEST_SCALING;
  const ExplainOptions questions[] = {
      {.traces = {traces / "pytorch_ddp.rank0.json.gz", traces / "pytorch_ddp.rank1.json.gz"}},
      {.traces = {scaling / "2", scaling / "4"}},
      {.traces = {scaling / "1", scaling / "2", scaling / "4"}, .scaling = true},
      {.traces = {traces / "pytorch_cpu.json.gz"}, .machine = "h100-nvlink", .ranks = 8}};
  for (ExplainOptions each : questions) {
    SCOPED_TRACE(each.traces.front().string());
    each.output = folder() / "out";
    testing::internal::CaptureStdout();
    explain_traces(each);
    testing::internal::GetCapturedStdout();
    const std::string html = read_file(each.output / "report.html");
    EXPECT_EQ(unbalanced(html), "");
    // The links to the sections, then the picture, then the answers.
    EXPECT_LT(html.find("<svg"), html.find("<li>", html.find("</nav>")));
    EXPECT_GE(on_phone(html).min_px, 9) << "text of plots";
  }
}

/// A sheet's key, filled in.
std::string page_of_sheet(const std::string& name) {
  const Report& report = whole_report();
  const SheetRuns runs(report, load_card("h200-nvlink"));
  const Sheet sheet = load_sheet(name);
  return sheet_page(sheet, markdown_of(sheet, runs, SheetCopy::kKey));
}

TEST_F(PageInBrowser, OfASheetFitsADesktopAndAPhone) {
  for (const std::string& name : sheet_names()) {
    SCOPED_TRACE(name);
    on_phone(page_of_sheet(name));
  }
}

TEST_F(PageInBrowser, OfASheetFitsA4) {
  if (find_on_path("pdftotext").empty()) GTEST_SKIP() << "no pdftotext (Debian: poppler-utils)";
  const std::filesystem::path pdf = folder() / "sheet.pdf";
  for (const std::string& name : sheet_names()) {
    SCOPED_TRACE(name);
    const std::string page = page_of_sheet(name);
    browse(page, {"--no-pdf-header-footer", "--print-to-pdf=" + pdf.string()});
    // Where a page says it: in last columns and in answers.
    int simulated = 0;
    for (const PrintedPage& each : printed_pages(pdf)) {
      EXPECT_LE(each.right, kA4Points - kMarginPoints + 1);
      simulated += static_cast<int>(std::ranges::count(each.words, "Simulated:"));
    }
    EXPECT_EQ(simulated, count_of(page, "Simulated:"));
  }
}

TEST_F(ReportInBrowser, IsSeenToComplain) {
  const Seen seen = open("<!DOCTYPE html><title>broken</title><script>broken()</script>");
  EXPECT_THAT(seen.complaints, HasSubstr("broken is not defined"));
  EXPECT_EQ(seen.charts, 0);
}

TEST(Report, FitsItsSchemaAndHasARowOfCsvForEachCase) {
  const Report& report = whole_report();
  const json schema = json::parse(read_file(BARESTEP_SCHEMA));
  json results = json::parse(json_of(report));
  EXPECT_EQ(schema_violation(results, schema, schema), "");
  EXPECT_EQ(results.at("experiments").size(), experiments().size());
  results.at("experiments").at(0).at("cases").at(0).erase("step_s");
  EXPECT_EQ(schema_violation(results, schema, schema),
            "$.experiments[0].cases[0] lacks \"step_s\"");

  const std::string csv = csv_of(report);
  int cases = 0;
  for (const ReportSection& section : report.sections) {
    cases += static_cast<int>(section.results.cases.size());
  }
  EXPECT_EQ(count_of(csv, "\n"), cases + 1);
  EXPECT_THAT(csv, HasSubstr("\nbatch-sweep,batch-16,mlp_single,1,1024,6,16,0.1,"));
  EXPECT_THAT(csv, HasSubstr(",0.09"));
  EXPECT_THAT(csv, HasSubstr(",true,\"mlp_single --dim 1024 "));
  EXPECT_THAT(csv, HasSubstr(",false,\""));
}

TEST(Svg, ShowsEveryPointWithItsErrorBar) {
  const Plot plot{
      .title = "a < b",
      .x_label = "ranks",
      .y_label = "ms",
      .log_x = true,
      .series = {{.name = "measured", .points = {{1, 10, 9, 11}, {2, 6, 5, 7}, {4, 4, 4, 4}}},
                 {.name = "ideal",
                  .style = SeriesStyle::kDashed,
                  .points = {{1, 10, 10, 10}, {4, 2.5, 2.5, 2.5}}}}};
  const std::string svg = svg_of(plot);
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_EQ(count_of(svg, "<circle"), 3);
  EXPECT_EQ(count_of(svg, "<polyline"), 2);
  EXPECT_EQ(count_of(svg, "class=\"bs-error\""), 2 * 3);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr(">measured<"));
  EXPECT_THAT(svg, HasSubstr("<style>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Svg, StacksBars) {
  const Plot plot{.title = "account",
                  .y_label = "ms",
                  .categories = {"one", "two"},
                  .series = {{.name = "forward", .points = {{0, 30, 30, 30}, {1, 10, 10, 10}}},
                             {.name = "backward", .points = {{0, 20, 20, 20}, {1, 40, 40, 40}}}}};
  const std::string svg = svg_of(plot);
  // Both stacks have length 50, next to each other: the second part begins where the first one
  // ends.
  std::vector<double> begins, ends;
  for (const auto& bar : all_matches(
           svg,
           "<rect x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\" [^>]*class=\"bs-f[02]\"")) {
    begins.push_back(std::stod(bar[1]));
    ends.push_back(std::stod(bar[1]) + std::stod(bar[2]));
  }
  ASSERT_EQ(begins.size(), 6) << "the first two are the legend's";
  EXPECT_NEAR(ends[2], begins[4], 0.2);
  EXPECT_NEAR(ends[3], begins[5], 0.2);
  EXPECT_NEAR(ends[4], ends[5], 0.2);
  EXPECT_EQ(unbalanced(svg), "");
}

Plot two_stacks(std::vector<PlotSeries> series) {
  return {.title = "account", .y_label = "ms", .categories = {"one", "two"}, .series = series};
}

class PlotOnPaper : public TempDirTest {};

// 17 cm for 720 px, so a text of 12 px has 8 pt, and a word about 1.17 times as much.
TEST_F(PlotOnPaper, HasTheSizeOfItsTextByWeasyPrintToo) {
  const std::string weasyprint = find_on_path("weasyprint");
  if (weasyprint.empty() || find_on_path("pdftotext").empty()) {
    GTEST_SKIP() << "no WeasyPrint, or no poppler-utils";
  }
  const std::vector<PlotPoint> points = {plot_point(0, 30), plot_point(1, 1)};
  const std::string page = html_page(
      "",
      svg_of(two_stacks({{.name = "ideal", .points = points}, {.name = "b", .points = points}})));
  const std::filesystem::path pdf = folder() / "page.pdf";
  run_child({weasyprint, file("page.html", page).string(), pdf.string()});
  EXPECT_NEAR(printed_pages(pdf).at(0).min_legend, 8 * 1.17, 1.5);
}

TEST_F(PlotOnPaper, HasItsColorsByWeasyPrintToo) {
  const std::string weasyprint = find_on_path("weasyprint"), raster = find_on_path("pdftoppm");
  if (weasyprint.empty() || raster.empty()) GTEST_SKIP() << "no WeasyPrint, or no poppler-utils";
  const std::string page = html_page(
      "", svg_of(two_stacks({{.name = "forward", .points = {plot_point(0, 30), plot_point(1, 1)}},
                             {.name = "loss", .points = {plot_point(0, 9), plot_point(1, 9)}}})));
  const std::string pdf = (folder() / "page.pdf").string();
  const ChildResult printed = run_child({weasyprint, file("page.html", page).string(), pdf});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  run_child({raster, "-r", "40", "-singlefile", pdf, (folder() / "page").string()});
  const std::string pixels = read_file(folder() / "page.ppm");
  for (const char* forward_and_loss : {"\x00\x72\xb2", "\x56\xb4\xe9"}) {
    EXPECT_THAT(pixels, HasSubstr(std::string(forward_and_loss, 3)));
  }
}

TEST(Svg, NamesThePartsOfAStackThatAreTooThinToBeSeen) {
  const std::string svg =
      svg_of(two_stacks({{.name = "forward", .points = {plot_point(0, 30), plot_point(1, 10)}},
                         {.name = "loss", .points = {plot_point(0, 0.02), plot_point(1, 10)}}}));
  EXPECT_THAT(svg, HasSubstr(">+ loss 0.02 ms<"));
  EXPECT_EQ(count_of(svg, ">+ "), 1) << "the other one is seen";
}

TEST(Svg, GivesAPartOneColorAndOnePlaceInEveryLegend) {
  const auto parts_of = [](const std::string& svg) {
    std::vector<std::string> parts;
    for (const auto& each :
         all_matches(svg, "height=\"12.0\" class=\"(bs-f[0-9])\"/><text [^>]*>([a-z ]+)</text>")) {
      parts.push_back(each[1] + " " + each[2]);
    }
    return parts;
  };
  const PlotSeries forward{.name = "forward", .points = {plot_point(0, 1), plot_point(1, 1)}};
  const PlotSeries update{.name = "optimizer", .points = {plot_point(0, 1), plot_point(1, 1)}};
  const PlotSeries other{.name = "something", .points = {plot_point(0, 1), plot_point(1, 1)}};
  EXPECT_THAT(parts_of(svg_of(two_stacks({forward, update}))),
              ElementsAre("bs-f0 forward", "bs-f3 optimizer"));
  EXPECT_THAT(parts_of(svg_of(two_stacks({other, update, forward}))),
              ElementsAre("bs-f0 forward", "bs-f3 optimizer", "bs-f1 something"));
}

TEST(Svg, DrawsDotsOnALogarithmicAxisAndBarsOnlyFromZero) {
  const auto drawn = [](double max) {
    return svg_of(two_stacks({{.points = {plot_point(0, 1), plot_point(1, max)}}}));
  };
  EXPECT_THAT(drawn(1000), Not(HasSubstr(">0<")));
  EXPECT_EQ(count_of(drawn(1000), "<circle"), 2);
  EXPECT_EQ(count_of(drawn(1000), "<rect"), 1) << "the card";
  EXPECT_THAT(drawn(10), HasSubstr(">0<"));
  EXPECT_EQ(count_of(drawn(10), "<circle"), 0);
}

TEST(Svg, HasHollowPointsBeyondTheCores) {
  Plot plot{.series = {{.points = {plot_point(1, 1), plot_point(2, 2)}}}};
  EXPECT_EQ(count_of(svg_of(plot), "hollow:"), 0);
  plot.series[0].points[1].is_hollow = true;
  const std::string svg = svg_of(plot);
  EXPECT_EQ(count_of(svg, "class=\"bs-hollow bs-c0\""), 1);
  EXPECT_EQ(count_of(svg, "class=\"bs-f0\""), 2) << "the other point, and the legend's";
  EXPECT_THAT(svg, HasSubstr(">hollow: beyond the cores<"));
}

TEST(Svg, LaysBarsDownWhereTheirNamesWouldRunIntoEachOther) {
  const auto bars = [](const std::string& name) {
    return Plot{.categories = {name + "1", name + "2", name + "3", name + "4"},
                .series = {{.points = {plot_point(0, 1), plot_point(3, 2)}}}};
  };
  EXPECT_THAT(svg_of(bars("a")), HasSubstr("text-anchor=\"middle\" class=\"bs-text\">a1<"));
  EXPECT_THAT(svg_of(bars("without synchronization ")),
              HasSubstr("text-anchor=\"end\" class=\"bs-text\">without synchronization 1<"));
}

TEST(Svg, OfAThumbnailHasNoWords) {
  const std::string svg =
      svg_of(two_stacks({{.name = "forward", .points = {plot_point(0, 30), plot_point(1, 10)}}}),
             PlotSize::kThumbnail);
  EXPECT_EQ(count_of(svg, "<text"), 0);
  EXPECT_EQ(count_of(svg, "class=\"bs-f0"), 2);
}

TEST(Html, BreaksNoLineBetweenANumberAndItsUnit) {
  EXPECT_EQ(html_text("12.3 ms (5 % of it) & 3 ranks"),
            "12.3\u00a0ms (5\u00a0% of it) &amp; 3 ranks");
  EXPECT_EQ(html_text("width 8 sigmas, 7 s"), "width 8 sigmas, 7\u00a0s");
}

TEST(Svg, ShowsWhatLastsInRowsOfATimeline) {
  const Plot plot{.title = "step",
                  .x_label = "ms",
                  .is_timeline = true,
                  .categories = {"compute", "comm"},
                  .series = {{.name = "forward", .spans = {{0, 0, 5}}},
                             {.name = "all-reduce", .spans = {{1, 5, 7.5}, {1, 7.5, 10}}}}};
  const std::string svg = svg_of(plot);
  EXPECT_EQ(count_of(svg, " bs-edge"), 3);
  EXPECT_THAT(svg, HasSubstr(">compute<"));
  // On an axis from 70.9 to 704.
  EXPECT_THAT(svg, HasSubstr("<rect x=\"70.9\" y=\"60.2\" width=\"316.6\""));
  EXPECT_THAT(svg, HasSubstr("<rect x=\"387.5\" y=\"88.2\" width=\"158.3\""));
  EXPECT_EQ(unbalanced(svg), "");
}

TEST(Svg, HasLogarithmicAxes) {
  const Plot plot{.log_x = true,
                  .log_y = true,
                  .series = {{.points = {{1, 0.1, 0, 1}, {10, 1, 1, 1}, {100, 10, 9, 10}}}}};
  const std::string svg = svg_of(plot);
  // Equal factors have equal distances.
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"66.1\" cy=\"284.0\""));
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"379.0\" cy=\"159.0\""));
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"692.0\" cy=\"34.0\""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, IsDrawnForPlotsOfOnePointOrNothing) {
  for (const Plot& plot :
       {Plot{}, Plot{.log_x = true, .log_y = true}, Plot{.series = {{.points = {{3, 0, 0, 0}}}}},
        Plot{.categories = {"none"}}}) {
    const std::string svg = svg_of(plot);
    EXPECT_EQ(unbalanced(svg), "");
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

TEST(RoundMarks, AreRoundAndReachBothEnds) {
  EXPECT_THAT(round_marks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(round_marks(0, 47, 5), ElementsAre(0, 10, 20, 30, 40, 50));
  EXPECT_THAT(round_marks(0, 0.3, 3), ElementsAre(0, 0.1, 0.2, testing::DoubleEq(0.3)));
}

}  // namespace
}  // namespace barestep
