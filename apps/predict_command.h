// The command `mlp_lab predict`.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "lab/prediction.h"

namespace barestep {

struct PredictOptions {
  std::string machine;
  std::vector<int> ranks = {1, 2, 4, 8};
  PredictedModel model;
};

/// `options` must outlive `app`.
void add_predict(CLI::App& app, PredictOptions& options);

}  // namespace barestep
