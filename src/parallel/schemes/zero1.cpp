#include "parallel/schemes/zero1.h"

#include <fmt/format.h>

#include <optional>

namespace barestep {
namespace {

constexpr std::int64_t kShardNumbers = 64 / bytes_of(DType::kF32);

/// How gradients are summed over the ranks. If they accumulate from step to step, every rank keeps
/// the sum of all ranks. The next step adds to it, weights it and sums again; since the ranks'
/// weights add up to 1, the old sum is counted once.
Collective sum_of(const Tensor& gradients, float scale, bool zero_grad, Axis axis) {
  if (!zero_grad) {
    return AllReduce{.tensors = {gradients}, .scale = scale, .axis = axis, .name = "gradients"};
  }
  return ReduceScatter{
      .tensors = {gradients}, .scale = scale, .axis = axis, .name = "gradients, scattered"};
}

}  // namespace

FlatRange shard_of(const Parameters& parameters, int rank, int ranks) {
  const std::int64_t numbers = parameters.bytes() / bytes_of(DType::kF32);
  const std::int64_t share = (numbers + ranks - 1) / ranks;
  const std::int64_t rounded = (share + kShardNumbers - 1) / kShardNumbers * kShardNumbers;
  return {rank * rounded, rounded};
}

void Zero1::build(Draft& draft) const {
  draft.require_gradients();
  const StepSpec& spec = draft.spec();
  const FlatRange shard = shard_of(draft.parameters(), spec.mesh.data_rank(), spec.mesh.data);
  // The flat buffers as matrices with one row per rank.
  const auto by_rank = [&](const char* name, Category category) {
    return draft.buffers().tensor(name, category, spec.mesh.data, shard.count);
  };
  const Tensor gradients = by_rank("gradients", Category::kGradients);
  const Tensor parameters = by_rank("parameters", Category::kParameters);
  std::optional<Tensor> rounded;
  if (spec.model.numbers != DType::kF32) {
    rounded = draft.buffers().tensor("rounded_parameters", Category::kParameters, spec.mesh.data,
                                     shard.count, spec.model.numbers);
  }
  const float scale = draft.share();
  const Axis axis = draft.data_axis();
  const Draft::Ready loss_ready = draft.share_loss(scale);

  draft.input();
  draft.passes({.loss_ready = loss_ready});
  draft.exchange(sum_of(gradients, scale, spec.zero_grad, axis));
  const auto add_up = [&](const char* name) {
    return [&draft, axis, name](const Tensor& number) {
      draft.exchange(AllReduce{.tensors = {number}, .axis = axis, .name = name});
    };
  };
  draft.update({.part = UpdatedPart{shard, shard.of(gradients.buffer)},
                .squares_ready = add_up("squares of gradients"),
                .found_inf_ready = add_up("overflow of gradients")});
  const auto gather = [&](const Tensor& shares, const char* name) {
    draft.exchange(AllGather{.tensors = {shares}, .axis = axis, .name = name});
  };
  gather(parameters, "parameters, gathered");
  // Rounded by the rank that updated them, which saves another pass over the parameters.
  if (rounded) gather(*rounded, "rounded parameters, gathered");
}

std::string Zero1::exchange_text(const StepSpec& /*spec*/, std::string_view transport) const {
  return fmt::format("gradients scattered and parameters gathered by {}", transport);
}

}  // namespace barestep
