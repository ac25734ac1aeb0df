#include "measure.h"

#include <algorithm>
#include <cmath>

#include "kernels/make_device.h"

namespace barestep::bench {
namespace {

Device& memory_device() {
  static const std::unique_ptr<Device> device =
      make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  return *device;
}

/// The shortest of `tries` calls of body().
template <class Body>
double shortest(int tries, const Body& body) {
  double best_s = HUGE_VAL;
  for (int i = 0; i < tries; ++i) best_s = std::min(best_s, seconds_of(body));
  return best_s;
}

}  // namespace

Setting& setting() {
  static Setting setting;
  return setting;
}

DeviceMemory::DeviceMemory(std::int64_t floats)
    : memory_(reinterpret_cast<float*>(
          memory_device().allocate(floats * std::int64_t{sizeof(float)}, MemoryKind::kDevice))),
      floats_(floats),
      addresses_({reinterpret_cast<std::byte*>(memory_)}) {
  // Numbers of ordinary size, so none is denormal.
  for (std::int64_t i = 0; i < floats; ++i) {
    memory_[i] = static_cast<float>(i * 2654435761 % 1024 + 1) / 1024;
  }
}

DeviceMemory::~DeviceMemory() {
  memory_device().release(reinterpret_cast<std::byte*>(memory_), MemoryKind::kDevice);
}

Tensor DeviceMemory::take(std::int64_t rows, std::int64_t cols) {
  const Tensor tensor{0, taken_ * std::int64_t{sizeof(float)}, rows, cols};
  taken_ += (rows * cols + 15) / 16 * 16;
  BARESTEP_REQUIRE(taken_ <= floats_, "a benchmark asked for too little memory");
  return tensor;
}

double in_place_bandwidth(ThreadPool& pool, float* x, std::int64_t count, int tries) {
  constexpr std::int64_t kGrain = 65536;
  const double best_s = shortest(tries, [&] {
    for_ranges(pool, count, kGrain, [x](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) x[i] = x[i] * 0.999F + 0.001F;
    });
  });
  return 2.0 * sizeof(float) * static_cast<double>(count) / best_s;
}

double product_peak(ThreadPool& pool, Product& product) {
  constexpr std::int64_t kExtent = 2048;
  static DeviceMemory memory(3 * kExtent * kExtent);
  static const Gemm op{.c = memory.take(kExtent, kExtent),
                       .a = memory.take(kExtent, kExtent),
                       .b = memory.take(kExtent, kExtent)};
  product.prepare(op, pool);
  const double best_s = shortest(8, [&] { product.run(op, memory.addresses(), pool); });
  return 2.0 * kExtent * kExtent * kExtent / best_s;
}

double arithmetic_peak(ThreadPool& pool) {
  // Enough independent sums to keep every unit busy, but few enough for the registers.
  constexpr int kSums = 12 * 16;
  constexpr int kRounds = 200'000;
  const double best_s = shortest(5, [&] {
    pool.run(pool.threads(), [](std::int64_t, int) {
      float sums[kSums] = {};
      for (int round = 0; round < kRounds; ++round) {
        for (float& sum : sums) sum = std::fma(sum, 0.5F, 1.0F);
      }
      benchmark::DoNotOptimize(sums);
    });
  });
  return 2.0 * kSums * kRounds * pool.threads() / best_s;
}

}  // namespace barestep::bench
