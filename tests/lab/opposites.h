// Simulated sets of measurements of an experiment, and the word or the sentence expected of one of
// its findings for each.
#pragma once

#include "lab/made_up.h"
#include "support/testing.h"

namespace barestep {

/// Opposite outcomes, and for findings about times a tie. Of a finding about a comparison its word
/// is expected ("faster"), of others a part of the text.
struct Opposites {
  std::string finding;  // "precision.bf16-64"
  HowCasesWent one;
  std::string says_of_one;
  HowCasesWent other;
  std::string says_of_other;
  HowCasesWent tie{};
  std::string says_of_tie{};
  bool on_gpu = false;
};

std::vector<Opposites> opposites();

/// Steps that only their ranks or devices tell apart, or that communicate more than they save.
MadeUpStep divided(int ranks);
MadeUpStep communicating(int ranks);

HowCasesWent by_ranks(const std::function<MadeUpStep(int)>& how);
HowCasesWent by_key(const std::function<MadeUpStep(const std::string&)>& how);

}  // namespace barestep
