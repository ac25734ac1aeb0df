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
  bool fusion = true;            // bias and activation inside the forward product
  bool stores_gradients = true;  // else backward leaves their factors
  bool trains = true;            // else there are no gradients but the loss's own

  [[nodiscard]] Activation activation_after(int layer) const {
    return last_relu || layer + 1 < layout.layers() ? activation : Activation::kNone;
  }
};

/// loss = loss of `output` + beta * loss, and the gradient with respect to it in `grad`; on device
/// 0. `count_rows` are the rows of the whole step.
struct LossTensors {
  Tensor loss, grad, output, target;
};
void add_loss(Program& program, LossKind kind, const LossTensors& tensors, std::int64_t count_rows,
              float beta, Phase phase);

/// Counts the loss of `op`, if it is one, over a step of `count_rows` rows.
void set_loss_rows(DeviceOp& op, std::int64_t count_rows);

/// What a linear layer's gradients are made of: grad_y^T x is that of its weight, the column sums
/// of grad_y are that of its bias. n x outputs and n x inputs.
struct Factors {
  Tensor grad_y, x;
};

/// The passes of a model over a batch, wherever they run.
class Model {
 public:
  Model() = default;
  Model(const Model&) = default;
  Model& operator=(const Model&) = default;
  virtual ~Model() = default;

  /// output() = what the model makes of x.
  virtual void forward(Program& program, const Tensor& x, Phase phase) const = 0;

  /// The loss of output(), and the gradient of it; see add_loss().
  virtual void loss(Program& program, const Tensor& target, const Tensor& loss,
                    std::int64_t count_rows, float beta, Phase phase) const = 0;

  /// Gradients of all parameters, last layer first, if the model stores them, and those of the
  /// layers' outputs. `beta` 1 adds to what is there.
  virtual void backward(Program& program, const Tensor& x, float beta) const = 0;

  /// On device 0, as are x, target and loss.
  [[nodiscard]] virtual const Tensor& output() const = 0;
};

/// A model on one device with the activations of `rows` samples. Holds names of memory only.
class Mlp final : public Model {
 public:
  /// Takes its buffers: "parameters", "gradients" if it stores them, "out0", "grad_out0", ..., or
  /// of a model that does not train only the last "grad_out", which the loss writes. Its
  /// activations lie in these behind those of `first_row` rows, of models for the rows before.
  /// `spec` must outlive it.
  Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device = 0,
      std::int64_t first_row = 0);

  /// out0 = relu(x W0^T + b0), out1 = ...
  void forward(Program& program, const Tensor& x, Phase phase) const override;
  void loss(Program& program, const Tensor& target, const Tensor& loss, std::int64_t count_rows,
            float beta, Phase phase) const override;
  void backward(Program& program, const Tensor& x, float beta) const override;

  [[nodiscard]] BufferId parameters() const { return parameters_; }
  /// kNoBuffer if they are not stored.
  [[nodiscard]] BufferId gradients() const { return gradients_; }
  /// Of its rows' part of a layer's gradients, behind backward. `x` is the model's input.
  [[nodiscard]] Factors factors(int layer, const Tensor& x) const;
  [[nodiscard]] const Tensor& output() const override { return out_.back(); }
  /// The gradient of the loss with respect to the output.
  [[nodiscard]] const Tensor& grad_output() const { return grad_out_.back(); }

 private:
  void add(Program& program, DeviceOp op, Phase phase, int layer) const;
  [[nodiscard]] Tensor input_of(int layer, const Tensor& x) const;

  const MlpSpec* spec_;
  int device_;
  BufferId parameters_;
  BufferId gradients_;
  std::vector<Tensor> out_;       // rows x outputs of each layer, after the activation
  std::vector<Tensor> grad_out_;  // gradient of the loss with respect to it; empty where not kept
};

}  // namespace barestep
