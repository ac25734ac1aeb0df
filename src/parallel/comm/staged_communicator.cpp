#include "parallel/comm/staged_communicator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/ops.h"
#include "train/step_marks.h"

namespace barestep {

HostThread::~HostThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostThread::run(void (*function)(void*), void* argument) {
  const std::lock_guard in_turn(one_by_one_);
  std::unique_lock lock(mutex_);
  function_ = function;
  argument_ = argument;
  changed_.notify_all();
  changed_.wait(lock, [&] { return function_ == nullptr; });
}

void HostThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || function_ != nullptr; });
    if (function_ == nullptr) return;
    lock.unlock();
    function_(argument_);
    lock.lock();
    function_ = nullptr;
    changed_.notify_all();
  }
}

/// A stream whose functions run on the host's thread.
class StagedCommunicator::HandingStream final : public Stream {
 public:
  HandingStream(StagedCommunicator& owner, Stream& stream) : owner_(owner), stream_(stream) {}

  void call(void (*function)(void*), void* argument) override {
    const auto [job, is_new] =
        owner_.jobs_.try_emplace(argument, Job{&owner_.thread_, function, argument});
    BARESTEP_REQUIRE(job->second.function == function, "an argument belongs to one function");
    stream_.call(
        [](void* handed) {
          const auto& [thread, run, with] = *static_cast<Job*>(handed);
          thread->run(run, with);
        },
        &job->second);
  }
  void wait(const Event& event) override { stream_.wait(event); }
  void synchronize() override { stream_.synchronize(); }
  void check() override { stream_.check(); }
  void set_workspace(std::span<std::byte> memory) override { stream_.set_workspace(memory); }
  [[nodiscard]] void* native() const override { return stream_.native(); }

 private:
  StagedCommunicator& owner_;
  Stream& stream_;
};

StagedCommunicator::StagedCommunicator(Communicator& host, Device& device, std::int64_t piece_bytes)
    : host_(host),
      device_(device),
      piece_bytes_(piece_bytes),
      pinned_(device.allocate(piece_bytes, MemoryKind::kPinned)),
      pinned_addresses_{Addresses({pinned_}), Addresses({pinned_})} {}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, Device& device,
                                       std::int64_t piece_bytes)
    : StagedCommunicator(*host, device, piece_bytes) {
  own_host_ = std::move(host);
}

StagedCommunicator::~StagedCommunicator() {
  device_.release(pinned_, MemoryKind::kPinned);
}

void StagedCommunicator::prepare(const Collective& collective) {
  Prepared& prepared = prepared_[&collective];
  prepared = {};
  std::visit(Overloaded{[&](const auto& op) { add_pieces(op, prepared.pieces); },
                        // Pieces of rows have no owner, so every rank gets all sums.
                        [&](const ReduceScatter& op) {
                          add_pieces(AllReduce{.tensors = op.tensors, .scale = op.scale},
                                     prepared.pieces);
                        },
                        [&](const AllGather& op) { prepare_gather(op, prepared); }},
             collective);
  for (const Piece& piece : prepared.pieces) host_.prepare(piece.over_pinned);
}

template <class Op>
void StagedCommunicator::add_pieces(const Op& op, std::vector<Piece>& pieces) const {
  BARESTEP_REQUIRE(op.tensors.size() == 1, "a rank has one device");
  const Tensor& whole = op.tensors[0];
  const std::int64_t step = piece_bytes_ / bytes_of(whole.dtype);
  for (std::int64_t first = 0; first < whole.size(); first += step) {
    const std::int64_t count = std::min(step, whole.size() - first);
    Op over_pinned = op;
    over_pinned.tensors = {Tensor{0, 0, 1, count, whole.dtype}};
    pieces.push_back(
        {.part = whole.flat_slice(first, count), .over_pinned = std::move(over_pinned)});
  }
}

/// Broadcasts each rank's rows.
void StagedCommunicator::prepare_gather(const AllGather& op, Prepared& prepared) const {
  const Tensor& whole = op.tensors[0];
  if (!op.own.empty()) {
    prepared.first_copy = Copy{.to = share_of_rank(whole, rank(), size()), .from = op.own[0]};
    BARESTEP_REQUIRE(prepared.first_copy->to.rows == op.own[0].rows,
                     "a rank's own rows are its share");
  }
  for (int root = 0; root < size(); ++root) {
    const Tensor rows = share_of_rank(whole, root, size());
    add_pieces(Broadcast{.tensors = {rows}, .root = root}, prepared.pieces);
  }
}

void StagedCommunicator::run(const Collective& collective, const Addresses& addresses,
                             std::span<Stream* const> streams, Tag tag) {
  const auto found = prepared_.find(&collective);
  BARESTEP_REQUIRE(found != prepared_.end(), "the collective was not prepared");
  const Prepared& prepared = found->second;
  if (const auto& first = prepared.first_copy) {
    device_.copy(addresses.at<std::byte>(first->to), addresses.at<std::byte>(first->from),
                 first->to.bytes(), *streams[0]);
  }
  HandingStream handing(*this, *streams[0]);
  Stream* const host_streams[] = {&handing};
  for (const Piece& piece : prepared.pieces) {
    auto* const part = addresses.at<std::byte>(piece.part);
    device_.copy(pinned_, part, piece.part.bytes(), *streams[0]);
    host_.run(piece.over_pinned, pinned_addresses_[slot_of(tag.step)], host_streams, tag);
    device_.copy(part, pinned_, piece.part.bytes(), *streams[0]);
  }
}

}  // namespace barestep
