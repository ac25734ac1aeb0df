// y = activation(x W^T + b), as torch.nn.Linear and an activation module, with dropout after it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/block.h"

namespace barestep {

/// An activation's gradient and its sum over more rows than that are separate ops: together they
/// have work for too few threads.
constexpr std::int64_t kMaxRowsOfSums = 128;

/// The factors of a Linear's gradients: grad_y^T x is the weight's gradient, and the column sums of
/// grad_y are the bias's. n x outputs and n x inputs.
struct Factors {
  Tensor grad_y, x;
};

struct LinearSpec {
  std::string name;
  std::int64_t inputs = 0, outputs = 0;
  Activation activation = Activation::kNone;
  // Of the weight. Cut by rows, a rank has some of the outputs and their bias; cut by columns, it
  // needs some of the inputs only, and outputs are sums over the tensor ranks.
  Cut cut = Cut::kNone;
  CutGrid grid{};
  int tensor_rank = 0, tensor_ranks = 1;
  bool loss_includes_activation = false;  // backward starts from the gradient of its input
  std::optional<int> dropout{};           // the number of this dropout, which decides its masks
  char before_names = '.';                // "net.0.weight", or with '_' "in_proj_weight"
  // If not nn.Linear's: both uniform in +-1/sqrt(inputs).
  std::optional<InitialValues> initial_weight{}, initial_bias{};
  // The output is in scratch memory: whoever reads it gives it back, and backward does not need it.
  bool is_temporary = false;
  // Rows of a sequence. For several sequences of several rows, 16-bit sums are rounded before the
  // bias is added, and again afterwards, as in nn.MultiheadAttention, which transposes those.
  std::int64_t length = 1;

  [[nodiscard]] bool rounds_before_bias(std::int64_t rows) const {
    return length > 1 && rows > length;
  }
};

/// Its fusions, factors of gradients, int8 and 16-bit copies are its own business. Activations:
/// "<name>.out"; "<name>.pre_activation" if the activation's gradient is computed from its input;
/// "<name>.undropped" if it is computed from the value of an output that dropout changes; and
/// "<name>.x", a rounded input, if products are in 16 bits and x is not. With int8 also
/// "<name>.int8_weight", "<name>.weight_scales" and "<name>.weight_sums", and one "int8_x" with its
/// scales for all; and one "rounded_gradient" for all if gradients are wider than products.
class Linear final : public Block {
 public:
  /// Adds "<name>.weight" (outputs x inputs) and "<name>.bias"; the spec may replace the dot.
  Linear(Parameters& parameters, const LinearSpec& spec);

  Tensor forward(Pass& pass, const Tensor& x) override;

  /// grad_y is the gradient of y, or of the activation's input if the loss includes that.
  Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) override;

  void add_linears(std::vector<Linear*>& linears) override { linears.push_back(this); }

  /// Adds the gradient of the weight that a backward pass has left.
  void add_left_gradient(Pass& pass) const;

  /// Adds the gradients of its parameters from these factors, bias first.
  void add_gradients(const Pass& pass, const Factors& factors) const;

  /// Computes the quantized weight that evaluations read; run once after the parameters have been
  /// copied.
  void quantize(const Pass& pass) const;

  /// Of its last pass: `x` after forward, `grad_y` after its kGradOutput.
  [[nodiscard]] const Factors& factors() const { return factors_; }

  [[nodiscard]] ParameterId weight() const { return weight_; }
  [[nodiscard]] ParameterId bias() const { return bias_; }
  /// This tensor rank's.
  [[nodiscard]] std::int64_t inputs() const { return inputs_; }
  [[nodiscard]] std::int64_t outputs() const { return outputs_; }

 private:
  struct QuantizedWeight {
    Tensor weight, scales, sums;
  };

  [[nodiscard]] bool is_cut(Cut cut) const { return spec_.tensor_ranks > 1 && spec_.cut == cut; }
  [[nodiscard]] Tensor add_grad_x(const Pass& pass, const Tensor& grad_y) const;
  void add_gradients_of(Pass& pass, const Tensor& grad_y, bool bias_is_summed);
  void add_product(const Pass& pass) const;
  void add_quantized_product(const Pass& pass) const;
  [[nodiscard]] QuantizedWeight quantized_weight(const Pass& pass) const;
  void add_bias_gradient(const Pass& pass, const Tensor& grad_y) const;
  void add_weight_gradient(const Pass& pass, const Factors& factors) const;
  /// Adds the gradient of a parameter, as made by make(where to, beta).
  template <class Make>
  void add_gradient(const Pass& pass, ParameterId id, const Make& make) const;
  /// For its output or that one's gradient, if it has dropout.
  void add_dropout(const Pass& pass, const Tensor& values) const;
  [[nodiscard]] bool drops(const Pass& pass) const;

  LinearSpec spec_;
  std::int64_t inputs_, outputs_;
  ParameterId weight_, bias_;
  Factors factors_{};
  Tensor out_{};                            // rows x outputs, after activation and dropout
  std::optional<Tensor> pre_activation_{};  // if gradients are computed from it
  std::optional<Tensor> undropped_{};       // outputs, if gradients need them
};

}  // namespace barestep
