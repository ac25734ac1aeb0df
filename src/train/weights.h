// The model's weights on the host: initialization, loading, saving.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "train/mlp.h"

namespace barestep {

/// A flat buffer on the host, in the layout's order; padding is zero.
using FlatWeights = std::vector<float>;

/// nn.Linear's default initialization, layer by layer in order of construction; advances the
/// generator.
FlatWeights initial_weights(const ParameterLayout& layout, TorchGenerator& generator);

/// The numbers of one layer inside a flat buffer.
std::span<float> weight_in(FlatWeights& flat, const ParameterLayout& layout, int layer);
std::span<float> bias_in(FlatWeights& flat, const ParameterLayout& layout, int layer);

/// The names in PyTorch's state_dict for a module `net` that is a Sequential of Linear and, if the
/// model has an activation, ReLU modules: "net.0.weight", "net.0.bias", "net.2.weight", ...
std::string state_dict_name(const MlpSpec& spec, int layer, const char* what);

/// Writes a safetensors file completely or not at all. Throws Error(kCannotCreate, kInputOutput),
/// and Error(kDiverged) instead of writing a weight that is not finite.
void save_weights(const std::filesystem::path& path, const MlpSpec& spec, FlatWeights& weights);

struct LoadedWeights {
  FlatWeights numbers;
  std::string
      prefix{};  // "module." or "_orig_mod.", which precedes the names in the file; or empty
};

/// Reads a safetensors file, or the weights of a checkpoint. The names may have the prefixes of
/// DistributedDataParallel, DataParallel and torch.compile. Throws Error: kNoInput, or kBadData
/// naming the first differences if names, shapes or types are not this model's, or the first weight
/// that is not finite.
LoadedWeights load_weights(const std::filesystem::path& path, const MlpSpec& spec);

}  // namespace barestep
