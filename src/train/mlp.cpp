#include "train/mlp.h"

#include <string>
#include <utility>
#include <variant>

namespace barestep {
namespace {

// What a loss divides by, over `rows` rows.
std::int64_t loss_count(const MseLoss& op, std::int64_t rows) {
  return rows * op.output.cols;
}
std::int64_t loss_count(const CrossEntropy& /*op*/, std::int64_t rows) {
  return rows;
}

/// One part of it: the op, whose count set_loss_rows() fills in.
DeviceOp loss_op(LossKind kind, const LossTensors& tensors, float beta) {
  const auto& [loss, grad, output, target] = tensors;
  switch (kind) {
    case LossKind::kMse:
      return MseLoss{.loss = loss, .grad = grad, .output = output, .target = target, .beta = beta};
    case LossKind::kCrossEntropy:
      return CrossEntropy{
          .loss = loss, .grad = grad, .logits = output, .labels = target, .beta = beta};
  }
  return {};
}

}  // namespace

void set_loss_rows(DeviceOp& op, std::int64_t count_rows) {
  std::visit(
      [&](auto& loss) {
        // A new loss has a count too, and does not compile without its rule above.
        if constexpr (requires { loss.count; }) loss.count = loss_count(loss, count_rows);
      },
      op);
}

void add_loss(Program& program, LossKind kind, const LossTensors& tensors, std::int64_t count_rows,
              float beta, Phase phase) {
  DeviceOp op = loss_op(kind, tensors, beta);
  set_loss_rows(op, count_rows);
  program.add({.op = std::move(op), .phase = phase});
}

Mlp::Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device,
         std::int64_t first_row)
    : spec_(&spec),
      device_(device),
      parameters_(buffers.get("parameters", Category::kParameters, spec.layout.bytes(), device)),
      gradients_(spec.trains && spec.stores_gradients
                     ? buffers.get("gradients", Category::kGradients, spec.layout.bytes(), device)
                     : kNoBuffer) {
  for (int layer = 0; layer < spec.layout.layers(); ++layer) {
    const std::int64_t cols = spec.layout.outputs(layer);
    const auto take = [&](const std::string& name) {
      const std::int64_t row_bytes = cols * bytes_of(DType::kF32);
      const BufferId buffer = buffers.get(name + std::to_string(layer), Category::kActivations,
                                          (first_row + rows) * row_bytes, device);
      return Tensor{buffer, first_row * row_bytes, rows, cols};
    };
    out_.push_back(take("out"));
    const bool last = layer + 1 == spec.layout.layers();
    grad_out_.push_back(spec.trains || last ? take("grad_out") : Tensor{});
  }
}

void Mlp::add(Program& program, DeviceOp op, Phase phase, int layer) const {
  program.add({.op = std::move(op),
               .device = device_,
               .lane = Lane::kCompute,
               .phase = phase,
               .layer = layer});
}

Tensor Mlp::input_of(int layer, const Tensor& x) const {
  return layer == 0 ? x : out_[static_cast<std::size_t>(layer) - 1];
}

Factors Mlp::factors(int layer, const Tensor& x) const {
  return {grad_out_[static_cast<std::size_t>(layer)], input_of(layer, x)};
}

void Mlp::forward(Program& program, const Tensor& x, Phase phase) const {
  const ParameterLayout& layout = spec_->layout;
  for (int layer = 0; layer < layout.layers(); ++layer) {
    const Tensor& out = out_[static_cast<std::size_t>(layer)];
    Gemm product{.c = out,
                 .a = input_of(layer, x),
                 .b = layout.weight(parameters_, layer),
                 .transpose_b = true};
    const Tensor bias = layout.bias(parameters_, layer);
    if (spec_->fusion) {
      product.bias = bias;
      product.activation = spec_->activation_after(layer);
      add(program, product, phase, layer);
    } else {
      add(program, product, phase, layer);
      add(program,
          BiasActivation{.values = out, .bias = bias, .activation = spec_->activation_after(layer)},
          phase, layer);
    }
  }
}

void Mlp::loss(Program& program, const Tensor& target, const Tensor& loss, std::int64_t count_rows,
               float beta, Phase phase) const {
  add_loss(program, spec_->loss,
           {.loss = loss, .grad = grad_out_.back(), .output = out_.back(), .target = target},
           count_rows, beta, phase);
}

void Mlp::backward(Program& program, const Tensor& x, float beta) const {
  const ParameterLayout& layout = spec_->layout;
  for (int layer = layout.layers() - 1; layer >= 0; --layer) {
    const Tensor& out = out_[static_cast<std::size_t>(layer)];
    const Tensor& grad_out = grad_out_[static_cast<std::size_t>(layer)];
    const auto add_op = [&](DeviceOp op) { add(program, std::move(op), Phase::kBackward, layer); };

    if (const Activation activation = spec_->activation_after(layer);
        activation != Activation::kNone) {
      add_op(ActivationGrad{.grad = grad_out, .output = out, .activation = activation});
    }
    if (spec_->stores_gradients) {
      add_op(SumRows{.out = layout.bias(gradients_, layer), .in = grad_out, .beta = beta});
      add_op(Gemm{.c = layout.weight(gradients_, layer),
                  .a = grad_out,
                  .b = input_of(layer, x),
                  .transpose_a = true,
                  .beta = beta});
    }
    if (layer > 0) {
      add_op(Gemm{.c = grad_out_[static_cast<std::size_t>(layer) - 1],
                  .a = grad_out,
                  .b = layout.weight(parameters_, layer)});
    }
  }
}

}  // namespace barestep
