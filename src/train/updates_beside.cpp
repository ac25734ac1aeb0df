#include "train/updates_beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "core/index.h"
#include "core/program.h"

namespace barestep {
namespace {

// The shares of these rates that kernels reach: products of few rows, and whole waves of updates.
constexpr double kProductShare = 0.85;
constexpr double kUpdateShare = 0.92;

// Instructions of the kernels, counted in machine code; see bench/sass_budget.
constexpr double kUpdatePerWeight = 54;
constexpr double kUpdatePerRow = 1;  // per weight: a multiply-add
constexpr double kUpdatePerRowOfTensor = 0.6;
constexpr double kProductPerMultiplyAdd = 1.2;

// A smaller gain is within the calculation's error and does not outweigh the second lane's waits.
constexpr double kWorthShare = 0.05;
constexpr double kWorthSeconds = 5e-6;

/// An op's time in seconds by each limit.
struct Load {
  double memory_s = 0;
  double issue_s = 0;
  double alone_s = 0;
};

class Pricer {
 public:
  Pricer(const GpuRates& rates, bool tensor_cores) : rates_(rates), tensor_cores_(tensor_cores) {}

  [[nodiscard]] Load operator()(const LinearAdam& op) const {
    const double per_row = tensor_cores_ ? kUpdatePerRowOfTensor : kUpdatePerRow;
    const double per_weight = kUpdatePerWeight + per_row * static_cast<double>(op.grad_y.rows);
    Load load{
        .memory_s = memory_s(op),
        .issue_s = static_cast<double>(op.weight.size()) * per_weight / rates_.instructions_per_s};
    load.alone_s = std::max(load.memory_s, load.issue_s) / kUpdateShare;
    return load;
  }

  [[nodiscard]] Load operator()(const Gemm& op) const {
    const auto flops = static_cast<double>(cost_of(DeviceOp{op}).flops);
    Load load{.memory_s = memory_s(op)};
    if (!tensor_cores_) {
      load.issue_s = kProductPerMultiplyAdd * flops / 2 / rates_.instructions_per_s;
    }
    const double reached = tensor_cores_ ? rates_.tensor_flops_per_s : rates_.fp32_flops_per_s;
    load.alone_s = std::max(load.memory_s / kProductShare, flops / reached);
    return load;
  }

 private:
  [[nodiscard]] double memory_s(const DeviceOp& op) const {
    return static_cast<double>(cost_of(op).bytes) / rates_.memory_bytes_per_s;
  }

  const GpuRates& rates_;
  bool tensor_cores_;
};

/// Seconds of the updates that may run alongside an input gradient, and of these gradients.
struct Pairs {
  double in_turn_s = 0;
  double together_s = 0;
};

Pairs pairs_of(const Program& program, const Model& model, const Pricer& price) {
  std::map<std::string, Load> updates, gradients;
  for (const Node& node : program.nodes()) {
    const auto& op = std::get<DeviceOp>(node.op);
    const auto* const update = std::get_if<LinearAdam>(&op);
    const auto* const product = std::get_if<Gemm>(&op);
    if (update != nullptr) updates[node.block] = price(*update);
    // With several micro-steps, only the last one counts.
    if (product != nullptr && node.phase == Phase::kBackward) {
      gradients[node.block] = price(*product);
    }
  }
  Pairs pairs;
  const std::vector<Linear*>& linears = model.linears();
  for (int number = kFirstUpdatedBeside; number < std::ssize(linears); ++number) {
    const Load& update = updates.at(at(linears, number)->name());
    const Load& gradient = gradients.at(at(linears, number - 1)->name());
    pairs.in_turn_s += update.alone_s + gradient.alone_s;
    pairs.together_s +=
        std::max(update.memory_s + gradient.memory_s, update.issue_s + gradient.issue_s) /
        kUpdateShare;
  }
  return pairs;
}

}  // namespace

GpuRates measured_rates(double memory_bytes_per_s, double flops_per_s, int multiprocessors) {
  constexpr double kMultiprocessorsOfH200 = 132;
  GpuRates rates{.gpu = "this GPU",
                 .memory_bytes_per_s = memory_bytes_per_s,
                 .fp32_flops_per_s = flops_per_s,
                 .tensor_flops_per_s = flops_per_s};
  if (multiprocessors > 0) rates.instructions_per_s *= multiprocessors / kMultiprocessorsOfH200;
  return rates;
}

UpdatesBeside choose_updates_beside(const TrainConfig& config, DeviceKind kind,
                                    const StepPrograms& after, const GpuRates& rates) {
  const bool fused = !after.spec().model.stores_gradients;
  const Model model(after.spec().model);
  const std::pair<bool, std::string_view> needs_the_end[] = {
      {!fused, "--update separate takes all gradients at once"},
      {kind != DeviceKind::kCuda, "on the CPU each of them has all threads already"},
      {config.training.clip_norm.has_value(), "--clip-norm needs all gradients first"},
      {after.scheme() != nullptr, "ranks gather what a layer's gradient is made of first"},
      {std::ssize(model.linears()) <= kFirstUpdatedBeside,
       "no layer but the first two has an input gradient below"}};
  for (const auto& [holds, why] : needs_the_end) {
    if (holds) return {false, std::string(why)};
  }
  const Pricer price(rates, config.device.precision != Precision::kFp32);
  const Pairs pairs = pairs_of(after.train().program, model, price);
  const double saved_s = pairs.in_turn_s - pairs.together_s;
  const bool pays = saved_s > kWorthShare * pairs.in_turn_s && saved_s > kWorthSeconds;
  return {pays,
          fmt::format("beside input gradients they take {:.3f} ms together, after them {:.3f}; "
                      "calculated with the rates of {}{}",
                      1e3 * pairs.together_s, 1e3 * pairs.in_turn_s, rates.gpu,
                      pays ? "" : ", too little for a second lane")};
}

}  // namespace barestep
