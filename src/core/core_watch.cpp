#include "core/core_watch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace barestep {

CoreWatch::CoreWatch() : begin_(now()) {}

CoreWatch::Times CoreWatch::now() {
  std::ifstream stat("/proc/stat");
  std::string name;
  // user, nice, system, idle, iowait, irq, softirq, steal; what guests take is in user already.
  std::array<double, 8> ticks{};
  stat >> name;
  for (double& each : ticks) stat >> each;
  if (!stat || name != "cpu") return {};
  double all = 0;
  for (const double each : ticks) all += each;
  const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {(all - ticks[3] - ticks[4]) / ticks_per_s, all / ticks_per_s};
}

double CoreWatch::others_share(double own_s) const {
  const Times end = now();
  const double all_s = end.all_s - begin_.all_s;
  if (all_s <= 0) return 0;
  return std::clamp((end.busy_s - begin_.busy_s - own_s) / all_s, 0.0, 1.0);
}

}  // namespace barestep
