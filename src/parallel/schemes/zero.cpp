#include "parallel/schemes/zero.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/index.h"
#include "core/units.h"

namespace barestep {
namespace {

/// A tensor as one row.
Tensor in_a_row(const Tensor& tensor) {
  return tensor.flat_slice(0, tensor.size());
}

/// The exchanges of a rank's step.
class Sharding {
 public:
  Sharding(Draft& draft, std::vector<ShardedBucket> buckets, int stage)
      : draft_(draft),
        mesh_(draft.spec().mesh),
        axis_(draft.data_axis()),
        keeps_all_gradients_(stage == 1),
        buckets_(std::move(buckets)),
        completed_(parameters_of_buckets()) {
    if (keeps_all_gradients_) {
      gradients_ = draft_.require_gradients();
    } else {
      draft_.require_stored_gradients();
      draft_.align_micro_steps();
      take_shares();
    }
  }

  [[nodiscard]] PassHooks hooks() {
    PassHooks hooks;
    if (!keeps_all_gradients_) {
      hooks.gradient = [this](ParameterId id) { return on_its_way(id); };
      hooks.overwrites_gradients = true;
    }
    hooks.complete = [this](const Pass& pass, ParameterId id) {
      if (keeps_all_gradients_ && !pass.is_last) return;
      if (!keeps_all_gradients_) fill_padding(pass, id);
      if (const auto bucket = completed_.count(id)) scatter(*bucket, pass.micro_step == 0);
    };
    return hooks;
  }

  /// With stage 1: all buckets, after backward.
  void scatter_all() {
    for (int bucket = 0; bucket < count(); ++bucket) scatter(bucket, true);
  }

  [[nodiscard]] std::vector<UpdatedPart> parts() {
    const FlatBuffers flat = draft_.flat_buffers();
    const DType type = draft_.spec().model.numbers;
    std::vector<UpdatedPart> parts;
    for (int bucket = 0; bucket < count(); ++bucket) {
      const FlatRange share = share_of(bucket);
      UpdatedPart& part = parts.emplace_back(UpdatedPart{.range = share,
                                                         .parameters = share.of(flat.parameters),
                                                         .gradients = kept_gradients(bucket)});
      if (flat.operands != flat.parameters) part.rounded = share.of(flat.operands, type);
    }
    return parts;
  }

  /// The first layers first: the next step reads them first.
  void gather_parameters() {
    const FlatBuffers flat = draft_.flat_buffers();
    for (int bucket = count() - 1; bucket >= 0; --bucket) {
      const ShardedBucket& each = at(buckets_, bucket);
      gather(each.lines_of(flat.parameters), name_of(bucket, "gathered"));
      // Rounded by the rank that updated them, which saves another pass over the parameters.
      if (flat.operands == flat.parameters) continue;
      gather(each.lines_of(flat.operands, draft_.spec().model.numbers),
             name_of(bucket, "rounded and gathered"));
    }
  }

 private:
  [[nodiscard]] int count() const { return static_cast<int>(buckets_.size()); }

  [[nodiscard]] FlatRange share_of(int bucket) const {
    return share_of_lines(at(buckets_, bucket).range, mesh_.data_rank(), mesh_.data);
  }

  [[nodiscard]] std::vector<std::vector<ParameterId>> parameters_of_buckets() const {
    std::vector<std::vector<ParameterId>> all;
    for (const ShardedBucket& bucket : buckets_) all.push_back(bucket.parameters);
    return all;
  }

  static std::string name_of(int bucket, std::string_view what) {
    return fmt::format("bucket {}, {}", bucket + 1, what);
  }

  /// The memory of this rank's shares of gradients, and of buckets on their way.
  void take_shares() {
    std::int64_t shares = 0;
    for (int bucket = 0; bucket < count(); ++bucket) {
      const FlatRange& range = at(buckets_, bucket).range;
      for (const ParameterId id : at(buckets_, bucket).parameters) bucket_of_[id] = bucket;
      on_their_way_.at(static_cast<std::size_t>(bucket % 2)) =
          draft_.buffers().get(fmt::format("bucket_gradients.{}", bucket % 2),
                               Category::kCommunication, range.count * bytes_of(DType::kF32));
      kept_at_.push_back(shares);
      shares += share_of(bucket).count;
    }
    gradients_ =
        draft_.buffers().get("gradients", Category::kGradients, shares * bytes_of(DType::kF32));
  }

  /// A bucket's gradients before they are scattered, one row per line.
  [[nodiscard]] Tensor all_gradients(int bucket) const {
    const ShardedBucket& each = at(buckets_, bucket);
    if (keeps_all_gradients_) return each.lines_of(gradients_);
    return {on_their_way_.at(static_cast<std::size_t>(bucket % 2)), 0,
            each.range.count / kLineNumbers, kLineNumbers};
  }

  /// This rank's share after they are scattered, in a row.
  [[nodiscard]] Tensor kept_gradients(int bucket) const {
    const FlatRange share = share_of(bucket);
    if (keeps_all_gradients_) return share.of(gradients_);
    return FlatRange{at(kept_at_, bucket), share.count}.of(gradients_);
  }

  [[nodiscard]] Tensor on_its_way(ParameterId id) const {
    const int bucket = bucket_of_.at(id);
    Tensor tensor = draft_.parameters().in(all_gradients(bucket).buffer, id);
    tensor.offset_bytes -= at(buckets_, bucket).range.first * bytes_of(DType::kF32);
    return tensor;
  }

  /// Buckets of other shapes have been in this memory.
  void fill_padding(const Pass& pass, ParameterId id) {
    const Tensor tensor = on_its_way(id);
    const std::int64_t over = tensor.size() % kLineNumbers;
    if (over == 0) return;
    const Tensor padding{tensor.buffer, tensor.end_bytes(), 1, kLineNumbers - over};
    draft_.add({.op = DeviceOp{Fill{.out = padding}}, .device = pass.device, .phase = pass.phase});
  }

  void scatter(int bucket, bool is_first) {
    const Tensor all = all_gradients(bucket);
    const float scale = draft_.share();
    const bool zero_grad = draft_.spec().zero_grad;
    if (keeps_all_gradients_ && !zero_grad) {
      return draft_.exchange(AllReduce{
          .tensors = {all}, .scale = scale, .axis = axis_, .name = name_of(bucket, "summed")});
    }
    draft_.exchange(ReduceScatter{
        .tensors = {all}, .scale = scale, .axis = axis_, .name = name_of(bucket, "scattered")});
    if (!keeps_all_gradients_) keep(bucket, all, is_first && zero_grad);
  }

  void keep(int bucket, const Tensor& all, bool is_new) {
    const Tensor own = in_a_row(share_of_rank(all, mesh_.data_rank(), mesh_.data));
    if (own.size() == 0) return;
    const Tensor kept = kept_gradients(bucket);
    const DeviceOp op = is_new ? DeviceOp{Copy{.to = kept, .from = own}}
                               : DeviceOp{SumRows{.out = kept, .in = own, .beta = 1}};
    draft_.add({.op = op, .lane = Lane::kComm, .phase = Phase::kCommunication});
  }

  void gather(const Tensor& lines, std::string name) {
    draft_.exchange(AllGather{.tensors = {lines}, .axis = axis_, .name = std::move(name)});
  }

  Draft& draft_;
  const Mesh& mesh_;
  Axis axis_;
  bool keeps_all_gradients_;
  std::vector<ShardedBucket> buckets_;
  BucketCounts completed_;
  BufferId gradients_ = kNoBuffer;     // of all parameters, or of this rank's shares
  std::vector<std::int64_t> kept_at_;  // where this rank's shares of the buckets begin there
  std::map<ParameterId, int> bucket_of_;
  std::array<BufferId, 2> on_their_way_{kNoBuffer, kNoBuffer};  // for even and odd buckets
};

}  // namespace

Tensor ShardedBucket::lines_of(BufferId flat, DType type) const {
  return {flat, range.first * bytes_of(type), range.count / kLineNumbers, kLineNumbers, type};
}

std::vector<ShardedBucket> Zero::buckets(const Parameters& parameters) const {
  std::vector<ShardedBucket> all;
  for (Bucket& bucket : gradient_buckets(parameters, kNoBuffer, settings_.first_bucket_bytes,
                                         settings_.bucket_bytes)) {
    const std::int64_t first = bucket.gradients.offset_bytes / bytes_of(DType::kF32);
    const std::int64_t lines = (bucket.gradients.cols + kLineNumbers - 1) / kLineNumbers;
    all.push_back({{first, lines * kLineNumbers}, std::move(bucket.parameters)});
  }
  return all;
}

std::vector<FlatRange> Zero::held(Category category, const Parameters& parameters, int rank,
                                  int ranks) const {
  const bool is_shared_out =
      category == Category::kOptimizer || (category == Category::kGradients && stage_ >= 2);
  if (!is_shared_out) return Scheme::held(category, parameters, rank, ranks);
  std::vector<FlatRange> shares;
  for (const ShardedBucket& bucket : buckets(parameters)) {
    shares.push_back(share_of_lines(bucket.range, rank, ranks));
  }
  return shares;
}

void Zero::build(Draft& draft) const {
  const Axis axis = draft.data_axis();
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  Sharding sharding(draft, buckets(draft.parameters()), stage_);
  const bool overlaps = settings_.overlap || stage_ > 1;
  draft.input();
  draft.passes({.pass = overlaps ? sharding.hooks() : PassHooks{}, .loss_ready = loss_ready});
  if (!overlaps) sharding.scatter_all();
  const auto add_up = [&](const char* name) {
    return [&draft, axis, name](const Tensor& number) {
      draft.exchange(AllReduce{.tensors = {number}, .axis = axis, .name = name});
    };
  };
  draft.update({.parts = sharding.parts(),
                .squares_ready = add_up("squares of gradients"),
                .found_inf_ready = add_up("overflow of gradients")});
  sharding.gather_parameters();
}

std::string Zero::exchange_text(const StepSpec& spec, std::string_view transport) const {
  std::vector<std::string> sizes;
  for (const ShardedBucket& bucket : buckets(parameters_of(spec.model))) {
    sizes.push_back(human_bytes(bucket.range.count * bytes_of(DType::kF32)));
  }
  return fmt::format("gradients scattered and parameters gathered by {} in {} ({}){}", transport,
                     counted(std::ssize(sizes), "bucket"), fmt::join(sizes, ", "),
                     settings_.overlap || stage_ > 1 ? ", gradients while backward goes on" : "");
}

}  // namespace barestep
