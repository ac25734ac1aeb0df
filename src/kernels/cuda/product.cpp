#include "kernels/cuda/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgorithmBytes));

constexpr int kCandidates = 16;  // timed by autotuning

std::string library_text() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Whether cuBLASLt applies the activation as our formula does. It also has GELU by tanh, but how
/// close that is to ours has not been measured on a GPU.
bool has_epilogue(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kNone;
}

/// The part of the op for cuBLASLt. An activation that it does not support is left to the caller,
/// with the bias before it. With 16 bits the bias is not left, since the sum is rounded after the
/// bias.
Gemm library_part_of(const Gemm& op) {
  if (has_epilogue(op.activation)) return op;
  Gemm part = op;
  if (op.c.dtype == DType::kF32) part.bias.reset();
  part.activation = Activation::kNone;
  return part;
}

cudaDataType_t cuda_type_of(DType type) {
  return type == DType::kBF16 ? CUDA_R_16BF : type == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(const ProductShape& shape, bool fused) {
  if (!fused) return CUBLASLT_EPILOGUE_DEFAULT;
  if (shape.bias) return shape.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return shape.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

template <class Value>
void set(CudaContext& context, const OwnedMatmul& matmul, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  context.require(cublasLtMatmulDescSetAttribute(matmul.get(), attribute, &value, sizeof(value)),
                  "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void set(CudaContext& context, const OwnedPreference& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  context.require(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

/// A row-major rows x cols matrix; cuBLASLt sees its transpose.
OwnedLayout new_layout(CudaContext& context, DType type, std::int64_t rows, std::int64_t cols) {
  cublasLtMatrixLayout_t layout = nullptr;
  context.require(
      cublasLtMatrixLayoutCreate(&layout, cuda_type_of(type), static_cast<std::uint64_t>(cols),
                                 static_cast<std::uint64_t>(rows), cols),
      "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

}  // namespace

CudaProduct::CudaProduct(CudaContext& context, const std::string& model, const DeviceConfig& config)
    : context_(context),
      precision_(config.precision),
      rows_of_products_(config.rows_of_products),
      is_cache_(config.autotune.empty()),
      tuned_flop_(is_cache_ ? config.tuned_flop : 0) {
  if (config.autotunes) {
    const ProductPlace place{model, library_text(), std::string(name_of(precision_))};
    choices_ = is_cache_ ? std::make_unique<ProductChoices>(choices_cache(place).value_or(""),
                                                            place, ProductChoices::Keeper::kCache)
                         : std::make_unique<ProductChoices>(config.autotune, place);
  }
  context.use();
  cublasLtHandle_t library = nullptr;
  context.require(cublasLtCreate(&library), "cublasLtCreate");
  library_.reset(library);
}

std::string CudaProduct::name() const {
  std::string text = library_text();
  if (precision_ != Precision::kFp32) text += fmt::format(", {}", barestep::name_of(precision_));
  if (lacks_fused_) text += ", bias and ReLU apart: it has no kernel that fuses them here";
  return text;
}

CudaProductPlan CudaProduct::new_plan(const ProductShape& shape, bool fused) {
  CudaProductPlan plan;
  plan.fused = fused;
  cublasLtMatmulDesc_t matmul = nullptr;
  const cublasComputeType_t compute =
      precision_ == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  context_.require(cublasLtMatmulDescCreate(&matmul, compute, CUDA_R_32F),
                   "cublasLtMatmulDescCreate");
  plan.matmul.reset(matmul);
  const auto transposed = [](bool is_transposed) {
    return is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_TRANSA, transposed(shape.transpose_b));
  set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_TRANSB, transposed(shape.transpose_a));
  set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape, fused));
  if (shape.bias && fused) {
    // The heuristic checks the pointer's alignment and reads nothing there.
    const auto stand_in = static_cast<std::uintptr_t>(shape.alignment_bias);
    set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, stand_in);
    set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(cuda_type_of(shape.type_of_c)));
  }
  plan.a = shape.transpose_a ? new_layout(context_, shape.type, shape.k, shape.m)
                             : new_layout(context_, shape.type, shape.m, shape.k);
  plan.b = shape.transpose_b ? new_layout(context_, shape.type, shape.n, shape.k)
                             : new_layout(context_, shape.type, shape.k, shape.n);
  plan.c = new_layout(context_, shape.type_of_c, shape.m, shape.n);
  return plan;
}

std::vector<cublasLtMatmulHeuristicResult_t> CudaProduct::candidates(const ProductShape& shape,
                                                                     const CudaProductPlan& plan,
                                                                     int max_count) {
  cublasLtMatmulPreference_t made = nullptr;
  context_.require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const OwnedPreference preference(made);
  set(context_, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(workspace_bytes(DeviceKind::kCuda)));
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::int32_t bytes) {
    set(context_, preference, attribute, static_cast<std::uint32_t>(bytes));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.alignment_b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.alignment_a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.alignment_c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.alignment_c);
  if (shape.type != DType::kF32) {
    // Partial sums are added in fp32, never in 16 bits.
    set(context_, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }

  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(max_count));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library_.get(), plan.matmul.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
      preference.get(), max_count, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  context_.require(status, "cublasLtMatmulAlgoGetHeuristic");
  found.resize(static_cast<std::size_t>(count));
  std::erase_if(found, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

bool CudaProduct::take(const cublasLtMatmulAlgo_t& algorithm, CudaProductPlan& plan) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(library_.get(), plan.matmul.get(), plan.b.get(), plan.a.get(),
                              plan.c.get(), plan.c.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      static_cast<std::int64_t>(result.workspaceSize) > workspace_bytes(DeviceKind::kCuda)) {
    return false;
  }
  plan.algorithm = algorithm;
  plan.workspace_bytes = static_cast<std::int64_t>(result.workspaceSize);
  return true;
}

bool CudaProduct::choose_for_rows(const ProductShape& shape, CudaProductPlan& plan) {
  const ProductShape of_rows = shape_for_rows(shape, rows_of_products_);
  CudaProductPlan chosen = new_plan(of_rows, plan.fused);
  if (!choose(of_rows, chosen)) return false;
  if (!take(chosen.algorithm, plan)) {
    fail(ExitCode::kConfiguration,
         {.what = "product",
          .value = text_of(shape),
          .why = fmt::format("cuBLASLt's algorithm for {} rows, which all ranks are to use, does "
                             "not run for so many",
                             rows_of_products_),
          .remedy = "use --scheme ddp, or a batch that ranks share out evenly"});
  }
  return true;
}

std::string CudaProduct::choices() const {
  return choices_ ? choices_->text() : "";
}

void CudaProduct::set_choices(const std::string& text) {
  if (choices_ && choices_->take(text)) {
    is_cache_ = false;
    tuned_flop_ = std::numeric_limits<double>::infinity();
  }
}

bool CudaProduct::times(const ProductShape& shape) const {
  const double flop = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                      static_cast<double>(shape.k);
  return choices_ != nullptr && flop >= tuned_flop_;
}

bool CudaProduct::take_kept(const ProductShape& shape, CudaProductPlan& plan) {
  const auto kept = choices_ ? choices_->find(shape) : std::nullopt;
  if (!kept) return false;
  cublasLtMatmulAlgo_t algorithm{};
  std::memcpy(&algorithm, kept->data(), kept->size());
  if (take(algorithm, plan)) return true;
  if (is_cache_) return false;
  const bool is_file = !std::isinf(tuned_flop_);
  fail(ExitCode::kConfiguration,
       {.what = "--autotune",
        .value = is_file ? choices_->file().string() : "on",
        .why = fmt::format("{} algorithm for {} does not run here",
                           is_file ? "its" : "rank 0's or the checkpoint's", text_of(shape)),
        .remedy = is_file ? "remove the file, or name another" : "use --autotune off"});
}

bool CudaProduct::choose(const ProductShape& shape, CudaProductPlan& plan) {
  ProductShape computed = shape;
  computed.bias = shape.bias && plan.fused;
  computed.relu = shape.relu && plan.fused;
  computed.cached = cached_;
  if (take_kept(computed, plan)) return true;
  const bool timed = times(computed);
  const auto offered = candidates(shape, plan, timed ? kCandidates : 1);
  if (offered.empty()) return false;
  std::optional<std::size_t> fastest;
  if (timed) {
    try {
      fastest = fastest_of(offered, computed, plan, library_.get(), context_);
    } catch (const Error& error) {
      // Autotuning was not requested explicitly, so the run continues without it; the run itself
      // may fit.
      if (!is_cache_ || error.code() != ExitCode::kMemory) throw;
    }
  }
  const auto& chosen = at(offered, fastest.value_or(0));
  plan.algorithm = chosen.algo;
  plan.workspace_bytes = static_cast<std::int64_t>(chosen.workspaceSize);
  if (fastest) {
    AlgorithmBytes bytes;
    std::memcpy(bytes.data(), &plan.algorithm, bytes.size());
    choices_->add(computed, bytes);
  }
  return true;
}

void CudaProduct::prepare(const Gemm& op, bool cached) {
  cached_ = cached;
  BARESTEP_REQUIRE(!context_.capturing, "products are prepared before a capture");
  const ProductShape shape = shape_of(library_part_of(op));
  if (op.c.size() == 0 || shape.k == 0 || plans_.contains(shape)) return;
  context_.use();
  const auto find = [&](CudaProductPlan& plan) {
    return rows_of_products_ > 0 ? choose_for_rows(shape, plan) : choose(shape, plan);
  };
  CudaProductPlan plan = new_plan(shape, true);
  bool found = find(plan);
  if (!found && shape.bias && shape.type_of_c == DType::kF32) {
    lacks_fused_ = true;
    plan = new_plan(shape, false);
    found = find(plan);
  }
  if (!found && shape.type_of_c != DType::kF32 && shape.bias) {
    // A bias that is added to rounded sums would give other numbers.
    fail(ExitCode::kConfiguration,
         {.what = "product",
          .value = text_of(shape),
          .why = "cuBLASLt has no algorithm for 16-bit numbers of this shape",
          .remedy = "use widths that are multiples of 8, or --precision fp32 or tf32"});
  }
  if (!found) {
    fail(ExitCode::kBug, {.what = "cublasLtMatmulAlgoGetHeuristic",
                          .value = text_of(shape),
                          .why = "cuBLASLt has no algorithm for this product",
                          .remedy = "this is a bug, please report it"});
  }
  plans_.emplace(shape, std::move(plan));
}

std::optional<BiasActivation> CudaProduct::run(const Gemm& op, const Addresses& addresses,
                                               const CudaDeviceStream& stream) {
  const Gemm part = library_part_of(op);
  const ProductShape shape = shape_of(part);
  BiasActivation rest{.values = op.c,
                      .bias = op.bias,
                      .activation = op.activation,
                      .pre_activation = op.pre_activation};
  if (op.c.size() == 0) return std::nullopt;
  if (shape.k == 0) {
    // Nothing to add: c becomes 0 or stays.
    BARESTEP_REQUIRE(op.beta == 0 || (op.beta == 1 && op.activation == Activation::kNone),
                     "a product of nothing has beta 0 or 1");
    if (op.beta == 0) {
      context_.note(cudaMemsetAsync(addresses.at<std::byte>(op.c), 0,
                                    static_cast<std::size_t>(op.c.bytes()), stream.handle()),
                    "cudaMemsetAsync");
    }
    if (!op.bias) return std::nullopt;
    BARESTEP_REQUIRE(op.c.dtype == DType::kF32, "a product of 16 bits sums over something");
    return rest;
  }
  const auto plan = plans_.find(shape);
  BARESTEP_REQUIRE(plan != plans_.end(), "the product was not prepared");
  multiply(part, addresses, stream, plan->second);
  if (plan->second.fused && part.activation == op.activation) return std::nullopt;
  if (op.c.dtype != DType::kF32) rest.bias.reset();
  return rest;
}

void CudaProduct::multiply(const Gemm& op, const Addresses& addresses,
                           const CudaDeviceStream& stream, const CudaProductPlan& plan) {
  const std::span<std::byte> workspace = stream.workspace();
  BARESTEP_REQUIRE(plan.workspace_bytes <= static_cast<std::int64_t>(workspace.size()),
                   "the stream has too little workspace for this product");
  if (op.bias && plan.fused) {
    const void* const bias = addresses.at<std::byte>(*op.bias);
    set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const float one = 1;
  context_.note(
      cublasLtMatmul(library_.get(), plan.matmul.get(), &one, addresses.at<std::byte>(op.b),
                     plan.b.get(), addresses.at<std::byte>(op.a), plan.a.get(), &op.beta,
                     addresses.at<std::byte>(op.c), plan.c.get(), addresses.at<std::byte>(op.c),
                     plan.c.get(), &plan.algorithm, workspace.data(), workspace.size(),
                     stream.handle()),
      "cublasLtMatmul");
}

namespace {

/// The memory and events of one measurement.
class ProductBench {
 public:
  ProductBench(const ProductShape& shape, CudaContext& context)
      : context_(context),
        flushed_bytes_(shape.cached ? 0 : 2 * cache_bytes(context)),
        stream_(new_stream(context)),
        begin_(new_event(context)),
        end_(new_event(context)),
        a_(allocate(shape.m * shape.k * bytes_of(shape.type))),
        b_(allocate(shape.k * shape.n * bytes_of(shape.type))),
        c_(allocate(shape.m * shape.n * bytes_of(shape.type_of_c))),
        bias_(allocate(shape.bias ? shape.n * bytes_of(shape.type_of_c) : 0)),
        workspace_(allocate(workspace_bytes(DeviceKind::kCuda))),
        flush_(allocate(flushed_bytes_)) {}

  /// The best of a few runs, in milliseconds; infinity if the candidate cannot run, and then
  /// failure() says why.
  float milliseconds(const cublasLtMatmulAlgo_t& algorithm, const CudaProductPlan& plan,
                     cublasLtHandle_t library) {
    constexpr int kRuns = 5;  // the first also loads the kernel
    // Products without a bias do not run with a pointer to one (cuBLASLt 13.1).
    if (bias_) set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_.get());
    float best = std::numeric_limits<float>::infinity();
    for (int run = 0; run < kRuns; ++run) {
      if (flushed_bytes_ > 0) {
        require(cudaMemsetAsync(flush_.get(), 0, static_cast<std::size_t>(flushed_bytes_),
                                stream_.get()),
                "cudaMemsetAsync");
      }
      require(cudaEventRecord(begin_.get(), stream_.get()), "cudaEventRecord");
      const float one = 1;
      const float zero = 0;
      const cublasStatus_t status = cublasLtMatmul(
          library, plan.matmul.get(), &one, b_.get(), plan.b.get(), a_.get(), plan.a.get(), &zero,
          c_.get(), plan.c.get(), c_.get(), plan.c.get(), &algorithm, workspace_.get(),
          static_cast<std::size_t>(workspace_bytes(DeviceKind::kCuda)), stream_.get());
      if (status != CUBLAS_STATUS_SUCCESS) {
        failure_ = status;
        return std::numeric_limits<float>::infinity();
      }
      require(cudaEventRecord(end_.get(), stream_.get()), "cudaEventRecord");
      require(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
              "cudaEventElapsedTime");
      best = std::min(best, milliseconds);
    }
    return best;
  }

  [[nodiscard]] std::string failure() const { return cublasLtGetStatusName(failure_); }

 private:
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
    if (bytes == 0) return {};
    void* memory = nullptr;
    context_.require(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc", bytes);
    OwnedDeviceMemory owned(static_cast<std::byte*>(memory));
    // Small floats, not zeros: with zeros a GPU stays cooler and runs faster.
    constexpr int kByte = 0x3C;
    require(cudaMemsetAsync(memory, kByte, static_cast<std::size_t>(bytes), stream_.get()),
            "cudaMemsetAsync");
    return owned;
  }

  CudaContext& context_;
  std::int64_t flushed_bytes_;  // written before each run, to empty the cache
  OwnedStream stream_;
  OwnedEvent begin_, end_;
  OwnedDeviceMemory a_, b_, c_, bias_, workspace_, flush_;
  cublasStatus_t failure_ = CUBLAS_STATUS_SUCCESS;
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
    fail(ExitCode::kBug,
         {.what = "--autotune",
          .value = text_of(shape),
          .why = fmt::format("no algorithm that cuBLASLt offers for this product runs ({})",
                             bench.failure()),
          .remedy = "use --autotune off, and please report it"});
  }
  return fastest;
}

}  // namespace barestep
