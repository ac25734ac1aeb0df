// The model as ops: adds an MLP's forward and backward passes to a program.
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

/// How an evaluation in int8 quantizes; see QuantizeWeight and Quantize.
struct Int8Spec {
  Quantization scheme = Quantization::kRow;
  int bits = 8;  // for activations
};

/// Layers first .. last, whose forward pass backward may compute again.
struct Segment {
  int first = 0;
  int last = 0;
  bool is_recomputed = false;
};

/// An activation's gradient and its sum over more rows than that are separate ops: together they
/// have work for too few threads.
constexpr std::int64_t kMaxRowsOfSums = 128;

/// The computation of a model, without batch size or memory.
struct MlpSpec {
  ParameterLayout layout;
  Activation activation = Activation::kRelu;
  bool last_relu = true;
  LossKind loss = LossKind::kMse;
  double label_smoothing = 0;
  double dropout = 0;              // probability that a number becomes 0
  std::uint64_t dropout_seed = 0;  // the run's; the same on all ranks
  // Bias and activation are in the forward product. A pointwise loss includes the gradient of a
  // ReLU before it. The gradients of other activations include the bias's, if that is stored in
  // fp32 and there are at most kMaxRowsOfSums rows.
  bool fusion = true;
  bool stores_gradients = true;  // false: backward leaves their factors
  bool trains = true;            // false: the only gradient is that of the loss
  // For products: the type of their operands, of the layers' outputs and of these outputs'
  // gradients. Parameters are fp32; with 16 bits, products read a rounded copy, as under
  // torch.autocast.
  DType numbers = DType::kF32;
  bool wide_gradients = true;      // those of parameters are fp32, whatever `numbers` is
  int segments = 1;                // for recomputation; at most one per layer
  std::optional<Int8Spec> int8{};  // evaluations compute products in int8

  [[nodiscard]] Activation activation_after(int layer) const {
    return last_relu || layer + 1 < layout.layers() ? activation : Activation::kNone;
  }

  /// The type of the stored gradients of the parameters.
  [[nodiscard]] DType gradient_type() const { return wide_gradients ? DType::kF32 : numbers; }

  /// Dropout follows every activation except the last layer's.
  [[nodiscard]] bool drops_after(int layer) const {
    return dropout > 0 && layer + 1 < layout.layers();
  }

  /// Whether the op of the loss also computes the gradient of the last activation.
  [[nodiscard]] bool loss_includes_activation() const {
    return trains && fusion && is_pointwise(loss) && last_relu && activation == Activation::kRelu;
  }

  /// Segments of a single layer recompute nothing.
  [[nodiscard]] bool recomputes() const {
    return trains && segments > 1 && layout.layers() / segments > 1;
  }

  /// The segment of a layer, cut as in torch.utils.checkpoint.checkpoint_sequential: segments of
  /// floor(layers / segments) layers, with the rest in the last segment, which is not recomputed.
  [[nodiscard]] Segment segment_of(int layer) const {
    const int size = layout.layers() / segments;
    const int index = std::min(layer / size, segments - 1);
    const bool is_last = index + 1 == segments;
    return {index * size, (is_last ? layout.layers() : (index + 1) * size) - 1,
            recomputes() && !is_last};
  }
};

/// The row numbers that dropout uses, independent of which rank computes a row: row i of a model is
/// row first + i * stride of the training step. `number` holds the step's number; 1 x 1, i32.
struct StepRows {
  Tensor number;
  std::int64_t first = 0;
  std::int64_t stride = 1;

  /// The rows from `begin` on.
  [[nodiscard]] StepRows from(std::int64_t begin) const {
    return {number, first + begin * stride, stride};
  }
};

/// The end of a model: its output, and the place for the gradient of the loss with respect to it
/// (or to the last activation's input; see MlpSpec). On device 0.
struct ModelOutput {
  Tensor values, grad;
};

/// The factors of a linear layer's gradients: grad_y^T x is the weight's gradient, and the column
/// sums of grad_y are the bias's. n x outputs and n x inputs.
struct Factors {
  Tensor grad_y, x;
};

/// The results of backward for a layer, in this order. After the last one, backward no longer reads
/// the layer's weights.
enum class BackwardResult { kGradOutput, kGradBias, kGradWeight, kGradInput };

using LayerReady = std::function<void(int layer)>;
using BackwardReady = std::function<void(int layer, BackwardResult made)>;

/// A model on one device with the activations of `rows` samples. Contains only names of memory.
class Mlp {
 public:
  /// Creates its buffers: "parameters", "gradients" if it stores them, "out0", "grad_out0", ...,
  /// "pre_activation0", ... if the activation's gradient is computed from its input, and
  /// "undropped0", ... if it is computed from the value of an output that dropout changes. A model
  /// that does not train has only the last "grad_out", which the loss writes. A model that
  /// recomputes has these only for the last layer of each segment. For the other layers, segments
  /// share "segment_out0", "segment_pre_activation0", ..., numbered by the position in the segment,
  /// and all layers share two gradients, "grad_out_even" and "grad_out_odd". If products are in 16
  /// bits, adds "rounded_parameters" and "rounded_x", and "rounded_gradient" if gradients are
  /// stored in fp32; then only device 0 has "parameters". With int8, adds "int8_weight0",
  /// "weight_scales0", "weight_sums0", ... and one "int8_x" with its scales for all layers. In the
  /// buffers of activations, this model's rows follow `first_row` rows of other models. `spec` must
  /// outlive the model. Dropout numbers its rows by `step_rows`; without them nothing is dropped.
  Mlp(Buffers& buffers, const MlpSpec& spec, std::int64_t rows, int device = 0,
      std::int64_t first_row = 0, const std::optional<StepRows>& step_rows = {});

  /// out0 = activation(x W0^T + b0), after dropout; out1 = ... Calls `ready` with each layer's
  /// output. An evaluation keeps nothing for gradients.
  void forward(Program& program, const Tensor& x, Phase phase, const LayerReady& ready = {}) const;

  /// Computes the int8 weights that forward() reads; run once after the parameters have been
  /// copied. Only for int8 models.
  void quantize(Program& program) const;

  /// Computes, from the gradient of output(), or of the last activation's input if the loss
  /// includes that activation (loss_includes_activation()), the gradients of the layers' outputs
  /// and, if the model stores them, of all parameters, last layer first. With `beta` 1, adds to the
  /// existing gradients. Calls `ready` for each part of a layer right after its node, or where the
  /// node would be. A recomputed segment is preceded by its forward nodes again, except those of
  /// its last layer, whose output is kept. They are the same ops, so the bits are the same.
  void backward(Program& program, const Tensor& x, float beta,
                const BackwardReady& ready = {}) const;

  /// The gradients of a layer's parameters.
  void add_gradient_of_bias(Program& program, int layer, const Factors& factors, float beta) const;
  void add_gradient_of_weight(Program& program, int layer, const Factors& factors,
                              float beta) const;

  [[nodiscard]] BufferId parameters() const { return parameters_; }
  /// The parameters that products read, possibly the rounded copy; flat.
  [[nodiscard]] Tensor operands() const { return spec_->layout.flat(operands_, spec_->numbers); }
  /// kNoBuffer if they are not stored.
  [[nodiscard]] BufferId gradients() const { return gradients_; }
  /// The factors for its rows' part of a layer's gradients, after backward. `x` is the model's
  /// input.
  [[nodiscard]] Factors factors(int layer, const Tensor& x) const;
  [[nodiscard]] ModelOutput output() const { return {out_.back(), grad_out_.back()}; }

 private:
  /// The extra tensors of a layer in int8.
  struct Int8Layer {
    Tensor weight, scales, sums;
    Quantize input;  // forward() sets its `from`
  };

  [[nodiscard]] static Int8Layer take_int8_layer(Buffers& buffers, const MlpSpec& spec, int layer,
                                                 std::int64_t rows, int device);
  void add_int8_layer(Program& program, const Tensor& x, int layer) const;
  void add(Program& program, DeviceOp op, Phase phase, int layer) const;
  void add_forward(Program& program, const Tensor& x, Phase phase, int layer) const;
  void add_recomputation(Program& program, const Tensor& x, int layer) const;
  [[nodiscard]] Tensor input_of(int layer, const Tensor& x) const;
  /// Adds the gradient of a parameter, as made by make(where to, beta).
  template <class Make>
  void add_gradient(Program& program, int layer, const Tensor& gradient, float beta,
                    const Make& make) const;
  /// For a layer's output or its gradient, if the layer has dropout.
  void add_dropout(Program& program, const Tensor& values, Phase phase, int layer) const;
  [[nodiscard]] ActivationGrad activation_grad(int layer, const Tensor& grad) const;

  const MlpSpec* spec_;
  int device_;
  std::optional<StepRows> step_rows_;
  BufferId parameters_ = kNoBuffer;
  BufferId operands_ = kNoBuffer;  // the parameters or their rounded copy
  BufferId gradients_ = kNoBuffer;
  BufferId rounded_gradient_ = kNoBuffer;  // if gradients are wider than their factors
  std::optional<Tensor> rounded_x_{};      // if products are in 16 bits
  std::vector<Tensor> out_;                // rows x outputs per layer, after activation and dropout
  std::vector<Tensor> grad_out_;           // gradient with respect to `out_`; empty if not kept
  std::vector<std::optional<Tensor>> pre_activation_;  // if gradients are computed from it
  std::vector<std::optional<Tensor>> undropped_;       // outputs, if gradients need them
  std::vector<Int8Layer> int8_;                        // empty unless int8
};

}  // namespace barestep
