// Files of a model's weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "model/parameters.h"

namespace barestep {

/// Takes the numbers of one parameter.
using UseOfWeights = std::function<void(ParameterId, std::span<const float>)>;
/// Hands over those of some parameters, one after another in this order.
using VisitOfWeights = std::function<void(std::span<const ParameterId>, const UseOfWeights&)>;

/// A weight that is not finite.
struct BadWeight {
  std::int64_t index = 0;
  std::string text;  // "nan", "inf"
};
std::optional<BadWeight> first_bad_weight(std::span<const float> values);

/// Writes a safetensors file completely or not at all, with one parameter in memory at a time. Each
/// is visited twice: for its checksum, which precedes all of them, and to be written. Throws
/// Error(kCannotCreate, kInputOutput), and Error(kDiverged) instead of writing a weight that is not
/// finite. Where ranks share a model, every rank calls it and one of them `writes`; it visits all
/// parameters twice even if it fails, since the others do.
void save_weights(const std::filesystem::path& path, const Parameters& parameters,
                  const VisitOfWeights& visit, bool writes);

struct LoadedWeights {
  FlatWeights numbers;
  std::string prefix{};      // with which the names in the file begin, "module."; may be empty
  std::string own_prefix{};  // instead of which: "net." if the file is of the nn.Sequential alone
};

/// Reads a safetensors file, or the weights of a checkpoint. The names may have a prefix in
/// common, as inside DistributedDataParallel, torch.compile or another module, and may lack what
/// all names of this model begin with, as those of a bare nn.Sequential. Throws Error: kNoInput, or
/// kBadData naming the first differences if names, shapes or types are not this model's, or the
/// first weight that is not finite.
LoadedWeights load_weights(const std::filesystem::path& path, const Parameters& parameters);

}  // namespace barestep
