// The wish to stop early, by a signal: SIGTERM, as launchers and Slurm send it before they kill, or
// SIGUSR1, as `sbatch --signal=USR1@60` sends it before the time is up.
#pragma once

#include <atomic>

namespace barestep {

/// Both signals set the flag from now on, and do nothing else. SIGCONT is noted too.
void take_stop_signals();

/// Whether one came.
const std::atomic<bool>& stop_is_asked_for();

/// When SIGTERM came first, in seconds of core/clock.h; 0: it did not.
double asked_to_end_s();

/// When SIGCONT came last, on the same clock; 0: it did not.
double continued_s();

}  // namespace barestep
