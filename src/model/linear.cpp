#include "model/linear.h"

#include <cmath>

namespace barestep {

Linear::Linear(Parameters& parameters, const LinearSpec& spec)
    : Block(spec.name), spec_(spec), inputs_(spec.inputs), outputs_(spec.outputs) {
  const InitialValues initial{.bound = 1.0 / std::sqrt(static_cast<double>(spec.inputs))};
  weight_ = parameters.add({name() + spec.before_names + "weight",
                            {spec.outputs, spec.inputs},
                            spec.initial_weight.value_or(initial),
                            spec.cut,
                            spec.grid});
  const Cut cut = spec.cut == Cut::kRows ? Cut::kCols : Cut::kNone;
  bias_ = parameters.add({name() + spec.before_names + "bias",
                          {spec.outputs},
                          spec.initial_bias.value_or(initial),
                          cut,
                          spec.grid});
  const auto own = [&](std::int64_t width) {
    return spec.grid.groups * spec.grid.share(width, spec.tensor_rank, spec.tensor_ranks).count;
  };
  if (is_cut(Cut::kRows)) outputs_ = own(spec.outputs);
  if (is_cut(Cut::kCols)) inputs_ = own(spec.inputs);
}

Tensor Linear::forward(Pass& pass, const Tensor& x) {
  const ModelSpec& model = pass.model;
  const bool recomputes = pass.phase == Phase::kRecompute;
  const bool keeps = model.trains && pass.phase != Phase::kEvaluate;
  factors_ = {.grad_y = {}, .x = x};
  if (x.dtype != model.numbers) {
    factors_.x = pass.kept_activation(name() + ".x", x.rows, x.cols);
    if (!recomputes) pass.add(Cast{.to = factors_.x, .from = x}, name());
  }
  if (pass.hooks.linear && !recomputes) pass.hooks.linear(pass, *this, LinearEvent::kInput);
  pass.before(weight_);
  pass.before(bias_);
  const auto take = [&](const char* what) {
    return pass.activation(name() + what, x.rows, outputs_);
  };
  const ActivationTraits& traits = traits_of(spec_.activation);
  out_ = spec_.is_temporary
             ? pass.scratch.take(name() + ".out", pass.first_row, x.rows, outputs_, model.numbers)
             : take(".out");
  pre_activation_.reset();
  undropped_.reset();
  if (keeps && traits.grad_from == GradFrom::kInput) pre_activation_ = take(".pre_activation");
  if (keeps && traits.grad_from == GradFrom::kOutput && drops(pass))
    undropped_ = take(".undropped");
  if (model.quantized && pass.phase == Phase::kEvaluate) {
    add_quantized_product(pass);
    return out_;
  }
  add_product(pass);
  if (undropped_) pass.add(Copy{.to = *undropped_, .from = out_}, name());
  add_dropout(pass, out_);
  return out_;
}

void Linear::add_product(const Pass& pass) const {
  Gemm product{.c = out_, .a = factors_.x, .b = pass.weight(weight_), .transpose_b = true};
  BiasActivation rest{.values = out_,
                      .bias = pass.weight(bias_),
                      .activation = spec_.activation,
                      .pre_activation = pre_activation_};
  const bool sums = is_cut(Cut::kCols);
  const bool narrow = pass.model.numbers != DType::kF32;
  if (sums && narrow) {
    // Added by one rank before its product is rounded, since sums are rounded already.
    if (spec_.tensor_rank == 0) product.bias = rest.bias;
    rest.bias.reset();
  } else if (!sums && pass.model.fusion && !(narrow && spec_.rounds_before_bias(out_.rows))) {
    product.bias = rest.bias;
    product.activation = rest.activation;
    product.pre_activation = rest.pre_activation;
    return pass.add(product, name());
  }
  pass.add(product, name());
  if (sums) pass.sum_over_tensor_ranks(out_, name(), "output");
  const bool remains = rest.bias || rest.activation != Activation::kNone || rest.pre_activation;
  if (remains) pass.add(rest, name());
}

Linear::QuantizedWeight Linear::quantized_weight(const Pass& pass) const {
  const auto take = [&](const char* what, std::int64_t rows, std::int64_t cols, DType dtype) {
    return pass.buffers.tensor(name() + what, Category::kParameters, rows, cols, dtype,
                               pass.device);
  };
  const bool one_scale = pass.model.quantized->scheme == Quantization::kTorch;
  return {.weight = take(".int8_weight", spec_.outputs, spec_.inputs, DType::kI8),
          .scales = take(".weight_scales", 1, one_scale ? 1 : spec_.outputs, DType::kF32),
          .sums = take(".weight_sums", 1, spec_.outputs, DType::kI32)};
}

void Linear::quantize(const Pass& pass) const {
  const QuantizedWeight to = quantized_weight(pass);
  pass.add(QuantizeWeight{.to = to.weight,
                          .scales = to.scales,
                          .sums = to.sums,
                          .from = pass.parameters.in(pass.flat.parameters, weight_)},
           name());
}

void Linear::add_quantized_product(const Pass& pass) const {
  const QuantizationSpec& quantized = *pass.model.quantized;
  const bool by_rows = quantized.scheme == Quantization::kRow;
  const Tensor& x = factors_.x;
  const auto take = [&](const char* buffer, std::int64_t rows, std::int64_t cols, DType dtype) {
    return pass.buffers.tensor(buffer, Category::kActivations, rows, cols, dtype, pass.device);
  };
  Quantize input{.to = take("int8_x", x.rows, x.cols, DType::kI8),
                 .scales = take("x_scales", by_rows ? x.rows : 1, 1, DType::kF32),
                 .from = x,
                 .bits = quantized.bits};
  if (!by_rows) input.zero_point = take("x_zero_point", 1, 1, DType::kI32);
  pass.add(input, name());
  const QuantizedWeight weight = quantized_weight(pass);
  pass.add(QuantizedGemm{.c = out_,
                         .a = input.to,
                         .b = weight.weight,
                         .a_scales = input.scales,
                         .b_scales = weight.scales,
                         .b_sums = weight.sums,
                         .bias = pass.parameters.in(pass.flat.parameters, bias_),
                         .a_zero_point = input.zero_point,
                         .activation = spec_.activation,
                         .bits = input.bits},
           name());
}

bool Linear::drops(const Pass& pass) const {
  return pass.step_rows && spec_.dropout && pass.model.dropout > 0;
}

void Linear::add_dropout(const Pass& pass, const Tensor& values) const {
  if (!drops(pass)) return;
  pass.add(Dropout{.values = values,
                   .step = pass.step_rows->number,
                   .rate = pass.model.dropout,
                   .seed = pass.model.dropout_seed,
                   .layer = *spec_.dropout,
                   .first_row = pass.step_rows->first,
                   .row_stride = pass.step_rows->stride,
                   .rows_per_sample = pass.model.rows_per_sample},
           name());
}

Tensor Linear::backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) {
  const ModelSpec& model = pass.model;
  factors_.grad_y = grad_y;
  if (wants_grad_x) pass.before(weight_);
  add_dropout(pass, grad_y);
  const bool has_activation =
      spec_.activation != Activation::kNone && !spec_.loss_includes_activation;
  // With rounded gradients, sums are rounded before they are added to others.
  const bool sums = model.fusion && has_activation && model.stores_gradients &&
                    model.numbers == DType::kF32 && grad_y.rows <= kMaxRowsOfSums;
  if (has_activation) {
    // Dropout leaves the sign of the numbers that it keeps; where it drops one, the gradient is
    // already 0. So a gradient that needs only the sign is computed from the output after dropout.
    ActivationGrad op{.grad = grad_y,
                      .from = pre_activation_.value_or(undropped_.value_or(out_)),
                      .activation = spec_.activation};
    if (sums) {
      op.sums = pass.gradient(bias_);
      op.beta = pass.beta;
    }
    pass.add(op, name());
  }
  if (pass.hooks.linear) pass.hooks.linear(pass, *this, LinearEvent::kGradOutput);
  Tensor grad_x{};
  if (wants_grad_x && is_cut(Cut::kRows)) {
    // Before the gradients of parameters, so that these hide the sum.
    grad_x = add_grad_x(pass, grad_y);
    pass.sum_over_tensor_ranks(grad_x, name(), "input gradient");
    add_gradients_of(pass, grad_y, sums);
  } else {
    add_gradients_of(pass, grad_y, sums);
    if (wants_grad_x) grad_x = add_grad_x(pass, grad_y);
  }
  pass.released(weight_);
  if (!pass.leaves_weights) pass.scratch.give_back(grad_y);
  return grad_x;
}

Tensor Linear::add_grad_x(const Pass& pass, const Tensor& grad_y) const {
  const Tensor& x = factors_.x;
  const Tensor grad_x =
      pass.scratch.take(name() + ".grad_x", pass.first_row, x.rows, x.cols, pass.model.numbers);
  pass.add(Gemm{.c = grad_x, .a = grad_y, .b = pass.weight(weight_)}, name());
  return grad_x;
}

void Linear::add_gradients_of(Pass& pass, const Tensor& grad_y, bool bias_is_summed) {
  const bool stores = pass.model.stores_gradients;
  if (stores) {
    if (!bias_is_summed) add_bias_gradient(pass, grad_y);
    pass.complete(bias_);
  }
  pass.released(bias_);
  if (!stores || pass.leaves_weights) return;
  add_weight_gradient(pass, factors_);
  pass.complete(weight_);
}

void Linear::add_left_gradient(Pass& pass) const {
  add_weight_gradient(pass, factors_);
  pass.complete(weight_);
  pass.scratch.give_back(factors_.grad_y);
}

void Linear::add_gradients(const Pass& pass, const Factors& factors) const {
  add_bias_gradient(pass, factors.grad_y);
  add_weight_gradient(pass, factors);
}

void Linear::add_bias_gradient(const Pass& pass, const Tensor& grad_y) const {
  add_gradient(pass, bias_, [&](const Tensor& out, float beta) {
    return SumRows{.out = out, .in = grad_y, .beta = beta};
  });
}

void Linear::add_weight_gradient(const Pass& pass, const Factors& factors) const {
  add_gradient(pass, weight_, [&](const Tensor& out, float beta) {
    return Gemm{.c = out, .a = factors.grad_y, .b = factors.x, .transpose_a = true, .beta = beta};
  });
}

/// Rounded before it is added to others, as each backward of autocast does.
template <class Make>
void Linear::add_gradient(const Pass& pass, ParameterId id, const Make& make) const {
  const Tensor gradient = pass.gradient(id);
  if (gradient.dtype == pass.model.numbers) {
    return pass.add(make(gradient, pass.beta), name());
  }
  const Tensor rounded =
      pass.buffers.tensor("rounded_gradient", Category::kGradients, gradient.rows, gradient.cols,
                          pass.model.numbers, pass.device);
  pass.add(make(rounded, 0), name());
  pass.add(Cast{.to = gradient, .from = rounded, .beta = pass.beta}, name());
}

}  // namespace barestep
