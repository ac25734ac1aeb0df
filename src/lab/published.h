// Numbers that others published, beside ours.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/index.h"

namespace barestep {

/// Where our side of a row comes from.
enum class PublishedKind {
  kReproduced,  // code of the product ran and gave it
  kComputed,    // arithmetic on a rule that is published
  kCited,       // it stands beside ours for comparison, and neither passes nor fails
};
template <>
inline constexpr std::string_view kNamesOf<PublishedKind>[] = {"reproduced", "computed", "cited"};

struct PublishedNumber {
  std::string what{};  // makes sense on its own: errors name a row by it
  PublishedKind kind = PublishedKind::kCited;
  std::string published{};
  std::string ours{};
  bool agrees = true;     // of what is cited always
  std::string address{};  // where the number stands: a URL, of a repository with the commit
};

/// Numbers that do not depend on hardware: rows of a scattered batch, buckets, steps of an epoch,
/// and bytes by the rules of PyTorch's allocator.
std::vector<PublishedNumber> exact_numbers();

/// The sum of the parameters after one step of the recipe for ZeroRedundancyOptimizer: trains it on
/// the CPU, for seconds.
PublishedNumber zero_recipe_sum();

/// Times of other hardware, beside simulated ones.
std::vector<PublishedNumber> cited_numbers();

/// Throws Error(kBug), naming the first row that does not agree with what was published.
void require_agreement(std::span<const PublishedNumber> all);

}  // namespace barestep
