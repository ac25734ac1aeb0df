#include "parallel/traffic.h"

#include <cmath>

namespace barestep {

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
