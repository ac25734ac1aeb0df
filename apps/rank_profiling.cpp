#include "rank_profiling.h"

#include <span>

#include "core/clock.h"
#include "profiler/communication_account.h"

namespace barestep {

void align_traces(Communicator& ranks, Profiling& profiling) {
  const ClockAlignment clocks = align_clocks(ranks, &now_s);
  ClockOrigin origin = profiling.origin();
  ranks.broadcast(std::as_writable_bytes(std::span(&origin, 1)), 0);
  const auto rank = static_cast<std::size_t>(ranks.rank());
  // A time t of this rank is t + shift on rank 0's clock.
  origin.host_s -= clocks.shift_s[rank];
  profiling.set_origin(origin, clocks.error_s[rank]);
}

}  // namespace barestep
