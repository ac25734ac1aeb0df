// Some steps of a run that follow each other.
#pragma once

#include <cstdint>

namespace barestep {

/// `first` and what follows, without `end`, as a slice in Python.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr bool contains(std::int64_t step) const {
    return first <= step && step < end;
  }
  [[nodiscard]] constexpr std::int64_t size() const { return end - first; }

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

}  // namespace barestep
