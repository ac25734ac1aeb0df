// Ranks that measure something together, the time of their collectives, and all-reduces that are
// measured alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/addresses.h"
#include "core/config.h"
#include "core/device.h"
#include "core/group.h"
#include "core/transport.h"

namespace barestep {

struct RanksToMeasure {
  std::string device = "auto";                     // or "cpu", "cuda": the GPUs in turn
  TransportKind transport = TransportKind::kAuto;  // as mlp_ddp's --transport
  int threads = 0;     // of the CPU device of each rank; 0: one for each CPU
  int in_process = 0;  // ranks that are threads of this process; 0: the processes of MPI
};

/// One of them; its members outlive the call that receives it.
struct MeasuringRank {
  Group& ranks;          // of host bytes
  Transport& transport;  // of collectives between devices
  std::string_view transport_name;
  Device& device;
};

/// Calls `measure` on every rank, with the device and the transport that mlp_ddp would have. Ranks
/// that are threads meet in host memory. Throws Error: kUsage if several such ranks are to use a
/// GPU or another transport; kConfiguration if NCCL is asked for and cannot join the ranks; and as
/// make_device(), join_mpi(), join_nccl() and `measure` do. Blocks.
void measure_on_ranks(const RanksToMeasure& requested,
                      const std::function<void(const MeasuringRank& rank)>& measure);

/// The mean of all ranks' values. Every rank calls it. Blocks.
double mean_of_ranks(Group& ranks, double mine);

/// The largest of all ranks' values. Every rank calls it. Blocks.
double largest_of_ranks(Group& ranks, double mine);

/// Times collectives on a stream of their own. Every rank makes the same calls.
class CollectiveBench {
 public:
  using Collectives = std::span<const std::unique_ptr<Collective>>;

  /// What the arguments refer to must outlive it. The collectives' tensors are at `addresses`.
  CollectiveBench(const MeasuringRank& rank, const Addresses& addresses)
      : ranks_(rank.ranks),
        transport_(rank.transport),
        addresses_(addresses),
        stream_(rank.device.new_stream("collectives")) {}

  /// This rank's seconds for `count` of the prepared collectives, in turn, which all ranks begin at
  /// once. Blocks.
  double run(Collectives all, std::size_t count);

  /// Seconds of one collective in each of so many batches, as the mean over all ranks. A batch has
  /// as many as take `batch_s` seconds, at most 1000. Blocks.
  std::vector<double> batches(Collectives all, double batch_s, int count);

 private:
  Group& ranks_;
  Transport& transport_;
  const Addresses& addresses_;
  std::unique_ptr<Stream> stream_;
};

struct MeasuredSumRequest {
  RanksToMeasure ranks{.threads = 1};
  std::int64_t bytes = 0;  // of each rank's fp32 numbers; 0: 8 B to 64 MiB, doubled each time
  int steps = 20;          // of each size
};

/// Averages numbers between -1 and 1 over all ranks, and prints the table of nccl-tests'
/// all_reduce_perf, with a row for each size: the median time of a step, the bytes of a rank
/// divided by it, and what crosses each link of a ring meanwhile. A step is one all-reduce, the
/// mean of as many as take some milliseconds. The last column is the error of the first average,
/// relative to that in double precision, by Euclidean norms over at most the first 2^18 numbers.
/// Rank 0 prints; every rank calls it. Throws Error: as measure_on_ranks() does; kMemory. Blocks.
void measure_sums(const MeasuredSumRequest& request);

}  // namespace barestep
