#include "parallel/schemes/zero1.h"

#include "parallel/schemes/rewriting.h"

namespace barestep {
namespace {

constexpr std::int64_t kShardNumbers = 64 / bytes_of(DType::kF32);

/// A flat buffer as a matrix with a row for each rank.
Tensor by_rank(Buffers& buffers, const StepSpec& spec, const char* name, Category category) {
  const FlatRange shard = shard_of(spec.model.layout, spec.rank, spec.ranks);
  return buffers.tensor(name, category, spec.ranks, shard.count);
}

Tensor gradients_by_rank(Buffers& buffers, const StepSpec& spec) {
  return by_rank(buffers, spec, "gradients", Category::kGradients);
}

Tensor parameters_by_rank(Buffers& buffers, const StepSpec& spec) {
  return by_rank(buffers, spec, "parameters", Category::kParameters);
}

/// Of gradients that add up from step to step every rank keeps the sum of all ranks: the next
/// step's are added to it, weighted and summed again, and the weights of all ranks are 1 together.
Collective sum_of(const Tensor& gradients, float scale, bool zero_grad) {
  if (!zero_grad) return AllReduce{.tensors = {gradients}, .scale = scale};
  return ReduceScatter{.tensors = {gradients}, .scale = scale};
}

}  // namespace

FlatRange shard_of(const ParameterLayout& layout, int rank, int ranks) {
  const std::int64_t numbers = layout.bytes() / bytes_of(DType::kF32);
  const std::int64_t share = (numbers + ranks - 1) / ranks;
  const std::int64_t rounded = (share + kShardNumbers - 1) / kShardNumbers * kShardNumbers;
  return {rank * rounded, rounded};
}

std::optional<FlatRange> Zero1::updated_range(Buffers& buffers, const StepSpec& spec) const {
  gradients_by_rank(buffers, spec);
  parameters_by_rank(buffers, spec);
  return shard_of(spec.model.layout, spec.rank, spec.ranks);
}

void Zero1::apply(StepProgram& step, Buffers& buffers, const StepSpec& spec,
                  bool /*is_first_step*/) const {
  const Tensor gradients = gradients_by_rank(buffers, spec);
  const Tensor parameters = parameters_by_rank(buffers, spec);
  const float scale = share_of_step(step, spec);

  Insertions insertions;
  share_loss(step, buffers, scale, insertions);
  const NodeId optimizer = optimizer_node(step.program);
  insertions.emplace(optimizer - 1, comm_node(sum_of(gradients, scale, spec.zero_grad)));
  if (spec.clip_norm) {
    // The first thing that the optimizer finds is the sum of its share's squares.
    const Op& first = step.program.nodes()[static_cast<std::size_t>(optimizer)].op;
    const Tensor squares = std::get<SumSquares>(std::get<DeviceOp>(first)).out;
    insertions.emplace(optimizer, comm_node(AllReduce{.tensors = {squares}}));
  }
  insertions.emplace(step.program.size() - 1, comm_node(AllGather{.tensors = {parameters}}));
  step.program = with_insertions(step.program, insertions);
}

}  // namespace barestep
