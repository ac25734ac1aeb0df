// The price of a program: its work, before it runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

/// Of one step, the bytes moved to and from parameters, gradients and the optimizer's state: what
/// does not grow with the batch. Each op reads its input once and writes its output once.
std::int64_t state_bytes_of(const Program& program);

/// Bytes that each of `ranks` sends in a step of `program`, the mean over ranks, where collectives
/// go round in a ring (Patarasuk & Yuan 2009): of an all-reduce 2 (n - 1) / n of its bytes, of a
/// reduce-scatter or an all-gather (n - 1) / n; of others as much.
std::int64_t bytes_sent(const Program& program, int ranks);

}  // namespace barestep
