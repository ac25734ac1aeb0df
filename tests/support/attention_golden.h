// Golden files of attention and of transformer blocks, written by PyTorch (tests/golden/attention).
// Those called cuda_* are of the numbers that PyTorch draws on a GPU (scripts/golden_blocks.py).
#pragma once

#include <nlohmann/json.hpp>

#include "core/config.h"
#include "support/testing.h"

namespace barestep {

inline nlohmann::json attention_golden(const std::filesystem::path& folder,
                                       const std::string& name) {
  return nlohmann::json::parse(std::ifstream(folder / "attention" / (name + ".json")));
}

/// The run of a golden file of transformer blocks.
inline TrainConfig config_of_transformer(const nlohmann::json& golden) {
  TrainConfig config;
  config.model = {.dim = golden.at("dim"),
                  .depth = golden.at("blocks").get<std::int64_t>(),
                  .block = BlockKind::kTransformer,
                  .heads = golden.at("heads"),
                  .length = golden.at("length"),
                  .ffn = golden.at("ffn"),
                  .causal = golden.at("causal")};
  config.data.batch_size = golden.at("batch");
  config.training.steps = golden.at("steps");
  config.training.seed = golden.at("seed");
  if (golden.at("precision") == "bfloat16") config.device.precision = Precision::kBf16;
  return config;
}

/// The sum of each number times one that depends on its place: unlike a norm, it tells permuted
/// tensors apart.
template <class Number>
double dot_with_places(std::span<const Number> numbers) {
  double sum = 0;
  std::uint32_t place = 0;
  for (const Number number : numbers) {
    sum += static_cast<double>(number) * (static_cast<double>(place) * 0x1p-31 - 1);
    place += 2654435761U;
  }
  return sum;
}

template <class Number>
double norm_of(std::span<const Number> numbers) {
  double sum = 0;
  for (const Number number : numbers) {
    sum += static_cast<double>(number) * static_cast<double>(number);
  }
  return std::sqrt(sum);
}

/// Numbers written by float.hex(), whose zeros at the end of a list are left out.
inline std::vector<double> hex_numbers(const nlohmann::json& list) {
  std::vector<double> numbers;
  for (const auto& each : list) numbers.push_back(std::stod(each.get<std::string>()));
  return numbers;
}

}  // namespace barestep
