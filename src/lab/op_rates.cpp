#include "lab/op_rates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <variant>

#include "core/overloaded.h"

namespace barestep {
namespace {

double number(std::int64_t count) {
  return static_cast<double>(count);
}

/// log y at log x between the points next to it; beyond them, the last one's.
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
                   // An update from the factors of the gradient is a product in the first place.
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
  std::map<double, std::map<double, double>> by_rows;  // logarithms all
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

}  // namespace barestep
