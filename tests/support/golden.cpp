#include "support/golden.h"

#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace barestep {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the hashes are of little-endian bytes");

std::vector<std::uint64_t> hashes(const json& digits) {
  std::vector<std::uint64_t> result;
  for (const json& hash : digits) result.push_back(parse_hash(hash));
  return result;
}

GoldenStep parse_step(const json& step) {
  GoldenStep result{.x = step.at("x"),
                    .y = {},
                    .labels = {},
                    .out = step.at("out"),
                    .gradients = step.at("gradients"),
                    .parameters = step.at("parameters"),
                    .m = step.at("m"),
                    .v = step.at("v")};
  const json& target = step.at("y");
  if (target.at(0).is_number_integer()) {
    target.get_to(result.labels);
  } else {
    target.get_to(result.y);
  }
  return result;
}

std::vector<GoldenParameter> parse_parameters(const json& parameters) {
  std::vector<GoldenParameter> result;
  for (const json& parameter : parameters) {
    result.push_back({.name = parameter.at("name"),
                      .shape = parameter.at("shape"),
                      .initial_xxh3 = parse_hash(parameter.at("initial_xxh3")),
                      .final_xxh3 = parse_hash(parameter.at("final_xxh3"))});
  }
  return result;
}

}  // namespace

const GoldenParameter& Golden::parameter(const std::string& name) const {
  const auto found = std::ranges::find(parameters, name, &GoldenParameter::name);
  if (found == parameters.end()) throw std::out_of_range("no golden parameter " + name);
  return *found;
}

TrainConfig config_of(const Golden& golden) {
  TrainConfig config;
  config.model.layers = golden.layers;
  config.model.last_relu = golden.last_relu;
  config.data.batch_size = golden.batch;
  config.training.steps = golden.steps;
  config.training.seed = golden.seed;
  config.training.zero_grad = golden.zero_grad;
  if (golden.clip_norm > 0) config.training.clip_norm = golden.clip_norm;
  config.optimizer.kind = golden.optimizer == "adamw" ? OptimizerKind::kAdamW
                          : golden.optimizer == "sgd" ? OptimizerKind::kSgd
                                                      : OptimizerKind::kAdam;
  config.optimizer.lr = golden.lr;
  config.optimizer.weight_decay = golden.weight_decay;
  config.optimizer.momentum = golden.momentum;
  return config;
}

Golden load_golden(const std::string& name) {
  std::ifstream stream(golden_path(name));
  if (!stream) throw std::runtime_error("cannot read " + golden_path(name).string());
  const json file = json::parse(stream);
  const json& optimizer = file.at("optimizer");
  Golden golden{.blas_core = file.at("made_with").at("blas_core"),
                .layers = file.at("layers"),
                .dim = file.at("layers").front(),
                .depth = static_cast<std::int64_t>(file.at("layers").size()) - 1,
                .batch = file.at("batch"),
                .steps = file.at("steps"),
                .seed = file.at("seed"),
                .last_relu = file.at("last_relu"),
                .zero_grad = file.at("zero_grad"),
                .loss = file.at("loss"),
                .optimizer = optimizer.at("name"),
                .lr = optimizer.at("lr"),
                .weight_decay = optimizer.value("weight_decay", 0.0),
                .momentum = optimizer.value("momentum", 0.0),
                .parameters = parse_parameters(file.at("parameters")),
                .losses = {},
                .x_xxh3 = hashes(file.at("x_xxh3")),
                .y_xxh3 = hashes(file.at("y_xxh3")),
                .initial = file.value("initial", GoldenValues{}),
                .each_step = {},
                .clip_norm = file.value("clip_norm", 0.0),
                .norms = file.value("norms", std::vector<double>())};
  for (const json& loss : file.at("losses_hex")) golden.losses.push_back(parse_float(loss));
  for (const json& step : file.value("each_step", json::array())) {
    golden.each_step.push_back(parse_step(step));
  }
  return golden;
}

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(BARESTEP_GOLDEN_DIR) / (name + ".json");
}

std::vector<std::string> golden_runs() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(BARESTEP_GOLDEN_DIR)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name == "rng_cpu") continue;
    if (name.starts_with("clip_")) continue;
    if (name.starts_with("cuda_") || name.starts_with("ddp_")) continue;
    if (name.starts_with("int8_")) continue;
    names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::uint64_t xxh3(std::span<const float> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

std::uint64_t xxh3(std::span<const std::int64_t> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

std::uint64_t xxh3(std::span<const std::uint32_t> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

std::uint64_t parse_hash(const std::string& digits) {
  return std::stoull(digits, nullptr, 16);
}

float parse_float(const std::string& hexadecimal) {
  return std::strtof(hexadecimal.c_str(), nullptr);
}

}  // namespace barestep
