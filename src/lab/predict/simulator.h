// The simulator and its cost model: how long a step takes on a machine, based on the program that
// would actually run. All their results are simulated, never measured.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/program.h"
#include "core/rank_checker.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/workload.h"
#include "profiler/account.h"
#include "train/timeline.h"

namespace barestep {

/// When a node ran, relative to the beginning of the step. 0 and 0 for input. A collective begins
/// when all have reached it.
struct NodeSpan {
  double begin_s = 0;
  double end_s = 0;
};

struct SimulatedStep {
  double step_s = 0;
  StepAccount account{};          // of device 0's compute lane
  std::vector<NodeSpan> spans{};  // by node
  /// Of a predicted run: the account of each stage of a pipeline of ranks, one without a pipeline.
  std::vector<StepAccount> stages{};
};

/// The step of this program as a run would have measured it, node by node. `program` must outlive
/// it.
Timeline timeline_of(const Program& program, const SimulatedStep& step);

/// How long a thread of the CPU looks for what it waits for before it sleeps
/// (kernels/cpu/stream.cpp).
constexpr double kSpinS = 5e-6;

/// How nodes slow each other down when they run at the same time.
struct Sharing {
  /// This many nodes run at full speed at once. More nodes divide the capacity evenly, as threads
  /// share cores, and all of them take `contention` times as long.
  double at_once = std::numeric_limits<double>::infinity();
  double contention = 1;
  /// Factor by which kernels take longer while a collective runs.
  double kernel_slowdown = 1;
  /// Whether a copy to another device alone could fill the link of its device; then such copies
  /// share it evenly.
  bool by_links = false;
  /// Whether ranks make the next step's input meanwhile, which the step's end waits for.
  bool makes_input = false;
  /// What a lane needs to go on after a wait of more than kSpinS, for which it sleeps: for another
  /// lane of its device, and for another device's.
  double wake_s = 0;
  Wakes wakes{};
};

/// Seconds of a node of a program on an otherwise idle machine.
using NodeSeconds = std::function<double(const Program&, const Node&)>;

/// Walks the nodes of an ordered training step. Each begins when its lanes are free and the nodes
/// it waits for have ended, and takes seconds(node) on an otherwise idle machine. Pauses take no
/// capacity from other nodes. A step's input is there when it begins, and the host waits for each
/// step, so it begins with idle lanes.
SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       const Sharing& sharing = {});

/// The same of several ranks, which share what `sharing` describes: a collective begins when all
/// given ranks of its group have reached it, and ends for all at once. Ranks that do the same as a
/// given one may be left out. Each step lasts until the last rank is done, for which the others
/// wait as for an exchange of stages or, without a pipeline, for communication. In the order of
/// `ranks`. Throws Error(kBug) if ranks wait for each other.
std::vector<SimulatedStep> simulate(std::span<const RankProgram> ranks, const NodeSeconds& seconds,
                                    const Sharing& sharing = {});

/// When nodes run, by rank and node, up to where ranks wait for each other: an infinite end for
/// those that never do.
std::vector<std::vector<NodeSpan>> spans_until_stuck(std::span<const RankProgram> ranks,
                                                     const NodeSeconds& seconds);

/// The share of `flops_per_s`, the rate of large products, that a GPU reaches with this product.
///
/// Libraries compute the result in tiles, each on one multiprocessor. The parts of tiles that
/// exceed the result, and the multiprocessors that the last round leaves idle, are wasted (NVIDIA,
/// Matrix Multiplication Background User's Guide, tile and wave quantization). Of cuBLASLt's tiles
/// (cublasLtMatmulTile_t) with sides from 32 to 256, the fastest is taken. Small ones are slower: a
/// tile of h x w loads h + w operands for h w multiply-adds, and a multiprocessor makes `load_macs`
/// of the card in the time of a load. Sums may be split into pieces; then their partial sums are
/// written and read at the rate of memory. 1 for a product with a vector, which libraries compute
/// without tiles, and on a card whose multiprocessors are unknown.
double product_share(const ProductSize& product, double flops_per_s, const MachineCard& card);

/// How long ago, in bytes, a step used the memory of a node: what decides which cache it is in.
/// The bytes that it touches, each counted once, and how many its device touches from one use of
/// such a byte to the next, in the mean.
struct Reach {
  double own = 0;
  double bytes = 0;

  /// As a multiple of its own, as many as there are if the node runs again and again.
  [[nodiscard]] double ratio() const { return own > 0 ? std::max(bytes / own, 1.0) : 1; }
};

/// By node, of a step that repeats. Of a product, only the uses of its weights, or of their
/// gradient, count.
std::vector<Reach> reaches_of(const Program& program);

/// The processes and threads that run a node.
struct NodeSetting {
  Mesh mesh{};      // of all processes or devices
  int threads = 0;  // per rank; 0: a GPU
  Precision precision = Precision::kFp32;
  bool updates_alone = false;  // a device, stage or server, while others do not
};

/// That of a workload on this machine.
NodeSetting setting_of(const Run& workload, const MachineCard& card);

/// The card's load for a workload; null if the card has none.
const MachineLoad* load_of(const Run& workload, const MachineCard& card);

/// How `count` of a workload's ranks, simulated together, slow each other down on this machine.
Sharing sharing_of(const Run& workload, const MachineCard& card, std::size_t count);

/// Seconds of an op on one device, as node_s() takes it.
double device_op_s(const DeviceOp& op, const MachineCard& card, const NodeSetting& run);

/// Seconds of a node of `program`. On a measured machine, an op's time follows from its size
/// (machine_card.h), and is at least a launch. On other machines it is the time of its flops or of
/// its bytes, whichever is longer, plus a launch (the roofline of Williams, Waterman and Patterson
/// 2009); a product's flops run at the rate of large products times its product_share(), attention
/// is the sum of its kernels. A collective takes exchange_s(), a copy between GPUs copy_s();
/// devices of one process that share their memory copy and add there.
double node_s(const Program& program, const Node& node, const MachineCard& card,
              const NodeSetting& run);

/// The steps of these ranks, without the host's overhead, as predicted_run() simulates them. They
/// must be all that differ: ranks_to_simulate() and any others. Of local SGD, the means of a
/// round's steps, with the spans of its last.
std::vector<SimulatedStep> predicted_ranks(const Run& workload, const MachineCard& card,
                                           const RankPrograms& programs);

/// The step of a run as mlp_lab starts it; `step_s` includes the host's overhead. Ranks on the CPU
/// share its cores, also for communication, and a step may wait for loading threads that an
/// injected delay keeps busy. The stages of a pipeline of ranks are simulated together. The account
/// is rank 0's. With a slow rank, all ranks take its time: `spans` are those of its step, or of its
/// neighbor's in stage 0, and rank 0 waits for it.
SimulatedStep predicted_run(const Run& workload, const MachineCard& card);
/// The same; `programs` are those of ranks_to_simulate().
SimulatedStep predicted_run(const Run& workload, const MachineCard& card,
                            const RankPrograms& programs);

}  // namespace barestep
