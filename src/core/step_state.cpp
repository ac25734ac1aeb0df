// What a step needs from the one before it and changes for the one after it.
#include <algorithm>
#include <iterator>
#include <map>

#include "core/program.h"

namespace barestep {
namespace {

/// Byte ranges of a buffer, none of which touch: begin and end.
class ByteRanges {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    auto next = all_.upper_bound(begin);
    if (next != all_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != all_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = all_.erase(next);
    }
    all_[begin] = end;
  }

  /// Calls use(begin, end) for each part of a range that is in here, or for those that are not.
  template <class Use>
  void visit(std::int64_t begin, std::int64_t end, bool inside, const Use& use) const {
    auto next = all_.upper_bound(begin);
    if (next != all_.begin()) --next;
    for (; next != all_.end() && next->first < end; ++next) {
      if (next->second <= begin) continue;
      const std::int64_t from = std::max(next->first, begin);
      const std::int64_t to = std::min(next->second, end);
      if (inside && from < to) use(from, to);
      if (!inside && begin < from) use(begin, from);
      begin = to;
    }
    if (!inside && begin < end) use(begin, end);
  }

  [[nodiscard]] const std::map<std::int64_t, std::int64_t>& all() const { return all_; }

 private:
  std::map<std::int64_t, std::int64_t> all_;
};

}  // namespace

std::vector<Tensor> state_of_step(const Program& program, int device) {
  std::map<BufferId, ByteRanges> written, read_first;
  for (const Node& node : program.nodes()) {
    for (const auto& [tensor, writes] : accesses_of(node.op)) {
      if (program.buffers()[tensor.buffer].device != device) continue;
      const std::int64_t begin = tensor.offset_bytes, end = tensor.end_bytes();
      if (writes) {
        written[tensor.buffer].add(begin, end);
      } else {
        ByteRanges& first = read_first[tensor.buffer];
        written[tensor.buffer].visit(begin, end, false,
                                     [&](auto from, auto to) { first.add(from, to); });
      }
    }
  }
  std::vector<Tensor> state;
  for (const auto& first : read_first) {
    for (const auto& [begin, end] : first.second.all()) {
      written[first.first].visit(begin, end, true, [&](auto from, auto to) {
        state.push_back({first.first, from, 1, to - from, DType::kU8});
      });
    }
  }
  return state;
}

}  // namespace barestep
