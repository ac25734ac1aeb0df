// Collectives over device memory, staged through the host.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/transport.h"

namespace barestep {

/// One thread that runs functions for others.
class HostThread {
 public:
  HostThread() : thread_([this] { work(); }) {}
  ~HostThread();
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;

  /// Returns when the function is done. Calls from several threads are served one after the other.
  void run(void (*function)(void*), void* argument);

 private:
  void work();

  std::mutex one_by_one_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  void (*function_)(void*) = nullptr;  // to run now
  void* argument_ = nullptr;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

/// Lets a transport over host memory serve a device whose memory the host cannot access. A
/// collective's tensor is copied to pinned memory piece by piece, reduced there and copied back,
/// all in the order of its stream. One tensor per collective.
///
/// The host's part runs on a thread of its own, for which the stream waits: on the thread from
/// which CUDA calls a stream's functions, calls to CUDA are forbidden, and an MPI that knows CUDA
/// asks it about every buffer.
class StagedTransport final : public Transport {
 public:
  /// Size of a piece: small enough for MPI's fast paths, large enough for a fast copy.
  static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

  /// Allocates `piece_bytes` of pinned memory, a multiple of twice the size of a number. Both
  /// references must outlive the transport.
  StagedTransport(Transport& host, Device& device, std::int64_t piece_bytes = kPieceBytes);
  /// The same for a group of the host's ranks, which it owns.
  StagedTransport(std::unique_ptr<Transport> host, Device& device, std::int64_t piece_bytes);
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;
  [[nodiscard]] std::string poll_error() override { return host_.poll_error(); }
  std::unique_ptr<Transport> split(int color) override {
    return std::make_unique<StagedTransport>(host_.split(color), device_, piece_bytes_);
  }

 private:
  /// A part of a collective: what is copied to the pinned memory, the collective over it, and what
  /// is copied back from there.
  struct Piece {
    Collective over_pinned;
    std::optional<Tensor> sent{}, received{};  // on the device
    std::int64_t received_at = 0;              // in the pinned memory
  };

  /// A function that the stream calls, with its argument, on the host's thread.
  struct Job {
    HostThread* thread;
    void (*function)(void*);
    void* argument;
  };
  class HandingStream;

  struct Prepared {
    std::optional<Copy> first_copy{};  // for a gather: copies this rank's rows to their place
    std::vector<Piece> pieces{};
  };

  template <class Op>
  void add_pieces(const Op& op, std::vector<Piece>& pieces) const;
  void prepare_gather(const AllGather& op, Prepared& prepared) const;
  void prepare_exchange(const SendReceive& op, std::vector<Piece>& pieces) const;

  std::unique_ptr<Transport> own_host_;  // may be null
  Transport& host_;
  Device& device_;
  std::int64_t piece_bytes_;
  std::byte* pinned_;
  // One for each slot, since the host tells calls in progress by their addresses.
  std::array<Addresses, 2> pinned_addresses_;
  std::map<const Collective*, Prepared> prepared_;
  std::map<void*, Job> jobs_;  // by argument; kept, because streams read them later
  HostThread thread_;
};

}  // namespace barestep
