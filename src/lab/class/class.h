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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/sheets/sheet_header.h"
#include "lab/sheets/sheets.h"
#include "lab/study/report.h"

namespace barestep {

/// A student and the variant of the sheet.
struct Student {
  std::string name{};
  std::string folder{};    // the name, as far as folders may have it
  GivenOptions options{};  // of mlp_lab sheet
  double step_s = 0;       // simulated
};

struct ClassPlan {
  Sheet sheet{};
  SheetHeader header{};
  std::string secret{};   // from which the variants are drawn
  std::string machine{};  // the card that prices them
  bool quick = false;
  std::vector<Student> students{};

  /// That of a student's study on the machine of the card.
  [[nodiscard]] Setting setting(const GivenOptions& options, const MachineCard& card) const;
};

struct NewClass {
  std::string sheet{};
  std::filesystem::path students{};  // a CSV file: name, and the folder if it is another one
  std::filesystem::path output{};
  std::string machine{};
  std::string secret{};  // empty: a new one
  bool quick = false;
};

/// Draws the variants, prices them, and writes the class and its students' folders. An existing
/// class of the same sheet keeps its secret, so its students keep their variants. Throws Error:
/// kNoInput, kBadData with the line of the students' file; kConfiguration if the folder holds
/// another class, or no variant is within the header's limits; also as load_sheet() does.
ClassPlan new_class(const NewClass& requested);

/// Throws Error: kNoInput, kBadData.
ClassPlan load_class(const std::filesystem::path& folder);

/// A variant on this machine: its cost, and the words of the findings that choices are marked by.
struct PricedVariant {
  double step_s = 0;  // all cases together
  int starts = 0;
  double seconds = 0;                // of all starts
  std::vector<std::string> words{};  // by choice
  std::string trouble{};             // empty, or why it cannot be given to a student
};
PricedVariant priced(const ClassPlan& plan, const GivenOptions& options, const MachineCard& card);

/// By its whole name, "batch-sweep.linear"; null if there is none.
const Finding* finding_named(const Findings& findings, std::string_view name);

// Grading (grade.cpp).

enum class MistakeKind {
  kNothing,     // handed in
  kUnreadable,  // what was handed in
  kMissing,     // an experiment
  kVariant,     // another one than the student's
  kAltered,     // a record that is not the one that the run wrote
  kCopied,      // a record that another student has as well
  kSwapped,     // two figures of the sheet
  kMistyped,    // a figure of the sheet: its digits in another order, or one of them wrong
  kOther,       // a figure of the sheet that is not the one that the run recorded
  kArithmetic,  // figures of the sheet that do not follow from each other
  kPhysics,     // a time below the floor, an account that does not add up, no interval
  kAnswer,      // another word than that of the student's own figures
  kBusy,        // no mistake: other programs disturbed the measurement
};
template <>
inline constexpr std::string_view kNamesOf<MistakeKind>[] = {
    "nothing handed in", "unreadable",   "not measured", "another variant", "altered record",
    "same as another's", "swapped",      "mistyped",     "another figure",  "does not follow",
    "not possible",      "wrong answer", "busy machine"};

struct Mistake {
  MistakeKind kind;
  std::string text;
};

/// What was found for one item of the header.
struct Mark {
  const MarkedItem* item = nullptr;
  std::optional<double> points{};  // nothing: the teacher's decision
  std::string text{};              // what was checked, and found
  std::string answer{}, key{};     // of a question
};

/// A figure of the sheet's tables, as the run recorded it and as it was handed in.
struct HandedFigure {
  std::string name{};
  std::string recorded{}, written{};
  std::optional<double> number{};  // that was recorded
};

struct GradedStudent {
  const Student* student = nullptr;
  std::vector<Mark> marks{};
  std::vector<Mistake> mistakes{};
  std::vector<HandedFigure> figures{};
  std::string machine{};

  [[nodiscard]] bool has(MistakeKind kind) const;
};

/// The records of a start that another run makes of the same case; `kept` is the first start.
using Rerun = std::function<std::optional<Start>(const Case& what)>;

struct GradedClass {
  std::vector<GradedStudent> students{};
  std::vector<std::string> unknown{};  // folders of nobody
};

/// Grades what each student handed in: a folder named like the student's, or beginning with its
/// name and an underscore. With `rerun`, which several threads call at once, the losses of a case
/// of each are compared with those of another run. Calls on_progress(done, name) from one thread at
/// a time. Throws Error(kNoInput) if there is no such folder.
GradedClass grade_class(const ClassPlan& plan, const std::filesystem::path& handed_in,
                        const MachineCard& gpus, const Rerun& rerun,
                        const std::function<void(int done, const std::string& name)>& on_progress);

/// Writes marks.csv and the pages into the folder. Throws Error: kCannotCreate, kInputOutput.
void write_grades(const std::filesystem::path& folder, const ClassPlan& plan,
                  const GradedClass& graded);

/// What was found, by how many students, for a terminal.
std::string summary_of_grades(const GradedClass& graded);

/// Joins the figures of all studies below a folder into results.csv, report.md and report.html in
/// `output`. Throws Error: kNoInput if there are none.
void collect_studies(const std::filesystem::path& folder, const std::filesystem::path& output);

}  // namespace barestep
