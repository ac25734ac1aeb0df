#include "parallel/staged_communicator.h"

#include <algorithm>
#include <variant>

namespace barestep {

StagedCommunicator::StagedCommunicator(Communicator& host, Device& device, std::int64_t piece_bytes)
    : host_(host),
      device_(device),
      piece_bytes_(piece_bytes),
      pinned_(device.allocate(piece_bytes, MemoryKind::kPinned)),
      pinned_addresses_({pinned_}) {}

StagedCommunicator::~StagedCommunicator() {
  device_.release(pinned_, MemoryKind::kPinned);
}

void StagedCommunicator::prepare(const Collective& collective) {
  std::vector<Piece>& pieces = pieces_[&collective];
  pieces.clear();
  std::visit(
      [&](const auto& op) {
        BARESTEP_REQUIRE(op.tensors.size() == 1, "a rank has one device");
        const Tensor& whole = op.tensors[0];
        const std::int64_t step = piece_bytes_ / bytes_of(whole.dtype);
        for (std::int64_t first = 0; first < whole.size(); first += step) {
          const std::int64_t count = std::min(step, whole.size() - first);
          Piece piece{.part = {whole.buffer, whole.offset_bytes + first * bytes_of(whole.dtype), 1,
                               count, whole.dtype},
                      .over_pinned = op};
          std::get<std::decay_t<decltype(op)>>(piece.over_pinned).tensors = {
              Tensor{0, 0, 1, count, whole.dtype}};
          pieces.push_back(std::move(piece));
        }
      },
      collective);
  for (const Piece& piece : pieces) host_.prepare(piece.over_pinned);
}

void StagedCommunicator::run(const Collective& collective, const Addresses& addresses,
                             std::span<Stream* const> streams, Tag tag) {
  const auto prepared = pieces_.find(&collective);
  BARESTEP_REQUIRE(prepared != pieces_.end(), "the collective was not prepared");
  for (const Piece& piece : prepared->second) {
    auto* const part = addresses.at<std::byte>(piece.part);
    device_.copy(pinned_, part, piece.part.bytes(), *streams[0]);
    host_.run(piece.over_pinned, pinned_addresses_, streams, tag);
    device_.copy(part, pinned_, piece.part.bytes(), *streams[0]);
  }
}

}  // namespace barestep
