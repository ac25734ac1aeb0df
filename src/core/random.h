// PyTorch's random streams on the CPU, to the bit: torch.manual_seed, rand, randn, randperm and the
// default initialisation of nn.Linear.
//
// Source: PyTorch 1.13.1, aten/src/ATen/core/MT19937RNGEngine.h and
// native/cpu/DistributionTemplates.h; later versions draw the same numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace barestep {

/// How many numbers one block of box_muller holds: 8 radii, then 8 angles.
inline constexpr std::int64_t kNormalBlock = 16;

/// The size of a CPU generator's state in PyTorch.
inline constexpr std::size_t kTorchStateBytes = 5056;

/// Turns uniform numbers in [0, 1) into normal ones, in place. The size is a multiple of
/// kNormalBlock. In each block number j gives the radius and number j + 8 the angle of two normals.
///
/// Source: PyTorch 1.13.1, normal_fill_16_AVX2 in native/cpu/DistributionTemplates.h and
/// avx_mathfun.h, every multiply-add fused where GCC fuses it there. All bits equal PyTorch's.
void box_muller(std::span<float> numbers);

/// torch.Generator(device="cpu"): MT19937 and the cached second normal. Trivially copyable, so that
/// it can live in a program's buffer as raw bytes.
class TorchGenerator {
 public:
  /// torch.manual_seed(seed). Only the low 32 bits count, as in PyTorch.
  explicit TorchGenerator(std::uint64_t seed);

  /// The next 32 random bits.
  std::uint32_t next();

  /// torch.empty(out.size()).uniform_(low, high): one word per number, in memory order.
  void uniform(std::span<float> out, double low, double high);

  /// torch.randn(out.size()), as builds for AVX2 and later compute it.
  void randn(std::span<float> out);

  /// torch.randperm(n).
  std::vector<std::int64_t> randperm(std::int64_t n);

  /// torch.randperm(out.size()); allocates nothing.
  void randperm(std::span<std::int64_t> out);

  /// torch.Generator.get_state(), of kTorchStateBytes, which torch.set_rng_state() takes; but for
  /// the seed, which says nothing about what is drawn next and is 0.
  [[nodiscard]] std::vector<std::byte> state() const;

  /// The generator that draws on from there; nothing for bytes that are no such state.
  static std::optional<TorchGenerator> from_state(std::span<const std::byte> bytes);

 private:
  double next_normal();

  std::array<std::uint32_t, 624> state_;
  std::int32_t position_;
  bool has_cached_normal_;
  double cached_normal_;
};

/// nn.Linear's default initialisation: weight (out x in), then bias (out), both uniform in
/// +-1/sqrt(in).
void init_linear(TorchGenerator& generator, std::span<float> weight, std::span<float> bias,
                 std::int64_t inputs);

}  // namespace barestep
