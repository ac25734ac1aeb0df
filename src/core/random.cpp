#include "core/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

using std::fma;

struct SineCosine {
  float sine;
  float cosine;
};

// Everything below has no branches and is inlined, so that the loop over a block is vectorized. The
// polynomials are those of the Cephes library.

// The natural logarithm of u in (0, 1].
inline float logarithm_of_unit(float u) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(u);
  const float mantissa = std::bit_cast<float>((bits & 0x007FFFFFU) | 0x3F000000U);  // [0.5, 1)
  const bool below_root_half = mantissa < 0.707106781186547524F;
  const float exponent =
      static_cast<float>(static_cast<std::int32_t>(bits >> 23U) - (below_root_half ? 127 : 126));
  const float f = (mantissa - 1.0F) + (below_root_half ? mantissa : 0.0F);
  const float z = f * f;
  float y = 7.0376836292E-2F;
  y = fma(y, f, -1.1514610310E-1F);
  y = fma(y, f, 1.1676998740E-1F);
  y = fma(y, f, -1.2420140846E-1F);
  y = fma(y, f, 1.4249322787E-1F);
  y = fma(y, f, -1.6668057665E-1F);
  y = fma(y, f, 2.0000714765E-1F);
  y = fma(y, f, -2.4999993993E-1F);
  y = fma(y, f, 3.3333331174E-1F);
  y = y * f;
  y = fma(y, z, exponent * -2.12194440e-4F);
  y = fma(-z, 0.5F, y);
  return fma(exponent, 0.693359375F, f + y);
}

// Flips the sign of x where `bit`, 0 or 4, is 4.
inline float flip_sign(float x, std::int32_t bit) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^
                              (static_cast<std::uint32_t>(bit) << 29U));
}

// Sine and cosine of t >= 0.
inline SineCosine sine_cosine(float t) {
  // The nearest even octant j, and t's distance x from it; pi / 4 is subtracted in three parts.
  const std::int32_t j = (static_cast<std::int32_t>(t * 1.27323954473516F) + 1) & ~1;
  const float octant = static_cast<float>(j);
  float x = fma(octant, -0.78515625F, t);
  x = fma(octant, -2.4187564849853515625e-4F, x);
  x = fma(octant, -3.77489497744594108e-8F, x);
  const float z = x * x;

  float cosine = fma(2.443315711809948e-5F, z, -1.388731625493765e-3F);
  cosine = fma(cosine, z, 4.166664568298827e-2F);
  cosine = cosine * z;
  cosine = fma(cosine, z, -(z * 0.5F)) + 1.0F;

  float sine = fma(-1.9515295891e-4F, z, 8.3321608736e-3F);
  sine = fma(sine, z, -1.6666654611e-1F);
  sine = sine * z;
  sine = fma(sine, x, x);

  const bool swapped = (j & 2) != 0;
  return {.sine = flip_sign(swapped ? cosine : sine, j & 4),
          .cosine = flip_sign(swapped ? sine : cosine, ~(j - 2) & 4)};
}

}  // namespace

void box_muller(std::span<float> numbers) {
  BARESTEP_REQUIRE(numbers.size() % kNormalBlock == 0, "normals are made in blocks of 16");
  constexpr std::size_t kHalf = kNormalBlock / 2;
  for (std::size_t start = 0; start < numbers.size(); start += kNormalBlock) {
    float* const first = numbers.data() + start;
    float* const second = first + kHalf;
    for (std::size_t j = 0; j < kHalf; ++j) {
      const float radius = std::sqrt(-2.0F * logarithm_of_unit(1.0F - first[j]));
      const auto [sine, cosine] = sine_cosine(6.28318530717958647F * second[j]);
      // Adding 0, PyTorch's mean, turns -0 into 0.
      first[j] = radius * cosine + 0.0F;
      second[j] = radius * sine + 0.0F;
    }
  }
}

namespace {

constexpr std::int32_t kStateWords = 624;
constexpr std::int32_t kShift = 397;

// How many numbers randn generates at a time: few enough to stay in the first-level cache.
constexpr std::size_t kChunk = 2048;

// The recurrence of MT19937: one word from two neighbors and the word kShift further on.
inline std::uint32_t twisted(std::uint32_t word, std::uint32_t next, std::uint32_t far) {
  const std::uint32_t mixed = (word & 0x80000000U) | (next & 0x7FFFFFFFU);
  return far ^ (mixed >> 1U) ^ ((0U - (next & 1U)) & 0x9908B0DFU);
}

// Three loops without a wrapped index, so that the first two are vectorized.
void twist(std::array<std::uint32_t, kStateWords>& state) {
  std::uint32_t* const words = state.data();
  for (int i = 0; i < kStateWords - kShift; ++i) {
    words[i] = twisted(words[i], words[i + 1], words[i + kShift]);
  }
  for (int i = kStateWords - kShift; i < kStateWords - 1; ++i) {
    words[i] = twisted(words[i], words[i + 1], words[i + kShift - kStateWords]);
  }
  words[kStateWords - 1] = twisted(words[kStateWords - 1], words[0], words[kShift - 1]);
}

inline std::uint32_t tempered(std::uint32_t word) {
  word ^= word >> 11U;
  word ^= (word << 7U) & 0x9D2C5680U;
  word ^= (word << 15U) & 0xEFC60000U;
  return word ^ (word >> 18U);
}

// A number in [0, 1) from the low 53 bits of two words; the first word has the higher bits.
double uniform_double(TorchGenerator& generator) {
  const std::uint64_t high = generator.next();
  const std::uint64_t word = (high << 32U) | generator.next();
  return static_cast<double>(word & ((1ULL << 53U) - 1U)) * 0x1p-53;
}

}  // namespace

TorchGenerator::TorchGenerator(std::uint64_t seed)
    : seed_(seed),
      state_{},
      position_(kStateWords),
      has_cached_normal_(false),
      cached_normal_(0.0) {
  state_[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t i = 1; i < kStateWords; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30U)) + i;
  }
}

std::uint32_t TorchGenerator::next() {
  if (position_ == kStateWords) {
    twist(state_);
    position_ = 0;
  }
  return tempered(at(state_, position_++));
}

void TorchGenerator::discard(std::int64_t words) {
  while (words > kStateWords - position_) {
    words -= kStateWords - position_;
    twist(state_);
    position_ = 0;
  }
  position_ += static_cast<std::int32_t>(words);
}

void TorchGenerator::uniform(std::span<float> out, double low, double high) {
  const float from = static_cast<float>(low);
  const float range = static_cast<float>(high) - from;
  while (!out.empty()) {
    if (position_ == kStateWords) {
      twist(state_);
      position_ = 0;
    }
    const std::size_t count =
        std::min(out.size(), static_cast<std::size_t>(kStateWords - position_));
    const std::uint32_t* const words = state_.data() + position_;
    for (std::size_t i = 0; i < count; ++i) {
      // 24 bits fit an int32, which vector units convert to float in one instruction.
      const auto bits = static_cast<std::int32_t>(tempered(words[i]) & 0xFFFFFFU);
      out[i] = std::fma(static_cast<float>(bits) * 0x1p-24F, range, from);
    }
    position_ += static_cast<std::int32_t>(count);
    out = out.subspan(count);
  }
}

double TorchGenerator::next_normal() {
  if (std::exchange(has_cached_normal_, false)) return cached_normal_;
  const double angle = 2.0 * std::numbers::pi * uniform_double(*this);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_double(*this)));
  cached_normal_ = radius * std::sin(angle);
  has_cached_normal_ = true;
  return radius * std::cos(angle);
}

void TorchGenerator::randn(std::span<float> out) {
  if (out.size() < kNormalBlock) {
    for (float& number : out) number = static_cast<float>(next_normal());
    return;
  }
  for (std::span<float> rest = out; !rest.empty();) {
    const std::span<float> chunk = rest.first(std::min(rest.size(), kChunk));
    uniform(chunk, 0.0, 1.0);
    box_muller(chunk.first(chunk.size() - chunk.size() % kNormalBlock));
    rest = rest.subspan(chunk.size());
  }
  // If the last block is not full, PyTorch draws the last 16 numbers again, some of them already
  // done.
  if (out.size() % kNormalBlock != 0) {
    uniform(out.last(kNormalBlock), 0.0, 1.0);
    box_muller(out.last(kNormalBlock));
  }
}

std::vector<std::int64_t> TorchGenerator::randperm(std::int64_t n) {
  BARESTEP_REQUIRE(n >= 0, "a permutation has a size");
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  randperm(std::span(order));
  return order;
}

void TorchGenerator::randperm(std::span<std::int64_t> out) {
  std::iota(out.begin(), out.end(), std::int64_t{0});
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    std::swap(out[i], out[i + next() % (out.size() - i)]);
  }
}

namespace {

/// A CPU generator's state as PyTorch lays it out: CPUGeneratorImplState in
/// aten/src/ATen/CPUGeneratorImpl.cpp of 1.13.1.
struct TorchState {
  std::uint64_t seed = 0;
  std::int32_t left = 0;  // words until the next twist, including the one that triggers it
  std::int32_t seeded = 1;
  std::uint64_t next = 0;
  std::array<std::uint64_t, kStateWords> words{};
  double normal_x = 0, normal_y = 0, normal_rho = 0;
  std::int32_t normal_is_valid = 0;
  std::int32_t padding = 0;
  float next_float_normal = 0;
  std::int32_t float_normal_is_valid = 0;
};
static_assert(sizeof(TorchState) == kTorchStateBytes);

}  // namespace

std::vector<std::byte> TorchGenerator::state() const {
  TorchState state;
  state.seed = seed_;
  state.next = static_cast<std::uint64_t>(position_);
  state.left = kStateWords + 1 - position_;
  std::ranges::copy(state_, state.words.begin());
  if (has_cached_normal_) {
    state.normal_y = cached_normal_;
    state.normal_is_valid = 1;
  }
  std::vector<std::byte> bytes(sizeof(state));
  std::memcpy(bytes.data(), &state, sizeof(state));
  return bytes;
}

std::optional<TorchGenerator> TorchGenerator::from_state(std::span<const std::byte> bytes) {
  TorchState state;
  if (bytes.size() != sizeof(state)) return std::nullopt;
  std::memcpy(&state, bytes.data(), sizeof(state));
  // A newly seeded generator twists before its first word, whatever `next` is.
  const std::int32_t position = state.left == 1 ? kStateWords : kStateWords + 1 - state.left;
  if (state.seeded != 1 || position < 1 || position > kStateWords) return std::nullopt;
  TorchGenerator generator(0);
  generator.seed_ = state.seed;
  for (std::size_t i = 0; i < state.words.size(); ++i) {
    if (state.words[i] > 0xFFFFFFFFU) return std::nullopt;
    generator.state_[i] = static_cast<std::uint32_t>(state.words[i]);
  }
  generator.position_ = position;
  generator.has_cached_normal_ = state.normal_is_valid != 0;
  generator.cached_normal_ = state.normal_is_valid != 0 ? state.normal_y : 0;
  return generator;
}

}  // namespace barestep
