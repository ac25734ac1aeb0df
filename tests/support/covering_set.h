// Covering sets: few cases in which every two levels of different factors meet.
//
// Most faults of combined options need two of them. Of 14 options with 2 to 12 levels there are
// millions of combinations, and some 70 cases in which every pair of levels occurs.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace barestep {

/// The levels of one factor, of which each case has exactly one; at least one level. A level is
/// named by what sets it, an option as typed: "--scheme zero1". Names may be empty.
using Factor = std::vector<std::string>;

/// A level of each factor, in the factors' order.
using Case = std::vector<std::string>;

/// Whether two levels of different factors may be in the same case. Symmetric.
using MayMeet = std::function<bool(const std::string&, const std::string&)>;

struct CoveringSet {
  std::vector<Case> cases;
  // The pairs that no case can have: those that may not meet, and those that leave no level for
  // some other factor.
  std::vector<std::pair<std::string, std::string>> impossible;
};

/// Cases with every possible pair of levels in at least one of them. Chosen greedily and without
/// chance: the same factors give the same cases. Factors with many levels belong in front.
CoveringSet cover_pairs(const std::vector<Factor>& factors, const MayMeet& may_meet);

}  // namespace barestep
