#include "kernels/op_cases.h"

#include "core/operands.h"
#include "core/random.h"
#include "support/testing.h"

namespace barestep {

Tensor Memory::add(std::int64_t rows, std::int64_t cols, DType dtype) {
  constexpr std::int64_t kGapBytes = 64;
  const auto used = static_cast<std::int64_t>(bytes_.size());
  const Tensor tensor{0, (used + 7) / 8 * 8 + kGapBytes, rows, cols, dtype};
  bytes_.resize(static_cast<std::size_t>(tensor.end_bytes() + kGapBytes));
  return tensor;
}

namespace {

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 31}, {31, 33}, {33, 257}, {257, 31}, {300, 257}, {0, 33}};

struct GemmShape {
  std::int64_t m, n, k;
};
constexpr GemmShape kGemmShapes[] = {{1, 1, 1},   {31, 33, 257}, {33, 257, 31},  {257, 31, 33},
                                     {1, 257, 9}, {257, 1, 31},  {200, 300, 70}, {400, 600, 9},
                                     {0, 33, 31}, {33, 0, 31},   {33, 31, 0}};

class CaseList {
 public:
  /// `build` lays out tensors and returns the op; then everything it reads is filled.
  void add(std::string name, const std::function<DeviceOp(Memory&)>& build,
           const std::function<void(Memory&)>& adjust = {}) {
    OpCase op_case{std::move(name), {}, {}};
    op_case.op = build(op_case.memory);
    for (const Access& access : accesses_of(Op(op_case.op)))
      if (!access.writes && access.tensor.dtype == DType::kF32) fill(op_case.memory, access.tensor);
    if (adjust) adjust(op_case.memory);
    all_.push_back(std::move(op_case));
  }

  std::vector<OpCase> take() { return std::move(all_); }
  std::mt19937& random() { return random_; }

 private:
  /// Numbers in [-1, 1), some of them 0.
  void fill(Memory& memory, const Tensor& tensor) {
    for (float& value : memory.values(tensor)) {
      const auto bits = static_cast<std::uint32_t>(random_());
      value = bits % 9 == 0 ? 0.0F : static_cast<float>(bits >> 8) * 0x1p-23F - 1;
    }
  }

  std::mt19937 random_{1};
  std::vector<OpCase> all_;
};

std::string text(const Shape& s) {
  return fmt::format("{}x{}", s.rows, s.cols);
}

struct GemmForm {
  const char* name;
  float beta;
  bool bias;
  Activation activation;
};

void add_gemm(CaseList& list, const GemmShape& s, const GemmForm& form, bool ta, bool tb) {
  const std::string name =
      fmt::format("gemm {}x{}x{} {}{}{}", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', form.name);
  list.add(name, [&](Memory& memory) {
    Gemm op{.c = memory.add(s.m, s.n),
            .a = ta ? memory.add(s.k, s.m) : memory.add(s.m, s.k),
            .b = tb ? memory.add(s.n, s.k) : memory.add(s.k, s.n),
            .transpose_a = ta,
            .transpose_b = tb,
            .beta = form.beta,
            .activation = form.activation};
    if (form.bias) op.bias = memory.add(1, s.n);
    if (traits_of(form.activation).grad_from == GradFrom::kInput)
      op.pre_activation = memory.add(s.m, s.n);
    return op;
  });
}

/// Every transposition in its plain form, and the other forms as used by a net's layers.
void add_gemms(CaseList& list) {
  using enum Activation;
  for (const GemmShape& shape : kGemmShapes) {
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) add_gemm(list, shape, {"", 0, false, kNone}, ta, tb);
    add_gemm(list, shape, {" bias", 0, true, kNone}, false, true);
    add_gemm(list, shape, {" bias relu", 0, true, kRelu}, false, true);
    add_gemm(list, shape, {" bias gelu", 0, true, kGelu}, false, true);
    add_gemm(list, shape, {" bias tanh", 0, true, kTanh}, false, true);
    add_gemm(list, shape, {" beta 1", 1, false, kNone}, true, false);
    add_gemm(list, shape, {" beta -0.5 relu", -0.5F, false, kRelu}, false, false);
  }
}

/// Any values that Quantize can write, and the matching sums of QuantizeWeight.
void draw_int8(CaseList& list, Memory& memory, const QuantizedGemm& op) {
  const std::int32_t max = 1 << (op.bits - 1);
  const auto draw = [&](std::int32_t low, std::int32_t high) {
    const auto values = static_cast<std::uint32_t>(high - low + 1);
    return static_cast<std::int8_t>(low + static_cast<std::int32_t>(list.random()() % values));
  };
  for (std::int8_t& number : memory.values<std::int8_t>(op.a)) {
    number = draw(-max, std::min(max, 127));
  }
  for (std::int8_t& number : memory.values<std::int8_t>(op.b)) number = draw(-128, 127);
  for (std::int64_t row = 0; row < op.b.rows; ++row) {
    std::int32_t sum = 0;
    for (const std::int8_t number : memory.values<std::int8_t>(op.b.row_slice(row, 1))) {
      sum += number;
    }
    memory.values<std::int32_t>(op.b_sums)[static_cast<std::size_t>(row)] = sum;
  }
  if (op.a_zero_point) memory.values<std::int32_t>(*op.a_zero_point)[0] = 5 - max;
}

void add_quantized_gemm(CaseList& list, const GemmShape& s, int bits, bool of_batch,
                        Activation activation) {
  QuantizedGemm op;
  list.add(
      fmt::format("quantized gemm {}x{}x{} {} {} {}", s.m, s.n, s.k, bits, of_batch,
                  name_of(activation)),
      [&](Memory& memory) {
        op = QuantizedGemm{.c = memory.add(s.m, s.n),
                           .a = memory.add(s.m, s.k, DType::kI8),
                           .b = memory.add(s.n, s.k, DType::kI8),
                           .a_scales = memory.add(of_batch ? 1 : s.m, 1),
                           .b_scales = memory.add(1, of_batch ? 1 : s.n),
                           .b_sums = memory.add(1, s.n, DType::kI32),
                           .bias = memory.add(1, s.n),
                           .activation = activation,
                           .bits = bits};
        if (of_batch) op.a_zero_point = memory.add(1, 1, DType::kI32);
        return op;
      },
      [&](Memory& memory) { draw_int8(list, memory, op); });
}

/// Larger than a tile of the CPU in each direction. Small, because one warp per sum is slow if
/// threads are fibers.
constexpr GemmShape kInt8Shapes[] = {{1, 1, 1},   {31, 9, 257}, {3, 67, 40},
                                     {66, 3, 31}, {1, 70, 9},   {0, 33, 31}};

void add_int8(CaseList& list) {
  for (const GemmShape& s : kInt8Shapes) {
    for (const int bits : {7, 8}) {
      add_quantized_gemm(list, s, bits, false, Activation::kNone);
      add_quantized_gemm(list, s, bits, true, Activation::kRelu);
    }
  }
  add_quantized_gemm(list, {5, 9, 33}, 8, false, Activation::kGelu);
  for (const Shape& s : kShapes) {
    for (const bool one_scale : {false, true}) {
      // A weight has at least one output.
      if (s.rows > 0)
        list.add(fmt::format("quantize weight {} {}", text(s), one_scale), [&](Memory& memory) {
          return QuantizeWeight{.to = memory.add(s.rows, s.cols, DType::kI8),
                                .scales = memory.add(1, one_scale ? 1 : s.rows),
                                .sums = memory.add(1, s.rows, DType::kI32),
                                .from = memory.add(s.rows, s.cols)};
        });
      for (const int bits : {7, 8}) {
        list.add(fmt::format("quantize {} {} {}", text(s), bits, one_scale), [&](Memory& memory) {
          Quantize op{.to = memory.add(s.rows, s.cols, DType::kI8),
                      .scales = memory.add(one_scale ? 1 : s.rows, 1),
                      .from = memory.add(s.rows, s.cols),
                      .bits = bits};
          if (one_scale) op.zero_point = memory.add(1, 1, DType::kI32);
          return op;
        });
      }
    }
  }
}

void add_elementwise(CaseList& list, const Shape& s) {
  for (const Activation activation : kValuesOf<Activation>) {
    const std::string name = fmt::format("{} {}", name_of(activation), text(s));
    list.add("bias and " + name, [&](Memory& memory) {
      BiasActivation op{.values = memory.add(s.rows, s.cols),
                        .bias = memory.add(1, s.cols),
                        .activation = activation};
      if (traits_of(activation).grad_from == GradFrom::kInput)
        op.pre_activation = memory.add(s.rows, s.cols);
      return op;
    });
    if (activation == Activation::kNone) continue;
    list.add("gradient of " + name, [&](Memory& memory) {
      return ActivationGrad{memory.add(s.rows, s.cols), memory.add(s.rows, s.cols), activation};
    });
  }
  for (const double rate : {0.0, 0.2, 0.5}) {
    Dropout dropout;
    list.add(
        fmt::format("dropout {} of {}", rate, text(s)),
        [&](Memory& memory) {
          return dropout = Dropout{.values = memory.add(s.rows, s.cols),
                                   .step = memory.add(1, 1, DType::kI32),
                                   .rate = rate,
                                   .seed = 0x123456789ABCDEF0,
                                   .layer = 3,
                                   .first_row = 5,
                                   .row_stride = 2};
        },
        [&](Memory& memory) { memory.values<std::int32_t>(dropout.step)[0] = 1'000'000'000; });
  }
  list.add("bias and gelu alone " + text(s), [&](Memory& memory) {
    return BiasActivation{.values = memory.add(s.rows, s.cols),
                          .bias = memory.add(1, s.cols),
                          .activation = Activation::kGelu};
  });
  list.add("copy " + text(s), [&](Memory& memory) {
    return Copy{memory.add(s.rows, s.cols), memory.add(s.rows, s.cols)};
  });
  for (const float scale : {1.0F, 0.3F}) {
    for (const DType type : {DType::kBF16, DType::kF16}) {
      const std::string name = fmt::format("{} {} times {}", name_of(type), text(s), scale);
      list.add("cast to " + name, [&](Memory& memory) {
        return Cast{memory.add(s.rows, s.cols, type), memory.add(s.rows, s.cols), scale};
      });
      Cast widen;
      list.add(
          "cast from " + name,
          [&](Memory& memory) {
            return widen = Cast{memory.add(s.rows, s.cols), memory.add(s.rows, s.cols, type), scale,
                                scale == 1 ? 0.0F : 1.0F};
          },
          [&](Memory& memory) {
            // Any bits except those of infinities and NaNs.
            const std::uint32_t max = type == DType::kBF16 ? 0x7F00 : 0x7C00;
            for (auto& bits : memory.values<std::uint16_t>(widen.from)) {
              bits = static_cast<std::uint16_t>(list.random()() % max);
            }
          });
    }
  }
  list.add("fill " + text(s), [&](Memory& memory) {
    return Fill{memory.add(s.rows, s.cols), -2.5F};
  });
  list.add("fill i32 " + text(s), [&](Memory& memory) {
    return Fill{memory.add(s.rows, s.cols, DType::kI32), 0};
  });
  Randn randn;
  list.add(
      "randn " + text(s),
      [&](Memory& memory) {
        return randn = Randn{memory.add(s.rows, s.cols),
                             memory.add(1, sizeof(TorchGenerator), DType::kU8)};
      },
      [&](Memory& memory) {
        const TorchGenerator generator(7);
        std::memcpy(memory.bytes(randn.state).data(), &generator, sizeof(generator));
      });
}

void add_adam(CaseList& list, std::int64_t n, double weight_decay, bool decoupled,
              bool amsgrad = false) {
  OptimizerUpdate adam;
  list.add(
      fmt::format("adam {} weight decay {} {} {}", n, weight_decay, decoupled, amsgrad),
      [&](Memory& memory) {
        adam = OptimizerUpdate{
            .weights = memory.add(1, n),
            .grads = memory.add(1, n),
            .state = {memory.add(1, n), memory.add(1, n)},
            .scalars = memory.add(1, decoupled ? 3 : 2),
            .step =
                AdamStep{.weight_decay = weight_decay, .decoupled = decoupled, .amsgrad = amsgrad}};
        if (weight_decay != 0) adam.clip = memory.add(1, 1);
        if (amsgrad) adam.state.push_back(memory.add(1, n));
        return adam;
      },
      [&](Memory& memory) {
        for (float& moment : memory.values(adam.state[1])) moment *= moment;
        memory.values(adam.scalars)[0] = -0.004F;
        memory.values(adam.scalars)[1] = 0.07F;
        if (decoupled) memory.values(adam.scalars)[2] = 0.875F;
      });
}

void add_linear_adam(CaseList& list, const GemmShape& s, double weight_decay, bool decoupled) {
  LinearAdam op;
  list.add(
      fmt::format("linear_adam {}x{}x{} weight decay {} {}", s.m, s.n, s.k, weight_decay,
                  decoupled),
      [&](Memory& memory) {
        op = LinearAdam{.weight = memory.add(s.m, s.n),
                        .weight_moments1 = memory.add(s.m, s.n),
                        .weight_moments2 = memory.add(s.m, s.n),
                        .bias = memory.add(1, s.m),
                        .bias_moments1 = memory.add(1, s.m),
                        .bias_moments2 = memory.add(1, s.m),
                        .grad_y = memory.add(s.k, s.m),
                        .x = memory.add(s.k, s.n),
                        .scalars = memory.add(1, decoupled ? 3 : 2),
                        .step = {.weight_decay = weight_decay, .decoupled = decoupled}};
        if (weight_decay != 0) op.clip = memory.add(1, 1);
        return op;
      },
      [&](Memory& memory) {
        // Far from 0, so the last bit of a gradient does not decide the size of a weight's step.
        for (float& moment : memory.values(op.weight_moments2)) moment = moment * moment + 0.01F;
        for (float& moment : memory.values(op.bias_moments2)) moment = moment * moment + 0.01F;
        memory.values(op.scalars)[0] = -0.004F;
        memory.values(op.scalars)[1] = 0.07F;
        if (decoupled) memory.values(op.scalars)[2] = 0.875F;
        if (op.clip) memory.values(*op.clip)[0] = 0.375F;
      });
}

void add_linear_adams(CaseList& list) {
  constexpr GemmShape kLayers[] = {{1, 1, 1},     {31, 33, 7},  {64, 128, 16}, {65, 132, 17},
                                   {130, 257, 9}, {257, 1, 33}, {1, 300, 2},   {33, 20, 0}};
  for (const GemmShape& layer : kLayers) {
    add_linear_adam(list, layer, 0, false);
    add_linear_adam(list, layer, 0.25, false);
    add_linear_adam(list, layer, 0.25, true);
  }
}

/// The sums of squares and the factor of clipping.
void add_norms(CaseList& list, std::int64_t n) {
  list.add(fmt::format("sum_squares {}", n), [&](Memory& memory) {
    return SumSquares{memory.add(1, 1), memory.add(1, n)};
  });
  list.add(fmt::format("gram_squares {}", n), [&](Memory& memory) {
    const std::int64_t rows = 1 + n % 100;
    return GramSquares{memory.add(1, 1), memory.add(rows, rows), memory.add(rows, rows)};
  });
  for (const double max_norm : {0.5, 1e3}) {
    ClipFactor op;
    list.add(
        fmt::format("clip_factor {} {}", n, max_norm),
        [&](Memory& memory) {
          return op = ClipFactor{memory.add(1, 1), memory.add(1, n), max_norm};
        },
        [&](Memory& memory) {
          for (float& square : memory.values(op.squares)) square *= square;
        });
  }
}

void add_sgd(CaseList& list, std::int64_t n, double momentum, bool nesterov, double weight_decay) {
  list.add(
      fmt::format("sgd {} momentum {} {} weight decay {}", n, momentum, nesterov, weight_decay),
      [&](Memory& memory) {
        OptimizerUpdate op{.weights = memory.add(1, n),
                           .grads = memory.add(1, n),
                           .scalars = memory.add(1, 1),
                           .step = SgdStep{momentum, weight_decay, nesterov}};
        if (momentum > 0) op.state = {memory.add(1, n)};
        if (nesterov) op.clip = memory.add(1, 1);
        return op;
      });
}

void add_rmsprop(CaseList& list, std::int64_t n, double momentum, double weight_decay) {
  OptimizerUpdate op;
  list.add(
      fmt::format("rmsprop {} momentum {} weight decay {}", n, momentum, weight_decay),
      [&](Memory& memory) {
        op = OptimizerUpdate{
            .weights = memory.add(1, n),
            .grads = memory.add(1, n),
            .state = {memory.add(1, n)},
            .scalars = memory.add(1, 1),
            .step = RmsPropStep{.momentum = momentum, .weight_decay = weight_decay}};
        if (momentum > 0) op.state.push_back(memory.add(1, n));
        if (weight_decay != 0) op.clip = memory.add(1, 1);
        return op;
      },
      [&](Memory& memory) {
        for (float& square : memory.values(op.state[0])) square = square * square + 0.01F;
      });
}

void add_adagrad(CaseList& list, std::int64_t n, double weight_decay) {
  OptimizerUpdate op;
  list.add(
      fmt::format("adagrad {} weight decay {}", n, weight_decay),
      [&](Memory& memory) {
        op = OptimizerUpdate{.weights = memory.add(1, n),
                             .grads = memory.add(1, n),
                             .state = {memory.add(1, n)},
                             .scalars = memory.add(1, 1),
                             .step = AdagradStep{.weight_decay = weight_decay}};
        if (weight_decay != 0) op.clip = memory.add(1, 1);
        return op;
      },
      [&](Memory& memory) {
        for (float& sum : memory.values(op.state[0])) sum = sum * sum + 0.01F;
      });
}

void add_lion(CaseList& list, std::int64_t n, bool clipped) {
  list.add(fmt::format("lion {} {}", n, clipped), [&](Memory& memory) {
    OptimizerUpdate op{.weights = memory.add(1, n),
                       .grads = memory.add(1, n),
                       .state = {memory.add(1, n)},
                       .scalars = memory.add(1, 2),
                       .step = LionStep{}};
    if (clipped) op.clip = memory.add(1, 1);
    return op;
  });
}

void add_optimizers(CaseList& list, std::int64_t n) {
  add_adam(list, n, 0.25, true, true);
  add_rmsprop(list, n, 0, 0);
  add_rmsprop(list, n, 0.5, 0.25);
  add_adagrad(list, n, 0);
  add_adagrad(list, n, 0.25);
  add_lion(list, n, false);
  add_lion(list, n, true);
  add_adam(list, n, 0, false);
  add_adam(list, n, 0.25, false);
  add_adam(list, n, 0.25, true);
  add_sgd(list, n, 0, false, 0);
  add_sgd(list, n, 0, false, 0.25);
  add_sgd(list, n, 0.5, false, 0);
  add_sgd(list, n, 0.5, true, 0.25);
}

void add_reductions(CaseList& list, const Shape& s) {
  Tensor labels;
  const auto draw_labels = [&](Memory& memory) {
    for (std::int32_t& label : memory.values<std::int32_t>(labels))
      label = static_cast<std::int32_t>(list.random()() % static_cast<std::uint32_t>(s.cols));
  };
  list.add(
      "count_correct " + text(s),
      [&](Memory& memory) {
        labels = memory.add(s.rows, 1, DType::kI32);
        return CountCorrect{memory.add(1, 1, DType::kI32), memory.add(s.rows, s.cols), labels};
      },
      draw_labels);
  list.add(
      "count_correct with classes " + text(s),
      [&](Memory& memory) {
        labels = memory.add(s.rows, 1, DType::kI32);
        return CountCorrect{.correct = memory.add(1, 1, DType::kI32),
                            .logits = memory.add(s.rows, s.cols),
                            .labels = labels,
                            .binary = s.cols == 1,
                            .classes = memory.add(s.rows, 1, DType::kI32)};
      },
      draw_labels);
  for (const float beta : {0.0F, 1.0F, 0.5F}) {
    const std::string suffix = fmt::format(" {} beta {}", text(s), beta);
    const std::int64_t numbers = std::max(std::int64_t{1}, 2 * s.rows * s.cols);
    list.add("sum_rows" + suffix, [&](Memory& memory) {
      return SumRows{memory.add(1, s.cols), memory.add(s.rows, s.cols), beta};
    });
    for (const Activation activation : kValuesOf<Activation>) {
      if (activation == Activation::kNone) continue;
      list.add(fmt::format("gradient of {} and sums{}", name_of(activation), suffix),
               [&](Memory& memory) {
                 return ActivationGrad{.grad = memory.add(s.rows, s.cols),
                                       .from = memory.add(s.rows, s.cols),
                                       .activation = activation,
                                       .sums = memory.add(1, s.cols),
                                       .beta = beta};
               });
    }
    for (const LossKind kind : kValuesOf<LossKind>) {
      if (!is_pointwise(kind)) continue;
      PointwiseLoss op;
      const Activation activation = beta == 0 ? Activation::kNone : Activation::kRelu;
      list.add(
          fmt::format("{} after {}{}", traits_of(kind).label, name_of(activation), suffix),
          [&](Memory& memory) {
            const DType targets = takes_labels(kind) ? DType::kI32 : DType::kF32;
            return op = PointwiseLoss{.loss = memory.add(1, 1),
                                      .grad = memory.add(s.rows, s.cols),
                                      .output = memory.add(s.rows, s.cols),
                                      .target = memory.add(s.rows, s.cols, targets),
                                      .count = numbers,
                                      .beta = beta,
                                      .kind = kind,
                                      .activation = activation};
          },
          [&](Memory& memory) {
            for (float& output : memory.values(op.output)) output *= 3;  // beyond Huber's corner
            if (!takes_labels(kind)) return;
            for (std::int32_t& label : memory.values<std::int32_t>(op.target)) {
              label = static_cast<std::int32_t>(list.random()() % 2);
            }
          });
    }
    list.add(
        "cross_entropy" + suffix,
        [&](Memory& memory) {
          labels = memory.add(s.rows, 1, DType::kI32);
          return CrossEntropy{.loss = memory.add(1, 1),
                              .grad = memory.add(s.rows, s.cols),
                              .logits = memory.add(s.rows, s.cols),
                              .labels = labels,
                              .count = s.rows + 1,
                              .beta = beta,
                              .smoothing = beta == 1 ? 0.25F : 0};
        },
        draw_labels);
  }
}

/// Loss scaling, for an applied step and for a skipped one.
void add_scaling(CaseList& list) {
  for (const bool overflows : {false, true}) {
    for (const std::int64_t window : {1, 2000}) {
      UpdateLossScale op;
      list.add(
          fmt::format("update_loss_scale {} window {}", overflows, window),
          [&](Memory& memory) {
            return op = UpdateLossScale{.state = {.scale = memory.add(1, 1),
                                                  .found_inf = memory.add(1, 1),
                                                  .updates = memory.add(1, 1, DType::kI32)},
                                        .good_steps = memory.add(1, 1, DType::kI32),
                                        .window = window};
          },
          [&](Memory& memory) {
            memory.values(op.state.scale)[0] = 1024;
            memory.values(op.state.found_inf)[0] = overflows ? 1 : 0;
            memory.values<std::int32_t>(op.state.updates)[0] = 7;
            memory.values<std::int32_t>(op.good_steps)[0] = 3;
          });
    }
    CheckFinite check;
    list.add(
        fmt::format("check_finite {}", overflows),
        [&](Memory& memory) {
          return check = CheckFinite{memory.add(1, 1), memory.add(33, 257)};
        },
        [&](Memory& memory) {
          memory.values(check.found_inf)[0] = 0;
          if (overflows) memory.values(check.in)[4000] = HUGE_VALF;
        });
    OptimizerUpdate adam;
    list.add(
        fmt::format("adam with a loss scale {}", overflows),
        [&](Memory& memory) {
          return adam = OptimizerUpdate{.weights = memory.add(1, 33),
                                        .grads = memory.add(1, 33),
                                        .state = {memory.add(1, 33), memory.add(1, 33)},
                                        .scalars = memory.add(4, 2),
                                        .first_update = memory.add(1, 1, DType::kI32),
                                        .loss_scale = LossScale{memory.add(1, 1), memory.add(1, 1),
                                                                memory.add(1, 1, DType::kI32)}};
        },
        [&](Memory& memory) {
          for (float& moment : memory.values(adam.state[1])) moment *= moment;
          for (std::size_t i = 0; i < 8; ++i) {
            memory.values(adam.scalars)[i] = i % 2 == 0 ? -0.004F : 0.07F;
          }
          memory.values<std::int32_t>(*adam.first_update)[0] = 5;
          memory.values<std::int32_t>(adam.loss_scale->updates)[0] = 7;
          memory.values(adam.loss_scale->scale)[0] = 1024;
          memory.values(adam.loss_scale->found_inf)[0] = overflows ? 1 : 0;
        });
  }
}

LayerNorm layer_norm(Memory& memory, const Shape& s) {
  return {.y = memory.add(s.rows, s.cols),
          .mean = memory.add(s.rows, 1),
          .rstd = memory.add(s.rows, 1),
          .x = memory.add(s.rows, s.cols),
          .weight = memory.add(1, s.cols),
          .bias = memory.add(1, s.cols)};
}

LayerNormGrad layer_norm_grad(Memory& memory, const Shape& s, float beta) {
  LayerNormGrad op{.grad_weight = memory.add(1, s.cols),
                   .grad_bias = memory.add(1, s.cols),
                   .grad_y = memory.add(s.rows, s.cols),
                   .x = memory.add(s.rows, s.cols),
                   .mean = memory.add(s.rows, 1),
                   .rstd = memory.add(s.rows, 1),
                   .weight = memory.add(1, s.cols),
                   .beta = beta};
  if (beta == 0) op.grad_x = memory.add(s.rows, s.cols);
  return op;
}

void add_norms_of_rows(CaseList& list, const Shape& s) {
  list.add("add " + text(s), [&](Memory& memory) {
    return Add{memory.add(s.rows, s.cols), memory.add(s.rows, s.cols), memory.add(s.rows, s.cols)};
  });
  list.add("layer_norm " + text(s), [&](Memory& memory) { return layer_norm(memory, s); });
  for (const float beta : {0.0F, 1.0F}) {
    list.add(fmt::format("layer_norm_grad {} beta {}", text(s), beta),
             [&](Memory& memory) { return layer_norm_grad(memory, s, beta); });
  }
}

/// Rows whose mean and deviation are hard to compute: equal numbers, nearly equal ones, an offset
/// much larger than they differ, one number far from the others, squares that overflow or vanish.
constexpr std::int64_t kHardRows = 12;
float hard_number(std::int64_t row, std::int64_t col, std::int64_t cols, float random) {
  constexpr float kEqual[] = {0, 0.1F, 3.3F, 1234.1F, 3e9F};
  switch (row) {
    case 5:
      return col == 0 ? std::nextafter(77.7F, 78.0F) : 77.7F;
    case 6:
      return 40'000.3F + random;
    case 7:
      return 1e6F + static_cast<float>(col % 16);
    case 8:
      return col == 0 ? 1e6F : random;
    case 9:
      return col == cols - 1 ? -1e6F : random;
    case 10:
      return 1e25F * random;
    case 11:
      return 1e-25F * random;
    default:
      return kEqual[row];
  }
}

void add_norms_of_hard_rows(CaseList& list, std::int64_t cols) {
  const Shape s{kHardRows, cols};
  const auto set = [&](std::span<float> x) {
    for (std::int64_t i = 0; i < s.rows * cols; ++i) {
      float& number = x[static_cast<std::size_t>(i)];
      number = hard_number(i / cols, i % cols, cols, number);
    }
  };
  LayerNorm op;
  list.add(
      "layer_norm of hard rows " + text(s),
      [&](Memory& memory) { return op = layer_norm(memory, s); },
      [&](Memory& memory) { set(memory.values(op.x)); });
  LayerNormGrad grad;
  list.add(
      "layer_norm_grad of hard rows " + text(s),
      [&](Memory& memory) { return grad = layer_norm_grad(memory, s, 0); },
      [&](Memory& memory) {
        set(memory.values(grad.x));
        for (std::int64_t row = 0; row < s.rows; ++row) {
          const auto x = memory.values(grad.x.row_slice(row, 1));
          const ExactMoments exact = exact_moments(x);
          const auto i = static_cast<std::size_t>(row);
          memory.values(grad.mean)[i] = static_cast<float>(exact.mean);
          memory.values(grad.rstd)[i] = static_cast<float>(1 / std::sqrt(exact.variance + 1e-5));
        }
      });
}

struct AttentionSize {
  std::int64_t sequences, heads, length, width;
  bool causal;
};
/// Rows and widths that fill no tile, one tile, and several; widths of every size of a GPU's tiles.
constexpr AttentionSize kAttentionSizes[] = {
    {1, 1, 1, 1, false},   {2, 3, 5, 4, false},   {1, 2, 33, 24, true},  {1, 1, 70, 16, false},
    {1, 1, 130, 17, true}, {1, 1, 20, 100, true}, {1, 1, 300, 8, true},  {0, 2, 3, 4, false},
    {1, 1, 34, 33, false}, {1, 2, 33, 64, true},  {1, 1, 18, 128, false}};

void add_attention(CaseList& list, const AttentionSize& s, AttentionForm form) {
  const AttentionShape shape{
      .heads = s.heads, .length = s.length, .causal = s.causal, .form = form};
  const std::int64_t rows = s.sequences * s.length;
  const std::int64_t cols = s.heads * s.width;
  const std::string name = fmt::format("{} of {} x {} x {} x {} {}", name_of(form), s.sequences,
                                       s.heads, s.length, s.width, s.causal);
  list.add("attention " + name, [&](Memory& memory) {
    return Attention{.out = memory.add(rows, cols),
                     .kept = memory.add(rows, shape.kept_cols()),
                     .qkv = memory.add(rows, 3 * cols),
                     .shape = shape};
  });
  AttentionGrad op;
  list.add(
      "gradient of attention " + name,
      [&](Memory& memory) {
        op = AttentionGrad{.grad_qkv = memory.add(rows, 3 * cols),
                           .qkv = memory.add(rows, 3 * cols),
                           .out = memory.add(rows, cols),
                           .grad_out = memory.add(rows, cols),
                           .kept = memory.add(rows, shape.kept_cols()),
                           .shape = shape};
        if (op.scratch_cols() > 0) op.scratch = memory.add(rows, op.scratch_cols());
        return op;
      },
      [&](Memory& memory) {
        const ExactAttention exact = exact_attention(shape, rows, memory.values(op.qkv));
        const bool is_flash = form == AttentionForm::kFlash;
        std::ranges::copy(exact.out, memory.values(op.out).begin());
        std::ranges::copy(is_flash ? exact.log_sums : exact.probabilities,
                          memory.values(op.kept).begin());
      });
}

bool is_16_bits(DType type) {
  return type == DType::kBF16 || type == DType::kF16;
}

/// The operands of an op that may have 16 bits.
std::vector<std::string_view> narrow_operands(const DeviceOp& op) {
  const std::string_view label = label_of(op);
  if (const auto* const gemm = std::get_if<Gemm>(&op)) {
    if (gemm->beta != 0) return {"a", "b"};
    return {"c", "a", "b", "bias", "pre_activation"};
  }
  if (std::holds_alternative<BiasActivation>(op)) {
    if (std::get<BiasActivation>(op).bias) return {};
    return {"values", "pre_activation"};
  }
  if (const auto* const grad = std::get_if<ActivationGrad>(&op)) {
    return grad->sums ? std::vector<std::string_view>{}
                      : std::vector<std::string_view>{"grad", "from"};
  }
  if (std::holds_alternative<Dropout>(op)) return {"values"};
  if (const auto* const sum = std::get_if<SumRows>(&op)) {
    return sum->beta == 0 ? std::vector<std::string_view>{"out", "in"}
                          : std::vector<std::string_view>{"in"};
  }
  if (std::holds_alternative<SquaredErrors>(op)) return {"output"};
  if (std::holds_alternative<PointwiseLoss>(op)) return {"grad", "output"};
  if (std::holds_alternative<CrossEntropy>(op)) return {"grad", "logits"};
  if (std::holds_alternative<CountCorrect>(op)) return {"logits"};
  if (std::holds_alternative<SumSquares>(op)) return {"in"};
  if (std::holds_alternative<CheckFinite>(op)) return {"in"};
  if (std::holds_alternative<LinearAdam>(op)) return {"grad_y", "x"};
  if (std::holds_alternative<Add>(op)) return {"b"};
  if (std::holds_alternative<LayerNorm>(op)) return {"y"};
  if (std::holds_alternative<LayerNormGrad>(op)) return {"grad_y"};
  if (std::holds_alternative<Attention>(op)) return {"out", "qkv"};
  if (std::holds_alternative<AttentionGrad>(op)) return {"grad_qkv", "qkv", "out", "grad_out"};
  if (label == "adam" || label == "sgd" || label == "rmsprop" || label == "adagrad" ||
      label == "lion") {
    return {"grads"};
  }
  return {};
}

/// The same op with 16-bit operands and, if it has weights, their rounded copy; nothing if it has
/// no such operands.
std::optional<OpCase> narrowed(OpCase& wide, DType type) {
  OpCase narrow{wide.name + " of " + std::string(name_of(type)), wide.op, {}};
  std::visit(
      []<class AnyOp>(AnyOp& op) {
        if constexpr (std::is_same_v<AnyOp, BiasActivation>) op.bias.reset();
      },
      narrow.op);
  const std::vector<std::string_view> names = narrow_operands(narrow.op);
  if (names.empty()) return std::nullopt;
  const Op whole = with_tensors(Op(narrow.op), [&](const Operand& operand) {
    const bool narrows = std::ranges::find(names, operand.name) != names.end();
    const Tensor& old = *operand.tensor;
    const Tensor tensor = narrow.memory.add(old.rows, old.cols, narrows ? type : old.dtype);
    if (narrows) {
      set_numbers(narrow.memory, tensor, wide.memory.values(old));
    } else {
      std::ranges::copy(wide.memory.bytes(old), narrow.memory.bytes(tensor).begin());
    }
    return tensor;
  });
  narrow.op = std::get<DeviceOp>(whole);
  std::visit(
      [&]<class AnyOp>(AnyOp& op) {
        if constexpr (requires { op.first_update; }) {
          op.rounded = narrow.memory.add(1, op.weights.cols, type);
        } else if constexpr (std::is_same_v<AnyOp, LinearAdam>) {
          op.rounded_weight = narrow.memory.add(op.weight.rows, op.weight.cols, type);
          op.rounded_bias = narrow.memory.add(1, op.bias.cols, type);
        } else if constexpr (std::is_same_v<AnyOp, AttentionGrad>) {
          if (!op.scratch) op.scratch = narrow.memory.add(op.out.rows, op.scratch_cols());
        }
      },
      narrow.op);
  return narrow;
}

}  // namespace

ExactMoments exact_moments(std::span<const float> row) {
  ExactMoments exact;
  const auto count = static_cast<double>(row.size());
  for (const float x : row) exact.mean += static_cast<double>(x);
  exact.mean /= count;
  for (const float x : row) exact.variance += std::pow(static_cast<double>(x) - exact.mean, 2);
  exact.variance /= count;
  return exact;
}

namespace {

/// One head of one sequence.
class ExactHead {
 public:
  ExactHead(const AttentionShape& shape, std::int64_t rows, std::span<const float> qkv,
            std::span<const float> grad_out, std::int64_t number)
      : shape_(shape),
        columns_(std::ssize(qkv) / 3 / rows),
        width_(columns_ / shape.heads),
        first_row_(number / shape.heads * shape.length),
        head_(number % shape.heads),
        qkv_(qkv),
        grad_out_(grad_out) {}

  void add_to(ExactAttention& exact) const {
    for (std::int64_t i = 0; i < shape_.length; ++i) add_row(i, exact);
  }

 private:
  /// Where a number of row i of the query (0), key (1) or value (2) is.
  [[nodiscard]] std::size_t at(int third, std::int64_t i, std::int64_t k) const {
    return static_cast<std::size_t>((first_row_ + i) * 3 * columns_ + third * columns_ +
                                    head_ * width_ + k);
  }
  [[nodiscard]] std::size_t at_out(std::int64_t i, std::int64_t k) const {
    return static_cast<std::size_t>((first_row_ + i) * columns_ + head_ * width_ + k);
  }
  [[nodiscard]] double grad_of_out(std::int64_t i, std::int64_t k) const {
    return static_cast<double>(grad_out_[at_out(i, k)]);
  }
  [[nodiscard]] double number(int third, std::int64_t i, std::int64_t k) const {
    return static_cast<double>(qkv_[at(third, i, k)]);
  }

  void add_row(std::int64_t i, ExactAttention& exact) const {
    const std::int64_t keys = shape_.causal ? i + 1 : shape_.length;
    const double scale = 1 / std::sqrt(static_cast<double>(width_));
    std::vector<double> p(static_cast<std::size_t>(keys));
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (std::int64_t k = 0; k < width_; ++k) score += number(0, i, k) * number(1, j, k);
      sum += p[static_cast<std::size_t>(j)] = std::exp(scale * score);
    }
    const std::int64_t head_row = (first_row_ + i) * shape_.heads + head_;
    exact.log_sums[static_cast<std::size_t>(head_row)] = std::log(sum);
    for (std::int64_t j = 0; j < keys; ++j) {
      double& each = p[static_cast<std::size_t>(j)];
      each /= sum;
      exact.probabilities[static_cast<std::size_t>(head_row * shape_.length + j)] = each;
      for (std::int64_t k = 0; k < width_; ++k) exact.out[at_out(i, k)] += each * number(2, j, k);
    }
    if (!grad_out_.empty()) add_gradients(i, p, scale, exact.grad_qkv);
  }

  void add_gradients(std::int64_t i, const std::vector<double>& p, double scale,
                     std::vector<double>& grads) const {
    std::vector<double> of_p(p.size());
    double sum = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      for (std::int64_t k = 0; k < width_; ++k) {
        of_p[j] += grad_of_out(i, k) * number(2, static_cast<std::int64_t>(j), k);
      }
      sum += p[j] * of_p[j];
    }
    for (std::size_t j = 0; j < p.size(); ++j) {
      const auto key = static_cast<std::int64_t>(j);
      const double of_score = p[j] * (of_p[j] - sum) * scale;
      for (std::int64_t k = 0; k < width_; ++k) {
        grads[at(0, i, k)] += of_score * number(1, key, k);
        grads[at(1, key, k)] += of_score * number(0, i, k);
        grads[at(2, key, k)] += p[j] * grad_of_out(i, k);
      }
    }
  }

  const AttentionShape& shape_;
  std::int64_t columns_, width_, first_row_, head_;
  std::span<const float> qkv_, grad_out_;
};

}  // namespace

ExactAttention exact_attention(const AttentionShape& shape, std::int64_t rows,
                               std::span<const float> qkv, std::span<const float> grad_out) {
  const auto of_rows = [&](std::int64_t each) {
    return std::vector<double>(static_cast<std::size_t>(rows * each));
  };
  ExactAttention exact{.out = std::vector<double>(qkv.size() / 3),
                       .log_sums = of_rows(shape.heads),
                       .probabilities = of_rows(shape.heads * shape.length),
                       .grad_qkv = std::vector<double>(qkv.size())};
  for (std::int64_t head = 0; head < rows / shape.length * shape.heads; ++head) {
    ExactHead(shape, rows, qkv, grad_out, head).add_to(exact);
  }
  return exact;
}

bool is_narrow(const DeviceOp& op) {
  if (std::holds_alternative<Cast>(op)) return false;
  const Op any = op;
  return std::ranges::any_of(
      operands_of(any), [](const Operand& operand) { return is_16_bits(operand.tensor->dtype); });
}

std::vector<float> numbers_of(Memory& memory, const Tensor& tensor) {
  return with_number(tensor.dtype, [&]<class Number>(Number) {
    std::vector<float> numbers;
    for (const Number number : memory.values<Number>(tensor)) numbers.push_back(float_of(number));
    return numbers;
  });
}

void set_numbers(Memory& memory, const Tensor& tensor, std::span<const float> numbers) {
  with_number(tensor.dtype, [&]<class Number>(Number) {
    std::ranges::transform(numbers, memory.values<Number>(tensor).begin(),
                           [](float number) { return rounded<Number>(number); });
  });
}

std::vector<OpCase> all_op_cases() {
  CaseList list;
  add_gemms(list);
  add_int8(list);
  for (const Shape& shape : kShapes) {
    add_elementwise(list, shape);
    add_optimizers(list, std::max(std::int64_t{1}, shape.rows * shape.cols));
    add_norms(list, std::max(std::int64_t{1}, shape.rows * shape.cols));
    add_reductions(list, shape);
  }
  add_linear_adams(list);
  list.add("delay", [](Memory& memory) {
    memory.add(1, 1);
    return Delay{0.002};
  });
  add_scaling(list);
  for (const Shape& shape : kShapes) add_norms_of_rows(list, shape);
  for (const std::int64_t cols : {1, 3, 48, 1000}) add_norms_of_hard_rows(list, cols);
  for (const AttentionSize& size : kAttentionSizes) {
    for (const AttentionForm form : kValuesOf<AttentionForm>) add_attention(list, size, form);
  }
  for (const Shape& shape : kShapes) {
    list.add("squared_errors " + text(shape), [&](Memory& memory) {
      return SquaredErrors{memory.add(1, shape.cols), memory.add(shape.rows, shape.cols),
                           memory.add(shape.rows, shape.cols)};
    });
  }
  std::vector<OpCase> all = list.take();
  // Adds the 16-bit variant of each case, except the largest cases, which would add no information.
  constexpr std::size_t kLargestBytes = 150'000;
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (all[i].memory.bytes().size() > kLargestBytes) continue;
    auto narrow = narrowed(all[i], i % 2 == 0 ? DType::kBF16 : DType::kF16);
    if (narrow) all.push_back(std::move(*narrow));
  }
  return all;
}

bool multiplies(const DeviceOp& op) {
  return std::holds_alternative<Gemm>(op) || std::holds_alternative<LinearAdam>(op);
}

}  // namespace barestep
