#include "core/touched_bytes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/index.h"

namespace barestep {
namespace {

/// The first piece that the tensor touches, and the one after the last.
std::pair<std::size_t, std::size_t> range_of(const std::vector<std::int64_t>& ends,
                                             const Tensor& tensor) {
  if (tensor.bytes() == 0) return {0, 0};
  const auto after = std::upper_bound(ends.begin(), ends.end(), tensor.offset_bytes);
  const auto end = std::lower_bound(after, ends.end(), tensor.end_bytes());
  const auto first = after == ends.begin() ? after : after - 1;
  return {static_cast<std::size_t>(first - ends.begin()),
          static_cast<std::size_t>(end - ends.begin())};
}

}  // namespace

TouchedBytes::TouchedBytes(const Program& program)
    : program_(program), pieces_(static_cast<std::size_t>(program.buffers().size())) {
  for (const Node& node : program.nodes()) {
    for (const Access& access : accesses_of(node.op)) {
      auto& ends = at(pieces_, access.tensor.buffer).ends;
      ends.push_back(access.tensor.offset_bytes);
      ends.push_back(access.tensor.end_bytes());
    }
  }
  for (auto& [ends, touches] : pieces_) {
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    touches.resize(ends.size());
  }
}

void TouchedBytes::enter(NodeId id) {
  const Node& node = program_.node(id);
  const auto parts = parts_of(node.op);
  const auto lanes = lanes_of(program_, node);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (const Access& access : parts[part]) {
      auto& touches = of_buffer(access.tensor.buffer).touches;
      const auto [first, end] = range_of(of_buffer(access.tensor.buffer).ends, access.tensor);
      for (std::size_t i = first; i < end; ++i) {
        auto touch = std::ranges::find(touches[i], lanes[part], &Touch::lane);
        if (touch == touches[i].end()) touch = touches[i].insert(touch, {.lane = lanes[part]});
        (access.writes ? touch->writer : touch->reader) = id;
      }
    }
  }
}

std::span<const std::vector<Touch>> TouchedBytes::pieces_of(const Tensor& tensor) const {
  const auto& [ends, touches] = at(pieces_, tensor.buffer);
  const auto [first, end] = range_of(ends, tensor);
  return std::span(touches).subspan(first, end - first);
}

}  // namespace barestep
