// The wish to stop early, by a signal: SIGINT, as Ctrl-C sends it, SIGTERM, as launchers and Slurm
// send it before they kill, or SIGUSR1, as `sbatch --signal=USR1@60` sends it before the time is
// up.
#pragma once

#include <atomic>

namespace barestep {

/// What another SIGINT or SIGTERM does once a stop is asked for.
enum class SecondSignal {
  kEndsAtOnce,  // as the signal does by default
  kIsIgnored    // a launcher may send several, and ends by SIGKILL what takes too long
};

/// The signals set the flag from now on. A second one that comes within 0.2 s counts as the first:
/// timeout(1) sends each twice. SIGCONT is noted too.
void take_stop_signals(SecondSignal second);

/// The same wish, from within the program.
void ask_to_stop();

/// Whether anyone asked.
const std::atomic<bool>& stop_is_asked_for();

/// When SIGTERM came first, in seconds of core/clock.h; 0: it did not.
double asked_to_end_s();

/// When SIGCONT came last, on the same clock; 0: it did not.
double continued_s();

}  // namespace barestep
