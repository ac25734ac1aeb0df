#include "parallel/schemes/zero1.h"

#include <fmt/format.h>

#include <optional>

namespace barestep {
namespace {

constexpr std::int64_t kShardNumbers = 64 / bytes_of(DType::kF32);

/// How gradients are summed over the ranks. If they accumulate from step to step, every rank keeps
/// the sum of all ranks. The next step adds to it, weights it and sums again; since the ranks'
/// weights add up to 1, the old sum is counted once.
Collective sum_of(const Tensor& gradients, float scale, bool zero_grad) {
  if (!zero_grad) return AllReduce{.tensors = {gradients}, .scale = scale};
  return ReduceScatter{.tensors = {gradients}, .scale = scale};
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
  const FlatRange shard = shard_of(draft.parameters(), spec.rank, spec.ranks);
  // The flat buffers as matrices with one row per rank.
  const auto by_rank = [&](const char* name, Category category) {
    return draft.buffers().tensor(name, category, spec.ranks, shard.count);
  };
  const Tensor gradients = by_rank("gradients", Category::kGradients);
  const Tensor parameters = by_rank("parameters", Category::kParameters);
  std::optional<Tensor> rounded;
  if (spec.model.numbers != DType::kF32) {
    rounded = draft.buffers().tensor("rounded_parameters", Category::kParameters, spec.ranks,
                                     shard.count, spec.model.numbers);
  }
  const float scale = draft.share();
  const Draft::Ready loss_ready = draft.share_loss(scale);

  draft.input();
  draft.passes({.loss_ready = loss_ready});
  draft.exchange(sum_of(gradients, scale, spec.zero_grad));
  const auto add_up = [&](const Tensor& number) { draft.exchange(AllReduce{.tensors = {number}}); };
  draft.update({.part = UpdatedPart{shard, shard.of(gradients.buffer)},
                .squares_ready = add_up,
                .found_inf_ready = add_up});
  draft.exchange(AllGather{.tensors = {parameters}});
  // Rounded by the rank that updated them, which saves another pass over the parameters.
  if (rounded) draft.exchange(AllGather{.tensors = {*rounded}});
}

std::string Zero1::exchange_text(const StepSpec& /*spec*/, std::string_view transport) const {
  return fmt::format("gradients scattered and parameters gathered by {}", transport);
}

}  // namespace barestep
