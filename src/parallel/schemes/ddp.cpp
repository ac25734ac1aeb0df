#include "parallel/schemes/ddp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/operands.h"
#include "core/units.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// Reduces, and updates if needed, the buckets of a step in the order in which backward completes
/// them.
class BucketReduction {
 public:
  BucketReduction(Draft& draft, std::vector<Tensor> buckets, const DdpSettings& settings)
      : draft_(draft), buckets_(std::move(buckets)) {
    if (settings.bf16_gradients) {
      const auto largest = std::ranges::max_element(buckets_, {}, &Tensor::cols);
      bf16_ = draft.buffers().tensor("bucket_bf16", Category::kCommunication, 1, largest->cols,
                                     DType::kBF16);
    }
    if (settings.update_per_bucket) update_ = draft.whole_update();
  }

  /// A bucket is reduced once its last gradient is complete, and updated once backward no longer
  /// reads its weights.
  void on_made(int layer, BackwardResult made) {
    const ParameterLayout& layout = draft_.spec().model.layout;
    if (made == BackwardResult::kGradBias) reduce_until(layout.bias(kNoBuffer, layer).end_bytes());
    if (made == BackwardResult::kGradWeight)
      reduce_until(layout.weight(kNoBuffer, layer).end_bytes());
    if (made != BackwardResult::kGradWeight) update_reduced();
  }

  /// The remaining buckets, one by one, after backward.
  void finish() {
    while (reduced_ < buckets_.size()) {
      reduce_until(buckets_[reduced_].end_bytes());
      update_reduced();
    }
  }

 private:
  void reduce_until(std::int64_t end_bytes) {
    for (; reduced_ < buckets_.size() && buckets_[reduced_].end_bytes() <= end_bytes; ++reduced_) {
      reduce(buckets_[reduced_]);
    }
  }

  void reduce(const Tensor& bucket) {
    const float scale = draft_.share();
    if (!bf16_) return draft_.exchange(AllReduce{.tensors = {bucket}, .scale = scale});
    const Tensor sent = bf16_->flat_slice(0, bucket.cols);
    cast(sent, bucket, scale);
    draft_.exchange(AllReduce{.tensors = {sent}});
    cast(bucket, sent, 1);
  }

  void cast(const Tensor& to, const Tensor& from, float scale) {
    draft_.add({.op = DeviceOp{Cast{.to = to, .from = from, .scale = scale}},
                .lane = Lane::kComm,
                .phase = Phase::kCommunication});
  }

  void update_reduced() {
    for (; update_ && updated_ < reduced_; ++updated_) {
      const Tensor& bucket = buckets_[updated_];
      const std::int64_t first = bucket.offset_bytes / bytes_of(bucket.dtype);
      draft_.add({.op = slice(*update_, 'n', first, bucket.cols),
                  .lane = Lane::kComm,
                  .phase = Phase::kOptimizer});
    }
  }

  Draft& draft_;
  std::vector<Tensor> buckets_;
  std::optional<Tensor> bf16_{};  // see DdpSettings
  std::optional<Op> update_{};    // of all parameters, if each bucket has its own update
  std::size_t reduced_ = 0, updated_ = 0;
};

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
    const Tensor& first = at(tensors, members.front());
    const Tensor& last = at(tensors, members.back());
    buckets.push_back({gradients, first.offset_bytes, 1,
                       (last.end_bytes() - first.offset_bytes) / bytes_of(DType::kF32)});
  }
  return buckets;
}

DdpSettings ddp_settings_of(const TrainConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  // A given size closes the first bucket too, as DistributedDataParallel(bucket_cap_mb=...) does
  // (PyTorch 2.15: torch/nn/parallel/distributed.py, _BucketCapacityConfig).
  const auto given = [&](std::int64_t usual) -> std::int64_t {
    return parallel.bucket_mib ? std::llround(*parallel.bucket_mib * 0x1p20) : usual;
  };
  return {.first_bucket_bytes = given(kFirstBucketBytes),
          .bucket_bytes = given(kBucketBytes),
          .whole_first_bucket = parallel.whole_first_bucket,
          .overlap = parallel.overlap,
          .update_per_bucket = config.training.update == Update::kPerBucket,
          .bf16_gradients = parallel.bf16_gradients};
}

std::vector<Tensor> Ddp::buckets(const ParameterLayout& layout, BufferId gradients) const {
  return gradient_buckets(layout, gradients, settings_.first_bucket_bytes, settings_.bucket_bytes);
}

void Ddp::build(Draft& draft) const {
  const ParameterLayout& layout = draft.spec().model.layout;
  const BufferId gradients = draft.require_gradients();
  const bool whole = draft.kind() == StepKind::kFirstTraining;
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  draft.input();
  BucketReduction reduction(
      draft, whole ? std::vector{layout.flat(gradients)} : buckets(layout, gradients), settings_);
  BackwardReady ready;
  if (settings_.overlap)
    ready = [&](int layer, BackwardResult made) { reduction.on_made(layer, made); };
  for (const MicroStep& part : draft.micro_steps()) {
    draft.forward(part);
    draft.loss(part, loss_ready);
    draft.backward(part, ready);
  }
  reduction.finish();
  if (!settings_.update_per_bucket) draft.update();
}

std::string Ddp::exchange_text(const StepSpec& spec, std::string_view transport) const {
  std::vector<std::string> sizes;
  for (const Tensor& bucket : buckets(spec.model.layout, 0)) {
    sizes.push_back(human_bytes(settings_.bf16_gradients ? bucket.bytes() / 2 : bucket.bytes()));
  }
  return fmt::format("gradients reduced{} by {} in {} ({}){}",
                     settings_.bf16_gradients ? " as bf16" : "", transport,
                     counted(std::ssize(sizes), "bucket"), fmt::join(sizes, ", "),
                     settings_.overlap ? " while backward goes on" : " after backward");
}

}  // namespace barestep
