// The kernels of the fused update, for every instruction set of this processor, compared with plain
// loops to the bit.
#include "kernels/cpu/linear_adam.h"

#include "kernels/cpu/cascade_sum.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {
namespace {

struct UpdateCase {
  std::int64_t out, in, batch;
  double weight_decay = 0;
  bool decoupled = false;
};

/// Extents on both sides of the sizes of vectors, groups of rows, panels of columns, strips and
/// parts of a batch; strides that are not multiples of a vector.
constexpr UpdateCase kUpdateCases[] = {{1, 1, 1},
                                       {6, 64, 24},
                                       {5, 63, 23},
                                       {7, 65, 25},
                                       {13, 130, 64},
                                       {64, 48, 3, 0.25},
                                       {50, 97, 513},
                                       {31, 8, 1025},
                                       {70, 300, 0},
                                       {9, 2048 + 7, 2},
                                       {45, 140, 600, 0.25, true}};

/// An op with its own numbers in its memory.
struct UpdateInMemory {
  explicit UpdateInMemory(const UpdateCase& c) {
    op = {.weight = memory.add(c.out, c.in),
          .weight_moments1 = memory.add(c.out, c.in),
          .weight_moments2 = memory.add(c.out, c.in),
          .bias = memory.add(1, c.out),
          .bias_moments1 = memory.add(1, c.out),
          .bias_moments2 = memory.add(1, c.out),
          .grad_y = memory.add(c.batch, c.out),
          .x = memory.add(c.batch, c.in),
          .scalars = memory.add(1, c.decoupled ? 3 : 2),
          .step = {.weight_decay = c.weight_decay, .decoupled = c.decoupled}};
    if (c.weight_decay != 0) op.clip = memory.add(1, 1);
    std::mt19937 random(3);
    std::uniform_real_distribution<float> number(-1, 1);
    for (const Tensor& tensor : {op.weight, op.weight_moments1, op.weight_moments2, op.bias,
                                 op.bias_moments1, op.bias_moments2, op.grad_y, op.x}) {
      for (float& value : memory.values(tensor)) value = number(random);
    }
    for (const Tensor& moments : {op.weight_moments2, op.bias_moments2}) {
      for (float& value : memory.values(moments)) value *= value;
    }
    memory.values(op.scalars)[0] = -0.004F;
    memory.values(op.scalars)[1] = 0.07F;
    if (c.decoupled) memory.values(op.scalars)[2] = 0.875F;
    if (op.clip) memory.values(*op.clip)[0] = 0.375F;
  }

  /// Weights and moments, one after the other.
  [[nodiscard]] std::vector<float> updated() {
    std::vector<float> all;
    for (const Tensor& tensor : {op.weight, op.weight_moments1, op.weight_moments2, op.bias,
                                 op.bias_moments1, op.bias_moments2}) {
      const auto values = memory.values(tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  Memory memory;
  LinearAdam op;
};

void run(const LinearAdam& op, const Addresses& addresses, const VectorKernels& kernels,
         ThreadPool& pool) {
  const auto product = make_reference_product();
  Packs packs;
  prepare_linear_adam(op, *product, kernels, packs, pool);
  run_linear_adam(op, addresses, *product, kernels, packs, pool);
}

/// The weights as computed by a chain of fused multiply-adds for the gradient and adam_step(); the
/// biases by the ops of a separate update.
std::vector<float> updated_plainly(const UpdateCase& c) {
  UpdateInMemory plain(c);
  const LinearAdam& op = plain.op;
  const Addresses& addresses = plain.memory.addresses();
  const AdamConstants constants(op.step);
  const AdamScalars scalars(constants, addresses.at(op.scalars),
                            op.clip ? addresses.at(*op.clip) : nullptr);
  for (std::int64_t row = 0; row < c.out; ++row) {
    for (std::int64_t col = 0; col < c.in; ++col) {
      float grad = 0;
      for (std::int64_t k = 0; k < c.batch; ++k) {
        grad = std::fma(addresses.at(op.grad_y)[k * c.out + row],
                        addresses.at(op.x)[k * c.in + col], grad);
      }
      const std::int64_t i = row * c.in + col;
      adam_step(constants, scalars, grad, addresses.at(op.weight)[i],
                addresses.at(op.weight_moments1)[i], addresses.at(op.weight_moments2)[i]);
    }
  }
  sum_columns(addresses.at(op.grad_y), c.batch, c.out, 0, c.out, [&](std::int64_t i, float grad) {
    adam_step(constants, scalars, grad, addresses.at(op.bias)[i], addresses.at(op.bias_moments1)[i],
              addresses.at(op.bias_moments2)[i]);
  });
  return plain.updated();
}

TEST(LinearAdam, HasTheBitsOfPlainLoopsForAllShapesInstructionsAndThreads) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (const UpdateCase& c : kUpdateCases) {
    const std::vector<float> expected = updated_plainly(c);
    for (const Instructions most : kValuesOf<Instructions>) {
      const VectorKernels& kernels = vector_kernels(most);
      for (ThreadPool* const pool : {&one, &three}) {
        SCOPED_TRACE(testing::Message() << kernels.name << ", " << pool->threads() << " threads, "
                                        << c.out << " x " << c.in << ", batch " << c.batch);
        UpdateInMemory update(c);
        run(update.op, update.memory.addresses(), kernels, *pool);
        EXPECT_EQ(update.updated(), expected);
      }
    }
  }
}

TEST(VectorKernels, AreThoseOfTheInstructionsAllowed) {
  EXPECT_EQ(vector_kernels(Instructions::kPlain).name, "plain");
  const std::string_view avx2 = vector_kernels(Instructions::kAvx2).name;
  EXPECT_TRUE(avx2 == "AVX2" || avx2 == "plain") << avx2;
  const std::string_view all = vector_kernels().name;
  EXPECT_TRUE(all == "AVX-512" || all == avx2) << all;
}

}  // namespace
}  // namespace barestep
