// The parameters of an MLP by layer: a weight and a bias each, in this order.
#pragma once

#include <span>
#include <string>

#include "model/model.h"

namespace barestep {

inline ParameterId weight_id(int layer) {
  return 2 * layer;
}
inline ParameterId bias_id(int layer) {
  return 2 * layer + 1;
}

inline std::span<float> weight_in(FlatWeights& flat, const ModelSpec& spec, int layer) {
  return parameters_of(spec).in(flat, weight_id(layer));
}
inline std::span<float> bias_in(FlatWeights& flat, const ModelSpec& spec, int layer) {
  return parameters_of(spec).in(flat, bias_id(layer));
}

/// The layer whose node it is, in a model with activations between layers; -1: no layer's.
inline int layer_of(const Node& node) {
  return node.block.empty() ? -1 : std::stoi(node.block.substr(std::string("net.").size())) / 2;
}

/// The name of a layer's "weight" or "bias" in PyTorch's state_dict.
inline std::string state_dict_name(const ModelSpec& spec, int layer, const char* what) {
  return spec.name_of_layer(layer) + "." + what;
}

inline ModelSpec model_of(const TrainConfig& config) {
  return {.widths = widths_of(config.model, 1)};
}

inline FlatWeights initial_weights(const ModelSpec& spec, TorchGenerator& generator) {
  return parameters_of(spec).initial_values(generator);
}

}  // namespace barestep
