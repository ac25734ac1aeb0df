// The end of a step: how gradients become new weights.

#include <algorithm>

#include "core/error.h"
#include "core/index.h"
#include "train/draft.h"

namespace barestep {

OptimizerState Draft::optimizer(const std::optional<FlatRange>& range) {
  OptimizerState optimizer(buffers_, spec_.optimizer, parameters_, 0, range);
  optimizer_state_ = optimizer.buffers();
  return optimizer;
}

UpdateTensors Draft::update_tensors() {
  const ModelSpec& model = spec_.model;
  const FlatBuffers& flat = placed(0).flat;
  UpdateTensors tensors{.parameters = parameters_.flat(flat.parameters),
                        .scalars = scalars_,
                        .first_update = first_update_};
  if (flat.operands != flat.parameters) {
    tensors.rounded = parameters_.flat(flat.operands, model.numbers);
  }
  if (const auto& scaling = step_.tensors.scaling) tensors.loss_scale = scaling->numbers;
  return tensors;
}

Op Draft::whole_update() {
  BARESTEP_REQUIRE(!spec_.loss_scale, "all gradients are looked at before the first is used");
  UpdateTensors tensors = update_tensors();
  tensors.gradients = parameters_.flat(require_gradients(), spec_.model.gradient_type());
  return optimizer().step(tensors);
}

PassHooks Draft::updates_beside() {
  if (!spec_.updates_beside) return {};
  BARESTEP_REQUIRE(!spec_.model.stores_gradients && !spec_.clip_norm && !spec_.loss_scale,
                   "an update beside backward needs nothing but its factors");
  return {.released = [this](const Pass& pass, ParameterId id) {
    const std::vector<Linear*>& linears = model().linears();
    const auto found = std::ranges::find(linears, id, &Linear::weight);
    const auto number = static_cast<int>(found - linears.begin());
    if (!pass.is_last || found == linears.end() || number < kFirstUpdatedBeside) return;
    add({.op = optimizer().step(update_tensors(), **found, factors(number)),
         .lane = Lane::kSide,
         .phase = Phase::kOptimizer,
         .block = (*found)->name()});
    lowest_updated_ = number;
  }};
}

void Draft::update(const UpdateOptions& options) {
  const bool stored = spec_.model.stores_gradients;
  const auto& part = options.part;
  const OptimizerState state = optimizer(part ? std::optional(part->range) : std::nullopt);
  UpdateTensors used = update_tensors();
  if (part) {
    used.gradients = part->gradients;
  } else if (stored) {
    used.gradients = parameters_.flat(require_gradients(), spec_.model.gradient_type());
  }
  BARESTEP_REQUIRE(stored || !spec_.loss_scale, "loss scaling looks at stored gradients");
  const auto factors_of = [&](int linear) {
    return options.factors ? options.factors(linear) : factors(linear);
  };
  const Tensor& grads = used.gradients;
  if (used.loss_scale) find_inf(grads, options);
  if (spec_.clip_norm) {
    BARESTEP_REQUIRE(stored || spec_.model.numbers == DType::kF32,
                     "factors give the norm of gradients that are not yet rounded");
    const Tensor squares = stored ? add_squares(grads, options) : add_squares_of(factors_of);
    used.clip = buffers_.tensor("clip_factor", Category::kOptimizer, 1, 1);
    add_update(ClipFactor{.factor = *used.clip, .squares = squares, .max_norm = *spec_.clip_norm});
  }
  if (stored) {
    add_update(state.step(used));
    if (used.loss_scale) update_scale();
    return;
  }
  // The first one first: backward used its factors last, so they are still in the caches.
  const std::vector<Linear*>& linears = model().linears();
  const int end = lowest_updated_.value_or(static_cast<int>(linears.size()));
  for (int number = 0; number < end; ++number) {
    const Linear& linear = *at(linears, number);
    add_update(state.step(used, linear, factors_of(number)), linear.name());
  }
}

void Draft::find_inf(const Tensor& grads, const UpdateOptions& options) {
  const Tensor& found_inf = tensors().scaling->numbers.found_inf;
  add_update(Fill{.out = found_inf});
  add_update(CheckFinite{.found_inf = found_inf, .in = grads});
  if (options.found_inf_ready) options.found_inf_ready(found_inf);
}

void Draft::update_scale() {
  const ScalingState& scaling = *tensors().scaling;
  add_update(UpdateLossScale{.state = scaling.numbers,
                             .good_steps = scaling.good_steps,
                             .window = spec_.loss_scale->window,
                             .fixed = !spec_.loss_scale->dynamic});
  add_update(Copy{.to = tensors().scaling_host->bytes, .from = scaling.bytes});
}

void Draft::add_update(DeviceOp op, const std::string& block) {
  add({.op = std::move(op), .phase = Phase::kOptimizer, .block = block});
}

Tensor Draft::add_squares(const Tensor& grads, const UpdateOptions& options) {
  const Tensor squares = buffers_.tensor("grad_squares", Category::kOptimizer, 1, 1);
  std::optional<Tensor> scale;
  if (const auto& scaling = tensors().scaling) scale = scaling->numbers.scale;
  add_update(SumSquares{.out = squares, .in = grads, .scale = scale});
  if (options.squares_ready) options.squares_ready(squares);
  return squares;
}

Tensor Draft::add_squares_of(const std::function<Factors(int linear)>& factors_of) {
  const std::vector<Linear*>& linears = model().linears();
  const std::int64_t rows = tensors().x.rows * model_.rows_per_sample;
  const Tensor squares =
      buffers_.tensor("grad_squares", Category::kOptimizer, 1, std::ssize(linears));
  const Tensor gram_y = buffers_.tensor("gram_y", Category::kActivations, rows, rows);
  const Tensor gram_x = buffers_.tensor("gram_x", Category::kActivations, rows, rows);
  for (int number = 0; number < std::ssize(linears); ++number) {
    const std::string& name = at(linears, number)->name();
    const auto [grad_y, x] = factors_of(number);
    add_update(Gemm{.c = gram_y, .a = grad_y, .b = grad_y, .transpose_b = true}, name);
    add_update(Gemm{.c = gram_x, .a = x, .b = x, .transpose_b = true}, name);
    add_update(
        GramSquares{.out = squares.flat_slice(number, 1), .gram_y = gram_y, .gram_x = gram_x},
        name);
  }
  return squares;
}

}  // namespace barestep
