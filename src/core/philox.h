// PyTorch's random stream on CUDA, computed on the host: torch.randn with device="cuda".
//
// Words are bit-identical to PyTorch's. Normal numbers are within 5e-6: a GPU computes sines and
// cosines with hardware approximations that a host does not have.
//
// Source: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011);
// curand_philox4x32_x.h and curand_normal.h of CUDA 13.0; PyTorch 1.13.1,
// aten/src/ATen/native/cuda/DistributionTemplates.h. Later versions of PyTorch draw the same
// numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace barestep {

/// torch.Generator(device="cuda"). `offset` counts the words that every thread has drawn, a
/// multiple of 4. torch.manual_seed(seed) gives {seed, 0}.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

/// The GPU properties that PyTorch's launches, and so its random numbers, depend on. The defaults
/// are an H200's.
struct CudaGeometry {
  int multiprocessors = 132;
  int threads_per_multiprocessor = 2048;
};

constexpr std::uint32_t low_word(std::uint64_t x) {
  return static_cast<std::uint32_t>(x);
}
constexpr std::uint32_t high_word(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32U);
}

/// Counters, or the words computed from them: word by word, with the `kLanes` counters side by
/// side.
template <std::size_t kLanes>
using PhiloxLanes = std::array<std::array<std::uint32_t, kLanes>, 4>;

/// The ten rounds of Philox4x32 on every counter. Compilers vectorize many lanes; a GPU thread has
/// one.
template <std::size_t kLanes>
constexpr void philox4x32_10(PhiloxLanes<kLanes>& counters, std::array<std::uint32_t, 2> key) {
  auto& [c0, c1, c2, c3] = counters;
  for (int round = 0; round < 10; ++round) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c0[lane];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * c2[lane];
      c0[lane] = high_word(product1) ^ c1[lane] ^ key[0];
      c1[lane] = low_word(product1);
      c2[lane] = high_word(product0) ^ c3[lane] ^ key[1];
      c3[lane] = low_word(product0);
    }
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
}

/// The same for one counter.
constexpr std::array<std::uint32_t, 4> philox4x32_10(const std::array<std::uint32_t, 4>& counter,
                                                     std::array<std::uint32_t, 2> key) {
  PhiloxLanes<1> lanes = {{{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}}};
  philox4x32_10(lanes, key);
  return {lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]};
}

/// Four normal numbers from four words, computed as in curand_normal4.
std::array<float, 4> philox_normals(const std::array<std::uint32_t, 4>& words);

/// The launch that draws n numbers: `blocks` of kPhiloxThreads threads. Thread t draws subsequence
/// t, four words at a time, and its k-th draw gives the numbers t + threads * (4 k + 0 .. 3).
constexpr int kPhiloxThreads = 256;
std::int64_t philox_blocks(std::int64_t n, const CudaGeometry& geometry);

/// How far that launch advances the generator's offset.
std::uint64_t philox_advance(std::int64_t n, const CudaGeometry& geometry);

/// torch.randn(out.size(), device="cuda").
void philox_randn(PhiloxState& state, std::span<float> out, const CudaGeometry& geometry = {});

}  // namespace barestep
