// The model as ops: forward, loss and backward of an MLP, added to a program one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config.h"
#include "core/program.h"
#include "train/parameter_layout.h"

namespace barestep {

/// What a model computes, without batch size or memory.
struct MlpSpec {
  ParameterLayout layout;
  Activation activation = Activation::kRelu;
  bool last_relu = true;
  LossKind loss = LossKind::kMse;
  bool fusion = true;  // bias and ReLU inside the forward product

  [[nodiscard]] bool relu_after(int layer) const {
    return activation == Activation::kRelu && (last_relu || layer + 1 < layout.layers());
  }
};

/// A model on one device with the activations of `rows` samples. Holds names of memory only.
class Mlp {
 public:
  /// Takes its buffers: "parameters", "gradients", "out0", "grad_out0", ... `spec` must outlive it.
  Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device = 0);

  /// out0 = relu(x W0^T + b0), out1 = ...
  void forward(Program& program, const Tensor& x, Phase phase = Phase::kForward) const;

  /// loss = loss of the outputs + beta * loss, and the gradient of it; `count_rows` are the rows of
  /// the whole step.
  void loss(Program& program, const Tensor& target, const Tensor& loss, std::int64_t count_rows,
            float beta = 0, Phase phase = Phase::kLoss) const;

  /// Gradients of all parameters, last layer first. `beta` 1 adds to what is there.
  void backward(Program& program, const Tensor& x, float beta) const;

  [[nodiscard]] BufferId parameters() const { return parameters_; }
  [[nodiscard]] BufferId gradients() const { return gradients_; }
  [[nodiscard]] const Tensor& output() const { return out_.back(); }

 private:
  void add(Program& program, DeviceOp op, Phase phase, int layer) const;
  [[nodiscard]] Tensor input_of(int layer, const Tensor& x) const;

  const MlpSpec* spec_;
  int device_;
  BufferId parameters_;
  BufferId gradients_;
  std::vector<Tensor> out_;       // rows x outputs of each layer, behind the ReLU
  std::vector<Tensor> grad_out_;  // gradient of the loss with respect to it
};

}  // namespace barestep
