// Questions to the explorer, drawn at random, and the runs that `mlp_lab predict` would read.
#pragma once

#include "lab/predict/prediction.h"
#include "support/testing.h"

namespace barestep {

struct Explored {
  std::string question;  // JSON
  std::string card;      // its name
  Run asked{};
  int ranks = 1;
};

/// Questions, always the same, until so many of them are answered; the others are refused.
std::vector<Explored> drawn_questions(int answered);

/// A question about DDP on 4 of 8 H200 with these options, JSON members like "dim": "64".
std::string question_with(const std::string& options, const std::string& others = "");

}  // namespace barestep
