// core_distance SECONDS: how far apart the CPUs are, and beside it how long a pass of Adam takes on
// one of them and on two, each over 38 MB of its own. On a virtual machine both change together.
#include <fmt/format.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/host.h"
#include "core/statistics.h"

namespace barestep {
namespace {

constexpr std::size_t kNumbers = 2'360'000;  // dim 768, depth 4

struct AdamState {
  std::vector<float> w = std::vector<float>(kNumbers, 0.1F), g = w, m = w, v = w;

  void pass() {
    for (std::size_t i = 0; i < kNumbers; ++i) {
      m[i] = 0.9F * m[i] + 0.1F * g[i];
      v[i] = 0.999F * v[i] + 0.001F * g[i] * g[i];
      w[i] -= 1e-3F * m[i] / (std::sqrt(v[i]) + 1e-8F);
    }
  }

  /// Median of passes for a tenth of a second.
  double pass_ms() {
    std::vector<double> seconds;
    for (const double end_s = now_s() + 0.1; now_s() < end_s;) {
      const double begin_s = now_s();
      pass();
      seconds.push_back(now_s() - begin_s);
    }
    return 1e3 * median(seconds);
  }
};

void watch(double seconds) {
  AdamState first, second;
  fmt::print("{:>8}{:>16}{:>16}{:>16}{:>16}\n", "s", "apart, ns", "alone, ms", "of two, ms",
             "and, ms");
  const double begin_s = now_s();
  for (; now_s() < begin_s + seconds; std::this_thread::sleep_for(std::chrono::seconds(2))) {
    const double distance_s = core_distance_s();
    const double alone = first.pass_ms();
    double of_first = 0, of_second = 0;
    std::barrier both(2);
    std::thread other([&] {
      both.arrive_and_wait();
      of_second = second.pass_ms();
    });
    both.arrive_and_wait();
    of_first = first.pass_ms();
    other.join();
    fmt::print("{:8.0f}{:16.0f}{:16.3f}{:16.3f}{:16.3f}\n", now_s() - begin_s, 1e9 * distance_s,
               alone, of_first, of_second);
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  barestep::watch(argc > 1 ? std::atof(argv[1]) : 120);
}
