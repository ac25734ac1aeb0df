#include "lab/machine_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <variant>

#include "core/error.h"
#include "core/input_file.h"
#include "core/ops.h"
#include "core/units.h"

namespace barestep {
namespace {

double number(std::int64_t count) {
  return static_cast<double>(count);
}

/// log y at log x, interpolated between the neighbouring points; outside them, the last one's.
double interpolated(const std::map<double, double>& log_y, double log_x) {
  const auto above = log_y.lower_bound(log_x);
  if (above == log_y.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == log_y.end()) return below->second;
  const double share = (log_x - below->first) / (above->first - below->first);
  return (1 - share) * below->second + share * above->second;
}

}  // namespace

OpSize size_of(const DeviceOp& op) {
  const Cost cost = cost_of(op);
  const auto product = [&](std::string name, std::int64_t rows, std::int64_t in, std::int64_t out) {
    return OpSize{.op = std::move(name),
                  .rows = number(rows),
                  .width = std::sqrt(number(in) * number(out)),
                  .work = number(cost.flops)};
  };
  return std::visit(
      Overloaded{[&](const Gemm& gemm) {
                   if (gemm.transpose_a) {
                     return product("gemm tn", gemm.a.rows, gemm.c.rows, gemm.c.cols);
                   }
                   return product(gemm.transpose_b ? "gemm nt" : "gemm nn", gemm.c.rows,
                                  gemm.a.cols, gemm.c.cols);
                 },
                 [&](const auto& other) {
                   std::string name(label_of(Op(op)));
                   // An update from the factors of the gradient is mainly a product.
                   if constexpr (requires { other.grad_y; }) {
                     return product(std::move(name), other.x.rows, other.x.cols, other.grad_y.cols);
                   } else {
                     const double bytes = number(cost.bytes);
                     return OpSize{.op = std::move(name), .width = bytes, .work = bytes};
                   }
                 }},
      op);
}

double op_s(const OpSize& size, std::span<const OpRate> rates) {
  std::map<double, std::map<double, double>> by_rows;  // all logarithms
  for (const OpRate& each : rates) {
    if (each.op != size.op) continue;
    by_rows[std::log(each.rows)][std::log(each.width)] = std::log(each.rate);
  }
  if (by_rows.empty() || size.work <= 0) return 0;
  std::map<double, double> at_width;
  for (const auto& [log_rows, of_rows] : by_rows) {
    at_width[log_rows] = interpolated(of_rows, std::log(std::max(size.width, 1.0)));
  }
  return size.work / std::exp(interpolated(at_width, std::log(std::max(size.rows, 1.0))));
}

namespace {

using nlohmann::json;

/// Far more than any machine here; keeps products of sizes small enough.
constexpr int kMostRanks = 1 << 20;

constexpr std::int64_t kMostCardBytes = std::int64_t{16} << 20;

// Beyond any machine's figures, so sums of accepted figures stay meaningful.
constexpr double kMostCardSeconds = 1e3;
constexpr double kMostSize = 1e15;
constexpr double kLeastRate = 1;  // flops or bytes per second
constexpr double kMostRate = 1e21;
constexpr double kMostContention = 1e6;
constexpr std::int64_t kMostMultiprocessors = 1 << 20;

/// Bytes that cross each link of a ring, as a multiple of the bytes reduced.
double bus_factor(int ranks) {
  return 2.0 * (ranks - 1) / ranks;
}

/// Whether an op's rate counts flops; other rates count bytes.
bool counts_flops(const std::string& op) {
  return op.starts_with(Gemm::kLabel) || op == LinearAdam::kLabel;
}

double card_rate(const JsonValue& from) {
  return from.number(kLeastRate, kMostRate);
}

double card_seconds(const JsonValue& from) {
  return from.number(0, kMostCardSeconds);
}

int card_ranks(const JsonValue& from, int least) {
  return static_cast<int>(from.whole(least, kMostRanks));
}

/// Reads seconds by bytes.
std::vector<std::pair<double, double>> points_of(const JsonValue& table) {
  constexpr double kLeastSeconds = 1e-9;
  std::vector<std::pair<double, double>> points;
  for (const JsonValue& item : table.items()) {
    const std::vector<JsonValue> point = item.items(2);
    const double bytes = point[0].number(1, kMostSize);
    if (!points.empty() && bytes <= points.back().first) {
      point[0].refuse(fmt::format("is {} after {}; sizes must ascend", bytes, points.back().first));
    }
    points.emplace_back(bytes, point[1].number(kLeastSeconds, kMostCardSeconds));
  }
  if (points.empty()) table.refuse("is empty");
  return points;
}

std::string bus_text(double bytes, double seconds, int ranks) {
  return fmt::format("{} on the bus with {}", rate_text(bytes * bus_factor(ranks) / seconds, "B/s"),
                     human_bytes(static_cast<std::int64_t>(bytes)));
}

std::string value_of(const AllReduceTable& table) {
  const auto& [least_bytes, least_s] = table.seconds_by_bytes.front();
  const auto& [most_bytes, most_s] = table.seconds_by_bytes.back();
  std::string most = bus_text(most_bytes, most_s, table.ranks);
  if (table.seconds_by_bytes.size() == 1) return most;
  return fmt::format("{}, {}", bus_text(least_bytes, least_s, table.ranks), most);
}

/// Reads {"value": ..., "source": ...}, and keeps both in readable form.
class CardReader {
 public:
  CardReader(const JsonValue& card, std::vector<StatedRate>& stated)
      : card_(card), stated_(stated) {}

  double rate(const char* group, const char* name, std::string_view unit) {
    const JsonValue figure = card_.at(group).at(name);
    const double per_s = card_rate(figure.at("value"));
    note(group, name, rate_text(per_s, unit), figure);
    return per_s;
  }

  double seconds(const char* group, const char* name) {
    const JsonValue figure = card_.at(group).at(name);
    const double s = card_seconds(figure.at("value"));
    note(group, name, time_text(s), figure);
    return s;
  }

  LinkRates link(const char* group) {
    LinkRates rates{.latency_s = seconds(group, "latency_s"), .hop_s = seconds(group, "hop_s")};
    if (has(group, "kernel_slowdown")) {
      const JsonValue figure = card_.at(group).at("kernel_slowdown");
      rates.kernel_slowdown = figure.at("value").number(1, kMostContention);
      note(group, "kernel_slowdown", fmt::format("{:.2f}x", rates.kernel_slowdown), figure);
    }
    if (!has(group, "all_reduce")) return rates;
    const JsonValue tables = card_.at(group).at("all_reduce");
    // For one rank count, or for several.
    for (const JsonValue& table : tables.is_array() ? tables.items() : std::vector{tables}) {
      rates.tables.push_back(table_of(group, table, rates.tables));
    }
    return rates;
  }

  int multiprocessors() {
    if (!has("device", "multiprocessors")) return 0;
    const JsonValue figure = card_.at("device").at("multiprocessors");
    const auto count = static_cast<int>(figure.at("value").whole(1, kMostMultiprocessors));
    note("device", "multiprocessors", std::to_string(count), figure);
    return count;
  }

  [[nodiscard]] bool has(const char* group, const char* name) const {
    return card_.at(group).has(name);
  }

 private:
  AllReduceTable table_of(const char* group, const JsonValue& from,
                          const std::vector<AllReduceTable>& before) {
    AllReduceTable table{.ranks = card_ranks(from.at("ranks"), 2),
                         .seconds_by_bytes = points_of(from.at("points"))};
    if (!before.empty() && table.ranks <= before.back().ranks) {
      from.at("ranks").refuse(
          fmt::format("is {} after {}; rank counts must ascend", table.ranks, before.back().ranks));
    }
    note(group, fmt::format("all_reduce of {}", counted(table.ranks, "rank")), value_of(table),
         from);
    return table;
  }

  void note(const char* group, const std::string& name, std::string value, const JsonValue& from) {
    stated_.push_back(
        {fmt::format("{}.{}", group, name), std::move(value), from.at("source").text()});
  }

  const JsonValue& card_;
  std::vector<StatedRate>& stated_;
};

/// For each op, the range of its rates over all sizes.
void state_load(const MachineLoad& load, const std::string& source,
                std::vector<StatedRate>& stated) {
  const std::string of =
      fmt::format("{}{}", counted(load.ranks, "rank"),
                  load.threads > 0 ? " x " + counted(load.threads, "thread") : "");
  const auto state = [&](std::string_view what, std::string value) {
    stated.push_back({fmt::format("{}: {}", of, what), std::move(value), source});
  };
  state("launch_s", time_text(load.launch_s));
  state("host_s", time_text(load.host_s));
  std::map<std::string, std::vector<double>> by_op;
  for (const OpRate& each : load.rates) by_op[each.op].push_back(each.rate);
  for (const auto& [op, rates] : by_op) {
    const auto [least, most] = std::ranges::minmax(rates);
    const std::string_view unit = counts_flops(op) ? "FLOP/s" : "B/s";
    state(op, fmt::format("{} to {}, by size", rate_text(least, unit), rate_text(most, unit)));
  }
  if (load.all_reduce.empty()) return;
  state("all_reduce", value_of({load.ranks, load.all_reduce}));
  state("contention", fmt::format("{:.2f}x", load.contention));
}

MachineLoad parse_load(const JsonValue& from) {
  MachineLoad load{.ranks = card_ranks(from.at("ranks"), 1),
                   .threads = card_ranks(from.at("threads"), 0),
                   .launch_s = card_seconds(from.at("launch_s")),
                   .host_s = card_seconds(from.at("host_s"))};
  read_measured(from, load);
  return load;
}

bool is_of_gpus(const JsonValue& card) {
  if (!card.has("kind")) return true;
  const std::string kind = card.at("kind").text();
  if (kind != "cuda" && kind != "cpu") card.at("kind").refuse("is neither cuda nor cpu");
  return kind == "cuda";
}

MachineCard parse_card(const JsonValue& from) {
  MachineCard card{.name = from.at("name").text()};
  card.on_gpu = is_of_gpus(from);
  if (from.has("others_share")) card.others_share = from.at("others_share").number(0, 1);
  CardReader reader(from, card.stated);
  card.flops_per_s = reader.rate("device", "flops_per_s", "FLOP/s");
  if (reader.has("device", "tf32_flops_per_s")) {
    card.tf32_flops_per_s = reader.rate("device", "tf32_flops_per_s", "FLOP/s");
  }
  if (reader.has("device", "half_flops_per_s")) {
    card.half_flops_per_s = reader.rate("device", "half_flops_per_s", "FLOP/s");
  }
  card.multiprocessors = reader.multiprocessors();
  card.memory_bytes_per_s = reader.rate("device", "memory_bytes_per_s", "B/s");
  card.launch_s = reader.seconds("device", "launch_s");
  card.host_s = reader.seconds("device", "host_s");
  card.node_ranks = card_ranks(from.at("node").at("devices"), 1);
  card.node = reader.link("node");
  card.has_network = from.has("network");
  if (card.has_network) card.network = reader.link("network");
  if (!from.has("loads")) return card;
  for (const JsonValue& load : from.at("loads").items()) {
    card.loads.push_back(parse_load(load));
    state_load(card.loads.back(), load.at("source").text(), card.stated);
  }
  return card;
}

double latency_s(const LinkRates& rates, int ranks, int node_ranks) {
  if (node_ranks == 0) return rates.latency_s + rates.hop_s * 2 * (ranks - 1);
  const double nodes = std::ceil(static_cast<double>(ranks) / node_ranks);
  return rates.latency_s + rates.hop_s * 2 * std::log2(std::max(nodes, 2.0));
}

/// Bytes per second on the bus after the latency, at one point of a table.
double bandwidth_at(const LinkRates& rates, const AllReduceTable& table, std::size_t point,
                    int node_ranks) {
  const auto& [bytes, seconds] = table.seconds_by_bytes[point];
  // A message that costs hardly more than the latency gives little information about bandwidth.
  const double moving =
      std::max(seconds - latency_s(rates, table.ranks, node_ranks), 0.05 * seconds);
  return bytes * bus_factor(table.ranks) / moving;
}

/// For sizes within a table; outside them, the last point's.
double bandwidth_within(const LinkRates& rates, const AllReduceTable& table, double bytes,
                        int node_ranks) {
  std::map<double, double> log_bandwidths;
  for (std::size_t i = 0; i < table.seconds_by_bytes.size(); ++i) {
    log_bandwidths[std::log(table.seconds_by_bytes[i].first)] =
        std::log(bandwidth_at(rates, table, i, node_ranks));
  }
  return std::exp(interpolated(log_bandwidths, std::log(bytes)));
}

/// Outside its own sizes, a table follows the table with the most sizes.
double bandwidth_of(const LinkRates& rates, const AllReduceTable& table, double bytes,
                    int node_ranks) {
  const double least = table.seconds_by_bytes.front().first;
  const double most = table.seconds_by_bytes.back().first;
  const double near = std::clamp(bytes, least, most);
  const double own = bandwidth_within(rates, table, near, node_ranks);
  if (near == bytes) return own;
  const AllReduceTable& longest = *std::ranges::max_element(
      rates.tables, {}, [](const AllReduceTable& each) { return each.seconds_by_bytes.size(); });
  return own * bandwidth_within(rates, longest, bytes, node_ranks) /
         bandwidth_within(rates, longest, near, node_ranks);
}

double bandwidth(const LinkRates& rates, double bytes, int ranks, int node_ranks) {
  std::map<double, double> log_bandwidths;
  for (const AllReduceTable& table : rates.tables) {
    log_bandwidths[std::log(table.ranks)] = std::log(bandwidth_of(rates, table, bytes, node_ranks));
  }
  return std::exp(interpolated(log_bandwidths, std::log(ranks)));
}

/// Linear in the bytes between two points; beyond the last, proportional to the bytes.
double seconds_at(const std::vector<std::pair<double, double>>& points, double bytes) {
  const auto above = std::ranges::lower_bound(points, bytes, {}, &std::pair<double, double>::first);
  if (above == points.begin()) return points.front().second;
  const auto below = std::prev(above);
  if (above == points.end()) return below->second * bytes / below->first;
  const double share = (bytes - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

json figure(double value, const char* source) {
  return {{"value", value}, {"source", source}};
}

json json_of(const LinkRates& rates, const char* source) {
  json all = {{"latency_s", figure(rates.latency_s, source)},
              {"hop_s", figure(rates.hop_s, source)}};
  for (const AllReduceTable& table : rates.tables) {
    all["all_reduce"].push_back(
        {{"ranks", table.ranks}, {"source", source}, {"points", table.seconds_by_bytes}});
  }
  return all;
}

json json_of(const MachineLoad& load) {
  json rates = json::array();
  for (const OpRate& each : load.rates) {
    rates.push_back({each.op, each.rows, each.width, each.rate});
  }
  json all = {{"ranks", load.ranks},       {"threads", load.threads}, {"source", "measured here"},
              {"launch_s", load.launch_s}, {"host_s", load.host_s},   {"rates", std::move(rates)}};
  if (!load.all_reduce.empty()) {
    all["all_reduce"] = load.all_reduce;
    all["contention"] = load.contention;
  }
  return all;
}

std::filesystem::path cards_folder() {
  return installed_file(BARESTEP_LAB, "cards");
}

std::filesystem::path file_of_card(const std::string& name) {
  return cards_folder() / (name + ".json");
}

}  // namespace

int MachineCard::most_ranks() const {
  if (has_network) return kMostRanks;
  return node.tables.empty() ? 1 : node_ranks;
}

const LinkRates& MachineCard::links_of(int ranks) const {
  // Without a network, ranks beyond the node share it, as ranks beyond the cores do.
  const bool in_node = ranks <= node_ranks || !has_network;
  return in_node ? node : network;
}

const MachineLoad* MachineCard::load_of(int ranks, int threads) const {
  const MachineLoad* best = nullptr;
  const auto is_better = [&](const MachineLoad& a, const MachineLoad& b) {
    if ((a.threads == threads) != (b.threads == threads)) return a.threads == threads;
    if ((a.ranks <= ranks) != (b.ranks <= ranks)) return a.ranks <= ranks;
    return a.ranks <= ranks ? a.ranks > b.ranks : a.ranks < b.ranks;
  };
  for (const MachineLoad& each : loads) {
    if (best == nullptr || is_better(each, *best)) best = &each;
  }
  return best;
}

std::string json_of(const MachineCard& card) {
  const char* source = "measured here";
  json all = {{"name", card.name},
              {"kind", card.on_gpu ? "cuda" : "cpu"},
              {"others_share", card.others_share},
              {"device",
               {{"flops_per_s", figure(card.flops_per_s, source)},
                {"memory_bytes_per_s", figure(card.memory_bytes_per_s, source)},
                {"launch_s", figure(card.launch_s, source)},
                {"host_s", figure(card.host_s, source)}}}};
  all["node"] = json_of(card.node, source);
  all["node"]["devices"] = card.node_ranks;
  all["loads"] = json::array();
  for (const MachineLoad& load : card.loads) all["loads"].push_back(json_of(load));
  return all.dump(1) + "\n";
}

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(cards_folder())) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

MachineCard load_card(const std::string& name_or_file) {
  const bool is_file = name_or_file.ends_with(".json");
  if (!is_file && !std::filesystem::exists(file_of_card(name_or_file))) {
    const std::vector<std::string> names = card_names();
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string_view near = nearest(name_or_file, views);
    fail(ExitCode::kUsage,
         {.what = "machine card",
          .value = name_or_file,
          .why = "there is no such card",
          .remedy = near.empty()
                        ? fmt::format("name one of {}, or a file in .json", fmt::join(names, ", "))
                        : fmt::format("did you mean '{}'? a file's name ends in .json", near)});
  }
  const std::filesystem::path path =
      is_file ? std::filesystem::path(name_or_file) : file_of_card(name_or_file);
  const JsonDocument document(path, kMostCardBytes, "machine card",
                              "see src/lab/cards for valid cards");
  return parse_card(document.root());
}

void read_measured(const JsonValue& from, MachineLoad& load) {
  load.rates.clear();
  for (const JsonValue& item : from.at("rates").items()) {
    const std::vector<JsonValue> rate = item.items(4);
    load.rates.push_back({.op = rate[0].text(),
                          .rows = rate[1].number(1, kMostSize),
                          .width = rate[2].number(1, kMostSize),
                          .rate = card_rate(rate[3])});
  }
  load.contention = from.has("contention") ? from.at("contention").number(1, kMostContention) : 1;
  load.all_reduce.clear();
  if (from.has("all_reduce")) load.all_reduce = points_of(from.at("all_reduce"));
}

double all_reduce_s(const MachineCard& card, double bytes, int ranks) {
  if (ranks <= 1) return 0;
  for (const MachineLoad& load : card.loads) {
    if (load.ranks == ranks && !load.all_reduce.empty()) return seconds_at(load.all_reduce, bytes);
  }
  const LinkRates& rates = card.links_of(ranks);
  if (rates.tables.empty()) return 0;
  const int node_ranks = &rates == &card.node ? 0 : card.node_ranks;
  return latency_s(rates, ranks, node_ranks) +
         bytes * bus_factor(ranks) / bandwidth(rates, bytes, ranks, node_ranks);
}

double bus_bandwidth(const MachineCard& card, double bytes, int ranks) {
  const double seconds = all_reduce_s(card, bytes, ranks);
  return seconds > 0 ? bytes * bus_factor(ranks) / seconds : 0;
}

std::string rate_text(double per_s, std::string_view unit) {
  constexpr std::array<std::string_view, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (per_s >= 999.5 && prefix + 1 < kPrefixes.size()) {
    per_s /= 1000;
    ++prefix;
  }
  return fmt::format("{} {}{}", number_text(per_s), kPrefixes[prefix], unit);
}

}  // namespace barestep
