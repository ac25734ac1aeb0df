// How busy a device was, by the definitions of HolisticTraceAnalysis: from the start of its first
// work to the end of its last, all streams together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiler/profile.h"

namespace barestep {

/// Why a stream waited between two pieces of work.
struct StreamIdle {
  int stream = 0;            // as in a trace: 1 is the compute lane's
  double host_wait_s = 0;    // the host had not queued the next one
  double kernel_wait_s = 0;  // it had, and the gap is shorter than kShortGapSeconds
  double other_s = 0;
};

struct Breakdown {
  double span_s = 0;         // first start to last end
  double compute_s = 0;      // of it with computation
  double non_compute_s = 0;  // with nothing but copies and communication
  double idle_s = 0;         // with nothing
  /// The share of communication that computation hides; nothing without communication.
  std::optional<double> overlap{};
  std::vector<StreamIdle> streams;
};

/// HolisticTraceAnalysis's default, which it takes for microseconds.
constexpr double kShortGapSeconds = 30e-6;

/// Of one device. Copies and communication are told from computation by their ops.
Breakdown breakdown_of(const Profile& profile, int device);

/// One sentence. Empty where the device did nothing.
std::string breakdown_text(const Breakdown& breakdown);

}  // namespace barestep
