// The simulator and its cost model: how long a step takes on a machine, from the very program that
// would run. Everything they say is simulated, never measured.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/program.h"
#include "lab/machine_card.h"
#include "lab/workload.h"

namespace barestep {

/// When a node ran, since the step began. Input has none: both 0.
struct NodeSpan {
  double begin_s = 0;
  double end_s = 0;
};

struct SimulatedStep {
  double step_s = 0;
  /// What the compute lane of device 0 does; kReduce is what it waits for communication.
  EnumArray<Phase, double> phase_s{};
  std::vector<NodeSpan> spans{};  // by node
};

/// What nodes that run at the same time take from each other.
struct Sharing {
  /// So many nodes run at full speed beside each other; more share what there is evenly, as threads
  /// share cores, and all of that by `contention` longer.
  double at_once = std::numeric_limits<double>::infinity();
  double contention = 1;
  /// Kernels take so many times as long while a collective runs.
  double kernel_slowdown = 1;
};

/// Walks the nodes of an ordered training step: each begins when its lanes are free and what it
/// waits for has ended, and takes seconds(node) on a machine that does nothing else. Pauses take
/// nothing from anybody. Input is made before the step, as the trainers make random data, and the
/// host waits for each step, so a step begins with idle lanes.
SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       const Sharing& sharing = {});

/// The product that an op is, or begins with: rows x cols numbers, each a sum over `depth`.
struct ProductSize {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;

  friend auto operator<=>(const ProductSize&, const ProductSize&) = default;
};
std::optional<ProductSize> product_of(const DeviceOp& op);

/// The share of a GPU's multiprocessors that a product keeps busy. Libraries compute tiles of the
/// result, of at most 128 x 128, each on one multiprocessor: what a tile has beyond the result, and
/// the multiprocessors that the last round leaves idle, are lost (NVIDIA, Matrix Multiplication
/// Background User's Guide, tile and wave quantization). Where there are fewer tiles than
/// multiprocessors, sums are split into as many pieces, of at least 512, as keep most of them busy;
/// that is assumed.
double busy_share(const ProductSize& product, int multiprocessors);

/// Who runs a node.
struct NodeSetting {
  int ranks = 1;    // processes or devices
  int threads = 0;  // of each; 0: a GPU
  Precision precision = Precision::kFp32;
};

/// Seconds of a node of `program`. Where the machine was measured, an op's by its size
/// (machine_card.h), at least a launch; elsewhere as long as its flops or its bytes take, whichever
/// is longer, and a launch (the roofline of Williams, Waterman and Patterson 2009), a product's
/// flops at the rate of large ones times its busy_share(). A collective follows all_reduce_s(), and
/// a copy between GPUs an all-reduce of two; devices of one process that share their memory copy
/// and add there.
double node_s(const Program& program, const Node& node, const MachineCard& card,
              const NodeSetting& run);

/// The step of a run as mlp_lab starts it, `step_s` with what the host adds. Ranks of the CPU share
/// its cores, their communication too, and loading threads that an injected delay keeps busy may be
/// what a step waits for. With a slow rank all take its time: spans are those of its step, and the
/// parts of rank 0's, whose communication waits for it.
SimulatedStep predicted_run(const Workload& workload, const MachineCard& card);

}  // namespace barestep
