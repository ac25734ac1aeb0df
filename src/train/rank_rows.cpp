#include "train/rank_rows.h"

#include <algorithm>

#include "core/error.h"

namespace barestep {

Rows share_of_rank(std::int64_t rows, int rank, int ranks) {
  BARESTEP_REQUIRE(rows >= 0 && rank >= 0 && rank < ranks, "a rank is one of the ranks");
  const std::int64_t each = rows / ranks;
  const std::int64_t with_one_more = rows % ranks;
  return {rank * each + std::min<std::int64_t>(rank, with_one_more),
          each + (rank < with_one_more ? 1 : 0)};
}

Tensor share_of_rank(const Tensor& tensor, int rank, int ranks) {
  const Rows rows = share_of_rank(tensor.rows, rank, ranks);
  return tensor.row_slice(rows.first, rows.count);
}

}  // namespace barestep
