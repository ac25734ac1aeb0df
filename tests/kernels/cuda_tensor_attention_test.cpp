// Attention on tensor cores, run on the host through its launchers, compared with its definition in
// double and with the kernels that multiply in fp32.
#include "core/index.h"
#include "core/random.h"
#include "kernels/cuda/launch.h"
#include "kernels/op_cases.h"
#include "support/host_cuda.h"
#include "support/testing.h"

namespace barestep {
namespace {

const KernelTarget kHopper{.has_tf32 = true};

struct HeadsCase {
  std::int64_t sequences, heads, length, width;
  bool causal;
};
/// Lengths and widths that fill no tile, one, and several.
constexpr HeadsCase kHeadsCases[] = {
    {1, 1, 1, 8, false},    {2, 2, 5, 8, true},    {1, 2, 33, 24, true},
    {1, 1, 70, 16, false},  {1, 1, 130, 32, true}, {2, 1, 64, 64, true},
    {1, 1, 100, 40, false}, {1, 2, 20, 72, true},  {1, 1, 66, 128, false}};

std::string name_of(const HeadsCase& c) {
  return std::to_string(c.sequences) + " x " + std::to_string(c.heads) + " x " +
         std::to_string(c.length) + " x " + std::to_string(c.width) + (c.causal ? " causal" : "");
}

/// An Attention and its gradient, at addresses that are multiples of 16.
struct HeadsOnHost {
  Memory memory;
  Attention forward;
  AttentionGrad backward;

  explicit HeadsOnHost(HeadsCase c, DType type = DType::kF32) {
    if (type == DType::kF32) c.width = std::min<std::int64_t>(c.width, 64);
    const std::int64_t rows = c.sequences * c.length;
    const std::int64_t cols = c.heads * c.width;
    const auto add = [&](std::int64_t of_row, DType of) {
      Tensor tensor = memory.add(1, rows * of_row + 8, of);
      tensor.offset_bytes = (tensor.offset_bytes + 15) / 16 * 16;
      tensor.rows = rows;
      tensor.cols = of_row;
      return tensor;
    };
    const AttentionShape shape{.heads = c.heads, .length = c.length, .causal = c.causal};
    forward = {.out = add(cols, type),
               .kept = add(shape.kept_cols(), DType::kF32),
               .qkv = add(3 * cols, type),
               .shape = shape};
    backward = {.grad_qkv = add(3 * cols, type),
                .qkv = forward.qkv,
                .out = forward.out,
                .grad_out = add(cols, type),
                .kept = forward.kept,
                .shape = shape};
    std::uint64_t seed = 0;
    for (const Tensor& tensor : {forward.qkv, backward.grad_out}) {
      std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
      TorchGenerator(++seed).randn(numbers);
      set_numbers(memory, tensor, numbers);
    }
    for (const Tensor& tensor : {forward.out, forward.kept, backward.grad_qkv})
      std::ranges::fill(memory.bytes(tensor), std::byte{0xFF});
  }

  void run(bool rounded = false) {
    ASSERT_TRUE(runs_on_tensor_cores(forward, kHopper));
    ASSERT_TRUE(runs_on_tensor_cores(backward, kHopper));
    EXPECT_EQ(launch_on_tensor_cores(forward, rounded, memory.addresses(), {}), 0);
    EXPECT_EQ(launch_on_tensor_cores(backward, rounded, memory.addresses(), {}), 0);
  }
  void run_with_multiply_adds() {
    EXPECT_EQ(launch(forward, memory.addresses(), {}, kHopper, nullptr), 0);
    EXPECT_EQ(launch(backward, memory.addresses(), {}, kHopper, nullptr), 0);
  }

  [[nodiscard]] ExactAttention exact() {
    return exact_attention(forward.shape, forward.out.rows, numbers_of(memory, forward.qkv),
                           numbers_of(memory, backward.grad_out));
  }
  /// The largest error of a tensor, absolute or relative, whichever is smaller.
  [[nodiscard]] double error(const Tensor& tensor, const std::vector<double>& exact) {
    const std::vector<float> numbers = numbers_of(memory, tensor);
    double worst = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double each = std::abs(numbers[i] - exact[i]) / (1 + std::abs(exact[i]));
      worst = each <= worst ? worst : each;  // NaN counts
    }
    return worst;
  }
};

struct HeadsErrors {
  double out, log_sums, grads;
};
HeadsErrors errors_of(HeadsOnHost& heads, const ExactAttention& exact) {
  return {heads.error(heads.forward.out, exact.out),
          heads.error(heads.forward.kept, exact.log_sums),
          heads.error(heads.backward.grad_qkv, exact.grad_qkv)};
}

/// Of numbers of few terms, chains of fp32 are nearly exact.
TEST(CudaTensorAttention, IsAsExactInFp32AsMultiplyAdds) {
  for (const HeadsCase& c : kHeadsCases) {
    SCOPED_TRACE(name_of(c));
    HeadsOnHost heads(c);
    HeadsOnHost usual(c);
    const ExactAttention exact = heads.exact();
    heads.run();
    usual.run_with_multiply_adds();
    const HeadsErrors own = errors_of(heads, exact);
    const HeadsErrors of_chains = errors_of(usual, exact);
    EXPECT_LE(own.out, std::max(5e-7, of_chains.out));
    EXPECT_LE(own.log_sums, std::max(5e-7, of_chains.log_sums));
    EXPECT_LE(own.grads, std::max(1e-6, of_chains.grads));
  }
}

/// A factor is off by 2^-12 at most, relatively, and a score has a width of them.
TEST(CudaTensorAttention, RoundsFactorsToTheNearestTf32IfAsked) {
  for (const HeadsCase& c : kHeadsCases) {
    SCOPED_TRACE(name_of(c));
    HeadsOnHost heads(c);
    const ExactAttention exact = heads.exact();
    heads.run(true);
    const HeadsErrors own = errors_of(heads, exact);
    EXPECT_LE(own.out, 4e-3);
    EXPECT_LE(own.log_sums, 4e-3);
    EXPECT_LE(own.grads, 1e-2);
    EXPECT_GT(own.out, 1e-5) << "it was not rounded";
  }
}

TEST(CudaTensorAttention, IsWithinTheRoundingOf16Bits) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const double step = type == DType::kBF16 ? 0x1p-8 : 0x1p-11;  // half of one, relatively
    for (const HeadsCase& c : kHeadsCases) {
      SCOPED_TRACE(name_of(c));
      HeadsOnHost heads(c, type);
      const ExactAttention exact = heads.exact();
      heads.run();
      const HeadsErrors own = errors_of(heads, exact);
      EXPECT_LE(own.out, 2 * step);
      EXPECT_LE(own.log_sums, 2e-6) << "of numbers that are not rounded";
      EXPECT_LE(own.grads, 4 * step);
    }
  }
}

TEST(CudaTensorAttention, HasTheSameBitsWhateverTheOrderOfThreadsAndTheNumberOfSequences) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const HeadsCase two{2, 2, 37, 24, true};
    HeadsCase one = two;
    one.sequences = 1;
    HeadsOnHost heads(two, type), backwards(two, type), first(one, type);
    heads.run();
    host_cuda::set_order(host_cuda::Order::kLastThread);
    backwards.run();
    host_cuda::set_order(host_cuda::Order::kFirstThread);
    EXPECT_EQ(heads.memory.bytes(), backwards.memory.bytes());
    for (const auto& [to, from] : {std::pair(first.forward.qkv, heads.forward.qkv),
                                   std::pair(first.backward.grad_out, heads.backward.grad_out)}) {
      const auto bytes = heads.memory.bytes(from).first(static_cast<std::size_t>(to.bytes()));
      std::ranges::copy(bytes, first.memory.bytes(to).begin());
    }
    first.run();
    const auto expect_first = [&](const Tensor& of_one, const Tensor& of_two) {
      const auto few = first.memory.bytes(of_one);
      EXPECT_TRUE(std::ranges::equal(few, heads.memory.bytes(of_two).first(few.size())));
    };
    expect_first(first.forward.out, heads.forward.out);
    expect_first(first.backward.grad_qkv, heads.backward.grad_qkv);
  }
}

TEST(CudaTensorAttention, AccessesSharedMemoryWithoutBankConflicts) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t width : {32, 64, 128}) {
      if (type == DType::kF32 && width > 64) continue;
      SCOPED_TRACE(width);
      HeadsOnHost heads({1, 1, 64, width, false}, type);
      host_cuda::take_shared_traffic();
      const std::int64_t before = host_cuda::machine().tensor_products;
      heads.run();
      const auto traffic = host_cuda::take_shared_traffic();
      EXPECT_GT(traffic.accesses, 0U);
      EXPECT_EQ(traffic.rounds, traffic.min_rounds);
      // 2 + 4 + 3 products of 64 x 64 x width numbers, of 16 x 8 x 8 three times or 16 x 8 x 16.
      const std::int64_t of_product = type == DType::kF32 ? 3 * 4 * 8 * 8 : 4 * 8 * 4;
      EXPECT_EQ(host_cuda::machine().tensor_products - before, 9 * of_product * width / 64);
    }
  }
}

TEST(CudaTensorAttention, PassesOnWhatIsNotANumberInItsRowOnly) {
  HeadsOnHost heads({1, 2, 40, 8, true});
  const std::int64_t row = 33;
  // Of the query of the second head.
  at(heads.memory.values(heads.forward.qkv), row * 48 + 8 + 3) =
      std::numeric_limits<float>::quiet_NaN();
  heads.run();
  const auto out = heads.memory.values(heads.forward.out);
  for (std::int64_t i = 0; i < 40 * 16; ++i)
    EXPECT_EQ(std::isnan(at(out, i)), i / 16 == row && i % 16 >= 8) << i;
}

TEST(CudaTensorAttention, RunsOnlyWhereItsAccessesFitAndTensorCoresAre) {
  const auto runs = [](std::int64_t width, DType type, const auto& change,
                       const KernelTarget& target = kHopper) {
    HeadsOnHost heads({1, 2, 5, 8, true}, type);
    heads.forward.qkv.cols = 6 * width;
    heads.forward.out.cols = 2 * width;
    change(heads.forward);
    return runs_on_tensor_cores(heads.forward, target);
  };
  const auto as_it_is = [](Attention&) {};
  EXPECT_TRUE(runs(8, DType::kBF16, as_it_is));
  EXPECT_TRUE(runs(4, DType::kF32, as_it_is));
  EXPECT_FALSE(runs(4, DType::kBF16, as_it_is));
  EXPECT_FALSE(runs(6, DType::kF32, as_it_is));
  EXPECT_FALSE(runs(8, DType::kF32, [](Attention& op) { op.qkv.offset_bytes += 8; }));
  EXPECT_FALSE(runs(8, DType::kF32, [](Attention& op) { op.out.offset_bytes += 8; }));
  EXPECT_FALSE(
      runs(8, DType::kF32, [](Attention& op) { op.shape.form = AttentionForm::kStandard; }));
  EXPECT_FALSE(runs(8, DType::kF32, as_it_is, {}));
  EXPECT_TRUE(runs(128, DType::kBF16, as_it_is));
  EXPECT_FALSE(runs(128, DType::kF32, as_it_is));
  const KernelTarget small{.block_shared_bytes = 48 * 1024, .has_tf32 = true};
  EXPECT_FALSE(runs(64, DType::kF32, as_it_is, small));
  EXPECT_TRUE(runs(32, DType::kBF16, as_it_is, small));
}

}  // namespace
}  // namespace barestep
