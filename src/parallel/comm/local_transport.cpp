#include "parallel/comm/local_transport.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace barestep {

struct LocalTransport::Prepared {
  /// One part of a sum: the numbers in `from` are copied to `by`, unless both are the same tensor,
  /// and added from there.
  struct Addition {
    Tensor from;
    Tensor by;
    DeviceOp add;
  };

  std::vector<Tensor> tensors;
  std::size_t root = 0;
  bool reduces = false;
  std::vector<Addition> additions{};
  // One per tensor. The root's is recorded when the root may be read or added to. The others' are
  // recorded when they may be read or, if they are copied to, when the copy is complete.
  std::vector<std::unique_ptr<Event>> events{};
  std::unique_ptr<Event> done;  // the root no longer needs the others
};

LocalTransport::LocalTransport(std::vector<Device*> devices, std::optional<Tensor> piece)
    : Transport(0, static_cast<int>(devices.size())), devices_(std::move(devices)), piece_(piece) {}

LocalTransport::~LocalTransport() = default;

void LocalTransport::prepare(const Collective& collective) {
  auto made = std::make_unique<Prepared>();
  if (const auto* broadcast = std::get_if<Broadcast>(&collective)) {
    made->tensors = broadcast->tensors;
    made->root = static_cast<std::size_t>(broadcast->root);
  } else {
    const auto* reduce = std::get_if<Reduce>(&collective);
    BARESTEP_REQUIRE(reduce != nullptr, "devices of one process broadcast and reduce");
    made->tensors = reduce->tensors;
    made->root = static_cast<std::size_t>(reduce->root);
    made->reduces = true;
  }
  const auto& tensors = made->tensors;
  BARESTEP_REQUIRE(tensors.size() <= devices_.size() && made->root < tensors.size(),
                   "a collective has a device for each tensor, and its root");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    made->events.push_back(devices_[i]->new_event(EventUse::kOrder));
  }
  made->done = devices_[made->root]->new_event(EventUse::kOrder);

  const Tensor& sum = tensors[made->root];
  const std::int64_t max = piece_ ? piece_->size() : std::max(sum.size(), std::int64_t{1});
  for (std::size_t i = 0; made->reduces && i < tensors.size(); ++i) {
    for (std::int64_t first = 0; i != made->root && first < sum.size(); first += max) {
      const std::int64_t count = std::min(max, sum.size() - first);
      const Tensor from = tensors[i].flat_slice(first, count);
      const Tensor by = piece_ ? piece_->flat_slice(0, count) : from;
      // With one row, the column sums are that row.
      const SumRows add{.out = sum.flat_slice(first, count), .in = by, .beta = 1};
      made->additions.push_back({from, by, add});
      devices_[made->root]->prepare(made->additions.back().add);
    }
  }
  prepared_[&collective] = std::move(made);
}

void LocalTransport::run(const Collective& collective, const Addresses& addresses,
                         std::span<Stream* const> streams, Tag tag) {
  const auto found = prepared_.find(&collective);
  BARESTEP_REQUIRE(found != prepared_.end(), "the collective was not prepared");
  if (found->second->reduces) {
    run_reduce(*found->second, addresses, streams, tag);
  } else {
    run_broadcast(*found->second, addresses, streams);
  }
}

void LocalTransport::run_broadcast(const Prepared& made, const Addresses& addresses,
                                   std::span<Stream* const> streams) const {
  Stream& root = *streams[made.root];
  made.events[made.root]->record(root);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (i == made.root) continue;
    streams[i]->wait(*made.events[made.root]);
    devices_[i]->copy(addresses.at<std::byte>(made.tensors[i]),
                      addresses.at<std::byte>(made.tensors[made.root]), made.tensors[i].bytes(),
                      *streams[i]);
    made.events[i]->record(*streams[i]);
    // Later work on the root may overwrite what is read here.
    root.wait(*made.events[i]);
  }
}

void LocalTransport::run_reduce(const Prepared& made, const Addresses& addresses,
                                std::span<Stream* const> streams, Tag tag) const {
  Stream& root = *streams[made.root];
  Device& device = *devices_[made.root];
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (i == made.root) continue;
    made.events[i]->record(*streams[i]);
    root.wait(*made.events[i]);
  }
  for (const Prepared::Addition& addition : made.additions) {
    if (addition.by != addition.from) {
      device.copy(addresses.at<std::byte>(addition.by), addresses.at<std::byte>(addition.from),
                  addition.from.bytes(), root);
    }
    device.run(addition.add, addresses, root, {tag.program, tag.step, kPartOfNode});
  }
  made.done->record(root);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (i != made.root) streams[i]->wait(*made.done);
  }
}

}  // namespace barestep
