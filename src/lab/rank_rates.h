// What one rank measures of its device and of its links, while all ranks do the same.
#pragma once

#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "lab/op_rates.h"

namespace barestep {

struct RankRates {
  std::vector<OpRate> rates{};
  std::vector<std::pair<double, double>> all_reduce{};  // seconds by bytes; none of one rank
  /// How much longer all-reduces and products take at once than one after the other: ranks that
  /// share cores with their communication wait for each other's turn. 1 for one rank.
  double contention = 1;
};

/// Rates of products by batch and width, of the optimizer and other ops by their bytes, and times
/// of an all-reduce by size. All ranks call it; `ranks` begins every measurement on all of them at
/// once, `transport` carries the sums. An op runs on one after another of several tensors, as many
/// as a model of six layers has, so that weights are as cold as in training. Takes some tens of
/// milliseconds for each size, fewer sizes if `quick`, and 128 MiB of device memory, given back.
/// Throws Error(kMemory). Blocks.
RankRates measure_rank(Communicator& ranks, Communicator& transport, Device& device, bool quick);

}  // namespace barestep
