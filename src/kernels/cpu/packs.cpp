#include "kernels/cpu/packs.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace barestep {
namespace {

/// The numbers that a task packs: some microseconds.
constexpr std::int64_t kNumbers = 16384;

/// Groups of a task: enough that runs of memory are read, and not so many that what is written
/// falls out of the first-level cache, where a deep group is a multiple of a page from the next.
constexpr std::int64_t kLeastTogether = 8;

}  // namespace

void pack_panel(const VectorKernels& kernels, const OperandSide& side, std::int64_t first,
                std::int64_t begin, std::int64_t depth, float* to) {
  kernels.pack(side.values + first * side.step + begin * side.depth_step, side.step,
               side.depth_step, std::min(kernels.panel, side.extent - first), depth, to);
}

void pack_panels(const VectorKernels& kernels, const OperandSide& side, float* to,
                 ThreadPool& pool) {
  const std::int64_t width = kernels.panel;
  const std::int64_t depth = std::max<std::int64_t>(1, kNumbers / width);
  const std::int64_t parts = std::max<std::int64_t>(1, slices_of(side.depth, depth));
  pool.run(slices_of(side.extent, width) * parts, [&](std::int64_t task, int) {
    const std::int64_t slice = task / parts;
    const std::int64_t begin = task % parts * depth;
    pack_panel(kernels, side, slice * width, begin, std::min(depth, side.depth - begin),
               to + (slice * side.depth + begin) * width);
  });
}

void pack_groups(const OperandSide& side, float* to, ThreadPool& pool) {
  const std::int64_t whole = side.extent / kGroupRows, rest = side.extent % kGroupRows;
  const std::int64_t together =
      std::max(kLeastTogether, kNumbers / kGroupRows / std::max<std::int64_t>(1, side.depth));
  const std::int64_t depth = kNumbers / (kGroupRows * together);
  const std::int64_t parts = std::max<std::int64_t>(1, slices_of(side.depth, depth));
  const std::int64_t across = slices_of(slices_of(side.extent, kGroupRows), together);
  pool.run(across * parts, [&](std::int64_t task, int) {
    const std::int64_t first = task / parts * together, end = first + together;
    const std::int64_t begin = task % parts * depth;
    for (std::int64_t k = begin; k < std::min(side.depth, begin + depth); ++k) {
      const float* const row = side.values + k * side.depth_step;
      const auto group = [&](std::int64_t number) {
        return to + (number * side.depth + k) * kGroupRows;
      };
      for (std::int64_t i = first; i < std::min(whole, end); ++i) {
        std::copy_n(row + i * kGroupRows, kGroupRows, group(i));
      }
      if (rest == 0 || whole >= end) continue;
      std::fill_n(std::copy_n(row + whole * kGroupRows, rest, group(whole)), kGroupRows - rest,
                  0.0F);
    }
  });
}

void Packs::reserve(std::int64_t floats) {
  if (floats <= size_) return;
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + kLine - 1) / kLine;
  for (Memory& memory : memory_) {
    memory.floats.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes * kLine)));
    if (memory.floats == nullptr) throw std::bad_alloc();
  }
  size_ = floats;
}

Packs::Taken Packs::take() {
  std::unique_lock lock(memory_[0].mutex, std::try_to_lock);
  if (lock.owns_lock()) return {std::move(lock), memory_[0].floats.get()};
  return {std::unique_lock(memory_[1].mutex), memory_[1].floats.get()};
}

}  // namespace barestep
