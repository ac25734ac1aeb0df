#include "parallel/comm/staged_transport.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/ops.h"
#include "train/step_marks.h"

namespace barestep {
namespace {

/// A piece of device memory, at this place in the pinned memory.
Tensor in_pinned(std::int64_t offset_bytes, const Tensor& part) {
  return {0, offset_bytes, 1, part.size(), part.dtype};
}

}  // namespace

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
class StagedTransport::HandingStream final : public Stream {
 public:
  HandingStream(StagedTransport& owner, Stream& stream) : owner_(owner), stream_(stream) {}

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
  StagedTransport& owner_;
  Stream& stream_;
};

StagedTransport::StagedTransport(Transport& host, Device& device, std::int64_t piece_bytes)
    : Transport(host.rank(), host.size()),
      host_(host),
      device_(device),
      piece_bytes_(piece_bytes),
      pinned_(device.allocate(piece_bytes, MemoryKind::kPinned)),
      pinned_addresses_{Addresses({pinned_}), Addresses({pinned_})} {}

StagedTransport::StagedTransport(std::unique_ptr<Transport> host, Device& device,
                                 std::int64_t piece_bytes)
    : StagedTransport(*host, device, piece_bytes) {
  own_host_ = std::move(host);
}

StagedTransport::~StagedTransport() {
  device_.release(pinned_, MemoryKind::kPinned);
}

void StagedTransport::prepare(const Collective& collective) {
  Prepared& prepared = prepared_[&collective];
  prepared = {};
  std::visit(Overloaded{[&](const auto& op) { add_pieces(op, prepared.pieces); },
                        // Pieces of rows have no owner, so every rank gets all sums.
                        [&](const ReduceScatter& op) {
                          add_pieces(AllReduce{.tensors = op.tensors, .scale = op.scale},
                                     prepared.pieces);
                        },
                        [&](const AllGather& op) { prepare_gather(op, prepared); },
                        [&](const SendReceive& op) { prepare_exchange(op, prepared.pieces); }},
             collective);
  for (const Piece& piece : prepared.pieces) host_.prepare(piece.over_pinned);
}

template <class Op>
void StagedTransport::add_pieces(const Op& op, std::vector<Piece>& pieces) const {
  BARESTEP_REQUIRE(op.tensors.size() == 1, "a rank has one device");
  const Tensor& whole = op.tensors[0];
  const std::int64_t step = piece_bytes_ / bytes_of(whole.dtype);
  for (std::int64_t first = 0; first < whole.size(); first += step) {
    const std::int64_t count = std::min(step, whole.size() - first);
    const Tensor part = whole.flat_slice(first, count);
    Op over_pinned = op;
    over_pinned.tensors = {in_pinned(0, part)};
    pieces.push_back({.over_pinned = std::move(over_pinned), .sent = part, .received = part});
  }
}

/// Each direction has half of the pinned memory, so pieces are half as large. What a rank sends in
/// a piece, its peer receives in the same one.
void StagedTransport::prepare_exchange(const SendReceive& op, std::vector<Piece>& pieces) const {
  const std::int64_t half = piece_bytes_ / 2;
  const auto part_of = [&](const std::optional<Tensor>& tensor,
                           std::int64_t first) -> std::optional<Tensor> {
    if (!tensor || first >= tensor->bytes()) return std::nullopt;
    return Tensor{tensor->buffer, tensor->offset_bytes + first, 1,
                  std::min(half, tensor->bytes() - first), DType::kU8};
  };
  const std::int64_t bytes = std::max(op.sent_bytes(), op.received_bytes());
  for (std::int64_t first = 0; first < bytes; first += half) {
    Piece piece{.over_pinned = {},
                .sent = part_of(op.sends, first),
                .received = part_of(op.receives, first),
                .received_at = half};
    SendReceive exchange{.peer = op.peer};
    if (piece.sent) exchange.sends = in_pinned(0, *piece.sent);
    if (piece.received) exchange.receives = in_pinned(half, *piece.received);
    piece.over_pinned = std::move(exchange);
    pieces.push_back(std::move(piece));
  }
}

/// Broadcasts each rank's rows.
void StagedTransport::prepare_gather(const AllGather& op, Prepared& prepared) const {
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

void StagedTransport::run(const Collective& collective, const Addresses& addresses,
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
    if (const auto& sent = piece.sent) {
      device_.copy(pinned_, addresses.at<std::byte>(*sent), sent->bytes(), *streams[0]);
    }
    host_.run(piece.over_pinned, pinned_addresses_[slot_of(tag.step)], host_streams, tag);
    if (const auto& received = piece.received) {
      device_.copy(addresses.at<std::byte>(*received), pinned_ + piece.received_at,
                   received->bytes(), *streams[0]);
    }
  }
}

}  // namespace barestep
