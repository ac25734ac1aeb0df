// An encoder block of a transformer that normalizes before attention and before its two linear
// layers, as torch.nn.TransformerEncoderLayer(dim, heads, ffn, dropout=0, activation="gelu",
// batch_first=True, norm_first=True).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/attention.h"
#include "model/block.h"

namespace barestep {

struct TransformerBlockSpec {
  std::string name;
  int number = 0;  // among the model's blocks; decides when its parameters are drawn
  std::int64_t width = 0, ffn = 0;
  AttentionShape attention{};
  int tensor_rank = 0, tensor_ranks = 1;
};

std::unique_ptr<Block> transformer_block(Parameters& parameters, const TransformerBlockSpec& spec);

}  // namespace barestep
