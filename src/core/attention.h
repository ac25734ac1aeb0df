// Attention: which rows attend to which, and in which form it is computed.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/index.h"

namespace barestep {

/// kStandard stores the scores of every pair of rows. kFlash (Dao et al. 2022) computes them in
/// tiles, twice, and stores one number a row and head. Both compute the same.
enum class AttentionForm { kFlash, kStandard };
template <>
inline constexpr std::string_view kNamesOf<AttentionForm>[] = {"flash", "standard"};

/// The kernels hold a row of a head in registers and in the caches.
constexpr std::int64_t kMaxHeadWidth = 128;

/// Sequences of `length` rows. Within each, every head lets a row attend to all rows or, if
/// `causal`, to those up to itself.
struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t length = 1;
  bool causal = false;
  AttentionForm form = AttentionForm::kFlash;

  /// Numbers of a row that forward keeps for backward: one for each head, or all its probabilities.
  [[nodiscard]] constexpr std::int64_t kept_cols() const {
    return form == AttentionForm::kFlash ? heads : heads * length;
  }

  /// Pairs of rows of a sequence and head that have a score.
  [[nodiscard]] constexpr std::int64_t pairs() const {
    return causal ? length * (length + 1) / 2 : length * length;
  }

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

}  // namespace barestep
