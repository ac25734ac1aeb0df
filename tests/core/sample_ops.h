// A valid op of each kind, for tests to inspect or break.
#pragma once

#include "core/ops.h"
#include "core/random.h"

namespace barestep::sample_ops {

/// Every tensor has its own buffer, identified by `id`.
inline Tensor f32(BufferId id, std::int64_t rows, std::int64_t cols) {
  return {id, 0, rows, cols};
}
inline Tensor i32(BufferId id, std::int64_t rows, std::int64_t cols) {
  return {id, 0, rows, cols, DType::kI32};
}
inline Tensor bf16(BufferId id, std::int64_t rows, std::int64_t cols) {
  return {id, 0, rows, cols, DType::kBF16};
}
inline Tensor i8(BufferId id, std::int64_t rows, std::int64_t cols) {
  return {id, 0, rows, cols, DType::kI8};
}
inline Tensor state(BufferId id) {
  return {id, 0, 1, sizeof(TorchGenerator), DType::kU8};
}

inline Gemm gemm(float beta = 0) {
  return {.c = f32(0, 4, 5), .a = f32(1, 4, 3), .b = f32(2, 3, 5), .beta = beta};
}
inline Gemm gemm_with_bias() {
  Gemm op = gemm();
  op.bias = f32(3, 1, 5);
  op.activation = Activation::kRelu;
  return op;
}
inline Add add() {
  return {.out = f32(0, 4, 5), .a = f32(1, 4, 5), .b = f32(2, 4, 5)};
}
inline LayerNorm layer_norm() {
  return {.y = f32(0, 4, 5),
          .mean = f32(1, 4, 1),
          .rstd = f32(2, 4, 1),
          .x = f32(3, 4, 5),
          .weight = f32(4, 1, 5),
          .bias = f32(5, 1, 5)};
}
inline LayerNormGrad layer_norm_grad() {
  return {.grad_weight = f32(0, 1, 5),
          .grad_bias = f32(1, 1, 5),
          .grad_x = f32(2, 4, 5),
          .grad_y = f32(3, 4, 5),
          .x = f32(4, 4, 5),
          .mean = f32(5, 4, 1),
          .rstd = f32(6, 4, 1),
          .weight = f32(7, 1, 5)};
}
/// Two sequences of 3 rows, 2 heads of width 4.
inline Attention attention(AttentionForm form = AttentionForm::kFlash) {
  const AttentionShape shape{.heads = 2, .length = 3, .form = form};
  return {.out = f32(0, 6, 8),
          .kept = f32(1, 6, shape.kept_cols()),
          .qkv = f32(2, 6, 24),
          .shape = shape};
}
inline AttentionGrad attention_grad(AttentionForm form = AttentionForm::kFlash) {
  const Attention forward = attention(form);
  AttentionGrad op{.grad_qkv = f32(3, 6, 24),
                   .qkv = forward.qkv,
                   .out = forward.out,
                   .grad_out = f32(4, 6, 8),
                   .kept = forward.kept,
                   .shape = forward.shape};
  if (op.scratch_cols() > 0) op.scratch = f32(5, 6, op.scratch_cols());
  return op;
}
inline QuantizeWeight quantize_weight() {
  return {.to = i8(0, 5, 3), .scales = f32(1, 1, 5), .sums = i32(2, 1, 5), .from = f32(3, 5, 3)};
}
inline Quantize quantize() {
  return {.to = i8(0, 4, 3), .scales = f32(1, 4, 1), .from = f32(2, 4, 3)};
}
inline Quantize quantize_batch() {
  return {
      .to = i8(0, 4, 3), .scales = f32(1, 1, 1), .from = f32(2, 4, 3), .zero_point = i32(3, 1, 1)};
}
inline QuantizedGemm quantized_gemm() {
  return {.c = f32(0, 4, 5),
          .a = i8(1, 4, 3),
          .b = i8(2, 5, 3),
          .a_scales = f32(3, 4, 1),
          .b_scales = f32(4, 1, 5),
          .b_sums = i32(5, 1, 5),
          .bias = f32(6, 1, 5)};
}
inline QuantizedGemm quantized_gemm_of_batch() {
  QuantizedGemm op = quantized_gemm();
  op.a_scales = f32(3, 1, 1);
  op.b_scales = f32(4, 1, 1);
  op.a_zero_point = i32(7, 1, 1);
  op.activation = Activation::kRelu;
  return op;
}
inline ActivationGrad relu_grad_with_sums(float beta = 0) {
  return {.grad = f32(0, 4, 5), .from = f32(1, 4, 5), .sums = f32(2, 1, 5), .beta = beta};
}
inline PointwiseLoss mse(float beta = 0, Activation after = Activation::kNone) {
  return {.loss = f32(0, 1, 1),
          .grad = f32(1, 4, 5),
          .output = f32(2, 4, 5),
          .target = f32(3, 4, 5),
          .count = 20,
          .beta = beta,
          .activation = after};
}
inline CrossEntropy cross_entropy(float beta = 0) {
  return {f32(0, 1, 1), f32(1, 4, 5), f32(2, 4, 5), i32(3, 4, 1), 4, beta};
}
inline CountCorrect count_correct() {
  return {i32(0, 1, 1), f32(1, 4, 5), i32(2, 4, 1)};
}
inline Dropout dropout() {
  return {.values = f32(0, 4, 5), .step = i32(1, 1, 1)};
}
inline OptimizerUpdate adam(std::int64_t n = 100) {
  return {.weights = f32(0, 1, n),
          .grads = f32(1, 1, n),
          .state = {f32(2, 1, n), f32(3, 1, n)},
          .scalars = f32(4, 1, 2)};
}

inline OptimizerUpdate sgd(std::int64_t n = 100) {
  return {
      .weights = f32(0, 1, n), .grads = f32(1, 1, n), .scalars = f32(2, 1, 1), .step = SgdStep{}};
}
inline OptimizerUpdate nesterov(std::int64_t n = 100) {
  OptimizerUpdate op = sgd(n);
  op.step = SgdStep{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
  op.state = {f32(3, 1, n)};
  return op;
}
inline OptimizerUpdate rmsprop(std::int64_t n = 100) {
  return {.weights = f32(0, 1, n),
          .grads = f32(1, 1, n),
          .state = {f32(2, 1, n), f32(4, 1, n)},
          .scalars = f32(3, 1, 1),
          .step = RmsPropStep{.momentum = 0.9}};
}
inline OptimizerUpdate adagrad(std::int64_t n = 100) {
  return {.weights = f32(0, 1, n),
          .grads = f32(1, 1, n),
          .state = {f32(2, 1, n)},
          .scalars = f32(3, 1, 1),
          .step = AdagradStep{}};
}
inline OptimizerUpdate lion(std::int64_t n = 100) {
  return {.weights = f32(0, 1, n),
          .grads = f32(1, 1, n),
          .state = {f32(2, 1, n)},
          .scalars = f32(3, 1, 2),
          .step = LionStep{}};
}
inline OptimizerUpdate decaying(OptimizerUpdate op, bool decoupled) {
  op.step = AdamStep{.weight_decay = 0.01, .decoupled = decoupled};
  op.scalars.cols = decoupled ? 3 : 2;
  return op;
}
inline LinearAdam linear_adam() {
  return {.weight = f32(0, 4, 5),
          .weight_moments1 = f32(1, 4, 5),
          .weight_moments2 = f32(2, 4, 5),
          .bias = f32(3, 1, 4),
          .bias_moments1 = f32(4, 1, 4),
          .bias_moments2 = f32(5, 1, 4),
          .grad_y = f32(6, 7, 4),
          .x = f32(7, 7, 5),
          .scalars = f32(8, 1, 2)};
}
/// The same with `clip` in buffer 9.
template <class Optimizer>
Optimizer clipped(Optimizer op) {
  op.clip = f32(9, 1, 1);
  return op;
}

}  // namespace barestep::sample_ops
