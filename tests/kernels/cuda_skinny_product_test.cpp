// The kernel for products of few rows, run on the host through its launcher, compared with plain
// loops in double and with a plain chain of fp32.
#include "core/index.h"
#include "core/random.h"
#include "kernels/cuda/launch.h"
#include "kernels/op_cases.h"
#include "support/host_cuda.h"
#include "support/testing.h"

namespace barestep {
namespace {

using host_cuda::Order;

constexpr double kHalfUlp = 0x1p-24;  // half an ulp, relative

KernelTarget target(int multiprocessors = 2) {
  return {.geometry = {.multiprocessors = multiprocessors, .threads_per_multiprocessor = 2048},
          .has_tf32 = true};
}

struct SkinnyCase {
  std::int64_t m, n, k;
  bool transpose_b, bias, relu;
  float beta;
  int multiprocessors;
};

constexpr SkinnyCase kCases[] = {
    {64, 128, 256, true, true, true, 0, 2},     {64, 136, 128, false, false, false, 0, 4},
    {37, 132, 192, true, false, false, 1, 2},   {37, 132, 64, false, false, false, 0.5F, 3},
    {1, 4, 4, true, true, false, 0, 132},       {1, 8, 4, false, false, true, 0, 132},
    {100, 132, 68, true, true, true, 0, 16},    {65, 8, 200, false, false, false, 1, 8},
    {3, 12, 1024, false, false, false, 0, 132}, {70, 10, 64, true, true, true, 0, 4},
    {2, 101, 260, true, false, false, 1, 16}};
/// In 16 bits, with extents that are multiples of eight.
constexpr SkinnyCase kNarrowCases[] = {
    {64, 128, 256, true, true, true, 0, 2},     {64, 136, 384, false, false, false, 0, 4},
    {37, 136, 192, true, true, false, 0, 2},    {1, 8, 8, true, true, false, 0, 132},
    {100, 136, 72, true, true, true, 0, 16},    {65, 8, 200, false, false, true, 0, 8},
    {3, 16, 1024, false, false, false, 0, 132}, {70, 10, 64, true, true, true, 0, 4}};

/// An op with its numbers, at addresses that are multiples of 16.
struct Product {
  Memory memory;
  Gemm op;
  std::vector<float> before;  // c

  explicit Product(const SkinnyCase& c, std::int64_t rows = 0, DType type = DType::kF32) {
    const std::int64_t m = rows > 0 ? rows : c.m;
    const auto add = [&](std::int64_t number, std::int64_t cols) {
      Tensor tensor = memory.add(1, number * cols + 8, type);
      tensor.offset_bytes = (tensor.offset_bytes + 15) / 16 * 16;
      tensor.rows = number;
      tensor.cols = cols;
      return tensor;
    };
    op = {.c = add(m, c.n),
          .a = add(m, c.k),
          .b = c.transpose_b ? add(c.n, c.k) : add(c.k, c.n),
          .transpose_b = c.transpose_b,
          .beta = c.beta,
          .activation = c.relu ? Activation::kRelu : Activation::kNone};
    if (c.bias) op.bias = add(1, c.n);
    std::uint64_t seed = 0;
    const auto draw = [&](const Tensor& tensor) {
      std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
      TorchGenerator(++seed).randn(numbers);
      // So that terms are not all of one size.
      const float large = type == DType::kF32 ? 1e3F : 8;
      for (std::int64_t i = 0; tensor == op.a && i < tensor.size(); i += 7) at(numbers, i) *= large;
      set_numbers(memory, tensor, numbers);
    };
    for (const Tensor& tensor : {op.b, op.c, op.a}) draw(tensor);
    if (op.bias) draw(*op.bias);
    before = numbers_of(memory, op.c);
    if (op.beta == 0) std::ranges::fill(memory.bytes(op.c), std::byte{0xFF});
  }

  /// What a stream has: counts of zero, and a workspace full of earlier results. Only c is
  /// restored.
  std::vector<float> run(const SkinnyProduct& product, bool rounded,
                         Order order = Order::kFirstThread, const DeviceOp* next = nullptr) {
    const ProductShape shape = shape_of(op);
    const std::vector<std::byte> c(memory.bytes(op.c).begin(), memory.bytes(op.c).end());
    std::vector<std::byte> workspace(
        static_cast<std::size_t>(workspace_bytes_of(product, shape)) + 16, std::byte{0xFF});
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    std::vector<unsigned> counts(kLaunchCounts);
    host_cuda::set_order(order);
    EXPECT_EQ(launch_skinny(op, product, rounded, memory.addresses(),
                            {workspace.data() + (16 - address % 16) % 16, counts.data()}, {}, next),
              0);
    host_cuda::set_order(Order::kFirstThread);
    EXPECT_EQ(counts, std::vector<unsigned>(kLaunchCounts)) << "the next launch would count wrong";
    std::vector<float> result = numbers_of(memory, op.c);
    std::ranges::copy(c, memory.bytes(op.c).begin());
    return result;
  }

  /// The largest errors, in units of kHalfUlp times the sum of the terms' magnitudes: of these
  /// results beyond `rounding` of their own, and of a chain of fp32 multiply-adds.
  std::pair<double, double> errors(const std::vector<float>& results, double rounding = 0) {
    double worst = 0;
    double of_chain = 0;
    const std::int64_t k = op.a.cols;
    const std::vector<float> a = numbers_of(memory, op.a), b = numbers_of(memory, op.b);
    const std::vector<float> bias = op.bias ? numbers_of(memory, *op.bias) : std::vector<float>{};
    for (std::int64_t row = 0; row < op.c.rows; ++row) {
      for (std::int64_t col = 0; col < op.c.cols; ++col) {
        const float added = (op.bias ? at(bias, col) : 0) +
                            (op.beta != 0 ? op.beta * at(before, row * op.c.cols + col) : 0);
        double exact = added;
        double magnitude = std::abs(added);
        float chain = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const float x = at(a, row * k + i);
          const float w = at(b, op.transpose_b ? col * k + i : i * op.c.cols + col);
          exact += static_cast<double>(x) * w;
          magnitude += std::abs(static_cast<double>(x) * w);
          chain = std::fma(x, w, chain);
        }
        chain += added;
        if (op.activation == Activation::kRelu) {
          exact = std::max(exact, 0.0);
          chain = std::max(chain, 0.0F);
        }
        const auto error = [&](float value, double of_own) {
          return std::max(std::abs(value - exact) - of_own * std::abs(exact), 0.0) /
                 (kHalfUlp * magnitude);
        };
        const float result = at(results, row * op.c.cols + col);
        const double own = std::isnan(result) ? result : error(result, rounding);
        worst = own <= worst ? worst : own;  // NaN counts
        of_chain = std::max(of_chain, error(chain, 0));
      }
    }
    return {worst, of_chain};
  }
};

std::string name_of(const SkinnyCase& c) {
  return std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) +
         (c.transpose_b ? " NT" : " NN");
}

/// A chain of few terms is nearly exact, so three units are allowed: two of low * low and the low
/// parts' last bits, one of the sum itself.
TEST(CudaSkinnyProduct, IsAtLeastAsExactAsAChainOfFp32) {
  for (const SkinnyCase& c : kCases) {
    Product product(c);
    const auto ways = skinny_products(shape_of(product.op), target(c.multiprocessors));
    ASSERT_FALSE(ways.empty()) << name_of(c);
    for (const SkinnyProduct& way : ways) {
      SCOPED_TRACE(name_of(c) + ", splits " + std::to_string(way.splits));
      EXPECT_TRUE(can_run(way, shape_of(product.op), target()));
      const auto [own, chain] = product.errors(product.run(way, false));
      EXPECT_LE(own, std::max(3.0, chain));
    }
  }
}

/// In both layouts, for two tiles of rows, with sums that are as long as a layer is wide.
TEST(CudaSkinnyProduct, HasSmallerErrorsThanAChainOfFp32WhereSumsAreLong) {
  for (const bool transpose_b : {true, false}) {
    Product product({128, 16, 1024, transpose_b, false, false, 0, 2});
    for (const SkinnyProduct& way : skinny_products(shape_of(product.op), target())) {
      SCOPED_TRACE(std::to_string(way.splits) + (transpose_b ? " NT" : " NN"));
      const auto [own, chain] = product.errors(product.run(way, false));
      EXPECT_LE(own, chain);
    }
  }
}

/// Rounding both factors to nearest costs 2^-11 each.
TEST(CudaSkinnyProduct, RoundsFactorsToTheNearestTf32IfAsked) {
  for (const SkinnyCase& c : kCases) {
    SCOPED_TRACE(name_of(c));
    Product product(c);
    const auto ways = skinny_products(shape_of(product.op), target(c.multiprocessors));
    const double own = product.errors(product.run(ways.front(), true)).first;
    EXPECT_LE(own, 2 * 0x1p13 + 24);
    EXPECT_TRUE(own > 50 || c.k < 8) << "it was not rounded";
  }
}

/// Sums of 16-bit products stay in the tensor cores, which round them by an ulp every four terms.
TEST(CudaSkinnyProduct, RoundsSumsOf16BitsOnce) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const SkinnyCase& c : kNarrowCases) {
      Product product(c, 0, type);
      const auto ways = skinny_products(shape_of(product.op), target(c.multiprocessors));
      ASSERT_FALSE(ways.empty()) << name_of(c);
      for (const SkinnyProduct& way : ways) {
        SCOPED_TRACE(name_of(c) + ", splits " + std::to_string(way.splits));
        const double half_step = type == DType::kBF16 ? 0x1p-8 : 0x1p-11;
        const double own = product.errors(product.run(way, false), half_step).first;
        EXPECT_LE(own, static_cast<double>(c.k) / 2 + 8);
      }
    }
  }
}

TEST(CudaSkinnyProduct, HasTheSameBitsWhateverTheOrderOfThreadsAndTheNumberOfRows) {
  for (const SkinnyCase& c : kCases) {
    SCOPED_TRACE(name_of(c));
    Product product(c);
    const SkinnyProduct way =
        skinny_products(shape_of(product.op), target(c.multiprocessors)).back();
    const std::vector<float> all = product.run(way, false);
    EXPECT_EQ(product.run(way, false, Order::kLastThread), all);
    const std::int64_t few_rows = (c.m + 2) / 3;
    Product few(c, few_rows);
    ASSERT_TRUE(can_run(way, shape_of(few.op), target()));
    // The same rows of x; c's other numbers differ, and do not matter with beta 0.
    std::ranges::copy(
        product.memory.values(product.op.a).first(static_cast<std::size_t>(few_rows * c.k)),
        few.memory.values(few.op.a).begin());
    std::ranges::copy(
        product.memory.values(product.op.c).first(static_cast<std::size_t>(few_rows * c.n)),
        few.memory.values(few.op.c).begin());
    if (c.bias) {
      std::ranges::copy(product.memory.values(*product.op.bias),
                        few.memory.values(*few.op.bias).begin());
    }
    const std::vector<float> first(all.begin(), all.begin() + few_rows * c.n);
    EXPECT_EQ(few.run(way, false), first);
  }
}

/// Calls test(product, way, type) for cases whose results have no beta.
template <class Test>
void for_each_product(const Test& test) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const SkinnyCase& c : type == DType::kF32 ? std::span<const SkinnyCase>(kCases)
                                                   : std::span<const SkinnyCase>(kNarrowCases)) {
      if (c.beta != 0) continue;
      SCOPED_TRACE(name_of(c) + " " + std::string(name_of(type)));
      Product product(c, 0, type);
      test(product, skinny_products(shape_of(product.op), target(c.multiprocessors)).back());
    }
  }
}

/// Random numbers in new tensors, which may move those that are there.
Tensor drawn(Memory& memory, const Tensor& like, DType type, std::uint64_t seed) {
  const Tensor tensor = memory.add(like.rows, like.cols, type);
  std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
  TorchGenerator(seed).randn(numbers);
  for (std::size_t i = 0; i < numbers.size(); i += 5) numbers[i] = 0;
  set_numbers(memory, tensor, numbers);
  return tensor;
}

TEST(CudaSkinnyProduct, IncludesTheGradientOfAReluWithTheSameBits) {
  for_each_product([](Product& product, const SkinnyProduct& way) {
    const Tensor from = drawn(product.memory, product.op.c, product.op.c.dtype, 9);
    const DeviceOp next = ActivationGrad{.grad = product.op.c, .from = from};
    ASSERT_TRUE(skinny_includes(product.op, next));
    std::vector<float> expected = product.run(way, false);
    const std::vector<float> at_from = numbers_of(product.memory, from);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (at_from[i] <= 0) expected[i] = 0;
    }
    EXPECT_EQ(product.run(way, false, Order::kLastThread, &next), expected);
  });
}

/// One launch and two have the same results. The sum of the loss has another order, and is in
/// double.
template <class Loss>
void expect_same_results(Product& product, const SkinnyProduct& way, const Loss& loss) {
  Memory& memory = product.memory;
  const DeviceOp next = loss;
  ASSERT_TRUE(skinny_includes(product.op, next));
  at(memory.values(*loss.scale), 0) = 8;
  const std::vector<float> alone = product.run(way, false);
  std::vector<float> apart;
  for (const bool together : {false, true}) {
    at(memory.values(loss.loss), 0) = 2;
    std::ranges::fill(memory.bytes(loss.grad), std::byte{0xFF});
    if (together) {
      std::ranges::fill(memory.bytes(product.op.c), std::byte{0xFF});
      EXPECT_EQ(product.run(way, false, Order::kLastThread, &next), alone);
    } else {
      set_numbers(memory, product.op.c, alone);
      std::vector<std::byte> workspace(kLaunchWorkspaceBytes);
      std::vector<unsigned> counts(kLaunchCounts);
      ASSERT_EQ(
          launch(next, memory.addresses(), {workspace.data(), counts.data()}, target(), nullptr),
          0);
    }
    std::vector<float> results = numbers_of(memory, loss.grad);
    results.push_back(at(memory.values(loss.loss), 0));
    if (together) EXPECT_EQ(results, apart);
    apart = results;
  }
}

/// Labels from 0 to `classes` - 1.
Tensor labels_of(Memory& memory, std::int64_t rows, std::int64_t cols, std::int32_t classes) {
  const Tensor labels = memory.add(rows, cols, DType::kI32);
  std::int32_t next = 0;
  for (std::int32_t& label : memory.values<std::int32_t>(labels)) label = next++ % classes;
  return labels;
}

TEST(CudaSkinnyProduct, IncludesALossAndItsGradientWithTheSameBits) {
  constexpr std::pair<LossKind, Activation> kLosses[] = {{LossKind::kMse, Activation::kNone},
                                                         {LossKind::kMse, Activation::kRelu},
                                                         {LossKind::kL1, Activation::kRelu},
                                                         {LossKind::kHuber, Activation::kNone},
                                                         {LossKind::kBce, Activation::kNone}};
  for (const std::pair<LossKind, Activation>& each : kLosses) {
    SCOPED_TRACE(name_of(each.first));
    for_each_product([&](Product& product, const SkinnyProduct& way) {
      Memory& memory = product.memory;
      const Tensor& y = product.op.c;
      const Tensor target_of = each.first == LossKind::kBce ? labels_of(memory, y.rows, y.cols, 2)
                                                            : drawn(memory, y, DType::kF32, 9);
      expect_same_results(product, way,
                          PointwiseLoss{.loss = memory.add(1, 1),
                                        .grad = memory.add(y.rows, y.cols, y.dtype),
                                        .output = y,
                                        .target = target_of,
                                        .count = 3 * y.size(),
                                        .beta = 0.5F,
                                        .kind = each.first,
                                        .scale = memory.add(1, 1),
                                        .activation = each.second});
    });
  }
}

TEST(CudaSkinnyProduct, IncludesACrossEntropyAndItsGradientWithTheSameBits) {
  for (const float smoothing : {0.0F, 0.125F}) {
    for_each_product([&](Product& product, const SkinnyProduct& way) {
      Memory& memory = product.memory;
      const Tensor& y = product.op.c;
      if (y.cols >= 128) return;
      expect_same_results(
          product, way,
          CrossEntropy{.loss = memory.add(1, 1),
                       .grad = memory.add(y.rows, y.cols, y.dtype),
                       .logits = y,
                       .labels = labels_of(memory, y.rows, 1, static_cast<std::int32_t>(y.cols)),
                       .count = 3 * y.rows,
                       .beta = 0.5F,
                       .smoothing = smoothing,
                       .scale = memory.add(1, 1)});
    });
  }
}

TEST(CudaSkinnyProduct, IncludesNothingElse) {
  Product product(kCases[0]);
  const Tensor& c = product.op.c;
  const Tensor one{.rows = 1, .cols = 1};
  PointwiseLoss loss{.loss = one, .grad = c, .output = c, .target = c, .count = 1};
  EXPECT_TRUE(skinny_includes(product.op, loss));
  loss.output.offset_bytes += 4;
  EXPECT_FALSE(skinny_includes(product.op, loss)) << "of another tensor";
  CrossEntropy classes{.loss = one, .grad = c, .logits = c, .labels = c, .count = 1};
  EXPECT_FALSE(skinny_includes(product.op, classes)) << "a row may have several tiles";
  Product few({64, 127, 256, true, true, false, 0, 2});
  classes.logits = few.op.c;
  EXPECT_TRUE(skinny_includes(few.op, classes));
  classes.logits.offset_bytes += 4;
  EXPECT_FALSE(skinny_includes(few.op, classes));
  ActivationGrad gradient{.grad = c, .from = c};
  EXPECT_TRUE(skinny_includes(product.op, gradient));
  gradient.sums = one;
  EXPECT_FALSE(skinny_includes(product.op, gradient));
  gradient = {.grad = c, .from = c, .activation = Activation::kTanh};
  EXPECT_FALSE(skinny_includes(product.op, gradient));
  EXPECT_FALSE(skinny_includes(product.op, Fill{.out = c}));
}

TEST(CudaSkinnyProduct, ReadsSharedMemoryWithoutBankConflicts) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool transpose_b : {true, false}) {
      Product product({64, 128, 256, transpose_b, false, false, 0, 1}, 0, type);
      host_cuda::take_shared_traffic();
      const std::int64_t products = host_cuda::machine().tensor_products;
      product.run({1}, false);
      const auto traffic = host_cuda::take_shared_traffic();
      EXPECT_GT(traffic.accesses, 0U);
      EXPECT_EQ(traffic.rounds, traffic.min_rounds) << transpose_b;
      // 64 x 128 x 256 numbers of 16 x 8 x 8, three times, or of 16 x 8 x 16.
      const std::int64_t expected = 4 * 16 * (type == DType::kF32 ? 3 * 32 : 16);
      EXPECT_EQ(host_cuda::machine().tensor_products - products, expected);
    }
  }
}

TEST(CudaSkinnyProduct, PassesOnWhatIsNotANumberInItsRowOnly) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Product product({5, 8, 12, true, true, true, 0, 1});
    at(product.memory.values(product.op.a), 3 * 12 + 5) = bad;
    const std::vector<float> result = product.run({1}, false);
    for (std::int64_t i = 0; i < 5 * 8; ++i) {
      EXPECT_EQ(std::isnan(at(result, i)), i / 8 == 3) << i;
    }
  }
}

TEST(CudaSkinnyProduct, IsOfferedOnlyWhereItRuns) {
  const ProductShape shape{.m = 64, .n = 1024, .k = 512, .transpose_b = true};
  EXPECT_FALSE(skinny_products(shape, target()).empty());
  const auto refused = [&](const auto& change, const KernelTarget& on = target()) {
    ProductShape other = shape;
    change(other);
    EXPECT_FALSE(can_run({1}, other, on));
    return skinny_products(other, on).empty();
  };
  const auto as_it_is = [](ProductShape&) {};
  EXPECT_TRUE(refused([](ProductShape& s) { s.m = 129; }));
  EXPECT_TRUE(refused([](ProductShape& s) {
    s.transpose_b = false;
    s.n = 1022;
  }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.k = 510; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.n = std::int64_t{128} * 1025; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.k = std::int64_t{1} << 31; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.transpose_a = true; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.type = DType::kBF16; }));
  EXPECT_TRUE(refused([](ProductShape& s) {
    s.type = s.type_of_c = DType::kBF16;
    s.k = 516;
  }));
  ProductShape classes = shape;
  classes.n = 10;
  EXPECT_FALSE(skinny_products(classes, target()).empty());
  ProductShape narrow = shape;
  narrow.type = narrow.type_of_c = DType::kF16;
  EXPECT_FALSE(skinny_products(narrow, target()).empty());
  EXPECT_TRUE(refused([](ProductShape& s) { s.type_of_c = DType::kBF16; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.alignment_a = 8; }));
  EXPECT_TRUE(refused([](ProductShape& s) { s.alignment_b = 4; }));
  KernelTarget small = target();
  small.block_shared_bytes = 64 * 1024;
  EXPECT_TRUE(refused(as_it_is, small));
  KernelTarget old = target();
  old.has_tf32 = false;
  EXPECT_TRUE(refused(as_it_is, old));
  for (const int splits : {-1, 0, 9, 1 << 30}) EXPECT_FALSE(can_run({splits}, shape, target()));
  for (const int splits : {1, 2, 4, 8}) EXPECT_TRUE(can_run({splits}, shape, target())) << splits;
}

/// 8 tiles on 132 multiprocessors: 16 splits would be a block on each; the depth has 8 steps.
TEST(CudaSkinnyProduct, SplitsTheDepthSoThatAllMultiprocessorsHaveWork) {
  const auto splits_of = [](std::int64_t n, std::int64_t k) {
    std::vector<int> splits;
    for (const SkinnyProduct& way : skinny_products({.m = 64, .n = n, .k = k}, target(132)))
      splits.push_back(way.splits);
    return splits;
  };
  EXPECT_EQ(splits_of(1024, 512), std::vector<int>({8}));
  EXPECT_EQ(splits_of(1024, 4096), std::vector<int>({16, 32, 64}));
  EXPECT_EQ(splits_of(8192, 8192), std::vector<int>({2, 4, 8}));
  EXPECT_EQ(splits_of(65536, 8192), std::vector<int>({1}));
}

}  // namespace
}  // namespace barestep
