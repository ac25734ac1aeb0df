// barestep_cuda_epilogues [file]: what cuBLASLt offers on this GPU for the three products of a
// Linear(DIM, DIM), by precision and by epilogue: the number of algorithms, the time of the first
// one and of the best one. Writes JSON to the file.
//
// Layouts are those of kernels/cuda/product.h: our row-major matrices are cuBLASLt's column-major
// transposes.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include "core/error.h"
#include "core/text_table.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/make_device.h"

namespace barestep::bench {
namespace {

struct Type {
  const char* name;
  cudaDataType_t data;
  cublasComputeType_t compute;
};
constexpr Type kTypes[] = {{"fp32", CUDA_R_32F, CUBLAS_COMPUTE_32F},
                           {"tf32", CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
                           {"bf16", CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                           {"fp16", CUDA_R_16F, CUBLAS_COMPUTE_32F}};

struct Epilogue {
  const char* product;
  const char* name;
  cublasLtEpilogue_t value;
  bool has_bias;  // or a bias gradient
  bool has_mask;  // of the outputs that were above zero
};
constexpr Epilogue kEpilogues[] = {
    {"forward", "none", CUBLASLT_EPILOGUE_DEFAULT, false, false},
    {"forward", "bias", CUBLASLT_EPILOGUE_BIAS, true, false},
    {"forward", "bias, relu", CUBLASLT_EPILOGUE_RELU_BIAS, true, false},
    {"forward", "bias, relu, mask", CUBLASLT_EPILOGUE_RELU_AUX_BIAS, true, true},
    {"input gradient", "none", CUBLASLT_EPILOGUE_DEFAULT, false, false},
    {"input gradient", "relu gradient", CUBLASLT_EPILOGUE_DRELU, false, true},
    {"input gradient", "relu and bias gradient", CUBLASLT_EPILOGUE_DRELU_BGRAD, true, true},
    {"weight gradient", "none", CUBLASLT_EPILOGUE_DEFAULT, false, false},
    {"weight gradient", "bias gradient", CUBLASLT_EPILOGUE_BGRADB, true, false}};

constexpr int kCandidates = 16;
constexpr std::size_t kWorkspaceBytes = workspace_bytes(DeviceKind::kCuda);
constexpr std::size_t kFlushBytes = std::size_t{128} << 20;  // twice an H200's cache

OwnedDeviceMemory allocate(CudaContext& context, std::size_t bytes) {
  void* memory = nullptr;
  context.require(cudaMalloc(&memory, bytes), "cudaMalloc", static_cast<std::int64_t>(bytes));
  OwnedDeviceMemory owned(static_cast<std::byte*>(memory));
  context.require(cudaMemset(memory, 0x3C, bytes), "cudaMemset");  // ordinary numbers in any type
  return owned;
}

/// Operands large enough for every product in question, and the clock.
struct Bench {
  Bench(CudaContext& gpu, std::size_t dim, std::size_t batch)
      : context(gpu),
        weight(allocate(gpu, dim * dim * 4)),
        input(allocate(gpu, batch * dim * 4)),
        output(allocate(gpu, batch * dim * 4)),
        bias(allocate(gpu, dim * 4)),
        mask(allocate(gpu, batch * dim)),
        workspace(allocate(gpu, kWorkspaceBytes)),
        flush(allocate(gpu, kFlushBytes)) {
    cublasLtHandle_t made = nullptr;
    context.require(cublasLtCreate(&made), "cublasLtCreate");
    library.reset(made);
    for (OwnedEvent* event : {&begin, &end}) {
      cudaEvent_t handle = nullptr;
      context.require(cudaEventCreateWithFlags(&handle, cudaEventDefault),
                      "cudaEventCreateWithFlags");
      event->reset(handle);
    }
  }

  CudaContext& context;
  OwnedDeviceMemory weight, input, output, bias, mask, workspace, flush;
  OwnedLt library;
  OwnedEvent begin, end;
};

/// One product with one epilogue: its descriptors, and the operands in cuBLASLt's order.
class Product {
 public:
  Product(Bench& bench, const Type& type, const Epilogue& epilogue, std::int64_t dim,
          std::int64_t batch)
      : bench_(bench) {
    const std::string_view which = epilogue.product;
    const bool is_weight_gradient = which == "weight gradient";
    cublasLtMatmulDesc_t made = nullptr;
    bench.context.require(cublasLtMatmulDescCreate(&made, type.compute, CUDA_R_32F),
                          "cublasLtMatmulDescCreate");
    matmul_.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, which == "forward" ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, is_weight_gradient ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.value);
    if (epilogue.has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bench.bias.get());
    if (epilogue.has_mask) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, bench.mask.get());
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, dim);
    }
    a_ = is_weight_gradient ? layout(type, dim, batch) : layout(type, dim, dim);
    b_ = layout(type, dim, batch);
    d_ = is_weight_gradient ? layout(type, dim, dim) : layout(type, dim, batch);
    operand_a_ = is_weight_gradient ? bench.input.get() : bench.weight.get();
    operand_b_ = is_weight_gradient ? bench.output.get() : bench.input.get();
    result_ = is_weight_gradient ? bench.weight.get() : bench.output.get();
  }

  /// The heuristic's algorithms, best first; empty if there is no such product.
  std::vector<cublasLtMatmulAlgo_t> algorithms() {
    cublasLtMatmulPreference_t made = nullptr;
    bench_.context.require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const OwnedPreference preference(made);
    bench_.context.require(
        cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
        "cublasLtMatmulPreferenceSetAttribute");
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(bench_.library.get(), matmul_.get(), a_.get(), b_.get(),
                                       d_.get(), d_.get(), made, kCandidates, found.data(), &count);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
    for (int i = 0; i < count; ++i) {
      const auto& result = found[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
    }
    return algorithms;
  }

  /// The shortest of several runs with no operand in the cache; infinity if it does not run.
  float milliseconds(const cublasLtMatmulAlgo_t& algorithm) {
    constexpr int kRuns = 4;  // the first also loads the kernel
    float best = HUGE_VALF;
    for (int run = 0; run < kRuns; ++run) {
      require(cudaMemsetAsync(bench_.flush.get(), 0, kFlushBytes, nullptr), "cudaMemsetAsync");
      require(cudaEventRecord(bench_.begin.get(), nullptr), "cudaEventRecord");
      const float one = 1;
      const float zero = 0;
      const cublasStatus_t status =
          cublasLtMatmul(bench_.library.get(), matmul_.get(), &one, operand_a_, a_.get(),
                         operand_b_, b_.get(), &zero, result_, d_.get(), result_, d_.get(),
                         &algorithm, bench_.workspace.get(), kWorkspaceBytes, nullptr);
      if (status != CUBLAS_STATUS_SUCCESS) return HUGE_VALF;
      require(cudaEventRecord(bench_.end.get(), nullptr), "cudaEventRecord");
      require(cudaEventSynchronize(bench_.end.get()), "cudaEventSynchronize");
      float time = 0;
      require(cudaEventElapsedTime(&time, bench_.begin.get(), bench_.end.get()),
              "cudaEventElapsedTime");
      best = std::min(best, time);
    }
    return best;
  }

 private:
  void require(cudaError_t status, const char* call) { bench_.context.require(status, call); }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    bench_.context.require(
        cublasLtMatmulDescSetAttribute(matmul_.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
  }

  OwnedLayout layout(const Type& type, std::int64_t rows, std::int64_t cols) {
    cublasLtMatrixLayout_t made = nullptr;
    bench_.context.require(
        cublasLtMatrixLayoutCreate(&made, type.data, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(cols), rows),
        "cublasLtMatrixLayoutCreate");
    return OwnedLayout(made);
  }

  Bench& bench_;
  OwnedMatmul matmul_;
  OwnedLayout a_, b_, d_;
  std::byte* operand_a_ = nullptr;
  std::byte* operand_b_ = nullptr;
  std::byte* result_ = nullptr;
};

struct Shape {
  std::int64_t dim, batch;
  bool is_timed;
};
constexpr Shape kShapes[] = {
    {8192, 64, true}, {1024, 64, true}, {8192, 32, false}, {8192, 128, false}, {8192, 256, false}};

/// All times of one row; infinity for candidates that do not run.
nlohmann::json row_of(Bench& bench, const Shape& shape, const Type& type,
                      const Epilogue& epilogue) {
  Product product(bench, type, epilogue, shape.dim, shape.batch);
  const auto algorithms = product.algorithms();
  nlohmann::json row{{"dim", shape.dim},        {"batch", shape.batch},
                     {"precision", type.name},  {"product", epilogue.product},
                     {"inside", epilogue.name}, {"algorithms", algorithms.size()}};
  if (!shape.is_timed || algorithms.empty()) return row;
  std::vector<float> times;
  for (const auto& algorithm : algorithms) times.push_back(product.milliseconds(algorithm));
  const auto best = std::min_element(times.begin(), times.end());
  // JSON has no infinity, so a first algorithm that does not run is null.
  row["first_ms"] = times.front();
  row["best_ms"] = *best;
  row["best"] = best - times.begin();
  return row;
}

std::string milliseconds_text(const nlohmann::json& row, const char* key) {
  return row.contains(key) ? fmt::format("{:.4f}", row.at(key).get<double>()) : "";
}

void survey(const char* file) {
  CudaContext context(0);
  Bench bench(context, 8192, 256);
  nlohmann::json rows = nlohmann::json::array();
  TextTable table(
      {">dim", ">batch", "precision", "product", "inside", ">algorithms", ">first ms", ">best ms"});
  for (const Shape& shape : kShapes) {
    for (const Type& type : kTypes) {
      for (const Epilogue& epilogue : kEpilogues) {
        const nlohmann::json row = row_of(bench, shape, type, epilogue);
        table.add_row({std::to_string(shape.dim), std::to_string(shape.batch), type.name,
                       epilogue.product, epilogue.name, row.at("algorithms").dump(),
                       milliseconds_text(row, "first_ms"), milliseconds_text(row, "best_ms")});
        rows.push_back(row);
      }
    }
  }
  fmt::print("{}", table.text());
  if (file != nullptr) std::ofstream(file) << rows.dump(1) << '\n';
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  using namespace barestep;
  try {
    if (const std::string why = why_no_cuda_device(); !why.empty()) {
      fmt::print(stderr, "barestep_cuda_epilogues: skipped: {}\n", why);
      return static_cast<int>(ExitCode::kNoDevice);
    }
    bench::survey(argc > 1 ? argv[1] : nullptr);
  } catch (const Error& error) {
    fmt::print(stderr, "barestep_cuda_epilogues: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
