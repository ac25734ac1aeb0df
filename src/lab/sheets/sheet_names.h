// What the {{names}} in sheets stand for.
//
// `batch-sweep.batch-64.seconds` is a figure of a case of an experiment, and with `simulated.` in
// front the same case of the course's size on GPUs. `strong-scaling.efficiency` is what an
// experiment found, by its name: a sentence, a table or a plot.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiments/case_figures.h"
#include "lab/study/report.h"

namespace barestep {

/// Gives names access to measurements and simulations.
class SheetRuns {
 public:
  /// `report` must outlive this object and contain the experiments of the sheet. `gpus` are those
  /// that simulated figures are for.
  SheetRuns(const Report& report, MachineCard gpus)
      : report_(report), simulations_(std::move(gpus)) {}

  [[nodiscard]] const Report& report() const { return report_; }
  [[nodiscard]] const Simulations& simulations() const { return simulations_; }
  [[nodiscard]] const MachineCard& gpus() const { return simulations_.card(); }
  /// That of the measurements.
  [[nodiscard]] Setting setting() const;
  [[nodiscard]] const ReportSection& section(std::string_view experiment) const;

 private:
  const Report& report_;
  Simulations simulations_;
};

enum class SheetNameKind {
  kFigure,    // a part of a sentence, or a cell of a table
  kSentence,  // one or more
  kTable,     // students make one
  kPlot,
};

struct SheetName {
  std::string name{};
  std::string about{};                     // for --names
  std::vector<std::string> experiments{};  // that it needs
  std::function<std::string(const SheetRuns& runs)> text{};
  SheetNameKind kind = SheetNameKind::kSentence;
  bool is_timed = false;  // a figure that a sentence may not use if its experiment is INVALID
  std::string finding{};  // of its experiment; only one about times is of times
  std::string key{};      // of the measured case that it is a figure of
  std::function<std::string(const SheetRuns& runs)> why_none{};  // of a simulated figure

  /// For a name of times, that its experiment allows no conclusion; otherwise empty. Why it does
  /// not is in {{machine}}.
  [[nodiscard]] std::string trouble(const SheetRuns& runs) const;
};

/// The checklist for benchmarks; a sheet without this name has it at its foot.
constexpr std::string_view kChecklistName = "checklist";

/// Nothing if the name is unknown. `strong_scaling.table` is `strong-scaling.table`.
std::optional<SheetName> sheet_name(std::string_view name);

/// The known name that is nearest to this one; empty if none is near.
std::string nearest_sheet_name(std::string_view name);

/// All names, as a text for people.
std::string sheet_names_text();

/// The names that no experiment finds (sheet_notes.cpp).
const std::vector<SheetName>& sheet_notes();

}  // namespace barestep
