// Collectives over device memory by way of the host.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Lets a communicator over host memory serve a device whose memory the host cannot reach: piece by
/// piece, a collective's tensor is copied to pinned memory, reduced there, and copied back, all in
/// the order of its stream. One tensor per collective.
class StagedCommunicator final : public Communicator {
 public:
  /// What a piece holds: small enough for MPI's fast paths, large enough for a copy's.
  static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

  /// Takes `piece_bytes` of pinned memory, a multiple of a number's size. Both references must
  /// outlive it.
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
  /// A part of a collective's tensor, and the collective over the pinned memory that carries it.
  struct Piece {
    Tensor part;
    Collective over_pinned;
  };

  struct Prepared {
    std::optional<Copy> first_copy{};  // of a gather: this rank's rows to their place
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
