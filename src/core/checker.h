// Proves that a program's lanes and waits keep the order of its list.
#pragma once

#include <string>
#include <vector>

#include "core/program.h"

namespace barestep {

/// Two nodes touch the same bytes and at least one of them writes, but `second` may start before
/// `first`, which runs `steps_back` steps earlier, is finished.
struct Violation {
  NodeId first = 0;
  NodeId second = 0;
  int steps_back = 0;

  friend bool operator==(const Violation&, const Violation&) = default;
};

/// All violations of a program that runs step after step; empty if it is ordered. Throws
/// Error(kBug) if a wait names no node, reaches back more than 2 steps, or waits for its own node
/// or a later one of the same step.
std::vector<Violation> check(const Program& program);

/// One line for people: the two nodes and the bytes they both touch.
std::string describe(const Program& program, const Violation& violation);

}  // namespace barestep
