// An all-reduce that is measured alone: its time, and the error of the average.
#pragma once

#include <cstdint>
#include <filesystem>

namespace barestep {

struct MeasuredSumRequest {
  std::int64_t bytes = 4;  // of each rank's fp32 numbers
  std::int64_t steps = 20;
  int threads = 0;  // ranks that are threads of this process; 0: the processes of MPI
  std::filesystem::path metrics{};
};

/// The hidden command that experiments start in place of a trainer. Averages numbers between -1 and
/// 1 in host memory, and writes records as a trainer's `--metrics` has them: a step is one
/// all-reduce, the mean of as many as take some milliseconds, and its loss is the error of the
/// average relative to that in double precision, by Euclidean norms over at most the first 2^18
/// numbers. Every rank of MPI calls it; rank 0 writes. Throws Error. Blocks.
void measure_sum(const MeasuredSumRequest& request);

}  // namespace barestep
