#include <cstdint>
#include <map>
#include <set>

#include "core/index.h"
#include "core/ops.h"
#include "lab/predict/simulator.h"

namespace barestep {
namespace {

/// Bytes of the pieces of a buffer, whose last uses are kept: small enough to tell narrow layers
/// apart, and few in a large buffer.
std::int64_t piece_bytes(const Buffer& buffer) {
  constexpr std::int64_t kLeast = 1 << 10, kMostPieces = 1 << 14;
  return std::max(kLeast, buffer.bytes / kMostPieces);
}

struct TouchedBytes {
  BufferId buffer = kNoBuffer;
  std::int64_t begin = 0, end = 0;

  [[nodiscard]] double size() const { return static_cast<double>(end - begin); }
  friend auto operator<=>(const TouchedBytes&, const TouchedBytes&) = default;
};
using Touched = std::set<TouchedBytes>;

TouchedBytes touched_bytes(const Tensor& tensor) {
  return {tensor.buffer, tensor.offset_bytes, tensor.offset_bytes + tensor.bytes()};
}

Touched touched_by(const Op& op) {
  Touched all;
  for (const Access& access : accesses_of(op)) all.insert(touched_bytes(access.tensor));
  return all;
}

/// Steps of a program, one after the other.
class ReachWalk {
 public:
  explicit ReachWalk(const Program& program)
      : program_(program), used_at_(static_cast<std::size_t>(program.buffers().size())) {}

  std::vector<Reach> step() {
    std::vector<Reach> reaches;
    for (const Node& node : program_.nodes()) reaches.push_back(reach_of(node.op));
    return reaches;
  }

 private:
  /// Of a device.
  struct Clock {
    double now = 0;  // bytes touched, as often as they were
    double all = 0;  // different ones
  };

  Reach reach_of(const Op& op) {
    const Touched touched = touched_by(op);
    Reach reach;
    double longest = 0;
    for (const TouchedBytes& range : touched) {
      reach.own += range.size();
      longest = std::max(longest, range.size());
    }
    const Gemm* const gemm = op_if<Gemm>(op);
    const TouchedBytes weights =
        gemm == nullptr ? TouchedBytes{} : touched_bytes(gemm->transpose_a ? gemm->c : gemm->b);
    double sum = 0, counted = 0;
    for (const TouchedBytes& range : touched) {
      Clock& clock = clock_of(range);
      // An op goes through its longest operands once, beside which it uses the others all the time.
      const bool is_streamed = range.size() == longest;
      for_pieces(range, [&](double& used_at, double size, double place) {
        const double begin = clock.now + (is_streamed ? place * reach.own : 0);
        if (gemm == nullptr || range == weights) {
          sum += size * (used_at == kNever ? 0 : begin - used_at);
          counted += size;
        }
        if (used_at == kNever) clock.all += size;
        used_at = is_streamed ? begin : clock.now + reach.own;
      });
    }
    std::set<Clock*> clocks;
    for (const TouchedBytes& range : touched) clocks.insert(&clock_of(range));
    for (Clock* const clock : clocks) {
      clock->now += reach.own;
      if (counted > 0) reach.bytes = std::min(sum / counted, clock->all);
    }
    return reach;
  }

  /// function(when it was used, its bytes, its place from 0 to 1) for each piece of a range.
  template <class Function>
  void for_pieces(const TouchedBytes& range, const Function& function) {
    std::vector<double>& pieces = at(used_at_, range.buffer);
    const std::int64_t bytes = piece_bytes(program_.buffers()[range.buffer]);
    const std::int64_t last = (range.end + bytes - 1) / bytes;
    if (std::ssize(pieces) < last) pieces.resize(static_cast<std::size_t>(last), kNever);
    for (std::int64_t piece = range.begin / bytes; piece < last; ++piece) {
      const std::int64_t begin = std::max(range.begin, piece * bytes);
      const std::int64_t end = std::min(range.end, (piece + 1) * bytes);
      if (begin >= end) continue;
      function(at(pieces, piece), static_cast<double>(end - begin),
               static_cast<double>(begin - range.begin) / range.size());
    }
  }

  Clock& clock_of(const TouchedBytes& range) {
    return clocks_[program_.buffers()[range.buffer].device];
  }

  static constexpr double kNever = -1;

  const Program& program_;
  std::vector<std::vector<double>> used_at_;  // by buffer and piece
  std::map<int, Clock> clocks_;               // by device
};

}  // namespace

std::vector<Reach> reaches_of(const Program& program) {
  ReachWalk walk(program);
  walk.step();  // what the next one finds
  return walk.step();
}

}  // namespace barestep
