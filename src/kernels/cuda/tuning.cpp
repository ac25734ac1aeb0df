#include "kernels/cuda/tuning.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/device.h"
#include "core/error.h"

namespace barestep {
namespace {

/// Memory and events of one measurement.
class ProductBench {
 public:
  ProductBench(const ProductShape& shape, CudaContext& context)
      : context_(context),
        cache_bytes_(2 * cache_bytes(context)),
        stream_(new_stream(context)),
        begin_(new_event(context)),
        end_(new_event(context)),
        a_(allocate(shape.m * shape.k * kF32)),
        b_(allocate(shape.k * shape.n * kF32)),
        c_(allocate(shape.m * shape.n * kF32)),
        bias_(allocate(shape.n * kF32)),
        workspace_(allocate(workspace_bytes(DeviceKind::kCuda))),
        flush_(allocate(cache_bytes_)) {}

  /// The best of a few runs in milliseconds; infinity when the candidate does not run.
  float milliseconds(const cublasLtMatmulAlgo_t& algorithm, const CudaProductPlan& plan,
                     cublasLtHandle_t library) {
    constexpr int kRuns = 5;  // the first also loads the kernel
    const void* const bias = bias_.get();
    context_.require(cublasLtMatmulDescSetAttribute(
                         plan.matmul.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
                     "cublasLtMatmulDescSetAttribute");
    float best = std::numeric_limits<float>::infinity();
    for (int run = 0; run < kRuns; ++run) {
      require(
          cudaMemsetAsync(flush_.get(), 0, static_cast<std::size_t>(cache_bytes_), stream_.get()),
          "cudaMemsetAsync");
      require(cudaEventRecord(begin_.get(), stream_.get()), "cudaEventRecord");
      const float one = 1;
      const float zero = 0;
      const cublasStatus_t status = cublasLtMatmul(
          library, plan.matmul.get(), &one, b_.get(), plan.b.get(), a_.get(), plan.a.get(), &zero,
          c_.get(), plan.c.get(), c_.get(), plan.c.get(), &algorithm, workspace_.get(),
          static_cast<std::size_t>(workspace_bytes(DeviceKind::kCuda)), stream_.get());
      if (status != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
      require(cudaEventRecord(end_.get(), stream_.get()), "cudaEventRecord");
      require(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
              "cudaEventElapsedTime");
      best = std::min(best, milliseconds);
    }
    return best;
  }

 private:
  static constexpr std::int64_t kF32 = bytes_of(DType::kF32);

  void require(cudaError_t status, const char* call) { context_.require(status, call); }

  static std::int64_t cache_bytes(CudaContext& context) {
    int bytes = 0;
    context.require(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, context.ordinal()),
                    "cudaDeviceGetAttribute");
    return std::max(bytes, 1 << 20);
  }

  static OwnedStream new_stream(CudaContext& context) {
    cudaStream_t stream = nullptr;
    context.require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                    "cudaStreamCreateWithFlags");
    return OwnedStream(stream);
  }

  static OwnedEvent new_event(CudaContext& context) {
    cudaEvent_t event = nullptr;
    context.require(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    return OwnedEvent(event);
  }

  OwnedDeviceMemory allocate(std::int64_t bytes) {
    void* memory = nullptr;
    context_.require(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc", bytes);
    OwnedDeviceMemory owned(static_cast<std::byte*>(memory));
    // Small floats, not zeros: a GPU runs faster, because cooler, on zeros.
    constexpr int kByte = 0x3C;
    require(cudaMemsetAsync(memory, kByte, static_cast<std::size_t>(bytes), stream_.get()),
            "cudaMemsetAsync");
    return owned;
  }

  CudaContext& context_;
  std::int64_t cache_bytes_;
  OwnedStream stream_;
  OwnedEvent begin_, end_;
  OwnedDeviceMemory a_, b_, c_, bias_, workspace_, flush_;
};

}  // namespace

std::size_t fastest_of(std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                       const ProductShape& shape, const CudaProductPlan& plan,
                       cublasLtHandle_t library, CudaContext& context) {
  ProductBench bench(shape, context);
  float best = std::numeric_limits<float>::infinity();
  std::size_t fastest = candidates.size();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const float milliseconds = bench.milliseconds(candidates[i].algo, plan, library);
    if (milliseconds >= best) continue;
    best = milliseconds;
    fastest = i;
  }
  if (fastest == candidates.size()) {
    fail(ExitCode::kBug, {.what = "--autotune",
                          .value = text_of(shape),
                          .why = "no algorithm that cuBLASLt offers for this product runs",
                          .remedy = "leave --autotune out, and please report it"});
  }
  return fastest;
}

}  // namespace barestep
