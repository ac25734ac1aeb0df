// What a run is asked to do: every option of the trainers as a plain struct, with its default.
//
// Each field is named after its option (`batch_size` is --batch-size). apps/ fill it from the
// command line and a config file; validate() finds everything that can be found without a device or
// a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace barestep {

enum class Activation { kRelu, kNone };
enum class LossKind { kMse, kCrossEntropy };
enum class DataKind { kRandn, kIdx };
enum class GemmProvider { kAuto, kCblas, kReference };

struct ModelConfig {
  std::optional<std::int64_t> dim{};  // default: 8192 on a GPU, 1024 on the CPU
  std::int64_t depth = 6;
  std::vector<std::int64_t> layers{};  // widths W0,W1,...; replaces dim and depth
  Activation activation = Activation::kRelu;
  bool last_relu = true;  // --no-last-relu; a ReLU behind the last Linear too
  LossKind loss = LossKind::kMse;
};

struct DataConfig {
  DataKind kind = DataKind::kRandn;
  std::filesystem::path x{}, y{};  // of idx:X,Y
  std::int64_t batch_size = 64;
  double test_split = 0;  // the last share of the samples is the test set
};

struct TrainingConfig {
  std::optional<std::int64_t> steps{};   // default: 20
  std::optional<std::int64_t> epochs{};  // instead of steps; needs files
  std::int64_t warmup = 5;               // the first of the steps; left out of the summary
  std::uint64_t seed = 0;                // -1 is 2^64 - 1
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool zero_grad = true;  // --no-zero-grad: gradients accumulate
  std::int64_t log_every = 1;
};

struct DeviceConfig {
  std::string device = "auto";  // auto, cpu, cuda, cuda:1
  int threads = 0;              // of the CPU device; 0: all cores this process may use
  GemmProvider gemm = GemmProvider::kAuto;
  bool fusion = true;  // bias and ReLU inside the forward product
};

struct OutputConfig {
  std::filesystem::path metrics{};  // JSON Lines, one record a step
  std::filesystem::path save{};     // weights, safetensors
  std::filesystem::path load{};
  bool plan = false;                     // print the memory plan and exit
  bool explain = false;                  // print the step's program and exit
  std::optional<std::int64_t> memory{};  // bytes the device is taken to have
};

struct TrainConfig {
  ModelConfig model{};
  DataConfig data{};
  TrainingConfig training{};
  DeviceConfig device{};
  OutputConfig output{};
};

/// Throws Error: kUsage for a value outside its range, kConfiguration for options that do not fit
/// together.
void validate(const TrainConfig& config);

/// The widths of the layers: `layers`, or depth + 1 times dim. `default_dim` stands in for an unset
/// dim.
std::vector<std::int64_t> widths_of(const ModelConfig& model, std::int64_t default_dim);

/// Defaults of --dim by device.
constexpr std::int64_t kDefaultDimCpu = 1024;
constexpr std::int64_t kDefaultDimCuda = 8192;

}  // namespace barestep
