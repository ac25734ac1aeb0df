#include "core/stop_request.h"

#include <csignal>

#include "core/clock.h"

namespace barestep {
namespace {

constexpr double kSameRequestSeconds = 0.2;

std::atomic<bool> stop_is_requested{false};
std::atomic<double> signalled_at_s{0};
std::atomic<double> ended_at_s{0};
std::atomic<double> continued_at_s{0};

static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<double>::is_always_lock_free);

extern "C" void note_stop_signal(int signal) {
  double never = 0;
  if (signal == SIGTERM) ended_at_s.compare_exchange_strong(never, now_s());
  never = 0;
  signalled_at_s.compare_exchange_strong(never, now_s());
  stop_is_requested = true;
}

/// The default action ends the process as soon as the handler returns.
extern "C" void note_stop_signal_or_end(int signal) {
  const double first_s = signalled_at_s;
  note_stop_signal(signal);
  if (first_s == 0 || now_s() - first_s < kSameRequestSeconds) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

extern "C" void note_continuation(int /*signal*/) {
  continued_at_s = now_s();
}

}  // namespace

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void take_stop_signals(SecondSignal second) {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = &note_stop_signal;
  for (const int signal : {SIGUSR1, SIGUSR2, SIGXCPU}) sigaction(signal, &action, nullptr);
  // Shells and the kernel each send one when a terminal closes, so the second is no wish of a user.
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
  if (second == SecondSignal::kEndsAtOnce) action.sa_handler = &note_stop_signal_or_end;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = &note_continuation;
  sigaction(SIGCONT, &action, nullptr);
}

void request_stop() {
  stop_is_requested = true;
}

const std::atomic<bool>& stop_requested() {
  return stop_is_requested;
}

double termination_requested_s() {
  return ended_at_s;
}

double continued_s() {
  return continued_at_s;
}

}  // namespace barestep
