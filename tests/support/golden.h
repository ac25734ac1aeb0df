// Golden files: what PyTorch computed for a small training run, to compare with.
//
// scripts/make_golden.py writes them into tests/golden and documents how. Losses and final
// parameters are those of one thread and the BLAS kernels that `blas_core` names; initial
// parameters, x and y depend on neither.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace barestep {

/// One parameter, in the order of model.parameters(): net.0.weight, net.0.bias, net.2.weight, ...
struct GoldenParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // (outputs, inputs) or (outputs)
  std::uint64_t initial_xxh3;
  std::uint64_t final_xxh3;
};

/// Flat values by parameter name.
using GoldenValues = std::map<std::string, std::vector<float>>;

/// All numbers of one step. Parameters, m and v are those after it.
struct GoldenStep {
  std::vector<float> x;              // (batch, layers.front())
  std::vector<float> y;              // (batch, layers.back()); empty with cross-entropy
  std::vector<std::int64_t> labels;  // (batch), with cross-entropy
  std::vector<float> out;            // (batch, layers.back())
  GoldenValues gradients;
  GoldenValues parameters;
  GoldenValues m;  // Adam's first moment
  GoldenValues v;  // and its second
};

struct Golden {
  std::string blas_core;             // as OpenBLAS names it: "Haswell"
  std::vector<std::int64_t> layers;  // widths: depth + 1 of them
  std::int64_t dim;                  // layers.front()
  std::int64_t depth;                // how many Linear layers
  std::int64_t batch;
  std::int64_t steps;
  std::uint64_t seed;
  bool last_relu;         // a ReLU also after the last Linear
  bool zero_grad;         // false: gradients add up over the steps
  std::string loss;       // "mse" or "cross_entropy"
  std::string optimizer;  // "adam", "adamw" or "sgd"
  double lr;
  double weight_decay;
  double momentum;
  std::vector<GoldenParameter> parameters;
  std::vector<float> losses;          // one a step
  std::vector<std::uint64_t> x_xxh3;  // one a step
  std::vector<std::uint64_t> y_xxh3;  // one a step; of int64 labels with cross-entropy
  GoldenValues initial;               // the tiny files and ce_tiny only
  std::vector<GoldenStep> each_step;  // the tiny files and ce_tiny only
  double clip_norm;                   // the clip_ files only
  std::vector<double> norms;          // of all gradients before clipping, one a step; the same

  /// The parameter of that name; throws std::out_of_range if there is none.
  [[nodiscard]] const GoldenParameter& parameter(const std::string& name) const;
};

/// The golden file of that name, such as "mlp_d256_l3_b16_s0". Throws if it cannot be read.
Golden load_golden(const std::string& name);

/// Where that golden file lies.
std::filesystem::path golden_path(const std::string& name);

/// The names of all golden files of plain training runs, in alphabetical order: all but rng_cpu,
/// clip_*, ddp_*, int8_* and the predictions cuda_*, which PyTorch did not make.
std::vector<std::string> golden_runs();

/// XXH3-64 of the numbers' bytes, little-endian.
std::uint64_t xxh3(std::span<const float> values);
std::uint64_t xxh3(std::span<const std::int64_t> values);
std::uint64_t xxh3(std::span<const std::uint32_t> values);

/// The hash that a golden file writes as 16 hexadecimal digits.
std::uint64_t parse_hash(const std::string& digits);

/// The float that float.hex() wrote.
float parse_float(const std::string& hexadecimal);

}  // namespace barestep
