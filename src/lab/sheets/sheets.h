// Exercise sheets: Markdown templates in which {{names}} stand for figures and sentences of
// experiments (lab/sheet_names.h). src/lab/sheets/ holds those of "the course", a university course
// on parallelism in deep learning; a teacher writes others.
//
// A question is a bold paragraph, and its answer the paragraph below it. On a blank copy answers,
// tables that are names, and cells with names are left empty; columns whose title begins with
// "Simulated" and other paragraphs with names are left out, and a heading ends at the colon before
// its names; there are a line for the student's name, one for the cost, room for each answer, and
// below each heading the command that measures what its text asks for. A paragraph that begins with
// > is only in the teacher's key. A sentence with a figure of an INVALID experiment gives way to
// the reason, at the end of its paragraph. A filled-in sheet ends with the checklist for
// benchmarks, unless it has that elsewhere. Questions are numbered by the heading of ## above
// them: 2.1, or 5B.1 below "## 5B.". A sheet may begin with a header (sheet_header.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/sheets/sheet_names.h"

namespace barestep {

enum class SheetCopy {
  kFilled,   // for the person who measured
  kKey,      // the teacher's: filled, with the contents of a good answer
  kFigures,  // for students: tables are filled in, and answers left to them
};

struct Sheet {
  std::string name;  // without .md
  std::string text;  // below the header
  std::string header{};
  std::size_t text_line = 1;  // in its file
};

/// Throws Error(kBadData): "line 'N': NAME.md has WHAT there".
[[noreturn]] void refuse_line(const Sheet& sheet, std::size_t line, const std::string& what,
                              std::string remedy);

/// The names of the course's sheets.
std::vector<std::string> sheet_names();

/// Reads a sheet of the course by its name, or any file whose name ends in .md. Throws Error:
/// kUsage with the nearest name, kNoInput; kBadData, with its line, if a name in it is unknown.
Sheet load_sheet(const std::string& name_or_file);

/// The experiments that its names and its header ask for, each once.
std::vector<const Experiment*> experiments_of(const Sheet& sheet);

/// The sheet as Markdown.
std::string markdown_of(const Sheet& sheet, const SheetRuns& runs, SheetCopy copy);

/// What the runs of a sheet cost on a machine.
struct SheetPrice {
  std::int64_t starts = 0;              // of all cases
  double step_s = 0;                    // of all cases together, simulated
  double seconds = 0;                   // of all starts, simulated
  std::string machine{};                // the card's name
  std::string trouble{};                // empty, or why a case is too large for the machine
  std::int64_t runs = 0, unpriced = 0;  // cases that programs run; of these, what has no price

  /// "90 starts, about 3 minutes on one T4 (simulated)"; empty if nothing is started.
  [[nodiscard]] std::string text() const;
};
SheetPrice price_of(const Sheet& sheet, const Setting& setting, const Simulations& simulations);

/// The students' copy, which needs no measurement. It says what the sheet costs on the machine of
/// `simulations`.
std::string blank_copy_of(const Sheet& sheet, const Simulations& simulations);

/// The copy for students with the answers of an earlier one that someone has filled in.
std::string with_answers(std::string_view copy, std::string_view answered);

/// A sheet to give to a student: without answers, points and key, but with the names, so that it
/// can be filled in. What only the answers need stands in a header, so that it is measured, too.
std::string template_of(const Sheet& sheet, const std::string& student);

/// A numbered question of a sheet or of a copy, what is written below it, up to the next one, and
/// what the key has there.
struct SheetQuestion {
  std::string number{}, text{}, answer{}, key{};
};

/// Of the sheet itself, and of a copy that someone may have filled in; a line to write on is empty.
std::vector<SheetQuestion> questions_of(const Sheet& sheet);
std::vector<SheetQuestion> questions_in(std::string_view copy);

/// The same as a page.
std::string sheet_page(const Sheet& sheet, std::string_view markdown);

}  // namespace barestep
