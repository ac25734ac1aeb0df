#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "core/tensor.h"
#include "support/cuda_fake_state.h"

using namespace fake_cuda;

namespace {

struct Matmul {
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;

  [[nodiscard]] bool is_int8() const { return compute == CUBLAS_COMPUTE_32I; }
};

/// Column-major.
struct Layout {
  std::uint64_t rows = 0, cols = 0;
  std::int64_t leading = 0;
  cudaDataType_t type = CUDA_R_32F;
};

struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // a, b, c, d
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

/// The contents of an algorithm's 64 opaque bytes.
struct Algorithm {
  std::uint64_t magic;
  std::uint64_t number;
  std::uint64_t workspace_bytes;
  std::uint32_t alignment[4];
  cublasLtEpilogue_t epilogue;
};
constexpr std::uint64_t kMagic = 0xBA5E57E9;
constexpr std::uint64_t kAlgorithms = 4;
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class Mine, class Theirs>
Mine& mine(Theirs* handle) {
  return *reinterpret_cast<Mine*>(handle);
}

template <class Mine, class Theirs>
cublasStatus_t create(Theirs** handle, const Mine& value) {
  *handle = reinterpret_cast<Theirs*>(new Mine(value));
  ++state().objects;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Mine, class Theirs>
cublasStatus_t destroy(Theirs* handle) {
  delete reinterpret_cast<Mine*>(handle);
  --state().objects;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t assign(Value& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

Algorithm read(const cublasLtMatmulAlgo_t& opaque) {
  Algorithm algorithm{};
  std::memcpy(&algorithm, &opaque, sizeof(algorithm));
  return algorithm;
}

/// Whether an m x k and a k x n matrix give an m x n one, and the leading dimensions hold the
/// columns.
bool fits(const Matmul& matmul, const Layout& a, const Layout& b, const Layout& c) {
  const bool ta = matmul.transpose_a == CUBLAS_OP_T;
  const bool tb = matmul.transpose_b == CUBLAS_OP_T;
  const auto holds = [](const Layout& layout) {
    return layout.rows > 0 && layout.cols > 0 &&
           layout.leading >= static_cast<std::int64_t>(layout.rows);
  };
  return holds(a) && holds(b) && holds(c) && (ta ? a.cols : a.rows) == c.rows &&
         (tb ? b.rows : b.cols) == c.cols && (ta ? a.rows : a.cols) == (tb ? b.cols : b.rows);
}

/// Whether the types are supported: floats; 16 bits, with c possibly fp32 and a bias of c's type;
/// or bytes into int32, with one order of operands and sizes that are multiples of four.
bool takes_types(const Matmul& matmul, const Layout& a, const Layout& b, const Layout& c) {
  if (a.type != b.type) return false;
  const bool is_real = a.type == CUDA_R_32F || a.type == CUDA_R_16BF || a.type == CUDA_R_16F;
  if (!matmul.is_int8()) {
    return is_real && (c.type == a.type || c.type == CUDA_R_32F) &&
           (a.type == CUDA_R_32F || matmul.compute == CUBLAS_COMPUTE_32F) &&
           (matmul.bias == nullptr || matmul.bias_type == c.type);
  }
  return a.type == CUDA_R_8I && c.type == CUDA_R_32I && matmul.transpose_a == CUBLAS_OP_T &&
         matmul.transpose_b == CUBLAS_OP_N && c.rows % 4 == 0 && a.rows % 4 == 0;
}

bool has_bias(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}

bool has_relu(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}

float number_at(const void* values, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_16BF) return barestep::float_of(static_cast<const barestep::Bf16*>(values)[i]);
  if (type == CUDA_R_16F) return barestep::float_of(static_cast<const barestep::F16*>(values)[i]);
  return static_cast<const float*>(values)[i];
}

/// Sums in double and rounds once, to the type of c.
struct Product {
  Matmul matmul;
  Layout a, b, c;
  const void* from_a;
  const void* from_b;
  const void* from_c;
  void* to;
  float alpha, beta;  // for all types except bytes

  [[nodiscard]] static float at(const void* values, const Layout& layout, bool transpose,
                                std::uint64_t row, std::uint64_t col) {
    if (transpose) std::swap(row, col);
    return number_at(
        values, layout.type,
        static_cast<std::int64_t>(col) * layout.leading + static_cast<std::int64_t>(row));
  }

  void store(float value, std::int64_t i) const {
    if (c.type == CUDA_R_16BF) {
      static_cast<barestep::Bf16*>(to)[i] = barestep::bf16_of(value);
    } else if (c.type == CUDA_R_16F) {
      static_cast<barestep::F16*>(to)[i] = barestep::f16_of(value);
    } else {
      static_cast<float*>(to)[i] = value;
    }
  }

  /// c = a^T b in integers.
  void multiply_bytes() const {
    const auto* const x = static_cast<const std::int8_t*>(from_a);
    const auto* const y = static_cast<const std::int8_t*>(from_b);
    auto* const sums = static_cast<std::int32_t*>(to);
    for (std::int64_t col = 0; col < static_cast<std::int64_t>(c.cols); ++col) {
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(c.rows); ++row) {
        std::int32_t sum = 0;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(a.rows); ++i)
          sum += x[row * a.leading + i] * y[col * b.leading + i];
        sums[col * c.leading + row] = sum;
      }
    }
  }

  void operator()() const {
    if (matmul.is_int8()) return multiply_bytes();
    const bool ta = matmul.transpose_a == CUBLAS_OP_T;
    const bool tb = matmul.transpose_b == CUBLAS_OP_T;
    const std::uint64_t k = ta ? a.rows : a.cols;
    for (std::uint64_t col = 0; col < c.cols; ++col) {
      for (std::uint64_t row = 0; row < c.rows; ++row) {
        double sum = 0;
        for (std::uint64_t i = 0; i < k; ++i) {
          sum += static_cast<double>(at(from_a, a, ta, row, i)) * at(from_b, b, tb, i, col);
        }
        sum *= alpha;
        // C is not read if beta is 0.
        if (beta != 0) sum += static_cast<double>(beta) * at(from_c, c, false, row, col);
        auto value = static_cast<float>(sum);
        if (has_bias(matmul.epilogue)) {
          value += number_at(matmul.bias, static_cast<cudaDataType_t>(matmul.bias_type),
                             static_cast<std::int64_t>(row));
        }
        if (has_relu(matmul.epilogue)) value = value < 0 ? 0 : value;
        store(value, static_cast<std::int64_t>(col) * c.leading + static_cast<std::int64_t>(row));
      }
    }
  }
};

}  // namespace

#define FAKE_LT_CALL()                                                      \
  if (const int scripted_status = scripted(__func__); scripted_status != 0) \
  return static_cast<cublasStatus_t>(scripted_status)

extern "C" {

std::size_t cublasLtGetVersion() {
  return state().machine.lt_version;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_OF_THE_FAKE";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t) {
  return "the fake was told to fail";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  FAKE_LT_CALL();
  return create(handle, int{0});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy<int>(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  FAKE_LT_CALL();
  const bool is_int8 = compute == CUBLAS_COMPUTE_32I;
  if (scale != (is_int8 ? CUDA_R_32I : CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Matmul matmul;
  matmul.compute = compute;
  return create(desc, matmul);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy<Matmul>(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  FAKE_LT_CALL();
  auto& matmul = mine<Matmul>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(matmul.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(matmul.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(matmul.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(matmul.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(matmul.bias_type, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t leading) {
  FAKE_LT_CALL();
  const bool is_known = type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F ||
                        type == CUDA_R_8I || type == CUDA_R_32I;
  if (!is_known) return CUBLAS_STATUS_NOT_SUPPORTED;
  return create(layout, Layout{rows, cols, leading, type});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  FAKE_LT_CALL();
  return create(preference, Preference{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  FAKE_LT_CALL();
  auto& preference = mine<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(preference.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(preference.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(preference.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference.alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(preference.reductions, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int max_count,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  FAKE_LT_CALL();
  const auto& matmul = mine<Matmul>(desc);
  const auto& requested = mine<Preference>(preference);
  if (c != d || !fits(matmul, mine<Layout>(a), mine<Layout>(b), mine<Layout>(c))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (has_bias(matmul.epilogue) && matmul.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  // A 16-bit compute type is always wrong for sums.
  constexpr std::uint32_t kInSixteenBits =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  const cudaDataType_t type = mine<Layout>(a).type;
  if ((type == CUDA_R_16BF || type == CUDA_R_16F) && (requested.reductions & kInSixteenBits) != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *count = 0;
  if (!takes_types(matmul, mine<Layout>(a), mine<Layout>(b), mine<Layout>(c))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (matmul.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !state().machine.fused_products) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const std::uint64_t first = state().machine.chooses_by_rows ? mine<Layout>(c).cols : 0;
  for (std::uint64_t i = 0; i < kAlgorithms && *count < max_count; ++i) {
    const std::uint64_t number = (first + i) % kAlgorithms;
    Algorithm algorithm{.magic = kMagic,
                        .number = number,
                        .workspace_bytes = number << 20,
                        .alignment = {},
                        .epilogue = matmul.epilogue};
    std::copy_n(requested.alignment, 4, algorithm.alignment);
    if (algorithm.workspace_bytes > requested.workspace_bytes) continue;
    auto& result = results[(*count)++];
    result = {};
    result.state = CUBLAS_STATUS_SUCCESS;
    result.workspaceSize = algorithm.workspace_bytes;
    std::memcpy(&result.algo, &algorithm, sizeof(algorithm));
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* opaque,
                                       cublasLtMatmulHeuristicResult_t* result) {
  FAKE_LT_CALL();
  const Algorithm algorithm = read(*opaque);
  if (algorithm.magic != kMagic || algorithm.epilogue != mine<Matmul>(desc).epilogue) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  result->workspaceSize = algorithm.workspace_bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* opaque,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  FAKE_LT_CALL();
  const Algorithm algorithm = read(*opaque);
  const Product product{.matmul = mine<Matmul>(desc),
                        .a = mine<Layout>(layout_a),
                        .b = mine<Layout>(layout_b),
                        .c = mine<Layout>(layout_c),
                        .from_a = a,
                        .from_b = b,
                        .from_c = c,
                        .to = d,
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta)};
  const auto aligned = [](const void* address, std::uint32_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
  };
  const bool as_promised = aligned(a, algorithm.alignment[0]) &&
                           aligned(b, algorithm.alignment[1]) &&
                           aligned(c, algorithm.alignment[2]) && aligned(d, algorithm.alignment[3]);
  // A pointer to a bias that is not added: version 13.1 refuses it on an H200.
  const bool unused_bias = product.matmul.bias != nullptr && !has_bias(product.matmul.epilogue);
  if (algorithm.magic != kMagic || algorithm.epilogue != product.matmul.epilogue || !as_promised ||
      unused_bias || layout_c != layout_d ||
      !fits(product.matmul, product.a, product.b, product.c) ||
      workspace_bytes < algorithm.workspace_bytes || workspace == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  state().last_algorithm = static_cast<int>(algorithm.number);
  return submit(stream, {[product, number = algorithm.number, workspace,
                          bytes = algorithm.workspace_bytes] {
                  std::memset(workspace, 0xFF, bytes);
                  product();
                  const bool fastest =
                      number == static_cast<std::uint64_t>(state().machine.fastest_algorithm);
                  state().extra_s += fastest ? 0 : 10;
                }}) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
