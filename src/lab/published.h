// Numbers that others published, beside ours.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace barestep {

/// One number. Those that do not depend on hardware must be reproduced; others stand side by side,
/// with the hardware they were measured on, and neither pass nor fail.
struct PublishedNumber {
  std::string what{};
  std::string published{};
  std::string ours{};
  std::optional<bool> reproduced{};
  std::string source{};
};

/// Splits, buckets, steps of an epoch, parameters, and bytes by the rule of PyTorch's allocator.
std::vector<PublishedNumber> exact_numbers();

/// The sum of parameters behind one step of the recipe for ZeroRedundancyOptimizer: trains it on
/// the CPU, for seconds.
PublishedNumber zero_recipe_sum();

/// Recipes that were timed on other hardware, simulated from cards.
std::vector<PublishedNumber> recipes_elsewhere();

/// The scaling experiment on two V100, simulated from the card "v100-pcie".
std::vector<PublishedNumber> v100_scaling();

}  // namespace barestep
