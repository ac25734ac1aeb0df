// Two made-up sets of measurements of an experiment, and what it must say about each.
#pragma once

#include <string>
#include <vector>

#include "lab/made_up.h"

namespace barestep {

/// Opposite outcomes, and what must be said about each.
struct Opposites {
  std::string experiment;
  HowCasesWent one;
  std::string says_of_one;
  HowCasesWent other;
  std::string says_of_other;
};

/// Those of the experiment "monitor".
std::vector<Opposites> opposites_of_monitor();

/// Those of the experiment "pytorch".
std::vector<Opposites> opposites_of_pytorch();

}  // namespace barestep
