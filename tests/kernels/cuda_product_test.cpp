// Matrix products of the CUDA device on the fake runtime: the choice of the algorithm, and its
// cache.
#include <cublasLt.h>
#include <nlohmann/json.hpp>

#include "core/index.h"
#include "core/random.h"
#include "kernels/cuda/launch.h"
#include "kernels/on_fake.h"
#include "support/expect_error.h"
#include "support/fake_cuda.h"
#include "support/testing.h"
#include "train/step.h"

namespace barestep {
namespace {

class ProductOnFake : public OnFake {
 protected:
  void SetUp() override {
    OnFake::SetUp();
    op = {.c = memory.add(4, 6),
          .a = memory.add(4, 3),
          .b = memory.add(6, 3),
          .transpose_b = true,
          .bias = memory.add(1, 6),
          .activation = Activation::kRelu};
    for (const Tensor& tensor : {op.a, op.b, *op.bias}) {
      float next = -1;
      for (float& value : memory.values(tensor)) value = next += 0.25F;
    }
  }
  [[nodiscard]] std::string choices() const { return (folder() / "choices.json").string(); }

  Memory memory;
  Gemm op;
};

TEST_F(ProductOnFake, FallsBackToKernelsOfOurOwnWithTheSameResult) {
  const auto fused = run(op, memory);
  EXPECT_EQ(device->info().product_library, "cuBLASLt 13.1.0");
  const int kernels = fake_cuda::calls("kernel");
  restart({.fused_products = false});
  EXPECT_EQ(run(op, memory), fused);
  EXPECT_EQ(fake_cuda::calls("kernel"), kernels + 1) << "our bias and ReLU";
  EXPECT_EQ(device->info().product_library,
            "cuBLASLt 13.1.0, bias and ReLU apart: it has no kernel that fuses them here");
}

/// Aligned like a program's buffers, which the common cases are not.
class Int8OnFake : public OnFake {
 protected:
  /// c, a, b, their scales, sums and bias one after another.
  QuantizedGemm op_of(std::int64_t m, std::int64_t n, std::int64_t k) {
    const auto add = [&](std::int64_t rows, std::int64_t cols, DType dtype) {
      const Tensor tensor{0, offset, rows, cols, dtype};
      offset = (tensor.end_bytes() + 255) / 256 * 256;
      return tensor;
    };
    QuantizedGemm op{.c = add(m, n, DType::kF32),
                     .a = add(m, k, DType::kI8),
                     .b = add(n, k, DType::kI8),
                     .a_scales = add(m, 1, DType::kF32),
                     .b_scales = add(1, n, DType::kF32),
                     .b_sums = add(1, n, DType::kI32),
                     .bias = add(1, n, DType::kF32),
                     .activation = Activation::kRelu};
    memory.bytes().resize(static_cast<std::size_t>(offset));
    for (std::int64_t i = 0; i < op.a.size(); ++i)
      at(memory.values<std::int8_t>(op.a), i) = static_cast<std::int8_t>(37 * i % 251 - 125);
    for (std::int64_t i = 0; i < op.b.size(); ++i)
      at(memory.values<std::int8_t>(op.b), i) = static_cast<std::int8_t>(91 * i % 253 - 126);
    for (const Tensor& tensor : {op.a_scales, op.b_scales, op.bias}) {
      float next = -0.5F;
      for (float& value : memory.values(tensor)) value = next += 0.25F;
    }
    return op;
  }

  std::int64_t offset = 0;
  Memory memory;
};

TEST_F(Int8OnFake, TakesTheLibrarysSumsWhereItHasThemWithTheBitsOfOurOwnKernel) {
  const QuantizedGemm op = op_of(3, 8, 12);
  const auto by_library = run(op, memory);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1);
  restart({});
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(run(op, memory), by_library);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 0);
  EXPECT_NE(by_library, memory.bytes());
}

/// Even if the library computes others of the same shape.
TEST_F(Int8OnFake, LeavesTensorsAtOtherOffsetsToOurOwnKernel) {
  const auto result_of = [&](const QuantizedGemm& op) {
    const auto bytes = run(op, memory);
    const auto first = bytes.begin() + op.c.offset_bytes;
    return std::vector(first, first + op.c.bytes());
  };
  const auto by_library = result_of(op_of(3, 8, 12));
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1);
  offset += 16;
  EXPECT_EQ(result_of(op_of(3, 8, 12)), by_library);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1);
}

TEST_F(Int8OnFake, LeavesShapesThatTheLibraryDoesNotTakeToOurOwnKernel) {
  const QuantizedGemm op = op_of(3, 10, 12);
  run(op, memory);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic"), 0);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 0);
}

TEST_F(ProductOnFake, AsksTheHeuristicOnceForAShape) {
  run(op, memory);
  const int requested = fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic");
  run(op, memory);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic"), requested);
}

TEST_F(ProductOnFake, RefusesAShapeNoAlgorithmIsFor) {
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", 2, CUBLAS_STATUS_NOT_SUPPORTED);
  expect_error(ExitCode::kBug,
               "cublasLtMatmulAlgoGetHeuristic '4x6x3 NT bias relu': cuBLASLt has no algorithm",
               [&] { device->prepare(op); });
}

/// The bias of 16-bit numbers is added before they are rounded, so it has no kernel of its own.
TEST_F(ProductOnFake, RefusesAShapeOf16BitsNoAlgorithmIsForByName) {
  Memory narrow;
  const Gemm gemm{.c = narrow.add(4, 6, DType::kBF16),
                  .a = narrow.add(4, 257, DType::kBF16),
                  .b = narrow.add(6, 257, DType::kBF16),
                  .transpose_b = true,
                  .bias = narrow.add(1, 6, DType::kBF16)};
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  expect_error(ExitCode::kConfiguration, "product '4x6x257 NT", [&] { device->prepare(gemm); });
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  expect_error(ExitCode::kConfiguration,
               "cuBLASLt has no algorithm for 16-bit numbers of this shape; use widths that are "
               "multiples of 8, or --precision fp32 or tf32",
               [&] { device->prepare(gemm); });
}

TEST_F(ProductOnFake, RefusesAStreamWithoutWorkspace) {
  restart({.fastest_algorithm = 2}, {.device = "cuda", .autotune = choices()});
  device->prepare(op);  // an algorithm that needs workspace
  const auto bare = device->new_stream("copy");
  const DeviceMemory on_device(*device, 4096);
  const Addresses addresses({std::vector{on_device.get()}});
  expect_error(ExitCode::kBug, "the stream has too little workspace",
               [&] { device->run(op, addresses, *bare, {}); });
}

TEST_F(ProductOnFake, ComputesAnyRowsByTheAlgorithmOfOneNumberOfThem) {
  const fake_cuda::Machine machine{.chooses_by_rows = true};
  Memory other_memory;
  const Gemm other{.c = other_memory.add(3, 6),
                   .a = other_memory.add(3, 3),
                   .b = other_memory.add(6, 3),
                   .transpose_b = true};
  const auto algorithms = [&](const DeviceConfig& config) {
    restart(machine, config);
    run(op, memory);
    const int of_four = fake_cuda::last_algorithm();
    run(other, other_memory);
    return std::pair(of_four, fake_cuda::last_algorithm());
  };
  EXPECT_EQ(algorithms({.device = "cuda"}), std::pair(0, 3)) << "4 and 3 rows, each on its own";
  EXPECT_EQ(algorithms({.device = "cuda", .rows_of_products = 6}), std::pair(2, 2));
}

TEST_F(ProductOnFake, RefusesRowsThatTheAlgorithmOfOthersDoesNotRunFor) {
  restart({}, {.device = "cuda", .rows_of_products = 64});
  fake_cuda::fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  expect_error(ExitCode::kConfiguration,
               "product '4x6x3 NT bias relu': the algorithm for 64 rows, which all ranks are to "
               "use, does not run for so many; use --scheme ddp",
               [&] { device->prepare(op); });
}

TEST_F(ProductOnFake, TunesOnceAndTakesItsChoiceFromTheFileAfterwards) {
  const DeviceConfig tuned{.device = "cuda", .autotune = choices()};
  const auto plain = run(op, memory);
  const fake_cuda::Machine machine{.fastest_algorithm = 2};
  restart(machine, tuned);
  const auto first = run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_EQ(first, plain);
  EXPECT_GT(fake_cuda::calls("cublasLtMatmul"), 4);

  restart(machine, tuned);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1) << "nothing is timed again";
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic"), 0);
}

/// This user's cache is in the test's folder.
class TuningOnFake : public ProductOnFake {
 protected:
  void SetUp() override {
    ProductOnFake::SetUp();
    setenv("XDG_CACHE_HOME", folder().c_str(), 1);
    tuned.tuned_flop = 1;
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    ProductOnFake::TearDown();
  }

  const fake_cuda::Machine machine{.fastest_algorithm = 2};
  DeviceConfig tuned{.device = "cuda"};
};

TEST_F(TuningOnFake, TimesLargeProductsUnaskedAndFindsThemInTheCacheAfterwards) {
  restart(machine, {.device = "cuda"});
  const auto plain = run(op, memory);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1) << "a product of 144 flop is not timed";
  EXPECT_EQ(fake_cuda::last_algorithm(), 0);
  EXPECT_EQ(device->product_choices(), "");

  restart(machine, tuned);
  EXPECT_EQ(run(op, memory), plain);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_GT(fake_cuda::calls("cublasLtMatmul"), 4);
  EXPECT_NE(device->product_choices(), "");

  restart(machine, tuned);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1) << "nothing is timed again";
  EXPECT_TRUE(std::filesystem::exists(folder() / "barestep" /
                                      "products_Fake_GPU_with_cuBLASLt_13.1.0_in_fp32.json"));

  restart({.lt_version = 130200, .fastest_algorithm = 1}, tuned);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 1) << "another library has a cache of its own";
}

TEST_F(TuningOnFake, TimesProductsOf20MflopUnlessToldOtherwise) {
  restart(machine, {.device = "cuda"});
  const auto runs_of = [&](std::int64_t depth) {
    Memory large;
    const Gemm gemm{large.add(200, 500), large.add(200, depth), large.add(depth, 500)};
    const int before = fake_cuda::calls("cublasLtMatmul");
    device->prepare(gemm);
    return fake_cuda::calls("cublasLtMatmul") - before;
  };
  EXPECT_EQ(runs_of(99), 0) << "2 * 200 * 500 * 99 flop";
  EXPECT_GT(runs_of(100), 4);
}

TEST_F(TuningOnFake, TimesOperandsInTheCacheIfEverythingFitsThere) {
  const auto fills_of = [&](int cache_bytes) {
    fake_cuda::Machine other = machine;
    other.cache_bytes = cache_bytes;
    restart(other, tuned);
    const DeviceMemory of_the_step(*device, 1 << 17);
    const int before = fake_cuda::calls("cudaMemsetAsync");
    device->prepare(op);
    return fake_cuda::calls("cudaMemsetAsync") - before;
  };
  const int cold = fills_of(1 << 16);
  EXPECT_THAT(device->product_choices(), Not(HasSubstr("cached")));
  const int warm = fills_of(1 << 18);
  EXPECT_GE(cold, warm + 5) << "the cache is emptied before each run";
  EXPECT_THAT(device->product_choices(), HasSubstr("\"cached\": true"))
      << "chosen anew, not taken from the cache's file";
  EXPECT_EQ(fills_of(1 << 18), 0) << "now it is taken from there";
}

TEST_F(TuningOnFake, TimesNothingWhereItIsOff) {
  tuned.autotunes = false;
  restart(machine, tuned);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 0);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1);
}

TEST_F(TuningOnFake, TakesTheChoicesOfAnotherDeviceAndTimesNothingMore) {
  restart(machine, tuned);
  device->prepare(op);
  const std::string choices = device->product_choices();
  tuned.tuned_flop = 2;
  std::filesystem::remove_all(folder() / "barestep");
  restart({.fastest_algorithm = 3}, tuned);
  device->set_product_choices(choices);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_EQ(device->product_choices(), choices);
  Memory other_memory;
  const Gemm other{other_memory.add(3, 6), other_memory.add(3, 3), other_memory.add(3, 6)};
  run(other, other_memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 0) << "the library's first";
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 2);
}

/// Rank 0 times products before the memory of a step is there, all others use them after it.
TEST_F(TuningOnFake, TakesChoicesThatWereMadeBeforeTheStepsMemoryWasAllocated) {
  restart(machine, tuned);
  device->prepare(op);
  const std::string choices = device->product_choices();
  EXPECT_THAT(choices, HasSubstr("\"cached\": true"));
  std::filesystem::remove_all(folder() / "barestep");
  restart(machine, tuned);
  device->set_product_choices(choices);
  const DeviceMemory of_the_step(*device, 1 << 20);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 1);
}

TEST_F(TuningOnFake, LeavesChoicesThatWereMadeElsewhereOrAreDamaged) {
  restart({.lt_version = 130200, .fastest_algorithm = 1}, tuned);
  device->prepare(op);
  for (const std::string& choices : {device->product_choices(), std::string("{"), std::string()}) {
    restart(machine, tuned);
    device->set_product_choices(choices);
    run(op, memory);
    EXPECT_EQ(fake_cuda::last_algorithm(), 2) << "its own";
  }
}

TEST_F(TuningOnFake, RefusesChoicesOfOthersThatDoNotRun) {
  restart(machine, tuned);
  device->prepare(op);
  const std::string choices = device->product_choices();
  restart(machine, tuned);
  device->set_product_choices(choices);
  fake_cuda::fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_INVALID_VALUE);
  expect_error(ExitCode::kConfiguration,
               "--autotune 'on': rank 0's or the checkpoint's algorithm for 4x6x3 NT bias relu "
               "does not run here; use --autotune off",
               [&] { device->prepare(op); });
}

TEST_F(TuningOnFake, TimesAgainWhatTheCacheHasAndDoesNotRun) {
  restart(machine, tuned);
  device->prepare(op);
  restart({.fastest_algorithm = 1}, tuned);
  fake_cuda::fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_INVALID_VALUE);
  run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 1);
}

TEST_F(TuningOnFake, DoesWithoutWhereMemoryIsShortAndNobodyAskedForIt) {
  restart({.memory_bytes = std::int64_t{40} << 20}, tuned);
  device->prepare(op);
  EXPECT_EQ(device->product_choices(), "");
}

/// An op that our kernel for few rows takes, and a GPU on which all of cuBLASLt's are slower.
class SkinnyOnFake : public TuningOnFake {
 protected:
  void SetUp() override {
    TuningOnFake::SetUp();
    std::int64_t offset = 0;
    const auto add = [&](std::int64_t rows, std::int64_t cols) {
      const Tensor tensor{.buffer = 0, .offset_bytes = offset, .rows = rows, .cols = cols};
      offset = (tensor.end_bytes() + 255) / 256 * 256;
      return tensor;
    };
    op = {.c = add(5, 8),
          .a = add(5, 12),
          .b = add(8, 12),
          .transpose_b = true,
          .bias = add(1, 8),
          .activation = Activation::kRelu};
    memory.bytes().assign(static_cast<std::size_t>(offset), std::byte{});
    for (const Tensor& tensor : {op.a, op.b, *op.bias}) {
      float next = -1;
      for (float& value : memory.values(tensor)) value = next += 0.25F;  // exact in tf32
    }
  }
  [[nodiscard]] std::string library() const { return device->info().product_library; }

  const fake_cuda::Machine slow_library{.fastest_algorithm = -1};
  const std::string with_own =
      "cuBLASLt 13.1.0, products of few rows by a kernel of our own, which is faster here";
};

TEST_F(SkinnyOnFake, TakesOurKernelWhereItIsFasterAndFindsItInTheCacheAfterwards) {
  restart(machine, tuned);
  const auto by_library = run(op, memory);
  EXPECT_EQ(fake_cuda::last_algorithm(), 2) << "it is slower on the host";
  EXPECT_EQ(library(), "cuBLASLt 13.1.0");
  std::filesystem::remove_all(folder() / "barestep");

  restart(slow_library, tuned);
  EXPECT_EQ(run(op, memory), by_library) << "sums of few bits are exact";
  EXPECT_EQ(library(), with_own);
  const std::string choices = device->product_choices();

  restart(slow_library, tuned);
  EXPECT_EQ(run(op, memory), by_library);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 0) << "nothing is timed again";
  EXPECT_EQ(library(), with_own);

  std::filesystem::remove_all(folder() / "barestep");
  restart(machine, tuned);
  device->set_product_choices(choices);
  EXPECT_EQ(run(op, memory), by_library);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 0) << "another rank's choice";
}

TEST_F(SkinnyOnFake, IsNotTriedUntimedNorWithoutTf32) {
  restart(slow_library, {.device = "cuda"});
  run(op, memory);
  EXPECT_EQ(library(), "cuBLASLt 13.1.0");
  fake_cuda::Machine old = slow_library;
  old.capability = 7;
  restart(old, tuned);
  run(op, memory);
  EXPECT_EQ(library(), "cuBLASLt 13.1.0");
  fake_cuda::Machine with_old_code = slow_library;
  with_old_code.code_architecture = 75;
  restart(with_old_code, tuned);
  run(op, memory);
  EXPECT_EQ(library(), "cuBLASLt 13.1.0");
}

TEST_F(SkinnyOnFake, ComputesAnyRowsByTheSplitsOfOneNumberOfThem) {
  DeviceConfig shared = tuned;
  shared.rows_of_products = 64;
  restart(slow_library, shared);
  run(op, memory);
  EXPECT_EQ(library(), with_own);
  EXPECT_NE(device->product_choices().find("\"m\": 64"), std::string::npos);
}

/// In a graph, it is launched before a kernel of ours ahead of it has ended, and so is one after
/// it.
TEST_F(SkinnyOnFake, IsLaunchedAheadInAGraph) {
  restart(slow_library, tuned);
  const auto expected = run(op, memory);
  const auto bytes = static_cast<std::int64_t>(memory.bytes().size());
  const DeviceMemory on_device(*device, bytes);
  const Addresses addresses({std::vector{on_device.get()}});
  device->copy(on_device.get(), memory.bytes().data(), bytes, *stream);
  device->begin_capture(*stream);
  device->run(Fill{.out = op.c, .value = 3}, addresses, *stream, {});
  device->run(op, addresses, *stream, {});
  device->run(op, addresses, *stream, {});
  const auto graph = device->end_capture(*stream);
  EXPECT_EQ(fake_cuda::launched_ahead(), 2);
  device->launch(*graph, *stream, 0);
  std::vector<std::byte> result(memory.bytes().size());
  device->copy(result.data(), on_device.get(), bytes, *stream);
  stream->synchronize();
  EXPECT_EQ(result, expected);
}

TEST_F(SkinnyOnFake, PassesOverALaunchThatIsRefused) {
  restart(slow_library, tuned);
  fake_cuda::fail("kernel", 1, 1);
  run(op, memory);
  EXPECT_EQ(library(), "cuBLASLt 13.1.0");
}

/// The choice has splits for which the depth is too short.
TEST_F(SkinnyOnFake, RefusesAChoiceThatDoesNotRun) {
  const DeviceConfig by_file{.device = "cuda", .autotune = (folder() / "choices.json").string()};
  restart(slow_library, by_file);
  device->prepare(op);
  std::ifstream in(by_file.autotune);
  std::string text(std::istreambuf_iterator<char>(in), {});
  // "barestep skinny product 1", then the number of splits.
  const std::size_t at = text.find("6261726573746570");
  ASSERT_NE(at, std::string::npos);
  text.replace(at + 50, 2, "07");
  std::ofstream(by_file.autotune) << text;
  restart(slow_library, by_file);
  expect_error(ExitCode::kConfiguration,
               "': its algorithm for 5x8x12 NT bias relu does not run here; remove the file",
               [&] { device->prepare(op); });
}

/// An Attention and its gradient, on a GPU whose tensor cores are fast, and on one where they are
/// slow.
class AttentionOnFake : public TuningOnFake {
 protected:
  void SetUp() override {
    TuningOnFake::SetUp();
    const auto add = [&](std::int64_t cols) {
      Tensor tensor = memory.add(1, 10 * cols + 4);
      tensor.offset_bytes = (tensor.offset_bytes + 15) / 16 * 16;
      tensor.rows = 10;
      tensor.cols = cols;
      return tensor;
    };
    const AttentionShape shape{.heads = 2, .length = 5};
    forward = {.out = add(16), .kept = add(2), .qkv = add(48), .shape = shape};
    backward = {.grad_qkv = add(48),
                .qkv = forward.qkv,
                .out = forward.out,
                .grad_out = add(16),
                .kept = forward.kept,
                .shape = shape};
    std::uint64_t seed = 0;
    for (const Tensor& tensor : {forward.qkv, backward.out, backward.grad_out, backward.kept})
      TorchGenerator(++seed).randn(memory.values(tensor));
  }

  /// Whether running the op takes tensor cores.
  bool multiplies_on_tensor_cores(const DeviceOp& op) {
    device->prepare(op);
    const std::int64_t before = fake_cuda::tensor_products();
    run(op, memory);
    return fake_cuda::tensor_products() > before;
  }

  const fake_cuda::Machine fast{.fast_tensor_cores = 0}, slow{.fast_tensor_cores = 1};
  Attention forward;
  AttentionGrad backward;
};

TEST_F(AttentionOnFake, RunsOnTensorCoresWhereThatWasFaster) {
  const auto expect_on_tensor_cores = [&](bool on_them) {
    EXPECT_EQ(multiplies_on_tensor_cores(forward), on_them);
    EXPECT_EQ(multiplies_on_tensor_cores(backward), on_them);
    EXPECT_EQ(device->info().product_library,
              std::string("cuBLASLt 13.1.0") +
                  (on_them ? ", attention on tensor cores, which is faster here" : ""));
  };
  restart(slow, tuned);
  expect_on_tensor_cores(false);
  std::filesystem::remove_all(folder() / "barestep");
  restart(fast, tuned);
  expect_on_tensor_cores(true);
  const std::string choices = device->product_choices();
  std::filesystem::remove_all(folder() / "barestep");
  restart(slow, tuned);
  device->set_product_choices(choices);
  expect_on_tensor_cores(true);
  EXPECT_FALSE(std::filesystem::exists(folder() / "barestep")) << "another's choice is not kept";
}

TEST_F(AttentionOnFake, IsNotOnTensorCoresUntimedNorWithoutThem) {
  restart(machine, {.device = "cuda"});
  EXPECT_FALSE(multiplies_on_tensor_cores(backward)) << "small ones are not timed";
  EXPECT_EQ(device->product_choices(), "");
  DeviceConfig off = tuned;
  off.autotunes = false;
  restart(machine, off);
  EXPECT_FALSE(multiplies_on_tensor_cores(backward));
  fake_cuda::Machine old = machine;
  old.capability = 7;
  restart(old, tuned);
  EXPECT_FALSE(multiplies_on_tensor_cores(backward));
  EXPECT_EQ(device->product_choices(), "");
  restart({.memory_bytes = std::int64_t{40} << 20}, tuned);
  EXPECT_FALSE(multiplies_on_tensor_cores(backward)) << "there is no memory to time it";
}

/// The launch of the kernel of tensor cores fails, and that is no error.
TEST_F(AttentionOnFake, PassesOverALaunchThatIsRefused) {
  restart(machine, tuned);
  fake_cuda::fail("kernel", 6, 1);
  EXPECT_FALSE(multiplies_on_tensor_cores(forward));
  EXPECT_EQ(device->product_choices().find("other_us"), std::string::npos);
}

/// Fused updates over so many rows that x does not stay in shared memory.
TEST_F(TuningOnFake, TimesFusedUpdatesOverManyRowsInOtherTilesToo) {
  const auto op_of = [](Memory& of, std::int64_t rows) {
    const auto add = [&](std::int64_t number, std::int64_t cols) {
      Tensor tensor = of.add(1, number * cols + 4);
      tensor.offset_bytes = (tensor.offset_bytes + 15) / 16 * 16;
      tensor.rows = number;
      tensor.cols = cols;
      std::ranges::fill(of.values(tensor), 0.01F);
      return tensor;
    };
    return LinearAdam{.weight = add(64, 8),
                      .weight_moments1 = add(64, 8),
                      .weight_moments2 = add(64, 8),
                      .bias = add(1, 64),
                      .bias_moments1 = add(1, 64),
                      .bias_moments2 = add(1, 64),
                      .grad_y = add(rows, 64),
                      .x = add(rows, 8),
                      .scalars = add(1, 2)};
  };
  const auto kernels_of = [&](std::int64_t rows) {
    Memory of;
    const int before = fake_cuda::calls("kernel");
    device->prepare(op_of(of, rows));
    return fake_cuda::calls("kernel") - before;
  };
  restart(machine, tuned);
  EXPECT_EQ(kernels_of(128), 0);
  EXPECT_EQ(kernels_of(257), 10);
  EXPECT_EQ(kernels_of(129), 20) << "tall tiles, and tiles that keep x";
  EXPECT_EQ(kernels_of(129), 0) << "it is known";
  Memory many;
  const LinearAdam update = op_of(many, 129);
  const auto result = run(update, many);
  device->prepare(op);
  const std::string choices = device->product_choices();
  std::filesystem::remove_all(folder() / "barestep");
  restart(machine, tuned);
  device->set_product_choices(choices);
  EXPECT_EQ(kernels_of(129), 0) << "as another device timed it";
  EXPECT_EQ(kernels_of(257), 0);
  EXPECT_EQ(kernels_of(130), 20) << "with the choices of another too, as the bits are the same";
  tuned.autotunes = false;
  restart(machine, tuned);
  EXPECT_EQ(kernels_of(129), 0);
  EXPECT_EQ(run(update, many), result);
}

/// The launches of a step on an H200, without those of its input, if kernels of ours are taken
/// wherever they run.
std::int64_t launches_with_own(const TrainConfig& config) {
  const KernelTarget target{
      .geometry = {.multiprocessors = 132, .threads_per_multiprocessor = 2048},
      .tensor_cores = config.device.precision != Precision::kFp32,
      .has_tf32 = true};
  const StepPrograms programs(spec_of(config, DeviceKind::kCuda, nullptr), nullptr);
  std::vector<const DeviceOp*> ops;
  for (const Node& node : programs.train().program.nodes()) {
    const auto* const op = std::get_if<DeviceOp>(&node.op);
    if (op != nullptr && node.phase != Phase::kData) ops.push_back(op);
  }
  std::int64_t launches = 0;
  for (std::span<const DeviceOp* const> rest = ops; !rest.empty();) {
    const auto* const gemm = std::get_if<Gemm>(rest.front());
    const bool is_own = gemm != nullptr && !skinny_products(shape_of(*gemm), target).empty();
    const bool includes = is_own && rest.size() > 1 && skinny_includes(*gemm, *rest[1]);
    const std::size_t joined = includes ? 2 : updates_of_one_launch(rest, target);
    launches += joined > 1 ? 1 : launches_of(*rest.front());
    rest = rest.subspan(std::max<std::size_t>(joined, 1));
  }
  return launches;
}

/// In 16 bits, the batch is rounded first.
TEST(LaunchesOfAStep, AreFourOf1024x2AndFiveIn16Bits) {
  TrainConfig config;
  config.model = {.dim = 1024, .depth = 2};
  config.parallel.scheme = SchemeKind::kSingle;
  config.training.update = Update::kFused;
  for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
    SCOPED_TRACE(name_of(precision));
    config.device.precision = precision;
    for (const LossKind loss : {LossKind::kMse, LossKind::kL1, LossKind::kHuber}) {
      config.model.loss = loss;
      EXPECT_EQ(launches_with_own(config), precision == Precision::kBf16 ? 5 : 4) << name_of(loss);
    }
  }
}

TEST_F(ProductOnFake, RefusesChoicesThatWereMadeElsewhere) {
  const std::string path = choices();
  const DeviceConfig tuned{.device = "cuda", .autotune = path};
  restart({}, tuned);
  device->prepare(op);
  close();
  const auto refused = [&](const fake_cuda::Machine& machine, const DeviceConfig& config,
                           const std::string& text) {
    fake_cuda::reset(machine);
    expect_error(ExitCode::kConfiguration, "--autotune '" + path + "': " + text,
                 [&] { make_cuda_device(config, 0); });
  };
  refused({.lt_version = 130200}, tuned,
          "was made on Fake GPU with cuBLASLt 13.1.0 in fp32, this is Fake GPU with cuBLASLt "
          "13.2.0 in fp32; remove the file, or name another");
  refused({}, {.device = "cuda", .precision = Precision::kTf32, .autotune = path},
          "was made on Fake GPU with cuBLASLt 13.1.0 in fp32, this is");
}

TEST_F(ProductOnFake, RefusesAnAlgorithmOfTheFileThatDoesNotRun) {
  const std::string path = choices();
  restart({}, {.device = "cuda", .autotune = path});
  device->prepare(op);
  restart({}, {.device = "cuda", .autotune = path});
  fake_cuda::fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_INVALID_VALUE);
  expect_error(ExitCode::kConfiguration,
               "': its algorithm for 4x6x3 NT bias relu does not run here; remove the file",
               [&] { device->prepare(op); });
}

TEST_F(ProductOnFake, TuningThatFindsNoMemorySaysSo) {
  restart({.memory_bytes = std::int64_t{40} << 20}, {.device = "cuda", .autotune = choices()});
  expect_error(ExitCode::kMemory, "32.00 MiB asked for", [&] { device->prepare(op); });
}

}  // namespace
}  // namespace barestep
