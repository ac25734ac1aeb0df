// A run uses the requested number of threads and no more, whatever the libraries prefer.

#include <ctime>

#include "kernels/cpu/product.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

std::int64_t threads_of_this_process() {
  std::int64_t threads = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ++threads;
  return threads;
}

/// The same without joined threads, which the system still lists for a moment: if there are more
/// than `max`, those that last for 10 s.
std::int64_t lasting_threads(std::int64_t max) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (threads_of_this_process() > max && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  return threads_of_this_process();
}

double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TrainConfig config_with(int threads, GemmProvider gemm) {
  TrainConfig config;
  config.model.dim = 512;
  config.model.depth = 2;
  config.data.batch_size = 64;
  config.training.steps = 30;
  config.device.threads = threads;
  config.device.gemm = gemm;
  return config;
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, AreThoseOfThePoolTheStreamsAndTheMainThread) {
  constexpr std::int64_t kStreams = 2;  // compute and copy
  const std::int64_t expected = 1 + kStreams + GetParam() - 1;
  for (const GemmProvider gemm :
       {GemmProvider::kOwn, GemmProvider::kOneDnn, GemmProvider::kCblas}) {
    if (gemm == GemmProvider::kCblas && make_cblas_product() == nullptr) continue;
    if (gemm == GemmProvider::kOneDnn && make_onednn_product() == nullptr) continue;
    TrainConfig config = config_with(GetParam(), gemm);
    config.model.dim = 128;  // plain loops take long under sanitizers
    TrainerHarness run(config);
    std::int64_t max = 0;
    run.after_step = [&](const StepReport&) {
      if (max <= expected) max = std::max(max, lasting_threads(expected));
    };
    run.run();
    EXPECT_EQ(max, expected) << run.device->info().product_library;
  }
}

/// Threads other than the pool's only wait, so they cost no more than a short spin.
TEST_P(Threads, UseNoMoreProcessorTimeThanThePoolMay) {
  TrainerHarness run(config_with(GetParam(), GemmProvider::kAuto));
  const double cpu_start_s = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  run.run();
  const double cpu_s = cpu_seconds() - cpu_start_s;
  const double wall_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LE(cpu_s, (GetParam() + 0.5) * wall_s);
}

INSTANTIATE_TEST_SUITE_P(Asked, Threads, testing::Values(1, 2, 4));

}  // namespace
}  // namespace barestep
