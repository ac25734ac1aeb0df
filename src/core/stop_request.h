// Requests to stop early, by a signal: SIGINT from Ctrl-C; SIGTERM, which launchers and Slurm send
// before they kill; SIGHUP, when a terminal is closed; or those that batch systems send before a
// time limit: SIGUSR1 or SIGUSR2 (`sbatch --signal=USR1@60`, `qsub -notify`, `bsub -wa`), SIGXCPU
// (a soft limit of SGE, or `ulimit -St`).
#pragma once

#include <atomic>

namespace barestep {

/// The effect of another SIGINT or SIGTERM after a stop was requested.
enum class SecondSignal {
  kEndsAtOnce,  // the signal's default action
  kIsIgnored    // launchers may send several, and end what takes too long with SIGKILL
};

/// Whether the signal is ignored, as nohup(1) lets a program start with SIGHUP.
bool is_ignored(int signal);

/// From now on, the signals set the flag. A second signal within 0.2 s counts as the first, because
/// timeout(1) sends each twice. SIGHUP stays ignored if it was ignored at the start, as nohup(1)
/// asks. SIGCONT is noted too.
void take_stop_signals(SecondSignal second);

/// Requests a stop from within the program.
void request_stop();

/// Whether a stop was requested.
const std::atomic<bool>& stop_requested();

/// When SIGTERM first arrived, in seconds of core/clock.h; 0 if it has not.
double termination_requested_s();

/// When SIGCONT last arrived, on the same clock; 0 if it has not.
double continued_s();

}  // namespace barestep
