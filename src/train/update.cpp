// The end of a step: how gradients become new weights.
#include "train/draft.h"

namespace barestep {

OptimizerState Draft::optimizer(const std::optional<FlatRange>& range) {
  OptimizerState optimizer(buffers_, spec_.optimizer, spec_.model.layout, 0, range);
  optimizer_state_ = optimizer.buffers();
  return optimizer;
}

Op Draft::whole_update() {
  return optimizer().step(parameters_, require_gradients(), scalars_);
}

void Draft::update(const UpdateOptions& options) {
  const OptimizerState state = optimizer(options.range);
  const bool stored = spec_.model.stores_gradients;
  // Of a model that stores gradients only the flat buffers are used here.
  const Mlp model(buffers_, spec_.model, stored ? 0 : tensors().x.rows);
  const auto factors = [&](int layer) {
    return options.factors ? options.factors(layer) : model.factors(layer, tensors().x);
  };
  std::optional<Tensor> clip;
  if (spec_.clip_norm) {
    const Tensor squares =
        stored ? add_squares(state.updated(gradients_), options) : add_squares_of(factors);
    clip = buffers_.tensor("clip_factor", Category::kOptimizer, 1, 1);
    add_update(ClipFactor{.factor = *clip, .squares = squares, .max_norm = *spec_.clip_norm});
  }
  if (stored) return add_update(state.step(parameters_, gradients_, scalars_, clip));
  // The first layer first: its factors are those backward touched last.
  for (int layer = 0; layer < spec_.model.layout.layers(); ++layer) {
    add_update(state.step(parameters_, layer, factors(layer), scalars_, clip), layer);
  }
}

void Draft::add_update(DeviceOp op, int layer) {
  add({.op = std::move(op), .phase = Phase::kOptimizer, .layer = layer});
}

Tensor Draft::add_squares(const Tensor& grads, const UpdateOptions& options) {
  const Tensor squares = buffers_.tensor("grad_squares", Category::kOptimizer, 1, 1);
  add_update(SumSquares{.out = squares, .in = grads});
  if (options.squares_ready) options.squares_ready(squares);
  return squares;
}

Tensor Draft::add_squares_of(const std::function<Factors(int layer)>& factors) {
  const int layers = spec_.model.layout.layers();
  const std::int64_t rows = tensors().x.rows;
  const Tensor squares = buffers_.tensor("grad_squares", Category::kOptimizer, 1, layers);
  const Tensor gram_y = buffers_.tensor("gram_y", Category::kActivations, rows, rows);
  const Tensor gram_x = buffers_.tensor("gram_x", Category::kActivations, rows, rows);
  for (int layer = 0; layer < layers; ++layer) {
    const auto [grad_y, x] = factors(layer);
    add_update(Gemm{.c = gram_y, .a = grad_y, .b = grad_y, .transpose_b = true}, layer);
    add_update(Gemm{.c = gram_x, .a = x, .b = x, .transpose_b = true}, layer);
    add_update(GramSquares{.out = squares.flat_slice(layer, 1), .gram_y = gram_y, .gram_x = gram_x},
               layer);
  }
  return squares;
}

}  // namespace barestep
