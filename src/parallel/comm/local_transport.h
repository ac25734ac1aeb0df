// Collectives between the devices of one process, built from the devices' own copies and sums.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/transport.h"

namespace barestep {

/// Joins all ranks, one per device of this process. A collective has one tensor on each of the
/// first devices, in device order; its root is one of these devices.
///
/// A broadcast copies to every other device; each copy is queued in that device's stream. A reduce
/// adds the other devices' numbers to the root's, one device after the other, so sums are
/// reproducible to the bit. The root reads the other devices' memory directly where it can;
/// otherwise their numbers are copied to it piece by piece.
class LocalTransport final : public Transport {
 public:
  /// `piece` is a flat buffer on the root of every reduce, used only by the stream of the root's
  /// part; it is empty if devices can read each other's memory. The devices must outlive the
  /// transport.
  LocalTransport(std::vector<Device*> devices, std::optional<Tensor> piece);
  ~LocalTransport() override;
  LocalTransport(const LocalTransport&) = delete;
  LocalTransport& operator=(const LocalTransport&) = delete;

  /// Accepts broadcasts and reduces. Errors appear in the devices' streams.
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;

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
