// Collectives between the devices of one process, by the devices' own copies and sums.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"

namespace barestep {

/// Joins all ranks: every device of this process is one. A collective has a tensor on each of the
/// first devices, in their order, and its root is one of these.
///
/// A broadcast is a copy to every other device, queued in that device's stream. A reduce adds the
/// other devices' numbers to the root's, one device after the other, so that sums repeat to the
/// bit. Where the root can read the others' memory, it does; else their numbers come to it by
/// pieces.
class LocalCommunicator final : public Communicator {
 public:
  /// `piece` is a flat buffer on the root of every reduce, which only the stream of its part uses,
  /// or nothing where devices can read each other's memory. The devices must outlive it.
  LocalCommunicator(std::vector<Device*> devices, std::optional<Tensor> piece);
  ~LocalCommunicator() override;
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return static_cast<int>(devices_.size()); }

  /// Takes broadcasts and reduces.
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;

  /// One process has what it sends.
  void broadcast(std::span<std::byte> /*bytes*/, int /*root*/) override {}
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override;
  void barrier() override {}
  /// What fails, fails in a device's stream.
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
