// Made-up sets of measurements of an experiment, and what it must say about each.
#pragma once

#include <string>
#include <vector>

#include "lab/made_up.h"

namespace barestep {

/// Opposite outcomes, and what must be said about each; where the sentence is about times also a
/// tie, of which it must say neither.
struct Opposites {
  std::string experiment;
  HowCasesWent one;
  std::string says_of_one;
  HowCasesWent other;
  std::string says_of_other;
  HowCasesWent tie{};
  std::string says_of_tie{};
};

/// Those of the experiment "monitor".
std::vector<Opposites> opposites_of_monitor();

/// Those of the experiments "activations", "accumulation", "recompute" and "checkpoint".
std::vector<Opposites> opposites_of_model_options();

/// Those of the experiment "int8".
std::vector<Opposites> opposites_of_int8();

/// Those of the experiment "pytorch".
std::vector<Opposites> opposites_of_pytorch();

}  // namespace barestep
