// barestep_cuda_fused_update [file]: properties of the fused update that only a GPU can show.
// Writes JSON to the file. With --tensor-rate before the file, only the last one, in a second.
//
//   arithmetic: roots and quotients whose bits differ from the compiler's; every root is tried.
//   gradients: the largest error, in 2^-24 times the sum of the terms' magnitudes, of the product
//     in fp32 and of 3xTF32 whose tensor cores sum 8, 16 or 64 rows.
//   time: a layer's milliseconds by product and by blocks per multiprocessor, next to a copy that
//     moves as many bytes.
//   access: milliseconds to read and write its weights and moments, without arithmetic, by strips
//   of
//     columns as in the update or row by row, in runs of 64 or 512 bytes of a row, with and without
//     marking them as the first to leave the cache.
//   tensor_tflops: tf32 products of mma.sync alone, with numbers in registers.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/cuda/linear_adam.cuh"

namespace barestep::bench {
namespace {

constexpr int kBlocks = 1024;

void must(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "barestep_cuda_fused_update: error: %s: %s\n", call,
               cudaGetErrorString(status));
  std::exit(1);
}

/// Allocates device memory; it is freed at the end of the process.
template <class T>
T* allocate(std::int64_t count) {
  T* memory = nullptr;
  must(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  must(cudaMemset(memory, 0, static_cast<std::size_t>(count) * sizeof(T)), "cudaMemset");
  return memory;
}

template <class T>
T read(const T* from) {
  T value{};
  must(cudaMemcpy(&value, from, sizeof(T), cudaMemcpyDefault), "cudaMemcpy");
  return value;
}

/// Pseudorandom words (splitmix64).
__device__ std::uint64_t hash(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

__global__ void fill_uniform(float* out, std::int64_t n, float from, float to, std::uint64_t seed) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    const auto bits = static_cast<std::uint32_t>(hash(seed + static_cast<std::uint64_t>(i)) >> 40U);
    out[i] = from + (to - from) * (static_cast<float>(bits) * 0x1p-24F);
  }
}

/// All floats from 2^-100 to the largest.
__global__ void count_other_roots(unsigned long long* count) {
  constexpr std::int64_t kFirst = 27LL << 23;
  constexpr std::int64_t kEnd = 255LL << 23;
  for (std::int64_t i = kFirst + grid_thread(); i < kEnd; i += grid_threads()) {
    const float x = __uint_as_float(static_cast<unsigned>(i));
    if (StraightArithmetic::root(x) != std::sqrt(x)) atomicAdd(count, 1ULL);
  }
}

/// Quotients of numbers from 2^-70 to 2^70 and numbers from 2^-48 to 2^48.
__global__ void count_other_quotients(unsigned long long* count, std::int64_t trials) {
  for (std::int64_t i = grid_thread(); i < trials; i += grid_threads()) {
    const std::uint64_t words = hash(static_cast<std::uint64_t>(i));
    const auto high = static_cast<std::uint32_t>(words >> 32U);
    const auto low = static_cast<std::uint32_t>(words);
    const float a =
        __uint_as_float((high & 0x807FFFFFU) | ((127U - 70U + (high >> 23U) % 140U) << 23U));
    const float b =
        __uint_as_float((low & 0x007FFFFFU) | ((127U - 48U + (low >> 23U) % 96U) << 23U));
    if (StraightArithmetic::divide(a, b) != a / b) atomicAdd(count, 1ULL);
  }
}

/// Stores the largest error of grads [out][in] in `worst`; its bits have the same order as its
/// values.
__global__ void find_worst_error(LinearAdamArrays<float> a, unsigned* worst) {
  for (std::int64_t i = grid_thread(); i < a.out * a.in; i += grid_threads()) {
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t k = 0; k < a.n; ++k) {
      const double term = static_cast<double>(a.grad_y[k * a.out + i / a.in]) *
                          static_cast<double>(a.x[k * a.in + i % a.in]);
      sum += term;
      magnitude += std::fabs(term);
    }
    const double error = std::fabs(static_cast<double>(a.weight_moments1[i]) - sum);
    if (magnitude > 0)
      atomicMax(worst, __float_as_uint(static_cast<float>(error / magnitude * 0x1p24)));
  }
}

/// A layer of dim x dim weights in one allocation.
struct Layer {
  LinearAdamArrays<float> arrays{};
  float* state;

  Layer(std::int64_t dim, std::int64_t n) : state(allocate<float>(3 * dim * dim)) {
    const auto take = [](std::int64_t count, float from, float to, std::uint64_t seed) {
      auto* const memory = allocate<float>(count);
      fill_uniform<<<kBlocks, kBlockThreads>>>(memory, count, from, to, seed);
      return memory;
    };
    arrays = {.out = dim,
              .in = dim,
              .n = n,
              .weight = state,
              .weight_moments1 = state + dim * dim,
              .weight_moments2 = state + 2 * dim * dim,
              .bias = take(dim, -1, 1, 1),
              .bias_moments1 = take(dim, -1, 1, 2),
              .bias_moments2 = take(dim, 0, 1, 3),
              .grad_y = take(n * dim, -1, 1, 4),
              .x = take(n * dim, -1, 1, 5),
              .scalars = take(3, 0.001F, 0.002F, 6),
              .clip = nullptr,
              .rounded_weight = nullptr,
              .rounded_bias = nullptr};
    must(cudaGetLastError(), "fill_uniform");
  }
};

template <class Product>
void update(const Layer& layer, double beta1, int blocks) {
  constexpr auto kBytes = sizeof(LinearAdamShared<Product>);
  const auto kernel = linear_adam<Product, true>;
  must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            static_cast<int>(kBytes)),
       "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, kBytes>>>(
      layer.arrays, AdamConstants(AdamStep{.beta1 = beta1}));
  must(cudaGetLastError(), "linear_adam");
}

/// Multiplies three dim x dim arrays by `factor`. A block takes tiles of 64 rows and kStripCols
/// columns, a warp kRun neighboring float4 of as many rows as it has runs.
template <bool kStrips, int kRun, bool kFirstOut>
__global__ void __launch_bounds__(kBlockThreads, 2)
    scale_in_place(float* state, std::int64_t dim, float factor) {
  constexpr int kRows = 64;
  constexpr int kAcross = kStripCols / 4;
  constexpr int kRuns = kWarpThreads / kRun;
  const std::int64_t down = dim / kRows;
  const std::int64_t strips = dim / kStripCols;
  const std::int64_t tiles = down * strips;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const auto scaled = [factor](float4 v) -> float4 {
    return {factor * v.x, factor * v.y, factor * v.z, factor * v.w};
  };
  for (std::int64_t tile = tiles * blockIdx.x / gridDim.x;
       tile < tiles * (blockIdx.x + 1) / gridDim.x; ++tile) {
    const std::int64_t strip = kStrips ? tile / down : tile % strips;
    const std::int64_t first_row = kRows * (kStrips ? tile % down : tile / strips);
#pragma unroll 2
    for (int access = warp; access < kRows * kAcross / kWarpThreads; access += kBlockWarps) {
      const int row = access / (kAcross / kRun) * kRuns + lane / kRun;
      const int col = access % (kAcross / kRun) * kRun + lane % kRun;
      const std::int64_t at = (first_row + row) * dim + strip * kStripCols + 4 * col;
      float4 values[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const auto* const from = reinterpret_cast<const float4*>(state + i * dim * dim + at);
        values[i] = kFirstOut ? __ldcs(from) : *from;
      }
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        auto* const to = reinterpret_cast<float4*>(state + i * dim * dim + at);
        if constexpr (kFirstOut) {
          __stcs(to, scaled(values[i]));
        } else {
          *to = scaled(values[i]);
        }
      }
    }
  }
}

constexpr int kMmaRounds = 4096;
constexpr int kMmaChains = 8;  // independent sums of a warp

__global__ void __launch_bounds__(kBlockThreads) multiply_in_registers(float* out) {
  const std::uint32_t one = bits_of(1.0F);
  const std::uint32_t a[4] = {one, one, one, one};
  const std::uint32_t b[2] = {one, one};
  float sums[kMmaChains][4] = {};
  for (int i = 0; i < kMmaRounds; ++i) {
#pragma unroll
    for (auto& chain : sums) mma_tf32(chain, a, b);
  }
  float total = 0;
  for (const auto& chain : sums) total += chain[0] + chain[1] + chain[2] + chain[3];
  out[grid_thread()] = total;
}

template <class Work>
double milliseconds(const Work& work) {
  constexpr int kWarmup = 3;
  constexpr int kTimes = 20;
  cudaEvent_t begin{};
  cudaEvent_t end{};
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < kWarmup; ++i) work();
  must(cudaEventRecord(begin), "cudaEventRecord");
  for (int i = 0; i < kTimes; ++i) work();
  must(cudaEventRecord(end), "cudaEventRecord");
  must(cudaEventSynchronize(end), "cudaEventSynchronize");
  float elapsed = 0;
  must(cudaEventElapsedTime(&elapsed, begin, end), "cudaEventElapsedTime");
  return static_cast<double>(elapsed) / kTimes;
}

template <class Product>
std::string gradient_error(int multiprocessors) {
  const Layer layer(1024, 64);
  auto* const worst = allocate<unsigned>(1);
  update<Product>(layer, 0, 2 * multiprocessors);
  find_worst_error<<<kBlocks, kBlockThreads>>>(layer.arrays, worst);
  must(cudaGetLastError(), "find_worst_error");
  const unsigned bits = read(worst);
  float error = 0;
  std::memcpy(&error, &bits, sizeof(error));
  return std::to_string(error);
}

template <class Product>
std::string times(const Layer& layer, int multiprocessors) {
  std::string text = "[";
  for (const int each : {1, 2}) {
    // A multiple of the strips, as in training.
    const int blocks = each * multiprocessors / 64 * 64;
    const double ms = milliseconds([&] { update<Product>(layer, 0.9, blocks); });
    text += (each == 1 ? "" : ", ") + std::to_string(ms);
  }
  return text + "]";
}

template <bool kStrips, int kRun, bool kFirstOut>
std::string access_time(const Layer& layer, int multiprocessors) {
  const auto blocks = static_cast<unsigned>(2 * multiprocessors);
  const double ms = milliseconds([&] {
    scale_in_place<kStrips, kRun, kFirstOut>
        <<<blocks, kBlockThreads>>>(layer.state, layer.arrays.in, 1);
    must(cudaGetLastError(), "scale_in_place");
  });
  return std::string("\"") + (kStrips ? "strips" : "rows") + ", " + std::to_string(16 * kRun) +
         " bytes" + (kFirstOut ? ", first to leave" : "") + "\": " + std::to_string(ms);
}

template <bool kStrips, int kRun>
std::string access_times(const Layer& layer, int multiprocessors) {
  return access_time<kStrips, kRun, false>(layer, multiprocessors) + ", " +
         access_time<kStrips, kRun, true>(layer, multiprocessors);
}

/// With two blocks on each multiprocessor, as the kernels of products have.
std::string tensor_rate(int multiprocessors) {
  const int blocks = 2 * multiprocessors;
  auto* const out = allocate<float>(std::int64_t{blocks} * kBlockThreads);
  const double ms = milliseconds([&] {
    multiply_in_registers<<<static_cast<unsigned>(blocks), kBlockThreads>>>(out);
    must(cudaGetLastError(), "multiply_in_registers");
  });
  constexpr double kFlop = 2.0 * 16 * 8 * 8;  // of an mma_tf32
  const double tflops = kFlop * kMmaRounds * kMmaChains * kBlockWarps * blocks / ms / 1e9;
  return "\"tensor_tflops\": " + std::to_string(tflops);
}

int multiprocessors_here() {
  int count = 0;
  must(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  return count;
}

std::string survey() {
  const int multiprocessors = multiprocessors_here();
  auto* const counts = allocate<unsigned long long>(2);
  constexpr std::int64_t kQuotients = std::int64_t{1} << 30;
  count_other_roots<<<kBlocks, kBlockThreads>>>(counts);
  count_other_quotients<<<kBlocks, kBlockThreads>>>(counts + 1, kQuotients);
  must(cudaGetLastError(), "count_other_quotients");
  std::string json =
      "\"other_roots\": " + std::to_string(read(counts)) +
      ", \"other_quotients\": " + std::to_string(read(counts + 1)) +
      ", \"gradient_error\": {\"fp32\": " + gradient_error<FmaProduct<64>>(multiprocessors) +
      ", \"3xtf32_8\": " + gradient_error<TensorProduct<1>>(multiprocessors) +
      ", \"3xtf32_16\": " + gradient_error<TensorProduct<2>>(multiprocessors) +
      ", \"3xtf32_64\": " + gradient_error<TensorProduct<8>>(multiprocessors);
  constexpr std::int64_t kDim = 8192;
  constexpr std::size_t kBytes = std::size_t{12} * kDim * kDim;
  const Layer layer(kDim, 64);
  auto* const copy = allocate<float>(3 * kDim * kDim);
  const double copy_ms = milliseconds([&] {
    must(cudaMemcpyAsync(copy, layer.state, kBytes, cudaMemcpyDefault), "cudaMemcpyAsync");
  });
  return json + "}, \"ms_by_blocks\": {\"fp32\": " + times<FmaProduct<64>>(layer, multiprocessors) +
         ", \"3xtf32_8\": " + times<TensorProduct<1>>(layer, multiprocessors) +
         ", \"3xtf32_16\": " + times<TensorProduct<2>>(layer, multiprocessors) +
         "}, \"access_ms\": {" + access_times<true, 4>(layer, multiprocessors) + ", " +
         access_times<true, 32>(layer, multiprocessors) + ", " +
         access_times<false, 4>(layer, multiprocessors) + ", " +
         access_times<false, 32>(layer, multiprocessors) +
         "}, \"copy_ms\": " + std::to_string(copy_ms) + ", " + tensor_rate(multiprocessors);
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "barestep_cuda_fused_update: skipped: no GPU\n");
    return 69;
  }
  using namespace barestep::bench;
  const bool rate_only = argc > 1 && std::strcmp(argv[1], "--tensor-rate") == 0;
  std::string json = "{";
  json += rate_only ? tensor_rate(multiprocessors_here()) : survey();
  json += "}\n";
  std::fputs(json.c_str(), stdout);
  const int file_at = rate_only ? 2 : 1;
  if (argc <= file_at) return 0;
  std::FILE* const file = std::fopen(argv[file_at], "w");
  const bool written = file != nullptr && std::fputs(json.c_str(), file) >= 0;
  return file != nullptr && std::fclose(file) == 0 && written ? 0 : 74;
}
