// A class: a sheet of which every student has a variant, and what they hand in, graded.
//
// A class is a folder. class.json holds the secret and the variants, NAME.md the sheet as it was
// given out, students/FOLDER/ what each student gets, and grades/ what grading found: marks.csv, a
// page for the class and a page for each student. A student hands in that folder with the study
// that run.sh made in it. Grading compares the sheet with the study's records, the records with
// each other, and both with the variant. What it finds it names; what a figure cannot decide it
// leaves to the teacher.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "lab/experiments/case_figures.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/sheets/sheet_header.h"
#include "lab/sheets/sheets.h"
#include "lab/study/report.h"

namespace barestep {

/// A script for sh, and for sbatch, which reads its lines of #SBATCH: in the folder where it is, it
/// runs `preparation`, then `mlp_lab sheet` with these arguments.
std::string script_of(const Sheet& sheet, const std::string& file, const SheetPrice& price,
                      const std::string& arguments, const std::string& preparation = "");

/// A student and the variant of the sheet.
struct Student {
  std::string name{};
  std::string folder{};    // the name, as far as folders may have it
  GivenOptions options{};  // of mlp_lab sheet
  SheetPrice price{};
};

struct ClassPlan {
  Sheet sheet{};
  SheetHeader header{};
  std::string secret{};   // from which the variants are drawn
  std::string machine{};  // the card that prices them, as for load_card()
  bool quick = false;
  std::vector<Student> students{};
  std::string note{};  // to the teacher, of a new class
};

/// Of the GPUs in the simulated columns of a class priced by `machine`: the same, unless it is a
/// CPU.
std::string simulated_machine(const std::string& machine);

struct NewClass {
  std::string sheet{};
  std::filesystem::path students{};  // a CSV file: name, and the folder if it is another one
  std::filesystem::path output{};
  std::string machine{};  // empty: that of the class in the folder, or kUsualCard
  std::string secret{};   // empty: a new one
  bool quick = false;
};

/// Draws the variants, prices them, and writes the class and its students' folders. In an existing
/// class of the same sheet students keep their variants, and their folders are left as they are.
/// Throws Error: kNoInput, kBadData with the line of the students' file, or if it lacks a student
/// of the class; kConfiguration if the folder holds another class, nothing can be priced, or no
/// variant is within the header's limits; also as load_sheet() does.
ClassPlan new_class(const NewClass& requested);

/// Throws Error: kNoInput, kBadData.
ClassPlan load_class(const std::filesystem::path& folder);

/// The endings of what a student writes and hands in: SHEET-before.md is the sheet as it was when
/// run.sh was first called, and SHEET-figures.md the one whose tables it filled in.
constexpr std::string_view kBeforeEnding = "-before.md", kFiguresEnding = "-figures.md";

/// Of its text, however lines end. A study keeps that of SHEET-before.md from its first run on.
std::string hash_of_sheet(const std::filesystem::path& file);

/// A case as if each step of all its starts took so long, with these parts.
Measurement steady(const Case& what, int starts, double step_s,
                   const std::map<std::string, double>& phase_s = {});

/// All that is below a folder and can be read, in order, and the file that makes a folder a study.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);
constexpr std::string_view kStudyName = "study.json";

/// The cells of each line of CSV, as spreadsheets write it; quotes may enclose a cell, and are then
/// doubled within it.
std::vector<std::vector<std::string>> csv_rows(std::string_view text);

/// "processor X, cores 2"; "own logs", which do not tell it.
std::string machine_text(const Report& report);

// Grading (grade.cpp).

enum class MistakeKind {
  kNothing,     // handed in
  kUnreadable,  // what was handed in, perhaps since it is still packed
  kMissing,     // an experiment
  kVariant,     // another one than the student's
  kAltered,     // a record that is not the one that the run wrote
  kCopied,      // a record that another student has as well, who may have made it
  kShared,      // no mistake: the same, of the student's own variant
  kSwapped,     // two figures of the sheet
  kMistyped,    // a figure of the sheet: its digits in another order, or one of them wrong
  kOther,       // a figure of the sheet that is not the one that the run recorded
  kArithmetic,  // a figure of the sheet that does not follow from the others
  kPhysics,     // a time below the floor, an account that does not add up, no interval
  kAnswer,      // another word than that of the student's own figures
  kBusy,        // no mistake: other programs disturbed the measurement
  kNoRerun,     // no mistake: the other run failed
};
template <>
inline constexpr std::string_view kNamesOf<MistakeKind>[] = {"nothing handed in",
                                                             "unreadable",
                                                             "not measured",
                                                             "another variant",
                                                             "altered record",
                                                             "same as another's",
                                                             "handed in by another, too",
                                                             "swapped",
                                                             "mistyped",
                                                             "another figure",
                                                             "does not follow",
                                                             "not possible",
                                                             "wrong answer",
                                                             "busy machine",
                                                             "rerun failed"};

struct Mistake {
  MistakeKind kind;
  std::string text;
};

/// What was found for one item of the header.
struct Mark {
  const MarkedItem* item = nullptr;
  std::optional<double> points{};  // nothing: the teacher's decision
  bool is_teachers = false;        // the teacher wrote them
  std::string text{};              // what was checked, and found
  std::string answer{}, key{};     // of a question
};

/// A figure of the sheet's tables, as the run recorded it and as it was handed in.
struct HandedFigure {
  std::string name{};
  std::string recorded{}, written{};
  std::optional<double> number{};  // that was recorded

  [[nodiscard]] std::string kind() const { return name.substr(name.rfind('.') + 1); }
};

struct GradedStudent {
  const Student* student = nullptr;
  std::vector<Mark> marks{};
  std::vector<Mistake> mistakes{};
  std::vector<HandedFigure> figures{};
  std::string machine{};
  const Student* owner = nullptr;  // of the variant that was handed in, if it is another student

  [[nodiscard]] bool has(MistakeKind kind) const;
};

/// Makes another start of a case on the CPU of this machine, also of one that was on a GPU.
using Rerun = std::function<Start(const Case& what)>;

struct GradedClass {
  std::vector<GradedStudent> students{};
  std::vector<std::string> unknown{};  // folders and files of nobody, and whose they may be
};

/// Grades what each student handed in: a folder named like the student's, or beginning with its
/// name and an underscore. With `rerun`, which several threads call at once, the losses of a case
/// of each are compared with those of another run; if that fails, its student's grade says why.
/// Calls on_progress(done, name) from one thread at a time. Throws Error(kNoInput) if there is no
/// such folder.
GradedClass grade_class(const ClassPlan& plan, const std::filesystem::path& handed_in,
                        const MachineCard& gpus, const Rerun& rerun,
                        const std::function<void(int done, const std::string& name)>& on_progress);

/// Writes marks.csv and the pages into the folder, and graded.csv, by which a later call knows what
/// a teacher has written into marks.csv. Points of items stay there; if there is more, such as a
/// column of remarks, returns the copy of the earlier file that has it, else an empty path. Throws
/// Error: kCannotCreate, kInputOutput.
std::filesystem::path write_grades(const std::filesystem::path& folder, const ClassPlan& plan,
                                   GradedClass graded);

/// Copies NAME.END to NAME-1.END, or with the next number that is free; returns the copy.
std::filesystem::path numbered_copy(const std::filesystem::path& file);

/// What was found, by how many students, for a terminal.
std::string summary_of_grades(const GradedClass& graded);

/// Joins all studies below a folder into results.csv, and into a table and a plot in report.md and
/// report.html, in `output`, which names those that cannot be read. Throws Error: kNoInput if there
/// are none.
void collect_studies(const std::filesystem::path& folder, const std::filesystem::path& output);

}  // namespace barestep
