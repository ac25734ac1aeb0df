#include "core/printer.h"

#include "core/program.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// One layer with 2 inputs and 3 outputs that learns only its weight.
TEST(Explain, PrintsTheWholeStepAsATable) {
  Buffers buffers;
  const auto data = [&](const char* name, std::int64_t cols, bool pinned) {
    return buffers.tensor(name, Category::kData, 4, cols, DType::kF32, 0, 2, pinned);
  };
  const Tensor x = data("x", 2, false);
  const Tensor y = data("y", 3, false);
  const BufferId params = buffers.get("params", Category::kParameters, 88);
  const Tensor bias{params, 0, 1, 3};
  const Tensor weight{params, 64, 3, 2};
  const Tensor out = buffers.tensor("out0", Category::kActivations, 4, 3);
  const Tensor grad_out = buffers.tensor("grad_out0", Category::kActivations, 4, 3);
  const Tensor grad_weight = buffers.tensor("grads", Category::kGradients, 3, 2);
  const Tensor loss = buffers.tensor("loss", Category::kData, 1, 1);

  Program program("train", buffers);
  program.add({DeviceOp{Copy{x, data("host_x", 2, true)}}, 0, Lane::kCopy, Phase::kData});
  program.add({DeviceOp{Fill{y, 0.5F}}, 0, Lane::kCopy, Phase::kData});
  program.add({DeviceOp{Gemm{out, x, weight, false, true, 0, bias, Activation::kRelu}}, 0,
               Lane::kCompute, Phase::kForward, "net.0"});
  program.add(
      {DeviceOp{PointwiseLoss{loss, grad_out, out, y, 12}}, 0, Lane::kCompute, Phase::kLoss});
  program.add({DeviceOp{Delay{0.002}}, 0, Lane::kCompute, Phase::kInjected});
  program.add({DeviceOp{Gemm{grad_weight, grad_out, x, true, false, 1}}, 0, Lane::kCompute,
               Phase::kBackward, "net.0"});
  order(program);
  EXPECT_EQ(explain(program), R"(Program 'train': one step of 6 nodes, kernels on a GPU: 4

#  phase     block  lane     op        what                                                                        flops  bytes  waits for
0  data      -      copy     copy      x[4x2] = host_x[4x2]                                                            0     64  #5 of 2 steps before
1  data      -      copy     fill      y[4x3] = 0.5                                                                    0     48
2  forward   net.0  compute  gemm      out0[4x3] = x[4x2] * params@64[3x2]^T + params[1x3], relu                      72    116  #0
3  loss      -      compute  mse_loss  loss[1x1] = sum of (out0[4x3] - y[4x3])^2 / 12, gradient in grad_out0[4x3]     49    148  #1
4  injected  -      compute  delay     2 ms                                                                            0      0
5  backward  net.0  compute  gemm      grads[3x2] = grad_out0[4x3]^T * x[4x2] + grads[3x2]                            60    128

phase     nodes  flops  bytes
data          2      0    112
injected      1      0      0
forward       1     72    116
loss          1     49    148
backward      1     60    128
total         6    181    504

name[4x3] is a tensor of 4 rows and 3 columns in the buffer of that name; name@64 starts 64
bytes into it; ^T is the transpose. Nodes of one lane run one after the other, lanes side by
side; #3 is node 3 of the same step. A multiply-add is two flops; bytes are those of every
input read once and every output written once.
)");
}

TEST(Explain, ShowsDevicesAndMessagesWhereThereAreAny) {
  Buffers buffers;
  const auto tensor = [&](const char* name, std::int64_t rows, std::int64_t cols, int device) {
    return buffers.tensor(name, Category::kData, rows, cols, DType::kF32, device);
  };
  Program program("train", buffers);
  program.add({Collective{Broadcast{{tensor("params", 1, 32, 0), tensor("params", 1, 32, 1)}}}, 0,
               Lane::kComm, Phase::kForward});
  program.add({DeviceOp{Copy{tensor("gathered", 4, 3, 0).row_slice(2, 2), tensor("out0", 2, 3, 1)}},
               0, Lane::kComm, Phase::kForward});
  const std::string text = explain(program);
  EXPECT_THAT(text, HasSubstr("block  device  lane"));
  EXPECT_THAT(text, HasSubstr("message  waits for\n"));
  EXPECT_THAT(text,
              HasSubstr("-      0,1     comm  broadcast  params[1x32], 1:params[1x32] = that"));
  EXPECT_THAT(text, HasSubstr("gathered@24[2x3] = 1:out0[2x3]"));
  EXPECT_THAT(text, EndsWith("A message counts the bytes of one rank's tensor.\n"));
}

TEST(TextOf, WritesEachOpAsAFormula) {
  Buffers buffers;
  const auto tensor = [&](const char* name, std::int64_t rows, std::int64_t cols,
                          DType dtype = DType::kF32, int device = 0) {
    return buffers.tensor(name, Category::kData, rows, cols, dtype, device);
  };
  const Tensor a = tensor("a", 4, 3);
  const Tensor b = tensor("b", 4, 3);
  const Tensor c = tensor("c", 4, 3);
  const Tensor row = tensor("row", 1, 3);
  const Tensor narrow = tensor("narrow", 4, 3, DType::kBF16);
  const Tensor one = tensor("one", 1, 1);
  const Tensor labels = tensor("labels", 4, 1, DType::kI32);
  const Tensor count = tensor("count", 1, 1, DType::kI32);
  const Tensor square = tensor("square", 3, 3);
  const Tensor state = tensor("state", 1, state_bytes(Generator::kTorchCpu), DType::kU8);
  const Tensor pair = tensor("pair", 1, 2);
  const Tensor i8 = tensor("i8", 3, 3, DType::kI8);
  const Tensor sums = tensor("sums", 1, 3, DType::kI32);
  const Tensor column = tensor("column", 3, 1);
  const Tensor far = tensor("a", 4, 3, DType::kF32, 1);
  const auto flat = [&](const char* name) { return tensor(name, 1, 8); };
  const OptimizerUpdate adam{
      .weights = flat("p"), .grads = flat("g"), .state = {flat("m"), flat("v")}, .scalars = pair};
  OptimizerUpdate adamw = adam;
  adamw.scalars = row;
  adamw.step = AdamStep{.weight_decay = 0.01, .decoupled = true};
  const auto update = [&](const std::vector<Tensor>& kept, const Tensor& scalars,
                          const OptimizerStep& step) {
    return OptimizerUpdate{
        .weights = flat("p"), .grads = flat("g"), .state = kept, .scalars = scalars, .step = step};
  };

  const std::vector<std::pair<Op, std::string>> cases{
      {DeviceOp{Gemm{square, a, b, true, false, 0.5F}},
       "square[3x3] = a[4x3]^T * b[4x3] + 0.5 * square[3x3]"},
      {DeviceOp{Gemm{a, b, square}}, "a[4x3] = b[4x3] * square[3x3]"},
      {DeviceOp{QuantizeWeight{i8, row, sums, square}},
       "i8[3x3] = square[3x3] / row[1x3] in int8, sums of its rows in sums[1x3]"},
      {DeviceOp{Quantize{.to = i8, .scales = column, .from = square}},
       "i8[3x3] = square[3x3] / column[3x1] in 8 bits"},
      {DeviceOp{Quantize{.to = i8, .scales = one, .from = square, .zero_point = count, .bits = 7}},
       "i8[3x3] = square[3x3] / one[1x1] + count[1x1] in 7 bits"},
      {DeviceOp{QuantizedGemm{.c = square,
                              .a = i8,
                              .b = i8,
                              .a_scales = column,
                              .b_scales = row,
                              .b_sums = sums,
                              .bias = row,
                              .activation = Activation::kRelu}},
       "square[3x3] = i8[3x3] * i8[3x3]^T in int32, times column[3x1] * row[1x3], + row[1x3], "
       "relu"},
      {DeviceOp{QuantizedGemm{.c = square,
                              .a = i8,
                              .b = i8,
                              .a_scales = one,
                              .b_scales = one,
                              .b_sums = sums,
                              .bias = row,
                              .a_zero_point = count}},
       "square[3x3] = (i8[3x3] - count[1x1]) * i8[3x3]^T in int32, times one[1x1] * one[1x1], + "
       "row[1x3]"},
      {DeviceOp{BiasActivation{a, row}}, "a[4x3] += row[1x3], relu"},
      {DeviceOp{BiasActivation{a, row, Activation::kNone}}, "a[4x3] += row[1x3]"},
      {DeviceOp{BiasActivation{a, row, Activation::kGelu, b}},
       "a[4x3] += row[1x3], gelu of b[4x3]"},
      {DeviceOp{ActivationGrad{a, b}}, "a[4x3] = 0 where b[4x3] <= 0"},
      {DeviceOp{ActivationGrad{a, b, Activation::kSigmoid}}, "a[4x3] *= b[4x3] * (1 - b[4x3])"},
      {DeviceOp{ActivationGrad{a, b, Activation::kTanh}}, "a[4x3] *= 1 - b[4x3]^2"},
      {DeviceOp{ActivationGrad{a, b, Activation::kRelu, row, 1}},
       "a[4x3] = 0 where b[4x3] <= 0, row[1x3] = its column sums + row[1x3]"},
      {DeviceOp{Dropout{.values = a, .step = count, .rate = 0.2, .first_row = 1, .row_stride = 3}},
       "a[4x3] *= 1.25, or 0 by chance 0.2; drawn by count[1x1] for rows 1, 4, ..."},
      {DeviceOp{SumRows{row, a, 1}}, "row[1x3] = column sums of a[4x3] + row[1x3]"},
      {DeviceOp{SquaredErrors{row, a, b}}, "row[1x3] = column sums of (a[4x3] - b[4x3])^2"},
      {DeviceOp{PointwiseLoss{one, a, b, c, 12}},
       "one[1x1] = sum of (b[4x3] - c[4x3])^2 / 12, gradient in a[4x3]"},
      {DeviceOp{PointwiseLoss{one, a, b, c, 12, 0, LossKind::kMse, {}, Activation::kRelu}},
       "one[1x1] = sum of (b[4x3] - c[4x3])^2 / 12, gradient in a[4x3], 0 where b[4x3] <= 0"},
      {DeviceOp{CrossEntropy{one, a, b, labels, 4}},
       "one[1x1] = cross entropy of b[4x3] with labels labels[4x1] / 4, gradient in a[4x3]"},
      {DeviceOp{CountCorrect{count, a, labels}},
       "count[1x1] = rows of a[4x3] whose largest is label labels[4x1]"},
      {DeviceOp{adam}, "p[1x8] from g[1x8], m[1x8], v[1x8], pair[1x2]"},
      {DeviceOp{adamw},
       "p[1x8] from g[1x8], m[1x8], v[1x8], row[1x3], decoupled, weight decay 0.01"},
      {DeviceOp{LinearAdam{.weight = square,
                           .weight_moments1 = tensor("wm", 3, 3),
                           .weight_moments2 = tensor("wv", 3, 3),
                           .bias = row,
                           .bias_moments1 = tensor("bm", 1, 3),
                           .bias_moments2 = tensor("bv", 1, 3),
                           .grad_y = a,
                           .x = b,
                           .scalars = pair,
                           .clip = one}},
       "square[3x3], row[1x3] from a[4x3]^T * b[4x3], column sums, wm[3x3], wv[3x3], bm[1x3], "
       "bv[1x3], pair[1x2], gradient times one[1x1]"},
      {DeviceOp{
           update({flat("v"), flat("m")}, one, RmsPropStep{.momentum = 0.9, .weight_decay = 0.1})},
       "p[1x8] from g[1x8], v[1x8], m[1x8], one[1x1], momentum 0.9, weight decay 0.1"},
      {DeviceOp{update({flat("s")}, one, AdagradStep{})}, "p[1x8] from g[1x8], s[1x8], one[1x1]"},
      {DeviceOp{update({flat("m")}, pair, LionStep{})}, "p[1x8] from g[1x8], m[1x8], pair[1x2]"},
      {DeviceOp{SumSquares{one, row}}, "one[1x1] = sum of row[1x3]^2"},
      {DeviceOp{GramSquares{one, square, tensor("gram_x", 3, 3)}},
       "one[1x1] = sum of square[3x3] * (gram_x[3x3] + 1)"},
      {DeviceOp{ClipFactor{one, row, 0.5}},
       "one[1x1] = 0.5 / root of the sum of row[1x3], at most 1"},
      {DeviceOp{update({}, one, SgdStep{})}, "p[1x8] from g[1x8], one[1x1]"},
      {DeviceOp{update({flat("v")}, one, SgdStep{0.9, 0.01, true})},
       "p[1x8] from g[1x8], v[1x8], one[1x1], momentum 0.9, Nesterov, weight decay 0.01"},
      {DeviceOp{Copy{a.row_slice(1, 2), far.row_slice(0, 2)}}, "a@12[2x3] = 1:a[2x3]"},
      {DeviceOp{Cast{narrow, a, 0.5F}}, "narrow[4x3 bf16] = 0.5 * a[4x3] in bf16"},
      {DeviceOp{Cast{a, narrow}}, "a[4x3] = narrow[4x3 bf16] in fp32"},
      {DeviceOp{Fill{a, -0.25F}}, "a[4x3] = -0.25"},
      {DeviceOp{Randn{a, state}}, "a[4x3] = normal numbers drawn from state[1x2520]"},
      {DeviceOp{Delay{0.0015}}, "1.5 ms"},
      {Collective{AllReduce{{a, far}, 0.5F}},
       "a[4x3], 1:a[4x3] summed over all ranks, each times 0.5"},
      {Collective{AllReduce{{a}}}, "a[4x3] summed over all ranks"},
      {Collective{Broadcast{{a}, 2}}, "a[4x3] = that of rank 2"},
      {Collective{Reduce{{a, far}}}, "a[4x3], 1:a[4x3] summed over all ranks into that of rank 0"},
      {Collective{ReduceScatter{{a}, 0.5F}},
       "a[4x3], each rank's rows summed over all ranks, each times 0.5"},
      {Collective{AllGather{{a}}}, "a[4x3] = the rows of all ranks"},
      {Collective{AllGather{{a}, {far.row_slice(1, 2)}}},
       "a[4x3] = the rows of all ranks, this one's from 1:a@12[2x3]"},
      {Collective{SendReceive{.sends = a, .peer = 2}}, "a[4x3] to pipeline rank 2"},
      {Collective{SendReceive{a, far, 2}}, "a[4x3] to pipeline rank 2, 1:a[4x3] from there"},
  };
  Program program("formulas", buffers);
  for (const auto& [op, text] : cases) {
    const NodeId id = program.add({op});
    EXPECT_EQ(text_of(program, program.nodes()[static_cast<std::size_t>(id)]), text);
  }
}

TEST(PlanTable, PrintsEveryByteByCategory) {
  Buffers buffers;
  buffers.get("params", Category::kParameters, 1'610'809'344);
  buffers.get("grads", Category::kGradients, 1'610'809'344);
  buffers.get("x", Category::kData, 1000, 0, 2);
  buffers.get("host_x", Category::kData, 1000, 0, 2, true);
  buffers.get("x", Category::kData, 300, 1);
  EXPECT_EQ(plan_table(MemoryPlan(buffers), buffers, {"cpu"}), R"(Memory plan of cpu
  parameters             1,610,809,344 B  1.50 GiB
  gradients              1,610,809,344 B  1.50 GiB
  optimizer                          0 B       0 B
  activations                        0 B       0 B
  data                           2,048 B  2.00 KiB
  communication                      0 B       0 B
  workspace                          0 B       0 B
  total                  3,221,620,736 B  3.00 GiB
  pinned host memory
    data                         2,048 B  2.00 KiB
    total                        2,048 B  2.00 KiB
  buffers
    params (parameters)  1,610,809,344 B  1.50 GiB
    grads (gradients)    1,610,809,344 B  1.50 GiB
    x (data, 2 slots)            2,048 B  2.00 KiB
Memory plan of device 1
  parameters       0 B    0 B
  gradients        0 B    0 B
  optimizer        0 B    0 B
  activations      0 B    0 B
  data           512 B  512 B
  communication    0 B    0 B
  workspace        0 B    0 B
  total          512 B  512 B
  buffers
    x (data)     512 B  512 B
)");
}

TEST(PlanTable, ShowsTheLargestBuffersOnly) {
  Buffers buffers;
  for (int i = 1; i <= 9; ++i) {
    buffers.get(std::string("b").append(std::to_string(i)), Category::kData, 256 * i);
  }
  const std::string text = plan_table(MemoryPlan(buffers), buffers);
  EXPECT_THAT(text, HasSubstr("Memory plan of device 0\n"));
  EXPECT_THAT(text, HasSubstr("  largest 8 of 9 buffers\n    b9 (data)"));
  EXPECT_THAT(text, Not(HasSubstr("b1 (data)")));
}

}  // namespace
}  // namespace barestep
