// The model as ops: forward and backward of an MLP, added to a program one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/program.h"
#include "train/parameter_layout.h"

namespace barestep {

/// How an evaluation in int8 quantises; see QuantizeWeight and Quantize.
struct Int8Spec {
  Quantization scheme = Quantization::kRow;
  int bits = 8;  // of activations
};

/// Layers first .. last, whose forward pass backward may go through once more.
struct Segment {
  int first = 0;
  int last = 0;
  bool is_recomputed = false;
};

/// What a model computes, without batch size or memory.
struct MlpSpec {
  ParameterLayout layout;
  Activation activation = Activation::kRelu;
  bool last_relu = true;
  LossKind loss = LossKind::kMse;
  double label_smoothing = 0;
  double dropout = 0;              // its rate
  std::uint64_t dropout_seed = 0;  // the run's, the same on all ranks
  bool fusion = true;              // bias and activation inside the forward product
  bool stores_gradients = true;    // else backward leaves their factors
  bool trains = true;              // else there are no gradients but the loss's own
  // Of products: their operands, the layers' outputs and the gradients of these. Parameters are
  // fp32; of 16 bits, products read a rounded copy of them, as under torch.autocast.
  DType numbers = DType::kF32;
  bool wide_gradients = true;      // those of parameters are stored in fp32, whatever `numbers` are
  int segments = 1;                // of recomputation, at most as many as layers
  std::optional<Int8Spec> int8{};  // evaluations compute products in int8

  [[nodiscard]] Activation activation_after(int layer) const {
    return last_relu || layer + 1 < layout.layers() ? activation : Activation::kNone;
  }

  /// The type of the stored gradients of the parameters.
  [[nodiscard]] DType gradient_type() const { return wide_gradients ? DType::kF32 : numbers; }

  /// Dropout follows every activation but the last layer's.
  [[nodiscard]] bool drops_after(int layer) const {
    return dropout > 0 && layer + 1 < layout.layers();
  }

  /// Segments of one layer keep all that they compute.
  [[nodiscard]] bool recomputes() const {
    return trains && segments > 1 && layout.layers() / segments > 1;
  }

  /// The segment of a layer, as torch.utils.checkpoint.checkpoint_sequential cuts a model: segments
  /// of floor(layers / segments) layers, the rest in the last, which is not recomputed.
  [[nodiscard]] Segment segment_of(int layer) const {
    const int size = layout.layers() / segments;
    const int index = std::min(layer / size, segments - 1);
    const bool is_last = index + 1 == segments;
    return {index * size, (is_last ? layout.layers() : (index + 1) * size) - 1,
            recomputes() && !is_last};
  }
};

/// Rows of a training step as dropout numbers them, whoever computes them: row i of a model is row
/// first + i * stride of the step. `number` holds the step's; 1 x 1, i32.
struct StepRows {
  Tensor number;
  std::int64_t first = 0;
  std::int64_t stride = 1;

  /// Those from row `begin` on.
  [[nodiscard]] StepRows from(std::int64_t begin) const {
    return {number, first + begin * stride, stride};
  }
};

/// What a model ends with: its output, and where the gradient of the loss with respect to it goes.
/// On device 0.
struct ModelOutput {
  Tensor values, grad;
};

/// What a linear layer's gradients are made of: grad_y^T x is that of its weight, the column sums
/// of grad_y are that of its bias. n x outputs and n x inputs.
struct Factors {
  Tensor grad_y, x;
};

/// What backward has made of a layer, in this order. Then it does not read the layer's weights any
/// more.
enum class BackwardResult { kGradOutput, kGradBias, kGradWeight, kGradInput };

using LayerReady = std::function<void(int layer)>;
using BackwardReady = std::function<void(int layer, BackwardResult made)>;

/// A model on one device with the activations of `rows` samples. Holds names of memory only.
class Mlp {
 public:
  /// Takes its buffers: "parameters" on device 0, "gradients" if it stores them, "out0",
  /// "grad_out0", ..., and "pre_activation0", ... for an activation whose gradient is found from
  /// its input; of a model that does not train only the last "grad_out", which the loss writes. A
  /// model that recomputes keeps these of the last layer of each segment; of the others the
  /// segments share "segment_out0", "segment_pre_activation0", ..., by their place in the segment,
  /// and all layers share two gradients, "grad_out_even" and "grad_out_odd". Where products are of
  /// 16 bits "rounded_parameters" and "rounded_x" too, and where gradients are not,
  /// "rounded_gradient"; in int8 "int8_weight0", "weight_scales0", "weight_sums0", ... and one
  /// "int8_x" with its scales for all layers. Other devices than 0 have no others than these
  /// parameters. Its activations lie in these after those of `first_row` rows, of models for the
  /// rows before. `spec` must outlive it. Dropout has its masks by `step_rows`; without these
  /// nothing is dropped.
  Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device = 0,
      std::int64_t first_row = 0, const std::optional<StepRows>& step_rows = {});

  /// out0 = activation(x W0^T + b0), dropped in part, out1 = ... `ready` hears of each layer's
  /// output. An evaluation keeps nothing for gradients.
  void forward(Program& program, const Tensor& x, Phase phase, const LayerReady& ready = {}) const;

  /// Makes the int8 weights that forward() reads, once after the parameters have come. Only of a
  /// model in int8.
  void quantize(Program& program) const;

  /// From the gradient of output(): gradients of all parameters, last layer first, if the model
  /// stores them, and those of the layers' outputs. `beta` 1 adds to what is there. `ready` hears
  /// of each part of a layer right after its node, or where that would stand. Before a segment that
  /// is recomputed come the nodes of its forward pass once more, but those of its last layer, whose
  /// output is kept: the same ops, so the same bits.
  void backward(Program& program, const Tensor& x, float beta,
                const BackwardReady& ready = {}) const;

  /// The gradients of a layer's parameters.
  void add_gradient_of_bias(Program& program, int layer, const Factors& factors, float beta) const;
  void add_gradient_of_weight(Program& program, int layer, const Factors& factors,
                              float beta) const;

  [[nodiscard]] BufferId parameters() const { return parameters_; }
  /// What products read: the parameters, or their rounded copy; flat.
  [[nodiscard]] Tensor operands() const { return spec_->layout.flat(operands_, spec_->numbers); }
  /// kNoBuffer if they are not stored.
  [[nodiscard]] BufferId gradients() const { return gradients_; }
  /// Of its rows' part of a layer's gradients, after backward. `x` is the model's input.
  [[nodiscard]] Factors factors(int layer, const Tensor& x) const;
  [[nodiscard]] ModelOutput output() const { return {out_.back(), grad_out_.back()}; }

 private:
  /// What a layer has beside its parameters and its output where it computes in int8.
  struct Int8Layer {
    Tensor weight, scales, sums;
    Quantize input;  // its `from` is known in forward()
  };

  [[nodiscard]] static Int8Layer take_int8_layer(Buffers& buffers, const MlpSpec& spec, int layer,
                                                 std::int64_t rows, int device);
  void add_int8_layer(Program& program, const Tensor& x, int layer) const;
  void add(Program& program, DeviceOp op, Phase phase, int layer) const;
  void add_forward(Program& program, const Tensor& x, Phase phase, int layer) const;
  void add_recomputation(Program& program, const Tensor& x, int layer) const;
  [[nodiscard]] Tensor input_of(int layer, const Tensor& x) const;
  /// The gradient of a parameter, by make(where to, beta).
  template <class Make>
  void add_gradient(Program& program, int layer, const Tensor& gradient, float beta,
                    const Make& make) const;
  /// Of a layer's output or its gradient, where the layer has dropout.
  void add_dropout(Program& program, const Tensor& values, Phase phase, int layer) const;
  [[nodiscard]] DeviceOp activation_grad(int layer, const Tensor& grad) const;

  const MlpSpec* spec_;
  int device_;
  std::optional<StepRows> step_rows_;
  BufferId parameters_ = kNoBuffer;
  BufferId operands_ = kNoBuffer;  // the parameters, or their rounded copy
  BufferId gradients_ = kNoBuffer;
  BufferId rounded_gradient_ = kNoBuffer;  // where gradients are wider than what makes them
  std::optional<Tensor> rounded_x_{};      // where products are of 16 bits
  std::vector<Tensor> out_;       // rows x outputs of each layer, after activation and dropout
  std::vector<Tensor> grad_out_;  // gradient of the loss with respect to it; empty where not kept
  std::vector<std::optional<Tensor>> pre_activation_;  // where gradients are found from it
  std::vector<Int8Layer> int8_;                        // empty where products are of floats
};

}  // namespace barestep
