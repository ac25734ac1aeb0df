#include "lab/machine_card.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/error.h"
#include "lab/nearest.h"

namespace barestep {
namespace {

using nlohmann::json;

/// Far more than any machine here; keeps products of sizes small.
constexpr int kMostRanks = 1 << 20;

/// Reads {"value": ..., "source": ...}, and keeps the source.
class CardReader {
 public:
  CardReader(const json& card, std::string& sources) : card_(card), sources_(sources) {}

  double number(const char* group, const char* name) {
    const json& figure = card_.at(group).at(name);
    note(group, name, figure);
    const double value = figure.at("value");
    if (!(value >= 0) || !std::isfinite(value)) {
      throw std::invalid_argument(fmt::format("{}.{} is no rate", group, name));
    }
    return value;
  }

  LinkRates link(const char* group) {
    LinkRates rates{.latency_s = number(group, "latency_s"), .hop_s = number(group, "hop_s")};
    const json& table = card_.at(group).at("all_reduce");
    note(group, "all_reduce", table);
    rates.table.ranks = table.at("ranks");
    for (const json& point : table.at("points")) {
      rates.table.seconds_by_bytes.emplace_back(point.at(0), point.at(1));
    }
    if (rates.table.ranks < 2 || rates.table.seconds_by_bytes.empty() ||
        !std::ranges::is_sorted(rates.table.seconds_by_bytes)) {
      throw std::invalid_argument(fmt::format("{}.all_reduce is no table", group));
    }
    return rates;
  }

 private:
  void note(const char* group, const char* name, const json& figure) {
    sources_ += fmt::format("{} {}: {}\n", group, name, figure.at("source").get<std::string>());
  }

  const json& card_;
  std::string& sources_;
};

MachineCard parse_card(const json& from) {
  MachineCard card{.name = from.at("name")};
  CardReader reader(from, card.sources);
  card.flops_per_s = reader.number("device", "flops_per_s");
  card.memory_bytes_per_s = reader.number("device", "memory_bytes_per_s");
  card.launch_s = reader.number("device", "launch_s");
  card.host_s = reader.number("device", "host_s");
  card.node_ranks = from.at("node").at("devices");
  card.node = reader.link("node");
  card.has_network = from.contains("network");
  if (card.has_network) card.network = reader.link("network");
  if (card.flops_per_s == 0 || card.memory_bytes_per_s == 0 || card.node_ranks < 1) {
    throw std::invalid_argument("a rate is 0");
  }
  return card;
}

/// Bytes that cross each link of a ring, as a multiple of what is reduced.
double bus_factor(int ranks) {
  return 2.0 * (ranks - 1) / ranks;
}

double latency_s(const LinkRates& rates, int ranks, int node_ranks) {
  if (node_ranks == 0) return rates.latency_s + rates.hop_s * 2 * (ranks - 1);
  const double nodes = std::ceil(static_cast<double>(ranks) / node_ranks);
  return rates.latency_s + rates.hop_s * 2 * std::log2(std::max(nodes, 2.0));
}

/// Bytes a second on the bus, at one point of the table.
double bandwidth_at(const LinkRates& rates, std::size_t point, int node_ranks) {
  const auto& [bytes, seconds] = rates.table.seconds_by_bytes[point];
  // A message that costs hardly more than the latency says little of the bandwidth.
  const double moving =
      std::max(seconds - latency_s(rates, rates.table.ranks, node_ranks), 0.05 * seconds);
  return bytes * bus_factor(rates.table.ranks) / moving;
}

double bandwidth(const LinkRates& rates, double bytes, int node_ranks) {
  const auto& points = rates.table.seconds_by_bytes;
  std::size_t above = 0;
  while (above < points.size() && points[above].first < bytes) ++above;
  if (above == 0) return bandwidth_at(rates, 0, node_ranks);
  if (above == points.size()) return bandwidth_at(rates, above - 1, node_ranks);
  const double low = points[above - 1].first, high = points[above].first;
  const double share = std::log(bytes / low) / std::log(high / low);
  return std::exp((1 - share) * std::log(bandwidth_at(rates, above - 1, node_ranks)) +
                  share * std::log(bandwidth_at(rates, above, node_ranks)));
}

std::filesystem::path file_of_card(const std::string& name) {
  return std::filesystem::path(BARESTEP_CARDS) / (name + ".json");
}

}  // namespace

int MachineCard::most_ranks() const {
  return has_network ? kMostRanks : node_ranks;
}

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(BARESTEP_CARDS)) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

MachineCard load_card(const std::string& name_or_file) {
  const bool is_file = name_or_file.ends_with(".json");
  if (!is_file && !std::filesystem::exists(file_of_card(name_or_file))) {
    fail(ExitCode::kUsage, {.what = "--machine",
                            .value = name_or_file,
                            .why = "there is no such card",
                            .remedy = fmt::format("did you mean '{}'? a file's name ends in .json",
                                                  nearest(name_or_file, card_names()))});
  }
  const std::filesystem::path path =
      is_file ? std::filesystem::path(name_or_file) : file_of_card(name_or_file);
  std::ifstream file(path);
  if (!file) {
    fail(ExitCode::kNoInput, {.what = "--machine",
                              .value = name_or_file,
                              .why = "it cannot be read",
                              .remedy = "name a card or its file"});
  }
  try {
    return parse_card(json::parse(file));
  } catch (const std::exception& error) {
    fail(ExitCode::kBadData, {.what = "machine card",
                              .value = name_or_file,
                              .why = error.what(),
                              .remedy = "see src/lab/cards for cards as they should be"});
  }
}

double all_reduce_s(const MachineCard& card, double bytes, int ranks) {
  if (ranks <= 1) return 0;
  const bool in_node = ranks <= card.node_ranks;
  BARESTEP_REQUIRE(in_node || card.has_network, "ranks beyond a node need a network");
  const LinkRates& rates = in_node ? card.node : card.network;
  const int node_ranks = in_node ? 0 : card.node_ranks;
  return latency_s(rates, ranks, node_ranks) +
         bytes * bus_factor(ranks) / bandwidth(rates, bytes, node_ranks);
}

}  // namespace barestep
