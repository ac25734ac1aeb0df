#include "parallel/ddp.h"

#include <algorithm>
#include <initializer_list>
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

NodeId find_optimizer(const Program& program) {
  const auto& nodes = program.nodes();
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [](const Node& node) { return node.phase == Phase::kOptimizer; });
  BARESTEP_REQUIRE(found != nodes.end(), "a training step has an optimizer node");
  return static_cast<NodeId>(found - nodes.begin());
}

/// An optimizer over one bucket; one overload for each kind.
struct BucketUpdate {
  const Tensor& bucket;

  DeviceOp operator()(Adam op) const {
    narrow({&op.weights, &op.grads, &op.moments1, &op.moments2});
    return op;
  }
  DeviceOp operator()(Sgd op) const {
    narrow({&op.weights, &op.grads});
    if (op.velocities) narrow({&*op.velocities});
    return op;
  }
  DeviceOp operator()(const auto&) const {
    report_bug(__FILE__, __LINE__, "no optimizer", "an op of the optimizer phase is one");
  }

 private:
  void narrow(std::initializer_list<Tensor*> tensors) const {
    for (Tensor* tensor : tensors) *tensor = same_range(*tensor, bucket);
  }
};

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
  const NodeId optimizer_id = find_optimizer(step);
  const Node& optimizer = step.nodes()[static_cast<std::size_t>(optimizer_id)];

  std::multimap<NodeId, Node> behind;  // what follows a node of `step`
  const NodeId loss_id = last_use(step, optimizer_id, loss.local, true);
  Node keep_local = step.nodes()[static_cast<std::size_t>(loss_id)];
  keep_local.op = DeviceOp{Copy{.to = loss.global, .from = loss.local}};
  behind.emplace(loss_id, std::move(keep_local));
  behind.emplace(loss_id, all_reduce(loss.global, options.scale));
  // Read back on the comm lane: on the compute lane, backward would wait for the other ranks.
  behind.emplace(loss_id, Node{.op = DeviceOp{Copy{.to = loss.host, .from = loss.global}},
                               .lane = Lane::kComm,
                               .phase = Phase::kReduce});
  for (const Tensor& bucket : buckets) {
    const NodeId complete = last_use(step, optimizer_id, bucket, true);
    const NodeId reduced = options.overlap ? complete : optimizer_id - 1;
    behind.emplace(reduced, all_reduce(bucket, options.scale));
    if (!options.update_per_bucket) continue;
    // Backward still reads a layer's weights after its gradient is complete.
    Node update = optimizer;
    update.op = std::visit(BucketUpdate{bucket}, std::get<DeviceOp>(optimizer.op));
    update.lane = Lane::kComm;
    NodeId unused = reduced;
    for (const Access& access : accesses_of(update.op)) {
      if (access.writes)
        unused = std::max(unused, last_use(step, optimizer_id, access.tensor, false));
    }
    behind.emplace(unused, std::move(update));
  }

  Program result(step.name(), step.buffers());
  for (NodeId id = 0; id < step.size(); ++id) {
    if (id != optimizer_id || !options.update_per_bucket) {
      result.add(step.nodes()[static_cast<std::size_t>(id)]);
    }
    const auto [begin, end] = behind.equal_range(id);
    for (auto node = begin; node != end; ++node) result.add(node->second);
  }
  return result;
}

}  // namespace barestep
