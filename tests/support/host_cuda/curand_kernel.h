// Replaces cuRAND's device header when kernels are compiled for the host.
#pragma once

#include <array>

#include "core/philox.h"
#include "cuda_runtime.h"

struct curandStatePhilox4_32_10_t {
  std::uint64_t seed, subsequence, counter;
};

/// `offset` is a multiple of 4, as in PyTorch.
inline void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStatePhilox4_32_10_t* state) {
  *state = {seed, subsequence, offset / 4};
}

inline float4 curand_normal4(curandStatePhilox4_32_10_t* state) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32U); };
  const auto normals = barestep::philox_normals(
      barestep::philox4x32_10({low(state->counter), high(state->counter), low(state->subsequence),
                               high(state->subsequence)},
                              {low(state->seed), high(state->seed)}));
  ++state->counter;
  return {normals[0], normals[1], normals[2], normals[3]};
}
