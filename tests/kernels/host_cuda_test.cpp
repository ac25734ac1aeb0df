// The harness detects the planted mistakes in these kernels.
#include "support/host_cuda.h"

#include <cuda_runtime.h>

#include "kernels/cuda/instructions.cuh"
#include "support/sanitized.h"
#include "support/testing.h"

namespace {

using namespace barestep;
using host_cuda::Order;
using testing::ThrowsMessage;

template <class Kernel>
void run(unsigned blocks, unsigned threads, const Kernel& kernel, std::size_t shared_bytes = 0) {
  host_cuda::run({blocks, 1, 1}, {threads, 1, 1}, shared_bytes, kernel);
}

/// Each thread passes its number to its mirror image.
static __global__ void mirror(float* out, bool with_barrier) {
  __shared__ float numbers[64];
  numbers[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = numbers[63 - threadIdx.x];
}

TEST(HostCuda, RunsEveryThreadOfEveryBlock) {
  std::vector<int> visits(3 * 2 * 4 * 5);
  host_cuda::run({3, 2, 1}, {4, 5, 1}, 0, [&] {
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    ++visits[block * 20 + thread];
  });
  EXPECT_THAT(visits, Each(1));
}

TEST(HostCuda, SharesMemoryBetweenThreads) {
  std::vector<float> out(3 * 64);
  run(3, 64, [&] { mirror(out.data(), true); });
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<float>(63 - i % 64));
  }
}

TEST(HostCuda, ShowsAMissingBarrierAsNan) {
  for (const Order order : {Order::kFirstThread, Order::kLastThread}) {
    host_cuda::set_order(order);
    std::vector<float> out(2 * 64);
    run(2, 64, [&] { mirror(out.data(), false); });
    EXPECT_EQ(std::ranges::count_if(out, [](float x) { return std::isnan(x); }), 64);
  }
  host_cuda::set_order(Order::kFirstThread);
}

TEST(HostCuda, RunsTheLastBlockFirstIfItsLastThreadRunsFirst) {
  std::vector<unsigned> order;
  host_cuda::set_order(Order::kLastThread);
  host_cuda::run({2, 2, 1}, {1, 1, 1}, 0, [&] { order.push_back(2 * blockIdx.y + blockIdx.x); });
  host_cuda::set_order(Order::kFirstThread);
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
}

TEST(HostCuda, CountsUpAndStartsAgainAtZero) {
  unsigned number = 0;
  std::vector<unsigned> old;
  const auto count = [&] {
    __threadfence();
    old.push_back(atomicInc(&number, 2));
  };
  run(4, 1, count);
  EXPECT_THAT(old, ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(number, 1U);
}

TEST(HostCuda, FindsACountWithoutAFence) {
  unsigned number = 0;
  EXPECT_THAT(([&] {
                run(1, 1, [&] {
                  __threadfence();
                  atomicInc(&number, 2);
                  atomicInc(&number, 2);
                });
              }),
              ThrowsMessage<std::runtime_error>(HasSubstr("a thread counts without a fence")));
}

TEST(HostCuda, RunsNeighboringBlocksInOppositeOrders) {
  std::vector<unsigned> last(3);
  const auto kernel = [&] { last[blockIdx.x] = threadIdx.x; };
  run(3, 8, kernel);
  EXPECT_THAT(last, ElementsAre(7, 0, 7));
  host_cuda::set_order(Order::kLastThread);
  run(3, 8, kernel);
  EXPECT_THAT(last, ElementsAre(0, 7, 0));
  host_cuda::set_order(Order::kFirstThread);
}

TEST(HostCuda, FindsABarrierThatNotAllThreadsReach) {
  EXPECT_THAT(([] {
                run(1, 64, [] {
                  if (threadIdx.x < 16) __syncthreads();
                });
              }),
              ThrowsMessage<std::runtime_error>(
                  "of 64 threads 0 wait at begin_kernel, 16 at __syncthreads, 0 at a "
                  "shuffle, 0 at an mma, and 48 are done"));
}

TEST(HostCuda, FindsAShuffleThatNotAllLanesReach) {
  EXPECT_THAT(([] {
                run(1, 32, [] {
                  if (threadIdx.x < 31) __shfl_xor_sync(0xffffffffU, 1.0F, 1);
                });
              }),
              ThrowsMessage<std::runtime_error>(
                  "of 32 threads 0 wait at begin_kernel, 0 at __syncthreads, 31 at a "
                  "shuffle, 0 at an mma, and 1 are done"));
}

TEST(HostCuda, FindsAShuffleThatReadsALaneOutsideItsMask) {
  EXPECT_THAT(([] { run(1, 16, [] { __shfl_xor_sync(0xffffU, 1.0F, 16); }); }),
              ThrowsMessage<std::runtime_error>("a shuffle reads an absent lane"));
}

TEST(HostCuda, ShufflesWithinEachWarp) {
  std::vector<int> down(64), lane(64), mirrored(64);
  run(1, 64, [&] {
    const auto i = static_cast<int>(threadIdx.x);
    down[threadIdx.x] = __shfl_down_sync(0xffffffffU, i, 3);
    lane[threadIdx.x] = __shfl_sync(0xffffffffU, i, 5);
    mirrored[threadIdx.x] = __shfl_xor_sync(0xffffffffU, i, 31);
  });
  for (int i = 0; i < 64; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(down[at], i % 32 + 3 < 32 ? i + 3 : i);
    EXPECT_EQ(lane[at], i / 32 * 32 + 5);
    EXPECT_EQ(mirrored[at], i / 32 * 32 + 31 - i % 32);
  }
}

TEST(HostCuda, PoisonsDynamicSharedMemoryBeforeEachBlock) {
  std::vector<float> found(2);
  run(
      2, 1,
      [&] {
        auto* shared = static_cast<float*>(host_cuda::dynamic_shared());
        found[blockIdx.x] = shared[3];
        shared[3] = 1;
      },
      4 * sizeof(float));
  EXPECT_TRUE(std::isnan(found[0]) && std::isnan(found[1]));
}

TEST(HostCuda, RethrowsWhatAThreadThrows) {
  EXPECT_THAT(([] {
                run(1, 64, [] {
                  if (threadIdx.x == 40) throw std::runtime_error("thread 40");
                });
              }),
              ThrowsMessage<std::runtime_error>("thread 40"));
}

/// Each thread reads four numbers, `stride` numbers apart.
host_cuda::SharedTraffic traffic_of(unsigned stride) {
  run(
      1, 32,
      [&] {
        const auto* shared = static_cast<const float*>(host_cuda::dynamic_shared());
        static_cast<void>(barestep::load_shared<float4>(shared + threadIdx.x * stride));
      },
      std::size_t{32} * stride * sizeof(float));
  return host_cuda::take_shared_traffic();
}

TEST(HostCuda, CountsBankConflicts) {
  static_cast<void>(host_cuda::take_shared_traffic());
  const auto neighbors = traffic_of(4);
  EXPECT_EQ(neighbors.accesses, 1U);
  EXPECT_EQ(neighbors.rounds, 4U);
  EXPECT_EQ(neighbors.min_rounds, 4U);
  EXPECT_EQ(traffic_of(32).rounds, 32U);
  EXPECT_EQ(traffic_of(36).rounds, 4U);
}

TEST(HostCuda, FindsMisalignedAccesses) {
  EXPECT_THAT(([] {
                run(
                    1, 32,
                    [] {
                      const auto* shared = static_cast<const float*>(host_cuda::dynamic_shared());
                      static_cast<void>(barestep::load_shared<float2>(shared + threadIdx.x));
                    },
                    256);
              }),
              ThrowsMessage<std::runtime_error>(
                  "a misaligned access to shared memory, thread 1 of block 0"));
}

TEST(HostCuda, CopiesArriveWhenTheyAreWaitedFor) {
  const float from[] = {1, 2};
  std::vector<float> seen(4);
  run(
      1, 1,
      [&] {
        auto* shared = static_cast<float*>(host_cuda::dynamic_shared());
        barestep::copy_async<4>(shared, from, true);
        barestep::copy_async<4>(shared + 1, from + 1, false);
        barestep::commit_copies();
        seen[0] = shared[0];
        seen[1] = shared[1];
        barestep::wait_for_copies();
        seen[2] = shared[0];
        seen[3] = shared[1];
      },
      8);
  EXPECT_TRUE(std::isnan(seen[0]) && std::isnan(seen[1]));
  EXPECT_EQ(seen[2], 1);
  EXPECT_EQ(seen[3], 0);
  EXPECT_THAT(([&] {
                run(
                    1, 1,
                    [&] {
                      auto* shared = static_cast<float*>(host_cuda::dynamic_shared());
                      barestep::copy_async<4>(shared, from, true);
                      barestep::wait_for_copies();
                    },
                    8);
              }),
              ThrowsMessage<std::runtime_error>("a thread ends before its copies"));
}

/// Fragments are filled in the order of the PTX ISA; the product equals that of plain loops.
TEST(HostCuda, MultipliesByWarpsAsThePtxIsaLaysOut) {
  const auto a = [](unsigned row, unsigned col) { return static_cast<float>(row + 3 * col); };
  const auto b = [](unsigned row, unsigned col) {
    return static_cast<float>(5 * row) - static_cast<float>(col);
  };
  std::vector<float> sums(16 * 8);
  run(1, 32, [&] {
    const unsigned g = threadIdx.x / 4;
    const unsigned q = threadIdx.x % 4;
    using barestep::bits_of;
    float own[4] = {0, 0, 0, 1};
    const std::uint32_t of_a[4] = {bits_of(a(g, q)), bits_of(a(g + 8, q)), bits_of(a(g, q + 4)),
                                   bits_of(a(g + 8, q + 4))};
    const std::uint32_t of_b[2] = {bits_of(b(q, g)), bits_of(b(q + 4, g))};
    barestep::mma_tf32(own, of_a, of_b);
    sums[g * 8 + 2 * q] = own[0];
    sums[g * 8 + 2 * q + 1] = own[1];
    sums[(g + 8) * 8 + 2 * q] = own[2];
    sums[(g + 8) * 8 + 2 * q + 1] = own[3];
  });
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned col = 0; col < 8; ++col) {
      float expected = row >= 8 && col % 2 == 1 ? 1 : 0;
      for (unsigned k = 0; k < 8; ++k) expected += a(row, k) * b(k, col);
      EXPECT_EQ(sums[row * 8 + col], expected);
    }
  }
}

static __global__ void one_too_far(float* x, unsigned n) {
  if (threadIdx.x <= n) x[threadIdx.x] = 1;
}

TEST(HostCudaDeathTest, SanitizerFindsAnAccessOutOfBounds) {
  if (!barestep::kAddressSanitized) GTEST_SKIP() << "needs AddressSanitizer";
  const auto numbers = std::make_unique<float[]>(100);
  EXPECT_DEATH(run(1, 128, [&] { one_too_far(numbers.get(), 100); }),
               "heap-buffer-overflow(.|\n)*one_too_far");
}

TEST(HostCuda, FindsAThreadThatDoesNotWaitForTheKernelsBeforeItsOwn) {
  const auto kernel = [](bool all) {
    return [all] {
      if (all || host_cuda::place.thread.x != 3) host_cuda::begin_kernel();
    };
  };
  for (const auto begin : {host_cuda::Begin::kByWaiting, host_cuda::Begin::kAhead}) {
    EXPECT_NO_THROW(host_cuda::run({2, 1, 1}, {8, 1, 1}, 0, kernel(true), begin));
    EXPECT_THROW(host_cuda::run({2, 1, 1}, {8, 1, 1}, 0, kernel(false), begin), std::runtime_error);
  }
  const auto twice = [] {
    host_cuda::begin_kernel();
    host_cuda::begin_kernel();
  };
  EXPECT_THROW(host_cuda::run({1, 1, 1}, {1, 1, 1}, 0, twice), std::runtime_error);
}

TEST(HostCuda, OpensMemoryOnceAllThreadsOfABlockWait) {
  static bool open = true;
  static int early = 0;
  host_cuda::set_gate([](bool now) { open = now; });
  const auto kernel = [](bool waits) {
    return [waits] {
      if (waits) host_cuda::begin_kernel();
      if (!open) ++early;
      if (!waits) host_cuda::begin_kernel();
    };
  };
  host_cuda::run({2, 1, 1}, {8, 1, 1}, 0, kernel(true), host_cuda::Begin::kAhead);
  EXPECT_EQ(early, 0);
  host_cuda::run({2, 1, 1}, {8, 1, 1}, 0, kernel(false), host_cuda::Begin::kAhead);
  EXPECT_EQ(early, 16);
  host_cuda::set_gate(nullptr);
}

TEST(HostCuda, RefusesGridsAndBlocksThatAGpuRefuses) {
  void (*const nothing)() = [] { host_cuda::begin_kernel(); };
  const auto launched = [&](dim3 grid, dim3 block) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    return cudaLaunchKernelEx(&config, nothing) == cudaSuccess;
  };
  EXPECT_TRUE(launched(dim3(2, 2), dim3(32, 32)));
  EXPECT_FALSE(launched(dim3(0), dim3(1)));
  EXPECT_FALSE(launched(dim3(1, 65536), dim3(1)));
  EXPECT_FALSE(launched(dim3(1), dim3(33, 32)));

  cudaLaunchConfig_t greedy{};
  greedy.dynamicSmemBytes = 50'000;
  EXPECT_NE(cudaLaunchKernelEx(&greedy, nothing), cudaSuccess);
  constexpr auto kMax = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_NE(cudaFuncSetAttribute(nothing, kMax, 300'000), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(nothing, kMax, 50'000), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&greedy, nothing), cudaSuccess);
}

}  // namespace
