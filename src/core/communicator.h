// The interface between programs and other ranks.
//
// Every rank calls the same methods in the same order. Ranks are numbered across all processes; a
// process that drives n devices holds n consecutive ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/addresses.h"
#include "core/device.h"
#include "core/error.h"
#include "core/ops.h"
#include "core/record.h"

namespace barestep {

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// All work that run() must not do. Call once for each collective before its first run. Blocks.
  virtual void prepare(const Collective& collective) = 0;

  /// Queues; `streams` has one stream per tensor of the collective. Part i completes in stream i.
  virtual void run(const Collective& collective, const Addresses& addresses,
                   std::span<Stream* const> streams, Tag tag) = 0;

  /// False if the communicator cannot measure.
  [[nodiscard]] virtual bool sends_records() const { return false; }

  /// From now on, sends a record of every collective to `sink`, starting when this rank began it.
  /// Null stops that. Call while no work is queued. Sends nothing unless sends_records().
  virtual void set_record_sink(RecordSink* /*sink*/) {}

  /// Copies host bytes from `root` to every rank. Blocks.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  /// `all` receives size() times bytes.size() bytes, in rank order. Blocks.
  virtual void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) = 0;

  /// Blocks until every rank has called it.
  virtual void barrier() = 0;

  /// Why collectives can no longer succeed; empty while they can. Does not block.
  [[nodiscard]] virtual std::string poll_error() = 0;

  /// Gives up. Blocked ranks either return or exit with `code`.
  virtual void abort(ExitCode code) noexcept = 0;

  /// The ranks that give the same `color`, in the order of their ranks, with messages of their own.
  /// Every rank calls it, for all groups in the same order. This communicator must outlive the
  /// group. Blocks.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int /*color*/) {
    BARESTEP_REQUIRE(false, "these ranks do not form groups");
    return nullptr;
  }
};

/// Every rank's value, in rank order. Every rank calls it. Blocks.
template <class T>
std::vector<T> gather_values(Communicator& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// The same of a string or a vector, whose length may differ between ranks.
template <class List>
std::vector<List> gather_lists(Communicator& ranks, List mine) {
  const std::vector<std::int64_t> sizes = gather_values(ranks, std::int64_t{std::ssize(mine)});
  mine.resize(static_cast<std::size_t>(std::ranges::max(sizes)));
  List padded;
  padded.resize(sizes.size() * mine.size());
  ranks.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(padded)));
  std::vector<List> all;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto begin = padded.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
    all.emplace_back(begin, begin + sizes[rank]);
  }
  return all;
}

}  // namespace barestep
