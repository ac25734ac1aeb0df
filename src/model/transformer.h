// An encoder block of a transformer that normalizes before attention and before its two linear
// layers, as torch.nn.TransformerEncoderLayer(dim, heads, ffn, dropout=0, activation="gelu",
// batch_first=True, norm_first=True).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/attention.h"
#include "model/block.h"
#include "model/linear.h"

namespace barestep {

/// torch.nn.LayerNorm. Its input, gradients and parameters are fp32; its output has the type of
/// products. Activations: "<name>.y", "<name>.mean", "<name>.rstd".
class Norm {
 public:
  /// Adds "<name>.weight", ones, and "<name>.bias", zeros.
  Norm(Parameters& parameters, std::string name, std::int64_t width);

  Tensor forward(Pass& pass, const Tensor& x);

  /// Adds the nodes of its parameters' gradients and adds that of x to `grad_x`, if given. Gives
  /// grad_y back.
  void backward(Pass& pass, const Tensor& grad_y, const std::optional<Tensor>& grad_x);

 private:
  std::string name_;
  ParameterId weight_, bias_;
  Tensor x_{}, mean_{}, rstd_{};
};

struct TransformerBlockSpec {
  std::string name;
  int number = 0;  // among the model's blocks; decides when its parameters are drawn
  std::int64_t width = 0, ffn = 0;
  AttentionShape attention{};
  int tensor_rank = 0, tensor_ranks = 1;
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
  TransformerBlock(Parameters& parameters, const TransformerBlockSpec& spec);

  Tensor forward(Pass& pass, const Tensor& x) override;
  [[nodiscard]] bool keeps_more() const override { return true; }

  /// Adds the gradients of the branches to grad_y and returns it.
  Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) override;

  void add_linears(std::vector<Linear*>& linears) override;

 private:
  [[nodiscard]] std::string inner(const char* name) const { return this->name() + "." + name; }
  /// x + branch, which is given back.
  Tensor add_branch(Pass& pass, const Tensor& x, const Tensor& branch, const Tensor& sum) const;
  /// The gradient of a branch's output: that of the sum, in the type of products.
  [[nodiscard]] Tensor branch_grad(Pass& pass, const Tensor& grad) const;
  Tensor attend(Pass& pass, const Tensor& qkv);
  Tensor attention_backward(Pass& pass, const Tensor& grad_out) const;

  TransformerBlockSpec spec_;
  AttentionShape attention_shape_;  // of this rank's heads
  // In the order of forward, which is that of parameters.
  Norm norm1_;
  Linear in_proj_, out_proj_;
  Norm norm2_;
  Linear linear1_, linear2_;
  Attention attention_{};  // of the last pass
};

}  // namespace barestep
