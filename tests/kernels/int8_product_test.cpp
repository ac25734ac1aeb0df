// Int8: kernels for every instruction set compared with the plain loop, PyTorch's dynamic
// quantization, and NaN and infinity.
#include <nlohmann/json.hpp>

#include "kernels/cpu/op_sources.h"
#include "kernels/cpu/ops.h"
#include "kernels/int8.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

struct Int8Numbers {
  std::vector<std::int8_t> a, b;
};

/// The numbers of a tile: values that Quantize writes with this many bits, and any bytes. `extreme`
/// gives the largest values, whose products are most likely to overflow 16 bits.
Int8Numbers numbers_of(std::int64_t depth, std::int64_t rows, std::int64_t cols, int bits,
                       bool extreme) {
  std::mt19937 random(1);
  const auto draw = [&](std::int32_t low, std::int32_t high) {
    const auto word = static_cast<std::uint32_t>(random());
    if (extreme) return static_cast<std::int8_t>(word % 2 == 0 ? low : high);
    return static_cast<std::int8_t>(
        low + static_cast<std::int32_t>(word % static_cast<std::uint32_t>(high - low + 1)));
  };
  const std::int32_t max = 1 << (bits - 1);
  Int8Numbers numbers;
  for (std::int64_t i = 0; i < rows * depth; ++i) {
    numbers.a.push_back(draw(-max, std::min(max, 127)));
  }
  for (std::int64_t i = 0; i < cols * depth; ++i) numbers.b.push_back(draw(-128, 127));
  return numbers;
}

/// The kernel's sums, minus the contribution of its offset.
std::vector<std::int32_t> sums_by(const ByteKernel& kernel, const Int8Numbers& numbers,
                                  std::int64_t depth, std::int64_t rows, std::int64_t cols) {
  std::vector<std::int32_t> sums(kByteTileRows * kByteTileCols);
  kernel.sum({numbers.a.data(), numbers.b.data(), depth, rows, cols}, sums.data());
  std::vector<std::int32_t> exact;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      std::int32_t of_b = 0;
      for (std::int64_t k = 0; k < depth; ++k)
        of_b += numbers.b[static_cast<std::size_t>(j * depth + k)];
      exact.push_back(sums[static_cast<std::size_t>(i * kByteTileCols + j)] - kernel.offset * of_b);
    }
  }
  return exact;
}

TEST(Int8Kernels, GiveThePlainLoopsSums) {
  for (const int bits : {7, 8}) {
    const ByteKernel kernel = byte_kernel(bits);
    SCOPED_TRACE(testing::Message() << kernel.name << ", " << bits << " bits");
    for (const std::int64_t depth : {1, 3, 31, 32, 33, 63, 64, 65, 257, 1000}) {
      for (const auto& [rows, cols] : {std::pair{1, 1}, {1, 64}, {5, 7}, {64, 64}, {3, 10}}) {
        for (const bool extreme : {false, true}) {
          const Int8Numbers numbers = numbers_of(depth, rows, cols, bits, extreme);
          ASSERT_EQ(sums_by(kernel, numbers, depth, rows, cols),
                    sums_by(plain_byte_kernel(), numbers, depth, rows, cols))
              << rows << "x" << cols << "x" << depth;
        }
      }
    }
  }
}

TEST(Int8Kernels, HoldTheLargestSumsOfTheMostInputs) {
  const std::int64_t depth = kMaxQuantizedInputs;
  const std::vector<std::int8_t> lowest(static_cast<std::size_t>(2 * depth), -128);
  for (const ByteKernel& kernel : {plain_byte_kernel(), byte_kernel(8)}) {
    EXPECT_EQ(sums_by(kernel, {lowest, lowest}, depth, 1, 1).front(), 128 * 128 * depth)
        << kernel.name;
  }
}

/// Ops on the CPU, with the fastest kernel for this build's default provider.
void run_int8(const DeviceOp& op, Memory& memory) {
  ThreadPool pool(2);
  const auto product = make_product(GemmProvider::kAuto);
  CpuOps(pool, *product).run(op, memory.addresses());
}

template <class T>
void put(Memory& memory, const Tensor& tensor, const json& values) {
  std::ranges::copy(values.get<std::vector<T>>(), memory.values<T>(tensor).begin());
}

/// The results of PyTorch 2.15.0 (its x86 and its qnnpack engine) for Linear(8, 16), ReLU,
/// Linear(16, 4) by torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear: qconfig}),
/// where qconfig is default_dynamic_qconfig or per_channel_dynamic_qconfig. Weights are nn.Linear's
/// after torch.manual_seed(seed); x is torch.randn(5, 8) after them.
class Int8Golden : public testing::TestWithParam<int> {
 protected:
  json file = json::parse(std::ifstream(BARESTEP_GOLDEN_DIR "/int8_dynamic_8_16_4_b5_s" +
                                        std::to_string(GetParam()) + ".json"));
};

/// Quantizes a layer's weight and compares with PyTorch's numbers.
QuantizeWeight weight_of_golden(Memory& memory, const json& layer, const json& weight,
                                std::int64_t outputs, std::int64_t inputs, bool per_channel) {
  const QuantizeWeight op{.to = memory.add(outputs, inputs, DType::kI8),
                          .scales = memory.add(1, per_channel ? outputs : 1),
                          .sums = memory.add(1, outputs, DType::kI32),
                          .from = memory.add(outputs, inputs)};
  put<float>(memory, op.from, weight);
  run_int8(op, memory);
  EXPECT_THAT(memory.values<std::int8_t>(op.to),
              ElementsAreArray(layer.at("weight_q").get<std::vector<int>>()));
  EXPECT_THAT(memory.values(op.scales),
              ElementsAreArray(layer.at("weight_scale").get<std::vector<float>>()));
  return op;
}

/// Quantizes a layer's input; PyTorch's numbers are larger by 2^(bits - 1).
Quantize input_of_golden(Memory& memory, const json& layer, const json& x, std::int64_t inputs,
                         int bits) {
  const Quantize op{.to = memory.add(5, inputs, DType::kI8),
                    .scales = memory.add(1, 1),
                    .from = memory.add(5, inputs),
                    .zero_point = memory.add(1, 1, DType::kI32),
                    .bits = bits};
  put<float>(memory, op.from, x);
  run_int8(op, memory);
  const int begin = 1 << (bits - 1);
  std::vector<int> numbers;
  for (const std::int8_t number : memory.values<std::int8_t>(op.to))
    numbers.push_back(number + begin);
  EXPECT_EQ(numbers, layer.at("act_q").get<std::vector<int>>());
  EXPECT_EQ(memory.values(op.scales)[0], layer.at("act_scale").get<float>());
  EXPECT_EQ(memory.values<std::int32_t>(*op.zero_point)[0] + begin,
            layer.at("act_zero_point").get<int>());
  return op;
}

TEST_P(Int8Golden, HasPyTorchsBitsOfWeightsActivationsAndOutputs) {
  for (const json& each : file.at("cases")) {
    const bool is_x86 = each.at("engine") == "x86";
    SCOPED_TRACE(each.at("engine").get<std::string>() + " " + each.at("per_channel").dump());
    const int bits = is_x86 ? 7 : 8;
    json x = file.at("x");
    for (std::size_t i = 0; i < 2; ++i) {
      const json& layer = each.at("layers")[i];
      const std::int64_t inputs = i == 0 ? 8 : 16;
      const std::int64_t outputs = i == 0 ? 16 : 4;
      Memory memory;
      const QuantizeWeight weight = weight_of_golden(memory, layer, file.at("weight")[i], outputs,
                                                     inputs, each.at("per_channel"));
      const Quantize input = input_of_golden(memory, layer, x, inputs, bits);
      QuantizedGemm gemm{.c = memory.add(5, outputs),
                         .a = input.to,
                         .b = weight.to,
                         .a_scales = input.scales,
                         .b_scales = weight.scales,
                         .b_sums = weight.sums,
                         .bias = memory.add(1, outputs),
                         .a_zero_point = input.zero_point,
                         .bits = bits};
      put<float>(memory, gemm.bias, file.at("bias")[i]);
      run_int8(gemm, memory);
      const auto out = layer.at("out").get<std::vector<float>>();
      for (std::size_t at = 0; at < out.size(); ++at) {
        // qnnpack rounds before it adds the bias; the quantized numbers are the same.
        if (is_x86) EXPECT_EQ(memory.values(gemm.c)[at], out[at]) << at;
        if (!is_x86) EXPECT_NEAR(memory.values(gemm.c)[at], out[at], 1.2e-7) << at;
      }
      x = json::array();
      for (const float value : out) x.push_back(value < 0 ? 0 : value);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Int8Golden, testing::Values(0, 1));

/// The results of torch._choose_qparams_per_tensor(torch.tensor([least, largest]), bits == 7) of
/// PyTorch 2.15.0, which cuts off small scales.
struct TorchRange {
  float min, largest;
  int bits;
  float scale;
  std::int32_t zero_point;
};

TEST(Quantize, HasPyTorchsScaleOfSmallNumbers) {
  constexpr float kCutOff = 0x1.ffb48p-15F;
  for (const TorchRange& torch : {TorchRange{0, 1e-3F, 7, kCutOff, 0},
                                  {0, 1e-3F, 8, kCutOff, 0},
                                  {-5e-4F, 0, 7, kCutOff, 127},
                                  {-5e-4F, 0, 8, kCutOff, 255},
                                  {-1e-3F, 3e-4F, 7, kCutOff, 98},
                                  {-1e-3F, 3e-4F, 8, kCutOff, 196},
                                  {-2e-3F, 5.6e-3F, 7, kCutOff, 33},
                                  {-2e-3F, 5.8e-3F, 7, 0x1.019a5ap-14F, 33},
                                  {-2e-3F, 5.8e-3F, 8, kCutOff, 65},
                                  {-7.3e-4F, 7.1e-4F, 8, kCutOff, 129},
                                  {-1e-20F, 1e-12F, 7, kCutOff, 0},
                                  {0, 4e-37F, 7, kCutOff, 0},
                                  {0, 3.7e-37F, 7, 0.1F, 0},
                                  {0, 4e-37F, 8, 0.1F, 0},
                                  {-1e-38F, 2e-38F, 7, 0.1F, 0}}) {
    SCOPED_TRACE(testing::Message() << torch.min << ", " << torch.largest << ", " << torch.bits);
    const Int8Range range = Int8Range::of_batch(torch.min, torch.largest, torch.bits);
    EXPECT_EQ(range.scale, torch.scale);
    EXPECT_EQ(range.zero_point - range.low, torch.zero_point);
  }
}

/// A layer with rows `x` and one weight row of ones.
std::vector<float> outputs_of(const std::vector<float>& x, bool of_batch, float weight = 1) {
  Memory memory;
  const auto rows = static_cast<std::int64_t>(x.size()) / 2;
  const QuantizeWeight weights{.to = memory.add(1, 2, DType::kI8),
                               .scales = memory.add(1, 1),
                               .sums = memory.add(1, 1, DType::kI32),
                               .from = memory.add(1, 2)};
  std::ranges::fill(memory.values(weights.from), weight);
  run_int8(weights, memory);
  Quantize input{.to = memory.add(rows, 2, DType::kI8),
                 .scales = memory.add(of_batch ? 1 : rows, 1),
                 .from = memory.add(rows, 2)};
  if (of_batch) input.zero_point = memory.add(1, 1, DType::kI32);
  std::ranges::copy(x, memory.values(input.from).begin());
  run_int8(input, memory);
  const QuantizedGemm gemm{.c = memory.add(rows, 1),
                           .a = input.to,
                           .b = weights.to,
                           .a_scales = input.scales,
                           .b_scales = weights.scales,
                           .b_sums = weights.sums,
                           .bias = memory.add(1, 1),
                           .a_zero_point = input.zero_point};
  run_int8(gemm, memory);
  const auto out = memory.values(gemm.c);
  return {out.begin(), out.end()};
}

TEST(Quantize, LetsNothingVanishThatIsNoNumber) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const float bad : {kNone, -kNone, kInfinite, -kInfinite}) {
    const std::vector<float> by_rows = outputs_of({1, 2, bad, 1, 3, 4}, false);
    EXPECT_NEAR(by_rows[0], 3, 0.1);
    EXPECT_FALSE(std::isfinite(by_rows[1]));
    EXPECT_NEAR(by_rows[2], 7, 0.1);
    for (const float out : outputs_of({1, 2, bad, 1}, true)) EXPECT_FALSE(std::isfinite(out));
    for (const float out : outputs_of({1, 2}, false, bad)) EXPECT_FALSE(std::isfinite(out));
  }
}

TEST(Quantize, OfZerosIsZero) {
  EXPECT_THAT(outputs_of({0, -0.0F, 0, 0}, false), Each(0.0F));
  EXPECT_THAT(outputs_of({0, -0.0F, 0, 0}, true), Each(0.0F));
  EXPECT_THAT(outputs_of({1, 2}, false, 0), Each(0.0F));
  EXPECT_NEAR(outputs_of({1e-44F, 0, 1, 1}, false)[1], 2, 0.02);
}

}  // namespace
}  // namespace barestep
