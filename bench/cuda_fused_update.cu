// barestep_cuda_fused_update [file]: properties of the fused update that only a GPU can show.
// Writes JSON to the file.
//
//   arithmetic: roots and quotients whose bits differ from the compiler's; every root is tried.
//   gradients: the largest error, in 2^-24 times the sum of the terms' magnitudes, of the product
//     in fp32 and of 3xTF32 whose tensor cores sum 8, 16 or 64 rows.
//   time: a layer's milliseconds by product and by blocks per multiprocessor, next to a copy that
//     moves as many bytes.
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
              .clip = nullptr};
    must(cudaGetLastError(), "fill_uniform");
  }
};

/// Constants of Adam, with PyTorch's defaults except for beta1.
struct Constants {
  double beta1, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;
};

template <class Product>
void update(const Layer& layer, double beta1, int blocks) {
  constexpr auto kBytes = sizeof(LinearAdamShared<Product>);
  const auto kernel = linear_adam<Product, true>;
  must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            static_cast<int>(kBytes)),
       "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, kBytes>>>(
      layer.arrays, AdamConstants(Constants{.beta1 = beta1}));
  must(cudaGetLastError(), "linear_adam");
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
    const double ms = milliseconds([&] { update<Product>(layer, 0.9, each * multiprocessors); });
    text += (each == 1 ? "" : ", ") + std::to_string(ms);
  }
  return text + "]";
}

std::string survey() {
  int multiprocessors = 0;
  must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
       "cudaDeviceGetAttribute");
  auto* const counts = allocate<unsigned long long>(2);
  constexpr std::int64_t kQuotients = std::int64_t{1} << 30;
  count_other_roots<<<kBlocks, kBlockThreads>>>(counts);
  count_other_quotients<<<kBlocks, kBlockThreads>>>(counts + 1, kQuotients);
  must(cudaGetLastError(), "count_other_quotients");
  std::string json =
      "{\"other_roots\": " + std::to_string(read(counts)) +
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
         "}, \"copy_ms\": " + std::to_string(copy_ms) + "}\n";
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "barestep_cuda_fused_update: skipped: no GPU\n");
    return 69;
  }
  const std::string json = barestep::bench::survey();
  std::fputs(json.c_str(), stdout);
  if (argc < 2) return 0;
  std::FILE* const file = std::fopen(argv[1], "w");
  const bool written = file != nullptr && std::fputs(json.c_str(), file) >= 0;
  return file != nullptr && std::fclose(file) == 0 && written ? 0 : 74;
}
