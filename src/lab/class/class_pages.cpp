#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "core/text_table.h"
#include "core/units.h"
#include "lab/class/class.h"
#include "lab/report/page.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr const char* kMarksFile = "marks.csv";
constexpr const char* kGradedFile = "graded.csv";  // the same without what a teacher wrote

/// A spreadsheet shows it as it is: what would be a formula has an apostrophe before it.
std::string shown_text(std::string text) {
  if (text.find_first_of("=+-@\t") == 0) text.insert(0, "'");
  return text;
}

std::string csv_cell(const std::string& text) {
  std::string shown = shown_text(text);
  if (shown.find_first_of(",;\"\n") == std::string::npos) return shown;
  return fmt::format("\"{}\"", fmt::join(split(shown, "\""), "\"\""));
}

std::string points_text(double points) {
  return fmt::format("{:g}", std::round(100 * points) / 100);
}

/// What was found, each kind once, with how often.
std::vector<std::string> kinds_of(const GradedStudent& student) {
  std::map<MistakeKind, int> counts;
  for (const Mistake& mistake : student.mistakes) ++counts[mistake.kind];
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : counts) {
    kinds.push_back(count == 1 ? std::string(name_of(kind))
                               : fmt::format("{} ({})", name_of(kind), count));
  }
  return kinds;
}

struct Points {
  double given = 0, all = 0, open = 0;
};

Points earned_points(const GradedStudent& student) {
  Points points;
  for (const Mark& mark : student.marks) {
    points.all += mark.item->points;
    points.given += mark.points.value_or(0);
    points.open += mark.points ? 0 : mark.item->points;
  }
  return points;
}

/// The points of each item, or those of them that grading gave.
std::string marks_csv(const ClassPlan& plan, const GradedClass& graded, bool with_teachers = true) {
  std::string text =
      "\xEF\xBB\xBF"
      "folder,name";  // by which Excel knows that it is UTF-8
  for (const MarkedItem& item : plan.header.items) text += "," + csv_cell(item.name);
  text += ",points,open,found\n";
  for (const GradedStudent& student : graded.students) {
    text += csv_cell(student.student->folder) + "," + csv_cell(student.student->name);
    for (const Mark& mark : student.marks) {
      const bool is_shown = mark.points && (with_teachers || !mark.is_teachers);
      text += "," + (is_shown ? points_text(*mark.points) : "");
    }
    const Points points = earned_points(student);
    text += fmt::format(",{},{},{}\n", points_text(points.given), points_text(points.open),
                        csv_cell(fmt::format("{}", fmt::join(kinds_of(student), ", "))));
  }
  return text;
}

using CsvRows = std::vector<std::vector<std::string>>;

CsvRows rows_in(const std::filesystem::path& file) {
  return csv_rows(InputFile(file, "marks").text(std::int64_t{1} << 24));
}

/// A number that a cell is; nothing if it is none. A spreadsheet may have written a comma.
std::optional<double> number_in(std::string cell) {
  std::ranges::replace(cell, ',', '.');
  const std::string_view text = without_blanks(cell);
  double number = 0;
  const auto [end, error] = read_real(text, number);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  return is_number && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

/// Also as a spreadsheet saves it: 007 as 7, and 2.1 as 2,1.
bool is_same_cell(const std::string& a, const std::string& b) {
  return a == b || (number_in(a) && number_in(a) == number_in(b));
}

/// The column of `own` that this one of `titles` is; where a spreadsheet made a date of a title,
/// its place tells it.
std::size_t column_of(const std::vector<std::string>& titles, std::size_t column,
                      const std::vector<std::string>& own) {
  const std::string title = column < titles.size() ? titles[column] : "";
  const auto known = std::ranges::find(own, title);
  const bool is_there =
      column < own.size() &&
      (is_same_cell(title, own[column]) || (known == own.end() && titles.size() == own.size()));
  return is_there ? column : static_cast<std::size_t>(known - own.begin());
}

/// Whose row it is; null if it is nobody's.
GradedStudent* student_of_row(GradedClass& graded, const std::string& first) {
  GradedStudent* found = nullptr;
  for (GradedStudent& student : graded.students) {
    const std::string shown = shown_text(student.student->folder);
    if (first == shown) return &student;
    if (is_same_cell(first, shown)) found = &student;
  }
  return found;
}

/// A cell of an earlier marks.csv that differs from what grading wrote there is the teacher's.
/// Takes those that are points of an item; returns whether these are all.
bool keep_teachers_points(const CsvRows& marks, const CsvRows& written, GradedClass& graded) {
  constexpr std::size_t kFirstItem = 2;
  bool are_all = true;
  const auto keep = [&](const std::string& cell, std::size_t column, const std::string& own,
                        GradedStudent* student) {
    const std::size_t item = column - kFirstItem, items = graded.students[0].marks.size();
    const bool is_sum = item == items || item == items + 1;
    if (is_sum || without_blanks(cell).empty() || is_same_cell(cell, own)) return;
    const std::optional<double> points = number_in(cell);
    if (student == nullptr || item >= items || !points) {
      are_all = false;
      return;
    }
    Mark& mark = student->marks[item];
    mark.text = mark.points ? fmt::format("The teacher's points, in place of {}: {}",
                                          points_text(*mark.points), mark.text)
                            : "The teacher's points.";
    mark.points = points;
    mark.is_teachers = true;
  };
  for (std::size_t row = 1; row < marks.size(); ++row) {
    GradedStudent* const student = student_of_row(graded, marks[row].front());
    const std::string folder = student == nullptr ? "" : shown_text(student->student->folder);
    const auto own =
        std::ranges::find(written, folder, [](const auto& cells) { return cells.front(); });
    for (std::size_t i = 0; i < marks[row].size(); ++i) {
      const std::size_t column = column_of(marks[0], i, written[0]);
      const bool is_there = own != written.end() && column < own->size();
      keep(marks[row][i], column, is_there ? (*own)[column] : "", student);
    }
  }
  return are_all;
}

/// What each student gets: what was checked and found, without the key.
Page student_page(const ClassPlan& plan, const GradedStudent& student) {
  const Points points = earned_points(student);
  Page page{.title = fmt::format("{}: {}", plan.sheet.name, student.student->name)};
  page.markdown = fmt::format(
      "{} of {} points{}.\n\n", points_text(points.given), points_text(points.all),
      points.open > 0 ? fmt::format(", and {} that the teacher decides", points_text(points.open))
                      : "");
  FindingTable table{.title = "Checked", .columns = {"", "points", "what was found"}};
  for (const Mark& mark : student.marks) {
    table.rows.push_back({mark.item->name,
                          fmt::format("{} of {}", mark.points ? points_text(*mark.points) : "open",
                                      points_text(mark.item->points)),
                          mark.text});
  }
  page.add({}, {.tables = {table}}, "");
  std::vector<std::string> found;
  for (const Mistake& mistake : student.mistakes) {
    found.push_back(fmt::format("{}: {}{}", name_of(mistake.kind), mistake.text,
                                mistake.text.ends_with('.') ? "" : "."));
  }
  if (!found.empty()) page.markdown += "**Found**\n\n";
  page.add(found, {}, "");
  return page;
}

/// All answers to a question below each other, each with the key of that student's figures.
Page answers_page(const ClassPlan& plan, const GradedClass& graded) {
  Page page{.title = fmt::format("{}: answers", plan.sheet.name)};
  for (const SheetQuestion& question : questions_of(plan.sheet)) {
    page.markdown += fmt::format("## {} {}\n\n", question.number, question.text);
    for (const GradedStudent& student : graded.students) {
      const auto mark = std::ranges::find_if(
          student.marks, [&](const Mark& one) { return one.item->name == question.number; });
      if (mark == student.marks.end() || mark->answer.empty()) continue;
      page.markdown += fmt::format(
          "**{}** ({} of {})\n\n{}\n\n> {}\n\n", markdown_text(student.student->name),
          mark->points ? points_text(*mark->points) : "open", points_text(mark->item->points),
          markdown_text(mark->answer), mark->key.empty() ? "There is no key." : mark->key);
    }
  }
  return page;
}

/// The least, the middle and the greatest of each figure, as recorded.
FindingTable spread_table(const GradedClass& graded) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::pair<double, std::string>>> all;
  for (const GradedStudent& student : graded.students) {
    std::set<std::string> seen;  // a sheet may show a figure twice
    for (const HandedFigure& figure : student.figures) {
      if (!figure.number || !seen.insert(figure.name).second) continue;
      if (!all.contains(figure.name)) names.push_back(figure.name);
      all[figure.name].emplace_back(*figure.number,
                                    figure.recorded.substr(0, figure.recorded.find(" (")));
    }
  }
  FindingTable table{.title = "Figures as recorded",
                     .columns = {"figure", "students", "least", "median", "greatest"}};
  for (const std::string& name : names) {
    auto& values = all[name];
    std::ranges::sort(values);
    table.rows.push_back({name, std::to_string(values.size()), values.front().second,
                          values[values.size() / 2].second, values.back().second});
  }
  return table;
}

FindingTable mistakes_table(const GradedClass& graded) {
  std::map<MistakeKind, int> students;
  for (const GradedStudent& student : graded.students) {
    for (const MistakeKind kind : kValuesOf<MistakeKind>)
      students[kind] += student.has(kind) ? 1 : 0;
  }
  FindingTable table{.title = "What was found", .columns = {"", "students"}};
  for (const auto& [kind, count] : students) {
    if (count > 0) table.rows.push_back({std::string(name_of(kind)), std::to_string(count)});
  }
  std::ranges::stable_sort(table.rows, std::ranges::greater{},
                           [](const auto& row) { return std::stoi(row[1]); });
  return table;
}

std::string unknown_sentence(const GradedClass& graded) {
  return fmt::format(
      "Of nobody in the class: {}. Give a folder its student's name, unpack a file, and grade "
      "again.",
      list_text(graded.unknown));
}

Page class_page(const ClassPlan& plan, const GradedClass& graded) {
  Page page{.title = fmt::format("{}: {}", plan.sheet.name,
                                 counted(std::ssize(graded.students), "student"))};
  page.markdown =
      "Points for what a machine can decide; what was found is named, and what it means is the "
      "teacher's decision. Answers to all questions are in [answers.html](answers.html).\n\n";
  FindingTable table{.title = "Students",
                     .columns = {"name", "points", "open", "found", "machine"}};
  std::vector<std::string> busy;
  for (const GradedStudent& student : graded.students) {
    const Points points = earned_points(student);
    table.rows.push_back({student.student->name, points_text(points.given),
                          points_text(points.open),
                          fmt::format("{}", fmt::join(kinds_of(student), ", ")), student.machine});
    std::vector<std::string> disturbed;  // experiments
    for (const Mistake& one : student.mistakes) {
      if (one.kind == MistakeKind::kBusy) {
        disturbed.push_back(one.text.substr(0, one.text.find(':')));
      }
    }
    if (!disturbed.empty()) {
      busy.push_back(fmt::format("{} ({})", student.student->name, fmt::join(disturbed, ", ")));
    }
  }
  std::vector<std::string> sentences;
  if (!busy.empty()) {
    sentences.push_back(fmt::format("Measured on a busy machine, so some times decide nothing: {}.",
                                    list_text(busy)));
  }
  for (const GradedStudent& student : graded.students) {
    if (student.owner == nullptr) continue;
    sentences.push_back(
        fmt::format("{} handed in the variant of {}.", student.student->name, student.owner->name));
  }
  if (!graded.unknown.empty()) sentences.push_back(unknown_sentence(graded));
  page.add(sentences, {.tables = {table, mistakes_table(graded), spread_table(graded)}}, "");
  return page;
}

/// The studies below a folder, by where they are.
std::map<std::string, std::filesystem::path> studies_below(const std::filesystem::path& folder) {
  std::map<std::string, std::filesystem::path> found;
  for (const std::filesystem::path& path : files_below(folder)) {
    if (path.filename() != kStudyName) continue;
    const std::filesystem::path study = path.parent_path(),
                                inside = std::filesystem::relative(study, folder);
    const std::string name = inside.begin()->string();
    found[found.contains(name) ? inside.string() : name] = study;
  }
  if (!found.empty()) return found;
  fail(ExitCode::kNoInput, {.what = "studies",
                            .value = folder.string(),
                            .why = std::filesystem::exists(folder) ? "there are none in this folder"
                                                                   : "No such file or directory",
                            .remedy = "name the folder that has the --output of each machine"});
}

/// A row of times for each study, and the same as a plot.
struct JoinedTimes {
  FindingTable table{.title = "Time of a step", .columns = {"where", "machine", "options"}};
  std::vector<PlotSeries> series{};  // by column after these

  void add(const std::string& where, const Report& report) {
    const std::size_t facts = 3;
    std::vector<std::string> row = {where, machine_text(report),
                                    std::string(without_blanks(report.options))};
    for (const ReportSection& section : report.sections) {
      for (const Measurement& measured : section.results.cases) {
        const std::string name =
            fmt::format("{}.{}", section.experiment->name, measured.what().key);
        const auto place = static_cast<std::size_t>(std::ranges::find(table.columns, name) -
                                                    table.columns.begin());
        if (place == table.columns.size()) {
          table.columns.push_back(name);
          series.push_back({.name = name, .style = SeriesStyle::kMarks});
        }
        row.resize(table.columns.size(), "-");
        row[place] = time_text(measured.mean_s()) + (section.trouble.empty() ? "" : " (INVALID)");
        series[place - facts].points.push_back(
            plot_point(static_cast<double>(table.rows.size() + 1), measured.mean_s(), 1e3));
      }
    }
    table.rows.push_back(std::move(row));
  }
};

}  // namespace

std::filesystem::path numbered_copy(const std::filesystem::path& file) {
  const auto copy = [&](int number) {
    return file.parent_path() /
           fmt::format("{}-{}{}", file.stem().string(), number, file.extension().string());
  };
  int number = 1;
  while (std::filesystem::exists(copy(number))) ++number;
  std::filesystem::copy_file(file, copy(number));
  return copy(number);
}

std::filesystem::path write_grades(const std::filesystem::path& folder, const ClassPlan& plan,
                                   GradedClass graded) {
  const std::filesystem::path marks = folder / kMarksFile, written = folder / kGradedFile;
  std::filesystem::path kept;
  if (std::filesystem::exists(marks)) {
    const CsvRows own =
        std::filesystem::exists(written) ? rows_in(written) : csv_rows(marks_csv(plan, graded));
    if (!keep_teachers_points(rows_in(marks), own, graded)) kept = numbered_copy(marks);
  }
  write_page(folder, class_page(plan, graded), "class");
  write_page(folder, answers_page(plan, graded), "answers");
  for (const GradedStudent& student : graded.students) {
    write_page(folder / "students", student_page(plan, student), student.student->folder);
  }
  replace_file(marks, marks_csv(plan, graded));
  replace_file(written, marks_csv(plan, graded, false));
  return kept;
}

std::string summary_of_grades(const GradedClass& graded) {
  const FindingTable found = mistakes_table(graded);
  TextTable table({"found", ">students"});
  for (const auto& row : found.rows) table.add_row(row);
  return fmt::format("{}\n{}{}", counted(std::ssize(graded.students), "student"),
                     found.rows.empty() ? "" : table.text(),
                     graded.unknown.empty() ? "" : unknown_sentence(graded) + "\n");
}

void collect_studies(const std::filesystem::path& folder, const std::filesystem::path& output) {
  JoinedTimes times;
  std::string csv;
  std::vector<std::string> left_out;
  for (const auto& [where, study] : studies_below(folder)) {
    Report report;
    const auto why = refusal_of([&, &from = study] { report = report_of(Study::open(from)); });
    if (why) {
      left_out.push_back(fmt::format("{} is left out: {}", where, why->what()));
      continue;
    }
    times.add(where, report);
    const std::string results = csv_of(report);
    for (const std::string_view line : split(results, "\n")) {
      const bool is_title = line.data() == results.data();
      if (line.empty() || (is_title && !csv.empty())) continue;
      csv += fmt::format("{},{}\n", is_title ? "where" : csv_cell(where), line);
    }
  }
  for (auto& row : times.table.rows) row.resize(times.table.columns.size(), "-");
  Page page{.title = "Machines of a class"};
  page.add(left_out,
           {.tables = {std::move(times.table)},
            .plots = {{.title = "Time of a step",
                       .x_label = "row of the table",
                       .y_label = "ms",
                       .log_y = true,
                       .series = std::move(times.series)}}},
           "machines");
  write_page(output, page);
  replace_file(output / "results.csv", csv);
}

}  // namespace barestep
