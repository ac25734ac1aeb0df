// All-reduces that are measured alone.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lab/study/rank_bench.h"

namespace barestep {

struct MeasuredSumRequest {
  RanksToMeasure ranks{.threads = 1};
  std::int64_t bytes = 0;  // of each rank's fp32 numbers; 0: 8 B to 64 MiB, doubled each time
  int steps = 20;          // of each size
  std::filesystem::path metrics{};  // empty: none
};

/// Averages numbers between -1 and 1 over all ranks, and prints the table of nccl-tests'
/// all_reduce_perf, with a row for each size: the median time of a step, the bytes of a rank
/// divided by it, and what crosses each link of a ring meanwhile. A step is one all-reduce, the
/// mean of as many as take some milliseconds. The last column is the error of the first average,
/// relative to that in double precision, by Euclidean norms over at most the first 2^18 numbers.
///
/// `metrics` receives records as a trainer's --metrics has them, with that error as loss. Rank 0
/// prints and writes; every rank calls it. Throws Error: as measure_on_ranks() does; kMemory; and
/// as replace_file() does. Blocks.
void measure_sums(const MeasuredSumRequest& request);

}  // namespace barestep
