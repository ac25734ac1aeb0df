// The price of a program: its work, before it runs.
#pragma once

#include <array>
#include <cstddef>

#include "core/ops.h"
#include "core/program.h"

namespace barestep {

/// Sums of cost_of over the nodes of one step, all devices of the process together.
struct Price {
  Cost total;
  std::array<Cost, kPhases> by_phase{};

  [[nodiscard]] const Cost& of(Phase phase) const {
    return by_phase[static_cast<std::size_t>(phase)];
  }
};

/// Throws Error(kMemory) when a sum is larger than 2^63 - 1.
Price price_of(const Program& program);

}  // namespace barestep
