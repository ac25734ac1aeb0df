#include "lab/amdahl.h"

namespace barestep {

double amdahl_speed_up(double serial, double ranks) {
  return 1 / (serial + (1 - serial) / ranks);
}

Estimate serial_fraction(std::span<const SpeedUp> speed_ups) {
  if (speed_ups.empty()) return {1, 1, 1};
  // t - 1/n = s (1 - 1/n), a line through the origin.
  const auto fit = [&](double Estimate::*end) {
    double xy = 0, xx = 0;
    for (const SpeedUp& each : speed_ups) {
      const double x = 1 - 1.0 / each.ranks;
      xy += x * (1 / (each.factor.*end) - 1.0 / each.ranks);
      xx += x * x;
    }
    return xy / xx;
  };
  return {fit(&Estimate::median), fit(&Estimate::high), fit(&Estimate::low)};
}

}  // namespace barestep
