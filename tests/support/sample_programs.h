// Programs for tests: small training steps of every scheme, and random programs. They contain no
// waits; a test calls order() on those it wants ordered.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/program.h"

namespace barestep {

/// A program with the buffers it needs. May be moved.
struct SampleProgram {
  std::unique_ptr<Buffers> buffers;
  Program program;
};

struct SampleShape {
  std::vector<std::int64_t> widths{5, 7, 6, 3};
  std::int64_t rows = 10;  // in the whole step
  int micro_steps = 1;     // divides rows
  bool fused = false;      // bias and ReLU are part of the forward product
};

/// One device. Copy lane: x and y from a generator, scalars from pinned memory, two slots each.
/// Compute lane: forward, MSE, backward, one Adam over the flat buffers.
SampleProgram training_step(const SampleShape& shape);

/// One rank of several: as training_step, with an AllReduce on the comm lane as soon as a bucket of
/// `layers_per_bucket` layers is complete. Adam is one node on the compute lane, or one per bucket
/// on the comm lane.
SampleProgram ddp_step(const SampleShape& shape, int ranks, int layers_per_bucket,
                       bool adam_per_bucket);

/// All devices in one process: x scattered by peer copies, parameters broadcast, outputs gathered
/// on device 0, the loss computed there, gradients reduced to device 0, Adam there.
SampleProgram data_parallel_step(const SampleShape& shape, int devices);

/// Only forward and loss, in the evaluate phase, with its result added to a total.
SampleProgram evaluation_step(const SampleShape& shape);

/// One to three devices, all lanes, Copy, Fill, AllReduce and Broadcast over random byte ranges, in
/// buffers of one or two slots. The same seed gives the same program.
SampleProgram random_program(std::uint64_t seed);

}  // namespace barestep
