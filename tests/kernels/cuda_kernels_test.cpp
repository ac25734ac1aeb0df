// Our CUDA kernels, run on the host through their launchers, compared with the CPU device's loops.
#include <sanitizer/asan_interface.h>

#include "core/operands.h"
#include "core/printer.h"
#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/op_cases.h"
#include "support/expect_error.h"
#include "support/host_cuda.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

using host_cuda::Order;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kUlp = 1.2e-7;  // relative spacing of floats
constexpr std::int64_t kSizes[] = {0, 1, 3, 4, 31, 33, 257, 4099};

/// A GPU so small that threads loop, and one so large that most threads have no work.
constexpr CudaGeometry kSmall{.multiprocessors = 2, .threads_per_multiprocessor = 256};
constexpr CudaGeometry kLarge{};

/// Memory as of a stream: aligned, and full of earlier results.
struct alignas(16) Workspace {
  std::byte bytes[kLaunchWorkspaceBytes];
  unsigned finished_blocks = 0;
  Workspace() { std::memset(bytes, 0xFF, sizeof(bytes)); }
  [[nodiscard]] LaunchMemory memory() { return {bytes, &finished_blocks}; }
};

/// Only memory that the op declares may be accessed: the sanitizer reports the rest.
class Fences {
 public:
  Fences(const DeviceOp& op, Memory& memory) : bytes_(memory.bytes()) {
    ASAN_POISON_MEMORY_REGION(bytes_.data(), bytes_.size());
    for (const Access& access : accesses_of(Op(op))) {
      const auto open = memory.bytes(access.tensor);
      ASAN_UNPOISON_MEMORY_REGION(open.data(), open.size());
    }
  }
  ~Fences() { ASAN_UNPOISON_MEMORY_REGION(bytes_.data(), bytes_.size()); }
  Fences(const Fences&) = delete;
  Fences& operator=(const Fences&) = delete;

 private:
  std::vector<std::byte>& bytes_;
};

void run_as_cuda(const DeviceOp& op, Memory& memory, const CudaGeometry& geometry = kSmall) {
  const auto workspace = std::make_unique<Workspace>();
  const Fences fences(op, memory);
  ASSERT_EQ(launch(op, memory.addresses(), workspace->memory(), {.geometry = geometry}, nullptr),
            0);
  EXPECT_EQ(workspace->finished_blocks, 0U) << "the next launch would count wrong";
}

void run_on_cpu(const DeviceOp& op, Memory& memory) {
  ThreadPool pool(1);
  const auto product = make_reference_product();
  CpuOps ops(pool, *product);
  ops.prepare(op);
  ops.run(op, memory.addresses());
}

bool has_kernel(const DeviceOp& op) {
  const auto* randn = std::get_if<Randn>(&op);
  return !std::holds_alternative<Gemm>(op) && !std::holds_alternative<Copy>(op) &&
         (randn == nullptr || randn->generator == Generator::kTorchCuda);
}

/// Ops over 4099 numbers, a size that the common cases do not include.
std::vector<OpCase> long_cases() {
  constexpr std::int64_t kRows = 4099;
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const auto& make) {
    OpCase op_case{name, {}, {}};
    op_case.op = make(op_case.memory);
    std::uint64_t seed = 1;
    for (const Access& access : accesses_of(Op(op_case.op))) {
      if (!access.writes && access.tensor.dtype == DType::kF32)
        TorchGenerator(++seed).randn(op_case.memory.values(access.tensor));
    }
    cases.push_back(std::move(op_case));
  };
  for (const auto& [rows, cols] : {std::pair(kRows, std::int64_t{1}), {std::int64_t{1}, kRows}}) {
    add("long bias_relu", [&, r = rows, c = cols](Memory& memory) {
      return BiasActivation{memory.add(r, c), memory.add(1, c)};
    });
    add("long sum_rows", [&, r = rows, c = cols](Memory& memory) {
      return SumRows{memory.add(1, c), memory.add(r, c)};
    });
    add("long squared_errors", [&, r = rows, c = cols](Memory& memory) {
      return SquaredErrors{memory.add(1, c), memory.add(r, c), memory.add(r, c)};
    });
    add("long mse_loss", [&, r = rows, c = cols](Memory& memory) {
      return PointwiseLoss{memory.add(1, 1), memory.add(r, c), memory.add(r, c), memory.add(r, c),
                           kRows};
    });
  }
  // One warp per row, so there are fewer rows.
  for (const auto& [rows, cols] :
       {std::pair(std::int64_t{300}, std::int64_t{1}), {std::int64_t{1}, kRows}}) {
    add("long cross_entropy", [&, r = rows, c = cols](Memory& memory) {
      return CrossEntropy{memory.add(1, 1), memory.add(r, c), memory.add(r, c),
                          memory.add(r, 1, DType::kI32), r};
    });
    add("long count_correct", [&, r = rows, c = cols](Memory& memory) {
      return CountCorrect{memory.add(1, 1, DType::kI32), memory.add(r, c),
                          memory.add(r, 1, DType::kI32)};
    });
  }
  return cases;
}

/// Leaves out the largest common shapes, which fill the CPU's tasks, because fibers are slow.
std::vector<OpCase> kernel_cases() {
  constexpr std::size_t kLargestBytes = 120'000;
  std::vector<OpCase> cases = long_cases();
  for (OpCase& op_case : all_op_cases()) {
    if (has_kernel(op_case.op) && op_case.memory.bytes().size() <= kLargestBytes)
      cases.push_back(std::move(op_case));
  }
  return cases;
}

/// Memory that is NaN except for the tensors that the op declares to read.
Memory input_of(OpCase& op_case) {
  Memory memory = op_case.memory;
  std::ranges::fill(memory.bytes(), std::byte{0xFF});
  for (const Access& access : accesses_of(Op(op_case.op))) {
    if (!access.writes)
      std::ranges::copy(op_case.memory.bytes(access.tensor), memory.bytes(access.tensor).begin());
  }
  return memory;
}

/// Takes an op's memory away from kernels that have not yet waited for the previous ones.
class Absence {
 public:
  explicit Absence(Memory& memory) : numbers_(memory.bytes()) {
    active_ = this;
    host_cuda::set_gate([](bool open) { open ? active_->end() : active_->begin(); });
  }
  ~Absence() { host_cuda::set_gate(nullptr); }
  Absence(const Absence&) = delete;
  Absence& operator=(const Absence&) = delete;

  /// The number of blocks without memory, and whether one of them wrote meanwhile.
  int blocks = 0;
  bool was_written = false;

 private:
  void begin() {
    kept_ = numbers_;
    std::ranges::fill(numbers_, std::byte{0xFF});
    ++blocks;
  }
  void end() {
    was_written |= std::ranges::any_of(numbers_, [](std::byte b) { return b != std::byte{0xFF}; });
    numbers_ = kept_;
  }

  static inline Absence* active_ = nullptr;
  std::vector<std::byte>& numbers_;
  std::vector<std::byte> kept_;
};

// Every kernel may be launched before the previous one has ended.
TEST(CudaKernels, TouchNothingBeforeTheKernelsAheadOfThemHaveEnded) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  int launched_ahead = 0;
  for (OpCase& op_case : kernel_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory plain = op_case.memory;
    Memory ahead = op_case.memory;
    const auto workspace = std::make_unique<Workspace>();
    ASSERT_EQ(
        launch(op_case.op, plain.addresses(), workspace->memory(), {.geometry = kSmall}, nullptr),
        0);
    bool follows_kernel = true;
    Absence absence(ahead);
    const KernelTarget target{.geometry = kSmall, .follows_kernel = &follows_kernel};
    ASSERT_EQ(launch(op_case.op, ahead.addresses(), workspace->memory(), target, nullptr), 0);
    EXPECT_EQ(ahead.bytes(), plain.bytes());
    EXPECT_FALSE(absence.was_written);
    launched_ahead += absence.blocks > 0 ? 1 : 0;
  }
  EXPECT_GT(launched_ahead, 100);
}

/// Compares results: to the bit if CPU and GPU compute the same in the same order.
struct Compare {
  Memory& input;
  Memory& cpu;
  Memory& cuda;

  /// Of most ops.
  void operator()(const auto& op) const {
    for (const Access& access : accesses_of(Op(DeviceOp(op)))) {
      if (access.writes) expect_equal(access.tensor);
    }
  }
  void operator()(const ActivationGrad& op) const {
    expect_equal(op.grad);
    if (op.sums) (*this)(SumRows{.out = *op.sums, .in = op.grad, .beta = op.beta});
  }
  // Only one side fuses its sums to the end, so a gradient may be rounded to its other neighbor.
  void operator()(const LinearAdam& op) const {
    for (const Access& access : accesses_of(Op(DeviceOp(op)))) {
      if (!access.writes) continue;
      const Tensor& tensor = access.tensor;
      for (std::int64_t i = 0; i < tensor.size(); ++i)
        ASSERT_NEAR(at(cuda, tensor, i), at(cpu, tensor, i),
                    (1e-5 + 2 * step_of(op.x)) * (1 + std::abs(at(cpu, tensor, i))));
    }
  }
  void operator()(const SumSquares& op) const { expect_near(op.out, 2 * kUlp); }
  // The terms have both signs, so the sum may be smaller than they are.
  void operator()(const GramSquares& op) const {
    EXPECT_NEAR(at(cuda, op.out, 0), at(cpu, op.out, 0),
                2 * kUlp * std::abs(at(cpu, op.out, 0)) + 1e-12);
  }
  void operator()(const PointwiseLoss& op) const {
    expect_equal(op.grad);
    expect_loss(op.loss);
  }
  void operator()(const SquaredErrors& op) const {
    // The longest chain of terms, all of one sign, and the two roundings of a term.
    const double depth = static_cast<double>(op.output.rows) / 8 + 10;
    for (std::int64_t col = 0; col < op.output.cols; ++col) {
      const double sum = at(cpu, op.out, col);
      ASSERT_NEAR(at(cuda, op.out, col), sum, depth * kUlp * sum);
    }
  }
  void operator()(const SumRows& op) const {
    for (std::int64_t col = 0; col < op.in.cols; ++col) {
      double size = op.beta == 0 ? 0 : std::abs(at(input, op.out, col));
      for (std::int64_t row = 0; row < op.in.rows; ++row)
        size += std::abs(at(input, op.in, row * op.in.cols + col));
      // The longest chain of terms: a thread's, then the tile's.
      const double depth = static_cast<double>(op.in.rows) / 8 + 8;
      ASSERT_NEAR(at(cuda, op.out, col), at(cpu, op.out, col),
                  depth * kUlp * size + step_of(op.out) * std::abs(at(cpu, op.out, col)));
    }
  }
  void operator()(const CrossEntropy& op) const {
    // Only the sum of a row's exponentials has a different order.
    const double each = 20 * kUlp / static_cast<double>(op.count);
    for (std::int64_t i = 0; i < op.grad.size(); ++i)
      ASSERT_NEAR(at(cuda, op.grad, i), at(cpu, op.grad, i),
                  each + step_of(op.grad) * std::abs(at(cpu, op.grad, i)));
    expect_loss(op.loss);
  }
  void operator()(const LayerNorm& op) const {
    for (const Tensor& tensor : {op.y, op.mean, op.rstd}) expect_close(tensor, 2e-6);
  }
  void operator()(const LayerNormGrad& op) const {
    expect_close(op.grad_weight, 1e-5);
    expect_close(op.grad_bias, 1e-5);
    if (op.grad_x) expect_close(*op.grad_x, 2e-6);
  }
  // 16-bit exponentials are rounded relative to the largest of the tiles so far.
  void operator()(const Attention& op) const {
    expect_close(op.out, 2e-6 + step_of(op.out));
    expect_close(op.kept, 2e-6);
  }
  void operator()(const AttentionGrad& op) const {
    expect_close(op.grad_qkv, 4e-6 + 2 * step_of(op.out));
  }

 private:
  static double at(Memory& memory, const Tensor& tensor, std::int64_t i) {
    return with_number(tensor.dtype, [&]<class Number>(Number) -> double {
      return float_of(memory.values<Number>(tensor)[static_cast<std::size_t>(i)]);
    });
  }
  /// How far a number may be off because earlier rounding to the tensor's type went to another
  /// neighbor.
  static double step_of(const Tensor& tensor) {
    return tensor.dtype == DType::kBF16 ? 0x1p-7 : tensor.dtype == DType::kF16 ? 0x1p-10 : 0;
  }
  void expect_equal(const Tensor& tensor) const {
    EXPECT_TRUE(std::ranges::equal(cuda.bytes(tensor), cpu.bytes(tensor)));
  }
  void expect_near(const Tensor& sum, double tolerance) const {
    EXPECT_NEAR(at(cuda, sum, 0), at(cpu, sum, 0), tolerance * std::abs(at(cpu, sum, 0)));
  }
  void expect_close(const Tensor& tensor, double error) const {
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const double expected = at(cpu, tensor, i);
      ASSERT_NEAR(at(cuda, tensor, i), expected,
                  error * (1 + std::abs(expected)) + step_of(tensor) * std::abs(expected));
    }
  }
  void expect_loss(const Tensor& loss) const {
    EXPECT_NEAR(at(cuda, loss, 0), at(cpu, loss, 0), 10 * kUlp * (1 + std::abs(at(cpu, loss, 0))));
  }
};

TEST(CudaKernels, AgreeWithTheCpuDeviceInAnyOrderOfThreads) {
  for (OpCase& op_case : kernel_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory input = input_of(op_case);
    Memory cpu = input;
    run_on_cpu(op_case.op, cpu);
    Memory large = input;
    run_as_cuda(op_case.op, large, kLarge);
    std::visit(Compare{input, cpu, large}, op_case.op);
    Memory forward = input;
    run_as_cuda(op_case.op, forward, kSmall);
    std::visit(Compare{input, cpu, forward}, op_case.op);
    Memory backward = input;
    host_cuda::set_order(Order::kLastThread);
    run_as_cuda(op_case.op, backward, kSmall);
    host_cuda::set_order(Order::kFirstThread);
    EXPECT_EQ(forward.bytes(), backward.bytes());
  }
}

/// Kernels that replace two ops.
TEST(CudaKernels, FusedHaveTheBitsOfTheOpsThatTheyReplace) {
  for (const std::int64_t cols : {36, 33}) {  // with 16-byte accesses, and without
    for (const std::int64_t rows : {0, 1, 40}) {
      Memory memory;
      const Tensor grad = memory.add(rows, cols);
      const Tensor output = memory.add(rows, cols);
      const Tensor target = memory.add(rows, cols);
      const Tensor sums = memory.add(1, cols);
      const Tensor loss = memory.add(1, 1);
      std::uint64_t seed = 0;
      for (const Tensor& tensor : {grad, output, target, sums}) {
        TorchGenerator(++seed).randn(memory.values(tensor));
      }
      const auto run_all = [&](const std::vector<DeviceOp>& ops) {
        Memory after = memory;
        for (const DeviceOp& op : ops) run_as_cuda(op, after);
        return after.bytes();
      };
      const ActivationGrad relu{grad, output};
      ActivationGrad with_sums = relu;
      with_sums.sums = sums;
      with_sums.beta = 1;
      EXPECT_EQ(run_all({with_sums}), run_all({relu, SumRows{.out = sums, .in = grad, .beta = 1}}));
      const PointwiseLoss plain{
          .loss = loss, .grad = grad, .output = output, .target = target, .count = 40 * cols};
      PointwiseLoss with_relu = plain;
      with_relu.activation = Activation::kRelu;
      EXPECT_EQ(run_all({with_relu}), run_all({plain, relu}));
    }
  }
}

/// The launches that --explain counts.
TEST(CudaKernels, AreAsManyAsTheProgramSays) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  for (OpCase& op_case : kernel_cases()) {
    SCOPED_TRACE(op_case.name);
    const Op op(op_case.op);
    Memory memory = input_of(op_case);
    const int before = host_cuda::launches();
    run_as_cuda(op_case.op, memory, kLarge);
    const int launched = host_cuda::launches() - before;
    const std::vector<Operand> operands = operands_of(op);
    if (operands.empty()) continue;  // a delay
    const Tensor& first = *operands.front().tensor;
    if (first.size() == 0) continue;
    if (std::holds_alternative<Fill>(op_case.op) && first.dtype != DType::kF32) {
      EXPECT_EQ(launched, 0) << "the runtime's memset, which is a launch too";
      continue;
    }
    // Our own int8 product replaces the library's product and the op after it.
    const bool is_own = std::holds_alternative<QuantizedGemm>(op_case.op);
    EXPECT_EQ(launched, launches_of(op_case.op) - (is_own ? 1 : 0));
  }
}

/// Dequantizing cuBLASLt's sums in place gives the same bits as our product.
TEST(CudaInt8, DequantizesInPlaceToTheBitsOfTheWholeProduct) {
  for (OpCase& op_case : kernel_cases()) {
    const auto* const op = std::get_if<QuantizedGemm>(&op_case.op);
    if (op == nullptr) continue;
    SCOPED_TRACE(op_case.name);
    Memory whole = input_of(op_case);
    Memory in_place = whole;
    run_as_cuda(*op, whole);
    const auto a = in_place.values<std::int8_t>(op->a);
    const auto b = in_place.values<std::int8_t>(op->b);
    for (std::int64_t i = 0; i < op->c.size(); ++i) {
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < op->a.cols; ++k) {
        sum += a[static_cast<std::size_t>(i / op->c.cols * op->a.cols + k)] *
               b[static_cast<std::size_t>(i % op->c.cols * op->a.cols + k)];
      }
      std::memcpy(&in_place.values(op->c)[static_cast<std::size_t>(i)], &sum, sizeof(sum));
    }
    ASSERT_EQ(launch_dequantize(*op, in_place.addresses(), kSmall, nullptr), 0);
    EXPECT_EQ(in_place.bytes(), whole.bytes());
  }
}

/// An optimizer over n numbers that start `shift` numbers after a multiple of 16 bytes, each array
/// followed by a fence.
class OptimizerArrays {
 public:
  OptimizerArrays(std::int64_t n, std::int64_t shift) {
    for (int i = 0; i < 5; ++i) {
      const std::int64_t cols = i == 4 ? 3 : n;
      tensors_.push_back({i, shift * 4, 1, cols});
      arrays_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(1, shift + cols)));
      TorchGenerator(static_cast<std::uint64_t>(i)).uniform(arrays_.back(), 0.1, 1);
    }
  }

  /// Every kind, with and without its optional parts.
  [[nodiscard]] std::vector<DeviceOp> ops() const {
    std::vector<DeviceOp> all;
    const auto add = [&](const OptimizerStep& step, const std::vector<Tensor>& state) {
      all.emplace_back(OptimizerUpdate{.weights = tensors_[0],
                                       .grads = tensors_[1],
                                       .state = state,
                                       .scalars = tensors_[4],
                                       .step = step});
    };
    const std::vector<Tensor> moments{tensors_[2], tensors_[3]};
    add(AdamStep{}, moments);
    add(AdamStep{.weight_decay = 0.25}, moments);
    add(AdamStep{.weight_decay = 0.25, .decoupled = true}, moments);
    add(SgdStep{}, {});
    add(SgdStep{.momentum = 0.75}, {tensors_[2]});
    add(SgdStep{.momentum = 0.75, .weight_decay = 0.25, .nesterov = true}, {tensors_[2]});
    for (const float beta : {0.0F, 1.0F, 1.0F / 3}) {
      all.emplace_back(SumRows{.out = tensors_[0], .in = tensors_[1], .beta = beta});
      Tensor no_rows = tensors_[0];
      no_rows.rows = 0;
      all.emplace_back(SumRows{.out = tensors_[2], .in = no_rows, .beta = beta});
    }
    return all;
  }
  [[nodiscard]] Addresses addresses() {
    std::vector<std::byte*> bases;
    for (auto& array : arrays_) bases.push_back(reinterpret_cast<std::byte*>(array.data()));
    return Addresses(bases);
  }
  [[nodiscard]] const std::vector<std::vector<float>>& arrays() const { return arrays_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::vector<float>> arrays_;
};

TEST(CudaFlatOps, HaveTheCpusBitsForEverySizeAndAlignment) {
  ThreadPool pool(1);
  const auto product = make_reference_product();
  for (const std::int64_t n : kSizes) {
    for (const std::int64_t shift : {0, 1, 2, 4}) {
      OptimizerArrays cpu(n, shift);
      OptimizerArrays cuda(n, shift);
      for (const DeviceOp& op : cpu.ops()) {
        SCOPED_TRACE(testing::Message()
                     << label_of(op) << ", " << n << " numbers, moved by " << shift);
        CpuOps(pool, *product).run(op, cpu.addresses());
        const int before = host_cuda::launches();
        ASSERT_EQ(launch(op, cuda.addresses(), {}, {.geometry = kSmall}, nullptr), 0);
        EXPECT_EQ(host_cuda::launches() - before, n == 0 ? 0 : 1);
        EXPECT_EQ(cuda.arrays(), cpu.arrays());
      }
    }
  }
}

/// The ops with kernels that move 16 bytes at a time, over rows x cols numbers of `type`. Each
/// tensor begins `shift` numbers after a multiple of 64 bytes.
class PackedOps {
 public:
  PackedOps(std::int64_t rows, std::int64_t cols, DType type, std::int64_t shift) : shift_(shift) {
    const Tensor one = add(1, 1, DType::kF32);
    const Tensor values = add(rows, cols, type);
    const Tensor from = add(rows, cols, type);
    const Tensor kept = add(rows, cols, type);
    const Tensor floats = add(rows, cols, DType::kF32);
    const Tensor sums = add(1, cols, type);
    const Tensor step = add(1, 1, DType::kI32);
    const Tensor labels = add(rows, 1, DType::kI32);
    const Tensor bias = add(1, cols, DType::kF32);
    all_ = {
        BiasActivation{.values = values, .activation = Activation::kRelu},
        BiasActivation{.values = values, .activation = Activation::kGelu, .pre_activation = kept},
        ActivationGrad{.grad = values, .from = from, .activation = Activation::kRelu},
        Dropout{.values = values, .step = step, .rate = 0.5},
        SumRows{.out = sums, .in = from},
        PointwiseLoss{one, kept, values, floats, rows * cols},
        CrossEntropy{one, kept, from, labels, rows},
        CheckFinite{.found_inf = one, .in = from}};
    if (type == DType::kF32) {
      all_.emplace_back(Fill{values, 3});
      all_.emplace_back(BiasActivation{
          .values = from, .bias = bias, .activation = Activation::kGelu, .pre_activation = kept});
    } else {
      all_.emplace_back(Cast{.to = floats, .from = values, .scale = 0.5F});
      all_.emplace_back(Cast{.to = from, .from = floats, .beta = 0.75F});
    }
    memory_.bytes().resize(static_cast<std::size_t>(end_ + 64));
    std::uint64_t seed = 0;
    for (const Tensor& tensor : {values, from, kept, floats, sums, bias}) {
      std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
      if (!numbers.empty()) TorchGenerator(++seed).uniform(numbers, -2, 2);
      set_numbers(memory_, tensor, numbers);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      memory_.values<std::int32_t>(labels)[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(row % cols);
    }
  }

  [[nodiscard]] const std::vector<DeviceOp>& all() const { return all_; }
  [[nodiscard]] Memory memory() const { return memory_; }

  /// The memory with everything the op has written set to zero.
  [[nodiscard]] static std::vector<std::byte> rest(const DeviceOp& op, Memory memory) {
    for (const Access& access : accesses_of(Op(op))) {
      if (access.writes) std::ranges::fill(memory.bytes(access.tensor), std::byte{0});
    }
    return memory.bytes();
  }

  /// Only what the op has written.
  [[nodiscard]] static std::vector<std::byte> written(const DeviceOp& op, Memory& memory) {
    std::vector<std::byte> bytes;
    for (const Access& access : accesses_of(Op(op))) {
      if (!access.writes) continue;
      const auto own = memory.bytes(access.tensor);
      bytes.insert(bytes.end(), own.begin(), own.end());
    }
    return bytes;
  }

 private:
  Tensor add(std::int64_t rows, std::int64_t cols, DType type) {
    const Tensor tensor{0, end_ + shift_ * bytes_of(type), rows, cols, type};
    end_ = (tensor.end_bytes() + 63) / 64 * 64;
    return tensor;
  }

  std::int64_t shift_;
  std::int64_t end_ = 0;
  Memory memory_;
  std::vector<DeviceOp> all_;
};

TEST(CudaPackedOps, HaveTheSameBitsAtAnyAlignment) {
  const auto sums = [](const DeviceOp& op) {
    return std::holds_alternative<SumRows>(op) || std::holds_alternative<PointwiseLoss>(op) ||
           std::holds_alternative<CrossEntropy>(op);
  };
  for (const auto& [rows, cols] :
       {std::pair{1, 1}, {3, 5}, {1, 257}, {9, 64}, {2, 128}, {3, 260}, {2, 264}, {17, 36}}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      const PackedOps aligned(rows, cols, type, 0);
      for (const std::int64_t shift : {0, 1, 2, 4, 8}) {
        const PackedOps moved(rows, cols, type, shift);
        for (std::size_t i = 0; i < moved.all().size(); ++i) {
          const DeviceOp& op = moved.all()[i];
          SCOPED_TRACE(testing::Message() << label_of(op) << " " << i << ", " << rows << " x "
                                          << cols << " of " << name_of(type) << " by " << shift);
          Memory cuda = moved.memory();
          run_as_cuda(op, cuda);
          Memory other = aligned.memory();
          if (sums(op)) {
            run_as_cuda(aligned.all()[i], other);
          } else {
            run_on_cpu(aligned.all()[i], other);
          }
          EXPECT_EQ(PackedOps::written(op, cuda), PackedOps::written(aligned.all()[i], other));
          EXPECT_EQ(PackedOps::rest(op, cuda), PackedOps::rest(op, moved.memory()));
        }
      }
    }
  }
}

TEST(CudaPackedOps, TakeAThreadForEach16BytesAndNoMoreBlocksThanRunAtOnce) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Memory memory;
    const Tensor grad = memory.add(64, 1024, type);
    const ActivationGrad op{grad, memory.add(64, 1024, type), Activation::kRelu};
    run_as_cuda(op, memory, kLarge);
    EXPECT_EQ(host_cuda::launched_threads(), 64 * 1024 * bytes_of(type) / 16);
    run_as_cuda(op, memory, kSmall);
    EXPECT_EQ(host_cuda::launched_threads(), 2 * 2048) << "two multiprocessors' threads";
  }
}

/// Sums gradients: with a tile of eight rows, seven of eight threads would be idle.
TEST(CudaFlatOps, AddARowByAThreadForEachFourNumbers) {
  constexpr std::int64_t kNumbers = 64 * 1024;
  Memory memory;
  const Tensor out = memory.add(1, kNumbers);
  run_as_cuda(SumRows{.out = out, .in = memory.add(1, kNumbers), .beta = 1}, memory, kLarge);
  EXPECT_EQ(host_cuda::launched_threads(), kNumbers / 4);
}

TEST(CudaRandn, DrawsWhatTheHostsModelOfPyTorchDraws) {
  for (const CudaGeometry& geometry : {kSmall, CudaGeometry{1, 1024}, kLarge}) {
    for (const std::int64_t n : kSizes) {
      SCOPED_TRACE(testing::Message() << n << " numbers");
      Memory memory;
      const Randn op{memory.add(1, std::max<std::int64_t>(n, 1)).row_slice(0, n == 0 ? 0 : 1),
                     memory.add(1, sizeof(PhiloxState), DType::kU8), Generator::kTorchCuda};
      PhiloxState state{.seed = 0x123456789abcdef0, .offset = (std::uint64_t{1} << 34U) - 4};
      std::memcpy(memory.bytes(op.state).data(), &state, sizeof(state));
      run_as_cuda(op, memory, geometry);
      std::vector<float> expected(static_cast<std::size_t>(n));
      philox_randn(state, expected, geometry);
      EXPECT_THAT(memory.values(op.out), ElementsAreArray(expected));
      EXPECT_EQ(std::memcmp(memory.bytes(op.state).data(), &state, sizeof(state)), 0);
    }
  }
}

TEST(CudaCrossEntropy, GivesNanForALabelThatIsNoClass) {
  for (const std::int32_t label : {-1, 10, std::numeric_limits<std::int32_t>::min()}) {
    Memory memory;
    const CrossEntropy op{memory.add(1, 1), memory.add(3, 10), memory.add(3, 10),
                          memory.add(3, 1, DType::kI32), 3};
    memory.values<std::int32_t>(op.labels)[1] = label;
    run_as_cuda(op, memory);
    EXPECT_TRUE(std::isnan(memory.values(op.loss)[0]));
    for (std::size_t i = 0; i < 30; ++i) {
      EXPECT_EQ(std::isnan(memory.values(op.grad)[i]), i / 10 == 1);
    }
    const CountCorrect count{memory.add(1, 1, DType::kI32), op.logits, op.labels};
    run_as_cuda(count, memory);
    EXPECT_EQ(memory.values<std::int32_t>(count.correct)[0], 2);
  }
}

TEST(CudaCountCorrect, TakesTheFirstOfEqualsAndNanAsTheLargest) {
  Memory memory;
  constexpr std::int64_t kCols = 100;
  const CountCorrect op{memory.add(1, 1, DType::kI32), memory.add(4, kCols),
                        memory.add(4, 1, DType::kI32)};
  const auto logit = [&](std::size_t row, std::size_t col) -> float& {
    return memory.values(op.logits)[row * kCols + col];
  };
  logit(0, 70) = logit(0, 38) = logit(0, 39) = 2;  // equal maxima in one lane and in two
  logit(1, 5) = 9;
  logit(1, 99) = logit(1, 64) = kNaN;
  std::fill_n(&logit(2, 0), kCols, -std::numeric_limits<float>::infinity());
  logit(3, 0) = -0.0F;
  std::ranges::copy(std::vector{38, 64, 0, 0}, memory.values<std::int32_t>(op.labels).begin());
  run_as_cuda(op, memory);
  EXPECT_EQ(memory.values<std::int32_t>(op.correct)[0], 4);
}

TEST(CudaDelay, LastsAsLongAsItSaysAndByWhatItReads) {
  Memory memory;
  const Tensor more = memory.add(1, 1);
  memory.values(more)[0] = 0.015F;
  for (const Delay& delay : {Delay{0.02}, Delay{0.005, more}}) {
    const auto start = std::chrono::steady_clock::now();
    run_as_cuda(delay, memory);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  }
}

TEST(CudaLaunch, RefusesWhatLibrariesDoAndStreamsOfTheCpu) {
  Memory memory;
  const Tensor square = memory.add(1, 1);
  const Tensor state = memory.add(1, sizeof(TorchGenerator), DType::kU8);
  for (const DeviceOp& op :
       {DeviceOp{Gemm{square, square, square}}, DeviceOp{Copy{square, square}},
        DeviceOp{Randn{square, state}}, DeviceOp{Fill{memory.add(1, 1, DType::kI32), 1}}}) {
    SCOPED_TRACE(label_of(op));
    expect_error(ExitCode::kBug, "",
                 [&] { (void)launch(op, memory.addresses(), {}, {.geometry = kSmall}, nullptr); });
  }
}

TEST(BlocksFor, CoversSmallWorkAndLoopsOverLargeWork) {
  EXPECT_EQ(blocks_for(0, kLarge), 0);
  EXPECT_EQ(blocks_for(1, kLarge), 1);
  EXPECT_EQ(blocks_for(257, kLarge), 2);
  EXPECT_EQ(blocks_for(std::int64_t{1} << 40U, kLarge), 4 * 132 * 8);
  EXPECT_EQ(blocks_for(std::numeric_limits<std::int64_t>::max(), kLarge), 4 * 132 * 8);
}

}  // namespace
}  // namespace barestep
