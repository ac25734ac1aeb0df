// PyTorch's random streams on the CPU, bit for bit: torch.manual_seed, rand, randn, randperm and
// the default initialization of nn.Linear.
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

/// The numbers in one block of box_muller: 8 radii, then 8 angles.
inline constexpr std::int64_t kNormalBlock = 16;

/// The size of a CPU generator's state in PyTorch, in bytes.
inline constexpr std::size_t kTorchStateBytes = 5056;

/// Turns uniform numbers in [0, 1) into normal ones, in place. The size is a multiple of
/// kNormalBlock. In each block, number j gives the radius and number j + 8 the angle of two normal
/// numbers.
///
/// Source: PyTorch 1.13.1, normal_fill_16_AVX2 in native/cpu/DistributionTemplates.h and
/// avx_mathfun.h, with multiply-adds fused wherever GCC fuses them there. All bits equal PyTorch's.
void box_muller(std::span<float> numbers);

/// torch.Generator(device="cpu"): MT19937 and the cached second normal number. Trivially copyable,
/// so it can be stored in a program's buffer as raw bytes.
class TorchGenerator {
 public:
  /// torch.manual_seed(seed). Only the low 32 bits count, as in PyTorch.
  explicit TorchGenerator(std::uint64_t seed);

  /// The next 32 random bits.
  std::uint32_t next();

  /// Skips `words` calls of next(), at about a thirtieth of the cost of drawing normal numbers.
  void discard(std::int64_t words);

  /// torch.empty(out.size()).uniform_(low, high): draws one word per number, in memory order.
  void uniform(std::span<float> out, double low, double high);

  /// torch.randn(out.size()), as builds of PyTorch for AVX2 and later compute it.
  void randn(std::span<float> out);

  /// torch.randperm(n).
  std::vector<std::int64_t> randperm(std::int64_t n);

  /// torch.randperm(out.size()); allocates nothing.
  void randperm(std::span<std::int64_t> out);

  /// torch.Generator.get_state(): kTorchStateBytes that torch.set_rng_state() accepts.
  [[nodiscard]] std::vector<std::byte> state() const;

  /// The generator that continues from such a state; nothing if the bytes are not one.
  static std::optional<TorchGenerator> from_state(std::span<const std::byte> bytes);

 private:
  double next_normal();

  std::uint64_t seed_;  // torch.initial_seed()
  std::array<std::uint32_t, 624> state_;
  std::int32_t position_;
  bool has_cached_normal_;
  double cached_normal_;
};

}  // namespace barestep
