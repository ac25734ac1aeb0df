// The bits of PyTorch 1.13 on the CPU, with one thread and AVX2 kernels.
#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "kernels/op_cases.h"
#include "support/golden.h"
#include "support/testing.h"

namespace barestep {
namespace {

void compute(const DeviceOp& op, Memory& memory) {
  ThreadPool pool(2);
  const auto product = make_reference_product();
  CpuOps(pool, *product).run(op, memory.addresses());
}

/// sum(bits[i] * (2 i + 1)) modulo 2^64.
template <class Number>
std::uint64_t checksum(std::span<Number> values) {
  using Bits = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint16_t>;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += std::bit_cast<Bits>(values[i]) * (2 * static_cast<std::uint64_t>(i) + 1);
  return sum;
}

// torch.manual_seed(0); checksum(torch.randn(rows, cols).sum(0))
TEST(SumRows, HasTheBitsOfTorchSum) {
  struct Expected {
    std::int64_t rows, cols;
    std::uint64_t sums;
  };
  for (const Expected& e : {Expected{1, 1, 0x000000003fc53f5c},
                            {7, 1, 0x00000000c01c52f0},
                            {4099, 1, 0x00000000c1ff9f6c},
                            {1, 257, 0x00007f5815e4b2c9},
                            {31, 3, 0x000000044884dd99},
                            {33, 7, 0x00000019b38262b5},
                            {64, 8, 0x0000001dbec0bd7a},
                            {16, 9, 0x00000023e3a48c96},
                            {31, 31, 0x0000018bb1710d84},
                            {33, 33, 0x000001f2802a8ffb},
                            {257, 40, 0x000003450e3a5d1f},
                            {64, 257, 0x00008301a1df1824},
                            {300, 100, 0x000015f41c75f4b2},
                            {1000, 5, 0x0000000b67d402fe},
                            {4099, 33, 0x00000272764050a0},
                            {70000, 2, 0x000000030e905daa}}) {
    Memory memory;
    const SumRows op{memory.add(1, e.cols), memory.add(e.rows, e.cols)};
    TorchGenerator(0).randn(memory.values(op.in));
    compute(op, memory);
    EXPECT_EQ(checksum(memory.values(op.out)), e.sums) << e.rows << " x " << e.cols;
  }
}

// torch.manual_seed(1); a = torch.randn(n, requires_grad=True); b = torch.randn(n)
// loss = torch.nn.MSELoss()(a, b); loss.backward(); checksum(a.grad)
TEST(PointwiseLoss, HasTheBitsOfTorchMseLoss) {
  struct Expected {
    std::int64_t n;
    float loss;
    std::uint64_t grads;
  };
  for (const Expected& e : {Expected{1, 0x1.3e9d50p-3F, 0x000000003f49f279},
                            {7, 0x1.66836ep-1F, 0x00000016d24485c9},
                            {8, 0x1.2d4860p+0F, 0x0000001a80a37e40},
                            {31, 0x1.8a1a36p+0F, 0x0000014c0c531d4a},
                            {33, 0x1.4eb060p+1F, 0x000001e936eb1278},
                            {257, 0x1.2934d4p+1F, 0x0000760b00d33cd2},
                            {5000, 0x1.02879ep+1F, 0x00b45ad41d3a19df},
                            {65536, 0x1.0122f4p+1F, 0x77d2b1052cb5b0bf},
                            {100001, 0x1.ffbf94p+0F, 0x15cbfde8e26688d8}}) {
    Memory memory;
    const PointwiseLoss op{.loss = memory.add(1, 1),
                           .grad = memory.add(1, e.n),
                           .output = memory.add(1, e.n),
                           .target = memory.add(1, e.n),
                           .count = e.n};
    TorchGenerator generator(1);
    generator.randn(memory.values(op.output));
    generator.randn(memory.values(op.target));
    compute(op, memory);
    EXPECT_EQ(memory.values(op.loss)[0], e.loss) << e.n;
    EXPECT_EQ(checksum(memory.values(op.grad)), e.grads) << e.n;
  }
}

// torch.manual_seed(4); grad, out = (torch.randn(4099).to(dtype) for _ in range(2)); the checksum
// of the bits of torch.ops.aten.sigmoid_backward(grad, out), PyTorch 2.15.0
TEST(ActivationGrad, HasTheBitsOfTorchIn16Bits) {
  struct Expected {
    DType type;
    Activation activation;
    std::uint64_t grads;
  };
  for (const Expected& e : {Expected{DType::kBF16, Activation::kTanh, 0x0000007f84222dc4},
                            {DType::kBF16, Activation::kSigmoid, 0x0000007dd13addb4},
                            {DType::kF16, Activation::kTanh, 0x00000076bef4bbe7},
                            {DType::kF16, Activation::kSigmoid, 0x00000072a56458db}}) {
    Memory memory;
    const ActivationGrad op{memory.add(1, 4099, e.type), memory.add(1, 4099, e.type), e.activation};
    TorchGenerator generator(4);
    std::vector<float> numbers(4099);
    for (const Tensor& tensor : {op.grad, op.from}) {
      generator.randn(numbers);
      set_numbers(memory, tensor, numbers);
    }
    compute(op, memory);
    EXPECT_EQ(checksum(memory.values<std::uint16_t>(op.grad)), e.grads)
        << name_of(e.type) << " " << name_of(e.activation);
  }
}

TEST(Adam, HasTheBitsOfTorchAdam) {
  for (const char* file : {"tiny_d8_l2_b4_s0", "tiny_d8_l2_b4_s1", "ce_tiny"}) {
    const Golden golden = load_golden(file);
    for (const GoldenParameter& parameter : golden.parameters) {
      const std::vector<float>& initial = golden.initial.at(parameter.name);
      const auto n = static_cast<std::int64_t>(initial.size());
      Memory memory;
      const OptimizerUpdate op{.weights = memory.add(1, n),
                               .grads = memory.add(1, n),
                               .state = {memory.add(1, n), memory.add(1, n)},
                               .scalars = memory.add(1, 2)};
      std::ranges::copy(initial, memory.values(op.weights).begin());
      std::int64_t t = 0;
      for (const GoldenStep& step : golden.each_step) {
        ++t;
        write_scalars(op.step, t, golden.lr, memory.values(op.scalars));
        std::ranges::copy(step.gradients.at(parameter.name), memory.values(op.grads).begin());
        compute(op, memory);
        const auto expect_bits = [&](const Tensor& actual, const GoldenValues& expected) {
          EXPECT_TRUE(std::ranges::equal(memory.values(actual), expected.at(parameter.name)))
              << file << " " << parameter.name << " step " << t;
        };
        expect_bits(op.weights, step.parameters);
        expect_bits(op.state[0], step.m);
        expect_bits(op.state[1], step.v);
      }
    }
  }
}

// torch.manual_seed(3); w = torch.nn.Parameter(torch.randn(n))
// o = torch.optim.SGD([w], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
// five times: w.grad = torch.randn(n); o.step()
// checksum(w), checksum(o.state[w]["momentum_buffer"])
TEST(Sgd, HasTheBitsOfTorchSgdWithNesterovAndWeightDecay) {
  struct Expected {
    std::int64_t n;
    std::uint64_t weights, velocities;
  };
  for (const Expected& e : {Expected{1, 0x000000003f90a814, 0x00000000bfce43f0},
                            {33, 0x000001f0ed7fab44, 0x0000026d4bd904be},
                            {4099, 0x007f708278292da3, 0x007ec07a1a8d382d}}) {
    Memory memory;
    const OptimizerUpdate op{.weights = memory.add(1, e.n),
                             .grads = memory.add(1, e.n),
                             .state = {memory.add(1, e.n)},
                             .scalars = memory.add(1, 1),
                             .step = SgdStep{0.9, 0.01, true}};
    memory.values(op.scalars)[0] = -0.1F;
    TorchGenerator generator(3);
    generator.randn(memory.values(op.weights));
    for (int step = 0; step < 5; ++step) {
      generator.randn(memory.values(op.grads));
      compute(op, memory);
    }
    EXPECT_EQ(checksum(memory.values(op.weights)), e.weights) << e.n;
    EXPECT_EQ(checksum(memory.values(op.state[0])), e.velocities) << e.n;
  }
}
}  // namespace
}  // namespace barestep
