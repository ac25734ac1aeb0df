// Up to how many ranks communication is hidden by products: the closed forms of a course
// (Stanford CS336, assignment 2 of 2026, section 8) beside the programs that barestep builds,
// priced by cost_of(). Calculated.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiments/calculations.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/prediction.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr std::int64_t kLimitWidth = 8192;
constexpr std::int64_t kLimitDepth = 6;
constexpr std::array<std::int64_t, 3> kLimitBatches = {64, 1024, 16384};
constexpr std::array kLimitPrecisions = {Precision::kFp32, Precision::kBf16};
constexpr std::array<const char*, 2> kLimitCards = {"h200-nvlink", "a100-nvlink"};
/// Of programs that are compared with the closed form.
constexpr int kComparedRanks = 2;

/// A batch, and what a machine does with it.
struct LimitSetting {
  std::int64_t batch = 0;
  Precision precision = Precision::kFp32;
  double flops_per_s = 0;
  double bytes_per_s = 0;  // that a rank sends

  /// Of a number, in the closed forms.
  [[nodiscard]] double number_bytes() const {
    return static_cast<double>(bytes_of(type_of(precision)));
  }
  /// The flops in the time of sending a number.
  [[nodiscard]] double flops_per_number() const {
    return number_bytes() * flops_per_s / bytes_per_s;
  }
};

LimitSetting limit_setting(const MachineCard& card, std::int64_t batch, Precision precision) {
  constexpr double kLargeMessage = 8.0 * (1 << 30);
  constexpr int kRanks = 4;
  const bool is_half = type_of(precision) != DType::kF32;
  return {.batch = batch,
          .precision = precision,
          .flops_per_s = is_half ? card.half_flops_per_s : card.flops_per_s,
          .bytes_per_s = bus_bandwidth(card, ExchangeKind::kAllReduce, kLargeMessage, kRanks)};
}

/// A part of a step whose communication must hide behind its products.
struct LimitedPart {
  const char* key;
  const char* name;
  SchemeKind scheme;
  bool is_tensor;   // else ranks share the batch
  bool is_forward;  // else backward
  /// Flops of a product of a weight with a row, in this part; numbers that a ring of many ranks
  /// sends, of each number that is shared: of a weight, or, in tensor ranks, of a pair's output.
  double flops, numbers;
};

constexpr std::array<LimitedPart, 5> kLimitedParts = {
    {{"dp-backward", "DP, backward", SchemeKind::kDdp, false, false, 4, 2},
     {"fsdp-forward", "FSDP, forward", SchemeKind::kZero3, false, true, 2, 1},
     {"fsdp-backward", "FSDP, backward", SchemeKind::kZero3, false, false, 4, 2},
     {"tp-forward", "TP, forward", SchemeKind::kDdp, true, true, 2, 2},
     {"tp-backward", "TP, backward", SchemeKind::kDdp, true, false, 4, 2}}};

/// N - 1 <= flops * rows / (numbers * flops in the time of a number): a weight meets each row of
/// the batch, and an output of a pair of layers comes from two weights in each column.
double closed_slack(const LimitedPart& part, const LimitSetting& setting) {
  const double rows = part.is_tensor ? 2.0 * kLimitWidth : static_cast<double>(setting.batch);
  return part.flops * rows / (part.numbers * setting.flops_per_number());
}

Workload limit_workload(SchemeKind scheme, const LimitSetting& setting, int data, int tensor) {
  Workload workload{{.ranks = data * tensor, .on_gpu = true}};
  TrainConfig& config = workload.config;
  config.model.dim = kLimitWidth;
  config.model.depth = kLimitDepth;
  config.data.batch_size = setting.batch;
  config.device.precision = setting.precision;
  config.training.update = Update::kSeparate;
  config.parallel.scheme = scheme;
  config.parallel.tensor = tensor;
  return workload;
}

}  // namespace

PricedPart priced_part(const Run& workload, bool is_forward) {
  const WorkloadPrograms programs(workload);
  const Program& step = programs.step();
  Program computing("computing", step.buffers()), tensor("tensor", step.buffers()),
      data("data", step.buffers());
  bool is_after_loss = false;
  for (Node node : step.nodes()) {
    is_after_loss = is_after_loss || node.phase == Phase::kLoss;
    if (is_after_loss == is_forward) continue;
    node.waits.clear();
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective != nullptr) {
      (axis_of(*collective) == Axis::kTensor ? tensor : data).add(std::move(node));
    } else if (node.phase == Phase::kForward || node.phase == Phase::kBackward) {
      computing.add(std::move(node));
    }
  }
  return {.flops = static_cast<double>(price_of(computing).total.flops),
          .tensor_bytes = static_cast<double>(bytes_sent(tensor, programs.mesh())),
          .data_bytes = static_cast<double>(bytes_sent(data, programs.mesh()))};
}

namespace {

PricedPart priced(const LimitedPart& part, const LimitSetting& setting, int ranks) {
  return priced_part(
      limit_workload(part.scheme, setting, part.is_tensor ? 1 : ranks, part.is_tensor ? ranks : 1),
      part.is_forward);
}

double bytes_of_part(const LimitedPart& part, const PricedPart& price) {
  return part.is_tensor ? price.tensor_bytes : price.data_bytes;
}

/// The largest number from 1 on, and at most `most`, up to which all are allowed.
int largest_allowed(int most, const std::function<bool(int)>& is_allowed) {
  int low = 1, high = 2;
  while (high <= most && is_allowed(high)) low = std::exchange(high, 2 * high);
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (is_allowed(middle) ? low : high) = middle;
  }
  return low;
}

int most_ranks(const LimitedPart& part, const LimitSetting& setting) {
  return static_cast<int>(part.is_tensor ? kLimitWidth : setting.batch);
}

/// By enumeration of programs.
int priced_limit(const LimitedPart& part, const LimitSetting& setting) {
  return largest_allowed(most_ranks(part, setting), [&](int ranks) {
    const PricedPart price = priced(part, setting, ranks);
    return bytes_of_part(part, price) / setting.bytes_per_s <= price.flops / setting.flops_per_s;
  });
}

/// What the programs have, as a multiple of what the closed form counts.
struct LimitRatios {
  double flops = 1, bytes = 1;
};

LimitRatios ratios_of(const LimitedPart& part, const LimitSetting& setting) {
  const PricedPart price = priced(part, setting, kComparedRanks);
  const double width = kLimitWidth, weights = width * width * kLimitDepth;
  const auto batch = static_cast<double>(setting.batch);
  const double shared = part.is_tensor ? batch * width * kLimitDepth / 2 : weights;
  const double in_ring = static_cast<double>(kComparedRanks - 1) / kComparedRanks;
  return {.flops = price.flops * kComparedRanks / (part.flops * batch * weights),
          .bytes = bytes_of_part(part, price) /
                   (part.numbers * in_ring * setting.number_bytes() * shared)};
}

FindingTable limits_table(const MachineCard& card, const std::string& name) {
  const LimitSetting rates = limit_setting(card, kLimitBatches[0], Precision::kFp32);
  FindingTable table{.title = fmt::format("Largest number of ranks before communication binds, {} "
                                          "x {} on {}, {} a rank (calculated)",
                                          kLimitWidth, kLimitDepth, card.name,
                                          rate_text(rates.bytes_per_s, "B/s")),
                     .name = name + "-table",
                     .columns = {"part", "precision", "batch", "closed form", "programs, priced",
                                 "flops of programs", "bytes of programs"}};
  for (const LimitedPart& part : kLimitedParts) {
    for (const Precision precision : kLimitPrecisions) {
      for (const std::int64_t batch : kLimitBatches) {
        // Tensor ranks' limit does not depend on the batch.
        if (part.is_tensor && batch != kLimitBatches[1]) continue;
        const LimitSetting setting = limit_setting(card, batch, precision);
        const LimitRatios ratios = ratios_of(part, setting);
        table.rows.push_back({part.name, std::string(name_of(precision)),
                              part.is_tensor ? "any" : std::to_string(batch),
                              fmt::format("{:.2f}", 1 + closed_slack(part, setting)),
                              std::to_string(priced_limit(part, setting)),
                              factor_text(ratios.flops), factor_text(ratios.bytes)});
      }
    }
  }
  return table;
}

// FSDP of tensor ranks, forward.

/// The most ranks of both axes together, and those of each.
struct PlaneLimit {
  double data = 1, tensor = 1;

  [[nodiscard]] double ranks() const { return data * tensor; }
  [[nodiscard]] std::string text(int decimals) const {
    return fmt::format("{:.{}f} = {:.{}f} x {:.{}f}", ranks(), decimals, data, decimals, tensor,
                       decimals);
  }
};

/// With a and b, the slack of each axis: (1 + a)(1 + b) if the axes' messages overlap each other,
/// else the largest product of two numbers of ranks that share one slack, a b (1 + 1/a + 1/b)^2 /
/// 4, where neither number is less than 1.
PlaneLimit closed_plane(const LimitSetting& setting, bool overlaps) {
  const double a = closed_slack(kLimitedParts[1], setting);
  const double b = closed_slack(kLimitedParts[3], setting);
  if (overlaps) return {1 + a, 1 + b};
  const double both = 1 + 1 / a + 1 / b;
  const PlaneLimit shared{a * both / 2, b * both / 2};
  if (shared.data < 1) return {1, 1 + b};
  return shared.tensor < 1 ? PlaneLimit{1 + a, 1} : shared;
}

/// By enumeration of programs. More tensor ranks leave no more data ranks.
PlaneLimit priced_plane(const LimitSetting& setting, bool overlaps) {
  const auto is_allowed = [&](int data, int tensor) {
    const PricedPart price =
        priced_part(limit_workload(SchemeKind::kZero3, setting, data, tensor), true);
    const double sent = overlaps ? std::max(price.data_bytes, price.tensor_bytes)
                                 : price.data_bytes + price.tensor_bytes;
    return sent / setting.bytes_per_s <= price.flops / setting.flops_per_s;
  };
  const int most_tensor =
      largest_allowed(kLimitWidth, [&](int tensor) { return is_allowed(1, tensor); });
  int data = largest_allowed(static_cast<int>(setting.batch),
                             [&](int count) { return is_allowed(count, 1); });
  PlaneLimit best;
  for (int tensor = 1; tensor <= most_tensor; ++tensor) {
    while (data > 1 && !is_allowed(data, tensor)) --data;
    const PlaneLimit limit{static_cast<double>(data), static_cast<double>(tensor)};
    if (limit.ranks() > best.ranks()) best = limit;
  }
  return best;
}

FindingTable planes_table(const MachineCard& card, const std::string& name) {
  FindingTable table{
      .title = fmt::format(
          "FSDP of tensor ranks, forward, {} x {} on {}: ranks = FSDP x TP (calculated)",
          kLimitWidth, kLimitDepth, card.name),
      .name = name + "-planes-table",
      .columns = {"precision", "batch", "messages of the axes", "closed form", "programs, priced"}};
  for (const Precision precision : kLimitPrecisions) {
    for (const std::int64_t batch : kLimitBatches) {
      const LimitSetting setting = limit_setting(card, batch, precision);
      for (const bool overlaps : {true, false}) {
        table.rows.push_back({std::string(name_of(precision)), std::to_string(batch),
                              overlaps ? "overlap" : "one after the other",
                              closed_plane(setting, overlaps).text(1),
                              priced_plane(setting, overlaps).text(0)});
      }
    }
  }
  return table;
}

/// A sentence for each part, at the middle batch.
std::string part_text(const MachineCard& card, const LimitedPart& part) {
  std::vector<std::string> limits;
  for (const Precision precision : kLimitPrecisions) {
    const LimitSetting setting = limit_setting(card, kLimitBatches[1], precision);
    const LimitRatios ratios = ratios_of(part, setting);
    limits.push_back(fmt::format(
        "in {} {:.2f} by the closed form, and {} by the programs, which have {} the flops and {} "
        "the bytes",
        name_of(precision), 1 + closed_slack(part, setting), priced_limit(part, setting),
        factor_text(ratios.flops), factor_text(ratios.bytes)));
  }
  return fmt::format("{}, largest number of ranks on {}{}: {} (calculated).", part.name, card.name,
                     part.is_tensor ? "" : fmt::format(" at batch {}", kLimitBatches[1]),
                     fmt::join(limits, "; "));
}

Findings limits_findings(const Results& /*results*/) {
  Findings findings;
  for (const char* const name : kLimitCards) {
    const MachineCard card = load_card(name);
    findings.tables.push_back(limits_table(card, name));
    findings.tables.push_back(planes_table(card, name));
  }
  const MachineCard first = load_card(kLimitCards.front());
  for (const LimitedPart& part : kLimitedParts) {
    findings.untimed.push_back({part.key, part_text(first, part)});
  }
  findings.untimed.push_back(
      {"closed-forms",
       "The closed forms, with B rows, a width F, W bytes/s and C flops/s, and s bytes for each "
       "number: N <= 1 + 2 B W / (s C) for DP and FSDP, 1 + 2 F W / (s C) for TP forward, 1 + 4 F "
       "W / (s C) for TP backward. A pair of square layers has 4 B F F flops forward and 8 "
       "backward, a gated block of three products 6 and 12."});
  findings.untimed.push_back(
      {"method",
       "Programs are priced for whole numbers of ranks, and for rank 0, whose share of the rows is "
       "rounded up. Rates are those of large products and messages, without latency. Programs "
       "differ from the closed forms because the first layer has no gradient of its input, "
       "gradients are sent in fp32, backward of FSDP finds the last layers' weights gathered and "
       "does not read the first's, and the first pair of tensor layers adds up no gradient."});
  return findings;
}

}  // namespace

Experiment limits_experiment() {
  return {"limits",
          "How many ranks hide their communication",
          "Up to how many ranks does communication fit behind products, by scheme?",
          [](const Setting&) { return std::vector<Case>{}; },
          limits_findings,
          "dp-backward fsdp-forward fsdp-backward tp-forward tp-backward closed-forms method "
          "h200-nvlink-table h200-nvlink-planes-table a100-nvlink-table a100-nvlink-planes-table"};
}

}  // namespace barestep
