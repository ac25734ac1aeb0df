#include "parallel/schemes/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/operands.h"
#include "train/chunk_sums.h"
#include "train/optimizer.h"

namespace barestep {
namespace {

std::vector<std::vector<ParameterId>> members_of(const std::vector<Bucket>& buckets) {
  std::vector<std::vector<ParameterId>> members;
  for (const Bucket& bucket : buckets) members.push_back(bucket.parameters);
  return members;
}

/// Reduces the buckets of a step, and updates them if needed, in the order in which backward
/// completes them.
class BucketReduction {
 public:
  BucketReduction(Draft& draft, const std::vector<Bucket>& buckets, const DdpSettings& settings)
      : draft_(draft),
        overlaps_(settings.overlap),
        every_(settings.reduces_every_micro_step),
        completed_(members_of(buckets)),
        released_(members_of(buckets)) {
    if (draft.spec().chunk_rows > 0) chunks_.emplace(draft);
    for (const Bucket& bucket : buckets) states_.push_back({bucket.gradients});
    if (settings.bf16_gradients && !states_.empty()) {
      const auto largest =
          std::ranges::max(states_, {}, [](const State& state) { return state.bucket.cols; });
      bf16_ = draft.buffers().tensor("bucket_bf16", Category::kCommunication, 1,
                                     largest.bucket.cols, DType::kBF16);
    }
    if (settings.update_per_bucket) update_ = draft.whole_update();
  }

  [[nodiscard]] PassHooks hooks() {
    PassHooks hooks = overlaps_ && !states_.empty() ? hooks_of_buckets() : PassHooks{};
    return chunks_ ? chunks_->hooks(std::move(hooks)) : hooks;
  }

  /// The buckets that are left, one by one, after backward.
  void finish() {
    for (State& state : states_) {
      if (!state.is_reduced) reduce(state);
      if (!state.is_updated) update(state);
    }
  }

 private:
  struct State {
    Tensor bucket;
    bool is_reduced = false, is_released = false, is_updated = false;
  };

  /// A bucket is reduced once its last gradient is complete, and updated once backward no longer
  /// reads any of its parameters either.
  [[nodiscard]] PassHooks hooks_of_buckets() {
    return {.complete =
                [this](const Pass& pass, ParameterId id) {
                  if (!pass.is_last && !every_) return;
                  const auto bucket = completed_.count(id);
                  if (bucket && pass.is_last) reduce(at(states_, *bucket));
                  if (bucket && !pass.is_last) sum(at(states_, *bucket));
                },
            .released =
                [this](const Pass& pass, ParameterId id) {
                  if (!pass.is_last) return;
                  if (const auto bucket = released_.count(id)) release(at(states_, *bucket));
                }};
  }

  void release(State& state) {
    state.is_released = true;
    if (state.is_reduced) update(state);
  }

  void reduce(State& state) {
    state.is_reduced = true;
    sum(state);
    if (state.is_released) update(state);
  }

  void sum(const State& state) {
    const Tensor& bucket = state.bucket;
    const float scale = draft_.share();
    if (chunks_) {
      chunks_->all_reduce(lines_of(bucket), name_of(state));
    } else if (bf16_) {
      const Tensor sent = bf16_->flat_slice(0, bucket.cols);
      cast(sent, bucket, scale);
      exchange(state, {.tensors = {sent}});
      cast(bucket, sent, 1);
    } else {
      exchange(state, {.tensors = {bucket}, .scale = scale});
    }
  }

  void exchange(const State& state, AllReduce sum) {
    sum.axis = draft_.data_axis();
    sum.name = name_of(state);
    draft_.exchange(std::move(sum));
  }

  [[nodiscard]] std::string name_of(const State& state) const {
    return fmt::format("bucket {}", &state - states_.data() + 1);
  }

  /// With the padding after it.
  static FlatRange lines_of(const Tensor& bucket) {
    const std::int64_t lines = (bucket.cols + kLineNumbers - 1) / kLineNumbers;
    return {bucket.offset_bytes / bytes_of(bucket.dtype), lines * kLineNumbers};
  }

  void cast(const Tensor& to, const Tensor& from, float scale) {
    draft_.add({.op = DeviceOp{Cast{.to = to, .from = from, .scale = scale}},
                .lane = Lane::kComm,
                .phase = Phase::kCommunication});
  }

  void update(State& state) {
    state.is_updated = true;
    if (!update_) return;
    const std::int64_t first = state.bucket.offset_bytes / bytes_of(state.bucket.dtype);
    draft_.add({.op = slice(*update_, 'n', first, state.bucket.cols),
                .lane = Lane::kComm,
                .phase = Phase::kOptimizer});
  }

  Draft& draft_;
  bool overlaps_, every_;
  std::optional<ChunkSums> chunks_{};
  BucketCounts completed_, released_;  // of a pass whose gradients are reduced
  std::vector<State> states_;
  std::optional<Tensor> bf16_{};  // see DdpSettings
  std::optional<Op> update_{};    // of all parameters, if each bucket has its own update
};

/// All parameters in one, with the padding after the last.
Bucket whole_bucket(const std::vector<Bucket>& buckets, const Tensor& flat) {
  Bucket whole{.gradients = flat, .parameters = {}};
  for (const Bucket& bucket : buckets) {
    whole.parameters.insert(whole.parameters.end(), bucket.parameters.begin(),
                            bucket.parameters.end());
  }
  return whole;
}

}  // namespace

BucketCounts::BucketCounts(const std::vector<std::vector<ParameterId>>& buckets) {
  for (const std::vector<ParameterId>& bucket : buckets) {
    for (const ParameterId id : bucket) bucket_of_[id] = static_cast<int>(sizes_.size());
    sizes_.push_back(std::ssize(bucket));
  }
  left_ = sizes_;
}

std::optional<int> BucketCounts::count(ParameterId id) {
  const int bucket = bucket_of_.at(id);
  std::int64_t& left = at(left_, bucket);
  if (--left > 0) return std::nullopt;
  left = at(sizes_, bucket);
  return bucket;
}

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

std::vector<Bucket> gradient_buckets(const Parameters& parameters, BufferId gradients,
                                     std::int64_t first_bytes, std::int64_t bytes) {
  const int last_id = parameters.count() - 1;  // first in memory
  std::vector<std::int64_t> sizes;
  for (ParameterId id = last_id; id >= 0; --id) {
    sizes.push_back(parameters.in(gradients, id).bytes());
  }
  const std::int64_t limits[] = {first_bytes, bytes};
  std::vector<Bucket> buckets;
  for (const std::vector<int>& members : assign_buckets(sizes, limits)) {
    const Tensor first = parameters.in(gradients, last_id - members.front());
    const Tensor last = parameters.in(gradients, last_id - members.back());
    Bucket bucket{.gradients = {gradients, first.offset_bytes, 1,
                                (last.end_bytes() - first.offset_bytes) / bytes_of(DType::kF32)},
                  .parameters = {}};
    for (const int member : members) bucket.parameters.push_back(last_id - member);
    buckets.push_back(std::move(bucket));
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
          .reduces_every_micro_step = parallel.reduces_every_micro_step,
          .update_per_bucket = config.training.update == Update::kPerBucket,
          .bf16_gradients = parallel.bf16_gradients};
}

std::vector<Bucket> Ddp::buckets(const Parameters& parameters, BufferId gradients) const {
  return gradient_buckets(parameters, gradients, settings_.first_bucket_bytes,
                          settings_.bucket_bytes);
}

std::vector<StepKind> Ddp::kinds(const StepSpec& spec) const {
  std::vector<StepKind> all = Scheme::kinds(spec);
  if (settings_.whole_first_bucket) all.push_back(StepKind::kFirstTraining);
  return all;
}

StepKind Ddp::kind_of(const StepPlace& place, const StepSpec& spec) const {
  const bool is_special = settings_.whole_first_bucket && place.number == 0;
  return is_special ? StepKind::kFirstTraining : Scheme::kind_of(place, spec);
}

std::vector<Bucket> Ddp::buckets_of(Draft& draft, BufferId delayed) const {
  const StepSpec& spec = draft.spec();
  const bool is_one_copy = spec.mesh.cuts_model() && spec.mesh.data == 1;
  if (is_one_copy && !settings_.update_per_bucket) return {};
  const BufferId gradients = delayed == kNoBuffer ? draft.require_gradients() : delayed;
  std::vector<Bucket> all = buckets(draft.parameters(), gradients);
  if (draft.kind() != StepKind::kFirstTraining || !settings_.whole_first_bucket) return all;
  return {whole_bucket(all, draft.parameters().flat(gradients))};
}

void Ddp::build_late(Draft& draft) const {
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  draft.input();
  draft.passes({.loss_ready = loss_ready});
  const BufferId delayed = draft.update_later();
  BucketReduction(draft, buckets_of(draft, delayed), settings_).finish();
}

void Ddp::build(Draft& draft) const {
  if (draft.spec().update.staleness > 0) return build_late(draft);
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  if (settings_.reduces_every_micro_step) draft.align_micro_steps();
  draft.input();
  BucketReduction reduction(draft, buckets_of(draft), settings_);
  draft.passes({.pass = reduction.hooks(), .loss_ready = loss_ready});
  reduction.finish();
  if (!settings_.update_per_bucket) draft.update();
}

}  // namespace barestep
