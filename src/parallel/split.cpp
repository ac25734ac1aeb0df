#include "parallel/split.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace barestep {

std::vector<Rows> chunk(std::int64_t rows, int pieces) {
  BARESTEP_REQUIRE(rows >= 0 && pieces >= 1, "rows are split into at least one piece");
  const std::int64_t each = (rows + pieces - 1) / pieces;
  std::vector<Rows> all;
  for (std::int64_t first = 0; first < rows; first += each) {
    all.push_back({first, std::min(each, rows - first)});
  }
  return all;
}

std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> sizes_bytes,
                                             std::span<const std::int64_t> limits_bytes) {
  BARESTEP_REQUIRE(!limits_bytes.empty(), "buckets need a limit");
  std::vector<std::vector<int>> buckets;
  std::vector<int> open;
  std::int64_t open_bytes = 0;
  std::size_t limit = 0;
  for (std::size_t i = 0; i < sizes_bytes.size(); ++i) {
    open.push_back(static_cast<int>(i));
    open_bytes += sizes_bytes[i];
    if (open_bytes < limits_bytes[limit]) continue;
    buckets.push_back(std::exchange(open, {}));
    open_bytes = 0;
    limit = std::min(limit + 1, limits_bytes.size() - 1);
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

}  // namespace barestep
