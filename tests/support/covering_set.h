// Covering sets: a small set of cases that contains every two levels of different factors together.
//
// Most faults of combined options need only two of them. 14 options with 2 to 12 levels have
// millions of combinations, but about 70 cases contain every pair of levels.
#include "support/testing.h"
#pragma once

namespace barestep {

/// The levels of one factor, at least one; each case has exactly one of them. A level's name is
/// what sets it, such as an option as typed: "--scheme zero1". Names may be empty.
using Factor = std::vector<std::string>;

/// One level per factor, in the factors' order.
using Case = std::vector<std::string>;

/// Whether two levels of different factors may be in the same case. Symmetric.
using MayMeet = std::function<bool(const std::string&, const std::string&)>;

struct CoveringSet {
  std::vector<Case> cases;
  // The impossible pairs: those that are not allowed, and those that leave no level for some other
  // factor.
  std::vector<std::pair<std::string, std::string>> impossible;
};

/// Cases with every possible pair of levels in at least one of them. The choice is greedy and
/// deterministic: the same factors give the same cases. Put factors with many levels first.
CoveringSet cover_pairs(const std::vector<Factor>& factors, const MayMeet& may_meet);

}  // namespace barestep
