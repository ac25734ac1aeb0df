#include "kernels/cuda/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/index.h"
#include "kernels/cuda/kernel_bench.h"

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
  switch (type) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kI8:
      return CUDA_R_8I;
    case DType::kI32:
      return CUDA_R_32I;
    default:
      return CUDA_R_32F;
  }
}

/// The sums of a quantized product. Nothing if cuBLASLt does not multiply such shapes, or tensors
/// at such offsets: it multiplies signed bytes into int32 if both operands have the summed
/// dimension last, as ours do, and if that dimension and the number of outputs are multiples of
/// four.
std::optional<ProductShape> shape_of_sums(const QuantizedGemm& op) {
  const ProductSize size{op.c.rows, op.c.cols, op.a.cols};
  // Algorithms are chosen for addresses like those of buffers.
  const bool is_aligned =
      op.a.offset_bytes % 256 == 0 && op.b.offset_bytes % 256 == 0 && op.c.offset_bytes % 256 == 0;
  if (!is_aligned || size.rows == 0 || size.cols % 4 != 0 || size.depth % 4 != 0) return {};
  return ProductShape{.m = size.rows,
                      .n = size.cols,
                      .k = size.depth,
                      .transpose_b = true,
                      .type = DType::kI8,
                      .type_of_c = DType::kI32};
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

/// The bytes of a choice that is ours. cuBLASLt's never begin so; a later kernel with other sums
/// gets another number.
constexpr std::string_view kOwnAlgorithm = "barestep skinny product 1";

AlgorithmBytes bytes_of(const ProductAlgorithm& algorithm) {
  AlgorithmBytes bytes{};
  if (const auto* own = std::get_if<SkinnyProduct>(&algorithm)) {
    std::memcpy(bytes.data(), kOwnAlgorithm.data(), kOwnAlgorithm.size());
    std::memcpy(bytes.data() + kOwnAlgorithm.size(), &own->splits, sizeof(own->splits));
  } else {
    std::memcpy(bytes.data(), &std::get<cublasLtMatmulAlgo_t>(algorithm), bytes.size());
  }
  return bytes;
}

ProductAlgorithm algorithm_of(const AlgorithmBytes& bytes) {
  if (std::memcmp(bytes.data(), kOwnAlgorithm.data(), kOwnAlgorithm.size()) == 0) {
    SkinnyProduct own;
    std::memcpy(&own.splits, bytes.data() + kOwnAlgorithm.size(), sizeof(own.splits));
    return own;
  }
  cublasLtMatmulAlgo_t algorithm{};
  std::memcpy(&algorithm, bytes.data(), bytes.size());
  return algorithm;
}

/// What a product is queued with.
struct ProductQueue {
  cublasLtHandle_t library;
  LaunchMemory memory;
  std::size_t workspace_bytes;
  KernelQueue kernels;
  bool rounded;  // factors of our kernel, to tf32
};

ProductQueue queue_of(const CudaDeviceStream& stream, cublasLtHandle_t library, bool rounded,
                      bool* follows_kernel = nullptr) {
  return {.library = library,
          .memory = stream.launch_memory(),
          .workspace_bytes = stream.workspace().size(),
          .kernels = {stream.handle(), follows_kernel},
          .rounded = rounded};
}

using QueueStatus = std::variant<cublasStatus_t, cudaError_t>;

/// Null if nothing failed.
const char* name_of_failure(const QueueStatus& status) {
  if (const auto* launched = std::get_if<cudaError_t>(&status)) {
    return *launched == cudaSuccess ? nullptr : cudaGetErrorName(*launched);
  }
  const auto called = std::get<cublasStatus_t>(status);
  return called == CUBLAS_STATUS_SUCCESS ? nullptr : cublasLtGetStatusName(called);
}

/// A bias is that of the plan's descriptors.
QueueStatus queue_product(const CudaProductPlan& plan, const ProductAlgorithm& algorithm,
                          const Gemm& op, const Addresses& addresses, const ProductQueue& queue) {
  if (const auto* own = std::get_if<SkinnyProduct>(&algorithm)) {
    return static_cast<cudaError_t>(
        launch_skinny(op, *own, queue.rounded, addresses, queue.memory, queue.kernels));
  }
  const float one = 1;
  const auto address = [&](const Tensor& tensor) { return addresses.at<std::byte>(tensor); };
  return cublasLtMatmul(queue.library, plan.matmul.get(), &one, address(op.b), plan.b.get(),
                        address(op.a), plan.a.get(), &op.beta, address(op.c), plan.c.get(),
                        address(op.c), plan.c.get(), &std::get<cublasLtMatmulAlgo_t>(algorithm),
                        queue.memory.workspace, queue.workspace_bytes, queue.kernels.stream);
}

/// The op of a measurement: operands in four buffers, a, b, c and the bias.
Gemm gemm_of(const ProductShape& shape) {
  const auto tensor = [](std::int32_t buffer, std::int64_t rows, std::int64_t cols, DType type) {
    return Tensor{.buffer = buffer, .rows = rows, .cols = cols, .dtype = type};
  };
  Gemm op{.c = tensor(2, shape.m, shape.n, shape.type_of_c),
          .a = shape.transpose_a ? tensor(0, shape.k, shape.m, shape.type)
                                 : tensor(0, shape.m, shape.k, shape.type),
          .b = shape.transpose_b ? tensor(1, shape.n, shape.k, shape.type)
                                 : tensor(1, shape.k, shape.n, shape.type),
          .transpose_a = shape.transpose_a,
          .transpose_b = shape.transpose_b,
          .activation = shape.relu ? Activation::kRelu : Activation::kNone};
  if (shape.bias) op.bias = tensor(3, 1, shape.n, shape.type_of_c);
  return op;
}

/// The time of each candidate, with none of its operands in the cache, unless they are there in a
/// step; infinity for one that does not run. `plan` has the descriptors of `shape`; its bias
/// pointer changes. Allocates operands and frees them again: Error(kMemory). Throws Error(kBug) if
/// no candidate runs. Blocks.
std::vector<float> milliseconds_of(std::span<const ProductCandidate> candidates,
                                   const ProductShape& shape, const CudaProductPlan& plan,
                                   cublasLtHandle_t library, CudaContext& context, bool rounded) {
  KernelBench bench(context, shape.cached);
  const Gemm op = gemm_of(shape);
  const OwnedDeviceMemory a = bench.allocate(op.a.bytes());
  const OwnedDeviceMemory b = bench.allocate(op.b.bytes());
  const OwnedDeviceMemory c = bench.allocate(op.c.bytes());
  const OwnedDeviceMemory bias = bench.allocate(op.bias ? op.bias->bytes() : 0);
  const Addresses addresses(std::vector{a.get(), b.get(), c.get(), bias.get()});
  // Products without a bias do not run with a pointer to one (cuBLASLt 13.1).
  if (bias) set(context, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.get());
  std::vector<float> times;
  for (const ProductCandidate& candidate : candidates) {
    times.push_back(bench.milliseconds([&] {
      return name_of_failure(queue_product(plan, candidate.algorithm, op, addresses,
                                           queue_of(bench.stream(), library, rounded)));
    }));
  }
  if (std::isinf(*std::ranges::min_element(times))) {
    fail(ExitCode::kBug,
         {.what = "--autotune",
          .value = text_of(shape),
          .why = fmt::format("no algorithm for this product runs ({})", bench.failure()),
          .remedy = "use --autotune off, and please report it"});
  }
  return times;
}

ProductTimes best_times(std::span<const ProductCandidate> candidates,
                        const std::vector<float>& milliseconds) {
  ProductTimes times;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (std::isinf(milliseconds[i])) continue;
    const bool is_own = std::holds_alternative<SkinnyProduct>(candidates[i].algorithm);
    std::optional<double>& best = is_own ? times.own_us : times.library_us;
    const double us = 1e3 * static_cast<double>(milliseconds[i]);
    best = std::min(best.value_or(us), us);
  }
  return times;
}

}  // namespace

CudaProduct::CudaProduct(CudaContext& context, const std::string& model, const DeviceConfig& config,
                         const KernelTarget& target)
    : context_(context),
      target_(target),
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
  if (uses_own_) text += ", products of few rows by a kernel of our own, which is faster here";
  if (lacks_fused_) text += ", bias and ReLU apart: it has no kernel that fuses them here";
  return text;
}

CudaProductPlan CudaProduct::new_plan(const ProductShape& shape, bool fused) {
  CudaProductPlan plan;
  plan.fused = fused;
  cublasLtMatmulDesc_t matmul = nullptr;
  const bool sums_bytes = shape.type == DType::kI8;
  const cublasComputeType_t compute = sums_bytes ? CUBLAS_COMPUTE_32I
                                      : precision_ == Precision::kTf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  context_.require(cublasLtMatmulDescCreate(&matmul, compute, sums_bytes ? CUDA_R_32I : CUDA_R_32F),
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

std::vector<ProductCandidate> CudaProduct::candidates(const ProductShape& shape,
                                                      const CudaProductPlan& plan, int max_count) {
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
  if (bytes_of(shape.type) == 2) {
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
  std::vector<ProductCandidate> usable;
  for (const auto& result : found) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    usable.push_back({result.algo, static_cast<std::int64_t>(result.workspaceSize)});
  }
  return usable;
}

void CudaProduct::add_own(const ProductShape& shape, std::vector<ProductCandidate>& offered) const {
  for (const SkinnyProduct& product : skinny_products(shape, target_)) {
    const std::int64_t bytes = workspace_bytes_of(product, shape);
    if (bytes <= workspace_bytes(DeviceKind::kCuda)) offered.push_back({product, bytes});
  }
}

bool CudaProduct::take(const ProductAlgorithm& algorithm, const ProductShape& shape,
                       CudaProductPlan& plan) {
  std::int64_t bytes = 0;
  if (const auto* own = std::get_if<SkinnyProduct>(&algorithm)) {
    if (!can_run(*own, shape, target_)) return false;
    bytes = workspace_bytes_of(*own, shape);
  } else {
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(
        library_.get(), plan.matmul.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
        &std::get<cublasLtMatmulAlgo_t>(algorithm), &result);
    if (status != CUBLAS_STATUS_SUCCESS) return false;
    bytes = static_cast<std::int64_t>(result.workspaceSize);
  }
  if (bytes > workspace_bytes(DeviceKind::kCuda)) return false;
  plan.chosen = {algorithm, bytes};
  return true;
}

bool CudaProduct::choose_for_rows(const ProductShape& shape, CudaProductPlan& plan) {
  const ProductShape of_rows = shape_for_rows(shape, rows_of_products_);
  CudaProductPlan chosen = new_plan(of_rows, plan.fused);
  if (!choose(of_rows, chosen)) return false;
  if (!take(chosen.chosen.algorithm, shape, plan)) {
    fail(ExitCode::kConfiguration,
         {.what = "product",
          .value = text_of(shape),
          .why = fmt::format("the algorithm for {} rows, which all ranks are to use, does not run "
                             "for so many",
                             rows_of_products_),
          .remedy = "use --scheme ddp, or a batch that ranks share out evenly"});
  }
  return true;
}

std::string CudaProduct::choices() const {
  return choices_ ? choices_->text() : "";
}

void CudaProduct::set_choices(const std::string& text) {
  if (choices_ && choices_->take(text)) are_given_ = true;
}

bool CudaProduct::take_kept(const ProductShape& shape, CudaProductPlan& plan) {
  auto kept = choices_ ? choices_->find(shape) : std::nullopt;
  if (!kept && are_given_) {
    // Rank 0 times before any memory of the step is allocated.
    ProductShape before = shape;
    before.cached = true;
    kept = choices_->find(before);
  }
  if (!kept) return false;
  if (take(algorithm_of(*kept), shape, plan)) return true;
  if (is_cache_ && !are_given_) return false;
  fail(ExitCode::kConfiguration,
       {.what = "--autotune",
        .value = are_given_ ? "on" : choices_->file().string(),
        .why = fmt::format("{} algorithm for {} does not run here",
                           are_given_ ? "rank 0's or the checkpoint's" : "its", text_of(shape)),
        .remedy = are_given_ ? "use --autotune off" : "remove the file, or name another"});
}

bool CudaProduct::choose(const ProductShape& shape, CudaProductPlan& plan) {
  ProductShape computed = shape;
  computed.bias = shape.bias && plan.fused;
  computed.relu = shape.relu && plan.fused;
  computed.cached = cached_;
  if (take_kept(computed, plan)) return true;
  const double flop = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                      static_cast<double>(shape.k);
  const bool timed = times(flop, Bits::kOther);
  std::vector<ProductCandidate> offered = candidates(shape, plan, timed ? kCandidates : 1);
  if (timed && plan.fused) add_own(shape, offered);
  if (offered.empty()) return false;
  plan.chosen = offered.front();
  if (!timed) return true;
  try {
    const std::vector<float> times =
        milliseconds_of(offered, computed, plan, library_.get(), context_, rounds());
    plan.chosen = at(offered, std::ranges::min_element(times) - times.begin());
    choices_->add(computed, bytes_of(plan.chosen.algorithm), best_times(offered, times));
  } catch (const Error& error) {
    // Autotuning was not requested explicitly, so the run continues without it; the run itself may
    // fit.
    if (!is_cache_ || error.code() != ExitCode::kMemory) throw;
    // Our kernel is never chosen untimed.
    return std::holds_alternative<cublasLtMatmulAlgo_t>(plan.chosen.algorithm);
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
  uses_own_ = uses_own_ || std::holds_alternative<SkinnyProduct>(plan.chosen.algorithm);
  plans_.emplace(shape, std::move(plan));
}

std::optional<BiasActivation> CudaProduct::run(const Gemm& op, const Addresses& addresses,
                                               CudaDeviceStream& stream, bool* follows_kernel) {
  const Gemm part = library_part_of(op);
  const ProductShape shape = shape_of(part);
  BiasActivation rest{.values = op.c,
                      .bias = op.bias,
                      .activation = op.activation,
                      .pre_activation = op.pre_activation};
  if (op.c.size() == 0) return std::nullopt;
  if (shape.k == 0) {
    stream.follows_kernel = false;
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
  multiply(part, addresses, stream, plan->second, follows_kernel);
  if (plan->second.fused && part.activation == op.activation) return std::nullopt;
  if (op.c.dtype != DType::kF32) rest.bias.reset();
  return rest;
}

void CudaProduct::multiply(const Gemm& op, const Addresses& addresses, CudaDeviceStream& stream,
                           const CudaProductPlan& plan, bool* follows_kernel) {
  BARESTEP_REQUIRE(
      plan.chosen.workspace_bytes <= static_cast<std::int64_t>(stream.workspace().size()),
      "the stream has too little workspace for this product");
  const bool is_own = std::holds_alternative<SkinnyProduct>(plan.chosen.algorithm);
  if (!is_own) stream.follows_kernel = false;
  if (op.bias && plan.fused && !is_own) {
    const void* const bias = addresses.at<std::byte>(*op.bias);
    set(context_, plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const QueueStatus status =
      queue_product(plan, plan.chosen.algorithm, op, addresses,
                    queue_of(stream, library_.get(), rounds(), follows_kernel));
  std::visit(
      [&](auto code) { context_.note(code, is_own ? "launch of a kernel" : "cublasLtMatmul"); },
      status);
}

std::optional<SkinnyProduct> CudaProduct::own(const Gemm& op) const {
  const auto found = plans_.find(shape_of(library_part_of(op)));
  if (found == plans_.end() || !found->second.fused || !has_epilogue(op.activation)) return {};
  const auto* const product = std::get_if<SkinnyProduct>(&found->second.chosen.algorithm);
  return product == nullptr ? std::nullopt : std::optional(*product);
}

void CudaProduct::prepare(const QuantizedGemm& op) {
  BARESTEP_REQUIRE(!context_.capturing, "products are prepared before a capture");
  const std::optional<ProductShape> shape = shape_of_sums(op);
  if (!shape || plans_.contains(*shape)) return;
  context_.use();
  CudaProductPlan plan = new_plan(*shape, true);
  const auto found = candidates(*shape, plan, 1);
  if (found.empty()) return;
  plan.chosen = found.front();
  plans_.emplace(*shape, std::move(plan));
}

bool CudaProduct::run(const QuantizedGemm& op, const Addresses& addresses,
                      const CudaDeviceStream& stream) {
  const std::optional<ProductShape> shape = shape_of_sums(op);
  const auto found = shape ? plans_.find(*shape) : plans_.end();
  if (found == plans_.end()) return false;
  const CudaProductPlan& plan = found->second;
  const std::span<std::byte> workspace = stream.workspace();
  const std::int32_t one = 1;
  const std::int32_t zero = 0;
  auto* const sums = addresses.at<std::byte>(op.c);
  context_.note(
      cublasLtMatmul(library_.get(), plan.matmul.get(), &one, addresses.at<std::byte>(op.b),
                     plan.b.get(), addresses.at<std::byte>(op.a), plan.a.get(), &zero, sums,
                     plan.c.get(), sums, plan.c.get(),
                     &std::get<cublasLtMatmulAlgo_t>(plan.chosen.algorithm), workspace.data(),
                     workspace.size(), stream.handle()),
      "cublasLtMatmul");
  return true;
}

}  // namespace barestep
