#include "core/price.h"

#include <cmath>

#include "core/checked.h"

namespace barestep {

Price price_of(const Program& program) {
  Price price;
  for (const Node& node : program.nodes()) {
    const Cost cost = cost_of(node.op);
    price.total += cost;
    price.by_phase[static_cast<std::size_t>(node.phase)] += cost;
  }
  return price;
}

std::int64_t state_bytes_of(const Program& program) {
  std::int64_t bytes = 0;
  for (const Node& node : program.nodes()) {
    if (std::holds_alternative<Collective>(node.op)) continue;
    for (const Access& access : accesses_of(node.op)) {
      const Category category = program.buffers()[access.tensor.buffer].category;
      const bool counts = category == Category::kParameters || category == Category::kGradients ||
                          category == Category::kOptimizer;
      if (counts) bytes = checked_add(bytes, access.tensor.bytes(), "the bytes of a program");
    }
  }
  return bytes;
}

std::int64_t bytes_sent(const Program& program, int ranks) {
  double sent = 0;
  for (const Node& node : program.nodes()) {
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) continue;
    const double times = std::holds_alternative<AllReduce>(*collective) ? 2 : 1;
    sent += times * static_cast<double>(cost_of(node.op).message_bytes);
  }
  return std::llround(sent * (ranks - 1) / ranks);
}

}  // namespace barestep
