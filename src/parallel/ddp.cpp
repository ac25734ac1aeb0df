#include "parallel/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "parallel/split.h"
#include "train/mlp.h"
#include "train/trainer.h"

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

DdpSettings ddp_settings_of(const ParallelConfig& parallel) {
  return {.bucket_bytes = std::llround(parallel.bucket_mib * 0x1p20),
          .whole_first_bucket = parallel.whole_first_bucket,
          .overlap = parallel.overlap,
          .update_per_bucket = parallel.update_per_bucket};
}

StepSpec spec_of_rank(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int rank,
                      int ranks) {
  StepSpec spec = spec_of(config, kind, dataset);
  spec.rank = rank;
  spec.ranks = ranks;
  if (const auto& slow = config.injected.slow_rank) {
    if (slow->rank >= ranks) {
      fail(ExitCode::kConfiguration,
           {.what = "--slow-rank",
            .value = fmt::format("{}:{}", slow->rank, slow->delay_ms),
            .why = fmt::format("there {} {} rank{}", ranks == 1 ? "is" : "are", ranks,
                               ranks == 1 ? "" : "s"),
            .remedy = fmt::format("ranks are numbered from 0 to {}", ranks - 1)});
    }
    if (slow->rank == rank) spec.delay_s += slow->delay_ms / 1e3;
  }
  spec.own_data = config.parallel.seed_per_rank;
  if (config.parallel.batch_per_rank) spec.batch_size *= ranks;
  if (spec.batch_size < ranks) {
    fail(ExitCode::kConfiguration,
         {.what = "--global-batch-size",
          .value = std::to_string(spec.batch_size),
          .why = fmt::format("is not a sample for each of {} ranks", ranks),
          .remedy = fmt::format("give at least {}, or start fewer ranks", ranks)});
  }
  if (!limits::kBatchSizes.contains(spec.step_rows())) {
    fail(ExitCode::kConfiguration,
         {.what = "--batch-size",
          .value = std::to_string(config.data.batch_size),
          .why = fmt::format("{} ranks make {} samples in a step", ranks, spec.step_rows()),
          .remedy = fmt::format("a step has at most {}", limits::kBatchSizes.last)});
  }
  return spec;
}

std::vector<Tensor> Ddp::buckets(const ParameterLayout& layout, BufferId gradients) const {
  return gradient_buckets(layout, gradients, settings_.first_bucket_bytes, settings_.bucket_bytes);
}

void Ddp::apply(StepProgram& step, Buffers& buffers, const StepSpec& spec,
                bool is_first_step) const {
  const ParameterLayout& layout = spec.model.layout;
  const BufferId gradients = Mlp(buffers, spec.model, 0).gradients();
  const GlobalLoss loss{
      .local = step.tensors.loss,
      .global = buffers.tensor("global_loss", Category::kCommunication, 1, 1, DType::kF32, 0, 2),
      .host = buffers.tensor("global_loss_host", Category::kData, 1, 1, DType::kF32, 0, 2, true)};
  const std::int64_t own_rows = spec.own_rows(step.rows).count;
  const DdpOptions options{
      .scale = static_cast<float>(static_cast<double>(own_rows) / static_cast<double>(step.rows)),
      .overlap = settings_.overlap,
      .update_per_bucket = settings_.update_per_bucket};
  const bool whole = is_first_step && settings_.whole_first_bucket;
  step.program = with_gradient_reduction(
      step.program, whole ? std::vector{layout.flat(gradients)} : buckets(layout, gradients), loss,
      options);
  step.tensors.loss_host = loss.host;
}

}  // namespace barestep
