#include "core/operands.h"

#include <cctype>

#include "core/addresses.h"
#include "core/sample_ops.h"
#include "core/tensor.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

using namespace sample_ops;  // NOLINT(google-build-using-namespace)

Gemm weight_gradient() {
  return {.c = f32(0, 4, 5), .a = f32(1, 7, 4), .b = f32(2, 7, 5), .transpose_a = true};
}

Gemm gram_product() {
  return {.c = f32(0, 7, 7), .a = f32(1, 7, 4), .b = f32(1, 7, 4), .transpose_b = true};
}

std::vector<Op> one_of_each() {
  return {DeviceOp{gemm(1)},
          DeviceOp{gemm_with_bias()},
          DeviceOp{weight_gradient()},
          DeviceOp{gram_product()},
          DeviceOp{quantize_weight()},
          DeviceOp{quantize()},
          DeviceOp{quantize_batch()},
          DeviceOp{quantized_gemm()},
          DeviceOp{quantized_gemm_of_batch()},
          DeviceOp{BiasActivation{f32(0, 4, 5), f32(1, 1, 5)}},
          DeviceOp{BiasActivation{f32(0, 4, 5), f32(1, 1, 5), Activation::kGelu, f32(2, 4, 5)}},
          DeviceOp{ActivationGrad{f32(0, 4, 5), f32(1, 4, 5)}},
          DeviceOp{relu_grad_with_sums()},
          DeviceOp{dropout()},
          DeviceOp{SumRows{f32(0, 1, 5), f32(1, 4, 5)}},
          DeviceOp{SquaredErrors{f32(0, 1, 5), f32(1, 4, 5), f32(2, 4, 5)}},
          DeviceOp{PointwiseLoss{f32(0, 1, 1), f32(1, 4, 5), f32(2, 4, 5), f32(3, 4, 5), 100}},
          DeviceOp{CrossEntropy{f32(0, 1, 1), f32(1, 4, 5), f32(2, 4, 5), i32(3, 4, 1), 100}},
          DeviceOp{count_correct()},
          DeviceOp{clipped(adam())},
          DeviceOp{clipped(decaying(adam(), true))},
          DeviceOp{clipped(nesterov())},
          DeviceOp{clipped(rmsprop())},
          DeviceOp{clipped(adagrad())},
          DeviceOp{clipped(lion())},
          DeviceOp{clipped(linear_adam())},
          DeviceOp{SumSquares{f32(0, 1, 1), f32(1, 2, 5)}},
          DeviceOp{GramSquares{f32(0, 1, 1), f32(1, 5, 5), f32(2, 5, 5)}},
          DeviceOp{CheckFinite{f32(0, 1, 1), f32(1, 2, 5)}},
          DeviceOp{UpdateLossScale{{f32(0, 1, 1), f32(1, 1, 1), i32(2, 1, 1)}, i32(3, 1, 1)}},
          DeviceOp{ClipFactor{f32(0, 1, 1), f32(1, 1, 3)}},
          DeviceOp{Copy{f32(0, 4, 5), f32(1, 4, 5)}},
          DeviceOp{Cast{bf16(0, 4, 5), f32(1, 4, 5)}},
          DeviceOp{Fill{f32(0, 4, 5)}},
          DeviceOp{Randn{f32(0, 4, 5), state(1)}},
          DeviceOp{Delay{1, f32(0, 1, 1)}},
          DeviceOp{add()},
          DeviceOp{layer_norm()},
          DeviceOp{layer_norm_grad()},
          DeviceOp{attention()},
          DeviceOp{attention(AttentionForm::kStandard)},
          DeviceOp{attention_grad()},
          DeviceOp{attention_grad(AttentionForm::kStandard)},
          Collective{AllReduce{{f32(0, 2, 9), f32(1, 2, 9)}}},
          Collective{Broadcast{{f32(0, 2, 9), f32(1, 2, 9)}}},
          Collective{Reduce{{f32(0, 2, 9), f32(1, 2, 9)}}},
          Collective{ReduceScatter{{f32(0, 2, 9), f32(1, 2, 9)}}},
          Collective{AllGather{{f32(0, 3, 9), f32(1, 3, 9)}, {f32(2, 1, 9), f32(3, 1, 9)}}},
          Collective{SendReceive{f32(0, 3, 9), f32(1, 2, 4)}}};
}

bool is_refused(const Op& op) {
  try {
    validate(op);
    return false;
  } catch (const Error&) {
    return true;
  }
}

/// How often a symbol occurs in the op's list.
std::ptrdiff_t count_of(const std::vector<Operand>& operands, char symbol) {
  return std::ranges::count(operands, symbol, &Operand::rows) +
         std::ranges::count(operands, symbol, &Operand::cols);
}

/// The op with one operand changed.
template <class Change>
Op with_one(const Op& op, std::size_t index, Change change) {
  std::size_t at = 0;
  return with_tensors(op, [&](const Operand& operand) {
    Tensor tensor = *operand.tensor;
    if (at++ == index) change(tensor);
    return tensor;
  });
}

TEST(OperandsOf, ListsEveryKindOfOp) {
  std::set<std::string_view> labels;
  for (const Op& op : one_of_each()) {
    EXPECT_NO_THROW(validate(op)) << label_of(op);
    labels.insert(label_of(op));
  }
  // An update has the label of its step, and a gradient with sums one of its own.
  EXPECT_EQ(labels.size(), std::variant_size_v<DeviceOp> + std::variant_size_v<OptimizerStep> +
                               std::variant_size_v<Collective>);
}

TEST(OperandsOf, LeavesOutWhatAnOpDoesWithout) {
  Op op = DeviceOp{gemm()};
  EXPECT_EQ(operands_of(op).size(), 3U);
  op = DeviceOp{gemm_with_bias()};
  EXPECT_EQ(operands_of(op).back().name, "bias");
}

// validate()'s rules and the list of symbols must agree: neither is stricter.
TEST(OperandsOf, HoldsAllThatIsRefusedOfShapesAndNothingElse) {
  for (const Op& op : one_of_each()) {
    const std::vector<Operand> operands = operands_of(op);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].name == "state") continue;  // its size depends on its generator
      // Columns are multiples of each other, rows of the length of sequences.
      if (label_of(op).starts_with("attention")) continue;
      SCOPED_TRACE(testing::Message() << label_of(op) << ": " << operands[i].name);
      const auto is_bound = [&](char symbol) {
        return symbol != '*' && (!std::isalpha(symbol) || count_of(operands, symbol) > 1);
      };
      EXPECT_EQ(is_refused(with_one(op, i, [](Tensor& tensor) { ++tensor.rows; })),
                is_bound(operands[i].rows));
      EXPECT_EQ(is_refused(with_one(op, i, [](Tensor& tensor) { ++tensor.cols; })),
                is_bound(operands[i].cols));
      EXPECT_TRUE(is_refused(with_one(op, i, [](Tensor& tensor) { tensor.dtype = DType::kI32; })) ||
                  operands[i].dtype == DType::kI32);
    }
  }
}

TEST(OperandsOf, RefusesThatAWrittenOperandSharesBytesWithAnother) {
  for (const Op& op : one_of_each()) {
    const std::vector<Operand> operands = operands_of(op);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      for (std::size_t j = 0; j < operands.size(); ++j) {
        const bool both_read =
            operands[i].use == OperandUse::kReads && operands[j].use == OperandUse::kReads;
        if (i == j || *operands[i].tensor == *operands[j].tensor) continue;
        const Op shared =
            with_one(op, i, [&](Tensor& tensor) { tensor.buffer = operands[j].tensor->buffer; });
        EXPECT_EQ(is_refused(shared), !both_read)
            << label_of(op) << ": " << operands[i].name << " and " << operands[j].name;
      }
    }
  }
}

TEST(Slice, CutsAnOptimizerIntoBuckets) {
  const OptimizerUpdate whole = clipped(adam());
  const Op part = slice(DeviceOp{whole}, 'n', 8, 4);
  EXPECT_NO_THROW(validate(part));
  const auto& bucket = std::get<OptimizerUpdate>(std::get<DeviceOp>(part));
  EXPECT_EQ(bucket.weights, (Tensor{0, 32, 1, 4}));
  EXPECT_EQ(bucket.grads, (Tensor{1, 32, 1, 4}));
  EXPECT_EQ(bucket.state[0], (Tensor{2, 32, 1, 4}));
  EXPECT_EQ(bucket.state[1], (Tensor{3, 32, 1, 4}));
  EXPECT_EQ(bucket.scalars, whole.scalars);
  EXPECT_EQ(bucket.clip, whole.clip);
}

TEST(Slice, AddsTheRowsOfAGradientToThoseBefore) {
  const Gemm whole = weight_gradient();
  const Op first_part = slice(DeviceOp{whole}, 'r', 0, 4);
  const Op second_part = slice(DeviceOp{whole}, 'r', 4, 3);
  const auto& first = std::get<Gemm>(std::get<DeviceOp>(first_part));
  const auto& second = std::get<Gemm>(std::get<DeviceOp>(second_part));
  EXPECT_EQ(first.a, whole.a.row_slice(0, 4));
  EXPECT_EQ(first.beta, 0);
  EXPECT_EQ(second.a, whole.a.row_slice(4, 3));
  EXPECT_EQ(second.b, whole.b.row_slice(4, 3));
  EXPECT_EQ(second.c, whole.c);
  EXPECT_EQ(second.beta, 1);
}

TEST(Slice, TakesTheRowsOfABatchAndLeavesTheWeights) {
  const Gemm whole = gemm_with_bias();
  const Op part = slice(DeviceOp{whole}, 'r', 3, 1);
  EXPECT_NO_THROW(validate(part));
  const auto& rows = std::get<Gemm>(std::get<DeviceOp>(part));
  EXPECT_EQ(rows.c, whole.c.row_slice(3, 1));
  EXPECT_EQ(rows.a, whole.a.row_slice(3, 1));
  EXPECT_EQ(rows.b, whole.b);
  EXPECT_EQ(rows.bias, whole.bias);
  EXPECT_EQ(rows.beta, 0);
}

TEST(Slice, RefusesWhatHasNoSuchParts) {
  const auto refuses = [](const Op& op, char dimension, std::int64_t first, std::int64_t count,
                          const char* text) {
    expect_error(ExitCode::kBug, text, [&] { slice(op, dimension, first, count); });
  };
  refuses(DeviceOp{adam()}, 'r', 0, 4, "no parts make up adam along 'r'");
  refuses(DeviceOp{linear_adam()}, 'r', 0, 4, "no parts make up linear_adam along 'r'");
  refuses(DeviceOp{gram_product()}, 'r', 0, 4, "there is no gemm along 'r'");
  refuses(DeviceOp{Delay{1, f32(0, 1, 1)}}, 'r', 0, 1, "there is no delay along 'r'");
  refuses(DeviceOp{SumSquares{f32(0, 1, 1), f32(1, 2, 5)}}, 'm', 0, 1, "no parts make up");
  Gemm rectified = weight_gradient();
  rectified.activation = Activation::kRelu;
  refuses(DeviceOp{rectified}, 'r', 0, 4, "no parts make up gemm along 'r'");
  const char* const capital = "what is cut is a dimension, and no capital";
  refuses(DeviceOp{cross_entropy()}, 'N', 0, 1, capital);
  refuses(DeviceOp{Randn{f32(0, 4, 5), state(1)}}, '*', 0, 1, capital);
  const std::string inside = "a part lies inside its dimension";
  refuses(DeviceOp{adam()}, 'n', 99, 2, inside.c_str());
  refuses(DeviceOp{adam()}, 'n', -1, 2, inside.c_str());
  refuses(DeviceOp{weight_gradient()}, 'r', 7, 1, inside.c_str());
  const char* const columns = "a part of the columns of several rows is no tensor";
  refuses(DeviceOp{gemm()}, 'n', 0, 2, columns);
  refuses(DeviceOp{GramSquares{f32(0, 1, 1), f32(1, 5, 5), f32(2, 5, 5)}}, 'n', 0, 1,
          "no parts make up gram_squares along 'n'");
}

TEST(Addresses, RefuseATypeThatTheTensorDoesNotHold) {
  alignas(8) std::byte memory[64];
  const Addresses addresses(std::vector<std::byte*>{memory, memory, memory, memory});
  EXPECT_EQ(static_cast<void*>(addresses.at(f32(0, 1, 1))), memory);
  EXPECT_EQ(static_cast<void*>(addresses.at<Bf16>(bf16(1, 1, 1))), memory);
  EXPECT_EQ(static_cast<void*>(addresses.at<std::int32_t>(i32(2, 1, 1))), memory);
  EXPECT_EQ(static_cast<void*>(addresses.at<TorchGenerator>(state(3))), memory);
  EXPECT_EQ(static_cast<void*>(addresses.at<std::int8_t>(i8(3, 1, 1))), memory);
  for (const Tensor& tensor : {f32(0, 1, 1), bf16(1, 1, 1), i32(2, 1, 1), state(3)}) {
    EXPECT_EQ(addresses.at<std::byte>(tensor), memory);
  }
  const auto refuses = [](const auto& ask) {
    expect_error(ExitCode::kBug, "the tensor's numbers are of another type", ask);
  };
  refuses([&] { static_cast<void>(addresses.at(i32(2, 1, 1))); });
  refuses([&] { static_cast<void>(addresses.at(bf16(1, 1, 1))); });
  refuses([&] { static_cast<void>(addresses.at(state(3))); });
  refuses([&] { static_cast<void>(addresses.at<Bf16>(f32(0, 1, 1))); });
  refuses([&] { static_cast<void>(addresses.at<std::int32_t>(f32(0, 1, 1))); });
  refuses([&] { static_cast<void>(addresses.at<TorchGenerator>(f32(0, 1, 1))); });
  refuses([&] { static_cast<void>(addresses.at<std::int8_t>(state(3))); });
  refuses([&] { static_cast<void>(addresses.at<TorchGenerator>(i8(3, 1, 1))); });
}

TEST(Addresses, RefuseABufferThatIsNotBound) {
  const Addresses addresses(std::vector<std::byte*>{nullptr});
  for (const BufferId buffer : {-1, 0, 1}) {
    expect_error(ExitCode::kBug, "the tensor's buffer is not bound",
                 [&] { static_cast<void>(addresses.at(f32(buffer, 1, 1))); });
  }
}

}  // namespace
}  // namespace barestep
