// The ranks of a job, as their hosts see each other: messages of bytes in host memory.
//
// Every rank calls the same methods in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace barestep {

class Group {
 public:
  virtual ~Group() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Copies bytes from `root` to every rank. Blocks.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  /// `all` receives size() times bytes.size() bytes, in rank order. Blocks.
  virtual void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) = 0;

  /// Blocks until every rank has called it.
  virtual void barrier() = 0;

  /// Gives up. Blocked ranks either return or exit with `code`.
  virtual void abort(ExitCode code) noexcept = 0;

 protected:
  Group(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

/// Every rank's value, in rank order. Every rank calls it. Blocks.
template <class T>
std::vector<T> gather_values(Group& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// The same of a string or a vector, whose length may differ between ranks.
template <class List>
std::vector<List> gather_lists(Group& ranks, List mine) {
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
