// Golden files: PyTorch's results for a small training run, as a reference.
//
// scripts/make_golden.py writes them into tests/golden and documents how. Losses and final
// parameters depend on the single thread and on the BLAS kernels named by `blas_core`; initial
// parameters, x and y depend on neither.
#pragma once

#include "core/config.h"
#include "support/testing.h"

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

/// All numbers of one step. Parameters, m and v are the values after it.
struct GoldenStep {
  std::vector<float> x;              // (batch, layers.front())
  std::vector<float> y;              // (batch, layers.back()); empty with cross-entropy
  std::vector<std::int64_t> labels;  // (batch), with cross-entropy
  std::vector<float> out;            // (batch, layers.back())
  GoldenValues gradients;
  GoldenValues parameters;
  GoldenValues m;  // Adam's first moment
  GoldenValues v;  // and its second moment
};

struct Golden {
  std::string blas_core;             // OpenBLAS's name: "Haswell"
  std::vector<std::int64_t> layers;  // widths, depth + 1 of them
  std::int64_t dim;                  // layers.front()
  std::int64_t depth;                // number of Linear layers
  std::int64_t batch;
  std::int64_t steps;
  std::uint64_t seed;
  bool last_relu;         // also a ReLU after the last Linear
  bool zero_grad;         // false: gradients accumulate over the steps
  std::string loss;       // "mse" or "cross_entropy"
  std::string optimizer;  // "adam", "adamw" or "sgd"
  double lr;
  double weight_decay;
  double momentum;
  std::vector<GoldenParameter> parameters;
  std::vector<float> losses;          // one per step
  std::vector<std::uint64_t> x_xxh3;  // one per step
  std::vector<std::uint64_t> y_xxh3;  // one per step; of int64 labels with cross-entropy
  GoldenValues initial;               // only the tiny files and ce_tiny
  std::vector<GoldenStep> each_step;  // only the tiny files and ce_tiny
  double clip_norm;                   // only the clip_ files
  std::vector<double> norms;          // before clipping, one per step; clip_ files only

  /// The parameter with this name; throws std::out_of_range if there is none.
  [[nodiscard]] const GoldenParameter& parameter(const std::string& name) const;
};

/// The run that a golden file is of, with the usual device.
TrainConfig config_of(const Golden& golden);

/// Loads the golden file with this name, such as "mlp_d256_l3_b16_s0". Throws if it cannot be read.
Golden load_golden(const std::string& name);

/// The path of that golden file.
std::filesystem::path golden_path(const std::string& name);

/// The names of the golden files of plain training runs, in alphabetical order: all except rng_cpu,
/// clip_*, ddp_*, int8_* and the predictions cuda_*, which PyTorch did not make.
std::vector<std::string> golden_runs();

/// XXH3-64 of the numbers' bytes, little-endian.
std::uint64_t xxh3(std::span<const float> values);
std::uint64_t xxh3(std::span<const std::int64_t> values);
std::uint64_t xxh3(std::span<const std::uint32_t> values);

/// A hash that a golden file stores as 16 hexadecimal digits.
std::uint64_t parse_hash(const std::string& digits);

/// A float written by float.hex().
float parse_float(const std::string& hexadecimal);

}  // namespace barestep
