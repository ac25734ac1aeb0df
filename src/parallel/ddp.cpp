#include "parallel/ddp.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "parallel/split.h"

namespace barestep {
namespace {

/// The bytes of `whole` that correspond to `part` of a buffer with the same layout.
Tensor same_range(const Tensor& whole, const Tensor& part) {
  return {whole.buffer, part.offset_bytes, 1, part.cols, whole.dtype};
}

/// The last node before `end` that writes `tensor`, or touches it at all.
NodeId last_use(const Program& program, NodeId end, const Tensor& tensor, bool writes_only) {
  NodeId last = -1;
  for (NodeId id = 0; id < end; ++id) {
    for (const Access& access : accesses_of(program.nodes()[static_cast<std::size_t>(id)].op)) {
      if ((access.writes || !writes_only) && overlap(access.tensor, tensor)) last = id;
    }
  }
  return last;
}

NodeId find_adam(const Program& program) {
  const auto& nodes = program.nodes();
  const auto found = std::find_if(nodes.begin(), nodes.end(), [](const Node& node) {
    const auto* op = std::get_if<DeviceOp>(&node.op);
    return op != nullptr && std::holds_alternative<Adam>(*op);
  });
  BARESTEP_REQUIRE(found != nodes.end(), "a training step has an Adam node");
  return static_cast<NodeId>(found - nodes.begin());
}

Adam adam_of_bucket(const Adam& whole, const Tensor& bucket) {
  Adam part = whole;
  part.weights = same_range(whole.weights, bucket);
  part.grads = same_range(whole.grads, bucket);
  part.moments1 = same_range(whole.moments1, bucket);
  part.moments2 = same_range(whole.moments2, bucket);
  return part;
}

Node all_reduce(const Tensor& tensor, float scale) {
  return {.op = Collective{AllReduce{.tensors = {tensor}, .scale = scale}},
          .lane = Lane::kComm,
          .phase = Phase::kReduce};
}

}  // namespace

std::vector<Tensor> gradient_buckets(const ParameterLayout& layout, BufferId gradients,
                                     std::int64_t first_bytes, std::int64_t bytes) {
  std::vector<Tensor> tensors;  // in gradient-ready order, which is the order in memory
  for (int layer = layout.layers() - 1; layer >= 0; --layer) {
    tensors.push_back(layout.bias(gradients, layer));
    tensors.push_back(layout.weight(gradients, layer));
  }
  std::vector<std::int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.bytes());
  const std::int64_t limits[] = {first_bytes, bytes};

  std::vector<Tensor> buckets;
  for (const std::vector<int>& members : assign_buckets(sizes, limits)) {
    const Tensor& first = tensors[static_cast<std::size_t>(members.front())];
    const Tensor& last = tensors[static_cast<std::size_t>(members.back())];
    buckets.push_back({gradients, first.offset_bytes, 1,
                       (last.end_bytes() - first.offset_bytes) / bytes_of(DType::kF32)});
  }
  return buckets;
}

Program with_gradient_reduction(const Program& step, const std::vector<Tensor>& buckets,
                                const GlobalLoss& loss, const DdpOptions& options) {
  const NodeId adam_id = find_adam(step);
  const Node& adam_node = step.nodes()[static_cast<std::size_t>(adam_id)];
  const Adam adam = std::get<Adam>(std::get<DeviceOp>(adam_node.op));

  std::multimap<NodeId, Node> behind;  // what follows a node of `step`
  const NodeId loss_id = last_use(step, adam_id, loss.local, true);
  Node keep_local = step.nodes()[static_cast<std::size_t>(loss_id)];
  keep_local.op = DeviceOp{Copy{.to = loss.global, .from = loss.local}};
  behind.emplace(loss_id, std::move(keep_local));
  behind.emplace(loss_id, all_reduce(loss.global, options.scale));
  // Read back on the comm lane: on the compute lane, backward would wait for the other ranks.
  behind.emplace(loss_id, Node{.op = DeviceOp{Copy{.to = loss.host, .from = loss.global}},
                               .lane = Lane::kComm,
                               .phase = Phase::kReduce});
  for (const Tensor& bucket : buckets) {
    const NodeId complete = last_use(step, adam_id, bucket, true);
    const NodeId reduced = options.overlap ? complete : adam_id - 1;
    behind.emplace(reduced, all_reduce(bucket, options.scale));
    if (!options.update_per_bucket) continue;
    // Backward still reads a layer's weights after its gradient is complete.
    const NodeId unused = last_use(step, adam_id, same_range(adam.weights, bucket), false);
    Node update = adam_node;
    update.op = DeviceOp{adam_of_bucket(adam, bucket)};
    update.lane = Lane::kComm;
    behind.emplace(std::max(reduced, unused), std::move(update));
  }

  Program result(step.name(), step.buffers());
  for (NodeId id = 0; id < step.size(); ++id) {
    if (id != adam_id || !options.update_per_bucket) {
      result.add(step.nodes()[static_cast<std::size_t>(id)]);
    }
    const auto [begin, end] = behind.equal_range(id);
    for (auto node = begin; node != end; ++node) result.add(node->second);
  }
  return result;
}

}  // namespace barestep
