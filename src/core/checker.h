// Proving that a program's lanes and waits keep the order of its list.
#pragma once

#include <string>
#include <vector>

#include "core/program.h"

namespace barestep {

/// Two nodes that touch the same bytes, one of them writing, and of which `second` may start before
/// `first`, `steps_back` steps earlier, is finished.
struct Violation {
  NodeId first = 0;
  NodeId second = 0;
  int steps_back = 0;

  friend bool operator==(const Violation&, const Violation&) = default;
};

/// All violations of a program that runs step after step; none when it is ordered. Throws
/// Error(kBug) when a wait names no node, reaches further back than 2 steps, or waits for the node
/// itself or a later one of the same step.
std::vector<Violation> check(const Program& program);

/// One line for people: the two nodes and the bytes they meet in.
std::string describe(const Program& program, const Violation& violation);

}  // namespace barestep
