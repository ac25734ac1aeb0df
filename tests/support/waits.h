// Programs have the waits that they need, and no others.
#pragma once

#include "core/checker.h"
#include "core/program.h"
#include "support/testing.h"

namespace barestep {

/// Every program that a test builds must pass these checks.
inline void expect_ordered(const Program& program) {
  for (const Violation& violation : check(program)) {
    ADD_FAILURE() << program.name() << ": " << describe(program, violation);
  }
}

/// Deletes each wait in turn; returns the number of waits and reports those whose deletion is not
/// found.
inline int expect_every_deletion_found(Program program) {
  expect_ordered(program);
  int waits = 0;
  for (Node& node : program.nodes()) {
    const std::vector<Wait> all = node.waits;
    for (std::size_t i = 0; i < all.size(); ++i) {
      node.waits.erase(node.waits.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(check(program).empty())
          << program.name() << ": a " << label_of(node.op) << " need not wait for node "
          << all[i].node << ", " << all[i].steps_back << " steps back";
      node.waits = all;
      ++waits;
    }
  }
  return waits;
}

}  // namespace barestep
