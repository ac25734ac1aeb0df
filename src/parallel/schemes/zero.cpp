#include "parallel/schemes/zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "train/chunk_sums.h"

namespace barestep {
namespace {

/// A tensor as one row.
Tensor in_a_row(const Tensor& tensor) {
  return tensor.flat_slice(0, tensor.size());
}

std::map<ParameterId, int> buckets_by_parameter(const std::vector<ShardedBucket>& buckets) {
  std::map<ParameterId, int> found;
  for (int bucket = 0; bucket < static_cast<int>(buckets.size()); ++bucket) {
    for (const ParameterId id : at(buckets, bucket).parameters) found[id] = bucket;
  }
  return found;
}

/// The buckets of a rank's step, and its shares of them.
class BucketShares {
 public:
  BucketShares(Draft& draft, std::vector<ShardedBucket> buckets)
      : draft_(draft),
        mesh_(draft.spec().mesh),
        buckets_(std::move(buckets)),
        bucket_of_(buckets_by_parameter(buckets_)) {
    for (const ShardedBucket& bucket : buckets_) {
      const FlatRange share = share_of_lines(bucket.range, mesh_.data_rank(), mesh_.data);
      in_flat_.push_back(share);
      kept_.push_back({numbers_, share.count});
      numbers_ += share.count;
    }
  }

  [[nodiscard]] int count() const { return static_cast<int>(buckets_.size()); }
  [[nodiscard]] const ShardedBucket& bucket(int number) const { return at(buckets_, number); }
  [[nodiscard]] const std::vector<ShardedBucket>& buckets() const { return buckets_; }
  [[nodiscard]] int bucket_of(ParameterId id) const { return bucket_of_.at(id); }

  /// A share's place in flat buffers of all numbers, and in those of this rank's shares only.
  [[nodiscard]] const FlatRange& in_flat(int bucket) const { return at(in_flat_, bucket); }
  [[nodiscard]] const FlatRange& kept(int bucket) const { return at(kept_, bucket); }
  /// In all shares.
  [[nodiscard]] std::int64_t numbers() const { return numbers_; }

  /// This rank's lines of a whole bucket.
  [[nodiscard]] Tensor own_lines(const Tensor& lines) const {
    return share_of_rank(lines, mesh_.data_rank(), mesh_.data);
  }

  /// A whole bucket in memory that buckets use in turn.
  [[nodiscard]] Tensor passing(const char* name, int place, int bucket,
                               DType type = DType::kF32) const {
    const std::int64_t numbers = at(buckets_, bucket).range.count;
    const BufferId buffer = draft_.buffers().get(
        fmt::format("{}.{}", name, place), Category::kCommunication, numbers * bytes_of(type));
    return {buffer, 0, numbers / kLineNumbers, kLineNumbers, type};
  }

  /// A parameter's numbers, or those of its gradient, in such memory.
  [[nodiscard]] Tensor in_passing(const Tensor& lines, ParameterId id) const {
    Tensor tensor = draft_.parameters().in(lines.buffer, id, lines.dtype);
    tensor.offset_bytes -= at(buckets_, bucket_of(id)).range.first * bytes_of(lines.dtype);
    return tensor;
  }

  [[nodiscard]] std::string name_of(int bucket, std::string_view what) const {
    return fmt::format("{}, {}", at(buckets_, bucket).name, what);
  }

 private:
  Draft& draft_;
  const Mesh& mesh_;
  std::vector<ShardedBucket> buckets_;
  std::map<ParameterId, int> bucket_of_;
  std::vector<FlatRange> in_flat_, kept_;
  std::int64_t numbers_ = 0;
};

/// How gradients get from a pass to the rank that owns them.
class GradientScattering {
 public:
  /// `chunks` may be null, and must be unless this rank keeps the gradients of all parameters.
  GradientScattering(Draft& draft, const BucketShares& shares, bool keeps_all,
                     bool waits_for_gathers, ChunkSums* chunks)
      : draft_(draft),
        shares_(shares),
        chunks_(chunks),
        keeps_all_(keeps_all),
        waits_for_gathers_(waits_for_gathers),
        completed_(parameters_by_bucket(shares.buckets())) {
    if (keeps_all_) {
      gradients_ = draft.require_gradients();
      return;
    }
    draft.require_stored_gradients();
    draft.align_micro_steps();
    gradients_ = draft.buffers().get("gradients", Category::kGradients,
                                     shares.numbers() * bytes_of(DType::kF32));
  }

  void add_hooks(PassHooks& hooks) {
    if (!keeps_all_) {
      hooks.gradient = [this](ParameterId id) {
        return shares_.in_passing(all_lines(shares_.bucket_of(id)), id);
      };
      hooks.overwrites_gradients = true;
    }
    hooks.complete = [this](const Pass& pass, ParameterId id) {
      if (keeps_all_ && !pass.is_last) return;
      if (!keeps_all_) fill_padding(pass, id);
      const std::optional<int> bucket = completed_.count(id);
      if (!bucket) return;
      flush();
      waiting_.push_back({*bucket, pass.micro_step == 0});
      if (!waits_for_gathers_) flush();
    };
  }

  /// All buckets, after backward; for a rank that keeps all gradients.
  void scatter_all() {
    for (int bucket = 0; bucket < shares_.count(); ++bucket) scatter(bucket, true);
  }

  /// Scatters the bucket that was completed last, if it is not yet on its way: with stage 3 the
  /// parameters that backward reads next go first.
  void flush() {
    for (const auto& [bucket, is_first] : std::exchange(waiting_, {})) scatter(bucket, is_first);
  }

  /// This rank's share after that, in a row.
  [[nodiscard]] Tensor kept(int bucket) const {
    return (keeps_all_ ? shares_.in_flat(bucket) : shares_.kept(bucket)).of(gradients_);
  }

 private:
  /// A bucket's gradients before they are scattered.
  [[nodiscard]] Tensor all_lines(int bucket) const {
    if (keeps_all_) return shares_.bucket(bucket).lines_of(gradients_);
    return shares_.passing("bucket_gradients", bucket % 2, bucket);
  }

  /// Buckets of other shapes have been in this memory.
  void fill_padding(const Pass& pass, ParameterId id) {
    const Tensor tensor = pass.gradient(id);
    const std::int64_t over = tensor.size() % kLineNumbers;
    if (over == 0) return;
    const Tensor padding{tensor.buffer, tensor.end_bytes(), 1, kLineNumbers - over};
    draft_.add({.op = DeviceOp{Fill{.out = padding}}, .device = pass.device, .phase = pass.phase});
  }

  void scatter(int bucket, bool is_first) {
    if (chunks_ != nullptr) return scatter_chunks(bucket);
    const Tensor all = all_lines(bucket);
    const float scale = draft_.share();
    const Axis axis = draft_.data_axis();
    const bool zero_grad = draft_.spec().update.zero_grad;
    if (keeps_all_ && !zero_grad) {
      return draft_.exchange(AllReduce{.tensors = {all},
                                       .scale = scale,
                                       .axis = axis,
                                       .name = shares_.name_of(bucket, "summed")});
    }
    draft_.exchange(ReduceScatter{.tensors = {all},
                                  .scale = scale,
                                  .axis = axis,
                                  .name = shares_.name_of(bucket, "scattered")});
    if (!keeps_all_) keep(bucket, all, is_first && zero_grad);
  }

  /// The norm is one rank's only if all gradients are added up for it in one order.
  void scatter_chunks(int bucket) {
    const auto& [name, lines, parameters] = shares_.bucket(bucket);
    chunks_->reduce_scatter(lines, name);
    if (draft_.spec().update.clip_norm) chunks_->all_gather(lines, name + " for the norm");
  }

  void keep(int bucket, const Tensor& all, bool is_new) {
    const Tensor own = in_a_row(shares_.own_lines(all));
    if (own.size() == 0) return;
    const DeviceOp op = is_new ? DeviceOp{Copy{.to = kept(bucket), .from = own}}
                               : DeviceOp{SumRows{.out = kept(bucket), .in = own, .beta = 1}};
    draft_.add({.op = op, .lane = Lane::kComm, .phase = Phase::kCommunication});
  }

  Draft& draft_;
  const BucketShares& shares_;
  ChunkSums* chunks_;
  bool keeps_all_;
  bool waits_for_gathers_;
  BucketCounts completed_;
  std::vector<std::pair<int, bool>> waiting_;  // a bucket, and whether it is the step's first of it
  BufferId gradients_ = kNoBuffer;             // of all parameters, or of this rank's shares
};

/// The parameters of whole buckets while passes read them. There are never more than two: the one
/// that is read, and the next one on its way.
class ParameterGathering {
 public:
  /// `reads` are the buckets in the order in which the program reads them.
  ParameterGathering(Draft& draft, const BucketShares& shares, std::vector<int> reads)
      : draft_(draft), shares_(shares), reads_(std::move(reads)) {}

  /// Calls `is_on_its_way` when the gather of what is read next has been added.
  void add_hooks(PassHooks& hooks, const std::function<void()>& is_on_its_way = {}) {
    hooks.weight = [this](ParameterId id) {
      const int bucket = shares_.bucket_of(id);
      return shares_.in_passing(lines_of(bucket, place_of(bucket)), id);
    };
    hooks.before = [this, is_on_its_way](const Pass&, ParameterId id) {
      const int bucket = shares_.bucket_of(id);
      if (next_ > 0 && reads_[next_ - 1] == bucket) return;
      BARESTEP_REQUIRE(next_ < reads_.size() && reads_[next_] == bucket,
                       "parameters are read in the order that was recorded");
      if (next_ == 0) gather(bucket, 0);
      ++next_;
      if (next_ < reads_.size()) {
        const int coming = reads_[next_];
        if (std::ranges::find(held_, coming) == held_.end()) gather(coming, 1 - place_of(bucket));
      }
      if (is_on_its_way) is_on_its_way();
    };
  }

 private:
  [[nodiscard]] int place_of(int bucket) const {
    return static_cast<int>(std::ranges::find(held_, bucket) - held_.begin());
  }

  [[nodiscard]] Tensor lines_of(int bucket, int place) const {
    return shares_.passing("gathered_parameters", place, bucket, type_of(bucket));
  }

  /// Wide parameters, those of norms, are in buckets of their own.
  [[nodiscard]] DType type_of(int bucket) const {
    const ParameterId first = shares_.bucket(bucket).parameters.front();
    return draft_.parameters()[first].is_wide ? DType::kF32 : draft_.spec().model.numbers;
  }

  void gather(int bucket, int place) {
    held_.at(static_cast<std::size_t>(place)) = bucket;
    const FlatBuffers flat = draft_.flat_buffers();
    const DType type = type_of(bucket);
    Tensor own =
        shares_.kept(bucket).of(type == DType::kF32 ? flat.parameters : flat.operands, type);
    own.rows = own.cols / kLineNumbers;
    own.cols = kLineNumbers;
    draft_.exchange(AllGather{.tensors = {lines_of(bucket, place)},
                              .own = {own},
                              .axis = draft_.data_axis(),
                              .name = shares_.name_of(bucket, "gathered")});
  }

  Draft& draft_;
  const BucketShares& shares_;
  std::vector<int> reads_;
  std::size_t next_ = 0;             // of reads_
  std::array<int, 2> held_{-1, -1};  // the bucket in each place
};

/// The buckets that a program of this draft's kind reads, in order: a rank without samples reads
/// the same ones as the others.
std::vector<int> reads_of(const Draft& draft, const std::vector<ShardedBucket>& buckets) {
  const std::map<ParameterId, int> bucket_of = buckets_by_parameter(buckets);
  std::vector<int> reads;
  const PassHooks hooks{.before = [&](const Pass&, ParameterId id) {
    const int bucket = bucket_of.at(id);
    if (reads.empty() || reads.back() != bucket) reads.push_back(bucket);
  }};
  StepSpec spec = draft.spec();
  spec.update.held_parameters.reset();
  Buffers buffers;
  Draft trial(draft.kind(), "reads", draft.rows(), buffers, spec);
  trial.align_micro_steps();
  trial.input();
  if (draft.kind() == StepKind::kEvaluation) {
    static_cast<void>(trial.evaluation_output({}, hooks));
  } else {
    trial.passes({.pass = hooks});
  }
  return reads;
}

/// What this rank updates.
std::vector<UpdatedPart> updated_parts(Draft& draft, const BucketShares& shares,
                                       const GradientScattering& gradients,
                                       bool keeps_all_parameters) {
  const FlatBuffers flat = draft.flat_buffers();
  std::vector<UpdatedPart> parts;
  for (int bucket = 0; bucket < shares.count(); ++bucket) {
    const FlatRange& share = shares.in_flat(bucket);
    const FlatRange& held = keeps_all_parameters ? share : shares.kept(bucket);
    UpdatedPart& part = parts.emplace_back(UpdatedPart{.range = share,
                                                       .parameters = held.of(flat.parameters),
                                                       .gradients = gradients.kept(bucket)});
    if (flat.operands != flat.parameters) {
      part.rounded = held.of(flat.operands, draft.spec().model.numbers);
    }
  }
  return parts;
}

/// The first layers first: the next step reads them first.
void gather_updated(Draft& draft, const BucketShares& shares) {
  const FlatBuffers flat = draft.flat_buffers();
  const auto gather = [&](const Tensor& lines, std::string name) {
    draft.exchange(
        AllGather{.tensors = {lines}, .axis = draft.data_axis(), .name = std::move(name)});
  };
  for (int bucket = shares.count() - 1; bucket >= 0; --bucket) {
    const ShardedBucket& each = shares.bucket(bucket);
    gather(each.lines_of(flat.parameters), shares.name_of(bucket, "gathered"));
    // Rounded by the rank that updated them, which saves another pass over the parameters.
    if (flat.operands == flat.parameters) continue;
    gather(each.lines_of(flat.operands, draft.spec().model.numbers),
           shares.name_of(bucket, "rounded and gathered"));
  }
}

/// "net.2" of "net.2.weight".
std::string_view block_of(std::string_view parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace

std::vector<std::vector<ParameterId>> parameters_by_bucket(
    const std::vector<ShardedBucket>& buckets) {
  std::vector<std::vector<ParameterId>> all;
  for (const ShardedBucket& bucket : buckets) all.push_back(bucket.parameters);
  return all;
}

Tensor ShardedBucket::lines_of(BufferId flat, DType type) const {
  return {flat, range.first * bytes_of(type), range.count / kLineNumbers, kLineNumbers, type};
}

std::vector<ShardedBucket> bucket_lines(const Parameters& parameters, const DdpSettings& settings) {
  std::vector<ShardedBucket> all;
  for (Bucket& bucket : gradient_buckets(parameters, kNoBuffer, settings.first_bucket_bytes,
                                         settings.bucket_bytes)) {
    const std::int64_t first = bucket.gradients.offset_bytes / bytes_of(DType::kF32);
    const std::int64_t lines = (bucket.gradients.cols + kLineNumbers - 1) / kLineNumbers;
    all.push_back({fmt::format("bucket {}", all.size() + 1),
                   {first, lines * kLineNumbers},
                   std::move(bucket.parameters)});
  }
  return all;
}

std::vector<ShardedBucket> Zero::buckets(const Parameters& parameters) const {
  if (stage_ < 3) return bucket_lines(parameters, settings_);
  std::vector<ShardedBucket> blocks;
  for (const ShardedBucket& each :
       bucket_lines(parameters, {.first_bucket_bytes = 1, .bucket_bytes = 1})) {
    const std::string_view block = block_of(parameters[each.parameters.front()].name);
    if (blocks.empty() || blocks.back().name != block) {
      blocks.push_back(each);
      blocks.back().name = block;
      continue;
    }
    ShardedBucket& last = blocks.back();
    last.range.count = each.range.first + each.range.count - last.range.first;
    last.parameters.push_back(each.parameters.front());
  }
  return blocks;
}

std::vector<FlatRange> Zero::held(Category category, const Parameters& parameters, int rank,
                                  int ranks) const {
  const bool is_shared_out = category == Category::kOptimizer ||
                             (category == Category::kGradients && !keeps_gradients_) ||
                             (category == Category::kParameters && stage_ >= 3);
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
  const BucketShares shares(draft, buckets(draft.parameters()));
  std::optional<ChunkSums> chunks;
  if (draft.spec().chunk_rows > 0) chunks.emplace(draft);
  GradientScattering gradients(draft, shares, keeps_gradients_, stage_ >= 3,
                               chunks ? &*chunks : nullptr);
  std::optional<ParameterGathering> parameters;
  PassHooks hooks;
  if (stage_ >= 2 || settings_.overlap) gradients.add_hooks(hooks);
  if (stage_ >= 3) {
    draft.align_micro_steps();
    parameters.emplace(draft, shares, reads_of(draft, shares.buckets()));
    parameters->add_hooks(hooks, [&gradients] { gradients.flush(); });
  }
  if (chunks) hooks = chunks->hooks(std::move(hooks));
  draft.input();
  draft.passes({.pass = hooks, .loss_ready = loss_ready});
  gradients.flush();
  if (stage_ == 1 && !settings_.overlap) gradients.scatter_all();
  const auto add_up = [&](const char* name) {
    return [&draft, axis, name](const Tensor& number) {
      draft.exchange(AllReduce{.tensors = {number}, .axis = axis, .name = name});
    };
  };
  UpdateOptions options{.parts = updated_parts(draft, shares, gradients, stage_ < 3),
                        .norm_is_of_all = chunks.has_value(),
                        .found_inf_ready = add_up("overflow of gradients")};
  if (!chunks) options.squares_ready = add_up("squares of gradients");
  draft.update(options);
  if (stage_ < 3) gather_updated(draft, shares);
}

void Zero::evaluate(Draft& draft) const {
  if (stage_ < 3) return Scheme::evaluate(draft);
  const BucketShares shares(draft, buckets(draft.parameters()));
  ParameterGathering parameters(draft, shares, reads_of(draft, shares.buckets()));
  PassHooks hooks;
  parameters.add_hooks(hooks);
  draft.input();
  draft.evaluate(draft.evaluation_output({}, hooks));
}

}  // namespace barestep
