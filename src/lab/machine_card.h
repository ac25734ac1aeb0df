// Machine cards: the rates of hardware that is not here, each with its source, as JSON files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace barestep {

/// Times of an all-reduce by size, as they were published for `ranks` of them.
struct AllReduceTable {
  int ranks = 2;
  std::vector<std::pair<double, double>> seconds_by_bytes{};  // ascending
};

/// Ranks that reduce together: those of one node, or those of all nodes.
struct LinkRates {
  double latency_s = 0;
  double hop_s = 0;  // further latency of each hop; see all_reduce_s()
  AllReduceTable table{};
};

struct MachineCard {
  std::string name{};
  std::string sources{};          // of every figure, a line each
  double flops_per_s = 0;         // of large products, fp32
  double memory_bytes_per_s = 0;  // reached, not the data sheet's
  double launch_s = 0;            // of an op, beside its work
  double host_s = 0;              // of a step: until the first op begins, and behind the last
  int node_ranks = 1;
  LinkRates node{};
  bool has_network = false;  // without it there is one node
  LinkRates network{};

  [[nodiscard]] int most_ranks() const;
};

/// Of a file, or of a card by its name ("h200-nvlink"). Throws Error: kUsage for a name that there
/// is not, kNoInput, kBadData.
MachineCard load_card(const std::string& name_or_file);

/// Names of the cards that come with barestep.
std::vector<std::string> card_names();

/// Seconds to sum `bytes` over `ranks` of a machine.
///
/// Time is latency + hops * hop latency + bytes on the bus / bandwidth: in a node a ring's, with
/// 2 (n - 1) hops and 2 (n - 1) / n of the bytes (nccl-tests, doc/PERFORMANCE.md); between nodes a
/// tree's, with 2 log2(nodes) hops. The bandwidth follows from the table, interpolated in the
/// logarithm of the size, since no single one fits small and large messages. At the table's own
/// sizes and ranks the result is the table's.
double all_reduce_s(const MachineCard& card, double bytes, int ranks);

}  // namespace barestep
