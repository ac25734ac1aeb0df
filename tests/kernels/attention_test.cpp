// Attention: PyTorch's numbers, all kernels of the CPU, derivatives, what is
// excluded.
#include "core/random.h"
#include "kernels/cpu/op_sources.h"
#include "kernels/op_cases.h"
#include "support/attention_golden.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

constexpr AttentionForm kForms[] = {AttentionForm::kFlash, AttentionForm::kStandard};

/// An Attention and its gradient over the same numbers.
struct Both {
  Memory memory;
  Attention forward;
  AttentionGrad backward;

  Both(const AttentionShape& shape, std::int64_t rows, std::int64_t columns,
       DType type = DType::kF32) {
    forward = {.out = memory.add(rows, columns, type),
               .kept = memory.add(rows, shape.kept_cols()),
               .qkv = memory.add(rows, 3 * columns, type),
               .shape = shape};
    backward = {.grad_qkv = memory.add(rows, 3 * columns, type),
                .qkv = forward.qkv,
                .out = forward.out,
                .grad_out = memory.add(rows, columns, type),
                .kept = forward.kept,
                .shape = shape};
    if (backward.scratch_cols() > 0) backward.scratch = memory.add(rows, backward.scratch_cols());
  }

  void draw(std::uint64_t seed) {
    TorchGenerator generator(seed);
    for (const Tensor& tensor : {forward.qkv, backward.grad_out}) {
      std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
      generator.randn(numbers);
      set_numbers(memory, tensor, numbers);
    }
  }

  void run(int threads = 2, const VectorKernels& kernels = vector_kernels()) {
    ThreadPool pool(threads);
    run_attention(forward, memory.addresses(), kernels, pool);
    run_attention_grad(backward, memory.addresses(), kernels, pool);
  }
};

/// Columns of a matrix as rows of their own: a third of qkv.
std::vector<float> columns_of(Memory& memory, const Tensor& tensor, std::int64_t first,
                              std::int64_t count) {
  std::vector<float> numbers;
  const std::vector<float> all = numbers_of(memory, tensor);
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    const auto begin = all.begin() + row * tensor.cols + first;
    numbers.insert(numbers.end(), begin, begin + count);
  }
  return numbers;
}

class AttentionGolden : public testing::TestWithParam<std::string> {
 protected:
  void expect(const char* what, std::span<const float> actual, double error) const {
    SCOPED_TRACE(what);
    const json& expected = golden_.at("float64").at(what);
    const double norm = expected.at("norm");
    EXPECT_NEAR(norm_of(actual), norm, error * norm);
    EXPECT_NEAR(dot_with_places(actual), expected.at("dot").get<double>(), error * norm);
    const std::vector<double> first = hex_numbers(expected.at("first8"));
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(actual[i], first[i], 2e-6 * (1 + std::abs(first[i]))) << i;
    }
  }

  const json golden_ = attention_golden(BARESTEP_GOLDEN_DIR, GetParam());
};

TEST_P(AttentionGolden, HasPyTorchsNumbersInDouble) {
  const std::int64_t heads = golden_.at("heads"), length = golden_.at("length");
  const std::int64_t columns = heads * golden_.at("width").get<std::int64_t>();
  for (const AttentionForm form : kForms) {
    SCOPED_TRACE(name_of(form));
    Both both({.heads = heads, .length = length, .causal = golden_.at("causal"), .form = form},
              golden_.at("batch").get<std::int64_t>() * length, columns);
    both.draw(golden_.at("seed"));
    both.run();
    expect("out", both.memory.values(both.forward.out), 5e-7);
    int third = 0;
    for (const char* const what : {"grad_q", "grad_k", "grad_v"}) {
      expect(what, columns_of(both.memory, both.backward.grad_qkv, columns * third++, columns),
             1e-6);
    }
    if (form == AttentionForm::kStandard) continue;
    // The golden ones are sorted by heads.
    const auto kept = both.memory.values(both.forward.kept);
    std::vector<float> by_heads;
    for (std::int64_t i = 0; i < both.forward.kept.size(); ++i) {
      const std::int64_t head = i / length;
      const std::int64_t row = head / heads * length + i % length;
      by_heads.push_back(kept[static_cast<std::size_t>(row * heads + head % heads)]);
    }
    expect("logsumexp", by_heads, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, AttentionGolden,
                         testing::Values("op_b2_h3_l100_w24_s0", "op_b2_h3_l100_w24_s1",
                                         "op_b2_h3_l100_w24_causal_s0",
                                         "op_b2_h3_l100_w24_causal_s1", "op_b1_h2_l257_w64_s0",
                                         "op_b1_h2_l257_w64_s1", "op_b1_h2_l257_w64_causal_s0",
                                         "op_b1_h2_l257_w64_causal_s1"),
                         [](const auto& golden) { return golden.param; });

TEST(AttentionKernel, HasTheSameBitsForAllInstructionsAndThreads) {
  for (const AttentionForm form : kForms) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Both plain({.heads = 3, .length = 150, .causal = true, .form = form}, 150, 3 * 40, type);
      plain.draw(1);
      Both of_three = plain;
      plain.run(1, kPlainKernels);
      for (const Instructions isa :
           {Instructions::kPlain, Instructions::kAvx2, Instructions::kAvx512}) {
        of_three.run(3, vector_kernels(isa));
        EXPECT_EQ(of_three.memory.bytes(), plain.memory.bytes()) << vector_kernels(isa).name;
      }
    }
  }
}

/// The sum of the products of out and grad_out.
double weighted_sum(Both& both) {
  ThreadPool pool(1);
  run_attention(both.forward, both.memory.addresses(), vector_kernels(), pool);
  double sum = 0;
  const auto out = both.memory.values(both.forward.out);
  const auto weights = both.memory.values(both.backward.grad_out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    sum += static_cast<double>(out[i]) * static_cast<double>(weights[i]);
  }
  return sum;
}

TEST(AttentionGrad, IsTheSlopeOfAttention) {
  constexpr float kStep = 1.0F / 64;
  for (const AttentionForm form : kForms) {
    for (const bool causal : {false, true}) {
      Both both({.heads = 2, .length = 4, .causal = causal, .form = form}, 8, 6);
      both.draw(7);
      both.run();
      const auto grad = both.memory.values(both.backward.grad_qkv);
      const std::vector<float> grads(grad.begin(), grad.end());
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const auto moved = [&](float by) {
          Both other = both;
          other.memory.values(other.forward.qkv)[i] += by;
          return weighted_sum(other);
        };
        EXPECT_NEAR(grads[i], (moved(kStep) - moved(-kStep)) / (2.0 * kStep), 3e-4) << i;
      }
    }
  }
}

TEST(Attention, IsCausalToTheBit) {
  for (const AttentionForm form : kForms) {
    Both both({.heads = 1, .length = 200, .causal = true, .form = form}, 200, 16);
    both.draw(3);
    Both changed = both;
    for (float& number : changed.memory.values(changed.forward.qkv.row_slice(130, 70))) number = 9;
    both.run();
    changed.run();
    const Tensor before = both.forward.out.row_slice(0, 130);
    EXPECT_TRUE(std::ranges::equal(both.memory.values(before), changed.memory.values(before)));
    const Tensor first = both.forward.out.row_slice(0, 1);
    EXPECT_TRUE(std::ranges::equal(both.memory.values(first),
                                   both.memory.values(both.forward.qkv).subspan(32, 16)))
        << "the first row attends to itself alone";
  }
}

TEST(Attention, PassesNanToTheRowsThatAttendToIt) {
  for (const AttentionForm form : kForms) {
    Both both({.heads = 1, .length = 20, .causal = true, .form = form}, 20, 16);
    both.draw(3);
    both.memory.values(both.forward.qkv)[11 * 48 + 16] = std::numeric_limits<float>::quiet_NaN();
    both.run();
    const auto out = both.memory.values(both.forward.out);
    EXPECT_FALSE(std::isnan(out[10 * 16]));
    EXPECT_TRUE(std::isnan(out[11 * 16]));
    EXPECT_TRUE(std::isnan(out[19 * 16]));
  }
}

TEST(Attention, IsFiniteForScoresFarApart) {
  for (const AttentionForm form : kForms) {
    Both both({.heads = 1, .length = 3, .form = form}, 3, 1);
    std::ranges::copy(std::vector<float>{1e3F, 1e3F, 1, 1, -1e3F, 2, -1e3F, 0, 3},
                      both.memory.values(both.forward.qkv).begin());
    both.run();
    EXPECT_THAT(both.memory.values(both.forward.out),
                ElementsAre(1, testing::FloatNear(1, 1e-6F), 2));
  }
}

}  // namespace
}  // namespace barestep
