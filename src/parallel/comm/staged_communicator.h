// Collectives over device memory, staged through the host.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Lets a communicator over host memory serve a device whose memory the host cannot access. A
/// collective's tensor is copied to pinned memory piece by piece, reduced there and copied back,
/// all in the order of its stream. One tensor per collective.
class StagedCommunicator final : public Communicator {
 public:
  /// Size of a piece: small enough for MPI's fast paths, large enough for a fast copy.
  static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

  /// Allocates `piece_bytes` of pinned memory, a multiple of the size of a number. Both references
  /// must outlive the communicator.
  StagedCommunicator(Communicator& host, Device& device, std::int64_t piece_bytes = kPieceBytes);
  ~StagedCommunicator() override;
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;
  void broadcast(std::span<std::byte> bytes, int root) override { host_.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    host_.all_gather(bytes, all);
  }
  void barrier() override { host_.barrier(); }
  [[nodiscard]] std::string poll_error() override { return host_.poll_error(); }
  void abort(ExitCode code) noexcept override { host_.abort(code); }

 private:
  /// A part of a collective's tensor, and the collective over the pinned memory that transfers it.
  struct Piece {
    Tensor part;
    Collective over_pinned;
  };

  struct Prepared {
    std::optional<Copy> first_copy{};  // for a gather: copies this rank's rows to their place
    std::vector<Piece> pieces{};
  };

  template <class Op>
  void add_pieces(const Op& op, std::vector<Piece>& pieces) const;
  void prepare_gather(const AllGather& op, Prepared& prepared) const;

  Communicator& host_;
  Device& device_;
  std::int64_t piece_bytes_;
  std::byte* pinned_;
  Addresses pinned_addresses_;
  std::map<const Collective*, Prepared> prepared_;
};

}  // namespace barestep
