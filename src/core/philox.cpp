#include "core/philox.h"

#include <algorithm>
#include <cmath>

#include "core/index.h"

namespace barestep {
namespace {

constexpr std::int64_t kWordsPerCounter = 4;  // of one counter

/// Maps a word to (0, 1]: its top bits plus half a step.
float unit_interval(std::uint32_t word) {
  return std::fma(static_cast<float>(word), 0x1p-32F, 0x1p-33F);
}

}  // namespace

std::array<float, 4> philox_normals(const std::array<std::uint32_t, 4>& words) {
  constexpr float kAngleOfOne = 1.46291807e-09F;  // 2 pi / 2^32
  std::array<float, 4> normals{};
  for (std::size_t k = 0; k < normals.size(); k += 2) {
    const float radius = std::sqrt(-2.0F * std::log(unit_interval(words[k])));
    const float angle = std::fma(static_cast<float>(words[k + 1]), kAngleOfOne, kAngleOfOne / 2.0F);
    normals[k] = radius * std::sin(angle);
    normals[k + 1] = radius * std::cos(angle);
  }
  return normals;
}

std::int64_t philox_blocks(std::int64_t n, const CudaGeometry& geometry) {
  const std::int64_t resident = std::int64_t{geometry.multiprocessors} *
                                (geometry.threads_per_multiprocessor / kPhiloxThreads);
  return std::min((n + kPhiloxThreads - 1) / kPhiloxThreads, resident);
}

std::uint64_t philox_advance(std::int64_t n, const CudaGeometry& geometry) {
  if (n == 0) return 0;
  const std::int64_t numbers = kWordsPerCounter * kPhiloxThreads * philox_blocks(n, geometry);
  return static_cast<std::uint64_t>(((n - 1) / numbers + 1) * kWordsPerCounter);
}

void philox_randn(PhiloxState& state, std::span<float> out, const CudaGeometry& geometry) {
  const auto n = static_cast<std::int64_t>(out.size());
  const std::int64_t threads = kPhiloxThreads * philox_blocks(n, geometry);
  std::uint64_t counter = state.offset / kWordsPerCounter;
  for (std::int64_t first = 0; first < n; first += kWordsPerCounter * threads, ++counter) {
    for (std::int64_t thread = 0; thread < std::min(threads, n - first); ++thread) {
      const auto subsequence = static_cast<std::uint64_t>(thread);
      const std::array<float, kWordsPerCounter> numbers = philox_normals(philox4x32_10(
          {low_word(counter), high_word(counter), low_word(subsequence), high_word(subsequence)},
          {low_word(state.seed), high_word(state.seed)}));
      std::int64_t i = first + thread;
      for (std::size_t k = 0; k < numbers.size() && i < n; ++k, i += threads) {
        at(out, i) = numbers[k];
      }
    }
  }
  state.offset += philox_advance(n, geometry);
}

}  // namespace barestep
