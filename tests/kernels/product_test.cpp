// Our own products compared to the bit with the plain chain, for all instruction sets of this
// processor.
#include "kernels/cpu/product.h"

#include "core/random.h"
#include "kernels/loop_ops.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {
namespace {

struct ProductShape {
  std::int64_t m, n, k;
};

/// A product with its own numbers in its memory.
struct ProductInMemory {
  ProductInMemory(const ProductShape& s, bool transpose_a, bool transpose_b, float beta = 0,
                  bool has_bias = false) {
    op = {.c = memory.add(s.m, s.n),
          .a = transpose_a ? memory.add(s.k, s.m) : memory.add(s.m, s.k),
          .b = transpose_b ? memory.add(s.n, s.k) : memory.add(s.k, s.n),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .beta = beta};
    if (has_bias) {
      op.bias = memory.add(1, s.n);
      op.activation = Activation::kRelu;
    }
    TorchGenerator random(static_cast<std::uint64_t>(s.m * 7 + s.n * 5 + s.k));
    for (const Tensor& tensor : {op.c, op.a, op.b}) random.uniform(memory.values(tensor), -1, 1);
    if (op.bias) random.uniform(memory.values(*op.bias), -1, 1);
  }

  void run(Product& product, ThreadPool& pool) {
    product.prepare(op, pool);
    product.run(op, memory.addresses(), pool);
  }

  /// c by the definition: a chain of fma() for each number.
  [[nodiscard]] std::vector<float> by_chains() {
    const std::int64_t k = op.transpose_a ? op.a.rows : op.a.cols;
    const float* const a = memory.addresses().at(op.a);
    const float* const b = memory.addresses().at(op.b);
    std::vector<float> c;
    for (std::int64_t i = 0; i < op.c.rows; ++i) {
      for (std::int64_t j = 0; j < op.c.cols; ++j) {
        float sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          sum = std::fma(a[op.transpose_a ? l * op.a.cols + i : i * op.a.cols + l],
                         b[op.transpose_b ? j * op.b.cols + l : l * op.b.cols + j], sum);
        }
        const float old = memory.values(op.c)[static_cast<std::size_t>(i * op.c.cols + j)];
        c.push_back(op.bias ? relu(sum + memory.values(*op.bias)[static_cast<std::size_t>(j)])
                            : accumulate(sum, op.beta, old));
      }
    }
    return c;
  }

  [[nodiscard]] std::vector<float> c() {
    const auto values = memory.values(op.c);
    return {values.begin(), values.end()};
  }

  Memory memory;
  Gemm op;
};

/// Ours with each instruction set, and plain loops.
std::vector<std::unique_ptr<Product>> all_products() {
  std::vector<std::unique_ptr<Product>> products;
  for (const Instructions most : kValuesOf<Instructions>) {
    products.push_back(make_own_product(most));
  }
  products.push_back(make_reference_product());
  return products;
}

/// Whether all products have the bits of the chain for this shape, with and without what is added
/// to the sums.
void expect_chains(const ProductShape& s, const std::vector<std::unique_ptr<Product>>& products,
                   std::initializer_list<ThreadPool*> pools) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const int addend : {0, 1, 2}) {
        const ProductInMemory start(s, transpose_a, transpose_b, addend == 1 ? 0.75F : 0.0F,
                                    addend == 2);
        const std::vector<float> expected = ProductInMemory(start).by_chains();
        for (const auto& product : products) {
          for (ThreadPool* const pool : pools) {
            ProductInMemory actual = start;
            actual.run(*product, *pool);
            ASSERT_EQ(actual.c(), expected)
                << product->name() << ", " << pool->threads() << " threads, " << s.m << " x " << s.n
                << " x " << s.k << (transpose_a ? " t" : " n") << (transpose_b ? "t " : "n ")
                << addend;
          }
        }
      }
    }
  }
}

TEST(OwnProduct, HasTheBitsOfTheChainAroundAllSizesOfVectorsGroupsAndPanels) {
  const auto products = all_products();
  ThreadPool one(1);
  ThreadPool three(3);
  for (const ProductShape& s :
       {ProductShape{1, 1, 1}, ProductShape{3, 2, 0}, ProductShape{6, 16, 1},
        ProductShape{5, 15, 7}, ProductShape{7, 17, 16}, ProductShape{12, 31, 17},
        ProductShape{13, 64, 33}, ProductShape{65, 63, 2}, ProductShape{95, 65, 31},
        ProductShape{97, 129, 64}, ProductShape{1, 300, 129}, ProductShape{300, 1, 127},
        ProductShape{2, 5, 1030}, ProductShape{64, 20, 513}, ProductShape{50, 20, 1100}}) {
    expect_chains(s, products, {&one, &three});
  }
}

TEST(OwnProduct, HasTheBitsOfTheChainForDrawnShapes) {
  const auto products = all_products();
  ThreadPool two(2);
  std::mt19937 random(1);
  // Small extents more often, so that a test takes seconds.
  const auto extent = [&] {
    const double x = std::uniform_real_distribution<>(0, 1)(random);
    return static_cast<std::int64_t>(1 + 299 * x * x * x);
  };
  for (int i = 0; i < 40; ++i) expect_chains({extent(), extent(), extent()}, products, {&two});
}

/// So `factor` and a rank's own rows have the bits of one rank.
TEST(OwnProduct, HasTheSameBitsForARowWhateverRowsAreBesideIt) {
  const auto product = make_own_product();
  ThreadPool two(2);
  ProductInMemory all({.m = 60, .n = 100, .k = 70}, false, true);
  all.run(*product, two);
  std::vector<float> expected = all.c();
  for (const std::int64_t rows : {20, 7, 1}) {
    ProductInMemory some = all;
    some.op.a.rows = rows;
    some.op.c.rows = rows;
    some.run(*product, two);
    expected.resize(static_cast<std::size_t>(rows * 100));
    EXPECT_EQ(some.c(), expected) << rows;
  }
}

/// As the tiles of 16-bit products add part after part.
TEST(OwnProduct, GoesOnWithAChainWhoseNumbersComeInParts) {
  ProductInMemory whole({.m = 20, .n = 70, .k = 90}, false, false);
  const std::vector<float> expected = whole.by_chains();
  const float* const a = whole.memory.addresses().at(whole.op.a);
  const float* const b = whole.memory.addresses().at(whole.op.b);
  for (const auto& product : all_products()) {
    std::vector<float> c(expected.size(), 5);
    for (const auto& [first, k] : {std::pair{0, 37}, std::pair{37, 53}}) {
      ASSERT_TRUE(product->multiply({.transpose_a = false,
                                     .transpose_b = false,
                                     .m = 20,
                                     .n = 70,
                                     .k = k,
                                     .a = a + first,
                                     .stride_a = 90,
                                     .b = b + first * 70,
                                     .stride_b = 70,
                                     .beta = first == 0 ? 0.0F : 1.0F,
                                     .c = c.data(),
                                     .stride_c = 70}));
    }
    EXPECT_EQ(c, expected) << product->name();
  }
}

}  // namespace
}  // namespace barestep
