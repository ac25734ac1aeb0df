// The header of a sheet for a class, above its text, between two lines of ---: what differs from
// student to student, and how many points each check has.
//
//   ---
//   vary: seed 1 to 1000000
//   vary: dim 896 to 1152 by 64
//   band: 20 %
//   intervals: yes
//   | check | points | marked by |
//   | --- | ---: | --- |
//   | identity | 2 | |
//   | 2.1 | 1 | batch-sweep.linear: yes=above, no=below |
//   | 2.2 | 1 | prediction |
//   ---
//
// A sheet without one varies the seed, and has a point for each check and each question.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/comparison.h"

namespace barestep {

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
  std::string experiment{}, finding{};    // "batch-sweep", "linear"
  std::map<std::string, Word> choices{};  // by answer
};

struct SheetHeader {
  std::vector<VariedOption> varied{};
  double band = 0.2;            // a variant's step may take so much more or less than the middle's
  bool asks_intervals = false;  // in tables
  std::vector<MarkedItem> items{};

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
