#include "support/covering_set.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace barestep {
namespace {

class Cover {
 public:
  Cover(const std::vector<Factor>& factors, const MayMeet& may_meet) {
    for (const Factor& factor : factors) {
      std::vector<std::size_t>& ids = levels_of_.emplace_back();
      for (const std::string& level : factor) {
        ids.push_back(names_.size());
        names_.push_back(level);
        factor_of_.push_back(levels_of_.size() - 1);
      }
    }
    uses_.assign(names_.size(), 0);
    pairs_.assign(names_.size(), std::vector<Pair>(names_.size(), Pair::kForbidden));
    for (std::size_t a = 0; a < names_.size(); ++a) {
      for (std::size_t b = a + 1; b < names_.size(); ++b) {
        if (factor_of_[a] != factor_of_[b] && may_meet(names_[a], names_[b])) {
          mark(a, b, Pair::kOpen);
        }
      }
    }
  }

  CoveringSet run() {
    CoveringSet found;
    for (std::size_t a = 0; a < names_.size(); ++a) {
      for (std::size_t b = a + 1; b < names_.size(); ++b) {
        if (factor_of_[a] == factor_of_[b] || pairs_[a][b] == Pair::kCovered) continue;
        if (pairs_[a][b] == Pair::kOpen && add_case_with(a, b, found)) continue;
        mark(a, b, Pair::kForbidden);
        found.impossible.emplace_back(names_[a], names_[b]);
      }
    }
    return found;
  }

 private:
  enum class Pair { kForbidden, kOpen, kCovered };
  using Chosen = std::vector<std::optional<std::size_t>>;  // a level of each factor, or none yet

  void mark(std::size_t a, std::size_t b, Pair pair) { pairs_[a][b] = pairs_[b][a] = pair; }

  bool add_case_with(std::size_t a, std::size_t b, CoveringSet& found) {
    Chosen chosen(levels_of_.size());
    chosen[factor_of_[a]] = a;
    chosen[factor_of_[b]] = b;
    if (!leaves_levels(chosen) || !complete(chosen, 0)) return false;
    Case& names = found.cases.emplace_back();
    for (const auto& level : chosen) {
      names.push_back(names_[*level]);
      ++uses_[*level];
      for (const auto& other : chosen) {
        if (*other != *level) mark(*level, *other, Pair::kCovered);
      }
    }
    return true;
  }

  /// Chooses a level for each factor from `factor` on that has none yet; false if that is
  /// impossible.
  bool complete(Chosen& chosen, std::size_t factor) const {
    while (factor < chosen.size() && chosen[factor]) ++factor;
    if (factor == chosen.size()) return true;
    std::vector<std::size_t> levels = levels_of_[factor];
    std::ranges::stable_sort(levels, [&](std::size_t a, std::size_t b) {
      const auto rank = [&](std::size_t level) {
        return std::pair(-open_pairs(chosen, level), uses_[level]);
      };
      return rank(a) < rank(b);
    });
    for (const std::size_t level : levels) {
      if (!fits(chosen, level)) continue;
      chosen[factor] = level;
      if (leaves_levels(chosen) && complete(chosen, factor + 1)) return true;
      chosen[factor].reset();
    }
    return false;
  }

  [[nodiscard]] int open_pairs(const Chosen& chosen, std::size_t level) const {
    return static_cast<int>(std::ranges::count_if(
        chosen, [&](const auto& other) { return other && pairs_[level][*other] == Pair::kOpen; }));
  }

  [[nodiscard]] bool fits(const Chosen& chosen, std::size_t level) const {
    return std::ranges::none_of(chosen, [&](const auto& other) {
      return other && pairs_[level][*other] == Pair::kForbidden;
    });
  }

  /// Whether each factor still has a level that fits. Finds dead ends here instead of many levels
  /// later.
  [[nodiscard]] bool leaves_levels(const Chosen& chosen) const {
    for (std::size_t factor = 0; factor < chosen.size(); ++factor) {
      if (chosen[factor]) continue;
      const auto fitting = [&](std::size_t level) { return fits(chosen, level); };
      if (std::ranges::none_of(levels_of_[factor], fitting)) return false;
    }
    return true;
  }

  // The levels of all factors are numbered consecutively.
  std::vector<std::string> names_;
  std::vector<std::size_t> factor_of_;
  std::vector<int> uses_;
  std::vector<std::vector<std::size_t>> levels_of_;
  std::vector<std::vector<Pair>> pairs_;
};

}  // namespace

CoveringSet cover_pairs(const std::vector<Factor>& factors, const MayMeet& may_meet) {
  return Cover(factors, may_meet).run();
}

}  // namespace barestep
