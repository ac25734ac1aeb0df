#include "parallel/schemes/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/operands.h"
#include "core/units.h"
#include "train/mlp.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// What reduces a bucket, in order.
std::vector<Node> reduction_of(const Tensor& bucket, const DdpOptions& options) {
  if (!options.bf16) {
    return {comm_node(AllReduce{.tensors = {bucket}, .scale = options.scale})};
  }
  const Tensor sent{options.bf16->buffer, 0, 1, bucket.cols, DType::kBF16};
  const auto cast = [](const Tensor& to, const Tensor& from, float scale) {
    return Node{.op = DeviceOp{Cast{.to = to, .from = from, .scale = scale}},
                .lane = Lane::kComm,
                .phase = Phase::kReduce};
  };
  return {cast(sent, bucket, options.scale), comm_node(AllReduce{.tensors = {sent}}),
          cast(bucket, sent, 1)};
}

}  // namespace

std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> sizes_bytes,
                                             std::span<const std::int64_t> limits_bytes) {
  BARESTEP_REQUIRE(!limits_bytes.empty(), "buckets need a limit");
  std::vector<std::vector<int>> buckets;
  std::vector<int> open;
  std::int64_t open_bytes = 0;
  std::size_t limit = 0;
  for (std::size_t i = 0; i < sizes_bytes.size(); ++i) {
    open.push_back(static_cast<int>(i));
    open_bytes += sizes_bytes[i];
    if (open_bytes < limits_bytes[limit]) continue;
    buckets.push_back(std::exchange(open, {}));
    open_bytes = 0;
    limit = std::min(limit + 1, limits_bytes.size() - 1);
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

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

void reduce_gradients(const Program& step, const std::vector<Tensor>& buckets,
                      const DdpOptions& options, Insertions& insertions) {
  const NodeId optimizer_id = optimizer_node(step);
  const Node& optimizer = step.nodes()[static_cast<std::size_t>(optimizer_id)];
  const TouchedBytes touched = touched_before(step, optimizer_id);
  for (const Tensor& bucket : buckets) {
    const NodeId complete = last_use(touched, bucket, true);
    const NodeId reduced = options.overlap ? complete : optimizer_id - 1;
    for (Node& node : reduction_of(bucket, options)) insertions.emplace(reduced, std::move(node));
    if (!options.update_per_bucket) continue;
    // Backward still reads a layer's weights after its gradient is complete.
    Node update = optimizer;
    update.op = slice(optimizer.op, 'n', bucket.offset_bytes / bytes_of(bucket.dtype), bucket.cols);
    update.lane = Lane::kComm;
    NodeId unused = reduced;
    for (const Access& access : accesses_of(update.op)) {
      if (access.writes) unused = std::max(unused, last_use(touched, access.tensor, false));
    }
    insertions.emplace(unused, std::move(update));
  }
}

DdpSettings ddp_settings_of(const TrainConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  return {.bucket_bytes = std::llround(parallel.bucket_mib * 0x1p20),
          .whole_first_bucket = parallel.whole_first_bucket,
          .overlap = parallel.overlap,
          .update_per_bucket = config.training.update == Update::kPerBucket,
          .bf16_gradients = parallel.bf16_gradients};
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
            .why = fmt::format("there {} {}", ranks == 1 ? "is" : "are", counted(ranks, "rank")),
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
          .why = fmt::format("leaves some of {} ranks without a sample", ranks),
          .remedy = fmt::format("give at least {}, or start fewer ranks", ranks)});
  }
  if (!limits::kBatchSizes.contains(spec.step_rows())) {
    fail(ExitCode::kConfiguration,
         {.what = "--batch-size",
          .value = std::to_string(config.data.batch_size),
          .why = fmt::format("{} {} {} samples in a step", counted(ranks, "rank"),
                             ranks == 1 ? "makes" : "make", spec.step_rows()),
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
  DdpOptions options{.scale = share_of_step(step, spec),
                     .overlap = settings_.overlap,
                     .update_per_bucket = settings_.update_per_bucket};
  const bool whole = is_first_step && settings_.whole_first_bucket;
  const std::vector<Tensor> reduced =
      whole ? std::vector{layout.flat(gradients)} : this->buckets(layout, gradients);
  if (settings_.bf16_gradients) {
    const auto largest = std::ranges::max_element(reduced, {}, &Tensor::cols);
    options.bf16 =
        buffers.tensor("bucket_bf16", Category::kCommunication, 1, largest->cols, DType::kBF16);
  }
  Insertions insertions;
  share_loss(step, buffers, options.scale, insertions);
  reduce_gradients(step.program, reduced, options, insertions);
  std::set<NodeId> replaced;
  if (options.update_per_bucket) replaced.insert(optimizer_node(step.program));
  step.program = with_insertions(step.program, insertions, replaced);
}

}  // namespace barestep
