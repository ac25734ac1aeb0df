#include "train/update.h"

#include "train/mlp.h"

namespace barestep {
namespace {

/// Adds nodes to the optimizer's phase.
class UpdateBuilder {
 public:
  UpdateBuilder(Program& program, Buffers& buffers, const StepSpec& spec,
                const OptimizerState& optimizer, const Tensor& x)
      : program_(program),
        buffers_(buffers),
        spec_(spec),
        optimizer_(optimizer),
        x_(x),
        // It has activations just where they are needed.
        model_(buffers, spec.model, spec.model.stores_gradients ? 0 : x.rows) {}

  void add_separate(const Tensor& scalars) {
    const Tensor grads = optimizer_.updated(model_.gradients());
    std::optional<Tensor> clip;
    if (spec_.clip_norm) {
      const Tensor squares = buffers_.tensor("grad_squares", Category::kOptimizer, 1, 1);
      add(SumSquares{.out = squares, .in = grads});
      clip = add_clip_factor(squares);
    }
    add(optimizer_.step(model_.parameters(), model_.gradients(), scalars, clip));
  }

  /// The first layer first: its factors are those backward touched last.
  void add_fused(const Tensor& scalars) {
    std::optional<Tensor> clip;
    if (spec_.clip_norm) clip = add_clip_factor(add_squares());
    for (int layer = 0; layer < spec_.model.layout.layers(); ++layer) {
      add(optimizer_.step(model_.parameters(), layer, model_.factors(layer, x_), scalars, clip),
          layer);
    }
  }

 private:
  void add(DeviceOp op, int layer = -1) {
    program_.add({.op = std::move(op), .phase = Phase::kOptimizer, .layer = layer});
  }

  Tensor add_clip_factor(const Tensor& squares) {
    const Tensor factor = buffers_.tensor("clip_factor", Category::kOptimizer, 1, 1);
    add(ClipFactor{.factor = factor, .squares = squares, .max_norm = *spec_.clip_norm});
    return factor;
  }

  /// One number for each layer, from Gram matrices of its factors; the layers share their memory.
  Tensor add_squares() {
    const int layers = spec_.model.layout.layers();
    const Tensor squares = buffers_.tensor("grad_squares", Category::kOptimizer, 1, layers);
    const auto take = [&](const char* name) {
      return buffers_.tensor(name, Category::kActivations, x_.rows, x_.rows);
    };
    const Tensor gram_y = take("gram_y");
    const Tensor gram_x = take("gram_x");
    for (int layer = 0; layer < layers; ++layer) {
      const auto [grad_y, x] = model_.factors(layer, x_);
      add(Gemm{.c = gram_y, .a = grad_y, .b = grad_y, .transpose_b = true}, layer);
      add(Gemm{.c = gram_x, .a = x, .b = x, .transpose_b = true}, layer);
      add(GramSquares{.out = squares.flat_slice(layer, 1), .gram_y = gram_y, .gram_x = gram_x},
          layer);
    }
    return squares;
  }

  Program& program_;
  Buffers& buffers_;
  const StepSpec& spec_;
  const OptimizerState& optimizer_;
  const Tensor x_;
  const Mlp model_;
};

}  // namespace

void add_update(Program& program, Buffers& buffers, const StepSpec& spec,
                const OptimizerState& optimizer, const Tensor& x, const Tensor& scalars) {
  if (spec.model.stores_gradients) {
    UpdateBuilder(program, buffers, spec, optimizer, x).add_separate(scalars);
  } else {
    UpdateBuilder(program, buffers, spec, optimizer, x).add_fused(scalars);
  }
}

}  // namespace barestep
