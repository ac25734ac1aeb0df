// core_distance SECONDS: how far apart the cores are, and beside it how long a pass of Adam takes
// on one of them and on two, each over 38 MB of its own. On a virtual machine both change together.
#include <fmt/format.h>

#include <barrier>
#include <cstdlib>
#include <thread>

#include "core/clock.h"
#include "core/host.h"
#include "kernels/cpu/ops.h"
#include "measure.h"

namespace barestep::bench {
namespace {

constexpr std::int64_t kNumbers = 2'360'000;  // of a model with dim 768 and depth 4

class AdamOnOneThread {
 public:
  /// Median of passes for a tenth of a second, after one.
  double milliseconds() {
    std::vector<double> seconds;
    ops_.run(update_, memory_.addresses());
    for (const double end_s = now_s() + 0.1; now_s() < end_s;) {
      seconds.push_back(seconds_of([&] { ops_.run(update_, memory_.addresses()); }));
    }
    return 1e3 * median(seconds);
  }

 private:
  ThreadPool pool_{1};
  std::unique_ptr<Product> product_ = make_product(GemmProvider::kAuto);
  CpuOps ops_{pool_, *product_};
  DeviceMemory memory_{4 * kNumbers + 1024};
  OptimizerUpdate update_{.weights = memory_.take(1, kNumbers),
                          .grads = memory_.take(1, kNumbers),
                          .state = {memory_.take(1, kNumbers), memory_.take(1, kNumbers)},
                          .scalars = memory_.take(1, 2)};
};

void watch(double seconds) {
  AdamOnOneThread first, second;
  fmt::print("{:>6}{:>12}{:>12}{:>12}{:>12}\n", "s", "apart, ns", "alone, ms", "of two, ms",
             "and, ms");
  const double begin_s = now_s();
  for (; now_s() < begin_s + seconds; std::this_thread::sleep_for(std::chrono::seconds(4))) {
    const double distance_s = core_distance_s();
    const double alone_ms = first.milliseconds();
    double first_ms = 0, second_ms = 0;
    std::barrier both(2);
    std::thread other([&] {
      both.arrive_and_wait();
      second_ms = second.milliseconds();
    });
    both.arrive_and_wait();
    first_ms = first.milliseconds();
    other.join();
    fmt::print("{:6.0f}{:12.0f}{:12.3f}{:12.3f}{:12.3f}\n", now_s() - begin_s, 1e9 * distance_s,
               alone_ms, first_ms, second_ms);
  }
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  barestep::bench::watch(argc > 1 ? std::atof(argv[1]) : 240);
}
