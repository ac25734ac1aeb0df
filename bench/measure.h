// Functions shared by the benchmarks: timing, the products of a linear layer, and loops that
// measure the best this machine can do.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/addresses.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/statistics.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep::bench {

/// Settings of the benchmarks, from the command line.
struct Setting {
  int threads = 2;
  GemmProvider gemm = GemmProvider::kAuto;
};
Setting& setting();

/// Seconds of one call of body().
template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Times every iteration of a benchmark that uses manual time; returns the median in seconds.
template <class Body>
double time_iterations(benchmark::State& state, const Body& body) {
  std::vector<double> times;
  for ([[maybe_unused]] const auto iteration : state) {
    times.push_back(seconds_of(body));
    state.SetIterationTime(times.back());
  }
  return median(std::move(times));
}

/// Memory of the CPU device, in huge pages, as in a run.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t floats);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Buffer 0.
  [[nodiscard]] const Addresses& addresses() const { return addresses_; }
  /// The next `rows` x `cols` numbers, aligned to 64 bytes.
  Tensor take(std::int64_t rows, std::int64_t cols);
  [[nodiscard]] float* floats() const { return memory_; }

 private:
  float* memory_;
  std::int64_t floats_;
  std::int64_t taken_ = 0;
  Addresses addresses_;
};

/// A product of a linear layer.
enum Direction { kForward, kInputGradient, kWeightGradient };

/// The product of a layer in one direction. `x` and `y` are its input and output, or their
/// gradients; the forward product includes bias and ReLU.
inline Gemm linear_product(Direction direction, const Tensor& x, const Tensor& y,
                           const Tensor& weight, const Tensor& bias) {
  if (direction == kForward) {
    return {.c = y,
            .a = x,
            .b = weight,
            .transpose_b = true,
            .bias = bias,
            .activation = Activation::kRelu};
  }
  if (direction == kInputGradient) return {.c = x, .a = y, .b = weight};
  return {.c = weight, .a = y, .b = x, .transpose_a = true};
}

/// Bytes per second, read and written, of x = a x + b over `count` floats; the best of `tries`.
double in_place_bandwidth(ThreadPool& pool, float* x, std::int64_t count, int tries);

/// Flops per second of a 1024 x 1024 x 1024 product; the best of several tries. The best that
/// library and processor can reach when only arithmetic counts.
double product_peak(ThreadPool& pool, Product& product);

/// Flops per second of fused multiply-adds on registers; the best of several tries.
double arithmetic_peak(ThreadPool& pool);

/// The times of the ops of each whole step that was measured. Empty if none was. In step_bench.cpp.
std::string op_tables();

}  // namespace barestep::bench
