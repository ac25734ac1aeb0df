// Normal numbers from uniform ones, with the arithmetic of PyTorch's AVX2 kernels.
#pragma once

#include <cstdint>
#include <span>

namespace barestep {

/// How many numbers one block of box_muller holds: 8 radii, then 8 angles.
inline constexpr std::int64_t kNormalBlock = 16;

/// Turns uniform numbers in [0, 1) into normal ones, in place. The size is a multiple of
/// kNormalBlock. In each block number j gives the radius and number j + 8 the angle of two normals.
///
/// Source: PyTorch 1.13.1, normal_fill_16_AVX2 in native/cpu/DistributionTemplates.h and
/// avx_mathfun.h, every multiply-add fused where GCC fuses it there. All bits equal PyTorch's.
void box_muller(std::span<float> numbers);

}  // namespace barestep
