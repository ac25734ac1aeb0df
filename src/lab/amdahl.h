// Amdahl's law (Amdahl 1967): a step whose serial share is s is 1 / (s + (1 - s) / n) times as fast
// on n ranks.
#pragma once

#include <span>

#include "lab/samples.h"

namespace barestep {

double amdahl_speed_up(double serial, double ranks);

struct SpeedUp {
  int ranks = 2;  // more than 1
  Estimate factor{};
};

/// The serial share that fits T(n) / T(1) = s + (1 - s) / n best, by least squares. Its interval is
/// that of the ends of all speed-ups' intervals. It may be above 1, where ranks slow a step down,
/// and below 0. 1 for no speed-up at all.
Estimate serial_fraction(std::span<const SpeedUp> speed_ups);

}  // namespace barestep
