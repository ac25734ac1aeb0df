#include "train/mlp.h"

#include <string>
#include <utility>

namespace barestep {
namespace {

/// The name of the buffer that a layer's forward pass keeps for backward.
std::string buffer_name(const MlpSpec& spec, const std::string& what, int layer) {
  const Segment segment = spec.segment_of(layer);
  if (!spec.recomputes() || layer == segment.last) return what + std::to_string(layer);
  return "segment_" + what + std::to_string(layer - segment.first);
}

/// If all parts of a layer's gradient are computed before the next layer's, two buffers alternate.
std::string grad_buffer_name(const MlpSpec& spec, int layer) {
  if (!spec.recomputes()) return "grad_out" + std::to_string(layer);
  return layer % 2 == 0 ? "grad_out_even" : "grad_out_odd";
}

}  // namespace

Mlp::Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device,
         std::int64_t first_row, const std::optional<StepRows>& step_rows)
    : spec_(&spec), device_(device), step_rows_(step_rows) {
  const bool rounds = spec.numbers != DType::kF32;
  if (!rounds || device == 0) {
    parameters_ = buffers.get("parameters", Category::kParameters, spec.layout.bytes(), device);
  }
  operands_ = rounds ? buffers.get("rounded_parameters", Category::kParameters,
                                   spec.layout.bytes(spec.numbers), device)
                     : parameters_;
  if (spec.trains && spec.stores_gradients) {
    gradients_ = buffers.get("gradients", Category::kGradients,
                             spec.layout.bytes(spec.gradient_type()), device);
    if (spec.gradient_type() != spec.numbers) {
      rounded_gradient_ =
          buffers.get("rounded_gradient", Category::kGradients,
                      spec.layout.largest_tensor() * bytes_of(spec.numbers), device);
    }
  }
  if (rounds) {
    const std::int64_t cols = spec.layout.widths().front();
    const std::int64_t row_bytes = cols * bytes_of(spec.numbers);
    const BufferId buffer =
        buffers.get("rounded_x", Category::kActivations, (first_row + rows) * row_bytes, device);
    rounded_x_ = Tensor{buffer, first_row * row_bytes, rows, cols, spec.numbers};
  }
  for (int layer = 0; layer < spec.layout.layers(); ++layer) {
    const std::int64_t cols = spec.layout.outputs(layer);
    const auto take = [&](const std::string& name) {
      const std::int64_t row_bytes = cols * bytes_of(spec.numbers);
      const BufferId buffer =
          buffers.get(name, Category::kActivations, (first_row + rows) * row_bytes, device);
      return Tensor{buffer, first_row * row_bytes, rows, cols, spec.numbers};
    };
    out_.push_back(take(buffer_name(spec, "out", layer)));
    const bool last = layer + 1 == spec.layout.layers();
    grad_out_.push_back(spec.trains || last ? take(grad_buffer_name(spec, layer)) : Tensor{});
    const bool keeps = spec.trains && traits_of(spec.activation_after(layer)).grad_from_input;
    pre_activation_.push_back(
        keeps ? std::optional(take(buffer_name(spec, "pre_activation", layer))) : std::nullopt);
    const bool loses = spec.trains && step_rows && spec.drops_after(layer) &&
                       traits_of(spec.activation_after(layer)).grad_from_value;
    undropped_.push_back(loses ? std::optional(take(buffer_name(spec, "undropped", layer)))
                               : std::nullopt);
    if (spec.int8) int8_.push_back(take_int8_layer(buffers, spec, layer, rows, device));
  }
}

Mlp::Int8Layer Mlp::take_int8_layer(Buffers& buffers, const MlpSpec& spec, int layer,
                                    std::int64_t rows, int device) {
  const std::int64_t outputs = spec.layout.outputs(layer);
  const std::int64_t inputs = spec.layout.inputs(layer);
  const bool one_scale = spec.int8->scheme == Quantization::kTorch;
  const bool by_rows = spec.int8->scheme == Quantization::kRow;
  const auto of_weight = [&](const char* name, std::int64_t count, std::int64_t cols, DType dtype) {
    return buffers.tensor(name + std::to_string(layer), Category::kParameters, count, cols, dtype,
                          device);
  };
  const auto of_input = [&](const char* name, std::int64_t count, std::int64_t cols, DType dtype) {
    return buffers.tensor(name, Category::kActivations, count, cols, dtype, device);
  };
  Quantize input{.to = of_input("int8_x", rows, inputs, DType::kI8),
                 .scales = of_input("x_scales", by_rows ? rows : 1, 1, DType::kF32),
                 .from = {},
                 .bits = spec.int8->bits};
  if (!by_rows) input.zero_point = of_input("x_zero_point", 1, 1, DType::kI32);
  return {.weight = of_weight("int8_weight", outputs, inputs, DType::kI8),
          .scales = of_weight("weight_scales", 1, one_scale ? 1 : outputs, DType::kF32),
          .sums = of_weight("weight_sums", 1, outputs, DType::kI32),
          .input = input};
}

void Mlp::quantize(Program& program) const {
  for (int layer = 0; layer < spec_->layout.layers(); ++layer) {
    const Int8Layer& own = at(int8_, layer);
    add(program,
        QuantizeWeight{.to = own.weight,
                       .scales = own.scales,
                       .sums = own.sums,
                       .from = spec_->layout.weight(parameters_, layer)},
        Phase::kEvaluate, layer);
  }
}

void Mlp::add_int8_layer(Program& program, const Tensor& x, int layer) const {
  const Int8Layer& own = at(int8_, layer);
  Quantize input = own.input;
  input.from = input_of(layer, x);
  add(program, input, Phase::kEvaluate, layer);
  add(program,
      QuantizedGemm{.c = at(out_, layer),
                    .a = input.to,
                    .b = own.weight,
                    .a_scales = input.scales,
                    .b_scales = own.scales,
                    .b_sums = own.sums,
                    .bias = spec_->layout.bias(parameters_, layer),
                    .a_zero_point = input.zero_point,
                    .activation = spec_->activation_after(layer),
                    .bits = input.bits},
      Phase::kEvaluate, layer);
}

void Mlp::add(Program& program, DeviceOp op, Phase phase, int layer) const {
  program.add({.op = std::move(op),
               .device = device_,
               .lane = Lane::kCompute,
               .phase = phase,
               .layer = layer});
}

Tensor Mlp::input_of(int layer, const Tensor& x) const {
  if (layer > 0) return at(out_, layer - 1);
  return rounded_x_.value_or(x);
}

Factors Mlp::factors(int layer, const Tensor& x) const {
  return {at(grad_out_, layer), input_of(layer, x)};
}

void Mlp::forward(Program& program, const Tensor& x, Phase phase, const LayerReady& ready) const {
  if (rounded_x_) add(program, Cast{.to = *rounded_x_, .from = x}, phase, 0);
  if (ready) ready(-1);
  for (int layer = 0; layer < spec_->layout.layers(); ++layer) {
    if (phase == Phase::kEvaluate && !int8_.empty()) {
      add_int8_layer(program, x, layer);
      continue;
    }
    add_forward(program, x, phase, layer);
    if (ready) ready(layer);
  }
}

void Mlp::add_forward(Program& program, const Tensor& x, Phase phase, int layer) const {
  const Tensor& out = at(out_, layer);
  Gemm product{.c = out,
               .a = input_of(layer, x),
               .b = spec_->layout.weight(operands_, layer, spec_->numbers),
               .transpose_b = true};
  const BiasActivation rest{
      .values = out,
      .bias = spec_->layout.bias(operands_, layer, spec_->numbers),
      .activation = spec_->activation_after(layer),
      .pre_activation = phase == Phase::kEvaluate ? std::nullopt : at(pre_activation_, layer)};
  if (spec_->fusion) {
    product.bias = rest.bias;
    product.activation = rest.activation;
    product.pre_activation = rest.pre_activation;
    add(program, product, phase, layer);
  } else {
    add(program, product, phase, layer);
    add(program, rest, phase, layer);
  }
  if (const auto& kept = at(undropped_, layer)) {
    add(program, Copy{.to = *kept, .from = out}, phase, layer);
  }
  add_dropout(program, out, phase, layer);
}

/// Before a layer's backward: recomputes what its segment has overwritten since forward.
void Mlp::add_recomputation(Program& program, const Tensor& x, int layer) const {
  const Segment segment = spec_->segment_of(layer);
  if (!segment.is_recomputed || layer != segment.last) return;
  for (int each = segment.first; each < segment.last; ++each) {
    add_forward(program, x, Phase::kRecompute, each);
  }
}

void Mlp::add_dropout(Program& program, const Tensor& values, Phase phase, int layer) const {
  if (!step_rows_ || !spec_->drops_after(layer)) return;
  add(program,
      Dropout{.values = values,
              .step = step_rows_->number,
              .rate = spec_->dropout,
              .seed = spec_->dropout_seed,
              .layer = layer,
              .first_row = step_rows_->first,
              .row_stride = step_rows_->stride},
      phase, layer);
}

/// Dropout leaves the sign of the numbers that it keeps; where it drops one, the gradient is
/// already 0. So a gradient that needs only the sign is computed from the output after dropout.
ActivationGrad Mlp::activation_grad(int layer, const Tensor& grad) const {
  const Tensor& output = at(undropped_, layer).value_or(at(out_, layer));
  return ActivationGrad{.grad = grad,
                        .from = at(pre_activation_, layer).value_or(output),
                        .activation = spec_->activation_after(layer)};
}

void Mlp::backward(Program& program, const Tensor& x, float beta,
                   const BackwardReady& ready) const {
  const auto notify = [&](int layer, BackwardResult made) {
    if (ready) ready(layer, made);
  };
  for (int layer = spec_->layout.layers() - 1; layer >= 0; --layer) {
    add_recomputation(program, x, layer);
    const Factors of_layer = factors(layer, x);
    const auto add_op = [&](DeviceOp op) { add(program, std::move(op), Phase::kBackward, layer); };
    add_dropout(program, of_layer.grad_y, Phase::kBackward, layer);
    const bool is_last = layer + 1 == spec_->layout.layers();
    const bool has_activation = spec_->activation_after(layer) != Activation::kNone &&
                                !(is_last && spec_->loss_includes_activation());
    // With rounded gradients, sums are rounded before they are added to others.
    const bool sums = spec_->fusion && has_activation && spec_->stores_gradients &&
                      spec_->numbers == DType::kF32 && of_layer.grad_y.rows <= kMaxRowsOfSums;
    if (has_activation) {
      ActivationGrad op = activation_grad(layer, of_layer.grad_y);
      if (sums) {
        op.sums = spec_->layout.bias(gradients_, layer);
        op.beta = beta;
      }
      add_op(op);
    }
    notify(layer, BackwardResult::kGradOutput);
    if (spec_->stores_gradients && !sums) add_gradient_of_bias(program, layer, of_layer, beta);
    notify(layer, BackwardResult::kGradBias);
    if (spec_->stores_gradients) add_gradient_of_weight(program, layer, of_layer, beta);
    notify(layer, BackwardResult::kGradWeight);
    if (layer > 0) {
      add_op(Gemm{.c = grad_out_[static_cast<std::size_t>(layer) - 1],
                  .a = of_layer.grad_y,
                  .b = spec_->layout.weight(operands_, layer, spec_->numbers)});
    }
    notify(layer, BackwardResult::kGradInput);
  }
}

void Mlp::add_gradient_of_bias(Program& program, int layer, const Factors& factors,
                               float beta) const {
  add_gradient(program, layer, spec_->layout.bias(gradients_, layer, spec_->gradient_type()), beta,
               [&](const Tensor& out, float old) {
                 return SumRows{.out = out, .in = factors.grad_y, .beta = old};
               });
}

void Mlp::add_gradient_of_weight(Program& program, int layer, const Factors& factors,
                                 float beta) const {
  add_gradient(
      program, layer, spec_->layout.weight(gradients_, layer, spec_->gradient_type()), beta,
      [&](const Tensor& out, float old) {
        return Gemm{
            .c = out, .a = factors.grad_y, .b = factors.x, .transpose_a = true, .beta = old};
      });
}

/// Rounded before it is added to others, as each backward of autocast does.
template <class Make>
void Mlp::add_gradient(Program& program, int layer, const Tensor& gradient, float beta,
                       const Make& make) const {
  if (rounded_gradient_ == kNoBuffer) {
    return add(program, make(gradient, beta), Phase::kBackward, layer);
  }
  const Tensor rounded{rounded_gradient_, 0, gradient.rows, gradient.cols, spec_->numbers};
  add(program, make(rounded, 0), Phase::kBackward, layer);
  add(program, Cast{.to = gradient, .from = rounded, .beta = beta}, Phase::kBackward, layer);
}

}  // namespace barestep
