// The header of a sheet for a class, above its text, between two lines of ---: what differs from
// student to student, and how many points each check has.
//
//   ---
//   vary: dim 896 to 1152 by 64
//   band: 20 %
//   intervals: yes
//   measure: monitor, profile
//   | check | points | marked by |
//   | --- | ---: | --- |
//   | identity | 3 | |
//   | 2.1 | 1 | batch-sweep.linear: yes=above, no=below |
//   | 2.2 | 1 | prediction |
//   ---
//
// The seed always varies. The table has what differs from the usual: two points for each check, one
// for each question, which the teacher marks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/comparison.h"

namespace barestep {

struct Experiment;
struct Sheet;

/// An option of the trainers, or "ranks", that each student has another value of.
struct VariedOption {
  std::string name{};
  std::int64_t low = 0, high = 0, step = 1;
};

enum class MarkedBy {
  kCheck,       // identity, arithmetic, physics: by the program
  kWord,        // a choice, by the word of a finding of the student's own figures
  kText,        // by the teacher
  kPrediction,  // the same: by its reason, not by how close it is
};

struct MarkedItem {
  std::string name{};  // "identity", or a question's number, "2.1"
  double points = 1;
  MarkedBy by = MarkedBy::kText;
  std::string experiment{}, finding{};                 // "batch-sweep", "linear"
  std::map<std::string, std::vector<Word>> choices{};  // by answer, the words that make it right
};

struct SheetHeader {
  std::vector<VariedOption> varied{};
  double band = 0.5;            // a variant's step may take so much more or less than the middle's
  bool asks_intervals = false;  // in tables
  /// Besides those that the text names: by the header, and for words.
  std::vector<const Experiment*> measured{};
  std::vector<MarkedItem> items{};  // with points: the checks, then the questions

  /// Null if it has no points.
  [[nodiscard]] const MarkedItem* item(std::string_view name) const;
};

/// The checks of the program.
constexpr std::string_view kIdentityCheck = "identity", kArithmeticCheck = "arithmetic",
                           kPhysicsCheck = "physics";

/// What is right if no figure decides.
constexpr std::string_view kCannotBeSaid = "cannot be said";

/// Throws Error(kBadData), with the line, for what it cannot be.
SheetHeader header_of(const Sheet& sheet);

}  // namespace barestep
