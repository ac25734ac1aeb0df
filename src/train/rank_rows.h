// The rows of a step that one of several ranks computes.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace barestep {

/// `count` rows from `first` on.
struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const Rows&, const Rows&) = default;
};

/// The rows of one of `ranks` ranks: as even as can be, the first ranks take one more.
Rows share_of_rank(std::int64_t rows, int rank, int ranks);

/// A rank's rows of a tensor, by the same rule; what ReduceScatter and AllGather go by.
Tensor share_of_rank(const Tensor& tensor, int rank, int ranks);

}  // namespace barestep
