#include "lab/predict/machine_card.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <variant>

#include "core/error.h"
#include "core/units.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

double number(std::int64_t count) {
  return static_cast<double>(count);
}

constexpr std::string_view kWithSums = " with sums", kOfARow = " of a row", kAdded = " added";

/// log y at log x, interpolated between the neighboring points; outside them, the last one's.
double interpolated(const std::map<double, double>& log_y, double log_x) {
  const auto above = log_y.lower_bound(log_x);
  if (above == log_y.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == log_y.end()) return below->second;
  const double share = (log_x - below->first) / (above->first - below->first);
  return (1 - share) * below->second + share * above->second;
}

/// Whether an op's rate counts flops; other rates count bytes.
bool counts_flops(const std::string& op) {
  return op.starts_with(Gemm::kLabel) || op.starts_with(Attention::kLabel) ||
         op == LinearAdam::kLabel;
}

double log_of(double size) {
  return std::log(std::max(size, 1.0));
}

using nlohmann::json;

/// Far more than any machine here; keeps products of sizes small enough.
constexpr int kMaxRanks = 1 << 20;

// Beyond any machine's figures, so sums of accepted figures stay meaningful.
constexpr double kMaxCardSeconds = 1e3;
constexpr double kMaxSize = 1e15;
constexpr double kMinRate = 1;  // flops or bytes per second
constexpr double kMaxRate = 1e21;
constexpr double kMaxContention = 1e6;
constexpr std::int64_t kMaxMultiprocessors = 1 << 20;
constexpr double kMaxLoadMacs = 1e6;
constexpr std::int64_t kMaxDeviceBytes = std::int64_t{1} << 60;

double card_rate(const JsonValue& from) {
  return from.number(kMinRate, kMaxRate);
}

double card_seconds(const JsonValue& from) {
  return from.number(0, kMaxCardSeconds);
}

int card_ranks(const JsonValue& from, int min) {
  return static_cast<int>(from.whole(min, kMaxRanks));
}

/// Reads seconds by bytes.
SecondsByBytes points_of(const JsonValue& table) {
  constexpr double kMinSeconds = 1e-9;
  SecondsByBytes points;
  for (const JsonValue& item : table.items()) {
    const std::vector<JsonValue> point = item.items(2);
    const double bytes = point[0].number(1, kMaxSize);
    if (!points.empty() && bytes <= points.back().first) {
      point[0].refuse(fmt::format("is {} after {}; sizes must ascend", bytes, points.back().first));
    }
    points.emplace_back(bytes, point[1].number(kMinSeconds, kMaxCardSeconds));
  }
  if (points.empty()) table.refuse("is empty");
  return points;
}

std::string value_of(ExchangeKind exchange, const ExchangeTable& table) {
  const auto bus_text = [&](const std::pair<double, double>& point) {
    const auto& [bytes, seconds] = point;
    return fmt::format("{} on the bus with {}",
                       rate_text(bytes * bus_factor(exchange, table.ranks) / seconds, "B/s"),
                       human_bytes(static_cast<std::int64_t>(bytes)));
  };
  std::string max = bus_text(table.seconds_by_bytes.back());
  if (table.seconds_by_bytes.size() == 1) return max;
  return fmt::format("{}, {}", bus_text(table.seconds_by_bytes.front()), max);
}

/// Reads {"value": ..., "source": ...}, and keeps both in readable form.
class CardReader {
 public:
  CardReader(const JsonValue& card, std::vector<StatedRate>& stated)
      : card_(card), stated_(stated) {}

  /// A value, as `read` takes it and `text` shows it.
  template <class Read, class Text>
  auto figure(const char* group, const char* name, const Read& read, const Text& text) {
    const JsonValue from = card_.at(group).at(name);
    const auto value = read(from.at("value"));
    note(group, name, text(value), from);
    return value;
  }

  double rate(const char* group, const char* name, std::string_view unit) {
    return figure(group, name, card_rate, [&](double per_s) { return rate_text(per_s, unit); });
  }

  double seconds(const char* group, const char* name) {
    return figure(group, name, card_seconds, [](double s) { return time_text(s); });
  }

  /// `joins_ranks`: not only a single device. Without all-reduces, exchanges would take no time.
  LinkRates link(const char* group, bool joins_ranks) {
    if (joins_ranks) (void)card_.at(group).at("all_reduce");  // refused if it is missing
    LinkRates rates{.latency_s = seconds(group, "latency_s"), .hop_s = seconds(group, "hop_s")};
    optional(group, "kernel_slowdown", 1, kMaxContention, rates.kernel_slowdown,
             [](double factor) { return fmt::format("{:.2f}x", factor); });
    for (const auto& [name, to] : {std::pair{"link_bytes_per_s", &rates.link_bytes_per_s},
                                   {"copy_bytes_per_s", &rates.copy_bytes_per_s}}) {
      if (has(group, name)) *to = rate(group, name, "B/s");
    }
    for (const ExchangeKind exchange : kValuesOf<ExchangeKind>) {
      rates.tables[exchange] = tables(group, std::string(name_of(exchange)), exchange);
    }
    rates.ring = tables(group, "ring", ExchangeKind::kAllReduce);
    return rates;
  }

  /// A figure from `low` to `high` that a card need not have: then it stays as it is.
  void optional(const char* group, const char* name, double low, double high, double& to,
                const std::function<std::string(double)>& text) {
    if (!has(group, name)) return;
    const JsonValue figure = card_.at(group).at(name);
    to = figure.at("value").number(low, high);
    note(group, name, text(to), figure);
  }

  /// The same of a whole number.
  template <class Whole>
  void optional(const char* name, std::int64_t high, Whole& to,
                const std::function<std::string(std::int64_t)>& text) {
    if (!has("device", name)) return;
    const JsonValue figure = card_.at("device").at(name);
    to = static_cast<Whole>(figure.at("value").whole(1, high));
    note("device", name, text(to), figure);
  }

  [[nodiscard]] bool has(const char* group, const char* name) const {
    return card_.at(group).has(name);
  }

 private:
  /// For one rank count, for several, or none.
  ExchangeTables tables(const char* group, const std::string& name, ExchangeKind exchange) {
    ExchangeTables all;
    if (!has(group, name.c_str())) return all;
    const JsonValue from = card_.at(group).at(name.c_str());
    for (const JsonValue& table : from.is_array() ? from.items() : std::vector{from}) {
      all.push_back(table_of(table, all));
      note(group, fmt::format("{} of {}", name, counted(all.back().ranks, "rank")),
           value_of(exchange, all.back()), table);
    }
    return all;
  }

  static ExchangeTable table_of(const JsonValue& from, const ExchangeTables& before) {
    ExchangeTable table{.ranks = card_ranks(from.at("ranks"), 2),
                        .seconds_by_bytes = points_of(from.at("points"))};
    if (!before.empty() && table.ranks <= before.back().ranks) {
      from.at("ranks").refuse(
          fmt::format("is {} after {}; rank counts must ascend", table.ranks, before.back().ranks));
    }
    if (from.has("algorithm")) {
      const std::string algorithm = from.at("algorithm").text();
      table.in_switches = algorithm == "NVLS";
      if (!table.in_switches && algorithm != "Ring") {
        from.at("algorithm").refuse("is neither Ring nor NVLS");
      }
    }
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
  if (load.core_distance_s > 0) state("from core to core", time_text(load.core_distance_s));
  if (load.wake_s > 0) state("wake_s", time_text(load.wake_s));
  for (const auto& [slept_s, took_s] : load.wakes) {
    state("wake after " + time_text(slept_s), time_text(took_s));
  }
  std::map<std::string, std::vector<double>> by_op;
  for (const OpRate& rate : load.rates) by_op[rate.op].push_back(rate.rate);
  for (const auto& [op, rates] : by_op) {
    const auto [min, max] = std::ranges::minmax(rates);
    const std::string_view unit = counts_flops(op) ? "FLOP/s" : "B/s";
    state(op, fmt::format("{} to {}, by size", rate_text(min, unit), rate_text(max, unit)));
  }
  for (const ExchangeKind exchange : kValuesOf<ExchangeKind>) {
    const SecondsByBytes& points = load.exchanges[exchange];
    if (!points.empty()) state(name_of(exchange), value_of(exchange, {load.ranks, points}));
  }
  if (load.ranks > 1) state("contention", fmt::format("{:.2f}x", load.contention));
}

MachineLoad parse_load(const JsonValue& from) {
  MachineLoad load{.ranks = card_ranks(from.at("ranks"), 1),
                   .threads = card_ranks(from.at("threads"), 0),
                   .launch_s = card_seconds(from.at("launch_s")),
                   .host_s = card_seconds(from.at("host_s"))};
  if (from.has("core_distance_s")) load.core_distance_s = card_seconds(from.at("core_distance_s"));
  read_measured(from, load);
  return load;
}

bool is_of_gpus(const JsonValue& card) {
  if (!card.has("kind")) return true;
  const std::string kind = card.at("kind").text();
  if (kind != "cuda" && kind != "cpu") card.at("kind").refuse("is neither cuda nor cpu");
  return kind == "cuda";
}

/// The ranks of an exchange, and the links between them.
struct ExchangeGroup {
  const LinkRates& rates;
  int ranks = 2;
  int nodes = 1;

  /// The all-reduces with the most sizes: other tables follow it at sizes that they do not have.
  [[nodiscard]] const ExchangeTable& longest_table() const {
    return *std::ranges::max_element(
        rates.tables[ExchangeKind::kAllReduce], {},
        [](const ExchangeTable& table) { return table.seconds_by_bytes.size(); });
  }
};

/// `ranks` neighbors, or as many among `span` ranks.
ExchangeGroup group_of(const MachineCard& card, int ranks, int span = 0) {
  span = std::max(span, ranks);
  const LinkRates& rates = card.links_of(span);
  const bool in_node = &rates == &card.node;
  const int nodes = in_node ? 1 : (span + card.node_ranks - 1) / card.node_ranks;
  return {rates, ranks, in_node ? 1 : std::clamp(nodes, 2, std::max(ranks, 2))};
}

double latency_s(const ExchangeGroup& group, ExchangeKind exchange) {
  const double hops = group.nodes == 1 ? group.ranks - 1 : std::log2(group.nodes);
  return group.rates.latency_s +
         group.rates.hop_s * hops * (exchange == ExchangeKind::kAllReduce ? 2 : 1);
}

/// One table of times of a kind of exchange.
class Bandwidths {
 public:
  Bandwidths(const MachineCard& card, ExchangeKind exchange, const ExchangeTable& table)
      : exchange_(exchange),
        table_(table),
        latency_s_(latency_s(group_of(card, table.ranks), exchange)) {}

  /// Bytes per second on the bus after the latency. Outside the table's sizes, the last point's.
  [[nodiscard]] double within(double bytes) const {
    const auto& points = table_.seconds_by_bytes;
    const auto above =
        std::ranges::lower_bound(points, bytes, {}, &std::pair<double, double>::first);
    std::map<double, double> log_bandwidths;
    const auto add = [&](double size, double seconds) {
      // A message that costs hardly more than the latency gives little information about bandwidth.
      const double moving = std::max(seconds - latency_s_, 0.05 * seconds);
      log_bandwidths[std::log(size)] =
          std::log(size * bus_factor(exchange_, table_.ranks) / moving);
    };
    // The neighbors alone, since a search for a mesh asks often.
    if (above != points.begin()) add(std::prev(above)->first, std::prev(above)->second);
    if (above != points.end()) add(above->first, above->second);
    return std::exp(interpolated(log_bandwidths, std::log(bytes)));
  }

  /// Outside its own sizes, in proportion to the longest table.
  [[nodiscard]] double at(double bytes, const Bandwidths& longest) const {
    const double near = std::clamp(bytes, table_.seconds_by_bytes.front().first,
                                   table_.seconds_by_bytes.back().first);
    if (near == bytes) return within(near);
    return within(near) * longest.within(bytes) / longest.within(near);
  }

 private:
  ExchangeKind exchange_;
  const ExchangeTable& table_;
  double latency_s_;
};

double bandwidth(const MachineCard& card, const ExchangeGroup& group, ExchangeKind exchange,
                 double bytes) {
  const Bandwidths longest(card, ExchangeKind::kAllReduce, group.longest_table());
  const ExchangeTables& tables = group.rates.tables_of(exchange);
  // A ring's tables are of all-reduces.
  const bool is_own = &tables == &group.rates.tables[exchange];
  std::map<double, double> log_bandwidths;
  for (const ExchangeTable& table : tables) {
    const Bandwidths of_table(card, is_own ? exchange : ExchangeKind::kAllReduce, table);
    log_bandwidths[std::log(table.ranks)] = std::log(of_table.at(bytes, longest));
  }
  return std::exp(interpolated(log_bandwidths, std::log(group.ranks)));
}

/// Linear in the bytes between two points; beyond the last, proportional to the bytes.
double seconds_at(const SecondsByBytes& points, double bytes) {
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

/// Of a measured machine: all-reduces are the exchanges that are measured.
json json_of(const LinkRates& rates, const char* source) {
  json all = {{"latency_s", figure(rates.latency_s, source)},
              {"hop_s", figure(rates.hop_s, source)}};
  for (const ExchangeTable& table : rates.tables[ExchangeKind::kAllReduce]) {
    all["all_reduce"].push_back(
        {{"ranks", table.ranks}, {"source", source}, {"points", table.seconds_by_bytes}});
  }
  return all;
}

json measured_of(const MachineLoad& load) {
  json rates = json::array();
  for (const OpRate& rate : load.rates) {
    rates.push_back({rate.op, rate.rows, rate.width, rate.rate});
    if (rate.reach > 0) rates.back().push_back(rate.reach);
  }
  json all = {{"rates", std::move(rates)}};
  if (load.wake_s > 0) all["wake_s"] = load.wake_s;
  if (!load.wakes.empty()) all["wakes"] = load.wakes;
  bool exchanges = false;
  for (const ExchangeKind exchange : kValuesOf<ExchangeKind>) {
    const SecondsByBytes& points = load.exchanges[exchange];
    if (points.empty()) continue;
    all[std::string(name_of(exchange))] = points;
    exchanges = true;
  }
  if (exchanges) all["contention"] = load.contention;
  return all;
}

json json_of(const MachineLoad& load) {
  json all = measured_of(load);
  all.update({{"ranks", load.ranks},
              {"threads", load.threads},
              {"source", "measured here"},
              {"launch_s", load.launch_s},
              {"host_s", load.host_s}});
  if (load.core_distance_s > 0) all["core_distance_s"] = load.core_distance_s;
  return all;
}

}  // namespace

OpSize size_of(const DeviceOp& op) {
  const Cost cost = cost_of(op);
  std::string name(label_of(op));
  const auto of_attention = [&](const Tensor& out, const AttentionShape& shape) -> OpSize {
    return {.op = fmt::format("{} {}", name, name_of(shape.form)),
            .rows = number(shape.length),
            .width = number(out.cols / shape.heads),
            .work = number(cost.flops)};
  };
  if (const auto* const attention = std::get_if<Attention>(&op)) {
    return of_attention(attention->out, attention->shape);
  }
  if (const auto* const gradient = std::get_if<AttentionGrad>(&op)) {
    return of_attention(gradient->out, gradient->shape);
  }
  const std::optional<ProductSize> product = product_of(op);
  if (!product) {
    const auto* const gradient = std::get_if<ActivationGrad>(&op);
    const auto* const sum = std::get_if<SumRows>(&op);
    if (gradient != nullptr && gradient->sums) name += kWithSums;
    if (sum != nullptr && sum->in.rows == 1) name += kOfARow;
    return {.op = std::move(name), .width = number(cost.bytes), .work = number(cost.bytes)};
  }
  const auto* const gemm = std::get_if<Gemm>(&op);
  if (gemm != nullptr) name += gemm->transpose_a ? " tn" : gemm->transpose_b ? " nt" : " nn";
  if (gemm != nullptr && gemm->transpose_a && gemm->beta != 0) name += kAdded;
  // A product that makes a gradient of weights sums over the batch.
  const bool sums_batch =
      std::holds_alternative<LinearAdam>(op) || (gemm != nullptr && gemm->transpose_a);
  return {.op = std::move(name),
          .rows = number(sums_batch ? product->depth : product->rows),
          .width = std::sqrt(number(sums_batch ? product->rows : product->depth) *
                             number(product->cols)),
          .work = number(cost.flops)};
}

OpSize added_to_product(const Tensor& results, Activation activation) {
  OpSize size = size_of(BiasActivation{.values = results, .activation = activation});
  size.op += " of a product";
  return size;
}

double op_s(const OpSize& size, std::span<const OpRate> rates) {
  using Logs = std::map<double, double>;
  std::map<double, std::map<double, Logs>> by_rows;  // then by width and reach
  for (const OpRate& rate : rates) {
    if (rate.op != size.op) continue;
    by_rows[log_of(rate.rows)][log_of(rate.width)][log_of(rate.reach)] = std::log(rate.rate);
  }
  if (by_rows.empty() && size.op.ends_with(kAdded)) {  // a card that was measured without them
    OpSize alone = size;
    alone.op.resize(size.op.size() - kAdded.size());
    return op_s(alone, rates);
  }
  if (by_rows.empty() || size.work <= 0) return 0;
  const auto rate_at = [&](double width) {
    Logs at_rows;
    for (const auto& [log_rows, of_rows] : by_rows) {
      Logs at_width;
      for (const auto& [log_width, by_reach] : of_rows) {
        at_width[log_width] = interpolated(by_reach, log_of(size.reach));
      }
      at_rows[log_rows] = interpolated(at_width, log_of(width));
    }
    return std::exp(interpolated(at_rows, log_of(size.rows)));
  };
  const double rate = rate_at(size.width);
  if (counts_flops(size.op) || size.reach <= size.width) return size.work / rate;
  return size.work / std::min(rate, rate_at(size.reach));
}

MachineCard card_from(const JsonValue& from) {
  MachineCard card{.name = from.at("name").text()};
  card.on_gpu = is_of_gpus(from);
  if (from.has("others_share")) card.others_share = from.at("others_share").number(0, 1);
  CardReader reader(from, card.stated);
  card.flops_per_s = reader.rate("device", "flops_per_s", "FLOP/s");
  for (const auto& [name, to] : {std::pair{"tf32_flops_per_s", &card.tf32_flops_per_s},
                                 {"half_flops_per_s", &card.half_flops_per_s},
                                 {"fp16_flops_per_s", &card.fp16_flops_per_s}}) {
    if (reader.has("device", name)) *to = reader.rate("device", name, "FLOP/s");
  }
  reader.optional("bytes", kMaxDeviceBytes, card.device_bytes, human_bytes);
  reader.optional("multiprocessors", kMaxMultiprocessors, card.multiprocessors,
                  [](std::int64_t count) { return std::to_string(count); });
  reader.optional("device", "load_macs", 0, kMaxLoadMacs, card.load_macs, number_text);
  card.memory_bytes_per_s = reader.rate("device", "memory_bytes_per_s", "B/s");
  card.launch_s = reader.seconds("device", "launch_s");
  card.host_s = reader.seconds("device", "host_s");
  card.node_ranks = card_ranks(from.at("node").at("devices"), 1);
  card.has_network = from.has("network");
  card.node = reader.link("node", card.has_network && card.node_ranks > 1);
  if (card.has_network) card.network = reader.link("network", true);
  if (!from.has("loads")) return card;
  for (const JsonValue& load : from.at("loads").items()) {
    card.loads.push_back(parse_load(load));
    state_load(card.loads.back(), load.at("source").text(), card.stated);
  }
  return card;
}

ExchangeKind exchange_kind_of(const Collective& collective) {
  return std::visit(Overloaded{[](const AllReduce&) { return ExchangeKind::kAllReduce; },
                               [](const Broadcast&) { return ExchangeKind::kBroadcast; },
                               [](const Reduce&) { return ExchangeKind::kReduce; },
                               [](const ReduceScatter&) { return ExchangeKind::kReduceScatter; },
                               [](const AllGather&) { return ExchangeKind::kAllGather; },
                               [](const SendReceive&) { return ExchangeKind::kSendReceive; }},
                    collective);
}

const ExchangeTables& LinkRates::tables_of(ExchangeKind exchange) const {
  if (!tables[exchange].empty()) return tables[exchange];
  return ring.empty() ? tables[ExchangeKind::kAllReduce] : ring;
}

double MachineCard::flops_of(DType dtype) const {
  if (dtype == DType::kF32) return flops_per_s;
  return dtype == DType::kF16 && fp16_flops_per_s > 0 ? fp16_flops_per_s : half_flops_per_s;
}

int MachineCard::max_ranks() const {
  if (has_network) return kMaxRanks;
  return node.is_known() ? node_ranks : 1;
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
  for (const MachineLoad& load : loads) {
    if (best == nullptr || is_better(load, *best)) best = &load;
  }
  return best;
}

double wake_s(const Wakes& wakes, double slept_s) {
  constexpr double kShortestS = 1e-9;
  std::map<double, double> by_log;
  for (const auto& [slept, took_s] : wakes) by_log[std::log(std::max(slept, kShortestS))] = took_s;
  return by_log.empty() ? 0 : interpolated(by_log, std::log(std::max(slept_s, kShortestS)));
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
  if (card.device_bytes > 0) {
    all["device"]["bytes"] = {{"value", card.device_bytes}, {"source", source}};
  }
  all["node"] = json_of(card.node, source);
  all["node"]["devices"] = card.node_ranks;
  all["loads"] = json::array();
  for (const MachineLoad& load : card.loads) all["loads"].push_back(json_of(load));
  return all.dump(1) + "\n";
}

double fastest_product(const MachineLoad& load) {
  double fastest = 0;
  for (const OpRate& rate : load.rates) {
    if (rate.op.starts_with("gemm")) fastest = std::max(fastest, rate.rate);
  }
  return fastest;
}

std::string measured_json(const MachineLoad& load) {
  return measured_of(load).dump();
}

void read_measured(const JsonValue& from, MachineLoad& load) {
  load.rates.clear();
  for (const JsonValue& item : from.at("rates").items()) {
    constexpr std::size_t kWithReach = 5;
    const bool has_reach = item.items().size() == kWithReach;
    const std::vector<JsonValue> rate = item.items(has_reach ? kWithReach : kWithReach - 1);
    load.rates.push_back({.op = rate[0].text(),
                          .rows = rate[1].number(1, kMaxSize),
                          .width = rate[2].number(1, kMaxSize),
                          .rate = card_rate(rate[3]),
                          .reach = has_reach ? rate[4].number(1, kMaxSize) : 0});
  }
  load.wake_s = from.has("wake_s") ? card_seconds(from.at("wake_s")) : 0;
  load.wakes.clear();
  for (const JsonValue& item :
       from.has("wakes") ? from.at("wakes").items() : std::vector<JsonValue>{}) {
    const std::vector<JsonValue> wake = item.items(2);
    load.wakes.emplace_back(card_seconds(wake[0]), card_seconds(wake[1]));
  }
  load.contention = from.has("contention") ? from.at("contention").number(1, kMaxContention) : 1;
  for (const ExchangeKind exchange : kValuesOf<ExchangeKind>) {
    const std::string name(name_of(exchange));
    const bool was_measured = from.has(name.c_str());
    load.exchanges[exchange] = was_measured ? points_of(from.at(name.c_str())) : SecondsByBytes{};
  }
}

double exchange_s(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                  int span) {
  if (ranks <= 1) return 0;
  const double factor = bus_factor(exchange, ranks);
  for (const MachineLoad& load : card.loads) {
    const SecondsByBytes& sums = load.exchanges[ExchangeKind::kAllReduce];
    if (load.ranks != ranks || sums.empty()) continue;
    const SecondsByBytes& own = load.exchanges[exchange];
    if (!own.empty()) return seconds_at(own, bytes);
    return seconds_at(sums, bytes) * factor / bus_factor(ExchangeKind::kAllReduce, ranks);
  }
  const ExchangeGroup group = group_of(card, ranks, span);
  if (!group.rates.is_known()) return 0;
  return latency_s(group, exchange) + bytes * factor / bandwidth(card, group, exchange, bytes);
}

double all_reduce_s(const MachineCard& card, double bytes, int ranks) {
  return exchange_s(card, ExchangeKind::kAllReduce, bytes, ranks);
}

double bus_factor(ExchangeKind exchange, int ranks) {
  const double others = number(ranks - 1) / ranks;
  switch (exchange) {
    case ExchangeKind::kAllReduce:
      return 2 * others;
    case ExchangeKind::kReduceScatter:
    case ExchangeKind::kAllGather:
      return others;
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kReduce:
    case ExchangeKind::kSendReceive:
      break;
  }
  return 1;
}

double bus_bandwidth(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                     int span) {
  const double seconds = exchange_s(card, exchange, bytes, ranks, span);
  return seconds > 0 ? bytes * bus_factor(exchange, ranks) / seconds : 0;
}

double link_bytes(const MachineCard& card, ExchangeKind exchange, double bytes, int ranks,
                  int span) {
  if (ranks <= 1) return 0;
  const ExchangeGroup group = group_of(card, ranks, span);
  bool in_switches = false;
  for (const ExchangeTable& table : group.rates.tables_of(exchange)) {
    if (table.ranks <= ranks) in_switches = table.in_switches;
  }
  const double in_ring = bytes * bus_factor(exchange, ranks);
  if (group.nodes == 1) return in_switches ? bytes * number(ranks + 1) / ranks : in_ring;
  const double leaving = in_switches ? bytes * bus_factor(exchange, group.nodes) : in_ring;
  return leaving / card.node_ranks;
}

double copy_s(const MachineCard& card, double bytes) {
  if (card.node.copy_bytes_per_s > 0) return card.launch_s + bytes / card.node.copy_bytes_per_s;
  return exchange_s(card, ExchangeKind::kBroadcast, bytes, 2);
}

std::int64_t unmeasured_figures(const MachineCard& card) {
  return std::ranges::count_if(card.stated, [](const StatedRate& rate) {
    return rate.source.find("assumed") != std::string::npos ||
           rate.source.starts_with("data sheet") || rate.source.starts_with("fitted");
  });
}

std::string error_note(const MachineCard& card) {
  return error_note(card, kSimulationError);
}

std::string error_note(const MachineCard& card, const char* known_error) {
  const std::int64_t unmeasured = unmeasured_figures(card);
  if (unmeasured == 0) return known_error;
  return fmt::format("{} Of the {} figures of its card, {} are assumed or from data sheets.",
                     known_error, card.stated.size(), unmeasured);
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
