// Which nodes of a program touched each byte of its buffers last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/index.h"
#include "core/program.h"

namespace barestep {

constexpr NodeId kNoNode = -1;

/// The last nodes on one lane that read and wrote some bytes. A lane is FIFO, so where these are
/// finished, so are all earlier ones on it.
struct Touch {
  LaneId lane;
  NodeId reader = kNoNode;
  NodeId writer = kNoNode;
};

/// Filled by a walk over the program's nodes. Buffers are cut into pieces where some access begins
/// or ends, so that a piece is touched as a whole. A query costs as much as the pieces that it
/// covers; over a whole program that is far less than there are pairs of nodes.
class TouchedBytes {
 public:
  /// Nothing is touched yet. `program` must outlive this and keep its nodes.
  explicit TouchedBytes(const Program& program);

  /// The next node of the walk. A program may be walked again, and the later walk then counts.
  void enter(NodeId node);

  /// The pieces that share a byte with the tensor, and for each one the lanes that touched it. An
  /// empty tensor shares none.
  [[nodiscard]] std::span<const std::vector<Touch>> pieces_of(const Tensor& tensor) const;

 private:
  /// Of a buffer: piece i reaches from ends[i] to ends[i + 1], the last one to the buffer's end.
  struct Pieces {
    std::vector<std::int64_t> ends;
    std::vector<std::vector<Touch>> touches;
  };

  [[nodiscard]] Pieces& of_buffer(BufferId buffer) { return at(pieces_, buffer); }

  const Program& program_;
  std::vector<Pieces> pieces_;  // by buffer
};

}  // namespace barestep
