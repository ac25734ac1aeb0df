// Vector kernels in plain C++, for any processor.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/vector_loops.h"

namespace barestep {
namespace {

/// 16 floats in plain C++.
struct PlainFloats {
  static constexpr std::int64_t kWidth = kAttentionLanes;
  static constexpr std::int64_t kVectors = 1;
  using Floats = std::array<float, static_cast<std::size_t>(kWidth)>;
  Floats v;

  PlainFloats() = default;
  // Scalars behave in formulas like vectors of equal numbers.
  // NOLINTNEXTLINE(google-explicit-constructor)
  PlainFloats(float value) { v.fill(value); }

  static PlainFloats load(const float* from) {
    PlainFloats floats;
    std::copy_n(from, kWidth, floats.v.begin());
    return floats;
  }
  void store(float* to) const { std::ranges::copy(v, to); }
  /// Loads the first `count` floats, zeros for the rest. `count` may be any integer.
  static PlainFloats load_part(const float* from, std::int64_t count) {
    PlainFloats floats(0.0F);
    std::copy_n(from, first(count), floats.v.begin());
    return floats;
  }
  void store_part(float* to, std::int64_t count) const { std::copy_n(v.begin(), first(count), to); }

  template <class Function, class... Others>
  static PlainFloats each(const Function& function, const Others&... others) {
    PlainFloats result;
    for (std::size_t i = 0; i < result.v.size(); ++i) result.v[i] = function(others.v[i]...);
    return result;
  }
  friend PlainFloats operator+(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return x + y; }, a, b);
  }
  friend PlainFloats operator-(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return x - y; }, a, b);
  }
  friend PlainFloats operator*(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return x * y; }, a, b);
  }
  friend PlainFloats operator/(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return x / y; }, a, b);
  }
  friend PlainFloats sqrt(const PlainFloats& a) {
    return each([](float x) { return std::sqrt(x); }, a);
  }
  friend PlainFloats fma(const PlainFloats& a, const PlainFloats& b, const PlainFloats& c) {
    return each([](float x, float y, float z) { return std::fma(x, y, z); }, a, b, c);
  }
  friend PlainFloats larger(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return barestep::larger(x, y); }, a, b);
  }
  friend PlainFloats smaller(const PlainFloats& a, const PlainFloats& b) {
    return each([](float x, float y) { return barestep::smaller(x, y); }, a, b);
  }
  /// a0 b0 a1 b1 ... of the first or the second halves.
  friend PlainFloats first_halves_in_turn(const PlainFloats& a, const PlainFloats& b) {
    return in_turn(a, b, 0);
  }
  friend PlainFloats second_halves_in_turn(const PlainFloats& a, const PlainFloats& b) {
    return in_turn(a, b, kWidth / 2);
  }
  friend PlainFloats power_of_two(const PlainFloats& shifted) {
    return each([](float x) { return barestep::power_of_two(x); }, shifted);
  }
  friend PlainFloats zero_below(const PlainFloats& x, float lowest, const PlainFloats& value) {
    return each([=](float at, float y) { return barestep::zero_below(at, lowest, y); }, x, value);
  }

 private:
  static PlainFloats in_turn(const PlainFloats& a, const PlainFloats& b, std::int64_t first) {
    PlainFloats result;
    for (std::size_t i = 0; i < result.v.size(); ++i) {
      result.v[i] = (i % 2 == 0 ? a : b).v[static_cast<std::size_t>(first) + i / 2];
    }
    return result;
  }
  static std::int64_t first(std::int64_t count) {
    return std::clamp(count, std::int64_t{0}, kWidth);
  }
};

}  // namespace

constinit const VectorKernels kPlainKernels = kernels_of<PlainFloats>("plain");

}  // namespace barestep
