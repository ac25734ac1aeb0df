#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

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

/// A spreadsheet shows it as it is: what would be a formula has an apostrophe before it.
std::string csv_cell(std::string text) {
  if (text.find_first_of("=+-@\t") == 0) text.insert(0, "'");
  if (text.find_first_of(",;\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text)
    quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
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

std::string marks_csv(const ClassPlan& plan, const GradedClass& graded) {
  std::string text =
      "\xEF\xBB\xBF"
      "folder,name";  // by which Excel knows that it is UTF-8
  for (const MarkedItem& item : plan.header.items) text += "," + csv_cell(item.name);
  text += ",points,open,found\n";
  for (const GradedStudent& student : graded.students) {
    text += csv_cell(student.student->folder) + "," + csv_cell(student.student->name);
    for (const Mark& mark : student.marks)
      text += "," + (mark.points ? points_text(*mark.points) : "");
    const Points points = earned_points(student);
    text += fmt::format(",{},{},{}\n", points_text(points.given), points_text(points.open),
                        csv_cell(fmt::format("{}", fmt::join(kinds_of(student), ", "))));
  }
  return text;
}

/// Takes what a teacher has written into an earlier marks.csv for questions that no program marks.
void keep_teachers_points(const std::filesystem::path& file, GradedClass& graded) {
  if (!std::filesystem::exists(file)) return;
  const auto rows = csv_rows(InputFile(file, "marks").text(std::int64_t{1} << 24));
  for (GradedStudent& student : graded.students) {
    const std::string folder = csv_cell(student.student->folder);
    const auto row = std::ranges::find_if(rows, [&](const auto& cells) {
      return cells.front() == student.student->folder || cells.front() == folder;
    });
    for (Mark& mark : student.marks) {
      const MarkedItem& item = *mark.item;
      const auto column =
          static_cast<std::size_t>(std::ranges::find(rows[0], item.name) - rows[0].begin());
      const bool is_teachers = item.by == MarkedBy::kText || item.by == MarkedBy::kPrediction;
      if (mark.points || !is_teachers || row == rows.end() || column >= row->size()) continue;
      std::string cell = (*row)[column];
      std::ranges::replace(cell, ',', '.');
      double points = 0;
      if (read_real(cell, points).ec != std::errc{} || !std::isfinite(points)) continue;
      mark.points = points;
      mark.text = "The teacher's points.";
    }
  }
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
    for (const HandedFigure& figure : student.figures) {
      if (!figure.number) continue;
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
      "teacher's decision. Answers to all questions are in answers.html.\n\n";
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

void write_grades(const std::filesystem::path& folder, const ClassPlan& plan, GradedClass graded) {
  keep_teachers_points(folder / "marks.csv", graded);
  write_page(folder, class_page(plan, graded), "class");
  write_page(folder, answers_page(plan, graded), "answers");
  for (const GradedStudent& student : graded.students) {
    write_page(folder / "students", student_page(plan, student), student.student->folder);
  }
  replace_file(folder / "marks.csv", marks_csv(plan, graded));
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
