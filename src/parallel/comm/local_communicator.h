// Collectives between the devices of one process, built from the devices' own copies and sums.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Joins all ranks, one per device of this process. A collective has one tensor on each of the
/// first devices, in device order; its root is one of these devices.
///
/// A broadcast copies to every other device; each copy is queued in that device's stream. A reduce
/// adds the other devices' numbers to the root's, one device after the other, so sums are
/// reproducible to the bit. The root reads the other devices' memory directly where it can;
/// otherwise their numbers are copied to it piece by piece.
class LocalCommunicator final : public Communicator {
 public:
  /// `piece` is a flat buffer on the root of every reduce, used only by the stream of the root's
  /// part; it is empty if devices can read each other's memory. The devices must outlive the
  /// communicator.
  LocalCommunicator(std::vector<Device*> devices, std::optional<Tensor> piece);
  ~LocalCommunicator() override;
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return static_cast<int>(devices_.size()); }

  /// Accepts broadcasts and reduces.
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;

  /// With one process, the result is what it sends.
  void broadcast(std::span<std::byte> /*bytes*/, int /*root*/) override {}
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override;
  void barrier() override {}
  /// Errors appear in the devices' streams.
  [[nodiscard]] std::string poll_error() override { return ""; }
  void abort(ExitCode /*code*/) noexcept override {}

 private:
  struct Prepared;

  void run_broadcast(const Prepared& made, const Addresses& addresses,
                     std::span<Stream* const> streams) const;
  void run_reduce(const Prepared& made, const Addresses& addresses,
                  std::span<Stream* const> streams, Tag tag) const;

  std::vector<Device*> devices_;
  std::optional<Tensor> piece_;
  std::map<const Collective*, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace barestep
