#include "core/price.h"

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

}  // namespace barestep
