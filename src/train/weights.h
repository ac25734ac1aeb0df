// Files of a model's weights.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace barestep {

/// Writes a safetensors file completely or not at all. Throws Error(kCannotCreate, kInputOutput),
/// and Error(kDiverged) instead of writing a weight that is not finite.
void save_weights(const std::filesystem::path& path, const Parameters& parameters,
                  FlatWeights& weights);

struct LoadedWeights {
  FlatWeights numbers;
  std::string
      prefix{};  // "module." or "_orig_mod.", which precedes the names in the file; or empty
};

/// Reads a safetensors file, or the weights of a checkpoint. The names may have the prefixes of
/// DistributedDataParallel, DataParallel and torch.compile. Throws Error: kNoInput, or kBadData
/// naming the first differences if names, shapes or types are not this model's, or the first weight
/// that is not finite.
LoadedWeights load_weights(const std::filesystem::path& path, const Parameters& parameters);

}  // namespace barestep
