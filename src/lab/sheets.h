// The exercise sheets (practicals and homework) of "the course", a university course on parallelism
// in deep learning: their tasks and tables, filled in from a study, their questions with the
// figure, the formula and the reason.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report.h"

namespace barestep {

enum class SheetCopy {
  kFilled,  // for the person who measured
  kBlank,   // the students' cells and answers are left empty
  kKey,     // the teacher's: filled, with the contents of a good answer
};

/// Gives a sheet access to its measurements.
class SheetRuns {
 public:
  /// `report` must outlive this object and contain the experiments of the sheet.
  explicit SheetRuns(const Report& report) : report_(report) {}

  [[nodiscard]] const Results& of(std::string_view experiment) const;
  [[nodiscard]] const Findings& findings(std::string_view experiment) const;
  /// The sentence about times at this index, or why there is no conclusion.
  [[nodiscard]] std::string sentence(std::string_view experiment, std::size_t place) const;
  [[nodiscard]] std::string fact(std::string_view experiment, std::size_t place) const;
  /// The result of `conclude` for the measurements, or why there is no conclusion.
  [[nodiscard]] std::string concluded(
      std::string_view experiment,
      const std::function<std::string(const Results& results)>& conclude) const;

 private:
  [[nodiscard]] const ReportSection& section(std::string_view experiment) const;

  const Report& report_;
};

struct SheetQuestion {
  const char* question;
  const char* formula;  // or the rule behind the answer
  std::function<std::string(const SheetRuns& runs)> answer;
  const char* key;  // the contents of a good answer
};

/// The first `given` columns of a table are fixed and stay on a blank copy. The title of a
/// simulated table says that it is simulated.
struct SheetTable {
  FindingTable table{};
  std::size_t given = 1;
};

struct SheetTask {
  const char* title;
  const char* what;
  std::function<std::vector<SheetTable>(const SheetRuns& runs)> tables;
  std::vector<SheetQuestion> questions;
};

struct Sheet {
  const char* name;
  const char* title;
  std::vector<std::string> experiments;  // by name
  std::vector<SheetTask> tasks;
};

std::span<const Sheet> sheets();

/// Throws Error(kUsage), with the nearest name, if no sheet has this name.
const Sheet& sheet_of(std::string_view name);

/// The sheet as Markdown.
std::string markdown_of(const Sheet& sheet, const Report& report, SheetCopy copy);

}  // namespace barestep
