#include "profiler/overhead.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/statistics.h"
#include "core/units.h"
#include "profiler/operator_table.h"

namespace barestep {
namespace {

/// How many of n sorted values may be cut off either end, so that the rest still spans the median
/// with 95 % confidence: the largest r with P(Binomial(n, 1/2) < r) <= 2.5 %.
std::int64_t cut_of(std::int64_t n) {
  const auto count = static_cast<double>(n);
  double below = 0;
  std::int64_t r = 0;
  for (; r <= n; ++r) {
    const auto k = static_cast<double>(r);
    below += std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1) -
                      count * std::log(2.0));
    if (below > 0.025) break;
  }
  return r;
}

/// "12.345us", with its sign.
std::string signed_time(double seconds) {
  return fmt::format("{}{}", seconds < 0 ? "-" : "", table_time(std::abs(seconds)));
}

}  // namespace

Overhead overhead_of(std::span<const double> wall_s) {
  std::vector<double> plain;
  std::vector<double> differences;
  const std::size_t groups = wall_s.size() / kOverheadGroup;
  for (std::size_t i = 0; i < groups; ++i) {
    const auto of_group = wall_s.subspan(i * kOverheadGroup, kOverheadGroup);
    plain.insert(plain.end(), {of_group[0], of_group[3]});
    differences.push_back((of_group[1] + of_group[2] - of_group[0] - of_group[3]) / 2);
  }
  Overhead overhead{.groups = static_cast<std::int64_t>(groups)};
  if (groups == 0) return overhead;
  std::sort(plain.begin(), plain.end());
  std::sort(differences.begin(), differences.end());
  const std::int64_t cut = cut_of(overhead.groups);
  overhead.is_95 = cut > 0;
  const auto outer = static_cast<std::size_t>(std::max(cut - 1, std::int64_t{0}));
  overhead.plain_s = percentile(plain, 50);
  overhead.median_s = percentile(differences, 50);
  overhead.low_s = differences[outer];
  overhead.high_s = differences[groups - 1 - outer];
  return overhead;
}

std::string overhead_text(const Overhead& overhead) {
  if (overhead.groups == 0) {
    return "What profiling costs is not known: it takes four steps after warm-up that are not "
           "profiled.\n";
  }
  return fmt::format(
      "Profiling adds {} to a step of {}, {:.2f} % ({} {} to {}, {} of steps without, with, "
      "with, without).\n",
      signed_time(overhead.median_s), table_time(overhead.plain_s),
      100 * overhead.median_s / overhead.plain_s,
      overhead.is_95 ? "95 % interval" : "too few for an interval; range",
      signed_time(overhead.low_s), signed_time(overhead.high_s), counted(overhead.groups, "group"));
}

}  // namespace barestep
