// Denormal numbers on the CPU device: every thread that computes flushes them, or every one keeps
// them.
#include "kernels/cpu/denormals.h"

#include "core/index.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/widen.h"
#include "kernels/make_device.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr float kDenormal = 0x1p-130F;

/// The bits of what the calling thread gets for a denormal result and from a denormal operand; a
/// comparison of the numbers would flush too.
struct FromDenormals {
  std::uint32_t result = 1, of_operand = 1;
  std::uint64_t long_result = 1;

  friend bool operator==(const FromDenormals&, const FromDenormals&) = default;
};

FromDenormals from_denormals() {
  const volatile float least = 0x1p-126F;
  const volatile float half = 0.5F;
  const volatile float denormal = kDenormal;
  const volatile float large = 0x1p20F;
  const volatile double long_least = 0x1p-1022;
  const volatile double long_half = 0.5;
  return {std::bit_cast<std::uint32_t>(least * half),
          std::bit_cast<std::uint32_t>(denormal * large),
          std::bit_cast<std::uint64_t>(long_least * long_half)};
}

FromDenormals expected(Denormals denormals) {
  if (denormals == Denormals::kFlush) return {0, 0, 0};
  return {std::bit_cast<std::uint32_t>(0x1p-127F), std::bit_cast<std::uint32_t>(0x1p-110F),
          std::bit_cast<std::uint64_t>(0x1p-1023)};
}

/// Other processors flush nothing.
class DenormalNumbers : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__x86_64__) && !defined(__aarch64__)
    GTEST_SKIP() << "this processor flushes nothing";
#endif
  }
};

TEST_F(DenormalNumbers, AreFlushedWithinAScopeByItsThread) {
  EXPECT_EQ(from_denormals(), expected(Denormals::kKeep));
  {
    const DenormalScope flush(Denormals::kFlush);
    EXPECT_EQ(from_denormals(), expected(Denormals::kFlush));
    const volatile float least = -0x1p-126F;
    const volatile float half = 0.5F;
    EXPECT_TRUE(std::signbit(least * half));
    {
      const DenormalScope keep(Denormals::kKeep);
      EXPECT_EQ(from_denormals(), expected(Denormals::kKeep));
    }
    EXPECT_EQ(from_denormals(), expected(Denormals::kFlush));
  }
  EXPECT_EQ(from_denormals(), expected(Denormals::kKeep));
}

/// Whatever the thread does that makes the pool, whose mode threads may inherit.
TEST_F(DenormalNumbers, AreTreatedAsToldByEveryThreadOfAPool) {
  constexpr int kThreads = 3;
  for (const Denormals of_maker : kValuesOf<Denormals>) {
    for (const Denormals told : kValuesOf<Denormals>) {
      const DenormalScope maker(of_maker);
      ThreadPool pool(kThreads, told);
      const DenormalScope caller(told);
      std::vector<FromDenormals> seen(kThreads);
      std::atomic<int> arrived{0};
      pool.run(kThreads, [&](std::int64_t, int thread) {
        at(seen, thread) = from_denormals();
        arrived.fetch_add(1);
        while (arrived.load() < kThreads) std::this_thread::yield();
      });
      for (const FromDenormals& each : seen) EXPECT_EQ(each, expected(told));
    }
  }
}

/// Sums over ranks are such functions.
TEST_F(DenormalNumbers, AreTreatedAsToldByFunctionsThatAStreamCalls) {
  for (const Denormals told : kValuesOf<Denormals>) {
    const auto device = make_device({.device = "cpu", .threads = 1, .denormals = told});
    const auto stream = device->new_stream("comm");
    FromDenormals seen;
    stream->call([](void* to) { *static_cast<FromDenormals*>(to) = from_denormals(); }, &seen);
    stream->synchronize();
    EXPECT_EQ(seen, expected(told));
  }
  EXPECT_EQ(from_denormals(), expected(Denormals::kKeep)) << "the thread of the host";
}

/// The product of a denormal number and a large one, by the library of a provider.
std::vector<float> product_of(Denormals denormals, GemmProvider provider, bool transpose_a,
                              bool transpose_b) {
  constexpr std::int64_t kSize = 64;
  Memory memory;
  const Gemm op{.c = memory.add(kSize, kSize),
                .a = memory.add(kSize, kSize),
                .b = memory.add(kSize, kSize),
                .transpose_a = transpose_a,
                .transpose_b = transpose_b};
  for (float& value : memory.values(op.a)) value = kDenormal;
  for (float& value : memory.values(op.b)) value = 0x1p20F;
  const auto device = make_cpu_device({.threads = 2, .denormals = denormals, .gemm = provider});
  const auto stream = device->new_stream("compute");
  const Addresses addresses = memory.addresses();
  const DeviceOp queued = op;
  device->prepare(queued);
  device->run(queued, addresses, *stream, {});
  stream->synchronize();
  const auto c = memory.values(op.c);
  return {c.begin(), c.end()};
}

TEST_F(DenormalNumbers, AreTreatedAsToldInsideLibraries) {
  for (const GemmProvider provider : {GemmProvider::kOwn, GemmProvider::kReference,
                                      GemmProvider::kCblas, GemmProvider::kOneDnn}) {
    if (provider == GemmProvider::kCblas && make_cblas_product() == nullptr) continue;
    if (provider == GemmProvider::kOneDnn && make_onednn_product() == nullptr) continue;
    SCOPED_TRACE(name_of(provider));
    for (const auto& [a, b] : {std::pair{false, false}, {false, true}, {true, false}}) {
      for (const float value : product_of(Denormals::kKeep, provider, a, b)) {
        ASSERT_EQ(value, 64 * 0x1p-110F);
      }
      for (const float value : product_of(Denormals::kFlush, provider, a, b)) ASSERT_EQ(value, 0);
    }
  }
}

/// Those of fp16 are normal in fp32, and conversions do not go through denormal floats.
TEST_F(DenormalNumbers, OfSixteenBitsAreKept) {
  constexpr std::size_t kHalves = std::size_t{1} << 16;
  std::vector<F16> halves;
  for (std::size_t bits = 0; bits < kHalves; ++bits) {
    halves.push_back({static_cast<std::uint16_t>(bits)});
  }
  const auto converted = [&] {
    std::vector<float> wide(kHalves);
    std::vector<float> one_by_one;
    widen(halves.data(), kHalves, wide.data());
    for (const F16 half : halves) one_by_one.push_back(float_of(half));
    std::vector<F16> narrowed(kHalves);
    narrow(wide.data(), kHalves, narrowed.data());
    for (const float number : one_by_one) narrowed.push_back(f16_of(number));
    wide.insert(wide.end(), one_by_one.begin(), one_by_one.end());
    return std::pair(wide, narrowed);
  };
  const auto [wide, narrowed] = converted();
  const DenormalScope flush(Denormals::kFlush);
  const auto [flushed_wide, flushed_narrowed] = converted();
  EXPECT_EQ(std::memcmp(wide.data(), flushed_wide.data(), wide.size() * sizeof(float)), 0);
  EXPECT_EQ(flushed_narrowed, narrowed);
  EXPECT_EQ(float_of(F16{1}), 0x1p-24F);
}

}  // namespace
}  // namespace barestep
