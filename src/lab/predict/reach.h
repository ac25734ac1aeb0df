// How long ago, in bytes, a step used the memory of each node: what decides which cache it is in.
#pragma once

#include <algorithm>
#include <vector>

#include "core/program.h"

namespace barestep {

/// Of a node: the bytes that it touches, each counted once, and how many its device touches from
/// one use of such a byte to the next, in the mean.
struct Reach {
  double own = 0;
  double bytes = 0;

  /// As a multiple of its own, as many as there are if the node runs again and again.
  [[nodiscard]] double ratio() const { return own > 0 ? std::max(bytes / own, 1.0) : 1; }
};

/// By node, of a step that repeats. Of a product, only the uses of its weights, or of their
/// gradient, count.
std::vector<Reach> reaches_of(const Program& program);

}  // namespace barestep
