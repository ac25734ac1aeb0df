#include "parallel/stop_request.h"

#include <csignal>

#include "core/clock.h"

namespace barestep {
namespace {

std::atomic<bool> stop_asked{false};
std::atomic<double> ended_at_s{0};
std::atomic<double> continued_at_s{0};

static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<double>::is_always_lock_free);

extern "C" void note_stop_signal(int signal) {
  double never = 0;
  if (signal == SIGTERM) ended_at_s.compare_exchange_strong(never, now_s());
  stop_asked = true;
}

extern "C" void note_continuation(int /*signal*/) {
  continued_at_s = now_s();
}

}  // namespace

void take_stop_signals() {
  struct sigaction action {};
  action.sa_handler = &note_stop_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_handler = &note_continuation;
  sigaction(SIGCONT, &action, nullptr);
}

const std::atomic<bool>& stop_is_asked_for() {
  return stop_asked;
}

double asked_to_end_s() {
  return ended_at_s;
}

double continued_s() {
  return continued_at_s;
}

}  // namespace barestep
