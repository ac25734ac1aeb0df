#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/index.h"
#include "parallel/schemes/other_schemes.h"

namespace barestep {
namespace {

/// A bucket in a flat buffer, in a row.
Tensor in_flat(const ShardedBucket& bucket, BufferId flat, DType type = DType::kF32) {
  return bucket.range.of(flat, type);
}

/// The name of an exchange with a server: "bucket 1, pushed by rank 2".
std::string by(const std::string& name, int rank) {
  return fmt::format("{} by rank {}", name, rank);
}

/// What travels between a rank and the servers in a step.
class ServerTraffic {
 public:
  ServerTraffic(Draft& draft, ServerReduce reduce, std::vector<ShardedBucket> buckets,
                std::vector<int> servers)
      : draft_(draft),
        reduce_(reduce),
        buckets_(std::move(buckets)),
        servers_(std::move(servers)),
        rank_(draft.spec().mesh.data_rank()),
        ranks_(draft.spec().mesh.data),
        gradients_(draft.require_gradients()),
        is_pushed_(buckets_.size(), false),
        completed_(parameters_by_bucket(buckets_)) {}

  [[nodiscard]] PassHooks hooks() {
    return {.complete = [this](const Pass& pass, ParameterId id) {
      if (!pass.is_last) return;
      if (const auto bucket = completed_.count(id)) push(*bucket);
    }};
  }

  /// What is left after backward.
  void push_all() {
    for (int bucket = 0; bucket < std::ssize(buckets_); ++bucket) {
      if (!is_pushed_[static_cast<std::size_t>(bucket)]) push(bucket);
    }
  }

  [[nodiscard]] std::vector<UpdatedPart> served() const {
    const FlatBuffers flat = draft_.flat_buffers();
    std::vector<UpdatedPart> parts;
    for (int number = 0; number < std::ssize(buckets_); ++number) {
      if (at(servers_, number) != rank_) continue;
      const ShardedBucket& bucket = at(buckets_, number);
      UpdatedPart& part =
          parts.emplace_back(UpdatedPart{.range = bucket.range,
                                         .parameters = in_flat(bucket, flat.parameters),
                                         .gradients = in_flat(bucket, gradients_)});
      if (flat.operands != flat.parameters) {
        part.rounded = in_flat(bucket, flat.operands, draft_.spec().model.numbers);
      }
    }
    return parts;
  }

  void pull_all() {
    const FlatBuffers flat = draft_.flat_buffers();
    for (int bucket = static_cast<int>(std::ssize(buckets_)) - 1; bucket >= 0; --bucket) {
      const std::string& name = at(buckets_, bucket).name;
      pull(bucket, in_flat(at(buckets_, bucket), flat.parameters), name + ", pulled");
      if (flat.operands == flat.parameters) continue;
      pull(bucket, in_flat(at(buckets_, bucket), flat.operands, draft_.spec().model.numbers),
           name + ", rounded and pulled");
    }
  }

 private:
  void push(int bucket) {
    is_pushed_[static_cast<std::size_t>(bucket)] = true;
    const int server = at(servers_, bucket);
    const Tensor own = in_flat(at(buckets_, bucket), gradients_);
    scale(own);
    const std::string name = at(buckets_, bucket).name + ", pushed";
    if (reduce_ == ServerReduce::kTree) {
      return draft_.exchange(
          Reduce{.tensors = {own}, .root = server, .axis = draft_.data_axis(), .name = name});
    }
    if (rank_ != server) return exchange(server, own, std::nullopt, by(name, rank_));
    if (ranks_ == 1) return;
    std::int64_t largest = 0;
    for (const ShardedBucket& each : buckets_) largest = std::max(largest, each.range.count);
    const BufferId buffer = draft_.buffers().get("pushed_gradients", Category::kCommunication,
                                                 (ranks_ - 1) * largest * bytes_of(DType::kF32));
    const Tensor pushed{buffer, 0, ranks_ - 1, own.cols};
    // The servers of the next buckets first: they then serve while others push to this one.
    for (int turn = 1; turn < ranks_; ++turn) {
      const int rank = (server + turn) % ranks_;
      const int place = rank < server ? rank : rank - 1;
      exchange(rank, std::nullopt, pushed.row_slice(place, 1), by(name, rank));
    }
    draft_.add({.op = DeviceOp{SumRows{.out = own, .in = pushed, .beta = 1}},
                .lane = Lane::kComm,
                .phase = Phase::kCommunication});
  }

  /// A rank's gradient is that of the mean over its own rows, as with DDP: in fp16, smaller numbers
  /// would become zero.
  void scale(const Tensor& gradients) {
    if (draft_.share() == 1) return;
    draft_.add({.op = DeviceOp{SumRows{
                    .out = gradients, .in = gradients.row_slice(0, 0), .beta = draft_.share()}},
                .lane = Lane::kComm,
                .phase = Phase::kCommunication});
  }

  void pull(int bucket, const Tensor& weights, const std::string& name) {
    const int server = at(servers_, bucket);
    if (reduce_ == ServerReduce::kTree) {
      return draft_.exchange(Broadcast{
          .tensors = {weights}, .root = server, .axis = draft_.data_axis(), .name = name});
    }
    if (rank_ != server) return exchange(server, std::nullopt, weights, by(name, rank_));
    for (int turn = ranks_ - 1; turn > 0; --turn) {
      const int rank = (server + turn) % ranks_;
      exchange(rank, weights, std::nullopt, by(name, rank));
    }
  }

  void exchange(int peer, const std::optional<Tensor>& sends, const std::optional<Tensor>& receives,
                const std::string& name) {
    draft_.exchange(SendReceive{.sends = sends,
                                .receives = receives,
                                .peer = peer,
                                .axis = draft_.data_axis(),
                                .name = name});
  }

  Draft& draft_;
  ServerReduce reduce_;
  std::vector<ShardedBucket> buckets_;
  std::vector<int> servers_;  // by bucket
  int rank_, ranks_;          // of those that share the batch
  BufferId gradients_;
  std::vector<bool> is_pushed_;  // by bucket
  BucketCounts completed_;
};

}  // namespace

std::vector<int> ParameterServer::servers_of(const std::vector<ShardedBucket>& buckets) const {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(servers_), 0);
  std::vector<int> servers;
  for (const ShardedBucket& bucket : buckets) {
    const auto least = std::ranges::min_element(numbers);
    *least += bucket.range.count;
    servers.push_back(static_cast<int>(least - numbers.begin()));
  }
  return servers;
}

void ParameterServer::build(Draft& draft) const {
  const Draft::Ready loss_ready = draft.share_loss(draft.share());
  std::vector<ShardedBucket> buckets = bucket_lines(draft.parameters(), settings_);
  std::vector<int> servers = servers_of(buckets);
  ServerTraffic traffic(draft, reduce_, std::move(buckets), std::move(servers));
  draft.input();
  draft.passes(
      {.pass = settings_.overlap ? traffic.hooks() : PassHooks{}, .loss_ready = loss_ready});
  traffic.push_all();
  const auto add_up = [&](const char* name) {
    return [&draft, name](const Tensor& number) {
      draft.exchange(AllReduce{.tensors = {number}, .axis = draft.data_axis(), .name = name});
    };
  };
  draft.update({.parts = traffic.served(),
                .squares_ready = add_up("squares of gradients"),
                .found_inf_ready = add_up("overflow of gradients")});
  traffic.pull_all();
}

std::vector<FlatRange> ParameterServer::held(Category category, const Parameters& parameters,
                                             int rank, int ranks) const {
  if (category != Category::kOptimizer) return Scheme::held(category, parameters, rank, ranks);
  const std::vector<ShardedBucket> buckets = bucket_lines(parameters, settings_);
  const std::vector<int> servers = servers_of(buckets);
  std::vector<FlatRange> ranges;
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (servers[bucket] == rank) ranges.push_back(buckets[bucket].range);
  }
  return ranges;
}

}  // namespace barestep
