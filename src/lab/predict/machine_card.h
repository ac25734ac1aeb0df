// Machine cards: the rates of a machine, each with its source, as JSON files. The cards that come
// with barestep describe other hardware; measured_card.h makes one of the machine it runs on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/json_document.h"
#include "core/ops.h"

namespace barestep {

/// What ranks do together; each kind sends different bytes over their links.
enum class ExchangeKind {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kSendReceive
};
template <>
inline constexpr std::string_view kNamesOf<ExchangeKind>[] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send_receive"};

ExchangeKind exchange_kind_of(const Collective& collective);

/// The properties that an op's rate depends on.
struct OpSize {
  /// For a product, its name with its transposed operands: "gemm nt"; for attention, with its form;
  /// otherwise the op's label, and what else decides its rate: "sum_rows of a row".
  std::string op{};
  double rows = 1;  // of the batch, for a product; the length of attention's sequences
  double width =
      1;  // of a product, the root of inputs times outputs; of a head; else the op's bytes
  double work = 0;  // flops of products and attention, bytes of other ops
  /// Bytes from one use of a product's weights to the next (predict/simulator.h), which tell in
  /// which cache they are; of other ops, at least their own.
  double reach = 0;
};

OpSize size_of(const DeviceOp& op);

/// What another activation than ReLU adds to a product with these results.
OpSize added_to_product(const Tensor& results, Activation activation);

struct OpRate {
  std::string op{};
  double rows = 1;
  double width = 1;
  double rate = 0;   // work per second
  double reach = 0;  // 0: an older card has one rate for any
};

/// Seconds of an op, interpolated from the rates of the same op at other sizes, in the logarithms
/// of rows, width and reach; outside their range, the nearest rate applies. The rates of an op must
/// cover every combination of its widths and rows. An op that counts bytes is not faster than one
/// whose own bytes are this one's reach. 0 if there are no rates of this op.
double op_s(const OpSize& size, std::span<const OpRate> rates);

using SecondsByBytes = std::vector<std::pair<double, double>>;  // ascending

/// Times of one kind of exchange among `ranks` ranks, by size.
struct ExchangeTable {
  int ranks = 2;
  SecondsByBytes seconds_by_bytes{};
  /// NVLink's switches add and multiply the messages (NCCL's NVLS), so fewer bytes cross the links
  /// than in a ring.
  bool in_switches = false;
};

/// By rank count, ascending; empty: unknown.
using ExchangeTables = std::vector<ExchangeTable>;

/// Rates between ranks that communicate: those of one node, or those of all nodes.
struct LinkRates {
  double latency_s = 0;
  double hop_s = 0;  // additional latency of each hop; see exchange_s()
  // Factor by which kernels slow down while a collective runs on their GPU, because it occupies
  // some of its multiprocessors.
  double kernel_slowdown = 1;
  double link_bytes_per_s = 0;  // of a device's link in one direction, data sheet; 0: unknown
  double copy_bytes_per_s = 0;  // of a copy from one device to another; 0: unknown
  EnumArray<ExchangeKind, ExchangeTables> tables{};
  ExchangeTables ring{};  // all-reduces by a ring; empty: those in `tables` are rings

  /// Those of its kind. A kind without any follows the ring's: a ring moves as many bytes per
  /// second on each link whatever the exchange.
  [[nodiscard]] const ExchangeTables& tables_of(ExchangeKind exchange) const;
  [[nodiscard]] bool is_known() const { return !tables[ExchangeKind::kAllReduce].empty(); }
};

/// Seconds that a thread takes to go on, by those that it has slept, ascending.
using Wakes = std::vector<std::pair<double, double>>;

/// Interpolated by the logarithm of the sleep; outside them, the nearest one. 0 if there are none.
double wake_s(const Wakes& wakes, double slept_s);

/// The rates of one of `ranks` processes or devices while all of them work, each with `threads`
/// threads: cores share memory, caches and the clock.
struct MachineLoad {
  int ranks = 1;
  int threads = 1;      // 0: on a GPU
  double launch_s = 0;  // as in MachineCard
  double host_s = 0;
  /// Until a thread goes on that has waited for longer than it spins, for which it sleeps: the
  /// host, or a lane that waits for the host or for another lane of its device, and so follows it
  /// on its core.
  double wake_s = 0;
  /// Of a lane that waits for another device's, on another core: measured with one rank, for all.
  Wakes wakes{};
  std::vector<OpRate> rates{};
  EnumArray<ExchangeKind, SecondsByBytes> exchanges{};  // of all ranks; of each pair for exchanges
  /// How much longer all-reduces and products take at once than one after the other, since ranks
  /// that share cores with their communication wait for a turn. 1 with one rank.
  double contention = 1;
  /// Seconds that a cache line took between its cores meanwhile (core/host.h); 0:
  /// unknown.
  double core_distance_s = 0;
};

/// A figure of a card in readable form, and its source.
struct StatedRate {
  std::string name{};  // "device.flops_per_s"
  std::string value{};
  std::string source{};
};

struct MachineCard {
  std::string name{};
  std::vector<StatedRate> stated{};  // every figure
  bool on_gpu = true;                // otherwise its devices are cores
  double flops_per_s = 0;            // for large products, fp32
  double tf32_flops_per_s = 0;       // the same in tf32; 0: not supported
  double half_flops_per_s = 0;       // the same in bf16 and fp16; 0: unknown
  double fp16_flops_per_s = 0;       // the same in fp16 where there is no bf16; 0: see above
  int multiprocessors = 0;           // of a GPU; 0: unknown, and product shape has no effect
  double load_macs = 16;             // see product_share(); the default is fitted to a V100
  double memory_bytes_per_s = 0;     // achieved, not the data sheet's
  std::int64_t device_bytes = 0;     // memory of a device, on the CPU of all; 0: unknown
  double launch_s = 0;               // of an op, in addition to its work
  double host_s = 0;                 // of a step: before the first op begins, and after the last
  int node_ranks = 1;
  LinkRates node{};
  bool has_network = false;  // false: only one node
  LinkRates network{};
  /// For measured machines; others have one rate for everything. One with the same ranks and
  /// threads as an earlier one is for another arrangement of the cores, see study/measured_card.h.
  std::vector<MachineLoad> loads{};
  double others_share = 0;  // share of the cores used by other programs meanwhile

  [[nodiscard]] int max_ranks() const;

  /// Of products whose operands are of this type; 0: unknown.
  [[nodiscard]] double flops_of(DType dtype) const;

  /// The links used by a reduction over this many ranks; without a network, the node's.
  [[nodiscard]] const LinkRates& links_of(int ranks) const;

  /// The measured load with this many ranks and threads each, or the nearest one: first with as
  /// many threads, if there is one, then with as many ranks, or else fewer; of the same, the
  /// first. Null on cards without loads.
  [[nodiscard]] const MachineLoad* load_of(int ranks, int threads) const;
};

/// Reads a card. Throws Error(kBadData) if it is none or its figures are impossible.
MachineCard card_from(const JsonValue& from);

/// The file of a card that is given by its file, FILE.json, or by its name. Throws Error(kUsage) if
/// no card has this name.
std::filesystem::path card_file(const std::string& name_or_file);

/// The card that stands for a machine if none is named.
constexpr const char* kUsualCard = "h200-nvlink";

/// Loads a card from a file, or by its name ("h200-nvlink"). Throws Error: kUsage if no card has
/// this name, kNoInput if the file cannot be read, kBadData if it is not a card or its figures are
/// impossible.
MachineCard load_card(const std::string& name_or_file);

/// Flops per second of the fastest product that was measured; 0 if none was.
double fastest_product(const MachineLoad& load);

/// The figures of a load that its ranks measure, as JSON on one line: rates and, if there are
/// several ranks, exchanges and contention. Reading throws Error(kBadData).
std::string measured_json(const MachineLoad& load);
void read_measured(const JsonValue& from, MachineLoad& load);

/// The contents of the card's file: load_card() restores the card from it, except `stated`.
std::string json_of(const MachineCard& card);

/// Names of the cards included in barestep.
std::vector<std::string> card_names();

/// Seconds that `ranks` ranks of a machine take for an exchange of `bytes`: a collective's payload,
/// the bytes of one of its tensors (core/ops.h).
///
/// If exchanges of this many ranks were measured on the machine, their times are used, interpolated
/// linearly in the bytes; a kind that was not takes the share of an all-reduce that its bytes on
/// the bus are. Otherwise the time is latency + hops * hop latency + bytes on the bus / bandwidth.
/// Bytes on the bus are what crosses each link of a ring in one direction (nccl-tests,
/// doc/PERFORMANCE.md): of n ranks 2 (n - 1) / n of an all-reduce's bytes, (n - 1) / n of a
/// reduce-scatter's and an all-gather's, and all of a broadcast's and a reduce's. Within a node
/// there are n - 1 hops; between nodes a tree's, log2(nodes); an all-reduce has twice as many. The
/// bandwidth comes from the tables of the kind, interpolated in the logarithms of size and rank
/// count, because no single bandwidth fits both small and large messages, or both few and many
/// ranks. Outside its sizes, a table follows the card's table with the most sizes, in proportion.
/// At a table's own sizes and ranks, the result is the table's. On a card without tables it is 0.
///
/// The ranks are neighbors, or spread evenly over `span` of the machine's: then they share the
/// links that join as many.
double exchange_s(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                  int span = 0);
double all_reduce_s(const MachineCard& card, double bytes, int ranks);

/// Bytes on the bus of so many ranks, as a multiple of the payload.
double bus_factor(ExchangeKind exchange, int ranks);

/// Bytes per second on the bus, as nccl-tests counts them: the bytes on the bus in the time above.
double bus_bandwidth(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                     int span = 0);

/// Bytes that cross a device's link in one direction during the exchange. In a ring they are the
/// bytes on the bus. An all-reduce in the switches sends every rank's message once, and one rank's
/// share of the sum. Between nodes, each device's link to the network carries an equal part of what
/// leaves its node.
double link_bytes(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                  int span = 0);

/// Seconds of a copy from one device to another of its node.
double copy_s(const MachineCard& card, double bytes);

/// How many figures of the card are assumed, fitted or from data sheets.
std::int64_t unmeasured_figures(const MachineCard& card);

/// What is known of the error, kSimulationError unless stated, and how many figures of the card
/// were not measured.
std::string error_note(const MachineCard& card);
std::string error_note(const MachineCard& card, const char* known_error);

/// "363 GB/s", "52.0 TFLOP/s".
std::string rate_text(double per_s, std::string_view unit);

}  // namespace barestep
