// safetensors files of given numbers.
#pragma once

#include "core/output_file.h"
#include "data/safetensors.h"
#include "support/testing.h"
#include "train/weights.h"

namespace barestep {

/// A tensor to be saved as F32. Owns the name and the shape, not the values.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  // row-major; their number matches the shape
};

/// The order of `tensors` does not matter.
inline void save_safetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors) {
  std::vector<TensorForm> forms;
  std::vector<PieceChecksum> checksums;
  for (const NamedTensor& tensor : tensors) {
    checksums.push_back(
        checksum_of({.tensor = std::ssize(forms), .bytes = std::as_bytes(tensor.values)}));
    forms.push_back({tensor.name, "F32", tensor.shape, checksums.back().bytes});
  }
  // Some of PyTorch's tools take only files that say "pt".
  const SafetensorsParts parts =
      checked_safetensors_parts(forms, {{"format", "pt"}}, std::move(checksums));
  std::map<std::int64_t, std::span<const std::byte>> placed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // An empty tensor has the same offset as the next one.
    if (!tensors[i].values.empty()) placed[parts.offsets[i]] = std::as_bytes(tensors[i].values);
  }
  std::vector<std::span<const std::byte>> bytes = {std::as_bytes(std::span(parts.head))};
  for (const auto& [offset, of_tensor] : placed) bytes.push_back(of_tensor);
  replace_file(path, bytes);
}

/// As the trainer saves them.
inline void save_flat_weights(const std::filesystem::path& path, const Parameters& parameters,
                              FlatWeights weights) {
  save_weights(
      path, parameters,
      [&](std::span<const ParameterId> order, const UseOfWeights& use) {
        for (const ParameterId id : order) use(id, parameters.in(weights, id));
      },
      true);
}

}  // namespace barestep
