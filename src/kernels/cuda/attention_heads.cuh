// Heads of attention in the tensors of its ops, for all kernels that compute it.
#pragma once

#include <type_traits>

#include "core/attention.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/formulas.h"

namespace barestep {

/// A head in the tensors of an Attention or of its gradient; a block's `begin` is its first row.
template <class Number>
struct AttentionHead {
  AttentionShape shape;
  std::int64_t columns, width;  // of out; of a head
  float scale;
  const Number* qkv;
  const Number* out;
  const Number* grad_out;
  const float* kept;

  /// Where row `row` of a sequence begins in a tensor of `cols` columns.
  [[nodiscard]] __device__ std::int64_t row_of(std::int64_t head, std::int64_t cols) const {
    return head / shape.heads * shape.length * cols;
  }
  [[nodiscard]] __device__ std::int64_t in_qkv(std::int64_t head, int third) const {
    return row_of(head, 3 * columns) + third * columns + head % shape.heads * width;
  }
  [[nodiscard]] __device__ std::int64_t in_out(std::int64_t head) const {
    return row_of(head, columns) + head % shape.heads * width;
  }
  [[nodiscard]] __device__ std::int64_t in_log_sums(std::int64_t head) const {
    return row_of(head, shape.heads) + head % shape.heads;
  }
  /// In the scores of the standard form.
  [[nodiscard]] __device__ std::int64_t in_scores(std::int64_t head) const {
    return row_of(head, shape.heads * shape.length) + head % shape.heads * shape.length;
  }
  [[nodiscard]] __device__ bool has(std::int64_t query, std::int64_t key) const {
    return query < shape.length && key < shape.length && (!shape.causal || key <= query);
  }
  /// The same, but queries beyond the end have their first key, so that nothing divides by 0.
  [[nodiscard]] __device__ bool has_or_pads(std::int64_t query, std::int64_t key) const {
    return query < shape.length ? has(query, key) : key == 0;
  }
  /// Of the queries before `queries`.
  [[nodiscard]] __device__ std::int64_t end_of_keys(std::int64_t queries) const {
    return shape.causal && queries < shape.length ? queries : shape.length;
  }
};

/// What the launches of all kernels pass.
template <class Number, class AttentionOp>
AttentionHead<Number> head_of(const AttentionOp& op, const Addresses& addresses) {
  const std::int64_t width = op.out.cols / op.shape.heads;
  AttentionHead<Number> head{.shape = op.shape,
                             .columns = op.out.cols,
                             .width = width,
                             .scale = attention_scale(width),
                             .qkv = addresses.at<Number>(op.qkv),
                             .out = nullptr,
                             .grad_out = nullptr,
                             .kept = addresses.at(op.kept)};
  if constexpr (std::is_same_v<AttentionOp, AttentionGrad>) {
    head.out = addresses.at<Number>(op.out);
    head.grad_out = addresses.at<Number>(op.grad_out);
  }
  return head;
}

/// The tiles of all heads.
inline dim3 attention_grid(const AttentionShape& shape, const Tensor& out, int tile) {
  const std::int64_t heads = out.rows / shape.length * shape.heads;
  return {static_cast<unsigned>(heads * tiles(shape.length, tile))};
}

/// This block's head and the first row of its tile. Grid: the tiles of each head.
template <int kTile>
struct PlaceOfBlock {
  std::int64_t head, begin;

  __device__ explicit PlaceOfBlock(const AttentionShape& shape) {
    const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
    head = blockIdx.x / tiles;
    begin = blockIdx.x % tiles * kTile;
  }
};

}  // namespace barestep
