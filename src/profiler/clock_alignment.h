// How the clocks of ranks differ.
#pragma once

#include <vector>

#include "core/communicator.h"

namespace barestep {

/// For each rank, what to add to a time of its clock to get that of rank 0's, and by how much that
/// may be wrong at most.
struct ClockAlignment {
  std::vector<double> shift_s;
  std::vector<double> error_s;

  [[nodiscard]] double largest_error_s() const;
};

/// Compares the clocks by messages; every rank calls it and gets the same result. `clock` gives
/// seconds.
///
/// A message that rank a sends when its clock shows s cannot arrive before that: rank b's clock
/// shows e when it has the message, so shift_a - shift_b <= e - s. With messages both ways the
/// shift lies between two bounds, as in Cristian's algorithm; of many rounds, in which the ranks
/// take turns in being last, the closest bounds count. Blocks for some milliseconds.
ClockAlignment align_clocks(Communicator& ranks, double (*clock)());

}  // namespace barestep
