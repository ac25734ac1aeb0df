// Machine cards: the rates of a machine, each with its source, as JSON files. Those that come with
// barestep are of hardware that is not here; measured_card.h makes one of the machine it runs on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json_document.h"
#include "core/ops.h"

namespace barestep {

/// What an op's rate depends on.
struct OpSize {
  /// A product and its transposed operands: "gemm nt"; else the op's label.
  std::string op{};
  double rows = 1;   // of the batch, in a product
  double width = 1;  // of a product: the root of inputs times outputs; else the op's bytes
  double work = 0;   // flops of products, bytes of other ops
};

OpSize size_of(const DeviceOp& op);

struct OpRate {
  std::string op{};
  double rows = 1;
  double width = 1;
  double rate = 0;  // of its work, a second
};

/// Seconds of an op, from the rates of the same op at other sizes, interpolated in the logarithms
/// of rows and width; beyond them, the rate stays the nearest. The rates of an op are those of
/// every one of its widths at every one of its rows. 0 where there is none of this op.
double op_s(const OpSize& size, std::span<const OpRate> rates);

/// Times of an all-reduce by size, for `ranks` of them.
struct AllReduceTable {
  int ranks = 2;
  std::vector<std::pair<double, double>> seconds_by_bytes{};  // ascending
};

/// Ranks that reduce together: those of one node, or those of all nodes.
struct LinkRates {
  double latency_s = 0;
  double hop_s = 0;  // further latency of each hop; see all_reduce_s()
  // Kernels take so many times as long while a collective runs on their GPU, which occupies some of
  // its multiprocessors.
  double kernel_slowdown = 1;
  std::vector<AllReduceTable> tables{};  // by rank count, ascending; none: nothing is known
};

/// What one of `ranks` processes or devices reaches while all of them work, each with `threads`
/// threads: cores share memory, caches and clock.
struct MachineLoad {
  int ranks = 1;
  int threads = 1;      // 0: on a GPU
  double launch_s = 0;  // as MachineCard's
  double host_s = 0;
  std::vector<OpRate> rates{};
  std::vector<std::pair<double, double>> all_reduce{};  // seconds by bytes, ascending; of all ranks
  double contention = 1;                                // of computing and reducing at once
};

/// A figure of a card as people read it, and where it is from.
struct StatedRate {
  std::string name{};  // "device.flops_per_s"
  std::string value{};
  std::string source{};
};

struct MachineCard {
  std::string name{};
  std::vector<StatedRate> stated{};  // every figure
  bool on_gpu = true;                // else its devices are cores
  double flops_per_s = 0;            // of large products, fp32
  double tf32_flops_per_s = 0;       // the same in tf32; 0: it has none
  double half_flops_per_s = 0;       // the same of bf16 and fp16; 0: unknown
  int multiprocessors = 0;           // of a GPU; 0: unknown, and products of all shapes are as fast
  double memory_bytes_per_s = 0;     // reached, not the data sheet's
  double launch_s = 0;               // of an op, beside its work
  double host_s = 0;                 // of a step: until the first op begins, and after the last
  int node_ranks = 1;
  LinkRates node{};
  bool has_network = false;  // without it there is one node
  LinkRates network{};
  std::vector<MachineLoad> loads{};  // of measured machines; others have one rate for everything
  double others_share = 0;           // that other programs took of the cores while it was measured

  [[nodiscard]] int most_ranks() const;

  /// The links that so many ranks reduce over; of a machine without a network its node's.
  [[nodiscard]] const LinkRates& links_of(int ranks) const;

  /// Of so many ranks with so many threads each, or the nearest that was measured: of as many
  /// threads if there is one, and of as many ranks, else of fewer. Null on cards without loads.
  [[nodiscard]] const MachineLoad* load_of(int ranks, int threads) const;
};

/// Of a file, or of a card by its name ("h200-nvlink"). Throws Error: kUsage for a name that there
/// is not, kNoInput for a file that cannot be read, kBadData for one that is no card, or whose
/// figures no machine has.
MachineCard load_card(const std::string& name_or_file);

/// Fills in the figures of a load that its ranks measure: rates, and where there are several ranks
/// all_reduce and contention. Throws Error(kBadData).
void read_measured(const JsonValue& from, MachineLoad& load);

/// The contents of its file: load_card() makes the same of it, what is stated apart.
std::string json_of(const MachineCard& card);

/// Names of the cards that come with barestep.
std::vector<std::string> card_names();

/// Seconds to sum `bytes` over `ranks` of a machine.
///
/// Where so many ranks were measured on it, the load's times, linear in the bytes between them.
/// Else time is latency + hops * hop latency + bytes on the bus / bandwidth: in a node a ring's,
/// with 2 (n - 1) hops and 2 (n - 1) / n of the bytes (nccl-tests, doc/PERFORMANCE.md); between
/// nodes a tree's, with 2 log2(nodes) hops. The bandwidth follows from the tables, interpolated in
/// the logarithms of size and rank count, since no single one fits small and large messages or few
/// and many ranks. Beyond its sizes a table follows the one that has most of them, in proportion.
/// At a table's own sizes and ranks the result is the table's. On a card without tables it is 0.
double all_reduce_s(const MachineCard& card, double bytes, int ranks);

/// Bytes a second on the bus, as nccl-tests counts them: 2 (n - 1) / n of `bytes` in the time
/// above.
double bus_bandwidth(const MachineCard& card, double bytes, int ranks);

/// "363 GB/s", "52.0 TFLOP/s".
std::string rate_text(double per_s, std::string_view unit);

}  // namespace barestep
