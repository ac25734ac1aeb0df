// Simulated sets of measurements of an experiment, and the sentence expected for each.
#pragma once

#include <string>
#include <vector>

#include "lab/made_up.h"

namespace barestep {

/// Opposite outcomes with the expected sentences; for sentences about times also a tie, for which
/// neither sentence may appear.
struct Opposites {
  std::string experiment;
  HowCasesWent one;
  std::string says_of_one;
  HowCasesWent other;
  std::string says_of_other;
  HowCasesWent tie{};
  std::string says_of_tie{};
  bool on_gpu = false;
};

/// The cases of the experiment "monitor".
std::vector<Opposites> opposites_of_monitor();

/// The cases of the experiments "precision", "memory" and "affinity".
std::vector<Opposites> opposites_of_model_options();

/// The cases of the experiment "int8".
std::vector<Opposites> opposites_of_int8();

/// The cases of the experiment "attention".
std::vector<Opposites> opposites_of_attention();

/// The cases of the experiment "bucket-model".
std::vector<Opposites> opposites_of_buckets();

/// The cases of the experiment "all-reduce".
std::vector<Opposites> opposites_of_sums();

/// The cases of the experiment "matmul".
std::vector<Opposites> opposites_of_products();

/// The cases of the experiment "pytorch".
std::vector<Opposites> opposites_of_pytorch();

}  // namespace barestep
