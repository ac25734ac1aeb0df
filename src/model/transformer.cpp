#include "model/transformer.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "model/linear.h"

namespace barestep {
namespace {

// nn.MultiheadAttention constructs out_proj before it draws the weight of in_proj; the linear
// layers follow (torch/nn/modules/activation.py, transformer.py).
enum Turn { kOutProj, kInProj, kLinears, kTurns };

int turn_of(const TransformerBlockSpec& spec, Turn turn) {
  return spec.number * kTurns + turn;
}

/// nn.Linear's.
InitialValues initial_linear(const TransformerBlockSpec& spec, Turn turn, std::int64_t inputs) {
  return {.bound = 1.0 / std::sqrt(static_cast<double>(inputs)), .turn = turn_of(spec, turn)};
}

std::int64_t head_width(const TransformerBlockSpec& spec) {
  return spec.width / spec.attention.heads;
}

/// xavier_uniform_ of the three weights together; the bias is 0.
LinearSpec in_proj_of(const TransformerBlockSpec& spec) {
  return {.name = spec.name + ".self_attn.in_proj",
          .inputs = spec.width,
          .outputs = 3 * spec.width,
          .cut = Cut::kRows,
          .grid = {.groups = 3, .unit = head_width(spec)},
          .tensor_rank = spec.tensor_rank,
          .tensor_ranks = spec.tensor_ranks,
          .before_names = '_',
          .initial_weight = InitialValues{.bound = std::sqrt(1.5 / static_cast<double>(spec.width)),
                                          .turn = turn_of(spec, kInProj)},
          .initial_bias = InitialValues{},
          .length = spec.attention.length};
}

LinearSpec out_proj_of(const TransformerBlockSpec& spec) {
  LinearSpec linear{.name = spec.name + ".self_attn.out_proj",
                    .inputs = spec.width,
                    .outputs = spec.width,
                    .cut = Cut::kCols,
                    .grid = {.unit = head_width(spec)},
                    .tensor_rank = spec.tensor_rank,
                    .tensor_ranks = spec.tensor_ranks,
                    .initial_weight = initial_linear(spec, kOutProj, spec.width),
                    .initial_bias = initial_linear(spec, kOutProj, spec.width),
                    .is_temporary = true};
  linear.initial_bias->is_overwritten = true;
  return linear;
}

LinearSpec linear1_of(const TransformerBlockSpec& spec) {
  return {.name = spec.name + ".linear1",
          .inputs = spec.width,
          .outputs = spec.ffn,
          .activation = Activation::kGelu,
          .cut = Cut::kRows,
          .tensor_rank = spec.tensor_rank,
          .tensor_ranks = spec.tensor_ranks,
          .initial_weight = initial_linear(spec, kLinears, spec.width),
          .initial_bias = initial_linear(spec, kLinears, spec.width)};
}

LinearSpec linear2_of(const TransformerBlockSpec& spec) {
  return {.name = spec.name + ".linear2",
          .inputs = spec.ffn,
          .outputs = spec.width,
          .cut = Cut::kCols,
          .tensor_rank = spec.tensor_rank,
          .tensor_ranks = spec.tensor_ranks,
          .initial_weight = initial_linear(spec, kLinears, spec.ffn),
          .initial_bias = initial_linear(spec, kLinears, spec.ffn),
          .is_temporary = true};
}

/// torch.nn.LayerNorm. Its input, gradients and parameters are fp32; its output has the type of
/// products. Activations: "<name>.y", "<name>.mean", "<name>.rstd".
class Norm {
 public:
  /// Adds "<name>.weight", ones, and "<name>.bias", zeros.
  Norm(Parameters& parameters, std::string name, std::int64_t width) : name_(std::move(name)) {
    const auto add = [&](const char* what, float value) {
      return parameters.add({.name = name_ + what,
                             .shape = {width},
                             .initial = InitialValues{.value = value},
                             .is_wide = true});
    };
    weight_ = add(".weight", 1);
    bias_ = add(".bias", 0);
  }

  Tensor forward(Pass& pass, const Tensor& x) {
    x_ = x;
    pass.before(weight_);
    pass.before(bias_);
    const Tensor y = pass.activation(name_ + ".y", x.rows, x.cols);
    mean_ = pass.activation(name_ + ".mean", x.rows, 1, DType::kF32);
    rstd_ = pass.activation(name_ + ".rstd", x.rows, 1, DType::kF32);
    pass.add(LayerNorm{.y = y,
                       .mean = mean_,
                       .rstd = rstd_,
                       .x = x,
                       .weight = pass.weight(weight_),
                       .bias = pass.weight(bias_)},
             name_);
    return y;
  }

  /// Adds the nodes of its parameters' gradients and adds that of x to `grad_x`, if given. Gives
  /// grad_y back.
  void backward(Pass& pass, const Tensor& grad_y, const std::optional<Tensor>& grad_x) {
    pass.before(weight_);
    pass.add(LayerNormGrad{.grad_weight = pass.gradient(weight_),
                           .grad_bias = pass.gradient(bias_),
                           .grad_x = grad_x,
                           .grad_y = grad_y,
                           .x = x_,
                           .mean = mean_,
                           .rstd = rstd_,
                           .weight = pass.weight(weight_),
                           .beta = pass.beta},
             name_);
    pass.complete(bias_);
    pass.released(bias_);
    pass.complete(weight_);
    pass.released(weight_);
    pass.scratch.give_back(grad_y);
  }

 private:
  std::string name_;
  ParameterId weight_, bias_;
  Tensor x_{}, mean_{}, rstd_{};
};

/// a = x + out_proj(attention(in_proj(norm1(x)))), y = a + linear2(gelu(linear1(norm2(a)))).
///
/// A sample is a sequence; its rows follow each other. x, a and y, to which branches are added, are
/// fp32; branches have the type of products. Parameters have the names and values of PyTorch's
/// module. Activations, besides those of norms and linear layers: "<name>.self_attn.out" and
/// "<name>.self_attn.kept" (see Attention), "<name>.attended" (a) and "<name>.out".
///
/// Tensor ranks share heads and the hidden layer; each half of the block then ends in a sum, in
/// forward and in backward (Shoeybi et al. 2019). Norms and the stream are whole on every rank.
class TransformerBlock final : public Block {
 public:
  TransformerBlock(Parameters& parameters, const TransformerBlockSpec& spec)
      : Block(spec.name),
        spec_(spec),
        attention_shape_(spec.attention),
        norm1_(parameters, spec.name + ".norm1", spec.width),
        in_proj_(parameters, in_proj_of(spec)),
        out_proj_(parameters, out_proj_of(spec)),
        norm2_(parameters, spec.name + ".norm2", spec.width),
        linear1_(parameters, linear1_of(spec)),
        linear2_(parameters, linear2_of(spec)) {
    attention_shape_.heads =
        share_of_rank(spec.attention.heads, spec.tensor_rank, spec.tensor_ranks).count;
  }

  Tensor forward(Pass& pass, const Tensor& x) override {
    const Tensor qkv = in_proj_.forward(pass, norm1_.forward(pass, x));
    const Tensor attended =
        add_branch(pass, x, out_proj_.forward(pass, attend(pass, qkv)),
                   pass.activation(inner("attended"), x.rows, x.cols, DType::kF32));
    const Tensor hidden = linear1_.forward(pass, norm2_.forward(pass, attended));
    const Tensor out = pass.output(inner("out"), x.rows, x.cols, DType::kF32);
    if (pass.has_output()) return out;
    return add_branch(pass, attended, linear2_.forward(pass, hidden), out);
  }

  [[nodiscard]] bool keeps_more() const override { return true; }

  /// Adds the gradients of the branches to grad_y and returns it.
  Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) override {
    const Tensor grad_hidden = linear2_.backward(pass, branch_grad(pass, grad_y), true);
    norm2_.backward(pass, linear1_.backward(pass, grad_hidden, true), grad_y);
    const Tensor grad_out = out_proj_.backward(pass, branch_grad(pass, grad_y), true);
    const Tensor grad_qkv = attention_backward(pass, grad_out);
    norm1_.backward(pass, in_proj_.backward(pass, grad_qkv, true),
                    wants_grad_x ? std::optional(grad_y) : std::nullopt);
    if (wants_grad_x) return grad_y;
    pass.scratch.give_back(grad_y);
    return {};
  }

  void add_linears(std::vector<Linear*>& linears) override {
    for (Linear* const each : {&in_proj_, &out_proj_, &linear1_, &linear2_})
      linears.push_back(each);
  }

 private:
  [[nodiscard]] std::string inner(const char* name) const { return this->name() + "." + name; }
  /// x + branch, which is given back.
  Tensor add_branch(Pass& pass, const Tensor& x, const Tensor& branch, const Tensor& sum) const {
    pass.add(Add{.out = sum, .a = x, .b = branch}, name());
    pass.scratch.give_back(branch);
    return sum;
  }

  /// The gradient of a branch's output: that of the sum, in the type of products.
  [[nodiscard]] Tensor branch_grad(Pass& pass, const Tensor& grad) const {
    if (pass.model.numbers == DType::kF32) {
      pass.scratch.share(grad);
      return grad;
    }
    const Tensor rounded = pass.scratch.take(inner("rounded_grad"), pass.first_row, grad.rows,
                                             grad.cols, pass.model.numbers);
    pass.add(Cast{.to = rounded, .from = grad}, name());
    return rounded;
  }

  Tensor attend(Pass& pass, const Tensor& qkv) {
    const std::int64_t width = qkv.cols / 3;
    attention_ = {.out = pass.activation(inner("self_attn.out"), qkv.rows, width),
                  .kept = pass.activation(inner("self_attn.kept"), qkv.rows,
                                          attention_shape_.kept_cols(), DType::kF32),
                  .qkv = qkv,
                  .shape = attention_shape_};
    pass.add(attention_, inner("self_attn"));
    return attention_.out;
  }

  Tensor attention_backward(Pass& pass, const Tensor& grad_out) const {
    const Tensor& qkv = attention_.qkv;
    const auto take = [&](const char* what, std::int64_t cols, DType type) {
      return pass.scratch.take(inner(what), pass.first_row, qkv.rows, cols, type);
    };
    AttentionGrad op{.grad_qkv = take("self_attn.grad_qkv", qkv.cols, qkv.dtype),
                     .qkv = qkv,
                     .out = attention_.out,
                     .grad_out = grad_out,
                     .kept = attention_.kept,
                     .shape = attention_.shape};
    if (const std::int64_t cols = op.scratch_cols(); cols > 0) {
      op.scratch = take("self_attn.scratch", cols, DType::kF32);
    }
    pass.add(op, inner("self_attn"));
    if (op.scratch) pass.scratch.give_back(*op.scratch);
    pass.scratch.give_back(grad_out);
    return op.grad_qkv;
  }

  TransformerBlockSpec spec_;
  AttentionShape attention_shape_;  // of this rank's heads
  // In the order of forward, which is that of parameters.
  Norm norm1_;
  Linear in_proj_, out_proj_;
  Norm norm2_;
  Linear linear1_, linear2_;
  Attention attention_{};  // of the last pass
};

}  // namespace

std::unique_ptr<Block> transformer_block(Parameters& parameters, const TransformerBlockSpec& spec) {
  return std::make_unique<TransformerBlock>(parameters, spec);
}

}  // namespace barestep
