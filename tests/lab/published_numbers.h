// Published numbers next to ours. The published ones and their addresses are in published.json.
#pragma once

#include "core/index.h"
#include "support/testing.h"

namespace barestep {

/// Where our number in a row comes from.
enum class PublishedKind {
  kReproduced,        // computed by running barestep's code
  kComputed,          // computed by a published rule
  kCited,             // shown for comparison only; neither passes nor fails
  kDoesNotReproduce,  // ours differs, and says how it was obtained
};
template <>
inline constexpr std::string_view kNamesOf<PublishedKind>[] = {"reproduced", "computed", "cited",
                                                               "does not reproduce"};

struct PublishedNumber {
  std::string what{};  // complete on its own: errors name a row by it
  PublishedKind kind = PublishedKind::kCited;
  std::string published{};
  std::string ours{};
  bool agrees = true;     // false only where a reproduced or computed row differs
  std::string address{};  // the source's URL; for a repository with the commit
  std::string quote{};    // a passage there that contains the number, of cited rows
};

/// The rows of published.json, {"address": {"what": "figure"}}, or with a passage that has the
/// figure, {"address": {"what": ["figure", "passage"]}}; without ours.
std::vector<PublishedNumber> published_numbers();

/// Numbers that do not depend on hardware: rows of a scattered batch, buckets, steps of an epoch,
/// bytes by the rules of PyTorch's allocator, of ZeRO's stages and of DeepSpeed, traffic of
/// schemes, times of exchanges by rules of their own, the bubble, memory and messages of models
/// that ranks share, and the parameters, memory and flops of transformers.
std::vector<PublishedNumber> exact_numbers();

/// The sum of the parameters after one step of the recipe for ZeroRedundancyOptimizer; trains it on
/// the CPU for a few seconds.
PublishedNumber zero_recipe_sum();

/// Times on other hardware, next to simulated ones.
std::vector<PublishedNumber> cited_numbers();

/// Claims for which our programs give another number.
std::vector<PublishedNumber> differing_numbers();

}  // namespace barestep
